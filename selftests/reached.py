#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Says which lines of the module were reached, of those that KCOV can see: reached MODULE FILE...

Each FILE has offsets from the start of .text, as kopi-fuzz writes them. KCOV follows system calls,
so what softirqs do, all of src/rx/, counts as not reached.
"""

import collections
import re
import subprocess
import sys


def places(module):
    """Offsets that KCOV notes: behind each call of it."""
    listing = subprocess.run(["objdump", "-dr", "--no-show-raw-insn", "-j", ".text", module],
                             capture_output=True, text=True, check=True).stdout.splitlines()
    found = []
    for number, line in enumerate(listing):
        if "__sanitizer_cov_trace_pc" in line and "R_X86_64" in line:
            following = next(re.match(r" *([0-9a-f]+):\t", later) for later in listing[number + 1:]
                             if re.match(r" *[0-9a-f]+:\t(?!R_)", later))
            found.append(int(following[1], 16))
    return found


def lines(module, offsets):
    """The source file and line of each offset, of what is inlined the innermost."""
    text = "\n".join(f"{offset - 1:#x}" for offset in offsets)
    out = subprocess.run(["addr2line", "-j", ".text", "-e", module], input=text,
                         capture_output=True, text=True, check=True).stdout.splitlines()
    return [re.sub(r"^.*/module/(src/.*?)( \(.*)?$", r"\1", line).rsplit(":", 1) for line in out]


all_places = places(sys.argv[1])
reached = set()
for path in sys.argv[2:]:
    with open(path, encoding="ascii") as file:
        reached |= {int(line, 16) for line in file}
files = collections.defaultdict(lambda: [set(), set()])
for place, (name, line) in zip(all_places, lines(sys.argv[1], all_places)):
    if name.startswith("src/"):
        seen, missed = files[name]
        (seen if place in reached else missed).add(int(line) if line.isdigit() else 0)
for name, (seen, missed) in sorted(files.items()):
    missed -= seen
    print(f"# {name}: {len(seen)} of {len(seen | missed)} lines reached"
          f"{', not ' + ' '.join(map(str, sorted(missed))) if missed else ''}")
