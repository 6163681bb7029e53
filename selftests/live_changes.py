#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What an administrator changes while a flow sends and receives at full rate counts at once.

A child sends batches as fast as it can, each datagram with its batch's number. When a command that
changes something has returned, the batch that was being sent then may still go by the old policy;
every later one must go by the new. The same for what comes in.
"""

import ctypes
import mmap
import os
import select
import signal
import socket
import struct
import time

import bpf
import kopi
from equivalence import namespace, sh
from linux import IP_RECVTOS, SO_ATTACH_FILTER, SO_DETACH_FILTER, SO_RCVBUFFORCE

BATCH, SIZE = 16, 200
# Batches that are looked at after each change.
ENOUGH = 20
# Waits of 10 ms until a sender is said to stand still. Not seconds: the machine as a whole may
# stand still, and its clock go on.
PATIENCE = 2000
GROUP = "/sys/fs/cgroup/live"


class Pace:
    """A number that a child raises with each batch."""

    def __init__(self):
        self.page = mmap.mmap(-1, 4096)

    def begin(self):
        """Says that the next batch begins, and gives its number."""
        number = self.now() + 1
        kopi.store(self.page, 0, "=Q", number)
        return number

    def now(self):
        """The last batch begun."""
        return struct.unpack_from("=Q", self.page, 0)[0]


def start(space, work, pace):
    """Runs the work for ever in a child."""
    def there():
        with namespace(space):
            work(pace)

    return kopi.in_child(there)


def stop(pid):
    """Ends a child, which must have lived until now."""
    alive = os.waitpid(pid, os.WNOHANG)[0] == 0
    if alive:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return alive


def flow_sends(gso):
    """A KOPI flow that sends."""
    def work(pace):
        kopi.move_to(GROUP)
        flow = kopi.flow()
        flow.bind(("192.0.2.1", 7000))
        channel = kopi.Channel(flow, flags=kopi.OFFLOADS if gso else 0)
        while True:
            number = pace.begin()
            for frame in range(BATCH):
                channel.send(frame, struct.pack("=Q", number).ljust(SIZE, b"x"),
                             ("192.0.2.2", 7001))
            left = BATCH
            while left:
                channel.bell()
                while channel.completion.pop() is not None:
                    left -= 1
            if number % 64 == 0 and channel.unaccounted():
                os._exit(2)
    return work


def udp_sends(pace):
    """An ordinary socket that sends."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind(("192.0.2.2", 7001))
    while True:
        number = struct.pack("=Q", pace.begin()).ljust(SIZE, b"x")
        for _ in range(BATCH):
            sock.sendto(number, ("192.0.2.1", 7000))


class UdpReceiver:
    """The ordinary end: gives the batch and TOS of each datagram that has come."""

    def __init__(self):
        with namespace("peer"):
            self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 23)
        self.sock.setsockopt(socket.IPPROTO_IP, IP_RECVTOS, 1)
        self.sock.bind(("192.0.2.2", 7001))
        self.sock.setblocking(False)

    def receive(self):
        """What has come."""
        found = []
        try:
            while len(found) < 5000:
                data, control, _, _ = self.sock.recvmsg(SIZE, 64)
                found.append((struct.unpack_from("=Q", data)[0], control[0][2][0]))
        except BlockingIOError:
            pass
        return found

    def close(self):
        """Ends it."""
        self.sock.close()


class FlowReceiver:
    """The KOPI end."""

    def __init__(self, gso):
        kopi.move_to(GROUP)
        with namespace("host"):
            self.sock = kopi.flow()
        self.sock.bind(("192.0.2.1", 7000))
        self.channel = kopi.Channel(self.sock, flags=kopi.OFFLOADS if gso else 0, frames=2048, fill=2048, rx=2048,
                                    frame_size=512)
        for frame in range(2048):
            self.channel.fill.push(self.channel.frame(frame))
        kopi.move_to("")

    def receive(self):
        """What has come."""
        found = []
        while len(found) < 5000 and (entry := self.channel.rx.pop()) is not None:
            start_of = entry[0] - 64
            found.append((struct.unpack_from("=Q", self.channel.region, entry[0])[0],
                          self.channel.region[start_of + 46]))
            self.channel.fill.push(start_of)
        return found

    def close(self):
        """Ends it."""
        # One that is being delivered is counted in two places, one after the other.
        kopi.check("every packet that came is accounted for",
                   kopi.wait_until(lambda: not self.channel.unaccounted()), self.channel.unaccounted())
        self.channel.region.close()
        self.sock.close()


