#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""GSO packets leave by the driver of an attached device, whole and in order; whatever is to look at them
later than netfilter has them leave by the stack."""

import contextlib
import errno
import fcntl
import itertools
import json
import os
import socket
import struct
import threading
import time

import droptrace
import kopi
from attached import (ADDRESSES, OTHERS, attach, change, counted, detached, host, kopictl, last_hook,
                      link, nobody_takes, rules, slow_device, unsent)
from control import NlError, ask, family, refused
from equivalence import devices, namespace, payload, run_nft, sh
from linux import IFF_UP, SIOCSIFFLAGS, SO_RCVBUFFORCE, SO_SNDBUFFORCE

# Devices that aren't attached, as `ip` makes them.
MADE = {"veth": "link add made0 type veth peer name made1", "bond": "link add made0 type bond",
        "bridge": "link add made0 type bridge", "dummy": "link add made0 type dummy",
        "VLAN": "link add made0 link eth0 type vlan id 7", "macvlan": "link add made0 link eth0 type macvlan",
        "tap": "tuntap add made0 mode tap"}
PORT, FROM = 7000, 7001
BATCH = 32


class Outgoing:
    """A flow on a channel with GSO packets, and who receives, in the other namespace."""

    def __init__(self, version=4):
        near, far = ADDRESSES[version]
        kind = socket.AF_INET if version == 4 else socket.AF_INET6
        with namespace("peer"):
            self.sink = socket.socket(kind, socket.SOCK_DGRAM)
            self.sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            self.sink.bind((far, PORT))
        self.sink.setblocking(False)
        with namespace("host"):
            self.flow = kopi.flow() if version == 4 else kopi.flow(kopi.UDP6)
        self.flow.bind((near, FROM))
        self.flow.connect((far, PORT))
        self.channel = kopi.Channel(self.flow, flags=kopi.OFFLOADS, frames=4 * BATCH, tx=4 * BATCH,
                                    completion=4 * BATCH)
        self.free = list(range(4 * BATCH))
        self.sent = self.taken = 0
        self.sources = set()

    def close(self):
        """Ends it."""
        self.flow.close()
        self.channel.region.close()
        self.sink.close()

    def reap(self):
        """Takes frames back."""
        while (done := self.channel.completion.pop()):
            assert done[4] == 0, errno.errorcode[done[4]]
            self.free.append((done[0] - self.channel.frames) // self.channel.frame_size)

    def send(self, count, size, batch=BATCH):
        """Sends a number of them, a GSO packet a doorbell."""
        while count:
            now = min(count, batch)
            kopi.wait_until(lambda: (self.channel.bell(), self.reap(), len(self.free) >= now)[2])
            for _ in range(now):
                self.channel.send(self.free.pop(), payload(self.sent, size))
                self.sent += 1
            self.channel.bell()
            count -= now
        kopi.wait_until(lambda: (self.channel.bell(), self.reap(), len(self.free) == 4 * BATCH)[2])

    def receive(self, size):
        """Receives all; gives what is wrong, or an empty string."""
        deadline = time.monotonic() + 20
        while self.taken < self.sent:
            try:
                data, source = self.sink.recvfrom(65536)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return f"{self.sent - self.taken} of {self.sent} never came"
                time.sleep(0.001)
                continue
            self.sources.add(source[:2])
            if data != payload(self.taken, size):
                number = struct.unpack_from(">I", data)[0] if len(data) >= 4 else "?"
                return f"datagram {number} of {len(data)} bytes, and not {self.taken} of {size}"
            self.taken += 1
        return ""

    def forget(self):
        """What was sent and hasn't been received."""
        came = [self.taken]

        def is_quiet():
            before = len(came)
            with contextlib.suppress(BlockingIOError):
                while True:
                    came.append(self.sink.recv(65536))
            time.sleep(1)
            return len(came) == before

        kopi.wait_until(is_quiet)
        self.taken = self.sent


