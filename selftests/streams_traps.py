#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What takes a socket's operations over, or copies them, is refused by streams, and harms no other socket."""

import errno
import fcntl
import os
import socket
import struct
import subprocess

import bpf
import kopi
from control import NlError, YnlFamily
from kopi import TCP6, attempt, check, connection, fails, listener, plain_stream, stream
from linux import IPV6_ADDRFORM, SOL_TLS, TCP_ULP, TLS_RX, TLS_TX
from memory import module_users

# struct tls12_crypto_info_aes_gcm_128: TLS 1.2, its cipher, iv, key, salt, sequence.
CRYPTO = struct.pack("=HH8s16s4s8s", 0x0303, 51, b"i" * 8, b"k" * 16, b"salt", bytes(8))
AF_KCM, SIOCKCMATTACH = 41, 0x89E0
ULPS = ("tls", "espintcp", "mptcp", "smc", "nothing")


def forget_tls():
    """The module's tables are made anew, as when the machine has just booted."""
    # Bonding uses it, too.
    subprocess.run(["modprobe", "-qr", "--remove-holders", "tls"], check=False)
    with open("/proc/modules", encoding="ascii") as modules:
        check("no socket has used kTLS yet", not any(line.startswith("tls ") for line in modules))
    subprocess.run(["modprobe", "tls"], check=True)


def refuses(what, sock):
    """No ULP gets onto the socket."""
    for name in ULPS:
        fails(f"{what}: TCP_ULP {name}", errno.ENOPROTOOPT,
              lambda name=name: sock.setsockopt(socket.IPPROTO_TCP, TCP_ULP, name.encode()))


def ulp_is_refused():
    """In each state, by each version of IP."""
    for proto in (0, TCP6):
        version = 6 if proto else 4
        with stream(proto) as new, listener(proto) as waits:
            refuses(f"new, IPv{version}", new)
            refuses(f"listening, IPv{version}", waits)
        one, other = connection(proto)
        with one, other:
            refuses(f"connected, IPv{version}", one)
            refuses(f"accepted, IPv{version}", other)
            one.sendall(b"plain")
            check(f"data go on, IPv{version}", other.recv(10) == b"plain")


def ktls_is_unharmed():
    """Sockets that aren't KOPI's speak TLS by the kernel."""
    users = module_users()
    for proto in (0, TCP6):
        one, other = connection(proto, make=plain_stream)
        for sock in (one, other):
            sock.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
        one.setsockopt(SOL_TLS, TLS_TX, CRYPTO)
        other.setsockopt(SOL_TLS, TLS_RX, CRYPTO)
        for number in range(20):
            sent = b"%d " % number * 500
            one.sendall(sent)
            kopi.expect(receive(other, len(sent)) == sent, "by TLS")
        one.shutdown(socket.SHUT_RDWR)
        for sock in (one, other):
            sock.close()
        check(f"kTLS of plain sockets works, IPv{6 if proto else 4}", True)
    check("they hold nothing of KOPI's", module_users() == users, module_users())


def addrform_is_refused():
    """IPV6_ADDRFORM puts IPv4's operations in place of IPv6's."""
    with listener(TCP6, ("::", 0)) as waits, plain_stream(0) as one:
        one.connect(("127.0.0.1", waits.getsockname()[1]))
        other, _ = waits.accept()
        with other:
            fails("IPV6_ADDRFORM", errno.ENOPROTOOPT, lambda: other.setsockopt(
                socket.IPPROTO_IPV6, IPV6_ADDRFORM, socket.AF_INET))


def receive(sock, size):
    """That many bytes."""
    got = b""
    while len(got) < size:
        more = sock.recv(size - len(got))
        kopi.expect(more, "more bytes", len(got))
        got += more
    return got


def takers_are_refused():
    """KCM, sockmaps and ovpn take connections over by their descriptors; listeners in sockmaps are let."""
    bpf.load()
    waits = listener()
    one = stream()
    one.connect(waits.getsockname())
    other, _ = waits.accept()
    with one, other, waits, socket.socket(AF_KCM, socket.SOCK_DGRAM) as mux:
        for what, sock in (("connected", one), ("accepted", other)):
            request = struct.pack("=ii", sock.fileno(), bpf.pinned("filter_trim"))
            fails(f"KCM, {what}", errno.EALREADY, lambda request=request: fcntl.ioctl(mux, SIOCKCMATTACH, request))
            fails(f"a sockmap, {what}", errno.EBUSY, lambda sock=sock: bpf.update(
                "sockets", 0, struct.pack("=Q", sock.fileno())))
        bpf.update("sockets", 0, struct.pack("=Q", waits.fileno()))
        check("a sockmap, listening", True)
        with stream() as late:
            late.connect(waits.getsockname())
            late.sendall(b"late")
            with waits.accept()[0] as accepted:
                check("it goes on to accept", accepted.recv(9) == b"late")
                refuses("accepted by a listener in a sockmap", accepted)
        one.sendall(b"plain")
        check("data go on", other.recv(10) == b"plain")
    bpf.unload()


def ovpn_is_refused():
    """ovpn replaces the operations of a connection's socket."""
    release = os.uname().release
    subprocess.run(["modprobe", "ovpn"], check=True)
    subprocess.run(["ip", "link", "add", "ovpn0", "type", "ovpn"], check=True)
    try:
        ovpn = YnlFamily(f"/kernels/{release}/source/Documentation/netlink/specs/ovpn.yaml", schema=False)
        # Made by plain sockets, too: the request is right.
        for make, expected in ((stream, errno.ENOTSOCK), (plain_stream, 0)):
            one, other = connection(make=make)
            with one, other:
                peer = {"id": 7, "socket": one.fileno()}
                try:
                    ovpn.do("peer-new", {"ifindex": socket.if_nametoindex("ovpn0"), "peer": peer})
                    got = 0
                except NlError as error:
                    got = error.error
                what = "a plain socket is taken" if expected == 0 else "a stream is refused"
                check(f"ovpn: {what}", got == expected, errno.errorcode.get(got, got))
    finally:
        subprocess.run(["ip", "link", "del", "ovpn0"], check=True)


forget_tls()
attempt(ulp_is_refused)
attempt(ktls_is_unharmed)
attempt(ulp_is_refused)
attempt(addrform_is_refused)
attempt(takers_are_refused)
attempt(ovpn_is_refused)
kopi.finish()
