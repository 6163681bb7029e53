#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""tc treats a KOPI flow as it does a UDP socket."""

import os
import socket
import struct
import time

from equivalence import (ADDRESSES, ANY, COUNT, FAMILIES, NONE, PEERS, Policy, UdpSubject, cgroup, chain, nft_table,
                         run, together)
from linux import IP_RECVERR, SO_MAX_PACING_RATE, SO_TXTIME
from tc import class_of_subject, htb, on_other, other, remove_other, run_tc, tc

GROUP = "tc"
# SOF_TXTIME_REPORT_ERRORS
REPORT_ERRORS = 2
MARKED = ((socket.SOL_SOCKET, socket.SO_MARK, 5),)


def tc_counters():
    """Bytes, packets and drops of every qdisc and class but noqueue."""
    found = []
    for each in sum(run_tc("qdisc show @", "class show @"), []):
        if each.get("kind") not in ("noqueue", "clsact", "mq"):
            stats = each.get("stats", each)
            found.append((each.get("kind") or each.get("class"), stats.get("bytes"),
                          stats.get("packets"), stats.get("drops")))
    return found


def drained():
    """Waits until no qdisc of eth0 holds a packet."""
    deadline = time.monotonic() + 20
    while any(each.get("qlen", 0) for each in run_tc("qdisc show @")[0]):
        if time.monotonic() > deadline:
            raise RuntimeError("the qdisc doesn't drain")


def wait_for_qdisc():
    """Waits until eth0's qdisc is empty, and takes it away, so that a sentinel passes."""
    drained()
    run_tc("qdisc del @ root", check=False)


def give_up():
    """Takes away a qdisc that would never be empty, so that a sentinel passes."""
    run_tc("qdisc del @ root", check=False)


def backwards(family):
    """Times for the datagrams, of which the last is first."""
    start = time.monotonic_ns() + 4_000_000_000
    return [{"txtime": start + (COUNT - number) * 1_000_000} for number in range(COUNT)]


def txtime(clock, flags=0):
    """The socket option that lets the sender say when."""
    return ((socket.SOL_SOCKET, SO_TXTIME, struct.pack("=iI", clock, flags)),)


def tai(first):
    """Times of etf's clock for the datagrams, of which the last is first, that many seconds from now."""
    def metas(family):
        start = time.clock_gettime_ns(time.CLOCK_TAI) + int(first * 1e9)
        return [{"txtime": start + (COUNT - number) * 1_000_000} for number in range(COUNT)]
    return metas


_subject = {}


def reporting(subject):
    """Remembers the subject, whose error queue tells which datagrams missed their times."""
    _subject["is"] = subject


def missed():
    """What etf reports to the sender: (errno, origin, code) of each datagram."""
    found = []
    subject = _subject["is"]
    # Python doesn't know how long an address of a flow is.
    sock = socket.socket(FAMILIES[subject.family], socket.SOCK_DGRAM, 0, os.dup(subject.sock.fileno()))
    while True:
        try:
            control = sock.recvmsg(0, 512, socket.MSG_ERRQUEUE)[1]
        except BlockingIOError:
            sock.close()
            return found
        found += [struct.unpack_from("=IBxB", value) for level, _, value in control
                  if level in (socket.IPPROTO_IP, socket.IPPROTO_IPV6) and len(value) > 16]


def by_sendmsg(subject):
    """The subject's datagrams go by sendmsg, beside the rings of a flow. For several peers Python would have to know
    the family's addresses."""
    if PEERS == 1:
        subject.send = lambda *given, **named: UdpSubject.send(subject, *given, **named)


def filters():
    """What each filter's actions counted, both ways."""
    found = []

    def walk(node):
        if isinstance(node, dict):
            if "packets" in node and "bytes" in node:
                found.append((node["packets"], node["bytes"], node.get("drops")))
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)
    walk(run_tc("filter show @ egress", "filter show @ ingress"))
    return found


def clsact(*filters_):
    """A setup of filters on clsact."""
    return tc("qdisc add @ clsact", *filters_)


def flower(way, port, action, number=1):
    """Filters on a destination port, for both versions."""
    return [f"filter add @ {way} pref {number + version} protocol {name} flower ip_proto udp "
            f"dst_port {port} action {action}"
            for version, name in enumerate(("ip", "ipv6"))]


