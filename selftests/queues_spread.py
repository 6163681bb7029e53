#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""On a NIC with four queues, attached, programs on both CPUs receive and send at once: many flows of two of them each
way are spread over the queues and lose nothing, and those with one flow have it in order. On a NIC with fewer queues
all but the spreading (qemu/vm --model igb and virtio-taps have them)."""

import re

import kopi
from attached import attach, carrier, host, kopictl, model, peer
from equivalence import devices
from transfers import Transfer

QUEUES, FLOWS, COUNT = 4, 32, 2000


def transfer(near, far, address, cpu, flows):
    """On a CPU, to as many ports as there are flows; the order is that of all flows together."""
    both = ("--flows", str(flows))
    return Transfer(f"from {far} to {near}, by CPU {cpu}, {flows} flows", near, far, f"{address}:{7000 + 100 * cpu + flows}",
                    COUNT, ("--ports", str(flows), "--size", "200", *both), both, ("taskset", "-c", str(cpu)), flows == 1)


def by_queue():
    """Packets that each queue has received, where the driver says it; virtio says it of those for a program."""
    found = re.findall(r"rx_?(?:queue_)?(\d+)_(?:xdp_)?packets: (\d+)", host("ethtool -S eth0"))
    return {int(queue): int(packets) for queue, packets in found}


driver = host("ethtool -i eth0").split()[1]
several = model() in ("igb", "virtio-taps")
if several:
    for run, nic in (host, "eth0"), (peer, "eth1"):
        run(f"ethtool -L {nic} combined {QUEUES}")
        if driver == "igb":
            # Ports count in the choice of a queue, which they don't by default.
            run(f"ethtool -N {nic} rx-flow-hash udp4 sdfn")
attach()
carrier()
before = by_queue()
transfers = [transfer(*place, cpu, flows)
             for place in (("host", "peer", "192.0.2.1"), ("peer", "host", "192.0.2.2"))
             for cpu in (0, 1) for flows in (FLOWS, 1)]
for each in transfers:
    each.begin()
for each in transfers:
    each.end()
spread = {queue: packets - before.get(queue, 0) for queue, packets in by_queue().items()}
print(f"# {driver}, {QUEUES if several else 1} queues: packets by queue: {spread}", flush=True)
if several:
    # virtio receives by those for XDP frames, too.
    kopi.check("each queue has received its share", len(spread) >= QUEUES and min(spread.values()) > COUNT // 20, spread)
[device] = devices("host")
print(f"# {device}", flush=True)
kopi.check("directly, both ways", device["received_direct"] + device["received"] >= 2 * COUNT and device["packets"] >= COUNT,
           device)
kopictl("detach", "eth0")
if several:
    for run, nic in (host, "eth0"), (peer, "eth1"):
        run(f"ethtool -L {nic} combined 1")
kopi.finish()
