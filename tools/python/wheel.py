# SPDX-License-Identifier: GPL-2.0
"""Writes the wheel, as PEP 517 and PEP 427 have it: `pip install tools/python`, or `python3 wheel.py DIRECTORY`."""

import base64
import hashlib
import pathlib
import sys
import tomllib
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
# The first moment that a zip file knows: the same files make the same wheel.
EPOCH = (1980, 1, 1, 0, 0, 0)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517's hook: writes the wheel, and gives its name."""
    del config_settings, metadata_directory
    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
    name = f"{project['name']}-{project['version']}"
    info = f"{name}.dist-info"
    files = {f"kopi/{path.name}": path.read_bytes() for path in sorted((HERE / "kopi").glob("*.py"))}
    files[f"{info}/METADATA"] = (f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
                                 f"Summary: {project['description']}\nLicense: GPL-2.0-only\n"
                                 f"Requires-Python: {project['requires-python']}\n").encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: kopi\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    wheel = f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return wheel


if __name__ == "__main__":
    print(build_wheel(sys.argv[1]))
