#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Each allocation of each call fails in turn, and then memory runs out at any point of some: the call
gives a documented errno or succeeds, what was there goes on working, and all is given back.

FAULTS names the entry points to try, as a regular expression.
"""

import array
import collections
import contextlib
import errno
import fcntl
import gc
import itertools
import mmap
import os
import re
import select
import socket
import struct
import time

import faults
import kopi
import memory
from control import NlError, ask, family
from equivalence import namespace, sh
from faults import receive, works
from kopi import OFFLOADS, Wrong, expect, wait_until
from linux import (IPV6_PKTINFO, IPV6_RECVPKTINFO, IP_PKTINFO, MSG_ZEROCOPY, SO_TIMESTAMP, SO_ZEROCOPY,
                   UDP_GRO, UDP_SEGMENT)

DOCUMENTED = {errno.ENOMEM, errno.ENOBUFS}
SMALL = {"frames": 16, "tx": 16, "completion": 16, "fill": 16, "rx": 16}
# A megabyte and more of pages, each of which fails.
LARGE = {"frames": 512, "tx": 1024, "completion": 1024, "fill": 1024, "rx": 1024}
BIG = 1900


class Nth:
    """Has the n-th allocation fail that this thread makes."""

    def __init__(self):
        self.fd = os.open(faults.NTH, os.O_RDWR)

    def run(self, number, call):
        """Gives the call's result, its errno, and whether it came to its n-th allocation."""
        text, result, error = b"%d" % number, None, 0
        os.pwrite(self.fd, text, 0)
        try:
            result = call()
        except OSError as caught:
            error = caught.errno
        left = os.pread(self.fd, 16, 0)
        os.pwrite(self.fd, b"0", 0)
        return result, error, left == b"0\n"


