#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A host that sends by IPv6, from an address that stands for one of IPv4, gets nothing of what rules allow to that."""

import socket

import kopi
from control import ask, ruled
from enforced import begin, end, restore
from equivalence import namespace
from kopi import UDP6, check, wait_until
from wire import FROM, V6, Wire

HOST, MAPPED = "2001:db8::1", "::ffff:192.0.2.9"


def sink(make):
    """A socket that takes datagrams of both versions of IP."""
    sock = make()
    sock.bind(("::", 0))
    sock.settimeout(30)
    return sock


def send(port):
    """From the mapped address, and from a host that the rules know by IPv4, which comes later."""
    wire.send(V6, b"forged", source=MAPPED, to=HOST, port=port)
    with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("192.0.2.2", FROM))
        other.sendto(b"true", ("192.0.2.1", port))


with ruled() as ynl:
    wire = Wire()
    with sink(lambda: kopi.plain_datagram(UDP6)) as usual:
        send(usual.getsockname()[1])
        got = {usual.recv(64) for _ in range(2)}
        check("a socket without rules gets both", got == {b"forged", b"true"}, got)
    ask(ynl, "ruleset-set", {"default": "deny", "rule": [
        {"remote-address": "192.0.2.0", "remote-prefix": 24, "verdict": "allow"}]})
    with sink(lambda: kopi.ip_flow(UDP6)) as flow:
        send(flow.getsockname()[1])
        check("a flow gets the true one", (got := flow.recv(64)) == b"true", got)
    channel = kopi.Channel(sink(lambda: kopi.ip_flow(UDP6)))
    for number in range(8):
        channel.fill.push(channel.frame(number))
    channel.bell(0)
    send(channel.sock.getsockname()[1])
    check("a ring does", wait_until(lambda: channel.stats()["rx_packets"] == 1), channel.stats())
    check("and the other is counted as refused", channel.stats()["rx_drop_rule"] == 1, channel.stats())
    channel.sock.close()
with namespace("host"):
    begin()
    restore("default deny\nenforce on\nremote 192.0.2.0/24 allow\n")
    with sink(lambda: kopi.plain_datagram(UDP6)) as judged:
        send(judged.getsockname()[1])
        check("a socket under enforced rules does", (got := judged.recv(64)) == b"true", got)
    restore("default allow\nenforce off\n")
    end()
kopi.finish()
