#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What stops a process's packets stops them when an engine sends: users, capabilities, security
modules, netfilter, rules by program; and what the process gives up the engine gives up."""

import array
import contextlib
import ctypes
import errno
import os
import socket
import struct

import kopi
from apparmor import confine, profiles
from control import add, ask, family
from equivalence import run_nft
from kopi import ENGINE, Channel, become, check, finish, wait_until
from linux import LANDLOCK_SEND_UDP, PR_SET_NO_NEW_PRIVS, SYS_LANDLOCK_CREATE, SYS_LANDLOCK_RESTRICT

ALICE, BOB = 1001, 1002
MARK = {"mark": 5}

ynl = family()
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain.settimeout(20)
plain.bind(("127.0.0.1", 0))


class Sender:
    """A channel that an engine looks at, and the doorbell rung once for that."""

    def __init__(self):
        self.channel = Channel(flags=ENGINE)
        self.channel.sock.bind(("127.0.0.1", 0))
        self.ring()

    def ring(self):
        self.channel.bell()
        assert self.is_polled(), "the engine doesn't look"

    def is_polled(self):
        flags = self.channel.tx.flags
        return wait_until(lambda: self.channel.tx.get(flags) & 1 == 0)

    def is_left(self):
        flags = self.channel.tx.flags
        return wait_until(lambda: self.channel.tx.get(flags) & 1)

    def submit(self, **meta):
        """Writes a datagram, and nothing else."""
        self.channel.send(0, b"by engine", plain.getsockname(), meta=meta or None)

    def send(self, **meta):
        """Writes one; gives what became of it, by the name of an errno."""
        self.submit(**meta)
        entry = wait_until(self.channel.completion.pop)
        return "nothing" if entry is None else errno.errorcode.get(entry[4], "sent")


def test(what, expected, steps, *arguments):
    """What the steps give must be this, and nothing is received that isn't sent."""
    got = kopi.told_by_child(lambda: steps(*arguments))
    received = 0
    kopi.settle()
    plain.setblocking(False)
    try:
        while plain.recv(99):
            received += 1
    except BlockingIOError:
        pass
    check(f"{what}: {expected}", got == expected and received == expected.split().count("sent"),
          f"{got}; {received} received")


def as_user(uid, meta):
    become(uid)
    return Sender().send(**meta)


def given_up(meta):
    """The channel is made, mapped and rung by the superuser, who then is bob."""
    sender = Sender()
    before = sender.send(**meta)
    become(BOB)
    return f"{before} {sender.send(**meta)} {sender.send()}"


def other_user():
    """The same, as rules see it."""
    sender = Sender()
    before = sender.send()
    become(BOB)
    return f"{before} {sender.send()}"


def capability_dropped():
    """The same with the effective set alone, and back."""
    sender = Sender()
    results = []
    header = struct.pack("=Ii", 0x20080522, 0)
    data = ctypes.create_string_buffer(24)
    kopi.libc.capget(header, data)
    effective, permitted, inheritable, *above = struct.unpack("=6I", data.raw)
    for keep in (effective, effective & ~(1 << 12 | 1 << 13), effective):
        kopi.libc.capset(header, struct.pack("=6I", keep, permitted, inheritable, *above))
        results.append(sender.send(**MARK))
    return " ".join(results)


def landlocked():
    """A domain that the process enters while the engine looks."""
    sender = Sender()
    before = sender.send()
    attributes = struct.pack("=QQ", 0, LANDLOCK_SEND_UDP)
    ruleset = kopi.libc.syscall(SYS_LANDLOCK_CREATE, attributes, len(attributes), 0)
    kopi.libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if ruleset < 0 or kopi.libc.syscall(SYS_LANDLOCK_RESTRICT, ruleset, 0):
        raise OSError(ctypes.get_errno(), "landlock")
    return f"{before} {sender.send()}"


def confined(profile):
    """A profile that the process enters while the engine looks."""
    sender = Sender()
    before = sender.send()
    confine(profile)
    return f"{before} {sender.send()}"


def ruled(change):
    """A rule that comes while the engine looks."""
    become(BOB)
    sender = Sender()
    before = sender.send()
    os.write(to_root, b"x")
    os.read(from_root, 1)
    return f"{before} {sender.send()} {sender.channel.stats()[change]}"


