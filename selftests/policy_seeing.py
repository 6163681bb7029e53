#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Every tool shows of a KOPI flow what it shows of a UDP socket."""

import json
import os
import pathlib
import re
import signal
import struct
import subprocess
import time

import droptrace
import kernel_counters
import kopi
from equivalence import (COUNT, NONE, PATIENCE, Policy, chain, devices, nft_table, run, sh, together, undo)

NETLINK_NETFILTER = "12"
SINGLE = {"gso": (False,)}


class Watcher:
    """A tool that prints what it sees until it is stopped."""

    def __init__(self, command, started=None, settle=1):
        self.settle = settle
        self.path = "/tmp/watcher.out"
        with open(self.path, "wb") as out:
            self.child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        undo(self.stop)
        # bpftrace compiles, which takes 40 s on the debug kernel.
        deadline = time.monotonic() + 300
        while started and started not in self.text():
            if time.monotonic() > deadline or self.child.poll() is not None:
                raise RuntimeError(f"{command}: {self.text()}")
            time.sleep(0.01)

    def text(self):
        """All that it printed."""
        with open(self.path, encoding="utf-8", errors="replace") as out:
            return out.read()

    def lines(self, least, pattern):
        """Its lines that match, when there are at least that number and no more come."""
        deadline = time.monotonic() + PATIENCE
        before, same = None, 0
        while True:
            now = [line for line in self.text().splitlines() if re.search(pattern, line)]
            same = same + 1 if now == before else 0
            # Where the machine stood still for a while, the program gets its turn in the next round.
            if (same >= 10 and len(now) >= least) or time.monotonic() > deadline:
                return now
            before = now
            time.sleep(self.settle / 10)

    def stop(self):
        """Ends it."""
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGKILL)
        self.child.wait()


def packets_of(path):
    """The IP packets in a file of tcpdump, without what is random in their headers."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 24:
        return []
    # Ethernet, or what `any` has.
    skip = {1: 14, 276: 20}[struct.unpack_from("=I", data, 20)[0] & 0xFFFF]
    at, found = 24, []
    while at + 16 <= len(data):
        size = struct.unpack_from("=I", data, at + 8)[0]
        if at + 16 + size > len(data):
            break
        packet = bytearray(data[at + 16 + skip:at + 16 + size])
        at += 16 + size
        if packet[0] >> 4 == 4:
            # Identification and header checksum.
            packet[4:6] = packet[10:12] = bytes(2)
        else:
            # Flow label.
            packet[1] &= 0xF0
            packet[2:4] = bytes(2)
        found.append(bytes(packet))
    return found


def tcpdump(device):
    """A policy's fields: tcpdump runs, and all that it wrote is compared."""
    running = []
    path = "/tmp/seen.pcap"

    def setup():
        Watcher(["tcpdump", "-i", device, "--immediate-mode", "-s", "2000", "-B", "8192", "-U", "-w", path, "-Z", "root",
                 "udp and port 7000"], "listening on")
        running[:] = [0]

    def seen_by_tcpdump():
        running[0] += COUNT
        kopi.wait_until(lambda: len(packets_of(path)) >= running[0], PATIENCE)
        if "bad udp cksum" in sh(f"tcpdump -r {path} -nn -vv 2>/dev/null"):
            raise RuntimeError("a bad checksum")
        found = packets_of(path)
        if len(found) != running[0]:
            raise RuntimeError(f"{len(found)} packets seen of {running[0]}")
        return found
    return {"setup": setup, "observe": (seen_by_tcpdump,)}


def anybody_listens():
    """Whether a program listens to what netfilter tells in this namespace."""
    with open("/proc/net/netlink", encoding="ascii") as netlink:
        entries = (line.split() for line in netlink)
        return any(protocol == NETLINK_NETFILTER and int(groups, 16) for _, protocol, _, groups, *_ in entries)


def watch(command, pattern, strip, least=1, started=None, before=None):
    """The same for another tool, of whose lines those are looked at that match."""
    running = []

    def setup():
        if before:
            before()
        running[:] = [Watcher(command, started), 0]
        # Those that don't say when they are ready listen to netlink.
        if not started and not kopi.wait_until(anybody_listens, PATIENCE):
            raise RuntimeError(f"{command[0]} doesn't listen")

    def seen():
        running[1] += least
        lines = [re.sub(strip, "", line) for line in running[0].lines(running[1], pattern)]
        if not lines:
            raise RuntimeError(f"{command[0]} saw nothing: {running[0].text()[:500]}")
        # Tools that collect from several CPUs don't keep the order.
        return sorted(set(lines)) if command[0] == "conntrack" else sorted(lines)
    return {"setup": setup, "observe": (seen,)}


def sockets():
    """What ss and /proc say of the subject."""
    lines = [re.sub(r"(ino|sk|fd|pid)[:=][0-9a-f]+", "", line)
             for line in sh("ss -Huapne sport = :7000").splitlines()]
    for name in ("udp", "udp6"):
        with open(f"/proc/net/{name}", encoding="ascii") as table:
            for row in table:
                words = row.split()
                if words[1].endswith(":1B58"):
                    lines.append([*words[1:8], words[-1]])
    if len(lines) < 2 or "policy_seeing" not in lines[0]:
        raise RuntimeError(lines)
    return lines


def counters():
    """All of the stack's counters, and the NIC's of what came."""
    found = {}
    found |= kernel_counters.table() | kernel_counters.table("/proc/net/netstat") | kernel_counters.of_ipv6()
    for space, link in (("host", "eth0"), ("peer", "eth1")):
        stats = json.loads(sh(f"ip -n {space} -s -j link show {link}"))[0]["stats64"]["rx"]
        found.update((f"{link} {name}", stats[name]) for name in ("packets", "bytes", "dropped"))
    return found


