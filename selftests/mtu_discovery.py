#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""IP_MTU_DISCOVER and IPV6_MTU_DISCOVER decide about a flow's datagrams as about a UDP socket's: which may be
fragmented, which are, and which are refused; by rings, by frames, and by sendmsg() with remembered routes."""

import contextlib
import itertools
import socket
import struct

import kopi
from attached import ADDRESSES, attach, host, kopictl, link, overheard
from control import family
from equivalence import namespace, payload, sh
from linux import ETH_P_ALL, IPV6_MTU, IPV6_MTU_DISCOVER, IP_MTU_DISCOVER

PORT, FROM, FRAMES = 7000, 7001, 16
WANT, DO, INTERFACE, OMIT = 1, 2, 4, 5
DISCOVER = {4: (socket.IPPROTO_IP, IP_MTU_DISCOVER), 6: (socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER)}
# Bytes of the headers of IP and UDP.
HEADERS = {4: 28, 6: 48}
# One that always fits, and those at the edge of both MTUs.
WHOLE = (200, 1300, 1301, 1500, 1501)


class Overheard:
    """What arrives at the peer's NIC."""

    def __init__(self):
        self.sock = overheard(ETH_P_ALL)
        with namespace("peer"):
            self.end = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            self.end.bind(("::", PORT))

    def take(self, last, late):
        """What has come besides a packet with that payload: see `seen`. The qdisc may have let that overtake
        fragments, which are another flow to it; they come within `late` seconds."""
        got = []
        self.sock.settimeout(10)
        with contextlib.suppress(TimeoutError):
            while True:
                packet = self.sock.recv(65536)
                if last in packet:
                    self.sock.settimeout(late)
                else:
                    got.append(seen(packet))
        return sorted(filter(None, got))


def seen(packet):
    """What matters of a packet: the length, flags and offset of fragments, whether IPv4 has a number, the start of
    the payload. `None` if it isn't of UDP."""
    if packet[12:14] == b"\x08\0" and packet[23] == 17:
        number = packet[18:20] != b"\0\0"
        return 4, packet[16:18], packet[20:22], number, packet[34:50] if packet[21] else packet[34:38] + packet[42:50]
    if packet[12:14] == b"\x86\xdd" and packet[20] in (17, 44):
        # The number of an IPv6 packet in fragments is one by chance.
        return 6, packet[18:20], packet[20:21], packet[54:58] if packet[20] == 44 else packet[54:58] + packet[62:70]
    return None


class Way:
    """A way to send from a port: a UDP socket's, a ring's, or sendmsg() of a flow on a channel that only sends."""

    def __init__(self, kind, version, options, connect):
        near, far = ADDRESSES[version]
        self.kind, self.to = kind, None if connect else (far, PORT)
        with namespace("host"):
            if kind == "udp":
                self.sock = socket.socket(socket.AF_INET6 if version == 6 else socket.AF_INET, socket.SOCK_DGRAM)
            else:
                self.sock = kopi.ip_flow(kopi.UDP6 if version == 6 else 0)
            for each in options:
                self.sock.setsockopt(*each)
            self.sock.bind((near, FROM))
            if connect:
                self.sock.connect((far, PORT))
            if kind != "udp":
                flags = kopi.TX_ONLY if kind == "sendmsg" else 0
                self.channel = kopi.Channel(self.sock, flags=flags, frames=FRAMES, tx=FRAMES, completion=FRAMES)

    def send(self, datagrams):
        """Sends them, in one call if it can: their errnos."""
        if self.kind != "ring":
            return [self._send(data) for data in datagrams]
        for number, data in enumerate(datagrams):
            self.channel.send(number, data, self.to)
        return self.channel.complete(len(datagrams))

    def _send(self, data):
        try:
            if self.to:
                self.sock.sendto(data, self.to)
            else:
                self.sock.send(data)
        except OSError as error:
            return error.errno
        return 0

    def remembered(self):
        """Datagrams that the flow's channel sent."""
        return self.channel.stats()["tx_packets"] if self.kind == "sendmsg" else 0

    def close(self):
        """Ends it."""
        self.sock.close()
        if self.kind != "udp":
            self.channel.region.close()


