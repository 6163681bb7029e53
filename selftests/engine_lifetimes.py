#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Engines and what ends while they work: programs, flows, network namespaces, CPUs, the module."""

import os
import signal
import socket
import struct

import kopi
import memory
from control import ask, engine_threads, family
from equivalence import namespace, sh
from kopi import ENGINE, Channel, check, finish, wait_until

ynl = family()
CPUS = sorted(os.sched_getaffinity(0))
# Descriptors of a ring, of which some dozens of rings are more than an engine sends in a minute.
FLOODED = 32768
# Seconds: the one for which engines send, and the time until they are told on a busy machine.
ENDED = 20
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain.settimeout(20)
plain.bind(("127.0.0.1", 0))


def set_engines(*cpus, idle=3_600_000_000):
    ask(ynl, "engine-set", {"cpu": list(cpus), "idle": idle})


def engines():
    return ynl.dump("engine-get", {})


def polled():
    """Channels that engines look at."""
    return sum(each["channels"] for each in engines())


def polled_channel(address="127.0.0.1", peer=None):
    """A channel that an engine looks at."""
    channel = Channel(flags=ENGINE)
    channel.sock.bind((address, 0))
    channel.sock.connect(peer or plain.getsockname())
    channel.bell()
    assert wait_until(lambda: channel.tx.get(channel.tx.flags) & 1 == 0)
    return channel


def send_for_ever(channel):
    """Never rings."""
    while True:
        channel.completion.pop()
        waiting = channel.tx.get(channel.tx.producer) - channel.tx.get(channel.tx.consumer)
        # More than the ring holds would break it, for which an engine gives a channel up.
        if waiting < 32:
            channel.send(0, b"x" * 1900)


def started(work, otherwise):
    """A process that works, which gets a function to call when it has begun; gives its number once it has."""
    told, tell = os.pipe()
    pid = kopi.in_child(lambda: work(lambda: os.write(tell, b"x")))
    os.close(tell)
    assert os.read(told, 1) == b"x", otherwise
    os.close(told)
    return pid


def program(*arguments):
    """A process that sends without the doorbell; gives its number once it has sent."""
    def work(begun):
        channel = polled_channel(*arguments)
        begun()
        send_for_ever(channel)

    return started(work, "the program doesn't send")


def flood():
    """A process with channels whose rings are always full; gives its number once an engine has them all."""
    def work(begun):
        channels = []
        for _ in range(8):
            channel = Channel(flags=ENGINE, tx=FLOODED, completion=FLOODED)
            channel.sock.connect(("127.0.0.1", 9))
            entry = struct.pack(kopi.DESCRIPTOR_FORMAT, channel.frame(0) + 64, 1, 0, 0, 0)
            channel.region[channel.tx.entries:channel.tx.entries + len(entry) * FLOODED] = entry * FLOODED
            # Of an empty ring: the doorbell would send what is there itself.
            channel.bell()
            channels.append(channel)
        begun()
        while True:
            for channel in channels:
                ring, done = channel.tx, channel.completion
                done.put(done.consumer, done.get(done.producer))
                ring.put(ring.producer, ring.get(ring.consumer) + FLOODED & 0xFFFFFFFF)

    return started(work, "the rings aren't full")


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


kopi.send_by_reference()
idle = memory.module_users()
set_engines(*CPUS)
check("engines hold no module", memory.module_users() == idle, memory.module_users())

# Programs.
for _ in range(3):
    kill(program())
check("killed programs: engines let go of their channels", wait_until(lambda: polled() == 0), engines())
check("and all of it is freed", wait_until(lambda: memory.module_users() == idle), memory.module_users())
channel = polled_channel()
copy = os.dup(channel.sock.fileno())
channel.sock.close()
channel.send(0, b"dup")
check("a duplicate keeps the flow with its engine", plain.recv(99)[:1] in (b"d", b"x") and polled() == 1)
channel.region.close()
os.close(copy)
check("the last close takes it away", wait_until(lambda: polled() == 0 and memory.module_users() == idle), engines())
pid = program()
os.kill(pid, signal.SIGSTOP)
check("a stopped program has its channel still", polled() == 1)
kill(pid)

# Engines that come and go under programs which send.
pids = [program() for _ in range(2)]
for turn in range(9):
    set_engines(*CPUS[:turn % (len(CPUS) + 1)], idle=turn % 3 * 1000)
check("engines that change under two programs",
      wait_until(lambda: engine_threads() == [f"kopi-engine/{cpu}" for cpu in CPUS[:8 % (len(CPUS) + 1)]]),
      engine_threads())
for pid in pids:
    kill(pid)
check("all of that is freed", wait_until(lambda: memory.module_users() == idle), memory.module_users())

# Engines that end while more is in rings than they could send in a minute.
pids = []


def fill_rings():
    """For engines that are there."""
    while pids:
        kill(pids.pop())
    set_engines(*CPUS)
    pids.extend(flood() for _ in range(4))


is_quick, took = kopi.quick(ENDED, set_engines, fill_rings)
check("engines end soon, however full the rings are", is_quick and not engine_threads(), took)
for pid in pids:
    kill(pid)
check("what they left is freed", wait_until(lambda: memory.module_users() == idle), memory.module_users())

# A network namespace.
set_engines(CPUS[-1])
sh("ip netns add doomed; ip -n doomed link set lo up")
with namespace("doomed"):
    pid = program("127.0.0.1", ("127.0.0.1", 9))
sh("ip netns del doomed")
# The program may be without a CPU for longer than the engine's idle time.
check("a namespace whose name is deleted goes on with its program", wait_until(lambda: polled() == 1), engines())
kill(pid)
check("and goes with it", wait_until(lambda: polled() == 0 and memory.module_users() == idle), engines())

# A CPU that goes.
if len(CPUS) > 1 and os.path.exists(f"/sys/devices/system/cpu/cpu{CPUS[-1]}/online"):
    switch = f"/sys/devices/system/cpu/cpu{CPUS[-1]}/online"
    channel = polled_channel()
    sh(f"echo 0 >{switch}")
    sent = channel.stats()["tx_packets"]
    channel.send(0, b"x")
    check("a CPU goes offline, and its engine to another one",
          wait_until(lambda: channel.stats()["tx_packets"] == sent + 1))
    sh(f"echo 1 >{switch}")
    channel.region.close()
    channel.sock.close()

# The module.
channel = polled_channel()
check("the module can't be taken away from a channel", sh("rmmod kopi 2>&1 || echo busy").endswith("busy\n"))
channel.region.close()
channel.sock.close()
kopi.expect(memory.unload(), "nothing holds the module")
check("without sockets it can, with its engines", engine_threads() == [], engine_threads())
kopi.expect(memory.load(), "it comes again")
# By a program of its own: the family's number is another one now.
check("and comes back without any", sh("/kopi/build/cargo/release/kopictl --json engine") == "[]\n")
finish()
