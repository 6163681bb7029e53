#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Hooks and taps see what an attached device receives, their verdicts hold, and other sockets get theirs."""

import contextlib
import json
import socket
import struct

import kopi
from attached import attach, counted, host, kopictl, link, rules, tapped
from control import family
from equivalence import namespace, payload, run_nft, sh, snmp
from linux import UDP_SEGMENT
from redirected import BATCH, FROM, PORT, Incoming


def others_get_theirs(ynl):
    """Other sockets of the port, and those that didn't ask for GRO packets, get datagrams."""
    host("ip addr add 192.0.2.50/24 dev eth0")
    traffic = Incoming()
    with namespace("host"):
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        plain = kopi.flow()
    other.bind(("192.0.2.50", PORT))
    other.settimeout(20)
    plain.bind((traffic.near, PORT + 1))
    channel = kopi.Channel(plain, frames=BATCH)
    for number in range(BATCH):
        channel.fill.push(channel.frame(number))
    before = link(ynl)
    for address, port in (("192.0.2.50", PORT), (traffic.near, PORT + 1)):
        traffic.source.connect((address, port))
        traffic.source.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 100)
        traffic.source.send(b"".join(payload(number, 100) for number in range(BATCH)))
    received = [other.recv(2000) for _ in range(BATCH)]
    kopi.check("a socket of another address: all arrive, one by one",
               received == [payload(number, 100) for number in range(BATCH)], [len(each) for each in received])
    entries = []
    kopi.wait_until(lambda: (entries.extend(iter(channel.rx.pop, None)), len(entries) >= BATCH)[1])
    received = [channel.region[offset:offset + length] for offset, length, *_ in entries]
    kopi.check("a flow without GRO packets: all arrive, one by one",
               received == [payload(number, 100) for number in range(BATCH)], [len(each) for each in received])
    after = link(ynl)
    kopi.check("and no GRO packets", after["gro-packets"] == before["gro-packets"]
               and after["received"] - before["received"] == 2 * BATCH, after)
    kopi.check("but without the stack", after["received-direct"] - before["received-direct"] == BATCH, after)
    channel.region.close()
    plain.close()
    other.close()
    # A flow that `ss -K` takes its port from: whose that is then gets what comes there.
    with namespace("host"):
        aborted = kopi.flow()
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    channel = kopi.Channel(aborted, flags=kopi.OFFLOADS)
    aborted.connect((traffic.far, FROM))
    port = aborted.getsockname()[1]
    host(f"ss -K -u src {traffic.near} sport = {port}")
    kopi.check("a flow that was aborted has no port", aborted.getsockname()[1] == 0, aborted.getsockname())
    other.bind((traffic.near, port))
    other.settimeout(20)
    traffic.source.connect((traffic.near, port))
    traffic.source.send(b"".join(payload(number, 100) for number in range(BATCH)))
    received = [other.recv(2000) for _ in range(BATCH)]
    kopi.check("a socket that has its port then: all arrive, one by one",
               received == [payload(number, 100) for number in range(BATCH)], [len(each) for each in received])
    channel.region.close()
    aborted.close()
    other.close()
    # GRO packets that turn out to be for another one: NAT says so.
    with namespace("host"):
        other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        rules("table ip nat {", "chain pre {", "type nat hook prerouting priority -100",
              f"udp sport {FROM} udp dport {PORT} redirect to :7300", "}", "}")
    other.bind(("192.0.2.1", 7300))
    other.settimeout(20)
    traffic.source.connect((traffic.near, PORT))
    traffic.send(BATCH, 100)
    received = [other.recv(2000) for _ in range(BATCH)]
    kopi.check("NAT to a plain socket: all arrive, one by one",
               received == [payload(number, 100) for number in range(BATCH)], [len(each) for each in received])
    with namespace("host"):
        run_nft("flush ruleset")
    other.close()
    traffic.close()
    host("ip addr del 192.0.2.50/24 dev eth0")
    host("conntrack -F")


def hooks_see_it(ynl):
    """Rules, tc and taps see what is redirected, and hold."""
    traffic = Incoming()
    with namespace("host"):
        rules("table netdev early {", "counter seen { }", "chain i {",
              "type filter hook ingress device eth0 priority 0", f"udp dport {PORT} counter name seen", "}", "}",
              "table inet seen {", "counter seen { }", "chain i {", "type filter hook input priority 0",
              f"udp dport {PORT} ct state new,established counter name seen", "}", "}")
    host("tc qdisc add dev eth0 clsact")
    host("tc filter add dev eth0 ingress proto ip flower ip_proto udp dst_port 7000 action pass")
    with namespace("host"):
        udp = snmp()
    before = link(ynl)
    seen_by_tap = 0
    with tapped() as tap:
        traffic.passes("with rules, tc and a tap: all arrive, in order", 4 * BATCH, 64)
        tap.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                data = tap.recv(65536)
                seen_by_tap += len(data) - 42 if data[36:38] == struct.pack(">H", PORT) else 0
    kopi.check("a tap sees all of it", seen_by_tap == 4 * BATCH * 64, seen_by_tap)
    after = link(ynl)
    gro = after["gro-packets"] - before["gro-packets"]
    # A datagram can come alone.
    packets = gro + 4 * BATCH
    with namespace("host"):
        for table in ("netdev early", "inet seen"):
            seen = counted(table, "seen")
            kopi.check(f"{table}: counts GRO packets", gro <= seen < packets // 2, (seen, gro))
        after = snmp()
        kopi.check("UDP counts GRO packets", after["UdpInDatagrams"] - udp["UdpInDatagrams"] == seen, after)
    shown = json.loads(host("tc -s -j filter show dev eth0 ingress"))
    stats = next(each["options"]["actions"][0]["stats"] for each in shown if "options" in each)
    kopi.check("tc counts what comes", gro <= stats["packets"], stats)

    for what, begin, end in (
            ("nft's input", lambda: run_nft(f"add rule inet seen i udp dport {PORT} drop"),
             lambda: run_nft("flush chain inet seen i")),
            ("nft's ingress", lambda: run_nft(f"add rule netdev early i udp dport {PORT} drop"),
             lambda: run_nft("flush chain netdev early i")),
            ("tc", lambda: sh("tc filter replace dev eth0 ingress proto ip pref 1 flower ip_proto udp "
                              "dst_port 7000 action drop"),
             lambda: sh("tc qdisc del dev eth0 clsact"))):
        with namespace("host"):
            begin()
        before = link(ynl)
        traffic.send(BATCH, 64)
        traffic.taken = traffic.sent
        kopi.wait_until(lambda: link(ynl)["received"] - before["received"] == BATCH)
        kopi.check(f"{what} drops it", not list(traffic.receive()))
        with namespace("host"):
            end()
        traffic.passes(f"{what}: and doesn't afterwards", BATCH, 64)
    with namespace("host"):
        run_nft("flush ruleset")
    host("conntrack -F")
    traffic.close()


attach()
with namespace("host"):
    YNL = family()
for case in (others_get_theirs, hooks_see_it):
    case(YNL)
YNL.sock.close()
kopictl("detach", "eth0")
kopi.finish()
