#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""sendmsg() of a flow on a channel: the channel's routes send what is plain, with the results of a UDP socket,
whatever the message, its memory, the rules and other threads do meanwhile."""

import ctypes
import errno
import itertools
import json
import mmap
import os
import random
import socket
import struct
import subprocess
import threading
import warnings

import kernel_counters
import kopi
from equivalence import namespace, run_nft, sh
from linux import (Iovec, Msghdr, IP_MTU_DISCOVER, IP_PKTINFO, IP_TOS, IPV6_MTU_DISCOVER, IPV6_PKTINFO, IPV6_TCLASS,
                   SO_SNDBUFFORCE)
from slow import SlowCall

FAR = "192.0.2.2"
MSG_MORE, MSG_CONFIRM, MSG_ZEROCOPY = 0x8000, 0x800, 0x4000000
LIBC = ctypes.CDLL(None, use_errno=True)
MESSAGES = 3000
KINDS = {"a channel that only sends": kopi.TX_ONLY, "one that receives, too": 0}


class Version:
    """What messages of an IP version have."""

    def __init__(self, name, family, ends, **options):
        self.name, self.family, (self.near, self.far) = name, family, ends
        self.protocol, self.level, self.source, self.tos, self.discover = options["of"]
        self.longest = 1500 - options["headers"]

    def info(self, source, device=0):
        """A source and a device, as a control message has them."""
        if self.family == socket.AF_INET6:
            return socket.inet_pton(self.family, source) + struct.pack("=i", device)
        return struct.pack("=i4s4x", device, socket.inet_aton(source))

    def control(self, kind, data):
        """A control message of its level."""
        return struct.pack("=Qii", 16 + len(data), self.level, kind) + data + bytes(-len(data) % 8)


V4 = Version("IPv4", socket.AF_INET, ("192.0.2.1", FAR), headers=28,
             of=(0, socket.IPPROTO_IP, IP_PKTINFO, IP_TOS, IP_MTU_DISCOVER))
V6 = Version("IPv6", socket.AF_INET6, ("2001:db8::1", "2001:db8::2"), headers=48,
             of=(kopi.UDP6, socket.IPPROTO_IPV6, IPV6_PKTINFO, IPV6_TCLASS, IPV6_MTU_DISCOVER))


# An IPv6 socket, and peers of IPv4.
MAPPED = Version("IPv4 by an IPv6 socket", socket.AF_INET6, ("::", f"::ffff:{FAR}"), headers=28,
                 of=(kopi.UDP6, socket.IPPROTO_IPV6, IPV6_PKTINFO, IPV6_TCLASS, IPV6_MTU_DISCOVER))


def sendmsg(sock, data, name=b"", control=b"", flags=0):
    """The result of the system call, and its errno. `data` is bytes, or an address and a length."""
    at, size = data if isinstance(data, tuple) else (ctypes.cast(data, ctypes.c_void_p), len(data))
    piece = Iovec(at, size)
    names, controls = ctypes.create_string_buffer(name, len(name) + 1), ctypes.create_string_buffer(control, len(control) + 1)
    header = Msghdr(ctypes.addressof(names) if name else None, len(name), ctypes.pointer(piece), 1,
                    ctypes.addressof(controls) if control else None, len(control), 0)
    ctypes.set_errno(0)
    sent = LIBC.sendmsg(sock.fileno(), ctypes.byref(header), flags)
    return sent, ctypes.get_errno() if sent < 0 else 0


class Pair:
    """A sender in the host's namespace, and where it sends to."""

    def __init__(self, version=V4, plain=False, connect=False, kind=kopi.TX_ONLY):
        with namespace("peer"):
            self.sink = socket.socket(version.family, socket.SOCK_DGRAM)
            self.sink.bind((version.far, 0))
            self.sink.settimeout(20)
        self.name = kopi.pack_address(*self.sink.getsockname())
        with namespace("host"):
            self.sock = socket.socket(version.family, socket.SOCK_DGRAM) if plain else kopi.ip_flow(version.protocol)
            self.sock.bind((version.near, 0))
            if connect:
                self.sock.connect(self.sink.getsockname())
            self.channel = None if plain else kopi.Channel(self.sock, flags=kind)

    def by_routes(self):
        """Datagrams that the channel has sent."""
        return self.channel.stats()["tx_packets"]

    def close(self):
        """Ends it."""
        self.sink.close()
        self.sock.close()
        if self.channel:
            self.channel.region.close()


