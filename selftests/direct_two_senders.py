#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Two processes on two CPUs send by one flow of an attached device, by system calls: what each of them sends keeps its
order, whichever CPU's queue has packets of the flow first."""

import fcntl
import os
import select
import socket
import struct
import termios

import kopi
from attached import ADDRESSES, attach, know_neighbours, kopictl, link
from control import family
from equivalence import namespace
from linux import SO_RCVBUFFORCE, SO_SNDBUFFORCE, UDP_SEGMENT

NEAR, FAR = ADDRESSES[4]
PORT = 7000
MESSAGES = 600
# Datagrams of a message, and their bytes.
SEGMENTS, SIZE = 3, 64
TRIES = 3


def is_idle(sock):
    """Whether all that was sent by it has left."""
    return struct.unpack("=i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0] == 0


def sends(sock, cpu, who):
    """A process that sends numbered datagrams from a CPU, some at a time."""
    os.sched_setaffinity(0, {cpu})
    number = 0
    for message in range(MESSAGES):
        if message % 4 == 0:
            # So the first packet of a row finds nothing of the flow in flight, unless the other has sent one.
            for _ in range(50):
                if is_idle(sock):
                    break
        data = b"".join(struct.pack(">BI", who, number + at).ljust(SIZE, b".") for at in range(SEGMENTS))
        while True:
            try:
                sock.send(data)
                break
            except OSError:
                # The send buffer, or the queue of the device.
                select.select([], [sock], [], 1)
        number += SEGMENTS


def exchange():
    """How many datagrams came, and which came before earlier ones of the same process."""
    with namespace("peer"):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
    sink.bind((FAR, PORT))
    sink.settimeout(5)
    with namespace("host"):
        flow = kopi.flow()
    flow.bind((NEAR, 0))
    flow.connect((FAR, PORT))
    flow.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 4 << 20)
    flow.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE)
    senders = [kopi.in_child(lambda who=who, cpu=cpu: sends(flow, cpu, who))
               for who, cpu in enumerate(sorted(os.sched_getaffinity(0))[:2])]
    latest, early, count = [-1] * len(senders), [], 0
    while count < len(senders) * MESSAGES * SEGMENTS:
        try:
            who, number = struct.unpack_from(">BI", sink.recv(2048))
        except TimeoutError:
            break
        count += 1
        if number < latest[who]:
            early.append((who, latest[who], number))
        latest[who] = max(latest[who], number)
    statuses = [os.waitpid(sender, 0)[1] for sender in senders]
    sink.close()
    flow.close()
    return count, early, statuses


know_neighbours()
attach()
with namespace("host"):
    YNL = family()
BEFORE = link(YNL)
for _ in range(TRIES):
    came, overtaken, ended = exchange()
    # Where the peer's CPU stands still, QEMU lets some overtake others.
    if not overtaken:
        break
    print(f"# once more: {len(overtaken)} of {came} were overtaken: {overtaken[:5]}")
AFTER = link(YNL)
kopi.check("both have sent all", not any(ended), ended)
kopi.check("most of it arrives", came > MESSAGES * SEGMENTS, came)
kopi.check("much of it directly", AFTER["gso-packets"] - BEFORE["gso-packets"] > MESSAGES // 2, AFTER)
kopi.check("nothing is overtaken by what the same process has sent later", not overtaken, overtaken[:9])
kopictl("detach", "eth0")
kopi.check("it is detached", not YNL.dump("device-get", {}))
kopi.finish()
