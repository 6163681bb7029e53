#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""nftables gives the same verdict on a KOPI flow as on a UDP socket."""

import os
import socket

import nfqueue
from equivalence import (ADDRESSES, ALL, COUNT, NONE, PEER_PORT, SECOND, SUBJECT_PORT, Policy,
                         cgroup, chain, conntrack, namespace, nft, nft_counters, nft_table, run,
                         second_address, sh, together, undo)

PREROUTING = "filter hook prerouting priority 0"
INPUT = "filter hook input priority 0"
OUTPUT = "filter hook output priority 0"
POSTROUTING = "filter hook postrouting priority 0"
INGRESS = "filter hook ingress device eth0 priority 0"
EGRESS = "filter hook egress device eth0 priority 0"
RAW_OUTPUT = "filter hook output priority -300"
RAW_PREROUTING = "filter hook prerouting priority -300"
GROUP = "nft"
OUT, IN = "udp dport 7001", "udp dport 7000"


def rules(*parts, family="inet", **fields):
    """A policy's fields: a table of these parts, whose counters are compared."""
    return {"setup": nft_table(*parts, family=family), "observe": (nft_counters,), **fields}


def in_cgroup(*parts):
    """A setup that makes the cgroup, and then loads the table, which names it."""
    return together(cgroup(GROUP), nft_table(*parts))


def logged():
    """What the log rule has written, without what changes by itself."""
    lines = [line for line in sh("dmesg").splitlines() if "kopi-test" in line]
    sh("dmesg --clear")
    fields = ("IN=", "OUT=", "SRC=", "DST=", "LEN=", "SPT=", "DPT=", "UID=", "GID=")
    return [[word for word in line.split() if word.startswith(fields)] for line in lines]


def log_in_namespace():
    """Lets namespaces write to the log."""
    switch = "nsenter --net=/proc/1/ns/net sysctl -qw net.netfilter.nf_log_all_netns=%d"
    sh(switch % 1 + "; dmesg --clear")
    undo(sh, switch % 0)


def queue_to(verdict):
    """A setup that starts a program which gives each queued packet a verdict."""
    def setup():
        undo(nfqueue.serve(0, verdict).stop)
    return setup


def at(addresses, port):
    """An address by family."""
    return lambda family: (addresses[family], port)


OTHER = {4: "198.51.100.7", 6: "2001:db8:7::7"}


def route_to_other():
    """A route to an address that only NAT makes real."""
    sh(f"ip route add {OTHER[4]} dev eth0; ip -6 route add {OTHER[6]} dev eth0")
    undo(sh, f"ip route del {OTHER[4]} dev eth0; ip -6 route del {OTHER[6]} dev eth0")


def flush_conntrack():
    """No entry of an earlier exchange is left."""
    sh("conntrack -F 2>/dev/null", False)
    undo(sh, "conntrack -F 2>/dev/null", False)


def reject_at_peer():
    """The peer's firewall refuses."""
    with namespace("peer"):
        nft("table inet t {\n" + chain(INPUT, f"{OUT} reject") + "\n}", flush=False)
    undo(sh, "ip netns exec peer nft flush ruleset")
    limits = "ip netns exec peer sysctl -qw net.ipv4.icmp_ratelimit=%d net.ipv6.icmp.ratelimit=%d"
    sh(limits % (0, 0))
    undo(sh, limits % (1000, 1000))


def tproxy_routes():
    """What tproxy needs: marked packets are local, whatever their address."""
    sh("ip rule add fwmark 1 lookup 100; ip route add local default dev lo table 100; "
       "ip -6 rule add fwmark 1 lookup 100; ip -6 route add local default dev lo table 100")
    undo(sh, "ip rule del fwmark 1; ip route flush table 100; "
         "ip -6 rule del fwmark 1; ip -6 route flush table 100")


def peer_routes():
    """The peer reaches the other address through the host."""
    for family in (4, 6):
        route = f"ip -n peer -{family} route %s {OTHER[family]} via {ADDRESSES[family]['host']}"
        sh(route % "add")
        undo(sh, route % "del")


def transparent(subject):
    """Lets the subject get packets for addresses that aren't the host's."""
    level, name = ((socket.IPPROTO_IP, 19) if subject.family == 4
                   else (socket.IPPROTO_IPV6, 75))
    subject.sock.setsockopt(level, name, 1)


NAT = {"observe": (conntrack, nft_counters), "connected": False, "gso": (False,)}
# How many of the first packets of a batch meet the rules before the connection is known is chance.
NAT_IN = {**NAT, "observe": (conntrack,), "out": None,
          "peer_sends_to": lambda family: (ADDRESSES[family]["host"], 8000)}


