#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What goes by a ring is judged as the ring's user, whoever makes calls on the same flow meanwhile."""

import contextlib
import os
import signal
import time

import kopi
from control import ask, ruled
from enforced import BOB, CHARLIE, floods
from kopi import SOL_KOPI, TX_ONLY, become, check, told_by_child

HOST, PEER = "192.0.2.1", "192.0.2.2"
SECONDS = 10


def calls(sock):
    """Bob, who may send, and does so all the time."""
    become(BOB)
    while True:
        # The flow's pending error may be for what Charlie did.
        with contextlib.suppress(PermissionError):
            sock.sendto(b"bob's", (PEER, 9))


def patiently(call):
    """What a call gives, made again where its error is what is pending for a datagram of Bob's."""
    while True:
        with contextlib.suppress(PermissionError):
            return call()


def channel_of(sock, **options):
    """Charlie's channel."""
    patiently(lambda: sock.setsockopt(SOL_KOPI, kopi.CHANNEL, kopi.request(**options)))
    return patiently(lambda: kopi.Channel.of(sock))


def sends(sock):
    """Charlie, who may not, by a ring: how many of his datagrams were sent."""
    become(CHARLIE)
    channel = channel_of(sock, flags=TX_ONLY)
    sent, until = 0, time.monotonic() + SECONDS
    while time.monotonic() < until:
        for number in range(32):
            channel.send(number, b"charlie's", (PEER, 9))
        sent += channel.complete(32).count(0)
    return sent


def receives(sock):
    """Charlie, who may not receive either: how many he got in his ring."""
    become(CHARLIE)
    channel = channel_of(sock)
    for number in range(channel.frame_count):
        channel.fill.push(channel.frame(number))
    got, until = 0, time.monotonic() + SECONDS
    while time.monotonic() < until:
        while (entry := channel.rx.pop()):
            got += 1
            channel.fill.push(channel.frame((entry[0] - channel.frames) // channel.frame_size))
    return got


def while_bob_calls(rings, *others):
    """What Charlie got done meanwhile."""
    with kopi.ip_flow() as sock:
        sock.bind((HOST, 0))
        started = [kopi.in_child(lambda: calls(sock))]
        started += [kopi.in_child(lambda other=other: other(sock.getsockname()[1])) for other in others]
        try:
            return told_by_child(lambda: rings(sock))
        finally:
            for pid in started:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


with ruled() as YNL:
    ask(YNL, "ruleset-set", {"rule": [{"uid-min": CHARLIE, "direction": "out", "verdict": "deny"}]})
    got = while_bob_calls(sends)
    check("nothing is sent by the ring of a user who is denied", got == "0", got)
    # By peer: else he couldn't even open a channel.
    ask(YNL, "ruleset-set", {"rule": [
        {"uid-min": CHARLIE, "remote-address": PEER, "remote-prefix": 32, "direction": "in", "verdict": "deny"}]})
    got = while_bob_calls(receives, floods)
    check("nor received", got == "0", got)
kopi.finish()