def plain_ones(version):
    for connect, (kind_name, kind) in itertools.product((False, True), KINDS.items()):
        pair = Pair(version, connect=connect, kind=kind)
        name = b"" if connect else pair.name
        for size in (0, 1, 100, version.longest):
            data = random.randbytes(size)
            kopi.expect(sendmsg(pair.sock, data, name) == (size, 0) and pair.sink.recv(2000) == data, f"{size} bytes")
        what = f"{version.name}, {'connected' if connect else 'by address'}, {kind_name}"
        kopi.check(f"{what}: the channel's routes send them", pair.by_routes() == 4 and not pair.channel.unaccounted(),
                   pair.channel.stats())
        source = version.control(version.source, version.info(f"::ffff:{V4.near}" if version is MAPPED else version.near))
        got = sendmsg(pair.sock, b"s", name, source)
        # What udpv6_sendmsg() asks of a connected sock then isn't asked here.
        by_routes = 4 if connect and version is V6 else 5
        kopi.check(f"{what}, with a source", got == (1, 0) and pair.sink.recv(9) == b"s" and pair.by_routes() == by_routes, got)
        pair.sock.setsockopt(version.level, version.discover, 0)
        left = {"longer than a packet": (b"x" * (version.longest + 28), b"", 0), "MSG_CONFIRM": (b"x", b"", MSG_CONFIRM),
                "TOS": (b"x", version.control(version.tos, struct.pack("=i", 8)), 0)}
        for kind, (data, control, flags) in left.items():
            got = sendmsg(pair.sock, data, name, control, flags)
            kopi.check(f"{what}, {kind}: UDP sends it", got == (len(data), 0) and pair.sink.recv(2000) == data
                       and pair.by_routes() == by_routes, got)
        pair.close()


def names_of(version, name):
    """Addresses of all kinds, of which `name` is one that answers."""
    if version is MAPPED:
        return [b"", name, *names_of(V6, name), *(kopi.pack_address(f"::ffff:{address}", 9) for address in (
            "0.0.0.0", "255.255.255.255", "224.0.0.7", "203.0.113.9", "127.0.0.1")), kopi.pack_address(f"::ffff:{FAR}", 0)]
    if version is V4:
        return [b"", name, name[:8], name + bytes(12), kopi.pack_address("::1", 9), kopi.pack_address("0.0.0.0", 9),
                kopi.pack_address(FAR, 0), kopi.pack_address("255.255.255.255", 9), kopi.pack_address("224.0.0.7", 9),
                kopi.pack_address("203.0.113.9", 9), bytes(2) + name[2:], b"\xff\xff" + name[2:]]
    with namespace("host"):
        device = socket.if_nametoindex("eth0")
    near = [kopi.pack_address("fe80::9", 9, 0, scope) for scope in (0, device, 99)]
    scoped = [name[:24] + struct.pack("=I", scope) for scope in (device, 99)]
    return near + scoped + [
        b"", name, name[:8], name[:24], name[:27], name + bytes(8), name[:4] + b"\0\1\2\3" + name[8:],
        kopi.pack_address(FAR, 9), kopi.pack_address("::ffff:" + FAR, 9), kopi.pack_address("::", 9),
        kopi.pack_address(version.far, 0), kopi.pack_address("ff02::7", 9, 0, device), kopi.pack_address("ff02::7", 9),
        kopi.pack_address("3fff::9", 9), bytes(2) + name[2:], b"\xff\xff" + name[2:]]


