#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Non-GSO datagrams leave by the driver of an attached device, without an skb for each, and meet the hooks that
are installed all the same; what a hook keeps or changes stays whole."""

import contextlib
import json
import os
import random
import socket
import struct
import time

import kopi
import memory
import nfqueue
from attached import ADDRESSES, OTHERS, attach, change, counted, detached, host, kopictl, link, nobody_takes, rules
from control import family
from equivalence import namespace, payload, run_nft
from linux import SO_RCVBUFFORCE, SO_SNDBUFFORCE

# Of an unknown neighbour, by IP version; and the versions in the words of nft.
OTHER = {4: "192.0.2.99", 6: "2001:db8::99"}
TABLE = {4: "ip", 6: "ip6"}
PORT = 7000
FRAMES = 128
# The port of what waits while nobody takes it: it may arrive when other parts of this file listen.
STRAY = 1
# Rules by which a program decides about port 7001.
QUEUED = ("table inet kept {", "chain o {", "type filter hook output priority 0", "udp dport 7001 queue num 0", "}", "}")
SIZES = [*range(0, 1453, 64), 1, 3, 1451, 1452]


class Datagrams:
    """A flow on a channel without GSO, and sinks in the other namespace, each on a port of its own."""

    def __init__(self, version, ports=1, flows=1):
        near, self.far = ADDRESSES[version]
        kind, proto = (socket.AF_INET, 0) if version == 4 else (socket.AF_INET6, kopi.UDP6)
        self.sinks = []
        with namespace("peer"):
            for port in range(ports):
                sink = socket.socket(kind, socket.SOCK_DGRAM)
                sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
                sink.bind(("", PORT + port))
                sink.settimeout(10)
                self.sinks.append(sink)
        with namespace("host"):
            self.channel = kopi.Channel(kopi.flow(proto), frames=FRAMES, tx=FRAMES, completion=FRAMES)
            self.channel.sock.bind((near, 0))
            self.numbers, self.joined = [0], []
            for _ in range(flows - 1):
                flow = kopi.flow(proto)
                flow.bind((near, 0))
                flow.setsockopt(kopi.SOL_KOPI, kopi.JOIN, kopi.join_request(self.channel.sock))
                self.joined.append(flow)
                self.numbers.append(kopi.number_of(flow))
        self.free = list(range(FRAMES))
        self.errors = []

    def close(self):
        """Ends it."""
        for sock in (*self.joined, self.channel.sock, *self.sinks):
            sock.close()
        self.channel.region.close()

    def reap(self):
        """Takes frames back."""
        while (done := self.channel.completion.pop()):
            self.free.append((done[0] - self.channel.frames) // self.channel.frame_size)
            self.errors.append(done[4])

    def send(self, datagrams, address=None):
        """Sends (port, data) each, as many a doorbell as fit, by the flows in turn, four by each: one or two would take
        the stack. Gives those that were refused."""
        self.errors = []
        for number, (port, data) in enumerate(datagrams):
            if not self.free:
                kopi.wait_until(lambda: (self.channel.bell(), self.reap(), self.free)[2])
            flow = self.numbers[number // 4 % len(self.numbers)]
            self.channel.send(self.free.pop(), data, (address or self.far, PORT + port), flow_number=flow)
        kopi.wait_until(lambda: (self.channel.bell(), self.reap(), len(self.free) == FRAMES)[2])
        return sum(error != 0 for error in self.errors)

    def receive(self, port, count):
        """What a sink receives, as far as it comes."""
        received = []
        with contextlib.suppress(TimeoutError):
            while len(received) < count:
                received.append(self.sinks[port].recv(65536))
        return received

    def receive_behind(self, received, number, patience):
        """Receives what there is, and waits until one of that number or a later one has come: so not much is under
        way, and no NIC's ring gets full, of which QEMU takes packets out of order."""
        end = time.monotonic() + patience
        self.sinks[0].setblocking(False)
        while True:
            with contextlib.suppress(BlockingIOError):
                while True:
                    received.append(self.sinks[0].recv(2000))
            last = struct.unpack_from(">I", received[-1])[0] if received else -1
            if last + 1 >= number or time.monotonic() > end:
                return
            time.sleep(0.001)

    def arrive(self, what, datagrams):
        """Checks that all arrive, and in order at each port."""
        for port in range(len(self.sinks)):
            mine = [data for to, data in datagrams if to == port]
            received = self.receive(port, len(mine))
            wrong = next((number for number, pair in enumerate(zip(received, mine)) if pair[0] != pair[1]), None)
            kopi.check(f"{what}: all arrive, in order" + (f" (port {port})" if len(self.sinks) > 1 else ""),
                       received == mine, f"{len(received)} of {len(mine)}, the first wrong one: {wrong}")


