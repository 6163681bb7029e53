#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A kopimon device shows the packets of a namespace's flows once each: whose they are, and what became of them."""

import contextlib
import errno
import os
import select
import socket
import struct
import subprocess

import kopi
import memory
from control import add, ask, mine, ruled
from equivalence import namespace, run_nft, user
from kopi import check, wait_until
from links import inside
from linux import ETH_P_ALL, SO_PEEK_OFF
from monitors import DROPPED, IN, NO_FRAME, OUT, PASSED, RATE, REFUSED, RULE, Monitor, ip

HOST, PEER = "192.0.2.1", "192.0.2.2"
PORT, FAR_PORT = 5000, 6000
with open("/proc/self/comm", "rb") as comm:
    COMMAND = comm.read().strip()


@contextlib.contextmanager
def watching():
    """A monitor in this namespace."""
    monitor = Monitor()
    try:
        yield monitor
    finally:
        monitor.close()


@contextlib.contextmanager
def dropping(hook, port):
    """The stack drops what goes to a port."""
    run_nft(f"add table ip dropping; add chain ip dropping c {{ type filter hook {hook} priority 0; }};"
            f"add rule ip dropping c udp dport {port} drop")
    try:
        yield
    finally:
        run_nft("delete table ip dropping")


def is_this(seen, **fields):
    """Whether a packet was seen that has these fields, and this process's."""
    return seen is not None and all(seen[0][name] == value for name, value in fields.items()) \
        and seen[0]["pid"] == os.getpid() and seen[0]["command"].rstrip(b"\0") == COMMAND


def payload(seen, head=28):
    """What is behind the headers."""
    return seen[1][head:]


def both_ways(monitor, channel, far):
    """What is sent and received."""
    eth0 = socket.if_nametoindex("eth0")
    channel.send(0, b"question", (PEER, FAR_PORT))
    channel.bell()
    seen = monitor.next()
    check("what is sent is shown", is_this(seen, version=1, len=80, direction=OUT, verdict=PASSED, ifindex=eth0), seen)
    check("with its headers", payload(seen) == b"question" and seen[1][9] == 17
          and seen[1][12:20] == socket.inet_aton(HOST) + socket.inet_aton(PEER), seen)
    executable = os.stat("/proc/self/exe")
    check("and its program's file", seen[0]["exe_inode"] == executable.st_ino, seen)
    check("of the flow that netlink shows", seen[0]["flow"] in mine(FAMILY), seen)
    far.recv(2048)
    far.sendto(b"answer", (HOST, PORT))
    seen = monitor.next()
    check("what comes is shown", is_this(seen, direction=IN, verdict=PASSED, ifindex=eth0)
          and payload(seen) == b"answer", seen)
    check("once", monitor.is_quiet())
    check("and comes to the program", wait_until(channel.rx.pop))


def dropped_by_stack(monitor, channel, far):
    """What netfilter drops, on both ways; the second has no sock yet."""
    with dropping("output", FAR_PORT):
        channel.send(0, b"dropped", (PEER, FAR_PORT))
        channel.bell()
        seen = monitor.next()
        check("what is dropped on its way out", is_this(seen, direction=OUT, verdict=DROPPED)
              and payload(seen) == b"dropped" and seen[0]["reason"] > 2, seen)
    with dropping("input", PORT):
        far.sendto(b"dropped, too", (HOST, PORT))
        seen = monitor.next()
        check("what is dropped on its way in", is_this(seen, direction=IN, verdict=DROPPED)
              and payload(seen) == b"dropped, too", seen)
    far.sendto(b"of nobody", (HOST, PORT + 1))
    check("what is dropped for nobody isn't shown", monitor.is_quiet())