def later(receiver, pace, change, least=0):
    """Changes something; gives what comes of the batches after the one of that moment: so many, if they come."""
    receiver.receive()
    change()
    last = pace.now()
    found, waits = [], 0
    while pace.now() < last + ENOUGH and waits < PATIENCE:
        found += receiver.receive()
        waits += not select.select([receiver.sock], [], [], 0.01)[0]
    # What is on its way: all of a batch passes before the next begins, but for the NICs' queues.
    begun = time.monotonic()
    while time.monotonic() < begun + (0.2 if len(after(found, last)) >= least else 20):
        more = receiver.receive()
        found += more
        if more and pace.now() > last + 4 * ENOUGH and len(after(found, last)) >= least:
            break
    if pace.now() < last + ENOUGH:
        raise RuntimeError(f"the sender stands still at batch {pace.now()}")
    return after(found, last)


def after(found, last):
    """What there is of later batches than the next one."""
    return [(number, tos) for number, tos in found if number > last + 1]


def in_host(command):
    """A change by a command in the namespace `host`."""
    return lambda: sh(f"ip netns exec host {command}")


def table(hook, rule):
    """Changes that make and remove a table with one rule."""
    return (in_host(f"nft -f - <<'END'\ntable ip live {{\nchain c {{\ntype {hook}; policy accept;\n"
                    f"{rule}\n}}\n}}\nEND"), in_host("nft delete table ip live"))


def rule(hook, text):
    """Changes that add a rule to a chain that is there, and take it away."""
    def add():
        sh(f"ip netns exec host nft add rule ip standing c {text}")

    def remove():
        sh("ip netns exec host nft flush chain ip standing c")
    sh(f"ip netns exec host nft 'table ip standing {{ chain c {{ type {hook}; }}; }}'")
    return add, remove, lambda: sh("ip netns exec host nft delete table ip standing")


def program(name, kind):
    """Changes that attach a program to the flow's cgroup, and detach it."""
    detach = []

    def attach():
        group = os.open(GROUP, os.O_RDONLY)
        detach.append(bpf.attach(group, name, kind))
        os.close(group)
    return attach, lambda: detach.pop()()


def pair(commands):
    """Changes by two commands."""
    return tuple(in_host(command) for command in commands)


STOP_OUT = {
    "nft, a new table": table("filter hook output priority 0", "udp dport 7001 drop"),
    "nft, netdev egress": pair((
        "nft 'table netdev live { chain c { type filter hook egress device eth0 priority 0; "
        "udp dport 7001 drop; }; }'", "nft delete table netdev live")),
    "iptables, legacy": pair(("iptables-legacy -A OUTPUT -p udp --dport 7001 -j DROP",
                              "iptables-legacy -F OUTPUT")),
    "tc, clsact": pair((
        "bash -c 'tc qdisc add dev eth0 clsact; tc filter add dev eth0 egress protocol ip flower "
        "ip_proto udp dst_port 7001 action drop'", "tc qdisc del dev eth0 clsact")),
    "tc, another qdisc": pair(("tc qdisc add dev eth0 root netem loss 100%",
                               "tc qdisc del dev eth0 root")),
    "routing rule": pair(("ip rule add pref 50 ipproto udp dport 7001 prohibit",
                          "ip rule del pref 50")),
    "route": pair(("ip route add blackhole 192.0.2.2/32", "ip route del blackhole 192.0.2.2/32")),
    "cgroup program": program("egress_drop", "cgroup_inet_egress"),
}
STOP_IN = {
    "nft, a new table": table("filter hook input priority 0", "udp dport 7000 drop"),
    "nft, netdev ingress": pair((
        "nft 'table netdev live { chain c { type filter hook ingress device eth0 priority 0; "
        "udp dport 7000 drop; }; }'", "nft delete table netdev live")),
    "iptables, legacy": pair(("iptables-legacy -A INPUT -p udp --dport 7000 -j DROP",
                              "iptables-legacy -F INPUT")),
    "tc, clsact": pair((
        "bash -c 'tc qdisc add dev eth0 clsact; tc filter add dev eth0 ingress protocol ip flower "
        "ip_proto udp dst_port 7000 action drop'", "tc qdisc del dev eth0 clsact")),
    "cgroup program": program("ingress_drop", "cgroup_inet_ingress"),
}


