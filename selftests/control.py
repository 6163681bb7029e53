# SPDX-License-Identifier: GPL-2.0
"""KOPI's netlink family, by the kernel's own library for families that have a YNL spec."""

import contextlib
import os
import sys

import kopi
from equivalence import namespace

YNL = f"{os.path.dirname(os.path.abspath(__file__))}/../build/ynl"
sys.path.insert(0, f"{YNL}/pyynl")

from lib import NlError, YnlFamily  # noqa: E402, after the way to it is known


def family(name="kopi"):
    """The family, or one of the kernel's own, asked from this network namespace and by this user."""
    return YnlFamily(f"{YNL}/uapi/{name}.yaml", schema=False)


def ask(ynl, name, request=None):
    """Carries out an operation."""
    return ynl.do(name, request or {})


def engine_threads():
    """Names of the engines' threads, in order. Other processes end meanwhile."""
    names = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            with open(f"/proc/{pid}/comm", encoding="ascii", errors="replace") as comm:
                names.append(comm.read().strip())
    return sorted(name for name in names if name.startswith("kopi-engine"))


def refused(what, number, call, words=""):
    """The call must be refused with that errno, and with these words."""
    try:
        got = call()
    except NlError as error:
        said = error.nl_msg.extack.get("msg", "") if error.nl_msg.extack else ""
        kopi.check(what, error.error == number and words in said, f"errno {error.error}: {said}")
        return
    kopi.check(what, False, f"gave {got}")


def add(ynl, **fields):
    """Adds a rule: add(ynl, local_port_min=5); gives its handle."""
    rule = {name.replace("_", "-"): value for name, value in fields.items()}
    return ask(ynl, "rule-add", {"rule": rule})["handle"]


def rules(ynl):
    """All rules."""
    return [each["rule"][0] for each in ynl.dump("rule-get", {})]


@contextlib.contextmanager
def ruled(space="host"):
    """The family in a network namespace, which has no rules before and after."""
    with namespace(space):
        ynl = family()
        ask(ynl, "ruleset-set")
        try:
            yield ynl
        finally:
            ask(ynl, "ruleset-set")


def flows(ynl):
    """All flows that may be seen, by number."""
    return {flow["id"]: flow for flow in ynl.dump("flow-get", {})}


def mine(ynl):
    """The flows of this process."""
    return {number: flow for number, flow in flows(ynl).items() if flow["pid"] == os.getpid()}
