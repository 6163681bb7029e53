#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Namespaces that turn enforcing on and off at once have all hooks while it is on, and none in the end."""

import os
import subprocess

from enforced import enforce, kopictl
from equivalence import namespace
from kopi import check, finish

HOOKS = "/sys/fs/bpf/kopi-enforce"


def hooks():
    """The names of those that are there."""
    return set(os.listdir(HOOKS)) if os.path.exists(HOOKS) else set()


def at_once():
    """Two namespaces turn it on and off: whoever has it on has all hooks, and any that was lost comes back."""
    enforce("on")
    every = hooks()
    for name in "kopi_bind", "kopi_found":
        os.unlink(f"{HOOKS}/{name}")
    enforce("on")
    check("hooks that were taken away come back", hooks() == every, every - hooks())
    turns = "for turn in {1..8}; do kopictl rule enforce on && kopictl rule enforce off || exit 1; done"
    lacking, failed = set(), []
    with namespace("peer"):
        other = subprocess.Popen(["bash", "-c", turns], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with other:
        while other.poll() is None:
            status, said = kopictl("rule", "enforce", "on")
            failed += [said] if status else []
            lacking |= every - hooks()
            status, said = kopictl("rule", "enforce", "off")
            failed += [said] if status else []
        said = other.stdout.read()
    check("while another namespace turns it on and off, on is on", not failed and not lacking, (failed, lacking))
    check("and the other one's, too", other.returncode == 0, said)


with namespace("host"):
    at_once()
    check("and in the end, there are no hooks", not hooks())
finish()
