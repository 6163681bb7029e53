#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A sender through an attached NIC doesn't wait for another NIC, whose driver has another flow's packets."""

import os
import socket

import kopi
from attached import UserFlow, attach, by_the_driver, host, kopictl, link
from control import family
from equivalence import namespace, sh
from kopi import check
from linux import SO_RCVBUFFORCE
from qmp import Nic

FAST, SLOW = "192.0.2.2", "203.0.113.2"
PORT = 7000
# A GSO packet's payload, and its datagrams' size.
GSO = bytes(1600), 100
# The NIC of a hub without another end: QEMU keeps what it sends.
SLOW_HUB = 7


def plug_in(ynl):
    """Plugs a NIC in that lets nothing out, as the host's slow0; gives its place, or None."""
    nic = Nic(SLOW_HUB)
    if not nic.hotplug:
        # The debug kernel would keep it for the tests that come next.
        nic.close()
        return None
    name = nic.plug_in(kopi.wait_until)
    sh(f"ip link set {name} down; ip link set {name} name slow0 netns host")
    # Nothing through the stack: the driver would stop its queue.
    for command in ("sysctl -qw net.ipv6.conf.slow0.disable_ipv6=1", "ip addr add 203.0.113.1/24 dev slow0",
                    "ip link set slow0 up", f"ip neigh add {SLOW} lladdr 02:00:00:00:00:09 dev slow0",
                    "kopictl attach slow0"):
        host(command)
    kopi.wait_until(lambda: link(ynl, "slow0")["tx-path"] == "direct")
    return nic


def other_nic(ynl):
    """Packets that one user's flow has at a slow NIC hold up nobody at another one."""
    other = UserFlow("bob")
    other.send((FAST, PORT), *GSO)
    shortest = 9
    # What waits for the slow one waits for a second, each time.
    for _ in range(8):
        before = link(ynl, "slow0")["packets"]
        greedy = UserFlow("alice")
        greedy.send((SLOW, PORT), *GSO)
        taken, _ = by_the_driver(ynl, "slow0", before, 10)
        check("the slow NIC's driver has a flow's packets", taken, link(ynl, "slow0"))
        before = link(ynl)["packets"]
        greedy.send((FAST, PORT), b"x")
        greedy.send((FAST, PORT), *GSO)
        other.send((FAST, PORT), *GSO)
        taken, after = by_the_driver(ynl, "eth0", before, 5)
        shortest = min(shortest, after)
        check("another user's packet leaves by the other NIC", taken)
        greedy.close()
        if shortest < 0.3:
            break
    check("at once", shortest < 0.3, shortest)
    other.close()


os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
attach()
with namespace("host"):
    YNL = family()
NIC = plug_in(YNL)
with namespace("peer"):
    SINK = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    SINK.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    SINK.bind((FAST, PORT))
if NIC:
    try:
        other_nic(YNL)
    finally:
        kopictl("detach", "slow0")
        NIC.close()
else:
    check("a slow NIC can be plugged in, but on the debug kernel", os.uname().release.endswith("-debug"))
kopictl("detach", "eth0")
kopi.finish()
