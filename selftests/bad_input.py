#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Each fault has its errno, and other flows go on."""

import ctypes
import errno as e
import mmap
import os
import resource
import socket
import struct

import kopi
from kopi import CHANNEL, INFO, JOIN, JOIN_FORMAT, SOL_KOPI, Channel, check, fails, flow, libc, libc_fails, request

# A neighbour that must not notice any of this.
neighbour = Channel()
neighbour.sock.bind(("127.0.0.1", 0))
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain.settimeout(10)
plain.bind(("127.0.0.1", 0))


def neighbour_works():
    neighbour.send(0, b"still here", plain.getsockname())
    taken = neighbour.bell()
    data, sender = plain.recvfrom(100)
    done = neighbour.completion.pop()
    check("a neighbour goes on", taken == 1 and data == b"still here"
          and sender == neighbour.sock.getsockname() and done and done[4] == 0, (taken, data, done))


# socket()
for kind in (socket.SOCK_RAW, socket.SOCK_SEQPACKET):
    fails(f"type {kind}", e.ESOCKTNOSUPPORT, lambda kind=kind: socket.socket(kopi.AF_KOPI, kind, 0))
for proto in (1, 6, 18, 272, 274, 0x7FFFFFFF):
    fails(f"protocol {proto}", e.EPROTONOSUPPORT, lambda proto=proto: flow(proto))
for proto in (1, 17, 273, 0x7FFFFFFF):
    fails(f"protocol {proto} of a stream", e.EPROTONOSUPPORT,
          lambda proto=proto: socket.socket(kopi.AF_KOPI, socket.SOCK_STREAM, proto))

# Channel requests.
sock = flow()


def ask(**sizes):
    return lambda: sock.setsockopt(SOL_KOPI, CHANNEL, request(**sizes))


fails("no channel to describe", e.ENOTCONN, lambda: sock.getsockopt(SOL_KOPI, CHANNEL, 256))
for ring in ("tx", "completion", "fill", "rx"):
    for size in (0, 3, 65536, 0xFFFFFFFF):
        fails(f"{ring} ring of {size}", e.EINVAL, ask(**{ring: size}))
for size in (0, 256, 1000, 131072, 0x80000000, 0xFFFFFFFF):
    fails(f"frames of {size}", e.EINVAL, ask(frame_size=size))
for count in (0, (1 << 20) + 1, 0xFFFFFFFF):
    fails(f"{count} frames", e.EINVAL, ask(frames=count))
fails("a region over the limit", e.EINVAL, ask(frame_size=65536, frames=1 << 20))
for flags in (32, 0x80000000, kopi.TX_ONLY | kopi.GRO, kopi.GRO_MERGED, kopi.GSO | kopi.GRO_MERGED):
    fails(f"flags {flags:#x}", e.EINVAL, ask(flags=flags))
fails("a reserved field", e.EINVAL, ask(reserved=1))
fails("an empty request", e.EINVAL, lambda: sock.setsockopt(SOL_KOPI, CHANNEL, b""))
fails("a short request", e.EINVAL, lambda: sock.setsockopt(SOL_KOPI, CHANNEL, request()[:-1]))
fails("a long request that isn't zero", e.E2BIG,
      lambda: sock.setsockopt(SOL_KOPI, CHANNEL, request() + b"\1"))
libc_fails("an unmapped request", e.EFAULT,
           lambda: libc.setsockopt(sock.fileno(), SOL_KOPI, CHANNEL, ctypes.c_void_p(8), 64))
fails("an unknown option", e.ENOPROTOOPT, lambda: sock.setsockopt(SOL_KOPI, 99, request()))
fails("an unknown option to get", e.ENOPROTOOPT, lambda: sock.getsockopt(SOL_KOPI, 99, 64))
check("a short buffer gets the start", len(sock.getsockopt(SOL_KOPI, INFO, 4)) == 4)
six = flow(kopi.UDP6)
fails("IPV6_ADDRFORM", e.ENOPROTOOPT,
      lambda: six.setsockopt(socket.IPPROTO_IPV6, 1, socket.AF_INET))
neighbour_works()