run("nftables", [
    Policy("no policy at all"),
    Policy("prerouting: count", **rules(chain(PREROUTING, f"{IN} counter"))),
    Policy("prerouting: drop", **rules(chain(PREROUTING, f"{IN} counter drop"), into=NONE)),
    Policy("input: count", **rules(chain(INPUT, f"{IN} counter"))),
    Policy("input: drop", **rules(chain(INPUT, f"{IN} counter drop"), into=NONE)),
    Policy("input: drop small ones",
           **rules(chain(INPUT, f"{IN} udp length < 100 counter drop"), into=32,
                   gso=(False,))),
    Policy("output: count", **rules(chain(OUTPUT, f"{OUT} counter"))),
    Policy("output: drop", **rules(chain(OUTPUT, f"{OUT} counter drop"),
                                   out=NONE, errors=("EPERM",))),
    Policy("postrouting: count", **rules(chain(POSTROUTING, f"{OUT} counter"))),
    Policy("postrouting: drop", **rules(chain(POSTROUTING, f"{OUT} counter drop"),
                                        out=NONE, errors=("EPERM",))),
    Policy("netdev ingress: count", **rules(chain(INGRESS, f"{IN} counter"), family="netdev")),
    Policy("netdev ingress: drop",
           **rules(chain(INGRESS, f"{IN} counter drop"), family="netdev", into=NONE)),
    Policy("netdev egress: count", **rules(chain(EGRESS, f"{OUT} counter"), family="netdev")),
    Policy("netdev egress: drop",
           **rules(chain(EGRESS, f"{OUT} counter drop"), family="netdev", out=NONE)),
    Policy("output: reject",
           **rules(chain(OUTPUT, f"{OUT} counter reject"), out=NONE,
                   errors=("EPERM", "ECONNREFUSED"))),
    Policy("output: reject, admin-prohibited",
           **rules(chain(OUTPUT, f"{OUT} counter reject with icmpx admin-prohibited"), out=NONE,
                   errors=("EPERM", "EHOSTUNREACH", "EACCES"))),
    Policy("peer's input: reject",
           setup=reject_at_peer, out=NONE,
           errors=("ECONNREFUSED",), paced=True, gso=(False,)),
    Policy("meta skuid: drop bob's",
           **rules(chain(OUTPUT, f"{OUT} meta skuid bob counter drop", f"{OUT} counter"),
                   out=NONE, errors=("EPERM",), user="bob")),
    Policy("meta skuid: others pass",
           **rules(chain(OUTPUT, f"{OUT} meta skuid bob counter drop", f"{OUT} counter"),
                   user="alice")),
    Policy("meta skgid", **rules(chain(OUTPUT, f"{OUT} meta skgid charlie counter drop"),
                                 out=NONE, errors=("EPERM",), user="charlie")),
    Policy("socket cgroupv2: drop on output",
           setup=in_cgroup(chain(OUTPUT, f'{OUT} socket cgroupv2 level 1 "{GROUP}" counter drop',
                                 f"{OUT} counter")),
           observe=(nft_counters,), out=NONE, errors=("EPERM",), cgroup=GROUP),
    Policy("socket cgroupv2: drop on input",
           setup=in_cgroup(chain(INPUT, f'{IN} socket cgroupv2 level 1 "{GROUP}" counter drop',
                                 f"{IN} counter")),
           observe=(nft_counters,), into=NONE, cgroup=GROUP),
    Policy("socket cgroupv2: others pass",
           setup=in_cgroup(chain(OUTPUT, f'{OUT} socket cgroupv2 level 1 "{GROUP}" counter drop',
                                 f"{OUT} counter")),
           observe=(nft_counters,)),
    Policy("meta cgroup", **rules(chain(OUTPUT, f"{OUT} meta cgroup 0 counter"))),
    Policy("meta mark of the socket",
           **rules(chain(OUTPUT, f"{OUT} meta mark 0x2a counter drop"), out=NONE,
                   errors=("EPERM",), options=((socket.SOL_SOCKET, socket.SO_MARK, 42),))),
    Policy("meta mark set", **rules(chain(OUTPUT, f"{OUT} meta mark set 7"),
                                    chain(POSTROUTING, f"{OUT} meta mark 7 counter"))),
    Policy("socket mark on input",
           **rules(chain(INPUT, f"{IN} socket mark 0x2a counter drop"), into=NONE,
                   options=((socket.SOL_SOCKET, socket.SO_MARK, 42),))),
    Policy("meta priority and dscp set",
           **rules(chain(POSTROUTING, f"{OUT} meta nfproto ipv4 ip dscp set cs5 counter",
                         f"{OUT} meta nfproto ipv6 ip6 dscp set cs5 counter",
                         f"{OUT} meta priority set 1:7"))),
    Policy("meta length", **rules(chain(OUTPUT, f"{OUT} meta length > 1200 counter drop"),
                                  out=32, errors=("EPERM",), gso=(False,))),
    Policy("sets and maps",
           **rules("set ports { type inet_service; elements = { 53, 7001 } }",
                   "map verdicts { type inet_service : verdict; elements = { 7000 : drop } }",
                   chain(OUTPUT, "udp dport @ports counter drop"),
                   chain(INPUT, "counter udp dport vmap @verdicts"),
                   out=NONE, into=NONE, errors=("EPERM",), sentinel=True)),
    Policy("payload match", **rules(chain(OUTPUT, f"{OUT} @th,64,32 3 counter drop"), out=39,
                                    errors=("EPERM",), gso=(False,))),
    Policy("limit",
           **rules(chain(OUTPUT, f"{OUT} limit rate 1/hour burst 5 packets counter accept",
                         f"{OUT} counter drop"),
                   out=5, errors=("EPERM",), gso=(False,))),
    Policy("limit, of GSO packets",
           **rules(chain(OUTPUT, f"{OUT} limit rate 1/hour burst 2 packets counter accept",
                         f"{OUT} counter drop"),
                   out=17, errors=("EPERM",), gso=(True,)), note="a GSO packet counts as one"),
    Policy("limit on input",
           **rules(chain(INPUT, f"{IN} limit rate 1/hour burst 5 packets counter accept",
                         f"{IN} counter drop"), into=5, gso=(False,))),
    Policy("quota",
           **rules(chain(OUTPUT, f"{OUT} quota over 10000 bytes counter drop"),
                   out=14, errors=("EPERM",), gso=(False,))),
    Policy("log", setup=together(log_in_namespace, nft_table(
        chain(OUTPUT, f'{OUT} limit rate 1/hour burst 3 packets log prefix "kopi-test " flags skuid'),
        chain(INPUT, f'{IN} limit rate 1/hour burst 3 packets log prefix "kopi-test "'))),
           observe=(logged,), user="bob", gso=(False,)),
    Policy("ct state", setup=together(flush_conntrack, nft_table(
        chain(OUTPUT, f"{OUT} ct state new counter", f"{OUT} ct state established counter"),
        chain(INPUT, f"{IN} ct state established counter", f"{IN} ct state new counter drop"))),
           observe=(conntrack, nft_counters)),
    Policy("ct state: only answers come in", setup=together(flush_conntrack, nft_table(
        chain(INPUT, f"{IN} ct state new counter drop"))),
           observe=(conntrack, nft_counters), out=None, into=NONE),
    Policy("ct mark", setup=together(flush_conntrack, nft_table(
        chain(OUTPUT, f"{OUT} ct mark set 9"),
        chain(INPUT, f"{IN} ct mark 9 counter drop"))),
           observe=(conntrack, nft_counters), into=NONE),
    Policy("ct zone", setup=together(flush_conntrack, nft_table(
        chain(RAW_OUTPUT, f"{OUT} ct zone set 5"),
        chain(RAW_PREROUTING, f"{IN} ct zone set 5"),
        chain(INPUT, f"{IN} ct zone 5 ct state established counter"))),
           observe=(conntrack, nft_counters)),
    Policy("ct count and helper-less limits", setup=together(flush_conntrack, nft_table(
        chain(OUTPUT, f"{OUT} ct original packets > 10 counter drop"))),
           observe=(nft_counters,), out=10, into=None, errors=("EPERM",), gso=(False,),
           prepare=lambda subject: sh("sysctl -qw net.netfilter.nf_conntrack_acct=1")),
    Policy("notrack", setup=together(flush_conntrack, nft_table(
        chain(RAW_OUTPUT, f"{OUT} notrack"), chain(RAW_PREROUTING, f"{IN} notrack"),
        chain(OUTPUT, f"{OUT} ct state untracked counter"),
        chain(INPUT, f"{IN} ct state untracked counter"))),
           observe=(conntrack, nft_counters)),
    Policy("dnat", setup=together(route_to_other, flush_conntrack, nft_table(
        chain("nat hook output priority -100",
              f"ip daddr {OTHER[4]} counter dnat ip to 192.0.2.2",
              f"ip6 daddr {OTHER[6]} counter dnat ip6 to 2001:db8::2"))),
           subject_sends_to=at(OTHER, PEER_PORT), **NAT),
    Policy("dnat, connected", setup=together(route_to_other, flush_conntrack, nft_table(
        chain("nat hook output priority -100",
              f"ip daddr {OTHER[4]} counter dnat ip to 192.0.2.2",
              f"ip6 daddr {OTHER[6]} counter dnat ip6 to 2001:db8::2"))),
           subject_sends_to=at(OTHER, PEER_PORT), **{**NAT, "connected": True}),
    Policy("dnat of what comes in", setup=together(flush_conntrack, nft_table(
        chain("nat hook prerouting priority -100", "udp dport 8000 counter dnat to :7000"))),
           **NAT_IN),
    Policy("redirect of what comes in", setup=together(flush_conntrack, nft_table(
        chain("nat hook prerouting priority -100", "udp dport 8000 counter redirect to :7000"))),
           **NAT_IN),
    Policy("snat", setup=together(second_address, flush_conntrack, nft_table(
        chain("nat hook postrouting priority 100",
              f"meta nfproto ipv4 {OUT} counter snat ip to {SECOND[4]}",
              f"meta nfproto ipv6 {OUT} counter snat ip6 to {SECOND[6]}"))),
           peer_sends_to=at(SECOND, SUBJECT_PORT), **NAT),
    Policy("snat of ports", setup=together(flush_conntrack, nft_table(
        chain("nat hook postrouting priority 100",
              f"meta nfproto ipv4 {OUT} counter snat ip to 192.0.2.1:6000",
              f"meta nfproto ipv6 {OUT} counter snat ip6 to [2001:db8::1]:6000"))),
           peer_sends_to=lambda family: (ADDRESSES[family]["host"], 6000), **NAT),
    Policy("snat of GSO packets", setup=together(flush_conntrack, nft_table(
        chain("nat hook postrouting priority 100",
              f"meta nfproto ipv4 {OUT} counter snat ip to 192.0.2.1:6000",
              f"meta nfproto ipv6 {OUT} counter snat ip6 to [2001:db8::1]:6000"))),
           peer_sends_to=lambda family: (ADDRESSES[family]["host"], 6000), out=NONE,
           note="the NIC here has no checksum offload, and for such the kernel's NAT gives GSO packets "
                "a wrong checksum, UDP_SEGMENT's as well",
           # On the direct path KOPI's have a right one.
           **{**NAT, "gso": () if os.environ.get("DIRECT") else (True,)}),
    Policy("masquerade", setup=together(second_address, flush_conntrack, nft_table(
        chain("nat hook postrouting priority 100", f"{OUT} counter masquerade to :6100"))),
           subject_at=at(SECOND, SUBJECT_PORT),
           peer_sends_to=lambda family: (ADDRESSES[family]["host"], 6100),
           families=(4,), **NAT),
    Policy("queue to a program that accepts",
           setup=together(queue_to(lambda number: True),
                          nft_table(chain(OUTPUT, f"{OUT} counter queue num 0"),
                                    chain(INPUT, f"{IN} counter queue num 0"))),
           observe=(nft_counters,), settle=nfqueue.settle, gso=(False,)),
    Policy("queue to a program that drops every other",
           setup=together(queue_to(lambda number: number % 2 == 0),
                          nft_table(chain(OUTPUT, f"{OUT} counter queue num 0"))),
           observe=(nft_counters,), settle=nfqueue.settle, out=COUNT // 2, into=ALL,
           gso=(False,)),
    Policy("queue, GSO packets",
           setup=together(queue_to(lambda number: True),
                          nft_table(chain(OUTPUT, f"{OUT} counter queue num 0"))),
           observe=(nft_counters,), settle=nfqueue.settle, gso=(True,)),
    Policy("queue without a program", **rules(chain(OUTPUT, f"{OUT} counter queue num 7"),
                                              out=NONE, errors=("ok",))),
    Policy("tproxy", setup=together(tproxy_routes, peer_routes, nft_table(
        chain("filter hook prerouting priority -150",
              f"udp dport 8053 meta nfproto ipv4 counter tproxy ip to :{SUBJECT_PORT} meta mark set 1 accept",
              f"udp dport 8053 meta nfproto ipv6 counter tproxy ip6 to :{SUBJECT_PORT} meta mark set 1 accept"))),
           observe=(nft_counters,), connected=False, prepare=transparent, out=None,
           peer_sends_to=at(OTHER, 8053)),
    Policy("flowtable beside it", **rules(
        "flowtable f { hook ingress priority 0; devices = { eth0 }; }",
        chain("filter hook forward priority 0", "ip protocol udp flow add @f"),
        chain(INPUT, f"{IN} counter"), chain(OUTPUT, f"{OUT} counter"))),
])
