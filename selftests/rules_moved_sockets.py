#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A socket that gives up its port, or gets another device, doesn't take along what rules keep from it: neither what
waits in its queue, nor a datagram that it has begun."""

import errno
import socket

import kopi
from control import ask, ruled
from enforced import begin, end, restore
from equivalence import namespace, sh
from kopi import UDP6, check, libc
from linux import UDP_CORK

HOST, OTHER = "192.0.2.1", 7100
NOBODY = bytes(16)


def send(data, port):
    """From the peer."""
    with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, (HOST, port))


def received(sock):
    """What can be read at once, or the error."""
    try:
        return sock.recv(64, socket.MSG_DONTWAIT)
    except OSError as error:
        return errno.errorcode[error.errno]


def bound():
    """A flow at a port that the kernel has chosen, with a datagram in its queue."""
    sock = kopi.ip_flow()
    sock.bind((HOST, 0))
    port = sock.getsockname()[1]
    send(b"kept", port)
    kopi.wait_until(lambda: has_come(port))
    return sock, port


def has_come(port):
    """Whether something waits there: a call that reads may be refused."""
    with open("/proc/net/udp", encoding="ascii") as table:
        lines = [line.split() for line in table][1:]
    return any(int(line[1].split(":")[1], 16) == port and int(line[4].split(":")[1], 16) for line in lines)


def queues(ynl):
    """What waits is read by no other port or device."""
    sock, port = bound()
    with sock:
        ask(ynl, "ruleset-set", {"rule": [{"local-port-min": port, "direction": "in", "verdict": "deny"}]})
        check("a rule denies the port", (got := received(sock)) == "EACCES", got)
        check("connect() gives the port up", libc.connect(sock.fileno(), NOBODY, 16) == 0)
        check("nothing is read then", (got := received(sock)) in ("EACCES", "EAGAIN"), got)
        sock.bind((HOST, OTHER))
        check("nor by another port", (got := received(sock)) == "EAGAIN", got)
        send(b"new", OTHER)
        check("which gets its own", kopi.wait_until(lambda: received(sock) == b"new", 10))
    ask(ynl, "ruleset-set", {"rule": [{"device": "lo", "direction": "in", "verdict": "allow"},
                                      {"direction": "in", "verdict": "deny"}]})
    sock, port = bound()
    with sock:
        check("a rule denies what comes by other devices", (got := received(sock)) == "EACCES", got)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        check("the device is another then, and what waited isn't read", (got := received(sock)) == "EAGAIN", got)
    ask(ynl, "ruleset-set")
    sock, port = bound()
    with sock:
        ask(ynl, "ruleset-set", {"rule": [{"local-port-min": port, "direction": "in", "verdict": "deny"}]})
        sh(f"ss -KHua sport = {port}")
        check("ss -K takes a port", sock.getsockname()[1] == 0, sock.getsockname())
        check("its caller learns it", sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNABORTED)
        sock.bind((HOST, OTHER))
        check("what waited isn't read by another one", (got := received(sock)) == "EAGAIN", got)
    ask(ynl, "ruleset-set", {"rule": [{"local-port-min": 1, "local-port-max": 65535, "verdict": "allow"}]})
    sock, port = bound()
    with sock:
        for name in b"nowhere", b"":
            libc.setsockopt(sock.fileno(), socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name, len(name))
        check("who moves nowhere keeps what waits", (got := received(sock)) == b"kept", got)
    ask(ynl, "ruleset-set")
    sock, port = bound()
    with sock:
        libc.connect(sock.fileno(), NOBODY, 16)
        check("without rules it is, as by any socket", (got := received(sock)) == b"kept", got)


def begun(make, what):
    """A datagram that was begun at one port, and leaves after that was given up."""
    with namespace("peer"):
        sink = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        sink.bind(("2001:db8::2", 9))
    sink.settimeout(2)
    with sink, make() as sock:
        sock.bind(("2001:db8::1", 0))
        port = sock.getsockname()[1]
        sock.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1)
        sock.sendto(b"begun", ("2001:db8::2", 9))
        libc.connect(sock.fileno(), NOBODY, 16)
        restore(f"default allow\nenforce on\nlocal-port {port} deny\n")
        try:
            sock.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 0)
        except OSError as error:
            check(f"{what}: the error is the rule's", error.errno in (errno.EACCES, errno.EPERM), error)
        try:
            got = sink.recvfrom(64)
        except TimeoutError:
            got = None
        check(f"{what}: it doesn't leave from the port that a rule denies", got is None, got)
    restore("default allow\nenforce off\n")


with ruled() as YNL:
    queues(YNL)
    begin()
    restore("default allow\nenforce off\n")
    begun(lambda: kopi.ip_flow(UDP6), "a flow")
    begun(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM), "a socket")
    end()
kopi.finish()
