#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""By `kopi run --tcp`, TCP sockets are flows, and so is what they accept, in whatever program; what can't be a
flow is an ordinary socket, which works."""

import array
import ctypes
import errno
import os
import socket
import subprocess
import sys

import kopi
import memory
from kopi import INFO, SOL_KOPI

LIBC = ctypes.CDLL(None, use_errno=True)
SELF = os.path.abspath(__file__)
RUN = ["kopi", "run", "--tcp"]
BOB = ["setpriv", "--reuid", "bob", "--regid", "bob", "--clear-groups"]
IPPROTO_MPTCP, TCP_ULP = 262, 31
# Says what a server's sockets are, without anything of the module's.
SERVER = """import socket
listener = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(listener.getsockname())
other, _ = listener.accept()
one.send(b"sent")
def is_flow(sock):
    try:
        return bool(sock.getsockopt(0x4b4f, 1, 64))
    except OSError:
        return False
print(other.recv(9).decode(), is_flow(listener), is_flow(other))"""
LIMIT = "/proc/sys/net/kopi/user_max_flows"


def is_flow(sock):
    try:
        return len(sock.getsockopt(SOL_KOPI, INFO, 64)) == 64
    except OSError:
        return False


def serve(listener):
    """Accepts a connection, and has a byte go both ways; says whether it is a flow."""
    with socket.socket(listener.family, socket.SOCK_STREAM) as one:
        one.connect(listener.getsockname())
        other, peer = listener.accept()
        with other:
            assert peer == one.getsockname() and other.getpeername() == peer
            one.send(b"?")
            assert other.recv(9) == b"?"
            other.send(b"!")
            assert one.recv(9) == b"!"
            return is_flow(other)


def listening(host="127.0.0.1", **options):
    return socket.create_server((host, 0), **options)


def case_kinds():
    """Sockets of TCP are flows, with flags and without, and no others."""
    stream, flags = socket.SOCK_STREAM, socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    for family in (socket.AF_INET, socket.AF_INET6):
        for kind, protocol, expected in (
                (stream, 0, True), (stream, socket.IPPROTO_TCP, True), (stream | flags, 0, True),
                (stream, IPPROTO_MPTCP, False), (stream, socket.IPPROTO_SCTP, False),
                (socket.SOCK_RAW, socket.IPPROTO_ICMP, False), (socket.SOCK_DGRAM, socket.IPPROTO_UDPLITE, False)):
            try:
                with socket.socket(family, kind, protocol) as sock:
                    assert is_flow(sock) == expected, (family, kind, protocol)
                    assert os.get_blocking(sock.fileno()) == (kind == stream or not expected)
            except OSError as error:
                # What the kernel doesn't have.
                assert not expected and error.errno == errno.EPROTONOSUPPORT, (family, kind, protocol, error)
        # Made without the C library's socket().
        with socket.socket(fileno=LIBC.syscall(41, int(family), int(stream), 0)) as sock:
            assert not is_flow(sock)
    with socket.socketpair()[0] as sock:
        assert sock.family == socket.AF_UNIX


def case_dual_stack():
    """A listener of IPv6 accepts flows of both, and its addresses are those of AF_INET6."""
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        assert is_flow(listener) and listener.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_INET6
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, listener.getsockname()[1])) as one:
                other, peer = listener.accept()
                with other:
                    assert is_flow(other) and is_flow(one)
                    assert peer[0] == ("::1" if host == "::1" else "::ffff:127.0.0.1"), peer
                    assert other.family == socket.AF_INET6 and one.getsockname()[1] == peer[1]


def case_exec():
    """A listener that is inherited accepts flows, with the library and without; an ordinary one doesn't."""
    without = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    for environment in (None, without):
        with listening() as listener:
            done = subprocess.run([sys.executable, SELF, "inherits"], stdin=listener, env=environment, check=False)
            assert done.returncode == 0
    # As of socket activation.
    with socket.socket(fileno=LIBC.syscall(41, 2, 1, 0)) as ordinary:
        ordinary.bind(("127.0.0.1", 0))
        ordinary.listen()
        done = subprocess.run([sys.executable, SELF, "inherits"], stdin=ordinary, check=False)
        assert done.returncode == 100, done


def case_inherits():
    """Not a case of its own: a program that has a listener."""
    with socket.socket(fileno=0) as listener:
        sys.exit(0 if serve(listener) else 100)


