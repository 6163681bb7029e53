#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A KOPI flow shares ports, gets a port from the stack, and is shut down as a UDP socket is."""

import os
import select
import socket

import kopi
from equivalence import (ADDRESSES, PATIENCE, PEER_PORT, SUBJECT_PORT, SUBJECTS, KopiSubject, UdpSubject,
                         namespace, run, sh, tells, undo)


def opened(kind, *names, family=4, gso=False):
    """A subject with these options of SOL_SOCKET set, which goes when the checks are over."""
    subject = kind(family, gso)
    undo(subject.close)
    for name in names:
        subject.sock.setsockopt(socket.SOL_SOCKET, name, 1)
    return subject


def sender(family, port=0):
    """A socket of the peer."""
    with namespace("peer"):
        sock = socket.socket(socket.AF_INET if family == 4 else socket.AF_INET6, socket.SOCK_DGRAM)
        sock.bind((ADDRESSES[family]["peer"], port))
    return sock


def chosen(members, family, ports):
    """Which of the sockets of one port gets what comes from each of these."""
    choice = []
    poll = select.poll()
    for number, member in enumerate(members):
        poll.register(member.sock, select.POLLIN)
    for port in ports:
        with sender(family, port) as sock:
            sock.sendto(b"which", (ADDRESSES[family]["host"], SUBJECT_PORT))
        ready = [fd for fd, _ in poll.poll(PATIENCE * 1000)]
        got = [number for number, member in enumerate(members)
               if member.sock.fileno() in ready and member.receive()]
        choice.append(got)
    return choice


def reuseport(family):
    """Sockets of both kinds share a port: each source is given to the same one."""
    ports = range(20000, 20024)
    found = {}
    kinds = {"UDP": (UdpSubject,) * 4, "KOPI": (KopiSubject,) * 4,
             "UDP and KOPI": (UdpSubject, KopiSubject) * 2}
    for name, members in kinds.items():
        group_ = []
        for kind in members:
            member = kind(family)
            member.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            member.bind((ADDRESSES[family]["host"], SUBJECT_PORT))
            group_.append(member)
        found[name] = [chosen(group_, family, ports)]
        # The last one takes the place of one that goes.
        group_.pop(1).close()
        found[name].append(chosen(group_, family, ports))
        for member in group_:
            member.close()
    used = [sorted({each[0] for each in choice if each}) for choice in found["UDP"]]
    for name in ("KOPI", "UDP and KOPI"):
        kopi.check(f"SO_REUSEPORT, IPv{family}: {name} are chosen as UDP sockets are",
                   found[name] == found["UDP"] and used == [[0, 1, 2, 3], [0, 1, 2]], found)


def sharing():
    """Who may have a port that another socket has, and who then gets what comes."""
    found = {}
    here = (ADDRESSES[4]["host"], SUBJECT_PORT)
    for first in SUBJECTS:
        for second in SUBJECTS:
            seen = []
            for names in ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,)):
                for user in (0, 1002):
                    one = opened(first, *names)
                    one.bind(here)
                    os.seteuid(user)
                    try:
                        other = opened(second, *names)
                        seen.append((names, user, tells(lambda: other.bind(here))))
                    finally:
                        os.seteuid(0)
                    if seen[-1][2] == "ok" and socket.SO_REUSEADDR in names:
                        seen.append(chosen((one, other), 4, (20000, 20001)))
                    one.close()
                    other.close()
            found[first.kind, second.kind] = seen
    kopi.check("SO_REUSEADDR, SO_REUSEPORT: the same may share a port, and the same one is heard",
               all(seen == found["UDP", "UDP"] for seen in found.values())
               and {each[2] for each in found["UDP", "UDP"] if isinstance(each, tuple)}
               == {"ok", "EADDRINUSE"}, found)


def shut(how):
    """What poll says of a socket that is shut down."""
    found = []
    # Somebody is there, as an error of the first one's could come when the second one has the port.
    with sender(4, PEER_PORT):
        for kind in SUBJECTS:
            subject = opened(kind)
            subject.bind((ADDRESSES[4]["host"], SUBJECT_PORT))
            subject.connect((ADDRESSES[4]["peer"], PEER_PORT))
            poll = select.poll()
            poll.register(subject.sock, select.POLLIN | select.POLLOUT | select.POLLRDHUP)
            before = poll.poll(0)
            subject.sock.shutdown(how)
            found.append([[events for _, events in each] for each in (before, poll.poll(0))])
            found[-1].append(subject.send([b"x"]))
            found[-1].append(tells(lambda: subject.sock.shutdown(how)))
            subject.close()
    kopi.check(f"shutdown({how}): poll and send say the same", found[0] == found[1]
               and found[0][0] != found[0][1] or how == socket.SHUT_WR and found[0] == found[1],
               found)


def unbound():
    """A socket that isn't bound gets a port of the range when it sends."""
    sh("sysctl -qw net.ipv4.ip_local_port_range='30000 30009'")
    for family in (4, 6):
        with sender(family, PEER_PORT) as peer:
            peer.settimeout(PATIENCE)
            for kind in SUBJECTS:
                subject = opened(kind, family=family)
                errors = subject.send([b"x"], (ADDRESSES[family]["peer"], PEER_PORT))
                source = peer.recvfrom(16)[1]
                peer.sendto(b"back", source[:2])
                poll = select.poll()
                poll.register(subject.sock, select.POLLIN)
                poll.poll(PATIENCE * 1000)
                kopi.check(f"a port of ip_local_port_range, IPv{family}, {kind.kind}",
                           errors == [0] and source[0] == ADDRESSES[family]["host"]
                           and 30000 <= source[1] <= 30009 and len(subject.receive()) == 1,
                           (errors, source))
                subject.close()
    sh("sysctl -qw net.ipv4.ip_local_port_range='32768 60999'")


def others():
    """What isn't an exchange of datagrams."""
    with namespace("host"):
        reuseport(4)
        reuseport(6)
        sharing()
        for how in (socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR):
            shut(how)
        unbound()


run("options", (), others)
