#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A rule that names a device holds for sockets that were bound to the device's number before it was there, and when
a device gets another name."""

import contextlib
import errno
import socket

import kopi
from control import add, ask, ruled
from enforced import IMPOSTOR, Program, begin, end, kopictl
from equivalence import namespace, sh
from kopi import check

SO_BINDTOIFINDEX = 62
FAR = "198.18.7.2"


def last_index():
    """The highest number of a device here."""
    return max(number for number, _ in socket.if_nameindex())


def late(make):
    """Sends by a device that comes after the socket was bound to its number, and was judged: gives the errno."""
    index = last_index() + 1
    send = make(index)
    assert send() != "EACCES"
    sh(f"nsenter --net=/run/netns/host bash -c 'ip link add late0 index {index} type dummy; "
       f"ip addr add 198.18.7.1/24 dev late0; ip link set late0 up; ip neigh add {FAR} lladdr 2:2:2:2:2:2 dev late0'")
    found = [send()]
    sh("nsenter --net=/run/netns/host ip link set late0 name other0")
    found.append(send())
    sh("nsenter --net=/run/netns/host ip link set other0 name late0")
    found.append(send())
    sh("nsenter --net=/run/netns/host ip link del late0")
    return found


def by_flow(index):
    """A flow, bound to that number."""
    flow = kopi.ip_flow()
    flow.bind(("0.0.0.0", 0))
    flow.setsockopt(socket.SOL_SOCKET, SO_BINDTOIFINDEX, index)

    def send():
        with contextlib.suppress(OSError):
            # Which has it judged, too.
            flow.recv(1, socket.MSG_DONTWAIT)
        try:
            flow.sendto(b"x", (FAR, 9))
        except OSError as error:
            return errno.errorcode[error.errno]
        return "sent"
    return send


def by_ring(index):
    """The same by a ring."""
    channel = kopi.Channel(kopi.flow())
    channel.sock.bind(("0.0.0.0", 0))
    channel.sock.setsockopt(socket.SOL_SOCKET, SO_BINDTOIFINDEX, index)

    def send():
        # What it was told before.
        channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        channel.send(0, b"x", (FAR, 9))
        channel.bell()
        error = channel.completion.pop()[4]
        return errno.errorcode.get(error, "sent")
    return send


EXPECTED = ["EACCES", "sent", "EACCES"]
with ruled() as ynl:
    add(ynl, device="late0", verdict="deny")
    for way in (by_flow, by_ring):
        got = late(way)
        check(f"{way.__name__}: refused by its device, but by no other name", got == EXPECTED, got)
with namespace("host"):
    begin()
with namespace("host"), Program(IMPOSTOR) as program:
    kopictl("restore", "-", given="enforce on\ndefault allow\ndevice late0 deny\n")

    def ordinary(index):
        """An ordinary socket of a program's."""
        program("!s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
        program("s.bind(('0.0.0.0', 0))")
        program(f"s.setsockopt(1, {SO_BINDTOIFINDEX}, {index})")
        return lambda: {"1": "sent"}.get(got := program(f"s.sendto(b'x', ({FAR!r}, 9))"), got)

    got = late(ordinary)
    check("an ordinary socket, where rules are enforced: the same", got == EXPECTED, got)
    kopictl("rule", "enforce", "off")
    kopictl("rule", "flush")
end()
kopi.finish()
