#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A notice of IPV6_RECVPATHMTU isn't a datagram: rules judge the one behind it, and the notice comes as it does to a
UDP socket."""

import errno
import socket

import kopi
from control import ask, ruled
from kopi import check

IPV6_RECVPATHMTU, IPV6_PATHMTU, IPV6_DONTFRAG = 60, 61, 62
# With the headers, more than the MTU of the loopback device, 65,536 bytes.
TOO_LONG = bytes(65520)


def prepared(make):
    """A socket that gets such notices, and two that send to it."""
    sock = make()
    sock.bind(("::1", 0))
    for option in (IPV6_RECVPATHMTU, IPV6_DONTFRAG):
        sock.setsockopt(socket.IPPROTO_IPV6, option, 1)
    others = [socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(2)]
    for other in others:
        other.bind(("::1", 0))
    return sock, others


def noticed(sock, peer):
    """Sends what is too long, which leaves a notice."""
    try:
        sock.sendto(TOO_LONG, peer)
    except OSError as error:
        return error.errno == errno.EMSGSIZE
    return False


def read(sock, flags=0):
    """The data, kinds of control messages and flags, or an errno's name."""
    try:
        data, control, got = sock.recvmsg(100, 200, socket.MSG_DONTWAIT | flags)[:3]
    except OSError as error:
        return errno.errorcode[error.errno]
    return data, [kind for level, kind, _ in control if level == socket.IPPROTO_IPV6], got


NOTICE = (b"", [IPV6_PATHMTU], 0)
FIRST, SECOND = (b"first", [], 0), (b"second", [], 0)


def follows_udp(make):
    """What a socket reads that has a datagram and a notice, by peeking, too."""
    sock, (first, second) = prepared(make)
    first.sendto(b"first", sock.getsockname())
    was = noticed(sock, second.getsockname())
    kopi.settle()
    return [was, read(sock), read(sock, socket.MSG_PEEK), read(sock), read(sock)]


with ruled() as ynl:
    def udp():
        """A UDP socket."""
        return socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)

    def flow():
        """A flow of IPv6."""
        return kopi.ip_flow(kopi.UDP6)

    expected = [True, NOTICE, FIRST, FIRST, "EAGAIN"]
    check("a UDP socket gets the notice first", follows_udp(udp) == expected, follows_udp(udp))
    check("a flow does, too", follows_udp(flow) == expected, follows_udp(flow))
    ask(ynl, "ruleset-set", {"rule": [{"uid-min": 0, "verdict": "allow"}]})
    check("and where there are rules", follows_udp(flow) == expected, follows_udp(flow))

    # Of one sender nothing may come, or of the peer to which it was too long.
    for denied, expected in ((0, [NOTICE, "EAGAIN"]), (1, [NOTICE, FIRST])):
        sock, others = prepared(flow)
        port = others[denied].getsockname()[1]
        ask(ynl, "ruleset-set", {"rule": [{"remote-port-min": port, "direction": {"in"}, "verdict": "deny"}]})
        others[0].sendto(b"first", sock.getsockname())
        noticed(sock, others[1].getsockname())
        kopi.settle()
        got = [read(sock), read(sock)]
        check(f"sender {denied} is denied: what it sent isn't read, and all else is", got == expected, got)
        others[1].sendto(b"second", sock.getsockname())
        noticed(sock, others[1].getsockname())
        kopi.settle()
        got = [read(sock, socket.MSG_PEEK), read(sock)]
        check("nor peeked at", got == [NOTICE, SECOND if not denied else "EAGAIN"], got)
kopi.finish()
