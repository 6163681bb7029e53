#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A program of BPF that has a flow's datagrams, by a sockmap, keeps them: the flow gets no channel that receives."""

import errno
import socket
import struct

import bpf
import kopi
from kopi import CHANNEL, SOL_KOPI, check, fails

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
detach()
bpf.unload()
kopi.finish()
