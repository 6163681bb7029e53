#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Routing decides for a KOPI flow as for a UDP socket, and so when it changes in mid-flow."""

import socket

from equivalence import (ADDRESSES, NONE, PEER_PORT, SUBJECT_PORT, WHATEVER, Policy, run, sh, undo)

IP_MTU_DISCOVER, IPV6_MTU_DISCOVER = 10, 23
SINGLE = {"trains": (False,)}
LOOSE = {"connected": False}
HERE = {4: "203.0.113.1", 6: "2001:db8:d::1"}
THERE = {4: "198.51.100.2", 6: "2001:db8:e::2"}
ROUTER = {4: ("203.0.113.254", "198.51.100.254"), 6: ("2001:db8:d::fe", "2001:db8:e::fe")}


def rule(selector, action):
    """A setup of a routing rule for both versions."""
    def setup():
        for family in (4, 6):
            sh(f"ip -{family} rule add pref 50 {selector} {action}")
            undo(sh, f"ip -{family} rule del pref 50")
    return setup


def route(kind):
    """A setup that gives the way to the peer's address a kind."""
    def setup():
        for family in (4, 6):
            target = ADDRESSES[family]["peer"]
            sh(f"ip -{family} route add {kind} {target}")
            undo(sh, f"ip -{family} route del {kind} {target}", False)
    return setup


def ways_round():
    """A way to the peer's other addresses through a router whose far link has a smaller MTU."""
    sh("""
    ip netns add router
    ip link add d0 type veth peer name r0 netns router
    ip link add p0 netns peer type veth peer name r1 netns router
    for end in "host d0" "peer p0" "router r0" "router r1"; do
        set -- $end
        ip -n $1 link set $2 up
    done
    ip -n router link set r1 mtu 1300; ip -n peer link set p0 mtu 1300
    ip addr add 203.0.113.1/24 dev d0; ip addr add 2001:db8:d::1/64 dev d0 nodad
    ip -n peer addr add 198.51.100.2/24 dev p0; ip -n peer addr add 2001:db8:e::2/64 dev p0 nodad
    ip -n router addr add 203.0.113.254/24 dev r0; ip -n router addr add 198.51.100.254/24 dev r1
    ip -n router addr add 2001:db8:d::fe/64 dev r0 nodad
    ip -n router addr add 2001:db8:e::fe/64 dev r1 nodad
    ip netns exec router sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
        net.ipv4.icmp_ratelimit=0 net.ipv6.icmp.ratelimit=0
    ip route add 198.51.100.0/24 via 203.0.113.254
    ip -6 route add 2001:db8:e::/64 via 2001:db8:d::fe
    ip -n peer route add 203.0.113.0/24 via 198.51.100.254
    ip -n peer -6 route add 2001:db8:d::/64 via 2001:db8:e::fe
    ping -q -c1 -w5 198.51.100.2; ping -q -c1 -w5 2001:db8:e::2
    """)
    undo(sh, "ip link del d0; ip -n peer link del p0; ip netns del router", False)


def forget():
    """No exchange knows the path's MTU from one before."""
    sh("ip route flush cache; ip -6 route flush cache")


def links():
    """A pair of devices between the namespaces, which tests can take down."""
    undo(sh, "ip link del d0; ip route del unreachable 203.0.113.2; "
         "ip -6 route del unreachable 2001:db8:d::2", False)
    sh("""
    ip link add d0 type veth peer name p0 netns peer
    ip link set d0 up; ip -n peer link set p0 up
    sysctl -qw net.ipv6.conf.d0.keep_addr_on_down=1
    ip addr add 203.0.113.1/24 dev d0; ip -n peer addr add 203.0.113.2/24 dev p0
    ip addr add 2001:db8:d::1/64 dev d0 nodad; ip -n peer addr add 2001:db8:d::2/64 dev p0 nodad
    ping -q -c1 -w5 203.0.113.2; ping -q -c1 -w5 2001:db8:d::2
    """)


def at(addresses, port):
    """An address by version."""
    return lambda family: (addresses[family], port)


FAR = {"fixture": ways_round, "setup": forget, "subject_at": at(HERE, SUBJECT_PORT),
       "peer_at": at(THERE, PEER_PORT)}
LINK = {"setup": links, "subject_at": at(HERE, SUBJECT_PORT),
        "peer_at": at({4: "203.0.113.2", 6: "2001:db8:d::2"}, PEER_PORT)}
DISCOVER = {mode: ((socket.IPPROTO_IP, IP_MTU_DISCOVER, value),)
            for mode, value in (("dont", 0), ("want", 1), ("do", 2), ("probe", 3))}
DISCOVER6 = {mode: ((socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, value),)
             for mode, value in (("dont", 0), ("want", 1), ("do", 2), ("probe", 3))}


def rp_filter():
    """Strict filtering of sources that would be answered by another device."""
    sh("sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.eth0.rp_filter=1; "
       "ip link add d9 type dummy; ip link set d9 up; ip route add 198.51.100.0/24 dev d9; "
       "ip -n peer addr add 198.51.100.9/32 dev lo")
    undo(sh, "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0; "
         "ip link del d9; ip -n peer addr del 198.51.100.9/32 dev lo", False)


def mtu(value):
    """A change of the device's MTU."""
    return lambda: sh(f"ip link set d0 mtu {value}")


def do(command):
    """A change in mid-flow."""
    return lambda: sh(command)


UNREACHABLE = ("EHOSTUNREACH", "ENETUNREACH", "EACCES", "EINVAL")
PACKETS = "ipproto udp dport 7001"