def dropped_by_kopi(monitor, channel, far):
    """For want of frames and room, and by rules."""
    while channel.fill.get(channel.fill.consumer) != channel.fill.get(channel.fill.producer):
        far.sendto(b"fills", (HOST, PORT))
        check("until frames are used up", is_this(monitor.next(), direction=IN, verdict=PASSED))
    far.sendto(b"no frame", (HOST, PORT))
    seen = monitor.next()
    check("without a frame", is_this(seen, direction=IN, verdict=REFUSED, reason=NO_FRAME)
          and payload(seen) == b"no frame", seen)
    check("it is shown once", monitor.is_quiet())
    handle = add(FAMILY, local_port_min=PORT, verdict="deny")
    channel.send(0, b"denied", (PEER, FAR_PORT))
    channel.bell()
    seen = monitor.next()
    check("what a rule denies to be sent", is_this(seen, direction=OUT, verdict=REFUSED, reason=RULE, rule=handle)
          and payload(seen) == b"denied" and seen[1][12:20] == socket.inet_aton(HOST) + socket.inet_aton(PEER), seen)
    far.sendto(b"denied, too", (HOST, PORT))
    seen = monitor.next()
    check("what a rule denies to be received", is_this(seen, direction=IN, verdict=REFUSED, reason=RULE, rule=handle)
          and payload(seen) == b"denied, too", seen)
    ask(FAMILY, "ruleset-set")
    with contextlib.suppress(OSError):
        channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    handle = add(FAMILY, local_port_min=PORT, direction="out", rate_bytes=1, burst=60)
    for _ in range(2):
        channel.send(0, b"f" * 60, (PEER, FAR_PORT))
    channel.bell()
    seen = [monitor.next() for _ in range(2)]
    check("within a rate", is_this(seen[0], direction=OUT, verdict=PASSED), seen)
    check("over it", is_this(seen[1], direction=OUT, verdict=REFUSED, reason=RATE, rule=handle), seen)
    ask(FAMILY, "ruleset-set")


def gso(monitor, far):
    """A GSO packet is one packet; payload that goes by reference is there, and comes back."""
    channel = kopi.Channel(flags=kopi.OFFLOADS, frame_size=4096)
    channel.sock.bind((HOST, PORT + 2))
    data = [bytes([number]) * 1400 for number in range(8)]
    for number, each in enumerate(data):
        channel.send(number, each, (PEER, FAR_PORT))
    channel.bell()
    seen, whole = [], b""
    while len(whole) < 8 * 1400 and (packet := monitor.next()):
        seen.append(packet[0])
        whole += payload(packet)
    check("GSO packets and what they are cut into say whose they are", seen and all(
        each["pid"] == os.getpid() and each["direction"] == OUT for each in seen), seen)
    check("their payload is whole", whole == b"".join(data), len(whole))
    frames = []
    wait_until(lambda: frames.extend(iter(channel.completion.pop, None)) or len(frames) == 8)
    check("all frames come back", len(frames) == 8, frames)
    for _ in data:
        far.recv(2048)
    channel.sock.close()
    channel.region.close()


def without_rings(monitor, far):
    """What a flow without a channel sends, reads and is refused."""
    eth0 = socket.if_nametoindex("eth0")
    plain = kopi.flow()
    # Not settimeout(), which would wait by itself for what isn't to be read.
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=QQ", 5, 0))
    plain.bind((HOST, PORT + 3))
    plain.connect((PEER, FAR_PORT))
    plain.send(b"sent")
    seen = monitor.next()
    check("without rings: what is sent", is_this(seen, direction=OUT, verdict=PASSED) and payload(seen) == b"sent", seen)
    far.recv(2048)
    for data in (b"first", b"second"):
        far.sendto(data, (HOST, PORT + 3))
    check("what is peeked at isn't read yet", plain.recv(100, socket.MSG_PEEK) == b"first" and monitor.is_quiet())
    for data in (b"first", b"second"):
        check("what is read", plain.recv(100) == data)
        seen = monitor.next()
        check("is shown", is_this(seen, direction=IN, verdict=PASSED, ifindex=eth0) and payload(seen) == data, seen)
    far.sendto(b"look here", (HOST, PORT + 3))
    plain.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 5)
    check("who only watches changes nothing", plain.recv(100, socket.MSG_PEEK) == b"here")
    plain.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, -1)
    check("for what is read then", plain.recv(100) == b"look here"
          and is_this(monitor.next(), direction=IN, verdict=PASSED))
    handle = add(FAMILY, remote_address=PEER, remote_prefix=32, remote_port_min=FAR_PORT, verdict="deny", direction="in")
    far.sendto(b"denied", (HOST, PORT + 3))
    wait_until(lambda: select.select([plain], [], [], 1)[0])
    kopi.fails("what is denied isn't read", errno.EAGAIN, lambda: plain.recv(100, socket.MSG_DONTWAIT))
    seen = monitor.next()
    check("and is shown as that", is_this(seen, direction=IN, verdict=REFUSED, reason=RULE, rule=handle)
          and payload(seen) == b"denied", seen)
    check("once", monitor.is_quiet())
    ask(FAMILY, "ruleset-set")
    plain.close()


