#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Each allocation of a stream's calls fails in turn, and memory runs out at any point of them: the call gives a
documented errno, or one that a plain TCP socket gives, or succeeds; what was there goes on, and all is given back.

FAULTS names the entry points to try, as a regular expression.
"""

import collections
import contextlib
import errno
import gc
import os
import re
import select
import socket
import struct
import time

import faults
import kopi
import memory
from control import NlError, add, ask, family, rules
from equivalence import namespace
from injection import attempt, nth, once
from kopi import Wrong, expect
from links import inside
from linux import MSG_FASTOPEN, MSG_ZEROCOPY, SO_ZEROCOPY, TCP_FASTOPEN

# Of netlink: include/uapi/linux/netlink.h.
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 1, 0x300, 2, 3


class Server:
    """A plain listener, to which all connect."""

    def __init__(self, name, host):
        self.name, self.host = name, host
        self.proto, self.family = (kopi.TCP6, socket.AF_INET6) if ":" in host else (0, socket.AF_INET)
        self.sock = self.plain()
        self.sock.bind((host, 0))
        self.sock.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 5)
        self.sock.listen(64)
        self.sock.settimeout(20)
        self.address = self.sock.getsockname()[:2]

    def plain(self):
        """A socket that isn't KOPI's."""
        return socket.socket(self.family, socket.SOCK_STREAM)

    def make(self, ordinary=False):
        """A stream, or a plain socket."""
        return self.plain() if ordinary else kopi.stream(self.proto)

    def other(self, sock):
        """The other end of a connection, among those that failed before."""
        while True:
            found, peer = self.sock.accept()
            if peer[:2] == sock.getsockname()[:2]:
                return found
            found.close()

    def pair(self, ordinary=False):
        """A connection's ends, the first of which is a stream."""
        sock = self.make(ordinary)
        sock.connect(self.address)
        return sock, self.other(sock)


def talk(one, other):
    """Both ends work."""
    for sender, receiver in ((one, other), (other, one)):
        sender.sendall(b"works")
        receiver.settimeout(20)
        got = b""
        while len(got) < 5:
            more = receiver.recv(5 - len(got))
            expect(more, "it ended")
            got += more
        expect(got == b"works", "what arrives", got)


def end(*socks):
    """Closes sockets, without TIME_WAIT."""
    for sock in socks:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()


def works(server, sock):
    """It can be connected."""
    sock.connect(server.address)
    other = server.other(sock)
    talk(sock, other)
    end(sock, other)


def new(server, ordinary=False):
    """socket()."""
    sock, error = yield lambda: server.make(ordinary)
    if not error:
        works(server, sock)


def over_limit(server):
    """socket(), where a user has as many flows as he may."""
    sysctl = "/proc/sys/net/kopi/user_max_flows"
    # The initial namespace has it.
    with inside("/proc/1/ns/net"):
        before = faults.get(sysctl)
    held = server.make()

    def call():
        try:
            return server.make()
        except OSError as refusal:
            if refusal.errno == errno.EMFILE:
                return None
            raise
    with inside("/proc/1/ns/net"):
        faults.put(sysctl, 1)
    try:
        got, _ = yield call
    finally:
        with inside("/proc/1/ns/net"):
            faults.put(sysctl, before)
    expect(got is None, "a second flow")
    works(server, held)


def bind(server, ordinary=False):
    """bind()."""
    sock = server.make(ordinary)
    _, error = yield lambda: sock.bind((server.host, 0))
    if error:
        sock.bind((server.host, 0))
    works(server, sock)


def connect(server, ordinary=False):
    """connect()."""
    sock = server.make(ordinary)
    faults.forget_routes()
    _, error = yield lambda: sock.connect(server.address)
    if error:
        works(server, sock)
        return
    other = server.other(sock)
    talk(sock, other)
    end(sock, other)


def fast_open(server, ordinary=False):
    """sendto(MSG_FASTOPEN), which connects."""
    sock = server.make(ordinary)
    got, error = yield lambda: sock.sendto(b"first", MSG_FASTOPEN, server.address)
    if error:
        works(server, sock)
        return
    other = server.other(sock)
    other.settimeout(20)
    expect(got == 5 and other.recv(9) == b"first", "the first bytes", got)
    talk(sock, other)
    end(sock, other)


def listen(server, ordinary=False):
    """listen()."""
    sock = server.make(ordinary)
    sock.bind((server.host, 0))
    _, error = yield lambda: sock.listen(4)
    if error:
        sock.listen(4)
    with server.plain() as client:
        client.connect(sock.getsockname())
        other, _ = sock.accept()
        talk(client, other)
        end(client, other)
    sock.close()


