#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What an engine leaves in a ring: whoever waits for it is told to ring the doorbell."""

import errno
import os
import select
import socket
import struct
import time

import kopi
from control import ask, family
from kopi import BELL_WAIT_COMPLETION, ENGINE, Channel, check, finish, wait_until

CPU = max(os.sched_getaffinity(0))
TIMES = 200
# In ms: longer than the host lets the machine stand still.
PATIENCE = 20_000


def must_ring(channel):
    """Whether the program is told to ring."""
    return channel.tx.get(channel.tx.flags) & 1 != 0


def when_the_user_has_ended():
    """The process that rang has ended, so the engine leaves; another has its rings, and writes."""
    ask(YNL, "engine-set", {"cpu": [CPU], "idle": 3_600_000_000})
    channel = Channel(flags=ENGINE)
    os.waitpid(kopi.in_child(channel.bell), 0)
    check("the engine leaves with who rang", wait_until(lambda: must_ring(channel)))
    channel.send(0, b"x", PLAIN.getsockname())
    polled = select.poll()
    polled.register(channel.sock, select.EPOLLWRBAND)
    check("poll() doesn't wait for what nobody sends", polled.poll(PATIENCE) != [])
    channel.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", PATIENCE // 1000, 0))
    start = time.monotonic()
    try:
        channel.bell(BELL_WAIT_COMPLETION)
        result = 0
    except OSError as error:
        result = error.errno
    check("neither does the doorbell", result == 0, (errno.errorcode.get(result), time.monotonic() - start))
    channel.bell()
    check("who rings has the completion", wait_until(channel.completion.pop) and PLAIN.recv(9) == b"x")
    check("and then there is nothing to ring for", polled.poll(0) == [], polled.poll(0))
    channel.sock.close()


def when_there_is_a_part_only():
    """A ring has the beginning of a packet: to ring for that changes nothing, before the rest is there."""
    ask(YNL, "engine-set")
    channel = Channel(flags=ENGINE)
    start = channel.frame(0)
    channel.send(0, b"x", PLAIN.getsockname())
    # The last field but one: another descriptor follows.
    at = channel.tx.entries + channel.tx.entry_size - 4
    flags = struct.unpack_from("=H", channel.region, at)[0]
    struct.pack_into("=H", channel.region, at, flags | kopi.MORE)
    channel.bell()
    polled = select.poll()
    polled.register(channel.sock, select.EPOLLWRBAND)
    check("nobody is told to ring for a part of a packet", polled.poll(0) == [], polled.poll(0))
    channel.tx.push(start + 64, 1, 0, 0, 0)
    check("but for the whole one", polled.poll(0) != [])
    channel.bell()
    check("which is sent then", wait_until(channel.completion.pop) and PLAIN.recv(9) == b"xx")
    channel.sock.close()


def takes_the_sender(sock):
    """A process that takes the sender, as each call about options does, as often as it may run."""
    os.sched_setaffinity(0, [CPU])
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 1)


def when_others_want_the_sender():
    """The engine goes to sleep while it can't send, since another call has the sender."""
    # In µs: the engine comes and goes all the time.
    ask(YNL, "engine-set", {"cpu": [CPU], "idle": 300})
    channel = Channel(flags=ENGINE)
    other = kopi.in_child(lambda: takes_the_sender(channel.sock))
    polled = select.poll()
    polled.register(channel.sock, select.EPOLLWRBAND)
    lost = 0
    for _ in range(TIMES):
        channel.send(0, b"x", PLAIN.getsockname())
        if must_ring(channel):
            channel.bell()
        while not lost and not channel.completion.pop():
            # Who isn't woken doesn't ring.
            lost += not polled.poll(PATIENCE)
            if must_ring(channel):
                channel.bell()
        PLAIN.recv(9, socket.MSG_DONTWAIT)
    check(f"{TIMES} completions come, while another wants the sender", not lost)
    os.kill(other, 9)
    os.waitpid(other, 0)
    channel.sock.close()


YNL = family()
PLAIN = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
PLAIN.bind(("127.0.0.1", 0))
PLAIN.settimeout(20)
when_the_user_has_ended()
when_there_is_a_part_only()
when_others_want_the_sender()
ask(YNL, "engine-set")
finish()
