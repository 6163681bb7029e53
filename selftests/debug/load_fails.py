#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Any allocation fails while the module is loaded: it isn't loaded then, or all kinds of sockets work."""

import ctypes
import errno
import itertools
import os
import socket

from faults import NTH, get, put
import kopi
import memory

FINIT_MODULE = 313
MODULE = f"/kopi/build/{os.uname().release}/kopi.ko"
KINDS = ((socket.SOCK_DGRAM, 0), (socket.SOCK_DGRAM, kopi.UDP6), (socket.SOCK_STREAM, 0), (socket.SOCK_STREAM, kopi.TCP6))
# More allocations than a load makes.
ALLOCATIONS_MAX = 20000
libc = ctypes.CDLL(None, use_errno=True)


def load(nth):
    """Loads the module; the nth allocation fails. Gives the errno, and whether there were so many."""
    with open(MODULE, "rb") as file:
        put(NTH, nth)
        result = libc.syscall(FINIT_MODULE, file.fileno(), b"", 0)
        wrong = ctypes.get_errno() if result else 0
        left = int(get(NTH))
        put(NTH, 0)
    return wrong, left == 0


def works():
    """Opens and closes a socket of each kind."""
    for kind, proto in KINDS:
        socket.socket(kopi.AF_KOPI, kind, proto).close()


kopi.expect(memory.unload(), "the module goes")
before = memory.counts()
failed = loaded = 0
for nth in itertools.count(1):
    wrong, was_reached = load(nth)
    if not was_reached or nth > ALLOCATIONS_MAX:
        break
    if wrong:
        failed += 1
        kopi.expect(wrong in (errno.ENOMEM, errno.ENFILE, errno.EINTR), f"allocation {nth}: errno {wrong}")
        kopi.expect(not os.path.exists("/sys/module/kopi"), f"allocation {nth}: it isn't there")
        continue
    loaded += 1
    works()
    kopi.expect(memory.unload(), f"allocation {nth}: the module goes")
print(f"# {failed} loads failed, {loaded} succeeded nevertheless")
kopi.check("loads fail by allocations", failed > 100, failed)
kopi.check("and the last one works", wrong == 0 and works() is None)
kopi.expect(memory.unload(), "the module goes again")
kopi.check("nothing is left", not (grown := memory.grown(before, 400, {"VmallocUsed:": 512, "Percpu:": 512, "Taken:": 8192}))[0],
           grown)
kopi.expect(memory.load(), "the module comes again")
