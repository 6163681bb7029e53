#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Qdiscs of an attached device count a flow's datagrams as they count a UDP socket's: those with a table of sizes, and
a device without a queue, which counts nothing."""

import json
import socket

import kopi
from attached import attach, host, know_neighbours, kopictl, link
from control import family
from equivalence import namespace

NEAR, FAR, PORT, COUNT = "192.0.2.1", "192.0.2.2", 7000, 24


def counted(rings):
    """Bytes and packets that the qdisc counts of datagrams."""
    with namespace("host"):
        sock = kopi.flow() if rings else socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((NEAR, PORT))
    before = shown()
    if rings:
        channel = kopi.Channel(sock, frames=32, tx=32, completion=32)
        for number in range(COUNT):
            channel.send(number, bytes(1000), (FAR, PORT))
        kopi.expect(channel.complete(COUNT) == [0] * COUNT, "the ring is sent")
        channel.region.close()
    else:
        for _ in range(COUNT):
            sock.sendto(bytes(1000), (FAR, PORT))
    sock.close()
    # What a qdisc holds for a moment has been counted.
    return tuple(after - earlier for after, earlier in zip(shown(), before))


def shown():
    """What tc shows."""
    qdisc = json.loads(host("tc -s -j qdisc show dev eth0"))[0]
    return qdisc["bytes"], qdisc["packets"]


know_neighbours()
attach()
with namespace("host"):
    YNL = family()
for qdisc, path in (("pfifo", "direct"), ("stab overhead 100 pfifo", "qdisc"), ("noqueue", "direct")):
    host(f"tc qdisc replace dev eth0 root {qdisc}")
    directly = COUNT if path == "direct" else 0
    # What the host sends of its own is counted, too, and where the machine stands still for a moment, some leave by the
    # stack: then once more.
    for _ in range(5):
        # Without a queue, a UDP socket's datagrams are refused where the driver has no room (__dev_queue_xmit()).
        want = (0, 0) if qdisc == "noqueue" else counted(False)
        before = link(YNL)["packets"]
        have = counted(True)
        took = link(YNL)["packets"] - before
        if have == want and took == directly:
            break
    kopi.check(f"{qdisc}: the same is counted", have == want, (have, want))
    kopi.check(f"{qdisc}: {path}", took == directly and link(YNL)["tx-path"] == path, (took, link(YNL)))
host("tc qdisc del dev eth0 root")
kopictl("detach", "eth0")
kopi.finish()
