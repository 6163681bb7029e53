#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""BPF programs of cgroups, sockets, netfilter and tc treat a KOPI flow as a UDP socket."""

import ctypes
import os
import socket
import struct

import bpf
import kopi
from equivalence import (ADDRESSES, NONE, PEER_PORT, SUBJECT_PORT, Policy, UdpSubject, as_root,
                         chain, nft_counters, nft_table, run, together, undo)
from linux import (SO_ATTACH_BPF, SO_ATTACH_FILTER, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF,
                   SO_COOKIE)
from tc import class_of_subject, htb, on_other, other, remove_other, tc

GROUP = "bpf"
OTHER_PORT = 7999
NF_INET_LOCAL_IN, NF_INET_LOCAL_OUT = 1, 3
NFPROTO = {4: 2, 6: 10}
FACTS = ("packets cookie cgroup ancestor sk_cgroup stored uid family type protocol src_port dst_port "
         "sk_mark sk_priority mark priority state bound_dev").split()
_subject = {}


def forget():
    """Sets to 0 what programs counted."""
    bpf.update("seen", 0, bytes(40))
    bpf.update("facts", 0, bytes(96))


def remember(subject):
    """Keeps the subject for the observers."""
    _subject["is"] = subject


def mark(subject):
    """Keeps the subject, and marks its packets."""
    remember(subject)
    with as_root():
        subject.sock.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 42)


def cookie():
    """The subject's SO_COOKIE."""
    return struct.unpack("=Q", _subject["is"].sock.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]


def facts():
    """What programs found out about the subject; of cookie and cgroup, whether they are right."""
    found = dict(zip(FACTS, struct.unpack("=6Q12I", bpf.lookup("facts", 0, 96))))
    group = os.stat(f"/sys/fs/cgroup/{GROUP}").st_ino
    if found["packets"] and found["cookie"] not in (0, cookie()):
        raise RuntimeError("another socket's cookie")
    for name, value in (("cookie", cookie()), ("cgroup", group), ("ancestor", group),
                        ("sk_cgroup", group)):
        found[name] = found[name] == value
    return found


def cgroup(*programs):
    """A setup that attaches programs to the test's cgroup: (program, kind)."""
    def setup():
        path = f"/sys/fs/cgroup/{GROUP}"
        os.makedirs(path, exist_ok=True)
        undo(os.rmdir, path)
        forget()
        bpf.update("wanted", 0, struct.pack("=Q", os.stat(path).st_ino))
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
        forget()
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
        forget()
        made = bpf.link(program, socket.if_nametoindex("eth0"), f"tcx_{way}")
        undo(os.close, made)
    return setup


def steer(subject):
    """sk_lookup sends what comes to another port to the subject."""
    space = os.open("/proc/self/ns/net", os.O_RDONLY)
    undo(os.close, bpf.link("sk_lookup_steer", space, "sk_lookup"))
    os.close(space)
    bpf.update("sockets", 0, struct.pack("=Q", subject.sock.fileno()))


def share(subject, kind=UdpSubject):
    """Another socket is in the subject's reuseport group, before it."""
    other = (kind or type(subject))(subject.family)
    undo(other.close)
    for each in (other, subject):
        each.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    other.bind((ADDRESSES[subject.family]["host"], SUBJECT_PORT))
    return other


def reuseport(program, second, kind=UdpSubject):
    """A reuseport group of an ordinary socket, or one of another kind, and the subject, of which the
    program takes the second, or the first."""
    def prepare(subject):
        other = share(subject, kind)
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


def to_other_device():
    """Tells programs which device to send to."""
    other()
    bpf.update("wanted", 1, struct.pack("=Q", socket.if_nametoindex("other")))


def clsact(way, program):
    """A setup that attaches a program by clsact's own filter."""
    def setup():
        forget()
        tc("qdisc add @ clsact",
           f"filter add @ {way} bpf direct-action object-pinned {bpf.PINS}/{program}")()
    return setup


def assign(subject):
    """tc gives what comes to another port to the subject."""
    subject.after_bind = lambda: bpf.update("sockets", 0, struct.pack("=Q", subject.sock.fileno()))


def names():
    """Ports that the subject says are its own, and its peer's."""
    found = []
    for function in (kopi.libc.getsockname, kopi.libc.getpeername):
        name, size = ctypes.create_string_buffer(28), ctypes.c_int(28)
        if function(_subject["is"].sock.fileno(), name, ctypes.byref(size)):
            raise OSError(ctypes.get_errno(), "no name")
        found.append(kopi.unpack_address(name.raw)[1])
    if found != [SUBJECT_PORT + 1, PEER_PORT + 1]:
        raise RuntimeError(f"the ports are {found}")
    return found