class RunsOut:
    """Has all of this thread's slab allocations fail from one on, so that no second try helps."""

    MANY = 1 << 20

    def __init__(self):
        self.task = os.open("/proc/thread-self/make-it-fail", os.O_RDWR)

    def run(self, space, call):
        """Gives the call's result, its errno, and whether it needed more bytes than there were."""
        result, error = None, 0
        faults.put(f"{faults.DEBUG}/failslab/times", self.MANY)
        faults.put(f"{faults.DEBUG}/failslab/space", space)
        os.pwrite(self.task, b"1", 0)
        try:
            result = call()
        except OSError as caught:
            error = caught.errno
        os.pwrite(self.task, b"0", 0)
        return result, error, int(faults.get(f"{faults.DEBUG}/failslab/times")) < self.MANY

    @staticmethod
    def spaces():
        """Bytes, in steps smaller than most objects."""
        space = 0
        while True:
            yield space
            space += max(64, space // 20)


nth, runs_out = Nth(), RunsOut()
kopi.libc.mmap.restype = kopi.ctypes.c_void_p


def once(steps, injector, number):
    """Runs the steps with a fault at that point: the errnos given, and whether it was reached."""
    course = steps()
    result, error, injected = injector.run(number, next(course))
    try:
        course.send((result, error))
    except StopIteration as end:
        return ([error] if error else []) + list(end.value or ()), injected
    raise RuntimeError("more steps than one")


def in_turn(steps, injector, numbers):
    """Has a fault at each point: their number, how often which errno came, and what was wrong."""
    errors, wrong = collections.Counter(), []
    for count, number in enumerate(numbers):
        try:
            seen, injected = once(steps, injector, number)
        except (Wrong, OSError, MemoryError) as error:
            wrong.append(f"{number}: {type(error).__name__} {error}")
            if len(wrong) > 4:
                return count, errors, wrong
            continue
        errors.update(seen)
        if not injected:
            if seen:
                wrong.append(f"{seen} without a fault")
            return count, errors, wrong
    return 0, errors, ["no end"]


# The entry points. Each is a generator: it prepares, yields the call, gets what it gave (the result
# and the errno), and says what must hold after that; it returns further errnos that it saw.


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


def bind(path, ordinary=False, channel=False):
    """bind(), of a flow with a channel or without."""
    sock = path.socket(ordinary)
    rings = kopi.Channel(sock, **SMALL) if channel else None
    _, error = yield lambda: sock.bind((path.local, 0))
    if error:
        sock.bind((path.local, 0))
    works(path, sock, rings)
    close(rings or sock)


def connect(path, ordinary=False, channel=False):
    """connect(), which binds, too."""
    sock = path.socket(ordinary)
    rings = kopi.Channel(sock, **SMALL) if channel else None
    faults.forget_routes()
    _, error = yield lambda: sock.connect(path.to)
    if error:
        sock.connect(path.to)
    works(path, sock, rings)
    close(rings or sock)


def gro(sock):
    """Whether the socket takes GSO packets."""
    return sock.getsockopt(socket.IPPROTO_UDP, UDP_GRO)


def has_channel(sock):
    """Whether the flow has one."""
    return struct.unpack_from("=4I", sock.getsockopt(kopi.SOL_KOPI, kopi.INFO, 64))[3]


def still_ordinary(path, sock):
    """A call that failed has left the flow as it was, without a channel."""
    expect(not has_channel(sock), "there is a channel after an error")
    expect(not gro(sock), "UDP_GRO is left on")
    works(path, sock)


def open_channel(path, sizes):
    """setsockopt(CHANNEL)."""
    sock = path.bound()
    request = kopi.request(**sizes)
    _, error = yield lambda: sock.setsockopt(kopi.SOL_KOPI, kopi.CHANNEL, request)
    if error:
        still_ordinary(path, sock)
        sock.setsockopt(kopi.SOL_KOPI, kopi.CHANNEL, request)
    expect(has_channel(sock), "there is no channel")
    expect(bool(gro(sock)) == bool(sizes.get("flags", 0)), "UDP_GRO is not as asked for")
    channel = kopi.Channel.of(sock)
    works(path, sock, channel)
    close(channel)


def get_options(path):
    """getsockopt(), all of them."""
    channel = kopi.Channel(path.bound(), **SMALL)
    sock = channel.sock

    def options():
        return [sock.getsockopt(kopi.SOL_KOPI, name, 256)
                for name in (kopi.INFO, kopi.CHANNEL, kopi.STATS)]
    right = options()
    got, error = yield options
    expect(error or got == right, "another answer")
    close(channel)


def join(path, others, flags=0):
    """setsockopt(JOIN), of a channel that has so many flows already."""
    channel = kopi.Channel(path.bound(), flags=flags, **SMALL)
    request = kopi.join_request(channel.sock)
    joined = [path.socket() for _ in range(others)]
    for one in joined:
        one.setsockopt(kopi.SOL_KOPI, kopi.JOIN, request)
    sock = path.bound()
    _, error = yield lambda: sock.setsockopt(kopi.SOL_KOPI, kopi.JOIN, request)
    if error:
        still_ordinary(path, sock)
        sock.setsockopt(kopi.SOL_KOPI, kopi.JOIN, request)
    number = kopi.number_of(sock)
    expect(number == others + 1, f"number {number}")
    expect(channel.stats()["flows"] == others + 2, "the flows are miscounted")
    works(path, sock, channel, number)
    works(path, channel.sock, channel)
    close(channel, sock, *joined)


def map_region(path):
    """mmap()."""
    sock = path.bound()
    sock.setsockopt(kopi.SOL_KOPI, kopi.CHANNEL, kopi.request())
    size = struct.unpack_from("=Q", sock.getsockopt(kopi.SOL_KOPI, kopi.CHANNEL, 256))[0]
    region, _ = yield lambda: mmap.mmap(sock.fileno(), size, trackfd=False)
    channel = kopi.Channel.of(sock)
    works(path, sock, channel)
    if region is not None:
        expect(region[:channel.frames] == channel.region[:channel.frames], "two mappings differ")
        region.close()
    close(channel)


def touch(path):
    """The first access to each page."""
    channel = kopi.Channel(path.bound())
    region = channel.region

    def write():
        for page in range(channel.frames, channel.size, mmap.PAGESIZE):
            region[page] = 1
    yield write
    region[channel.frames:channel.size] = bytes(channel.size - channel.frames)
    works(path, channel.sock, channel)
    close(channel)


def call_on_region(name, *arguments):
    """A call of libc on all of a mapping."""
    def steps(path):
        channel = kopi.Channel(path.bound())
        size = channel.size
        address = kopi.libc.mmap(None, size, 3, mmap.MAP_SHARED, channel.sock.fileno(), 0)
        function = getattr(kopi.libc, name)

        def call():
            if function(kopi.ctypes.c_void_p(address), kopi.ctypes.c_size_t(size), *arguments):
                raise OSError(kopi.ctypes.get_errno(), name)
        _, error = yield call
        works(path, channel.sock, channel)
        if error:
            call()
        if name != "munmap":
            kopi.libc.munmap(kopi.ctypes.c_void_p(address), kopi.ctypes.c_size_t(size))
        works(path, channel.sock, channel)
        close(channel)
    return steps


def fork(path):
    """fork() of a process that has the region mapped."""
    channel = kopi.Channel(path.bound())
    channel.region[channel.frames] = 7

    def call():
        pid = os.fork()
        if pid == 0:
            os._exit(channel.region[channel.frames])
        return pid
    pid, error = yield call
    if not error:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        expect(status == 7, f"the child ends with {status}")
    channel.region[channel.frames] = 0
    works(path, channel.sock, channel)
    close(channel)


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


def recv(path, ordinary=False):
    """recvmsg(), with all that can come beside a datagram."""
    sock = path.bound(ordinary)
    sock.connect(path.to)
    if path.ipv6:
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMP, 1)
    path.drain()
    sock.send(b"to me")
    path.peer.sendto(b"back", receive(path.peer)[1])
    expect(wait_until(lambda: select.select([sock], [], [], 0)[0]), "nothing comes")
    reader = as_ordinary(path, sock)
    got, error = yield lambda: reader.recvmsg(100, 400)
    reader.detach()
    expect(error or got[0] == b"back" and len(got[1]) == 2, f"{got}")
    close(sock)


