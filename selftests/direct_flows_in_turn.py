#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Flows of one channel that take turns leave together by the driver of an attached device. Each keeps its order, is
charged for its own datagrams, and meets the hooks that are installed."""

import socket
import struct

import kopi
from attached import ADDRESSES, OTHERS, attach, detached, kopictl, link, nobody_takes, rules, unsent
from control import family
from equivalence import namespace, payload, run_nft, user
from outgoing import PORT, Datagrams, several

FLOWS = 20
# The port of what waits while nobody takes it.
STRAY = 1


def in_turn(version, ports=1, flows=FLOWS, flags=0):
    """Flows that send one datagram each in turn."""
    return Datagrams(version, ports, flows, row=1, flags=flags)


def sockets(traffic):
    """The flows, by their numbers in turn."""
    return (traffic.channel.sock, *traffic.joined)


def received_by_source(traffic, count):
    """What the sink receives of that number of datagrams, by the sender's port."""
    there = {}
    for _ in range(count):
        data, source = traffic.sinks[0].recvfrom(65536)
        there.setdefault(source[1], []).append(data)
    return there


def leave_together(ynl, version):
    """All arrive by the driver, those of each flow in order and from its own port."""
    traffic = in_turn(version)
    before = link(ynl)
    datagrams = several(20 * FLOWS, sizes=(100, 1, 1400, 700, 16))
    refused = traffic.send(datagrams)
    kopi.check("none is refused", refused == 0, refused)
    there = received_by_source(traffic, len(datagrams))
    sent = {sock.getsockname()[1]: [data for _, data in datagrams[place::FLOWS]]
            for place, sock in enumerate(sockets(traffic))}
    kopi.check("each flow's arrive, in its order and from its port", there == sent,
               {port: len(data) for port, data in there.items()})
    after = link(ynl)
    kopi.check("all leave by the driver", after["packets"] - before["packets"] == len(datagrams), (before, after))
    kopi.check("nothing is unaccounted for", kopi.wait_until(lambda: not traffic.channel.unaccounted()),
               traffic.channel.unaccounted())
    kopi.check("no flow is charged for ever",
               kopi.wait_until(lambda: not any(unsent(sock) for sock in sockets(traffic))),
               [unsent(sock) for sock in sockets(traffic)])
    traffic.close()


def held_by_the_driver(ynl, version):
    """Two flows' frames that the driver holds; whether it does, and what each flow was charged then."""
    traffic = in_turn(version, ports=2)
    # The direct path's next packets are no flow's first.
    traffic.send(several(4 * FLOWS))
    traffic.receive(0, 4 * FLOWS)
    flows = sockets(traffic)
    with nobody_takes():
        before = link(ynl)
        for place in range(2 * FLOWS):
            number = traffic.numbers[place % FLOWS]
            traffic.channel.send(traffic.free.pop(), payload(place, 1000), (traffic.far, PORT + STRAY), number)
        traffic.channel.bell()
        taken = kopi.wait_until(lambda: link(ynl)["packets"] > before["packets"] + FLOWS)
        charges = [unsent(sock) for sock in flows]
        for sock in traffic.joined[::2]:
            sock.close()
    return traffic, flows, taken, charges


def charged_for_own(ynl, version):
    """While the driver holds the frames, each flow is charged for its own; the sockets of those that are closed
    meanwhile go when it lets go."""
    # A driver that takes nothing is given up after a second, which a busy machine may need for that.
    for _ in range(5):
        traffic, flows, taken, charges = held_by_the_driver(ynl, version)
        if taken and min(charges) > 1000:
            break
        traffic.close()
        kopictl("detach", "eth0")
        kopictl("attach", "eth0")
    kopi.check("the driver has them", taken, link(ynl))
    kopi.check("each flow is charged for what it sent", min(charges) > 1000, charges)
    kopi.check("one flow is not charged for the others' alone", max(charges) < sum(charges) / 4, charges)
    open_ones = [sock for sock in flows if sock.fileno() >= 0]
    kopi.check("those that are left are charged no more when the driver has let go",
               kopi.wait_until(lambda: not any(unsent(sock) for sock in open_ones)),
               [unsent(sock) for sock in open_ones])
    traffic.close()


