#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What is shared with a process never holds what is not its own.

alice plants a pattern wherever memory may be handed on from: her pages, her sockets' buffers, the
frames of her channels. bob looks for it in all that KOPI gives him, and for any byte that nobody
wrote. He looks for what was dropped on its way to him, and for what his own
monitor devices show of packets that never were complete, too. (The machine is booted with
init_on_alloc=0, under which the kernel clears no memory that it isn't asked to.)
"""

import contextlib
import ctypes
import errno
import mmap
import os
import resource
import socket
import struct
import subprocess
import sys

import kopi
from equivalence import namespace, sh, user
from kopi import CHANNEL, INFO, SOL_KOPI, STATS, Channel, check, flow
from linux import SO_ATTACH_FILTER, SO_DETACH_FILTER
from monitors import DROPPED, OUT, PASSED, Monitor

PATTERN = b"alice's secret, 32 bytes of it.."
HALF = 256 << 20
IPV4, PORT = "192.0.2.1", 7000


def in_child(name, work):
    """Has a user's process do the work, and end; gives whether it did."""
    def as_user():
        with user(name):
            work()

    return os.waitpid(kopi.in_child(as_user), 0)[1] == 0


def plant():
    """Leaves the pattern in memory of each kind that goes back to the system."""
    pages = mmap.mmap(-1, HALF)
    block = PATTERN * (1 << 15)
    for at in range(0, HALF, len(block)):
        pages[at:at + len(block)] = block
    pages.close()
    # Frames and rings.
    channel = Channel(frame_size=65536, frames=1024)
    channel.region[:] = (PATTERN * (channel.size // 32 + 1))[:channel.size]
    channel.region.close()
    channel.sock.close()
    # Slabs and buffers of the network.
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("127.0.0.1", 0))
    for size in (32, 128, 512, 2048, 8192, 32768):
        for _ in range(50):
            left.send(PATTERN * (size // 32))
            right.recv(size)
            sink.sendto(PATTERN * (size // 32), sink.getsockname())


def written(channel):
    """What the module writes when it makes a channel: the flags words of the rings."""
    return {ring.flags + byte for ring in (channel.tx, channel.completion, channel.fill, channel.rx)
            for byte in range(4)}


def dirty(channel):
    """Offsets of bytes that are not zero, though nobody wrote them; the first few."""
    zeros = bytes(1 << 20)
    found = []
    expected = written(channel)
    for at in range(0, channel.size, len(zeros)):
        part = channel.region[at:at + len(zeros)]
        if part != zeros[:len(part)]:
            found += [at + i for i, byte in enumerate(part) if byte and at + i not in expected]
        if len(found) > 4:
            break
    return found[:5]


def look_at_new_memory():
    """New channels of many shapes."""
    for sizes in ({"frame_size": 65536, "frames": HALF // 65536},
                  {"frame_size": 2048, "frames": 1}, {"frame_size": 512, "frames": 1000},
                  {"frame_size": 4096, "frames": 333, "tx": 1, "completion": 1, "fill": 1, "rx": 1},
                  {"frame_size": 2048, "frames": 3, "tx": 32768, "completion": 32768,
                   "fill": 32768, "rx": 32768}):
        channel = Channel(**sizes)
        planted = channel.region.find(PATTERN[:8])
        check(f"new memory is all zero: {sizes}", planted < 0 and not dirty(channel),
              (planted, dirty(channel)))
        channel.region.close()
        channel.sock.close()


def look_at_options():
    """What getsockopt gives: nothing but what it says, and nothing beyond."""
    sock = flow()
    sock.setsockopt(SOL_KOPI, CHANNEL, kopi.request())
    for name, option, size, reserved in (("INFO", INFO, 64, 16), ("CHANNEL", CHANNEL, 160, 0),
                                         ("STATS", STATS, 256, 80)):
        buffer = ctypes.create_string_buffer(b"\xa5" * 512, 512)
        length = ctypes.c_int(512)
        result = kopi.libc.getsockopt(sock.fileno(), SOL_KOPI, option, buffer, ctypes.byref(length))
        got = buffer.raw[:length.value]
        check(f"{name}: {size} bytes, and none after them",
              result == 0 and length.value == size and buffer.raw[size:] == b"\xa5" * (512 - size),
              (result, length.value, buffer.raw))
        check(f"{name}: reserved fields are zero", got[size - reserved:] == bytes(reserved)
              and PATTERN[:8] not in got, got)
    sock.close()


def fill(channel):
    """Gives all frames to the kernel, each full of one byte."""
    start = channel.frames
    channel.region[start:] = b"\xa5" * (channel.size - start)
    for frame in range(channel.frame_count):
        channel.fill.push(channel.frame(frame))


def look_at_received():
    """A received packet changes its headroom and its payload, and no other byte."""
    with namespace("host"), user("bob"):
        channel = Channel(frame_size=512, frames=8)
    fill(channel)
    channel.sock.bind((IPV4, PORT))
    with namespace("peer"):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for size in (0, 1, 63, 448, 449, 1400):
        sender.sendto(b"\x5a" * size, (IPV4, PORT))
        frames = []
        while not frames or frames[-1][3] & kopi.MORE:
            while (entry := channel.rx.pop()) is None:
                channel.bell(kopi.BELL_WAIT_RX)
            frames.append(entry)
        region, right = channel.region, True
        for number, (offset, length, *_) in enumerate(frames):
            start = offset - 64
            meta, rest = region[start:offset], region[offset + length:start + 512]
            right &= region[offset:offset + length] == b"\x5a" * length
            right &= rest == b"\xa5" * len(rest)
            # The address and its twelve bytes of nothing, the same again, and the timestamp that
            # nobody asked for; or all of it as it was.
            right &= (meta[4:16] == bytes(12) and meta[20:32] == bytes(12) and
                      meta[56:] == bytes(8)) if number == 0 else meta == b"\xa5" * 64
            region[start:start + 512] = b"\xa5" * 512
            channel.fill.push(start)
        check(f"{size} bytes: nothing is written beside them", right, frames)
    channel.region.close()
    channel.sock.close()


def bad_checksum(sender):
    """Sends the pattern with a checksum that is wrong."""
    del sender
    with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_RAW, 17) as raw:
        raw.sendto(struct.pack(">HHHH", 7001, PORT, 8 + 32, 0x1234) + PATTERN, (IPV4, 0))


def refused(sender):
    """Sends the pattern."""
    sender.sendto(PATTERN * 20, (IPV4, PORT))


def too_long(sender):
    """Sends the pattern in a datagram that takes more descriptors than the ring has."""
    sender.sendto(PATTERN * 1000, (IPV4, PORT))


def nft(rule):
    """A rule where packets come in."""
    def begin(_):
        subprocess.run(["nsenter", "--net=/run/netns/host", "nft",
                        "table ip clean { chain c { type filter hook input priority 0; "
                        f"{rule}; }}; }}"], check=True)

    def end(_):
        subprocess.run(["nsenter", "--net=/run/netns/host", "nft", "delete table ip clean"],
                       check=True)
    return begin, end


def socket_filter(code):
    """A filter on the socket that returns that many bytes."""
    program = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, code), 8)

    def begin(channel):
        channel.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack(
            "=HxxxxxxQ", 1, ctypes.addressof(program)))

    def end(channel):
        channel.sock.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
    return begin, end


def exhausted(counter):
    """Harmless datagrams use up what the counter is about, and the program gives it back."""
    def begin(channel):
        with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while channel.stats()[counter] == 0:
                sender.sendto(b"\x5a" * 100, (IPV4, PORT))

    def end(channel):
        while (entry := channel.rx.pop()) is not None:
            channel.fill.push(entry[0] - 64)
    return begin, end


def nothing(_):
    """No change."""


# How they come to be dropped, the end of that, who sends them, and what the rings are like.
DROPS = {
    "by nftables": (*nft("udp dport 7000 drop"), refused, {}),
    "by a filter on the socket": (*socket_filter(0), refused, {}),
    "for a wrong checksum": (nothing, nothing, bad_checksum, {}),
    "for want of a frame": (*exhausted("rx_drop_no_frame"), refused, {"frames": 8}),
    "for want of room in the ring": (*exhausted("rx_drop_ring_full"), refused, {"rx": 4}),
    "for its length": (nothing, nothing, too_long, {"rx": 4}),
}


def look_at_dropped():
    """A packet that is dropped leaves no byte."""
    with namespace("peer"), user("alice"):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with namespace("host"):
        sentinel = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sentinel.bind((IPV4, PORT + 1))
    for why, (begin, end, send, sizes) in DROPS.items():
        with namespace("host"), user("bob"):
            channel = Channel(**{"frame_size": 512, "frames": 32, **sizes})
        fill(channel)
        channel.sock.bind((IPV4, PORT))
        begin(channel)
        before = channel.rx.get(channel.rx.producer)
        for _ in range(5):
            send(sender)
        # What comes after them says that they have come.
        sender.sendto(b"after", (IPV4, PORT + 1))
        sentinel.recv(100)
        end(channel)
        sender.sendto(b"after", (IPV4, PORT))
        while channel.rx.get(channel.rx.producer) == before:
            channel.bell(kopi.BELL_WAIT_RX)
        got = channel.rx.get(channel.rx.producer) - before
        at = channel.region.find(PATTERN[:8])
        check(f"dropped {why}: nothing of it can be seen", got == 1 and at < 0,
              (got, at, channel.stats()))
        refused(sender)
        while channel.rx.get(channel.rx.producer) == before + got:
            channel.bell(kopi.BELL_WAIT_RX)
        check("and what isn't dropped can be", channel.region.find(PATTERN) > 0)
        channel.region.close()
        channel.sock.close()


def faulting(address, flags=0):
    """Sends to that address what ends in a page that isn't mapped, behind what is sent with flags."""
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    kopi.libc.mprotect(ctypes.c_void_p(start + 2 * mmap.PAGESIZE), mmap.PAGESIZE, 0)
    with flow(kopi.UDP6 if ":" in address else 0) as sender:
        sender.connect((address, PORT))
        if flags:
            sender.send(b"\x5a" * 1000, flags)
        kopi.libc.send(sender.fileno(), ctypes.c_void_p(start), 3 * mmap.PAGESIZE, 0)
        return ctypes.get_errno() == errno.EFAULT


def transformed(mode):
    """Sends two datagrams under an IPsec policy, whose state ends with the first one."""
    ends = "src 203.0.113.1 dst 203.0.113.2"
    sh(f"ip xfrm policy add {ends} dir out tmpl {ends} proto esp mode {mode}; ip xfrm state add {ends} proto esp spi 7 "
       f"mode {mode} aead 'rfc4106(gcm(aes))' 0x{'5a' * 20} 128 limit packet-hard 1")
    with flow() as sender:
        sender.connect(("203.0.113.2", PORT))
        sender.send(b"first")
        with contextlib.suppress(OSError):
            sender.send(b"second")
    sh("ip xfrm state flush; ip xfrm policy flush")
    return True


def whole():
    """A datagram is dropped that IPsec would have transformed."""
    ends = "src 203.0.113.1 dst 203.0.113.2"
    sh(f"ip xfrm policy add {ends} dir out tmpl {ends} proto esp mode transport; ip xfrm state add {ends} proto esp spi 7 "
       f"mode transport aead 'rfc4106(gcm(aes))' 0x{'5a' * 20} 128; "
       "nft 'table ip t { chain c { type filter hook output priority 0; udp dport 7000 drop; }; }'")
    with flow() as sender, contextlib.suppress(OSError):
        sender.connect(("203.0.113.2", PORT))
        sender.send(b"whole")
    return True


# What bob's namespace drops before it is complete: how, and which fates are shown.
NEVER_COMPLETE = (
    ("a page that isn't there, IPv6", lambda: faulting("::1"), []),
    ("a page that isn't there, IPv4", lambda: faulting("127.0.0.1"), []),
    ("what waited for it, IPv6", lambda: faulting("::1", socket.MSG_MORE), []),
    ("what waited for it, IPv4", lambda: faulting("127.0.0.1", socket.MSG_MORE), []),
    ("IPsec, between headers", lambda: transformed("transport"), [PASSED]),
    ("IPsec, in a tunnel", lambda: transformed("tunnel"), [PASSED]),
    ("what IPsec hasn't begun with is shown", whole, [DROPPED]),
)


def show_what_never_was_complete():
    """In bob's own namespaces, as a test of its own."""
    sh("ip link set lo up; ip link add d0 type dummy; ip addr add 203.0.113.1/24 dev d0; ip link set d0 up;"
       "ip neigh add 203.0.113.2 lladdr 02:00:00:00:00:02 dev d0")
    with contextlib.closing(Monitor()) as monitor:
        for why, drop, expected in NEVER_COMPLETE:
            dropped, seen = drop(), []
            while (packet := monitor.next(0.5)) is not None:
                seen.append(packet)
            fates = [fate["verdict"] for fate, _ in seen if fate["direction"] == OUT]
            check(f"a monitor shows nothing of what isn't complete: {why}", dropped and fates == expected, seen)
    kopi.finish()


def look_at_monitor():
    """What bob sees as root of a user namespace."""
    command = ("setpriv", "--reuid", "bob", "--regid", "bob", "--clear-groups", "unshare", "-Urn", sys.executable,
               __file__, "monitor")
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    for line in done.stdout.splitlines():
        if "ok" in line:
            check(line.partition(" - ")[2], line.startswith("ok"))
    check("a monitor shows nothing else", done.returncode == 0, done.returncode)


if sys.argv[1:] == ["monitor"]:
    show_what_never_was_complete()
resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
check("alice plants her pattern", in_child("alice", plant))
with user("bob"):
    look_at_new_memory()
    look_at_options()
look_at_received()
look_at_dropped()
look_at_monitor()
kopi.finish()
