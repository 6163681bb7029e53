#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What hooks write to a datagram's header leaves as they wrote it, also by the driver of an attached device, though
the checksum or the length may be wrong then: as that of a UDP socket does."""

import contextlib
import socket

import kopi
from attached import attach, host, know_neighbours, kopictl, link, overheard, rules
from control import family
from equivalence import namespace, run_nft
from linux import ETH_P_IP

NEAR, FAR, PORT, WRITTEN = "192.0.2.1", "192.0.2.2", 7000, 7009
COUNT = 8


def leaving(rings):
    """UDP's header and data of datagrams to a port, one by one; those of a flow leave behind a batch of the ring."""
    wire = overheard(ETH_P_IP)
    wire.settimeout(20)
    with namespace("host"):
        sock = kopi.ip_flow() if rings else socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with contextlib.ExitStack() as stack:
        stack.enter_context(sock)
        stack.enter_context(wire)
        sock.bind((NEAR, PORT))
        if rings:
            channel = kopi.Channel(sock, flags=kopi.TX_ONLY)
            stack.callback(channel.region.close)
            for number in range(COUNT):
                channel.send(number, b"by the ring", (FAR, PORT))
            kopi.expect(channel.complete(COUNT) == [0] * COUNT, "a batch of the ring leaves")
        got = []
        for number in range(COUNT):
            sock.sendto(b"datagram %d" % number, (FAR, WRITTEN))
            while len(got) <= number:
                packet = wire.recv(2000)
                if packet[23] == 17 and packet[36:38] == WRITTEN.to_bytes(2, "big"):
                    got.append(packet[34:])
    return got


def compare(ynl, how, written_stay):
    """Checks that a flow's leave as a UDP socket's do."""
    for statement, at, written in (("udp checksum set 0x1234", 6, b"\x12\x34"),
                                   ("udp length set 14", 4, b"\0\x0e")):
        with namespace("host"):
            rules("table ip t {", "chain c {", "type filter hook output priority 0",
                  f"udp dport {WRITTEN} {statement}", "}", "}")
        want = leaving(False)
        # Where the machine stands still for a moment, some leave by the stack.
        for _ in range(5):
            before = link(ynl)["packets"]
            have = leaving(True)
            took = link(ynl)["packets"] - before
            if took == 2 * COUNT:
                break
        with namespace("host"):
            run_nft("delete table ip t")
        what = f"{statement}, {how}"
        if written_stay:
            kopi.check(f"{what}: a UDP socket's leave so", all(each[at:at + 2] == written for each in want), want[:1])
        kopi.check(f"{what}: a flow's leave as a UDP socket's", have == want, (have[:1], want[:1]))
        kopi.check(f"{what}: by the driver", took == 2 * COUNT, took)


know_neighbours()
attach()
with namespace("host"):
    YNL = family()
HAS_CHECKSUMS = "tx-checksumming: on" in host("ethtool -k eth0")
if HAS_CHECKSUMS:
    compare(YNL, "with checksums of the device's", False)
    host("ethtool -K eth0 tx off")
# Checksums are those of the stack, which hooks then see and write.
compare(YNL, "with checksums of the stack's", True)
if HAS_CHECKSUMS:
    host("ethtool -K eth0 tx on")
kopictl("detach", "eth0")
kopi.finish()
