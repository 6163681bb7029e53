# SPDX-License-Identifier: GPL-2.0
"""Observers: what an exchange left in the counters of the policy and of the stack."""

import json

import kernel_counters

from .setups import run_nft, sh
from .subjects import SENTINEL_PORTS

SNMP = ("InDatagrams", "NoPorts", "InErrors", "OutDatagrams", "RcvbufErrors", "SndbufErrors",
        "InCsumErrors", "IgnoredMulti", "MemErrors")


def nft_counters():
    """Every counter and quota of the ruleset, in its order: (packets, bytes)."""
    found = []

    def walk(node):
        if isinstance(node, dict):
            if "packets" in node and "bytes" in node:
                found.append((node["packets"], node["bytes"]))
            elif "quota" in node and isinstance(node["quota"], dict):
                found.append(("quota", node["quota"].get("used"), node["quota"].get("used_unit")))
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)
    walk(json.loads(run_nft("list ruleset", True)))
    return found


def conntrack():
    """The entries of the exchange: what `conntrack -L` shows, without what changes by itself."""
    lines = []
    for family in ("ipv4", "ipv6"):
        for line in sh(f"conntrack -L -f {family} -p udp -o extended,labels 2>/dev/null").splitlines():
            if any(f"={port}" in line for port in SENTINEL_PORTS.values()):
                continue
            fields = line.split()
            # Not the protocol's number, the time left, and [ASSURED], which a stream is when it is
            # two seconds old.
            lines.append(" ".join(each for each in fields[:3] + fields[5:] if each != "[ASSURED]"))
    return sorted(lines)


def snmp():
    """The namespace's UDP counters, of IPv4 and IPv6."""
    of_ipv4, of_ipv6 = kernel_counters.table(), kernel_counters.of_ipv6()
    return {"Udp" + name: of_ipv4["Udp:" + name] for name in SNMP if "Udp:" + name in of_ipv4} | {
        "Udp6" + name: of_ipv6["Udp6" + name] for name in SNMP if "Udp6" + name in of_ipv6}