def data_is_whole(ynl):
    """All lengths, by both versions of IP, and non-GSO datagrams among GSO packets."""
    for version in (4, 6):
        traffic = Outgoing(version)
        largest = 1472 if version == 4 else 1452
        for size in (1, 2, 63, 64, 65, 511, 1400, largest):
            before = link(ynl)
            traffic.send(3 * BATCH, size)
            wrong = traffic.receive(size)
            kopi.check(f"IPv{version}, {size} bytes: all arrive, in order", not wrong, wrong)
            after = link(ynl)
            direct = after["packets"] - before["packets"]
            kopi.check(f"IPv{version}, {size} bytes: by the driver", direct == 3 * BATCH, after)
        traffic.send(BATCH, 100)
        before = link(ynl)
        for _ in range(10):
            traffic.send(1, 100)
            traffic.send(7, 100)
        wrong = traffic.receive(100)
        kopi.check(f"IPv{version}: non-GSO datagrams among GSO packets, in order", not wrong, wrong)
        direct = link(ynl)["packets"] - before["packets"]
        kopi.check(f"IPv{version}: non-GSO datagrams go directly, too", direct == 80, link(ynl))
        before = link(ynl)
        for _ in range(40):
            traffic.send(1, 100)
            # Until the driver has let go of it, and the module knows.
            kopi.wait_until(lambda: not unsent(traffic.flow))
            time.sleep(0.005)
        direct = link(ynl)["packets"] - before["packets"]
        # Each is a batch of one, for which the stack is cheaper; after 16 that are skbs, the flow leaves.
        kopi.check(f"IPv{version}: those in turn", direct == 16, direct)
        traffic.send(BATCH, 100)
        wrong = traffic.receive(100)
        kopi.check(f"IPv{version}: with a GSO packet, in order", not wrong and
                   link(ynl)["packets"] - before["packets"] == direct + BATCH, (wrong, link(ynl), before))
        traffic.send(1, 0)
        wrong = traffic.receive(0)
        kopi.check(f"IPv{version}: a datagram without payload", not wrong, wrong)
        traffic.close()


def device_fills(ynl):
    """More than the device's ring holds waits, and nobody loses any."""
    traffic = Outgoing()
    # As much as can wait.
    traffic.flow.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20)
    # Where the peer's CPU stands still, QEMU lets some overtake those that found its NIC's ring full; where the
    # machine does, the driver is given up for a minute after a second of a full ring.
    for _ in range(3):
        before = link(ynl)
        traffic.send(64 * BATCH, 1400)
        wrong = traffic.receive(1400)
        after = link(ynl)
        if not wrong.startswith("datagram") and after["tx-path"] != "refused":
            break
        print(f"# many at once: {wrong}, {after['tx-path']}, again")
        traffic.forget()
        kopi.wait_until(lambda: link(ynl)["tx-path"] != "refused", 90)
    kopi.check("many at once: all arrive, in order", not wrong, wrong)
    kopi.check("many at once: none is dropped, all by the driver",
               after["dropped"] == before["dropped"]
               and after["packets"] - before["packets"] == 64 * BATCH, after)
    traffic.close()


def hooks_see_gso_packets(ynl):
    """Rules hold, and change what leaves."""
    traffic = Outgoing()
    with namespace("host"):
        rules("table ip nat {", "chain post {", "type nat hook postrouting priority 100",
              "udp dport 7000 snat to 192.0.2.1:9999", "}", "}",
              "table inet seen {", "counter out { }", "chain o {", "type filter hook output priority 0",
              "udp dport 7000 counter name out", "}", "}",
              "table netdev early {", "counter left { }", "chain e {",
              "type filter hook egress device eth0 priority 0", "udp dport 7000 counter name left",
              "}", "}")
    before = link(ynl)
    traffic.send(4 * BATCH, 64)
    wrong = traffic.receive(64)
    kopi.check("with rules: all arrive, in order", not wrong, wrong)
    kopi.check("with rules: by the driver", link(ynl)["packets"] - before["packets"] == 4 * BATCH,
               link(ynl))
    kopi.check("NAT changes all of a GSO packet", traffic.sources == {("192.0.2.1", 9999)},
               traffic.sources)
    with namespace("host"):
        for table, counter in (("inet seen", "out"), ("netdev early", "left")):
            packets = counted(table, counter)
            kopi.check(f"{table}: counts GSO packets", packets == 4, packets)
        run_nft("add rule netdev early e udp dport 7000 drop")
    before = link(ynl)
    # The hook says so, and a socket hears of it as it would without KOPI's part.
    for number in range(BATCH):
        traffic.channel.send(traffic.free.pop(), payload(number, 64))
    traffic.channel.bell()
    kopi.wait_until(lambda: traffic.channel.stats()["tx_taken"] == 5 * BATCH)
    kopi.check("what egress drops doesn't leave", link(ynl)["packets"] == before["packets"],
               link(ynl))
    with namespace("host"):
        run_nft("flush ruleset")
    with last_hook():
        kopi.check("hook: it is said why", link(ynl)["tx-path"] == "hook", link(ynl))
    kopi.check("hook: by the driver again", link(ynl)["tx-path"] == "direct", link(ynl))
    traffic.close()