def error_queue(path, ordinary=False, channel=True):
    """recvmsg(MSG_ERRQUEUE), which a flow with a channel has, too."""
    sock = path.bound(ordinary)
    sock.setsockopt(socket.IPPROTO_IPV6 if path.ipv6 else socket.IPPROTO_IP, 25 if path.ipv6 else 11, 1)
    rings = kopi.Channel(sock, **SMALL) if channel and not ordinary else None
    with namespace("peer" if path.name.startswith("nic") else "host"):
        closed = socket.socket(path.family, socket.SOCK_DGRAM)
        closed.bind((path.to[0], 0))
        nobody = closed.getsockname()[:2]
        closed.close()
    sock.connect(nobody)
    sock.send(b"to nobody")
    poll = select.poll()
    poll.register(sock, 0)
    expect(poll.poll(5000), "no error comes")
    reader = as_ordinary(path, sock)
    yield lambda: reader.recvmsg(100, 400, socket.MSG_ERRQUEUE)
    reader.detach()
    sock.connect(path.to)
    works(path, sock, rings)
    close(rings or sock)


def poll_many(path, ordinary=False, timeout=0):
    """poll() of more sockets than fit on its stack."""
    channel = None
    if ordinary:
        socks = [path.socket(True) for _ in range(24)]
    else:
        channel = kopi.Channel(path.bound(), **SMALL)
        socks = [path.socket() for _ in range(23)]
        for one in socks:
            one.setsockopt(kopi.SOL_KOPI, kopi.JOIN, kopi.join_request(channel.sock))
        socks.append(channel.sock)
    poll = select.poll()
    for one in socks:
        poll.register(one, select.POLLIN)
    got, error = yield lambda: poll.poll(timeout)
    expect(error or got == [], f"{got}")
    if channel:
        works(path, channel.sock, channel)
    close(*socks)
    if channel:
        channel.region.close()


def epoll_add(path, ordinary=False):
    """epoll_ctl(EPOLL_CTL_ADD), and waiting."""
    sock = path.bound(ordinary)
    channel = None if ordinary else kopi.Channel(sock, **SMALL)
    epoll = select.epoll()
    _, error = yield lambda: epoll.register(sock, select.EPOLLIN)
    if error:
        epoll.register(sock, select.EPOLLIN)
    sock.connect(path.to)
    expect(epoll.poll(0) == [], "epoll tells of something")
    if channel:
        channel.fill.push(channel.frame(5))
    sock.send(b"to me")
    path.peer.sendto(b"back", receive(path.peer)[1])
    expect(epoll.poll(5) == [(sock.fileno(), select.EPOLLIN)], "epoll doesn't tell of what comes")
    epoll.close()
    close(channel or sock)


def sleep(path, how):
    """The doorbell that sleeps, until its time is over or something comes."""
    channel = kopi.Channel(path.bound(), **SMALL)
    sock = channel.sock
    sock.connect(path.to)
    # 20 ms.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 20000))
    if how == "something":
        channel.fill.push(channel.frame(5))
        sock.send(b"to me")
        path.peer.sendto(b"back", receive(path.peer)[1])

    def call():
        try:
            channel.bell(kopi.BELL_WAIT_RX)
        except BlockingIOError:
            return False
        return True
    got, error = yield call
    expect(error or got == (how == "something"), f"{got}")
    if how == "something":
        expect(wait_until(lambda: channel.rx.pop() is not None), "nothing came")
    works(path, sock, channel)
    close(channel)


