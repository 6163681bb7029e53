#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Whatever frames a host sends, a flow is told what a UDP socket beside it is told, and the kernel counts the same:
directly, with netfilter's hooks asked, and by the stack.

FUZZ_SECONDS and FUZZ_SEED choose how long, and what; each case gets its part of the time."""

import contextlib
import json
import os
import subprocess
import time

import kopi
from attached import ADDRESSES, OTHERS, attach, host, kopictl, link, rules, sysctl
from control import family
from equivalence import namespace, run_nft
from wire import know_senders

SECONDS = float(os.environ.get("FUZZ_SECONDS", "12"))
SEED = int(os.environ.get("FUZZ_SEED", time.time()))


@contextlib.contextmanager
def hooked():
    """Netfilter is asked about each packet, and follows connections."""
    with namespace("host"):
        rules("table inet t {", "chain pre {", "type filter hook prerouting priority -300", "counter", "}",
              "chain in {", "type filter hook input priority 0", "ct state new counter", "}", "}")
    try:
        with limits(TRACKED):
            yield
    finally:
        with namespace("host"):
            run_nft("flush ruleset\n")


@contextlib.contextmanager
def limits(sysctls):
    """With these, for a while."""
    with contextlib.ExitStack() as stack:
        for each, value in sysctls.items():
            stack.enter_context(sysctl(each, value))
        yield


def told_the_same(ynl, name, way):
    """Both sockets are told the same."""
    before = link(ynl)
    with way():
        command = ["nsenter", "--net=/run/netns/host", "kopi-fuzz", "frames", "--from", "/run/netns/peer",
                   "--by", "eth1", "--to", "eth0", "--ipv4", ADDRESSES[4][0],
                   "--ipv6", ADDRESSES[6][0], "--seed", str(SEED), "--seconds", str(max(1, int(SECONDS / len(WAYS))))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = link(ynl)
    directly, received = (after[field] - before[field] for field in ("received-direct", "received"))
    for line in done.stdout.splitlines():
        if line.startswith("run: "):
            ran = json.loads(line.removeprefix("run: "))
            ran["counts"]["received directly"] = directly
            print("# run: " + json.dumps({"what": f"frames, {name}"} | ran))
    print(f"# {name}: {directly} of {received} redirected ones directly")
    kopi.check(f"{name}, seed {SEED}: a flow is told what a socket is told", done.returncode == 0,
               done.stderr + "\n".join(done.stdout.splitlines()[-3:]))
    wanted = name != "by the stack"
    kopi.check(f"{name}: {'some' if wanted else 'none'} came without the stack", bool(directly) == wanted, after)


WAYS = {"directly": contextlib.nullcontext, "with hooks": hooked, "by the stack": OTHERS["tc"]}
# Of fragments that never come none is given up for want of memory, and none is kept for long.
SYSCTLS = {"net.ipv4.ipfrag_high_thresh": 256 << 20, "net.ipv6.ip6frag_high_thresh": 256 << 20,
           "net.ipv4.ipfrag_time": 2, "net.ipv6.ip6frag_time": 2}
# Those of IPv6 that connection tracking has are others.
TRACKED = {"net.netfilter.nf_conntrack_frag6_high_thresh": 256 << 20, "net.netfilter.nf_conntrack_frag6_timeout": 2}
attach()
with namespace("host"):
    YNL = family()
with limits(SYSCTLS):
    know_senders()
    for NAME, WAY in WAYS.items():
        kopi.attempt(told_the_same, YNL, NAME, WAY)
# What ICMP said of the way to the senders.
host("ip route flush cache")
host("ip -6 route flush cache")
kopictl("detach", "eth0")
kopi.finish()
