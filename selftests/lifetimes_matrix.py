#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Every way in which a flow, or what is below it, can end, in every state in which it can be.

Each case is a flow in a network namespace of its own, on a veth pair or on a NIC that is plugged in
for it, and may be attached: then it sends and receives trains by the driver. It is brought into a
state, the ending is applied, and then: the program, if it lives, goes on or gets the error that a UDP
socket gets; what held packets holds them still, or has let go of them; what is held comes out whole
when it is let go; every frame is completed and every packet counted; and when all is closed nothing
refers to the module, and namespace and device are gone.

    lifetimes_matrix.py [PATTERN...]    cases that match, as 'close/*', '*/idle' or '*/attached'
"""

import contextlib
import ctypes
import dataclasses
import errno
import fnmatch
import json
import mmap
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from typing import Callable

import kopi
import links
import memory
from equivalence import run_nft
from links import inside
from linux import (PACKET_STATISTICS, SOL_PACKET, SO_RCVBUFFORCE, SYS_DELETE_MODULE, SYS_PIDFD_GETFD,
                   UDP_SEGMENT)
from memory import module_users
from nfqueue import Queue
from qmp import Nic
from watchdog import Watchdog

NEAR, FAR, PORT = "198.51.100.2", "198.51.100.1", 7000
# By reference where the device can, and in one piece where the MTU is Ethernet's.
COUNT, SIZE = 16, 1400
# Frames of the region: for what comes in, for the state's own packets, and for single ones.
FILLED, OWN, SINGLE = range(32), range(32, 64), 64
# A condition that isn't true after so many seconds never will be.
DEBUG = os.path.exists("/sys/kernel/debug/kcov")
PATIENCE = 300 if DEBUG else 20
# What a CPU keeps for what NAPI receives (NAPI_SKB_CACHE_SIZE).
NAPI_CACHE = 128
EXECUTED = "/usr/bin/sleep"


class Broken(Exception):
    """Something is not as it must be."""


def must(what, condition, seen=""):
    """Ends the case if it isn't so."""
    if not condition:
        raise Broken(f"{what}: {seen}" if seen != "" else what)


