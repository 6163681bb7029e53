#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A rule doesn't keep a connected flow from sending with its flow label, although another process has leased that
label for itself since."""

import socket
import struct

import kopi
from control import ask, rules, ruled
from equivalence import namespace
from kopi import UDP6, check, told_by_child
from linux import IPV6_FLOWINFO_SEND, IPV6_FLOWLABEL_MGR

HOST, PEER, PORT = "2001:db8::1", "2001:db8::2", 7001
LABEL = 0x12345
# IPV6_FL_A_GET, IPV6_FL_S_EXCL, IPV6_FL_F_CREATE of include/uapi/linux/in6.h; seconds.
GET, EXCLUSIVE, CREATE, EXPIRES = 0, 1, 1, 60
# What a remembered route sends, and what is longer than the MTU.
SIZES = (100, 3000)


def connected(make):
    """A socket with the label, connected before anybody has leased it."""
    sock = make()
    sock.bind((HOST, 0))
    sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1)
    sock.connect((PEER, PORT, LABEL, 0))
    return sock


def lease():
    """Has the label for itself."""
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    request = struct.pack("=16sIBBHHH4x", socket.inet_pton(socket.AF_INET6, PEER), socket.htonl(LABEL), GET, EXCLUSIVE,
                          CREATE, EXPIRES, EXPIRES)
    sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FLOWLABEL_MGR, request)
    return sock


def refused():
    """What another socket gets that would connect with the label now."""
    try:
        connected(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)).close()
    except OSError as error:
        return error.strerror
    return "nothing"


def come(sock, size):
    """Whether a datagram comes, of that size."""
    sock.settimeout(30)
    return len(sock.recv(65535)) == size


with ruled() as YNL:
    with namespace("peer"):
        sink = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        sink.bind((PEER, PORT))
    plain = connected(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
    flow = connected(lambda: kopi.ip_flow(UDP6))
    channel = kopi.Channel(connected(lambda: kopi.ip_flow(UDP6)), frame_size=4096)
    ask(YNL, "ruleset-set", {"rule": [{"remote-address": PEER, "remote-prefix": 128, "verdict": "allow"}]})
    leased = told_by_child(lambda: lease().fileno() >= 0)
    check("another process has leased the label", leased == "True", leased)
    said = told_by_child(refused)
    check("nobody else can connect with it", said == "Invalid argument", said)
    for size in SIZES:
        plain.send(bytes(size))
        check(f"a UDP socket sends, {size} bytes", come(sink, size))
        flow.send(bytes(size))
        check(f"a flow's own call does, {size} bytes", come(sink, size))
        channel.send(0, bytes(size))
        errors = channel.complete(1)
        check(f"a ring does, {size} bytes", errors == [0] and come(sink, size), errors)
    counted = sum(rule["packets"] for rule in rules(YNL))
    check("the rule has counted each datagram once", counted == 2 * len(SIZES), counted)
kopi.finish()