def signals(path, ordinary=False):
    """fcntl(O_ASYNC)."""
    sock = path.bound(ordinary)
    channel = None if ordinary else kopi.Channel(sock, **SMALL)
    flags = fcntl.fcntl(sock, fcntl.F_GETFL)
    yield lambda: fcntl.fcntl(sock, fcntl.F_SETFL, flags | os.O_ASYNC)
    fcntl.fcntl(sock, fcntl.F_SETFL, flags)
    works(path, sock, channel)
    close(channel or sock)


def close_idle(path, ordinary=False, channel=True):
    """close(), the last use of a flow."""
    sock = path.bound(ordinary)
    rings = kopi.Channel(sock, **SMALL) if channel and not ordinary else None
    works(path, sock, rings)
    fd = sock.detach()
    if rings:
        rings.region.close()
    yield lambda: os.close(fd)


def unmap_last(path):
    """munmap(), the last use of a flow."""
    channel = kopi.Channel(path.bound(), **SMALL)
    works(path, channel.sock, channel)
    where = kopi.ctypes.c_void_p(kopi.libc.mmap(None, channel.size, 3, mmap.MAP_SHARED,
                                                channel.sock.fileno(), 0))
    close(channel)

    def call():
        if kopi.libc.munmap(where, kopi.ctypes.c_size_t(channel.size)):
            raise OSError(kopi.ctypes.get_errno(), "munmap")
    _, error = yield call
    if error:
        call()


def close_in_flight(path):
    """close(), while the stack has frames."""
    channel = kopi.Channel(path.bound())
    channel.sock.connect(path.to)
    path.drain()
    data = [payload(number, BIG) for number in range(8)]
    for number, one in enumerate(data):
        channel.send(number, one)
    channel.bell()
    pending = channel.stats()["tx_pending"]
    expect(pending == 8, f"{pending} frames are pending")
    fd = channel.sock.detach()
    channel.region.close()
    yield lambda: os.close(fd)
    expect(memory.module_users() > 0, "nothing is held")
    got = [receive(path.peer)[0] for _ in data]
    expect(got == data, "what was held isn't what arrives")
    expect(wait_until(memory.is_unused), "the module is in use")


def pass_out(path, ordinary=False):
    """sendmsg(SCM_RIGHTS)."""
    yield from passing(path, ordinary, True)


def pass_in(path, ordinary=False):
    """recvmsg() of SCM_RIGHTS."""
    yield from passing(path, ordinary, False)


