#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What an attached device receives for flows with GRO packets is merged before it is an skb: whole, in order, and
seen by all that look at what comes."""

import contextlib
import errno
import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
import time

import kopi
from attached import (ADDRESSES, attach, change_by, counted, detached, host, kopictl, link,
                      redirection, rules, tapped)
from control import ask, family, refused
from equivalence import checksum, devices, namespace, payload, run_nft, sh, snmp
from linux import ETH_P_ALL, SO_NO_CHECK, SO_RCVBUFFORCE, UDP_SEGMENT

PORT, FROM = 7000, 7001
BATCH = 32
FRAMES = 512


class Traffic:
    """A flow on a channel with GRO packets that receives, and who sends, in the other namespace."""

    def __init__(self, version=4, merged=False):
        self.near, self.far = ADDRESSES[version]
        kind = socket.AF_INET if version == 4 else socket.AF_INET6
        with namespace("peer"):
            self.source = socket.socket(kind, socket.SOCK_DGRAM)
        self.source.bind((self.far, FROM))
        self.source.connect((self.near, PORT))
        with namespace("host"):
            self.flow = kopi.flow() if version == 4 else kopi.flow(kopi.UDP6)
        self.flow.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.flow.bind((self.near, PORT))
        flags = kopi.OFFLOADS | (kopi.GRO_MERGED if merged else 0)
        self.channel = kopi.Channel(self.flow, flags=flags, frame_size=4096, frames=FRAMES, fill=FRAMES, rx=FRAMES)
        for number in range(FRAMES):
            self.channel.fill.push(self.channel.frame(number))
        self.sent = self.taken = 0
        self.ends = set()

    def close(self):
        """Ends it."""
        self.flow.close()
        self.channel.region.close()
        self.source.close()

    def send(self, count, size):
        """Sends so many, as GRO packets that the peer's NIC cuts up."""
        while count:
            now = max(1, min(count, BATCH, 60000 // max(size, 1)))
            data = b"".join(payload(self.sent + number, size) for number in range(now))
            self.source.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size if now > 1 else 0)
            self.source.send(data)
            self.sent += now
            count -= now

    def receive(self):
        """What has come so far, datagram by datagram."""
        parts, size = [], 0
        while (entry := self.channel.rx.pop()) is not None:
            offset, length, _, flags, _ = entry
            start = offset - offset % self.channel.frame_size
            if flags & kopi.META:
                meta = struct.unpack_from(kopi.META_FORMAT, self.channel.region, start)
                size = meta[5]
                width = 16 if meta[4] == socket.AF_INET6 else 4
                self.ends.add((meta[0][:width], struct.unpack(">H", meta[2])[0], meta[1][:width]))
            parts.append(self.channel.region[offset:offset + length])
            self.channel.fill.push(start)
            if not flags & kopi.MORE:
                data, parts = b"".join(parts), []
                for at in range(0, max(len(data), 1), size or max(len(data), 1)):
                    yield data[at:at + size] if size else data

    def passes(self, what, count, size):
        """Sends so many, and checks that all arrive, in order."""
        self.send(count, size)
        wrong = self.wrong(size)
        kopi.check(what, not wrong, wrong)

    def wrong(self, size):
        """Receives all that was sent; gives what is wrong, or an empty string."""
        deadline = time.monotonic() + 20
        while self.taken < self.sent:
            for data in self.receive():
                if data != payload(self.taken, size):
                    number = struct.unpack_from(">I", data)[0] if len(data) >= 4 else "?"
                    return f"datagram {number} of {len(data)} bytes, and not {self.taken} of {size}"
                self.taken += 1
            if time.monotonic() > deadline:
                return f"{self.sent - self.taken} of {self.sent} never came: {self.channel.stats()}"
            time.sleep(0.001)
        return ""


def data_is_whole(ynl):
    """All lengths, by both versions of IP, merged and not."""
    for version, merged in itertools.product((4, 6), (False, True)):
        traffic = Traffic(version, merged=merged)
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
    traffic = Traffic()
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


def others_get_theirs(ynl):
    """Whoever else has the port, or didn't ask for GRO packets, gets datagrams."""
    host("ip addr add 192.0.2.50/24 dev eth0")
    traffic = Traffic()
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
               and after["received"] - before["received"] == BATCH, after)
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
    traffic = Traffic()
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


def damage_is_seen(ynl):
    """A wrong checksum is counted, and nothing of it delivered; nor is anything that is cut off."""
    traffic = Traffic()
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


