# SPDX-License-Identifier: GPL-2.0
"""What the selftests of attached devices share: the host's eth0, and how to look at it."""

import contextlib
import json
import os
import socket

from equivalence import namespace, sh

SO_RCVBUFFORCE = 33
ADDRESSES = {4: ("192.0.2.1", "192.0.2.2"), 6: ("2001:db8::1", "2001:db8::2")}
# Changes of the way, of each kind.
CHANGES = int(os.environ.get("CHANGES", "15"))


def link(ynl, name="eth0"):
    """What is said of an attached device."""
    with namespace("host"):
        index = socket.if_nametoindex(name)
    return next(each for each in ynl.dump("device-get", {}) if each["ifindex"] == index)


def host(command):
    """Runs a command in the host's namespace."""
    return sh(f"nsenter --net=/run/netns/host {command}")


def kopictl(*words):
    """Runs kopictl in the host's namespace."""
    return host(" ".join(("kopictl", *words)))


def attach():
    """Attaches it, and as new if it is already."""
    if json.loads(kopictl("info", "--json")).get("devices"):
        kopictl("detach", "eth0")
    kopictl("attach", "eth0")


@contextlib.contextmanager
def detached():
    """It isn't attached."""
    kopictl("detach", "eth0")
    try:
        yield
    finally:
        kopictl("attach", "eth0")