def wait(what, condition):
    """Waits until it is so, and gives what the condition gave."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        must(f"never came: {what}", time.monotonic() < deadline)
        time.sleep(0.005)
    return result


def payload(number):
    """The n-th datagram."""
    return struct.pack("=I", number) + bytes((number + i) & 0xFF for i in range(SIZE - 4))


class Program:
    """The program under test: what it does by itself in a thread, and what it is asked to do."""

    def __init__(self):
        self.channel = None
        self.lock = threading.Lock()
        self.wanted = False
        self.free = list(OWN)
        # Batches sent, or datagrams received.
        self.beats = 0
        self.errors = []
        # What came back of the packets that were to be held.
        self.completed = []
        self.woken = None

    def start(self, state, flags):
        """Opens a flow with a channel that has these flags, and goes into the state."""
        flow = kopi.flow()
        # For the doorbell; not settimeout(), which would make it non-blocking.
        flow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", PATIENCE, 0))
        flow.bind((NEAR, PORT))
        self.channel = kopi.Channel(flow, frames=96, flags=flags)
        for number in FILLED:
            self.channel.fill.push(self.channel.frame(number))
        work = {"sending": self._send_on, "receiving": self._receive_on, "poll": self._sleep}
        if state in work:
            threading.Thread(target=work[state], daemon=True).start()

    def adopt(self, descriptor):
        """Takes over the flow of another program."""
        self.channel = kopi.Channel.of(kopi.Flow(fileno=descriptor))

    @contextlib.contextmanager
    def _rings(self):
        """Has the rings for the block; the thread, which never rests, gives way."""
        self.wanted = True
        with self.lock:
            self.wanted = False
            yield

    def _give_way(self):
        while self.wanted:
            time.sleep(0)

    def _send_on(self):
        while True:
            self._give_way()
            with self.lock:
                try:
                    self._reap()
                    while self.free:
                        data = struct.pack("=Q", self.beats).ljust(SIZE, b"x")
                        self.channel.send(self.free[-1], data, (FAR, PORT))
                        self.free.pop()
                except ValueError:
                    # Unmapped; the doorbell goes on.
                    pass
                if self.channel.sock.fileno() < 0:
                    return
                try:
                    self.channel.bell()
                except OSError as error:
                    if error.errno != errno.EBADF:
                        self.errors.append(error.errno)
            self.beats += 1

    def _receive_on(self):
        while True:
            self._give_way()
            try:
                with self.lock:
                    before = self.beats
                    while (entry := self.channel.rx.pop()) is not None:
                        self._refill(entry)
                        self.beats += 1
                if self.beats == before:
                    self.channel.bell(kopi.BELL_WAIT_RX)
            except (ValueError, OSError):
                # Without a mapping, or without a descriptor.
                time.sleep(0.001)

    def _sleep(self):
        poll = select.poll()
        poll.register(self.channel.sock, select.POLLIN)
        self.woken = [events for _, events in poll.poll()]

    def _refill(self, entry):
        channel = self.channel
        channel.fill.push(entry[0] - (entry[0] - channel.frames) % channel.frame_size)

    def _reap(self):
        while (entry := self.channel.completion.pop()) is not None:
            number = (entry[0] - self.channel.frames) // self.channel.frame_size
            if number in OWN:
                self.free.append(number)
                self.completed.append(entry[4])
            self.errors.append(entry[4])

    def completions(self):
        """The errors of all that was completed of the state's own packets."""
        with self._rings():
            self._reap()
            return self.completed

    def send_all(self):
        """Sends the packets that are to be held."""
        with self._rings():
            for number in range(COUNT):
                self.channel.send(self.free.pop(), payload(number), (FAR, PORT))
            must("the doorbell took all", self.channel.bell() == COUNT)

    def send(self, data):
        """Sends one datagram; gives what its completion says."""
        with self._rings():
            self._reap()
            self.errors.clear()
            # Of a size that is copied, and so completed at once.
            self.channel.send(SINGLE, data.encode(), (FAR, PORT))
            self.channel.bell()
            self._reap()
            must("completed at once", self.errors)
            return self.errors[-1]

    def receive(self, data):
        """Waits until this datagram comes; others may come before."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with self._rings():
                entry = self.channel.rx.pop()
                if entry is not None:
                    got = self.channel.region[entry[0]:entry[0] + entry[1]]
                    self._refill(entry)
                    if got == data.encode():
                        return True
            if entry is None:
                if self.channel.sock.fileno() >= 0:
                    self.channel.bell(kopi.BELL_WAIT_RX)
                else:
                    time.sleep(0.001)
        return False

    def progress(self):
        """How far its thread is."""
        return self.beats

    def recent(self):
        """The errors of what is sent from now on."""
        with self._rings():
            # What has been put into the ring may have been sent already.
            self.channel.bell()
            self._reap()
            self.errors.clear()
            before = self.beats
        wait("batches", lambda: self.beats > before + 3)
        with self._rings():
            return sorted(set(self.errors))

    def events(self):
        """What poll() gave, or None if it still sleeps."""
        return self.woken

    def stats(self):
        """The counters."""
        return self.channel.stats()

    def describe(self):
        """Where it stands: for a case that failed."""
        channel = self.channel
        rings = {name: (ring.get(ring.producer), ring.get(ring.consumer), ring.get(ring.flags))
                 for name in ("tx", "completion", "fill", "rx") if (ring := getattr(channel, name))}
        threads = [traceback.format_stack(frame, 3) for frame in sys._current_frames().values()]
        return f"{rings}, {channel.stats()}, {self.beats} beats, threads in {threads}"

    def unaccounted(self):
        """The packets that the counters don't explain, at whatever moment they are read."""
        return next(filter(None, (self.channel.unaccounted() for _ in range(100))), "")

    def ring(self):
        """Rings the doorbell; gives its errno."""
        try:
            self.channel.bell()
        except OSError as error:
            return error.errno
        return 0

    def close(self):
        """Closes the descriptor; the mapping remains."""
        self.channel.sock.close()

    def unmap(self):
        """Unmaps the region, while its thread may be in the doorbell, but not at the rings."""
        with self._rings():
            self.channel.region.close()

    def remap(self):
        """Maps it again."""
        with self._rings():
            self.channel.attach(self.channel.sock)

    def descriptor(self):
        """The flow's, which will outlive exec."""
        os.set_inheritable(self.channel.sock.fileno(), True)
        return self.channel.sock.fileno()

    def execute(self):
        """Becomes another program."""
        os.execv(EXECUTED, [EXECUTED, "infinity"])

    def leave(self):
        """Gives up an adopted flow."""
        self.channel.region.close()
        self.channel.sock.close()


