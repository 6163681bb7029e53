# SPDX-License-Identifier: GPL-2.0
"""Makes random calls on UDP sockets, and says what each gave: run_calls.py SEED COUNT

For preload_differs_not.py, in a network namespace of its own. What is said must not depend on time."""

import ctypes
import errno
import os
import random
import select
import socket
import struct
import subprocess
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from kopi import settle
from linux import (Iovec, Mmsghdr, IP_MTU_DISCOVER, IP_PKTINFO, IP_RECVERR, IP_RECVTOS, IP_RECVTTL,
                   IPV6_PKTINFO, IPV6_RECVERR, IPV6_RECVHOPLIMIT, IPV6_RECVPKTINFO, IPV6_RECVTCLASS, SO_TIMESTAMPNS,
                   UDP_CORK, UDP_GRO, UDP_SEGMENT)

LIBC = ctypes.CDLL(None, use_errno=True)
SOL_KOPI, OPT_STATS = 0x4b4f, 4
MSG_MORE, MSG_WAITFORONE, MSG_ERRQUEUE, MSG_CONFIRM = 0x8000, 0x10000, 0x2000, 0x800
IP_RECVORIGDSTADDR, SO_RXQ_OVFL = 20, 40


def named(error):
    return errno.errorcode.get(error, error)


def packed(address):
    """A sockaddr, as bytes."""
    if address is None:
        return b""
    host, port = address[:2]
    if ":" in host:
        return struct.pack("=HHI16sI", socket.AF_INET6, socket.htons(port), 0,
                           socket.inet_pton(socket.AF_INET6, host), 0)
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(host))


def mmsghdrs(messages, room=0):
    """An array for sendmmsg (payload, address, control) or, with `room`, for recvmmsg."""
    array, keep = (Mmsghdr * len(messages))(), []
    for entry, (payload, address, control) in zip(array, messages):
        data = ctypes.create_string_buffer(payload, max(len(payload), 1) if not room else room)
        pieces = (Iovec * 2)()
        cut = 0 if room else len(payload) // 3
        pieces[0] = Iovec(ctypes.addressof(data), room or cut)
        pieces[1] = Iovec(ctypes.addressof(data) + cut, 0 if room else len(payload) - cut)
        name = ctypes.create_string_buffer(packed(address), 28)
        ctl = ctypes.create_string_buffer(control, 256)
        keep.append((data, pieces, name, ctl))
        entry.hdr.iov, entry.hdr.iovlen = pieces, 2
        if room or address is not None:
            entry.hdr.name = ctypes.addressof(name)
            entry.hdr.namelen = 28 if room else len(packed(address))
        if room or control:
            entry.hdr.control = ctypes.addressof(ctl)
            entry.hdr.controllen = 256 if room else len(control)
    return array, keep


