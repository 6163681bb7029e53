#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Enforcing can't be turned on where kopictl would miss the sockets that are open: in another PID namespace, or with
another file system of BPF than the machine's."""

import json
import os
import subprocess

from enforced import kopictl
from equivalence import namespace
from kopi import check, finish

PLACES = (("another PID namespace", ("unshare", "--pid", "--fork", "--mount-proc"), "PID namespace"),
          ("another file system of BPF", ("ip", "netns", "exec", "host"), "nsenter"))

with namespace("host"):
    for what, by, word in PLACES:
        command = (*by, "kopictl", "rule", "enforce", "on")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        check(f"{what}: it is refused, and said why", done.returncode == 1 and word in done.stderr, done)
        status, said = kopictl("rule", "list", "--json")
        check(f"{what}: nothing is enforced", status == 0 and not json.loads(said)["enforce"], said)
        check(f"{what}: no hooks are left", not os.path.exists("/sys/fs/bpf/kopi-enforce"))
finish()
