#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Non-GSO datagrams leave by the driver of an attached device, without an skb for each, and meet the hooks that
are installed all the same; what a hook keeps or changes stays whole."""

import contextlib
import json
import socket
import struct
import time

import kopi
import memory
import nfqueue
from attached import ADDRESSES, OTHERS, attach, counted, detached, host, kopictl, link, nobody_takes, rules, unsent
from control import family
from equivalence import namespace, payload, run_nft
from linux import (SO_SNDBUFFORCE, SO_TIMESTAMPING, SOF_TIMESTAMPING_SOFTWARE,
                   SOF_TIMESTAMPING_TX_SCHED)
from outgoing import FRAMES, PORT, Datagrams, several

# Of an unknown neighbour, by IP version; and the versions in the words of nft.
OTHER = {4: "192.0.2.99", 6: "2001:db8::99"}
TABLE = {4: "ip", 6: "ip6"}
# The port of what waits while nobody takes it: it may arrive when other parts of this file listen.
STRAY = 1
# Rules by which a program decides about port 7001.
QUEUED = ("table inet kept {", "chain o {", "type filter hook output priority 0", "udp dport 7001 queue num 0", "}", "}")
SIZES = [*range(0, 1453, 64), 1, 3, 1451, 1452]


def all_lengths(ynl, version):
    """All lengths, to several ports, by one flow and by several."""
    for flows in (1, 3):
        traffic = Datagrams(version, ports=4, flows=flows)
        before = link(ynl)
        datagrams = several(4 * len(SIZES) * flows, 4, SIZES)
        traffic.send(datagrams)
        # Of several flows there is no order; each has ports of its own only by chance.
        if flows == 1:
            traffic.arrive("all lengths", datagrams)
        else:
            there = sorted(data for port in range(4) for data in traffic.receive(port, len(datagrams) // 4))
            kopi.check("flows in turn: all arrive", there == sorted(data for _, data in datagrams))
        after = link(ynl)
        kopi.check(f"by the driver, {flows} flows", after["packets"] - before["packets"] == len(datagrams)
                   and after["gso-packets"] == before["gso-packets"], after)
        kopi.check(f"nothing is unaccounted for, {flows} flows",
                   kopi.wait_until(lambda: not traffic.channel.unaccounted()), traffic.channel.unaccounted())
        traffic.close()


def rules_decide(ynl, version):
    """Rules see each datagram, drop some, and change others; by the driver all the same."""
    traffic = Datagrams(version, ports=2)
    with namespace("host"):
        rules("table inet seen {", "counter out { }", "counter post { }", "chain o {",
              "type filter hook output priority 0", "meta l4proto udp counter name out", "udp dport 7001 drop", "}",
              "chain p {", "type filter hook postrouting priority 0", "meta l4proto udp counter name post", "}", "}")
    before = link(ynl)
    datagrams = several(200, 2)
    refused = traffic.send(datagrams)
    kopi.check("what a rule drops is refused", refused == 100, refused)
    traffic.arrive("the others", [each for each in datagrams if each[0] == 0])
    with namespace("host"):
        numbers = counted("inet seen", "out"), counted("inet seen", "post")
    kopi.check("each hook sees each datagram", numbers == (200, 100), numbers)
    kopi.check("with rules: by the driver", link(ynl)["packets"] - before["packets"] == 100, link(ynl))
    with namespace("host"):
        run_nft("flush ruleset")
        near = ADDRESSES[version][0]
        rules(f"table {TABLE[version]} nat {{", "chain p {", "type nat hook postrouting priority 100",
              f"udp dport 7000 snat to {near if version == 4 else f'[{near}]'}:9999", "}", "}")
    before = link(ynl)
    traffic.send(several(100))
    sources = {traffic.sinks[0].recvfrom(2000)[1][:2] for _ in range(100)}
    kopi.check("NAT changes each one's source", sources == {(near, 9999)}, sources)
    kopi.check("NAT: by the driver", link(ynl)["packets"] - before["packets"] == 100, link(ynl))
    with namespace("host"):
        run_nft("flush ruleset")
        rules(f"table {TABLE[version]} nat {{", "chain o {", "type nat hook output priority -100",
              f"{TABLE[version]} daddr {OTHER[version]} dnat to {traffic.far}", "}", "}")
    datagrams = several(100, 2, SIZES)
    traffic.send(datagrams, OTHER[version])
    traffic.arrive("another destination", datagrams)
    with namespace("host"):
        run_nft("flush ruleset")
    traffic.close()


def hooks_keep(_ynl, version):
    """What a hook keeps, or copies, isn't touched by what is sent afterwards."""
    traffic = Datagrams(version, ports=2)
    with namespace("host"):
        queue = nfqueue.serve(0, lambda _: True)
        rules(*QUEUED)
    datagrams = several(400, 2, SIZES)
    traffic.send(datagrams)
    traffic.arrive("kept by a program, and let go", datagrams)
    queue.stop()
    with namespace("host"):
        run_nft("flush ruleset")
        rules(f"table {TABLE[version]} twice {{", "chain p {", "type filter hook postrouting priority 0",
              f"udp dport 7001 dup to {traffic.far} device eth0", "}", "}")
    datagrams = several(100, 2, SIZES)
    traffic.send(datagrams)
    traffic.arrive("beside copies", [each for each in datagrams if each[0] == 0])
    mine = sorted(2 * [data for port, data in datagrams if port == 1])
    there = sorted(traffic.receive(1, len(mine)))
    kopi.check("copied: each arrives twice", there == mine, len(there))
    with namespace("host"):
        run_nft("flush ruleset")
    traffic.close()


