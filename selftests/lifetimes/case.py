# SPDX-License-Identifier: GPL-2.0
"""A case: a flow in a state, the ending that is applied to it, and what must hold after that."""

import contextlib
import ctypes
import errno
import json
import mmap
import os
import pwd
import select
import socket
import struct
import subprocess

import kopi
import links
from equivalence import devices, run_nft
from kopi import Wrong, expect, wait_until
from links import inside
from linux import PACKET_STATISTICS, SO_RCVBUFFORCE, SOL_PACKET, SYS_DELETE_MODULE, UDP_SEGMENT
from memory import module_users
from nfqueue import Queue

from .driven import Driven, fork, kill
from .program import COUNT, FAR, NEAR, PATIENCE, PORT, SIZE, Program, payload, wait

HELD = ("netem", "nfqueue", "tap")


class Case(Driven):
    """One ending in one state, and what belongs to it."""

    # Where NICs are plugged in: a Nic.
    slot = None

    def __init__(self, ending, state, place):
        self.ending, self.state, self.attached = ending, state, place == "attached"
        self.hostile = place == "hostile"
        self.nic = ending.nic or self.attached
        self.space = "/run/netns/doomed"
        self.adopted = self.feeder = self.queue = self.tap = None
        self.fed = mmap.mmap(-1, 4096)
        # What is as it was before the ending.
        self.alive = self.mapped = self.open = True
        self.here, self.device = ("/run/netns/peer", "eth1") if self.nic else ("/run/netns/away", "far")
        if self.hostile:
            links.make_users_namespace("doomed", pwd.getpwnam("bob").pw_uid)
        else:
            links.make_namespace("doomed")
        be_quiet(self.space)
        with inside(self.here):
            if not self.nic:
                links.make_veth("far", "near", self.space)
                links.set_address("far", FAR)
                links.set_up("far", True)
            self.far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
            self.far.settimeout(PATIENCE)
            self.far.bind((FAR, PORT))
        self.make_near()
        with inside(self.space):
            # What the same does to a UDP socket.
            self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.udp.bind((NEAR, PORT + 1))

    def make_near(self):
        """Brings up the flow's end of the wire."""
        if self.nic:
            name = self.slot.plug_in(lambda found: wait("the NIC", found))
            sh(f"ip link set {name} name near netns doomed")
        self.configure_near()

    def configure_near(self):
        """Has it reach the other end."""
        with inside(self.here):
            far_mac = links.mac(self.device)
        with inside(self.space):
            links.set_address("near", NEAR)
            links.set_up("near", True)
            links.set_neighbour("near", FAR, far_mac)
            near_mac = links.mac("near")
        with inside(self.here):
            links.set_neighbour(self.device, NEAR, near_mac)
        for space, device in ((self.here, self.device), (self.space, "near")):
            with inside(space):
                wait("the link", lambda device=device: links.is_running(device))
        with inside(self.space):
            if self.attached:
                sh("kopictl attach near")
            if self.hostile:
                self.make_hostile()

    @staticmethod
    def make_hostile():
        """What root of a user namespace can have there that looks at each packet."""
        sh("ip link add mon type kopimon")
        links.set_up("mon", True)
        for rule in ("remote-port 1 deny", f"remote-port {PORT} rate 1Gpps", "cgroup / rate 1Gpps shared"):
            sh(f"kopictl rule add {rule}")

    def ask(self, name, *arguments):
        """Has the program, or the test that adopted its flow, do something."""
        if self.adopted:
            return getattr(self.adopted, name)(*arguments)
        return super().ask(name, *arguments)

    def pending(self):
        """Frames that the stack holds."""
        return self.ask("stats")["tx_pending"]

    # Into the state.

    def enter(self):
        """Starts the program, and waits until it is in the state."""
        self.begin(self.space, Program)
        getattr(self, f"prepare_{self.state}", lambda: None)()
        self.ask("start", self.state, kopi.OFFLOADS if self.attached else kopi.ENGINE if self.hostile else 0)
        if self.state in HELD:
            self.ask("send_all")
        getattr(self, f"await_{self.state}", lambda: None)()

    def await_sending(self):
        """It sends, and that comes out."""
        wait("batches", lambda: self.ask("progress") > 3)
        self.far.recv(4096)
        self.await_driver("packets")

    def prepare_receiving(self):
        """Somebody sends to it at full rate."""
        def feed():
            with inside(self.here):
                sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            count, gso = 0, 1
            if self.attached:
                sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE)
                gso = COUNT
            while True:
                with contextlib.suppress(OSError):
                    sender.sendto(b"y" * SIZE * gso, (NEAR, PORT))
                count += 1
                kopi.store(self.fed, 0, "=Q", count)

        self.feeder = fork(self.here, feed)

    def sent_to_it(self):
        """How often was sent to it."""
        return struct.unpack_from("=Q", self.fed)[0]

    def await_receiving(self):
        """It has received a good deal."""
        wait("datagrams", lambda: self.ask("progress") > 100)
        self.await_driver("gro_packets")

    def await_driver(self, counter):
        """GSO packets go by the driver, if the device is attached."""
        if not self.attached:
            return
        before = self.by_driver(counter)
        if before is not None:
            wait(f"{counter} by the driver", lambda: self.by_driver(counter) > before)

    def by_driver(self, counter):
        """How many have, or None if the device isn't attached any more."""
        attached = devices(self.space)
        return attached[0][counter] if attached else None

    def sleeps(self):
        """Whether a thread of it is in poll(2)."""
        for thread in os.listdir(f"/proc/{self.pid}/task"):
            with open(f"/proc/{self.pid}/task/{thread}/syscall", encoding="ascii") as syscall:
                if syscall.read().startswith("7 "):
                    return True
        return False

    def await_poll(self):
        """It sleeps."""
        wait("poll()", self.sleeps)

    def prepare_netem(self):
        """A queue that lets nothing go; what waited for the end of one of ten seconds, and not for what
        the test does, would go unseen."""
        sh("tc -n doomed qdisc add dev near root netem delay 600s")

    def prepare_nfqueue(self):
        """A program that is to give verdicts, and doesn't."""
        with inside(self.space):
            self.queue = Queue(0)
            run_nft("table ip t {\nchain o {\ntype filter hook output priority 0;\n"
                    f"udp dport {PORT} udp length > {SIZE} queue num 0\n}}\n}}")

    def prepare_tap(self):
        """A packet socket that isn't read."""
        with inside(self.space):
            self.tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self.tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 20)
            self.tap.bind(("near", 0))

    def queued(self):
        """How many packets are held at this moment."""
        with inside(self.space):
            if self.state == "netem":
                if not has_device("near"):
                    return 0
                qdiscs = json.loads(sh("tc -s -j qdisc show dev near"))
                return sum(each["qlen"] for each in qdiscs if each["kind"] == "netem")
            with open("/proc/net/netfilter/nfnetlink_queue", encoding="ascii") as queues:
                return sum(int(line.split()[2]) for line in queues)

    def await_netem(self):
        """All are held, and so are their frames unless they were copied."""
        expect(self.queued() == COUNT, "all are held", self.queued())
        # virtio_net has no scatter-gather here: what it sends is copied.
        copied = self.nic and self.slot.model == "virtio"
        expect(self.pending() == (0 if copied else COUNT), "their frames are held", self.pending())

    await_nfqueue = await_netem

    def await_tap(self):
        """The tap has them, and nothing else holds them."""
        seen = []

        def has_them():
            # The counts begin anew with each look.
            seen.append(struct.unpack("=II", self.tap.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)))
            expect(not seen[-1][1], "the tap has lost none", seen)
            return sum(count for count, _ in seen) >= COUNT

        # The doorbell doesn't wait for a device that is slow.
        wait("the tap has them", has_them)
        wait("frames come back", lambda: self.pending() == 0)

    # After the ending.

    def check_queued(self):
        """What was held still is, or was let go of by the ending."""
        if self.state == "tap":
            return
        if self.state in self.ending.drops:
            wait("they are dropped", lambda: self.queued() == 0)
            if self.queue:
                # What its program hasn't read has their pages, too.
                self.read_queue()
            wait("what was dropped is completed", lambda: self.pending() == 0)
            return
        expect(self.queued() == COUNT, "still held", self.queued())
        if self.nic:
            return
        if not self.alive:
            expect(module_users() > 0, "they hold the region")
            expect(delete_module() == errno.EWOULDBLOCK, "and the module")
        elif self.open:
            expect(self.pending() == COUNT, "their frames are still held", self.pending())
        else:
            expect(self.ask("completions") == [], "no completion before its time")

    def release(self):
        """Ends what holds packets; their frames come back."""
        if self.state == "tap":
            self.read_tap()
        elif self.state not in self.ending.drops:
            getattr(self, f"release_{self.state}")()
        if self.alive and self.open:
            wait("their frames come back", lambda: self.pending() == 0)
        if self.alive and self.mapped:
            wait("their completions", lambda: len(self.ask("completions")) >= COUNT)
            done = self.ask("completions")
            expect(done == [0] * COUNT, "completed once, without an error", done)

    def release_netem(self):
        """The queue is deleted, and drops them."""
        with inside(self.space):
            sh("tc qdisc del dev near root")

    def release_nfqueue(self):
        """They get their verdicts, and come out if their route is still there."""
        for packet in self.read_queue():
            self.queue.verdict(packet, True)
        if self.ending.unroutes:
            return
        got = [self.far.recv(4096) for _ in range(COUNT)]
        expect(got == [payload(number) for number in range(COUNT)], "they arrive as they were sent")

    def read_queue(self):
        """Reads what the queue's program was told; gives the identifiers of the packets."""
        return [wait("a packet in the queue", self.queue.receive) for _ in range(COUNT)]

    def read_tap(self):
        """The tap has what was sent, though the frames have long been given back."""
        self.tap.setblocking(False)
        seen = set()
        for _ in range(4 * COUNT):
            try:
                seen.add(self.tap.recv(4096)[42:])
            except BlockingIOError:
                break
            except OSError as error:
                # Once, that its device went down.
                expect(error.errno == errno.ENETDOWN and self.ending.cuts, "the tap's error", error)
        expect({payload(number) for number in range(COUNT)} <= seen, "the tap saw what was sent", len(seen))

    def check_cut(self):
        """Nothing gets out or in, with the errors that a UDP socket gets."""
        try:
            self.udp.sendto(b"x", (FAR, PORT))
            expected = 0
        except OSError as error:
            expected = error.errno
        expect(expected != 0, "a UDP socket can't send")
        if self.state == "sending":
            got = self.ask("recent")
            expect(got == [expected], f"sending gives {errno.errorcode[expected]} only", got)
        else:
            got = self.ask("send", "cut")
            expect(got == expected, f"sending gives {errno.errorcode[expected]}", got)
        if self.state == "poll":
            expect(self.ask("events") is None and self.sleeps(), "still sleeps")
        if self.state == "receiving":
            self.feed_more()
            before = self.ask("stats")["rx_taken"]
            self.feed_more()
            got = self.ask("stats")["rx_taken"] - before
            expect(got == 0, "nothing comes in", got)

    def feed_more(self):
        """Waits until some more was sent to it."""
        before = self.sent_to_it()
        wait("the feeder", lambda: self.sent_to_it() > before + 50)

    def check_traffic(self):
        """The flow receives and sends, as far as the program still has it."""
        if not self.mapped:
            self.check_unmapped()
        else:
            self.far.sendto(b"in", (NEAR, PORT))
        if self.state == "poll" and not self.adopted:
            wait("poll() returns", lambda: self.ask("events") is not None)
            # poll(2) looks the descriptor up again when it wakes.
            expected = select.POLLIN if self.open else select.POLLNVAL
            expect(self.ask("events") == [expected], "as it should", self.ask("events"))
        if self.state == "receiving" and not self.adopted:
            before = self.ask("progress")
            wait("it receives", lambda: self.ask("progress") > before + 100)
            self.await_driver("gro_packets")
        else:
            came = "y" * SIZE if self.state == "receiving" else "in"
            expect(self.ask("receive", came), "a datagram comes in")
        if not self.open:
            return
        self.drain()
        if self.state == "sending" and not self.adopted:
            before = self.ask("progress")
            wait("what is sent now arrives", lambda: struct.unpack_from(
                "=Q", self.far.recv(4096))[0] > before)
            self.await_driver("packets")
        else:
            expect(self.ask("send", "out") == 0, "one goes out")
            while self.far.recv(4096) != b"out":
                pass

    def drain(self):
        """Makes room for what comes now."""
        self.far.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                self.far.recv(4096)
        self.far.settimeout(PATIENCE)

    def check_unmapped(self):
        """Without a mapping packets come into the region, and the doorbell rings."""
        before = self.ask("stats")["rx_taken"]
        self.far.sendto(b"in", (NEAR, PORT))
        wait("packets are taken", lambda: self.ask("stats")["rx_taken"] > before)
        expect(self.ask("ring") == 0, "the doorbell rings")
        if self.ending.name == "exec":
            with open(f"/proc/{self.pid}/maps", encoding="ascii") as maps:
                expect("socket:" not in maps.read(), "exec unmaps")
        else:
            self.ask("remap")

    def check_counters(self):
        """Every packet is accounted for, and every frame."""
        if self.state != "sending" or self.adopted:
            wait("no frame is with the stack", lambda: self.pending() == 0)
        # One that is being sent is counted in two places, one after the other: what is missing stays missing.
        seen = []
        counted = wait_until(lambda: (seen.append(self.ask("unaccounted")), not seen[-1])[1], PATIENCE)
        expect(counted, "every packet is counted", seen[-1])
        broken = self.ask("stats")["ring_broken"]
        expect(not broken, "no ring is broken", broken)

    # To the end.

    def run(self):
        """The case."""
        try:
            self.try_it()
        except Wrong as problem:
            stands = ""
            if self.alive:
                with contextlib.suppress(Wrong):
                    stands = f": {self.ask('describe')}"
            raise Wrong(f"{problem}{stands}") from problem

    def try_it(self):
        """Its steps."""
        self.enter()
        self.ending.apply(self)
        if self.alive:
            expect(os.waitpid(self.pid, os.WNOHANG)[0] == 0, "it lives")
        if self.state in HELD:
            self.check_queued()
        if self.ending.cuts:
            self.check_cut()
        if self.state in HELD:
            self.release()
        if self.ending.restore:
            self.ending.restore(self)
        if self.alive:
            self.check_traffic()
            if self.open:
                self.check_counters()

    def close(self):
        """Ends all of it; gives what is left over."""
        if self.adopted:
            self.adopted.leave()
        for each in (self.orders, self.far, self.udp, self.tap, self.queue and self.queue.sock):
            if each:
                each.close()
        for pid in (self.pid, self.feeder):
            if pid:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    kill(pid)
        self.fed.close()
        if os.path.exists("/run/netns/doomed"):
            links.drop_namespace("doomed")
        if self.nic:
            self.slot.pull_out()
        try:
            wait("nothing refers to the module", lambda: module_users() == 0)
            if not self.nic:
                wait("the namespace is gone", lambda: not self.has_far())
        except Wrong:
            # So that the next case has a chance.
            subprocess.run("ip -n away link del far".split(), check=False)
            raise

    def has_far(self):
        """Whether the veth pair is there, of which one end goes with the namespace."""
        with inside(self.here):
            return has_device("far")


def be_quiet(space):
    """Has a namespace's future devices send nothing by themselves when they come up."""
    with inside(space), open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w",
                             encoding="ascii") as disable:
        disable.write("1")


def has_device(name):
    """Whether the current namespace has it."""
    with contextlib.suppress(OSError):
        return bool(socket.if_nametoindex(name))
    return False


def sh(command):
    """Runs a command line that must succeed; gives its output."""
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    expect(done.returncode == 0, command, done.stderr)
    return done.stdout


def delete_module():
    """Asks the kernel to unload the module; gives the errno."""
    if kopi.libc.syscall(SYS_DELETE_MODULE, b"kopi", os.O_NONBLOCK) == 0:
        return 0
    return ctypes.get_errno()
