#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Allocations fail while the module is loaded, all of sockets and a part of all others: the module isn't loaded then,
or all kinds of sockets work."""

import ctypes
import errno
import os
import socket

from faults import NTH, OF_TASKS, get, put, settings
import kopi
import memory

FINIT_MODULE = 313
MODULE = f"/kopi/build/{os.uname().release}/kopi.ko"
KINDS = ((socket.SOCK_DGRAM, 0), (socket.SOCK_DGRAM, kopi.UDP6), (socket.SOCK_STREAM, 0), (socket.SOCK_STREAM, kopi.TCP6))
# Loads in which an allocation of another kind fails; a load has thousands of these.
OTHERS = int(os.environ.get("COUNT", "120"))
# More allocations than a load makes.
NONE = 1 << 30
# Allocations from slabs fail, and not the pages of the module's code.
OF_SLABS = OF_TASKS | {"fail_page_alloc/min-order": 10}
# What a socket is made of.
SLABS = [f"/sys/kernel/slab/{name}/failslab" for name in ("sock_inode_cache", "UDP", "UDPv6", "TCP", "TCPv6")]
REFUSED = (errno.ENOMEM, errno.ENFILE, errno.ENOBUFS)
libc = ctypes.CDLL(None, use_errno=True)


def load(nth):
    """Loads the module; the nth allocation fails. Gives the errno, and how many allocations are left to that one."""
    with open(MODULE, "rb") as file:
        put(NTH, nth)
        result = libc.syscall(FINIT_MODULE, file.fileno(), b"", 0)
        wrong = ctypes.get_errno() if result else 0
        left = int(get(NTH))
        put(NTH, 0)
    return wrong, left


def open_all_kinds():
    """Opens and closes a socket of each kind."""
    for kind, proto in KINDS:
        socket.socket(kopi.AF_KOPI, kind, proto).close()


def fail(steps):
    """Loads the module again and again, each time with another allocation that fails; gives how many loads failed."""
    wrong, left = load(NONE)
    kopi.expect(wrong == 0, "the module comes", wrong)
    kopi.expect(memory.unload(), "the module goes")
    allocations = NONE - left
    failed = loaded = 0
    for nth in range(1, allocations + 1, max(allocations // steps, 1)):
        wrong, left = load(nth)
        if wrong:
            failed += 1
            kopi.expect(wrong in REFUSED, f"allocation {nth}: errno", wrong)
            kopi.expect(not os.path.exists("/sys/module/kopi"), f"allocation {nth}: it isn't there")
            continue
        loaded += 1
        open_all_kinds()
        kopi.expect(memory.unload(), f"allocation {nth}: the module goes")
    print(f"# of {allocations} allocations: {failed} loads failed, {loaded} succeeded nevertheless")
    return failed


kopi.expect(memory.unload(), "the module goes")
before = memory.counts()
with settings(OF_SLABS):
    kopi.check("loads fail by allocations of all kinds", fail(OTHERS) > 0)
    for slab in SLABS:
        put(slab, 1)
    with settings({"failslab/cache-filter": "Y"}):
        kopi.check("and by each of a socket's", fail(NONE) >= len(SLABS))
    for slab in SLABS:
        put(slab, 0)
grown = memory.grown(before, 400, {"VmallocUsed:": 512, "Percpu:": 512, "Taken:": 8192})
kopi.check("nothing is left", not grown[0], grown)
kopi.expect(memory.load(), "the module comes again")
kopi.check("and it works", open_all_kinds() is None)
kopi.finish()
