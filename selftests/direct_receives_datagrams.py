#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Datagrams come from an attached device's frames without the stack, as a UDP socket would get them: with each
hook and filter asked, by the kernel's routes and choice of the socket, in order, and counted."""

import contextlib
import ctypes
import itertools
import random
import socket
import struct

import kopi
import nfqueue
from attached import counted, host, kopictl, link, rules
from equivalence import await_address, namespace, payload, run_nft, sh
from linux import (ETH_P_ALL, SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF, SO_DETACH_FILTER, SO_RCVBUFFORCE,
                   SO_RCVMARK, SO_TIMESTAMPNS)
from wire import FROM, PORT, V4, V6, Receiver, Told, begin, counters


def all_are_whole(ynl, wire, ip):
    """Data, peers, metadata and order."""
    receiver = Receiver(ip)
    sizes = [*range(8, 1501 - ip.headers, 61), 8, 9, 1499 - ip.headers, 1500 - ip.headers]
    chosen = random.Random(1)
    wanted = [(payload(number, size), chosen.choice(ip.others), 2000 + number) for number, size in enumerate(sizes * 4)]
    with Told(ynl, ip) as told:
        for data, source, port in wanted:
            wire.send(ip, data, source, sender=port, tos=0x2e)
        got = receiver.take(len(wanted))
    kopi.check("all arrive, in order of all senders", got == wanted, (len(got), len(wanted)))
    kopi.check("without the stack", told.directly == told.received == len(wanted), told)
    meta = receiver.metas[0]
    kopi.check("their metadata: local end, family, TOS, TTL, device",
               (ip.pack(ip.near), socket.ntohs(meta[3]), meta[4], meta[8], meta[9]) ==
               (meta[1][:len(ip.pack(ip.near))], PORT, ip.family, 0x2e, 64), meta)
    shown = next(each for each in ynl.dump("flow-get", {}) if each["local-port"] == PORT)
    kopi.check("the flow has counted them", shown["stats"]["rx-packets"] == len(wanted), shown)
    wire.send(ip, b"padded", padding=b"\xff" * 40)
    kopi.check("padding isn't data", [each.data for each in receiver.take(1)] == [b"padded"])
    receiver.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    wire.send(ip, b"stamped")
    receiver.take(1)
    kopi.check("a time stamp", receiver.metas[-1][12] > 1 << 60, receiver.metas[-1])
    receiver.close()


def counts_are_a_sockets(ynl, wire, ip):
    """The namespace's counters are those of a UDP socket; what is wrong is dropped in the same way."""
    counts, got = [], []
    for rings in (False, True):
        receiver = Receiver(ip, rings=rings)
        with Told(ynl, ip) as told:
            for number in range(32):
                wire.send(ip, payload(number, 100), tos=number % 4)
            # From here that isn't done without the stack.
            wire.send(ip, b"wrong", bad="udp")
            wire.send(ip, b"wrong", bad="ip")
            wire.send(ip, b"unsummed", bad="none")
            wire.send(ip, b"", ip.others[1])
            wire.send(ip, b"other's", mac=bytes.fromhex("020000000077"))
            for source in ip.martians:
                wire.send(ip, b"martian", source)
            wire.send(ip, b"nobody's", to=ip.others[9])
            wire.send(ip, b"last")
            got.append(receiver.take(35))
        counts.append(told.snmp)
        receiver.close()
    kopi.check("the same datagrams come", got[0] == got[1] and len(got[0]) == 35, [len(each) for each in got])
    kopi.check("the namespace counts the same", counts[0] == counts[1], counts)


