# SPDX-License-Identifier: GPL-2.0
"""The runner: carries out the exchanges under each policy, compares, and notes rows of the table."""

import contextlib
import errno
import json
import os
import pwd
import select
import socket
import sys
import time
import traceback

import kopi

from .observers import snmp
from .policy import differences, problems, summary
from .setups import PATIENCE, as_root, devices, fix_neighbours, namespace, set_aside, undo_all
from .subjects import (FAMILIES, PEERS, SENTINEL_PORTS, SUBJECTS, Peers, UdpSubject, datagrams_of, errno_name, in_turns,
                       peers_at)

# The IP version of the exchange, for setups that are costly.
current = {"family": 4}
OTHER = {"host": "peer", "peer": "host"}


class Sentinel:
    """Ordinary datagrams that follow the exchange's over the same path."""

    def __init__(self, family, places):
        self.ends = {}
        spaces = {"host": places.subject_namespace, "peer": places.peer_namespace}
        self.places = {"host": places.subject_at(family)[0], "peer": places.peer_at(family)[0]}
        for end, space in spaces.items():
            with namespace(space):
                sock = socket.socket(FAMILIES[family], socket.SOCK_DGRAM)
                sock.bind((self.places[end], SENTINEL_PORTS[end]))
                sock.settimeout(PATIENCE)
                self.ends[end] = sock

    def pass_to(self, end):
        """Sends one to that end, and waits for it."""
        self.ends[OTHER[end]].sendto(b"sentinel", (self.places[end], SENTINEL_PORTS[end]))
        self.ends[end].recv(64)

    def close(self):
        for sock in self.ends.values():
            sock.close()


def collect(receiver, expected, after):
    """Waits for the datagrams that are expected, and then for any others that may arrive."""
    found = []
    # Of several peers, a policy may let some have their datagrams.
    deadline = time.monotonic() + (PATIENCE if PEERS == 1 else 2)
    while True:
        found += receiver.receive()
        left = deadline - time.monotonic()
        if len(found) >= expected or left <= 0:
            break
        select.select(receiver.socks, [], [], min(left, 0.05))
    after()
    return in_turns(found + receiver.receive())


def said_by(function, *of):
    """What a function says of the subject; with several peers, it may have to be connected for that."""
    try:
        return function(*of)
    except OSError as error:
        if PEERS == 1 or error.errno != errno.ENOTCONN:
            raise
        return "not connected"


@contextlib.contextmanager
def as_owner(owner):
    """Makes what the block opens the user's and the cgroup's."""
    if owner.cgroup:
        kopi.move_to(owner.cgroup)
    if owner.user:
        entry = pwd.getpwnam(owner.user)
        os.setegid(entry.pw_gid)
        os.seteuid(entry.pw_uid)
    try:
        yield
    finally:
        if owner.user:
            os.seteuid(0)
            os.setegid(0)
        if owner.cgroup:
            kopi.move_to("")


class Exchange:
    """One exchange under a policy; `seen` has all that was seen."""

    def __init__(self, kind, policy, family, gso):
        self.kind, self.policy, self.family, self.gso = kind, policy, family, gso
        self.seen = {}
        self.subject = self.peer = self.sentinel = None
        self.data = datagrams_of(family)
        self.connected = policy.traffic.connected and PEERS == 1
        current["family"] = family

    def run(self):
        """Sets up, sends both ways, and undoes; gives what was seen."""
        policy = self.policy
        with contextlib.ExitStack() as stack:
            stack.enter_context(namespace(policy.places.subject_namespace))
            stack.callback(undo_all)
            policy.hooks.setup()
            self._open_peer(stack)
            if policy.traffic.sentinel:
                self.sentinel = Sentinel(self.family, policy.places)
                stack.callback(self.sentinel.close)
            stack.enter_context(as_owner(policy.owner))
            try:
                self._open_subject(stack)
            except OSError as error:
                self.seen["opening"] = errno_name(error.errno)
                return self.seen
            before = snmp()
            for when, out, into in policy.rounds():
                self._round(when, out, into)
            self.seen["pending error"] = errno_name(self.subject.error())
            self.seen["snmp"] = {name: value - before[name] for name, value in snmp().items()
                                 if value != before[name]}
            self.seen["unaccounted"] = self.subject.unaccounted()
        return self.seen

    def _open_peer(self, stack):
        places = self.policy.places
        with namespace(places.peer_namespace):
            ends = [UdpSubject(self.family) for _ in range(PEERS)]
            self.peer = ends[0] if PEERS == 1 else Peers(ends)
            stack.callback(self.peer.close)
            for end, address in zip(ends, peers_at(places.peer_binds(self.family))):
                self.policy.hooks.prepare_peer(end)
                end.bind(address)

    def _open_subject(self, stack):
        policy = self.policy
        self.subject = self.kind(self.family, self.gso)
        stack.callback(self.subject.close)
        policy.hooks.prepare(self.subject)
        for level, name, value in policy.traffic.options:
            self.subject.sock.setsockopt(level, name, value)
        self.subject.bind(policy.places.subject_at(self.family))
        self.target = policy.places.subject_sends_to(self.family)
        self.subject.after_bind()
        if self.connected:
            self.subject.connect(self.target)

    def _round(self, when, out, into):
        """Sends both ways; all but the first round come after a change in mid-flow."""
        if when:
            with as_root():
                if self.policy.hooks.between:
                    self.policy.hooks.between()
                if self.policy.hooks.alter:
                    self.policy.hooks.alter(self.subject)
        if out is not None:
            self.seen["errors" + when] = [errno_name(each) for each in self._send_out()]
            self.seen["out" + when] = collect(self.peer, out, lambda: self._follow("peer"))
            self._look("out" + when)
        if into is not None:
            self.seen["peer's errors" + when] = [errno_name(each) for each in self._send_in()]
            self.seen["in" + when] = collect(self.subject, into, lambda: self._follow("host"))
            self._look("in" + when)

    def _send_out(self):
        traffic = self.policy.traffic
        to = None if self.connected else self.target
        if not traffic.paced:
            metas = traffic.metas and traffic.metas(self.family)
            return self.subject.send(self.data, to, metas=metas)
        errors = []
        for each in self.data:
            errors += self.subject.send([each], to)
            self.sentinel.pass_to("peer")
            self.sentinel.pass_to("host")
        return errors

    def _send_in(self):
        back = self.policy.places.peer_sends_to(self.family)
        if not self.policy.traffic.paced:
            return self.peer.send(self.data, back, self.gso)
        errors = []
        for each in self.data:
            errors += self.peer.send([each], back)
            self.sentinel.pass_to("host")
        return errors

    def _follow(self, end):
        self.policy.hooks.settle()
        if self.sentinel:
            self.sentinel.pass_to(end)

    def _look(self, after):
        # How GSO packets are merged is chance, so their number after they came in is, too.
        if self.gso and after.startswith("in"):
            return
        with as_root():
            for function in self.policy.looks.observe:
                self.seen[f"{function.__name__} after {after}"] = said_by(function)
            for function in self.policy.looks.ask:
                self.seen[f"{function.__name__}, asked after {after}"] = said_by(function, self.subject)


