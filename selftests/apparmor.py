# SPDX-License-Identifier: GPL-2.0
"""Profiles of AppArmor's, for tests: all is allowed but what a rule denies."""

import contextlib
import os

from equivalence import sh

FILE = "/tmp/apparmor.profiles"


@contextlib.contextmanager
def profiles(rules):
    """Has the kernel know a profile kopi-NAME for each name, with its rule."""
    if not os.path.isdir("/sys/kernel/security/apparmor"):
        sh("mount -t securityfs securityfs /sys/kernel/security", False)
    with open(FILE, "w", encoding="ascii") as file:
        file.write("abi <abi/4.0>,\n" + "".join(
            f"profile kopi-{name} flags=(attach_disconnected) {{ file, capability, unix, signal, "
            f"network, {rule} }}\n" for name, rule in rules.items()))
    sh(f"apparmor_parser -r -K {FILE}")
    try:
        yield
    finally:
        sh(f"apparmor_parser -R -K {FILE}")


def confine(name):
    """From now on this process is under a profile."""
    with open("/proc/self/attr/apparmor/current", "w", encoding="ascii") as current:
        current.write(f"changeprofile kopi-{name}")
