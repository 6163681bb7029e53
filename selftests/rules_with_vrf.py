#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What leaves by a VRF meets the rules twice, and counts once; the second time is in a softirq, where nothing
sleeps. All of it as root of a user namespace."""

import contextlib
import ctypes
import errno
import json
import os
import socket
import subprocess
import sys
import time

import kopi
from control import add, ask, family, rules
from kopi import check, wait_until
from watchdog import Watchdog

NEAR, FAR, PORT = "203.0.115.1", "203.0.115.2", 7001
# Long enough for the test to do something while a datagram waits.
DELAY = 0.5
SETUP = """
link set lo up
link add vrf0 type vrf table 10
link set vrf0 up
link add d1 type dummy
link set d1 master vrf0
link set d1 addrgenmode none
addr add 203.0.115.1/24 dev d1
link set d1 up
neigh add 203.0.115.2 lladdr 02:00:00:00:00:02 dev d1
"""


def sent():
    """Packets that have left."""
    shown = subprocess.run("ip -s -j link show dev d1".split(), check=True, capture_output=True).stdout
    return json.loads(shown)[0]["stats64"]["tx"]["packets"]


def waiting():
    """Packets in the VRF's queue, if it has one."""
    shown = subprocess.run("tc -s -j qdisc show dev vrf0".split(), check=True, capture_output=True).stdout
    return sum(qdisc["qlen"] for qdisc in json.loads(shown))


def counted_once(ynl, what):
    """A rule counts each datagram once, and a rate lets as many pass as it says."""
    add(ynl, remote_port_min=PORT, verdict="allow")
    flow = kopi.flow()
    flow.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"vrf0")
    flow.connect((FAR, PORT))
    before = sent()
    for _ in range(10):
        flow.send(b"x" * 100)
    wait_until(lambda: sent() - before >= 10)
    found = rules(ynl)[0]
    check(f"{what}: ten datagrams are ten", (found["packets"], found["bytes"]) == (10, 1000), found)
    ask(ynl, "ruleset-set")
    add(ynl, remote_port_min=PORT, rate_packets=1, burst=10)
    before, begun = sent(), time.monotonic()
    for _ in range(30):
        # A VRF without a queue hides the error.
        with contextlib.suppress(OSError):
            flow.send(b"x" * 100)
    took = time.monotonic() - begun
    wait_until(lambda: sent() - before >= 10 and not waiting())
    passed = sent() - before
    check(f"{what}: a rate lets ten pass, and one a second", 10 <= passed <= 11 + took, (passed, took))
    ask(ynl, "ruleset-set")
    flow.close()


def full_listener():
    """A listener to events who doesn't read, and has room for few more."""
    ynl = family()
    ynl.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    ynl.ntf_subscribe("events")
    # Past half of it, senders that may sleep give way to the reader.
    for _ in range(40):
        kopi.flow().close()
    return ynl.sock


def nothing_sleeps(ynl):
    """A rule stops a flow while its datagram waits in the VRF's queue."""
    listener = full_listener()
    for number in range(8):
        flow = kopi.flow()
        flow.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"vrf0")
        add(ynl, device="d1", verdict="deny")
        flow.connect((FAR, PORT))
        flow.send(b"x")
        flow.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"d1")
        stopped = wait_until(lambda flow=flow: flow.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.EACCES,
                             20 * DELAY)
        check(f"a datagram that waited in the VRF is stopped, and its flow is told ({number})", stopped)
        ask(ynl, "ruleset-set")
        flow.close()
    # So does one that binds a port, which the hook is the first to see.
    first, last = map(int, open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii").read().split())
    add(ynl, local_port_min=first, local_port_max=last, direction={"out"}, verdict="deny")
    flow, name = kopi.flow(), kopi.pack_address("127.0.0.1", 9)
    found = kopi.libc.sendto(flow.fileno(), b"x", 1, 0, name, len(name)) < 0 and ctypes.get_errno()
    check("a port that sending binds is stopped", found == errno.EACCES, found)
    ask(ynl, "ruleset-set")
    flow.close()
    listener.close()


def main():
    if "inside" not in sys.argv:
        for module in ("vrf", "sch_netem"):
            # Any of them may be built in.
            subprocess.run(["modprobe", "-q", module], check=False)
        command = ["setpriv", "--reuid", "bob", "--regid", "bob", "--clear-groups", "unshare", "-Urn",
                   sys.executable, os.path.abspath(__file__), "inside"]
        with Watchdog() as watchdog:
            status = subprocess.run(command, check=False, timeout=800).returncode
        sys.exit(status if watchdog.verdict() else 3)
    subprocess.run(["ip", "-batch", "-"], input=SETUP, text=True, check=True)
    ynl = family()
    counted_once(ynl, "a VRF without a queue")
    subprocess.run(f"tc qdisc add dev vrf0 root netem delay {DELAY * 1000:.0f}ms".split(), check=True)
    counted_once(ynl, "a VRF with a queue")
    nothing_sleeps(ynl)
    kopi.finish()


main()