def observe(wire, kind, version, options, connect, late):
    """Errnos and packets of a way's datagrams; how many were frames, and how many sendmsg() sent by a route."""
    frames = link(YNL)["packets"] if ATTACHED else 0
    way = Way(kind, version, options, connect)
    datagrams = [payload(number, size - HEADERS[version]) for number, size in enumerate(WHOLE)]
    last = b"the last one of %d" % next(NUMBERS)
    *errors, _ = way.send([*datagrams, last])
    packets = wire.take(last, late)
    # With the last one.
    frames, remembered = (link(YNL)["packets"] if ATTACHED else 0) - frames, way.remembered()
    way.close()
    return errors, packets, frames, remembered


def compare(wire, path, version, discovery, connect, fragment=0):
    """All ways do what a UDP socket does."""
    options = [(*DISCOVER[version], discovery)]
    if fragment:
        options.append((socket.IPPROTO_IPV6, IPV6_MTU, fragment))
    mtu = min(1500 if discovery > DO else path, fragment or 1500)
    whole = sum(size <= mtu for size in WHOLE)
    what = f"IPv{version}, {discovery}, path of {path}, {'connected' if connect else 'by address'}"
    if fragment:
        what += f", IPV6_MTU {fragment}"
    for kind in ("ring", "sendmsg"):
        # On a busy machine something may come late.
        for late in 0.02, 0.3, 2, 5:
            plain = observe(wire, "udp", version, options, connect, late)
            errors, packets, frames, remembered = observe(wire, kind, version, options, connect, late)
            if (errors, packets) == plain[:2]:
                break
        kopi.check(f"{what}, {kind}: {len(packets)} packets as a UDP socket's", (errors, packets) == plain[:2],
                   (plain[0], errors, [pair for pair in zip(plain[1], packets) if pair[0] != pair[1]][:2]))
        if kind == "ring" and ATTACHED:
            # What IPV6_MTU has fragmented, the device puts together if it is short enough.
            # So may the last one, which is sent behind fragments that the stack has.
            kopi.check(f"{what}: what is whole left as frames", whole <= frames <= (len(WHOLE) if fragment else whole) + 1,
                       (frames, whole))
        if kind == "sendmsg" and version == 4:
            kopi.check(f"{what}: sendmsg() sent it by a route", remembered == whole + 1, (remembered, whole))


def lock_by_error():
    """The peer's router says that packets of more than 400 bytes don't fit: less than the kernel believes
    (net.ipv4.route.min_pmtu), which so takes 552 and lets routers fragment."""
    near, far = ADDRESSES[4]
    quoted = struct.pack(">BBHHHBBH4s4s4H", 0x45, 0, 600, 0, 0x4000, 64, socket.IPPROTO_UDP, 0, socket.inet_aton(near),
                         socket.inet_aton(far), FROM, PORT, 580, 0)
    error = struct.pack(">BBHHH", 3, 4, 0, 0, 400) + quoted
    total = sum(struct.unpack(f">{len(error) // 2}H", error))
    total = (total & 0xffff) + (total >> 16)
    error = error[:2] + struct.pack(">H", ~(total + (total >> 16)) & 0xffff) + error[4:]
    with namespace("host"):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((near, FROM))
    with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.sendto(error, (near, 0))
    kopi.expect(kopi.wait_until(lambda: "mtu lock 552" in host(f"ip route get {far}")), "the path's MTU is locked")
    sock.close()


def main():
    wire = Overheard()
    sh(f"ip netns exec host ping -q -c1 -w20 {ADDRESSES[6][1]}; ip netns exec host ping -q -c1 -w20 {ADDRESSES[4][1]}")
    for version, path in itertools.product((4, 6), (1500, 1300)):
        far = ADDRESSES[version][1]
        if path != 1500:
            host(f"ip route add {far} dev eth0 mtu {path}")
        for discovery, connect in itertools.product(range(OMIT + 1), (False, True)):
            compare(wire, path, version, discovery, connect)
        if version == 6:
            for discovery in (WANT, INTERFACE, OMIT):
                compare(wire, path, version, discovery, False, fragment=1300)
        elif path != 1500:
            # No path's MTU can be smaller: IP_PMTUDISC_WANT lets routers fragment.
            host(f"ip route change {far} dev eth0 mtu lock {path}")
            compare(wire, path, version, WANT, False)
            host(f"ip route change {far} dev eth0")
            lock_by_error()
            for connect in (False, True):
                compare(wire, 552, version, WANT, connect)
        if path != 1500:
            host(f"ip route del {far}")


NUMBERS = itertools.count()
YNL, ATTACHED = None, False
main()
attach()
with namespace("host"):
    YNL = family()
ATTACHED = True
main()
kopictl("detach", "eth0")
kopi.finish()