run("routing", [
    Policy("rule by mark", rule("fwmark 5", "unreachable"), out=NONE, errors=UNREACHABLE,
           options=((socket.SOL_SOCKET, socket.SO_MARK, 5),), **LOOSE),
    Policy("rule by mark, others pass", rule("fwmark 5", "unreachable"),
           options=((socket.SOL_SOCKET, socket.SO_MARK, 6),), **LOOSE),
    Policy("rule by user", rule("uidrange 1002-1002", "unreachable"), out=NONE,
           errors=UNREACHABLE, user="bob", **LOOSE),
    Policy("rule by user, others pass", rule("uidrange 1002-1002", "unreachable"), user="alice",
           **LOOSE),
    Policy("rule by source and port", rule(f"from all {PACKETS}", "prohibit"), out=NONE,
           errors=UNREACHABLE, **LOOSE),
    Policy("rule, connect", rule(f"from all {PACKETS}", "prohibit"), errors=UNREACHABLE),
    Policy("blackhole route", route("blackhole"), out=NONE, into=None, errors=UNREACHABLE,
           sentinel=False, **LOOSE),
    Policy("unreachable route", route("unreachable"), out=NONE, into=None, errors=UNREACHABLE,
           sentinel=False, **LOOSE),
    Policy("prohibit route", route("prohibit"), out=NONE, into=None, errors=UNREACHABLE,
           sentinel=False, **LOOSE),
    Policy("no route", subject_sends_to=lambda family: (
        {4: "203.0.113.77", 6: "2001:db8:77::1"}[family], PEER_PORT), out=NONE,
           errors=UNREACHABLE, **LOOSE),
    Policy("rp_filter", rp_filter, out=None, into=NONE, families=(4,), sentinel=False,
           peer_at=lambda family: ("198.51.100.9", PEER_PORT), **LOOSE),
    Policy("path MTU: do, v4", **FAR, paced=True, options=DISCOVER["do"], families=(4,), out=31,
           errors=("EMSGSIZE",), **SINGLE),
    Policy("path MTU: want, v4", **FAR, paced=True, options=DISCOVER["want"], families=(4,),
           out=38, errors=("EMSGSIZE",), **SINGLE),
    Policy("path MTU: dont, v4", **FAR, options=DISCOVER["dont"], families=(4,), **SINGLE),
    Policy("path MTU: probe, v4", **FAR, paced=True, options=DISCOVER["probe"], families=(4,),
           out=32, errors=("EMSGSIZE",), **SINGLE),
    Policy("path MTU: do, v6", **FAR, paced=True, options=DISCOVER6["do"], families=(6,), out=31,
           errors=("EMSGSIZE",), **SINGLE),
    Policy("path MTU: want, v6", **FAR, paced=True, options=DISCOVER6["want"], families=(6,),
           out=38, errors=("EMSGSIZE",), **SINGLE),
    Policy("mid-flow: MTU smaller", **LINK, between=mtu(1280), errors=("EMSGSIZE",),
           then_out=32, then_into=32, options=DISCOVER["do"], families=(4,), **SINGLE),
    Policy("mid-flow: MTU smaller, fragments", **LINK, between=mtu(1280), then_into=32, **SINGLE),
    Policy("mid-flow: MTU smaller, trains", **LINK, between=mtu(1280), trains=(True,),
           families=(4,), errors=("EMSGSIZE", "ok"), then_out=WHATEVER, then_into=WHATEVER,
           differs={what: "UDP_SEGMENT is refused as a whole; what KOPI can't send as a train it "
                    "sends one by one" for what in ("errors then", "out then")}),
    Policy("mid-flow: route unreachable", **LINK,
           between=do("ip route add unreachable 203.0.113.2/32; "
                      "ip -6 route add unreachable 2001:db8:d::2/128"),
           then_out=NONE, then_into=None, sentinel=False, errors=UNREACHABLE),
    Policy("mid-flow: neighbour elsewhere", **LINK,
           between=do("for a in 203.0.113.2 2001:db8:d::2; do "
                      "ip neigh replace $a lladdr 02:00:00:00:00:99 nud permanent dev d0; done"),
           then_out=NONE, sentinel=False),
    Policy("mid-flow: neighbour gone and found again", **LINK,
           between=do("for a in 203.0.113.2 2001:db8:d::2; do ip neigh del $a dev d0; done")),
    Policy("mid-flow: address gone", **LINK,
           between=do("ip addr del 203.0.113.1/24 dev d0; ip addr add 203.0.113.3/24 dev d0; "
                      "ip addr del 2001:db8:d::1/64 dev d0"),
           then_out=NONE, then_into=NONE, sentinel=False, errors=UNREACHABLE),
    Policy("mid-flow: link down", **LINK, between=do("ip link set d0 down"), then_out=NONE,
           then_into=None, sentinel=False, errors=(*UNREACHABLE, "ENETDOWN")),
    Policy("mid-flow: link down and up", **LINK,
           between=do("ip link set d0 down; ip link set d0 up; "
                      "ping -q -c1 -w5 203.0.113.2; ping -q -c1 -w5 2001:db8:d::2")),
    Policy("mid-flow: device deleted", **LINK, between=do("ip link del d0"), then_out=NONE,
           then_into=None, sentinel=False, errors=(*UNREACHABLE, "ENETDOWN", "ENODEV")),
    Policy("mid-flow: device moved away", **LINK, between=do(
        "ip netns add elsewhere; ip link set d0 netns elsewhere; ip netns del elsewhere"),
           then_out=NONE, then_into=None, sentinel=False,
           errors=(*UNREACHABLE, "ENETDOWN", "ENODEV")),
])