def several(count, ports=1, sizes=(100,)):
    """Datagrams for ports in turn."""
    return [(number % ports, payload(number, sizes[number // ports % len(sizes)])) for number in range(count)]


def all_lengths(ynl, version):
    """All lengths, to several ports, by one flow and by several."""
    for flows in (1, 3):
        traffic = Datagrams(version, ports=4, flows=flows)
        before = link(ynl)
        datagrams = several(4 * len(SIZES) * flows, 4, SIZES)
        traffic.send(datagrams)
        # Of several flows there is no order; each has ports of its own only by chance.
        if flows == 1:
            traffic.arrive("all lengths", datagrams)
        else:
            there = sorted(data for port in range(4) for data in traffic.receive(port, len(datagrams) // 4))
            kopi.check("flows in turn: all arrive", there == sorted(data for _, data in datagrams))
        after = link(ynl)
        kopi.check(f"by the driver, {flows} flows", after["packets"] - before["packets"] == len(datagrams)
                   and after["gso-packets"] == before["gso-packets"], after)
        kopi.check(f"nothing is unaccounted for, {flows} flows",
                   kopi.wait_until(lambda: not traffic.channel.unaccounted()), traffic.channel.unaccounted())
        traffic.close()


def rules_decide(ynl, version):
    """Rules see each datagram, drop some, and change others; by the driver all the same."""
    traffic = Datagrams(version, ports=2)
    with namespace("host"):
        rules("table inet seen {", "counter out { }", "counter post { }", "chain o {",
              "type filter hook output priority 0", "meta l4proto udp counter name out", "udp dport 7001 drop", "}",
              "chain p {", "type filter hook postrouting priority 0", "meta l4proto udp counter name post", "}", "}")
    before = link(ynl)
    datagrams = several(200, 2)
    refused = traffic.send(datagrams)
    kopi.check("what a rule drops is refused", refused == 100, refused)
    traffic.arrive("the others", [each for each in datagrams if each[0] == 0])
    with namespace("host"):
        numbers = counted("inet seen", "out"), counted("inet seen", "post")
    kopi.check("each hook sees each datagram", numbers == (200, 100), numbers)
    kopi.check("with rules: by the driver", link(ynl)["packets"] - before["packets"] == 100, link(ynl))
    with namespace("host"):
        run_nft("flush ruleset")
        near = ADDRESSES[version][0]
        rules(f"table {TABLE[version]} nat {{", "chain p {", "type nat hook postrouting priority 100",
              f"udp dport 7000 snat to {near if version == 4 else f'[{near}]'}:9999", "}", "}")
    before = link(ynl)
    traffic.send(several(100))
    sources = {traffic.sinks[0].recvfrom(2000)[1][:2] for _ in range(100)}
    kopi.check("NAT changes each one's source", sources == {(near, 9999)}, sources)
    kopi.check("NAT: by the driver", link(ynl)["packets"] - before["packets"] == 100, link(ynl))
    with namespace("host"):
        run_nft("flush ruleset")
        rules(f"table {TABLE[version]} nat {{", "chain o {", "type nat hook output priority -100",
              f"{TABLE[version]} daddr {OTHER[version]} dnat to {traffic.far}", "}", "}")
    datagrams = several(100, 2, SIZES)
    traffic.send(datagrams, OTHER[version])
    traffic.arrive("another destination", datagrams)
    with namespace("host"):
        run_nft("flush ruleset")
    traffic.close()


def hooks_keep(_ynl, version):
    """What a hook keeps, or copies, isn't touched by what is sent afterwards."""
    traffic = Datagrams(version, ports=2)
    with namespace("host"):
        queue = nfqueue.serve(0, lambda _: True)
        rules(*QUEUED)
    datagrams = several(400, 2, SIZES)
    traffic.send(datagrams)
    traffic.arrive("kept by a program, and let go", datagrams)
    queue.stop()
    with namespace("host"):
        run_nft("flush ruleset")
        rules(f"table {TABLE[version]} twice {{", "chain p {", "type filter hook postrouting priority 0",
              f"udp dport 7001 dup to {traffic.far} device eth0", "}", "}")
    datagrams = several(100, 2, SIZES)
    traffic.send(datagrams)
    traffic.arrive("beside copies", [each for each in datagrams if each[0] == 0])
    mine = sorted(2 * [data for port, data in datagrams if port == 1])
    there = sorted(traffic.receive(1, len(mine)))
    kopi.check("copied: each arrives twice", there == mine, len(there))
    with namespace("host"):
        run_nft("flush ruleset")
    traffic.close()


def kept_for_ever(_ynl, version):
    """What a program never lets go holds up nobody, and goes with the module."""
    traffic = Datagrams(version, ports=2)
    with namespace("host"):
        queue = nfqueue.Queue(0)
        rules(*QUEUED)
    traffic.send(several(40, 2))
    traffic.arrive("the others", [each for each in several(40, 2) if each[0] == 0])
    waiting = [queue.receive() for _ in range(20)]
    kopi.check("a program keeps some", None not in waiting, waiting)
    traffic.close()
    kopictl("detach", "eth0")
    kopi.check("the module can go meanwhile", memory.unload())
    for packet in waiting:
        queue.verdict(packet, True)
    queue.sock.close()
    with namespace("host"):
        run_nft("flush ruleset")
    kopi.expect(memory.load(), "the module comes again")
    attach()


def marks_last(ynl, version):
    """The mark that a hook has set is there when the stack has to send after all."""
    traffic = Datagrams(version, ports=2)
    traffic.channel.sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20)
    with namespace("host"):
        rules("table inet marked {", "chain o {", "type filter hook output priority 0",
              "udp dport 7001 meta mark set 7", "}", "}")

    def seen():
        """Marked datagrams that the stack has, which tc begins to look for while they wait for the driver."""
        with nobody_takes():
            # More than its ring holds.
            traffic.send([(STRAY, payload(number, 1000)) for number in range(10 * FRAMES)])
            # By one process, within the second after which the stack has them.
            host("tc -b - <<<$'qdisc add dev eth0 clsact\\nfilter add dev eth0 egress protocol all pref 1 "
                 "handle 7 fw action ok'")
            kopi.wait_until(lambda: link(ynl)["path"] == "refused")
            shown = json.loads(host("tc -s -j filter show dev eth0 egress"))
            host("tc qdisc del dev eth0 clsact")
            kopictl("detach", "eth0")
        kopictl("attach", "eth0")
        return next((action["stats"]["packets"] for each in shown
                     for action in each.get("options", {}).get("actions", ())), 0)

    # tc may come too late, on a busy machine.
    kopi.check("the stack has the mark that a hook has set", any(seen() for _ in range(5)))
    with namespace("host"):
        run_nft("flush ruleset")
    traffic.close()


def neighbours_are_asked(ynl, version):
    """A peer whose address isn't known gets all, in order."""
    traffic = Datagrams(version)
    for _ in range(10):
        host(f"ip neigh flush dev eth0 {traffic.far}")
        datagrams = several(60)
        traffic.send(datagrams[:30])
        time.sleep(0.01)
        traffic.send(datagrams[30:])
        received = traffic.receive(0, 60)
        # The kernel keeps a limited number of bytes while it asks.
        if received != datagrams and not set(received) <= {data for _, data in datagrams}:
            kopi.check("unknown neighbours", False, len(received))
    before = link(ynl)
    traffic.send(several(100))
    traffic.arrive("known again", several(100))
    kopi.check("known again: by the driver", link(ynl)["packets"] - before["packets"] == 100, link(ynl))
    traffic.close()


def room_is_short(ynl, version):
    """A small send buffer, and a driver that takes nothing for a while: no datagram is lost."""
    traffic = Datagrams(version)
    traffic.channel.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    datagrams = several(500, sizes=(1000, 10))
    traffic.send(datagrams)
    traffic.arrive("a small send buffer", datagrams)
    traffic.close()
    traffic = Datagrams(version, ports=2)
    before = link(ynl)
    with nobody_takes():
        for number in range(FRAMES):
            traffic.channel.send(traffic.free.pop(), payload(number, 1400), (traffic.far, PORT + STRAY))
        traffic.channel.bell()
        kopi.check("the driver has some",
                   kopi.wait_until(lambda: link(ynl)["packets"] > before["packets"]), link(ynl))
    kopi.wait_until(lambda: (traffic.channel.bell(), traffic.reap(), len(traffic.free) == FRAMES)[2])
    traffic.close()


def paths_change(ynl, version):
    """Things come and go under traffic: nothing is overtaken, and nothing lost that the stack doesn't drop."""
    for way, other in {**OTHERS, "detached": detached, "rules": ruled}.items():
        traffic = Datagrams(version)
        before = link(ynl)
        pid = os.fork()
        if pid == 0:
            if way in ("detached", "rules"):
                for _ in range(10):
                    with other():
                        time.sleep(0.01)
                    time.sleep(0.01)
            else:
                change(way, other)
            os._exit(0)
        sent, received = 0, []
        chance = random.Random(way)
        while not os.waitpid(pid, os.WNOHANG)[0]:
            count = chance.randint(1, FRAMES)
            traffic.send([(0, payload(number, 300)) for number in range(sent, sent + count)])
            sent += count
            # Of what tc and its qdiscs drop nothing comes.
            traffic.receive_behind(received, sent - count, 0.2 if way in ("tc", "qdisc") else 10)
        traffic.send([(0, payload(sent, 300))])
        traffic.receive_behind(received, sent + 1, 10)
        numbers = [struct.unpack_from(">I", data)[0] for data in received]
        kopi.check(f"{way}: comes and goes, and nothing is overtaken", numbers == sorted(set(numbers)))
        kopi.check(f"{way}: each is whole", all(data == payload(number, 300)
                                               for number, data in zip(numbers, received)))
        # While tc changes its qdiscs the stack itself drops what comes.
        kopi.check(f"{way}: nothing is lost", way in ("tc", "qdisc") or len(numbers) == sent + 1,
                   f"{len(numbers)} of {sent + 1}")
        if way != "detached":
            after = link(ynl)
            kopi.check(f"{way}: nothing is dropped on the direct path, which some take",
                       after["dropped"] == before["dropped"] and after["packets"] > before["packets"], after)
        traffic.close()


@contextlib.contextmanager
def ruled():
    """Hooks of netfilter's, at the host and at its device."""
    with namespace("host"):
        rules("table inet seen {", "chain o {", "type filter hook output priority 0", "counter", "}", "}",
              "table netdev early {", "chain e {", "type filter hook egress device eth0 priority 0", "counter", "}",
              "}")
    try:
        yield
    finally:
        with namespace("host"):
            run_nft("flush ruleset")


attach()
with namespace("host"):
    YNL = family()
for case in (all_lengths, rules_decide, hooks_keep, marks_last, neighbours_are_asked, room_is_short, paths_change,
             kept_for_ever):
    for ip in (4, 6):
        case(YNL, ip)
kopictl("detach", "eth0")
kopi.check("detached", "xdp" not in json.loads(host("ip -j link show eth0"))[0])
kopi.finish()
