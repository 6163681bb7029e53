#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A network namespace is deleted under flows that send, receive and wait."""

import os
import select
import signal
import subprocess

import kopi
from equivalence import namespace, sh


def exists(device):
    """Whether the device is in this namespace."""
    return os.path.exists(f"/sys/class/net/{device}")


def sleeps_in_poll(pid):
    """Whether the process is in poll(2)."""
    with open(f"/proc/{pid}/syscall", encoding="ascii") as syscall:
        return syscall.read().startswith("7 ")


def work(state, ready):
    """A process in the namespace, in one of the states; says when it is bound, and when it works."""
    flow = kopi.flow()
    flow.bind(("198.51.100.2", 7000))
    channel = kopi.Channel(flow, frames=64)
    for frame in range(32):
        channel.fill.push(channel.frame(frame))
    os.write(ready, b"x")
    if state == "blocked in poll":
        poll = select.poll()
        poll.register(flow, select.POLLIN)
        poll.poll()
    while True:
        if state == "sending":
            for frame in range(32, 48):
                channel.send(frame, b"x" * 1900, ("198.51.100.1", 9))
            channel.bell()
            while channel.completion.pop() is not None:
                pass
        elif (entry := channel.rx.pop()) is None:
            continue
        else:
            channel.fill.push(entry[0] & ~2047)
        if ready is not None:
            os.write(ready, b"x")
            ready = None


kopi.send_by_reference()
for state in ("idle", "sending", "receiving", "blocked in poll"):
    sh("ip netns add doomed; ip link add outside type veth peer name inside netns doomed; "
       "ip addr add 198.51.100.1/24 dev outside; ip link set outside up; "
       "ip -n doomed addr add 198.51.100.2/24 dev inside; ip -n doomed link set inside up")
    told, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        with namespace("doomed"):
            if state == "idle":
                idle = kopi.Channel()
                os.write(ready, b"x")
                signal.pause()
            work(state, ready)
    os.read(told, 1)
    feeder = None
    if state == "receiving":
        feeder = subprocess.Popen(["socat", "-u", "OPEN:/dev/zero", "UDP:198.51.100.2:7000"],
                                  stderr=subprocess.DEVNULL)
    if state in ("sending", "receiving"):
        os.read(told, 1)
    if state == "blocked in poll":
        kopi.check("a process sleeps in poll", kopi.wait_until(lambda: sleeps_in_poll(pid)))
    sh("ip netns del doomed")
    kopi.check(f"{state}: the process lives on", os.waitpid(pid, os.WNOHANG)[0] == 0)
    kopi.check(f"{state}: its sockets keep the namespace", exists("outside"))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    kopi.check(f"{state}: when it dies, the namespace goes", kopi.wait_until(
        lambda: not exists("outside")))
    if feeder:
        feeder.kill()
        feeder.wait()
log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
kopi.check("nothing waited for a reference to a device", "unregister_netdevice" not in log)
kopi.finish()
