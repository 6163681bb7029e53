#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A BPF program that has a flow's datagrams, by a sockmap, keeps them: the flow gets no channel that receives,
and the ring of one that it has gets nothing."""

import ctypes
import errno
import os
import select
import socket
import struct
import threading

import bpf
import kopi
from control import add, ask, ruled
from kopi import CHANNEL, SOL_KOPI, check, fails, wait_until
from slow import SlowCall

# Datagrams of each sender.
FLOOD = 20_000

bpf.load()
flow = kopi.flow()
flow.bind(("127.0.0.1", 0))
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain.connect(flow.getsockname())
detach = bpf.attach(bpf.pinned("maps/sockets"), "drop_all", "sk_skb_verdict")
bpf.update("sockets", 0, struct.pack("=Q", flow.fileno()))
fails("a channel that receives", errno.EBUSY, lambda: flow.setsockopt(SOL_KOPI, CHANNEL, kopi.request()))
plain.send(b"to the program")
flow.setblocking(False)
fails("the program drops what comes", errno.EAGAIN, lambda: flow.recv(99))
flow.setsockopt(SOL_KOPI, CHANNEL, kopi.request(flags=kopi.TX_ONLY))
check("a channel that only sends", kopi.number_of(flow) == 0)
plain.send(b"to the program")
fails("with which it drops what comes, too", errno.EAGAIN, lambda: flow.recv(99))
flow.close()


def comes_to_the_map_on_the_way():
    """A flow that is coming to a channel, and waits for a reader, gets into the map: no channel, and nothing is lost."""
    results = []

    def enter():
        # Python's own call would keep its other threads from running.
        request = kopi.request()
        failed = kopi.libc.setsockopt(late.fileno(), SOL_KOPI, CHANNEL, request, len(request))
        results.append(errno.errorcode[ctypes.get_errno()] if failed else "entered")

    with ruled() as ynl, kopi.flow() as late, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        add(ynl, remote_port_min=9, verdict="deny")
        late.bind(("127.0.0.1", 0))
        sender.sendto(b"x", late.getsockname())
        wait_until(lambda: late.recv(1, socket.MSG_PEEK))
        # The reader, whose memory is slow, has the lock of the flow's readers.
        with SlowCall(lambda page: kopi.libc.recv(late.fileno(), page, 1, 0)):
            entering = threading.Thread(target=enter)
            entering.start()
            check("a request waits for the readers' lock", wait_until(lambda: "kopi" in kopi.where(entering)))
            bpf.update("sockets", 0, struct.pack("=Q", late.fileno()))
        entering.join()
        sender.sendto(b"y", late.getsockname())
        fails("rules can't judge what programs may give it", errno.EOPNOTSUPP, lambda: late.recv(99, socket.MSG_DONTWAIT))
        ask(ynl, "ruleset-set")
        check("a flow that is in a map by now gets no channel", results == ["EBUSY"], results)
        bpf.delete("sockets", 0)
        sender.sendto(b"after the map", late.getsockname())
        check("what comes behind the map can be read", late.recv(99) == b"after the map")


comes_to_the_map_on_the_way()


def floods(cpu, name):
    """A process that sends as fast as it can, on a CPU."""
    os.sched_setaffinity(0, [cpu])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for _ in range(FLOOD):
            sender.sendto(b"to the program", name)


# The channel came first: several packets are queued at once, and each call gives the program one.
channel = kopi.Channel()
channel.sock.bind(("127.0.0.1", 0))
for number in range(channel.frame_count):
    channel.fill.push(channel.frame(number))
bpf.update("sockets", 0, struct.pack("=Q", channel.sock.fileno()))
senders = [kopi.in_child(lambda cpu=cpu: floods(cpu, channel.sock.getsockname())) for cpu in sorted(os.sched_getaffinity(0))]
polled = select.poll()
polled.register(channel.sock, select.POLLIN)
while senders:
    polled.poll(0)
    if os.waitpid(senders[0], os.WNOHANG)[0]:
        senders.pop(0)
kopi.settle()
polled.poll(0)
check("nothing that is the program's comes to the ring", channel.stats()["rx_taken"] == 0, channel.stats())
detach()
# Its place in the map is left, and with it the program's callback.
channel.sock.close()
bpf.unload()
kopi.finish()
