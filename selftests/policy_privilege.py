#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What a user may do with a UDP socket he may do with a KOPI flow, and no more."""

import ctypes
import os
import socket
import struct
import traceback

import kopi
from apparmor import confine, profiles
from equivalence import (ADDRESSES, COUNT, NONE, PEER_PORT, SUBJECT_PORT, SUBJECTS, Policy, chain,
                         do, errno_name, namespace, nft_counters, nft_table, run, same)
from linux import (CLONE_NEWNET, CLONE_NEWUSER, IPV6_TRANSPARENT, IP_TRANSPARENT, LANDLOCK_BIND_UDP,
                   LANDLOCK_SEND_UDP, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER,
                   SO_RCVBUFFORCE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_CREATE, SYS_LANDLOCK_RESTRICT)

SECCOMP_ALLOW, SECCOMP_EPERM = 0x7FFF0000, 0x00050001
SYS_SOCKET, SYS_IOCTL, SYS_SENDTO, SYS_SENDMSG, SYS_MMAP = 41, 16, 44, 46, 9
RULE_NET_PORT = 2
CAP_NET_BIND_SERVICE, CAP_NET_ADMIN, CAP_NET_RAW = 10, 12, 13
BOB = {"user": "bob"}
V4 = {"families": (4,)}
SINGLE = {"gso": (False,)}
REFUSED = {"errors": ("EPERM", "EACCES"), **SINGLE}


def low_port(family):
    """An address that takes a privilege to bind."""
    return ADDRESSES[family]["host"], 700


def option(level, name, value):
    """The field for one option."""
    return {"options": ((level, name, value),)}


def transparent(family):
    """The field for a transparent socket."""
    level, name = ((socket.IPPROTO_IP, IP_TRANSPARENT) if family == 4
                   else (socket.IPPROTO_IPV6, IPV6_TRANSPARENT))
    return option(level, name, 1)


def elsewhere(family):
    """An address that isn't the host's."""
    return {4: "192.0.2.200", 6: "2001:db8::200"}[family], SUBJECT_PORT


def holding(*capabilities):
    """What gives the user these capabilities, and no other."""
    bits = sum(1 << each for each in capabilities)

    def prepare(_):
        header = struct.pack("=Ii", 0x20080522, 0)
        data = ctypes.create_string_buffer(24)
        kopi.libc.capget(header, data)
        _, permitted, _, _, above, _ = struct.unpack("=6I", data.raw)
        data = struct.pack("=6I", bits, permitted, 0, 0, above, 0)
        if kopi.libc.capset(header, data):
            raise OSError(ctypes.get_errno(), "capset")
    return prepare


def sent_by(user):
    """What has another user send by the socket."""
    def prepare(subject):
        send = subject.send

        def as_user(*arguments, **named):
            before = os.geteuid()
            os.seteuid(0)
            os.seteuid(user)
            try:
                return send(*arguments, **named)
            finally:
                os.seteuid(0)
                os.seteuid(before)
        subject.send = as_user
    return prepare


