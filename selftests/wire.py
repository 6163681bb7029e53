# SPDX-License-Identifier: GPL-2.0
"""Frames of datagrams that the peer's NIC sends as they are, by both versions of IP, and who receives them."""

import collections
import contextlib
import json
import socket
import struct

import kernel_counters
import kopi
from attached import ADDRESSES, attach, host, link
from control import family
from equivalence import checksum, namespace, sh
from linux import PACKET_QDISC_BYPASS, SO_RCVBUFFORCE, SOL_PACKET

PORT, FROM = 7000, 7001
FRAMES = 256
Datagram = collections.namedtuple("Datagram", "data peer port")


class Ip(collections.namedtuple("Ip", "version family protocol near others any table martians headers")):
    """What differs between the versions of IP. `others` are senders without a route but the device's
    network; `martians` sources from which a host takes nothing, or which are odd."""

    def command(self):
        """Of iproute2."""
        return f"ip -{self.version}"

    def pack(self, address):
        """An address's bytes."""
        return socket.inet_pton(self.family, address)


V4 = Ip(4, socket.AF_INET, 0, ADDRESSES[4][0], [f"192.0.2.{number}" for number in range(100, 116)], "0.0.0.0",
        "ip", ("127.0.0.1", "224.0.0.1", ADDRESSES[4][0], "0.0.0.0", "255.255.255.255"), 28)
V6 = Ip(6, socket.AF_INET6, kopi.UDP6, ADDRESSES[6][0], [f"2001:db8::{number:x}" for number in range(100, 116)], "::",
        "ip6", ("::1", "ff02::1", "::ffff:192.0.2.9"), 48)


class Wire:
    """Sends frames by the peer's NIC."""

    def __init__(self):
        with namespace("peer"):
            self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            self.sock.bind(("eth1", 0))
        # A qdisc would let packets of one sender overtake another's.
        self.sock.setsockopt(SOL_PACKET, PACKET_QDISC_BYPASS, 1)
        self.macs = [bytes.fromhex(json.loads(sh(f"ip -n {where} -j link show {nic}"))[0]["address"].replace(":", ""))
                     for where, nic in (("host", "eth0"), ("peer", "eth1"))]

    def send(self, ip, data, source=None, to=None, port=PORT, sender=FROM, tos=0, mac=None, bad="", padding=b""):
        """Sends a datagram; `bad` names what is wrong: a checksum, or "none" for no UDP checksum; of IPv6, which
        has none of its own, "ip" is a length of more than there is."""
        addresses = ip.pack(source or ip.others[0]) + ip.pack(to or ip.near)
        udp = struct.pack(">HHHH", sender, port, 8 + len(data), 0)
        right = checksum(addresses + struct.pack(">HH", 17, 8 + len(data)) + udp + data) or 0xffff
        right = {"udp": right ^ 0x55, "none": 0}.get(bad, right)
        udp = udp[:6] + struct.pack(">H", right)
        if ip is V4:
            header = struct.pack(">BBHHHBBH", 0x45, tos, 28 + len(data), 0, 0x4000, 64, 17, 0) + addresses
            header = header[:10] + struct.pack(">H", checksum(header) ^ (0x55 if bad == "ip" else 0)) + header[12:]
        else:
            length = 8 + len(data) + (40 if bad == "ip" else 0)
            # With a flow label, as hosts send them.
            header = struct.pack(">IHBB", 6 << 28 | tos << 20 | sender, length, 17, 64) + addresses
        kind = b"\x08\0" if ip is V4 else b"\x86\xdd"
        self.sock.send((mac or self.macs[0]) + self.macs[1] + kind + header + udp + data + padding)


