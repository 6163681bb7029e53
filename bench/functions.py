# SPDX-License-Identifier: GPL-2.0

"""For bench/profile: a table of the functions that qemu/count.c has counted the instructions of.

functions.py LEAST PACKETS MODE...
"""

import base64
import bisect
import collections
import glob
import gzip
import json
import re
import subprocess
import sys

BUILD = "/kopi/build"
PROGRAM = f"{BUILD}/cargo/release/kopi-bench"
# Where a program lies that can lie anywhere, if that isn't left to chance; and the kernel.
PROGRAM_BASE = 0x555555554000
PROGRAM_END = PROGRAM_BASE + (64 << 20)
KERNEL_BASE = 1 << 63
# The thread whose loops are idle time.
IDLE = "kopi_bench::clock::idle"
# Of a run of receiving: tools/bench/src/receive/mod.rs.
RECEIVED = 128 * 64


def demangled(text):
    """Symbols with names as they stand in the source."""
    command = ["c++filt", "--format=rust"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def symbols(text, base=0):
    """The code's addresses and names, in order, of lines as nm and /proc/kallsyms have them."""
    found = []
    for line in demangled(text).splitlines():
        address, kind, name = (line.split(maxsplit=2) + ["", "", ""])[:3]
        if kind in "tTwW" and kind:
            # Without the module it is of, and the hashes that some have.
            name = re.sub(r"\t\[\w+\]$|::h[0-9a-f]{16}$|\[[0-9a-f]{16}\]", "", name)
            found.append((base + int(address, 16), name))
    return sorted(found)


class Names:
    """Finds the function that an address is in."""

    def __init__(self, kernel, program):
        self.symbols = sorted(kernel + program)
        self.addresses = [address for address, _ in self.symbols]

    def of(self, address):
        if PROGRAM_BASE <= address < PROGRAM_END or address >= KERNEL_BASE:
            return self.symbols[bisect.bisect(self.addresses, address) - 1][1]
        return "programs' other code"


def counted(path, names):
    """Instructions by function."""
    counts = collections.Counter()
    with open(path, encoding="ascii") as lines:
        for line in lines:
            address, count = line.split()
            counts[names.of(int(address, 16))] += int(count)
    del counts[IDLE]
    return counts


def row(mode, program, packets):
    """Instructions of a packet by function."""
    with open(f"{BUILD}/logs/profile.{mode}", encoding="utf-8") as log:
        text = log.read().split("\n", 1)
    found, rest = json.loads(text[0]), text[1]
    kernel = symbols(gzip.decompress(base64.b64decode(rest)).decode())
    names = Names(kernel, program)
    prefix = f"{BUILD}/profile.{mode}"
    counts = counted(f"{prefix}.row", names)
    if found["direction"] in ("recv", "serve"):
        packets = RECEIVED
        costs = sorted(glob.glob(f"{prefix}.cost.*"), key=lambda path: int(path.rsplit(".", 1)[1]))
        # A nap comes first, a burst with a nap last.
        counts.subtract(counted(costs[-1], names))
        if mode != "xdp_drop":
            counts.update(counted(costs[0], names))
    return {name: count / packets for name, count in counts.items()}


def main():
    least, packets, *modes = sys.argv[1:]
    command = ["nm", PROGRAM]
    program = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    program = symbols(program, PROGRAM_BASE)
    rows = [row(mode, program, int(packets)) for mode in modes]
    functions = set().union(*rows)

    def line(name, numbers):
        print("|", " | ".join([name] + [str(number) for number in numbers]), "|")

    line("", modes)
    line("---", ["---:"] * len(modes))
    shown = []
    for name in functions:
        numbers = [each.get(name, 0) for each in rows]
        if max(numbers) >= float(least):
            shown.append((numbers, name))
    for numbers, name in sorted(shown, reverse=True):
        line(f"`{name}`", [round(number) for number in numbers])
    together = [sum(each.values()) for each in rows]
    others = [
        whole - sum(numbers[index] for numbers, _ in shown) for index, whole in enumerate(together)
    ]
    line("all others", [round(number) for number in others])
    line("together", [round(number) for number in together])


if __name__ == "__main__":
    main()
