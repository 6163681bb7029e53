# SPDX-License-Identifier: GPL-2.0
"""The same traffic under one policy, by a UDP socket and by a KOPI flow: nothing may differ.

An exchange sends datagrams from a subject in the namespace `host` to an ordinary UDP socket in
`peer`, and then back. What became of each is written down: the error that the sender got, what
arrived, in which order, from which address, with which TOS and TTL, and what the counters of the
policy and of the stack say. It is done with a UDP socket as the subject and with a KOPI flow, both
without trains and with them (UDP_SEGMENT and UDP_GRO for the UDP socket), over IPv4 and IPv6.

A file of policies ends with `run(AREA, [Policy(...), ...])`. A policy's `setup` is called in the
namespace `host` before each exchange; what it undoes, it gives to `undo()`.
"""

import collections
import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import pwd
import select
import socket
import struct
import subprocess
import sys
import time
import traceback
from typing import Callable

import kopi
from links import inside

SUBJECT_PORT, PEER_PORT = 7000, 7001
SENTINEL_PORTS = {"host": 9000, "peer": 9001}
ADDRESSES = {4: {"host": "192.0.2.1", "peer": "192.0.2.2"},
             6: {"host": "2001:db8::1", "peer": "2001:db8::2"}}
SECOND = {4: "192.0.2.77", 6: "2001:db8::77"}
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
# Small, as large as the MTU allows, and in bulk, so that trains form.
MTU = {4: 1472, 6: 1452}
PHASES = {4: ((64, 8), (MTU[4], 8), (1000, 24)), 6: ((64, 8), (MTU[6], 8), (1000, 24))}
COUNT = 40
# Datagrams that arrive; ANY: some, but not all; WHATEVER: it isn't said how many.
ALL, NONE, ANY, WHATEVER = COUNT, 0, -1, -2
PATIENCE = 30.0
UDP_SEGMENT, UDP_GRO = 103, 104
SO_RCVBUFFORCE, SO_TXTIME = 33, 61
# <linux/in.h>, <linux/in6.h>: Python doesn't name all of them.
IP_RECVTTL, IP_RECVTOS, IP_PKTINFO = 12, 13, 8
IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS, IPV6_RECVPKTINFO = 51, 66, 49
IPV6_HOPLIMIT, IPV6_TCLASS, IPV6_PKTINFO, IP_TTL, IP_TOS = 52, 67, 50, 2, 1

_undo = []
# The IP version of the exchange, for setups that are costly.
current = {"family": 4}


def undo(function, *arguments):
    """Has the function called when the policy's exchange is over, last come first."""
    _undo.append((function, arguments))


# What only a shell understands.
SHELL = frozenset("|&;<>()$`\\\"'*?[]#~{}!\n")


def sh(command, check=True):
    """Runs a command line in the current namespace, and gives its output."""
    # A shell takes longer to start than most of the commands.
    words = ["bash", "-c", command] if SHELL & set(command) else command.split()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stderr or done.stdout}")
    return done.stdout


def namespace(name):
    """Runs the block in a network namespace."""
    return inside(f"/run/netns/{name}")


_nftables = ctypes.CDLL("libnftables.so.1")
_nftables.nft_ctx_new.restype = ctypes.c_void_p
_nftables.nft_ctx_get_output_buffer.restype = ctypes.c_char_p
_nftables.nft_ctx_get_error_buffer.restype = ctypes.c_char_p
NFT_JSON = 1 << 4


def run_nft(commands, as_json=False):
    """Runs nft's commands in this namespace, by nft's own library; gives the output."""
    context = ctypes.c_void_p(_nftables.nft_ctx_new(0))
    try:
        _nftables.nft_ctx_buffer_output(context)
        _nftables.nft_ctx_buffer_error(context)
        if as_json:
            _nftables.nft_ctx_output_set_flags(context, NFT_JSON)
        if _nftables.nft_run_cmd_from_buffer(context, commands.encode()):
            raise RuntimeError(f"nft: {_nftables.nft_ctx_get_error_buffer(context).decode()}")
        return _nftables.nft_ctx_get_output_buffer(context).decode()
    finally:
        _nftables.nft_ctx_free(context)


def nft(rules, flush=True):
    """Loads a ruleset in this namespace until the exchange is over."""
    if flush:
        undo(run_nft, "flush ruleset")
    run_nft(rules)


