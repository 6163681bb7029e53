#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""nftables gives the same verdict on a KOPI flow as on a UDP socket."""

from equivalence import NONE, Policy, chain, nft_counters, nft_table, run

OUTPUT = "filter hook output priority 0"
INPUT = "filter hook input priority 0"

run("nftables", [
    Policy("no policy"),
    Policy("output: count", nft_table(chain(OUTPUT, "udp dport 7001 counter")),
           observe=(nft_counters,)),
    Policy("output: drop", nft_table(chain(OUTPUT, "udp dport 7001 counter drop")),
           out=NONE, errors=("EPERM",), observe=(nft_counters,)),
    Policy("input: drop", nft_table(chain(INPUT, "udp dport 7000 counter drop")),
           into=NONE, observe=(nft_counters,)),
])
