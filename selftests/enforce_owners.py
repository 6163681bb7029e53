#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Enforced rules know who uses an ordinary socket: also one that sleeps since before the first rule, or that was given
away while the rules weren't enforced. What is counted and refused is what comes and goes."""

import contextlib
import json
import os
import socket

from enforced import (BOB, CHARLIE, HOST, IMPOSTOR, PEER, PORT, POSTGRES, RULES, Program, begin, end, enforce, kopictl, reaches,
                      restore)
from equivalence import namespace
from kopi import check, finish, wait_until
from linux import IP_RECVERR, UDP_GRO, UDP_SEGMENT

LOCAL, OTHER = "127.0.0.1", 5433
SOL_UDP = 17


def add(words):
    """Adds a rule."""
    status, said = kopictl("rule", "add", *words.split())
    assert status == 0, said


def counted():
    """Packets and bytes of the first rule."""
    rule = json.loads(kopictl("rule", "list", "--json")[1])["rules"][0]
    return rule["packets"], rule["bytes"]


def rules_come_later():
    """Rules are enforced before there is any; servers sleep since before that."""
    restore("default allow\nenforce off\n")
    with Program() as postgres, Program(IMPOSTOR, CHARLIE) as impostor:
        assert postgres.listen() == "None" and impostor.listen(port=OTHER) == "None"
        for server in postgres, impostor:
            server.tell("!c = s.accept()[0]")
        enforce("on")
        add(f"user bob exe {POSTGRES} local-port {PORT} allow")
        add(f"local-port {PORT} deny")
        add(f"exe {IMPOSTOR} local-port {OTHER} deny")
        check("with the first rule, a server that sleeps is known: it has its port", reaches())
        check("and is denied what its rule denies", not reaches(port=OTHER, within=1.5))


def other_since():
    """A socket gets another owner while its namespace doesn't enforce its rules, and another one does."""
    with namespace("peer"):
        enforce("on")
    restore(RULES)
    with Program() as postgres:
        assert postgres.listen() == "None" and reaches()
        enforce("off")
        postgres("os.set_inheritable(s.fileno(), True)")
        number = int(postgres("s.fileno()"))
        postgres.tell(f"!os.execv({IMPOSTOR!r}, [{IMPOSTOR!r}, '-c', {Program.FEED!r}])")
        assert wait_until(lambda: os.readlink(f"/proc/{postgres.process.pid}/exe") == IMPOSTOR)
        postgres(f"!s = socket.socket(fileno={number})")
        enforce("on")
        check("who has a socket since is its owner when the rules are enforced again", not reaches(within=1.5))
    with namespace("peer"):
        enforce("off")


def given_to_a_service():
    """A program opens a socket, gives it to another one, and keeps it, as systemd does."""
    restore("default allow\nenforce off\n")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with contextlib.ExitStack() as stack:
        for each in ours, theirs:
            stack.enter_context(each)
        opens = stack.enter_context(Program(IMPOSTOR, pass_fds=(ours.fileno(),)))
        serves = stack.enter_context(Program(pass_fds=(theirs.fileno(),)))
        assert opens.process.pid < serves.process.pid and opens.listen() == "None"
        opens(f"socket.send_fds(socket.socket(fileno={ours.fileno()}), [b'x'], [s.fileno()])")
        serves(f"!s = socket.socket(fileno=socket.recv_fds(socket.socket(fileno={theirs.fileno()}), 1, 1)[1][0])")
        restore(RULES)
        check("who has a socket from another program is its owner when the rules are enforced", reaches())
        serves("s.close()")


def named_peers():
    """What TCP sends goes to its peer, whatever address a call names."""
    restore(f"default allow\nenforce on\nexe {IMPOSTOR} remote-port 7003 deny\n")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with contextlib.ExitStack() as stack:
        for each in ours, theirs:
            stack.enter_context(each)
        with namespace("peer"):
            server = stack.enter_context(socket.create_server((PEER, 7003)))
        postgres = stack.enter_context(Program(pass_fds=(theirs.fileno(),)))
        impostor = stack.enter_context(Program(IMPOSTOR, BOB, pass_fds=(ours.fileno(),)))
        postgres(f"!u = socket.socket(fileno={theirs.fileno()}); c = socket.create_connection(({PEER!r}, 7003))")
        stack.enter_context(server.accept()[0])
        postgres("socket.send_fds(u, [b'x'], [c.fileno()])")
        impostor(f"!u = socket.socket(fileno={ours.fileno()}); c = socket.socket(fileno=socket.recv_fds(u, 1, 1)[1][0])")
        got = impostor(f"c.sendto(b'x', ({LOCAL!r}, 9))")
        check("another's connection to a denied peer, with another peer's name", got == "EACCES", got)


def over_the_rate():
    """A datagram over a rate is as one that a full queue has no room for."""
    restore(f"default allow\nenforce on\nexe {IMPOSTOR} remote-port 7004 allow rate 1pps burst 1\n")
    with Program(IMPOSTOR, CHARLIE) as impostor:
        impostor("!u = socket.socket(2, 2)")
        send = f"u.sendto(b'x', ({PEER!r}, 7004))"
        got = [impostor(send) for _ in range(3)]
        check("over a rate: sendto() doesn't say so", got == ["1"] * 3, got)
        impostor(f"u.setsockopt(0, {IP_RECVERR}, 1)")
        got = {impostor(send) for _ in range(10)}
        check("but with IP_RECVERR: ENOBUFS", "ENOBUFS" in got and got <= {"1", "ENOBUFS", "ECONNREFUSED"}, got)


def merged():
    """Each datagram of a packet that GRO has merged is counted, and no header."""
    for what, make in (("an ordinary socket", "socket.socket(2, 2)"), ("a flow", "kopi.flow()")):
        # Rules that are in force already would keep their counts.
        restore("default allow\n")
        restore(f"default allow\nenforce on\nexe {POSTGRES} local-port {PORT} allow\n")
        with Program() as postgres, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            postgres("!sys.path.insert(0, '/kopi/selftests'); import kopi")
            made = postgres(f"!r = {make}; r.setsockopt({SOL_UDP}, {UDP_GRO}, 1); r.bind(({LOCAL!r}, {PORT}))")
            peer.setsockopt(SOL_UDP, UDP_SEGMENT, 100)
            peer.sendto(bytes(950), (LOCAL, PORT))
            got = postgres("len(r.recv(2000))")
            check(f"{what} gets ten datagrams at once, which count as ten", got == "950" and counted() == (10, 950),
                  (made, got, counted()))


with namespace("host"):
    begin()
    for case in (rules_come_later, other_since, given_to_a_service, named_peers, over_the_rate, merged):
        case()
    restore("default allow\nenforce off\n")
end()
finish()
