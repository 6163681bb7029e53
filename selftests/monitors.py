# SPDX-License-Identifier: GPL-2.0
"""Monitor devices, and what they show."""

import select
import socket
import struct
import subprocess

from linux import ETH_P_ALL

HEADER = struct.Struct("=4B7I2Q2I16s2I")
NAMES = ("version len direction verdict reason rule ifindex flow pid uid gid cgroup exe_inode exe_device gso_size "
         "command").split()
OUT, IN = 1, 2
PASSED, DROPPED, REFUSED = range(3)
RING_FULL, NO_FRAME, TOO_LONG, RULE, RATE = range(1, 6)


def ip(*arguments):
    """Runs ip(8); says whether it went well."""
    return subprocess.run(("ip", *arguments), stderr=subprocess.DEVNULL, check=False).returncode == 0


class Monitor:
    """A device that is up, and a packet socket on it."""

    def __init__(self, name="kopimon7"):
        self.name = name
        subprocess.run(("ip", "link", "add", name, "type", "kopimon"), check=True)
        subprocess.run(("ip", "link", "set", name, "up"), check=True)
        self.tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.tap.bind((name, ETH_P_ALL))
        self.tap.setblocking(False)

    def close(self):
        self.tap.close()
        ip("link", "del", self.name)

    def next(self, patience=30.0):
        """The next packet's header, by name, and the packet; None if none comes."""
        if not select.select([self.tap], [], [], patience)[0]:
            return None
        frame = self.tap.recv(70000)
        seen = dict(zip(NAMES, HEADER.unpack_from(frame)))
        return seen, frame[seen["len"]:]

    def is_quiet(self):
        """Whether no more comes, for a while."""
        return self.next(0.2) is None
