#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Socket options and per-packet metadata mean for a KOPI flow what they mean for a UDP socket."""

import socket
import struct

import kopi
from equivalence import (ADDRESSES, COUNT, FAMILIES, NONE, PEER_PORT, PEERS, SECOND, SUBJECT_PORT, Policy,
                         UdpSubject, arrived, await_address, by_family, chain, namespace, nft_counters, nft_table,
                         run, second_address, sh, undo)
from linux import (IPV6_AUTOFLOWLABEL, IPV6_FREEBIND, IPV6_HOPOPTS, IPV6_JOIN_GROUP, IPV6_MULTICAST_ALL,
                   IPV6_MULTICAST_HOPS, IPV6_MULTICAST_IF, IPV6_MULTICAST_LOOP, IPV6_TCLASS, IPV6_TRANSPARENT,
                   IPV6_MTU_DISCOVER, IPV6_UNICAST_HOPS, IP_ADD_MEMBERSHIP, IP_FREEBIND, IP_MTU_DISCOVER,
                   IP_MULTICAST_ALL, IP_MULTICAST_IF, IP_MULTICAST_LOOP, IP_MULTICAST_TTL, IP_OPTIONS, IP_RECVTOS,
                   IP_RECVTTL, IP_TOS, IP_TRANSPARENT, IP_TTL, MCAST_JOIN_SOURCE_GROUP, SO_RCVMARK)

IP_LOCAL_PORT_RANGE = 51
GROUPS = {4: "239.1.2.3", 6: "ff05::123"}
V4, V6 = {"families": (4,)}, {"families": (6,)}
NON_GSO = {"gso": (False,)}
DEVICES = {"host": "eth0", "peer": "eth1"}


def option(level, name, value):
    """The field for one option."""
    return {"options": ((level, name, value),)}


def both(*steps):
    """What does several things to the subject."""
    def prepare(subject):
        for step in steps:
            step(subject)
    return prepare


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


def join_source(end, sources):
    """What joins the group for these sources only."""
    def prepare(subject):
        version = subject.family
        group_, source = (kopi.pack_address(each, 0) for each in (GROUPS[version], sources[version]))
        subject.sock.setsockopt(
            socket.IPPROTO_IP if version == 4 else socket.IPPROTO_IPV6, MCAST_JOIN_SOURCE_GROUP,
            struct.pack("=I4x128s128s", socket.if_nametoindex(DEVICES[end]), group_, source))
    return prepare


def another_joins(subject):
    """Another socket of the host joins, and has the same port."""
    subject.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    other = UdpSubject(subject.family)
    undo(other.close)
    other.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    join("host")(other)
    other.bind(wildcard(SUBJECT_PORT)(subject.family))
    subject.other = other


def others_got(subject):
    """What the other socket has received."""
    return subject.other.receive()


def leave_by(end, hops=1):
    """What has multicast leave by the end's NIC, with this hop limit."""
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


def each(**meta):
    """The same metadata for all datagrams."""
    return lambda family: [meta] * COUNT


def in_turn(*metas):
    """Metadata that change from datagram to datagram."""
    return lambda family: [metas[number % len(metas)] for number in range(COUNT)]


def mapped(end, port):
    """An IPv4 address as an IPv6 socket has it."""
    return lambda family: ("::ffff:" + ADDRESSES[4][end], port)


def dual(subject):
    """What tells an IPv6 socket of IPv4 packets' TOS and TTL."""
    for name in (IP_RECVTTL, IP_RECVTOS):
        subject.sock.setsockopt(socket.IPPROTO_IP, name, 1)


def link_local(end, seen_from, port):
    """The address of one end's NIC on its link, for a socket of either end."""
    def address(family):
        with namespace(end), open("/proc/net/if_inet6", encoding="ascii") as file:
            lines = [line.split() for line in file]
        raw = next(line[0] for line in lines
                   if line[5] == DEVICES[end] and line[0].startswith("fe80"))
        with namespace(seen_from):
            index = socket.if_nametoindex(DEVICES[seen_from])
        return socket.inet_ntop(FAMILIES[family], bytes.fromhex(raw)), port, 0, index
    return address


def foreign_routes():
    """What is sent to an address of nobody comes to the host, and is taken as its own."""
    for version in (4, 6):
        route = f"ip -n peer -{version} route %s {FOREIGN[version]} via {ADDRESSES[version]['host']}"
        sh(f"{route % 'add'}; ip -{version} route add local {FOREIGN[version]} dev lo table 100; "
           f"ip -{version} rule add iif eth0 lookup 100 pref 60")
        undo(sh, f"{route % 'del'}; ip -{version} route flush table 100; "
             f"ip -{version} rule del pref 60", False)


