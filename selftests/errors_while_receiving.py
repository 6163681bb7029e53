#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""ICMP errors that come while packets do keep none of them from the RX ring."""

import errno
import os
import socket
import struct

import kopi
from equivalence import checksum, namespace
from kopi import check, in_child, wait_until

HOST, PORT, FAR_PORT = "192.0.2.1", 6500, 7001
ROUNDS = 50000
# From the beginning of a frame to what was received.
HEADROOM = 64


def port_unreachable():
    """What a host without a socket on FAR_PORT answers to the flow's datagrams (RFC 792)."""
    here = socket.inet_aton(HOST)
    quoted = struct.pack("!BBHHHBBH4s4sHHHH", 0x45, 0, 28, 0, 0, 64, socket.IPPROTO_UDP, 0, here, here,
                         PORT, FAR_PORT, 8, 0)
    body = bytes(4) + quoted
    return struct.pack("!BBH", 3, 3, checksum(b"\3\3\0\0" + body)) + body


def flood_errors():
    """Sends them until the parent is gone."""
    parent = os.getppid()
    message = port_unreachable()
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    while os.getppid() == parent:
        raw.sendto(message, (HOST, 0))


def left_behind(channel, far):
    """Whether a datagram isn't in the ring when its sender has sent it: after how many."""
    for number in range(ROUNDS):
        far.sendto(b"x", (HOST, PORT))
        # It is there when sendto() returns, but for a softirq that another thread runs.
        entry = channel.rx.pop() or wait_until(channel.rx.pop)
        if not entry:
            return number
        channel.fill.push(entry[0] - HEADROOM)
    return None


with namespace("host"):
    far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    far.bind((HOST, FAR_PORT))
    channel = kopi.Channel(kopi.flow(), frames=64)
    channel.sock.bind((HOST, PORT))
    channel.sock.connect((HOST, FAR_PORT))
    for number in range(48):
        channel.fill.push(channel.frame(number))
    pending = lambda: channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    child = in_child(lambda: (os.sched_setaffinity(0, {1}), flood_errors()))
    os.sched_setaffinity(0, {0})
    check("errors come", wait_until(pending) == errno.ECONNREFUSED)
    number = left_behind(channel, far)
    check("no packet is left behind", number is None, number)
    check("errors still come", wait_until(pending) == errno.ECONNREFUSED)
    os.kill(child, 9)
    os.waitpid(child, 0)
    check("every packet is accounted for", channel.unaccounted() == "", channel.unaccounted())
kopi.finish()
