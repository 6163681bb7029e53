# SPDX-License-Identifier: GPL-2.0
"""What the selftests in Python share: the ABI of uapi/kopi.h, and TAP."""

import atexit
import ctypes
import errno
import fcntl
import functools
import json
import math
import mmap
import os
import re
import socket
import struct
import sys
import time
import traceback

with open("/sys/module/kopi/parameters/family", encoding="ascii") as parameter:
    AF_KOPI = int(parameter.read())
SOL_KOPI = 0x4B4F
UDP6, TCP, TCP6 = 273, 6, 262
INFO, CHANNEL, JOIN, STATS = 1, 2, 3, 4
ABI_VERSION = 2
GSO, GRO, GRO_MERGED, ENGINE, TX_ONLY = 1, 2, 4, 8, 16
# Both ways.
OFFLOADS = GSO | GRO
DOORBELL = 0xCB01
BELL_TX, BELL_WAIT_RX, BELL_WAIT_COMPLETION, BELL_SEND = 1, 2, 4, 8
MORE, META = 1, 2
DESCRIPTOR_FORMAT, FILL_FORMAT, JOIN_FORMAT = "=IIIHH", "=Q", "=i3I"
META_FORMAT = "=16s16s2sHHHIHBBIIQ"
META_FLAGS = {"local": 1, "tos": 2, "ttl": 4, "mark": 8, "txtime": 32}
libc = ctypes.CDLL(None, use_errno=True)


def pack_ip(address):
    """An address's family and bytes."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return family, socket.inet_pton(family, address)


def pack_address(address, port, _flow=0, scope=0):
    """A struct sockaddr_in or sockaddr_in6."""
    if ":" in address:
        return struct.pack("=H2s4x16sI", socket.AF_INET6, struct.pack(">H", port),
                           socket.inet_pton(socket.AF_INET6, address), scope)
    return struct.pack("=H2s4s8x", socket.AF_INET, struct.pack(">H", port),
                       socket.inet_aton(address))


def unpack_address(name):
    """The address and port in a struct sockaddr_in or sockaddr_in6."""
    family, port = struct.unpack_from("=H", name)[0], struct.unpack_from(">2xH", name)[0]
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, name[8:24]), port
    return socket.inet_ntop(socket.AF_INET, name[4:8]), port


@functools.cache
def _counters():
    """The names of the counters, as struct kopi_stats has them in their order."""
    with open(os.path.join(os.path.dirname(__file__), "../uapi/kopi.h"), encoding="ascii") as header:
        fields = header.read().split("struct kopi_stats {")[1].split("};")[0]
    return re.findall(r"__u64\s+(\w+);", fields)


def send_by_reference():
    """Until the program ends, payload of more than 1,024 bytes goes by reference where it can."""
    def put(value):
        with open("/sys/module/kopi/parameters/copybreak", "r+", encoding="ascii") as parameter:
            before = parameter.read()
            parameter.seek(0)
            parameter.write(value)
        return before

    atexit.register(put, put("1024"))


class Flow(socket.socket):
    """A KOPI socket; Python knows no addresses of its family, but they are those of IP."""

    def _call(self, function, address):
        name = pack_address(*address)
        if function(self.fileno(), name, len(name)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def bind(self, address):
        self._call(libc.bind, address)

    def connect(self, address):
        self._call(libc.connect, address)

    def getsockname(self):
        name, size = ctypes.create_string_buffer(28), ctypes.c_int(28)
        if libc.getsockname(self.fileno(), name, ctypes.byref(size)):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return unpack_address(name.raw)


def flow(proto=0):
    """Makes a KOPI socket."""
    return Flow(AF_KOPI, socket.SOCK_DGRAM, proto)


def ip_flow(proto=0):
    """Makes a KOPI socket that Python takes for one of IP, whose addresses it knows."""
    family = socket.AF_INET6 if proto == UDP6 else socket.AF_INET
    return socket.socket(family, socket.SOCK_DGRAM, fileno=flow(proto).detach())


def stream(proto=0):
    """Makes a KOPI stream, which Python takes for a socket of IP: so accept() gives others."""
    made = socket.socket(AF_KOPI, socket.SOCK_STREAM, proto)
    family = socket.AF_INET6 if proto == TCP6 else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM, fileno=made.detach())


def listener(proto=0, address=None, **options):
    """A KOPI stream that listens, on a free port; `make` makes another one."""
    sock = options.get("make", stream)(proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address or (("::1", 0) if proto == TCP6 else ("127.0.0.1", 0)))
    sock.listen(options.get("backlog", 16))
    return sock


def connection(proto=0, address=None, make=stream):
    """Both ends of a connection: the one that connects, and the one that accept() gives."""
    with listener(proto, address, make=make) as waits:
        one = make(proto)
        one.connect(waits.getsockname())
        other, _ = waits.accept()
    return one, other


def plain_stream(proto=0):
    """A TCP socket that isn't KOPI's."""
    return socket.socket(socket.AF_INET6 if proto == TCP6 else socket.AF_INET, socket.SOCK_STREAM)


def plain_datagram(proto=0):
    """A UDP socket that isn't KOPI's."""
    return socket.socket(socket.AF_INET6 if proto == UDP6 else socket.AF_INET, socket.SOCK_DGRAM)


def request(flags=0, frame_size=2048, frames=64, tx=64, completion=64, fill=64, rx=64, reserved=0):
    """A struct kopi_channel_req."""
    return struct.pack("=16I", flags, frame_size, frames, tx, completion, fill, rx,
                       reserved, *[0] * 8)


def join_request(sock):
    """A struct kopi_join."""
    return struct.pack(JOIN_FORMAT, sock.fileno(), 0, 0, 0)


def number_of(sock):
    """The number of a flow within its channel, of struct kopi_info."""
    return struct.unpack_from("=3I", sock.getsockopt(SOL_KOPI, INFO, 64))[2]


def store(memory, at, fmt, value):
    """Writes a number that somebody else may be reading: struct.pack_into() writes zeroes first."""
    memory[at:at + struct.calcsize(fmt)] = struct.pack(fmt, value)


class Ring:
    """One ring in the region, driven from this side."""

    def __init__(self, region, layout, fmt):
        self.region, self.fmt = region, fmt
        (self.producer, self.consumer, self.flags, self.entries,
         self.size, self.entry_size) = layout[:6]

    def get(self, at):
        return struct.unpack_from("=I", self.region, at)[0]

    def put(self, at, value):
        store(self.region, at, "=I", value & 0xFFFFFFFF)

    def push(self, *values):
        index = self.get(self.producer)
        struct.pack_into(self.fmt, self.region,
                         self.entries + index % self.size * self.entry_size, *values)
        self.put(self.producer, index + 1)

    def pop(self):
        """The next entry, or None."""
        index = self.get(self.consumer)
        if index == self.get(self.producer):
            return None
        entry = struct.unpack_from(self.fmt, self.region,
                                   self.entries + index % self.size * self.entry_size)
        self.put(self.consumer, index + 1)
        return entry


def regions():
    """Number of channels' regions that this process has mapped."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        return sum("socket:[" in line for line in maps)


