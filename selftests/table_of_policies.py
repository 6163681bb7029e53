#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""docs/policy.md has the table that the policy tests of this run give.

With --print FILE it prints the table instead, with the rows of that run in FILE with attached devices: `make
policy` puts it there.
"""

import json
import os
import sys

import kopi

HERE = os.path.dirname(os.path.abspath(__file__))
DOCUMENT = f"{HERE}/../docs/policy.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->\n"
AREAS = ("nftables", "iptables", "tc", "BPF", "routing", "devices", "options", "privilege",
         "seeing")


def outcome(row, kind):
    """What became of the datagrams without GSO packets and with them."""
    plain, gso = row.get(kind), row.get(f"{kind} GSO packets")
    if plain is None:
        return f"GSO packets: {gso}"
    if gso is None or gso == plain:
        return plain
    return f"{plain}; GSO packets: {gso}"


def remark(row):
    """Whether it is the same, and why not; NO: it differs, and shouldn't."""
    words = [] if row["same"] else ["NO"]
    if row["differs"]:
        reasons = sorted(set(row["differs"].values()))
        words.append(f"but for {', '.join(sorted(row['differs']))}: {'; '.join(reasons)}")
    else:
        words.append("yes")
    if row["note"]:
        words.append(f"({row['note']})")
    return " ".join(words)


def attached(row):
    """The same with an attached device, and by which ways datagrams went directly then."""
    if row is None:
        return ""
    ways = row.get("directly")
    return "; ".join(filter(None, ("yes" if row["same"] else "NO", ways and f"{' and '.join(ways)} directly")))


def table(rows, rows_attached):
    """All rows as Markdown."""
    others = {(row["area"], row["policy"]): row for row in rows_attached}
    lines = []
    for area in AREAS:
        mine = [row for row in rows if row["area"] == area]
        lines += [f"### {area}", "", "| policy | UDP | KOPI | the same | with an attached device |",
                  "| --- | --- | --- | --- | --- |"]
        lines += [f"| {row['policy']} | {outcome(row, 'UDP')} | {outcome(row, 'KOPI')} "
                  f"| {remark(row)} | {attached(others.get((area, row['policy'])))} |" for row in mine]
        lines.append("")
    return "\n".join(lines)


def read(name):
    """The rows in a file."""
    with open(name, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def without_attached(lines):
    """Rows without the last column."""
    return [line.rpartition("|")[0].rpartition("|")[0] if line.startswith("|") else line for line in lines]


found = read(os.environ.get("POLICY_TABLE", "/dev/null"))
if sys.argv[1:2] == ["--print"]:
    print(table(found, read(sys.argv[2])))
    sys.exit()

kopi.check("every area was tested", {row["area"] for row in found} == set(AREAS),
           set(AREAS) - {row["area"] for row in found})
kopi.check(f"{len(found)} policies give the same for UDP and KOPI",
           all(row["same"] for row in found))
with open(DOCUMENT, encoding="utf-8") as file:
    written = without_attached(file.read().partition(BEGIN)[2].partition(END)[0].splitlines())
made = without_attached(table(found, []).splitlines())
other = [line for line in made if line not in written] + [line for line in written
                                                          if line not in made]
kopi.check("docs/policy.md says so (make policy writes it anew)", not other, other[:6])
kopi.finish()