def chain(hook, *rules):
    """A chain of a ruleset: chain("filter hook output priority 0", RULE...)."""
    name = "".join(c if c.isalnum() else "_" for c in hook)
    return "\n".join([f"chain {name} {{", f"type {hook}; policy accept;", *rules, "}"])


RTF_LOCAL = 0x80000000


def await_address(address):
    """Waits until an IPv6 address that was added is this namespace's own: its local route, without
    which nothing is received, is made later, by a worker of the kernel."""
    wanted = socket.inet_pton(socket.AF_INET6, address).hex()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with open("/proc/net/ipv6_route", encoding="ascii") as file:
            routes = map(str.split, file)
            if any(route[0] == wanted and int(route[8], 16) & RTF_LOCAL for route in routes):
                return
        time.sleep(0.01)
    raise RuntimeError(f"{address} is not local")


def second_address():
    """A second address of the host, SECOND, until the exchange is over."""
    for version, size in ((4, 24), (6, 64)):
        address = f"{SECOND[version]}/{size} dev eth0"
        sh(f"ip addr add {address}{' nodad' if version == 6 else ''}")
        undo(sh, f"ip addr del {address}")
    await_address(SECOND[6])


def nft_table(*parts, family="inet"):
    """A setup that loads one table `t` of these sets, chains and the like."""
    return lambda: nft("\n".join([f"table {family} t {{", *parts, "}"]))


def do(*commands, undo_with=()):
    """A setup that runs command lines; those of `undo_with` undo it."""
    def setup():
        for command in undo_with:
            undo(sh, command, False)
        for command in commands:
            sh(command)
    return setup


def together(*setups):
    """A setup of several."""
    def setup():
        for each in setups:
            each()
    return setup


# What is looked at after the datagrams went out, and again after they came in.

def nft_counters():
    """Every counter and quota of the ruleset, in its order: (packets, bytes)."""
    found = []

    def walk(node):
        if isinstance(node, dict):
            if "packets" in node and "bytes" in node:
                found.append((node["packets"], node["bytes"]))
            elif "quota" in node and isinstance(node["quota"], dict):
                found.append(("quota", node["quota"].get("used"), node["quota"].get("used_unit")))
            for value in node.values():
                walk(value)
        elif isinstance(node, list):
            for value in node:
                walk(value)
    walk(json.loads(run_nft("list ruleset", True)))
    return found


def conntrack():
    """The entries of the exchange: what `conntrack -L` shows, without what changes by itself."""
    lines = []
    for family in ("ipv4", "ipv6"):
        for line in sh(f"conntrack -L -f {family} -p udp -o extended,labels 2>/dev/null").splitlines():
            if any(f"={port}" in line for port in SENTINEL_PORTS.values()):
                continue
            fields = line.split()
            # Not the protocol's number, the time left, and [ASSURED], which a stream is when it is
            # two seconds old.
            lines.append(" ".join(each for each in fields[:3] + fields[5:] if each != "[ASSURED]"))
    return sorted(lines)


SNMP = ("InDatagrams", "NoPorts", "InErrors", "OutDatagrams", "RcvbufErrors", "SndbufErrors",
        "InCsumErrors", "IgnoredMulti", "MemErrors")


def snmp():
    """The namespace's UDP counters, of IPv4 and IPv6."""
    counters = {}
    with open("/proc/net/snmp", encoding="ascii") as file:
        lines = [line.split() for line in file]
    for names, values in zip(lines[::2], lines[1::2]):
        if names[0] == "Udp:":
            counters.update(("Udp" + name, int(value))
                            for name, value in zip(names[1:], values[1:]) if name in SNMP)
    with open("/proc/net/snmp6", encoding="ascii") as file:
        for line in file:
            name, value = line.split()
            if name[:4] == "Udp6" and name[4:] in SNMP:
                counters[name] = int(value)
    return counters


