# SPDX-License-Identifier: GPL-2.0
"""A policy: what an administrator does, the traffic under it, and what should come of it."""

import collections
import dataclasses
from typing import Callable

from .setups import ADDRESSES
from .subjects import COUNT, PEER_PORT, PEERS, SUBJECT_PORT, Datagram, KopiSubject

# Datagrams that arrive; ANY: some, but not all; WHATEVER: it isn't said how many.
ALL, NONE, ANY, WHATEVER = COUNT, 0, -1, -2


def nothing(*_):
    """A step that is left out."""


@dataclasses.dataclass
class Traffic:
    """What is sent, and by what kind of subject."""
    families: tuple = (4, 6)
    gso: tuple = (False, True)
    # The subject is connected to its peer.
    connected: bool = True
    # Socket options of the subject, set before bind: (level, name, value).
    options: tuple = ()
    # For each datagram out, what goes into its descriptor's metadata, or into control messages:
    # a function of the family.
    metas: Callable = None
    # Each datagram is sent when the effects of the last one are over.
    paced: bool = False
    # Whether a packet that isn't the policy's passes after those that are.
    sentinel: bool = True


@dataclasses.dataclass
class Owner:
    """The user that opens the subject, by name, and the cgroup, by its path below the root."""
    user: str = ""
    cgroup: str = ""


@dataclasses.dataclass
class Places:
    """Where each end binds, and the target of what it sends, if that isn't where the other end
    is: functions of the family that give an address."""
    subject_at: Callable = lambda family: (ADDRESSES[family]["host"], SUBJECT_PORT)
    peer_at: Callable = lambda family: (ADDRESSES[family]["peer"], PEER_PORT)
    peer_binds: Callable = None
    subject_sends_to: Callable = None
    peer_sends_to: Callable = None
    subject_namespace: str = "host"
    peer_namespace: str = "peer"

    def __post_init__(self):
        self.peer_binds = self.peer_binds or self.peer_at
        self.subject_sends_to = self.subject_sends_to or self.peer_at
        self.peer_sends_to = self.peer_sends_to or self.subject_at


@dataclasses.dataclass
class Hooks:
    """What is done when, in the namespace `host`."""
    # Once before all exchanges: what is costly to set up.
    fixture: Callable = nothing
    # Before each exchange.
    setup: Callable = nothing
    # With the subject, and with the peer, before it is bound.
    prepare: Callable = nothing
    prepare_peer: Callable = nothing
    # When all was sent in one direction: waits until the policy let go of it.
    settle: Callable = nothing
    # A change in mid-flow, after which all is sent once more; `alter` is called with the subject.
    between: Callable = None
    alter: Callable = None


@dataclasses.dataclass
class Looks:
    """What is looked at after each direction, beside the sockets."""
    # Functions without arguments, whose last numbers can't all be 0.
    observe: tuple = ()
    # Functions of the subject.
    ask: tuple = ()


@dataclasses.dataclass
class Expected:
    """What should come of it."""
    # Datagrams that arrive, out of COUNT: leaving `host`, and coming to it. None: not sent.
    out: int = ALL
    into: int = ALL
    # The same after a change in mid-flow.
    then_out: int = ALL
    then_into: int = ALL
    # What of a KOPI flow's arrives, where that isn't `out`.
    kopi_out: int = None
    # The errors that the sender may see, besides none.
    errors: tuple = ()
    ordered: bool = True
    # Further expectations: functions of what was seen that give what is wrong with it.
    checks: tuple = ()
    # Listed differences: {what is compared: why it differs}.
    differs: dict = dataclasses.field(default_factory=dict)


class Policy:
    """A row of the table: Policy("no route", out=NONE, sentinel=False). Its fields are those of the
    groups; `note` is for the document."""

    def __init__(self, name, setup=nothing, note="", **fields):
        self.name, self.note = name, note
        fields["setup"] = setup

        def group(kind):
            names = {each.name for each in dataclasses.fields(kind)}
            return kind(**{each: fields.pop(each) for each in names & fields.keys()})

        self.traffic, self.owner, self.places = group(Traffic), group(Owner), group(Places)
        self.hooks, self.looks, self.expected = group(Hooks), group(Looks), group(Expected)
        if fields:
            raise TypeError(f"{name}: a policy has no {', '.join(fields)}")

    def rounds(self):
        """The rounds of an exchange: a suffix for what is seen, and what is expected."""
        first = [("", self.expected.out, self.expected.into)]
        if self.hooks.between or self.hooks.alter:
            return first + [(" then", self.expected.then_out, self.expected.then_into)]
        return first


