#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A connect() that the rules refuse once the kernel has chosen a port leaves no trace: the flow hears all others."""

import socket

import kopi
from control import ask, ruled
from equivalence import sh
from kopi import check

LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
# The kernel chooses from these.
CHOSEN = (40000, 40100)


def hears(sock, sender, data):
    """Whether what is sent to a socket comes."""
    sender.sendto(data, (LOOPBACK[sender.family], sock.getsockname()[1]))
    try:
        sock.settimeout(5)
        return sock.recv(64) == data
    except OSError:
        return False


def refused(sock, peer):
    """Whether connect() says EACCES."""
    try:
        sock.connect(peer)
    except PermissionError:
        return True
    return False


def tried(family, proto, peer_of):
    """What comes to a flow after a connect() was refused: of the peer that it had named, and of others."""
    name = "IPv4" if family == socket.AF_INET else "IPv6"
    peers = [socket.socket(each, socket.SOCK_DGRAM) for each in (peer_of, family)]
    for peer in peers:
        peer.bind((LOOPBACK[peer.family], 0))
    host, port = peers[0].getsockname()[:2]
    ask(ynl, "ruleset-set", {"rule": [
        {"local-port-min": CHOSEN[0], "local-port-max": CHOSEN[1], "remote-port-min": port, "verdict": "deny"}]})
    with kopi.ip_flow(proto) as sock:
        address = f"::ffff:{host}" if peer_of != family else host
        check(f"{name}: connect() to {address} is refused", refused(sock, (address, port)))
        ask(ynl, "ruleset-set")
        # Bound to a port without being connected.
        sock.sendto(b"x", (LOOPBACK[family], 9))
        check(f"{name}: others are heard after that", hears(sock, peers[1], b"other"))
        sock.connect((LOOPBACK[family], peers[1].getsockname()[1]))
        check(f"{name}: and it can be connected", sock.getpeername()[1] == peers[1].getsockname()[1]
              and hears(sock, peers[1], b"connected"))


with ruled() as ynl:
    sh(f"sysctl -qw net.ipv4.ip_local_port_range='{CHOSEN[0]} {CHOSEN[1]}'")
    try:
        tried(socket.AF_INET, 0, socket.AF_INET)
        tried(socket.AF_INET6, kopi.UDP6, socket.AF_INET6)
        tried(socket.AF_INET6, kopi.UDP6, socket.AF_INET)
    finally:
        sh("sysctl -qw net.ipv4.ip_local_port_range='32768 60999'")
kopi.finish()
