#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A reader that waits for its ring uses no CPU, and wakes as fast as one that waits for a socket.

NARRATE=1 prints an account instead; SCENARIO_SECONDS is how long the readers wait.
"""

import mmap
import os
import select
import signal
import socket
import statistics
import struct
import sys
import time

import kopi
from equivalence import namespace

SECONDS = float(os.environ.get("SCENARIO_SECONDS", "10"))
NARRATE = os.environ.get("NARRATE")
WAKES = 200
PORTS = {"UDP": 7100, "KOPI": 7101}
# The kind of clock, in a number of one.
CPUCLOCK_SCHED = 2


def wait_by_ring(page, at):
    """Waits for the RX ring in poll, and notes when it woke."""
    flow = kopi.flow()
    flow.bind(("192.0.2.1", PORTS["KOPI"]))
    channel = kopi.Channel(flow)
    for frame in range(32):
        channel.fill.push(channel.frame(frame))
    poll = select.poll()
    poll.register(flow, select.POLLIN)
    while True:
        poll.poll()
        now = time.monotonic_ns()
        while (entry := channel.rx.pop()) is not None:
            channel.fill.push(entry[0] - 64)
            record(page, at, now)


def wait_by_socket(page, at):
    """The same for a socket."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("192.0.2.1", PORTS["UDP"]))
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    while True:
        poll.poll()
        now = time.monotonic_ns()
        sock.recv(64)
        record(page, at, now)


def record(page, at, now):
    """Leaves the time and a count for the parent."""
    kopi.store(page, at + 8, "=Q", now)
    kopi.store(page, at, "=Q", struct.unpack_from("=Q", page, at)[0] + 1)


def used(pid):
    """Nanoseconds on a CPU, by the process's clock (clock_getcpuclockid(3))."""
    return time.clock_gettime_ns(~pid << 3 | CPUCLOCK_SCHED)


def wake(sock, kind, page, at):
    """Sends one datagram; gives the nanoseconds until the reader woke."""
    before = struct.unpack_from("=Q", page, at)[0]
    start = time.monotonic_ns()
    sock.sendto(b"wake", ("192.0.2.1", PORTS[kind]))
    while struct.unpack_from("=Q", page, at)[0] == before:
        time.sleep(0.0005)
        if time.monotonic_ns() - start > 10_000_000_000:
            raise RuntimeError(f"{kind} doesn't wake")
    return struct.unpack_from("=Q", page, at + 8)[0] - start


def check(what, passed, detail):
    """A test, or a line of the account."""
    if NARRATE:
        print(f"    {'' if passed else 'FAILED: '}{what}: {detail}")
    else:
        kopi.check(f"{what}: {detail}", passed)
    return passed


shared = mmap.mmap(-1, 4096)
children = {}
for number, (name, work) in enumerate((("UDP", wait_by_socket), ("KOPI", wait_by_ring))):
    offset = number * 64
    child = os.fork()
    if child == 0:
        with namespace("host"):
            work(shared, offset)
    children[name] = (child, offset)
with namespace("peer"):
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
# Each has woken once, so both are ready.
ready = time.monotonic() + 60
for name, (child, offset) in children.items():
    while True:
        try:
            wake(sender, name, shared, offset)
            break
        except RuntimeError:
            if time.monotonic() > ready:
                raise
if NARRATE:
    print("\nScenario 3, scheduling: a program that waits for its ring sleeps, as one that waits for "
          "a socket.")
start = {name: used(child) for name, (child, _) in children.items()}
time.sleep(SECONDS)
idle = {name: (used(child) - start[name]) / SECONDS / 1e9 for name, (child, _) in children.items()}
good = check(f"CPU used in {SECONDS:g} s of waiting, below 0.1 %", idle["KOPI"] < 0.001,
             f"KOPI {idle['KOPI']:.4%}, UDP {idle['UDP']:.4%}")
times = {name: [] for name in children}
for _ in range(WAKES):
    for name, (child, offset) in children.items():
        times[name].append(wake(sender, name, shared, offset))
median = {name: statistics.median(each) / 1000 for name, each in times.items()}
good &= check(f"from a packet's sending to the reader's waking, median of {WAKES}",
              median["KOPI"] <= 2 * median["UDP"],
              f"KOPI {median['KOPI']:.0f} µs, UDP {median['UDP']:.0f} µs")
for child, _ in children.values():
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
if NARRATE:
    sys.exit(not good)
kopi.finish()
