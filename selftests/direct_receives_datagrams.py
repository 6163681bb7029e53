#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Datagrams come from an attached device's frames without the stack, as a UDP socket would get them: with each
hook and filter asked, by the kernel's routes and choice of the socket, in order, and counted."""

import collections
import contextlib
import ctypes
import itertools
import json
import random
import socket
import struct

import kopi
import nfqueue
from attached import attach, counted, host, kopictl, link, rules
from control import family
from equivalence import namespace, payload, run_nft, sh
from linux import (ETH_P_ALL, PACKET_QDISC_BYPASS, SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF, SO_DETACH_FILTER,
                   SO_RCVBUFFORCE, SO_RCVMARK, SO_TIMESTAMPNS, SOL_PACKET)

NEAR, FAR, PORT, FROM = "192.0.2.1", "192.0.2.2", 7000, 7001
# Senders without a route but the device's network.
SOURCES = [f"192.0.2.{number}" for number in range(100, 116)]
FRAMES = 256
# Fields of /proc/net/snmp that a datagram changes.
COUNTERS = ("Ip:InReceives", "Ip:InDelivers", "Udp:InDatagrams", "Udp:InErrors", "Udp:RcvbufErrors", "Udp:InCsumErrors")
Datagram = collections.namedtuple("Datagram", "data peer port")


def checksum(data):
    """RFC 1071's."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xffff:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


class Wire:
    """Sends frames as they are by the peer's NIC."""

    def __init__(self):
        with namespace("peer"):
            self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            self.sock.bind(("eth1", 0))
        # A qdisc would let packets of one sender overtake another's.
        self.sock.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
        self.macs = [bytes.fromhex(json.loads(sh(f"ip -n {where} -j link show {nic}"))[0]["address"].replace(":", ""))
                     for where, nic in (("host", "eth0"), ("peer", "eth1"))]

    def send(self, data, source=SOURCES[0], to=NEAR, port=PORT, sender=FROM, tos=0, mac=None, bad="", padding=b""):
        """Sends a datagram; `bad` names the checksum that is wrong, or "none" for no UDP checksum."""
        addresses = socket.inet_aton(source) + socket.inet_aton(to)
        udp = struct.pack(">HHHH", sender, port, 8 + len(data), 0)
        right = checksum(addresses + struct.pack(">HH", 17, 8 + len(data)) + udp + data) or 0xffff
        right = {"udp": right ^ 0x55, "none": 0}.get(bad, right)
        udp = udp[:6] + struct.pack(">H", right)
        ip = struct.pack(">BBHHHBBH", 0x45, tos, 28 + len(data), 0, 0x4000, 64, 17, 0) + addresses
        ip = ip[:10] + struct.pack(">H", checksum(ip) ^ (0x55 if bad == "ip" else 0)) + ip[12:]
        self.sock.send((mac or self.macs[0]) + self.macs[1] + b"\x08\0" + ip + udp + data + padding)


class Receiver:
    """A flow on a channel, or a plain socket."""

    def __init__(self, address=NEAR, port=PORT, rings=True, peer=None, reuse=False, frames=FRAMES):
        with namespace("host"):
            self.sock = kopi.flow() if rings else socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        if reuse:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        self.sock.bind((address, port))
        if peer:
            self.sock.connect(peer)
        self.sock.setblocking(False)
        self.channel, self.metas = None, []
        if rings:
            self.channel = kopi.Channel(self.sock, frames=FRAMES, fill=FRAMES, rx=FRAMES)
            for number in range(frames):
                self.channel.fill.push(self.channel.frame(number))

    def close(self):
        """Ends it."""
        self.sock.close()
        if self.channel:
            self.channel.region.close()

    def _read(self):
        """The next datagram, or None."""
        if not self.channel:
            with contextlib.suppress(BlockingIOError):
                data, peer = self.sock.recvfrom(65536)
                return Datagram(data, *peer)
            return None
        if (entry := self.channel.rx.pop()) is None:
            return None
        offset, length, *_ = entry
        start = offset - offset % self.channel.frame_size
        meta = struct.unpack_from(kopi.META_FORMAT, self.channel.region, start)
        self.metas.append(meta)
        data = bytes(self.channel.region[offset:offset + length])
        self.channel.fill.push(start)
        return Datagram(data, socket.inet_ntoa(meta[0][:4]), struct.unpack(">H", meta[2])[0])

    def take(self, count, patience=20.0):
        """Up to `count` datagrams, as they come."""
        got = []

        def enough():
            while (datagram := self._read()) is not None:
                got.append(datagram)
            return len(got) >= count
        kopi.wait_until(enough, patience)
        return got


