#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What a user may do with a UDP socket he may do with a KOPI flow, and no more."""

import ctypes
import os
import socket
import struct

import kopi
from equivalence import ADDRESSES, NONE, SUBJECT_PORT, Policy, do, run, sh, undo

IP_TRANSPARENT, IP_FREEBIND, IPV6_TRANSPARENT = 19, 15, 75
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
SECCOMP_ALLOW, SECCOMP_EPERM = 0x7FFF0000, 0x00050001
SYS_SOCKET, SYS_IOCTL = 41, 16
BOB = {"user": "bob"}
V4 = {"families": (4,)}
SINGLE = {"trains": (False,)}
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


POLICIES = [
    Policy("a port below 1024", subject_at=low_port, **BOB, **REFUSED),
    Policy("a port below 1024, the superuser", subject_at=low_port, **SINGLE),
    Policy("a port below 1024, where the sysctl allows it",
           do("sysctl -qw net.ipv4.ip_unprivileged_port_start=500",
              undo_with=("sysctl -qw net.ipv4.ip_unprivileged_port_start=1024",)),
           subject_at=low_port, **BOB, **SINGLE),
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
    Policy("SO_RCVBUFFORCE", **option(socket.SOL_SOCKET, 33, 1 << 20), **BOB, **REFUSED),
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
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def udp():
    """Opens a UDP socket."""
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def seccomp():
    """What seccomp can see of a flow is its system calls."""
    kopi.check("seccomp: socket() forbidden",
               in_child(lambda: forbid(SYS_SOCKET), udp) == 1
               and in_child(lambda: forbid(SYS_SOCKET), kopi.flow) == 1)
    kopi.check("seccomp: the family's number forbidden",
               in_child(lambda: forbid(SYS_SOCKET, 0, kopi.AF_KOPI), kopi.flow) == 1
               and in_child(lambda: forbid(SYS_SOCKET, 0, kopi.AF_KOPI), udp) == 0)
    kopi.check("seccomp: all but AF_INET forbidden forbids a flow",
               in_child(lambda: forbid_but(socket.AF_INET), udp) == 0
               and in_child(lambda: forbid_but(socket.AF_INET), kopi.flow) == 1)
    kopi.check("seccomp: the doorbell forbidden",
               in_child(lambda: forbid(SYS_IOCTL, 1, kopi.DOORBELL),
                        lambda: kopi.Channel().bell()) == 1)


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


def apparmor():
    """A profile that denies the Internet denies flows, too."""
    if not os.path.isdir("/sys/kernel/security/apparmor"):
        sh("mount -t securityfs securityfs /sys/kernel/security", False)
    profiles = {
        "no-inet": "deny network inet,",
        "no-inet-dgram": "deny network inet dgram,",
        "no-receive": "deny network (receive) inet dgram,",
        "free": "",
    }
    text = "abi <abi/4.0>,\n" + "".join(
        f"profile kopi-{name} flags=(attach_disconnected) {{ file, capability, unix, signal, "
        f"network, {rule} }}\n" for name, rule in profiles.items())
    with open("/tmp/profiles", "w", encoding="ascii") as file:
        file.write(text)
    sh("apparmor_parser -r -K /tmp/profiles")
    undo(sh, "apparmor_parser -R -K /tmp/profiles")

    def confine(name):
        def step():
            with open("/proc/self/attr/apparmor/current", "w", encoding="ascii") as current:
                current.write(f"changeprofile kopi-{name}")
        return step

    def receive():
        sock = udp()
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        try:
            sock.recv(1)
        except BlockingIOError:
            pass
    for name in profiles:
        same = [in_child(confine(name), step) for step in (udp, kopi.flow)]
        kopi.check(f"AppArmor {name}: socket()", same[0] == same[1], same)
        same = [in_child(confine(name), step) for step in (receive, kopi.Channel)]
        kopi.check(f"AppArmor {name}: receiving", same[0] == same[1]
                   and (same[0] == 0) == (name == "free"), same)


def others():
    """What isn't an exchange of datagrams."""
    seccomp()
    apparmor()


run("privilege", POLICIES, others)