def accept(server, ordinary=False):
    """accept(): a connection that it fails to give stays, or is reset."""
    sock = server.make(ordinary)
    sock.bind((server.host, 0))
    sock.listen(4)
    client = server.plain()
    client.connect(sock.getsockname())
    client.settimeout(20)
    got, error = yield sock.accept
    if error and select.select([sock], [], [], 0)[0]:
        got = sock.accept()
    if got:
        talk(client, got[0])
        end(got[0])
    else:
        # The RST may have found no memory, too; then this is answered by one.
        try:
            client.send(b"?")
            raise Wrong(f"the client reads {client.recv(1)}")
        except ConnectionResetError:
            pass
    end(client, sock)


def send(server, ordinary=False, flags=0, size=3000):
    """send()."""
    sock, other = server.pair(ordinary)
    if flags:
        sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    got, _ = yield lambda: sock.send(b"x" * size, flags)
    other.settimeout(20)
    for _ in range(got or 0):
        expect(other.recv(1) == b"x", "what arrives")
    talk(sock, other)
    end(sock, other)


def receive(server, ordinary=False):
    """recv()."""
    sock, other = server.pair(ordinary)
    other.send(b"question")
    got, error = yield lambda: sock.recv(100)
    expect(error or got == b"question", "what arrives", got)
    if error:
        expect(sock.recv(100) == b"question", "what arrives after an error")
    talk(sock, other)
    end(sock, other)


def options(server):
    """getsockopt(), those of KOPI."""
    sock, other = server.pair()

    def call():
        return [sock.getsockopt(kopi.SOL_KOPI, name, 256) for name in (kopi.INFO, kopi.STATS)]
    right = call()
    got, error = yield call
    expect(error or got == right, "another answer")
    talk(sock, other)
    end(sock, other)


def shut(server, ordinary=False):
    """shutdown(), whose FIN TCP leaves out if it finds no memory; the other direction works."""
    sock, other = server.pair(ordinary)
    yield lambda: sock.shutdown(socket.SHUT_WR)
    other.sendall(b"still")
    sock.settimeout(20)
    expect(sock.recv(9) == b"still", "the other direction")
    end(sock, other)


def close(server, ordinary=False):
    """close(), whose FIN TCP leaves out likewise."""
    sock, other = server.pair(ordinary)
    fd = sock.detach()
    yield lambda: os.close(fd)
    end(other)


def allowed(steps, ynl):
    """The same steps, where rules by program, by user and by port permit them."""
    def run(server):
        for rule in ({"exe": "/usr/bin/true"}, {"uid_min": 65534}, {"local_port_min": 1}):
            add(ynl, protocol=6, verdict="deny", **rule)
        add(ynl, protocol=6, uid_min=0, verdict="allow")
        try:
            return (yield from steps(server))
        finally:
            ask(ynl, "ruleset-set")
    return run


def denied(server, ynl, name):
    """bind(), connect() or listen() that a rule denies: no fault lets it pass."""
    sock = server.make()
    add(ynl, protocol=6, uid_min=0, verdict="deny")
    call = {"bind": lambda: sock.bind((server.host, 0)), "connect": lambda: sock.connect(server.address),
            "listen": lambda: sock.listen(4)}[name]

    def refused():
        try:
            return call()
        except OSError as refusal:
            if refusal.errno == errno.EACCES:
                return "denied"
            raise
    try:
        got, error = yield refused
        expect(error or got == "denied", f"{name} passes")
    finally:
        ask(ynl, "ruleset-set")
    works(server, sock)


def ended(server, ynl):
    """A rule that denies a live stream: if it is there then, the stream has ended, and goes on otherwise."""
    sock, other = server.pair()

    def call():
        try:
            add(ynl, protocol=6, remote_port_min=server.address[1], verdict="deny")
        except NlError as refusal:
            raise OSError(refusal.error, "rule-add") from refusal
    try:
        yield call
        # The answer, where only its acknowledgement found no memory.
        with contextlib.suppress(BlockingIOError):
            while ynl.sock.recv(65536, socket.MSG_DONTWAIT):
                pass
        if rules(ynl):
            try:
                raise Wrong(f"a denied stream reads {sock.recv(1)}")
            except PermissionError:
                pass
        else:
            talk(sock, other)
    finally:
        ask(ynl, "ruleset-set")
    end(sock, other)