def serve(orders):
    """The program: does what it is asked to, as long as somebody is there to ask."""
    program = Program()
    while order := orders.recv(1 << 16):
        name, *arguments = json.loads(order)
        try:
            answer = {"result": getattr(program, name)(*arguments)}
        except Exception:  # pylint: disable=broad-exception-caught
            answer = {"error": traceback.format_exc(limit=-2)}
        orders.send(json.dumps(answer).encode())


def fork(space, work):
    """Runs the work in a child in a namespace; gives its process identifier."""
    def there():
        with inside(space):
            work()

    return kopi.in_child(there)


def kill(pid):
    """Kills a child and waits for its end; gives its status."""
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


class Case:
    """One ending in one state, and what belongs to it."""

    def __init__(self, ending, state, attached):
        self.ending, self.state, self.attached = ending, state, attached
        self.nic = ending.nic or attached
        self.space = "/run/netns/doomed"
        self.pid = self.orders = self.adopted = self.feeder = self.queue = self.tap = None
        self.fed = mmap.mmap(-1, 4096)
        # What is as it was before the ending.
        self.alive = self.mapped = self.open = True
        self.here, self.device = ("/run/netns/peer", "eth1") if self.nic else ("/run/netns/away", "far")
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
            name = nic.plug_in(lambda found: wait("the NIC", found))
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
        if self.attached:
            with inside(self.space):
                sh("kopictl attach near")

    def ask(self, name, *arguments):
        """Has the program, or who adopted its flow, do something."""
        if self.adopted:
            return getattr(self.adopted, name)(*arguments)
        self.orders.send(json.dumps([name, *arguments]).encode())
        try:
            answer = json.loads(self.orders.recv(1 << 16) or '{"error": "it ended"}')
        except TimeoutError:
            raise Broken(f"hangs in {name}") from None
        must(name, "error" not in answer, answer.get("error"))
        return answer["result"]

    def pending(self):
        """Frames that the stack holds."""
        return self.ask("stats")["tx_pending"]

    # Into the state.

    def enter(self):
        """Starts the program, and waits until it is in the state."""
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.orders.settimeout(PATIENCE + 20)

        def work():
            self.orders.close()
            serve(theirs)

        self.pid = fork(self.space, work)
        theirs.close()
        getattr(self, f"prepare_{self.state}", lambda: None)()
        self.ask("start", self.state, kopi.TRAINS if self.attached else 0)
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
            count, train = 0, 1
            if self.attached:
                sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, SIZE)
                train = COUNT
            while True:
                with contextlib.suppress(OSError):
                    sender.sendto(b"y" * SIZE * train, (NEAR, PORT))
                count += 1
                kopi.store(self.fed, 0, "=Q", count)

        self.feeder = fork(self.here, feed)

    def sent_to_it(self):
        """How often was sent to it."""
        return struct.unpack_from("=Q", self.fed)[0]

    def await_receiving(self):
        """It has received a good deal."""
        wait("datagrams", lambda: self.ask("progress") > 100)
        self.await_driver("merged")

    def await_driver(self, counter):
        """Trains go by the driver, if the device is attached."""
        if not self.attached:
            return
        before = self.by_driver(counter)
        if before is not None:
            wait(f"{counter} by the driver", lambda: self.by_driver(counter) > before)

    def by_driver(self, counter):
        """How many have, or None if the device isn't attached any more."""
        with inside(self.space):
            devices = json.loads(sh("kopictl info --json")).get("devices")
        return devices[0][counter] if devices else None

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

    def held(self):
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
        must("all are held", self.held() == COUNT, self.held())
        must("their frames are held", self.pending() == (0 if self.nic else COUNT), self.pending())

    await_nfqueue = await_netem

    def await_tap(self):
        """The tap has them, and nothing else holds them."""
        seen = []

        def has_them():
            # The counts begin anew with each look.
            seen.append(struct.unpack("=II", self.tap.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)))
            must("the tap has lost none", not seen[-1][1], seen)
            return sum(count for count, _ in seen) >= COUNT

        # The doorbell doesn't wait for a device that is slow.
        wait("the tap has them", has_them)
        wait("frames come back", lambda: self.pending() == 0)

    # After the ending.

    def check_held(self):
        """What was held still is, or was let go of by the ending."""
        if self.state == "tap":
            return
        if self.state in self.ending.drops:
            wait("they are dropped", lambda: self.held() == 0)
            if self.queue:
                # What its program hasn't read has their pages, too.
                self.read_queue()
            wait("what was dropped is completed", lambda: self.pending() == 0)
            return
        must("still held", self.held() == COUNT, self.held())
        if self.nic:
            return
        if not self.alive:
            must("they hold the region", module_users() > 0)
            must("and the module", delete_module() == errno.EWOULDBLOCK)
        elif self.open:
            must("their frames are still held", self.pending() == COUNT, self.pending())
        else:
            must("no completion before its time", self.ask("completions") == [])

    def let_go(self):
        """Ends what holds packets; their frames come back."""
        if self.state == "tap":
            self.read_tap()
        elif self.state not in self.ending.drops:
            getattr(self, f"let_go_{self.state}")()
        if self.alive and self.open:
            wait("their frames come back", lambda: self.pending() == 0)
        if self.alive and self.mapped:
            wait("their completions", lambda: len(self.ask("completions")) >= COUNT)
            done = self.ask("completions")
            must("completed once, without an error", done == [0] * COUNT, done)

    def let_go_netem(self):
        """The queue is deleted, and drops them."""
        with inside(self.space):
            sh("tc qdisc del dev near root")

    def let_go_nfqueue(self):
        """They get their verdicts, and come out if their route is still there."""
        for packet in self.read_queue():
            self.queue.verdict(packet, True)
        if self.ending.unroutes:
            return
        got = [self.far.recv(4096) for _ in range(COUNT)]
        must("they arrive as they were sent", got == [payload(number) for number in range(COUNT)])

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
                must("the tap's error", error.errno == errno.ENETDOWN and self.ending.cuts, error)
        must("the tap saw what was sent", {payload(number) for number in range(COUNT)} <= seen, len(seen))

    def check_cut(self):
        """Nothing gets out or in, with the errors that a UDP socket gets."""
        try:
            self.udp.sendto(b"x", (FAR, PORT))
            expected = 0
        except OSError as error:
            expected = error.errno
        must("a UDP socket can't send", expected != 0)
        if self.state == "sending":
            got = self.ask("recent")
            must(f"sending gives {errno.errorcode[expected]} only", got == [expected], got)
        else:
            got = self.ask("send", "cut")
            must(f"sending gives {errno.errorcode[expected]}", got == expected, got)
        if self.state == "poll":
            must("still sleeps", self.ask("events") is None and self.sleeps())
        if self.state == "receiving":
            self.feed_more()
            before = self.ask("stats")["rx_taken"]
            self.feed_more()
            got = self.ask("stats")["rx_taken"] - before
            must("nothing comes in", got == 0, got)

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
            must("as it should", self.ask("events") == [expected], self.ask("events"))
        if self.state == "receiving" and not self.adopted:
            before = self.ask("progress")
            wait("it receives", lambda: self.ask("progress") > before + 100)
            self.await_driver("merged")
        else:
            came = "y" * SIZE if self.state == "receiving" else "in"
            must("a datagram comes in", self.ask("receive", came))
        if not self.open:
            return
        self.drain()
        if self.state == "sending" and not self.adopted:
            before = self.ask("progress")
            wait("what is sent now arrives", lambda: struct.unpack_from(
                "=Q", self.far.recv(4096))[0] > before)
            self.await_driver("packets")
        else:
            must("one goes out", self.ask("send", "out") == 0)
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
        must("the doorbell rings", self.ask("ring") == 0)
        if self.ending.name == "exec":
            with open(f"/proc/{self.pid}/maps", encoding="ascii") as maps:
                must("exec unmaps", "socket:" not in maps.read())
        else:
            self.ask("remap")

    def check_counters(self):
        """Every packet is accounted for, and every frame."""
        if self.state != "sending" or self.adopted:
            wait("no frame is with the stack", lambda: self.pending() == 0)
        left = self.ask("unaccounted")
        must("every packet is counted", not left, left)
        broken = self.ask("stats")["ring_broken"]
        must("no ring is broken", not broken, broken)

    # To the end.

    def run(self):
        """The case."""
        try:
            self.try_it()
        except Broken as problem:
            stands = ""
            if self.alive:
                with contextlib.suppress(Broken):
                    stands = f": {self.ask('describe')}"
            raise Broken(f"{problem}{stands}") from problem

    def try_it(self):
        """Its steps."""
        self.enter()
        self.ending.apply(self)
        if self.alive:
            must("it lives", os.waitpid(self.pid, os.WNOHANG)[0] == 0)
        if self.state in HELD:
            self.check_held()
        if self.ending.cuts:
            self.check_cut()
        if self.state in HELD:
            self.let_go()
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
            nic.pull_out()
        try:
            wait("nothing refers to the module", lambda: module_users() == 0)
            if not self.nic:
                wait("the namespace is gone", lambda: not self.has_far())
        except Broken:
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
    must(command, done.returncode == 0, done.stderr)
    return done.stdout


