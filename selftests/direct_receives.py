#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Datagrams that an attached device receives become GRO packets before they are skbs, whole and in order;
damaged ones are dropped, and forwarded ones keep their IP IDs."""

import itertools
import json
import socket
import struct

import kopi
from attached import attach, host, kopictl, link
from control import family
from equivalence import checksum, namespace, payload, sh, snmp
from linux import ETH_P_ALL, SO_NO_CHECK
from redirected import BATCH, FROM, PORT, Incoming


def data_is_whole(ynl):
    """All lengths, by both versions of IP, merged and not."""
    for version, merged in itertools.product((4, 6), (False, True)):
        traffic = Incoming(version, merged=merged)
        what = f"IPv{version}{', merged' if merged else ''}"
        largest = 1472 if version == 4 else 1452
        for size in (1, 2, 63, 64, 65, 128, 129, 511, 1400, largest):
            before = link(ynl)
            traffic.passes(f"{what}, {size} bytes: all arrive, in order", 3 * BATCH, size)
            after = link(ynl)
            received, gro = (after[name] - before[name] for name in ("received", "gro-packets"))
            kopi.check(f"{what}, {size} bytes: redirected, as GRO packets",
                       received == 3 * BATCH and 0 < gro <= 3 * BATCH // 2, after)
        near, far = (socket.inet_pton(traffic.source.family, each) for each in (traffic.near, traffic.far))
        kopi.check(f"{what}: metadata say whence", traffic.ends == {(far, FROM, near)}, traffic.ends)
        kopi.check(f"{what}: all is accounted for", not traffic.channel.unaccounted(), traffic.channel.unaccounted())
        traffic.close()


def lengths_mix(_ynl):
    """A GRO packet ends where another length begins, or other headers."""
    traffic = Incoming()
    sizes = [64] * 5 + [10] + [64] * 2 + [200] * 3 + [199, 200, 1] + [1400] * 30 + [7] * 70
    for number, size in enumerate(sizes):
        if number % 7 == 0:
            traffic.source.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, number // 7 << 2 & 0xFC)
        if number % 11 == 0:
            traffic.source.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 60 + number % 3)
        traffic.source.send(payload(number, size))
    received = []
    kopi.wait_until(lambda: (received.extend(traffic.receive()), len(received) >= len(sizes))[1])
    expected = [payload(number, size) for number, size in enumerate(sizes)]
    kopi.check("lengths and headers mix: all arrive, in order", received == expected,
               [len(each) for each in received])
    # What can't be part of a GRO packet is neither lost nor damaged.
    odd = [b"", payload(1, 3000), payload(2, 60000), b""]
    for data in odd:
        traffic.source.send(data)
    traffic.source.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
    for number in range(3, 20):
        odd.append(payload(number, 100))
        traffic.source.send(odd[-1])
    received = []
    kopi.wait_until(lambda: (received.extend(traffic.receive()), len(received) >= len(odd))[1])
    kopi.check("without payload or checksum, in fragments: all arrive", sorted(received) == sorted(odd),
               [len(each) for each in received])
    traffic.close()


def damage_is_seen(ynl):
    """A wrong checksum is counted, and nothing of it delivered; nor is anything that is cut off."""
    traffic = Incoming()
    mac = {name: json.loads(sh(f"ip -n {name} -j link show {nic}"))[0]["address"]
           for name, nic in (("host", "eth0"), ("peer", "eth1"))}
    ethernet = b"".join(bytes.fromhex(mac[name].replace(":", "")) for name in ("host", "peer")) + b"\x08\x00"

    def frame(data, damage=None):
        udp = struct.pack(">HHHH", FROM, PORT, 8 + len(data), 0) + data
        address = socket.inet_aton(traffic.far) + socket.inet_aton(traffic.near)
        summed = checksum(address + struct.pack(">HH", 17, len(udp)) + udp)
        udp = udp[:6] + struct.pack(">H", summed) + udp[8:]
        ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0x4000, 64, 17, 0) + address
        ip = ip[:10] + struct.pack(">H", checksum(ip)) + ip[12:]
        whole = bytearray(ethernet + ip + udp)
        if damage is not None:
            whole[damage] ^= 4
        return bytes(whole)

    with namespace("peer"):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    raw.bind(("eth1", 0))
    with namespace("host"):
        before = snmp()
    frames = [frame(payload(number, 90)) for number in range(BATCH)]
    # Its payload, its UDP length, its IP checksum, and one that ends too soon.
    frames[5:5] = [frame(payload(99, 90), at) for at in (60, 39, 24)] + [frame(payload(99, 90))[:80]]
    for each in frames:
        raw.send(each)
    received = []
    kopi.wait_until(lambda: (received.extend(traffic.receive()), len(received) >= BATCH)[1])
    kopi.check("what is right among damaged ones arrives, in order",
               received == [payload(number, 90) for number in range(BATCH)], [each[:4] for each in received])
    with namespace("host"):
        after = snmp()
    wrong = after["UdpInCsumErrors"] - before["UdpInCsumErrors"]
    kopi.check("a wrong checksum is counted", wrong == 1, after)
    raw.close()
    traffic.close()


def numbers_stay(ynl):
    """What is forwarded leaves with the numbers of IP that it came with."""
    host("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0")
    host("ip link add out0 type dummy; nsenter --net=/run/netns/host ip addr add 203.0.113.1/24 dev out0")
    host("ip link set out0 up; nsenter --net=/run/netns/host ip neigh add 203.0.113.2 lladdr 02:00:00:00:00:09 dev out0")
    host("ethtool -K out0 gso off tx-udp-segmentation off")
    with namespace("host"):
        # Whose port they go to.
        flow = kopi.flow()
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    flow.bind(("0.0.0.0", PORT))
    channel = kopi.Channel(flow, flags=kopi.OFFLOADS)
    tap.bind(("out0", ETH_P_ALL))
    tap.settimeout(20)
    with namespace("peer"):
        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    raw.bind(("eth1", 0))
    ends = [bytes.fromhex(json.loads(sh(f"ip -n {space} -j link show {nic}"))[0]["address"].replace(":", ""))
            for space, nic in (("host", "eth0"), ("peer", "eth1"))]

    def forward(numbers, dont_fragment):
        """Sends datagrams with these; gives those that leave."""
        for frame in [forwarded(ends, number, dont_fragment) for number in numbers]:
            raw.send(frame)
        seen = []
        while len(seen) < len(numbers):
            try:
                frame = tap.recv(70000)
            except TimeoutError:
                break
            if frame[12:14] == b"\x08\0" and frame[23] == 17:
                seen.append(int.from_bytes(frame[18:20], "big"))
        return seen

    shapes = {"at random": [number * 7919 + 13 & 0xffff for number in range(BATCH)], "the same": [9] * BATCH,
              "downwards": list(range(BATCH, 0, -1)), "by two": list(range(0, 2 * BATCH, 2))}
    for shape, numbers in shapes.items():
        for _ in range(4):
            seen = forward(numbers, False)
            if seen != numbers:
                break
        kopi.check(f"forwarded, numbers {shape}: as they came", seen == numbers, seen)
    merged, numbers = link(ynl)["gro-packets"], [number & 0xffff for number in range(0xfff0, 0xfff0 + BATCH)]
    kopi.check("forwarded, numbers that go on: merged, and as they came", kopi.wait_until(
        lambda: forward(numbers, True) != numbers or link(ynl)["gro-packets"] > merged)
               and forward(numbers, True) == numbers, link(ynl))
    for sock in flow, tap, raw:
        sock.close()
    channel.region.close()
    host("ip link del out0")
    host("sysctl -qw net.ipv4.ip_forward=0")


def forwarded(ends, number, dont_fragment):
    """A frame from the peer, for the host to forward, with such a number of IP."""
    addresses = socket.inet_aton("192.0.2.2") + socket.inet_aton("203.0.113.2")
    data = payload(number, 200)
    udp = struct.pack(">HHHH", 5555, PORT, 8 + len(data), 0)
    total = checksum(addresses + struct.pack(">HH", 17, 8 + len(data)) + udp + data)
    udp = udp[:6] + struct.pack(">H", total or 0xffff) + data
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), number, dont_fragment << 14, 64, 17, 0) + addresses
    return b"".join(ends) + b"\x08\0" + head[:10] + struct.pack(">H", checksum(head)) + head[12:] + udp


attach()
with namespace("host"):
    YNL = family()
for case in (data_is_whole, lengths_mix, damage_is_seen, numbers_stay):
    case(YNL)
YNL.sock.close()
kopictl("detach", "eth0")
kopi.finish()
