#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What a channel remembers of routes and options is never older than the last doorbell."""

import json
import socket
import struct
import subprocess

from kopi import JOIN, SOL_KOPI, Channel, check, finish, flow, join_request, wait_until
from linux import (IP_MTU_DISCOVER, IP_OPTIONS, IP_PKTINFO, IP_RECVOPTS, IP_RECVTOS, IP_RECVTTL, IP_TOS,
                   IP_TTL, IP_XFRM_POLICY, SO_RCVBUFFORCE)

PEERS = 1500
BATCH = 64
ROUNDS = 4


def ip(command, allowed=True):
    """Runs ip(8)."""
    subprocess.run(["ip", *command.split()], check=allowed, stderr=None if allowed else subprocess.DEVNULL)


def routes():
    """How many the kernel keeps in memory, about."""
    with open("/sys/kernel/slab/rtable/shrink", "w", encoding="ascii") as shrink:
        shrink.write("1")
    with open("/sys/kernel/slab/rtable/objects", encoding="ascii") as objects:
        return int(objects.read().split()[0])


def received(count):
    """So many datagrams: payload, source, destination, TTL and TOS of each."""
    got = []
    for _ in range(count):
        try:
            data, control, _, source = plain.recvmsg(2000, 200)
        except TimeoutError:
            break
        seen = {kind: value for _, kind, value in control}
        got.append((data, source, socket.inet_ntoa(seen[IP_PKTINFO][8:12]),
                    seen[IP_TTL][0], seen[IP_TOS][0]))
    return got


def sent(*datagrams):
    """Sends (payload, address, further arguments) by one doorbell; gives the errno of each."""
    done = []
    for at, (data, address, *more) in enumerate(datagrams):
        channel.send(at, data, address, *more)
    channel.bell()
    while entry := channel.completion.pop():
        done.append(entry[4])
    return done


def udp_errno(data, address, local=None):
    """What a UDP socket gets for it."""
    control = []
    if local:
        info = struct.pack("=I4s4x", 0, socket.inet_aton(local))
        control = [(socket.IPPROTO_IP, IP_PKTINFO, info)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            udp.sendmsg([data], control, 0, address)
        except OSError as error:
            return error.errno
    return 0


def esp_to(address):
    """A policy, as IP_XFRM_POLICY takes it, of ESP for UDP to an address: a struct xfrm_userpolicy_info, and a
    struct xfrm_user_tmpl."""
    never, masks = (1 << 64) - 1, 3 * [0xffffffff]
    selector = struct.pack("=16s16sHHHHHBBBxxxiI", socket.inet_aton(address), b"", 0, 0, 0, 0, socket.AF_INET, 32, 0,
                           socket.IPPROTO_UDP, 0, 0)
    lifetimes = struct.pack("=12Q", *4 * [never], *8 * [0])
    out = struct.pack("=IIBBBB4x", 0, 0, 1, 0, 0, 0)
    esp = struct.pack("=16sIB3xH2x16sIBBBxIII", b"", 0, socket.IPPROTO_ESP, socket.AF_INET, b"", 0, 0, 0, 0, *masks)
    return selector + lifetimes + out + esp


def left_by(device):
    """Packets that a device was given."""
    with open(f"/sys/class/net/{device}/statistics/tx_packets", encoding="ascii") as file:
        return int(file.read())


plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain.settimeout(10)
plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
for option in (IP_PKTINFO, IP_RECVTTL, IP_RECVTOS):
    plain.setsockopt(socket.IPPROTO_IP, option, 1)
plain.bind(("0.0.0.0", 0))
port = plain.getsockname()[1]
here = ("127.0.0.1", port)
channel = Channel()
channel.sock.bind(("127.0.0.1", 0))

# More peers than are remembered.
peers = [f"127.1.{number >> 8}.{number & 255}" for number in range(PEERS)]
wrong = []
for round_ in range(2):
    for start in range(0, PEERS, BATCH):
        some = peers[start:start + BATCH]
        errors = sent(*((f"{round_} {peer}".encode(), (peer, port)) for peer in some))
        got = [(data, to) for data, _, to, _, _ in received(len(some))]
        if any(errors) or got != [(f"{round_} {peer}".encode(), peer) for peer in some]:
            wrong.append((round_, start, errors, got))
check(f"{PEERS} peers get what is theirs", not wrong, wrong[:1])

# Options.
for option, value, place in ((IP_TTL, 7, 3), (IP_TOS, 0x48, 4)):
    channel.sock.setsockopt(socket.IPPROTO_IP, option, value)
    sent((b"option", here))
    got = received(1)
    check(f"option {option} counts from the next doorbell on", got and got[0][place] == value, got)
channel.sock.setsockopt(socket.IPPROTO_IP, IP_OPTIONS, bytes([148, 4, 0, 0]))
plain.setsockopt(socket.IPPROTO_IP, IP_RECVOPTS, 1)
sent((b"router alert", here))
data, control, _, _ = plain.recvmsg(2000, 200)
check("IP options do, too", any(kind == 6 for _, kind, _ in control), control)
channel.sock.setsockopt(socket.IPPROTO_IP, IP_OPTIONS, b"")
plain.setsockopt(socket.IPPROTO_IP, IP_RECVOPTS, 0)
data = {kind: value for _, kind, value in plain.recvmsg(2000, 200)[1]} if sent((b"none", here)) else {}
check("and when they are gone", data and 6 not in data, data)

# IP IDs, which a channel reserves for a destination, some at a time; a UDP socket takes others in between.
with (socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as seen,
      socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp):
    seen.settimeout(10)
    seen.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 20)
    udp.bind(("127.0.0.1", 0))
    ports = (channel.sock.getsockname()[1], udp.getsockname()[1])
    for _ in range(ROUNDS):
        sent(*[(b"id", here)] * BATCH)
        udp.sendto(b"id", here)
    ids = {each: [] for each in ports}
    while sum(map(len, ids.values())) < ROUNDS * (BATCH + 1):
        packet = seen.recv(2000)
        source, number = struct.unpack_from("!H", packet, 20)[0], struct.unpack_from("!H", packet, 4)[0]
        ids[source].append(number)
    received(ROUNDS * (BATCH + 1))