def others_look(ynl):
    """Each thing that is to look at what leaves sees all of it."""
    traffic = Outgoing()
    for way, other in OTHERS.items():
        traffic.send(2 * BATCH, 200)
        with other() as tap:
            kopi.check(f"{way}: it is said why", link(ynl)["tx-path"] == way, link(ynl))
            before = link(ynl)
            traffic.send(4 * BATCH, 200)
            wrong = traffic.receive(200)
            kopi.check(f"{way}: all arrive, in order", not wrong, wrong)
            after = link(ynl)
            kopi.check(f"{way}: by the stack", after["packets"] == before["packets"]
                       and after["passed"] > before["passed"], after)
            if tap:
                tap.setblocking(False)
                seen = 0
                with contextlib.suppress(BlockingIOError):
                    while True:
                        seen += len(tap.recv(65536)) == 242
                kopi.check("a tap sees each datagram", seen == 4 * BATCH, seen)
        kopi.wait_until(lambda: link(ynl)["tx-path"] == "direct")
        before = link(ynl)
        kopi.wait_until(lambda: (traffic.send(BATCH, 200),
                                 link(ynl)["packets"] > before["packets"])[1])
        wrong = traffic.receive(200)
        kopi.check(f"{way}: by the driver again", not wrong, wrong)
    traffic.close()


def send_meanwhile(traffic, act):
    """Has GSO packets of all lengths sent until that is done, and a last one; gives the numbers of each."""
    over = threading.Event()
    sent = []

    def run():
        for number in itertools.count():
            if over.is_set():
                return
            sent.append(range(traffic.sent, traffic.sent + 1 + number * 7 % BATCH))
            traffic.send(len(sent[-1]), 300)
            # The receiver has room for all of it, but not for all that could be sent.
            time.sleep(0.003 if number < 1500 else 0.1)

    thread = threading.Thread(target=run)
    thread.start()
    act()
    over.set()
    thread.join()
    sent.append(range(traffic.sent, traffic.sent + BATCH))
    traffic.send(BATCH, 300)
    return sent


def exchange_meanwhile(traffic, act):
    """Has it done under traffic: the numbers of what was sent, and of what came, and how many qdiscs dropped."""
    # GSO packets count as one, also when a qdisc is taken away. The device counts what meets the one that it has while
    # none is in force, and nobody what meets one that has just been taken away.
    droptrace.start(also_purged=True)
    try:
        sent = send_meanwhile(traffic, act)
        received = []
        with contextlib.suppress(TimeoutError):
            traffic.sink.settimeout(20)
            while not received or received[-1] != sent[-1][-1]:
                data = traffic.sink.recv(65536)
                received.append(struct.unpack_from(">I", data)[0])
                assert data == payload(received[-1], 300)
        dropped = droptrace.recorded()["QDISC_DROP"] + droptrace.purged()
    finally:
        droptrace.stop()
    traffic.sink.setblocking(False)
    traffic.taken = traffic.sent
    return sent, received, dropped


def ways_change(ynl):
    """Things come and go under traffic. While tc changes its qdiscs the stack itself drops what comes; all else
    arrives, and in order."""
    traffic = Outgoing()
    # Without payload, which is counted as all others are.
    traffic.send(BATCH, 300)
    wrong = traffic.receive(300)
    traffic.send(1, 0)
    wrong = wrong or traffic.receive(0)
    kopi.check("a datagram without payload", not wrong, wrong)
    for way, other in {**OTHERS, "detached": detached}.items():
        # As in device_fills(): where the peer's CPU stands still, QEMU lets some overtake others.
        for _ in range(3):
            before = link(ynl)
            sent, received, dropped = exchange_meanwhile(traffic, lambda way=way, other=other: change(way, other))
            early = [after for after, late in zip(received, received[1:]) if after >= late]
            if not early:
                break
            print(f"# {way}: {early[:9]} came before earlier ones, again")
        kopi.check(f"{way}: comes and goes, and nothing is overtaken", not early, early[:9])
        there = set(received)
        lost = [batch for batch in sent if not there.issuperset(batch)]
        whole = all(there.isdisjoint(batch) for batch in lost)
        allowed = dropped if way in ("tc", "qdisc") else 0
        kopi.check(f"{way}: of {len(sent)} GSO packets none is lost, but {dropped} that the stack drops itself",
                   whole and len(lost) <= allowed, f"{len(lost)} lost")
        if way != "detached":
            after = link(ynl)
            kopi.check(f"{way}: nothing is dropped on the direct path",
                       after["dropped"] == before["dropped"], after)
    traffic.close()


