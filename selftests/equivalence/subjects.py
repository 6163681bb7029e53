# SPDX-License-Identifier: GPL-2.0
"""Subjects of an exchange: a UDP socket and a KOPI flow with the same methods, and the datagrams
that they send.
"""

import dataclasses
import errno
import os
import select
import socket
import struct
import time

import kopi
from linux import (IP_PKTINFO, IP_RECVTOS, IP_RECVTTL, IP_TOS, IP_TTL, IPV6_HOPLIMIT, IPV6_PKTINFO,
                   IPV6_RECVHOPLIMIT, IPV6_RECVPKTINFO, IPV6_RECVTCLASS, IPV6_TCLASS,
                   SO_RCVBUFFORCE, SO_TXTIME, UDP_GRO, UDP_SEGMENT)

from .setups import PATIENCE

SUBJECT_PORT, PEER_PORT = 7000, 7001
SENTINEL_PORTS = {"host": 9000, "peer": 9001}
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
# Small, as large as the MTU allows, and in bulk, so that GSO packets form.
MTU = {4: 1472, 6: 1452}
PHASES = {4: ((64, 8), (MTU[4], 8), (1000, 24)), 6: ((64, 8), (MTU[6], 8), (1000, 24))}
COUNT = 40
# The subject has so many peers, which take turns, at ports of one address.
PEERS = int(os.environ.get("PEERS", "1"))
RAMP = bytes(range(256)) * 2