together = ids[ports[0]] + ids[ports[1]]
check("no datagram has an IP ID that another one has", len(set(together)) == len(together), ids)

# A device of its own, with neighbours that need no asking.
ip("link add d9 type dummy")
# What IPv6 says of itself would be counted.
subprocess.run(["sysctl", "-qw", "net.ipv6.conf.d9.disable_ipv6=1"], check=True)
ip("link set d9 up")
for address in ("198.51.100.1", "198.51.100.2"):
    ip(f"addr add {address}/24 dev d9")
for number in (7, 8):
    ip(f"neigh add 198.51.100.{number} lladdr 02:00:00:00:00:07 dev d9 nud permanent")
far, other = ("198.51.100.7", 9), ("198.51.100.8", 9)
wild = Channel()
wild.sock.bind(("0.0.0.0", 0))
channel = wild
before = left_by("d9")
check("by a device", sent((b"a", far), (b"b", other), (b"c", far)) == [0, 0, 0]
      and left_by("d9") == before + 3, left_by("d9") - before)

# Its routes.
ip("route add unreachable 198.51.100.7/32")
expected = udp_errno(b"x", far)
before = left_by("d9")
errors = sent((b"a", other), (b"b", far), (b"c", other), (b"d", far))
check("an unreachable peer, and only that", expected and errors == [0, expected, 0, expected]
      and left_by("d9") == before + 2, (expected, errors, left_by("d9") - before))
ip("route del unreachable 198.51.100.7/32")
before = left_by("d9")
check("it can be reached again", sent((b"a", far)) == [0] and left_by("d9") == before + 1)
ip("route add 198.51.100.7/32 dev lo")
before = left_by("d9")
sent((b"a", far), (b"b", other))
check("a route by another device", left_by("d9") == before + 1, left_by("d9") - before)
ip("route del 198.51.100.7/32 dev lo")

# Routes that aren't valid any more are forgotten, though nobody asks for them again.
before = routes()
for port in range(1000, 61000, 75):
    with open("/proc/sys/net/ipv4/route/flush", "w", encoding="ascii") as flush:
        flush.write("1")
    sent((b"a", (far[0], port)))
check("routes that changed 800 times keep no memory",
      wait_until(lambda: routes() < before + 200), routes() - before)

