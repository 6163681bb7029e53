#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A stream does what a TCP socket does: each call gives the same by both."""

import array
import ctypes
import errno
import hashlib
import mmap
import os
import random
import select
import socket
import struct
import threading

import kopi
from kopi import CHANNEL, JOIN, SOL_KOPI, TCP, TCP6, check, connection, expect, fails, listener, plain_stream, stream
from linux import MSG_FASTOPEN, MSG_ZEROCOPY, SO_PEEK_OFF, SO_ZEROCOPY, TCP_FASTOPEN, TCP_ZEROCOPY_RECEIVE

TCP_FASTOPEN_CONNECT = 30
PROTOS = (0, TCP, TCP6)


def same(case):
    """The case gives the same with plain sockets and with streams."""
    for proto in (0, TCP6):
        results = []
        for make in (plain_stream, stream):
            try:
                results.append(case(make, proto))
            except OSError as error:
                results.append(errno.errorcode[error.errno])
        check(f"{case.__name__}, IPv{6 if proto == TCP6 else 4}",
              results[0] == results[1] and results[0] not in (None, False) and not isinstance(results[0], str),
              f"TCP {results[0]}, KOPI {results[1]}")


def receive(sock, size):
    """That many bytes."""
    got = b""
    while len(got) < size and (more := sock.recv(size - len(got))):
        got += more
    return got


def both_ways(make, proto):
    """Megabytes in random pieces in both directions at once."""
    one, other = connection(proto, make=make)
    pieces = random.Random(7)
    data = pieces.randbytes(3_000_000)
    sums = {}

    def send(sock):
        place = 0
        while place < len(data):
            place += sock.send(data[place:place + pieces.randrange(1, 200_000)])
        sock.shutdown(socket.SHUT_WR)

    def read(name, sock):
        total = hashlib.sha256()
        while got := sock.recv(pieces.randrange(1, 300_000)):
            total.update(got)
        sums[name] = total.hexdigest()

    threads = [threading.Thread(target=send, args=(one,)), threading.Thread(target=send, args=(other,)),
               threading.Thread(target=read, args=("one", one)), threading.Thread(target=read, args=("other", other))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one.close()
    other.close()
    expect(set(sums.values()) == {hashlib.sha256(data).hexdigest()}, "what was sent", sums)
    return sums


def options(make, proto):
    """What a socket says about itself."""
    one, other = connection(proto, make=make)
    with one, other:
        names = [one.getsockname()[0], one.getpeername() == other.getsockname(), other.getpeername() == one.getsockname()]
        values = [sock.getsockopt(socket.SOL_SOCKET, name) for sock in (one, other) for name in (
            socket.SO_TYPE, socket.SO_DOMAIN, socket.SO_PROTOCOL, socket.SO_ACCEPTCONN, socket.SO_ERROR)]
        return names, values, one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)[:1]


def refused_connects(make, proto):
    """A port without listener; a socket that's connected already; AF_UNSPEC."""
    got = []
    with make(proto) as sock:
        with make(proto) as unused:
            unused.bind(("::1" if proto == TCP6 else "127.0.0.1", 0))
            address = unused.getsockname()
        for _ in range(2):
            try:
                sock.connect(address)
            except OSError as error:
                got.append(error.errno)
    one, other = connection(proto, make=make)
    with one, other:
        try:
            one.connect(other.getsockname())
        except OSError as error:
            got.append(error.errno)
        got.append(kopi.libc.connect(one.fileno(), struct.pack("=H14x", 0), 16))
        try:
            other.recv(1)
        except OSError as error:
            got.append(error.errno)
        try:
            one.send(b"x")
        except OSError as error:
            got.append(error.errno)
    return got


def nonblocking(make, proto):
    """connect() in the background, accept() and recv() with nothing there, poll()."""
    got = []
    with listener(proto, make=make) as waits, make(proto) as one:
        waits.setblocking(False)
        one.setblocking(False)
        try:
            waits.accept()
        except OSError as error:
            got.append(error.errno)
        got.append(one.connect_ex(waits.getsockname()))
        poller = select.poll()
        poller.register(one, select.POLLOUT)
        got.append(poller.poll(5000)[0][1])
        got.append(one.connect_ex(waits.getsockname()))
        got.append(one.connect_ex(waits.getsockname()))
        select.select([waits], [], [], 5)
        other, _ = waits.accept()
        with other:
            try:
                one.recv(1)
            except OSError as error:
                got.append(error.errno)
            other.send(b"x")
            select.select([one], [], [], 5)
            got.append(one.recv(5))
    return got


def connect_times_out(make, proto):
    """SO_SNDTIMEO ends the wait of connect(), and another goes on with it."""
    with listener(proto, make=make, backlog=0) as waits:
        fillers = []
        for _ in range(3):
            filler = make(proto)
            filler.setblocking(False)
            filler.connect_ex(waits.getsockname())
            fillers.append(filler)
        with make(proto) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 200_000))
            got = [one.connect_ex(waits.getsockname()), one.connect_ex(waits.getsockname())]
        for filler in fillers:
            filler.close()
    return got