def arrived(way, **fields):
    """A check that what arrived is as said: arrived("out", ttl=9)."""
    def check(seen):
        return [f"{way}: datagram {each.number} has {name} {getattr(each, name)}, not {value}"
                for each in seen.get(way, ()) for name, value in fields.items()
                if getattr(each, name) != value][:3]
    return check


def comparable(seen, policy, gso):
    """What must be the same for UDP and KOPI."""
    result = dict(seen)
    for key in ("out", "in", "out then", "in then"):
        if key in result and not policy.expected.ordered:
            result[key] = sorted(result[key], key=lambda each: each.number)
    if gso:
        result.pop("snmp", None)
    return result


def summary(policy, seen):
    """The outcome of an exchange, in a few words."""
    if "opening" in seen:
        return f"refused, {seen['opening']}"
    words = []
    for way, expected in (("out", policy.expected.out), ("in", policy.expected.into)):
        if way in seen:
            words.append(f"{'some' if expected == ANY else len(seen[way])} {way}")
    for way in ("out", "in"):
        if f"{way} then" in seen:
            words.append(f"then {len(seen[f'{way} then'])} {way}")
    errors = sorted(errors_of(seen) - {"ok"})
    if seen["pending error"] != "ok":
        errors.append(f"then {seen['pending error']}")
    return ", ".join(words + errors)


def errors_of(seen):
    """The errors that the sender got, by name."""
    return {*seen.get("errors", ()), *seen.get("errors then", ())}


def problems(policy, seen, kind):
    """What isn't as the policy should have it. With several peers, of which a policy may mean one, only damage."""
    if PEERS > 1:
        damaged = [f"datagram {each.number} is damaged" for key in ("out", "in", "out then", "in then")
                   for each in seen.get(key, ()) if not each.whole]
        return damaged + ([seen["unaccounted"]] if seen.get("unaccounted") else [])
    allowed = policy.expected.errors
    if "opening" in seen:
        return [] if seen["opening"] in allowed else [f"opening: {seen['opening']}"]
    wrong = wrong_arrivals(policy, seen, kind)
    unexpected = errors_of(seen) - {"ok", *allowed}
    if unexpected:
        wrong.append(f"errors {sorted(unexpected)}")
    if allowed and not set(allowed) & {*errors_of(seen), seen["pending error"]}:
        wrong.append(f"no {allowed}")
    if seen["unaccounted"]:
        wrong.append(seen["unaccounted"])
    for check in policy.expected.checks:
        wrong += check(seen)
    for function in policy.looks.observe:
        looks = [value for key, value in seen.items() if key.startswith(f"{function.__name__} after ")]
        # Zeros only: a rule that never matched.
        looked = policy.expected.into is None or any(" after in" in key for key in seen)
        if looked and looks and numbers(looks[-1]) and not any(numbers(looks[-1])):
            wrong.append(f"{function.__name__} saw nothing: {looks[-1]}")
    return wrong


def wrong_arrivals(policy, seen, kind):
    """What didn't arrive as expected."""
    wrong = []
    expectations = [(way + when, expected) for when, out, into in policy.rounds()
                    for way, expected in (("out", out), ("in", into))]
    for key, expected in expectations:
        if (key, kind) == ("out", KopiSubject) and policy.expected.kopi_out is not None:
            expected = policy.expected.kopi_out
        if expected == ANY and not 0 < len(seen[key]) < COUNT:
            wrong.append(f"{len(seen[key])} {key}, not just some")
        elif expected not in (None, ANY, WHATEVER) and len(seen[key]) != expected:
            wrong.append(f"{len(seen[key])} {key}, not {expected}")
        wrong += [f"{key}: datagram {each.number} is damaged"
                  for each in seen.get(key, ()) if not each.whole]
    return wrong


def numbers(value):
    """All numbers in what an observer saw."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return [value] if isinstance(value, (int, float)) else []
    return [number for each in value for number in numbers(each)]


def differences(policy, udp, flow, gso):
    """Names what differs, but for what the policy lists."""
    one, other = (comparable(seen, policy, gso) for seen in (udp, flow))
    found = []
    for key in sorted({*one, *other}):
        if one.get(key) != other.get(key) and key not in policy.expected.differs:
            found.append(f"{key}: UDP {shorten(one.get(key))}, KOPI {shorten(other.get(key))}")
    return found


def shorten(value):
    """A value for a message."""
    if isinstance(value, list) and value and isinstance(value[0], Datagram):
        value = [(each.number, each.source, each.destination, each.tos, each.ttl, each.device,
                  each.mark) for each in value]
    elif isinstance(value, list) and len(value) > 50:
        value = sorted(f"{count} x {each}" for each, count in collections.Counter(map(str, value)).items())
    text = str(value)
    return text if len(text) < 700 else text[:700] + "…"