def payload(number, size):
    """The datagram of that number: no two are alike in any part."""
    block = struct.pack(">I", number) + bytes((number * 7 + i) & 0xFF for i in range(252))
    return (block * (size // len(block) + 1))[:size]


def checksum(data):
    """The Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def errno_name(number):
    """EPERM for 1."""
    return errno.errorcode.get(number, str(number)) if number else "ok"


def tells(function):
    """The name of the errno that a call ends with."""
    try:
        function()
    except OSError as error:
        return errno_name(error.errno)
    return "ok"


@dataclasses.dataclass
class Datagram:
    """One that arrived: all that its receiver can know of it."""
    number: int
    whole: bool
    source: tuple
    destination: str
    tos: int
    ttl: int
    # By which it came; and its mark, if the receiver has SO_RCVMARK.
    device: str
    mark: int


def parse(data, source, *rest):
    """Checks a datagram's content."""
    number = struct.unpack_from(">I", data)[0] if len(data) >= 4 else -1
    return Datagram(number, data == payload(number & 0xFFFF, len(data)),
                    (source[0].partition("%")[0], source[1]), *rest)


def arrived(way, **fields):
    """A check that what arrived is as said: arrived("out", ttl=9)."""
    def check(seen):
        return [f"{way}: datagram {each.number} has {name} {getattr(each, name)}, not {value}"
                for each in seen.get(way, ()) for name, value in fields.items()
                if getattr(each, name) != value][:3]
    return check


class UdpSubject:
    """An ordinary UDP socket, also used for the peer."""

    kind = "UDP"

    def __init__(self, family, trains=False):
        self.family, self.trains = family, trains
        self.sock = socket.socket(FAMILIES[family], socket.SOCK_DGRAM)
        self.prepare()
        if trains:
            self.sock.setsockopt(socket.SOL_UDP, UDP_GRO, 1)

    def prepare(self):
        """What both kinds of subject have."""
        self.sock.setblocking(False)
        self.devices = dict(socket.if_nameindex())
        self.mapped = False
        if self.family == 4:
            names = (IP_RECVTTL, IP_RECVTOS, IP_PKTINFO)
            level = socket.IPPROTO_IP
        else:
            names = (IPV6_RECVHOPLIMIT, IPV6_RECVTCLASS, IPV6_RECVPKTINFO)
            level = socket.IPPROTO_IPV6
        for name in names:
            self.sock.setsockopt(level, name, 1)
        # Room for all, as a ring has.
        euid = os.geteuid()
        os.seteuid(0)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        os.seteuid(euid)

    def after_bind(self):
        """Nothing, or what a policy's `prepare` put here."""

    def close(self):
        self.sock.close()

    def bind(self, address):
        self.sock.bind(address)
        self.mapped = address[0].startswith("::ffff:")

    def connect(self, address):
        self.sock.connect(address)

    def _send_one(self, data, address, segment=0, meta=None):
        control = [(socket.SOL_UDP, UDP_SEGMENT, struct.pack("=H", segment))] if segment else []
        control += self.control(meta or {})
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                if address:
                    self.sock.sendmsg([data], control, 0, address)
                else:
                    self.sock.sendmsg([data], control)
                return 0
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return errno.EAGAIN
                select.select([], [self.sock], [], 0.1)
            except OSError as error:
                return error.errno

    def control(self, meta):
        """The control messages that say what a KOPI descriptor's metadata say."""
        # For IPv4 peers an IPv6 socket, too, heeds the options of IPv4 only.
        ip4 = self.family == 4 or self.mapped
        level = socket.IPPROTO_IP if ip4 else socket.IPPROTO_IPV6
        control = []
        for name, kind in (("tos", IP_TOS if ip4 else IPV6_TCLASS),
                           ("ttl", IP_TTL if ip4 else IPV6_HOPLIMIT)):
            if name in meta:
                control.append((level, kind, struct.pack("=i", meta[name])))
        if "mark" in meta:
            control.append((socket.SOL_SOCKET, socket.SO_MARK, struct.pack("=I", meta["mark"])))
        if "txtime" in meta:
            control.append((socket.SOL_SOCKET, SO_TXTIME, struct.pack("=Q", meta["txtime"])))
        if "local" in meta:
            address = kopi.pack_ip(meta["local"])[1]
            ifindex = struct.pack("=I", meta.get("ifindex", 0))
            control.append((level, IP_PKTINFO, ifindex + address + bytes(4)) if ip4 else
                           (level, IPV6_PKTINFO, address + ifindex))
        return control

    def send(self, data, address=None, trains=None, metas=None):
        """Sends datagrams; gives the errno of each."""
        if metas:
            return [self._send_one(each, address, 0, meta) for each, meta in zip(data, metas)]
        errors = []
        for run in trains_of(data) if trains or trains is None and self.trains else zip(data):
            segment = len(run[0]) if len(run) > 1 else 0
            errors += [self._send_one(b"".join(run), address, segment)] * len(run)
        return errors

    def receive(self):
        """All that has come."""
        found = []
        while True:
            try:
                data, control, _, source = self.sock.recvmsg(65536, 512)
            except BlockingIOError:
                return found
            except OSError:
                # A pending error; error() tells of those.
                continue
            destination, tos, ttl, segment, device, mark = "", None, None, 0, 0, 0
            for level, name, value in control:
                if level == socket.SOL_UDP:
                    segment = struct.unpack_from("=H", value)[0]
                elif (level, name) == (socket.IPPROTO_IP, IP_PKTINFO):
                    destination = socket.inet_ntoa(value[8:12])
                    device = struct.unpack_from("=i", value)[0]
                elif (level, name) == (socket.IPPROTO_IPV6, IPV6_PKTINFO):
                    destination = socket.inet_ntop(socket.AF_INET6, value[:16])
                    device = struct.unpack_from("=i", value, 16)[0]
                elif (level, name) == (socket.SOL_SOCKET, socket.SO_MARK):
                    mark = struct.unpack("=I", value)[0]
                elif (level, name) in ((socket.IPPROTO_IP, IP_TTL),
                                       (socket.IPPROTO_IPV6, IPV6_HOPLIMIT)):
                    ttl = struct.unpack("=i", value)[0]
                elif (level, name) in ((socket.IPPROTO_IP, IP_TOS),
                                       (socket.IPPROTO_IPV6, IPV6_TCLASS)):
                    tos = value[0]
            step = segment or len(data) or 1
            # One of no bytes is one, too.
            for at in range(0, len(data) or 1, step):
                found.append(parse(data[at:at + step], source, destination, tos, ttl,
                                   self.devices.get(device, device), mark))

    def error(self):
        """The socket's pending error."""
        return self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)

    def unaccounted(self):
        """Nothing, or what a KOPI flow's counters don't explain."""
        return ""


class KopiSubject(UdpSubject):
    """A KOPI flow with a channel of its own."""

    kind = "KOPI"
    FRAMES = 256

    def __init__(self, family, trains=False):
        # pylint: disable=super-init-not-called
        self.family, self.trains = family, trains
        self.sock = kopi.flow(0 if family == 4 else kopi.UDP6)
        self.prepare()
        self.channel = kopi.Channel(self.sock, flags=1 if trains else 0, frame_size=2048,
                                    frames=self.FRAMES, tx=128, completion=128, fill=128, rx=128)
        # The first half of the frames is for receiving.
        for number in range(128):
            self.channel.fill.push(self.channel.frame(number))
        self.sent = 0

    def close(self):
        self.channel.region.close()
        self.sock.close()

    def send(self, data, address=None, trains=None, metas=None):
        for number, each in enumerate(data):
            self.channel.send(128 + number, each, address,
                              struct.unpack_from("=I", self.info(), 8)[0],
                              metas and metas[number])
        self.sent += len(data)
        errors = {}
        watch = select.poll()
        watch.register(self.sock, select.POLLOUT | select.POLLWRBAND)
        deadline = time.monotonic() + PATIENCE
        while len(errors) < len(data):
            self.channel.bell()
            while (entry := self.channel.completion.pop()) is not None:
                frame = (entry[0] - self.channel.frames) // self.channel.frame_size
                errors[frame - 128] = entry[4]
            if time.monotonic() > deadline:
                break
            if len(errors) < len(data):
                watch.poll(100)
        return [errors.get(number, errno.EAGAIN) for number in range(len(data))]

    def info(self):
        """The struct kopi_info."""
        return self.sock.getsockopt(kopi.SOL_KOPI, kopi.INFO, 64)

    def receive(self):
        found = []
        parts = []
        while (entry := self.channel.rx.pop()) is not None:
            offset, length, _, flags, _ = entry
            start = offset - offset % self.channel.frame_size
            if flags & kopi.META:
                meta = struct.unpack_from(kopi.META_FORMAT, self.channel.region, start)
            parts.append(self.channel.region[offset:offset + length])
            self.channel.fill.push(start)
            if not flags & kopi.MORE:
                family, size = meta[4], 16 if meta[4] == socket.AF_INET6 else 4
                source = (socket.inet_ntop(family, meta[0][:size]),
                          struct.unpack(">H", meta[2])[0])
                found.append(parse(b"".join(parts), source,
                                   socket.inet_ntop(family, meta[1][:size]), meta[8], meta[9],
                                   self.devices.get(meta[6], meta[6]), meta[11]))
                parts = []
        return found

    def unaccounted(self):
        """Every packet taken or received must be somewhere."""
        return self.channel.unaccounted()


SUBJECTS = (UdpSubject, KopiSubject)


@dataclasses.dataclass
class Policy:
    """What an administrator does, and what should come of it."""
    name: str
    setup: Callable = lambda: None
    # Datagrams that arrive, out of COUNT: leaving `host`, and coming to it. None: not sent.
    out: int = ALL
    into: int = ALL
    # The errors that the sender may see, besides none.
    errors: tuple = ()
    # What is looked at after each direction, beside the sockets. Its last numbers can't all be 0.
    observe: tuple = ()
    families: tuple = (4, 6)
    trains: tuple = (False, True)
    # Who opens the subject: a user's name, a cgroup's path below the root.
    user: str = ""
    cgroup: str = ""
    # Socket options of the subject, set before bind: (level, name, value).
    options: tuple = ()
    # The subject is connected to its peer.
    connected: bool = True
    # Called with the subject before it is bound.
    prepare: Callable = lambda subject: None
    # For each datagram out, what goes into its descriptor's metadata, or into control messages:
    # a function of the family.
    metas: Callable = None
    # Where each binds, and whereto each sends: functions of the family that give an address.
    subject_at: Callable = lambda family: (ADDRESSES[family]["host"], SUBJECT_PORT)
    peer_at: Callable = lambda family: (ADDRESSES[family]["peer"], PEER_PORT)
    subject_sends_to: Callable = None
    peer_sends_to: Callable = None
    subject_namespace: str = "host"
    peer_namespace: str = "peer"
    # Whether a packet that isn't the policy's passes after those that are.
    sentinel: bool = True
    # Called when all was sent in one direction: waits until the policy let go of it.
    settle: Callable = lambda: None
    ordered: bool = True
    # Each datagram is sent when what the last one brought about is over.
    paced: bool = False
    # Compares which errors there were, not which datagram got them.
    exact_errors: bool = True
    # For the table.
    note: str = ""
    # What of a KOPI flow's arrives, where that isn't `out`.
    kopi_out: int = None
    # Listed differences: {what is compared: why it differs}.
    differs: dict = dataclasses.field(default_factory=dict)
    # Called once before all exchanges: what is costly to set up.
    fixture: Callable = lambda: None
    # Called with the peer before it is bound, and where it binds, if not where it is.
    prepare_peer: Callable = lambda peer: None
    peer_binds: Callable = None
    # A change in mid-flow, after which all is sent once more, and what is expected then.
    between: Callable = None
    then_out: int = ALL
    then_into: int = ALL
    # The same, of the subject itself: called with it, and needs no `between`.
    alter: Callable = None
    # Looked at after each direction, too: functions of the subject.
    ask: tuple = ()
    # Further expectations: functions of what was seen that give what is wrong with it.
    checks: tuple = ()

    def rounds(self):
        """The rounds of an exchange: a suffix for what is seen, and what is expected."""
        first = [("", self.out, self.into)]
        return first + [(" then", self.then_out, self.then_into)] if self.between or self.alter else first


class Sentinel:
    """Ordinary datagrams that follow the exchange's over the same path."""

    def __init__(self, family, policy):
        self.ends = {}
        spaces = {"host": policy.subject_namespace, "peer": policy.peer_namespace}
        places = {"host": policy.subject_at(family)[0], "peer": policy.peer_at(family)[0]}
        for end, space in spaces.items():
            with namespace(space):
                sock = socket.socket(FAMILIES[family], socket.SOCK_DGRAM)
                sock.bind((places[end], SENTINEL_PORTS[end]))
                sock.settimeout(PATIENCE)
                self.ends[end] = sock
        self.places = places

    def pass_to(self, end):
        """Sends one to that end, and waits for it."""
        other = {"host": "peer", "peer": "host"}[end]
        self.ends[other].sendto(b"sentinel", (self.places[end], SENTINEL_PORTS[end]))
        self.ends[end].recv(64)

    def close(self):
        for sock in self.ends.values():
            sock.close()


def collect(receiver, expected, after):
    """Waits for the datagrams that are expected, and then for whatever else may come."""
    found = []
    deadline = time.monotonic() + PATIENCE
    while True:
        found += receiver.receive()
        left = deadline - time.monotonic()
        if len(found) >= expected or left <= 0:
            break
        select.select([receiver.sock], [], [], min(left, 0.05))
    after()
    return found + receiver.receive()


@contextlib.contextmanager
def as_owner(policy):
    """Makes what the block opens the user's and the cgroup's."""
    if policy.cgroup:
        with open(f"/sys/fs/cgroup/{policy.cgroup}/cgroup.procs", "w", encoding="ascii") as procs:
            procs.write(str(os.getpid()))
    if policy.user:
        entry = pwd.getpwnam(policy.user)
        os.setegid(entry.pw_gid)
        os.seteuid(entry.pw_uid)
    try:
        yield
    finally:
        if policy.user:
            os.seteuid(0)
            os.setegid(0)
        if policy.cgroup:
            with open("/sys/fs/cgroup/cgroup.procs", "w", encoding="ascii") as procs:
                procs.write(str(os.getpid()))


@contextlib.contextmanager
def user(name):
    """Makes the block the user's, but for what it takes to come back."""
    who = pwd.getpwnam(name).pw_uid
    os.setresuid(who, who, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@contextlib.contextmanager
def as_root():
    """Runs the block as the superuser, whoever the exchange is of."""
    euid = os.geteuid()
    os.seteuid(0)
    try:
        yield
    finally:
        os.seteuid(euid)


def datagrams_of(family):
    """The datagrams of an exchange."""
    sizes = [size for size, count in PHASES[family] for _ in range(count)]
    return [payload(number, size) for number, size in enumerate(sizes)]


def trains_of(data):
    """Cuts datagrams into trains: of one size, but that the last may be shorter."""
    trains = []
    for each in data:
        last = trains[-1] if trains else None
        if last and len(last[-1]) == len(last[0]) >= len(each):
            last.append(each)
        else:
            trains.append([each])
    return trains


def exchange(kind, policy, family, trains):
    """One exchange; gives a dict of all that was seen."""
    seen = {}
    current["family"] = family
    with contextlib.ExitStack() as stack:
        stack.enter_context(namespace(policy.subject_namespace))
        stack.callback(_undo_all)
        policy.setup()
        with namespace(policy.peer_namespace):
            peer = UdpSubject(family)
            stack.callback(peer.close)
            policy.prepare_peer(peer)
            peer.bind((policy.peer_binds or policy.peer_at)(family))
        sentinel = None
        if policy.sentinel:
            sentinel = Sentinel(family, policy)
            stack.callback(sentinel.close)
        stack.enter_context(as_owner(policy))
        try:
            subject = kind(family, trains)
            stack.callback(subject.close)
            policy.prepare(subject)
            for level, name, value in policy.options:
                subject.sock.setsockopt(level, name, value)
            subject.bind(policy.subject_at(family))
            target = (policy.subject_sends_to or policy.peer_at)(family)
            subject.after_bind()
            if policy.connected:
                subject.connect(target)
        except OSError as error:
            seen["opening"] = errno_name(error.errno)
            return seen
        before = snmp()
        data = datagrams_of(family)

        def look(after):
            # How trains are merged is chance, so their number after they came in is, too.
            if trains and after.startswith("in"):
                return
            with as_root():
                for function in policy.observe:
                    seen[f"{function.__name__} after {after}"] = function()
                for function in policy.ask:
                    seen[f"{function.__name__}, asked after {after}"] = function(subject)

        def follow(end):
            policy.settle()
            if sentinel:
                sentinel.pass_to(end)

        def send_out(when, expected):
            where = None if policy.connected else target
            if policy.paced:
                errors = []
                for each in data:
                    errors += subject.send([each], where)
                    sentinel.pass_to("peer")
                    sentinel.pass_to("host")
            else:
                metas = policy.metas and policy.metas(family)
                errors = subject.send(data, where, metas=metas)
            seen["errors" + when] = [errno_name(each) for each in errors]
            seen["out" + when] = collect(peer, expected, lambda: follow("peer"))
            look("out" + when)

        def send_in(when, expected):
            back = (policy.peer_sends_to or policy.subject_at)(family)
            if policy.paced:
                errors = []
                for each in data:
                    errors += peer.send([each], back)
                    sentinel.pass_to("host")
            else:
                errors = peer.send(data, back, trains)
            seen["peer's errors" + when] = [errno_name(each) for each in errors]
            seen["in" + when] = collect(subject, expected, lambda: follow("host"))
            look("in" + when)

        for when, out, into in policy.rounds():
            if when:
                with as_root():
                    if policy.between:
                        policy.between()
                    if policy.alter:
                        policy.alter(subject)
            if out is not None:
                send_out(when, out)
            if into is not None:
                send_in(when, into)
        seen["pending error"] = errno_name(subject.error())
        seen["snmp"] = {name: value - before[name] for name, value in snmp().items()
                        if value != before[name]}
        seen["unaccounted"] = subject.unaccounted()
    return seen


def fix_neighbours():
    """Nothing but the exchange's packets is to be on the wire, so that they can be counted."""
    links = {"host": "eth0", "peer": "eth1"}
    addresses = {family: {"host": (ADDRESSES[family]["host"], SECOND[family]),
                          "peer": (ADDRESSES[family]["peer"],)} for family in (4, 6)}
    ethernet = {end: json.loads(sh(f"ip -n {end} -j link show {link}"))[0]["address"]
                for end, link in links.items()}
    for end, link in links.items():
        # Nor does anyone look for routers.
        sh(f"ip netns exec {end} sysctl -qw net.ipv6.conf.{link}.accept_ra=0")
        other = {"host": "peer", "peer": "host"}[end]
        for family in (4, 6):
            for address in addresses[family][other]:
                sh(f"ip -n {end} -{family} neigh replace {address} "
                   f"lladdr {ethernet[other]} nud permanent dev {link}")


def _undo_all():
    with contextlib.ExitStack() as stack:
        for function, arguments in _undo:
            stack.callback(function, *arguments)
        _undo.clear()


def comparable(seen, policy, trains):
    """What must be the same for UDP and KOPI."""
    result = dict(seen)
    for key in ("out", "in", "out then", "in then"):
        if key in result and not policy.ordered:
            result[key] = sorted(result[key], key=lambda each: each.number)
    if not policy.exact_errors and "errors" in result:
        result["errors"] = sorted(set(result["errors"]) - {"ok"})
    if trains:
        result.pop("snmp", None)
    return result


def summary(policy, seen):
    """What became of an exchange, in a few words."""
    if "opening" in seen:
        return f"refused, {seen['opening']}"
    words = []
    for way, expected in (("out", policy.out), ("in", policy.into)):
        if way in seen:
            words.append(f"{'some' if expected == ANY else len(seen[way])} {way}")
    for way in ("out", "in"):
        if f"{way} then" in seen:
            words.append(f"then {len(seen[f'{way} then'])} {way}")
    errors = sorted({*seen.get("errors", ()), *seen.get("errors then", ())} - {"ok"})
    if seen["pending error"] != "ok":
        errors.append(f"then {seen['pending error']}")
    return ", ".join(words + errors)


def problems(policy, seen, kind):
    """What isn't as the policy should have it."""
    wrong = []
    if "opening" in seen:
        return wrong if seen["opening"] in policy.errors else [f"opening: {seen['opening']}"]
    expectations = [(way + when, expected) for when, out, into in policy.rounds()
                    for way, expected in (("out", out), ("in", into))]
    for key, expected in expectations:
        if (key, kind) == ("out", KopiSubject) and policy.kopi_out is not None:
            expected = policy.kopi_out
        if expected == ANY and not 0 < len(seen[key]) < COUNT:
            wrong.append(f"{len(seen[key])} {key}, not just some")
        elif expected not in (None, ANY, WHATEVER) and len(seen[key]) != expected:
            wrong.append(f"{len(seen[key])} {key}, not {expected}")
        wrong += [f"{key}: datagram {each.number} is damaged"
                  for each in seen.get(key, ()) if not each.whole]
    errors = {*seen.get("errors", ()), *seen.get("errors then", ())}
    unexpected = errors - {"ok", *policy.errors}
    if unexpected:
        wrong.append(f"errors {sorted(unexpected)}")
    if policy.errors and not set(policy.errors) & {*errors, seen["pending error"]}:
        wrong.append(f"no {policy.errors}")
    if seen["unaccounted"]:
        wrong.append(seen["unaccounted"])
    for check in policy.checks:
        wrong += check(seen)
    for function in policy.observe:
        looks = [value for key, value in seen.items() if key.startswith(f"{function.__name__} after ")]
        # Zeros only: a rule that never matched.
        looked = policy.into is None or any(" after in" in key for key in seen)
        if looked and looks and numbers(looks[-1]) and not any(numbers(looks[-1])):
            wrong.append(f"{function.__name__} saw nothing: {looks[-1]}")
    return wrong


def numbers(value):
    """All numbers in what an observer saw."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return [value] if isinstance(value, (int, float)) else []
    return [number for each in value for number in numbers(each)]


def differences(policy, udp, flow, trains):
    """Names what differs, but for what the policy lists."""
    one, other = (comparable(seen, policy, trains) for seen in (udp, flow))
    found = []
    for key in sorted({*one, *other}):
        if one.get(key) != other.get(key) and key not in policy.differs:
            found.append(f"{key}: UDP {shorten(one.get(key))}, KOPI {shorten(other.get(key))}")
    return found


def shorten(value):
    """A value for a message."""
    if isinstance(value, list) and value and isinstance(value[0], Datagram):
        value = [(each.number, each.source, each.destination, each.tos, each.ttl, each.device,
                  each.mark) for each in value]
    elif isinstance(value, list) and len(value) > 50:
        value = sorted(f"{count} x {each}" for each, count in collections.Counter(map(str, value)).items())
    text = str(value)
    return text if len(text) < 700 else text[:700] + "…"


def same(area, what, udp, flow, wanted, reason=""):
    """Checks and notes what isn't an exchange: what came of it for a UDP socket and for a KOPI
    flow, and what the first should be. The two must be equal, or there is a reason."""
    as_listed = udp == wanted and (udp == flow) == (not reason)
    kopi.check(what, as_listed, f"UDP {udp}, KOPI {flow}, wanted {wanted}")
    write_row({"area": area, "policy": what, "note": "", "UDP": str(udp), "KOPI": str(flow),
               "differs": {"the outcome": reason} if reason else {}, "same": as_listed})


def write_row(row):
    """Appends a row of docs/policy.md's table to the file that POLICY_TABLE names."""
    if os.environ.get("POLICY_TABLE"):
        with open(os.environ["POLICY_TABLE"], "a", encoding="utf-8") as table:
            table.write(json.dumps(row) + "\n")


def run(area, policies, others=lambda: None):
    """Runs the policies, or those whose name has one of the command line's words; prints TAP, and
    appends rows of docs/policy.md's table to the file that POLICY_TABLE names. `others` checks
    what can't be put as a policy."""
    os.sched_setaffinity(0, {0})
    fix_neighbours()
    words = sys.argv[1:]
    for policy in policies:
        if words and not any(word in policy.name for word in words):
            continue
        start = time.monotonic()
        row = {"area": area, "policy": policy.name, "note": policy.note}
        wrong = []
        with namespace("host"):
            try:
                policy.fixture()
            except RuntimeError as error:
                wrong.append(str(error))
        take_down, _undo[:] = list(_undo), []
        for trains in policy.trains:
            for family in policy.families:
                where = f"IPv{family}{', trains' if trains else ''}"
                try:
                    seen = [exchange(kind, policy, family, trains) for kind in SUBJECTS]
                except Exception:  # pylint: disable=broad-except
                    wrong.append(f"{where}: {traceback.format_exc(limit=-1)}")
                    continue
                for kind, each in zip(SUBJECTS, seen):
                    wrong += [f"{where}, {kind.kind}: {what}" for what in problems(policy, each, kind)]
                    row.setdefault(kind.kind + (" trains" if trains else ""), summary(policy, each))
                wrong += [f"{where}: {what}" for what in differences(policy, *seen, trains)]
        _undo[:] = take_down
        with namespace("host"):
            _undo_all()
        row["differs"] = policy.differs
        row["same"] = not wrong
        kopi.check(f"{policy.name} ({time.monotonic() - start:.1f} s)", not wrong,
                   "\n#   ".join([""] + wrong))
        write_row(row)
    if not words:
        others()
        _undo_all()
    kopi.finish()