def half_close(make, proto):
    """The other direction stays open."""
    one, other = connection(proto, make=make)
    with one, other:
        one.shutdown(socket.SHUT_WR)
        got = [other.recv(5)]
        other.send(b"still")
        got.append(one.recv(10))
        try:
            one.send(b"x")
        except OSError as error:
            got.append(error.errno)
        return got


def linger(make, proto):
    """SO_LINGER 0 resets."""
    one, other = connection(proto, make=make)
    with other:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
        one.close()
        try:
            return [other.recv(1)]
        except OSError as error:
            return [error.errno]


def urgent(make, proto):
    """MSG_OOB, SIOCATMARK's neighbour SO_OOBINLINE."""
    one, other = connection(proto, make=make)
    with one, other:
        one.send(b"ab")
        one.send(b"!", socket.MSG_OOB)
        one.send(b"cd")
        select.select([], [], [other], 5)
        return other.recv(1, socket.MSG_OOB), receive(other, 2), receive(other, 2)


def peek_off(make, proto):
    """SO_PEEK_OFF moves with each peek."""
    one, other = connection(proto, make=make)
    with one, other:
        other.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0)
        one.send(b"abcdef")
        return (other.recv(2, socket.MSG_PEEK), other.recv(2, socket.MSG_PEEK), other.recv(3),
                other.recv(3, socket.MSG_PEEK))


def sendfile_and_splice(make, proto):
    """From a file into it, and out of it into a pipe."""
    one, other = connection(proto, make=make)
    data = os.urandom(100_000)
    with one, other, open("/tmp/streams_work", "w+b") as file:
        file.write(data)
        file.flush()
        sender = threading.Thread(target=lambda: [os.sendfile(one.fileno(), file.fileno(), 0, len(data)),
                                                  one.shutdown(socket.SHUT_WR)])
        sender.start()
        reads, writes = os.pipe()
        got = b""
        while count := os.splice(other.fileno(), writes, 30_000):
            got += os.read(reads, count)
        sender.join()
        os.close(reads)
        os.close(writes)
    os.unlink("/tmp/streams_work")
    return got == data


def zerocopy_sends(make, proto):
    """MSG_ZEROCOPY is told of by the error queue."""
    one, other = connection(proto, make=make)
    with one, other:
        one.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        data = os.urandom(30_000)
        sent = one.send(data, MSG_ZEROCOPY)
        same_bytes = receive(other, sent) == data[:sent]
        told = kopi.wait_until(lambda: attempt(lambda: one.recvmsg(1, 512, socket.MSG_ERRQUEUE)))
        return sent, same_bytes, len(told[1])


def attempt(call):
    """The result, or nothing where it would block."""
    try:
        return call()
    except BlockingIOError:
        return None


