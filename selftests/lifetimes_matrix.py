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

import os
import socket
import traceback

import kopi
import links
import memory
from kopi import Wrong
from lifetimes.case import HELD, Case, be_quiet, sh
from lifetimes.endings import ENDINGS
from lifetimes.matrix import check_memory, chosen
from lifetimes.program import FAR
from links import inside
from qmp import Nic
from watchdog import Watchdog

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


def sweep():
    """What a NIC has sent it frees when it sends again."""
    for space, to in (("peer", "192.0.2.1"), ("host", "192.0.2.2")):
        with inside(f"/run/netns/{space}"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"", (to, 9))


def check_cases(cases, remark=""):
    """Runs the cases, each of which is a check."""
    for name, case in cases.items():
        wrong = try_case(*case)
        kopi.check(name + remark, not wrong, wrong)


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
        check_cases({name: every[name] for name in chosen(every)})
    watchdog.check()
    check_memory(counts, sweep)
    links.drop_namespace("away")
    sh("kopictl engine off")
    sh(f"ip -n peer addr del {FAR}/24 dev eth1")
    Case.slot.close()


main()
kopi.finish()