def case_passed():
    """So does one that came by SCM_RIGHTS."""
    ours, theirs = socket.socketpair()
    with ours, theirs, listening() as listener:
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))])
        fd = array.array("i", theirs.recvmsg(9, 100)[1][0][2][:4])[0]
    with socket.socket(fileno=fd) as passed:
        assert passed.family == socket.AF_INET and serve(passed)


def case_reuseport():
    """Flows and ordinary sockets share a port, and each accepts its own kind."""
    with socket.socket() as one, socket.socket(fileno=LIBC.syscall(41, 2, 1, 0)) as other:
        for sock in (one, other):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.bind(("127.0.0.1", 0))
        other.bind(one.getsockname())
        found = {one: set(), other: set()}
        for sock in found:
            sock.listen(64)
            sock.setblocking(False)
        clients = [socket.create_connection(one.getsockname()) for _ in range(40)]
        # connect() is over before the listener has heard of it.
        kopi.settle()
        count = 0
        for sock, kinds in found.items():
            try:
                while True:
                    made, _ = sock.accept()
                    kinds.add(is_flow(made))
                    made.close()
                    count += 1
            except BlockingIOError:
                pass
        assert count == len(clients) and found[one] == {True} and found[other] == {False}, found
        for client in clients:
            client.close()


def case_ktls():
    """TCP_ULP gives ENOPROTOOPT, and the connection goes on."""
    with listening() as listener, socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        with other:
            for sock in (one, other):
                try:
                    sock.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
                    assert False, "it is taken"
                except OSError as error:
                    assert error.errno == errno.ENOPROTOOPT, error
            one.send(b"plain")
            assert other.recv(9) == b"plain"


def case_limit():
    """Not a case of its own: a program at the limit of its user's flows. It says what becomes of it."""
    with listening() as listener, socket.socket(fileno=LIBC.syscall(41, 2, 1, 0)) as one:
        one.connect(listener.getsockname())
        try:
            listener.accept()
            print("accepted", flush=True)
        except OSError as error:
            print(errno.errorcode[error.errno], flush=True)
        with socket.socket() as more:
            print(is_flow(listener), is_flow(more), flush=True)
        # Told that the limit is another one.
        os.read(0, 1)
        with listener.accept()[0] as other:
            print(is_flow(other), flush=True)


def server(*by):
    """Starts bob's server in some way."""
    return subprocess.run([*BOB, *by, sys.executable, "-c", SERVER], capture_output=True, text=True, timeout=600,
                          check=False)


def set_limit(flows):
    with open(LIMIT, "w", encoding="ascii") as file:
        file.write(str(flows))


def at_a_limit():
    """accept() at a limit, and socket()."""
    with open(LIMIT, encoding="ascii") as file:
        before = file.read()
    set_limit(1)
    try:
        with subprocess.Popen([*BOB, "kopi", "run", "--tcp", "--explain", sys.executable, SELF, "limit"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as at:
            said = [at.stdout.readline().strip() for _ in range(2)]
            set_limit(10)
            rest, errors = at.communicate("x", timeout=60)
    finally:
        set_limit(before)
    kopi.check("at the limit, accept() gives EMFILE, and later the connection; socket() gives an ordinary socket",
               said == ["EMFILE", "True False"] and rest == "True\n", f"{said} {rest} {errors}")
    kopi.check("and --explain says so", "a TCP flow" in errors and "an ordinary TCP socket: Too many open files" in errors, errors)


def without():
    """Where sockets are ordinary."""
    done = server(*RUN)
    kopi.check("bob's server: flows", done.stdout == "sent True True\n" and not done.stderr, str(done))
    done = server(*RUN[:2])
    kopi.check("not without --tcp", done.stdout == "sent False False\n" and not done.stderr, str(done))
    kopi.expect(memory.unload(), "nothing holds the module")
    done = server(*RUN)
    kopi.expect(memory.load(), "the module comes again")
    kopi.check("nor without the module, as kopi run says",
               done.stdout == "sent False False\n" and "the kopi module is not loaded" in done.stderr, str(done))


CASES = {name[5:]: work for name, work in globals().items() if name.startswith("case_")}


def main():
    for case, work in CASES.items():
        if not work.__doc__.startswith("Not a case"):
            done = subprocess.run([*RUN, sys.executable, SELF, case], capture_output=True, text=True, timeout=600,
                                  check=False)
            kopi.check(f"{case}: {work.__doc__}", done.returncode == 0,
                       f"{done.returncode} {done.stderr[-1500:]}".replace("\n", "\n# "))
    at_a_limit()
    without()
    kopi.finish()


if len(sys.argv) > 1:
    CASES[sys.argv[1]]()
else:
    main()
