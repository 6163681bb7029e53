#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A flow is disconnected, by its program or by an administrator's `ss -K`, or connected to somebody else, while a
doorbell sends much: nothing more leaves from the port that it had, or to the peer."""

import errno
import socket
import struct
import threading

import kopi
from equivalence import run_nft, sh
from linux import SO_RCVBUFFORCE

COUNT = 32768


def sink():
    """A socket that has room for all."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, COUNT * 2048)
    sock.bind(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


def senders_of(sock):
    """The addresses from which datagrams have come."""
    senders = []
    try:
        while True:
            senders.append(sock.recvfrom(9)[1])
    except BlockingIOError:
        return senders


def connect(name):
    """Has a flow call connect() with an address."""
    return lambda flow: kopi.expect(kopi.libc.connect(flow.fileno(), name, len(name)) == 0, "connect()")


def abort(flow):
    """What an administrator does who has enough of it."""
    sh("ss -K -u src {}:{}".format(*flow.getsockname()))


def change(what, how):
    """Rings for a full ring, and does something to the flow when some of it was sent; gives the errors, or None if all
    was sent before that was done."""
    peer = sink()
    channel = kopi.Channel(tx=COUNT, completion=COUNT)
    channel.sock.connect(peer.getsockname())
    own = channel.sock.getsockname()
    for _ in range(COUNT):
        channel.send(0, b"datagram")
    ringing = threading.Thread(target=channel.bell)
    ringing.start()
    kopi.wait_until(lambda: channel.stats()["tx_packets"] > 50)
    how(channel.sock)
    before = channel.stats()["tx_packets"]
    ringing.join()
    errors = channel.complete(COUNT)
    if before == COUNT:
        return None
    kopi.check(f"{what}: the doorbell was at work", before > 50, before)
    arrived = senders_of(peer)
    kopi.check(f"{what}: nothing left from the old port, or to the old peer, afterwards",
               len(arrived) <= before and set(arrived) == {own}, (len(arrived), before, own))
    kopi.check(f"{what}: all is accounted for", len(errors) == COUNT and not channel.unaccounted(), channel.stats())
    return errors


kopi.check("what is left to a disconnected flow has no destination",
           set(change("disconnected", connect(struct.pack("=H14x", 0))) or []) == {0, errno.EDESTADDRREQ})
other = sink()
kopi.check("what is left to a connected one goes to its peer of now",
           set(change("connected to another peer", connect(kopi.pack_address(*other.getsockname()))) or []) == {0}
           and 0 < len(senders_of(other)) < COUNT)
errors = None
for rules in (60, 240, 960):
    # Until ss has begun, all would have left.
    run_nft("table inet slow {\nchain o {\ntype filter hook output priority 0\n" + "meta mark 99 drop\n" * rules + "}\n}")
    errors = errors or change("ended by ss -K", abort)
    run_nft("delete table inet slow")
kopi.check("what is left to a flow that ss -K has ended has no destination",
           set(errors or []) - {errno.ECONNABORTED} == {0, errno.EDESTADDRREQ}, errors and set(errors))
kopi.finish()
