#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Random sequences of calls give by `kopi run` what they give on UDP sockets: results, errors, control
messages, flags, readiness."""

import os
import subprocess
import sys

import kopi

SEEDS = int(os.environ.get("RUN_SEEDS", "12"))
CALLS = int(os.environ.get("RUN_CALLS", "600"))
HERE = os.path.dirname(os.path.abspath(__file__))


def lines(seed, *by):
    """What a process says that makes the calls of a seed, in a network namespace of its own."""
    command = ["unshare", "-n", *by, sys.executable, f"{HERE}/preload/calls.py", str(seed), str(CALLS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = done.stdout.splitlines()
    if done.returncode or done.stderr:
        said.append(f"status {done.returncode}: {done.stderr[-2000:]}")
    return said


def compare(seed, first):
    """Compares both; gives the number of datagrams that went by rings."""
    plain = lines(seed)
    run = lines(seed, "kopi", "run", "--min-datagrams", str(first))
    # The last line has what was sent by rings.
    by_rings = [line for line in run if line.startswith("# by rings")]
    run = [line for line in run if not line.startswith("#")]
    plain = [line for line in plain if not line.startswith("#")]
    same = plain == run and len(plain) > CALLS
    if not same:
        for number, (one, other) in enumerate(zip(plain, run)):
            if one != other:
                print(f"# call {number}\n#  UDP:  {one}\n#  kopi: {other}")
                for line in plain[max(0, number - 12):number]:
                    print(f"#    before: {line}")
                break
        else:
            print(f"# {len(plain)} lines and {len(run)}: {plain[-1:]} {run[-1:]}")
    count = int(by_rings[0].split()[3]) if by_rings else 0
    kopi.check(f"seed {seed}, rings from datagram {first} on: {len(plain)} results are the same, {count} by rings",
               same)
    return count


def main():
    total = sum(compare(seed, (1, 1, 5)[seed % 3]) for seed in range(SEEDS))
    kopi.check(f"rings sent some of it: {total} datagrams", total > SEEDS * CALLS // 20)
    kopi.finish()


main()
