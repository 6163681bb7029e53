#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Routing decides for a KOPI flow as for a UDP socket, and so when it changes in mid-flow."""

import os
import socket
import struct
import time

import kopi
from equivalence import (ADDRESSES, COUNT, FAMILIES, NONE, PATIENCE, PEER_PORT, SUBJECT_PORT, SUBJECTS,
                         WHATEVER, Policy, arrived, await_address, by_family, errno_name, namespace, run, sh, together,
                         undo)
from linux import (IPV6_MTU, IPV6_MTU_DISCOVER, IPV6_RECVERR, IPV6_TCLASS, IPV6_UNICAST_HOPS, IP_MTU,
                   IP_MTU_DISCOVER, IP_RECVERR, IP_TOS, IP_TTL, IP_UNICAST_IF)

IPV6_DONTFRAG = 62
SINGLE = {"gso": (False,)}
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
    ping -q -c1 -w30 198.51.100.2; ping -q -c1 -w30 2001:db8:e::2
    """)
    undo(sh, "ip link del d0; ip -n peer link del p0; ip netns del router", False)


def set_sysctl(name, value):
    """Sets a sysctl of the namespace; gives what it was."""
    with open("/proc/sys/" + name, "r+", encoding="ascii") as file:
        before = file.read()
        file.seek(0)
        file.write(value)
    return before


def sysctl(name, value):
    """A setup that sets a sysctl."""
    return lambda: undo(set_sysctl, name, set_sysctl(name, value))


def forget():
    """No exchange knows the path's MTU from one before."""
    sh("ip route flush cache; ip -6 route flush cache")


def links():
    """A pair of devices between the namespaces, which tests can take down."""
    undo(sh, "ip link del d0", False)
    sh("""
    ip link add d0 address 02:00:00:00:00:d0 type veth peer name p0 address 02:00:00:00:00:d1 netns peer
    ip -n peer -batch - <<<'link set p0 up
    addr add 203.0.113.2/24 dev p0
    addr add 2001:db8:d::2/64 dev p0 nodad'
    echo 1 >/proc/sys/net/ipv6/conf/d0/keep_addr_on_down
    """)
    as_before()
    with namespace("peer"):
        await_address("2001:db8:d::2")


def as_before():
    """The host's end of the pair is as it was at first."""
    sh("""ip -force -batch - <<<'link set d0 up mtu 1500
    route del unreachable 203.0.113.2/32
    route del unreachable 2001:db8:d::2/128
    route del 192.0.2.2/32 via 203.0.113.2
    route del 2001:db8::2/128 via 2001:db8:d::2
    addr flush dev d0 scope global
    addr add 203.0.113.1/24 dev d0
    addr add 2001:db8:d::1/64 dev d0 nodad
    neigh replace 203.0.113.2 lladdr 02:00:00:00:00:d1 dev d0 nud permanent
    neigh replace 2001:db8:d::2 lladdr 02:00:00:00:00:d1 dev d0 nud permanent' 2>/dev/null""", False)
    await_address("2001:db8:d::1")


def second_way():
    """Another way to the peer's address, by the pair, of routing table 100."""
    links()
    sh("""ip route add default via 203.0.113.2 dev d0 table 100
    ip -6 route add default via 2001:db8:d::2 dev d0 table 100""")
    undo(sh, "ip route flush table 100; ip -6 route flush table 100", False)


def worse_way():
    """Another way by the pair, for those who insist on the device."""
    links()
    sh("""ip route add 192.0.2.0/24 via 203.0.113.2 dev d0 metric 500
    ip -6 route add 2001:db8::/64 via 2001:db8:d::2 dev d0 metric 1024""")


def hinted():
    """A route that names the source address."""
    undo(sh, """ip -force -batch - <<<'route del 192.0.2.2/32
    route del 2001:db8::2/128
    addr del 192.0.2.77/32 dev lo
    addr del 2001:db8:77::1/128 dev lo'""", False)
    sh("""ip -batch - <<<'addr add 192.0.2.77/32 dev lo
    addr add 2001:db8:77::1/128 dev lo nodad
    route add 192.0.2.2/32 dev eth0 src 192.0.2.77
    route add 2001:db8::2/128 dev eth0 src 2001:db8:77::1'""")
    await_address("2001:db8:77::1")


