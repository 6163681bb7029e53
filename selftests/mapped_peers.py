#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Datagrams of an IPv6 flow to peers of IPv4 go by remembered routes, as single calls and as frames of an attached
device: they are those of a UDP socket, bit by bit, and counted alike, whatever options of either IP version say."""

import random
import socket
import struct

import datagrams6
import kopi
from attached import attach, host, kopictl, sysctl
from datagrams6 import FROM, IP6, PORT, Sender, option, same
from equivalence import namespace, payload, run_nft
from linux import (ETH_P_IP, IP_MTU_DISCOVER, IP_TOS, IP_TTL, IP_UNICAST_IF, IPV6_HOPOPTS, IPV6_MTU_DISCOVER, IPV6_TCLASS,
                   IPV6_UNICAST_HOPS, SO_NO_CHECK, SO_RCVBUFFORCE, SO_SNDBUFFORCE, UDP_NO_CHECK6_TX)

NEAR, FAR, SECOND, FOREIGN = (f"::ffff:{address}" for address in ("192.0.2.1", "192.0.2.2", "192.0.2.11", "203.0.113.9"))
IP, UDP = socket.IPPROTO_IP, socket.IPPROTO_UDP
TO = {"address": (FAR, PORT)}


class Overheard(datagrams6.Overheard):
    """The same of IPv4, without IDs that are chosen by chance."""

    def __init__(self):
        super().__init__(ETH_P_IP)

    def take(self, count=0, patience=0.3):
        packets = super().take(count, patience)
        # An ID of 0 stays: there is none. Another one changes the header's checksum.
        return [packet if packet[18:20] == b"\0\0" else packet[:18] + b"id" + packet[20:24] + b"ck" + packet[26:]
                for packet in packets]


def options(wire):
    """Options of the socket: those of IPv4 count, those of IPv6 don't, and some are for the stack."""
    with namespace("host"):
        index = socket.if_nametoindex("eth0")
    settings = {
        "no option": (None, True),
        "IP_TOS": (option(IP, IP_TOS, 0x28), True),
        "IP_TTL": (option(IP, IP_TTL, 9), True),
        "IP_UNICAST_IF": (option(IP, IP_UNICAST_IF, socket.htonl(index)), True),
        "SO_BINDTODEVICE": (option(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0"), True),
        "SO_PRIORITY": (option(socket.SOL_SOCKET, socket.SO_PRIORITY, 6), True),
        "traffic class": (option(IP6, IPV6_TCLASS, 0x28), True),
        "hop limit": (option(IP6, IPV6_UNICAST_HOPS, 9), True),
        "IPV6_PMTUDISC_DO": (option(IP6, IPV6_MTU_DISCOVER, 2), True),
        "no checksum of IPv6": (option(UDP, UDP_NO_CHECK6_TX, 1), True),
        "hop-by-hop options": (option(IP6, IPV6_HOPOPTS, b"\0\0\5\2\0\0\1\0"), True),
        "SO_NO_CHECK": (option(socket.SOL_SOCKET, SO_NO_CHECK, 1), False),
    }
    settings |= {f"IP_MTU_DISCOVER {value}": (option(IP, IP_MTU_DISCOVER, value), True) for value in (0, 1, 2, 3, 4, 5)}
    for what, (setup, directly) in settings.items():
        same(wire, what, [payload(number, size) for number, size in enumerate((0, 1, 511, 1400, 1472))], directly,
             setup=setup, bind=("::", FROM), **TO)
    same(wire, "IPV6_V6ONLY", [b"a"] * 3, False, setup=option(IP6, socket.IPV6_V6ONLY, 1), bind=("::", FROM), **TO)
    same(wire, "all lengths", [payload(number, number) for number in range(0, 1473, 33)], bind=("::", FROM), **TO)
    same(wire, "bound to an address of IPv4", [b"a"] * 3, bind=(NEAR, FROM), **TO)
    same(wire, "bound to one of IPv6", [b"a"] * 3, bind=("2001:db8::1", FROM), **TO)
    same(wire, "connected to a peer of IPv6", [b"a"] * 3, bind=("::", FROM), connect=("2001:db8::2", PORT), **TO)
    for what in ("no option", "IP_TOS", "SO_BINDTODEVICE", "traffic class", "IP_MTU_DISCOVER 2"):
        same(wire, f"connected to a peer of IPv4, {what}", [payload(number, size) for number, size in enumerate((0, 1, 511, 1472))],
             setup=settings[what][0], bind=("::", FROM), connect=(FAR, PORT))
    with sysctl("net.ipv4.ip_default_ttl", 33):
        same(wire, "the namespace's TTL", [b"a"] * 3, bind=("::", FROM), **TO)


def sources(wire):
    """Sources in messages."""
    with namespace("host"):
        index = socket.if_nametoindex("eth0")
    host("ip addr add 192.0.2.11/24 dev eth0")
    for bind in ("::", NEAR):
        for what, directly, how in (
                ("another source", True, {"local": SECOND}),
                ("another source by a device", True, {"local": SECOND, "ifindex": index}),
                # The attacks: addresses of others, and of the other IP version.
                ("a source that isn't the host's", True, {"local": FOREIGN}),
                ("the peer's address as the source", True, {"local": FAR}),
                ("a source of IPv6", False, {"local": "2001:db8::1"}),
                ("any source", False, {"local": "::"}),
                ("any source of IPv4", False, {"local": "::ffff:0.0.0.0"}),
                ("the source of a device that isn't there", True, {"local": NEAR, "ifindex": 4242})):
            for peer, to in (("", TO), (", connected", {"connect": (FAR, PORT)})):
                same(wire, f"{what}, bound to {bind}{peer}", [b"a"] * 3, directly, bind=(bind, FROM), **how, **to)
    host("ip addr del 192.0.2.11/24 dev eth0")
    for what, address in (("a broadcast", "::ffff:255.255.255.255"), ("a group", "::ffff:224.0.0.7"),
                          ("the any-address", "::ffff:0.0.0.0")):
        same(wire, what, [b"a"] * 3, False, bind=("::", FROM), address=(address, PORT))
    for what, address, directly in (("another port of it", (FAR, PORT + 1), True), ("IPv6", ("2001:db8::2", PORT), False)):
        same(wire, f"connected to a peer of IPv4, and to {what}", [b"a"] * 3, directly, bind=("::", FROM),
             connect=(FAR, PORT), address=address)


def of_both_versions(wire):
    """One flow sends to peers of both IP versions in turn: each gets its own, in order."""
    # Room for all that a slow device hasn't sent yet: else UDP's sendmsg() is what waits.
    sender = Sender(True, lambda sock: sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20), ("::", FROM))
    with namespace("peer"):
        sinks = [socket.socket(family, socket.SOCK_DGRAM) for family in (socket.AF_INET, socket.AF_INET6)]
    ends = []
    for sink, near, far in zip(sinks, ("192.0.2.2", "2001:db8::2"), (FAR, "2001:db8::2")):
        sink.bind((near, 0))
        sink.settimeout(20)
        sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        ends.append((far, sink.getsockname()[1]))
    chance, before = random.Random(3), datagrams6.WAY.taken(sender)
    turns = [(chance.randrange(2), struct.pack("=I", number) * chance.randrange(1, 300)) for number in range(320)]
    if datagrams6.WAY is datagrams6.Routes:
        errors = [sender.send_one(data, ends[which], None, 0) for which, data in turns]
    else:
        errors = []
        for number, (which, data) in enumerate(turns):
            sender.channel.send(number % datagrams6.FRAMES, data, ends[which])
            if number % datagrams6.FRAMES == datagrams6.FRAMES - 1:
                errors += sender.channel.complete(datagrams6.FRAMES)
    for which, sink in enumerate(sinks):
        want = [data for to, data in turns if to == which]
        got = [sink.recv(2000) for _ in want]
        kopi.check(f"peers of both IP versions in turn: those of {('IPv4', 'IPv6')[which]}, in order", got == want,
                   (len(got), len(want)))
        sink.close()
    taken = datagrams6.WAY.taken(sender) - before
    kopi.check(f"all {datagrams6.WAY.name}", errors == [0] * len(turns) and taken == len(turns), (set(errors), taken))
    wire.take(0, 0.02)
    sender.close()


def with_rules(wire):
    """nft sees IPv4 packets, and its verdicts are UDP's."""
    with namespace("host"):
        run_nft("table ip see {\nchain o {\ntype filter hook output priority 0\n"
                f"ip daddr 192.0.2.2 udp dport {PORT} udp length > 100 counter drop\n"
                f"ip daddr 192.0.2.2 udp dport {PORT} counter ip dscp set 12\n}}\n}}")
    same(wire, "nft's verdicts", [payload(number, size) for number, size in enumerate((0, 200, 1, 90, 1400))],
         bind=("::", FROM), **TO)
    host("nft delete table ip see")


def every_way(way):
    """All of that, by one of a flow's ways."""
    datagrams6.ways(way)
    wire = Overheard()
    for case in (options, sources, of_both_versions, with_rules):
        case(wire)


host("ping -q -c1 -w20 192.0.2.2")
every_way(datagrams6.Routes)
attach()
every_way(datagrams6.Frames)
kopictl("detach", "eth0")
kopi.finish()
