#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A security module is asked once about each datagram of a ring, as about one of sendmsg(), also where it can't become
a frame of the direct path and leaves by the stack."""

import errno
import os
import socket
import struct

import bpf
import kopi
from attached import ADDRESSES, attach, counted, host, kopictl, link, rules
from control import family
from equivalence import namespace, run_nft

FRAMES, COUNT, PORT = 64, 20, 7000
NOBODY = {4: "192.0.2.99", 6: "2001:db8::99"}
TABLE = {4: "ip", 6: "ip6"}


def times():
    """How often the module was asked since this was called last."""
    count = struct.unpack("=Q", bpf.lookup("asked", 1, 8))[0]
    bpf.update("asked", 1, bytes(8))
    return count


def sender(version):
    """A flow on a channel."""
    with namespace("host"):
        channel = kopi.Channel(kopi.flow(0 if version == 4 else kopi.UDP6), frames=FRAMES, tx=FRAMES, completion=FRAMES)
    channel.sock.bind((ADDRESSES[version][0], 0))
    return channel


def send(channel, address, flags=kopi.BELL_TX):
    """Sends some by one doorbell, and gives what they complete with, and how often the module was asked."""
    for number in range(COUNT):
        channel.send(number, bytes(1000), (address, PORT))
    times()
    channel.bell(flags)
    return [done[4] for done in iter(channel.completion.pop, None)], times()


def as_frames(ynl, version):
    """All of them become frames."""
    host(f"ping -q -c1 -w20 {ADDRESSES[version][1]}")
    channel, before = sender(version), link(ynl)["packets"]
    said = send(channel, ADDRESSES[version][1])
    kopi.check(f"IPv{version}, frames: once each", said == ([0] * COUNT, COUNT), said)
    kopi.check("they leave by the driver", link(ynl)["packets"] - before == COUNT)
    channel.sock.close()


def to_nobody(_ynl, version):
    """The neighbour isn't known: there is no header for a frame."""
    channel = sender(version)
    said = send(channel, NOBODY[version])
    kopi.check(f"IPv{version}, to nobody: once each", said == ([0] * COUNT, COUNT), said)
    kopi.check("nothing is unaccounted for", not channel.unaccounted(), channel.unaccounted())
    channel.sock.close()


def by_another_route(_ynl, version):
    """A hook has each take another route."""
    net = "192.0.2.0/24" if version == 4 else "2001:db8::/64"
    host(f"ip -{version} route add {net} dev eth0 table 100")
    host(f"ip -{version} rule add fwmark 7 table 100")
    with namespace("host"):
        rules(f"table {TABLE[version]} other {{", "counter seen { }", "chain o {", "type route hook output priority 0",
              f"udp dport {PORT} counter name seen meta mark set 7", "}", "}")
        channel = sender(version)
        said = *send(channel, ADDRESSES[version][1]), counted(f"{TABLE[version]} other", "seen")
        run_nft("flush ruleset")
    kopi.check(f"IPv{version}, by another route: once each, as the hook", said == ([0] * COUNT, COUNT, COUNT), said)
    channel.sock.close()
    host(f"ip -{version} rule del fwmark 7 table 100")
    host(f"ip -{version} route flush table 100")


def without_room(_ynl, version):
    """The send buffer has no room for a batch: about the one that fails, if one does, it is asked last."""
    def once():
        channel = sender(version)
        channel.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
        said = send(channel, ADDRESSES[version][1], kopi.BELL_TX | kopi.BELL_SEND)
        channel.sock.close()
        return said[1] == said[0].count(0) + said[0].count(errno.EAGAIN), said

    # If there is room again at once, the doorbell tries again.
    tries = [once() for _ in range(5)]
    kopi.check(f"IPv{version}, without room: once each", any(well for well, _ in tries), tries)


attach()
with namespace("host"):
    YNL = family()
bpf.load("asked")
bpf.update("asked", 0, struct.pack("=Q", os.getpid()))
MODULE = bpf.link("socket_sendmsg", 0, "lsm_mac")
for case in (as_frames, to_nobody, by_another_route, without_room):
    for ip in (4, 6):
        case(YNL, ip)
os.close(MODULE)
bpf.unload()
kopictl("detach", "eth0")
kopi.finish()