def foreign_address():
    """The host gets the address."""
    change = (f"ip addr %s {FOREIGN[4]}/32 dev eth0; "
              f"ip -6 addr %s {FOREIGN[6]}/128 dev eth0")
    sh(change % ("add", "add") + " nodad")
    undo(sh, change % ("del", "del"), False)
    await_address(FOREIGN[6])


def foreign(family):
    """An address that isn't the host's."""
    return FOREIGN[family], SUBJECT_PORT


def disconnect(subject):
    """Takes the peer back."""
    name = struct.pack("=H26x", socket.AF_UNSPEC)
    if kopi.libc.connect(subject.sock.fileno(), name, len(name)):
        raise OSError("connect")


def reconnect(subject):
    """Takes the peer back, and names it again."""
    disconnect(subject)
    subject.connect((ADDRESSES[subject.family]["peer"], PEER_PORT))


def shut_down(subject):
    """Sends no more; an unconnected one can't be told so."""
    if PEERS == 1:
        subject.sock.shutdown(socket.SHUT_WR)


FOREIGN = {4: "198.51.100.7", 6: "2001:db8:7::7"}
MAPPED = {"families": (6,), "subject_at": mapped("host", SUBJECT_PORT),
          "peer_at": mapped("peer", PEER_PORT), "prepare": dual, "prepare_peer": dual}
LINK_LOCAL = {"families": (6,), "sentinel": False,
              "subject_at": link_local("host", "host", SUBJECT_PORT),
              "peer_at": link_local("peer", "host", PEER_PORT),
              "peer_binds": link_local("peer", "peer", PEER_PORT),
              "peer_sends_to": link_local("host", "peer", SUBJECT_PORT)}
LOCAL = {"peer_namespace": "host", "prepare_peer": join("host"), "peer_binds": wildcard(PEER_PORT),
         "peer_at": lambda family: (ADDRESSES[family]["host"], PEER_PORT), "connected": False,
         "subject_sends_to": group(PEER_PORT), "into": None}


def verdict(rule, out=NONE, errors=("EPERM",), **fields):
    """A policy's fields: this rule drops what is as it says, which must be all."""
    return {"setup": nft_table(chain("filter hook postrouting priority 0",
                                     f"udp dport 7001 {rule} counter drop")),
            "observe": (nft_counters,), "out": out, "errors": errors, **fields}


MARKS = nft_table(chain("filter hook output priority 0", *(
    f"udp dport 7001 meta mark {mark} counter" for mark in (0, 5, 6))))