def stack_is_slow(_ynl):
    """A GSO packet waits for what the stack has of its flow, but not for ever; and what comes behind it
    waits, too."""
    with slow_device():
        traffic = Outgoing()
        with namespace("host"):
            flow = kopi.flow()
        flow.bind(("0.0.0.0", FROM + 1))
        channel = kopi.Channel(flow, flags=kopi.OFFLOADS, frames=256, tx=256, completion=256)
        for number in range(3):
            channel.send(200 + number, payload(number, 1300), ("203.0.113.2", PORT))
            channel.bell()
        sizes = [size for gso in range(6) for size in [64 + gso] * 16] + [80, 81, 82, 83, 84, 85]
        for number, size in enumerate(sizes):
            channel.send(1 + number, payload(number, size), ("192.0.2.2", PORT))
        # The GSO packets at once, and the others when some of them have waited.
        channel.bell()
        for number in range(10):
            channel.send(130 + number, payload(number, 90 + number), ("192.0.2.2", PORT))
            sizes.append(90 + number)
            time.sleep(0.0004)
            channel.bell()
        traffic.sink.settimeout(20)
        received = [len(traffic.sink.recv(100)) for _ in sizes]
        kopi.check("what waits for the stack isn't overtaken", received == sizes, received)
        kept = json.loads(host("tc -s -j qdisc show dev slow0"))[0]["backlog"]
        kopi.check("and leaves before that has sent all", kept > 0, kept)
        flow.close()
        channel.region.close()
        traffic.close()


def cpus_change(ynl):
    """A flow's packets don't overtake each other when it goes from CPU to CPU."""
    traffic = Outgoing()
    cpus = sorted(os.sched_getaffinity(0))
    for number in range(60):
        os.sched_setaffinity(0, {cpus[number % len(cpus)]})
        traffic.send(1 + number % BATCH, 700)
    os.sched_setaffinity(0, set(cpus))
    wrong = traffic.receive(700)
    kopi.check("from CPU to CPU: all arrive, in order", not wrong, wrong)
    traffic.close()


def device_goes_down(ynl):
    """What waits is dropped, and it goes on."""
    traffic = Outgoing()
    for _ in range(5):
        traffic.send(BATCH, 1000)
        host("ip link set eth0 down")
        kopi.check("down: by the stack", link(ynl)["tx-path"] == "down", link(ynl))
        host("ip link set eth0 up")
        host("ip addr replace 2001:db8::1/64 dev eth0 nodad")
    with contextlib.suppress(BlockingIOError):
        kopi.wait_until(lambda: traffic.sink.recv(1, socket.MSG_PEEK) is not None)
    kopi.wait_until(lambda: link(ynl)["tx-path"] == "direct")
    before = link(ynl)
    # Not before the stack has sent what waited for the neighbour's address.
    kopi.wait_until(lambda: (traffic.send(2 * BATCH, 1000), link(ynl)["packets"] > before["packets"])[1])
    kopi.check("down and up: by the driver again", link(ynl)["packets"] > before["packets"],
               link(ynl))
    traffic.close()


class Asked:
    """Asks for RTNL all the time, as `ip link set lo up` does, and knows how long that took at most."""

    def __init__(self):
        self.longest, self.over = 0, False
        self.thread = threading.Thread(target=self.ask)
        self.thread.start()

    def ask(self):
        """Until it is over."""
        up = struct.pack("16sh22x", b"lo", IFF_UP)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            while not self.over:
                begin = time.monotonic()
                fcntl.ioctl(sock, SIOCSIFFLAGS, up)
                self.longest = max(self.longest, time.monotonic() - begin)
                time.sleep(0.005)

    def end(self):
        """Gives the longest that it took, in seconds."""
        self.over = True
        self.thread.join()
        return self.longest


def refused_by_driver(ynl, traffic):
    """Sends more than its ring holds, and than QEMU takes besides, which is more at times on a busy machine.

    The stack's own packets (ARP, MLD) find the ring full, too. What comes first decides the reason: KOPI's packet
    that waited for a second, or one of the stack's that its qdisc holds.
    """
    for _ in range(4):
        traffic.send(40 * BATCH, 1000)
        if kopi.wait_until(lambda: link(ynl)["tx-path"] in ("refused", "qdisc"), 5):
            taken = link(ynl)
            traffic.send(BATCH, 1000)
            return link(ynl)["packets"] == taken["packets"] and link(ynl)["passed"] > taken["passed"]
    return False


