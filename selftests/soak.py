#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Everything at once for a long time (mixture.py): memory is flat in the end, and the counters balance.
`make soak` runs it; SOAK_SECONDS sets how long (600).

For a minute all of it goes on to warm up, then memory is counted, then it goes on. The host's NIC is attached, and
detached now and then. Others are served in time all the while.
"""

import json
import os
import time
import traceback

import bpf
import kopi
import memory
from equivalence import devices, sh
from kopi import check
from mixture import GROUP, LOSSY, WORKERS
from watchdog import Watchdog

SECONDS = int(os.environ.get("SOAK_SECONDS", "600"))
WARM_UP = min(60, SECONDS)
GSO = set()


def work(worker, end, writer):
    """What a child does."""
    count = {}
    try:
        kopi.move_to(GROUP)
        worker(end, count)
    except Exception:  # pylint: disable=broad-except
        count["fault"] = f"{worker.__name__}: {traceback.format_exc()}"
    os.write(writer, json.dumps(count).encode())
    os._exit(0)


def all_of_it(seconds):
    """Runs all workers; gives what they counted, and the memory taken from time to time. GSO has what devices had sent
    and received then: they begin anew with each attachment."""
    end = time.monotonic() + seconds
    readers = []
    for worker in WORKERS:
        reader, writer = os.pipe()
        if os.fork() == 0:
            work(worker, end, writer)
        os.close(writer)
        readers.append(reader)
    samples = []
    while time.monotonic() < end:
        time.sleep(max(0, min(seconds / 20, end - time.monotonic())))
        samples.append(memory.counts()["Taken:"])
        for each in devices("host"):
            GSO.update(name for name in ("gso_packets", "gro_packets") if each[name])
    counts, faults = {}, []
    for reader in readers:
        with os.fdopen(reader) as told:
            counts |= json.loads(told.read() or '{"fault": "a worker said nothing"}')
        os.wait()
        faults += [counts.pop("fault")] if "fault" in counts else []
    return counts, faults, samples


kopi.send_by_reference()
sh("ip link add veth0 netns host type veth peer veth1 netns peer")
for name, number in (("host", 0), ("peer", 1)):
    sh(f"ip -n {name} addr add {LOSSY[4][number]}/24 dev veth{number}; ip -n {name} addr add "
       f"{LOSSY[6][number]}/64 dev veth{number} nodad; ip -n {name} link set veth{number} up")
sh("ip netns exec host kopictl attach eth0")
# Conntrack puts fragments together, if it is there: where NAT comes and goes, it stays, since what is half there
# when it comes is lost.
sh("ip netns exec host nft 'table ip kept { chain c { type filter hook prerouting priority 0; ct state invalid counter; }; }'")
os.makedirs(GROUP, exist_ok=True)
bpf.load()
_, broken, _ = all_of_it(WARM_UP)
check("all goes well while it warms up", not broken, broken)
memory.wait_until_unused()
before = memory.counts()
with Watchdog() as watchdog:
    done, broken, taken = all_of_it(SECONDS)
watchdog.check()
print(f"# in {SECONDS} s: {done}")
kopi.ran("soak", SECONDS, **{name: count for name, count in done.items() if isinstance(count, int)})
print(f"# kilobytes taken: {taken}")
check("all datagrams arrived intact, and all packets are accounted for", not broken, "; ".join(broken))
check("each kind of work was done", set(done) == {
    "whole", "sent", "received", "churned", "killed", "changes", "programs", "singles", "asked", "answers", "streams",
    "questions", "enforced"} and all(done.values()), done)
check("the NIC's driver sent and received GSO packets", len(GSO) == 2, GSO)
sh("ip netns exec host kopictl detach eth0")
check("no reference to the module is left", memory.wait_until_unused(), memory.module_users())
grown, after = memory.grown(before, 500, {"VmallocUsed:": 4096, "Percpu:": 1024, "Taken:": 30 << 10})
print(f"# before and after: {({name: (count, after[name]) for name, count in before.items()})}")
check("memory is where it was", not grown, grown)
bpf.unload()
os.rmdir(GROUP)
sh("ip netns exec host nft delete table ip kept; ip -n host link del veth0")
kopi.finish()
