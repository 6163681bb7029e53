#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Of each flow it is shown which way its packets leave and come in, where devices are attached, and why."""

import contextlib
import json
import socket

import kopi
from attached import (OTHERS, attach, detached, host, kopictl, last_hook, redirection, second_nic,
                      slow_device)
from control import ask, family
from equivalence import namespace
from linux import IP_OPTIONS, SO_TIMESTAMPING

TX_SOFTWARE = 1 << 1
PEER = "192.0.2.2"
ESP = "proto esp spi 0x5 mode transport aead 'rfc4106(gcm(aes))' 0x" + 20 * "11" + " 128"


class Shown:
    """A flow on a channel, and what is shown of it."""

    def __init__(self, ynl, local=("192.0.2.1", 0), **sizes):
        self.ynl = ynl
        with namespace("host"):
            before = {flow["id"] for flow in ynl.dump("flow-get", {})}
            self.flow = kopi.flow()
            self.id = next(flow["id"] for flow in ynl.dump("flow-get", {}) if flow["id"] not in before)
        if local:
            self.flow.bind(local)
        self.channel = kopi.Channel(self.flow, **sizes)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.flow.close()
        self.channel.region.close()

    def send(self, count=8, peer=PEER):
        """Sends a GSO packet, or a non-GSO datagram."""
        while self.channel.completion.pop():
            pass
        for number in range(count):
            self.channel.send(number, b"x" * 100, (peer, 7999))
        self.channel.bell()

    def shown(self):
        """What is shown of it."""
        return ask(self.ynl, "flow-get", {"id": self.id})

    def is_shown(self, what, expected, key="tx-path"):
        """Checks it."""
        shown = self.shown()
        kopi.check(what, shown.get(key) == expected, shown)
        return shown

    def comes_to(self, what, expected, count=8):
        """Sends until it is shown: what has left by another way before may be in this one's."""
        kopi.wait_until(lambda: (self.send(count), self.shown()["tx-path"])[1] == expected)
        self.is_shown(what, expected)


def gso(ynl, **options):
    """A flow with GSO packets."""
    return Shown(ynl, flags=kopi.OFFLOADS, **options)


def leaving(ynl):
    """The way of the last packet."""
    with namespace("host"):
        index = socket.if_nametoindex("eth0")
    with gso(ynl) as flow:
        shown = flow.is_shown("nothing has left: no way", None)
        kopi.check("nor a device", "tx-path-ifindex" not in shown, shown)
        flow.send()
        shown = flow.is_shown("a GSO packet: directly", "direct")
        kopi.check("by this device", shown["tx-path-ifindex"] == index, shown)
        for way, other in {**OTHERS, "hook": last_hook}.items():
            with other():
                flow.send()
                flow.is_shown(f"{way}: it is said of the flow", way)
            flow.comes_to(f"{way}: and not any more", "direct")
        with detached():
            flow.is_shown("detached: no way", None)
            flow.send()
            flow.is_shown("nor when one has left", None)
        flow.comes_to("attached again", "direct")
        flow.flow.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, TX_SOFTWARE)
        flow.comes_to("a time stamp of what leaves is wanted", "extras")
    with Shown(ynl) as plain:
        plain.send(2)
        plain.is_shown("fewer than three non-GSO datagrams: by the stack", "datagram")
        plain.comes_to("three: directly", "direct", 3)
        plain.flow.setsockopt(socket.IPPROTO_IP, IP_OPTIONS, b"\x94\4\0\0")
        plain.send(1)
        plain.is_shown("a non-GSO datagram with options", "datagram")