def stops(way, receiver, pace, changes):
    """Each change must stop all later batches, and its end let all of them pass."""
    for name, (add, remove) in changes.items():
        passed = later(receiver, pace, add)
        kopi.check(f"{way}: {name}: stops every later batch", not passed,
                   f"{len(passed)} came, {passed[:3]}")
        kopi.check(f"{way}: {name}: and its end lets them pass",
                   len(later(receiver, pace, remove, BATCH)) >= BATCH)


def sees(receiver, pace, add, remove, what, tos):
    """After the change each packet that comes has that TOS."""
    found = later(receiver, pace, add, 1)
    kopi.check(f"{what}: every later packet is changed",
               found and all(each == tos for _, each in found), found[:3])
    found = later(receiver, pace, remove, 1)
    kopi.check(f"{what}: and none when it has gone",
               found and all(each == 0 for _, each in found), found[:3])


os.makedirs(GROUP, exist_ok=True)
bpf.load()
for gso in (False, True):
    suffix = ", GSO packets" if gso else ""
    count = Pace()
    child = start("host", flow_sends(gso), count)
    end = UdpReceiver()
    stops("out" + suffix, end, count, STOP_OUT)
    added, removed, clear = rule("filter hook output priority 0", "udp dport 7001 drop")
    stops("out" + suffix, end, count, {"nft, a rule in a chain": (added, removed)})
    clear()
    added, removed, clear = rule("filter hook output priority 0",
                                 "udp dport 7001 ip dscp set cs2")
    sees(end, count, added, removed, "out" + suffix + ": dscp", 0x40)
    clear()
    tap = []

    def listen():
        """A tap begins."""
        with namespace("host"):
            tap.append(socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3)))
        tap[0].setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)
        tap[0].bind(("eth0", 3))
        tap[0].setblocking(False)
    arrived = {number for number, _ in later(end, count, listen, 1)}
    tapped = set()
    try:
        while True:
            packet = tap[0].recv(256)
            if packet[9] == 17 and packet[22:24] == struct.pack(">H", 7001):
                tapped.add(struct.unpack_from("=Q", packet, 28)[0])
    except BlockingIOError:
        pass
    tap[0].close()
    kopi.check("out" + suffix + ": a tap sees every later batch", arrived and arrived <= tapped,
               sorted(arrived - tapped)[:5])
    kopi.check("out" + suffix + ": the sender lived, and its packets are accounted for", stop(child))
    end.close()

    count = Pace()
    child = start("peer", udp_sends, count)
    end = FlowReceiver(gso)
    stops("in" + suffix, end, count, STOP_IN)
    added, removed, clear = rule("filter hook input priority 0", "udp dport 7000 ip dscp set cs2")
    sees(end, count, added, removed, "in" + suffix + ": dscp", 0x40)
    clear()
    # A filter on the flow itself: return nothing.
    code = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0), 8)
    stops("in" + suffix, end, count, {"socket filter": (
        lambda: end.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack(
            "=HxxxxxxQ", 1, ctypes.addressof(code))),
        lambda: end.sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0))})
    stop(child)
    end.close()
bpf.unload()
os.rmdir(GROUP)
kopi.finish()