_before = {}


def remember_counters():
    """What they were before the exchange."""
    _before.clear()
    _before.update(counters())


def changed_counters():
    """By how much each changed."""
    # Ports that no one asks for, and what TCP's timers do, are not the exchange's.
    return {name: value - _before[name] for name, value in counters().items()
            if value != _before[name] and not name.startswith(("Tcp", "MPTcp"))}


def trace_drops():
    """Has the kernel note why it drops packets."""
    droptrace.start()
    undo(droptrace.stop)


def drop_reasons():
    """Packets dropped, by reason."""
    return sorted((reason, count) for reason, count in droptrace.recorded().items()
                  if reason != "PACKET_SOCK_ERROR")


def drops(*parts, **fields):
    """A policy's fields: what it drops is seen by its reason."""
    tables = [nft_table(*parts)] if parts else []
    return {"setup": together(trace_drops, *tables), "observe": (drop_reasons,), **SINGLE, **fields}


def need_no_headers():
    """What a tracepoint has bpftrace knows from tracefs; yet it may want the kernel's headers, the first of which
    says what was configured."""
    os.makedirs("/tmp/headers/include/linux", exist_ok=True)
    with open("/tmp/headers/include/linux/kconfig.h", "w", encoding="ascii"):
        pass
    os.environ["BPFTRACE_KERNEL_SOURCE"] = "/tmp/headers"


def receive_on_first_cpu():
    """The NICs' interrupts come on the CPU on which this runs."""
    for queue in pathlib.Path("/proc/irq").glob("*/virtio*put.*"):
        affinity = queue.parent / "smp_affinity_list"
        undo(affinity.write_text, affinity.read_text())
        affinity.write_text("0")


def watch_by_bpftrace(script, pattern, least, before=lambda: None):
    """A setup with a bpftrace script. It runs on the CPU that no packet comes on or leaves by: while it looks into
    one of its maps, the kernel skips its programs on that CPU (the recursion_misses of `bpftool prog`)."""
    return watch(["taskset", "--cpu-list", "1", "bpftrace", "-q", "-B", "line", "-e",
                  'BEGIN { printf("ready\\n"); }' + script],
                 pattern, "$^", least, "ready", together(receive_on_first_cpu, before))


def bpftrace():
    """The stack's tracepoints."""
    return watch_by_bpftrace("""
        tracepoint:net:net_dev_start_xmit { printf("xmit %d\\n", args.len); }
        tracepoint:net:netif_receive_skb { printf("receive %d\\n", args.len); }
        """, "^(xmit|receive)", 2 * COUNT)


def bpftrace_drops():
    """That of dropped packets."""
    return watch_by_bpftrace("""
        tracepoint:skb:kfree_skb /args.reason > 2/ { printf("dropped %d\\n", args.reason); }
        """, "^dropped", COUNT, nft_table(chain("filter hook input priority 0", "udp dport 7000 drop")))


NFTRACE = nft_table(chain("filter hook prerouting priority -300",
                          "udp dport 7000 meta nftrace set 1"),
                    chain("filter hook output priority -300", "udp dport 7001 meta nftrace set 1"),
                    chain("filter hook input priority 0", "udp dport 7000 counter accept"))


def no_conntrack():
    """Nothing is known of earlier exchanges."""
    nft_table(chain("filter hook output priority 0", "ct state new counter"))()
    sh("conntrack -F", False)


# Of what leaves by the driver of an attached device: docs/policy.md.
UNSEEN = dict.fromkeys(("seen after in", "seen after out"), "frames have no tracepoint net_dev_start_xmit") \
    if devices("host") else {}

need_no_headers()
run("seeing", [
    Policy("tcpdump on eth0", **tcpdump("eth0"), **SINGLE),
    Policy("tcpdump on any", **tcpdump("any"), **SINGLE),
    Policy("tcpdump on eth0, GSO packets", **tcpdump("eth0"), gso=(True,), into=None,
           note="taps of a NIC without offloads see the datagrams"),
    Policy("ss, /proc/net/udp, /proc/net/udp6", observe=(sockets,)),
    Policy("ss, /proc/net/udp, of bob's", observe=(sockets,), user="bob"),
    Policy("nstat, ip -s", remember_counters, observe=(changed_counters,), **SINGLE),
    Policy("conntrack -E", **watch(
        ["conntrack", "-E", "-e", "NEW,UPDATES", "-p", "udp", "--orig-port-src", "7000"],
        "udp", r" \d+ (?=src)| \[ASSURED\]", before=no_conntrack), **SINGLE),
    Policy("nft monitor trace", **watch(["nft", "monitor", "trace"], "trace id", r"id [0-9a-f]+|"
                                        r"(ip id|flowlabel) \d+", 3 * COUNT, before=NFTRACE),
           **SINGLE),
    Policy("bpftrace", **bpftrace(), **SINGLE, families=(4,), differs=UNSEEN),
    Policy("bpftrace: kfree_skb", **bpftrace_drops(), **SINGLE, families=(4,), out=None,
           into=NONE),
    Policy("drop reason: netfilter, output",
           **drops(chain("filter hook output priority 0", "udp dport 7001 drop"), out=NONE,
                   errors=("EPERM",))),
    Policy("drop reason: netfilter, input",
           **drops(chain("filter hook input priority 0", "udp dport 7000 drop"), into=NONE)),
    Policy("drop reason: no socket", **drops(
        peer_sends_to=lambda family: ({4: "192.0.2.1", 6: "2001:db8::1"}[family], 7500),
        into=NONE, connected=False)),
])
