#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A user that takes all it can get harms itself: others keep their share, and root ends it.

bob takes flows, channels, frames and memory until he is refused, lets rings run full, and has
descriptors processed as fast as each CPU can. Meanwhile alice's traffic goes on. Her fair share is
what is left to her beside as many processes of bob's that use no network at all, or, where he opens
and closes flows, that do so with UDP sockets.
"""

import contextlib
import errno
import os
import pwd
import resource
import select
import signal
import socket
import statistics
import struct
import subprocess
import time

import kopi
from kopi import CHANNEL, SOL_KOPI, Channel, check, flow, request

GROUP = "/sys/fs/cgroup/greedy"
CPUS = sorted(os.sched_getaffinity(0))
ROUND = 1.0
ROUNDS, MOST_ROUNDS = 5, 40
# Seconds in which a process has taken all, or is gone: of thousands of flows, on a debug kernel, too.
PATIENCE = 120


@contextlib.contextmanager
def process(name, work, *arguments, cpu=None, group=None):
    """A user's process that says something when it is ready, and lives until the block ends."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            if group:
                kopi.move_to(group)
            if cpu is not None:
                os.sched_setaffinity(0, {cpu})
            kopi.become(pwd.getpwnam(name).pw_uid)
            work(lambda text: os.write(writer, text.encode()), *arguments)
        finally:
            os._exit(1)
    os.close(writer)
    try:
        ready = select.select([reader], [], [], PATIENCE)[0]
        yield os.read(reader, 1000).decode() if ready else "not ready"
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        started = time.monotonic()
        os.waitpid(pid, 0)
        took = time.monotonic() - started
        if took > PATIENCE:
            check(f"{work.__name__} ends when it is killed", False, f"{took:.1f} s")


def exchange(seconds):
    """Alice's traffic: how many datagrams go through a flow's rings, and back."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.sched_setaffinity(0, {CPUS[0]})
            kopi.become(pwd.getpwnam("alice").pw_uid)
            channel = Channel()
            channel.sock.bind(("127.0.0.1", 0))
            address = channel.sock.getsockname()
            for frame in range(32, 64):
                channel.fill.push(channel.frame(frame))
            times = 0
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                channel.send(0, struct.pack("=Q", times), address)
                channel.bell()
                while (got := channel.rx.pop()) is None:
                    channel.bell(kopi.BELL_WAIT_RX)
                if struct.unpack_from("=Q", channel.region, got[0])[0] != times:
                    break
                channel.fill.push(got[0] - 64)
                if channel.completion.pop() is None:
                    break
                times += 1
            else:
                os.write(writer, str(times).encode())
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    told = os.read(reader, 100).decode()
    os.close(reader)
    return int(told or 0)


def take_all(ready):
    """Takes flows and channels until refused, and keeps them."""
    made, ends = [], []
    for make in (lambda sock: sock.setsockopt(SOL_KOPI, CHANNEL, request()), lambda sock: None):
        try:
            while True:
                sock = flow()
                made.append(sock)
                make(sock)
        except OSError as error:
            ends.append(errno.errorcode.get(error.errno))
    ready(f"{' '.join(ends)} {len(made)}")
    signal.pause()


def take_memory(ready):
    """Takes frames until the cgroup has no memory left."""
    made = []
    try:
        while len(made) < 1000:
            sock = flow()
            made.append(sock)
            sock.setsockopt(SOL_KOPI, CHANNEL, request(frame_size=65536, frames=64))
    except OSError as error:
        ready(f"{errno.errorcode.get(error.errno)} {len(made)}")
    signal.pause()


def idle_rings(ready):
    """Lets the rings run full: completions are not reaped, frames not given back, nothing read."""
    channel = Channel(frames=256, tx=256, completion=256, fill=256, rx=256)
    channel.sock.bind(("127.0.0.1", 0))
    address = channel.sock.getsockname()
    for frame in range(128, 256):
        channel.fill.push(channel.frame(frame))
    for _ in range(4):
        for frame in range(128):
            channel.send(frame, b"x" * 1000, address)
        channel.bell()
    stats = channel.stats()
    ready(f"{stats['rx_drop_no_frame'] + stats['rx_drop_ring_full']} {stats['tx_taken']}")
    while True:
        channel.bell()


def spins(ready):
    """Uses a CPU, and no network."""
    ready("spins")
    while True:
        pass


def storm(ready, length, fault):
    """Has all of a long TX ring processed again and again."""
    size = 4096
    channel = Channel(frames=16, tx=size, completion=size, flags=0)
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("127.0.0.1", 0))
    channel.sock.connect(sink.getsockname())
    for number in range(size):
        offset = channel.frame(number % 16) + 64
        channel.tx.push(offset + (1 << 30 if fault else 0), length, 0, 0, 0)
    ready("storms")
    while True:
        channel.bell()
        channel.completion.put(channel.completion.consumer,
                               channel.completion.get(channel.completion.producer))
        channel.tx.put(channel.tx.producer, channel.tx.get(channel.tx.consumer) + size)


def opens_udp(ready):
    """Opens and closes UDP sockets."""
    ready("opens")
    while True:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()


def doorbells(ready):
    """Rings doorbells of an empty ring."""
    channel = Channel()
    ready("rings")
    while True:
        channel.bell()


def opens(ready):
    """Opens and closes flows with channels."""
    ready("opens")
    while True:
        # Refused while what was closed is still being freed.
        with flow() as sock, contextlib.suppress(OSError):
            sock.setsockopt(SOL_KOPI, CHANNEL, request())


def rate(work, *arguments):
    """Alice's rate beside such a process on each CPU."""
    with contextlib.ExitStack() as stack:
        for cpu in CPUS:
            stack.enter_context(process("bob", work, *arguments, cpu=cpu))
        return exchange(ROUND)