def snmp():
    """The namespace's counters of these names."""
    with namespace("host"), open("/proc/net/snmp", encoding="ascii") as file:
        lines = [line.split() for line in file]
    fields = {names[0] + name: int(value) for names, values in zip(lines[::2], lines[1::2])
              for name, value in zip(names[1:], values[1:])}
    return {name: fields[name] for name in COUNTERS}


class Told:
    """What a piece of work changes: the device's and the namespace's counters."""

    def __init__(self, ynl):
        self.ynl = ynl

    def __enter__(self):
        self.device, self.counters = link(self.ynl), snmp()
        return self

    def __exit__(self, *_):
        after = link(self.ynl)
        self.directly = after["received-direct"] - self.device["received-direct"]
        self.received = after["received"] - self.device["received"]
        self.snmp = {name: value - self.counters[name] for name, value in snmp().items()}


def all_are_whole(ynl, wire):
    """Data, peers, metadata and order."""
    receiver = Receiver()
    sizes = [*range(8, 1473, 61), 8, 9, 1471, 1472]
    chosen = random.Random(1)
    wanted = [(payload(number, size), chosen.choice(SOURCES), 2000 + number) for number, size in enumerate(sizes * 4)]
    with Told(ynl) as told:
        for data, source, port in wanted:
            wire.send(data, source, sender=port, tos=0x2e)
        got = receiver.take(len(wanted))
    kopi.check("all arrive, in order of all senders", got == wanted, (len(got), len(wanted)))
    kopi.check("without the stack", told.directly == told.received == len(wanted), vars(told))
    meta = receiver.metas[0]
    kopi.check("their metadata: local end, family, TOS, TTL, device",
               (meta[1][:4], socket.ntohs(meta[3]), meta[4], meta[8], meta[9]) ==
               (socket.inet_aton(NEAR), PORT, socket.AF_INET, 0x2e, 64), meta)
    shown = next(each for each in ynl.dump("flow-get", {}) if each["local-port"] == PORT)
    kopi.check("the flow has counted them", shown["stats"]["rx-packets"] == len(wanted), shown)
    wire.send(b"padded", padding=b"\xff" * 40)
    kopi.check("padding isn't data", [each.data for each in receiver.take(1)] == [b"padded"])
    receiver.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    wire.send(b"stamped")
    receiver.take(1)
    kopi.check("a time stamp", receiver.metas[-1][12] > 1 << 60, receiver.metas[-1])
    receiver.close()


def counts_are_a_sockets(ynl, wire):
    """The namespace's counters are those of a UDP socket; what is wrong is dropped in the same way."""
    counts, got = [], []
    for rings in (False, True):
        receiver = Receiver(rings=rings)
        with Told(ynl) as told:
            for number in range(32):
                wire.send(payload(number, 100), tos=number % 4)
            # From here that isn't done without the stack.
            wire.send(b"wrong", bad="udp")
            wire.send(b"wrong", bad="ip")
            wire.send(b"unsummed", bad="none")
            wire.send(b"", SOURCES[1])
            wire.send(b"other's", mac=bytes.fromhex("020000000077"))
            for source in ("127.0.0.1", "224.0.0.1", NEAR, "0.0.0.0", "255.255.255.255"):
                wire.send(b"martian", source)
            wire.send(b"nobody's", to="192.0.2.77")
            wire.send(b"last")
            got.append(receiver.take(35))
        counts.append(told.snmp)
        receiver.close()
    kopi.check("the same datagrams come", got[0] == got[1] and len(got[0]) == 35, [len(each) for each in got])
    kopi.check("the namespace counts the same", counts[0] == counts[1], counts)


