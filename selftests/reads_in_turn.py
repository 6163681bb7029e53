#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A reader whose memory doesn't come keeps others from a flow's queue, while there are rules; these wait as long as
they said that they would, and a signal ends their wait."""

import errno
import os
import select
import signal
import socket
import struct

import kopi
from control import ask, ruled
from enforced import BOB
from kopi import check, wait_until
from linux import SO_PEEK_OFF
from slow import SlowCall, libc


def word(call):
    """What a call gave, or its errno's name."""
    try:
        return str(call())
    except OSError as error:
        return errno.errorcode[error.errno]


def answer(call, after=None, patience=30):
    """What a call gives in a child process, whose identifier `after` is given; or None if it doesn't end."""
    reader, writer = os.pipe()
    pid = kopi.in_child(lambda: os.write(writer, word(call).encode()))
    os.close(writer)
    if after:
        after(pid)
    ended = select.select([reader], [], [], patience)[0]
    said = os.read(reader, 64).decode() if ended else None
    os.close(reader)
    return pid, said


def state(pid):
    """A process's state: S, D, R or Z."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        return stat.read().rpartition(")")[2].split()[0]


def is_called(pid):
    """Whether it sleeps in recvfrom() or setsockopt()."""
    with open(f"/proc/{pid}/syscall", encoding="ascii") as call:
        return call.read().split()[0] in ("45", "54")


def timed(sock):
    """A read with a timeout."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 200_000))
    return sock.recv(64)


def handler(*_):
    """A read that it interrupts isn't restarted."""
    raise OSError(errno.EINTR, "interrupted")


def interrupts(pid):
    """Once it waits for the readers' lock, which is when it has called."""
    wait_until(lambda: is_called(pid))
    os.kill(pid, signal.SIGUSR1)


def kills(pid):
    """The same, for good."""
    wait_until(lambda: is_called(pid))
    os.kill(pid, signal.SIGKILL)


def others(sock):
    """What others' calls give meanwhile."""
    calls = [("one that mustn't sleep", lambda: sock.recv(64, socket.MSG_DONTWAIT), None, "EAGAIN"),
             ("one that peeks", lambda: sock.recv(64, socket.MSG_DONTWAIT | socket.MSG_PEEK), None, "EAGAIN"),
             ("one that a signal interrupts", lambda: sock.recv(64), interrupts, "EINTR"),
             ("one that is killed", lambda: sock.recv(64), kills, ""),
             ("SO_PEEK_OFF, killed", lambda: sock.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 0), kills, ""),
             ("one with a timeout", lambda: timed(sock), None, "EAGAIN")]
    pids = []
    for what, call, after, expected in calls:
        pid, said = answer(call, after)
        check(f"{what} ends", said == expected, (said, state(pid)))
        pids.append(pid)
    return pids


with ruled() as YNL:
    ask(YNL, "ruleset-set", {"rule": [{"uid-min": BOB, "verdict": "deny"}]})
    flow = kopi.ip_flow()
    flow.bind(("127.0.0.1", 0))
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for text in b"first", b"second", b"third":
        sender.sendto(text, flow.getsockname())
    signal.signal(signal.SIGUSR1, handler)
    with SlowCall(lambda page: libc.recv(flow.fileno(), page, 4096, 0)) as slow:
        children = others(flow)
    for child in children:
        os.waitpid(child, 0)
    check("the slow reader has its datagram", slow.got == 5, slow.got)
    flow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, 0))
    rest = [word(lambda: flow.recv(64, socket.MSG_DONTWAIT)) for _ in range(3)]
    check("nobody else has lost one", rest == ["b'second'", "b'third'", "EAGAIN"], rest)
kopi.finish()
