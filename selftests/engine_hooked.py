#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""BPF programs at sendmsg that come and go, in whatever cgroup, make no engine leave what it said it would send."""

import os
import select
import socket

import bpf
import kopi
from control import ask, family
from kopi import ENGINE, Channel, check, finish, wait_until

GROUP = "/sys/fs/cgroup/hooked"
TIMES = 200


def changes(stop):
    """A process that attaches a program and takes it away, until it may stop."""
    target = os.open(GROUP, os.O_RDONLY)
    for _ in range(TIMES):
        bpf.attach(target, "sendmsg4_rewrite", "cgroup_udp4_sendmsg")()
    os.write(stop, b"x")


def sends(channel, name):
    """Sends as a program does that rings only if it has to; says whether the completion came."""
    channel.send(0, b"x", name)
    if channel.tx.get(channel.tx.flags) & 1:
        channel.bell()
    polled = select.poll()
    polled.register(channel.sock, select.EPOLLWRBAND)
    for _ in range(3):
        if channel.completion.pop():
            return True
        # Who isn't woken doesn't ring. The host may let the whole machine stand meanwhile.
        if polled.poll(20_000) and channel.tx.get(channel.tx.flags) & 1:
            channel.bell()
    return channel.completion.pop() is not None


bpf.load()
os.makedirs(GROUP, exist_ok=True)
ynl = family()
ask(ynl, "engine-set", {"cpu": [max(os.sched_getaffinity(0))], "idle": 3_600_000_000})
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain.bind(("127.0.0.1", 0))
rings = Channel(flags=ENGINE)
rings.bell()
check("an engine looks", wait_until(lambda: rings.tx.get(rings.tx.flags) & 1 == 0))
stopped, stop = os.pipe()
changer = kopi.in_child(lambda: changes(stop))
sent = lost = 0
while not (lost or select.select([stopped], [], [], 0)[0]):
    came = sends(rings, plain.getsockname())
    sent, lost = sent + came, lost + (not came)
check("each completion comes, while programs come and go", sent and not lost, (sent, lost))
check("these were changed to the end", os.waitpid(changer, 0)[1] == 0)
with open(f"{GROUP}/cgroup.procs", encoding="ascii") as procs:
    check("in another cgroup", not procs.read())
TARGET = os.open(GROUP, os.O_RDONLY)
detach = bpf.attach(TARGET, "sendmsg4_rewrite", "cgroup_udp4_sendmsg")
rings.bell()
check("an engine looks while there is one, too", wait_until(lambda: rings.tx.get(rings.tx.flags) & 1 == 0))
check("and sends", sends(rings, plain.getsockname()))
detach()
os.close(TARGET)
rings.sock.close()
ask(ynl, "engine-set")
wait_until(lambda: not os.rmdir(GROUP))
bpf.unload()
finish()
