#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A dump shows what there was when it began: flows and channels that are made faster than it is read don't make it
endless, nor do they keep a change of rules, or a sum of counters, from ending."""

import os
import resource
import signal
import socket
import struct

import kopi
from control import add, family
from equivalence import namespace
from linux import NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE

NETLINK_GENERIC = 16
FLOW_GET, CHANNEL_GET = 2, 3
# Enough for several parts of a dump, of 32 kB at the most.
FLOWS, CHANNELS, MORE = 600, 300, 100


def parts(number, command):
    """The ids in each part of a dump, which the kernel makes when the one before has been read."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as sock:
        sock.bind((0, 0))
        sock.send(struct.pack("=IHHIIBBH", 20, number, NLM_F_REQUEST | NLM_F_DUMP, 1, 0, command, 1, 0))
        while True:
            data, ids = sock.recv(1 << 17), []
            while data:
                length, kind = struct.unpack_from("=IH", data)
                if kind == NLMSG_DONE:
                    yield ids
                    return
                # The first attribute is the id.
                ids.append(struct.unpack_from("=I", data, 24)[0])
                data = data[length + 3 & ~3:]
            yield ids


def grows_meanwhile(what, command, make, count):
    """A dump, during which more are made."""
    kept = [make() for _ in range(count)]
    number = family().nlproto.family_id
    shown, later = [], 0
    for ids in parts(number, command):
        later += bool(shown)
        shown += ids
        kept += [make() for _ in range(MORE)]
    # A group of sixteen numbers is looked at as a whole.
    kopi.check(f"{count} {what}, and {MORE} more after each part: the dump shows what there was",
               count <= len(shown) < count + 16 and len(set(shown)) == len(shown) and later > 1, (len(shown), later))
    for each in kept:
        each.close()


class Channel(kopi.Channel):
    """A small one."""

    def __init__(self):
        super().__init__(frames=4, tx=4, completion=4, fill=4, rx=4)

    def close(self):
        """Ends it."""
        self.sock.close()
        self.region.close()


def churn():
    """A process that opens flows and closes them, for ever."""
    child = os.fork()
    if not child:
        kept = []
        while True:
            kept.append(kopi.flow())
            if len(kept) > 100:
                kept.pop(0).close()
    return child


with namespace("host"):
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    grows_meanwhile("flows", FLOW_GET, kopi.flow, FLOWS)
    grows_meanwhile("channels", CHANNEL_GET, Channel, CHANNELS)
    churning = [churn() for _ in range(2)]
    ynl = family()
    opened = [ynl.do("totals-get", {})["flows-opened"]]
    for _ in range(3):
        list(parts(ynl.nlproto.family_id, FLOW_GET))
        handle = add(ynl, remote_port_min=5)
        opened.append(ynl.do("totals-get", {})["flows-opened"])
        ynl.do("rule-del", {"rule": {"handle": handle}})
    kopi.check("lists, sums and rules end beside processes that open flows all the time",
               all(after - before > 2 for before, after in zip(opened, opened[1:])), opened)
    for process in churning:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
kopi.finish()