def hooks_are_asked(ynl, wire, ip):
    """What netfilter's input says holds."""
    receiver, other = Receiver(ip), Receiver(ip, port=PORT + 1)
    receiver.sock.setsockopt(socket.SOL_SOCKET, SO_RCVMARK, 1)
    with namespace("host"):
        rules(f"table {ip.table} t {{", "counter seen { }", "chain pre {", "type filter hook prerouting priority -300",
              f"{ip.table} saddr {ip.others[1]} meta mark set 77",
              f"{ip.table} saddr {ip.others[2]} udp dport set 7001 accept", "}",
              "chain in {", "type filter hook input priority 0", "udp dport 7000-7001 counter name seen",
              f"{ip.table} saddr {ip.others[3]} drop", f"{ip.table} saddr {ip.others[4]} reject", "ct state invalid drop",
              "}", "}")
    with Told(ynl, ip) as told:
        for number, source in enumerate(ip.others * 4):
            wire.send(ip, payload(number, 64), source)
        got = receiver.take(len(ip.others) * 4 - 12)
        moved = other.take(4)
    expected = [(payload(number, 64), source) for number, source in enumerate(ip.others * 4)]
    kopi.check("dropped, rejected and redirected ones don't come, all others do",
               [each[:2] for each in got] == [each for each in expected if each[1] not in ip.others[2:5]], len(got))
    kopi.check("redirected ones come where they are sent",
               [each[:2] for each in moved] == [each for each in expected if each[1] == ip.others[2]], moved)
    marks = {(receiver.peer_of(meta), meta[11]) for meta in receiver.metas}
    kopi.check("marks are seen", {source for source, mark in marks if mark == 77} == {ip.others[1]}, marks)
    with namespace("host"):
        seen = counted(f"{ip.table} t", "seen")
    kopi.check("the hook has seen each", seen == len(ip.others) * 4, seen)
    kopi.check("without the rest of the stack", told.directly == len(got) + len(moved), told)
    with namespace("host"):
        run_nft("flush ruleset\n")
        rules(f"table {ip.table} t {{", "chain in {", "type filter hook input priority 0", "udp dport 7000 queue num 3", "}", "}")
        server = nfqueue.serve(3, lambda count: count % 2 == 0)
    for number in range(32):
        wire.send(ip, payload(number, 64), ip.others[number % 16])
    got = receiver.take(16)
    kopi.check("a program that decides: what it lets pass comes, in order",
               [each.data for each in got] == [payload(number, 64) for number in range(0, 32, 2)], len(got))
    with namespace("host"):
        nfqueue.settle()
        run_nft("flush ruleset\n")
    server.stop()
    wire.send(ip, b"afterwards")
    kopi.check("no hook any more", [each.data for each in receiver.take(1)] == [b"afterwards"])
    receiver.close()
    other.close()


def queued_ones_have_owners(_ynl, wire, ip):
    """Behind a program that has decided in prerouting, input knows whose a connected flow's datagrams are."""
    connected = Receiver(ip, port=PORT + 2, peer=(ip.others[0], FROM))
    with namespace("host"):
        rules(f"table {ip.table} t {{", "counter whose { }", "chain pre {", "type filter hook prerouting priority 0",
              "udp dport 7002 queue num 3", "}", "chain in {", "type filter hook input priority 0",
              "udp dport 7002 meta skuid 0 counter name whose", "}", "}")
        server = nfqueue.serve(3, lambda count: True)
    for number in range(8):
        wire.send(ip, payload(number, 64), port=PORT + 2)
    got = connected.take(8)
    with namespace("host"):
        seen = counted(f"{ip.table} t", "whose")
        run_nft("flush ruleset\n")
    server.stop()
    connected.close()
    kopi.check("all come, and the hook has known each", len(got) == seen == 8, (len(got), seen))


def filters_are_asked(ynl, wire, ip):
    """A socket's own filter drops and truncates; what it drops is counted."""
    receiver = Receiver(ip)
    # To the length of the word at the payload's start; which is 0 for every other one.
    code = struct.pack("HBBI" * 2, 0x20, 0, 0, 8, 0x16, 0, 0, 0)
    buffer = ctypes.create_string_buffer(code)
    with Told(ynl, ip) as told:
        receiver.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER,
                                 struct.pack("HxxxxxxP", 2, ctypes.addressof(buffer)))
        for number in range(32):
            wire.send(ip, struct.pack(">I", number % 2 * 20) + b"x" * 60, ip.others[number % 16])
        got = receiver.take(16)
        receiver.sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        wire.send(ip, b"whole again")
        last = receiver.take(1)
    kopi.check("a filter truncates, and drops", {len(each.data) for each in got} == {12} and len(got) == 16, got)
    kopi.check("taken away, it doesn't any more", [each.data for each in last] == [b"whole again"], last)
    kopi.check("dropped ones are counted as a socket's are", told.snmp["Udp:InErrors"] == 16, told.snmp)
    kopi.check("without the stack", told.directly == 33, told)
    receiver.close()