def ways_change(ynl):
    """The device that takes them, merging and the tags of VLANs come and go under traffic."""
    target = redirection()

    @contextlib.contextmanager
    def changed(begin, end):
        host(begin)
        try:
            yield
        finally:
            host(end)

    traffic = Traffic()
    for what, way, other in (
            ("down", "down", lambda: changed(f"ip link set {target} down", f"ip link set {target} up")),
            ("gro", "direct", lambda: changed("ethtool -K eth0 gro off", "ethtool -K eth0 gro on"))):
        with other():
            kopi.check(f"{what}: it is said", link(ynl)["receive-path"] == way, link(ynl))
            before = link(ynl)
            traffic.passes(f"{what}: all arrive, in order", BATCH, 200)
            kopi.check(f"{what}: no GRO packets are made", link(ynl)["gro-packets"] == before["gro-packets"], link(ynl))
        before = link(ynl)
        traffic.passes(f"{what}, and afterwards: all arrive, in order", BATCH, 200)
        kopi.check(f"{what}, and afterwards: as GRO packets", link(ynl)["gro-packets"] > before["gro-packets"], link(ynl))

        thread = threading.Thread(target=change_by, args=(other,))
        thread.start()
        lost = ""
        while thread.is_alive() and not lost:
            first = traffic.sent
            traffic.send(BATCH, 200)
            received = []
            kopi.wait_until(lambda received=received: (received.extend(traffic.receive()), len(received) >= BATCH)[1])
            # As they are redirected, or not any more, those of one round of NAPI can overtake each other.
            if sorted(received) != [payload(number, 200) for number in range(first, traffic.sent)]:
                lost = f"{len(received)} of {BATCH}: {traffic.channel.stats()}"
        thread.join()
        kopi.check(f"{what}: comes and goes, and nothing is lost or comes twice", not lost, lost)
        traffic.taken = traffic.sent
    with detached():
        traffic.passes("detached: all arrive, in order", BATCH, 200)
    traffic.passes("attached again: all arrive, in order", BATCH, 200)
    kopi.check("attached again: redirected", link(ynl)["received"] == BATCH, link(ynl))
    traffic.close()


def ports_come_and_go(ynl):
    """What is redirected follows the flows' ports."""
    unspecified = struct.pack("=H14x", socket.AF_UNSPEC)
    for what, bind, how in (("bound first", True, "closed"), ("chosen by the stack", False, "closed"),
                            ("chosen by the stack", False, "disconnected")):
        traffic = Traffic()
        with namespace("host"):
            flow = kopi.flow()
        if bind:
            flow.bind(("192.0.2.1", 7100))
        channel = kopi.Channel(flow, flags=kopi.OFFLOADS)
        for number in range(32, 64):
            channel.fill.push(channel.frame(number))
        if not bind:
            with namespace("peer"):
                sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sink.bind(("192.0.2.2", 7101))
            sink.settimeout(20)
            channel.send(0, b"where", ("192.0.2.2", 7101))
            channel.bell()
            sink.recv(100)
            sink.close()
        before = link(ynl)
        traffic.source.connect(flow.getsockname() if bind else ("192.0.2.1", flow.getsockname()[1]))
        traffic.send(BATCH, 80)
        kopi.wait_until(lambda: channel.stats()["rx_taken"] == BATCH)
        kopi.check(f"{what}: redirected", link(ynl)["received"] - before["received"] == BATCH, link(ynl))
        if how == "closed":
            flow.close()
            channel.region.close()
        else:
            kopi.libc.connect(flow.fileno(), unspecified, len(unspecified))
        before = link(ynl)
        with namespace("host"):
            no_port = snmp()["UdpNoPorts"]
            traffic.send(BATCH, 80)
            refused_all = kopi.wait_until(lambda: snmp()["UdpNoPorts"] == no_port + BATCH)
            kopi.check(f"{what}: not any more when it is {how}",
                       refused_all and link(ynl)["received"] == before["received"], (snmp(), link(ynl)))
        flow.close()
        channel.region.close()
        traffic.close()


def programs_are_left_alone():
    """Another one's program stays."""
    sh("bpftool prog loadall /kopi/build/bpf/policy.bpf.o /sys/fs/bpf/others")
    host("bpftool net attach xdpdrv pinned /sys/fs/bpf/others/others_pass dev eth0 overwrite")
    with namespace("host"):
        ynl = family()
    kopi.check("another program in the place of kopictl's: it is seen",
               link(ynl)["receive-path"] == "no-program", link(ynl))
    ynl.sock.close()
    kopictl("detach", "eth0")
    kopi.check("another program: stays when the device is detached",
               "xdp" in json.loads(host("ip -j link show eth0"))[0])
    shutil.rmtree("/sys/fs/bpf/others")
    kopictl("attach", "eth0")
    with namespace("host"):
        ynl = family()
    kopi.check("another program: sending only", link(ynl)["receive-path"] == "no-program", link(ynl))
    traffic = Traffic()
    traffic.passes("another program: all arrive, in order", BATCH, 90)
    traffic.close()
    ynl.sock.close()
    kopictl("detach", "eth0")
    shown = json.loads(host("ip -j link show eth0"))[0]
    kopi.check("another program: stays", "xdp" in shown, shown)
    host("ip link set dev eth0 xdp off")