# The doorbell and the mapping without a channel.
fails("a doorbell without a channel", e.ENOTCONN, lambda: kopi.fcntl.ioctl(sock.fileno(), kopi.DOORBELL, 1))
fails("a mapping without a channel", e.ENODEV, lambda: mmap.mmap(sock.fileno(), 4096))

# Joins.
other = flow()


def join(fd, reserved=0):
    return lambda: sock.setsockopt(SOL_KOPI, JOIN, struct.pack(JOIN_FORMAT, fd, reserved, 0, 0))


fails("join a bad descriptor", e.EBADF, join(999))
with open("/dev/null", "rb") as null:
    fails("join a file", e.ENOTSOCK, join(null.fileno()))
fails("join a UDP socket", e.EOPNOTSUPP, join(plain.fileno()))
fails("join one without a channel", e.ENOTCONN, join(other.fileno()))
fails("join itself", e.EINVAL, join(sock.fileno()))
fails("join with a reserved field", e.EINVAL, join(neighbour.sock.fileno(), 1))
fails("a short join", e.EINVAL, lambda: sock.setsockopt(SOL_KOPI, JOIN, b"\0" * 8))


def in_child(what, prepare, number, call):
    """The call must fail so in a child process, after `prepare`."""
    child = os.fork()
    if child == 0:
        try:
            prepare()
            call()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    check(f"{what}: {e.errorcode[number]}", status == number, os.strerror(status))


def child_join():
    flow().setsockopt(SOL_KOPI, JOIN, kopi.join_request(neighbour.sock))


in_child("join another user's", lambda: os.setuid(1002), e.EPERM, child_join)
in_child("join from another network namespace", lambda: os.unshare(os.CLONE_NEWNET), e.EXDEV, child_join)

# Twice.
victim = Channel(sock)
fails("a second channel", e.EBUSY, ask())
fails("a join after it", e.EBUSY, join(neighbour.sock.fileno()))
fails("recvmsg on a flow with a channel", e.EOPNOTSUPP, lambda: sock.recv(10))
neighbour_works()

# Mappings.
fd = sock.fileno()
libc.mmap.restype = ctypes.c_uint64
libc.mremap.restype = ctypes.c_uint64
RW, EXEC, SHARED, PRIVATE = 3, 4, 1, 2


def map_(length=victim.size, prot=RW, flags=SHARED, offset=0):
    return lambda: libc.mmap(None, ctypes.c_size_t(length), prot, flags, fd, ctypes.c_long(offset))


libc_fails("a mapping at an offset", e.EINVAL, map_(offset=4096))
libc_fails("a shorter mapping", e.EINVAL, map_(length=victim.size - 4096))
libc_fails("a longer mapping", e.EINVAL, map_(length=victim.size + 4096))
libc_fails("a private mapping", e.EINVAL, map_(flags=PRIVATE))
libc_fails("an executable mapping", e.EPERM, map_(prot=RW | EXEC))
at = map_()()
void = ctypes.c_void_p
libc_fails("mprotect to executable", e.EACCES, lambda: libc.mprotect(void(at), ctypes.c_size_t(victim.size), 7))
libc_fails("munmap of a part", e.EINVAL, lambda: libc.munmap(void(at), ctypes.c_size_t(4096)))
libc_fails("mremap that grows", e.EFAULT, lambda: libc.mremap(
    void(at), ctypes.c_size_t(victim.size), ctypes.c_size_t(victim.size * 2), 1))
libc_fails("mremap that shrinks", e.EINVAL, lambda: libc.mremap(
    void(at), ctypes.c_size_t(victim.size), ctypes.c_size_t(4096), 1))
libc_fails("mremap that moves", e.EINVAL, lambda: libc.mremap(
    void(at), ctypes.c_size_t(victim.size), ctypes.c_size_t(victim.size), 3, void(0x700000000000)))
check("munmap of all", libc.munmap(void(at), ctypes.c_size_t(victim.size)) == 0)

# Descriptors.
sock.connect(plain.getsockname())
good = victim.frame(1) + 64


def refused(what, number, *descs):
    for desc in descs:
        victim.tx.push(*desc)
    taken = victim.bell()
    errors = []
    while done := victim.completion.pop():
        errors.append(done[4])
    check(f"{what}: {e.errorcode[number]}", taken == len(descs) and errors == [number] * len(descs),
          (taken, errors))