class Channel:
    """A flow with a channel, mapped."""

    def __init__(self, sock=None, **sizes):
        self.sock = sock or flow()
        self.sock.setsockopt(SOL_KOPI, CHANNEL, request(**sizes))
        self.attach(self.sock)

    @classmethod
    def of(cls, sock):
        """Maps the channel that a flow has already."""
        channel = cls.__new__(cls)
        channel.attach(sock)
        return channel

    def attach(self, sock):
        """Maps the channel that the flow has."""
        self.sock = sock
        layout = struct.unpack("=Q6I32I", self.sock.getsockopt(SOL_KOPI, CHANNEL, 256))
        self.size, _, self.frames, self.frame_size, self.frame_count = layout[:5]
        self.region = mmap.mmap(self.sock.fileno(), self.size, trackfd=False)
        rings = [layout[7 + 8 * i:15 + 8 * i] for i in range(4)]
        self.tx = Ring(self.region, rings[0], DESCRIPTOR_FORMAT)
        self.completion = Ring(self.region, rings[1], DESCRIPTOR_FORMAT)
        self.fill = Ring(self.region, rings[2], FILL_FORMAT)
        self.rx = Ring(self.region, rings[3], DESCRIPTOR_FORMAT)

    def frame(self, number):
        """The offset of a frame's first byte."""
        return self.frames + number * self.frame_size

    def send(self, number, data, address=None, flow_number=0, meta=None):
        """Puts a datagram in a frame and in the TX ring; `meta` may have local, ifindex, tos, ttl,
        mark, txtime and gso_size."""
        start = self.frame(number)
        self.region[start + 64:start + 64 + len(data)] = data
        if address or meta:
            meta = meta or {}
            peer, port, local, family, scope = b"", 0, b"", 0, 0
            if "local" in meta:
                family, local = pack_ip(meta["local"])
            if address:
                family, peer = pack_ip(address[0])
                port, scope = address[1], address[3] if len(address) > 3 else 0
            flags = sum(bit for name, bit in META_FLAGS.items() if name in meta)
            struct.pack_into(META_FORMAT, self.region, start, peer, local, struct.pack(">H", port),
                             0, family, meta.get("gso_size", 0), meta.get("ifindex", scope), flags,
                             meta.get("tos", 0), meta.get("ttl", 0), 0, meta.get("mark", 0),
                             meta.get("txtime", 0))
        self.tx.push(start + 64, len(data), flow_number, META if address or meta else 0, 0)

    def bell(self, flags=BELL_TX):
        """Rings the doorbell."""
        return fcntl.ioctl(self.sock.fileno(), DOORBELL, flags)

    def complete(self, count):
        """Rings until that number is complete; gives their errnos, in the order of their frames."""
        done = []

        def all_are():
            self.bell()
            while (entry := self.completion.pop()):
                done.append((entry[0], entry[4]))
            return len(done) >= count
        wait_until(all_are)
        return [error for _, error in sorted(done)]

    def stats(self):
        """The counters, by name."""
        values = struct.unpack("=32Q", self.sock.getsockopt(SOL_KOPI, STATS, 256))
        return dict(zip(_counters(), values))

    def unaccounted(self):
        """Which packets the counters don't explain, or an empty string."""
        stats = self.stats()
        for way, sent in (("tx", "handed to the stack"), ("rx", "put in the ring")):
            dropped = sum(value for name, value in stats.items() if name.startswith(f"{way}_drop_"))
            if stats[f"{way}_taken"] != stats[f"{way}_packets"] + dropped:
                return f"{way}: {stats[f'{way}_taken']} taken, {stats[f'{way}_packets']} {sent}, {dropped} dropped"
        return ""


