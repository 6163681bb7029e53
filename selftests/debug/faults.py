# SPDX-License-Identifier: GPL-2.0
"""What the tests with fault injection share: its settings, paths to a peer, and what must hold after.

Source: Documentation/fault-injection/fault-injection.rst, Documentation/dev-tools/kmemleak.rst
"""

import contextlib
import itertools
import os
import select
import signal
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

NTH = "/proc/thread-self/fail-nth"
DEBUG = "/sys/kernel/debug"
if not os.path.exists(NTH) or not os.path.exists(f"{DEBUG}/failslab"):
    print("1..0 # SKIP this kernel can't have allocations fail: it needs CONFIG_FAILSLAB and "
          "CONFIG_FAIL_PAGE_ALLOC")
    sys.exit(4)

import kernel_counters  # noqa: E402, after the way to it is known
import kopi  # noqa: E402
import memory  # noqa: E402
from equivalence import devices, namespace, sh  # noqa: E402
from kopi import Wrong, expect, wait_until  # noqa: E402

# The names of counters of losses, and of what kinds they are.
LOSSES = ((("Ip:", "Ip6"), ("InDiscards", "OutDiscards", "FragFails", "ReasmFails")),
          (("Udp:", "Udp6"), ("InErrors", "SndbufErrors", "MemErrors")))
KMEMLEAK = f"{DEBUG}/kmemleak"
# Kilobytes of kernel memory that a process can have more or less for other reasons.
SLACK_KB = 512
# Objects of a slab, or of all that have a name's beginning.
SLACK_OBJECTS = 400
# With which allocations fail of tasks that ask for it.
OF_TASKS = {"failslab/ignore-gfp-wait": "N", "failslab/verbose": 0, "failslab/task-filter": "Y",
            "failslab/probability": 100, "failslab/times": 0, "failslab/space": 0,
            "fail_page_alloc/ignore-gfp-wait": "N", "fail_page_alloc/min-order": 0,
            "fail_page_alloc/verbose": 0}
_serial = itertools.count()
# The runner's timeout; the settings must not stay.
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def put(path, value):
    """Writes a file of a kernel's file system."""
    with open(path, "w", encoding="ascii") as file:
        file.write(str(value))


def get(path):
    """Reads one."""
    with open(path, encoding="ascii") as file:
        return file.read().strip()


@contextlib.contextmanager
def settings(values):
    """Sets files below debugfs, and afterwards what was there before."""
    before = {name: get(f"{DEBUG}/{name}") for name in values}
    try:
        for name, value in values.items():
            put(f"{DEBUG}/{name}", value)
        yield
    finally:
        # The other way round: what sets it off comes last, and goes first.
        for name, value in reversed(before.items()):
            put(f"{DEBUG}/{name}", value)


def add_veth():
    """A device between the namespaces `host` and `away` that takes payload by reference."""
    sh("ip netns add away; ip -n host link add near mtu 9000 type veth peer name far mtu 9000 netns away; "
       "ip -n host addr add 198.51.100.1/24 dev near; ip -n host link set near up; "
       "ip -n away addr add 198.51.100.2/24 dev far; ip -n away link set far up; "
       # No packet but those that are sent here is to wait for an address.
       "ip -n host neigh add 198.51.100.2 dev near lladdr "
       "$(ip netns exec away cat /sys/class/net/far/address)")


def remove_veth():
    """Removes it."""
    sh("ip -n host link del near; ip netns del away")


class Path:
    """A way to an ordinary UDP socket that sends back what it is told to."""

    def __init__(self, name, local, remote, inside):
        self.name, self.local = name, local
        self.ipv6 = ":" in local
        family = socket.AF_INET6 if self.ipv6 else socket.AF_INET
        with namespace(inside):
            self.peer = socket.socket(family, socket.SOCK_DGRAM)
            self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            self.peer.bind((remote, 0))
        self.to = self.peer.getsockname()[:2]
        self.family = family

    def socket(self, ordinary=False):
        """A flow, or an ordinary socket, of the path's IP version."""
        if ordinary:
            return socket.socket(self.family, socket.SOCK_DGRAM)
        return kopi.flow(kopi.UDP6 if self.ipv6 else 0)

    def bound(self, ordinary=False):
        """One that is bound, too."""
        sock = self.socket(ordinary)
        sock.bind((self.local, 0))
        return sock

    def drain(self):
        """Forgets what came."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.peer.recv(65536, socket.MSG_DONTWAIT)


def receive(sock, expected=None):
    """What comes, or of that what is wanted, and from where if the socket is an ordinary one."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        # It may be for the error queue, too, that poll returns.
        poll.poll(100)
        with contextlib.suppress(BlockingIOError):
            if isinstance(sock, kopi.Flow):
                got = sock.recv(65536, socket.MSG_DONTWAIT), None
            else:
                got = sock.recvfrom(65536, socket.MSG_DONTWAIT)
            if expected in (None, got[0]):
                return got
    raise Wrong("a datagram doesn't come")