def taking_turns(ynl):
    """Flows of one channel whose datagrams alternate share pages and calls of the driver. Two datagrams alone would
    cost more than by the stack."""
    with namespace("host"):
        other = kopi.flow()
    with Shown(ynl) as shown, other:
        other.bind(("192.0.2.1", 0))
        other.setsockopt(kopi.SOL_KOPI, kopi.JOIN, kopi.join_request(shown.flow))
        channel, numbers = shown.channel, (0, kopi.number_of(other))
        for what, count, length, expected in (("two datagrams: by the stack", 2, 1, "datagram"),
                                              ("one by one: directly", 12, 1, "direct"),
                                              ("by threes: too", 12, 3, "direct")):
            def send(count=count, length=length):
                for number in range(count):
                    channel.send(number, b"x" * 100, (PEER, 7999), numbers[number // length % 2])
                return channel.complete(count)

            errors = send()
            # What has left by the stack before may be in the way of what is to leave directly.
            kopi.wait_until(lambda: expected != "direct" or shown.shown()["tx-path"] == "direct" or not send())
            shown.is_shown(f"two flows take turns, {what}", expected)
            kopi.check(f"and all are sent, {what}", errors == [0] * count, errors)


def leaving_otherwise(ynl):
    """What isn't UDP any more when it leaves."""
    with gso(ynl) as flow:
        flow.send()
        host(f"ip xfrm state add src 192.0.2.1 dst {PEER} {ESP}")
        host(f"ip xfrm policy add src 192.0.2.1/32 dst {PEER}/32 dir out tmpl proto esp mode transport")
        try:
            flow.send()
            flow.is_shown("IPsec, after GSO packets that left directly", "transformed")
        finally:
            host("ip xfrm policy flush")
            host("ip xfrm state flush")
        flow.comes_to("and without it again", "direct")
    host("ip link add vlan5 link eth0 type vlan id 5")
    try:
        host("ip addr add 203.0.113.1/24 dev vlan5; nsenter --net=/run/netns/host ip link set vlan5 up")
        host("ip neigh add 203.0.113.2 lladdr 02:00:00:00:00:09 dev vlan5")
        with gso(ynl, local=("203.0.113.1", 0)) as flow:
            flow.send(peer="203.0.113.2")
            flow.is_shown("a VLAN's tag", "extras")
    finally:
        host("ip link del vlan5")


def leaving_behind(ynl):
    """What the stack has too much of, first."""
    with slow_device(), gso(ynl, local=("0.0.0.0", 0)) as flow:
        for _ in range(3):
            flow.send(peer="203.0.113.2")
        flow.send()
        # The first waits for a while, and is what finds out.
        flow.comes_to("earlier ones are held by a qdisc", "behind")


def coming(ynl):
    """The way in."""
    with gso(ynl) as flow:
        flow.is_shown("a flow with GSO packets and a port", "direct", "rx-path")
        target = redirection()
        host(f"ip link set {target} down")
        flow.is_shown("the device that is redirected to is down", "down", "rx-path")
        host(f"ip link set {target} up")
        flow.flow.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        flow.is_shown("bound to another device", None, "rx-path")
        flow.flow.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
        flow.is_shown("bound to this device", "direct", "rx-path")
        with detached():
            flow.is_shown("detached: no way in", None, "rx-path")
    with Shown(ynl) as plain:
        plain.is_shown("a flow without GSO packets", "direct", "rx-path")
    with gso(ynl, local=None) as unbound:
        unbound.is_shown("no port yet", "not-redirected", "rx-path")
        unbound.send()
        unbound.is_shown("a port, since it has sent", "direct", "rx-path")
    # Of several devices the best counts, for who isn't bound to one.
    with second_nic():
        kopictl("attach", "eth1")
        host("ip link set dev eth1 xdp off")
        with gso(ynl) as flow:
            flow.is_shown("two devices: the better one", "direct", "rx-path")
            flow.flow.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth1")
            flow.is_shown("bound to the other", "no-program", "rx-path")
        kopictl("detach", "eth1")


def told_to_people(ynl):
    """kopictl says it."""
    with gso(ynl) as flow:
        flow.send()
        line = next(line for line in kopictl("ps", "--wide").splitlines() if line.split()[0] == str(flow.id))
        kopi.check("kopictl ps --wide", line.rstrip().endswith("eth0: direct  direct"), line)
        with OTHERS["tap"]():
            flow.send()
            shown = kopictl("show", "flow", str(flow.id))
            kopi.check("kopictl show flow", "through the stack: a packet socket captures packets" in shown and "(eth0)" in shown,
                       shown)
            shown = json.loads(kopictl("show", "flow", str(flow.id), "--json"))
            kopi.check("kopictl show flow --json",
                       (shown["tx_path"], shown["tx_path_device"], shown["rx_path"]) == ("tap", "eth0", "tap"),
                       shown)


attach()
with namespace("host"):
    YNL = family()
with contextlib.ExitStack() as stack:
    stack.callback(kopictl, "detach", "eth0")
    for case in (leaving, taking_turns, leaving_otherwise, leaving_behind, coming, told_to_people):
        case(YNL)
kopi.finish()
