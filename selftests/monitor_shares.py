#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What the stack drops before UDP is shown to each user, however many monitors others have up.

There is place for fifteen namespaces beside the first one.
"""

import os
import pwd
import socket
import subprocess

import kopi
import memory
from kopi import check
from linux import CLONE_NEWNET, CLONE_NEWUSER
from monitors import DROPPED, IN, Monitor

PLACES, PORT = 15, 6000
DROP = f"table ip t {{ chain c {{ type filter hook input priority 0; udp dport {PORT} drop; }}; }}"


def serve(commands):
    """In namespaces of a user's own: has a monitor, and says for each command whether it shows a drop."""
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
    monitor, flow = Monitor(), None
    commands.send(b"up")
    while commands.recv(1) != b"q":
        if flow is None:
            subprocess.run(("nft", DROP), check=True)
            flow, sender = kopi.flow(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            flow.bind(("127.0.0.1", PORT))
        sender.sendto(b"dropped", ("127.0.0.1", PORT))
        seen = monitor.next(3)
        is_shown = seen is not None and (seen[0]["direction"], seen[0]["verdict"]) == (IN, DROPPED)
        commands.send(b"yes" if is_shown else b"no")
    monitor.close()


class Place:
    """A process of a user's in namespaces of his own, with a monitor."""

    def __init__(self, name):
        self.commands, theirs = socket.socketpair()
        uid = pwd.getpwnam(name).pw_uid

        def work():
            self.commands.close()
            os.setresuid(uid, uid, uid)
            os.unshare(CLONE_NEWUSER | CLONE_NEWNET)
            theirs.send(b"there")
            theirs.recv(1)
            serve(theirs)

        self.pid = kopi.in_child(work)
        theirs.close()
        self.commands.recv(10)
        with open(f"/proc/{self.pid}/uid_map", "w", encoding="ascii") as users:
            users.write(f"0 {uid} 1")
        self.commands.send(b"m")
        kopi.expect(self.commands.recv(10) == b"up", "a monitor comes up")

    def shows(self):
        """Whether it shows what is dropped."""
        self.commands.send(b"?")
        return self.commands.recv(10) == b"yes"

    def close(self):
        self.commands.send(b"q")
        os.waitpid(self.pid, 0)
        self.commands.close()


BOBS = [Place("bob") for _ in range(PLACES + 1)]
check("a monitor shows what is dropped before UDP", BOBS[0].shows())
check("one more than there are places for doesn't", not BOBS[-1].shows())
ALICES = Place("alice")
check("another user's does", ALICES.shows())
check("and so do those that came first", BOBS[0].shows())
for PLACE in BOBS[:4]:
    PLACE.close()
check("one without a place gets one that comes free", BOBS[-1].shows())
check("and nobody loses his", ALICES.shows())
for PLACE in BOBS[4:] + [ALICES]:
    PLACE.close()
check("nothing holds the module", memory.wait_until_unused())
kopi.finish()
