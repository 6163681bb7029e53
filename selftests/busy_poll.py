#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""SO_BUSY_POLL: who waits for packets polls the NIC's queue for them, before he sleeps."""

import errno
import os
import socket
import time

from attached import attach, kopictl, link
from control import family
from equivalence import namespace
from kopi import BELL_WAIT_RX, OFFLOADS, Channel, check, fails, finish, in_child, wait_until
from linux import SO_BUSY_POLL, SO_INCOMING_NAPI_ID

LONG = 20_000_000


def busy_polled():
    """Packets that were received by who polled, of this network namespace."""
    with open("/proc/net/netstat", encoding="ascii") as file:
        names, values = [line.split() for line in file if line.startswith("TcpExt:")]
    return int(dict(zip(names, values))["BusyPollRxPackets"])


def later(address, delay=0.3):
    """Sends a datagram from the other machine, when this process is likely to wait."""
    def send():
        with namespace("peer"):
            sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            time.sleep(delay)
            sock.sendto(b"x", address)

    return in_child(send)


def receive(channel):
    entry = channel.rx.pop()
    if entry:
        channel.fill.push(entry[0] - 64)
    return entry is not None


def polls():
    """Programs that wait on a channel with GSO packets, by each path that these take."""
    channel = Channel(flags=OFFLOADS)
    channel.sock.bind(("192.0.2.1", 0))
    address = channel.sock.getsockname()
    for frame in range(32):
        channel.fill.push(channel.frame(frame))

    pid = later(address, 0)
    channel.bell(BELL_WAIT_RX)
    check("the flow knows the queue that its packets come by",
          receive(channel) and channel.sock.getsockopt(socket.SOL_SOCKET, SO_INCOMING_NAPI_ID) > 0)
    os.waitpid(pid, 0)
    before = busy_polled()
    pid = later(address)
    channel.bell(BELL_WAIT_RX)
    check("without the option nobody polls", receive(channel) and busy_polled() == before,
          (busy_polled(), before))
    os.waitpid(pid, 0)

    channel.sock.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, LONG)
    # On a busy host the packet may be there before anybody waits for it.
    for delay in (0.3, 1, 3):
        before, start = busy_polled(), time.monotonic()
        pid = later(address, delay)
        channel.bell(BELL_WAIT_RX)
        got, took, after = receive(channel), time.monotonic() - start, busy_polled()
        os.waitpid(pid, 0)
        if not got or after > before:
            break
    check("the doorbell polls until a packet is there, and no longer",
          got and after > before and took < LONG / 1e6 / 2, (got, before, after, took))

    channel.sock.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, 1000)
    pid = later(address)
    channel.bell(BELL_WAIT_RX)
    check("after the option's time it sleeps, and is woken", receive(channel))
    os.waitpid(pid, 0)
    channel.sock.setblocking(False)
    channel.sock.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, LONG)
    start = time.monotonic()
    fails("with O_NONBLOCK it polls once", errno.EAGAIN, lambda: channel.bell(BELL_WAIT_RX))
    check("and doesn't wait", time.monotonic() - start < LONG / 1e6 / 2)

    check("nothing unaccounted for", wait_until(lambda: not channel.unaccounted()), channel.unaccounted())


with namespace("host"):
    polls()
    attach()
    polls()
    check("those came from the attached device", link(family())["received"] >= 4)
kopictl("detach", "eth0")
finish()
