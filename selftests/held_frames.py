#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Frames that the stack still holds outlive the process that sent them, and then come back."""

import os
import signal
import socket
import struct

import kopi
import memory
from equivalence import namespace, sh
from links import is_running
from nfqueue import Queue

COUNT, SIZE = 16, 1900
PORT = 7000


def payload(number):
    """The n-th datagram."""
    return struct.pack("=I", number) + bytes((number + i) & 0xFF for i in range(SIZE - 4))


def send_and_wait(host="127.0.0.1"):
    """A child that sends all by reference, and says how many frames are held."""
    told, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        channel = kopi.Channel(frames=64)
        for number in range(COUNT):
            channel.send(number, payload(number), (host, PORT))
        channel.bell()
        os.write(ready, struct.pack("=Q", channel.stats()["tx_pending"]))
        signal.pause()
    in_flight = struct.unpack("=Q", os.read(told, 8))[0]
    os.close(told)
    os.close(ready)
    return pid, in_flight


def kill(pid):
    """Kills a child, and waits until it is gone."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


kopi.send_by_reference()
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
receiver.bind(("127.0.0.1", PORT))
receiver.settimeout(60)


def all_arrive(what):
    """Every datagram comes, as it was sent."""
    got = [receiver.recv(4096) for _ in range(COUNT)]
    kopi.check(f"{what}: what was held arrives, and is what was sent",
               got == [payload(number) for number in range(COUNT)])


# In a queue. The qdisc lets them go when it is told to, so nothing depends on how long this takes.
sh("tc qdisc add dev lo root netem delay 600s")
child, pending = send_and_wait()
kopi.check("netem: the frames are held", pending == COUNT, pending)
kill(child)
kopi.check("netem: and hold the region when the process is dead", memory.module_users() > 0)
sh("tc qdisc change dev lo root netem delay 1ms")
sh("tc qdisc del dev lo root")
kopi.check("netem: all is given back", memory.wait_until_unused(), memory.module_users())

# With a delay that ends by itself.
sh("tc qdisc add dev lo root netem delay 10s")
child, pending = send_and_wait()
kopi.check("delay: the frames are held", pending == COUNT, pending)
kill(child)
kopi.check("delay: and hold the region when the process is dead", memory.module_users() > 0)
all_arrive("delay")
kopi.check("delay: all is given back", memory.wait_until_unused(), memory.module_users())
sh("tc qdisc del dev lo root")

# The same on the way to another namespace.
sh("ip netns add away; ip link add near mtu 4000 type veth peer name far mtu 4000 netns away; "
   "ip addr add 198.51.100.1/24 dev near; ip link set near up; "
   "ip -n away addr add 198.51.100.2/24 dev far; ip -n away link set far up; "
   # No packet but those that are sent here is to wait for an address.
   "ip neigh add 198.51.100.2 dev near lladdr $(ip netns exec away cat /sys/class/net/far/address)")
# Its queue drops all until the kernel has seen that there is a link.
kopi.wait_until(lambda: is_running("near"))
sh("tc qdisc add dev near root netem delay 10s")
local = receiver
with namespace("away"):
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    receiver.bind(("198.51.100.2", PORT))
receiver.settimeout(60)
child, pending = send_and_wait("198.51.100.2")
kopi.check("veth: the frames are held", pending == COUNT, pending)
kill(child)
kopi.check("veth: and hold the region when the process is dead", memory.module_users() > 0)
all_arrive("veth")
kopi.check("veth: all is given back", memory.wait_until_unused(), memory.module_users())
receiver.close()
receiver = local
sh("ip link del near; ip netns del away")

# By a program that gives verdicts.
queue = Queue(0)
sh(f"nft add table ip t; nft 'add chain ip t o {{ type filter hook output priority 0; }}'; "
   f"nft add rule ip t o udp dport {PORT} queue num 0")
child, pending = send_and_wait()
kopi.check("nfqueue: the frames are held", pending == COUNT, pending)
kill(child)
kopi.check("nfqueue: and hold the region when the process is dead", memory.module_users() > 0)
for _ in range(COUNT):
    while (packet := queue.receive()) is None:
        pass
    queue.verdict(packet, True)
all_arrive("nfqueue")
kopi.check("nfqueue: all is given back", memory.wait_until_unused(), memory.module_users())
child, pending = send_and_wait()
kill(child)
queue.sock.close()
kopi.check("nfqueue: and so when the program goes without a verdict",
           pending == COUNT and memory.wait_until_unused(), memory.module_users())
sh("nft delete table ip t")

# By a receiver: what is delivered on the machine itself is copied before it is queued.
child, pending = send_and_wait()
kopi.check("receive buffer: frames don't wait for a reader", pending == 0, pending)
kill(child)
kopi.check("receive buffer: nothing is held", memory.wait_until_unused())
all_arrive("receive buffer")

# By a tap that isn't read.
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.bind(("lo", 0))
child, pending = send_and_wait()
kill(child)
all_arrive("tap")
kopi.check("tap: nothing is held for a tap that doesn't read",
           memory.wait_until_unused(), memory.module_users())
frames = []
tap.setblocking(False)
while len(frames) < 4 * COUNT:
    try:
        frames.append(tap.recv(4096))
    except BlockingIOError:
        break
kopi.check("tap: what it saw is what was sent",
           {payload(number) for number in range(COUNT)} <= {frame[42:] for frame in frames})
kopi.finish()
