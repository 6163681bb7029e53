#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""iptables, over nftables and legacy, gives the same verdict on a KOPI flow as on a UDP socket."""

import subprocess

from equivalence import NONE, Policy, cgroup, current, run, sh, together, undo

GROUP = "iptables"
OUT, IN = "-A OUTPUT -p udp --dport 7001", "-A INPUT -p udp --dport 7000"
MANGLE = "-A POSTROUTING -p udp --dport 7001"
CHAINS = {"filter": ("INPUT", "OUTPUT"),
          "mangle": ("PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"),
          "raw": ("PREROUTING", "OUTPUT")}
# A datagram of 64 bytes has 72 in its UDP header, which is here in either IP version.
SMALL_U32 = {4: "0>>22&0x3C@4>>16=72", 6: "44>>16=72"}
SMALL_BPF = {4: "4,40 0 0 24,37 1 0 100,6 0 0 65535,6 0 0 0",
             6: "4,40 0 0 44,37 1 0 100,6 0 0 65535,6 0 0 0"}


def restore(backend, family, text):
    """Loads tables as iptables-save writes them."""
    command = ("iptables" if family == 4 else "ip6tables") + f"-{backend}-restore"
    done = subprocess.run([command], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}\n{text}")


def tables(rules=None):
    """The text that replaces the chains of some tables by rules: {table: [RULE...]}."""
    lines = []
    for table, chains in CHAINS.items():
        if rules is None or table in rules:
            lines += [f"*{table}", *(f":{chain} ACCEPT [0:0]" for chain in chains),
                      *(rules or {}).get(table, ()), "COMMIT"]
    return "\n".join(lines) + "\n"


def iptables(backend, rules):
    """A setup that loads rules; one may be a dict of both versions'."""
    def setup():
        family = current["family"]
        mine = {table: [rule[family] if isinstance(rule, dict) else rule for rule in each]
                for table, each in rules.items()}
        undo(restore, backend, family, tables(dict.fromkeys(rules, ())))
        restore(backend, family, tables(mine))
    return setup


def counters(backend):
    """What looks at the packets and bytes of each rule."""
    def iptables_counters():
        command = "iptables" if current["family"] == 4 else "ip6tables"
        return [line.split(" -")[0] for line in sh(f"{command}-{backend}-save -c").splitlines()
                if line.startswith("[")]
    return (iptables_counters,)


def policies(backend):
    """All of them, over one back end."""
    def policy(name, rules, table="filter", **fields):
        setup = iptables(backend, rules if isinstance(rules, dict) else {table: rules})
        if "cgroup" in fields:
            setup = together(cgroup(GROUP), setup)
        return Policy(f"{backend}: {name}", setup, observe=counters(backend), **fields)

    denied = {"out": NONE, "errors": ("EPERM",)}
    non_gso = {"gso": (False,)}
    return [
        policy("count", [OUT, IN]),
        policy("DROP in OUTPUT", [f"{OUT} -j DROP"], **denied),
        policy("DROP in INPUT", [f"{IN} -j DROP"], into=NONE),
        policy("REJECT", [f"{OUT} -j REJECT"], out=NONE, errors=("EPERM", "ECONNREFUSED")),
        policy("owner, uid", [f"{OUT} -m owner --uid-owner bob -j DROP"], user="bob", **denied),
        policy("owner, another", [f"{OUT} -m owner --uid-owner bob -j DROP"], user="alice"),
        policy("owner, gid", [f"{OUT} -m owner --gid-owner charlie -j DROP"], user="charlie",
               **denied),
        policy("owner, socket exists", [f"{OUT} -m owner --socket-exists -j DROP"], **denied),
        policy("cgroup", [f"{OUT} -m cgroup --path {GROUP} -j DROP"], cgroup=GROUP, **denied),
        policy("cgroup on input", [f"{IN} -m cgroup --path {GROUP} -j DROP"], cgroup=GROUP,
               into=NONE, paced=True, gso=(False,),
               note="in a batch the kernel looks for the socket of the first packet only"),
        policy("hashlimit", [f"{OUT} -m hashlimit --hashlimit-upto 1/hour --hashlimit-burst 5 "
                             f"--hashlimit-mode srcport --hashlimit-name {backend} -j ACCEPT",
                             f"{OUT} -j DROP"], out=5, errors=("EPERM",), **non_gso),
        # The fourth datagram begins so.
        policy("string", [f'{OUT} -m string --algo bm --hex-string "|0000000315161718|" -j DROP'],
               out=39, errors=("EPERM",), **non_gso),
        policy("bpf", [{family: f'{OUT} -m bpf --bytecode "{code}" -j DROP'
                        for family, code in SMALL_BPF.items()}],
               out=32, errors=("EPERM",), **non_gso),
        policy("u32", [{family: f'{OUT} -m u32 --u32 "{code}" -j DROP'
                        for family, code in SMALL_U32.items()}],
               out=32, errors=("EPERM",), **non_gso),
        policy("statistic", [f"{OUT} -m statistic --mode nth --every 4 --packet 0 -j DROP"],
               out=30, errors=("EPERM",), **non_gso),
        policy("length", [f"{OUT} -m length --length 0:200 -j DROP"],
               out=32, errors=("EPERM",), **non_gso),
        policy("quota", [f"{OUT} -m quota --quota 3000 -j ACCEPT", f"{OUT} -j DROP"],
               out=9, errors=("EPERM",), **non_gso),
        policy("MARK", [f"{MANGLE} -j MARK --set-mark 5", f"{MANGLE} -m mark --mark 5"],
               table="mangle"),
        policy("CONNMARK", {"mangle": [f"{OUT} -j CONNMARK --set-mark 6"],
                            "filter": [f"{IN} -m connmark --mark 6 -j DROP"]}, into=NONE),
        policy("TOS", [f"{MANGLE} -j TOS --set-tos 0x10"], table="mangle"),
        policy("DSCP", [f"{MANGLE} -j DSCP --set-dscp 0x2e"], table="mangle"),
        policy("TTL and HL", [{4: f"{MANGLE} -j TTL --ttl-set 7", 6: f"{MANGLE} -j HL --hl-set 7"}],
               table="mangle"),
        policy("NOTRACK", {"raw": [f"{OUT} -j NOTRACK"],
                           "filter": [f"{OUT} -m conntrack --ctstate UNTRACKED"]}),
    ]


def no_tables():
    """Takes away the tables that iptables leaves without rules."""
    for space in "host", "peer":
        sh(f"ip netns exec {space} nft flush ruleset")


# The matches and targets are the same code under both; what differs is how the rules are walked.
LEGACY = ("count", "DROP", "REJECT", "owner, uid", "cgroup", "hashlimit", "MARK", "CONNMARK", "TOS")
run("iptables", policies("nft") + [
    policy for policy in policies("legacy") if policy.name.split(": ")[1].startswith(LEGACY)], no_tables)