before = victim.stats()["tx_invalid"]
end = victim.frames + victim.frame_size * victim.frame_count
for offset, length in ((0, 8), (victim.frames, 8), (good - 1, 8), (good, 2048 - 63), (end, 1),
                       (end - 4, 8), (0xFFFFFFFF, 1), (good, 0xFFFFFFFF)):
    refused(f"offset {offset:#x}, length {length:#x}", e.EFAULT, (offset, length, 0, 0, 0))
refused("unknown flags", e.EINVAL, (good, 8, 0, 0x8000, 0))
refused("an error in a TX descriptor", e.EINVAL, (good, 8, 0, 0, 5))
refused("the flow of another channel", e.EBADF, (good, 8, 1, 0, 0))
refused("a flow of any number", e.EBADF, (good, 8, 0xFFFFFFFF, 0, 0))
refused("a chain of two flows", e.EINVAL, (good, 8, 0, 1, 0), (good, 8, 1, 0, 0))
check("each is counted", victim.stats()["tx_invalid"] == before + 14, victim.stats())
for field, value in ((36, 77), (44, 0x8000), (48, 1)):
    victim.region[victim.frame(2):victim.frame(2) + 64] = b"\0" * 64
    struct.pack_into("=H", victim.region, victim.frame(2) + field, value)
    refused(f"metadata with {value:#x} at {field}", e.EINVAL, (victim.frame(2) + 64, 8, 0, 2, 0))
struct.pack_into(kopi.META_FORMAT, victim.region, victim.frame(2), socket.inet_aton("127.0.0.1"), b"", b"", 0, socket.AF_INET,
                 *[0] * 8)
refused("an address without a port, of a flow that is connected", e.EINVAL, (victim.frame(2) + 64, 8, 0, 2, 0))
small = Channel(tx=64, completion=8)
small.sock.connect(plain.getsockname())
for _ in range(8):
    small.tx.push(small.frame(1) + 64, 1, 0, 1, 0)
small.tx.push(small.frame(1) + 64, 1, 0, 0, 0)
errors = []
for _ in range(3):
    small.bell()
    while done := small.completion.pop():
        errors.append(done[4])
check("an overlong chain: EMSGSIZE", errors == [e.EMSGSIZE] * 9, errors)
for _ in range(40):
    victim.tx.push(good, 1900, 0, 1, 0)
victim.tx.push(good, 1900, 0, 0, 0)
victim.bell()
errors = []
while done := victim.completion.pop():
    errors.append(done[4])
check("a datagram over 64 KiB: EMSGSIZE", errors == [e.EMSGSIZE] * 41, errors)

# Indices.
index = victim.tx.get(victim.tx.producer)
for wrong in (index - 1, index + victim.tx.size + 1, index + 0x80000000):
    victim.tx.put(victim.tx.producer, wrong)
    fails(f"a TX index off by {wrong - index}", e.EPROTO, victim.bell)
victim.tx.put(victim.tx.producer, index)
check("and counted", victim.stats()["ring_broken"] == 3, victim.stats())
fails("unknown doorbell flags", e.EINVAL, lambda: victim.bell(8))
victim.send(3, b"fine again")
check("the channel works on", victim.bell() == 1 and plain.recv(100) == b"fine again"
      and victim.completion.pop()[4] == 0)
neighbour_works()


# RLIMIT_MEMLOCK, again and again: what is closed is given back.
def memlock():
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, 1 << 20))
    os.setuid(1002)
    for _ in range(50):
        Channel(frames=256)
    flow().setsockopt(SOL_KOPI, CHANNEL, request(frames=1024))


in_child("over RLIMIT_MEMLOCK", memlock, e.ENOBUFS, lambda: None)


# A cgroup's memory.
def memcg():
    os.makedirs("/sys/fs/cgroup/small", exist_ok=True)
    with open("/sys/fs/cgroup/small/memory.max", "w", encoding="ascii") as limit:
        limit.write("30M")
    kopi.move_to("small")
    flow().setsockopt(SOL_KOPI, CHANNEL, request(frames=32768))


with open("/sys/fs/cgroup/cgroup.subtree_control", "w", encoding="ascii") as control:
    control.write("+memory")
in_child("over a cgroup's memory", memcg, e.ENOMEM, lambda: None)
neighbour_works()
kopi.finish()
