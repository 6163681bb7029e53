#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Allocations that can't wait fail, in softirqs above all, while flows send and receive: nothing that
arrives is corrupt, what is lost is counted, and all comes back.
"""

import collections
import contextlib
import errno
import os
import re
import struct
import time
import zlib

import faults
import kopi
import memory
from equivalence import ADDRESSES, devices, namespace, sh
from kopi import wait_until

SECONDS = float(os.environ.get("FAULT_SECONDS", "15"))
# Of the allocations that can't wait a certain share fails: first often, so that hardly a GSO packet gets
# through, and then seldom.
ONE_IN = {"slab objects": ("failslab", (5, 41)), "pages": ("fail_page_alloc", (2, 17))}
TRACING = "/sys/kernel/tracing"
FRAMES, WINDOW = 256, 64
# What the stack says when it has no memory.
NO_MEMORY = {0, errno.ENOMEM, errno.ENOBUFS}
PATTERN = bytes(range(256)) * 10
# Both ends of the machine's NICs.
NIC4, NIC6 = (ADDRESSES[family].items() for family in (4, 6))


def datagram(serial, size):
    """A datagram with a checksum of its own."""
    first = serial & 0xFF
    body = struct.pack("=II", serial, size) + PATTERN[first:first + size - 12]
    return struct.pack("=I", zlib.crc32(body)) + body


def intact(data):
    """Whether it is one."""
    return len(data) >= 12 and struct.unpack_from("=I", data)[0] == zlib.crc32(data[4:]) \
        and struct.unpack_from("=I", data, 8)[0] == len(data)


class Traffic:
    """Two flows that send to each other, by GSO packets or not, as fast as this process can."""

    def __init__(self, name, ends, size, flags=0, proto=0):
        self.name, self.size, self.gso = name, size, flags != 0
        self.channels = []
        for inside, address in ends:
            with namespace(inside):
                flow = kopi.flow(proto)
                flow.bind((address, 0))
                self.channels.append(kopi.Channel(flow, flags=flags, frames=FRAMES, tx=WINDOW,
                                                  completion=WINDOW, fill=FRAMES, rx=FRAMES))
        addresses = [channel.sock.getsockname() for channel in self.channels]
        for channel, address in zip(self.channels, reversed(addresses)):
            channel.sock.connect(address)
            for frame in range(WINDOW, FRAMES):
                channel.fill.push(channel.frame(frame))
        self.serials = [0, 0]
        self.sent, self.received = [0, 0], [0, 0]
        self.free = [list(range(WINDOW)) for _ in ends]
        self.seen = [set(), set()]
        self.errors = collections.Counter()
        self.wrong = []

    def reap(self, end):
        """Takes what was completed and what came."""
        channel = self.channels[end]
        while (entry := channel.completion.pop()) is not None:
            self.free[end].append((entry[0] - channel.frames) // channel.frame_size)
            self.errors[entry[4]] += 1
            self.sent[end] += entry[4] == 0
        while (entry := channel.rx.pop()) is not None:
            data = channel.region[entry[0]:entry[0] + entry[1]]
            channel.fill.push(entry[0] - 64)
            if not intact(data):
                self.wrong.append(f"{len(data)} corrupt bytes arrive")
                continue
            serial = struct.unpack_from("=I", data, 4)[0]
            if serial in self.seen[end]:
                self.wrong.append(f"datagram {serial} arrives twice")
            self.seen[end].add(serial)
            self.received[end] += 1

    def round(self):
        """Sends some, both ways."""
        for end, channel in enumerate(self.channels):
            for _ in range(min(16, len(self.free[end]))):
                channel.send(self.free[end].pop(), datagram(self.serials[end], self.size))
                self.serials[end] += 1
            channel.bell()
            self.reap(end)

    def settle(self):
        """Waits until all is completed, and nothing comes any more."""
        def done():
            for end, channel in enumerate(self.channels):
                channel.bell()
                self.reap(end)
            return all(len(free) == WINDOW for free in self.free)
        if not wait_until(done):
            self.wrong.append(f"{[WINDOW - len(free) for free in self.free]} frames don't come back")
        quiet, last = time.monotonic(), sum(self.received)
        while time.monotonic() - quiet < 0.5:
            done()
            if sum(self.received) != last:
                quiet, last = time.monotonic(), sum(self.received)
            time.sleep(0.01)

    def judge(self):
        """What is wrong at the end."""
        for end, channel in enumerate(self.channels):
            stats = channel.stats()
            if channel.unaccounted():
                self.wrong.append(channel.unaccounted())
            if stats["tx_pending"]:
                self.wrong.append(f"tx_pending is {stats['tx_pending']}")
            if stats["tx_packets"] != self.sent[end]:
                self.wrong.append(f"{stats['tx_packets']} are counted as sent, {self.sent[end]} were completed")
            if stats["rx_packets"] != self.received[end]:
                self.wrong.append(f"{stats['rx_packets']} are counted in the ring, {self.received[end]} came")
        if set(self.errors) - NO_MEMORY:
            self.wrong.append(f"errnos {dict(self.errors)}")
        return self.wrong

    def lost(self):
        """Datagrams that the stack took, and that are in no ring."""
        dropped = sum(channel.stats()["rx_taken"] - channel.stats()["rx_packets"] for channel in self.channels)
        return sum(self.sent) - sum(self.received) - dropped

    def close(self):
        """Closes both."""
        for channel in self.channels:
            channel.region.close()
            channel.sock.close()


@contextlib.contextmanager
def trace():
    """Has failing allocations and dropped packets noted."""
    events = ["kprobes/kopi_slab", "kprobes/kopi_page", "skb/kfree_skb"]
    size = faults.get(f"{TRACING}/buffer_size_kb").split()[0]
    faults.put(f"{TRACING}/kprobe_events", "r:kopi_slab should_failslab ret=$retval:s32\n"
               "r:kopi_page should_fail_alloc_page ret=$retval:u8")
    faults.put(f"{TRACING}/buffer_size_kb", 8192)
    try:
        for name in events[:2]:
            faults.put(f"{TRACING}/events/{name}/filter", "ret != 0")
        for name in events:
            faults.put(f"{TRACING}/events/{name}/enable", 1)
        yield
    finally:
        for name in events:
            faults.put(f"{TRACING}/events/{name}/enable", 0)
        faults.put(f"{TRACING}/kprobe_events", "")
        faults.put(f"{TRACING}/trace", "")
        faults.put(f"{TRACING}/buffer_size_kb", size)


def noted():
    """Allocations that failed, those of them in softirqs, and packets dropped by reason."""
    failed, in_softirqs, reasons = 0, 0, collections.Counter()
    with open(f"{TRACING}/trace", encoding="ascii", errors="replace") as file:
        for line in file:
            # task-pid [cpu] flags time: event: of the flags the third says hardirq or softirq.
            if match := re.match(r".*\[\d+\] (\S{5,6}) +[\d.]+: kopi_(slab|page):", line):
                failed += 1
                in_softirqs += match[1][2] in "sSHh"
            elif match := re.search(r" kfree_skb: .* reason: (\S+)", line):
                reasons[match[1]] += 1
    return failed, in_softirqs, reasons


def spell(kind, flows):
    """Traffic, while allocations of a kind fail."""
    name, one_in = ONE_IN[kind]
    before = faults.losses("host", "peer", "away")
    with trace():
        with faults.settings({f"{name}/ignore-gfp-wait": "Y", f"{name}/task-filter": "N",
                              f"{name}/verbose": 0, f"{name}/interval": one_in[0], f"{name}/times": -1,
                              f"{name}/space": 0, f"{name}/probability": 100,
                              **({"fail_page_alloc/min-order": 0} if name == "fail_page_alloc" else {})}):
            for interval in one_in:
                faults.put(f"{faults.DEBUG}/{name}/interval", interval)
                end = time.monotonic() + SECONDS
                while time.monotonic() < end:
                    for flow in flows:
                        flow.round()
        for flow in flows:
            flow.settle()
        failed, in_softirqs, reasons = noted()
    counted = faults.losses("host", "peer", "away") - before
    print(f"# {kind}: {failed} allocations failed, {in_softirqs} of them in softirqs; the stack counts "
          f"{counted} losses; packets dropped: {dict(reasons)}")
    return failed, in_softirqs, counted, reasons


def all_paths():
    """Flows over each."""
    lo4 = [("host", "127.0.0.1")] * 2
    veth = [("host", "198.51.100.1"), ("away", "198.51.100.2")]
    return [Traffic("lo, by reference", lo4, 1900), Traffic("lo, GSO packets", lo4, 300, kopi.OFFLOADS),
            Traffic("lo6, GSO packets by reference", [("host", "::1")] * 2, 1900, kopi.OFFLOADS, kopi.UDP6),
            Traffic("NIC", NIC4, 1400), Traffic("NIC, GSO packets", NIC4, 300, kopi.OFFLOADS),
            Traffic("NIC, IPv6", NIC6, 700, 0, kopi.UDP6), Traffic("veth, by reference", veth, 1900),
            Traffic("veth, GSO packets by reference", veth, 1900, kopi.OFFLOADS)]


def attached_nics():
    """Flows that meet by the drivers."""
    return [Traffic("attached NIC", NIC4, 1400), Traffic("attached NIC, GSO packets", NIC4, 300, kopi.OFFLOADS),
            Traffic("attached NIC, GSO IPv6 packets", NIC6, 700, kopi.OFFLOADS, kopi.UDP6)]


def by_drivers(nics):
    """How many packets have left by those, and come from them."""
    shown = [devices(inside)[0] for inside in nics]
    return sum(nic["packets"] for nic in shown), sum(nic["received"] for nic in shown)


def main(make):
    """Both kinds, over some paths."""
    began = time.monotonic()
    # All of it once without faults.
    for flow in make():
        for _ in range(5):
            flow.round()
        flow.settle()
        kopi.check(f"{flow.name}: goes", not flow.judge() and flow.lost() == 0,
                   f"{flow.judge()}, {flow.lost()} lost")
        flow.close()
    faults.forget_leaks()
    before = memory.slabs()
    in_all, failures = 0, 0
    for kind in ONE_IN:
        flows = make()
        failed, in_softirqs, counted, reasons = spell(kind, flows)
        in_all += in_softirqs
        failures += failed
        kopi.check(f"{kind}: allocations failed, in softirqs, too", failed > 100 and in_softirqs > 20,
                   f"{failed}, {in_softirqs}")
        lost = 0
        for flow in flows:
            wrong = flow.judge()
            lost += flow.lost()
            kopi.check(f"{kind}, {flow.name}: {sum(flow.sent)} sent, {flow.lost()} lost, errnos "
                       f"{dict(flow.errors)}: none is corrupt, all is counted", not wrong, "; ".join(wrong[:5]))
        named = sum(count for reason, count in reasons.items() if reason != "NOT_SPECIFIED")
        # Of a GSO packet all is counted as one.
        alone = sum(flow.lost() for flow in flows if not flow.gso)
        kopi.check(f"{kind}: what is lost has a reason or a counter",
                   alone <= counted + named and (lost == 0 or counted + named > 0),
                   f"{alone} and {lost - alone} of GSO packets lost, {counted} counted, {named} named")
        kopi.check(f"{kind}: datagrams arrive nevertheless", all(sum(flow.received) for flow in flows))
        for flow in flows:
            lost, sent = flow.lost(), sum(flow.sent)
            flow.round()
            flow.settle()
            kopi.check(f"{kind}, {flow.name}: works afterwards, without a loss",
                       sum(flow.sent) == sent + 32 and flow.lost() == lost, f"{flow.lost() - lost} lost")
            flow.close()
        kopi.check(f"{kind}: nothing holds the module", wait_until(memory.is_unused), memory.module_users())
    kopi.ran(f"allocations in softirqs, {make.__name__}", time.monotonic() - began, failed=failures,
             in_softirqs=in_all)
    faults.check_all_is_back(before)


NICS = {"host": "eth0", "peer": "eth1"}
kopi.send_by_reference()
faults.add_veth()
try:
    main(all_paths)
    for space, nic in NICS.items():
        sh(f"nsenter --net=/run/netns/{space} kopictl attach {nic}")
    main(attached_nics)
    LEFT, CAME = by_drivers(NICS)
    kopi.check("packets left and came by the drivers", LEFT > 0 and CAME > 0, f"{LEFT}, {CAME}")
    print(f"# {LEFT} packets left by the drivers, {CAME} came from them")
    for space, nic in NICS.items():
        sh(f"nsenter --net=/run/netns/{space} kopictl detach {nic}")
finally:
    faults.remove_veth()
kopi.finish()
