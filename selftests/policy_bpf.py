#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""BPF programs of cgroups, sockets, netfilter and tc treat a KOPI flow as a UDP socket."""

import ctypes
import os
import socket
import struct

import bpf
from equivalence import (ADDRESSES, NONE, PEER_PORT, SUBJECT_PORT, Policy, UdpSubject, chain,
                         nft_counters, nft_table, run, sh, together, undo)

GROUP = "bpf"
OTHER_PORT = 7999
SO_ATTACH_FILTER, SO_ATTACH_BPF = 26, 50
SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF = 51, 52
NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT = 1, 3
NFPROTO = {4: 2, 6: 10}


def cgroup(*programs):
    """A setup that attaches programs to the test's cgroup: (program, kind)."""
    def setup():
        path = f"/sys/fs/cgroup/{GROUP}"
        os.makedirs(path, exist_ok=True)
        undo(os.rmdir, path)
        bpf.update("seen", 0, bytes(40))
        group = os.open(path, os.O_RDONLY)
        undo(os.close, group)
        for program, kind in programs:
            undo(bpf.attach(group, program, f"cgroup_{kind}"))
    return setup


def both(program, kind):
    """A program for each version, with 4 and 6 in place of @."""
    return [(program.replace("@", version), kind.replace("@", version)) for version in "46"]


def seen():
    """What the programs counted, and what they saw of the socket."""
    packets, size, uid, group, mark = struct.unpack("=5Q", bpf.lookup("seen", 0, 40))
    return packets, size, uid, group == os.stat(f"/sys/fs/cgroup/{GROUP}").st_ino, mark


def attached(option, value):
    """What sets a socket option of SOL_SOCKET on the subject."""
    return lambda subject: subject.sock.setsockopt(socket.SOL_SOCKET, option, value)


def socket_program(option, name):
    """What attaches a pinned program to the subject's socket."""
    def prepare(subject):
        program = bpf.pinned(name)
        subject.sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("=i", program))
        os.close(program)
    return prepare


# ld len; jge #100, pass; ret 0; pass: ret -1
CLASSIC = [(0x80, 0, 0, 0), (0x35, 1, 0, 100), (6, 0, 0, 0), (6, 0, 0, 0xFFFFFFFF)]
_classic = b"".join(struct.pack("=HBBI", *each) for each in CLASSIC)


def classic_filter(subject):
    """SO_ATTACH_FILTER of a program that drops small packets."""
    code = ctypes.create_string_buffer(_classic, len(_classic))
    subject.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER,
                            struct.pack("=HxxxxxxQ", len(CLASSIC), ctypes.addressof(code)))


def netfilter(hook):
    """A setup that attaches the netfilter program to a hook."""
    def setup():
        for version in (4, 6):
            made = bpf.link("netfilter_drop", 0, "netfilter",
                            struct.pack("=IIiI", NFPROTO[version], hook, -100, 0))
            undo(os.close, made)
    return setup


def passed():
    """What a tcx program counted: packets and bytes."""
    return struct.unpack_from("=2Q", bpf.lookup("seen", 0, 40))


def tcx(program, way):
    """A setup that attaches a program to eth0 by tcx."""
    def setup():
        bpf.update("seen", 0, bytes(40))
        made = bpf.link(program, socket.if_nametoindex("eth0"), f"tcx_{way}")
        undo(os.close, made)
    return setup


def steer(subject):
    """sk_lookup sends what comes to another port to the subject."""
    space = os.open("/proc/self/ns/net", os.O_RDONLY)
    undo(os.close, bpf.link("sk_lookup_steer", space, "sk_lookup"))
    os.close(space)
    bpf.update("sockets", 0, struct.pack("=Q", subject.sock.fileno()))


def share(subject):
    """Another UDP socket is in the subject's reuseport group, before it."""
    other = UdpSubject(subject.family)
    undo(other.close)
    for each in (other, subject):
        each.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    other.bind((ADDRESSES[subject.family]["host"], SUBJECT_PORT))
    return other


def reuseport(program, second):
    """A reuseport group of an ordinary socket and the subject, of which the program takes the
    second, or the first."""
    def prepare(subject):
        other = share(subject)
        if program:
            fd = bpf.pinned(program)
            other.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF,
                                  struct.pack("=i", fd))
            os.close(fd)
        else:
            code = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, int(second)), 8)
            other.sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF,
                                  struct.pack("=HxxxxxxQ", 1, ctypes.addressof(code)))
    return prepare


def in_array(subject):
    """The subject is in the array that the reuseport program takes it from."""
    reuseport("reuseport_second", True)(subject)
    subject.after_bind = lambda: bpf.update("group", 1, struct.pack("=Q", subject.sock.fileno()))


def priority_reads(value):
    """Checks what getsockopt says of SO_PRIORITY."""
    def prepare(subject):
        got = subject.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)
        if got != value:
            raise RuntimeError(f"SO_PRIORITY is {got}")
    return prepare


