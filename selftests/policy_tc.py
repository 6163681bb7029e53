#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""tc treats a KOPI flow as it does a UDP socket."""

import json
import os
import socket
import struct
import time

from equivalence import (ANY, COUNT, NONE, SO_TXTIME, Policy, chain, do, nft_table, run, sh,
                         tc_counters, together, undo)

GROUP = "tc"
SO_MAX_PACING_RATE, IP_RECVERR = 47, 11
CLEAR = ("tc qdisc del dev eth0 root 2>/dev/null", "tc qdisc del dev eth0 clsact 2>/dev/null")
MARKED = ((socket.SOL_SOCKET, socket.SO_MARK, 5),)


def tc(*commands):
    """A setup of tc commands on eth0: a word that says what, and the rest."""
    lines = "\n".join(command.replace("@", "dev eth0", 1) for command in commands)

    def setup():
        for command in CLEAR:
            undo(sh, command, False)
        sh(f"tc -batch - <<'END'\n{lines}\nEND")
    return setup


def htb(*filters):
    """A setup of three classes, of which 1:20 gets what the filters send there, 1:10 the rest."""
    return tc("qdisc add @ root handle 1: htb default 10",
              "class add @ parent 1: classid 1:10 htb rate 100mbit quantum 3000",
              "class add @ parent 1: classid 1:20 htb rate 50mbit quantum 3000",
              *filters)


def classes():
    """Packets and bytes of each class."""
    return [(each["handle"], each["stats"]["packets"], each["stats"]["bytes"])
            for each in json.loads(sh("tc -s -j class show dev eth0"))]


def class_of_subject():
    """Whether the subject's packets went to class 1:20, whose counter it is."""
    return [each for each in classes() if each[0] == "1:20"]


def drained():
    """Waits until no qdisc of eth0 holds a packet."""
    for _ in range(500):
        backlog = sum(each.get("qlen", 0) for each in json.loads(sh("tc -s -j qdisc show dev eth0")))
        if backlog == 0:
            return
    raise RuntimeError("the qdisc doesn't drain")


def let_go():
    """Waits until eth0's qdisc is empty, and takes it away, so that a sentinel passes."""
    drained()
    sh("tc qdisc del dev eth0 root", False)


def give_up():
    """Takes away a qdisc that would never be empty, so that a sentinel passes."""
    sh("tc qdisc del dev eth0 root", False)


def backwards(family):
    """Times for the datagrams, of which the last is first."""
    start = time.monotonic_ns() + 100_000_000
    return [{"txtime": start + (COUNT - number) * 1_000_000} for number in range(COUNT)]


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
    for way in ("egress", "ingress"):
        walk(json.loads(sh(f"tc -s -j filter show dev eth0 {way}") or "[]"))
    return found


def clsact(*filters_):
    """A setup of filters on clsact."""
    return tc("qdisc add @ clsact", *filters_)


def flower(way, port, action, number=1):
    """Filters on a destination port, for both versions."""
    return [f"filter add @ {way} pref {number + version} protocol {name} flower ip_proto udp "
            f"dst_port {port} action {action}"
            for version, name in enumerate(("ip", "ipv6"))]


def cgroup():
    """Makes the cgroup of the test."""
    os.makedirs(f"/sys/fs/cgroup/{GROUP}", exist_ok=True)
    undo(sh, f"rmdir /sys/fs/cgroup/{GROUP}", False)


def dummy(name):
    """A device to mirror to."""
    # Without IPv6, which would send packets of its own.
    return do(f"ip link add {name} type dummy && sysctl -qw net.ipv6.conf.{name}.disable_ipv6=1 && "
              f"ip link set {name} up",
              undo_with=(f"ip link del {name}",))


def on_dummy():
    """Packets that the other device was given."""
    return json.loads(sh("ip -s -j link show other"))[0]["stats64"]["tx"]["packets"]


