#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Flows are closed while another CPU's softirq delivers to them: neither fault nor leak.

Softirqs find a sock without a reference, so its last one may go while they read its queue.
"""

import os
import select
import signal
import socket
import time

import kopi
import memory
from linux import UDP_SEGMENT

SECONDS = int(os.environ.get("CLOSE_SECONDS", "10"))
OFTEN = 50
PORT = 7000
WARNED = "/sys/kernel/debug/clear_warn_once"


def flood(host):
    """Sends GSO packets, each of which the receiving socket takes apart, until it is killed."""
    os.sched_setaffinity(0, {0})
    sender = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 100)
    while True:
        try:
            sender.sendto(b"x" * 6000, (host, PORT))
        except ConnectionRefusedError:
            pass


def receive_and_close(host, proto):
    """Opens, receives a bit, and closes; gives how often, and how many it received."""
    times = received = 0
    start = time.monotonic()
    # On a slow machine it takes longer until it was often.
    end, last = start + SECONDS / 2, start + 150
    while time.monotonic() < (end if times > OFTEN else last):
        flow = kopi.flow(proto)
        if times & 1:
            # Then the socket's own queue is woken, too, which close() takes away from the sock.
            select.select([flow], [], [], 0)
        channel = kopi.Channel(flow, frames=64)
        for frame in range(64):
            channel.fill.push(channel.frame(frame))
        flow.bind((host, PORT))
        while channel.rx.get(channel.rx.producer) == 0 and time.monotonic() < last:
            pass
        received += channel.rx.get(channel.rx.producer)
        channel.region.close()
        flow.close()
        times += 1
    return times, received


kopi.check("the machine has two CPUs", os.cpu_count() > 1, os.cpu_count())
# So that each run sees the first fault, too.
with open(WARNED, "w", encoding="ascii") as once:
    once.write("1")
for address, protocol in (("127.0.0.1", 0), ("::1", kopi.UDP6)):
    pid = kopi.in_child(lambda to=address: flood(to))
    os.sched_setaffinity(0, {1})
    closed, packets = receive_and_close(address, protocol)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    kopi.check(f"{address}: flows were closed while they received", closed > OFTEN and packets >= closed - 1,
               (closed, packets))
    print(f"# {address}: {closed} closed, {packets} packets")
kopi.check("nothing is left", memory.wait_until_unused(), memory.module_users())
kopi.finish()