POLICIES = [
    Policy("IP_TOS", **option(socket.IPPROTO_IP, IP_TOS, 0x28), **V4,
           checks=(arrived("out", tos=0x28),)),
    Policy("IPV6_TCLASS", **option(socket.IPPROTO_IPV6, IPV6_TCLASS, 0x28), **V6,
           checks=(arrived("out", tos=0x28),)),
    Policy("IP_TTL", **option(socket.IPPROTO_IP, IP_TTL, 9), **V4,
           checks=(arrived("out", ttl=9),)),
    Policy("IPV6_UNICAST_HOPS", **option(socket.IPPROTO_IPV6, IPV6_UNICAST_HOPS, 9), **V6,
           checks=(arrived("out", ttl=9),)),
    Policy("IP_TTL, IPV6_UNICAST_HOPS changed in mid-flow",
           alter=by_family(IP_TTL, IPV6_UNICAST_HOPS, 7),
           checks=(arrived("out", ttl=64), arrived("out then", ttl=7))),
    Policy("IP_TOS, IPV6_TCLASS changed in mid-flow", alter=by_family(IP_TOS, IPV6_TCLASS, 0x14),
           checks=(arrived("out", tos=0), arrived("out then", tos=0x14))),
    Policy("SO_PRIORITY", **verdict("meta priority 0:5", **V4,
                                    **option(socket.SOL_SOCKET, socket.SO_PRIORITY, 5))),
    Policy("the priority of IP_TOS", **verdict("meta priority 0:6", **V4,
                                               **option(socket.IPPROTO_IP, IP_TOS, 0x10))),
    Policy("the priority of a packet's TOS",
           **verdict("meta priority 0:6", metas=lambda family: [{"tos": 0x10}] * COUNT, **V4,
                     **NON_GSO)),
    Policy("IP_OPTIONS", **verdict("ip hdrlength 6", **V4, **NON_GSO, **option(
        socket.IPPROTO_IP, IP_OPTIONS, b"\x94\x04\0\0"))),
    Policy("IPV6_HOPOPTS", **verdict("exthdr hbh exists", **V6, **NON_GSO, **option(
        socket.IPPROTO_IPV6, IPV6_HOPOPTS, b"\0\0\5\2\0\0\1\0"))),
    Policy("IPV6_AUTOFLOWLABEL off", **verdict("ip6 flowlabel 0", **V6, **option(
        socket.IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 0))),
    Policy("SO_RCVMARK", nft_table(chain("filter hook prerouting priority 0",
                                         "udp dport 7000 meta mark set 77")),
           checks=(arrived("in", mark=77),), **option(socket.SOL_SOCKET, SO_RCVMARK, 1)),
    Policy("SO_SNDBUF, small", **option(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608),
           differs={"snmp": "how often the buffer is found full (SndbufErrors) depends on when "
                    "the program looks"}),
    Policy("SO_BINDTODEVICE", **option(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")),
    Policy("SO_BINDTODEVICE of another", **option(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo"),
           out=NONE, into=NONE, connected=False, **V4),
    Policy("SO_BINDTODEVICE of another, IPv6",
           **option(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo"), out=NONE, into=NONE,
           connected=False, errors=("EINVAL", "ENETUNREACH", "EHOSTUNREACH"), **V6),
    Policy("SO_MARK", MARKS, **option(socket.SOL_SOCKET, socket.SO_MARK, 5),
           observe=(nft_counters,)),
    Policy("SO_MARK changed in mid-flow",
           nft_table(chain("filter hook output priority 0", "udp dport 7001 meta mark 5 drop")),
           alter=lambda subject: subject.sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 5),
           then_out=NONE, errors=("EPERM",)),
    Policy("SO_DONTROUTE", **option(socket.SOL_SOCKET, socket.SO_DONTROUTE, 1)),
    Policy("SO_NO_CHECK", **option(socket.SOL_SOCKET, 11, 1), **V4, **NON_GSO),
    Policy("IP_MTU_DISCOVER: do", **option(socket.IPPROTO_IP, IP_MTU_DISCOVER, 2), **V4),
    Policy("IP_MTU_DISCOVER: dont", **option(socket.IPPROTO_IP, IP_MTU_DISCOVER, 0), **V4),
    Policy("IP_MTU_DISCOVER: omit", **option(socket.IPPROTO_IP, IP_MTU_DISCOVER, 5), **V4),
    Policy("IPV6_MTU_DISCOVER: omit", **option(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, 5), **V6),
    Policy("per packet: TOS", metas=in_turn({"tos": 0x10}, {"tos": 0x20}), **NON_GSO),
    Policy("per packet: TOS, unconnected", metas=in_turn({"tos": 0x10}, {"tos": 0x20}),
           connected=False, **NON_GSO),
    Policy("per packet: TTL", metas=in_turn({"ttl": 5}, {"ttl": 6}), **NON_GSO),
    Policy("per packet: mark", MARKS, metas=in_turn({"mark": 5}, {"mark": 6}, {}),
           observe=(nft_counters,), **NON_GSO),
    Policy("per packet: mark, as bob", metas=each(mark=5), user="bob", out=NONE,
           errors=("EPERM",), **NON_GSO),
    Policy("per packet: source", second_address,
           metas=lambda family: [{"local": SECOND[family]}] * COUNT, subject_at=wildcard(SUBJECT_PORT),
           peer_sends_to=lambda family: (SECOND[family], SUBJECT_PORT), sentinel=False,
           connected=False, **NON_GSO),
    Policy("per packet: a source that isn't ours",
           metas=lambda family: [{"local": {4: "192.0.2.99", 6: "2001:db8::99"}[family]}] * COUNT,
           out=NONE, errors=("EINVAL", "ENETUNREACH"), connected=False, **NON_GSO),
    Policy("per packet: TOS, TTL and mark at once", MARKS, connected=False,
           metas=in_turn({"tos": 0x10, "ttl": 5, "mark": 5}, {"tos": 0x20, "ttl": 6, "mark": 6}),
           observe=(nft_counters,), **NON_GSO),
    Policy("IPv4 by an IPv6 socket", **MAPPED),
    Policy("IPv4 by an IPv6 socket, unconnected", connected=False, **MAPPED),
    Policy("IPv4 by an IPv6 socket, IP_TTL", **MAPPED, **option(socket.IPPROTO_IP, IP_TTL, 9),
           checks=(arrived("out", ttl=9),)),
    Policy("IPv4 by an IPv6 socket, per packet: TOS", **MAPPED,
           metas=in_turn({"tos": 0x10}, {"tos": 0x20}), **NON_GSO),
    Policy("IPv4 by an IPv6 socket, per packet: TTL, unconnected", connected=False, **MAPPED,
           metas=in_turn({"ttl": 5}, {"ttl": 6}), **NON_GSO),
    Policy("IPv4 by an IPv6 socket, IPV6_V6ONLY", connected=False, errors=("EINVAL",),
           **MAPPED, **option(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1), **NON_GSO),
    Policy("IPv4 by an IPv6 socket of any address", **{
        **MAPPED, "subject_at": wildcard(SUBJECT_PORT)}, sentinel=False,
           peer_sends_to=mapped("host", SUBJECT_PORT)),
    # The first waits for the neighbour, and another may pass it.
    Policy("link-local addresses", ordered=False, **LINK_LOCAL),
    Policy("link-local addresses, unconnected", connected=False, ordered=False, **LINK_LOCAL),
    Policy("IP_FREEBIND, IPV6_FREEBIND", fixture=foreign_routes, subject_at=foreign,
           sentinel=False, connected=False, out=None, then_out=None, between=foreign_address,
           prepare=by_family(IP_FREEBIND, IPV6_FREEBIND, 1), **NON_GSO),
    Policy("IP_FREEBIND, to send before the address is there", fixture=foreign_routes,
           subject_at=foreign, sentinel=False, connected=False, out=NONE, errors=("EINVAL", "ENETUNREACH"),
           prepare=by_family(IP_FREEBIND, IPV6_FREEBIND, 1), between=foreign_address, **V4,
           **NON_GSO),
    Policy("IP_TRANSPARENT, IPV6_TRANSPARENT", fixture=foreign_routes, subject_at=foreign, sentinel=False,
           connected=False, prepare=by_family(IP_TRANSPARENT, IPV6_TRANSPARENT, 1),
           checks=(lambda seen: [f"from {each.source}" for each in seen["out"]
                                 if each.source[0] not in FOREIGN.values()],)),
    Policy("IP_LOCAL_PORT_RANGE", subject_at=lambda family: (ADDRESSES[family]["host"], 0),
           peer_sends_to=lambda family: (ADDRESSES[family]["host"], 40000),
           **option(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=HH", 40000, 40000)),
           **NON_GSO),
    Policy("connected to another port than the peer's", out=None, into=NONE,
           subject_sends_to=lambda family: (ADDRESSES[family]["peer"], 7009)),
    Policy("disconnected in mid-flow", alter=disconnect, then_out=NONE, errors=("EDESTADDRREQ",)),
    Policy("connected anew in mid-flow", alter=reconnect),
    Policy("shutdown(SHUT_WR) in mid-flow", alter=shut_down, then_out=NONE, errors=("EPIPE",)),
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
    Policy("multicast in, two receivers", prepare=both(join("host"), another_joins),
           subject_at=wildcard(SUBJECT_PORT), prepare_peer=leave_by("peer"), ask=(others_got,),
           peer_sends_to=group(SUBJECT_PORT), connected=False, sentinel=False, out=None,
           checks=(lambda seen: [] if len(seen["others_got, asked after in"]) == COUNT
                   else ["the other socket got less"],), **NON_GSO),
    Policy("multicast in, joined for its source", sentinel=False, connected=False,
           prepare=both(by_family(IP_MULTICAST_ALL, IPV6_MULTICAST_ALL, 0),
                        join_source("host", {4: "192.0.2.2", 6: "2001:db8::2"})),
           subject_at=wildcard(SUBJECT_PORT), prepare_peer=leave_by("peer"),
           peer_sends_to=group(SUBJECT_PORT), out=None, **NON_GSO),
    Policy("multicast in, joined for another source", sentinel=False, connected=False,
           prepare=both(by_family(IP_MULTICAST_ALL, IPV6_MULTICAST_ALL, 0),
                        join_source("host", {4: "192.0.2.9", 6: "2001:db8::9"})),
           subject_at=wildcard(SUBJECT_PORT), prepare_peer=leave_by("peer"),
           peer_sends_to=group(SUBJECT_PORT), out=None, into=NONE, **NON_GSO),
    Policy("multicast within the host", prepare=leave_by("host"), **LOCAL),
    Policy("multicast within the host, no loop", prepare=both(
        leave_by("host"), by_family(IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP, 0)), out=NONE,
           **LOCAL),
    Policy("multicast within the host, no hops", prepare=leave_by("host", 0), **LOCAL),
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
]


run("options", POLICIES)