def dump(sock, family_id, command):
    """A dump as bytes of its messages."""
    messages = []
    body = struct.pack("=BBH", command, 1, 0)
    sock.send(struct.pack("=IHHII", 16 + len(body), family_id, NLM_F_REQUEST | NLM_F_DUMP, 1, 0) + body)
    while True:
        answer = sock.recv(65536)
        while answer:
            length, kind = struct.unpack_from("=IH", answer)
            if kind in (NLMSG_ERROR, NLMSG_DONE):
                number = -struct.unpack_from("=i", answer, 16)[0]
                if number:
                    raise OSError(number, "dump")
                return messages
            messages.append(answer[16:length])
            answer = answer[(length + 3) & ~3:]


def dumped(server, ynl, name):
    """A dump of flows or rules, where there are some: all of them, or an error."""
    number = ynl.ops[name].req_value
    pairs = [server.pair() for _ in range(8)]
    for port in range(8):
        add(ynl, protocol=6, local_port_min=port + 1, exe="/usr/bin/true", verdict="deny")

    def asked():
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16) as sock:
            sock.settimeout(20)
            return (yield lambda: dump(sock, ynl.nlproto.family_id, number))
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16) as sock:
            right = len(dump(sock, ynl.nlproto.family_id, number))
        got, error = yield from asked()
        expect(right >= 8 and (error or len(got) == right), f"{len(got or ())} of {right}")
    finally:
        ask(ynl, "ruleset-set")
        for pair in pairs:
            talk(*pair)
            end(*pair)


def entries_of_rules(server, ynl):
    """Those of rules, compared with a plain socket without, and of netlink."""
    for name, steps in (("bind", bind), ("connect", connect), ("listen", listen), ("accept", accept)):
        permitted = allowed(steps, ynl)
        yield (f"{name} that rules permit, {server.name}", lambda run=permitted: run(server),
               lambda steps=steps: steps(server, True))
    for name, steps in (("bind", bind), ("connect", connect), ("listen", listen)):
        yield (f"{name} that a rule denies, {server.name}", lambda name=name: denied(server, ynl, name),
               lambda steps=steps: steps(server, True))
    yield f"a rule that ends a live stream, {server.name}", lambda: ended(server, ynl), None
    for name in ("flow-get", "rule-get"):
        yield f"{name}, {server.name}", lambda name=name: dumped(server, ynl, name), None


def entries(servers, ynl):
    """Name, steps, and the same of a plain socket, if it has such a call."""
    for server in servers:
        for name, steps in (("socket", new), ("bind", bind), ("connect", connect), ("fast open", fast_open),
                            ("listen", listen), ("accept", accept), ("send", send), ("receive", receive),
                            ("shutdown", shut), ("close", close)):
            yield (f"{name}, {server.name}", lambda steps=steps, server=server: steps(server),
                   lambda steps=steps, server=server: steps(server, True))
        yield (f"send by reference, {server.name}", lambda server=server: send(server, False, MSG_ZEROCOPY, 20_000),
               lambda server=server: send(server, True, MSG_ZEROCOPY, 20_000))
        yield from entries_of_rules(server, ynl)
    server = servers[0]
    yield "options", lambda: options(server), None
    yield "socket over the limit", lambda: over_limit(server), None


# Where memory runs out, too.
DRY = re.compile("socket|bind|connect|listen|accept|live|get")
# For a socket's inode.
KERNELS = {"socket over the limit": {errno.ENFILE}}


def main():
    """Tries all."""
    began = time.monotonic()
    expected = re.compile(os.environ.get("FAULTS", ""))
    total = collections.Counter()
    with faults.own_cgroup() as kernel_memory, namespace("host"):
        servers = [Server("IPv4", "127.0.0.1"), Server("IPv6", "::1")]
        chosen = [entry for entry in entries(servers, family()) if expected.search(entry[0])]
        # What is made once only.
        for _, *both in chosen:
            for steps in filter(None, both):
                with contextlib.suppress(Wrong, OSError):
                    once(steps, nth, 1 << 30)
        gc.collect()
        gc.disable()
        faults.forget_leaks()
        before = memory.slabs()
        for entry in chosen:
            start = time.monotonic()
            total += attempt(entry, kernel_memory, KERNELS.get(entry[0], set()), DRY.search(entry[0]))
            print(f"#   {time.monotonic() - start:.1f} s", flush=True)
        gc.enable()
    print(f"# {len(chosen)} entry points: {total['faults']} allocations failed in turn, memory ran out at "
          f"{total['points']} points, {total['refused']} errors")
    kopi.ran("allocations of streams, each in turn", time.monotonic() - began, entry_points=len(chosen),
             failed_in_turn=total["faults"], points_without_memory=total["points"])
    faults.check_all_is_back(before)


with faults.settings(faults.OF_TASKS):
    main()
kopi.finish()
