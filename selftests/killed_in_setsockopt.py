#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A process that is killed while it gets a large channel gets no more of it: what is free is for others then."""

import os
import resource
import signal

import kopi
import memory

GROUP = "/sys/fs/cgroup/large"
MEGABYTE = 1 << 20
# Frames of 2,048 bytes.
SIZE = 512 * MEGABYTE
# It is killed when it has so much.
BEGUN = 32 * MEGABYTE


def of_group(name):
    """Bytes of the cgroup's memory, by the name of a file."""
    with open(f"{GROUP}/memory.{name}", encoding="ascii") as file:
        return int(file.read())


def ask():
    """Makes the channel, in the cgroup."""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    kopi.move_to("large")
    kopi.flow().setsockopt(kopi.SOL_KOPI, kopi.CHANNEL, kopi.request(frames=SIZE // 2048))
    print("# it has the channel", flush=True)


os.makedirs(GROUP, exist_ok=True)
with open("/sys/fs/cgroup/cgroup.subtree_control", "w", encoding="ascii") as control:
    control.write("+memory")
memory.wait_until_unused()
child = kopi.in_child(ask)
while of_group("current") < BEGUN:
    kopi.expect(not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT), "the child is at work")
os.kill(child, signal.SIGKILL)
status = os.waitpid(child, 0)[1]
peak = of_group("peak")
print(f"# {peak // MEGABYTE} MiB of {SIZE // MEGABYTE}")
kopi.check("it is killed before it has half of it", status == signal.SIGKILL and peak < SIZE // 2, (status, peak))
kopi.check("all is given back", memory.wait_until_unused() and kopi.wait_until(lambda: of_group("current") < BEGUN),
           of_group("current"))
os.rmdir(GROUP)
kopi.finish()