def pacing(rate):
    """The socket option for bytes in a second."""
    return ((socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", rate)),)


def paced_flows():
    """What fq says that it throttled."""
    found = json.loads(sh("tc -s -j qdisc show dev eth0"))
    return [(each["kind"], each["packets"], each["throttled"] > 0)
            for each in found if each["kind"] == "fq"]


seen = {"observe": (tc_counters,)}
counted = {"observe": (filters,)}
single = {"trains": (False,)}
U32_MARK = ["filter add @ parent 1: pref 1 protocol all handle 5 fw flowid 1:20"]

run("tc", [
    Policy("htb by fw mark", htb(*U32_MARK), observe=(class_of_subject,), options=MARKED),
    Policy("htb by fw mark of nft", together(htb(*U32_MARK), nft_table(
        chain("filter hook output priority 0", "udp dport 7001 meta mark set 5"))),
           observe=(class_of_subject,)),
    Policy("htb by flower", htb(*[each.replace("egress", "parent 1:").replace("action", "flowid")
                                  for each in flower("egress", 7001, "1:20")]),
           observe=(class_of_subject,)),
    Policy("htb by cgroup", together(cgroup, htb(), nft_table(
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
    Policy("tbf, a full queue", tc("qdisc add @ root tbf rate 8kbit burst 1600 limit 9000"),
           settle=give_up, out=ANY, **single),
    Policy("tbf, a full queue, IP_RECVERR",
           tc("qdisc add @ root tbf rate 8kbit burst 1600 limit 9000"), settle=give_up, out=ANY,
           errors=("ENOBUFS",), options=((socket.IPPROTO_IP, IP_RECVERR, 1),),
           families=(4,), **single),
    Policy("fq", tc("qdisc add @ root fq"), **seen),
    Policy("fq with SO_MAX_PACING_RATE", tc("qdisc add @ root fq"), settle=drained,
           observe=(paced_flows,), options=pacing(400000), **single),
    Policy("fq_codel", tc("qdisc add @ root fq_codel"), **seen),
    Policy("fq with SO_TXTIME", tc("qdisc add @ root fq"), settle=drained,
           options=((socket.SOL_SOCKET, SO_TXTIME, struct.pack("=iI", time.CLOCK_MONOTONIC, 0)),),
           metas=backwards, **single, note="sent in the order of their times"),
    Policy("SCM_TXTIME without SO_TXTIME", metas=backwards, out=NONE, errors=("EINVAL",), **single),
    Policy("netem: delay", tc("qdisc add @ root netem delay 50ms limit 1000"), settle=drained,
           **seen),
    Policy("netem: loss", tc("qdisc add @ root netem loss random 30% seed 7 limit 1000"),
           settle=let_go, out=ANY, **single),
    Policy("netem: loss of trains", tc("qdisc add @ root netem loss random 50% seed 3 limit 1000"),
           settle=let_go, out=ANY, trains=(True,)),
    Policy("netem: duplicate", tc("qdisc add @ root netem duplicate 100% limit 1000"),
           settle=let_go, out=2 * COUNT, **single),
    Policy("netem: reorder",
           tc("qdisc add @ root netem delay 20ms reorder 50% seed 7 limit 1000"), settle=let_go,
           ordered=False, **single),
    Policy("clsact egress, flower: count", clsact(*flower("egress", 7001, "pass")), **counted),
    Policy("clsact egress, flower: drop", clsact(*flower("egress", 7001, "drop")), out=NONE,
           **counted),
    Policy("clsact ingress, flower: count", clsact(*flower("ingress", 7000, "pass")), **single,
           **counted),
    Policy("clsact ingress, flower: drop", clsact(*flower("ingress", 7000, "drop")), into=NONE,
           **single, **counted),
    Policy("clsact egress: police",
           clsact(*flower("egress", 7001, "police rate 1kbit burst 19800 conform-exceed drop/pass")),
           out=22, **single, **counted),
    Policy("clsact ingress: police",
           clsact(*flower("ingress", 7000, "police rate 1kbit burst 19800 conform-exceed drop/pass")),
           into=22, **single, **counted),
    Policy("clsact egress: mirred",
           together(dummy("other"), clsact(*flower("egress", 7001, "mirred egress mirror dev other"))),
           observe=(filters, on_dummy), **single),
    Policy("clsact egress: redirect",
           together(dummy("other"), clsact(*flower("egress", 7001,
                                                   "mirred egress redirect dev other"))),
           observe=(filters, on_dummy), out=NONE, **single),
    Policy("clsact ingress: mirred",
           together(dummy("other"), clsact(*flower("ingress", 7000,
                                                   "mirred egress mirror dev other"))),
           observe=(filters, on_dummy), **single),
    Policy("clsact egress: skbedit", together(htb(), clsact(
        *flower("egress", 7001, "skbedit priority 1:20 mark 9"))), observe=(class_of_subject,)),
    Policy("clsact ingress: skbedit", together(clsact(
        *flower("ingress", 7000, "skbedit mark 9")), nft_table(
            chain("filter hook input priority 0", "meta mark 9 udp dport 7000 counter drop"))),
           into=NONE, **single),
    Policy("clsact egress: pedit",
           clsact("filter add @ egress pref 1 protocol ip flower ip_proto udp dst_port 7001 "
                  "action pedit ex munge ip tos set 0x20 munge ip ttl set 33 pipe "
                  "action csum ip4h and udp"),
           families=(4,), **single, **counted),
    Policy("clsact ingress: pedit",
           clsact("filter add @ ingress pref 1 protocol ip flower ip_proto udp dst_port 7000 "
                  "action pedit ex munge ip tos set 0x20 munge ip ttl set 33 pipe "
                  "action csum ip4h and udp"),
           families=(4,), **single, **counted),
    Policy("clsact egress: pedit of a port",
           clsact(*flower("egress", 7999, "pedit ex munge udp dport set 7001 pipe "
                          "action csum ip4h and udp")),
           subject_sends_to=lambda family: ({4: "192.0.2.2", 6: "2001:db8::2"}[family], 7999),
           connected=False, families=(4,), **single, **counted),
])