# Source addresses that metadata name.
meta = {"local": "198.51.100.2"}
before = left_by("d9")
check("a source", sent((b"a", far, 0, meta)) == [0] and left_by("d9") == before + 1)
ip("addr del 198.51.100.2/24 dev d9")
expected = udp_errno(b"x", far, "198.51.100.2")
errors = sent((b"a", far, 0, meta))
check("that is gone", expected and errors == [expected], (expected, errors))

# The MTU.
long = b"x" * 1000
channel.sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, 2)
check("a datagram that fits", sent((long, far)) == [0])
ip("link set d9 mtu 900")
errors = sent((long, far))
check("and not any more: EMSGSIZE", errors == [90], errors)
channel.sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, 0)
before = left_by("d9")
check("in fragments", sent((long, far)) == [0] and left_by("d9") == before + 2, left_by("d9") - before)

# The device goes, of which routes are remembered: by a connected flow, too.
connected = Channel()
connected.sock.connect(far)
channel = connected
check("a connected flow", sent((b"a", None)) == [0])
subprocess.run(["ip", "link", "del", "d9"], check=True, timeout=60)
expected = udp_errno(b"x", far)
for channel, address in ((connected, None), (wild, far)):
    errors = sent((b"a", address))
    check("a device that is gone", expected == errors[0], (expected, errors))

# A device with queues, of which the hash of a datagram's ends chooses one.
ip("link add q9 numtxqueues 4 type veth peer name q8")
for device in ("q8", "q9"):
    # What IPv6 says of itself would be counted.
    subprocess.run(["sysctl", "-qw", f"net.ipv6.conf.{device}.disable_ipv6=1"], check=True)
    ip(f"link set {device} up")
ip("addr add 198.51.100.1/24 dev q9")
subprocess.run(["tc", "qdisc", "add", "dev", "q9", "root", "handle", "1:", "mq"], check=True)
queued = [f"198.51.100.{number}" for number in range(10, 30)]
for address in queued:
    ip(f"neigh add {address} lladdr 02:00:00:00:00:07 dev q9 nud permanent")


def by_queue():
    """Packets of each queue."""
    shown = subprocess.run(["tc", "-s", "-j", "class", "show", "dev", "q9"], check=True, capture_output=True)
    return [each["stats"]["packets"] for each in json.loads(shown.stdout)]


def chosen(send):
    """How many packets go by each queue if each address gets three, one by each call."""
    gone = by_queue()
    for _ in range(3):
        send([(b"q", (address, 9)) for address in queued])
    return [now - then for then, now in zip(gone, by_queue())]


with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.bind(("198.51.100.1", 7009))
    expected = chosen(lambda datagrams: [udp.sendto(*each) for each in datagrams])
channel = Channel()
channel.sock.bind(("198.51.100.1", 7009))
got = chosen(lambda datagrams: sent(*datagrams))
check("each peer's datagrams go by the queue that a UDP socket's go by", got == expected and sum(got) == 60
      and sum(each > 0 for each in got) > 1, (got, expected))

# An IPsec policy that a socket sets for itself when its way is known; nobody has keys for it.
subprocess.run(["modprobe", "xfrm_user"], check=True)
before = left_by("q9")
check("a datagram leaves", sent((b"q", (queued[0], 9))) == [0] and wait_until(lambda: left_by("q9") == before + 1))
channel.sock.setsockopt(socket.IPPROTO_IP, IP_XFRM_POLICY, esp_to(queued[0]))
before = left_by("q9")
sent(*[(b"q", (queued[0], 9))] * 3)
sent((b"q", (queued[1], 9)))
check("none leaves in clear against the socket's own policy, but what that isn't about", wait_until(
    lambda: left_by("q9") > before) and left_by("q9") == before + 1, left_by("q9") - before)
ip("link del q9")

# Another flow under the same number of the channel.
channel = Channel()
channel.sock.bind(("127.0.0.1", 0))
for last in (2, 3):
    with flow() as joined:
        joined.bind((f"127.0.0.{last}", 0))
        joined.setsockopt(SOL_KOPI, JOIN, join_request(channel.sock))
        errors = sent((b"who", here, 1))
        got = received(1)
        check(f"flow {last} by its own name", errors == [0] and got and got[0][1] == joined.getsockname(),
              (errors, got))

check("nothing is unaccounted for", wait_until(lambda: not any(
    each.unaccounted() for each in (channel, wild, connected))))
finish()