def zerocopy_receives(make, proto):
    """TCP_ZEROCOPY_RECEIVE takes the socket's own mapping."""
    one, other = connection(proto, make=make)
    with one, other, mmap.mmap(other.fileno(), 65536, mmap.MAP_SHARED, mmap.PROT_READ) as area:
        data = os.urandom(65536)
        sender = threading.Thread(target=lambda: one.sendall(data))
        sender.start()
        got, at = b"", last_mapping()
        while len(got) < len(data):
            request = struct.pack("=QIIIiQIIQQII", at, 65536, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
            value = array.array("B", request)
            size = ctypes.c_int(len(request))
            select.select([other], [], [], 5)
            if kopi.libc.getsockopt(other.fileno(), socket.IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE,
                                    ctypes.c_void_p(value.buffer_info()[0]), ctypes.byref(size)):
                return errno.errorcode[ctypes.get_errno()]
            _, mapped, skip = struct.unpack_from("=QII", value.tobytes())
            got += area[:mapped]
            got += receive(other, skip)
        sender.join()
        return got == data


def last_mapping():
    """Where the mapping of a socket lies."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        return int(next(line.split("-")[0] for line in maps if "socket:" in line), 16)


def fast_open(make, proto):
    """MSG_FASTOPEN and TCP_FASTOPEN_CONNECT: the first time asks for the cookie, the second has it."""
    got = []
    waits = make(proto)
    with waits:
        waits.bind(("::1" if proto == TCP6 else "127.0.0.1", 0))
        waits.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 5)
        waits.listen(5)
        for _ in range(2):
            with make(proto) as one:
                got.append(one.sendto(b"first", MSG_FASTOPEN, waits.getsockname()))
                other, _ = waits.accept()
                with other:
                    got.append(other.recv(10))
        with make(proto) as one:
            one.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
            one.connect(waits.getsockname())
            got.append(one.send(b"later"))
            other, _ = waits.accept()
            with other:
                got.append(other.recv(10))
    return got


def defers(make, proto):
    """TCP_DEFER_ACCEPT: no connection before its data."""
    with listener(proto, make=make) as waits, make(proto) as one:
        waits.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 5)
        one.connect(waits.getsockname())
        waits.setblocking(False)
        got = [attempt(waits.accept)]
        one.send(b"now")
        select.select([waits], [], [], 5)
        other, _ = waits.accept()
        with other:
            got.append(other.recv(5))
        return got


def reuseport(make, proto):
    """Two listeners of a port share connections, also one of each kind."""
    with make(proto) as first, plain_stream(proto) as second:
        for sock in (first, second):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        first.bind(("::1" if proto == TCP6 else "127.0.0.1", 0))
        second.bind(first.getsockname())
        for sock in (first, second):
            sock.listen(64)
        clients = []
        for _ in range(32):
            client = make(proto)
            client.connect(first.getsockname())
            clients.append(client)
        # connect() is over before the listener has heard of it.
        kopi.settle()
        counts = []
        for sock in (first, second):
            sock.setblocking(False)
            count = 0
            while made := attempt(sock.accept):
                made[0].close()
                count += 1
            counts.append(count)
        for client in clients:
            client.close()
        return sum(counts), all(counts)


def shutdowns(make, proto):
    """shutdown() of a listener ends accept(), and it can listen again."""
    got = []
    with listener(proto, make=make) as waits:
        ended = []

        def accept():
            try:
                waits.accept()
            except OSError as error:
                ended.append(error.errno)

        thread = threading.Thread(target=accept)
        thread.start()
        kopi.wait_until(lambda: in_accept(thread))
        waits.shutdown(socket.SHUT_RD)
        thread.join()
        waits.listen(5)
        with make(proto) as one:
            got.append(one.connect_ex(waits.getsockname()))
    return ended, got


def in_accept(thread):
    """Whether the thread sleeps in accept(2) or accept4(2)."""
    with open(f"/proc/self/task/{thread.native_id}/syscall", encoding="ascii") as call:
        return call.read().split()[0] in ("43", "288")


def has_no_channel():
    """What is of channels is refused."""
    with stream() as sock:
        fails("CHANNEL", errno.EOPNOTSUPP, lambda: sock.setsockopt(SOL_KOPI, CHANNEL, kopi.request()))
        fails("JOIN", errno.EOPNOTSUPP, lambda: sock.setsockopt(SOL_KOPI, JOIN, kopi.join_request(sock)))
        fails("the doorbell", errno.EOPNOTSUPP, lambda: kopi.fcntl.ioctl(sock.fileno(), kopi.DOORBELL, 1))
        fails("no layout", errno.ENOTCONN, lambda: sock.getsockopt(SOL_KOPI, CHANNEL, 256))
        with kopi.flow() as datagram:
            fails("a datagram flow joins it", errno.ENOTCONN,
                  lambda: datagram.setsockopt(SOL_KOPI, JOIN, kopi.join_request(sock)))
        check("info", struct.unpack_from("=4I", sock.getsockopt(SOL_KOPI, kopi.INFO, 64))
              == (kopi.ABI_VERSION, kopi.AF_KOPI, 0, 0))
    for what, kind, proto, number in (("SOCK_DGRAM of TCP", socket.SOCK_DGRAM, TCP, errno.EPROTONOSUPPORT),
                                      ("SOCK_STREAM of UDP", socket.SOCK_STREAM, 17, errno.EPROTONOSUPPORT),
                                      ("SOCK_STREAM of MPTCP", socket.SOCK_STREAM, 262 + 256, errno.EPROTONOSUPPORT),
                                      ("SOCK_SEQPACKET", socket.SOCK_SEQPACKET, 0, errno.ESOCKTNOSUPPORT)):
        fails(what, number, lambda kind=kind, proto=proto: socket.socket(kopi.AF_KOPI, kind, proto))


def counts():
    """KOPI_OPT_STATS has what TCP counts."""
    one, other = connection()
    with one, other:
        one.sendall(bytes(5000))
        receive(other, 5000)
        sent = dict(zip(kopi._counters(), struct.unpack("=32Q", one.getsockopt(SOL_KOPI, kopi.STATS, 256))))
        came = dict(zip(kopi._counters(), struct.unpack("=32Q", other.getsockopt(SOL_KOPI, kopi.STATS, 256))))
        check("bytes are counted", (sent["tx_bytes"], came["rx_bytes"]) == (5000, 5000), (sent, came))
        check("segments are counted", 0 < sent["tx_packets"] == sent["tx_taken"]
              and came["rx_packets"] == came["rx_taken"] > 0, (sent, came))


with open("/proc/sys/net/ipv4/tcp_fastopen", "w", encoding="ascii") as sysctl:
    sysctl.write("3")
for call in (both_ways, options, refused_connects, nonblocking, connect_times_out, half_close, linger, urgent, peek_off,
             sendfile_and_splice, zerocopy_sends, zerocopy_receives, fast_open, defers, reuseport, shutdowns):
    kopi.attempt(same, call)
kopi.attempt(has_no_channel)
kopi.attempt(counts)
kopi.finish()
