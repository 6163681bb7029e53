#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Who rewrites descriptors, addresses and lengths while they are sent gets nothing past a filter.

A rule lets packets of one address, one port and two lengths leave. A hostile process changes all
that it shares with the kernel as fast as it can, while another rings the doorbell. Whatever is on
the wire must be what the rule let pass. HOSTILE_SEED repeats a run, HOSTILE_BELLS changes its length.
"""

import os
import random
import signal
import socket
import struct

import kopi
from equivalence import namespace, sh
from linux import PACKET_STATISTICS, SOL_PACKET, SO_RCVBUFFORCE

BELLS = int(os.environ.get("HOSTILE_BELLS", "3000"))
SEED = int(os.environ.get("HOSTILE_SEED", "1"))
GOOD, BAD = ("203.0.113.2", 7001), ("203.0.113.3", 7002)
# The port of what is sent at the end.
END = 7009
# By copy, and by reference; and what the filter stops.
LENGTHS, WRONG = (64, 1400), (65, 1300, 1401)


def scribble(channel, seed):
    """Changes addresses, ports, lengths and flags in shared memory, for ever."""
    rng = random.Random(seed)
    region, ring = channel.region, channel.tx
    addresses = [socket.inet_aton(GOOD[0]), socket.inet_aton(BAD[0])]
    ports = [struct.pack(">H", GOOD[1]), struct.pack(">H", BAD[1])]
    while True:
        frame = channel.frame(rng.randrange(16))
        region[frame:frame + 4] = addresses[rng.randrange(2)]
        region[frame + 32:frame + 34] = ports[rng.randrange(2)]
        entry = ring.entries + rng.randrange(ring.size) * ring.entry_size
        what = rng.randrange(8)
        if what == 0:
            struct.pack_into("=I", region, entry + 4, rng.choice(LENGTHS + WRONG))
        elif what == 1:
            struct.pack_into("=H", region, entry + 12, rng.choice((2, 2, 2, 3, 0, 9)))
        elif what == 2:
            struct.pack_into("=I", region, entry, frame + rng.choice((64, 64, 64, 0, 1 << 31)))
        elif what == 3:
            struct.pack_into("=H", region, frame + 38, rng.choice((0, 0, 0, 32, 700)))
        elif what == 4:
            # By the length that a UDP header would have, were there one here.
            struct.pack_into(">H", region, frame + 68, rng.randrange(1 << 16))


def has_met(stats):
    """Whether some of what was rewritten was refused."""
    return stats["tx_drop_denied"] > 10 and stats["tx_drop_invalid"] > 10


def attack(gso):
    """Sends while another process rewrites; gives the flow's counters."""
    channel = kopi.Channel(flags=kopi.OFFLOADS if gso else 0, frames=64, tx=16, completion=16)
    hostile = kopi.in_child(lambda: scribble(channel, SEED))
    rng = random.Random(SEED)
    # On a busy machine the other one may not have begun.
    while (rung := channel.tx.get(channel.tx.producer)) < BELLS or rung < 20 * BELLS and not has_met(channel.stats()):
        for number in range(8):
            channel.send(number, b"x" * rng.choice(LENGTHS), GOOD)
        channel.bell()
        while channel.completion.pop() is not None:
            pass
    os.kill(hostile, signal.SIGKILL)
    os.waitpid(hostile, 0)
    stats = channel.stats()
    missing = channel.unaccounted()
    channel.region.close()
    channel.sock.close()
    return stats, missing


def send_ends():
    """A datagram from each CPU, behind all that was sent there; gives their number."""
    cpus = os.sched_getaffinity(0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for cpu in cpus:
            os.sched_setaffinity(0, {cpu})
            sock.sendto(b"end", (GOOD[0], END))
    os.sched_setaffinity(0, cpus)
    return len(cpus)


kopi.send_by_reference()
sh("ip -n host link add d0 type veth peer name p0 netns peer; ip -n host link set d0 up; "
   "ip -n peer link set p0 up; ip -n host addr add 203.0.113.1/24 dev d0; "
   "ip -n peer addr add 203.0.113.2/24 dev p0; ip -n peer addr add 203.0.113.3/24 dev p0")
sh(f"""ip netns exec host nft -f - <<'END'
table inet t {{
    chain o {{
        type filter hook output priority 0; policy accept;
        ip daddr {GOOD[0]} udp dport {GOOD[1]} udp length {{ 72, 1408 }} counter accept
        udp dport {{ 7001, 7002 }} counter drop
    }}
}}
END""")
with namespace("peer"):
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
    tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 25)
    tap.bind(("p0", 0x0800))
    tap.settimeout(60)

for asked in (False, True):
    suffix = ", GSO packets" if asked else ""
    if asked:
        # Of a GSO packet the filter sees the whole: only address and port are what it goes by.
        sh("ip netns exec host nft flush chain inet t o; ip netns exec host nft add rule inet t o "
           f"ip daddr {GOOD[0]} udp dport {GOOD[1]} counter accept; "
           "ip netns exec host nft add rule inet t o udp dport { 7001, 7002 } counter drop")
    with namespace("host"):
        counts, unaccounted = attack(asked)
        left = send_ends()
    seen = bad = 0
    try:
        while left:
            packet = tap.recv(65536)
            if packet[9] != 17:
                continue
            fragment = struct.unpack_from(">H", packet, 6)[0] & 0x3FFF
            if fragment & 0x1FFF:
                # No header to look at, but that of the first one.
                continue
            port, length = struct.unpack_from(">HH", packet, 22)
            if port == END:
                left -= 1
                continue
            seen += 1
            if (packet[16:20] != socket.inet_aton(GOOD[0]) or port != GOOD[1]
                    or (not fragment and len(packet) != length + 20)
                    or (not asked and length - 8 not in LENGTHS)):
                bad += 1
    except TimeoutError:
        pass
    # On a machine that stalls, more is sent than the tap has room for.
    _, lost = struct.unpack("=II", tap.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
    kopi.check(f"what was sent has come{suffix}", not left or lost, (left, lost))
    kopi.check(f"nothing but what the filter let pass is on the wire{suffix} ({seen} packets)",
               seen > 100 and not bad, f"{bad} of {seen}")
    kopi.check(f"the filter and the checks had something to stop{suffix}",
               counts["tx_drop_denied"] > 10 and counts["tx_drop_invalid"] > 10, counts)
    kopi.check(f"every packet is accounted for{suffix}", not unaccounted, unaccounted)
    print(f"# seed {SEED}: {counts}")
tap.close()
sh("ip netns exec host nft flush ruleset; ip -n host link del d0")
kopi.finish()