def locked_mtu():
    """A route with an MTU of its own."""
    undo(sh, "ip -force -batch - <<<$'route del 192.0.2.2/32\\nroute del 2001:db8::2/128'", False)
    sh("""ip -batch - <<<'route add 192.0.2.2/32 dev eth0 mtu lock 1300
    route add 2001:db8::2/128 dev eth0 mtu lock 1300'""")


def at(addresses, port):
    """An address by version."""
    return lambda family: (addresses[family], port)


FAR = {"fixture": ways_round, "setup": forget, "subject_at": at(HERE, SUBJECT_PORT),
       "peer_at": at(THERE, PEER_PORT)}
LINK = {"fixture": links, "setup": as_before, "subject_at": at(HERE, SUBJECT_PORT),
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


def no_limit():
    """The peer answers each datagram to a closed port, at once."""
    with namespace("peer"):
        undo_in_peer("net/ipv4/icmp_ratelimit", set_sysctl("net/ipv4/icmp_ratelimit", "0"))
        undo_in_peer("net/ipv6/icmp/ratelimit", set_sysctl("net/ipv6/icmp/ratelimit", "0"))


def undo_in_peer(name, value):
    """Has a sysctl of the peer set back."""
    def back():
        with namespace("peer"):
            set_sysctl(name, value)
    undo(back)


report_errors = by_family(IP_RECVERR, IPV6_RECVERR, 1)


def path_mtu(subject):
    """What the socket knows of its path."""
    level, name = ((socket.IPPROTO_IP, IP_MTU) if subject.family == 4
                   else (socket.IPPROTO_IPV6, IPV6_MTU))
    return subject.sock.getsockopt(level, name)


def knows_mtu(value):
    """The check that path_mtu says so."""
    return lambda seen: ([] if seen["path_mtu, asked after out"] == value
                         else [f"MTU {seen['path_mtu, asked after out']}, not {value}"])


def queued_errors(subject):
    """The errors in the socket's queue: errno, origin, type, code, more, sender, destination."""
    found = []
    # Python knows the addresses of IP's families only.
    sock = socket.socket(FAMILIES[subject.family], socket.SOCK_DGRAM,
                         fileno=os.dup(subject.sock.fileno()))
    while True:
        try:
            _, control, _, target = sock.recvmsg(2048, 512, socket.MSG_ERRQUEUE)
        except BlockingIOError:
            sock.close()
            return found
        for level, name, value in control:
            if name in (IP_RECVERR, IPV6_RECVERR) and level in (socket.IPPROTO_IP,
                                                               socket.IPPROTO_IPV6):
                fields = struct.unpack_from("=IBBBxII", value)
                family = struct.unpack_from("=H", value, 16)[0]
                offender = {socket.AF_INET: value[20:24], socket.AF_INET6: value[24:40]}.get(family)
                found.append((errno_name(fields[0]), *fields[1:],
                              offender and socket.inet_ntop(family, offender), target and target[:2]))


def told(name):
    """The check that the queue had this error, and no other."""
    def check(seen):
        names = {each[0] for each in seen["queued_errors, asked after out"]}
        return [] if names == {name} else [f"errors queued: {names}"]
    return check


def resolved():
    """Waits until nobody has answered to who is asked for."""
    deadline = time.monotonic() + PATIENCE
    while "FAILED" not in sh("ip neigh show dev d0"):
        if time.monotonic() > deadline:
            raise RuntimeError("neighbour isn't given up")
        time.sleep(0.02)


def impatient():
    """Neighbours are asked for once, and for a short time."""
    links()
    for version in (4, 6):
        for name, value in (("mcast_solicit", "1"), ("retrans_time_ms", "5000")):
            set_sysctl(f"net/ipv{version}/neigh/d0/{name}", value)


def mtu(value):
    """A change of the device's MTU."""
    return lambda: sh(f"ip link set d0 mtu {value}")


def do(command):
    """A change in mid-flow."""
    return lambda: sh(command)


UNREACHABLE = ("EHOSTUNREACH", "ENETUNREACH", "EACCES", "EINVAL")
PACKETS = "ipproto udp dport 7001"
MARK = (socket.SOL_SOCKET, socket.SO_MARK)
SECOND = (arrived("out", device="p0"),)
UNCHANGED = (arrived("out", device="eth1"),)
MOVED = (arrived("out", device="eth1"), arrived("out then", device="p0"))


def way(selector):
    """The fixture of the second way, for what a rule selects."""
    return together(second_way, rule(selector, "lookup 100"))


def new_route():
    """The way to the peer's address is another one now."""
    sh("""ip -batch - <<<'route replace 192.0.2.2/32 via 203.0.113.2 dev d0
    route replace 2001:db8::2/128 via 2001:db8:d::2 dev d0'""")


def new_rule():
    """All that goes to the peer's port goes by the second way now."""
    rule(PACKETS, "lookup 100")()


def set_mark(subject):
    """Marks what is sent from now on."""
    subject.sock.setsockopt(*MARK, 5)


POLICIES = [
    Policy("rule by mark", fixture=rule("fwmark 5", "unreachable"), out=NONE, errors=UNREACHABLE,
           options=((*MARK, 5),), **LOOSE),
    Policy("rule by mark, others pass", fixture=rule("fwmark 5", "unreachable"),
           options=((*MARK, 6),), **LOOSE, **SINGLE),
    Policy("rule by user", fixture=rule("uidrange 1002-1002", "unreachable"), out=NONE,
           errors=UNREACHABLE, user="bob", **LOOSE),
    Policy("rule by user, others pass", fixture=rule("uidrange 1002-1002", "unreachable"),
           user="alice", **LOOSE, **SINGLE),
    Policy("rule by source and port", fixture=rule(f"from all {PACKETS}", "prohibit"), out=NONE,
           errors=UNREACHABLE, **LOOSE),
    Policy("rule, connect", fixture=rule(f"from all {PACKETS}", "prohibit"), errors=UNREACHABLE, **SINGLE),
    Policy("second way by mark", fixture=way("fwmark 5"), options=((*MARK, 5),), checks=SECOND),
    Policy("second way by mark, others", fixture=way("fwmark 5"), options=((*MARK, 6),),
           checks=UNCHANGED, **SINGLE),
    Policy("second way by a packet's mark", fixture=way("fwmark 5"),
           metas=lambda family: [{"mark": 5}] * COUNT, checks=SECOND, **LOOSE, **SINGLE),
    Policy("second way by user", fixture=way("uidrange 1002-1002"), user="bob", checks=SECOND,
           **LOOSE, **SINGLE),
    Policy("second way by user, others", fixture=way("uidrange 1002-1002"), user="alice",
           checks=UNCHANGED, **LOOSE, **SINGLE),
    Policy("second way by source", fixture=together(second_way, lambda: [
        (sh(f"ip -{family} rule add pref 50 from {ADDRESSES[family]['host']} lookup 100"),
         undo(sh, f"ip -{family} rule del pref 50")) for family in (4, 6)]), checks=SECOND,
           **LOOSE, **SINGLE),
    Policy("second way by ports", fixture=way("ipproto udp sport 7000 dport 7001"),
           checks=SECOND, **SINGLE),
    Policy("second way by TOS", fixture=way("tos 0x10"), checks=SECOND,
           prepare=by_family(IP_TOS, IPV6_TCLASS, 0x10), **SINGLE),
    Policy("second way by a packet's TOS", fixture=way("tos 0x10"),
           metas=lambda family: [{"tos": 0x10}] * COUNT, checks=SECOND, **LOOSE, **SINGLE),
    Policy("second way by SO_BINDTODEVICE", fixture=worse_way, checks=SECOND, into=None,
           options=((socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"d0"),), **SINGLE),
    Policy("second way by IP_UNICAST_IF", families=(4,), fixture=worse_way, checks=SECOND,
           prepare=lambda subject: subject.sock.setsockopt(
               socket.IPPROTO_IP, IP_UNICAST_IF, struct.pack(">I", socket.if_nametoindex("d0"))), **SINGLE),
    Policy("second way by a packet's device", families=(4,), fixture=worse_way, checks=SECOND,
           metas=lambda family: [{"local": ADDRESSES[family]["host"],
                                  "ifindex": socket.if_nametoindex("d0")}] * COUNT, **SINGLE),
    Policy("a route's source address", fixture=hinted, into=None, sentinel=False,
           subject_at=lambda family: ({4: "0.0.0.0", 6: "::"}[family], SUBJECT_PORT), checks=(
               lambda seen: [f"from {each.source}" for each in seen["out"]
                             if "77" not in each.source[0]][:1],), **SINGLE),
    Policy("a route's own MTU", fixture=locked_mtu, ask=(path_mtu,), out=32, into=None,
           errors=("EMSGSIZE",), prepare=by_family(IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, 2),
           **SINGLE),
    Policy("blackhole route", fixture=route("blackhole"), out=NONE, into=None, errors=UNREACHABLE,
           sentinel=False, **LOOSE),
    Policy("unreachable route", fixture=route("unreachable"), out=NONE, into=None,
           errors=UNREACHABLE, sentinel=False, **LOOSE),
    Policy("prohibit route", fixture=route("prohibit"), out=NONE, into=None, errors=UNREACHABLE,
           sentinel=False, **LOOSE, **SINGLE),
    Policy("no route", subject_sends_to=lambda family: (
        {4: "203.0.113.77", 6: "2001:db8:77::1"}[family], PEER_PORT), out=NONE,
           errors=UNREACHABLE, **LOOSE),
    Policy("a closed port", fixture=no_limit, paced=True, out=NONE, errors=("ECONNREFUSED",),
           subject_sends_to=lambda family: (ADDRESSES[family]["peer"], 7009), into=None, **SINGLE),
    Policy("a closed port, unconnected", fixture=no_limit, paced=True, out=NONE, into=None,
           subject_sends_to=lambda family: (ADDRESSES[family]["peer"], 7009), **LOOSE, **SINGLE),
    Policy("a closed port, IP_RECVERR", fixture=no_limit, paced=True, out=NONE, into=None,
           errors=("ECONNREFUSED",), prepare=report_errors, ask=(queued_errors,),
           checks=(told("ECONNREFUSED"),),
           subject_sends_to=lambda family: (ADDRESSES[family]["peer"], 7009), **LOOSE, **SINGLE),
    Policy("no neighbour, IP_RECVERR", fixture=impatient, setup=as_before, prepare=report_errors,
           subject_at=at(HERE, SUBJECT_PORT), sentinel=False, settle=resolved, out=NONE, into=None,
           subject_sends_to=at({4: "203.0.113.9", 6: "2001:db8:d::9"}, PEER_PORT),
           peer_at=at({4: "203.0.113.2", 6: "2001:db8:d::2"}, PEER_PORT), ask=(queued_errors,),
           checks=(told("EHOSTUNREACH"),), **LOOSE, **SINGLE),
    Policy("rp_filter", fixture=rp_filter, out=None, into=NONE, families=(4,), sentinel=False,
           peer_at=lambda family: ("198.51.100.9", PEER_PORT), **LOOSE),
    Policy("path MTU: do, v4", **FAR, ask=(path_mtu,), checks=(knows_mtu(1300),),
           paced=True, options=DISCOVER["do"], families=(4,), out=31,
           errors=("EMSGSIZE",), **SINGLE),
    Policy("path MTU: want, v4", **FAR, into=None, ask=(path_mtu,), checks=(knows_mtu(1300),),
           paced=True, options=DISCOVER["want"], families=(4,),
           out=38, errors=("EMSGSIZE",), **SINGLE),
    Policy("path MTU: dont, v4", **FAR, options=DISCOVER["dont"], families=(4,), **SINGLE),
    Policy("path MTU: probe, v4", **FAR, into=None, paced=True, options=DISCOVER["probe"], families=(4,),
           out=32, errors=("EMSGSIZE",), **SINGLE),
    Policy("path MTU: do, v6", **FAR, ask=(path_mtu,), checks=(knows_mtu(1300),),
           paced=True, options=DISCOVER6["do"], families=(6,), out=31,
           errors=("EMSGSIZE",), **SINGLE),
    Policy("path MTU: want, v6", **FAR, into=None, ask=(path_mtu,), checks=(knows_mtu(1300),),
           paced=True, options=DISCOVER6["want"], families=(6,),
           out=38, errors=("EMSGSIZE",), **SINGLE),
    Policy("path MTU: do, unconnected", **FAR, paced=True, out=32, into=None, errors=("EMSGSIZE",),
           prepare=by_family(IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, 2), **LOOSE, **SINGLE),
    Policy("path MTU: do, IP_RECVERR", **FAR, paced=True, out=WHATEVER, into=None, errors=("EMSGSIZE",),
           prepare=lambda subject: (
               by_family(IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, 2)(subject), report_errors(subject)),
           ask=(queued_errors,), **SINGLE),
    Policy("too few hops", **FAR, paced=True, out=NONE, into=None,
           prepare=by_family(IP_TTL, IPV6_UNICAST_HOPS, 1), sentinel=True, **SINGLE),
    Policy("too few hops, IP_RECVERR", **FAR, paced=True, out=NONE, into=None,
           prepare=lambda subject: (by_family(IP_TTL, IPV6_UNICAST_HOPS, 1)(subject),
                                    report_errors(subject)),
           errors=("EHOSTUNREACH",), ask=(queued_errors,), checks=(told("EHOSTUNREACH"),),
           **SINGLE),
    Policy("IPV6_DONTFRAG", **{**LINK, "setup": together(as_before, mtu(1280))}, out=32, into=None,
           options=((socket.IPPROTO_IPV6, IPV6_DONTFRAG, 1),), errors=("EMSGSIZE",), families=(6,),
           **SINGLE),
    Policy("mid-flow: MTU larger", **{**LINK, "setup": together(as_before, mtu(1280))}, out=32,
           into=32, between=mtu(1500), errors=("EMSGSIZE",), families=(4,),
           options=DISCOVER["do"], **SINGLE),
    Policy("mid-flow: route to another device", fixture=links, setup=as_before,
           between=new_route, checks=MOVED),
    Policy("mid-flow: rule to another device", fixture=second_way, between=new_rule, checks=MOVED, **SINGLE),
    Policy("mid-flow: mark, and so another device", fixture=way("fwmark 5"), alter=set_mark,
           checks=MOVED, **SINGLE),
    Policy("mid-flow: MTU smaller", **LINK, between=mtu(1280), errors=("EMSGSIZE",),
           then_out=32, then_into=32, options=DISCOVER["do"], families=(4,), **SINGLE),
    Policy("mid-flow: MTU smaller, fragments", **LINK, between=mtu(1280), then_into=32, **SINGLE),
    Policy("mid-flow: MTU smaller, GSO packets", **LINK, between=mtu(1280), gso=(True,),
           families=(4,), errors=("EMSGSIZE", "ok"), then_out=WHATEVER, then_into=WHATEVER,
           differs={what: "UDP_SEGMENT is refused as a whole; what KOPI can't send as a GSO packet it "
                    "sends one by one" for what in ("errors then", "out then")}),
    Policy("mid-flow: route unreachable", **LINK,
           between=do("ip route add unreachable 203.0.113.2/32; "
                      "ip -6 route add unreachable 2001:db8:d::2/128"),
           then_out=NONE, then_into=None, sentinel=False, errors=UNREACHABLE),
    Policy("mid-flow: neighbour elsewhere", **LINK,
           between=do("for a in 203.0.113.2 2001:db8:d::2; do "
                      "ip neigh replace $a lladdr 02:00:00:00:00:99 nud permanent dev d0; done"),
           then_out=NONE, sentinel=False, **SINGLE),
    Policy("mid-flow: neighbour gone and found again", **LINK,
           between=do("for a in 203.0.113.2 2001:db8:d::2; do ip neigh del $a dev d0; done"), **SINGLE),
    Policy("mid-flow: address gone", **LINK,
           between=do("ip addr del 203.0.113.1/24 dev d0; ip addr add 203.0.113.3/24 dev d0; "
                      "ip addr del 2001:db8:d::1/64 dev d0"),
           then_out=NONE, then_into=NONE, sentinel=False, errors=UNREACHABLE, **SINGLE),
    Policy("mid-flow: link down", **LINK, between=do("ip link set d0 down"), then_out=NONE,
           then_into=None, sentinel=False, errors=(*UNREACHABLE, "ENETDOWN"), **SINGLE),
    Policy("mid-flow: link down and up", **LINK,
           between=lambda: (sh("ip link set d0 down"), as_before()), **SINGLE),
    Policy("mid-flow: device deleted", **{**LINK, "fixture": lambda: None, "setup": links},
           between=do("ip link del d0"), then_out=NONE, then_into=None, sentinel=False,
           errors=(*UNREACHABLE, "ENETDOWN", "ENODEV"), **SINGLE),
    Policy("mid-flow: device moved away", **{**LINK, "fixture": lambda: None, "setup": links},
           between=do("ip netns add elsewhere; ip link set d0 netns elsewhere; "
                      "ip netns del elsewhere"),
           then_out=NONE, then_into=None, sentinel=False,
           errors=(*UNREACHABLE, "ENETDOWN", "ENODEV"), **SINGLE),
]


def multipath():
    """Of several ways a flow takes the one that a UDP socket of the same port takes."""
    links()
    there = {4: "198.51.100.99", 6: "2001:db8:e::99"}
    undo(sh, "ip -n peer addr del 198.51.100.99/32 dev lo; "
         "ip -n peer addr del 2001:db8:e::99/128 dev lo")
    sh("""ip -n peer -batch - <<<'addr add 198.51.100.99/32 dev lo
    addr add 2001:db8:e::99/128 dev lo nodad'
    ip -batch - <<<'route add 198.51.100.99/32 nexthop via 192.0.2.2 nexthop via 203.0.113.2
    route add 2001:db8:e::99/128 nexthop via 2001:db8::2 nexthop via 2001:db8:d::2'""")
    undo(sh, "ip route del 198.51.100.99/32; ip -6 route del 2001:db8:e::99/128",
         False)
    with namespace("peer"):
        await_address(there[6])
    for version in (4, 6):
        sysctl(f"net/ipv{version}/fib_multipath_hash_policy", "1")()
        ways = []
        with namespace("peer"):
            peer = SUBJECTS[0](version)
            peer.bind((there[version], PEER_PORT))
        for kind in SUBJECTS:
            ways.append([])
            for port in range(20000, 20016):
                subject = kind(version)
                # Of ways with an equal claim IPv4 prefers the one whose device has the source.
                subject.bind(({4: "0.0.0.0", 6: "::"}[version], port))
                subject.send([b"x"], (there[version], PEER_PORT))
                peer.sock.settimeout(PATIENCE)
                peer.sock.recv(1, socket.MSG_PEEK)
                peer.sock.setblocking(False)
                ways[-1].append(peer.receive()[0].device)
                subject.close()
        peer.close()
        words = [f"{each.count('eth1')} by one device, {each.count('p0')} by another"
                 for each in ways]
        kopi.check(f"multipath routes, IPv{version}: each port's datagrams take the way that UDP's "
                   "take", ways[0] == ways[1] and set(ways[0]) == {"eth1", "p0"}, words)


def others():
    """What isn't an exchange of datagrams."""
    with namespace("host"):
        multipath()


run("routing", POLICIES, others)
