#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Where rules look at the queue first, datagrams with wrong checksums are dropped and counted as UDP does, and those
behind them are read; also while another thread asks how long the first one is, which drops them, too."""

import errno
import fcntl
import socket
import struct
import threading

import kopi
from control import ask, ruled
from kernel_counters import table
from kopi import check, fails

ROUNDS = 300
FIONREAD = 0x541B


def send_wrong(raw, to):
    """Sends a datagram with a wrong checksum."""
    host, port = to
    raw.sendto(struct.pack(">HHHH", 9, port, 13, 1) + b"wrong", (host, 0))


def read_all(sock, raw, plain):
    """Sends wrong ones and right ones in turn; gives what is read."""
    there = []
    sock.settimeout(10)
    for number in range(ROUNDS):
        for _ in range(number % 3):
            send_wrong(raw, sock.getsockname())
        plain.sendto(b"%d" % number, sock.getsockname())
        there.append(sock.recv(64))
    return there


def asks(sock, until):
    """Asks for the length of the first datagram, again and again."""
    answer = bytearray(4)
    while not until.is_set():
        fcntl.ioctl(sock.fileno(), FIONREAD, answer)


with ruled() as ynl:
    ask(ynl, "ruleset-set", {"rule": [{"uid-min": 0, "verdict": "allow"}]})
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as raw_sock, \
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as right, kopi.ip_flow() as flow:
        flow.bind(("127.0.0.1", 0))
        before = table()
        expected = [b"%d" % number for number in range(ROUNDS)]
        got = read_all(flow, raw_sock, right)
        check("all right ones are read", got == expected, len(got))
        after = table()
        wrong = after["Udp:InCsumErrors"] - before["Udp:InCsumErrors"]
        check("and all wrong ones counted", wrong == ROUNDS == after["Udp:InErrors"] - before["Udp:InErrors"], wrong)
        done = threading.Event()
        other = threading.Thread(target=asks, args=(flow, done))
        other.start()
        try:
            got = read_all(flow, raw_sock, right)
        finally:
            done.set()
            other.join()
        check("also while another thread asks", got == expected, len(got))
        send_wrong(raw_sock, flow.getsockname())
        kopi.settle()
        flow.setblocking(False)
        fails("a wrong one alone isn't read", errno.EAGAIN, lambda: flow.recv(64))
kopi.finish()