def pedit(way, port):
    """Filters that give datagrams to a port another TOS and TTL."""
    match = f"flower ip_proto udp dst_port {port} action pedit ex munge"
    return [f"filter add @ {way} pref 1 protocol ip {match} ip tos set 0x20 munge ip ttl set 33 pipe "
            "action csum ip4h and udp",
            f"filter add @ {way} pref 2 protocol ipv6 {match} ip6 traffic_class set 0x20 "
            "munge ip6 hoplimit set 33"]


def pacing(rate):
    """The socket option for bytes in a second."""
    return ((socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", rate)),)


def throttled():
    """Whether fq says that it made packets wait."""
    return any(each.get("throttled", 0) for each in run_tc("qdisc show @")[0])


seen = {"observe": (tc_counters,)}
counted = {"observe": (filters,)}
non_gso = {"gso": (False,)}
U32_MARK = ["filter add @ parent 1: pref 1 protocol all handle 5 fw flowid 1:20"]

run("tc", [
    Policy("htb by fw mark", htb(*U32_MARK), observe=(class_of_subject,), options=MARKED),
    Policy("htb by fw mark of nft", together(htb(*U32_MARK), nft_table(
        chain("filter hook output priority 0", "udp dport 7001 meta mark set 5"))),
           observe=(class_of_subject,)),
    Policy("htb by flower", htb(*[each.replace("egress", "parent 1:").replace("action", "flowid")
                                  for each in flower("egress", 7001, "1:20")]),
           observe=(class_of_subject,)),
    Policy("htb by cgroup", together(cgroup(GROUP), htb(), nft_table(
        chain("filter hook output priority 0",
              f'socket cgroupv2 level 1 "{GROUP}" meta priority set 1:20'))),
           observe=(class_of_subject,), cgroup=GROUP),
    Policy("htb by SO_PRIORITY", htb(), observe=(class_of_subject,),
           options=((socket.SOL_SOCKET, socket.SO_PRIORITY, 0x10020),)),
    Policy("prio by TOS", tc("qdisc add @ root handle 1: prio bands 3",
                             "qdisc add @ parent 1:1 handle 10: pfifo limit 100",
                             "qdisc add @ parent 1:2 handle 20: pfifo limit 100"),
           options=((socket.IPPROTO_IP, socket.IP_TOS, 0x10),), families=(4,), **seen),
    Policy("tbf", tc("qdisc add @ root tbf rate 8mbit burst 10kb limit 200kb"), settle=drained,
           **seen),
    Policy("tbf, a full queue", tc("qdisc add @ root tbf rate 200bit burst 1600 limit 9000"),
           settle=give_up, out=ANY, **non_gso),
    Policy("tbf, a full queue, IP_RECVERR",
           tc("qdisc add @ root tbf rate 200bit burst 1600 limit 9000"), settle=give_up, out=ANY,
           errors=("ENOBUFS",), options=((socket.IPPROTO_IP, IP_RECVERR, 1),),
           families=(4,), **non_gso),
    Policy("fq", tc("qdisc add @ root fq"), **seen),
    Policy("fq with SO_MAX_PACING_RATE", tc("qdisc add @ root fq"), settle=drained,
           observe=(throttled,), options=pacing(400000), **non_gso),
    Policy("fq_codel", tc("qdisc add @ root fq_codel"), **seen),
    Policy("fq with SO_TXTIME", tc("qdisc add @ root fq"), settle=drained,
           options=txtime(time.CLOCK_MONOTONIC), metas=backwards, **non_gso,
           note="sent in the order of their times"),
    Policy("fq with SO_TXTIME, sendmsg on the flow", tc("qdisc add @ root fq"), settle=drained,
           options=txtime(time.CLOCK_MONOTONIC), metas=backwards, prepare=by_sendmsg, **non_gso),
    # Of a long delta, since a busy machine is late: sent two seconds early, too late two seconds on.
    Policy("etf with SO_TXTIME", tc(f"qdisc add @ root etf clockid CLOCK_TAI delta {2_000_000_000}"),
           settle=wait_for_qdisc, options=txtime(time.CLOCK_TAI), metas=tai(4), **non_gso,
           note="sent in the order of their times"),
    Policy("etf: times that are over", tc(
        "qdisc add @ root etf clockid CLOCK_TAI delta 500000"), settle=wait_for_qdisc,
           options=txtime(time.CLOCK_TAI, REPORT_ERRORS), metas=tai(-10), prepare=reporting,
           observe=(missed,), out=NONE, **non_gso),
    Policy("etf: no SO_TXTIME", tc("qdisc add @ root etf clockid CLOCK_TAI delta 500000"),
           settle=wait_for_qdisc, out=NONE, **non_gso),
    Policy("SCM_TXTIME without SO_TXTIME", metas=backwards, out=NONE, errors=("EINVAL",), **non_gso),
    Policy("netem: delay", tc("qdisc add @ root netem delay 50ms limit 1000"), settle=drained,
           **seen),
    Policy("netem: loss", tc("qdisc add @ root netem loss random 30% seed 7 limit 1000"),
           settle=wait_for_qdisc, out=ANY, **non_gso),
    Policy("netem: loss of GSO packets", tc("qdisc add @ root netem loss random 50% seed 3 limit 1000"),
           settle=wait_for_qdisc, out=ANY, gso=(True,)),
    Policy("netem: duplicate", tc("qdisc add @ root netem duplicate 100% limit 1000"),
           settle=wait_for_qdisc, out=2 * COUNT, **non_gso),
    Policy("netem: reorder",
           tc("qdisc add @ root netem delay 20ms reorder 50% seed 7 limit 1000"), settle=wait_for_qdisc,
           ordered=False, **non_gso),
    Policy("clsact egress, flower: count", clsact(*flower("egress", 7001, "pass")), **counted),
    Policy("clsact egress, flower: drop", clsact(*flower("egress", 7001, "drop")), out=NONE,
           **counted),
    Policy("clsact ingress, flower: count", clsact(*flower("ingress", 7000, "pass")), **non_gso,
           **counted),
    Policy("clsact ingress, flower: drop", clsact(*flower("ingress", 7000, "drop")), into=NONE,
           **non_gso, **counted),
    Policy("clsact egress: police",
           clsact(*flower("egress", 7001, "police rate 1kbit burst 19550 conform-exceed drop/pass")),
           out=22, **non_gso, **counted),
    Policy("clsact ingress: police",
           clsact(*flower("ingress", 7000, "police rate 1kbit burst 19250 conform-exceed drop/pass")),
           into=22, **non_gso, **counted),
    Policy("clsact egress: mirred",
           together(other, clsact(*flower("egress", 7001, "mirred egress mirror dev other"))),
           observe=(filters, on_other), **non_gso),
    Policy("clsact egress: redirect",
           together(other, clsact(*flower("egress", 7001,
                                                   "mirred egress redirect dev other"))),
           observe=(filters, on_other), out=NONE, **non_gso),
    Policy("clsact ingress: mirred",
           together(other, clsact(*flower("ingress", 7000,
                                                   "mirred egress mirror dev other"))),
           observe=(filters, on_other), **non_gso),
    Policy("clsact egress: skbedit", together(htb(), clsact(
        *flower("egress", 7001, "skbedit priority 1:20 mark 9"))), observe=(class_of_subject,)),
    Policy("clsact ingress: skbedit", together(clsact(
        *flower("ingress", 7000, "skbedit mark 9")), nft_table(
            chain("filter hook input priority 0", "meta mark 9 udp dport 7000 counter drop"))),
           into=NONE, **non_gso),
    Policy("clsact egress: pedit", clsact(*pedit("egress", 7001)), **non_gso, **counted),
    Policy("clsact ingress: pedit", clsact(*pedit("ingress", 7000)), **non_gso, **counted),
    Policy("clsact egress: pedit of a port",
           clsact(*flower("egress", 7999, "pedit ex munge udp dport set 7001 pipe "
                          "action csum udp")),
           subject_sends_to=lambda family: (ADDRESSES[family]["peer"], 7999),
           connected=False, **non_gso, **counted),
    Policy("clsact ingress: pedit of a port",
           clsact(*flower("ingress", 7999, "pedit ex munge udp dport set 7000 pipe "
                          "action csum udp")),
           peer_sends_to=lambda family: (ADDRESSES[family]["host"], 7999),
           connected=False, **non_gso, **counted),
], remove_other)