def same(area, what, udp, flow, expected, reason=""):
    """Checks and notes what isn't an exchange: its outcome for a UDP socket and for a KOPI flow, and
    the outcome that the first should have. The two must be equal, or there is a reason."""
    as_listed = udp == expected and (udp == flow) == (not reason)
    kopi.check(what, as_listed, f"UDP {udp}, KOPI {flow}, expected {expected}")
    write_row({"area": area, "policy": what, "note": "", "UDP": str(udp), "KOPI": str(flow),
               "differs": {"the outcome": reason} if reason else {}, "same": as_listed})


def write_row(row):
    """Appends a row of docs/policy.md's table to the file that POLICY_TABLE names."""
    if os.environ.get("POLICY_TABLE"):
        with open(os.environ["POLICY_TABLE"], "a", encoding="utf-8") as table:
            table.write(json.dumps(row) + "\n")


def directly():
    """How many packets have gone by the direct path, out and in, of the host's attached devices: where
    DIRECT says that there are some."""
    found = devices("host") if os.environ.get("DIRECT") else []
    return {way: sum(each[name] for each in found) for way, name in (("out", "packets"), ("in", "received_direct"))}


def compare(policy, family, gso, row):
    """Carries out the exchange with both kinds of subject; notes the outcomes in the row, and gives
    what is wrong."""
    where = f"IPv{family}{', GSO packets' if gso else ''}"
    try:
        udp, flow = SUBJECTS
        seen = [Exchange(udp, policy, family, gso).run()]
        before = directly()
        seen.append(Exchange(flow, policy, family, gso).run())
        if not gso:
            row["directly"] = sorted({*row.get("directly", ()), *(way for way, count in directly().items()
                                                                  if count > before.get(way, 0))})
    except Exception:  # pylint: disable=broad-except
        return [f"{where}: {traceback.format_exc(limit=-1)}"]
    wrong = []
    for kind, each in zip(SUBJECTS, seen):
        wrong += [f"{where}, {kind.kind}: {what}" for what in problems(policy, each, kind)]
        row.setdefault(kind.kind + (" GSO packets" if gso else ""), summary(policy, each))
    return wrong + [f"{where}: {what}" for what in differences(policy, *seen, gso)]


def try_policy(area, policy):
    """Carries out all exchanges of a policy; checks, and notes its row."""
    start = time.monotonic()
    row = {"area": area, "policy": policy.name, "note": policy.note}
    wrong = []
    with namespace("host"):
        try:
            policy.hooks.fixture()
        except RuntimeError as error:
            wrong.append(str(error))
    take_down = set_aside()
    # Several peers get and send single datagrams.
    for gso in policy.traffic.gso if PEERS == 1 else (False,):
        for family in policy.traffic.families:
            wrong += compare(policy, family, gso, row)
    with namespace("host"):
        take_down.close()
    row["differs"] = policy.expected.differs
    row["same"] = not wrong
    kopi.check(f"{policy.name} ({time.monotonic() - start:.1f} s)", not wrong,
               "\n#   ".join([""] + wrong))
    write_row(row)


def run(area, policies, others=lambda: None):
    """Runs the policies, or those whose name has one of the command line's words; prints TAP, and
    appends rows of docs/policy.md's table to the file that POLICY_TABLE names. `others` checks
    what can't be put as a policy."""
    os.sched_setaffinity(0, {0})
    fix_neighbours()
    words = sys.argv[1:]
    for policy in policies:
        if not words or any(word in policy.name for word in words):
            try_policy(area, policy)
    if not words:
        others()
        with namespace("host"):
            undo_all()
    kopi.finish()
