# SPDX-License-Identifier: GPL-2.0
"""Traffic that an attached device's XDP program redirects: a flow that receives, and a sender."""

import socket
import struct
import time

import kopi
from attached import ADDRESSES
from equivalence import namespace, payload
from linux import SO_RCVBUFFORCE, UDP_SEGMENT

PORT, FROM = 7000, 7001
BATCH = 32
FRAMES = 512


class Incoming:
    """A flow that receives, on a channel with GRO packets, and a sender in the other namespace."""

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
        """Sends `count` datagrams, as GSO packets that the peer's NIC segments."""
        while count:
            now = max(1, min(count, BATCH, 60000 // max(size, 1)))
            data = b"".join(payload(self.sent + number, size) for number in range(now))
            self.source.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, size if now > 1 else 0)
            self.source.send(data)
            self.sent += now
            count -= now

    def receive(self):
        """Yields the datagrams that have been received."""
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
        """Sends `count` datagrams, and checks that all arrive, in order."""
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