def kept_for_ever(_ynl, version):
    """What a program never lets go holds up nobody, and goes with the module."""
    traffic = Datagrams(version, ports=2)
    with namespace("host"):
        queue = nfqueue.Queue(0)
        rules(*QUEUED)
    traffic.send(several(40, 2))
    traffic.arrive("the others", [each for each in several(40, 2) if each[0] == 0])
    waiting = [queue.receive() for _ in range(20)]
    kopi.check("a program keeps some", None not in waiting, waiting)
    traffic.close()
    kopictl("detach", "eth0")
    kopi.check("the module can go meanwhile", memory.unload())
    for packet in waiting:
        queue.verdict(packet, True)
    queue.sock.close()
    with namespace("host"):
        run_nft("flush ruleset")
    kopi.expect(memory.load(), "the module comes again")
    attach()


def marks_last(ynl, version):
    """The mark that a hook has set is there when the stack has to send after all."""
    traffic = Datagrams(version, ports=2)
    traffic.channel.sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20)
    with namespace("host"):
        rules("table inet marked {", "chain o {", "type filter hook output priority 0",
              "udp dport 7001 meta mark set 7", "}", "}")

    def seen():
        """Marked datagrams that the stack has, which tc begins to look for while they wait for the driver."""
        with nobody_takes():
            # More than its ring holds.
            traffic.send([(STRAY, payload(number, 1000)) for number in range(10 * FRAMES)])
            # By one process, within the second after which the stack has them.
            host("tc -b - <<<$'qdisc add dev eth0 clsact\\nfilter add dev eth0 egress protocol all pref 1 "
                 "handle 7 fw action ok'")
            kopi.wait_until(lambda: link(ynl)["tx-path"] == "refused")
            shown = json.loads(host("tc -s -j filter show dev eth0 egress"))
            host("tc qdisc del dev eth0 clsact")
            kopictl("detach", "eth0")
        kopictl("attach", "eth0")
        return next((action["stats"]["packets"] for each in shown
                     for action in each.get("options", {}).get("actions", ())), 0)

    # tc may come too late, on a busy machine.
    kopi.check("the stack has the mark that a hook has set", any(seen() for _ in range(5)))
    with namespace("host"):
        run_nft("flush ruleset")
    traffic.close()


def neighbours_are_asked(ynl, version):
    """A peer whose address isn't known gets all, in order."""
    traffic = Datagrams(version)
    for _ in range(10):
        host(f"ip neigh flush dev eth0 {traffic.far}")
        datagrams = several(60)
        traffic.send(datagrams[:30])
        time.sleep(0.01)
        traffic.send(datagrams[30:])
        received = traffic.receive(0, 60)
        # The kernel keeps a limited number of bytes while it asks.
        if received != datagrams and not set(received) <= {data for _, data in datagrams}:
            kopi.check("unknown neighbours", False, len(received))
    # The driver has let go of what the stack sent.
    kopi.wait_until(lambda: not unsent(traffic.channel.sock))
    before = link(ynl)
    traffic.send(several(100))
    traffic.arrive("known again", several(100))
    kopi.check("known again: by the driver", link(ynl)["packets"] - before["packets"] == 100, link(ynl))
    traffic.close()


