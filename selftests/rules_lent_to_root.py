#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Root's use of a socket that another user has made, as a command's that sudo starts, doesn't make root its owner."""

import ctypes
import os
import socket
import subprocess
import sys

from enforced import CHARLIE, HOST, IMPOSTOR, PYTHON, Program, begin, end, restore
from equivalence import namespace
from kopi import check, expect, finish, libc, wait_until
from linux import SYS_PIDFD_GETFD

WRITES = "import os, sys; print(os.write(int(sys.argv[1]), b'as root'))"


def runs_as_root(fd):
    """What root's program says, which writes to a descriptor that it was given."""
    done = subprocess.run([PYTHON, "-c", WRITES, str(fd)], pass_fds=[fd], capture_output=True, text=True, check=False,
                          env=os.environ | {"PYTHONHOME": sys.base_prefix})
    return done.stdout + done.stderr


def copy_of(program, name):
    """A descriptor of a program's socket."""
    fd = int(program(f"{name}.fileno()"))
    pidfd = os.pidfd_open(program.process.pid)
    got = libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0)
    os.close(pidfd)
    expect(got >= 0, "pidfd_getfd", ctypes.get_errno())
    return got


def stats(program):
    """The flow's counters."""
    return eval(program("ch.stats()"))


def send(data, port, space="peer"):
    """Sends from there."""
    with namespace(space), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, (HOST, port))


with namespace("host"):
    begin()
    restore("default allow\n")
    with Program(IMPOSTOR, CHARLIE) as charlie:
        charlie.do("sys.path.insert(0, '/kopi/selftests'); import kopi", f"u = kopi.ip_flow(); u.bind(('{HOST}', 0))",
                   "ch = kopi.Channel(u)", "for n in range(ch.frame_count): ch.fill.push(ch.frame(n))", "ch.bell(0)")
        restore("default deny\nuser root protocol udp allow\n")
        fd = copy_of(charlie, "u")
        ran = runs_as_root(fd)
        os.close(fd)
        check("root's program wrote to the flow, and has no peer", "Destination address required" in ran, ran)
        send(b"for root", int(charlie("u.getsockname()[1]")))
        check("what comes is judged as of who made the flow",
              wait_until(lambda: stats(charlie)["rx_taken"] == 1) and stats(charlie)["rx_drop_rule"] == 1, stats(charlie))
    restore("default allow\nenforce on\nuser root protocol udp allow\nremote 192.0.2.2 protocol udp deny\n")
    with Program(IMPOSTOR, CHARLIE) as charlie:
        charlie("!s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
        charlie(f"!s.bind(('{HOST}', 0))")
        charlie("!d = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
        charlie(f"!d.bind(('{HOST}', 0))")
        got = charlie("s.connect(d.getsockname())")
        expect(got == "None", "connect()", got)
        fd = copy_of(charlie, "s")
        ran = runs_as_root(fd)
        os.close(fd)
        check("root's program wrote to an ordinary socket", ran.strip() == "7", ran)
        got = charlie("s.sendto(b'x', ('192.0.2.2', 9))")
        check("which is charlie's", got == "EACCES", got)
        with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            charlie("!s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
            charlie(f"!s.bind(('{HOST}', 0))")
            fd = copy_of(charlie, "s")
            runs_as_root(fd)
            os.close(fd)
            port = int(charlie("s.getsockname()[1]"))
            sender.sendto(b"for root", (HOST, port))
        send(b"for charlie", port, "host")
        got = charlie("s.recv(64)")
        check("and what comes to it after root's call is judged as charlie's", got == repr(b"for charlie"), got)
    restore("default allow\nenforce off\n")
    end()
finish()