def works(path, sock, channel=None, number=0):
    """A datagram goes through and comes back, by the rings if the flow has some."""
    data = b"%s %d" % (path.name.encode(), next(_serial))
    path.drain()
    if channel is None:
        sock.connect(path.to)
        expect(sock.send(data) == len(data), "send")
        path.peer.sendto(data, receive(path.peer, data)[1])
        expect(receive(sock)[0] == data, "the answer")
        return
    channel.fill.push(channel.frame(0))
    channel.send(1, data, path.to, flow_number=number)
    expect(channel.bell() == 1, "the doorbell")
    source = receive(path.peer, data)[1]
    expect(wait_until(lambda: (done := channel.completion.pop()) is not None
                      and done[0] == channel.frame(1) + 64 and done[4] == 0), "the completion")
    path.peer.sendto(data, source)
    entry = None

    def arrived():
        nonlocal entry
        entry = channel.rx.pop()
        return entry is not None
    expect(wait_until(arrived, 5), "the answer doesn't come by the ring")
    expect(entry[2] == number and channel.region[entry[0]:entry[0] + entry[1]] == data, "the answer")
    expect(not channel.unaccounted(), channel.unaccounted())


def forget_routes():
    """Routes that are cached have to be made anew."""
    for version in "ipv4", "ipv6":
        put(f"/proc/sys/net/{version}/route/flush", 1)


def _numbers(text):
    return [int(word) for word in text.split() if word.lstrip("-").isdigit()]


def losses(*namespaces):
    """Datagrams that the stack has counted as lost, in those namespaces."""
    total = 0
    for name in namespaces:
        with namespace(name):
            counted = kernel_counters.table("/proc/thread-self/net/snmp") | kernel_counters.of_ipv6("/proc/thread-self/net/snmp6")
            total += sum(counted.get(kind + name, 0) for kinds, names in LOSSES for kind in kinds for name in names)
            with open("/proc/thread-self/net/dev", encoding="ascii") as file:
                for line in file.read().splitlines()[2:]:
                    # Received: bytes packets errs drop fifo …; sent: as many again.
                    columns = _numbers(line.partition(":")[2])
                    total += sum(columns[2:5]) + sum(columns[10:13])
        total += sum(device["dropped"] + device["receive_dropped"] for device in devices(name))
    with open("/proc/net/softnet_stat", encoding="ascii") as file:
        total += sum(int(line.split()[1], 16) for line in file)
    return total


@contextlib.contextmanager
def own_cgroup():
    """Runs the block in a cgroup whose memory is counted; gives what counts the kernel's, in KB."""
    root, group = "/sys/fs/cgroup", "/sys/fs/cgroup/faults"
    before = root + get("/proc/self/cgroup").partition("::")[2]
    put(f"{root}/cgroup.subtree_control", "+memory")
    os.makedirs(group, exist_ok=True)
    put(f"{group}/cgroup.procs", os.getpid())

    def kernel_memory():
        with open(f"{group}/memory.stat", encoding="ascii") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("kernel ")) // 1024
    try:
        yield kernel_memory
    finally:
        put(f"{before}/cgroup.procs", os.getpid())
        wait_until(lambda: not get(f"{group}/cgroup.procs"))
        os.rmdir(group)


def grown(before):
    """Slabs with more objects than before, when those that are on their way have gone."""
    more = {}

    def settled():
        more.clear()
        more.update({name: (before.get(name, 0), count) for name, count in memory.slabs().items()
                     if count > before.get(name, 0) + SLACK_OBJECTS})
        return not more
    wait_until(settled, 10)
    return more


def charges_left():
    """Whether the limits of net.kopi.*, which the initial namespace has, still hold something, in words."""
    expected = {f"/proc/sys/net/kopi/{who}_max_{what}": number for who in ("user", "netns")
              for what, number in (("flows", 1), ("channels", 1), ("frames", 64))}
    before = {name: get(name) for name in expected}
    try:
        for name, number in expected.items():
            put(name, number)
        channel = kopi.Channel(frames=64)
        channel.region.close()
        channel.sock.close()
    except OSError as error:
        return f"a single channel: {error}"
    finally:
        for name, value in before.items():
            put(name, value)
    return ""


def forget_leaks():
    """Has kmemleak leave out what it has found so far."""
    put(KMEMLEAK, "scan")
    put(KMEMLEAK, "clear")


def leaks():
    """What kmemleak finds: those of KOPI, and those of others."""
    # An object is reported when it is five seconds old, and was the same in two scans.
    time.sleep(6)
    for _ in range(2):
        put(KMEMLEAK, "scan")
    with open(KMEMLEAK, encoding="ascii", errors="replace") as file:
        found = ["unreferenced" + part for part in file.read().split("unreferenced")[1:]]
    return [one for one in found if "kopi" in one], [one for one in found if "kopi" not in one]


def check_all_is_back(before):
    """What was taken since the slabs were counted is given back."""
    left = charges_left()
    kopi.check("all is given back to the limits", not left, left)
    more = grown(before)
    kopi.check("slabs have no more objects than before", not more, more)
    own, others = leaks()
    for leak in own + others[:3]:
        print("# " + leak.replace("\n", "\n# "))
    kopi.check("kmemleak finds nothing of KOPI", not own, f"{len(own)}")