def payload(number, size):
    """The datagram of that number: no two are alike in any part."""
    start = number * 7 & 0xFF
    block = struct.pack(">I", number) + RAMP[start:start + 252]
    return (block * (size // len(block) + 1))[:size]


def checksum(data):
    """The Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def peers_at(address):
    """The addresses of the peers, of which the first has this one."""
    return [(address[0], address[1] + 37 * number, *address[2:]) for number in range(PEERS)]


def in_turns(found):
    """What arrived, by the peers whose turn it was, each one's in its order."""
    return sorted(found, key=lambda each: each.number % PEERS)


def errno_name(number):
    """EPERM for 1."""
    return errno.errorcode.get(number, str(number)) if number else "ok"


def tells(function):
    """The name of the errno that a call ends with."""
    try:
        function()
    except OSError as error:
        return errno_name(error.errno)
    return "ok"


@dataclasses.dataclass
class Datagram:
    """A datagram that arrived: all that its receiver can know of it."""
    number: int
    whole: bool
    source: tuple
    destination: str
    tos: int
    ttl: int
    # The device it came by; and its mark, if the receiver has SO_RCVMARK.
    device: str
    mark: int


def parse(data, source, *rest):
    """Checks a datagram's content."""
    number = struct.unpack_from(">I", data)[0] if len(data) >= 4 else -1
    return Datagram(number, data == payload(number & 0xFFFF, len(data)),
                    (source[0].partition("%")[0], source[1]), *rest)


class UdpSubject:
    """An ordinary UDP socket, also used for the peer."""

    kind = "UDP"

    def __init__(self, family, gso=False):
        self.family, self.gso = family, gso
        self.sock = socket.socket(FAMILIES[family], socket.SOCK_DGRAM)
        self.prepare()
        if gso:
            self.sock.setsockopt(socket.SOL_UDP, UDP_GRO, 1)

    def prepare(self):
        """What both kinds of subject have."""
        self.sock.setblocking(False)
        self.devices = dict(socket.if_nameindex())
        self.mapped = False
        if self.family == 4:
            names = (IP_RECVTTL, IP_RECVTOS, IP_PKTINFO)
            level = socket.IPPROTO_IP
        else:
            names = (IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS, IPV6_RECVPKTINFO)
            level = socket.IPPROTO_IPV6
        for name in names:
            self.sock.setsockopt(level, name, 1)
        # Room for all, as a ring has.
        euid = os.geteuid()
        os.seteuid(0)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        os.seteuid(euid)

    def after_bind(self):
        """Nothing, or what a policy's `prepare` put here."""

    def close(self):
        self.sock.close()

    def bind(self, address):
        self.sock.bind(address)
        self.mapped = address[0].startswith("::ffff:")

    def connect(self, address):
        self.sock.connect(address)

    def _send_one(self, data, address, segment=0, meta=None):
        control = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("=H", segment))] if segment else []
        control += self.control(meta or {})
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if address:
                    self.sock.sendmsg([data], control, 0, address)
                else:
                    self.sock.sendmsg([data], control)
                return 0
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return errno.EAGAIN
                select.select([], [self.sock], [], 0.1)
            except OSError as error:
                return error.errno

    def control(self, meta):
        """The control messages that say what a KOPI descriptor's metadata say."""
        # For IPv4 peers an IPv6 socket, too, heeds the options of IPv4 only.
        ip4 = self.family == 4 or self.mapped
        level = socket.IPPROTO_IP if ip4 else socket.IPPROTO_IPV6
        control = []
        for name, kind in (("tos", IP_TOS if ip4 else IPV6_TCLASS),
                           ("ttl", IP_TTL if ip4 else IPV6_HOPLIMIT)):
            if name in meta:
                control.append((level, kind, struct.pack("=i", meta[name])))
        if "mark" in meta:
            control.append((socket.SOL_SOCKET, socket.SO_MARK, struct.pack("=I", meta["mark"])))
        if "txtime" in meta:
            control.append((socket.SOL_SOCKET, SO_TXTIME, struct.pack("=Q", meta["txtime"])))
        if "local" in meta:
            address = kopi.pack_ip(meta["local"])[1]
            ifindex = struct.pack("=I", meta.get("ifindex", 0))
            control.append((level, IP_PKTINFO, ifindex + address + bytes(4)) if ip4 else
                           (level, IPV6_PKTINFO, address + ifindex))
        return control

    @property
    def socks(self):
        """What select() waits for."""
        return [self.sock]

    def send(self, data, address=None, gso=None, metas=None):
        """Sends datagrams, to the peers in turn if there are several; gives the errno of each."""
        if address and PEERS > 1:
            to = peers_at(address)
            return [self._send_one(each, to[number % PEERS], 0, metas and metas[number])
                    for number, each in enumerate(data)]
        if metas:
            return [self._send_one(each, address, 0, meta) for each, meta in zip(data, metas)]
        errors = []
        for run in gso_packets_of(data) if gso or gso is None and self.gso else zip(data):
            segment = len(run[0]) if len(run) > 1 else 0
            errors += [self._send_one(b"".join(run), address, segment)] * len(run)
        return errors

    def receive(self):
        """All that has arrived."""
        found = []
        while True:
            try:
                data, control, _, source = self.sock.recvmsg(65536, 512)
            except BlockingIOError:
                return found
            except OSError:
                # A pending error; error() gives those.
                continue
            segment, *rest = self._read_control(control)
            step = segment or len(data) or 1
            # An empty datagram counts, too.
            for at in range(0, len(data) or 1, step):
                found.append(parse(data[at:at + step], source, *rest))

    def _read_control(self, control):
        """The size of a GSO packet's datagrams, and from destination to mark what a Datagram has."""
        destination, tos, ttl, segment, device, mark = "", None, None, 0, 0, 0
        for level, name, value in control:
            if level == socket.SOL_UDP:
                segment = struct.unpack_from("=H", value)[0]
            elif (level, name) == (socket.IPPROTO_IP, IP_PKTINFO):
                destination = socket.inet_ntoa(value[8:12])
                device = struct.unpack_from("=i", value)[0]
            elif (level, name) == (socket.IPPROTO_IPV6, IPV6_PKTINFO):
                destination = socket.inet_ntop(socket.AF_INET6, value[:16])
                device = struct.unpack_from("=i", value, 16)[0]
            elif (level, name) == (socket.SOL_SOCKET, socket.SO_MARK):
                mark = struct.unpack("=I", value)[0]
            elif (level, name) in ((socket.IPPROTO_IP, IP_TTL),
                                   (socket.IPPROTO_IPV6, IPV6_HOPLIMIT)):
                ttl = struct.unpack("=i", value)[0]
            elif (level, name) in ((socket.IPPROTO_IP, IP_TOS),
                                   (socket.IPPROTO_IPV6, IPV6_TCLASS)):
                tos = value[0]
        return segment, destination, tos, ttl, self.devices.get(device, device), mark

    def error(self):
        """The socket's pending error."""
        return self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def unaccounted(self):
        """Nothing, or what a KOPI flow's counters don't explain."""
        return ""


