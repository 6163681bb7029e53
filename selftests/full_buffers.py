#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A full send buffer holds a channel up, until there is room, or the flow is gone."""

import os
import select
import signal
import socket

import kopi
from control import ask, family
from equivalence import sh
from kopi import ENGINE, JOIN, SOL_KOPI, Channel, check, flow, in_child, join_request, number_of, wait_until
from memory import module_users

DATA = 900
RING = 64


def slow():
    """From now on nothing gets out, as good as."""
    sh("tc qdisc replace dev full0 root tbf rate 8bit burst 2000 limit 10m")


def connected(sock):
    """Connected to where nobody answers, by the device, with room for a few packets."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    sock.connect(("192.0.2.2", 9))
    return sock


def fill(channel):
    """Sends until the buffer is full; says how many descriptors are left."""
    for number in range(RING):
        channel.send(number, bytes(DATA))
    channel.bell()
    return waiting(channel)


def waiting(channel):
    """Descriptors that the kernel hasn't taken."""
    return channel.tx.get(channel.tx.producer) - channel.tx.get(channel.tx.consumer)


def completed(channel):
    """All completions that are there."""
    return list(iter(channel.completion.pop, None))


def is_writable(channel, patience=0):
    """Whether poll calls it writable, within this number of milliseconds."""
    poll = select.poll()
    poll.register(channel.sock.fileno(), select.POLLOUT)
    return bool(poll.poll(patience))


sh("ip link add full0 type dummy && ip address add 192.0.2.1/24 dev full0 && ip link set full0 up")
slow()
channel = Channel(sock=connected(flow()), tx=RING, completion=RING, frames=RING)
left = fill(channel)
check("some are taken, and the rest wait", 0 < left < RING, left)
check("the channel isn't writable", not is_writable(channel))
sent = channel.stats()["tx_packets"]
channel.bell()
check("nor does a doorbell help", waiting(channel) == left and channel.stats()["tx_packets"] == sent)

# Room comes while it sleeps.
child = in_child(lambda: (wait_until(lambda: False, 0.3), sh("tc qdisc del dev full0 root")))
check("who polls is woken when there is room", is_writable(channel, 60000))
os.waitpid(child, 0)
channel.bell()
check("the rest go", wait_until(lambda: waiting(channel) == 0) and len(completed(channel)) == RING)
check("without an error", channel.stats()["tx_packets"] == RING and not channel.unaccounted(), channel.stats())

# Room comes at any time.
sh("tc qdisc replace dev full0 root tbf rate 2mbit burst 2000 limit 10m")
stalls, woken = 0, 0
for _ in range(10):
    fill(channel)
    while waiting(channel):
        stalls += 1
        woken += is_writable(channel, 60000)
        channel.bell()
    wait_until(lambda: not completed(channel) and channel.completion.get(
        channel.completion.producer) == channel.tx.get(channel.tx.producer))
check("no wake-up is lost", stalls > 50 and woken == stalls, (stalls, woken))

# The flow with the full buffer goes.
slow()
other = connected(flow())
other.setsockopt(SOL_KOPI, JOIN, join_request(channel.sock))
number = number_of(other)
for at in range(RING - 1):
    channel.send(at, bytes(DATA), flow_number=number)
channel.send(RING - 1, bytes(DATA))
channel.bell()
left = waiting(channel)
check("one flow's full buffer stops the channel", left > 1 and not is_writable(channel), left)
signal.signal(signal.SIGUSR1, lambda *_: other.close())
child = in_child(lambda: (wait_until(lambda: False, 0.3), os.kill(os.getppid(), signal.SIGUSR1)))
check("who polls is woken when that flow is closed", is_writable(channel, 60000))
os.waitpid(child, 0)
channel.bell()
errors = [entry[4] for entry in completed(channel)]
check("its packets are refused, and the other flow's go",
      waiting(channel) == 0 and len(errors) == RING and errors[-1] == 0 and all(errors[-left:-1]), errors)

# An engine waits for the room, and has nothing more to do with the channel when that is gone.
ynl = family()
ask(ynl, "engine-set", {"cpu": [0], "idle": 3_600_000_000})
# Each region has some.
idle = module_users()
polled = Channel(sock=connected(flow()), tx=RING, completion=RING, frames=RING, flags=ENGINE)
fill(polled)
sh("tc qdisc replace dev full0 root tbf rate 2mbit burst 2000 limit 10m")
check("an engine sends the rest when there is room", wait_until(lambda: waiting(polled) == 0) and
      len(completed(polled)) == RING)
polled.sock.close()
polled.region.close()
check("it lets go of the channel for good", wait_until(lambda: module_users() == idle),
      (module_users(), idle, ynl.dump("engine-get", {})))
ask(ynl, "engine-set")
ynl.sock.close()
slow()

# Its process dies, and room comes after that.
reading, writing = os.pipe()


def die_stalled():
    """Waits for room that doesn't come."""
    mine = Channel(sock=connected(flow()), tx=RING, completion=RING, frames=RING)
    os.write(writing, bytes([fill(mine)]))
    is_writable(mine, 60000)


child = in_child(die_stalled)
check("another one stops", os.read(reading, 1)[0] > 0)
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
sh("tc qdisc del dev full0 root")
completed(channel)
check("what is left is no trouble", fill(channel) == 0)
sh("ip link del full0")
kopi.finish()
