#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Who listens to netlink's events learns what happens to flows, and by what."""

import errno
import os
import socket
import time

import kopi
from control import add, ask, family, ruled
from equivalence import namespace
from kopi import check, fails

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

    # Nobody takes what comes.
    with namespace("peer"):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.bind((PEER, 6401))
    for _ in range(3):
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
