#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Mixed traffic, churn of flows and changes of rules for a long time: memory is flat in the end, and
the counters balance. `make soak` runs it; SOAK_SECONDS sets how long (600).

For half a minute all of it goes on to warm up, then memory is counted, then it goes on. The
host's NIC is attached, and detached now and then. Others are served in time all the while.
"""

import json
import os
import random
import signal
import time
import traceback

import bpf
import kopi
import memory
from equivalence import devices, namespace, sh
from kopi import JOIN, SOL_KOPI, Channel, check, flow
from watchdog import Watchdog

SECONDS = int(os.environ.get("SOAK_SECONDS", "600"))
WARM_UP = min(30, SECONDS)
GROUP = "/sys/fs/cgroup/soak"
# veth0 in host, veth1 in peer: here rules change, and packets are lost.
LOSSY = {4: ("198.51.100.1", "198.51.100.2"), 6: ("2001:db8:1::1", "2001:db8:1::2")}


def whole(end, count):
    """Datagrams of all sizes, between rings and sockets, where nothing changes: all arrive intact."""
    turns = 0
    kinds = [("host", "peer", "192.0.2.1", "", ""), ("peer", "host", "[2001:db8::2]", "--plain", ""),
             ("host", "host", "127.0.0.1", "", "--plain"), ("host", "host", "[::1]", "--offloads", ""),
             ("peer", "host", "192.0.2.2", "--offloads --merged", "--offloads"),
             ("host", "peer", "192.0.2.1", "--offloads --merged", "--offloads")]
    while time.monotonic() < end:
        to, by, address, receiving, sending = kinds[turns % len(kinds)]
        size = "1400" if "offloads" in sending else "0..20000"
        sh(f"cd /tmp; ip netns exec {to} kopi-gen recv --bind {address}:9100 --count 500 "
           f"--timeout 60 {receiving} >soak.recv & for _ in $(seq 600); do grep -q ^listening "
           f"soak.recv && break; sleep 0.05; done; ip netns exec {by} kopi-gen send {address}:9100 "
           f"--count 500 --size {size} {sending} >soak.send && wait $! && rm soak.recv || "
           "{ cat soak.send soak.recv; exit 1; }")
        turns += 1
        count["whole"] = turns * 500


def lossy(end, count):
    """Rings that send to rings at full rate where rules change: each packet is accounted for."""
    turns = 0
    while time.monotonic() < end:
        family = 6 if turns & 1 else 4
        proto = kopi.UDP6 if family == 6 else 0
        with namespace("host"):
            out = Channel(flow(proto), flags=kopi.OFFLOADS * (turns >> 1 & 1))
        with namespace("peer"):
            back = Channel(flow(proto), flags=kopi.OFFLOADS * (turns >> 2 & 1), frames=256, fill=256, rx=256)
        back.sock.bind((LOSSY[family][1], 7001))
        for frame in range(256):
            back.fill.push(back.frame(frame))
        for _ in range(200):
            # As far as the ring has room: where a queue is full, the kernel leaves entries there.
            for frame in range(64 - (out.tx.get(out.tx.producer) - out.tx.get(out.tx.consumer))):
                out.send(frame, bytes([frame]) * (1400 if frame & 1 else 100),
                         (LOSSY[family][1], 7001))
            out.bell()
            while out.completion.pop() is not None:
                pass
            while (entry := back.rx.pop()) is not None:
                data = back.region[entry[0]:entry[0] + entry[1]]
                if data != data[:1] * len(data) or len(data) not in (100, 1400):
                    raise RuntimeError(f"{len(data)} bytes that were not sent so")
                back.fill.push(entry[0] & ~2047)
        for channel in (out, back):
            if channel.unaccounted():
                raise RuntimeError(channel.unaccounted())
        count["sent"] = count.get("sent", 0) + out.stats()["tx_packets"]
        count["received"] = count.get("received", 0) + back.stats()["rx_packets"]
        # With packets in queues of qdiscs and devices.
        for channel in (out, back):
            channel.region.close()
            channel.sock.close()
        turns += 1


def churn(end, count):
    """Flows come, join, exchange a datagram, and go."""
    turns = 0
    while time.monotonic() < end:
        first, second = flow(), flow()
        channel = Channel(first, frames=16, flags=kopi.OFFLOADS * (turns & 1))
        second.setsockopt(SOL_KOPI, JOIN, kopi.join_request(first))
        for sock in (first, second):
            sock.bind(("127.0.0.1", 0))
        channel.fill.push(channel.frame(8))
        channel.send(0, b"to the other", second.getsockname())
        channel.bell()
        channel.bell(kopi.BELL_WAIT_RX)
        entry = channel.rx.pop()
        if channel.region[entry[0]:entry[0] + entry[1]] != b"to the other" or entry[2] != 1:
            raise RuntimeError(f"received {entry}")
        if turns % 3:
            channel.region.close()
        second.close()
        first.close()
        del channel
        turns += 1
        count["churned"] = turns


def victim():
    """Sends and receives until it is killed."""
    channel = Channel(frames=32)
    channel.sock.bind(("127.0.0.1", 0))
    address = channel.sock.getsockname()
    while True:
        for frame in range(16):
            channel.send(frame, b"x" * (1900 if frame & 1 else 10), address)
        channel.bell()
        while channel.completion.pop() is not None:
            pass
        channel.fill.push(channel.frame(20))
        channel.rx.pop()


def killed(end, count):
    """Processes are killed in the middle of it."""
    chance = random.Random(1)
    while time.monotonic() < end:
        pid = kopi.in_child(victim)
        time.sleep(chance.uniform(0.01, 0.1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        count["killed"] = count.get("killed", 0) + 1


CHANGES = [
    ("nft 'table inet soak { chain c { type filter hook output priority 0; udp dport 7001 limit rate "
     "over 1000/second drop; }; }'", "nft delete table inet soak"),
    ("nft 'table ip soak { chain c { type nat hook postrouting priority 100; oif veth0 masquerade; "
     "}; }'", "nft delete table ip soak"),
    ("tc qdisc replace dev veth0 root netem delay 20ms loss 5% duplicate 5% reorder 10%",
     "tc qdisc del dev veth0 root"),
    ("tc qdisc replace dev veth0 root tbf rate 10mbit burst 20k limit 50k",
     "tc qdisc replace dev veth0 root fq; tc qdisc del dev veth0 root"),
    ("tc qdisc add dev veth0 clsact; tc filter add dev veth0 egress protocol ip flower action drop",
     "tc qdisc del dev veth0 clsact"),
    ("iptables-legacy -A OUTPUT -p udp --dport 7001 -m statistic --mode random --probability 0.3 -j DROP",
     "iptables-legacy -F OUTPUT"),
    ("ip route add blackhole 198.51.100.2/32", "ip route del blackhole 198.51.100.2/32"),
    ("ip link set veth0 mtu 1300", "ip link set veth0 mtu 1500"),
    ("ip addr add 198.51.100.3/24 dev veth0", "ip addr del 198.51.100.3/24 dev veth0"),
    ("ip link set veth0 down", "ip link set veth0 up; "
     "ip addr replace 2001:db8:1::1/64 dev veth0 nodad"),
    ("timeout 1 tcpdump -i veth0 -c 50 -w /dev/null", "true"),
    ("kopictl detach eth0; sleep 1", "kopictl attach eth0"),
]


def rules(end, count):
    """Rules, qdiscs, routes, addresses, programs and taps come and go."""
    turns = 0
    while time.monotonic() < end:
        for change in CHANGES[turns % len(CHANGES)]:
            # The tap's timeout is no fault.
            sh(f"nsenter --net=/run/netns/host bash -c {json.dumps(change)} || [ $? = 124 ]")
            time.sleep(0.1)
        turns += 1
        count["changes"] = turns


def program(end, count):
    """Programs on the cgroup of all of them come and go."""
    turns = 0
    while time.monotonic() < end:
        group = os.open(GROUP, os.O_RDONLY)
        detach = bpf.attach(group, ("egress_count", "ingress_count")[turns & 1],
                            ("cgroup_inet_egress", "cgroup_inet_ingress")[turns & 1])
        time.sleep(0.3)
        detach()
        os.close(group)
        turns += 1
        count["programs"] = turns


def work(worker, end, writer):
    """What a child does."""
    count = {}
    try:
        with open(f"{GROUP}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write("0")
        worker(end, count)
    except Exception:  # pylint: disable=broad-except
        count["fault"] = f"{worker.__name__}: {traceback.format_exc()}"
    os.write(writer, json.dumps(count).encode())
    os._exit(0)


def all_of_it(seconds):
    """Runs all workers; gives what they counted, and the memory taken from time to time."""
    end = time.monotonic() + seconds
    readers = []
    for worker in (whole, lossy, churn, killed, rules, program):
        reader, writer = os.pipe()
        if os.fork() == 0:
            work(worker, end, writer)
        os.close(writer)
        readers.append(reader)
    samples = []
    while time.monotonic() < end:
        time.sleep(max(0, min(seconds / 20, end - time.monotonic())))
        samples.append(memory.counts()["Taken:"])
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
print(f"# kilobytes taken: {taken}")
check("all datagrams arrived intact, and all packets are accounted for", not broken, "; ".join(broken))
check("each kind of work was done", set(done) == {"whole", "sent", "received", "churned", "killed",
                                                  "changes", "programs"} and all(done.values()), done)
eth0 = devices("host")[0]
check("the NIC's driver sent and received GSO packets", eth0["packets"] and eth0["gro_packets"], eth0)
sh("ip netns exec host kopictl detach eth0")
check("no reference to the module is left", memory.wait_until_unused(), memory.module_users())
grown, after = memory.grown(before, 500, {"VmallocUsed:": 4096, "Percpu:": 1024, "Taken:": 30 << 10})
print(f"# before and after: {({name: (count, after[name]) for name, count in before.items()})}")
check("memory is where it was", not grown, grown)
bpf.unload()
os.rmdir(GROUP)
sh("ip netns exec host nft delete table ip kept; ip -n host link del veth0")
kopi.finish()
