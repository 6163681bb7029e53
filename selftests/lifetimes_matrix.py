#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Every way in which a flow, or what is below it, can end, in every state in which it can be.

Each case is a flow in a network namespace of its own, on a veth pair or on a NIC that is plugged in
for it, and may be attached: then it sends and receives GSO packets by the driver. Or the namespace is one that a
user has made in a user namespace of his own, with a monitor device, rules with rates, an engine and busy
polling. It is brought into a state, the ending is applied, and then: the program, if it lives, goes on or gets the error that a UDP
socket gets; what held packets holds them still, or has let go of them; what is held comes out whole
when it is let go; every frame is completed and every packet counted; and when all is closed nothing
refers to the module, and namespace and device are gone.

    lifetimes_matrix.py [PATTERN...]    cases that match, as 'close/*', '*/idle', '*/attached' or '*/hostile'
"""

import fnmatch
import os
import re
import socket
import sys
import time
import traceback

import kopi
import links
import memory
from kopi import Wrong
from lifetimes.case import HELD, Case, be_quiet, sh
from lifetimes.endings import ENDINGS
from lifetimes.program import DEBUG, FAR
from links import inside
from qmp import Nic
from watchdog import Watchdog

# What a CPU keeps for what NAPI receives (NAPI_SKB_CACHE_SIZE).
NAPI_CACHE = 128
STATES = ("idle", "sending", "receiving", "poll", *HELD)
# Those in which an attached device's driver has packets.
BY_DRIVER = ("sending", "receiving")
# Those in which a hostile user has packets on their way.
BY_USER = ("sending", "receiving", "poll", "netem")


def all_cases():
    """Each ending in each state: what it is called, and what it is."""
    for ending in ENDINGS:
        for place, states in (("", STATES), ("attached", BY_DRIVER), ("hostile", BY_USER)):
            for state in states:
                if place == "attached" or not ending.attached and not (place == "hostile" and ending.nic):
                    yield "/".join(filter(None, (ending.name, state, place))), (ending, state, place)


def try_case(ending, state, place):
    """Runs one; gives what is wrong, or an empty string."""
    problems = []
    case = None
    for step in (lambda: Case(ending, state, place), lambda: case.run(), lambda: case.close()):
        try:
            case = step() or case
        except Wrong as problem:
            problems.append(str(problem))
        except Exception:  # pylint: disable=broad-exception-caught
            problems.append(traceback.format_exc())
        if not case:
            break
    return "; at the end: ".join(problems)


def allowed(name):
    """How many objects more a slab may have."""
    # Of what flows are made fewer than if the cases of one ending left one each; of what packets are
    # made, and others use all the time, fewer than if the cases of one state left each packet.
    if not re.match("kmalloc|skbuff", name):
        return 6
    return 60 + (NAPI_CACHE * os.cpu_count() if name == "skbuff_head_cache" else 0)


def grown(before):
    """The slabs that have more objects than before, and by how many."""
    # What a NIC has sent it frees when it sends again.
    for space, to in (("peer", "192.0.2.1"), ("host", "192.0.2.2")):
        with inside(f"/run/netns/{space}"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sweep:
            sweep.sendto(b"", (to, 9))
    after = memory.counts()
    # Not where the debug kernel keeps dead reference trackers, up to 128 for each namespace and device.
    return {name: after[name] - count for name, count in before.items()
            if not name.endswith(":") and not (DEBUG and name == "kmalloc-32")
            and after[name] - count > allowed(name)}


def chosen():
    """The cases that the command line's patterns match."""
    patterns = sys.argv[1:] or ["*"]
    return {name: case for name, case in all_cases() if any(fnmatch.fnmatch(name, each) for each in patterns)}


def check_cases(cases, remark=""):
    """Runs the cases, each of which is a check."""
    for name, case in cases.items():
        wrong = try_case(*case)
        kopi.check(name + remark, not wrong, wrong)


def check_memory(counts):
    """The slabs have the objects that they had."""
    left = grown(counts)
    for _ in range(5):
        if not left:
            break
        # What RCU and work queues have yet to free.
        time.sleep(1)
        left = grown(counts)
    kopi.check(f"{len(counts)} slabs have the objects that they had", not left, left)


def main():
    """All cases, between two counts of memory."""
    kopi.send_by_reference()
    Case.slot = Nic()
    sh(f"kopictl engine set --cpus 0-{os.cpu_count() - 1} --idle 100 --budget 4096")
    sh(f"ip -n peer addr add {FAR}/24 dev eth1")
    links.make_namespace("away")
    be_quiet("/run/netns/away")
    # So that all modules are loaded, and the slot has been used, before memory is counted.
    every = dict(all_cases())
    check_cases({name: every[name] for name in ("unplug/nfqueue", "unplug/netem", "unplug/sending/attached",
                                                "close/tap", "close/sending/hostile")}, ", for the first time")
    counts = memory.counts()
    with Watchdog() as watchdog:
        check_cases(chosen())
    watchdog.check()
    check_memory(counts)
    links.drop_namespace("away")
    sh("kopictl engine off")
    sh(f"ip -n peer addr del {FAR}/24 dev eth1")
    Case.slot.close()


main()
kopi.finish()