def frames_stay_the_programs(_ynl, wire, ip):
    """What a filter drops takes no frame that the program has."""
    with namespace("host"):
        flow = kopi.flow(ip.protocol)
    flow.bind((ip.near, PORT))
    channel = kopi.Channel(flow, frames=32, fill=32, rx=32, frame_size=512)
    for number in range(32):
        channel.fill.push(channel.frame(number))
    taken = []

    def takes(count):
        kopi.wait_until(lambda: (taken.extend(iter(channel.rx.pop, None)), len(taken) >= count)[1], 20)
    wire.send(ip, b"long" * 300)
    takes(3)
    code = ctypes.create_string_buffer(struct.pack("HBBI", 0x6, 0, 0, 0))
    flow.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(code)))
    before = counters(ip)["Udp:InErrors"]
    for _ in range(4):
        wire.send(ip, b"dropped")
    kopi.wait_until(lambda: counters(ip)["Udp:InErrors"] >= before + 4, 20)
    flow.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
    for number in range(8):
        wire.send(ip, payload(number, 100))
    takes(11)
    starts = [entry[0] // 512 for entry in taken]
    kopi.check("each datagram has frames of its own", len(set(starts)) == len(starts) == 11, starts)
    data = b"".join(channel.region[offset:offset + length] for offset, length, *_ in taken[:3])
    kopi.check("those that the program has are left alone", data == b"long" * 300, data[:40])
    flow.close()
    channel.region.close()


def observers_see_all(ynl, wire, ip):
    """Whatever else looks at packets has the stack send them, and sees them all."""
    def packet_socket(protocol):
        with namespace("host"):
            tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
        tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        return tap

    def raw_socket():
        with namespace("host"):
            return socket.socket(ip.family, socket.SOCK_RAW, socket.IPPROTO_UDP)

    @contextlib.contextmanager
    def said(begin, end):
        sh(f"ip netns exec host {begin}")
        yield None
        sh(f"ip netns exec host {end}")
    receiver = Receiver(ip)
    clsact = "tc qdisc %s dev eth0 clsact"
    queue = "/sys/class/net/eth0/queues/rx-0/rps_cpus"
    cases = {"a tap": ("tap", lambda: packet_socket(ETH_P_ALL)), "a tap for IP": ("tap", lambda: packet_socket(0x800 if ip is V4 else 0x86dd)),
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
        with Told(ynl, ip) as told, begin() as observer:
            kopi.check(f"{what}: it is said why", link(ynl)["rx-path"] == reason, link(ynl))
            for number in range(16):
                wire.send(ip, payload(number, 80), ip.others[number])
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
        kopi.check(f"{what}: by the stack", told.directly == 0, told)
        with Told(ynl, ip) as told:
            wire.send(ip, b"again")
            got = receiver.take(1)
        kopi.check(f"{what} ends: without the stack", len(got) == 1 and told.directly == 1, (got, told))
    receiver.close()


def both_versions_come(ynl, wire):
    """An IPv6 flow that has IPv4's addresses, too, gets both in turn, as a UDP socket does."""
    got = []
    for rings in (False, True):
        receiver = Receiver(V6, address="::", rings=rings)
        with Told(ynl, V6) as told:
            for number in range(64):
                ip = (V4, V6, V6)[number % 3]
                wire.send(ip, payload(number, 90), ip.others[number % 16], sender=2000 + number % 5)
            got.append(receiver.take(64))
        receiver.close()
    kopi.check("the same datagrams, in order, with the same peers", got[0] == got[1] and len(got[1]) == 64,
               [len(each) for each in got])
    kopi.check("of both versions without the stack", told.directly == 64, told)


def link_local_ones_come(ynl, wire):
    """Datagrams between addresses of the link have their device."""
    host("ip addr replace fe80::70/64 dev eth0 nodad")
    own = "fe80::70"
    with namespace("host"):
        await_address(own)
    receiver = Receiver(V6, address="::")
    with Told(ynl, V6) as told:
        for number in range(8):
            wire.send(V6, payload(number, 90), source="fe80::77", to=own)
        got = receiver.take(8)
    kopi.check("they come without the stack", [each.data for each in got] == [payload(number, 90) for number in range(8)]
               and told.directly == 8, (got, told))
    with namespace("host"):
        index = socket.if_nametoindex("eth0")
    kopi.check("and say by which device", {meta[6] for meta in receiver.metas} == {index}, receiver.metas[:1])
    host("ip addr del fe80::70/64 dev eth0")
    receiver.close()


def sockets_are_chosen(_ynl, wire, ip):
    """The socket that gets a datagram is the one that UDP chooses."""
    receiver = Receiver(ip, address=ip.any, reuse=True)
    wire.send(ip, b"first")
    receiver.take(1)
    connected = Receiver(ip, reuse=True, peer=(ip.others[3], FROM))
    plain = Receiver(ip, reuse=True, rings=False, peer=(ip.others[4], FROM))
    for number in range(64):
        wire.send(ip, payload(number, 50), ip.others[number % 16])
    kopi.check("a connected flow has its peer's", {each.peer for each in connected.take(4)} == {ip.others[3]})
    kopi.check("a connected socket has its peer's", {each.peer for each in plain.take(4)} == {ip.others[4]})
    got = receiver.take(56)
    kopi.check("the other flow has all others, in order", [each.data for each in got] ==
               [payload(number, 50) for number in range(64) if number % 16 not in (3, 4)], len(got))
    second = Receiver(ip, address=ip.any, reuse=True)
    connected.close()
    plain.close()
    for number in range(64):
        wire.send(ip, payload(number, 50), ip.others[number % 16], sender=3000 + number)
    both = [*itertools.chain(*(each.take(64, 2) for each in (receiver, second)))]
    kopi.check("a group shares them", len(both) == 64 and len({each.port for each in both}) == 64, len(both))
    # By the first byte of the payload, which is behind UDP's header for the program.
    code = struct.pack("HBBI" * 2, 0x30, 0, 0, 0, 0x16, 0, 0, 0)
    buffer = ctypes.create_string_buffer(code)
    receiver.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF,
                             struct.pack("HxxxxxxP", 2, ctypes.addressof(buffer)))
    for number in range(64):
        wire.send(ip, bytes([number % 2]) + payload(number, 50))
    both = [[each.data[0] for each in flow.take(32)] for flow in (receiver, second)]
    kopi.check("a group's program chooses for each", sorted(both) == [[0] * 32, [1] * 32], both)
    # At random: the third word from the end of what there is besides packets is a random number.
    code = struct.pack("HBBI" * 3, 0x20, 0, 0, 0xfffff038, 0x54, 0, 0, 1, 0x16, 0, 0, 0)
    buffer = ctypes.create_string_buffer(code)
    second.close()
    plain = Receiver(ip, address=ip.any, reuse=True, rings=False)
    receiver.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF,
                             struct.pack("HxxxxxxP", 3, ctypes.addressof(buffer)))
    for number in range(400):
        wire.send(ip, payload(number, 50))
    got = [len(each.take(400, 2)) for each in (receiver, plain)]
    kopi.check("one that chooses at random a flow or a socket is asked once: half for each",
               sum(got) == 400 and 150 < got[0] < 250, got)
    plain.close()
    receiver.close()
    connected = Receiver(ip, peer=(ip.others[3], 0))
    for number in range(64):
        wire.send(ip, payload(number, 50), ip.others[3 + number % 2])
    got = connected.take(33, 2)
    kopi.check("a flow that is connected to port 0 of a host has what that one sends, and nothing else",
               [each.data for each in got] == [payload(number, 50) for number in range(0, 64, 2)], len(got))
    connected.close()
    flows = [Receiver(ip, port=PORT + 10 + number) for number in range(16)]
    for number in range(256):
        wire.send(ip, payload(number, 50), ip.others[number % 7], port=PORT + 10 + number % 16)
    wrong = [number for number, flow in enumerate(flows)
             if [each.data for each in flow.take(16)] != [payload(at, 50) for at in range(number, 256, 16)]]
    kopi.check("many flows: each has its own, in order", not wrong, wrong)
    for flow in flows:
        flow.close()


