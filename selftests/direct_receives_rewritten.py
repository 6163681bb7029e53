#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What netfilter hooks write to a datagram that comes from an attached device's frames: the socket that gets it is
the one that it would be of UDP sockets, and what a host refuses, flows don't get either."""

import contextlib

import kopi
from attached import host, kopictl, rules, sysctl
from equivalence import namespace, payload, run_nft
from wire import FROM, PORT, V4, V6, Receiver, Told, begin

OTHER, COUNT = PORT + 2, 8


@contextlib.contextmanager
def ruled(ip, chain, statement):
    """A rule for what the connected socket's peer sends, at a hook."""
    with namespace("host"):
        rules(f"table {ip.table} t {{", "chain c {", f"type filter hook {chain}",
              f"udp sport {FROM} udp dport {PORT} {statement}", "}", "}")
    yield
    with namespace("host"):
        run_nft(f"delete table {ip.table} t")


def received(ynl, wire, ip, rings):
    """What a connected socket and another one get of what the former's peer sends; and how many had no port."""
    peer = ip.others[0]
    connected = Receiver(ip, rings=rings, peer=(peer, FROM))
    other = Receiver(ip, port=OTHER, rings=rings)
    of_connected, of_other = [], []
    with Told(ynl, ip) as told:
        # One by one: of packets that come together, the stack looks for the connected socket of the first one only,
        # before input (ip_list_rcv_finish()).
        for number in range(COUNT):
            wire.send(ip, payload(number, 100), peer)
            # Behind it, of someone whom no rule is about.
            wire.send(ip, b"mark", ip.others[1], port=OTHER, sender=FROM + 1)
            marked = False
            while not marked and (got := other.take(1)):
                marked = got[-1].data == b"mark"
                of_other += [each for each in got if each.data != b"mark"]
            of_connected += connected.take(0)
    for each in connected, other:
        each.close()
    return (of_connected, of_other, told.snmp["Udp:NoPorts"]), told.directly


def compare(ynl, wire, ip, what, directly=None):
    """Checks that flows get what UDP sockets do; gives that."""
    want, _ = received(ynl, wire, ip, False)
    have, took = received(ynl, wire, ip, True)
    what = f"IPv{ip.version}, {what}"
    kopi.check(f"{what}: the same comes", want == have, [(len(a), len(b), c) for a, b, c in (want, have)])
    if directly is not None:
        kopi.check(f"{what}: {directly} without the stack", took == directly, took)
    return [len(want[0]), len(want[1]), want[2]]


def rewritten_at_input(ynl, wire, ip):
    """Ports and addresses, which are others' then, or nobody's."""
    kopi.check("nothing is written", compare(ynl, wire, ip, "no rule", 2 * COUNT) == [COUNT, 0, 0])
    for statement in (f"udp dport set {OTHER}", "udp sport set 9", f"{ip.table} saddr set {ip.others[3]}"):
        with ruled(ip, "input priority 0", statement):
            kopi.check("a connected UDP socket keeps what was its own",
                       compare(ynl, wire, ip, statement) == [COUNT, 0, 0])
    with sysctl("net.ipv4.udp_early_demux", 0), ruled(ip, "input priority 0", f"udp dport set {OTHER}"):
        kopi.check("unless it is looked up afterwards",
                   compare(ynl, wire, ip, "a port, without early demultiplexing", 2 * COUNT) == [0, COUNT, 0])


def rewritten_at_prerouting(ynl, wire, ip):
    """Before any socket is looked up: ports, and to whom the link has given it."""
    with ruled(ip, "prerouting priority -300", f"udp dport set {OTHER}"):
        kopi.check("who gets it then", compare(ynl, wire, ip, "a port at prerouting", 2 * COUNT) == [0, COUNT, 0])
    with ruled(ip, "prerouting priority -300", "meta pkttype set broadcast"):
        kopi.check("both get theirs", compare(ynl, wire, ip, "as if it were broadcast") == [COUNT, 0, 0])
        with sysctl("net.ipv4.conf.eth0.drop_unicast_in_l2_multicast", 1):
            got = compare(ynl, wire, ip, "which is refused")
            kopi.check("a host of IPv4 refuses that", got == [COUNT if ip is V6 else 0, 0, 0], got)
        # The owner isn't known yet.
        with namespace("host"):
            rules(f"table {ip.table} o {{", "chain c {", "type filter hook input priority 0",
                  f"udp dport {PORT} meta skuid 0 drop", "}", "}")
        kopi.check("no owner is known then", compare(ynl, wire, ip, "an owner's") == [COUNT, 0, 0])
        with namespace("host"):
            run_nft(f"delete table {ip.table} o")


YNL, WIRE = begin()
host("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0")
for IP in V4, V6:
    rewritten_at_input(YNL, WIRE, IP)
    rewritten_at_prerouting(YNL, WIRE, IP)
kopictl("detach", "eth0")
kopi.finish()
