# SPDX-License-Identifier: GPL-2.0
"""The limits of net.kopi.*, for the selftests that change them."""

import contextlib

ROOT = "/proc/sys/net/kopi"


def get(name):
    """A limit."""
    with open(f"{ROOT}/{name}", encoding="ascii") as file:
        return int(file.read())


def put(name, value):
    """Sets a limit."""
    with open(f"{ROOT}/{name}", "w", encoding="ascii") as file:
        file.write(str(value))


@contextlib.contextmanager
def limited(**limits):
    """Other limits while the block runs."""
    before = {name: get(name) for name in limits}
    try:
        for name, value in limits.items():
            put(name, value)
        yield
    finally:
        for name, value in before.items():
            put(name, value)