def delete_module():
    """Asks the kernel to unload the module; gives the errno."""
    if kopi.libc.syscall(SYS_DELETE_MODULE, b"kopi", os.O_NONBLOCK) == 0:
        return 0
    return ctypes.get_errno()


# The endings.

def close(case):
    """The descriptor is closed; the mapping keeps the flow."""
    case.ask("close")
    case.open = False


def unmap(case):
    """The region is unmapped; the descriptor keeps the flow."""
    case.ask("unmap")
    case.mapped = False


def kill_program(case):
    """The program is killed."""
    status = kill(case.pid)
    must("killed", status == signal.SIGKILL, status)
    case.alive = False


def execute(case):
    """The program becomes another, which inherits the descriptor."""
    number = case.ask("descriptor")
    case.orders.send(json.dumps(["execute"]).encode())
    must("nothing is answered any more", case.orders.recv(4096) == b"")
    wait("exec", lambda: os.readlink(f"/proc/{case.pid}/exe") == EXECUTED)
    # The test itself takes the flow over, as any program could to which it is passed.
    process = os.pidfd_open(case.pid)
    descriptor = kopi.libc.syscall(SYS_PIDFD_GETFD, process, number, 0)
    must("the descriptor outlives exec", descriptor >= 0, os.strerror(ctypes.get_errno()))
    os.close(process)
    case.adopted = Program()
    case.adopted.adopt(descriptor)
    case.mapped = False