def passing(path, ordinary, out):
    """Passes a flow's descriptor to this process itself."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sock = path.bound(ordinary)
    channel = None if ordinary else kopi.Channel(sock, **SMALL)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))]

    def give():
        return left.sendmsg([b"x"], rights)

    def take():
        return right.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_DONTWAIT)
    if out:
        _, error = yield give
        if error:
            give()
        got = take()
    else:
        give()
        got, error = yield take
        if error:
            # It may be there still, or be lost.
            with contextlib.suppress(BlockingIOError):
                got = take()
    if got and got[1]:
        fd = array.array("i", got[1][0][2])[0]
        sock.close()
        sock = socket.socket(fileno=fd) if ordinary else kopi.Flow(fileno=fd)
        if channel:
            channel.sock = sock
    else:
        expect(not out, "what was sent doesn't come")
    works(path, sock, channel)
    close(channel or sock, left, right)


def attach(ynl, expected):
    """device-attach; `wanted` is what its XDP program, if there were one, would share with the module."""
    request = {"ifindex": socket.if_nametoindex("eth0")}
    if expected is not None:
        request["port-map"] = kopi.ctypes.addressof(expected)

    def call():
        try:
            ask(ynl, "device-attach", request)
        except NlError as refusal:
            raise OSError(refusal.error, "device-attach") from refusal
    _, error = yield call
    # An answer, too, may find no memory.
    attached = ynl.dump("device-get", {})
    expect(bool(attached) == (error == 0) or error == errno.ENOBUFS, f"attached: {attached}")
    if attached:
        ask(ynl, "device-detach", {"ifindex": request["ifindex"]})
    left = [name for _, name in socket.if_nameindex() if name.startswith("kopirx")]
    expect(not left, f"{left} is left")


@contextlib.contextmanager
def slow(device, delay):
    """A device that takes its time, in ms, so that the stack has frames meanwhile."""
    sh(f"tc qdisc add dev {device} root netem delay {delay}ms")
    try:
        yield
    finally:
        sh(f"tc qdisc del dev {device} root")


def entries(paths):
    """Name, steps, the same of an ordinary socket if it has such a call, and what is around it."""
    lo4, lo6, nic4, nic6, veth = (paths[name] for name in ("lo4", "lo6", "nic4", "nic6", "veth"))

    def both(name, steps, path, **kind):
        return (f"{name}, {path.name}", lambda: steps(path, **kind),
                lambda: steps(path, ordinary=True, **kind))

    def own(name, steps, path, *arguments):
        return f"{name}, {path.name}", lambda: steps(path, *arguments), None

    for path in lo4, lo6:
        yield both("socket", new_socket, path)
        yield both("bind", bind, path)
        yield both("connect", connect, path)
        yield (f"bind with a channel, {path.name}", lambda path=path: bind(path, channel=True),
               lambda path=path: bind(path, ordinary=True))
        yield (f"connect with a channel, {path.name}", lambda path=path: connect(path, channel=True),
               lambda path=path: connect(path, ordinary=True))
    yield own("channel, small", open_channel, lo4, SMALL)
    yield own("channel, small, GSO packets", open_channel, lo6, SMALL | {"flags": OFFLOADS})
    yield own("channel, large, GSO packets", open_channel, lo4, LARGE | {"flags": OFFLOADS})
    yield own("options", get_options, lo4)
    yield own("join, the first", join, lo4, 0)
    yield own("join, GSO packets", join, lo6, 0, OFFLOADS)
    yield own("join, the seventeenth", join, lo4, 15)
    yield own("mmap", map_region, lo4)
    yield own("touch", touch, lo4)
    yield own("mprotect", call_on_region("mprotect", 1), lo4)
    yield own("munmap", call_on_region("munmap"), lo4)
    for path in lo4, lo6, nic4, nic6, veth:
        for kind, (_, _, referred) in KINDS.items():
            # Where it can be; and each datagram that a NIC's driver cuts a GSO packet into takes long.
            if (path in (nic4, nic6) and (referred or kind == "GSO packet of metadata")
                    or path is veth and not referred):
                continue
            known = [0]
            yield (f"doorbell, {kind}, {path.name}",
                   lambda path=path, kind=kind, known=known: doorbell(path, kind, known),
                   lambda path=path, kind=kind: send(path, kind, ordinary=True), known)
    for path in lo4, nic6:
        for kind in "copied", "metadata", "by reference", "gso":
            yield both(f"sendmsg, {kind}", send, path, kind=kind)
        yield (f"sendmsg beside rings, {path.name}",
               lambda path=path: send(path, "copied", channel=True),
               lambda path=path: send(path, "copied", ordinary=True))
        yield both("recvmsg", recv, path)
        yield both("error queue", error_queue, path)
    yield both("poll", poll_many, lo4)
    yield both("poll that sleeps", poll_many, lo6, timeout=10)
    yield both("epoll", epoll_add, lo4)
    yield own("doorbell that sleeps for nothing", sleep, lo4, "nothing")
    yield own("doorbell that sleeps for something", sleep, lo4, "something")
    yield both("O_ASYNC", signals, lo4)
    yield both("pass a descriptor", pass_out, lo4)
    yield both("get a descriptor", pass_in, lo4)
    yield both("close", close_idle, lo4)
    yield both("close without a channel", close_idle, lo6, channel=False)
    yield own("munmap of a closed flow", unmap_last, lo4)
    yield own("close with frames in flight", close_in_flight, veth)
    yield own("fork", fork, lo4)
    with namespace("host"):
        ynl = family()
    expected = kopi.ctypes.c_char.from_buffer(mmap.mmap(-1, 3 * mmap.PAGESIZE))
    yield "attach a device", lambda: attach(ynl, None), None
    yield "attach a device, receiving", lambda: attach(ynl, expected), None


def names(numbers):
    """Errnos in words."""
    return " ".join(errno.errorcode[number] + (f":{count}" if count else "")
                    for number, count in sorted(numbers.items())) or "none"


def around(name):
    """What is to be there while an entry point is tried."""
    if "in flight" in name:
        return slow("near", 300)
    return slow("near", 100) if name.endswith("veth") else contextlib.nullcontext()


# Memory runs out in these, too: in those that allocate for themselves. Not in fork(), which passes
# that on to the child.
DRY = re.compile("socket|connect|channel|join|mmap|munmap|doorbell, (copied|by reference|GSO packet), lo|O_ASYNC|"
                 "epoll|pass|close|attach")


def attempt(name, steps, ordinary, kernel_memory):
    """Tries an entry point: the faults, the refusals, and what was wrong."""
    kilobytes = kernel_memory()
    # A process has many mappings that are none of KOPI's.
    step = 7 if name.startswith("fork") else 1
    number, errors, wrong = in_turn(steps, nth, itertools.count(1, step))
    allowed, of_ordinary = dict.fromkeys(DOCUMENTED, 0), ""
    if ordinary:
        count, usual, bad = in_turn(ordinary, nth, itertools.count(1))
        allowed |= dict.fromkeys(usual, 0)
        wrong += [f"of an ordinary socket: {one}" for one in bad]
        of_ordinary = f", of an ordinary socket's {count}"
    points = 0
    if DRY.search(name):
        points, more, bad = in_turn(steps, runs_out, RunsOut.spaces())
        errors += more
        wrong += [f"memory runs out: {one}" for one in bad]
        if ordinary:
            allowed |= dict.fromkeys(in_turn(ordinary, runs_out, RunsOut.spaces())[1], 0)
    if set(errors) - set(allowed):
        wrong.append(f"documented are {names(allowed)}")
    if not wait_until(memory.is_unused):
        wrong.append(f"{memory.module_users()} references to the module are left")
    if not wait_until(lambda: kernel_memory() - kilobytes < faults.SLACK_KB, 10):
        wrong.append(f"{kernel_memory() - kilobytes} KB of kernel memory are left")
    kopi.check(f"{name}: {number} allocations fail in turn{of_ordinary}; memory runs out at {points} "
               f"points; errnos: {names(errors)}", not wrong, "; ".join(wrong))
    return collections.Counter(faults=number, points=points, refused=sum(errors.values()))


def main():
    """Tries all."""
    kopi.send_by_reference()
    paths = {"lo4": faults.Path("lo4", "127.0.0.1", "127.0.0.1", "host"),
             "lo6": faults.Path("lo6", "::1", "::1", "host"),
             "nic4": faults.Path("nic4", "192.0.2.1", "192.0.2.2", "peer"),
             "nic6": faults.Path("nic6", "2001:db8::1", "2001:db8::2", "peer"),
             "veth": faults.Path("veth", "198.51.100.1", "198.51.100.2", "away")}
    expected = re.compile(os.environ.get("FAULTS", ""))
    chosen = [entry for entry in entries(paths) if expected.search(entry[0])]
    with faults.own_cgroup() as kernel_memory, namespace("host"):
        # What is made once only, such as modules that are loaded and neighbours that are found.
        for name, steps, ordinary, *_ in chosen:
            with around(name):
                for one in filter(None, (steps, ordinary)):
                    with contextlib.suppress(Wrong, OSError):
                        once(one, nth, 1 << 30)
        gc.collect()
        gc.disable()
        faults.forget_leaks()
        before = memory.slabs()
        total = collections.Counter()
        for name, steps, ordinary, *known in chosen:
            start = time.monotonic()
            if known:
                known[0][0] = faults.losses("host", "away" if "veth" in name else "peer")
            with around(name):
                total += attempt(name, steps, ordinary, kernel_memory)
            print(f"#   {time.monotonic() - start:.1f} s", flush=True)
        gc.enable()
        for name in ("by reference, veth", "chain, veth", "GSO packet by reference, veth"):
            if name in by_reference:
                kopi.check(f"{name}: the stack did have the frames", by_reference[name] > 0)
        print(f"# {len(chosen)} entry points: {total['faults']} allocations failed in turn, memory ran out at "
              f"{total['points']} points, {total['refused']} errors")
        print(f"# lost after the stack took them, and counted by it: {dict(lost)}")
    faults.check_all_is_back(before)


faults.add_veth()
try:
    with faults.settings({"failslab/ignore-gfp-wait": "N", "failslab/verbose": 0,
                          "failslab/task-filter": "Y", "failslab/probability": 100,
                          "failslab/times": 0, "failslab/space": 0,
                          "fail_page_alloc/ignore-gfp-wait": "N", "fail_page_alloc/min-order": 0,
                          "fail_page_alloc/verbose": 0}):
        main()
finally:
    faults.remove_veth()
kopi.finish()
