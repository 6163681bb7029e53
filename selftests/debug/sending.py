# SPDX-License-Identifier: GPL-2.0
"""Steps of allocations_fail that send, by doorbells and by sendmsg, and what these need."""

import collections
import contextlib
import socket
import struct

import faults
import kopi
from faults import works
from kopi import OFFLOADS, expect, wait_until
from linux import IPV6_PKTINFO, IP_PKTINFO, MSG_ZEROCOPY, SO_ZEROCOPY, UDP_GRO, UDP_SEGMENT

SMALL = {"frames": 16, "tx": 16, "completion": 16, "fill": 16, "rx": 16}
# A megabyte and more of pages, each of which fails.
LARGE = {"frames": 512, "tx": 1024, "completion": 1024, "fill": 1024, "rx": 1024}
BIG = 1900


def close(*socks):
    """Closes flows and channels."""
    for sock in socks:
        if isinstance(sock, kopi.Channel):
            sock.region.close()
            sock.sock.close()
        else:
            sock.close()


def new_socket(path, ordinary=False):
    """socket()."""
    sock, error = yield lambda: path.socket(ordinary)
    if error == 0:
        works(path, sock)
        close(sock)


def gro(sock):
    """Whether the socket takes GSO packets."""
    return sock.getsockopt(socket.IPPROTO_UDP, UDP_GRO)


def has_channel(sock):
    """Whether the flow has one."""
    return struct.unpack_from("=4I", sock.getsockopt(kopi.SOL_KOPI, kopi.INFO, 64))[3]


def payload(number, size):
    """The n-th datagram of that size."""
    return struct.pack("=I", number) + bytes((number * 7 + i) & 0xFF for i in range(size - 4))


class Packet:
    """What a TX entry, or a chain of them, is to send."""

    def __init__(self, datagrams, *frames):
        self.datagrams, self.frames = datagrams, frames


def plain(channel, size, count, first=0, **meta):
    """Datagrams of a frame each."""
    for number in range(first, first + count):
        channel.send(number, payload(number, size), meta=meta or None)
        yield Packet([payload(number, size)], number)


def chain(channel, *_):
    """A datagram of three frames."""
    whole = payload(1, 3 * BIG)
    for number in range(3):
        start = channel.frame(number) + 64
        channel.region[start:start + BIG] = whole[number * BIG:(number + 1) * BIG]
        channel.tx.push(start, BIG, 0, kopi.MORE if number < 2 else 0, 0)
    yield Packet([whole], 0, 1, 2)


def cut(channel, *_):
    """A packet that is to be cut into three datagrams."""
    whole = b"".join(payload(number, 500) for number in range(3))
    channel.send(0, whole, meta={"gso_size": 500})
    yield Packet([payload(number, 500) for number in range(3)], 0)


# What is sent: the channel's flags, what fills the TX ring, and whether it goes by reference.
KINDS = {
    "copied": (0, lambda channel, path: plain(channel, 64, 4), False),
    "metadata": (0, lambda channel, path: plain(channel, 64, 4, local=path.local, tos=8, ttl=9, mark=3),
                 False),
    "full": (0, lambda channel, path: plain(channel, 1400, 4), False),
    "by reference": (0, lambda channel, path: plain(channel, BIG, 4), True),
    "chain": (0, chain, True),
    "gso": (OFFLOADS, lambda channel, path: plain(channel, 200, 12), False),
    "GSO packet by reference": (OFFLOADS, lambda channel, path: plain(channel, BIG, 6), True),
    "GSO packet of metadata": (OFFLOADS, lambda channel, path: plain(channel, 200, 6, tos=4), False),
    "cut": (OFFLOADS, cut, False),
}
by_reference = collections.Counter()
lost = collections.Counter()


def arrived(path, expected, name, known):
    """What was sent comes, each once, or the stack has counted it as lost."""
    left = list(expected)
    inside = ("host", "peer") if path.name.startswith("nic") else ("host", "away")

    def all_there():
        with contextlib.suppress(BlockingIOError):
            while True:
                got = path.peer.recv(65536, socket.MSG_DONTWAIT)
                expect(got in left, f"{len(got)} bytes arrive that were not sent, or sent once only")
                left.remove(got)
        return not left
    if wait_until(all_there, 0.1):
        return
    # One counter for a GSO packet of datagrams.
    expect(wait_until(lambda: all_there() or faults.losses(*inside) > known[0], 5),
           f"{len(left)} datagrams are lost, and nothing counts them")
    lost[name] += len(left)
    known[0] = faults.losses(*inside)