def hooks_are_asked(ynl, wire):
    """What netfilter's input says holds."""
    receiver, other = Receiver(), Receiver(port=PORT + 1)
    receiver.sock.setsockopt(socket.SOL_SOCKET, SO_RCVMARK, 1)
    with namespace("host"):
        rules("table ip t {", "counter seen { }", "chain pre {", "type filter hook prerouting priority -300",
              "ip saddr 192.0.2.101 meta mark set 77", "ip saddr 192.0.2.102 udp dport set 7001 accept", "}",
              "chain in {", "type filter hook input priority 0", "udp dport 7000-7001 counter name seen",
              "ip saddr 192.0.2.103 drop", "ip saddr 192.0.2.104 reject", "ct state invalid drop", "}", "}")
    with Told(ynl) as told:
        for number, source in enumerate(SOURCES * 4):
            wire.send(payload(number, 64), source)
        got = receiver.take(len(SOURCES) * 4 - 12)
        moved = other.take(4)
    expected = [(payload(number, 64), source) for number, source in enumerate(SOURCES * 4)]
    kopi.check("dropped, rejected and redirected ones don't come, all others do",
               [each[:2] for each in got] == [each for each in expected if each[1] not in SOURCES[2:5]], len(got))
    kopi.check("redirected ones come where they are sent",
               [each[:2] for each in moved] == [each for each in expected if each[1] == SOURCES[2]], moved)
    marks = {(socket.inet_ntoa(meta[0][:4]), meta[11]) for meta in receiver.metas}
    kopi.check("marks are seen", {source for source, mark in marks if mark == 77} == {SOURCES[1]}, marks)
    with namespace("host"):
        seen = counted("ip t", "seen")
    kopi.check("the hook has seen each", seen == len(SOURCES) * 4, seen)
    kopi.check("without the rest of the stack", told.directly == len(got) + len(moved), vars(told))
    with namespace("host"):
        run_nft("flush ruleset\n")
        rules("table ip t {", "chain in {", "type filter hook input priority 0", "udp dport 7000 queue num 3", "}", "}")
        server = nfqueue.serve(3, lambda count: count % 2 == 0)
    for number in range(32):
        wire.send(payload(number, 64), SOURCES[number % 16])
    got = receiver.take(16)
    kopi.check("a program that decides: what it lets pass comes, in order",
               [each.data for each in got] == [payload(number, 64) for number in range(0, 32, 2)], len(got))
    with namespace("host"):
        nfqueue.settle()
        run_nft("flush ruleset\n")
    server.stop()
    wire.send(b"afterwards")
    kopi.check("no hook any more", [each.data for each in receiver.take(1)] == [b"afterwards"])
    receiver.close()
    other.close()


def queued_ones_have_owners(_ynl, wire):
    """Behind a program that has decided in prerouting, input knows whose a connected flow's datagrams are."""
    connected = Receiver(port=PORT + 2, peer=(SOURCES[0], FROM))
    with namespace("host"):
        rules("table ip t {", "counter whose { }", "chain pre {", "type filter hook prerouting priority 0",
              "udp dport 7002 queue num 3", "}", "chain in {", "type filter hook input priority 0",
              "udp dport 7002 meta skuid 0 counter name whose", "}", "}")
        server = nfqueue.serve(3, lambda count: True)
    for number in range(8):
        wire.send(payload(number, 64), port=PORT + 2)
    got = connected.take(8)
    with namespace("host"):
        seen = counted("ip t", "whose")
        run_nft("flush ruleset\n")
    server.stop()
    connected.close()
    kopi.check("all come, and the hook has known each", len(got) == seen == 8, (len(got), seen))


