#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Who enforces rules from another PID namespace is told that kopictl doesn't find all sockets that are open; with
another file system of BPF than the machine's it is refused."""

import json
import os
import subprocess

from enforced import enforce, kopictl
from equivalence import namespace
from kopi import check, finish

HOOKS = "/sys/fs/bpf/kopi-enforce"


def enforce_by(*words):
    """Turns it on, by other words; gives the status and what is said, and whether it is on."""
    done = subprocess.run((*words, "kopictl", "rule", "enforce", "on"), capture_output=True, text=True, check=False)
    return done.returncode, done.stderr, json.loads(kopictl("rule", "list", "--json")[1])["enforce"]


with namespace("host"):
    status, said, is_on = enforce_by("unshare", "--pid", "--fork", "--mount-proc")
    check("in another PID namespace it is said what isn't found", status == 0 and is_on and "PID namespace" in said, said)
    enforce("off")
    status, said, is_on = enforce_by("unshare", "--mount")
    check("in the machine's nothing is said", status == 0 and is_on and said == "", said)
    enforce("off")
    status, said, is_on = enforce_by("ip", "netns", "exec", "host")
    check("with another file system of BPF it is refused", status == 1 and not is_on and "nsenter" in said, said)
    check("and no hooks are left", not os.path.exists(HOOKS))
finish()
