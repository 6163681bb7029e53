#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A namespace that ends while it enforces its rules leaves nothing, also if its hooks were taken away before."""

import os
import shutil
import socket

import memory
from control import family
from enforced import enforce
from equivalence import namespace, sh
from kopi import check, finish, wait_until

HOOKS = "/sys/fs/bpf/kopi-enforce"


def end_without_hooks():
    """A namespace enforces its rules, loses the hooks, and ends behind its sockets, whose end nobody sees."""
    sh("ip netns add doomed")
    with namespace("doomed"):
        enforce("on")
        sh("kopictl rule add protocol udp local-port 7 deny")
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("", 0))
    shutil.rmtree(HOOKS)
    check("the hooks are gone", memory.wait_until_unused())
    sock.close()
    sh("ip netns del doomed")


with namespace("host"):
    YNL = family()


def enforcing():
    """How many namespaces enforce their rules."""
    return YNL.do("ruleset-get", {})["enforcing"]


end_without_hooks()
# No socket is made meanwhile, which could have the place of the closed one.
check("it isn't counted any more among those that enforce", wait_until(lambda: enforcing() == 0, 60), enforcing())
with namespace("host"):
    enforce("on")
    enforce("off")
check("and hooks go with the next one that doesn't", not os.path.exists(HOOKS))
finish()