class KopiSubject(UdpSubject):
    """A KOPI flow with a channel of its own."""

    kind = "KOPI"
    FRAMES = 256

    def __init__(self, family, gso=False):
        # pylint: disable=super-init-not-called
        self.family, self.gso = family, gso
        self.sock = kopi.flow(0 if family == 4 else kopi.UDP6)
        self.prepare()
        self.channel = kopi.Channel(self.sock, flags=kopi.OFFLOADS if gso else 0, frame_size=2048,
                                    frames=self.FRAMES, tx=128, completion=128, fill=128, rx=128)
        # The first half of the frames is for receiving.
        for number in range(128):
            self.channel.fill.push(self.channel.frame(number))
        self.sent = 0

    def close(self):
        self.channel.region.close()
        self.sock.close()

    def send(self, data, address=None, gso=None, metas=None):
        to = peers_at(address) if address else [None]
        for number, each in enumerate(data):
            self.channel.send(128 + number, each, to[number % len(to)],
                              kopi.number_of(self.sock),
                              metas and metas[number])
        self.sent += len(data)
        errors = {}
        watch = select.poll()
        watch.register(self.sock, select.POLLOUT | select.POLLWRBAND)
        deadline = time.monotonic() + PATIENCE
        while len(errors) < len(data):
            self.channel.bell()
            while (entry := self.channel.completion.pop()) is not None:
                frame = (entry[0] - self.channel.frames) // self.channel.frame_size
                errors[frame - 128] = entry[4]
            if time.monotonic() > deadline:
                break
            if len(errors) < len(data):
                watch.poll(100)
        return [errors.get(number, errno.EAGAIN) for number in range(len(data))]

    def receive(self):
        found = []
        parts = []
        while (entry := self.channel.rx.pop()) is not None:
            offset, length, _, flags, _ = entry
            start = offset - offset % self.channel.frame_size
            if flags & kopi.META:
                meta = struct.unpack_from(kopi.META_FORMAT, self.channel.region, start)
            parts.append(self.channel.region[offset:offset + length])
            self.channel.fill.push(start)
            if not flags & kopi.MORE:
                family, size = meta[4], 16 if meta[4] == socket.AF_INET6 else 4
                source = (socket.inet_ntop(family, meta[0][:size]),
                          struct.unpack(">H", meta[2])[0])
                found.append(parse(b"".join(parts), source,
                                   socket.inet_ntop(family, meta[1][:size]), meta[8], meta[9],
                                   self.devices.get(meta[6], meta[6]), meta[11]))
                parts = []
        return found

    def unaccounted(self):
        """Every packet taken or received must be somewhere."""
        return self.channel.unaccounted()


class MessageSubject(UdpSubject):
    """A KOPI flow on a channel that only sends: sendmsg() sends by the routes that the channel remembers."""

    kind = "KOPI"

    def __init__(self, family, gso=False):
        # pylint: disable=super-init-not-called
        self.family, self.gso = family, gso
        self.sock = kopi.ip_flow(0 if family == 4 else kopi.UDP6)
        self.prepare()
        self.channel = kopi.Channel(self.sock, flags=kopi.TX_ONLY)
        if gso:
            self.sock.setsockopt(socket.SOL_UDP, UDP_GRO, 1)

    def close(self):
        self.channel.region.close()
        self.sock.close()


class Peers:
    """Several sockets that get datagrams, and send them in turn."""

    def __init__(self, ends):
        self.ends = ends

    @property
    def socks(self):
        """What select() waits for."""
        return [end.sock for end in self.ends]

    def close(self):
        """Closes all."""
        for end in self.ends:
            end.close()

    def send(self, data, address, _gso=None):
        """Sends datagrams to the subject; gives the errno of each."""
        # pylint: disable=protected-access
        return [self.ends[number % PEERS]._send_one(each, address) for number, each in enumerate(data)]

    def receive(self):
        """All that has arrived."""
        return [each for end in self.ends for each in end.receive()]


def datagrams_of(family):
    """The datagrams of an exchange."""
    sizes = [size for size, count in PHASES[family] for _ in range(count)]
    return [payload(number, size) for number, size in enumerate(sizes)]


def gso_packets_of(data):
    """Cuts datagrams into GSO packets: of one size, but that the last may be shorter."""
    gso = []
    for each in data:
        last = gso[-1] if gso else None
        if last and len(last[-1]) == len(last[0]) >= len(each):
            last.append(each)
        else:
            gso.append([each])
    return gso


SUBJECTS = (UdpSubject, MessageSubject if os.environ.get("SENDMSG") else KopiSubject)