class Calls:
    """The sockets, and the calls on them."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.ipv6 = self.random.random() < 0.4
        self.family = socket.AF_INET6 if self.ipv6 else socket.AF_INET
        self.local = "::1" if self.ipv6 else "127.0.0.1"
        self.sockets, self.copies, self.made = [], [], 0
        self.by_rings = 0
        for _ in range(3):
            self.open()

    def say(self, what, result):
        print(what, result, flush=True)

    def attempt(self, what, call):
        try:
            self.say(what, call())
        except OSError as error:
            self.say(what, named(error.errno))

    def open(self):
        sock = socket.socket(self.family, socket.SOCK_DGRAM)
        number = self.made % 40
        self.made += 1
        sock.setblocking(False)
        # SO_RCVBUFFORCE. What fits into less depends on the memory of an skb, which isn't the same.
        sock.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)
        if self.ipv6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if self.random.random() < 0.9:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.local if self.random.random() < 0.7 else "::" if self.ipv6 else "0.0.0.0", 5000 + number))
        self.sockets.append(sock)
        self.say("open", (sock.getsockname()[:2], sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN),
                          sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE),
                          sock.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL)))

    def pick(self):
        return self.random.choice(self.sockets + self.copies)

    def peer(self):
        port = self.random.choice([5000 + self.random.randrange(self.made), 6999, 0] + 3 * [
            sock.getsockname()[1] for sock in self.sockets])
        host = self.random.choice(8 * [self.local] + (["::ffff:127.0.0.1", "2001:db8::1"] if self.ipv6 else
                                                      ["127.1.2.3", "0.0.0.0", "192.0.2.1", "255.255.255.255"]))
        return host, port

    def payload(self):
        size = self.random.choice([0, 1, 20, 20, 100, 100, 1000, 1983, 1984, 1985, 4000, 65507, 70000])
        return bytes(self.random.randrange(256) for _ in range(min(size, 8))).ljust(size, b".")[:size]

    def control(self):
        """Control messages for sending, in the shape of Python's sendmsg()."""
        way = self.random.randrange(10)
        if way < 5:
            return []
        if self.ipv6:
            info = struct.pack("=16si", socket.inet_pton(socket.AF_INET6, self.local),
                               self.random.choice([0, 0, 1, 77]))
            return [[(socket.IPPROTO_IPV6, IPV6_PKTINFO, info)], [(socket.IPPROTO_IPV6, 52, b"\7\0\0\0")],
                    [(socket.IPPROTO_IPV6, IPV6_PKTINFO, info), (socket.IPPROTO_IPV6, 67, b"\x10\0\0\0")],
                    [(socket.IPPROTO_IPV6, IPV6_PKTINFO, info[:7])], [(99, 99, b"")]][way - 5]
        info = struct.pack("=i4s4s", self.random.choice([0, 0, 1, 77]),
                           socket.inet_aton(self.random.choice(["127.0.0.1", "127.9.9.9", "0.0.0.0", "198.51.100.1"])),
                           bytes(4))
        return [[(socket.IPPROTO_IP, IP_PKTINFO, info)], [(socket.IPPROTO_IP, socket.IP_TTL, b"\7\0\0\0")],
                [(socket.IPPROTO_IP, IP_PKTINFO, info), (socket.IPPROTO_IP, socket.IP_TOS, b"\x10\0\0\0")],
                [(socket.IPPROTO_IP, IP_PKTINFO, info[:7])], [(99, 99, b"")]][way - 5]

    def flags(self):
        return self.random.choice([0] * 12 + [socket.MSG_DONTWAIT, MSG_CONFIRM, socket.MSG_NOSIGNAL, socket.MSG_OOB])

    # What follows are the calls.

    def sendto(self):
        sock, data, peer, flags = self.pick(), self.payload(), self.peer(), self.flags()
        self.attempt(f"sendto {len(data)} {peer} {flags:#x}", lambda: sock.sendto(data, flags, peer))

    def send(self):
        sock, data, flags = self.pick(), self.payload(), self.flags()
        self.attempt(f"send {len(data)}", lambda: sock.send(data, flags))

    def write(self):
        sock, data = self.pick(), self.payload()
        if data:
            self.attempt(f"write {len(data)}", lambda: os.write(sock.fileno(), data))

    def writev(self):
        sock, data = self.pick(), self.payload()
        self.attempt(f"writev {len(data)}", lambda: os.writev(sock.fileno(), [data[:3], data[3:]]))

    def sendmsg(self):
        sock, data, control, flags = self.pick(), self.payload(), self.control(), self.flags()
        peer = self.peer() if self.random.random() < 0.8 else None
        args = [[data[:5], data[5:]], control, flags] + ([peer] if peer else [])
        self.attempt(f"sendmsg {len(data)} {peer} {control}", lambda: sock.sendmsg(*args))

    def sendmmsg(self):
        sock, count = self.pick(), self.random.choice([0, 1, 2, 5, 30, 70])
        messages = []
        odd = self.random.random() < 0.4
        for _ in range(count):
            payload = self.payload() if odd and self.random.random() < 0.2 else b"x" * self.random.choice([1, 50, 200])
            peer = self.peer() if odd else (self.local, 5000 + self.random.randrange(min(self.made, 40)))
            messages.append((payload, peer if self.random.random() < 0.9 else None, b""))
        array, keep = mmsghdrs(messages)
        ctypes.set_errno(0)
        sent = LIBC.sendmmsg(sock.fileno(), array, count, self.flags())
        error = ctypes.get_errno()
        self.say(f"sendmmsg {count}", (sent, named(error) if sent < 0 else "",
                                       [entry.len for entry in array[:max(sent, 0)]]))
        del keep

    def sendto_bad(self):
        sock = self.pick()
        bad = self.random.choice([None, ctypes.c_void_p(1), ctypes.c_void_p((1 << 64) - 1), ctypes.c_void_p(4095)])
        self.say("sendto of no memory", (LIBC.sendto(sock.fileno(), bad, 20, 0, bad, 16) < 0, named(ctypes.get_errno())))

    def sendmmsg_bad(self):
        """An empty piece of a message, whose address the kernel compares all the same."""
        sock, bad = self.pick(), self.random.choice([None, 1, 1 << 46, (1 << 47) - 4096, (1 << 47) - 1, 1 << 47, 1 << 63])
        count, at = self.random.choice([1, 5]), self.random.randrange(2)
        array, keep = mmsghdrs([(b"x" * 30, (self.local, 5000), b"")] * count)
        if at:
            pieces = keep[count // 2][1]
            pieces[1] = Iovec(pieces[0].base, pieces[0].len)
            pieces[0] = Iovec(bad, 0)
        else:
            array[count // 2].hdr.iovlen = 1
            keep[count // 2][1][0] = Iovec(bad, 0)
        ctypes.set_errno(0)
        sent = LIBC.sendmmsg(sock.fileno(), array, count, 0)
        self.say(f"sendmmsg {count}, {bad} is empty", (sent, named(ctypes.get_errno()) if sent < 0 else "",
                                                       [entry.len for entry in array[:max(sent, 0)]]))

    def more(self):
        sock, peer = self.pick(), self.peer()
        self.attempt("more", lambda: sock.sendto(b"first ", MSG_MORE, peer))
        if self.random.random() < 0.5:
            self.attempt("another in between", lambda: sock.sendto(b"between ", peer))
        self.attempt("the rest", lambda: sock.sendto(b"second", peer))

    def cork(self):
        if self.random.random() > 0.2:
            return
        sock, peer = self.pick(), self.peer()
        self.attempt("cork", lambda: sock.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1))
        self.attempt("corked", lambda: sock.sendto(b"corked ", peer))
        self.attempt("corked", lambda: sock.sendto(b"together", peer))
        self.attempt("uncork", lambda: sock.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 0))

    def segment(self):
        sock, peer = self.pick(), self.peer()
        self.attempt("segment", lambda: sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 100))
        self.attempt("segmented", lambda: sock.sendto(b"s" * self.random.choice([50, 250, 1500]), peer))
        self.attempt("not", lambda: sock.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, 0))

    def receive(self):
        sock, room = self.pick(), self.random.choice([0, 10, 100, 70000])
        flags = self.random.choice([0, 0, 0, socket.MSG_PEEK, socket.MSG_TRUNC, socket.MSG_PEEK | socket.MSG_TRUNC,
                                    MSG_ERRQUEUE, socket.MSG_DONTWAIT])

        def call():
            data, control, got, peer = sock.recvmsg(room, self.random.choice([0, 40, 1000]), flags)
            # Times are not the same.
            control = [(level, kind, len(data) if (level, kind) == (1, SO_TIMESTAMPNS) else data)
                       for level, kind, data in control]
            return data[:40], len(data), control, got, peer
        self.attempt(f"recvmsg {room} {flags:#x}", call)

    def recvmmsg(self):
        sock, count = self.pick(), self.random.choice([1, 3, 40])
        array, keep = mmsghdrs([(b"", None, b"")] * count, room=200)
        flags = self.random.choice([0, MSG_WAITFORONE])
        got = LIBC.recvmmsg(sock.fileno(), array, count, flags, None)
        error = ctypes.get_errno()
        self.say(f"recvmmsg {count}", (got, named(error) if got < 0 else "", [
            (entry.len, entry.hdr.flags, entry.hdr.namelen, bytes(name)) for entry, (_, _, name, _) in
            zip(array[:max(got, 0)], keep)]))

    def read(self):
        sock = self.pick()
        self.attempt("read", lambda: os.read(sock.fileno(), 100)[:40])

    def ready(self):
        everything = self.sockets + self.copies
        polled, waited = select.poll(), select.epoll()
        for sock in everything:
            polled.register(sock, 0x7fff)
            waited.register(sock, 0x3fff)
        order = {sock.fileno(): number for number, sock in enumerate(everything)}
        self.say("poll", sorted((order[fd], events) for fd, events in polled.poll(0)))
        self.say("epoll", sorted((order[fd], events) for fd, events in waited.poll(0)))
        readable, writable, _ = select.select(everything, everything, everything, 0)
        self.say("select", (len(readable), len(writable)))
        waited.close()

    def option(self):
        sock = self.pick()
        level, name, value = self.random.choice([
            (socket.SOL_SOCKET, SO_TIMESTAMPNS, 1), (socket.SOL_SOCKET, SO_RXQ_OVFL, 1),
            (socket.SOL_SOCKET, socket.SO_SNDBUF, 5000), (socket.SOL_SOCKET, socket.SO_BROADCAST, 1),
            (socket.SOL_SOCKET, socket.SO_PRIORITY, 3), (socket.SOL_SOCKET, socket.SO_MARK, 9),
            (socket.IPPROTO_UDP, UDP_GRO, 1)] + ([
                (socket.IPPROTO_IPV6, IPV6_RECVPKTINFO, 1), (socket.IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1),
                (socket.IPPROTO_IPV6, IPV6_RECVTCLASS, 1), (socket.IPPROTO_IPV6, IPV6_RECVERR, 1)]
                if self.ipv6 else [
                    (socket.IPPROTO_IP, IP_PKTINFO, 1), (socket.IPPROTO_IP, IP_RECVTTL, 1),
                    (socket.IPPROTO_IP, IP_RECVTOS, 1), (socket.IPPROTO_IP, IP_RECVERR, 1),
                    (socket.IPPROTO_IP, IP_RECVORIGDSTADDR, 1), (socket.IPPROTO_IP, socket.IP_TTL, 9),
                    (socket.IPPROTO_IP, socket.IP_TOS, 0x20), (socket.IPPROTO_IP, IP_MTU_DISCOVER, 2)]))
        self.attempt(f"set {level} {name}", lambda: sock.setsockopt(level, name, value))
        self.attempt("get", lambda: sock.getsockopt(level, name))

    def connect(self):
        sock, peer = self.pick(), self.peer()
        self.attempt(f"connect {peer}", lambda: sock.connect(peer))
        self.attempt("peer", lambda: sock.getpeername()[:2])

    def disconnect(self):
        sock = self.pick()
        self.say("disconnect", LIBC.connect(sock.fileno(), b"\0" * 16, 16))

    def error(self):
        sock = self.pick()
        self.say("error", named(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)))

    def shutdown(self):
        if self.random.random() < 0.2:
            sock = self.pick()
            self.attempt("shutdown", lambda: sock.shutdown(self.random.choice([0, 1])))

    def copy(self):
        if len(self.copies) < 4:
            sock = self.random.choice(self.sockets)
            if self.random.random() < 0.5:
                self.copies.append(sock.dup())
            else:
                self.copies.append(socket.socket(fileno=os.dup(sock.fileno())))

    def close(self):
        if self.copies and self.random.random() < 0.5:
            self.leave(self.copies, self.random.randrange(len(self.copies)))
        elif len(self.sockets) > 2 and self.random.random() < 0.3:
            self.leave(self.sockets, self.random.randrange(len(self.sockets)))
            # Its number may be a file's.
            fd = os.open("/dev/null", os.O_WRONLY)
            self.say("null", os.write(fd, b"12345"))
            os.close(fd)
        elif len(self.sockets) < 8:
            self.open()

    def fork(self):
        if self.random.random() > 0.15:
            return
        sock, peer = self.pick(), (self.local, 5000)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            for number in range(3):
                self.attempt("the child sends", lambda number=number: sock.sendto(b"child %d" % number, peer))
            os._exit(0)
        os.waitpid(child, 0)
        self.attempt("the parent sends", lambda: sock.sendto(b"parent", peer))

    def inquire(self):
        sock = self.pick()
        self.say("inquire", struct.unpack("i", __import__("fcntl").ioctl(sock.fileno(), 0x541b, bytes(4)))[0])

    def leave(self, among, number):
        sock = among.pop(number)
        self.count(sock)
        sock.close()

    def count(self, sock):
        try:
            self.by_rings += struct.unpack("=Q", sock.getsockopt(SOL_KOPI, OPT_STATS, 8))[0]
        except OSError:
            pass


def main():
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    # A socket without a port gets that one, or none.
    with open("/proc/sys/net/ipv4/ip_local_port_range", "w", encoding="ascii") as ports:
        ports.write("40000 40000")
    calls = Calls(int(sys.argv[1]))
    ways = [calls.sendto] * 6 + [calls.sendmsg] * 6 + [calls.sendmmsg] * 5 + [calls.receive] * 10 + [
        calls.recvmmsg] * 4 + [calls.ready] * 3 + [calls.send, calls.write, calls.writev, calls.read] * 2 + [
        calls.option] * 4 + [calls.connect, calls.disconnect, calls.error, calls.shutdown, calls.copy, calls.close,
                             calls.more, calls.cork, calls.segment, calls.fork, calls.inquire, calls.sendto_bad,
                             calls.sendmmsg_bad]
    for _ in range(int(sys.argv[2])):
        calls.random.choice(ways)()
        # What comes late would depend on time.
        settle()
    for sock in calls.sockets:
        calls.count(sock)
    print(f"# by rings {calls.by_rings}")


main()