def ipv6(monitor):
    """IPv6, by loopback: out and in."""
    channel = kopi.Channel(kopi.flow(kopi.UDP6))
    channel.sock.bind(("::1", PORT))
    channel.fill.push(channel.frame(1))
    channel.send(0, b"six", ("::1", PORT))
    channel.bell()
    for direction in (OUT, IN):
        seen = monitor.next()
        check(f"IPv6: direction {direction}", is_this(seen, direction=direction, verdict=PASSED)
              and seen[1][0] >> 4 == 6 and payload(seen, 48) == b"six", seen)
    channel.sock.close()
    channel.region.close()


def others(far):
    """Other namespaces, users and tools."""
    with namespace("peer"), watching() as theirs:
        channel = kopi.Channel()
        channel.sock.bind((PEER, PORT))
        with namespace("host"), watching() as ours:
            channel.send(0, b"theirs", (HOST, FAR_PORT))
            channel.bell()
            check("a namespace's monitor shows its flows", is_this(theirs.next(), direction=OUT))
            check("another's doesn't", ours.is_quiet())
        channel.sock.close()
        channel.region.close()
    with user("bob"):
        check("a user can't make one", not ip("link", "add", "kopimon8", "type", "kopimon"))
    with watching() as monitor:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as sender:
            sender.bind((monitor.name, ETH_P_ALL))
            sender.send(b"x" * 100)
        check("what is sent by one goes nowhere, and is shown as it is", monitor.tap.recv(2000) == b"x" * 100)
    del far


def goes_away():
    """With its namespace, and with the module."""
    subprocess.run(("ip", "netns", "add", "watched"), check=True)
    with inside("/run/netns/watched"):
        ip("link", "set", "lo", "up")
        Monitor().tap.close()
    subprocess.run(("ip", "netns", "del", "watched"), check=True)
    check("a namespace goes with a monitor in it", wait_until(lambda: not os.path.exists("/run/netns/watched")))
    monitor = Monitor()
    gone = memory.unload()
    check("a monitor doesn't hold the module, and goes with it", gone and not ip("link", "show", monitor.name))
    monitor.tap.close()
    check("which comes again", memory.load())


with namespace("peer"):
    FAR = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    FAR.bind((PEER, FAR_PORT))
    FAR.settimeout(30)
kopi.send_by_reference()
with ruled() as FAMILY, watching() as MONITOR:
    CHANNEL = kopi.Channel()
    CHANNEL.sock.bind((HOST, PORT))
    for NUMBER in range(4):
        CHANNEL.fill.push(CHANNEL.frame(32 + NUMBER))
    INFO = ask(FAMILY, "info-get")
    check("netlink counts it, and channels", (INFO["monitors"], INFO["channels"]) == (1, 1), INFO)
    both_ways(MONITOR, CHANNEL, FAR)
    dropped_by_stack(MONITOR, CHANNEL, FAR)
    dropped_by_kopi(MONITOR, CHANNEL, FAR)
    without_rings(MONITOR, FAR)
    check("no packet is unaccounted for", not CHANNEL.unaccounted(), CHANNEL.unaccounted())
    CHANNEL.sock.close()
    CHANNEL.region.close()
    gso(MONITOR, FAR)
    ipv6(MONITOR)
    check("nothing else was shown", MONITOR.is_quiet())
with namespace("host"):
    others(FAR)
    goes_away()
check("nothing holds the module", memory.wait_until_unused())
kopi.finish()
