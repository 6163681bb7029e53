#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Netlink survives messages of all kinds, while rules change and flows come and go; so it does where a user
is root of a user namespace, and others are served meanwhile.

FUZZ_SECONDS and FUZZ_SEED choose how long, and what; a run with the same seed sends the same.
"""

import ast
import contextlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time

import kopi
import memory
from control import ask, family, flows, rules, ruled
from equivalence import namespace, user
from kopi import check
from linux import NETLINK_EXT_ACK, NETLINK_GET_STRICT_CHK, SOL_NETLINK
from linux import NLMSG_ERROR, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST
from watchdog import Watchdog

SECONDS = float(os.environ.get("FUZZ_SECONDS", "5"))
# As root of a user namespace, in a hostile place.
WITHIN = sys.argv[1:] == ["--within"]
SEED = int(os.environ.get("FUZZ_SEED", str(random.SystemRandom().randrange(1 << 32))))
NESTED = 1 << 15
COMMANDS = 11
# flow-get, channel-get, rule-get.
DUMPED = (2, 3, 5)


def attribute(rng, kind, payload, broken):
    """An attribute; now and then its length or type is wrong."""
    length = 4 + len(payload)
    if broken and rng.random() < 0.1:
        length = rng.choice((0, 1, 3, 4, length - 1, length + 1, length + 8, 0xFFFF, rng.randrange(1 << 16)))
    if broken and rng.random() < 0.1:
        kind = rng.choice((0, kind | NESTED, kind | 1 << 14, rng.randrange(64), rng.randrange(1 << 16)))
    return struct.pack("=HH", length & 0xFFFF, kind & 0xFFFF) + payload + bytes(-len(payload) % 4)


def value(rng):
    """What an attribute may have, or may not."""
    return rng.choice((
        lambda: b"", lambda: struct.pack("=B", rng.randrange(256)),
        lambda: struct.pack("=H", rng.choice((0, 1, 6000, rng.randrange(1 << 16)))),
        # Indices of devices among them.
        lambda: struct.pack("=I", rng.choice((0, 1002, rng.randrange(1, 16), rng.randrange(1 << 32)))),
        lambda: struct.pack("=Q", rng.choice((1, 1 << 40, rng.randrange(1 << 64)))),
        lambda: rng.choice((b"/usr/bin/python3\0", b"/\0", b"/none\0", b"eth0\0", b"no zero", b"x" * 300 + b"\0")),
        lambda: bytes(rng.randrange(256) for _ in range(rng.choice((4, 16, 17, 60))))))()


def rule(rng, broken):
    """The attributes of a rule."""
    return b"".join(attribute(rng, rng.randrange(1, 34), value(rng), broken) for _ in range(rng.randrange(6)))


def message(rng):
    """A message to the family, as it should be or as it shouldn't."""
    broken = rng.random() < 0.6
    command = rng.randrange(1, COMMANDS + (3 if broken else 1))
    attributes = []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 40))):
        kind = rng.randrange(1, 6)
        payload = rule(rng, broken) if rng.random() < 0.7 else value(rng)
        if kind == 2:
            kind |= NESTED
        attributes.append(attribute(rng, kind, payload, broken))
    body = struct.pack("=BBH", command, 1, 0) + b"".join(attributes)
    if broken and rng.random() < 0.1:
        body = body[:rng.randrange(len(body) + 1)]
    return command, body


def open_socket():
    """A socket of generic netlink, which asks for all that is strict."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
    sock.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
    sock.setsockopt(SOL_NETLINK, NETLINK_GET_STRICT_CHK, 1)
    sock.setblocking(False)
    return sock


def rng_of(worker):
    """Each worker's own."""
    return random.Random(SEED * 64 + worker)