def options_read_back():
    """How often a program set the subject's options, what it read, and whether it knew the socket."""
    times, tos, priority, got, mark = struct.unpack("=5Q", bpf.lookup("seen", 0, 40))
    return times, tos, priority, got == cookie(), mark


def open_and_close(subject):
    """Another one of the subject's kind comes and goes."""
    type(subject)(subject.family).close()


def opened_and_closed():
    """How often programs saw a socket come, and go."""
    counts = struct.unpack_from("=2Q", bpf.lookup("seen", 0, 40))
    if counts != (2, 1):
        raise RuntimeError(f"{counts[0]} came, {counts[1]} went")
    return counts


PRIORITY = ((socket.SOL_SOCKET, socket.SO_PRIORITY, 3),)
IN = {"cgroup": GROUP}
LOOP = {4: "127.0.0.1", 6: "::1"}
LOOPBACK = {"subject_at": lambda family: (LOOP[family], SUBJECT_PORT),
            "peer_at": lambda family: (LOOP[family], PEER_PORT), "peer_namespace": "host"}
marked_5 = nft_table(chain("filter hook output priority 0",
                           "meta mark 5 meta priority 0:4 udp dport 7001 counter"))
LOOSE = {"connected": False}
SINGLE = {"gso": (False,)}


def to_other(end):
    """An address at the other port."""
    return lambda family: (ADDRESSES[family][end], OTHER_PORT)


