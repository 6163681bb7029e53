#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""With tens of thousands of flows, and hundreds of processes with a channel each, the tools show all of them, rules
change, others are served, and in the end nothing is left.

FLOWS and PROCESSES set how many: 100,000 and 1,000 are for a patient machine."""

import contextlib
import errno
import json
import os
import resource
import signal
import subprocess
import time

import kopi
import memory
from kopi import Channel, check, fails, flow, in_child
from limits import limited
from watchdog import Watchdog

FLOWS = int(os.environ.get("FLOWS", "20000"))
PROCESSES = int(os.environ.get("PROCESSES", "200"))
# Of one process; each has an address.
EACH = 5000
# As many as there is memory for.
LIMITS = dict.fromkeys(("user_max_flows", "netns_max_flows", "user_max_channels", "netns_max_channels"), 1 << 20)


@contextlib.contextmanager
def processes(count, work):
    """So many, each of which has done its work, by its number, and lives until the block ends."""
    reader, writer = os.pipe()

    def child(number):
        kept = work(number)
        os.write(writer, b"!")
        signal.pause()
        return kept
    pids = [in_child(lambda number=number: child(number)) for number in range(count)]
    os.close(writer)
    ready = b""
    while len(ready) < count and (more := os.read(reader, 4096)):
        ready += more
    os.close(reader)
    check(f"{count} processes have what they are to have", len(ready) == count, len(ready))
    try:
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def open_flows(number):
    """Connected ones."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (EACH + 100, EACH + 100))
    kept = []
    for port in range(2000, 2000 + EACH):
        kept.append(flow())
        kept[-1].bind((f"127.1.{number}.1", port))
        kept[-1].connect(("127.0.0.1", 9))
    return kept


def open_channel(_number):
    """Small, and its ring in use."""
    channel = Channel(frame_size=512, frames=16, tx=16, completion=16, fill=16, rx=16)
    channel.send(0, b"x", ("127.0.0.1", 9))
    channel.bell()
    return channel


def kopictl(*words):
    """What it prints; how long it took is said."""
    start = time.monotonic()
    said = subprocess.run(("kopictl", *words), check=True, capture_output=True, text=True).stdout
    print(f"# kopictl {' '.join(words)}: {time.monotonic() - start:.2f} s", flush=True)
    return said


def flows_of(pids):
    """What ps shows of them; the watchdog may have a flow, too."""
    wanted = set(pids)
    return [each for each in json.loads(kopictl("ps", "--json")) if each["pid"] in wanted]


def many_flows():
    """All tools, with many flows."""
    with processes(FLOWS // EACH, open_flows) as pids, Watchdog() as watchdog:
        shown = flows_of(pids)
        check("ps shows all flows", len(shown) == FLOWS, len(shown))
        check("and whose they are", {each["pid"] for each in shown} == set(pids))
        kopictl("rule", "add", "local-port", "2000", "deny")
        with flow() as one:
            fails("a new rule is in force", errno.EACCES, lambda: one.bind(("127.0.0.1", 2000)))
        kopictl("rule", "flush")
        numbers = [line.split() for line in kopictl("metrics").splitlines()]
        counted = [int(words[1]) for words in numbers if words[0] == "kopi_flows"]
        # And the watchdog's, of which there may be some now.
        check("metrics counts them", counted and FLOWS <= counted[0] <= FLOWS + 4, counted)
        top = [each for each in json.loads(kopictl("top", "--json")) if each["pid"] in pids]
        check("top has their processes", {each["pid"]: each["flows"] for each in top} == dict.fromkeys(pids, EACH), top)
    watchdog.check()
    check("nothing of them is left", memory.wait_until_unused())


def many_processes():
    """A channel each."""
    with processes(PROCESSES, open_channel) as pids, Watchdog() as watchdog:
        shown = flows_of(pids)
        check("ps shows all processes", {each["pid"] for each in shown} == set(pids), len(shown))
        check("each has sent", all(each["stats"]["tx_packets"] == 1 for each in shown))
    watchdog.check()
    check("nothing of them is left, either", memory.wait_until_unused())


with limited(**LIMITS):
    for case in (many_flows, many_processes):
        kopi.attempt(case)
kopi.finish()