def room_is_short(ynl, version):
    """A small send buffer, and a driver that takes nothing for a while: no datagram is lost."""
    traffic = Datagrams(version)
    traffic.channel.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    datagrams = several(500, sizes=(1000, 10))
    traffic.send(datagrams)
    traffic.arrive("a small send buffer", datagrams)
    traffic.close()
    traffic = Datagrams(version, ports=2)
    before = link(ynl)
    with nobody_takes():
        for number in range(FRAMES):
            traffic.channel.send(traffic.free.pop(), payload(number, 1400), (traffic.far, PORT + STRAY))
        traffic.channel.bell()
        kopi.check("the driver has some",
                   kopi.wait_until(lambda: link(ynl)["packets"] > before["packets"]), link(ynl))
    kopi.wait_until(lambda: (traffic.channel.bell(), traffic.reap(), len(traffic.free) == FRAMES)[2])
    traffic.close()


def stamped_once(ynl, version):
    """A datagram that asks when it reached the qdisc, and that the stack sends behind frames, is told so once."""
    traffic = Datagrams(version, ports=2)
    sock = traffic.channel.sock
    sock.connect((traffic.far, PORT + STRAY))
    before = link(ynl)
    with nobody_takes():
        for number in range(8):
            traffic.channel.send(traffic.free.pop(), payload(number, 100))
        traffic.channel.bell()
        kopi.expect(kopi.wait_until(lambda: link(ynl)["packets"] >= before["packets"] + 8), "the driver has frames")
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_TX_SCHED)
        sock.send(b"stamped")
    # The stack has the datagram when the driver has no frames any more.
    kopi.expect(kopi.wait_until(lambda: not unsent(sock)), "all are sent")
    told = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.recv(2000, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            told += 1
    kopi.check("behind frames: one stamp of the qdisc", told == 1, told)
    traffic.close()


def paths_change(ynl, version):
    """Things come and go under traffic: nothing is overtaken, and nothing lost that the stack doesn't drop."""
    for way, other in {**OTHERS, "detached": detached, "rules": ruled}.items():
        traffic = Datagrams(version)
        before = link(ynl)
        sent, received = traffic.send_while(way, other)
        traffic.receive_behind(received, sent, 10)
        numbers = [struct.unpack_from(">I", data)[0] for data in received]
        kopi.check(f"{way}: comes and goes, and nothing is overtaken", numbers == sorted(set(numbers)))
        kopi.check(f"{way}: each is whole", all(data == payload(number, 300)
                                               for number, data in zip(numbers, received)))
        # While tc changes its qdiscs the stack itself drops what comes.
        kopi.check(f"{way}: nothing is lost", way in ("tc", "qdisc") or len(numbers) == sent,
                   f"{len(numbers)} of {sent}")
        if way != "detached":
            after = link(ynl)
            kopi.check(f"{way}: nothing is dropped on the direct path, which some take",
                       after["dropped"] == before["dropped"] and after["packets"] > before["packets"], after)
        traffic.close()


@contextlib.contextmanager
def ruled():
    """Hooks of netfilter's, at the host and at its device."""
    with namespace("host"):
        rules("table inet seen {", "chain o {", "type filter hook output priority 0", "counter", "}", "}",
              "table netdev early {", "chain e {", "type filter hook egress device eth0 priority 0", "counter", "}",
              "}")
    try:
        yield
    finally:
        with namespace("host"):
            run_nft("flush ruleset")


attach()
with namespace("host"):
    YNL = family()
for case in (all_lengths, rules_decide, hooks_keep, marks_last, neighbours_are_asked, room_is_short, stamped_once,
             paths_change, kept_for_ever):
    for ip in (4, 6):
        case(YNL, ip)
kopictl("detach", "eth0")
kopi.check("detached", "xdp" not in json.loads(host("ip -j link show eth0"))[0])
kopi.finish()
