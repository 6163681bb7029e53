#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Random sequences of calls give by `kopi run` what they give on UDP sockets, and by `kopi run --tcp` on TCP
sockets: results, errors, control messages, flags, readiness."""

import os
import subprocess
import sys

import kopi

SEEDS = int(os.environ.get("RUN_SEEDS", "6"))
CALLS = int(os.environ.get("RUN_CALLS", "600"))
CONNECTIONS = CALLS // 15
HERE = os.path.dirname(os.path.abspath(__file__))


def lines(script, seed, count, *by):
    """What a process says that makes the calls of a seed, in a network namespace of its own; and the number at
    the end of its last line."""
    command = ["unshare", "-n", *by, sys.executable, f"{HERE}/preload/{script}", str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    counted = [line for line in done.stdout.splitlines() if line.startswith("# by")]
    if done.returncode or done.stderr:
        said.append(f"status {done.returncode}: {done.stderr[-2000:]}")
    return said, int(counted[0].split()[-1]) if counted else 0


def same(plain, run, enough):
    """Compares both, and says where they begin to differ."""
    if plain == run and len(plain) > enough:
        return True
    for number, (one, other) in enumerate(zip(plain, run)):
        if one != other:
            print(f"# call {number}\n#  plain: {one}\n#  kopi:  {other}")
            for line in plain[max(0, number - 12):number]:
                print(f"#    before: {line}")
            break
    else:
        print(f"# {len(plain)} lines and {len(run)}: {plain[-1:]} {run[-1:]}")
    return False


def compare(seed, first):
    """Datagrams; gives the number of those that went by rings."""
    plain, _ = lines("calls.py", seed, CALLS)
    run, count = lines("calls.py", seed, CALLS, "kopi", "run", "--min-datagrams", str(first))
    kopi.check(f"seed {seed}, rings from datagram {first} on: {len(plain)} results are the same, {count} by rings",
               same(plain, run, CALLS))
    return count


def compare_tcp(seed):
    """Connections, of flows and of none."""
    plain, none = lines("tcp_calls.py", seed, CONNECTIONS)
    run, count = lines("tcp_calls.py", seed, CONNECTIONS, "kopi", "run", "--tcp")
    kopi.check(f"TCP, seed {seed}: {len(plain)} results are the same", same(plain, run, 10 * CONNECTIONS))
    kopi.check(f"by flows: {count} times asked, and {none} without", count > 2 * CONNECTIONS and none == 0)


def main():
    total = sum(compare(seed, (1, 1, 5)[seed % 3]) for seed in range(SEEDS))
    kopi.check(f"rings sent some of it: {total} datagrams", total > SEEDS * CALLS // 20)
    for seed in range(SEEDS // 3):
        compare_tcp(seed)
    kopi.finish()


main()