class Receiver:
    """A flow on a channel, or a plain socket."""

    def __init__(self, ip, address=None, port=PORT, rings=True, peer=None, reuse=False, frames=FRAMES):
        with namespace("host"):
            self.sock = kopi.flow(ip.protocol) if rings else socket.socket(ip.family, socket.SOCK_DGRAM)
        if reuse:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        self.sock.bind((address or ip.near, port))
        if peer:
            self.sock.connect(peer)
        self.sock.setblocking(False)
        self.ip, self.channel, self.metas = ip, None, []
        if rings:
            self.channel = kopi.Channel(self.sock, frames=FRAMES, fill=FRAMES, rx=FRAMES)
            for number in range(frames):
                self.channel.fill.push(self.channel.frame(number))

    def close(self):
        """Ends it."""
        self.sock.close()
        if self.channel:
            self.channel.region.close()

    def peer_of(self, meta):
        """The sender in metadata, as a plain socket has it."""
        if meta[4] == socket.AF_INET6:
            return socket.inet_ntop(socket.AF_INET6, meta[0])
        address = socket.inet_ntoa(meta[0][:4])
        return f"::ffff:{address}" if self.ip is V6 else address

    def _read(self):
        """The next datagram, or None."""
        if not self.channel:
            with contextlib.suppress(BlockingIOError):
                data, peer = self.sock.recvfrom(65536)
                return Datagram(data, peer[0].partition("%")[0], peer[1])
            return None
        if (entry := self.channel.rx.pop()) is None:
            return None
        offset, length, *_ = entry
        start = offset - offset % self.channel.frame_size
        meta = struct.unpack_from(kopi.META_FORMAT, self.channel.region, start)
        self.metas.append(meta)
        data = bytes(self.channel.region[offset:offset + length])
        self.channel.fill.push(start)
        return Datagram(data, self.peer_of(meta), struct.unpack(">H", meta[2])[0])

    def take(self, count, patience=20.0):
        """Up to `count` datagrams, as they come."""
        got = []

        def enough():
            while (datagram := self._read()) is not None:
                got.append(datagram)
            return len(got) >= count
        kopi.wait_until(enough, patience)
        return got


# What of the kernel's counters a datagram changes, of each version.
COUNTED = ("InReceives", "InDelivers", "InHdrErrors", "InAddrErrors", "InDiscards", "InTruncatedPkts")
COUNTED_OF_UDP = ("InDatagrams", "NoPorts", "InErrors", "RcvbufErrors", "InCsumErrors")


def counters(ip):
    """The namespace's counters; of IPv6 without messages of ICMP, which hosts send when they like, and with the
    device's."""
    with namespace("host"):
        if ip is V4:
            fields = kernel_counters.table()
            return {name: fields.get(name, 0) for name in (*(f"Ip:{each}" for each in COUNTED),
                                                           *(f"Udp:{each}" for each in COUNTED_OF_UDP))}
        found = {}
        for where in "snmp6", "dev_snmp6/eth0":
            fields = kernel_counters.of_ipv6(f"/proc/net/{where}")
            for each in COUNTED:
                icmp = fields["Icmp6InMsgs"] if each in ("InReceives", "InDelivers") else 0
                found[f"{where} Ip:{each}"] = fields[f"Ip6{each}"] - icmp
            for each in COUNTED_OF_UDP:
                if f"Udp6{each}" in fields:
                    found[f"Udp:{each}"] = fields[f"Udp6{each}"]
        return found


class Told:
    """What a piece of work changes: the device's and the namespace's counters."""

    def __init__(self, ynl, ip):
        self.ynl, self.ip = ynl, ip

    def __enter__(self):
        self.device, self.counters = link(self.ynl), counters(self.ip)
        return self

    def __repr__(self):
        return f"{self.directly} of {self.received} without the stack, {self.snmp}"

    def __exit__(self, *_):
        after = link(self.ynl)
        self.directly = after["received-direct"] - self.device["received-direct"]
        self.received = after["received"] - self.device["received"]
        self.snmp = {name: value - self.counters[name] for name, value in counters(self.ip).items()}


def know_senders():
    """The host answers to all senders without asking for them."""
    for ip in V4, V6:
        for address in ip.others:
            host(f"{ip.command()} neigh replace {address} lladdr 02:00:00:00:00:09 dev eth0 nud permanent")


def begin():
    """Attaches the host's NIC, which answers to all senders; gives its control, and what sends by the peer's."""
    attach()
    with namespace("host"):
        ynl = family()
    know_senders()
    return ynl, Wire()
