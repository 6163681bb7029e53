#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Engines send for busy channels, which ring no doorbell; and get all that was written."""

import errno
import os
import select
import socket

import kopi
from control import ask, engine_threads, family, refused
from kopi import BELL_TX, BELL_WAIT_RX, ENGINE, Channel, check, finish, wait_until

ynl = family()
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain.settimeout(20)
plain.bind(("127.0.0.1", 0))
plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
CPUS = sorted(os.sched_getaffinity(0))
rings = 0


def engines():
    return ynl.dump("engine-get", {})


def set_engines(*cpus, **settings):
    ask(ynl, "engine-set", {"cpu": list(cpus), **settings})


def ring(channel, flags=BELL_TX):
    """The doorbell, counted."""
    global rings
    rings += 1
    return channel.bell(flags)


def connected(**sizes):
    channel = Channel(**{"flags": ENGINE, **sizes})
    channel.sock.bind(("127.0.0.1", 0))
    channel.sock.connect(plain.getsockname())
    return channel


def needs_bell(channel):
    """What a program looks at after each write."""
    return channel.tx.get(channel.tx.flags) & 1 != 0


def is_polled(channel):
    return wait_until(lambda: not needs_bell(channel))


def completed(channel, count):
    """The completions, of which a number is expected."""
    entries = []

    def all_there():
        while entry := channel.completion.pop():
            entries.append(entry)
        return len(entries) >= count

    wait_until(all_there)
    return entries


# None: the doorbell does all.
kopi.send_by_reference()
check("no engines at first", engines() == [], engines())
channel = connected()
check("none, and the doorbell is needed", needs_bell(channel))
channel.send(0, b"by doorbell")
check("it sends", ring(channel) == 1 and plain.recv(99) == b"by doorbell")
check("and is needed still", needs_bell(channel) and len(completed(channel, 1)) == 1)

# What can't be set.
refused("a CPU that isn't there", errno.EINVAL, lambda: set_engines(CPUS[0], 4095), "no such CPU")
refused("a CPU twice", errno.EEXIST, lambda: set_engines(CPUS[0], CPUS[0]), "twice")
refused("too small a budget", errno.ERANGE, lambda: set_engines(CPUS[0], budget=1))
check("nothing of that was done", engines() == [], engines())

# One, which stays awake for the test.
set_engines(CPUS[-1], idle=3_600_000_000, budget=4096)
shown = engines()
check("an engine", len(shown) == 1 and shown[0]["cpu"] == CPUS[-1] and shown[0]["budget"] == 4096
      and shown[0]["idle"] == 3_600_000_000 and shown[0]["channels"] == 0, shown)
check("its thread", engine_threads() == [f"kopi-engine/{CPUS[-1]}"], engine_threads())
check("a channel that is silent isn't polled", needs_bell(channel))
ring(channel)
check("one that rings is", is_polled(channel))
check("and is counted", wait_until(lambda: engines()[0]["channels"] == 1), engines())
rings = 0
for number in range(500):
    channel.send(number % 64, b"%d" % number)
    got = plain.recv(99)
    if got != b"%d" % number or len(completed(channel, 1)) != 1:
        check(f"datagram {number}", False, got)
check("500 datagrams, each completed, and no doorbell", rings == 0 and not needs_bell(channel), rings)
check("nothing unaccounted for", not channel.unaccounted(), channel.unaccounted())
stats = channel.stats()
check("all are counted", stats["tx_packets"] == 501, stats)
seen = [each for each in ynl.dump("channel-get", {}) if each["uid"] == 0 and each["flags"] == ENGINE]
check("the engine's time is the channel's, and the engine's",
      0 < stats["engine_time"] == seen[0]["engine-time"] == engines()[0]["busy"], (stats, seen, engines()))
check("its visits", 0 < engines()[0]["visits"] <= 500, engines())
other = connected(flags=0)
ring(other)
check("who didn't ask for it isn't polled", needs_bell(other) and engines()[0]["channels"] == 1)

# Refused and broken things.
channel.tx.push(1, 1, 0, 0, 0)
check("a bad descriptor is completed with its error", completed(channel, 1)[0][4] == errno.EFAULT)
large = connected(tx=32, completion=32)
ring(large)
check("another channel is polled, too", is_polled(large))
for number in range(64):
    if number >= 32:
        completed(large, 1)
    wait_until(lambda: large.tx.get(large.tx.producer) - large.tx.get(large.tx.consumer) < 32)
    large.send(number % 64, bytes([number]) * 1900)
check("as many as two rings hold arrive in order, by reference and not",
      [plain.recv(2000)[0] for _ in range(64)] == list(range(64)))

# A full send buffer.
poll = select.poll()
slow = connected(tx=64, frame_size=2048)
slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
ring(slow)
rings, sent, got = 0, 0, 0
while sent < 64:
    slow.send(sent, bytes([sent]) * 900)
    sent += 1
check("a small send buffer holds up nothing for good",
      [plain.recv(2000)[0] for _ in range(64)] == list(range(64)) and len(completed(slow, 64)) == 64)

# POLLOUT: half of the ring is free.
poll.register(channel.sock.fileno(), select.POLLOUT)
check("poll: room", poll.poll(20000) == [(channel.sock.fileno(), select.POLLOUT)])

# It rests, and says so.
set_engines(CPUS[-1], idle=0)
check("engines that are replaced leave their channels to the new ones, which rest",
      wait_until(lambda: needs_bell(channel) and needs_bell(large) and engines()[0]["channels"] == 0),
      engines())
before = engines()[0]["wakeups"]
lost = 0
for number in range(300):
    channel.send(number % 64, b"again")
    # As a program does: the store, then the look.
    if needs_bell(channel):
        ring(channel)
    lost += plain.recv(99) != b"again"
    completed(channel, 1)
check("no wake-up is lost in 300", lost == 0 and channel.stats()["tx_packets"] == 501 + 300, lost)
check("it was woken", engines()[0]["wakeups"] > before, engines())

# Off: what was written before the program could know is sent.
set_engines(*CPUS, idle=3_600_000_000)
check("an engine for each CPU", [each["cpu"] for each in engines()] == CPUS, engines())
ring(channel)
ring(large)
check("channels are spread", is_polled(channel) and is_polled(large)
      and [each["channels"] for each in engines()] == [1] * 2, engines())
for number in range(40):
    channel.send(number, b"last %d" % number)
set_engines()
check("off: none", engines() == [])
check("the doorbell is needed", needs_bell(channel) and needs_bell(large))
check("and nothing is left behind", [plain.recv(99) for _ in range(40)] ==
      [b"last %d" % number for number in range(40)])
completed(channel, 40)
channel.send(0, b"by doorbell")
check("the doorbell does all again", ring(channel) == 1 and plain.recv(99) == b"by doorbell")

# Receiving, beside it, is as ever.
channel.fill.push(channel.frame(5))
plain.sendto(b"back", channel.sock.getsockname())
check("receiving", channel.bell(BELL_WAIT_RX) == 0 and channel.rx.pop()[1] == 4)
finish()
