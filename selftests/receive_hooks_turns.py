#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Where a program sees each address that is received, which locks the sock, what came is read in turns."""

import contextlib
import os
import signal
import socket

import bpf
import kopi

TRACING = "/sys/kernel/tracing"
EVENT = f"{TRACING}/events/workqueue/workqueue_execute_start"
COUNT, AT_ONCE = 400, 64


def put(path, value):
    """Writes a file."""
    with open(path, "w", encoding="ascii") as file:
        file.write(value)


@contextlib.contextmanager
def occupied(cpu):
    """A process that leaves the CPU to nobody: no worker runs there."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {cpu})
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        os.write(writer, b"!")
        while True:
            pass
    os.read(reader, 1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        os.close(writer)


def send_at_once(address):
    """Nobody receives before all are queued: the workers of all CPUs wait."""
    first, *others = sorted(os.sched_getaffinity(0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as source, contextlib.ExitStack() as stack:
        os.sched_setaffinity(0, {first})
        for cpu in others:
            stack.enter_context(occupied(cpu))
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        for number in range(COUNT):
            source.sendto(number.to_bytes(4, "big"), address)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


bpf.load()
GROUP = os.open("/sys/fs/cgroup", os.O_RDONLY | os.O_DIRECTORY)
DETACH = bpf.attach(GROUP, "recvmsg4_options", "cgroup_udp4_recvmsg")
CHANNEL = kopi.Channel(frames=512, fill=512, rx=512)
CHANNEL.sock.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
CHANNEL.sock.bind(("127.0.0.1", 7790))
for frame in range(512):
    CHANNEL.fill.push(CHANNEL.frame(frame))
put(f"{TRACING}/trace", "")
put(f"{EVENT}/enable", "1")
try:
    send_at_once(("127.0.0.1", 7790))
    all_arrived = kopi.wait_until(lambda: CHANNEL.stats()["rx_packets"] == COUNT)
finally:
    put(f"{EVENT}/enable", "0")
    DETACH()
    bpf.unload()
with open(f"{TRACING}/trace", encoding="ascii") as trace:
    TURNS = sum("receive_work" in line for line in trace)
kopi.check("all that was queued comes", all_arrived, CHANNEL.stats())
NUMBERS = [int.from_bytes(CHANNEL.region[entry[0]:entry[0] + 4], "big") for entry in iter(CHANNEL.rx.pop, None)]
kopi.check("in order", NUMBERS == list(range(COUNT)), NUMBERS)
kopi.check(f"at most {AT_ONCE} in a turn", TURNS >= COUNT / AT_ONCE, TURNS)
kopi.finish()
