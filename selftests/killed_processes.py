#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A thousand processes are killed at any moment of opening, mapping and traffic: nothing is left.

KILL_SEED repeats a run, KILL_CYCLES changes its length.
"""

import os
import random
import signal
import time

import kopi
import memory

CYCLES = int(os.environ.get("KILL_CYCLES", "1000"))
SEED = int(os.environ.get("KILL_SEED", "1"))
AT_ONCE = 4
# Objects that may come and go without KOPI; far fewer than a leak in each cycle would leave.
SLACK_OBJECTS = CYCLES // 3
# Kilobytes. A region has more than 128.
SLACK_KB = {"VmallocUsed:": 8192, "Percpu:": 1024, "Taken:": CYCLES * 32}


def child(number):
    """Opens a flow with a channel, and sends to its neighbour and itself until it is killed."""
    # Neighbours have the same family, and each other group the other one.
    host, proto = ("::1", kopi.UDP6) if number // AT_ONCE & 1 else ("127.0.0.1", 0)
    port = 20000 + number % AT_ONCE
    while True:
        flow = kopi.flow(proto)
        flow.setsockopt(kopi.socket.SOL_SOCKET, kopi.socket.SO_REUSEPORT, 1)
        flow.bind((host, port))
        flags = kopi.OFFLOADS * (number & 1)
        channel = kopi.Channel(flow, flags=flags, frames=64)
        for frame in range(32):
            channel.fill.push(channel.frame(frame))
        for count in range(30):
            for frame in range(32, 48):
                # Half of them by reference.
                target = 20000 + (number + count) % AT_ONCE
                channel.send(frame, b"x" * (64 if frame & 1 else 1900), (host, target))
            channel.bell()
            while channel.completion.pop() is not None:
                pass
            while (entry := channel.rx.pop()) is not None:
                channel.fill.push(entry[0] & ~2047)
        channel.region.close()
        flow.close()


def cycle(chance, number):
    """Starts some, and kills them at different moments."""
    pids = []
    for each in range(AT_ONCE):
        pids.append(kopi.in_child(lambda seed=number + each: child(seed)))
    killed = 0
    for pid in pids:
        time.sleep(chance.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        killed += os.waitpid(pid, 0)[1] == signal.SIGKILL
    return killed


kopi.send_by_reference()
rng = random.Random(SEED)
for start in range(0, 40, AT_ONCE):
    cycle(rng, start)
memory.wait_until_unused()
before = memory.counts()
dead = sum(cycle(rng, start) for start in range(0, CYCLES, AT_ONCE))
kopi.check(f"{CYCLES} processes lived until they were killed (seed {SEED})", dead == CYCLES, dead)
kopi.check("no reference to the module is left", memory.wait_until_unused(), memory.module_users())
grown, after = memory.grown(before, SLACK_OBJECTS, SLACK_KB)
kopi.check(f"{len(before)} slab and memory counts are where they were", not grown, grown)
print("#", {name: (count, after[name]) for name, count in before.items()})
kopi.check("the module can go", memory.unload())
kopi.check("and come back", memory.load())
kopi.finish()
