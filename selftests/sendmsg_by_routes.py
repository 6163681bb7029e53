#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""sendmsg() of a flow on a channel that only sends: the channel's routes send what is plain, with the results of a
UDP socket, whatever the message, its memory, the rules and other threads do meanwhile."""

import ctypes
import errno
import json
import mmap
import os
import random
import socket
import struct
import subprocess
import threading
import time

import kopi
from equivalence import namespace, run_nft, sh
from linux import IP_MTU_DISCOVER, IP_PKTINFO, IP_TOS
from slow import SlowPage

NEAR, FAR, PORT = "192.0.2.1", "192.0.2.2", 7000
MSG_MORE, MSG_CONFIRM, MSG_ZEROCOPY = 0x8000, 0x800, 0x4000000
LIBC = ctypes.CDLL(None, use_errno=True)
MESSAGES = 3000


class Header(ctypes.Structure):
    """struct msghdr."""
    _fields_ = [("name", ctypes.c_void_p), ("name_len", ctypes.c_size_t), ("pieces", ctypes.c_void_p),
                ("count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_len", ctypes.c_size_t),
                ("flags", ctypes.c_size_t)]


def sendmsg(sock, data, name=b"", control=b"", flags=0):
    """The result of the system call, and its errno. `data` is bytes, or an address and a length."""
    at, size = data if isinstance(data, tuple) else (ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value, len(data))
    piece = (ctypes.c_size_t * 2)(at, size)
    names, controls = ctypes.create_string_buffer(name, len(name) + 1), ctypes.create_string_buffer(control, len(control) + 1)
    header = Header(ctypes.addressof(names) if name else None, len(name), ctypes.addressof(piece), 1,
                    ctypes.addressof(controls) if control else None, len(control), 0)
    ctypes.set_errno(0)
    sent = LIBC.sendmsg(sock.fileno(), ctypes.byref(header), flags)
    return sent, ctypes.get_errno() if sent < 0 else 0


class Pair:
    """A sender in the host's namespace, and where it sends to."""

    def __init__(self, plain=False, connect=False):
        with namespace("peer"):
            self.sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.sink.bind((FAR, 0))
            self.sink.settimeout(20)
        self.name = kopi.pack_address(*self.sink.getsockname())
        with namespace("host"):
            self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM) if plain else kopi.ip_flow()
            self.sock.bind((NEAR, 0))
            if connect:
                self.sock.connect(self.sink.getsockname())
            self.channel = None if plain else kopi.Channel(self.sock, flags=kopi.TX_ONLY)

    def by_routes(self):
        """Datagrams that the channel has sent."""
        return self.channel.stats()["tx_packets"]

    def close(self):
        """Ends it."""
        self.sink.close()
        self.sock.close()
        if self.channel:
            self.channel.region.close()


def plain_ones():
    for connect in (False, True):
        pair = Pair(connect=connect)
        name = b"" if connect else pair.name
        for size in (0, 1, 100, 1472):
            data = random.randbytes(size)
            kopi.expect(sendmsg(pair.sock, data, name) == (size, 0) and pair.sink.recv(2000) == data, f"{size} bytes")
        what = "connected" if connect else "by address"
        kopi.check(f"{what}: the channel's routes send them", pair.by_routes() == 4 and not pair.channel.unaccounted(),
                   pair.channel.stats())
        source = struct.pack("=QiiI4s4x", 28, socket.IPPROTO_IP, IP_PKTINFO, 0, socket.inet_aton(NEAR))
        kopi.check(f"{what}, with a source", sendmsg(pair.sock, b"s", name, source) == (1, 0)
                   and pair.sink.recv(9) == b"s" and pair.by_routes() == 5)
        pair.sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, 0)
        left = {"longer than a packet": (b"x" * 1500, b"", 0), "MSG_CONFIRM": (b"x", b"", MSG_CONFIRM),
                "TOS": (b"x", struct.pack("=QiiI4x", 20, socket.IPPROTO_IP, IP_TOS, 8), 0)}
        for kind, (data, control, flags) in left.items():
            got = sendmsg(pair.sock, data, name, control, flags)
            kopi.check(f"{what}, {kind}: UDP sends it", got == (len(data), 0) and pair.sink.recv(2000) == data
                       and pair.by_routes() == 5, got)
        pair.close()


