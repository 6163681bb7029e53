#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A dump shows what there was when it began: flows and channels that are made faster than it is read don't make it
endless, nor do they keep a change of rules, or a sum of counters, from ending. A dump of rules during which they
change says so."""

import os
import random
import resource
import signal
import socket
import struct
import time

import kopi
from control import add, ask, family, ruled
from equivalence import namespace
from linux import NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR

NETLINK_GENERIC = 16
FLOW_GET, CHANNEL_GET, RULE_GET, RULE_ADD, RULE_DEL = 2, 3, 5, 6, 7
# Enough for several parts of a dump, of 32 kB at the most.
FLOWS, CHANNELS, MORE, RULES = 600, 300, 100, 80
# What a rule is in, and its attributes.
RULE, HANDLE, BEFORE = 2, 1, 2
# Seconds.
RACE = 30


def request(number, command, flags, attributes=b""):
    """A request of the family."""
    return struct.pack("=IHHIIBBH", 20 + len(attributes), number, NLM_F_REQUEST | flags, 1, 0, command, 1, 0) + attributes


def marked_parts(number, command):
    """The ids in each part of a dump, which the kernel makes when the one before but one has been read; and whether
    it says there that something changed meanwhile."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as sock:
        sock.bind((0, 0))
        sock.send(request(number, command, NLM_F_DUMP))
        while True:
            data, ids, changed = sock.recv(1 << 17), [], False
            while data:
                length, kind, flags = struct.unpack_from("=IHH", data)
                changed |= bool(flags & NLM_F_DUMP_INTR)
                if kind == NLMSG_DONE:
                    yield ids, changed
                    return
                # The first attribute is the id, or the rule's.
                ids.append(struct.unpack_from("=I", data, 28 if command == RULE_GET else 24)[0])
                data = data[length + 3 & ~3:]
            yield ids, changed


def parts(number, command):
    """The ids alone."""
    return (ids for ids, _ in marked_parts(number, command))


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


def many_rules(ynl):
    """Makes rules for several parts of a dump; gives their handles."""
    ask(ynl, "ruleset-set", {"rule": [{"remote-port-min": 5, "comment": "x" * 255}] * RULES})
    number = ynl.nlproto.family_id
    return [handle for ids in parts(number, RULE_GET) for handle in ids]


def shows_after(number, change):
    """Which parts of a dump of rules say so, of which the first two are made before a change."""
    dump = marked_parts(number, RULE_GET)
    first = next(dump)
    change()
    return [changed for _, changed in [first, *dump]]


def changing_rules_are_told():
    """Whatever the change is, but no other namespace's."""
    with ruled("peer") as other, ruled() as ynl:
        number = ynl.nlproto.family_id
        many_rules(ynl)
        said = shows_after(number, lambda: None)
        kopi.check("rules that don't change: no part of a dump says so", len(said) > 2 and not any(said), said)
        said = shows_after(number, lambda: add(other, remote_port_min=5))
        kopi.check("nor if another namespace's change", len(said) > 2 and not any(said), said)
        said = shows_after(number, lambda: add(ynl, remote_port_min=5))
        kopi.check("a rule is added after the second part: the third says so", said[:3] == [False, False, True], said)
        said = shows_after(number, lambda: ask(ynl, "ruleset-set"))
        kopi.check("none are left after the second part: the end says so", said == [False, False, True], said)


def changer(number, first, last):
    """A process that adds a rule before the first one and takes it away, for ever."""
    child = os.fork()
    if child:
        return child
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as sock:
        sock.bind((0, 0))
        while True:
            last += 1
            for command, kind, handle in (RULE_ADD, BEFORE, first), (RULE_DEL, HANDLE, last):
                sock.send(request(number, command, NLM_F_ACK, struct.pack("=HHHHI", 12, RULE | 0x8000, 8, kind, handle)))
                while struct.unpack_from("=H", sock.recv(1 << 12), 4)[0] != NLMSG_ERROR:
                    pass


def races():
    """A dump goes on while a change is being made, at any instruction of it."""
    with ruled() as ynl:
        number, handles = ynl.nlproto.family_id, many_rules(ynl)
        cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, [max(cpus)])
        child = changer(number, handles[0], handles[-1])
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        end, dumps, wrong = time.monotonic() + RACE, 0, 0
        while time.monotonic() < end:
            dump = marked_parts(number, RULE_GET)
            first = next(dump)
            # Only then the other process, of the same CPU, goes on.
            time.sleep(random.uniform(0, 0.0005))
            every = [first, *dump]
            shown = [handle for ids, _ in every for handle in ids]
            told = any(changed for _, changed in every)
            dumps += not told
            wrong += not told and shown not in (handles, [shown[0], *handles])
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, cpus)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kopi.check("in a race, no dump shows a part of two sets without a word", dumps and not wrong, (dumps, wrong))


changing_rules_are_told()
races()
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