def filters_are_asked(ynl, wire):
    """A socket's own filter drops and truncates; what it drops is counted."""
    receiver = Receiver()
    # To the length of the word at the payload's start; which is 0 for every other one.
    code = struct.pack("HBBI" * 2, 0x20, 0, 0, 8, 0x16, 0, 0, 0)
    buffer = ctypes.create_string_buffer(code)
    with Told(ynl) as told:
        receiver.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER,
                                 struct.pack("HxxxxxxP", 2, ctypes.addressof(buffer)))
        for number in range(32):
            wire.send(struct.pack(">I", number % 2 * 20) + b"x" * 60, SOURCES[number % 16])
        got = receiver.take(16)
        receiver.sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        wire.send(b"whole again")
        last = receiver.take(1)
    kopi.check("a filter truncates, and drops", {len(each.data) for each in got} == {12} and len(got) == 16, got)
    kopi.check("taken away, it doesn't any more", [each.data for each in last] == [b"whole again"], last)
    kopi.check("dropped ones are counted as a socket's are", told.snmp["Udp:InErrors"] == 16, told.snmp)
    kopi.check("without the stack", told.directly == 33, vars(told))
    receiver.close()


def frames_stay_the_programs(_ynl, wire):
    """What a filter drops takes no frame that the program has."""
    with namespace("host"):
        flow = kopi.flow()
    flow.bind((NEAR, PORT))
    channel = kopi.Channel(flow, frames=32, fill=32, rx=32, frame_size=512)
    for number in range(32):
        channel.fill.push(channel.frame(number))
    taken = []

    def takes(count):
        kopi.wait_until(lambda: (taken.extend(iter(channel.rx.pop, None)), len(taken) >= count)[1], 20)
    wire.send(b"long" * 300)
    takes(3)
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x6, 0, 0, 0))
    flow.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(code)))
    before = snmp()["Udp:InErrors"]
    for _ in range(4):
        wire.send(b"dropped")
    kopi.wait_until(lambda: snmp()["Udp:InErrors"] >= before + 4, 20)
    flow.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
    for number in range(8):
        wire.send(payload(number, 100))
    takes(11)
    starts = [entry[0] // 512 for entry in taken]
    kopi.check("each datagram has frames of its own", len(set(starts)) == len(starts) == 11, starts)
    data = b"".join(channel.region[offset:offset + length] for offset, length, *_ in taken[:3])
    kopi.check("those that the program has are left alone", data == b"long" * 300, data[:40])
    flow.close()
    channel.region.close()


def observers_see_all(ynl, wire):
    """Whatever else looks at packets has the stack send them, and sees them all."""
    def packet_socket(protocol):
        with namespace("host"):
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
        tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        return tap

    def raw_socket():
        with namespace("host"):
            return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)

    @contextlib.contextmanager
    def said(begin, end):
        sh(f"ip netns exec host {begin}")
        yield None
        sh(f"ip netns exec host {end}")
    receiver = Receiver()
    clsact = "tc qdisc %s dev eth0 clsact"
    queue = "/sys/class/net/eth0/queues/rx-0/rps_cpus"
    cases = {"a tap": ("tap", lambda: packet_socket(ETH_P_ALL)), "a tap for IP": ("tap", lambda: packet_socket(0x800)),
             "a raw socket": ("raw", raw_socket),
             "tc": ("tc", lambda: said(f"sh -c '{clsact % 'add'} && tc filter add dev eth0 ingress matchall action ok'",
                                       clsact % "del")),
             "an ingress hook": ("hook", lambda: said(
                 "nft 'add table netdev t; add chain netdev t c { type filter hook ingress device eth0 priority 0; }'",
                 "nft delete table netdev t")),
             "RPS": ("rps", lambda: said(f"sh -c 'echo 2 >{queue}'", f"sh -c 'echo 0 >{queue}'")),
             "IPsec": ("ipsec", lambda: said("ip xfrm policy add src 203.0.113.9 dst 203.0.113.8 dir in action block",
                                             "ip xfrm policy deleteall"))}
    # The debug kernel has none.
    if "rps_cpus" not in sh("ip netns exec host ls /sys/class/net/eth0/queues/rx-0"):
        del cases["RPS"]
    for what, (reason, begin) in cases.items():
        with Told(ynl) as told, begin() as observer:
            kopi.check(f"{what}: it is said why", link(ynl)["receive-path"] == reason, link(ynl))
            for number in range(16):
                wire.send(payload(number, 80), SOURCES[number])
            got = receiver.take(16)
            kopi.check(f"{what}: all come, in order", [each.data for each in got] ==
                       [payload(number, 80) for number in range(16)], len(got))
            if observer:
                observer.setblocking(False)
                seen = 0
                with contextlib.suppress(BlockingIOError):
                    while True:
                        data = observer.recv(2000)
                        seen += any(payload(number, 80) in data for number in range(16))
                kopi.check(f"{what} sees all", seen == 16, seen)
        kopi.check(f"{what}: by the stack", told.directly == 0, vars(told))
        with Told(ynl) as told:
            wire.send(b"again")
            got = receiver.take(1)
        kopi.check(f"{what} ends: without the stack", len(got) == 1 and told.directly == 1, (got, vars(told)))
    receiver.close()