def wrong_ones(version):
    """Random names, control messages and flags have the result of a UDP socket."""
    pairs = [Pair(version, plain=True), Pair(version)]
    for pair in pairs:
        # Room for all that the device hasn't sent yet, which is a matter of time.
        pair.sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 28)
    chance = random.Random(5)
    names = names_of(version, pairs[0].name)
    with namespace("host"):
        device = socket.if_nametoindex("eth0")
    whole = 16 + len(version.info(version.far))
    heads = [struct.pack("=Qii", length, level, kind) for length in (0, 16, 24, whole - 1, whole, whole + 1, 1 << 40)
             for level in (0, 1, 41) for kind in (version.source, version.tos)]
    # As they should be, more often than by chance.
    heads += [struct.pack("=Qii", whole, version.level, version.source)] * 10
    sources_of_ipv4 = ("0.0.0.0", V4.near, FAR, "127.0.0.1")
    sources = sources_of_ipv4 if version is V4 else ("::", V6.near, V6.far, "::1", "fe80::1")
    if version is MAPPED:
        sources = ("::", V6.near, *(f"::ffff:{source}" for source in sources_of_ipv4))
    infos = [version.info(source, index) for index in (0, device, -1, 99) for source in sources]
    differ = []
    for number in range(MESSAGES):
        name = chance.choice((pairs[0].name, *names))
        control = b""
        if chance.random() < 0.7:
            control = chance.choice(heads) + chance.choice(infos) + bytes(chance.choice((0, 0, 4, 4, 8, 100)))
            control = control[:chance.choice((len(control), len(control), whole - 1, whole, whole + 2, 12))]
        flags = chance.choice((0, 0, socket.MSG_DONTWAIT, 0x4000, MSG_CONFIRM, socket.MSG_OOB, 1 << 18, 1 << 30))
        size = chance.choice((0, 1, 64, version.longest, version.longest + 1, 2048, 2049, 65507, 65508, 70000))
        said = [sendmsg(pair.sock, bytes(size), name, control, flags) for pair in pairs]
        if said[0] != said[1]:
            differ.append((number, name.hex(), control.hex(), flags, size, said))
    kopi.check(f"{MESSAGES} messages of all kinds have the result of a UDP socket, {version.name}", not differ, differ[:3])
    kopi.check("some of them went by routes", MESSAGES // 150 < pairs[1].by_routes() < MESSAGES, pairs[1].by_routes())
    for pair in pairs:
        pair.close()


def policies_end(version):
    """An IPsec policy that lets datagrams pass as they are ends, and one that blocks them is left: no route that was
    remembered goes on."""
    pairs = [Pair(version, plain=True), Pair(version)]
    to = f"dir out dst {version.far.removeprefix('::ffff:')}"
    with namespace("host"):
        sh(f"ip xfrm policy add {to} action block priority 10")
        sh(f"ip xfrm policy add {to} proto udp action allow priority 1")
        before = [[sendmsg(pair.sock, b"x", pair.name) for _ in range(3)] for pair in pairs]
        sh(f"ip xfrm policy del {to} proto udp")
        after = [[sendmsg(pair.sock, b"x", pair.name) for _ in range(3)] for pair in pairs]
        sh(f"ip xfrm policy del {to}")
    kopi.check(f"{version.name}: a policy that let datagrams pass ends, for a flow as for a UDP socket",
               before == [[(1, 0)] * 3] * 2 and after[0] == after[1] and (1, 0) not in after[1]
               and pairs[1].by_routes() > 0, (before, after))
    for pair in pairs:
        pair.close()


def memory_of_all_kinds():
    """Data in memory that isn't there, or only later."""
    pair = Pair()
    nowhere = [sendmsg(pair.sock, (address, 100), pair.name) for address in (1, 1 << 46, (1 << 64) - 4096)]
    kopi.check("memory that isn't mapped: EFAULT", nowhere == [(-1, errno.EFAULT)] * 3, nowhere)
    with mmap.mmap(-1, 8192) as fresh:
        edge = ctypes.addressof(ctypes.c_char.from_buffer(fresh)) + 4000
        sent = sendmsg(pair.sock, (edge, 200), pair.name)
        kopi.check("pages that nobody has touched", sent == (200, 0) and pair.sink.recv(300) == bytes(200), sent)
        fresh_until = LIBC.mprotect(ctypes.c_void_p(edge + 96), 4096, 0)
        sent = sendmsg(pair.sock, (edge, 200), pair.name)
        kopi.check("half of it can't be read: EFAULT", fresh_until == 0 and sent == (-1, errno.EFAULT), sent)
        LIBC.mprotect(ctypes.c_void_p(edge + 96), 4096, 3)
        before = pair.by_routes()
        sent = sendmsg(pair.sock, (edge, 200), pair.name)
        kopi.check("and then by routes", sent == (200, 0) and pair.sink.recv(300) == bytes(200)
                   and pair.by_routes() == before + 1, (sent, pair.by_routes() - before))
    kopi.check("nothing of the others arrived", not pair.channel.unaccounted() and no_more(pair.sink))
    pair.close()


def no_more(sock):
    """Whether nothing has come."""
    sock.setblocking(False)
    try:
        return not sock.recv(100)
    except BlockingIOError:
        return True
    finally:
        sock.settimeout(20)


def a_page_that_waits(kind):
    """The attack: a message whose page comes when the attacker likes holds nothing that others need."""
    pair = Pair(kind=kind)
    seen = {}

    def others():
        pair.channel.send(0, b"by the ring", pair.sink.getsockname())
        pair.channel.bell(kopi.BELL_TX | kopi.BELL_SEND)
        seen["ring"] = pair.sink.recv(100)
        seen["call"] = sendmsg(pair.sock, b"another", pair.name), pair.sink.recv(100)
        with namespace("host"):
            seen["shown"] = json.loads(subprocess.run(["kopictl", "ps", "--json"], check=True, capture_output=True).stdout)
            seen["rules"] = subprocess.run("kopictl rule add local-port 9 deny && kopictl rule flush", shell=True,
                                           check=False, capture_output=True, text=True)

    with SlowCall(lambda page: sendmsg(pair.sock, (page.value, 100), pair.name)) as slow:
        is_quick, took = kopi.quick(20, others)
    kopi.check("the ring sends meanwhile", seen["ring"] == b"by the ring", seen["ring"])
    kopi.check("so does sendmsg()", seen["call"] == ((7, 0), b"another"), seen["call"])
    kopi.check("kopictl shows the flow, and changes rules", len(seen["shown"]) == 1 and seen["rules"].returncode == 0, seen)
    kopi.check("all that within seconds", is_quick, took)
    kopi.check("then it is sent", slow.got == (100, 0) and pair.sink.recv(200) == bytes(100), slow.got)
    pair.close()


def refused():
    """What a rule or a filter refuses."""
    pair = Pair()
    sendmsg(pair.sock, b"a", pair.name)
    port = pair.sink.getsockname()[1]
    with namespace("host"):
        run_nft(f"table ip no {{\nchain o {{\ntype filter hook output priority 0\nudp dport {port} drop\n}}\n}}")
        got = sendmsg(pair.sock, b"b", pair.name)
        sh("nsenter --net=/run/netns/host nft delete table ip no")
        kopi.check("nft drops it: EPERM, which is counted", got == (-1, errno.EPERM)
                   and pair.channel.stats()["tx_drop_denied"] == 1 and not pair.channel.unaccounted(), got)
        sh(f"nsenter --net=/run/netns/host kopictl rule add direction out remote-port {port} deny")
        got = sendmsg(pair.sock, b"c", pair.name)
        kopi.check("a rule: EACCES", got == (-1, errno.EACCES), got)
        sh("nsenter --net=/run/netns/host kopictl rule flush")
    kopi.check("and then it may send", sendmsg(pair.sock, b"d", pair.name) == (1, 0)
               and [pair.sink.recv(9) for _ in range(2)] == [b"a", b"d"])
    pair.close()


def a_hook_says_again():
    """A mark of nft's leads to an IPsec policy whose keys are not there yet: EAGAIN, after each hook was asked once.
    That is a drop, and counted, whatever kind of doorbell."""
    seen = []
    bells = {"a ring": kopi.BELL_TX, "a doorbell that sends": kopi.BELL_TX | kopi.BELL_SEND}
    with namespace("host"):
        sh("sysctl -qw net.core.xfrm_larval_drop=0")
        sh(f"ip xfrm policy add dir out dst {FAR} mark 7 tmpl src {V4.near} dst {FAR} proto esp mode transport")
        for how in ("a UDP socket", "sendmsg()", *bells):
            run_nft("table ip again {\ncounter asked { }\nchain o {\ntype route hook output priority 0\n"
                    f"ip daddr {FAR} udp dport 9 counter name asked meta mark set 7\n}}\n}}")
            pair = Pair(plain=how == "a UDP socket")
            if how in bells:
                pair.channel.send(0, b"x", (FAR, 9))
                pair.channel.bell(bells[how])
                got = (-1, pair.channel.completion.pop()[4])
            else:
                got = sendmsg(pair.sock, b"x", kopi.pack_address(FAR, 9), flags=socket.MSG_DONTWAIT)
            seen.append((got, json.loads(sh("nft -j list counter ip again asked"))["nftables"][1]["counter"]["packets"]))
            if how != "a UDP socket":
                stats = pair.channel.stats()
                kopi.check(f"a hook says EAGAIN: that is counted, {how}", not pair.channel.unaccounted()
                           and stats["tx_taken"] == stats["tx_drop_no_buffer"] == 1, stats)
            pair.close()
            sh("nft delete table ip again")
        sh("ip xfrm policy flush; sysctl -qw net.core.xfrm_larval_drop=1")
    kopi.check("IPsec without keys, by a mark of nft's: EAGAIN, and hooks are asked once, as by a UDP socket",
               seen == [((-1, errno.EAGAIN), 1)] * 4, seen)


def corked():
    """MSG_MORE takes the flow off the routes, and what was begun stays whole."""
    pair = Pair(connect=True)
    sendmsg(pair.sock, b"a")
    begun = sendmsg(pair.sock, b"b", flags=MSG_MORE)
    kopi.check("MSG_MORE: the rest belongs to it", begun == (1, 0) and sendmsg(pair.sock, b"c") == (1, 0)
               and [pair.sink.recv(9) for _ in range(2)] == [b"a", b"bc"] and pair.by_routes() == 1, begun)
    pair.close()


def full(version, far):
    """A full send buffer: the results and the counters of a UDP socket."""
    sh("nsenter --net=/run/netns/host bash -c 'ip link add hold type dummy; ip addr add 198.18.0.1/24 dev hold; "
       "ip addr add 2001:db8:5::1/64 dev hold nodad; "
       "ip link set hold up; tc qdisc add dev hold root tbf rate 1kbit burst 1700 limit 1000000; "
       f"ip neigh add {far} lladdr 2:2:2:2:2:2 dev hold'")
    seen = []
    name = kopi.pack_address(far, 9)
    for plain in (True, False):
        # Packets of others may come between.
        for attempt in range(4):
            pair = Pair(version, plain=plain)
            LIBC.setsockopt(pair.sock.fileno(), socket.SOL_SOCKET, socket.SO_SNDBUF, struct.pack("=i", 4608), 4)
            before = counted(version)
            said = [sendmsg(pair.sock, bytes(500), name, flags=socket.MSG_DONTWAIT) for _ in range(40)]
            sent, refused_ones = said.count((500, 0)), said.count((-1, errno.EAGAIN))
            told = [after - was for was, after in zip(before, counted(version))]
            if told[3] == 0 or attempt == 3:
                break
            pair.close()
        # How many there is room for depends on what the qdisc has let go.
        seen.append((sent + refused_ones == 40 and refused_ones > 10, told == [sent, refused_ones, refused_ones, 0], told))
        by_routes = plain or pair.by_routes()
        pair.close()
    sh("nsenter --net=/run/netns/host ip link del hold")
    kopi.check(f"a full send buffer: EAGAIN, each counted once, as of a UDP socket, {version.name}",
               all(each[:2] == (True, True) for each in seen) and by_routes > 3, (seen, by_routes))


def counted(version):
    """UDP's datagrams, and those for which there was no room; packets that IP discarded; and how many more datagrams
    than packets there were."""
    with namespace("host"):
        if version is V6:
            values = kernel_counters.of_ipv6()
            names = ("Udp6OutDatagrams", "Udp6SndbufErrors", "Ip6OutDiscards")
        else:
            values = kernel_counters.table()
            names = ("Udp:OutDatagrams", "Udp:SndbufErrors", "Ip:OutDiscards")
    requests = values["Ip6OutRequests" if version is V6 else "Ip:OutRequests"]
    return [*(values[name] for name in names), values[names[0]] - requests]


def threads_at_once(kind):
    """Threads that send by sendmsg() and by the ring: each one's datagrams arrive once, in order."""
    pair = Pair(kind=kind)
    pair.sink.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
    count, senders = 400, 4

    def send(who):
        for turn in range(count):
            kopi.expect(sendmsg(pair.sock, struct.pack("=II", who, turn), pair.name) == (8, 0), "it is sent")

    def ring():
        for turn in range(count):
            pair.channel.send(turn % 8, struct.pack("=II", senders, turn), pair.sink.getsockname())
            pair.channel.bell(kopi.BELL_TX | kopi.BELL_SEND)
            kopi.expect(pair.channel.completion.pop()[4] == 0, "the ring sends it")

    threads = [threading.Thread(target=send, args=(who,)) for who in range(senders)] + [threading.Thread(target=ring)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = [struct.unpack("=II", pair.sink.recv(9)) for _ in range(count * (senders + 1))]
    orders = [[turn for who, turn in got if who == each] for each in range(senders + 1)]
    kopi.check("threads: all arrive once, each one's in order", orders == [list(range(count))] * (senders + 1))
    kopi.check("counters agree", not pair.channel.unaccounted() and pair.by_routes() > count, pair.channel.stats())
    pair.close()


def closes_meanwhile():
    """The flow is closed, its namespace's device goes down, and a child sends, while threads send."""
    for _ in range(20):
        pair = Pair()
        stop = threading.Event()

        def send(pair=pair, stop=stop):
            while not stop.is_set():
                sendmsg(pair.sock, b"x", pair.name)

        thread = threading.Thread(target=send)
        thread.start()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if not child:
            for _ in range(50):
                sendmsg(pair.sock, b"y", pair.name)
            os._exit(0)
        sh("nsenter --net=/run/netns/host ip route add 192.0.2.2 dev eth0 mtu 1400; "
           "nsenter --net=/run/netns/host ip route del 192.0.2.2")
        os.waitpid(child, 0)
        stop.set()
        thread.join()
        pair.close()
    kopi.check("flows that end while others send", True)


for ip_version in (V4, V6):
    sh(f"ip netns exec host ping -q -c1 -w20 {ip_version.far}")
    plain_ones(ip_version)
    wrong_ones(ip_version)
    policies_end(ip_version)
plain_ones(MAPPED)
wrong_ones(MAPPED)
policies_end(MAPPED)
for each_kind in KINDS.values():
    a_page_that_waits(each_kind)
    threads_at_once(each_kind)
for case in (memory_of_all_kinds, refused, a_hook_says_again, corked, lambda: full(V4, "198.18.0.2"), lambda: full(V6, "2001:db8:5::2"),
             closes_meanwhile):
    case()
kopi.finish()