_count = 0
_failed = 0


def check(what, passed, detail=""):
    """Counts and prints one test."""
    global _count, _failed
    _count += 1
    if not passed:
        _failed += 1
    print(f"{'ok' if passed else 'not ok'} {_count} - {what}{'' if passed else f' ({detail})'}", flush=True)


def ran(what, seconds, seed=None, **counts):
    """Says what a run came to, for qemu/runs."""
    told = {"what": what, "seconds": int(seconds), "counts": {name.replace("_", " "): n for name, n in counts.items()}}
    print("# run: " + json.dumps(told if seed is None else told | {"seed": seed}), flush=True)


def fails(what, number, call):
    """The call must fail with that errno."""
    try:
        got = call()
    except OSError as error:
        check(f"{what}: {errno.errorcode[number]}", error.errno == number, error)
    else:
        check(f"{what}: {errno.errorcode[number]}", False, f"gave {got}")


def attempt(case, *arguments):
    """Runs a part of a test; an exception fails it, and not those that follow."""
    try:
        case(*arguments)
    except Exception:  # pylint: disable=broad-exception-caught
        check(f"{case.__name__} ends", False, traceback.format_exc().replace("\n", "\n# "))


def finish():
    """Prints the plan and exits."""
    print(f"1..{_count}")
    sys.exit(1 if _failed or not _count else 0)


def wait_until(condition, patience=60.0):
    """Waits for something, in seconds at most; gives what it was at last."""
    # The host may let the whole machine stand for a while: a round counts as half a second at most.
    before = time.monotonic()
    while not (got := condition()) and patience > 0:
        time.sleep(0.01)
        now = time.monotonic()
        patience, before = patience - min(now - before, 0.5), now
    return got


def settle():
    """Waits until what was sent over lo, or a veth pair, has come: a busy machine has ksoftirqd go on with it."""
    def is_idle():
        # net/core/net-procfs.c: how many packets wait in a CPU's backlog.
        with open("/proc/net/softnet_stat", encoding="ascii") as stats:
            return not any(int(line.split()[11], 16) for line in stats)

    def stays_idle():
        if not is_idle():
            return False
        # For the one that was just taken out.
        time.sleep(0.002)
        return is_idle()

    expect(wait_until(stays_idle), "what was sent has come")


class Wrong(Exception):
    """What must hold doesn't."""


def expect(holds, what, seen=""):
    """Something must hold; if it doesn't, the error has what was seen."""
    if not holds:
        raise Wrong(f"{what}: {seen}" if seen != "" else what)


def quick(bound, act, prepare=lambda: None):
    """Whether something is done within so many seconds, or ten times as many on a debug kernel, and how long it took: the
    best of three, as the host may let the whole machine stand in any."""
    bound *= 10 if os.path.exists("/sys/kernel/debug/kcov") else 1
    took = math.inf
    for _ in range(3):
        prepare()
        start = time.monotonic()
        act()
        took = min(took, time.monotonic() - start)
        if took < bound:
            break
    return took < bound, took


def become(user, groups=()):
    """Of another user, by number, and of the group with that number and these, from now on."""
    os.setgroups(groups)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def move_to(group):
    """Moves this process to a cgroup, by its path or that below the root."""
    with open(os.path.join("/sys/fs/cgroup", group, "cgroup.procs"), "w", encoding="ascii") as procs:
        procs.write("0")


def in_child(work):
    """Runs it in a child process, which exits with 0 if it ends; gives its process identifier."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def where(thread):
    """The kernel's function in which a thread of this process sleeps; nothing, if it has ended."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/wchan", encoding="ascii") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def told_by_child(work):
    """Runs it in a child process; gives as text what it gave, or the exception that ended it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            told = str(work())
        except BaseException:  # pylint: disable=broad-except
            told = traceback.format_exc()
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    return told


def libc_fails(what, number, call):
    """The C function's call must give -1, or MAP_FAILED, and that errno."""
    ctypes.set_errno(0)
    result = call()
    got = ctypes.get_errno()
    check(f"{what}: {errno.errorcode[number]}", result in (-1, 2**64 - 1) and got == number,
          f"{result}, {os.strerror(got)}")
