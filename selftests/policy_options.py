#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Socket options and per-packet metadata mean for a KOPI flow what they mean for a UDP socket."""

import socket
import struct

from equivalence import (ADDRESSES, COUNT, IP_TOS, IP_TTL, IPV6_TCLASS, NONE, PEER_PORT,
                         SUBJECT_PORT, Policy, chain, nft_counters, nft_table, run, sh, undo)

IPV6_UNICAST_HOPS, IPV6_MULTICAST_IF, IPV6_JOIN_GROUP = 16, 17, 20
IP_MULTICAST_IF, IP_MULTICAST_TTL, IP_ADD_MEMBERSHIP, IP_MTU_DISCOVER = 32, 33, 35, 10
IPV6_MTU_DISCOVER, IPV6_MULTICAST_HOPS = 23, 18
GROUPS = {4: "239.1.2.3", 6: "ff05::123"}
SECOND = {4: "192.0.2.77", 6: "2001:db8::77"}
V4, V6 = {"families": (4,)}, {"families": (6,)}
SINGLE = {"trains": (False,)}
DEVICES = {"host": "eth0", "peer": "eth1"}


def option(level, name, value):
    """The field for one option."""
    return {"options": ((level, name, value),)}


def join(end):
    """What joins the multicast group on the end's NIC."""
    def prepare(subject):
        index = socket.if_nametoindex(DEVICES[end])
        group = GROUPS[subject.family]
        if subject.family == 4:
            subject.sock.setsockopt(socket.IPPROTO_IP, IP_ADD_MEMBERSHIP, struct.pack(
                "=4s4si", socket.inet_aton(group), bytes(4), index))
        else:
            subject.sock.setsockopt(socket.IPPROTO_IPV6, IPV6_JOIN_GROUP, struct.pack(
                "=16si", socket.inet_pton(socket.AF_INET6, group), index))
    return prepare


def leave_by(end, hops=1):
    """What has multicast leave by the end's NIC, with so many hops."""
    def prepare(subject):
        index = socket.if_nametoindex(DEVICES[end])
        if subject.family == 4:
            subject.sock.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_IF,
                                    struct.pack("=4s4si", bytes(4), bytes(4), index))
            subject.sock.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_TTL, hops)
        else:
            subject.sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MULTICAST_IF, index)
            subject.sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MULTICAST_HOPS, hops)
    return prepare


def wildcard(port):
    """Any address."""
    return lambda family: ({4: "0.0.0.0", 6: "::"}[family], port)


def group(port):
    """The multicast group."""
    return lambda family: (GROUPS[family], port)


def second_address():
    """A second address of the host."""
    sh(f"ip addr add {SECOND[4]}/24 dev eth0; ip -6 addr add {SECOND[6]}/64 dev eth0 nodad")
    undo(sh, f"ip addr del {SECOND[4]}/24 dev eth0; ip -6 addr del {SECOND[6]}/64 dev eth0")


def each(**meta):
    """The same metadata for all datagrams."""
    return lambda family: [meta] * COUNT


def in_turn(*metas):
    """Metadata that change from datagram to datagram."""
    return lambda family: [metas[number % len(metas)] for number in range(COUNT)]


MARKS = nft_table(chain("filter hook output priority 0", *(
    f"udp dport 7001 meta mark {mark} counter" for mark in (0, 5, 6))))