def doorbell(path, kind, known):
    """The doorbell, with packets in the TX ring."""
    flags, fill, _ = KINDS[kind]
    channel = kopi.Channel(path.bound(), flags=flags, frames=16, tx=16, completion=16, fill=16, rx=16)
    channel.sock.connect(path.to)
    path.drain()
    packets = list(fill(channel, path))
    frames = sorted(number for packet in packets for number in packet.frames)
    faults.forget_routes()
    count, error = yield channel.bell
    expect(error == 0 and 0 <= count <= len(frames), f"the doorbell gives {count}, errno {error}")
    verdicts = {}

    def completed():
        while (entry := channel.completion.pop()) is not None:
            number = (entry[0] - channel.frames) // channel.frame_size
            expect(number not in verdicts, f"frame {number} is completed twice")
            verdicts[number] = entry[4]
        if len(verdicts) < len(frames) and channel.tx.get(channel.tx.consumer) != \
                channel.tx.get(channel.tx.producer):
            channel.bell()
        return len(verdicts) == len(frames)
    expect(wait_until(completed, 10), f"{len(verdicts)} of {len(frames)} frames are completed")
    expect(sorted(verdicts) == frames, "other frames are completed")
    expected = []
    for packet in packets:
        expect(len({verdicts[frame] for frame in packet.frames}) == 1, "verdicts of one packet differ")
        if verdicts[packet.frames[0]] == 0:
            expected += packet.datagrams
    stats = channel.stats()
    expect(not channel.unaccounted(), channel.unaccounted())
    expect(stats["tx_pending"] == 0, "tx_pending")
    expect(stats["tx_packets"] == len(expected), f"{stats['tx_packets']} of {len(expected)} are counted")
    name = f"{kind}, {path.name}"
    by_reference[name] += stats["tx_zerocopy"]
    arrived(path, expected, name, known)
    works(path, channel.sock, channel)
    close(channel)
    return {verdict for verdict in verdicts.values() if verdict}


def control(path):
    """Control messages, as those that metadata becomes."""
    if path.ipv6:
        return [(socket.IPPROTO_IPV6, IPV6_PKTINFO, socket.inet_pton(socket.AF_INET6, path.local) + bytes(4)),
                (socket.IPPROTO_IPV6, 67, struct.pack("=i", 8)), (socket.IPPROTO_IPV6, 52, struct.pack("=i", 9))]
    return [(socket.IPPROTO_IP, IP_PKTINFO, bytes(4) + socket.inet_aton(path.local) + bytes(4)),
            (socket.IPPROTO_IP, 1, struct.pack("=i", 8)), (socket.IPPROTO_IP, 2, struct.pack("=i", 9))]


def send(path, kind, ordinary=False, channel=False):
    """sendmsg(), of a flow beside its rings, of one without, or of an ordinary socket."""
    sock = path.bound(ordinary)
    rings = kopi.Channel(sock, **SMALL) if channel else None
    sock.connect(path.to)
    path.drain()
    sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    gso = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", 200))]
    buffers, messages, flags = {
        "copied": ([payload(0, 64)], [], 0),
        "metadata": ([payload(0, 64)], control(path), 0),
        "full": ([payload(0, 1400)], [], 0),
        "by reference": ([payload(0, 8000)], [], MSG_ZEROCOPY),
        "chain": ([payload(number, BIG) for number in range(3)], [], MSG_ZEROCOPY),
        "gso": ([payload(number, 200) for number in range(12)], gso, 0),
        "GSO packet by reference": ([bytes(30 * 200)], gso, MSG_ZEROCOPY),
        "GSO packet of metadata": ([payload(number, 200) for number in range(6)], gso + control(path), 0),
        "cut": ([payload(number, 200) for number in range(3)], gso, 0),
    }[kind]
    faults.forget_routes()
    yield lambda: sock.sendmsg(buffers, messages, flags)
    path.drain()
    works(path, sock, rings)
    close(rings or sock)


def as_ordinary(path, sock):
    """The same descriptor, for Python, which has no recvmsg for families that it doesn't know."""
    return socket.socket(path.family, socket.SOCK_DGRAM, 0, fileno=sock.fileno())