def bad_input(ynl):
    """Memory that isn't there, or not the asker's to write to."""
    with namespace("host"):
        nic = socket.if_nametoindex("eth0")
    for what, number, address in (("nowhere", errno.EFAULT, 0x10000), ("no page's start", errno.EINVAL, 0x10008),
                                  ("the kernel's", errno.EFAULT, 0xFFFF888000000000)):
        refused(what, number, lambda address=address: ask(ynl, "device-attach", {"ifindex": nic, "port-map": address}),
                "memory of a map")
    kopi.check("and nothing is left of it", not redirection())


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
    tap.settimeout(5)
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


def devices_on_top(ynl):
    """What it is redirected to carries no other device, which would hold up who detaches it."""
    target = redirection()
    for kind in "vxlan id 5 dstport 4789", "vlan id 5", "macvlan", "ipvlan":
        below = f"type {kind} dev" if kind.startswith("vxlan") else "link"
        command = f"link add top0 {below} {target}" + ("" if kind.startswith("vxlan") else f" type {kind}")
        made = subprocess.run(["ip", "-n", "host", *command.split()], check=False, capture_output=True, text=True)
        kopi.check(f"{kind.split()[0]} on {target}: refused", made.returncode, made)
    # Where one was made all the same.
    with subprocess.Popen(["nsenter", "--net=/run/netns/host", "kopictl", "detach", "eth0"]) as detaching:
        kopi.check("detached", detaching.wait(20) == 0)
    kopictl("attach", "eth0")
    kopi.check("attached again", link(ynl)["receive-path"] == "direct", link(ynl))


def namespace_goes(ynl):
    """Its namespace is deleted, with a flow and packets on their way; the NIC isn't attached afterwards."""
    # It would keep the namespace.
    ynl.sock.close()
    kopictl("attach", "eth0")
    traffic = Traffic()
    traffic.send(4 * BATCH, 1000)
    sh("ip netns del host")
    traffic.close()
    sh("/kopi/qemu/namespaces")
    shown = devices("host")
    kopi.check("it isn't attached any more", not shown, shown)
    # The program stays, and redirects nothing.
    traffic = Traffic()
    traffic.passes("what comes comes by the stack", BATCH, 1000)
    kopictl("attach", "eth0")
    with namespace("host"):
        ynl = family()
    traffic.passes("attached again: all arrive, in order", BATCH, 1000)
    kopi.check("attached again: redirected", link(ynl)["received"] == BATCH, link(ynl))
    traffic.close()
    ynl.sock.close()


def module_goes():
    """Its program stays, and passes all; it gives way when the module comes anew."""
    sh("rmmod kopi")
    with namespace("host"):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("192.0.2.1", PORT))
    sink.settimeout(20)
    with namespace("peer"):
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    source.sendto(b"without", ("192.0.2.1", PORT))
    kopi.check("without the module all passes", sink.recv(100) == b"without")
    sink.close()
    source.close()
    shown = host("ip link")
    kopi.check("and the program is there, but no device", "prog/xdp" in shown and "kopirx" not in shown, shown)
    sh(f"insmod /kopi/build/{os.uname().release}/kopi.ko")
    kopictl("attach", "eth0")
    traffic = Traffic()
    traffic.passes("with a new module: all arrive, in order", BATCH, 90)
    # Not by YNL's library, which remembers the old one's number.
    device = devices("host")[0]
    kopi.check("with a new module: redirected", device["received"] == BATCH, device)
    traffic.close()


attach()
with namespace("host"):
    YNL = family()
for case in (data_is_whole, lengths_mix, others_get_theirs, hooks_see_it, damage_is_seen, ways_change,
             ports_come_and_go, numbers_stay, devices_on_top):
    case(YNL)
YNL.sock.close()
programs_are_left_alone()
with namespace("host"):
    YNL = family()
bad_input(YNL)
namespace_goes(YNL)
module_goes()
kopictl("detach", "eth0")
kopi.check("detached, nothing is left", "xdp" not in json.loads(host("ip -j link show eth0"))[0]
           and not redirection(), host("ip link"))
kopi.finish()