def routes_are_kept(ynl, wire):
    """What the kernel's routes say of a source holds at once, though it is remembered."""
    receiver = Receiver()
    away = "198.18.0.1"

    def comes(what, expected, source=away):
        wire.send(what.encode(), source)
        wire.send(b"mark")
        got = [each.data for each in receiver.take(1 + expected)]
        kopi.check(what, got == [what.encode()] * expected + [b"mark"], got)
    host("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0")
    comes("any source, without rp_filter", True)
    comes("and once more", True)
    host("sysctl -qw net.ipv4.conf.eth0.rp_filter=1")
    comes("rp_filter: none without a route back", False)
    host("ip route add 198.18.0.0/15 dev eth0")
    comes("with a route back", True)
    comes("with a route back, remembered", True)
    host("ip route change blackhole 198.18.0.0/15")
    comes("the route is a black hole", False)
    host("ip route del blackhole 198.18.0.0/15")
    host("sysctl -qw net.ipv4.conf.eth0.rp_filter=0")
    comes("no rp_filter any more", True)
    # Before the table of local addresses, which is the first one otherwise.
    host("ip rule add lookup local pref 100")
    host("ip rule del pref 0")
    host("ip rule add from 198.18.0.0/15 blackhole pref 1")
    comes("a rule of routing", False)
    host("ip rule del pref 1")
    host("ip rule add ipproto udp sport 7001 blackhole pref 1")
    wire.send(b"lost", sender=FROM)
    wire.send(b"mark", sender=FROM + 1)
    got = [each.data for each in receiver.take(1)]
    kopi.check("a rule by port", got == [b"mark"], got)
    host("ip rule del pref 1")
    host("ip rule add lookup local pref 0")
    host("ip rule del pref 100")
    comes("no rule any more", True)
    host("ip addr add 192.0.2.60/24 dev eth0")
    moving = Receiver(address="0.0.0.0", port=PORT + 5)
    wire.send(b"there", to="192.0.2.60", port=PORT + 5)
    kopi.check("another address", [each.data for each in moving.take(1)] == [b"there"])
    host("ip addr del 192.0.2.60/24 dev eth0")
    wire.send(b"gone", to="192.0.2.60", port=PORT + 5)
    wire.send(b"mark", port=PORT + 5)
    got = [each.data for each in moving.take(1)]
    kopi.check("that is gone", got == [b"mark"], got)
    host("ip addr add 198.18.0.1/32 dev lo")
    comes("a source that has become this host's", False)
    host("ip addr del 198.18.0.1/32 dev lo")
    comes("and isn't any more", True)
    receiver.close()
    moving.close()