def hooks_are_asked(ynl, version):
    """A rule decides about each flow's datagrams by itself."""
    traffic = in_turn(version)
    ports = [sock.getsockname()[1] for sock in sockets(traffic)]
    with namespace("host"):
        rules("table inet seen {", "chain o {", "type filter hook output priority 0", f"udp sport {ports[3]} drop",
              f"udp sport {ports[4]} reject", "}", "}")
    before = link(ynl)
    datagrams = several(10 * FLOWS)
    refused = traffic.send(datagrams)
    kopi.check("what rules drop or reject is refused, of these flows alone", refused == 20, refused)
    there = received_by_source(traffic, len(datagrams) - 20)
    kopi.check("the others' arrive", set(there) == set(ports) - {ports[3], ports[4]}
               and all(len(data) == 10 for data in there.values()), {port: len(data) for port, data in there.items()})
    kopi.check("by the driver", link(ynl)["packets"] - before["packets"] == len(datagrams) - 20, link(ynl))
    with namespace("host"):
        run_nft("flush ruleset")
    traffic.close()


def others_are_apart(ynl, version):
    """Another user's flow on the channel, a flow that is bound to another device, and one whose datagrams need the
    stack: all arrive, in the order of each."""
    traffic = in_turn(version, flows=4, flags=kopi.TX_ONLY)
    near = ADDRESSES[version][0]
    kind, proto = (socket.AF_INET, 0) if version == 4 else (socket.AF_INET6, kopi.UDP6)
    with namespace("host"):
        with user("bob"):
            guest = kopi.flow(proto)
        guest.bind((near, 0))
        guest.setsockopt(kopi.SOL_KOPI, kopi.JOIN, kopi.join_request(traffic.channel.sock))
    traffic.joined.append(guest)
    traffic.numbers.append(kopi.number_of(guest))
    options = (socket.SOL_IP, socket.IP_OPTIONS, b"\1\1\1\1") if kind == socket.AF_INET else (
        socket.IPPROTO_IPV6, socket.IPV6_DSTOPTS, bytes((0, 0, 1, 4, 0, 0, 0, 0)))
    traffic.joined[0].setsockopt(*options)
    before = link(ynl)
    datagrams = several(250)
    traffic.send(datagrams)
    there = received_by_source(traffic, len(datagrams))
    count = len(traffic.numbers)
    sent = {sock.getsockname()[1]: [data for _, data in datagrams[place::count]]
            for place, sock in enumerate(sockets(traffic))}
    kopi.check("each flow's arrive, in its order", there == sent, {port: len(data) for port, data in there.items()})
    kopi.check("nothing is dropped", link(ynl)["dropped"] == before["dropped"], link(ynl))
    traffic.close()


def first_wrong(numbers):
    """Whether each of the seven flows has received its numbers in order, and once; and what came around the first of
    which that isn't so."""
    last = {}
    for place, number in enumerate(numbers):
        if number <= last.get(number % 7, -1):
            return False, (number, last[number % 7], numbers[max(place - 20, 0):place + 20])
        last[number % 7] = number
    return True, ""


def paths_change(ynl, version):
    """What looks at packets comes and goes, and so does the attaching: no flow's datagrams are lost or overtaken."""
    for way, other in {**OTHERS, "detached": detached}.items():
        traffic = in_turn(version, flows=7)
        before = link(ynl)
        sent, received = traffic.send_while(way, other)
        traffic.sinks[0].settimeout(10)
        received += traffic.receive(0, sent - len(received)) if way not in ("tc", "qdisc") else []
        numbers = [struct.unpack_from(">I", data)[0] for data in received]
        kopi.check(f"{way}: comes and goes, and no flow's datagrams are overtaken", *first_wrong(numbers))
        # While tc changes its qdiscs the stack itself drops what comes.
        kopi.check(f"{way}: nothing is lost", way in ("tc", "qdisc") or len(set(numbers)) == sent,
                   f"{len(set(numbers))} of {sent}")
        if way != "detached":
            after = link(ynl)
            kopi.check(f"{way}: nothing is dropped on the direct path, which some take",
                       after["dropped"] == before["dropped"] and after["packets"] > before["packets"], after)
        traffic.close()


attach()
with namespace("host"):
    YNL = family()
for case in (leave_together, charged_for_own, hooks_are_asked, others_are_apart, paths_change):
    for ip in (4, 6):
        case(YNL, ip)
kopictl("detach", "eth0")
kopi.finish()
