#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Who keeps a sock's lock, or has much to send, holds up nobody else: engines, those who close a flow, who poll."""

import errno
import os
import select
import socket
import struct
import threading

import kopi
from control import ask, family
from kopi import BELL_SEND, BELL_TX, ENGINE, SOL_KOPI, TX_ONLY, Channel, check, wait_until
from linux import (IP_OPTIONS, LANDLOCK_BIND_UDP, PR_SET_NO_NEW_PRIVS, SO_ATTACH_FILTER, SYS_LANDLOCK_CREATE,
                   SYS_LANDLOCK_RESTRICT)
from slow import SlowCall, libc

ynl = family()
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain.bind(("127.0.0.1", 0))


def restrict():
    """Landlock asks from now on whether a sock has a port, with its lock, at each message."""
    attributes = struct.pack("=QQ", 0, LANDLOCK_BIND_UDP)
    ruleset = libc.syscall(SYS_LANDLOCK_CREATE, attributes, len(attributes), 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    kopi.expect(ruleset >= 0 and libc.syscall(SYS_LANDLOCK_RESTRICT, ruleset, 0) == 0, "landlock")


def bound(flags=0, **sizes):
    """A channel whose flow has a port."""
    channel = Channel(flags=flags, **sizes)
    channel.sock.bind(("127.0.0.1", 0))
    return channel


def stuck(sock):
    """While it is entered, a setsockopt() keeps the lock of a flow's sock. Twelve zeroes are options of IP that say
    nothing."""
    return SlowCall(lambda page: libc.setsockopt(sock.fileno(), socket.IPPROTO_IP, IP_OPTIONS, page, 12))


def result(channel, patience=60):
    """What became of the next packet: an errno, or none in that time."""
    entry = wait_until(channel.completion.pop, patience)
    return None if entry is None else entry[4]


def by_engine():
    """An engine sends for others, and ends, while a flow of somebody else's is stuck."""
    other = bound(ENGINE)
    other.bell()
    check("an engine looks", wait_until(lambda: other.tx.get(other.tx.flags) & 1 == 0))
    told, tell = os.pipe()
    go, let_go = os.pipe()

    def hostile():
        mine = bound(ENGINE)
        restrict()
        mine.send(0, b"first", plain.getsockname())
        mine.bell()
        kopi.expect(result(mine) == 0, "it is sent")
        kopi.expect(wait_until(lambda: mine.tx.get(mine.tx.flags) & 1 == 0), "an engine looks")
        with stuck(mine.sock):
            mine.send(1, b"stuck", plain.getsockname())
            os.write(tell, b"x")
            got = result(mine, 1)
            kopi.expect(got is None, "it waits", got)
            os.read(go, 1)
        mine.bell()
        kopi.expect(result(mine) == 0, "it is sent when the call is over")

    child = kopi.in_child(hostile)
    select.select([told], [], [], 60)
    sent = 0
    for number in range(20):
        other.send(0, b"%d" % number, plain.getsockname())
        rings = other.tx.get(other.tx.flags) & 1
        other.bell(BELL_TX if rings else 0)
        sent += result(other) == 0
    check("an engine sends for others", sent == 20, sent)
    ended = threading.Thread(target=ask, args=(family(), "engine-set"), daemon=True)
    ended.start()
    ended.join(60)
    check("and ends when it is told to", not ended.is_alive())
    os.write(let_go, b"x")
    check("what waited is sent in the end", os.waitpid(child, 0)[1] == 0)


def by_doorbells():
    """A doorbell takes nothing of a flow that is stuck, and comes back."""
    def hostile():
        mine, quick, third = bound(), bound(TX_ONLY), kopi.flow()
        third.setsockopt(SOL_KOPI, kopi.JOIN, kopi.join_request(mine.sock))
        restrict()
        polled = select.poll()
        polled.register(mine.sock, select.POLLOUT)
        with stuck(mine.sock), stuck(quick.sock):
            mine.send(0, b"stuck", plain.getsockname())
            kopi.expect(mine.bell() == 0 and result(mine, 1) is None, "it stays in the ring")
            kopi.expect(polled.poll(0) == [], "and there is no room for more")
            quick.send(0, b"stuck", plain.getsockname())
            kopi.expect(quick.bell(BELL_TX | BELL_SEND) == 1 and result(quick) == errno.EAGAIN, "EAGAIN")
            seen = []
            sleeper = threading.Thread(target=lambda: seen.append(polled.poll()), daemon=True)
            sleeper.start()
            wchan = f"/proc/self/task/{sleeper.native_id}/wchan"
            wait_until(lambda: open(wchan, encoding="ascii").read() not in ("", "0"))
            kopi.expect(kopi.fcntl.ioctl(third.fileno(), kopi.DOORBELL, BELL_TX | BELL_SEND) == 0, "not for another flow")
        sleeper.join(60)
        kopi.expect(seen == [[(mine.sock.fileno(), select.POLLOUT)]], "who sleeps for room isn't forgotten", seen)
        kopi.expect(polled.poll(10_000) == [(mine.sock.fileno(), select.POLLOUT)], "then there is room")
        kopi.expect(mine.bell() == 1 and result(mine) == 0, "and it is sent")

    check("doorbells come back", os.waitpid(kopi.in_child(hostile), 0)[1] == 0)


def filters():
    """A filter isn't given back: that would keep the lock, and the family isn't asked."""
    flow = kopi.flow()
    program = struct.pack("=HBBI", 6, 0, 0, 0xFFFF)
    memory = kopi.ctypes.create_string_buffer(program)
    flow.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("=H6xQ", 1, kopi.ctypes.addressof(memory)))
    kopi.fails("SO_GET_FILTER", errno.EACCES, lambda: flow.getsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, 8))
    flow.bind(("127.0.0.1", 0))
    plain.sendto(b"passes", flow.getsockname())
    check("the filter works", flow.recv(9) == b"passes")


def by_closing():
    """A flow is closed while a doorbell has much to send for another one of its channel."""
    for name, flags, rings in (("a doorbell", 0, BELL_TX), ("one with BELL_SEND", TX_ONLY, BELL_TX | BELL_SEND)):
        count = 1000 if flags else 8192
        for _ in range(5):
            left, taken, unaccounted = left_at_close(flags, rings, count)
            check(f"{name}: all of it is sent", taken == [count] and not unaccounted, (taken, unaccounted))
            # On a busy machine all may have been sent before this thread runs again.
            if left > 0:
                break
        check(f"{name}: who closes a flow doesn't wait for all that is to be sent", left > 0, left)


def left_at_close(flags, rings, count):
    """What is left in the ring when a flow is closed, what the doorbell took in the end, and what has no entry."""
    channel, second = bound(flags, frames=4, frame_size=32768, tx=8192, completion=8192), kopi.flow()
    second.setsockopt(SOL_KOPI, kopi.JOIN, kopi.join_request(channel.sock))
    for _ in range(count):
        channel.send(0, b"x" * 30_000, plain.getsockname())
    taken = []
    thread = threading.Thread(target=lambda: taken.append(channel.bell(rings)))
    thread.start()
    wait_until(lambda: channel.tx.get(channel.tx.consumer) > 0)
    second.close()
    left = count - channel.tx.get(channel.tx.consumer)
    thread.join()
    return left, taken, channel.unaccounted()


ask(ynl, "engine-set", {"cpu": [max(os.sched_getaffinity(0))], "idle": 3_600_000_000})
for part in (by_engine, by_doorbells, filters, by_closing):
    kopi.attempt(part)
ask(ynl, "engine-set")
kopi.finish()