def sockets_are_chosen(_ynl, wire):
    """The socket that gets a datagram is the one that UDP chooses."""
    receiver = Receiver(address="0.0.0.0", reuse=True)
    wire.send(b"first")
    receiver.take(1)
    connected = Receiver(reuse=True, peer=(SOURCES[3], FROM))
    plain = Receiver(reuse=True, rings=False, peer=(SOURCES[4], FROM))
    for number in range(64):
        wire.send(payload(number, 50), SOURCES[number % 16])
    kopi.check("a connected flow has its peer's", {each.peer for each in connected.take(4)} == {SOURCES[3]})
    kopi.check("a connected socket has its peer's", {each.peer for each in plain.take(4)} == {SOURCES[4]})
    got = receiver.take(56)
    kopi.check("the other flow has all others, in order", [each.data for each in got] ==
               [payload(number, 50) for number in range(64) if number % 16 not in (3, 4)], len(got))
    second = Receiver(address="0.0.0.0", reuse=True)
    connected.close()
    plain.close()
    for number in range(64):
        wire.send(payload(number, 50), SOURCES[number % 16], sender=3000 + number)
    both = [*itertools.chain(*(each.take(64, 2) for each in (receiver, second)))]
    kopi.check("a group shares them", len(both) == 64 and len({each.port for each in both}) == 64, len(both))
    # By the first byte of the payload, which is behind UDP's header for the program.
    code = struct.pack("HBBI" * 2, 0x30, 0, 0, 0, 0x16, 0, 0, 0)
    buffer = ctypes.create_string_buffer(code)
    receiver.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF,
                             struct.pack("HxxxxxxP", 2, ctypes.addressof(buffer)))
    for number in range(64):
        wire.send(bytes([number % 2]) + payload(number, 50))
    both = [[each.data[0] for each in flow.take(32)] for flow in (receiver, second)]
    kopi.check("a group's program chooses for each", sorted(both) == [[0] * 32, [1] * 32], both)
    second.close()
    receiver.close()
    flows = [Receiver(port=PORT + 10 + number) for number in range(16)]
    for number in range(256):
        wire.send(payload(number, 50), SOURCES[number % 7], port=PORT + 10 + number % 16)
    wrong = [number for number, flow in enumerate(flows)
             if [each.data for each in flow.take(16)] != [payload(at, 50) for at in range(number, 256, 16)]]
    kopi.check("many flows: each has its own, in order", not wrong, wrong)
    for flow in flows:
        flow.close()


def rings_are_full(ynl, wire):
    """What finds no frame is dropped and counted, as by the stack; rules of KOPI's hold."""
    receiver = Receiver(frames=16)
    with Told(ynl) as told:
        for number in range(32):
            wire.send(payload(number, 64), SOURCES[number % 16])
        kopi.wait_until(lambda: receiver.channel.stats()["rx_drop_no_frame"] >= 16)
    stats = receiver.channel.stats()
    kopi.check("no frames: the rest is dropped", stats["rx_packets"] == stats["rx_drop_no_frame"] == 16, stats)
    kopi.check("no frames: the namespace counts it", told.snmp["Udp:RcvbufErrors"] == 16, told.snmp)
    got = receiver.take(16)
    kopi.check("those that had one are right", [each.data for each in got] ==
               [payload(number, 64) for number in range(16)], len(got))
    receiver.close()


attach()
with namespace("host"):
    YNL = family()
WIRE = Wire()
for SOURCE in SOURCES:
    host(f"ip neigh replace {SOURCE} lladdr 02:00:00:00:00:09 dev eth0 nud permanent")
for case in (all_are_whole, counts_are_a_sockets, hooks_are_asked, queued_ones_have_owners, filters_are_asked,
             frames_stay_the_programs, observers_see_all, routes_are_kept, sockets_are_chosen, rings_are_full):
    case(YNL, WIRE)
kopictl("detach", "eth0")
kopi.finish()
