#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Rules hold whichever way a program gives a datagram, an address or a wish, and for who waits already."""

import contextlib
import ctypes
import errno
import os
import socket
import struct
import threading
import time

import kopi
from attached import slow_device
from control import add, ask, rules, ruled
from equivalence import namespace, nft_counters, run_nft, sh
from kopi import check, fails, pack_address, wait_until
from linux import IP_UNICAST_IF, UDP_CORK, UDP_SEGMENT

HOST, PEER = "192.0.2.1", "192.0.2.2"
LOCAL, PORT = "127.0.0.1", 7001
SOL_UDP = 17
# What a rate lets pass once: the next has to wait for minutes, however slow the machine is.
WHOLE = b"x" * 500
ONCE = {"rate_bytes": 1, "burst": len(WHOLE)}
PORTS = "/proc/sys/net/ipv4/ip_local_port_range"


def unspecified(address, port):
    """An address of IPv4 that says it is of no family."""
    return struct.pack("=H", socket.AF_UNSPEC) + pack_address(address, port)[2:]


def send(sock, data, name, flags=0):
    """sendto() with an address as it is."""
    if kopi.libc.sendto(sock.fileno(), data, len(data), flags, name, len(name)) < 0:
        raise OSError(ctypes.get_errno(), "sendto")


