#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""With a bond, a team, a bridge, a macvlan or a VLAN above an attached NIC, each hook of both devices sees what a flow
sends and receives, as it sees what a UDP socket does; and it is said which way the NIC's packets come in.

Three kinds of them, or by ALL=1 all."""

import contextlib
import json
import os
import socket

import kopi
from attached import carrier, host, kopictl, tapped
from equivalence import devices, namespace, payload, run_nft
from linux import UDP_SEGMENT
from uppers import KINDS, TEAMS, above
from wire import FROM, PORT, V4, Receiver

NEAR, FAR = "192.0.2.1", "192.0.2.2"
COUNT, SIZE = 16, 200
DATA = [payload(number, SIZE) for number in range(COUNT)]
SINK = 7100


def send(rings, gso):
    """Sends all as single datagrams or as a GSO packet, by a flow or by a socket; gives what arrives."""
    with namespace("peer"):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind((FAR, SINK))
    sink.settimeout(20)
    with namespace("host"):
        sock = kopi.flow() if rings else socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock, sink:
        sock.bind((NEAR, 0))
        packets = [b"".join(DATA)] if gso else DATA
        if rings:
            channel = kopi.Channel(sock, flags=kopi.OFFLOADS if gso else 0, frame_size=4096)
            for number, data in enumerate(packets):
                channel.send(number, data, (FAR, SINK), meta={"gso_size": SIZE} if gso else None)
            channel.bell()
        else:
            sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE if gso else 0)
            for data in packets:
                sock.sendto(data, (FAR, SINK))
        got = [sink.recv(2000) for _ in DATA]
        if rings:
            channel.region.close()
    return got


def receive(rings):
    """The peer sends all; gives what arrives."""
    with namespace("peer"):
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver = Receiver(V4, rings=rings)
    with source:
        source.bind((FAR, FROM))
        for data in DATA:
            source.sendto(data, (NEAR, PORT))
        got = [datagram.data for datagram in receiver.take(COUNT)]
    receiver.close()
    return got


# Hooks of a device: each has a block begin and end, and gives a function that says how many UDP packets it has
# seen, by direction if it knows.

@contextlib.contextmanager
def by_nft(device):
    """Netfilter's chains ingress and egress."""
    with namespace("host"):
        run_nft("table netdev seen {" + "".join(
            f'counter c{hook} {{}}; chain {hook} {{ type filter hook {hook} device "{device}" priority 0;'
            f" meta l4proto udp counter name c{hook}; }};" for hook in ("ingress", "egress")) + "}")

        def seen():
            with namespace("host"):
                found = json.loads(run_nft("list counters table netdev seen", as_json=True))["nftables"]
            return {each["counter"]["name"]: each["counter"]["packets"] for each in found if "counter" in each}
    yield seen
    with namespace("host"):
        run_nft("delete table netdev seen")


@contextlib.contextmanager
def by_tc(device):
    """Filters of clsact; a tag, where there is one, is still beside the packet."""
    filters = [f"filter add dev {device} {hook} pref {pref} protocol {match} ip_proto udp action pass"
               for hook in ("ingress", "egress")
               for pref, match in ((1, "ip flower"), (2, "802.1q flower vlan_ethtype ip"))]
    host("tc -b - <<<'" + "\n".join([f"qdisc add dev {device} clsact", *filters]) + "'")

    def seen():
        return {hook: sum(action["stats"]["packets"]
                          for each in json.loads(host(f"tc -s -j filter show dev {device} {hook}"))
                          for action in each.get("options", {}).get("actions", []))
                for hook in ("ingress", "egress")}
    yield seen
    host(f"tc qdisc del dev {device} clsact")


@contextlib.contextmanager
def by_tap(device):
    """A packet socket."""
    with tapped(device) as tap:
        tap.setblocking(False)
        total = {True: 0, False: 0}

        def seen():
            with contextlib.suppress(BlockingIOError):
                while True:
                    data, (_, _, kind, *_) = tap.recvfrom(65536)
                    if len(data) > SIZE:
                        total[kind == socket.PACKET_OUTGOING] += 1
            return dict(total)
        yield seen


HOOKS = {"hook": by_nft, "tc": by_tc, "tap": by_tap}
EXCHANGES = {"single datagrams": lambda rings: send(rings, False), "a GSO packet": lambda rings: send(rings, True),
             "what comes": receive}


def changed(seen, exchange, rings):
    """How many packets more a hook has seen after an exchange, in which all must arrive."""
    before = seen()
    got = exchange(rings)
    kopi.expect(got == DATA, f"{len(got)} of {COUNT} have come", got)
    return {way: number - before[way] for way, number in seen().items()}


def asked(kind, device, word, way_in):
    """A hook of one of the devices."""
    with HOOKS[word](device) as seen:
        wrong = []
        for name, exchange in EXCHANGES.items():
            plain, rings = (changed(seen, exchange, rings) for rings in (False, True))
            if plain != rings or not any(rings.values()):
                wrong.append(f"{name}: by a socket {plain}, by a flow {rings}")
        [nic] = devices("host")
        kopi.check(f"{kind}: {word} of {device} sees all of a flow", not wrong, wrong)
        expected = word if device == "eth0" else way_in
        kopi.check("and the way in is shown: " + expected, nic["rx_path"] == expected, nic)


def hooked(kind):
    """Such a device is above it."""
    way_in = "direct" if kind == "VLAN" else "upper"
    with above(kind):
        [before] = devices("host")
        lost = [name for name, exchange in EXCHANGES.items() if exchange(True) != DATA]
        [after] = devices("host")
        kopi.check(f"{kind}: all arrive both ways, in order", not lost, lost)
        print(f"# {after['packets'] - before['packets']} of {2 * COUNT} have left directly", flush=True)
        for word in HOOKS:
            for device in "eth0", "up0":
                asked(kind, device, word, way_in)


kopictl("attach", "eth0")
carrier()
# All of them take minutes.
for each in (*KINDS, *TEAMS) if os.environ.get("ALL") else ("bond", "VLAN", TEAMS[0]):
    kopi.attempt(hooked, each)
kopictl("detach", "eth0")
kopi.finish()