def detached_while_waiting(ynl, traffic):
    """How long others waited for RTNL while the device was detached with packets that wait, and how long that took."""
    with nobody_takes():
        before, sent = link(ynl)["packets"], traffic.sent
        # A packet waits for a second at most, so that the detaching begins with the first that does.
        while link(ynl)["packets"] - before == traffic.sent - sent:
            traffic.send(BATCH, 1000)
        asked = Asked()
        begin = time.monotonic()
        kopictl("detach", "eth0")
        took = time.monotonic() - begin
        return asked.end(), took


def driver_takes_none(ynl):
    """A driver whose ring stays full holds up nobody for longer than a second."""
    traffic = Outgoing()
    traffic.flow.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20)
    with nobody_takes():
        before = link(ynl)
        sent = traffic.sent
        kopi.check("a driver that takes no frames: the stack has them all", refused_by_driver(ynl, traffic), link(ynl))
        after = link(ynl)
        kopi.check("but the rest of the one that it had begun, which is dropped",
                   after["dropped"] - before["dropped"] < BATCH
                   and after["packets"] - before["packets"] < traffic.sent - sent, (before, after))
        kopictl("detach", "eth0")
    kopictl("attach", "eth0")
    kopi.check("attached again: by the driver", kopi.wait_until(lambda: link(ynl)["tx-path"] == "direct"), link(ynl))
    for _ in range(5):
        longest, took = detached_while_waiting(ynl, traffic)
        if longest < 0.5 < took:
            break
        # The machine stood still, maybe.
        kopictl("attach", "eth0")
        kopi.wait_until(lambda: link(ynl)["tx-path"] == "direct")
    kopi.check("detached while packets wait: nobody waits for RTNL", longest < 0.5 < took,
               f"{longest:.2f} s of {took:.2f} s")
    kopictl("attach", "eth0")
    traffic.close()


def bad_input(ynl):
    """What can't be attached isn't."""
    with namespace("host"):
        loopback, nic = socket.if_nametoindex("lo"), socket.if_nametoindex("eth0")
    refused("attached twice", errno.EEXIST,
            lambda: ask(ynl, "device-attach", {"ifindex": nic}), "attached already")
    refused("no such device", errno.ENODEV,
            lambda: ask(ynl, "device-attach", {"ifindex": 12345}), "no such device")
    refused("no device", errno.EINVAL, lambda: ask(ynl, "device-attach"), "no device is named")
    refused("loopback", errno.EOPNOTSUPP,
            lambda: ask(ynl, "device-attach", {"ifindex": loopback}), "no hardware of its own")
    sh("modprobe tun")
    for kind, how in MADE.items():
        host(f"ip {how}")
        with namespace("host"):
            made = socket.if_nametoindex("made0")
        refused(f"{kind}: behind it there is more to be asked", errno.EOPNOTSUPP,
                lambda made=made: ask(ynl, "device-attach", {"ifindex": made}), "attach the NICs below it")
        host("ip link del made0")
    refused("not attached", errno.ENODEV,
            lambda: ask(ynl, "device-detach", {"ifindex": loopback}), "isn't attached")
    with namespace("host"):
        pid = os.fork()
        if pid == 0:
            os.setuid(1001)
            others = family()
            try:
                others.do("device-detach", {"ifindex": nic})
            except Exception as error:  # pylint: disable=broad-except
                os._exit(0 if "Operation not permitted" in str(error) else 1)
            os._exit(2)
        kopi.check("without CAP_NET_ADMIN", os.waitpid(pid, 0)[1] == 0)
    for operation in "device-attach", "device-detach":
        pid = os.fork()
        if pid == 0:
            os.setuid(1001)
            os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
            try:
                family().do(operation, {"ifindex": 1})
            except NlError as error:
                os._exit(0 if error.error == errno.EPERM and "initial user namespace" in str(error) else 1)
            os._exit(2)
        kopi.check(f"{operation} by root of a user namespace", os.waitpid(pid, 0)[1] == 0)


attach()
with namespace("host"):
    YNL = family()
shown = devices("host")
kopi.check("kopictl info shows it", shown[0]["name"] == "eth0" and shown[0]["tx_path"] == "direct",
           shown)
for case in (data_is_whole, device_fills, hooks_see_gso_packets, others_look, ways_change, stack_is_slow, cpus_change,
             device_goes_down, driver_takes_none, bad_input):
    case(YNL)
kopictl("detach", "eth0")
kopi.check("detached, without a program of its own",
           "xdp" not in json.loads(host("ip -j link show eth0"))[0], host("ip link show eth0"))
kopi.check("and not shown any more", not YNL.dump("device-get", {}))
kopi.finish()