def wrong_ones():
    """Random names, control messages and flags have the result of a UDP socket."""
    pairs = [Pair(plain=True), Pair()]
    chance = random.Random(5)
    names = [b"", pairs[0].name, pairs[0].name[:8], pairs[0].name + bytes(12), kopi.pack_address("::1", 9),
             kopi.pack_address("0.0.0.0", 9), kopi.pack_address(FAR, 0), kopi.pack_address("255.255.255.255", 9),
             kopi.pack_address("224.0.0.7", 9), kopi.pack_address("203.0.113.9", 9), bytes(2) + pairs[0].name[2:],
             b"\xff\xff" + pairs[0].name[2:]]
    heads = [struct.pack("=Qii", length, level, kind) for length in (0, 16, 24, 27, 28, 29, 1 << 40)
             for level in (0, 1, 41) for kind in (IP_PKTINFO, IP_TOS)]
    infos = [struct.pack("=i4s4s", device, socket.inet_aton(source), bytes(4)) for device in (0, 1, -1, 99)
             for source in ("0.0.0.0", NEAR, FAR, "127.0.0.1")]
    differ = []
    for number in range(MESSAGES):
        name = chance.choice(names)
        control = b""
        if chance.random() < 0.7:
            control = chance.choice(heads) + chance.choice(infos) + bytes(chance.choice((0, 0, 4, 4, 8, 100)))
            control = control[:chance.choice((len(control), len(control), 27, 28, 30, 12))]
        flags = chance.choice((0, 0, socket.MSG_DONTWAIT, 0x4000, MSG_CONFIRM, socket.MSG_OOB, 1 << 18, 1 << 30))
        size = chance.choice((0, 1, 64, 1472, 1473, 2048, 2049, 65507, 65508, 70000))
        said = [sendmsg(pair.sock, bytes(size), name, control, flags) for pair in pairs]
        if said[0] != said[1]:
            differ.append((number, name.hex(), control.hex(), flags, size, said))
    kopi.check(f"{MESSAGES} messages of all kinds have the result of a UDP socket", not differ, differ[:3])
    kopi.check("some of them went by routes", MESSAGES // 150 < pairs[1].by_routes() < MESSAGES, pairs[1].by_routes())
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


def a_page_that_waits():
    """The attack: a message whose page comes when the attacker likes holds nothing that others need."""
    pair = Pair()
    with SlowPage() as page:
        got = []
        thread = threading.Thread(target=lambda: got.append(sendmsg(pair.sock, (page.address.value, 100), pair.name)))
        thread.start()
        page.wait_for_fault()
        start = time.monotonic()
        pair.channel.send(0, b"by the ring", pair.sink.getsockname())
        pair.channel.bell(kopi.BELL_TX | kopi.BELL_SEND)
        kopi.check("the ring sends meanwhile", pair.sink.recv(100) == b"by the ring")
        kopi.check("so does sendmsg()", sendmsg(pair.sock, b"another", pair.name) == (7, 0)
                   and pair.sink.recv(100) == b"another")
        with namespace("host"):
            shown = json.loads(subprocess.run(["kopictl", "ps", "--json"], check=True, capture_output=True).stdout)
            done = subprocess.run("kopictl rule add local-port 9 deny && kopictl rule flush", shell=True, check=False,
                                  capture_output=True, text=True)
        kopi.check("kopictl shows the flow, and changes rules", len(shown) == 1 and done.returncode == 0, (shown, done.stderr))
        kopi.check("all that within seconds", time.monotonic() - start < 20, time.monotonic() - start)
        page.resolve()
        thread.join()
        kopi.check("then it is sent", got == [(100, 0)] and pair.sink.recv(200) == bytes(100), got)
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


def corked():
    """MSG_MORE takes the flow off the routes, and what was begun stays whole."""
    pair = Pair(connect=True)
    sendmsg(pair.sock, b"a")
    begun = sendmsg(pair.sock, b"b", flags=MSG_MORE)
    kopi.check("MSG_MORE: the rest belongs to it", begun == (1, 0) and sendmsg(pair.sock, b"c") == (1, 0)
               and [pair.sink.recv(9) for _ in range(2)] == [b"a", b"bc"] and pair.by_routes() == 1, begun)
    pair.close()


def full():
    """A full send buffer: the results and the counters of a UDP socket."""
    sh("nsenter --net=/run/netns/host bash -c 'ip link add hold type dummy; ip addr add 198.18.0.1/24 dev hold; "
       "ip link set hold up; tc qdisc add dev hold root tbf rate 1kbit burst 1700 limit 1000000; "
       "ip neigh add 198.18.0.2 lladdr 2:2:2:2:2:2 dev hold'")
    seen = []
    name = kopi.pack_address("198.18.0.2", 9)
    for plain in (True, False):
        pair = Pair(plain=plain)
        LIBC.setsockopt(pair.sock.fileno(), socket.SOL_SOCKET, socket.SO_SNDBUF, struct.pack("=i", 4608), 4)
        before = counted()
        said = [sendmsg(pair.sock, bytes(500), name, flags=socket.MSG_DONTWAIT) for _ in range(40)]
        sent, refused_ones = said.count((500, 0)), said.count((-1, errno.EAGAIN))
        told = [after - was for was, after in zip(before, counted())]
        # How many there is room for depends on what the qdisc has let go.
        seen.append((sent + refused_ones == 40 and refused_ones > 10, told == [sent, refused_ones, refused_ones], told))
        by_routes = plain or pair.by_routes()
        pair.close()
    sh("nsenter --net=/run/netns/host ip link del hold")
    kopi.check("a full send buffer: EAGAIN, each counted once, as of a UDP socket",
               all(each[:2] == (True, True) for each in seen) and by_routes > 3, (seen, by_routes))


def counted():
    """UDP's datagrams, and those for which there was no room; packets that IP discarded."""
    with namespace("host"), open("/proc/net/snmp", encoding="ascii") as file:
        lines = file.read().splitlines()
    values = {}
    for names, numbers in zip(lines[::2], lines[1::2]):
        kind, *names = names.split()
        values |= {kind + name: int(number) for name, number in zip(names, numbers.split()[1:])}
    return [values[name] for name in ("Udp:OutDatagrams", "Udp:SndbufErrors", "Ip:OutDiscards")]


def threads_at_once():
    """Threads that send by sendmsg() and by the ring: each one's datagrams arrive once, in order."""
    pair = Pair()
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


sh(f"ip netns exec host ping -q -c1 -w20 {FAR}")
for case in (plain_ones, wrong_ones, memory_of_all_kinds, a_page_that_waits, refused, corked, full,
             threads_at_once, closes_meanwhile):
    case()
kopi.finish()
