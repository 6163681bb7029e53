# SPDX-License-Identifier: GPL-2.0
"""Steps of allocations_fail: all calls that don't send."""

import array
import contextlib
import errno
import fcntl
import mmap
import os
import select
import socket
import struct

import faults
import kopi
import memory
from control import NlError, ask
from equivalence import namespace
from faults import receive, works
from kopi import expect, wait_until
from linux import IPV6_RECVPKTINFO, IP_PKTINFO, SO_TIMESTAMP
from sending import BIG, SMALL, as_ordinary, close, gro, has_channel, payload

# mmap() gives a pointer.
kopi.libc.mmap.restype = kopi.ctypes.c_void_p


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
    """setsockopt(JOIN), of a channel that has a number of flows already."""
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