POLICIES = [
    Policy("a port below 1024", subject_at=low_port, **BOB, **REFUSED),
    Policy("a port below 1024, the superuser", subject_at=low_port, **SINGLE),
    Policy("a port below 1024, where the sysctl allows it",
           do("sysctl -qw net.ipv4.ip_unprivileged_port_start=500",
              undo_with=("sysctl -qw net.ipv4.ip_unprivileged_port_start=1024",)),
           subject_at=low_port, **BOB, **SINGLE),
    Policy("a port below 1024, CAP_NET_BIND_SERVICE", subject_at=low_port,
           prepare=holding(CAP_NET_BIND_SERVICE), **BOB, **SINGLE),
    Policy("a port below 1024, another capability", subject_at=low_port,
           prepare=holding(CAP_NET_ADMIN, CAP_NET_RAW), **BOB, **REFUSED),
    Policy("SO_MARK, CAP_NET_RAW", prepare=holding(CAP_NET_RAW), **BOB, **SINGLE,
           **option(socket.SOL_SOCKET, socket.SO_MARK, 5)),
    Policy("SO_MARK, another capability", prepare=holding(CAP_NET_BIND_SERVICE), **BOB, **REFUSED,
           **option(socket.SOL_SOCKET, socket.SO_MARK, 5)),
    Policy("SO_PRIORITY 7, CAP_NET_ADMIN", prepare=holding(CAP_NET_ADMIN), **BOB, **SINGLE,
           **option(socket.SOL_SOCKET, socket.SO_PRIORITY, 7)),
    Policy("IP_TRANSPARENT, CAP_NET_RAW", prepare=holding(CAP_NET_RAW), **transparent(4), **V4,
           **BOB, **SINGLE),
    Policy("per packet: mark, CAP_NET_RAW", prepare=holding(CAP_NET_RAW),
           metas=lambda family: [{"mark": 5}] * COUNT, **BOB, **SINGLE),
    Policy("per packet: mark, another capability", prepare=holding(CAP_NET_BIND_SERVICE),
           metas=lambda family: [{"mark": 5}] * COUNT, out=NONE, **BOB, **REFUSED),
    Policy("meta skuid is who opened it, not who sends", nft_table(chain(
        "filter hook output priority 0", "udp dport 7001 meta skuid bob counter drop")),
           observe=(nft_counters,), prepare=sent_by(1001), out=NONE, **V4, **BOB, **REFUSED),
    Policy("IP_TRANSPARENT", **transparent(4), **V4, **BOB, **REFUSED),
    Policy("IPV6_TRANSPARENT", **transparent(6), families=(6,), **BOB, **REFUSED),
    Policy("another's address", subject_at=elsewhere, errors=("EADDRNOTAVAIL",), sentinel=False,
           **BOB, **SINGLE),
    Policy("SO_MARK", **option(socket.SOL_SOCKET, socket.SO_MARK, 5), **BOB, **REFUSED),
    Policy("SO_PRIORITY 6", **option(socket.SOL_SOCKET, socket.SO_PRIORITY, 6), **BOB, **SINGLE),
    Policy("SO_PRIORITY 7", **option(socket.SOL_SOCKET, socket.SO_PRIORITY, 7), **BOB, **REFUSED),
    Policy("SO_BINDTODEVICE", **option(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0"), **BOB,
           **SINGLE),
    Policy("SO_BINDTODEVICE, twice", options=(
        (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0"),
        (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")), **BOB, **REFUSED),
    Policy("SO_RCVBUFFORCE", **option(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 20), **BOB, **REFUSED),
    Policy("SO_DEBUG", **option(socket.SOL_SOCKET, socket.SO_DEBUG, 1), **BOB, **REFUSED),
    Policy("per packet: a transparent source",
           metas=lambda family: [{"local": elsewhere(family)[0]}] * 40, out=NONE,
           errors=("EINVAL", "ENETUNREACH"), connected=False, **BOB, **SINGLE),
]


def forbid(call, argument=None, value=None):
    """From now on has a system call give EPERM, or one with this value of an argument."""
    code = [(0x20, 0, 0, 0), (0x15, 0, 3 if argument is not None else 1, call)]
    if argument is not None:
        code += [(0x20, 0, 0, 16 + 8 * argument), (0x15, 0, 1, value)]
    code += [(6, 0, 0, SECCOMP_EPERM), (6, 0, 0, SECCOMP_ALLOW)]
    raw = b"".join(struct.pack("=HBBI", *each) for each in code)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    program = ctypes.create_string_buffer(
        struct.pack("=HxxxxxxQ", len(code), ctypes.addressof(buffer)), 16)
    kopi.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if kopi.libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program):
        raise OSError(ctypes.get_errno(), "seccomp")


def in_child(*steps):
    """Runs the steps in a child process; gives the errno that they ended with."""
    pid = os.fork()
    if pid == 0:
        try:
            for step in steps:
                step()
        except OSError as error:
            os._exit(error.errno)
        except BaseException:  # pylint: disable=broad-except
            traceback.print_exc()
            os._exit(255)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def udp():
    """Opens a UDP socket."""
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def outcomes(before, step, after=lambda subject: None):
    """What a step in a child process comes to, by kind of socket: errno's names."""
    def run_with(kind):
        subjects = []
        return errno_name(in_child(lambda: before is None or subjects.append(before(kind)),
                                   step, lambda: after(*subjects or (kind,))))
    return [run_with(kind) for kind in SUBJECTS]


def connected(kind):
    """A subject that has its addresses."""
    subject = kind(4)
    subject.bind((ADDRESSES[4]["host"], SUBJECT_PORT))
    subject.connect((ADDRESSES[4]["peer"], PEER_PORT))
    return subject


def send_one(subject, address=None):
    """Sends a datagram; fails as that does."""
    error = subject.send([b"x"], address)[0]
    if error:
        raise OSError(error, "send")


def open_one(kind):
    """Opens a socket, and no more."""
    sock = udp() if kind is SUBJECTS[0] else kopi.flow()
    sock.close()


def seccomp():
    """What seccomp can see of a flow is its system calls."""
    def test(what, expected, step, reason="", before=None, after=open_one):
        same("privilege", f"seccomp: {what}", *outcomes(before, step, after), expected, reason)

    test("socket() forbidden", "EPERM", lambda: forbid(SYS_SOCKET))
    test("all families but AF_INET forbidden", "ok", lambda: forbid_but(socket.AF_INET),
         "a list of what is allowed must name AF_KOPI")
    test("AF_KOPI forbidden", "ok", lambda: forbid(SYS_SOCKET, 0, kopi.AF_KOPI),
         "a list of what is forbidden must name AF_KOPI")
    test("AF_INET forbidden", "EPERM", lambda: forbid(SYS_SOCKET, 0, socket.AF_INET),
         "a list of what is forbidden must name AF_KOPI")
    test("sending calls forbidden", "EPERM",
         lambda: (forbid(SYS_SENDTO), forbid(SYS_SENDMSG)),
         "a flow sends by its ring, and by the system call ioctl()", connected, send_one)
    test("ioctl() forbidden", "ok", lambda: forbid(SYS_IOCTL),
         "a flow sends by its ring, and by the system call ioctl()", connected, send_one)
    test("the doorbell forbidden", "ok", lambda: forbid(SYS_IOCTL, 1, kopi.DOORBELL),
         "a flow sends by its ring, and by the system call ioctl()", connected, send_one)


def landlock(handled, *rules):
    """From now on only these accesses to ports are allowed, of those that are handled."""
    call = kopi.libc.syscall
    attributes = struct.pack("=QQ", 0, handled)
    ruleset = call(SYS_LANDLOCK_CREATE, attributes, len(attributes), 0)
    if ruleset < 0:
        raise OSError(ctypes.get_errno(), "landlock_create_ruleset")
    for access, port in rules:
        if call(SYS_LANDLOCK_ADD, ruleset, RULE_NET_PORT, struct.pack("=QQ", access, port), 0):
            raise OSError(ctypes.get_errno(), "landlock_add_rule")
    kopi.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if call(SYS_LANDLOCK_RESTRICT, ruleset, 0):
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")


def landlocked():
    """Landlock's rules on ports are heeded, by the rings too."""
    here, there = (ADDRESSES[4]["host"], SUBJECT_PORT), (ADDRESSES[4]["peer"], PEER_PORT)
    other = (ADDRESSES[4]["peer"], PEER_PORT + 1)

    def test(what, expected, handled, rules, after, before=lambda kind: kind(4)):
        same("privilege", f"Landlock: {what}",
             *outcomes(before, lambda: landlock(handled, *rules), after), expected)

    def bound(kind):
        subject = kind(4)
        subject.bind(here)
        return subject

    send = ((LANDLOCK_SEND_UDP, PEER_PORT),)
    test("bind", "EACCES", LANDLOCK_BIND_UDP, (), lambda subject: subject.bind(here))
    test("bind to an allowed port", "ok", LANDLOCK_BIND_UDP, ((LANDLOCK_BIND_UDP, SUBJECT_PORT),),
         lambda subject: subject.bind(here))
    test("connect", "EACCES", LANDLOCK_SEND_UDP, send, lambda subject: subject.connect(other))
    test("connect to an allowed port", "ok", LANDLOCK_SEND_UDP, send,
         lambda subject: subject.connect(there))
    test("send", "EACCES", LANDLOCK_SEND_UDP, send, lambda subject: send_one(subject, other), bound)
    test("send to an allowed port", "ok", LANDLOCK_SEND_UDP, send,
         lambda subject: send_one(subject, there), bound)
    test("send, connected before", "ok", LANDLOCK_SEND_UDP, (), send_one, connected)
    test("send elsewhere, connected before", "EACCES", LANDLOCK_SEND_UDP, send,
         lambda subject: send_one(subject, other), connected)
    test("send without a port", "EACCES", LANDLOCK_BIND_UDP, (), lambda subject: send_one(subject, there))


def user_namespaces():
    """What a user may do who is the superuser of a user namespace."""
    here = ("0.0.0.0", 80)
    attempts = {
        "bind to port 80": lambda subject: subject.bind(here),
        "SO_MARK": lambda subject: subject.sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 5),
        "SO_PRIORITY 7": lambda subject: subject.sock.setsockopt(
            socket.SOL_SOCKET, socket.SO_PRIORITY, 7),
        "IP_TRANSPARENT": lambda subject: subject.sock.setsockopt(
            socket.IPPROTO_IP, IP_TRANSPARENT, 1),
        "SO_RCVBUFFORCE": lambda subject: subject.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 20),
    }
    expected = {
        0: ("EACCES", "EPERM", "EPERM", "EPERM", "EPERM"),
        CLONE_NEWNET: ("ok", "ok", "ok", "ok", "EPERM"),
    }

    def enter(flags):
        os.setgid(1002)
        os.setuid(1002)
        if kopi.libc.unshare(CLONE_NEWUSER | flags):
            raise OSError(ctypes.get_errno(), "unshare")

    for flags, results in expected.items():
        where = "of its own network" if flags else "of the host's network"
        for (what, attempt), result in zip(attempts.items(), results):
            same("privilege", f"a user namespace {where}: {what}",
                 *outcomes(None, lambda flags=flags: enter(flags),
                           lambda kind, attempt=attempt: attempt(Bare(kind))), result)


class Bare:
    """A socket of either kind without what needs a privilege of its own."""

    def __init__(self, kind):
        self.sock = udp() if kind is SUBJECTS[0] else kopi.flow()
        self.bind = self.sock.bind
        if kind is not SUBJECTS[0]:
            kopi.Channel(self.sock)


def forbid_but(family):
    """From now on has socket() of all other families give EPERM."""
    raw = b"".join(struct.pack("=HBBI", *each) for each in (
        (0x20, 0, 0, 0), (0x15, 0, 3, SYS_SOCKET), (0x20, 0, 0, 16), (0x15, 1, 0, family),
        (6, 0, 0, SECCOMP_EPERM), (6, 0, 0, SECCOMP_ALLOW)))
    buffer = ctypes.create_string_buffer(raw, len(raw))
    program = ctypes.create_string_buffer(
        struct.pack("=HxxxxxxQ", len(raw) // 8, ctypes.addressof(buffer)), 16)
    kopi.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if kopi.libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program):
        raise OSError(ctypes.get_errno(), "seccomp")


PROFILES = {
    "none": "", "inet": "deny network inet,", "dgram": "deny network inet dgram,",
    "other": "deny network inet stream,",
    **{operation: f"deny network ({operation}) inet dgram," for operation in (
        "create", "bind", "connect", "send", "receive", "setopt", "getopt", "getattr")},
}


def apparmor():
    """What a profile denies to a UDP socket it denies to a flow."""
    def test(what, profile, expected, after, before=None, reason=""):
        same("privilege", f"AppArmor: {what}", *outcomes(before, lambda: confine(profile), after), expected,
             reason)

    def receive(subject):
        if subject.kind == "UDP":
            try:
                subject.sock.recv(1)
            except BlockingIOError:
                pass
        else:
            subject.receive()

    def receive_anew(kind):
        if kind is SUBJECTS[0]:
            sock = udp()
            sock.setblocking(False)
            try:
                sock.recv(1)
            except BlockingIOError:
                pass
        else:
            kopi.Channel()

    for name, expected in (("none", "ok"), ("other", "ok"), ("inet", "EACCES"), ("dgram", "EACCES"),
                         ("create", "EACCES")):
        test(f"profile {name}: socket()", name, expected, open_one)
    for name, expected in (("none", "ok"), ("receive", "EACCES")):
        test(f"profile {name}: receiving", name, expected, receive_anew)
    test("profile receive, entered later: receiving", "receive", "EACCES", receive, connected,
         "a region that is mapped stays so, and what comes to it is received by no call")
    for name, expected in (("none", "ok"), ("send", "EACCES"), ("inet", "EACCES")):
        test(f"profile {name}, entered later: sending", name, expected, send_one, connected)
    test("profile bind", "bind", "EACCES",
         lambda subject: subject.bind((ADDRESSES[4]["host"], SUBJECT_PORT)), lambda kind: kind(4))
    test("profile connect", "connect", "EACCES",
         lambda subject: subject.connect((ADDRESSES[4]["peer"], PEER_PORT)), lambda kind: kind(4))
    test("profile setopt", "setopt", "EACCES",
         lambda subject: subject.sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 1),
         lambda kind: kind(4))
    test("profile getopt", "getopt", "EACCES", lambda subject: subject.error(),
         lambda kind: kind(4))
    test("profile getattr", "getattr", "EACCES", lambda subject: subject.sock.getsockname(),
         lambda kind: kind(4))


def others():
    """What isn't an exchange of datagrams."""
    with namespace("host"):
        seccomp()
        landlocked()
        user_namespaces()
        with profiles(PROFILES):
            apparmor()


run("privilege", POLICIES, others)