run("options", [
    Policy("IP_TOS", **option(socket.IPPROTO_IP, IP_TOS, 0x28), **V4),
    Policy("IPV6_TCLASS", **option(socket.IPPROTO_IPV6, IPV6_TCLASS, 0x28), **V6),
    Policy("IP_TTL", **option(socket.IPPROTO_IP, IP_TTL, 9), **V4),
    Policy("IPV6_UNICAST_HOPS", **option(socket.IPPROTO_IPV6, IPV6_UNICAST_HOPS, 9), **V6),
    Policy("SO_BINDTODEVICE", **option(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")),
    Policy("SO_BINDTODEVICE of another", **option(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo"),
           out=NONE, into=NONE, connected=False, **V4),
    Policy("SO_BINDTODEVICE of another, IPv6",
           **option(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo"), out=NONE, into=NONE,
           connected=False, errors=("EINVAL", "ENETUNREACH", "EHOSTUNREACH"), **V6),
    Policy("SO_MARK", MARKS, **option(socket.SOL_SOCKET, socket.SO_MARK, 5),
           observe=(nft_counters,)),
    Policy("SO_DONTROUTE", **option(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)),
    Policy("SO_NO_CHECK", **option(socket.SOL_SOCKET, 11, 1), **V4, **SINGLE),
    Policy("IP_MTU_DISCOVER: do", **option(socket.IPPROTO_IP, IP_MTU_DISCOVER, 2), **V4),
    Policy("IP_MTU_DISCOVER: dont", **option(socket.IPPROTO_IP, IP_MTU_DISCOVER, 0), **V4),
    Policy("per packet: TOS", metas=in_turn({"tos": 0x10}, {"tos": 0x20}), **SINGLE),
    Policy("per packet: TOS, unconnected", metas=in_turn({"tos": 0x10}, {"tos": 0x20}),
           connected=False, **SINGLE),
    Policy("per packet: TTL", metas=in_turn({"ttl": 5}, {"ttl": 6}), **SINGLE),
    Policy("per packet: mark", MARKS, metas=in_turn({"mark": 5}, {"mark": 6}, {}),
           observe=(nft_counters,), **SINGLE),
    Policy("per packet: mark, as bob", metas=each(mark=5), user="bob", out=NONE,
           errors=("EPERM",), **SINGLE),
    Policy("per packet: source", second_address,
           metas=lambda family: [{"local": SECOND[family]}] * COUNT, subject_at=wildcard(SUBJECT_PORT),
           peer_sends_to=lambda family: (SECOND[family], SUBJECT_PORT), sentinel=False,
           connected=False, **SINGLE),
    Policy("per packet: a source that isn't ours",
           metas=lambda family: [{"local": {4: "192.0.2.99", 6: "2001:db8::99"}[family]}] * COUNT,
           out=NONE, errors=("EINVAL", "ENETUNREACH"), connected=False, **SINGLE),
    Policy("multicast out", subject_sends_to=group(PEER_PORT), prepare=leave_by("host", 3),
           prepare_peer=join("peer"), peer_binds=wildcard(PEER_PORT), connected=False),
    Policy("multicast out, connected", subject_sends_to=group(PEER_PORT),
           prepare=leave_by("host"), prepare_peer=join("peer"), peer_binds=wildcard(PEER_PORT),
           into=None),
    Policy("multicast in", prepare=join("host"), subject_at=lambda family: (
        ADDRESSES[family]["host"], SUBJECT_PORT), prepare_peer=leave_by("peer"),
           peer_sends_to=group(SUBJECT_PORT), into=NONE, connected=False,
           note="bound to an address, so not for it"),
    Policy("multicast in, wildcard", prepare=join("host"), subject_at=wildcard(SUBJECT_PORT),
           prepare_peer=leave_by("peer"), peer_sends_to=group(SUBJECT_PORT), connected=False,
           sentinel=False),
    Policy("broadcast without SO_BROADCAST", subject_sends_to=lambda family: (
        "192.0.2.255", PEER_PORT), out=NONE, errors=("EACCES",), connected=False, **V4),
    Policy("broadcast out", **option(socket.SOL_SOCKET, socket.SO_BROADCAST, 1),
           subject_sends_to=lambda family: ("192.0.2.255", PEER_PORT),
           peer_binds=wildcard(PEER_PORT), connected=False, **V4),
    Policy("broadcast in", subject_at=wildcard(SUBJECT_PORT), connected=False, sentinel=False,
           prepare_peer=lambda peer: peer.sock.setsockopt(
               socket.SOL_SOCKET, socket.SO_BROADCAST, 1),
           peer_sends_to=lambda family: ("192.0.2.255", SUBJECT_PORT), **V4),
    Policy("limited broadcast", options=((socket.SOL_SOCKET, socket.SO_BROADCAST, 1),
                                         (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")),
           subject_sends_to=lambda family: ("255.255.255.255", PEER_PORT),
           peer_binds=wildcard(PEER_PORT), connected=False, **V4),
])
