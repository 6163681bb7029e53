#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""IPv6 datagrams that leave as frames are those of a UDP socket, bit by bit, and counted alike; what can't be a
frame, or may not be sent, is left to the stack; changes of routes, addresses, neighbours and policies count at once."""

import datagrams6
import kopi
from attached import attach, host, kopictl, link
from datagrams6 import FAR, FROM, NEAR, PORT


def ipsec(wire):
    """What IPsec encrypts leaves so, and nothing else."""
    key = "0x" + "42" * 20
    transform = f"proto esp spi 0x100 mode transport aead 'rfc4106(gcm(aes))' {key} 128"
    sender = datagrams6.Sender(True, None, (NEAR, FROM))
    sender.send([b"a"] * 4, address=(FAR, PORT))
    host(f"ip xfrm state add src {NEAR} dst {FAR} {transform}")
    host(f"ip xfrm policy add dir out src {NEAR} dst {FAR} tmpl src {NEAR} dst {FAR} proto esp mode transport")
    wire.take(0)
    errors = sender.send([b"a"] * 8, address=(FAR, PORT))
    kinds = [packet[20] for packet in wire.take(8, 10)]
    kopi.check("IPsec: all are encrypted", errors == [0] * 8 and kinds == [50] * 8, (errors, kinds))
    host("ip xfrm policy flush")
    host("ip xfrm state flush")
    before = link(datagrams6.YNL)["packets"]
    sender.send([b"a"] * 8, address=(FAR, PORT))
    kinds = [packet[20] for packet in wire.take(8, 10)]
    kopi.check("and not any more", kinds == [17] * 8 and link(datagrams6.YNL)["packets"] - before == 8, kinds)
    sender.close()


attach()
WIRE = datagrams6.ways(datagrams6.Frames)
for case in (datagrams6.labels_stay, datagrams6.options, datagrams6.sources_and_scopes, datagrams6.changes, ipsec):
    case(WIRE)
kopictl("detach", "eth0")
kopi.finish()