def rings_are_full(ynl, wire, ip):
    """What finds no frame is dropped and counted, as by the stack; rules of KOPI's hold."""
    receiver = Receiver(ip, frames=16)
    with Told(ynl, ip) as told:
        for number in range(32):
            wire.send(ip, payload(number, 64), ip.others[number % 16])
        kopi.wait_until(lambda: receiver.channel.stats()["rx_drop_no_frame"] >= 16)
    stats = receiver.channel.stats()
    kopi.check("no frames: the rest is dropped", stats["rx_packets"] == stats["rx_drop_no_frame"] == 16, stats)
    kopi.check("no frames: the namespace counts it", told.snmp["Udp:RcvbufErrors"] == 16, told.snmp)
    got = receiver.take(16)
    kopi.check("those that had one are right", [each.data for each in got] ==
               [payload(number, 64) for number in range(16)], len(got))
    receiver.close()


YNL, WIRE = begin()
for case in (all_are_whole, counts_are_a_sockets, hooks_are_asked, queued_ones_have_owners, filters_are_asked,
             frames_stay_the_programs, observers_see_all, sockets_are_chosen, rings_are_full):
    for version in V4, V6:
        print(f"# {case.__doc__} IPv{version.version}.")
        case(YNL, WIRE, version)
for case in both_versions_come, link_local_ones_come:
    case(YNL, WIRE)
kopictl("detach", "eth0")
kopi.finish()