def delete_namespace(case):
    """The namespace loses its name; the flow, as any socket, keeps it."""
    sh("ip netns del doomed")
    case.space = f"/proc/{case.pid}/ns/net"
    with inside(case.space):
        must("the flow keeps the namespace", has_device("near"))


def remove_address(case):
    """The address to which the flow is bound is removed."""
    with inside(case.space):
        sh(f"ip addr del {NEAR}/24 dev near")


def restore_address(case):
    """It comes back."""
    with inside(case.space):
        links.set_address("near", NEAR)


def link_down(case):
    """The flow's device is set down."""
    with inside(case.space):
        sh("ip link set near down")


def link_up(case):
    """It is set up again."""
    if case.state == "netem":
        case.let_go_netem()
    with inside(case.space):
        links.set_up("near", True)
    # Which the other end takes a moment to see.
    case.udp.setblocking(False)

    def heard():
        case.far.sendto(b"?", (NEAR, PORT + 1))
        with contextlib.suppress(BlockingIOError):
            return case.udp.recv(1)

    wait("the link", heard)


def unplug(_case):
    """The NIC is pulled out."""
    nic.pull_out()


def replug(case):
    """It is put in again."""
    case.make_near()


def move(case):
    """The device goes to another namespace, as if it were new there."""
    sh("ip -n doomed link set near netns away")


def move_back(case):
    """It comes back."""
    sh("ip -n away link set near netns doomed")
    case.configure_near()


def detach(case):
    """The device is detached; the stack goes on."""
    with inside(case.space):
        sh("kopictl detach near")


def replace_qdisc(case):
    """Its device gets another qdisc, and yet another."""
    with inside(case.space):
        done = subprocess.run(["tc", "-batch", "-"], capture_output=True, text=True, check=False,
                              input="qdisc replace dev near root fq\n"
                                    "qdisc replace dev near root netem delay 1ms\n"
                                    "qdisc replace dev near root pfifo limit 100\n")
    must("tc", done.returncode == 0, done.stderr)


def unload_module(_case):
    """The module is to go, and can't."""
    for _ in range(20):
        got = delete_module()
        must("it is in use", got == errno.EWOULDBLOCK, got)