PRIORITY = ((socket.SOL_SOCKET, socket.SO_PRIORITY, 3),)
IN = {"cgroup": GROUP}
LOOSE = {"connected": False}
SINGLE = {"trains": (False,)}


def to_other(end):
    """An address at the other port."""
    return lambda family: (ADDRESSES[family][end], OTHER_PORT)


bpf.load()
run("BPF", [
    Policy("cgroup egress: count, see user, cgroup, mark",
           cgroup(("egress_count", "inet_egress")), observe=(seen,), user="bob",
           **IN),
    Policy("cgroup egress: drop", cgroup(("egress_drop", "inet_egress")), observe=(seen,),
           out=NONE, errors=("EPERM",), **IN),
    Policy("cgroup ingress: count", cgroup(("ingress_count", "inet_ingress")), observe=(seen,),
           **IN),
    Policy("cgroup ingress: drop", cgroup(("ingress_drop", "inet_ingress")), observe=(seen,),
           into=NONE, **IN),
    Policy("sock_create: refuse", cgroup(("sock_create_refuse", "inet_sock_create")),
           errors=("EPERM",), **IN),
    Policy("sock_create: set mark", together(
        cgroup(("sock_create_mark", "inet_sock_create"), ("egress_count", "inet_egress")),
        nft_table(chain("filter hook output priority 0", "meta mark 77 udp dport 7001 counter"))),
           observe=(seen, nft_counters), **IN),
    Policy("bind: refuse", cgroup(*both("bind@_refuse", "inet@_bind")), errors=("EPERM",), **IN),
    Policy("bind: another port", cgroup(*both("bind@_rewrite", "inet@_bind")),
           subject_at=to_other("host"),
           peer_sends_to=lambda family: (ADDRESSES[family]["host"], SUBJECT_PORT), **IN),
    Policy("connect: refuse", cgroup(*both("connect@_refuse", "inet@_connect")),
           errors=("EPERM",), **IN),
    Policy("connect: another port", cgroup(*both("connect@_rewrite", "inet@_connect")),
           subject_sends_to=to_other("peer"), **IN),
    Policy("sendmsg: refuse", cgroup(*both("sendmsg@_refuse", "udp@_sendmsg")), out=NONE,
           errors=("EPERM",), **LOOSE, **IN),
    Policy("sendmsg: another port", cgroup(*both("sendmsg@_rewrite", "udp@_sendmsg")),
           subject_sends_to=to_other("peer"), **LOOSE, **IN),
    Policy("recvmsg: another source", cgroup(*both("recvmsg@_rewrite", "udp@_recvmsg")),
           observe=(seen,), **SINGLE, **IN),
    Policy("recvmsg: another source, trains", cgroup(*both("recvmsg@_rewrite", "udp@_recvmsg")),
           trains=(True,), **IN),
    Policy("setsockopt: refuse", cgroup(("setsockopt_refuse", "setsockopt")), errors=("EPERM",),
           options=PRIORITY, **IN),
    Policy("getsockopt: another value", cgroup(("getsockopt_change", "getsockopt")),
           prepare=priority_reads(42), **IN),
    Policy("SO_ATTACH_FILTER: drop small ones", prepare=classic_filter, into=32, **SINGLE),
    Policy("SO_ATTACH_BPF: drop small ones",
           prepare=socket_program(SO_ATTACH_BPF, "filter_drop_small"), into=32, **SINGLE),
    Policy("SO_ATTACH_BPF: trim", prepare=socket_program(SO_ATTACH_BPF, "filter_trim"), **SINGLE),
    Policy("netfilter program: drop in output", netfilter(NF_INET_LOCAL_OUT), out=NONE,
           errors=("EPERM",), sentinel=False),
    Policy("netfilter program: drop in input", netfilter(NF_INET_LOCAL_IN), into=NONE,
           out=None, sentinel=False),
    Policy("tcx egress: drop", tcx("tc_drop_peer", "egress"), out=NONE, observe=(passed,)),
    Policy("tcx ingress: drop", tcx("tc_drop_peer", "ingress"), into=NONE, observe=(passed,),
           **SINGLE),
    Policy("tcx ingress: mark", together(tcx("tc_mark", "ingress"), nft_table(
        chain("filter hook input priority 0", "meta mark 9 udp dport 7000 counter drop"))),
           into=NONE, observe=(nft_counters,), **SINGLE),
    Policy("sk_lookup", prepare=lambda subject: setattr(
        subject, "after_bind", lambda: steer(subject)),
           peer_sends_to=to_other("host"), **LOOSE),
    Policy("reuseport, classic: the second", prepare=reuseport(None, True), **LOOSE),
    Policy("reuseport, classic: the first", prepare=reuseport(None, False), into=NONE, **LOOSE),
    Policy("reuseport, eBPF by index", prepare=reuseport("reuseport_index", True), **LOOSE),
    Policy("reuseport, eBPF by array", prepare=in_array, **LOOSE),
])
