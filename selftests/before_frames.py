#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What comes to a flow before its program could give a frame waits in the socket's queue, and then comes first."""

import select
import socket

import kopi
from kopi import BELL_WAIT_RX, check


def came(channel):
    """The payloads in the RX ring."""
    return [channel.region[offset:offset + length] for offset, length, *_ in iter(channel.rx.pop, None)]


def begin(count):
    """A flow to which datagrams have come before and after its channel was made, and who sends them."""
    flow = kopi.flow()
    flow.bind(("127.0.0.1", 0))
    plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    plain.connect(flow.getsockname())
    for number in range(count):
        plain.send(b"before %d" % number)
    channel = kopi.Channel(flow)
    for number in range(count, 2 * count):
        plain.send(b"before %d" % number)
    return channel, plain


def fill(channel):
    """Gives all frames."""
    for number in range(channel.frame_count):
        channel.fill.push(channel.frame(number))


EARLY = [b"before %d" % number for number in range(8)]
WAYS = {"another datagram": lambda channel, plain: plain.send(b"after"),
        "poll()": lambda channel, plain: select.select([channel.sock], [], [], 10),
        "a doorbell that waits": lambda channel, plain: channel.bell(BELL_WAIT_RX)}
for what, way in WAYS.items():
    channel, plain = begin(4)
    check(f"{what}: nothing is lost while there are no frames", not any(
        value for name, value in channel.stats().items() if name.startswith("rx")), channel.stats())
    fill(channel)
    way(channel, plain)
    got = came(channel)
    check(f"{what}: what came before comes first, in order", got[:8] == EARLY and got[8:] in ([], [b"after"]), got)
    plain.send(b"later")
    check(f"{what}: and it goes on", kopi.wait_until(lambda channel=channel: b"later" in came(channel)))
    channel.sock.close()

# epoll asks again only about what was woken.
flow = kopi.flow()
flow.bind(("127.0.0.1", 0))
channel = kopi.Channel(flow)
with select.epoll() as waits, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
    waits.register(flow, select.EPOLLIN)
    plain.sendto(b"early", flow.getsockname())
    fill(channel)
    check("an epoll that was there before the frames tells of it", waits.poll(10))
    check("which is in the ring", (got := came(channel)) == [b"early"], got)
kopi.finish()