@dataclasses.dataclass
class Ending:
    """One of them."""

    name: str
    apply: Callable
    restore: Callable | None = None
    # Until it is restored, nothing gets in or out.
    cuts: bool = False
    # The states in which packets are held that it drops.
    drops: tuple = ()
    # Packets that have their route already lose it.
    unroutes: bool = False
    # It wants a NIC.
    nic: bool = False
    # It is about devices that are attached.
    attached: bool = False


HELD = ("netem", "nfqueue", "tap")
STATES = ("idle", "sending", "receiving", "poll", *HELD)
# Those in which an attached device's driver has packets.
BY_DRIVER = ("sending", "receiving")
ENDINGS = (
    Ending("close", close),
    Ending("munmap", unmap),
    Ending("kill", kill_program),
    Ending("exec", execute),
    Ending("netns deletion", delete_namespace),
    Ending("address removal", remove_address, restore_address, cuts=True, unroutes=True),
    Ending("link down", link_down, link_up, cuts=True, drops=("netem", "nfqueue")),
    Ending("unplug", unplug, replug, cuts=True, drops=("netem", "nfqueue"), nic=True),
    Ending("qdisc replacement", replace_qdisc, drops=("netem",)),
    Ending("rmmod", unload_module),
    Ending("move", move, move_back, cuts=True, attached=True),
    Ending("detach", detach, attached=True),
)


def all_cases():
    """Each ending in each state: what it is called, and what it is."""
    for ending in ENDINGS:
        for attached in (False, True):
            for state in BY_DRIVER if attached else STATES:
                if attached or not ending.attached:
                    yield f"{ending.name}/{state}{'/attached' if attached else ''}", (ending, state, attached)


def try_case(ending, state, attached):
    """Runs one; gives what is wrong, or an empty string."""
    problems = []
    case = None
    for step in (lambda: Case(ending, state, attached), lambda: case.run(), lambda: case.close()):
        try:
            case = step() or case
        except Broken as problem:
            problems.append(str(problem))
        except Exception:  # pylint: disable=broad-exception-caught
            problems.append(traceback.format_exc())
        if not case:
            break
    return "; at the end: ".join(problems)


def allowed(name):
    """How many objects more a slab may have."""
    # Of what flows are made fewer than if the cases of one ending left one each; of what packets are
    # made, and others use all the time, fewer than if the cases of one state left each packet.
    if not re.match("kmalloc|skbuff", name):
        return 6
    return 60 + (NAPI_CACHE * os.cpu_count() if name == "skbuff_head_cache" else 0)


def grown(before):
    """The slabs that have more objects than before, and by how many."""
    # What a NIC has sent it frees when it sends again.
    for space, to in (("peer", "192.0.2.1"), ("host", "192.0.2.2")):
        with inside(f"/run/netns/{space}"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sweep:
            sweep.sendto(b"", (to, 9))
    after = memory.counts()
    # Not where the debug kernel keeps dead reference trackers, up to 128 for each namespace and device.
    return {name: after[name] - count for name, count in before.items()
            if not name.endswith(":") and not (DEBUG and name == "kmalloc-32")
            and after[name] - count > allowed(name)}


patterns = sys.argv[1:] or ["*"]
every = dict(all_cases())
cases = {name: case for name, case in every.items() if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}
kopi.send_by_reference()
nic = Nic()
sh(f"ip -n peer addr add {FAR}/24 dev eth1")
links.make_namespace("away")
be_quiet("/run/netns/away")
# So that all modules are loaded, and the slot has been used, before memory is counted.
for name in ("unplug/nfqueue", "unplug/netem", "unplug/sending/attached", "close/tap"):
    wrong = try_case(*every[name])
    kopi.check(f"{name}, for the first time", not wrong, wrong)
counts = memory.counts()
with Watchdog() as watchdog:
    for name, case in cases.items():
        wrong = try_case(*case)
        kopi.check(name, not wrong, wrong)
watchdog.check()
left = grown(counts)
for _ in range(5):
    if not left:
        break
    # What RCU and work queues have yet to free.
    time.sleep(1)
    left = grown(counts)
kopi.check(f"{len(counts)} slabs have the objects that they had", not left, left)
links.drop_namespace("away")
sh(f"ip -n peer addr del {FAR}/24 dev eth1")
nic.close()
kopi.finish()
