# SPDX-License-Identifier: GPL-2.0
"""Observers: what an exchange left in the counters of the policy and of the stack."""

import json

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
    counters = {}
    with open("/proc/net/snmp", encoding="ascii") as file:
        lines = [line.split() for line in file]
    for names, values in zip(lines[::2], lines[1::2]):
        if names[0] == "Udp:":
            counters.update(("Udp" + name, int(value))
                            for name, value in zip(names[1:], values[1:]) if name in SNMP)
    with open("/proc/net/snmp6", encoding="ascii") as file:
        for line in file:
            name, value = line.split()
            if name[:4] == "Udp6" and name[4:] in SNMP:
                counters[name] = int(value)
    return counters