resource.setrlimit(resource.RLIMIT_NOFILE, (5000, 5000))
kopi.send_by_reference()
with process("bob", take_all) as said:
    print(f"# bob: {said}")
    parts = said.split()
    check("channels end at RLIMIT_MEMLOCK, flows at RLIMIT_NOFILE", parts[:2] == ["ENOBUFS", "EMFILE"]
          and int(parts[2]) > 4000, said)
    check("alice has flows and channels beside them", any(exchange(0.3) > 10 for _ in range(10)))
os.makedirs(GROUP, exist_ok=True)
with open("/sys/fs/cgroup/cgroup.subtree_control", "w", encoding="ascii") as control:
    control.write("+memory")
with open(f"{GROUP}/memory.max", "w", encoding="ascii") as limit:
    limit.write(str(64 << 20))
resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
with process("bob", take_memory, group=GROUP) as said:
    print(f"# bob: {said}")
    check("memory ends at the cgroup's", said.split()[0] == "ENOMEM" and 5 < int(said.split()[1]) < 20,
          said)
    check("alice has memory beside him", any(exchange(0.3) > 10 for _ in range(10)))
os.rmdir(GROUP)
with process("bob", idle_rings) as said:
    dropped, taken = map(int, said.split())
    check("rings that nobody empties stop their own flow", dropped > 0 and taken == 256, said)
    check("and not alice's", any(exchange(0.3) > 10 for _ in range(10)))

# What bob does, and what makes the fair share beside it.
STORMS = {"descriptors of 16 bytes": ((storm, 16, False), spins),
          "descriptors of 1984 bytes, by reference": ((storm, 1984, False), spins),
          "descriptors beyond the region": ((storm, 16, True), spins),
          "doorbells": ((doorbells,), spins),
          "flows with channels": ((opens,), opens_udp)}


def measure(name, besides, fair):
    """A try: alice's rates beside what bob does, and beside what makes the fair share, by turns."""
    work, other = STORMS[name]
    for _ in range(ROUNDS):
        fair.append(rate(other))
        besides.append(rate(*work))
    print(f"# beside {name}: {besides} datagrams; a fair share: {fair}")
    return statistics.median(besides[-ROUNDS:]) / statistics.median(fair[-ROUNDS:])


for name in STORMS:
    # One good try of several will do: what else the host does disturbs each by some percent.
    besides, fair, kept = [], [], 0.0
    while len(fair) < MOST_ROUNDS and kept < 0.9:
        kept = measure(name, besides, fair)
    check(f"beside {name} on each CPU, alice keeps 90 % of her share", kept >= 0.9, kept)
with contextlib.ExitStack() as stack:
    for each in CPUS * 2:
        stack.enter_context(process("bob", storm, 1984, False, cpu=each))
    started = time.monotonic()
    login = subprocess.run(["su", "-", "root", "-c", "pkill -9 -u bob"], check=False).returncode
    while subprocess.run(["pgrep", "-r", "R,S,D", "-u", "bob"], stdout=subprocess.DEVNULL,
                         check=False).returncode == 0 and time.monotonic() < started + PATIENCE:
        time.sleep(0.01)
    took = time.monotonic() - started
    check("root logs in while storms rage, and ends them", login == 0 and took < PATIENCE, (login, took))
    print(f"# that took {took:.1f} s")
kopi.finish()