def send_all_kinds(worker, number, end):
    """Sends messages; some dumps are read in part, or not at all."""
    rng, sock, answered = rng_of(worker), open_socket(), {"sent": 0}
    # Also where the machine stood still meanwhile.
    while time.monotonic() < end or answered["sent"] < 500:
        command, body = message(rng)
        dumped = rng.random() < (0.7 if command in DUMPED else 0.03)
        flags = NLM_F_REQUEST | NLM_F_ACK | (NLM_F_DUMP if dumped else 0)
        length = 16 + len(body)
        with contextlib.suppress(OSError):
            sock.send(struct.pack("=IHHII", length, number, flags, 1, 0) + body)
            answered["sent"] += 1
        for _ in range(rng.choice((0, 1, 3, 50))):
            try:
                answer = sock.recv(rng.choice((100, 65536)))
            except OSError:
                break
            if len(answer) >= 20 and struct.unpack_from("=H", answer, 4)[0] == NLMSG_ERROR:
                error = -struct.unpack_from("=i", answer, 16)[0]
                answered[error] = answered.get(error, 0) + 1
        if rng.random() < 0.05:
            sock.close()
            sock = open_socket()
    return answered


def churn(worker, _number, end):
    """Flows and channels come, send and go."""
    rng, turns, kept = rng_of(worker), 0, []
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            sock = kopi.flow(rng.choice((0, kopi.UDP6)))
            sock.bind(("127.0.0.1" if rng.random() < 0.5 else "::1", rng.choice((0, 6000, rng.randrange(1024, 65536)))))
            sock.connect(("127.0.0.1", rng.randrange(1, 65536)))
            if rng.random() < 0.5:
                channel = kopi.Channel(sock, frames=16)
                for number in range(8):
                    channel.send(number, b"f" * 100)
                channel.bell()
                channel.region.close()
            kept.append(sock)
        if len(kept) > 20:
            kept.pop(rng.randrange(len(kept))).close()
        turns += 1
    return {"turns": turns}


def run_workers(number):
    """All at once, each in a process; what each says."""
    end = time.monotonic() + SECONDS
    readers = []
    for worker, work in enumerate((send_all_kinds, send_all_kinds, send_all_kinds, churn, churn)):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            signal.alarm(int(SECONDS * 4) + 60)
            if worker == 2 and not WITHIN:
                os.setresuid(1002, 1002, 1002)
            os.write(writer, repr(work(worker, number, end)).encode())
            os._exit(0)
        os.close(writer)
        readers.append((pid, os.fdopen(reader)))
    said = []
    for pid, reader in readers:
        with reader:
            said.append(reader.read())
        said[-1] = (os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said[-1])
    return said


def fuzz():
    """All of it, in this namespace; gives what each worker said."""
    said = run_workers(family().nlproto.family_id)
    for status, what in said:
        print(f"# {status}: {what}", flush=True)
    messages = sum(ast.literal_eval(what or "{}").get("sent", 0) for _, what in said)
    kopi.ran(f"netlink, {'with root of a namespace' if WITHIN else 'alone'}", SECONDS, SEED, messages=messages)
    return said


print(f"# FUZZ_SEED={SEED} FUZZ_SECONDS={SECONDS}", flush=True)
if WITHIN:
    sys.exit(any(status for status, _ in fuzz()))
with ruled() as ynl, Watchdog() as watchdog:
    said = fuzz()
    check("all workers ended by themselves", all(status == 0 for status, _ in said), said)
    check("some messages were right, and most kinds of wrong ones were met",
          all("0:" in what and "22:" in what for _, what in said[:2]), said[:2])
    check("who may not change anything is told so", "1:" in said[2][1], said[2])
    check("rules can be shown", isinstance(rules(ynl), list))
    ask(ynl, "ruleset-set")
    check("rules can be taken away", not rules(ynl))
    with namespace("peer"), user("bob"):
        check("who has nothing sees nothing", not flows(family()))
watchdog.check()
status = subprocess.call([f"{os.path.dirname(os.path.abspath(__file__))}/hostile.py", os.path.abspath(__file__),
                          "--within"], env=os.environ | {"FUZZ_SEED": str(SEED), "HOSTILE_CHURN": "1"})
check("with root of a user namespace: all workers ended by themselves", status in (0, 3), status)
check("and others were served in time", status != 3)
check("nothing is left that holds the module", memory.wait_until_unused())
kopi.finish()