def send_with(sock, data, name, *control):
    """sendmsg() with control messages: each is level, type, data."""
    words = b""
    for level, kind, value in control:
        words += struct.pack("=Qii", 16 + len(value), level, kind) + value.ljust(-(-len(value) // 8) * 8, b"\0")
    buffers = [ctypes.create_string_buffer(part, max(len(part), 1)) for part in (name, data, words)]
    where, what, control = (ctypes.addressof(buffer) for buffer in buffers)
    vector = ctypes.create_string_buffer(struct.pack("=QQ", what, len(data)))
    header = struct.pack("=QI4xQQQQi4x", where, len(name), ctypes.addressof(vector), 1, control, len(words), 0)
    if kopi.libc.sendmsg(sock.fileno(), header, 0) < 0:
        raise OSError(ctypes.get_errno(), "sendmsg")


def drain(sock):
    """Number of datagrams that have come, and their bytes."""
    kopi.settle()
    count = size = 0
    while True:
        try:
            size += len(sock.recv(70000, socket.MSG_DONTWAIT))
            count += 1
        except BlockingIOError:
            return count, size


def bound(address=LOCAL, proto=0):
    """A flow that is bound."""
    sock = kopi.flow(proto)
    sock.bind((address, 0))
    return sock


def addresses(ynl, near):
    """A rule's address is the one that packets go to."""
    for address in (LOCAL, "::1", HOST):
        add(ynl, remote_address=address, remote_prefix=128 if ":" in address else 32, verdict="deny")
    plain = bound("0.0.0.0")
    plain6 = bound("::", kopi.UDP6)
    for what, sock, name in (
            ("an address of IPv4", plain, pack_address(HOST, PORT)),
            ("of no family", plain, unspecified(HOST, PORT)),
            ("of none at all", plain, pack_address("0.0.0.0", PORT)),
            ("of no family, and none at all", plain, unspecified("0.0.0.0", PORT)),
            ("the any-address of IPv6", plain6, pack_address("::", PORT)),
            ("the any-address of IPv4, mapped", plain6, pack_address("::ffff:0.0.0.0", PORT))):
        fails(f"to {what}", errno.EACCES, lambda sock=sock, name=name: send(sock, b"x", name))
    check("nothing has come", drain(near)[0] == 0)
    plain.setsockopt(socket.SOL_IP, socket.IP_OPTIONS, b"\x01\x83\x07\x04" + socket.inet_aton(HOST))
    fails("to another one by way of a denied one", errno.EACCES, lambda: send(plain, b"x", pack_address(PEER, PORT)))
    channel = kopi.Channel(bound("0.0.0.0"))
    channel.send(0, b"r", ("0.0.0.0", PORT))
    channel.bell()
    check("a ring's to the any-address: EACCES", channel.completion.pop()[4] == errno.EACCES)
    ask(ynl, "ruleset-set")

    connected = bound("::", kopi.UDP6)
    connected.connect(("::1", PORT))
    add(ynl, remote_address="::1", remote_prefix=128, verdict="deny")
    fails("to the peer, by no family", errno.EACCES,
          lambda: send(connected, b"x", struct.pack("=H", socket.AF_UNSPEC) + bytes(14)))
    ask(ynl, "ruleset-set")
    check("nothing has come", drain(near)[0] == 0)


def any_addresses(ynl):
    """A datagram or a connection to the any-address is judged by the address that it gets: the socket's own, or the
    loopback address."""
    for what, proto, own, to, reached in (
            ("IPv4", 0, "0.0.0.0", "0.0.0.0", LOCAL), ("IPv4, bound", 0, HOST, "0.0.0.0", HOST),
            ("IPv6", kopi.UDP6, "::", "::", "::1"), ("IPv4 by IPv6", kopi.UDP6, "::", "::ffff:0.0.0.0", LOCAL),
            ("IPv4 by IPv6, bound", kopi.UDP6, "::ffff:" + HOST, "::ffff:0.0.0.0", HOST),
            ("IPv6, bound to one of IPv4", kopi.UDP6, "::ffff:" + HOST, "::", LOCAL)):
        add(ynl, remote_address=reached, remote_prefix=128 if ":" in reached else 32, verdict="allow")
        ask(ynl, "ruleset-set", {"default": "deny", "keep": True})
        plain, channel = bound(own, proto), kopi.Channel(bound(own, proto))
        name = pack_address(to, PORT)
        found = kopi.libc.sendto(plain.fileno(), b"x", 1, 0, name, len(name))
        check(f"{what}: a call's", found == 1, os.strerror(ctypes.get_errno()))
        channel.send(0, b"r", (to, PORT, 0, 0) if proto else (to, PORT))
        channel.bell()
        error = channel.completion.pop()[4]
        check(f"{what}: a ring's", error == 0, os.strerror(error))
        counted = [rule["packets"] for rule in rules(ynl)]
        check(f"{what}: each is counted once", counted == [2], counted)
        found = kopi.libc.connect(plain.fileno(), name, len(name))
        check(f"{what}: connect()", found == 0, os.strerror(ctypes.get_errno()))
        plain.close()
        channel.sock.close()
        ask(ynl, "ruleset-set")


def by_device(ynl):
    """Of a socket that sends by a device, the device's address is meant."""
    index = struct.pack("=I", socket.htonl(socket.if_nametoindex("eth0")))
    for what, option in (("bound to a device", (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")),
                         ("with IP_UNICAST_IF", (socket.SOL_IP, IP_UNICAST_IF, index))):
        add(ynl, remote_address=HOST, remote_prefix=32, verdict="allow")
        ask(ynl, "ruleset-set", {"default": "deny", "keep": True})
        plain, channel = kopi.flow(), kopi.Channel(kopi.flow())
        plain.setsockopt(*option)
        channel.sock.setsockopt(*option)
        send(plain, b"x", pack_address("0.0.0.0", PORT))
        channel.send(0, b"r", ("0.0.0.0", PORT))
        channel.bell()
        error = channel.completion.pop()[4]
        counted = [rule["packets"] for rule in rules(ynl)]
        check(f"a socket {what}: the device's address", counted == [2] and not error, (counted, error))
        plain.connect(("0.0.0.0", PORT))
        plain.close()
        channel.sock.close()
        ask(ynl, "ruleset-set")


def rates_by_peer(ynl, near):
    """Two rates, each for other peers: each holds, in whatever order the peers come."""
    add(ynl, remote_address="127.0.0.2", rate_packets=1, burst=10)
    add(ynl, rate_packets=1, burst=10)
    sock, passed, begun = bound("0.0.0.0"), [0, 0], time.monotonic()
    for number in range(200):
        try:
            send(sock, b"x", pack_address(f"127.0.0.{number % 2 + 1}", PORT))
            passed[number % 2] += 1
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
    took = time.monotonic() - begun
    check("rates hold for a flow that alternates between their peers",
          max(passed) <= 13 + took and min(passed) >= 10, (passed, took))
    ask(ynl, "ruleset-set")
    drain(near)


def batches(ynl, near):
    """Each datagram of a ring counts once, however the ring's are put together and taken apart."""
    for what, proto, address in (("IPv4", 0, (LOCAL, PORT)), ("IPv6", kopi.UDP6, ("::1", PORT, 0, 0))):
        for meta in (None, {"tos": 2}):
            add(ynl, remote_port_min=PORT, verdict="allow")
            channel = kopi.Channel(bound(address[0], proto), flags=kopi.GSO)
            for number in range(60):
                channel.send(number, b"x" * (400 if number % 3 else 1000), address, meta=meta)
            errors = channel.complete(60)
            found = rules(ynl)[0]
            check(f"{what}, {meta}: sixty are sixty", (found["packets"], found["bytes"], drain(near)) ==
                  (60, 36000, (60, 36000)) and not any(errors), (found, errors))
            channel.sock.close()
            ask(ynl, "ruleset-set")


def marks_by_peer(ynl):
    """Datagrams to peers whose rules have other marks take other routes, however they alternate."""
    sh("nsenter --net=/run/netns/host bash -c 'ip link add wide0 type dummy; ip addr add 2001:db8:8::1/64 dev wide0 nodad; "
       "ip link set wide0 up; ip -6 route add 2001:db8:8::/64 dev wide0 mtu 1280 table 100; ip -6 rule add fwmark 2 table 100; "
       "for peer in 2 3; do ip neigh add 2001:db8:8::$peer lladdr 2:2:2:2:2:2 dev wide0; done'")
    for last, mark in ((2, 1), (3, 2)):
        add(ynl, remote_address=f"2001:db8:8::{last}", remote_prefix=128, mark=mark)
    channel = kopi.Channel(bound("::", kopi.UDP6), flags=kopi.GSO)
    errors = []
    for _ in range(4):
        for number in range(8):
            channel.send(number, b"x" * 1400, (f"2001:db8:8::{2 + number // 4}", PORT, 0, 0))
        errors += channel.complete(8)
    check("a batch goes by the route of its own mark", not any(errors), errors)
    channel.sock.close()
    sh("nsenter --net=/run/netns/host bash -c 'ip -6 rule del fwmark 2 table 100; ip -6 route flush table 100; ip link del wide0'")
    ask(ynl, "ruleset-set")


def source_routes(ynl):
    """A datagram that goes by way of another host counts for where it goes in the end."""
    far, far6 = PEER, "2001:db8::2"
    loose = b"\x01\x83\x07\x04" + socket.inet_aton(HOST)
    segments = struct.pack("=BBBBBBH", 0, 4, 4, 1, 1, 0, 0) + bytes(16) + socket.inet_pton(socket.AF_INET6, "::1")
    for what, proto, address, level, option, value in (
            ("IPv4", 0, far, socket.SOL_IP, socket.IP_OPTIONS, loose),
            ("IPv6", kopi.UDP6, far6, socket.IPPROTO_IPV6, socket.IPV6_RTHDR, segments)):
        name = pack_address(address, PORT)
        plain = kopi.flow(proto)
        plain.setsockopt(level, option, value)
        where = {"remote_address": address, "remote_prefix": 128 if ":" in address else 32}
        add(ynl, **ONCE, **where)
        send(plain, WHOLE, name)
        fails(f"{what}: faster than a peer's rate by way of another", errno.ENOBUFS, lambda: send(plain, WHOLE, name))
        counted = [rule["packets"] for rule in rules(ynl)]
        check(f"{what}: it is counted for the peer", counted == [2], counted)
        ask(ynl, "ruleset-set")
        plain.setsockopt(SOL_UDP, UDP_CORK, 1)
        send(plain, b"begun", name)
        add(ynl, verdict="deny", **where)
        plain.setsockopt(SOL_UDP, UDP_CORK, 0)
        counted = [rule["packets"] for rule in rules(ynl)]
        check(f"{what}: one begun before its peer was denied is denied", counted == [1], counted)
        ask(ynl, "ruleset-set")
    # With no segments left, the last one is where it goes already.
    plain = kopi.flow(kopi.UDP6)
    plain.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RTHDR,
                     struct.pack("=BBBBBBH", 0, 2, 4, 0, 0, 0, 0) + socket.inet_pton(socket.AF_INET6, "::1"))
    add(ynl, **ONCE, remote_address="::1", remote_prefix=128)
    send(plain, WHOLE, pack_address(far6, PORT))
    fails("a routing header at its end", errno.ENOBUFS, lambda: send(plain, WHOLE, pack_address(far6, PORT)))
    ask(ynl, "ruleset-set")


def rates(ynl, near):
    """A rate is of datagrams, however many there are in a call, and of calls that are one datagram together."""
    name = pack_address(LOCAL, PORT)
    cut = (SOL_UDP, UDP_SEGMENT, struct.pack("=H", 100))
    for what, option, control in (("the option", 100, ()), ("a control message", 0, (cut,))):
        add(ynl, remote_port_min=PORT, rate_packets=10, burst=10)
        plain = bound()
        plain.setsockopt(SOL_UDP, UDP_SEGMENT, option)
        send_with(plain, b"x" * 6000, name, *control)
        fails(f"after 60 by {what}", errno.ENOBUFS, lambda sock=plain, by=control: send_with(sock, b"x" * 6000, name, *by))
        got, counted = drain(near)[0], [rule["packets"] for rule in rules(ynl)]
        check("each is counted", (got, counted) == (60, [120]), (got, counted))
        ask(ynl, "ruleset-set")
    add(ynl, remote_port_min=PORT, rate_packets=1, burst=1)
    corked = bound()
    send(corked, b"one ", name, socket.MSG_MORE)
    send(corked, b"datagram", name)
    check("what was sent in parts is one", (drain(near), [rule["packets"] for rule in rules(ynl)]) == ((1, 12), [1]))
    ask(ynl, "ruleset-set")
    channel = kopi.Channel(bound(), frame_size=8192, frames=32)
    channel.sock.connect((LOCAL, PORT))
    channel.sock.setsockopt(SOL_UDP, UDP_SEGMENT, 100)
    for number in range(2):
        channel.send(number, b"x" * 6000)
    channel.bell()
    sent, got = channel.stats()["tx_packets"], drain(near)[0]
    check("a ring's descriptor that the option cuts is as many", (sent, got, channel.unaccounted()) == (120, 120, ""),
          (sent, got))
    add(ynl, remote_port_min=PORT, rate_packets=10, burst=10)
    for number in range(2):
        channel.send(number, b"x" * 6000)
    channel.bell()
    sent, got = channel.stats(), drain(near)[0]
    check("by a rate, too", (sent["tx_packets"], sent["tx_drop_rate"], got) == (180, 60, 60), (sent, got))
    ask(ynl, "ruleset-set")


@contextlib.contextmanager
def slow_namespace():
    """A network namespace that nothing was done to, with a device whose qdisc holds packets to 203.0.113.2;
    gives its rules, and a function that runs a command there."""
    def run(command):
        return sh(f"nsenter --net=/run/netns/slow {command}")

    sh("ip netns add slow")
    try:
        run("ip link set lo up")
        with slow_device(run), ruled("slow") as ynl:
            yield ynl, run
    finally:
        sh("ip netns del slow")


def replaced():
    """What the rules have let pass, and there is no room for, counts for its flow and its peer: not for what the
    program puts in its place."""
    far, limited, size = "203.0.113.2", 7010, 500

    def other_peer(channel, index):
        struct.pack_into(">H", channel.region, channel.frame(index) + 32, limited)

    def other_flow(channel, index):
        struct.pack_into("=I", channel.region, channel.tx.entries + index * channel.tx.entry_size + 8, 1)

    for what, rule, replace in (("another peer", {"remote_port_min": limited}, other_peer),
                                ("another flow", {"local_port_min": limited}, other_flow)):
        with slow_namespace() as (ynl, run), kopi.flow() as joined:
            add(ynl, rate_bytes=1, burst=size, shared=True, **rule)
            channel = kopi.Channel()
            channel.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
            joined.bind(("0.0.0.0", limited))
            # That is all that the rate has.
            send(joined, b"x" * size, pack_address(LOCAL, limited))
            joined.setsockopt(kopi.SOL_KOPI, kopi.JOIN, kopi.join_request(channel.sock))
            for number in range(16):
                channel.send(number, b"x" * size, (far, PORT))
            channel.bell()
            first = channel.tx.get(channel.tx.consumer)
            for index in range(first, 16):
                replace(channel, index)
            backlog = run("tc -s qdisc show dev slow0")
            run("tc qdisc del dev slow0 root")
            wait_until(lambda rings=channel: (rings.bell(), rings.tx.get(rings.tx.consumer) == 16)[1])
            drops = [struct.unpack("=32Q", sock.getsockopt(kopi.SOL_KOPI, kopi.STATS, 256))[23]
                     for sock in (channel.sock, joined)]
            check(f"{what} in the place of what has passed: over the rate", 0 < first < 16 and sum(drops) == 16 - first,
                  (first, drops, {name: count for name, count in channel.stats().items() if count}, backlog))
            channel.sock.close()


def corked_before(ynl, near):
    """What waits for its end when a rule comes isn't sent."""
    corked = bound()
    corked.setsockopt(SOL_UDP, UDP_CORK, 1)
    send(corked, b"begun", pack_address(LOCAL, PORT))
    add(ynl, remote_port_min=PORT, verdict="deny")
    corked.setsockopt(SOL_UDP, UDP_CORK, 0)
    check("a datagram begun before the rule isn't sent", drain(near)[0] == 0)
    ask(ynl, "ruleset-set")


def wishes(ynl, near):
    """A rule's mark and priority are on all packets, whatever their program says of each."""
    run_nft("table inet t {\nchain c {\ntype filter hook output priority 0;\n"
            f"udp dport {PORT} meta mark 7 meta priority 1:5 counter\nudp dport {PORT} counter\n}}\n}}")
    add(ynl, remote_port_min=PORT, mark=7, priority=0x10005)
    plain, name = bound(), pack_address(LOCAL, PORT)
    number = struct.Struct("=i").pack
    for control in ((socket.SOL_IP, socket.IP_TOS, number(0x10)), (socket.SOL_SOCKET, socket.SO_PRIORITY, number(2)),
                    (socket.SOL_SOCKET, socket.SO_MARK, number(9))):
        send_with(plain, b"x", name, control)
    channel = kopi.Channel(bound())
    channel.send(0, b"r", (LOCAL, PORT), meta={"tos": 0x10, "mark": 9})
    channel.bell()
    check("what control messages and metadata say doesn't count",
          (nft_counters()[0][0], drain(near)[0]) == (4, 4), nft_counters())
    run_nft("flush ruleset")
    ask(ynl, "ruleset-set")


def sleepers(ynl):
    """Who sleeps in recvmsg() when a rule comes gets nothing that it denies."""
    plain = kopi.flow()
    plain.bind((LOCAL, 7003))
    good, bad = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    good.bind((LOCAL, 7004))
    bad.bind((LOCAL, 7005))
    got = []

    def asleep():
        reader = threading.Thread(target=lambda: got.append(os.read(plain.fileno(), 100)))
        reader.start()
        task = f"/proc/self/task/{reader.native_id}/wchan"
        wait_until(lambda: open(task, encoding="ascii").read() not in ("", "0"))
        return reader

    reader = asleep()
    add(ynl, remote_port_min=7005, direction={"in"}, verdict="deny")
    bad.sendto(b"denied", (LOCAL, 7003))
    good.sendto(b"allowed", (LOCAL, 7003))
    reader.join()
    check("a reader who slept before the rule gets what it allows", got == [b"allowed"], got)
    ask(ynl, "ruleset-set")
    reader = asleep()
    try:
        plain.shutdown(socket.SHUT_RD)
    except OSError:
        # UDP says so without a peer, and shuts down.
        pass
    reader.join()
    check("and who sleeps while it is shut down, the end", got == [b"allowed", b""], got)


def taken_back(ynl):
    """A refused bind() or connect() leaves the socket as it was."""
    add(ynl, local_port_min=7100, verdict="deny")
    plain = kopi.flow()

    def bind_unspecified():
        name = unspecified("0.0.0.0", 7100)
        if kopi.libc.bind(plain.fileno(), name, len(name)):
            raise OSError(ctypes.get_errno(), "bind")

    fails("bind() by no family", errno.EACCES, bind_unspecified)
    with open(PORTS, encoding="ascii") as file:
        before = file.read()
    try:
        with open(PORTS, "w", encoding="ascii") as file:
            file.write("7100 7100")
        fails("bind() to any port, of which one is left, and denied", errno.EACCES, lambda: plain.bind((LOCAL, 0)))
        check("it isn't bound", plain.getsockname() == ("0.0.0.0", 0), plain.getsockname())
        plain6 = kopi.flow(kopi.UDP6)
        fails("by IPv6", errno.EACCES, lambda: plain6.bind(("::1", 0)))
        check("nor is it for IPv6 only", plain6.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 0)
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as other:
            other.bind(("::", 7100))
            check("another has the port", other.getsockname()[1] == 7100)
        fails("connect() from there", errno.EACCES, lambda: plain.connect((LOCAL, PORT)))
        check("it isn't connected", plain.getsockname() == ("0.0.0.0", 0), plain.getsockname())
    finally:
        with open(PORTS, "w", encoding="ascii") as file:
            file.write(before)
    plain.bind((LOCAL, 7101))
    check("it can be bound afterwards", plain.getsockname() == (LOCAL, 7101))
    add(ynl, remote_address=LOCAL, remote_prefix=32, verdict="deny")
    fails("connect() to the any-address", errno.EACCES, lambda: plain.connect(("0.0.0.0", PORT)))
    fails("it isn't connected", errno.EDESTADDRREQ, lambda: plain.send(b"x"))
    ask(ynl, "ruleset-set")


def looks(ynl):
    """A datagram that is looked at counts, as one that is read."""
    with namespace("host"):
        reader = kopi.flow()
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    reader.bind((LOCAL, 7102))
    add(ynl, local_port_min=7102, **ONCE)
    for number in range(3):
        sender.sendto(bytes([number]) + WHOLE[1:], (LOCAL, 7102))
    kopi.settle()
    seen = []
    for _ in range(3):
        for flags in (socket.MSG_PEEK, 0):
            try:
                seen.append(reader.recv(1, flags | socket.MSG_DONTWAIT))
            except BlockingIOError:
                seen.append(None)
    check("who looks first reads no faster", seen == [b"\0", b"\0", None, None, None, None], seen)
    ask(ynl, "ruleset-set")


with namespace("host"):
    receiver = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    receiver.bind(("::", PORT))
with ruled() as netlink:
    addresses(netlink, receiver)
    any_addresses(netlink)
    by_device(netlink)
    drain(receiver)
    batches(netlink, receiver)
    marks_by_peer(netlink)
    source_routes(netlink)
    rates(netlink, receiver)
    rates_by_peer(netlink, receiver)
    replaced()
    corked_before(netlink, receiver)
    wishes(netlink, receiver)
    sleepers(netlink)
    looks(netlink)
    taken_back(netlink)
kopi.finish()