def passed_on():
    """Another process connects the flow, and so has it; but it is bob who writes to the rings."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        _, ancillary, _, _ = theirs.recvmsg(1, socket.CMSG_SPACE(4))
        if ancillary:
            sock = kopi.Flow(fileno=array.array("i", ancillary[0][2])[0])
            become(ALICE)
            with contextlib.suppress(PermissionError):
                sock.connect(plain.getsockname())
            theirs.send(b"connected")
            theirs.recv(1)
        os._exit(0)
    theirs.close()
    become(BOB)
    sender = Sender()
    before = sender.send()
    ours.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                           array.array("i", [sender.channel.sock.fileno()]))])
    ours.recv(99)
    after = sender.send()
    ours.send(b".")
    os.waitpid(pid, 0)
    return f"{before} {after}"


def orphaned():
    """Who mapped the channel and rang ends; a child, who has it mapped too, must ring."""
    told, tell = os.pipe()
    middle = os.fork()
    if middle == 0:
        sender = Sender()
        if os.fork() == 0:
            become(BOB)
            left = sender.is_left()
            sender.ring()
            os.write(tell, f"{bool(left)} {sender.send(**MARK)} {sender.send()}".encode())
        os._exit(0)
    os.close(tell)
    os.waitpid(middle, 0)
    with os.fdopen(told) as pipe:
        return pipe.read()


ask(ynl, "engine-set", {"cpu": [max(os.sched_getaffinity(0))], "idle": 3_600_000_000})

test("the superuser's mark", "sent", as_user, 0, MARK)
test("bob's mark", "EPERM", as_user, BOB, MARK)
test("bob's datagram", "sent", as_user, BOB, {})
test("a mark, before and after the superuser is bob", "sent EPERM sent", given_up, MARK)
test("a mark with, without and again with the capability", "sent EPERM sent", capability_dropped)
test("Landlock, entered later", "sent EACCES", landlocked)

with profiles({"engine": "deny network (send) inet dgram,"}):
    test("AppArmor, entered later", "sent EACCES", confined, "engine")

run_nft(f"add table inet t; add chain inet t out {{ type filter hook output priority 0; }}; "
        f"add rule inet t out udp dport {plain.getsockname()[1]} meta skuid bob counter drop")
test("nft: meta skuid bob drop, bob", "EPERM", as_user, BOB, {})
test("nft: meta skuid bob drop, alice", "sent", as_user, ALICE, {})
run_nft("delete table inet t")

for what, fields, expected in (
        ("user", {"uid_min": BOB, "verdict": "deny"}, "sent EACCES 1"),
        ("program", {"exe": os.path.realpath("/proc/self/exe"), "verdict": "deny"}, "sent EACCES 1"),
        ("another program", {"exe": "/bin/true", "verdict": "deny"}, "sent sent 0")):
    (told, to_root), (from_root, tell) = os.pipe(), os.pipe()
    watcher = os.fork()
    if watcher == 0:
        os.read(told, 1)
        add(ynl, **fields)
        os.write(tell, b"x")
        os._exit(0)
    test(f"a rule by {what}, added while the engine looks", expected, ruled, "tx_drop_rule")
    os.waitpid(watcher, 0)
    ask(ynl, "ruleset-set")

add(ynl, uid_min=BOB, verdict="deny", direction={"out"})
test("a flow that another process connected, by who is denied", "EACCES EACCES", passed_on)
ask(ynl, "ruleset-set")
add(ynl, uid_min=ALICE, verdict="deny", direction={"out"})
test("a flow that who is denied tried to connect, by another process", "sent sent", passed_on)
ask(ynl, "ruleset-set")

ask(ynl, "ruleset-set", {"default": "deny", "rule": [{"uid-min": 0, "verdict": "allow"}]})
test("rules for the superuser, who is bob then, and doesn't ring", "sent EACCES", other_user)
ask(ynl, "ruleset-set", {"default": "allow"})

test("who mapped the channel ends, another rings", "True EPERM sent", orphaned)
ask(ynl, "engine-set")
finish()