bpf.load()
run("BPF", [
    Policy("cgroup egress: count, see user, cgroup, mark",
           cgroup(("egress_count", "inet_egress")), observe=(seen,), user="bob",
           **IN),
    Policy("cgroup egress: what helpers say of the socket",
           cgroup(("egress_facts", "inet_egress")), observe=(facts,), prepare=mark, user="bob",
           options=PRIORITY, **IN),
    Policy("cgroup ingress: what helpers say of the socket",
           cgroup(("ingress_facts", "inet_ingress")), observe=(facts,), prepare=mark, user="bob",
           options=PRIORITY, **IN),
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
    Policy("sock_create, sock_release: count", cgroup(
        ("sock_create_count", "inet_sock_create"), ("sock_release_count", "inet_sock_release")),
           prepare=open_and_close, observe=(opened_and_closed,), **IN),
    Policy("post_bind: refuse", cgroup(*both("post_bind@_refuse", "inet@_post_bind")),
           errors=("EPERM",), **IN),
    Policy("getsockname, getpeername: other ports", cgroup(
        *both("getsockname@_change", "inet@_getsockname"),
        *both("getpeername@_change", "inet@_getpeername")),
           prepare=remember, observe=(names,), **IN),
    Policy("bind: refuse", cgroup(*both("bind@_refuse", "inet@_bind")), errors=("EPERM",), **IN),
    Policy("bind: another port", cgroup(*both("bind@_rewrite", "inet@_bind")),
           subject_at=to_other("host"),
           peer_sends_to=lambda family: (ADDRESSES[family]["host"], SUBJECT_PORT), **IN),
    Policy("connect: refuse", cgroup(*both("connect@_refuse", "inet@_connect")),
           errors=("EPERM",), **IN),
    Policy("connect: another port", cgroup(*both("connect@_rewrite", "inet@_connect")),
           subject_sends_to=to_other("peer"), **IN),
    Policy("connect: bpf_setsockopt of TOS, mark and priority", together(
        cgroup(*both("connect@_options", "inet@_connect")), marked_5),
           prepare=remember, observe=(options_read_back, nft_counters), **IN),
    Policy("sendmsg: bpf_setsockopt of TOS, mark and priority", together(
        cgroup(*both("sendmsg@_options", "udp@_sendmsg")), marked_5),
           prepare=remember, observe=(options_read_back, nft_counters), **LOOSE, **IN),
    Policy("recvmsg: bpf_setsockopt of TOS, mark and priority",
           cgroup(*both("recvmsg@_options", "udp@_recvmsg")),
           prepare=remember, observe=(options_read_back,), **SINGLE, **IN),
    Policy("sendmsg: refuse", cgroup(*both("sendmsg@_refuse", "udp@_sendmsg")), out=NONE,
           errors=("EPERM",), **LOOSE, **IN),
    Policy("sendmsg: another port", cgroup(*both("sendmsg@_rewrite", "udp@_sendmsg")),
           subject_sends_to=to_other("peer"), **LOOSE, **IN),
    Policy("recvmsg: another source", cgroup(*both("recvmsg@_rewrite", "udp@_recvmsg")),
           observe=(seen,), **SINGLE, **IN),
    Policy("recvmsg: another source, GSO packets", cgroup(*both("recvmsg@_rewrite", "udp@_recvmsg")),
           gso=(True,), **IN),
    Policy("setsockopt: refuse", cgroup(("setsockopt_refuse", "setsockopt")), errors=("EPERM",),
           options=PRIORITY, **IN),
    Policy("getsockopt: another value", cgroup(("getsockopt_change", "getsockopt")),
           prepare=priority_reads(42), **IN),
    Policy("SO_ATTACH_FILTER: drop small ones", prepare=classic_filter, into=32, **SINGLE),
    Policy("SO_ATTACH_BPF: drop small ones",
           prepare=socket_program(SO_ATTACH_BPF, "filter_drop_small"), into=32, **SINGLE),
    Policy("SO_ATTACH_BPF: trim", prepare=socket_program(SO_ATTACH_BPF, "filter_trim"), **SINGLE),
    Policy("SO_ATTACH_BPF: trim to nothing",
           prepare=socket_program(SO_ATTACH_BPF, "filter_trim_all"), **SINGLE),
    Policy("SO_ATTACH_BPF: drop, GSO packets", prepare=socket_program(SO_ATTACH_BPF, "filter_drop"),
           into=NONE, gso=(True,)),
    # On loopback a GSO packet arrives as it was sent: there are three, and of each the start is left.
    Policy("SO_ATTACH_BPF: trim, GSO packets", prepare=socket_program(SO_ATTACH_BPF, "filter_trim"),
           into=3, gso=(True,), **LOOPBACK),
    Policy("SO_ATTACH_BPF: trim to nothing, GSO packets",
           prepare=socket_program(SO_ATTACH_BPF, "filter_trim_all"), into=3, gso=(True,),
           **LOOPBACK),
    Policy("netfilter program: drop in output", netfilter(NF_INET_LOCAL_OUT), out=NONE,
           errors=("EPERM",), observe=(passed,)),
    Policy("netfilter program: drop in input", netfilter(NF_INET_LOCAL_IN), into=NONE,
           observe=(passed,), **SINGLE),
    Policy("tcx egress: what helpers say of the socket",
           together(cgroup(), tcx("tc_facts", "egress")), observe=(facts,), prepare=mark,
           user="bob", options=PRIORITY, **IN),
    Policy("tcx ingress: look up the socket",
           together(cgroup(), tcx("tc_look_up", "ingress")), observe=(facts,), prepare=mark,
           user="bob", options=PRIORITY, **LOOSE, **SINGLE, **IN),
    Policy("tcx egress: htb's class by cgroup", together(
        cgroup(), htb(), tcx("tc_priority_of_cgroup", "egress")),
           observe=(passed, class_of_subject), **IN),
    Policy("htb by a BPF classifier", together(
        cgroup(), htb(f"filter add @ parent 1: bpf object-pinned {bpf.PINS}/tc_match_cgroup "
                      "flowid 1:20")),
           observe=(passed, class_of_subject), **IN),
    Policy("clsact BPF egress: drop", clsact("egress", "tc_drop_peer"), out=NONE, observe=(passed,)),
    Policy("clsact BPF ingress: drop", clsact("ingress", "tc_drop_peer"), into=NONE,
           observe=(passed,), **SINGLE),
    Policy("tcx egress: redirect", together(to_other_device, tcx("tc_redirect", "egress")), out=NONE,
           observe=(passed, on_other), **SINGLE),
    Policy("tcx egress: mirror", together(to_other_device, tcx("tc_mirror", "egress")),
           observe=(passed, on_other), **SINGLE),
    Policy("tcx ingress: mirror", together(to_other_device, tcx("tc_mirror", "ingress")),
           observe=(passed, on_other), **SINGLE),
    Policy("tcx egress: another port", tcx("tc_port_of_peer", "egress"),
           subject_sends_to=to_other("peer"), observe=(passed,), **LOOSE, **SINGLE),
    Policy("tcx egress: another port, GSO packets", tcx("tc_port_of_peer", "egress"),
           subject_sends_to=to_other("peer"), observe=(passed,), out=NONE, gso=(True,),
           note="as with NAT of GSO packets: a wrong checksum, UDP_SEGMENT's as well", **LOOSE),
    Policy("tcx ingress: another port", tcx("tc_port_of_subject", "ingress"),
           peer_sends_to=to_other("host"), observe=(passed,), **LOOSE, **SINGLE),
    Policy("tcx ingress: bpf_sk_assign", tcx("tc_assign", "ingress"), prepare=assign,
           peer_sends_to=to_other("host"), observe=(passed,), **LOOSE, **SINGLE),
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
    Policy("reuseport, eBPF by index, all of one kind",
           prepare=reuseport("reuseport_index", True, None), **LOOSE),
    Policy("reuseport, eBPF by index", prepare=reuseport("reuseport_index", True), **LOOSE),
    Policy("reuseport, eBPF by array", prepare=in_array, **LOOSE),
], remove_other)
