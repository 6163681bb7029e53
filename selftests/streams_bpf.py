#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""BPF programs see a stream's connections as those of TCP sockets, and choose among streams that share a port."""

import errno
import os
import select
import socket
import struct
import time

import bpf
import kopi
import memory
from kopi import TCP6, attempt, check, fails, listener, plain_stream, stream, wait_until
from linux import SO_ATTACH_REUSEPORT_EBPF, SO_COOKIE

GROUP = "/sys/fs/cgroup/streams-bpf"
# Those that the programs look at, and the operations of sockops, of bpf(2).
PORTS = iter(range(7400, 7500))
OPERATIONS = ("void timeout_init rwnd_init connect active_established passive_established needs_ecn base_rtt rto "
              "retrans state listen rtt parse_hdr hdr_opt_len write_hdr tstamp_sched tstamp_sw tstamp_hw tstamp_ack").split()


def counted():
    """How often which operation came."""
    counts = (struct.unpack("=Q", bpf.lookup("operations", number, 8))[0] for number in range(len(OPERATIONS)))
    return {name: count for name, count in zip(OPERATIONS, counts) if count}


def end_of(sock, number):
    """What the program saw of an end that isn't what it is, or nothing."""
    cookie, *seen = struct.unpack("=Q4I", bpf.lookup("ends", number, 24))
    family = socket.AF_INET6 if sock.family == socket.AF_INET6 else socket.AF_INET
    own = struct.unpack("=Q", sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]
    is_so = [family, sock.getsockname()[1], sock.getpeername()[1]]
    return None if (cookie, seen[:3]) == (own, is_so) else (cookie, seen, own, is_so)


def connects(make, proto):
    """A connection from listen() to its end: the operations, what is wrong, and the congestion control of its ends."""
    for number in range(len(OPERATIONS)):
        bpf.update("operations", number, bytes(8))
    with listener(proto, ("::1" if proto else "127.0.0.1", next(PORTS)), make=make) as waits, make(proto) as one:
        one.connect(waits.getsockname())
        other, _ = waits.accept()
        with other:
            wrong = [end_of(one, 0), end_of(other, 1)]
            for sender, reader in ((one, other), (other, one)):
                sender.sendall(b"data")
                assert reader.recv(10) == b"data"
            ways = [sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).strip(b"\0") for sock in (one, other)]
            one.shutdown(socket.SHUT_WR)
            assert other.recv(1) == b""
        assert one.recv(1) == b""
    # The last ACK, and TIME_WAIT, which may come in other contexts.
    counts = []
    wait_until(lambda: (counts.append(counted()), time.sleep(0.1), counts[-2:-1] == counts[-1:])[2], 10)
    return counts[-1], wrong, ways


def sockops_see_them():
    """The same operations, of the socket that the program has, which may set its options."""
    os.makedirs(GROUP, exist_ok=True)
    target = os.open(GROUP, os.O_RDONLY)
    detach = bpf.attach(target, "sockops_count", "cgroup_sock_ops")
    os.close(target)
    with open("/proc/self/cgroup", encoding="ascii") as own:
        home = "/sys/fs/cgroup" + own.read().strip().split("::")[1]
    kopi.move_to(GROUP)
    try:
        for proto in (0, TCP6):
            version = 6 if proto else 4
            # A machine that stood still sends something again, which is an operation, too.
            for _ in range(3):
                usual, seen = connects(plain_stream, proto), connects(stream, proto)
                if usual[0] == seen[0]:
                    break
                print(f"# once more: {usual[0]}, {seen[0]}")
            check(f"sockops: the same operations, IPv{version}", usual[0] == seen[0] and "state" in seen[0]
                  and {"connect", "active_established", "passive_established", "listen"} <= seen[0].keys(), (usual, seen))
            check(f"of these sockets, IPv{version}", seen[1] == [None, None], seen[1])
            check(f"options that they set hold, IPv{version}", seen[2] == [b"reno", b"reno"] == usual[2], seen[2])
    finally:
        kopi.move_to(home)
        detach()
        wait_until(lambda: not os.rmdir(GROUP))


def takes(socks):
    """How many connections each listener has."""
    counts = []
    for sock in socks:
        count = 0
        while select.select([sock], [], [], 0)[0]:
            sock.accept()[0].close()
            count += 1
        counts.append(count)
    return counts


def programs_choose():
    """Among two streams and a plain socket; what one has not accepted goes where the program says when it ends."""
    for proto in (0, TCP6):
        version, address = (6, "::1") if proto else (4, "127.0.0.1")
        port = next(PORTS)
        socks = [stream(proto), stream(proto), plain_stream(proto)]
        for number, sock in enumerate(socks):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((address, port))
            sock.listen(16)
            bpf.update("listeners", number, struct.pack("=Q", sock.fileno()))
        program = bpf.pinned("choose")
        socks[0].setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, program)
        os.close(program)
        clients = []

        def connect():
            for _ in range(8):
                clients.append(plain_stream(proto))
                clients[-1].connect((address, port))

        for number in (1, 2, 0):
            bpf.update("choice", 0, struct.pack("=Q", number))
            connect()
            expected = [8 if each == number else 0 for each in range(3)]
            got = takes(socks)
            check(f"the program chooses number {number}, IPv{version}", got == expected, got)
        # To the plain socket and back to a stream.
        for leaves, number in ((0, 2), (2, 1)):
            bpf.update("choice", 0, struct.pack("=Q", leaves))
            connect()
            bpf.update("choice", 1, bytes(8))
            bpf.update("choice", 0, struct.pack("=Q", number))
            socks[leaves].close()
            left = [sock for sock in socks if sock.fileno() >= 0]
            moved = struct.unpack("=Q", bpf.lookup("choice", 1, 8))[0]
            got = takes(left)
            expected = [8 if sock is socks[number] else 0 for sock in left]
            check(f"and where connections of number {leaves} go that ends, IPv{version}", (got, moved) == (expected, 8),
                  (got, moved))
        for sock in (*clients, *socks):
            sock.close()


def listens_after_a_refused_connection():
    """A map of listeners takes a stream that first tried to connect, in vain: it has given sk_user_data up."""
    for proto in (0, TCP6):
        sock, closed = stream(proto), plain_stream(proto)
        closed.bind(("::1" if proto else "127.0.0.1", 0))
        fails("a port that nobody listens at", errno.ECONNREFUSED,
              lambda sock=sock, closed=closed: sock.connect(closed.getsockname()[:2]))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.listen(16)
        bpf.update("listeners", 0, struct.pack("=Q", sock.fileno()))
        check(f"a stream listens after a refused connection, and a map takes it, IPv{6 if proto else 4}", True)
        sock.close()
        closed.close()


bpf.load("streams")
try:
    for case in (sockops_see_them, programs_choose, listens_after_a_refused_connection):
        attempt(case)
finally:
    bpf.unload()
check("nothing holds the module", memory.wait_until_unused(), memory.module_users())
kopi.finish()
