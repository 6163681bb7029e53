#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Each allocation of each call fails in turn, and then memory runs out at any point of some: the call
gives a documented errno or succeeds, what was there goes on working, and all is given back.

FAULTS names the entry points to try, as a regular expression.
"""

import collections
import contextlib
import errno
import gc
import mmap
import os
import re
import time

import faults
import kopi
import memory
from calls import (attach, bind, call_on_region, close_idle, close_in_flight, connect, epoll_add, error_queue,
                   fork, get_options, join, map_region, open_channel, pass_in, pass_out, poll_many, recv,
                   signals, sleep, touch, unmap_last)
from control import family
from equivalence import namespace, sh
from injection import attempt, nth, once
from kopi import OFFLOADS, Wrong
from sending import KINDS, LARGE, SMALL, by_reference, doorbell, lost, new_socket, send

# What the kernel makes of it: register_netdevice() ignores that there is no memory for a device's name in sysfs,
# and device_add() then finds none.
KERNELS = {"attach a device, receiving": {errno.EINVAL}}


@contextlib.contextmanager
def slow(device, delay):
    """A device that takes its time, in ms, so that the stack has frames meanwhile."""
    sh(f"tc qdisc add dev {device} root netem delay {delay}ms")
    try:
        yield
    finally:
        sh(f"tc qdisc del dev {device} root")


def entries(paths):
    """Name, steps, the same of an ordinary socket if it has such a call, and what is around it."""
    lo4, lo6, nic4, nic6, veth = (paths[name] for name in ("lo4", "lo6", "nic4", "nic6", "veth"))

    def both(name, steps, path, **kind):
        return (f"{name}, {path.name}", lambda: steps(path, **kind),
                lambda: steps(path, ordinary=True, **kind))

    def own(name, steps, path, *arguments):
        return f"{name}, {path.name}", lambda: steps(path, *arguments), None

    for path in lo4, lo6:
        yield both("socket", new_socket, path)
        yield both("bind", bind, path)
        yield both("connect", connect, path)
        yield (f"bind with a channel, {path.name}", lambda path=path: bind(path, channel=True),
               lambda path=path: bind(path, ordinary=True))
        yield (f"connect with a channel, {path.name}", lambda path=path: connect(path, channel=True),
               lambda path=path: connect(path, ordinary=True))
    yield own("channel, small", open_channel, lo4, SMALL)
    yield own("channel, small, GSO packets", open_channel, lo6, SMALL | {"flags": OFFLOADS})
    yield own("channel, large, GSO packets", open_channel, lo4, LARGE | {"flags": OFFLOADS})
    yield own("options", get_options, lo4)
    yield own("join, the first", join, lo4, 0)
    yield own("join, GSO packets", join, lo6, 0, OFFLOADS)
    yield own("join, the seventeenth", join, lo4, 15)
    yield own("mmap", map_region, lo4)
    yield own("touch", touch, lo4)
    yield own("mprotect", call_on_region("mprotect", 1), lo4)
    yield own("munmap", call_on_region("munmap"), lo4)
    for path in lo4, lo6, nic4, nic6, veth:
        for kind, (_, _, referred) in KINDS.items():
            # Where it can be; and each datagram that a NIC's driver cuts a GSO packet into takes long.
            if (path in (nic4, nic6) and (referred or kind == "GSO packet of metadata")
                    or path is veth and not referred):
                continue
            known = [0]
            yield (f"doorbell, {kind}, {path.name}",
                   lambda path=path, kind=kind, known=known: doorbell(path, kind, known),
                   lambda path=path, kind=kind: send(path, kind, ordinary=True), known)
    for path in lo4, nic6:
        for kind in "copied", "metadata", "by reference", "gso":
            yield both(f"sendmsg, {kind}", send, path, kind=kind)
        yield (f"sendmsg beside rings, {path.name}",
               lambda path=path: send(path, "copied", channel=True),
               lambda path=path: send(path, "copied", ordinary=True))
        yield both("recvmsg", recv, path)
        yield both("error queue", error_queue, path)
    yield both("poll", poll_many, lo4)
    yield both("poll that sleeps", poll_many, lo6, timeout=10)
    yield both("epoll", epoll_add, lo4)
    yield own("doorbell that sleeps for nothing", sleep, lo4, "nothing")
    yield own("doorbell that sleeps for something", sleep, lo4, "something")
    yield both("O_ASYNC", signals, lo4)
    yield both("pass a descriptor", pass_out, lo4)
    yield both("get a descriptor", pass_in, lo4)
    yield both("close", close_idle, lo4)
    yield both("close without a channel", close_idle, lo6, channel=False)
    yield own("munmap of a closed flow", unmap_last, lo4)
    yield own("close with frames in flight", close_in_flight, veth)
    yield own("fork", fork, lo4)
    with namespace("host"):
        ynl = family()
    expected = kopi.ctypes.c_char.from_buffer(mmap.mmap(-1, 3 * mmap.PAGESIZE))
    yield "attach a device", lambda: attach(ynl, None), None
    yield "attach a device, receiving", lambda: attach(ynl, expected), None


def around(name):
    """What is to be there while an entry point is tried."""
    if "in flight" in name:
        return slow("near", 300)
    return slow("near", 100) if name.endswith("veth") else contextlib.nullcontext()


# Memory runs out in these, too: in those that allocate for themselves. Not in fork(), which passes
# that on to the child.
DRY = re.compile("socket|connect|channel|join|mmap|munmap|doorbell, (copied|by reference|GSO packet), lo|O_ASYNC|"
                 "epoll|pass|close|attach")


def main():
    """Tries all."""
    began = time.monotonic()
    kopi.send_by_reference()
    paths = {"lo4": faults.Path("lo4", "127.0.0.1", "127.0.0.1", "host"),
             "lo6": faults.Path("lo6", "::1", "::1", "host"),
             "nic4": faults.Path("nic4", "192.0.2.1", "192.0.2.2", "peer"),
             "nic6": faults.Path("nic6", "2001:db8::1", "2001:db8::2", "peer"),
             "veth": faults.Path("veth", "198.51.100.1", "198.51.100.2", "away")}
    expected = re.compile(os.environ.get("FAULTS", ""))
    chosen = [entry for entry in entries(paths) if expected.search(entry[0])]
    with faults.own_cgroup() as kernel_memory, namespace("host"):
        # What is made once only, such as modules that are loaded and neighbours that are found.
        for name, steps, ordinary, *_ in chosen:
            with around(name):
                for one in filter(None, (steps, ordinary)):
                    with contextlib.suppress(Wrong, OSError):
                        once(one, nth, 1 << 30)
        gc.collect()
        gc.disable()
        faults.forget_leaks()
        before = memory.slabs()
        total = collections.Counter()
        for name, steps, ordinary, *known in chosen:
            start = time.monotonic()
            if known:
                known[0][0] = faults.losses("host", "away" if "veth" in name else "peer")
            with around(name):
                total += attempt((name, steps, ordinary), kernel_memory, KERNELS.get(name, set()), DRY.search(name))
            print(f"#   {time.monotonic() - start:.1f} s", flush=True)
        gc.enable()
        for name in ("by reference, veth", "chain, veth", "GSO packet by reference, veth"):
            if name in by_reference:
                kopi.check(f"{name}: the stack did have the frames", by_reference[name] > 0)
        print(f"# {len(chosen)} entry points: {total['faults']} allocations failed in turn, memory ran out at "
              f"{total['points']} points, {total['refused']} errors")
        kopi.ran("allocations, each in turn", time.monotonic() - began, entry_points=len(chosen),
                 failed_in_turn=total["faults"], points_without_memory=total["points"])
        print(f"# lost after the stack took them, and counted by it: {dict(lost)}")
    faults.check_all_is_back(before)


faults.add_veth()
try:
    with faults.settings(faults.OF_TASKS):
        main()
finally:
    faults.remove_veth()
kopi.finish()
