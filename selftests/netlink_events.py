#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Who listens to netlink's events learns what happens to flows, and by what."""

import errno
import os
import socket
import subprocess
import time

import kopi
from control import add, ask, family, ruled
from equivalence import namespace, sh
from kopi import check, fails
from linux import MSG_FASTOPEN

HOST, PEER = "192.0.2.1", "192.0.2.2"
LIMIT = "/proc/sys/net/kopi/user_max_flows"


def events(ynl, count, patience=60):
    """The next events, up to a number: (name, what it says)."""
    found = []
    end = time.monotonic() + patience
    while len(found) < count and time.monotonic() < end:
        for each in ynl.poll_ntf(duration=0.2):
            found.append((each["name"], each["msg"]))
            if len(found) == count:
                break
    return found


def set_limit(value):
    """Sets the limit of flows of a user."""
    limit.seek(0)
    limit.write(value)
    limit.flush()


def enforce(switch):
    """Has the rules judge ordinary sockets, or not."""
    subprocess.run(["kopictl", "rule", "enforce", switch], check=True, stdout=subprocess.DEVNULL)


def refused(call):
    """A call that rules must refuse."""
    try:
        call()
    except PermissionError:
        return
    raise kopi.Wrong("a call that is denied")


def seldom(ynl, act):
    """What is told, at the most once a second, of something that is done a hundred times and then until there is
    another event; and whether it was told not more often."""
    begun = time.monotonic()
    for _ in range(100):
        act()
    got = events(ynl, 1)
    while len(got) < 2 and time.monotonic() < begun + 60:
        act()
        got += events(ynl, 1, 0.1)
    told, took = len(got), time.monotonic() - begun
    return got, 2 <= told <= took + 1


def ordinary_sockets(ynl, ruler):
    """What enforced rules refuse ordinary sockets."""
    enforce("on")
    bind = add(ruler, local_port_min=6410, verdict="deny")
    connect = add(ruler, remote_port_min=6411, verdict="deny")
    into = add(ruler, local_port_min=6412, direction={"in"}, verdict="deny")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fails("an ordinary bind()", errno.EACCES, lambda: sock.bind((HOST, 6410)))
        got = events(ynl, 1)
        event = got[0][1]
        check("is told of", [name for name, _ in got] == ["socket-denied-ntf"] and "id" not in event
              and (event["operation"], event["rule"], event["local-port"]) == ("bind", bind, 6410), got)
        check("with who did it", (event["pid"], event["uid"], event["exe"]) ==
              (os.getpid(), 0, os.path.realpath("/proc/self/exe")), event)
    with socket.socket() as sock:
        fails("an ordinary connect()", errno.EACCES, lambda: sock.connect((PEER, 6411)))
        got = events(ynl, 1)
        event = got[0][1]
        check("is told of, with the peer", (event["operation"], event["rule"], event["remote-address"],
              event["remote-port"]) == ("connect", connect, PEER, 6411), got)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        got, rare = seldom(ynl, lambda: refused(lambda: sock.sendto(b"x", (PEER, 6411))))
        check("sends are told of once a second", rare and {event["operation"] for _, event in got} == {"send"}, got)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((HOST, 6412))
        with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((PEER, 6413))
            got, rare = seldom(ynl, lambda: sender.sendto(b"x", (HOST, 6412)))
        check("packets, too", rare and [(event["operation"], event["rule"], event["direction"], event["remote-port"])
              for _, event in got] == [("packet", into, {"in"}, 6413)] * len(got), got)
    enforce("off")


def connected_once(ynl):
    """A stream that was connected is told of once, however often it sends as if it weren't."""
    with namespace("peer"), socket.create_server((PEER, 0)) as waits:
        address = waits.getsockname()
        with namespace("host"), kopi.stream() as near:
            near.sendto(b"first", MSG_FASTOPEN, address)
            for _ in range(3):
                fails("MSG_FASTOPEN by a connected stream", errno.EISCONN,
                      lambda: near.sendto(b"more", MSG_FASTOPEN, address))
    got = [name for name, _ in events(ynl, 3)]
    check("it was connected once", got == ["flow-opened-ntf", "flow-connected-ntf", "flow-closed-ntf"], got)


# The initial namespace's, which alone has them.
limit = open(LIMIT, "r+", encoding="ascii")
with namespace("host"):
    with namespace("peer"):
        elsewhere = family()
        elsewhere.ntf_subscribe("events")
    ynl = family()
    ynl.ntf_subscribe("events")

    channel = kopi.Channel(kopi.flow(), frames=64)
    channel.sock.bind((HOST, 6400))
    channel.sock.connect((PEER, 6401))
    got = events(ynl, 3)
    check("opened, bound, connected, in this order",
          [name for name, _ in got] == ["flow-opened-ntf", "flow-bound-ntf", "flow-connected-ntf"], got)
    number = got[0][1]["id"]
    last = got[-1][1]
    check("with who did it", (last["id"], last["pid"], last["uid"], last["exe"]) ==
          (number, os.getpid(), 0, os.path.realpath("/proc/self/exe")), last)
    check("and the addresses", (last["local-address"], last["local-port"], last["remote-address"], last["remote-port"])
          == (HOST, 6400, PEER, 6401), last)

    # One frame, and nobody takes what comes.
    channel.fill.push(channel.frame(0))
    with namespace("peer"):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind((PEER, 6401))
    for _ in range(4):
        sender.sendto(b"x", (HOST, 6400))
    got = events(ynl, 1)
    check("a FILL ring that is empty", [(name, event["id"]) for name, event in got] == [("overrun-ntf", number)], got)

    with ruled() as ruler:
        handle = add(ruler, local_port_min=6400, verdict="deny")
        got = events(ynl, 2)
        check("a live flow that a rule stops, each way",
              [(name, event["id"], event["rule"]) for name, event in got] == [("flow-denied-ntf", number, handle)] * 2
              and [event["direction"] for _, event in got] == [{"out"}, {"in"}], got)
        other = kopi.flow()
        fails("bind() where a rule denies it", errno.EACCES, lambda: other.bind((HOST, 6400)))
        got = events(ynl, 2)
        check("a bind() that a rule refuses", [name for name, _ in got] == ["flow-opened-ntf", "flow-denied-ntf"]
              and (got[1][1]["rule"], got[1][1]["local-address"], got[1][1]["local-port"]) == (handle, HOST, 6400), got)
        other.close()
        got = events(ynl, 1)
        check("closed", [name for name, _ in got] == ["flow-closed-ntf"], got)

    sh("mountpoint -q /sys/fs/bpf || mount -t bpf none /sys/fs/bpf")
    with ruled() as ruler:
        ordinary_sockets(ynl, ruler)

    connected_once(ynl)

    before = limit.read()
    set_limit("1")
    fails("a flow too many", errno.EMFILE, kopi.flow)
    set_limit(before)
    got = events(ynl, 1)
    check("a limit that refuses", [(name, event["limit"], event["pid"]) for name, event in got]
          == [("limit-ntf", "user_max_flows", os.getpid())], got)

    stats = channel.stats()
    channel.sock.close()
    channel.region.close()
    got = events(ynl, 1)
    check("a closed flow's last counters", [(name, event["id"]) for name, event in got] == [("flow-closed-ntf", number)]
          and got[0][1]["stats"]["rx-drop-no-frame"] == stats["rx_drop_no_frame"] == 3, (got, stats))
    check("no event but those", not events(ynl, 1, 2))
    check("another namespace heard nothing of it", not events(elsewhere, 1, 2))
    check("the family works on", ask(ynl, "info-get")["abi-version"] == kopi.ABI_VERSION)
kopi.finish()
