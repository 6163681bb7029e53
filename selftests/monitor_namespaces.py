#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A monitor shows what happens to a flow's packets in the flow's namespace, and nothing of what happens in others.

    inner                      outer                        far
    va  198.51.100.1  ═══════  vb ═ br0 ══ vc  ═══════════  vd  198.51.100.2

A packet keeps the flow's sock on its way through the bridge, until IP receives it.
"""

import contextlib
import select
import socket
import subprocess

import kopi
from equivalence import namespace
from kopi import check
from linux import ETH_P_ALL
from monitors import DROPPED, IN, OUT, PASSED, Monitor

HERE, THERE, PORT = "198.51.100.1", "198.51.100.2", 6000
SPACES = ("inner", "outer", "far")
LINKS = """
link add br0 type bridge
link add vb type veth peer name va netns inner
link add vc type veth peer name vd netns far
link set vb master br0
link set vc master br0
link set vb up
link set vc up
link set br0 up
"""


def run(space, command, text=None):
    """Runs a command in a namespace."""
    subprocess.run(["nsenter", f"--net=/run/netns/{space}", *command.split()], input=text, text=True, check=True)


@contextlib.contextmanager
def spaces():
    """The namespaces and their devices."""
    for name in SPACES:
        subprocess.run(("ip", "netns", "add", name), check=True)
    run("outer", "ip -batch -", LINKS)
    for name, device, address in (("inner", "va", HERE), ("far", "vd", THERE)):
        run(name, "ip -batch -", f"link set lo up\naddr add {address}/24 dev {device}\nlink set {device} up\n")
    try:
        yield
    finally:
        for name in SPACES:
            subprocess.run(("ip", "netns", "del", name), check=True)


@contextlib.contextmanager
def dropping(space, hook):
    """A device's hook of nftables drops what goes to the port."""
    run(space, "nft -f -", f"table netdev dropping {{ chain c {{ type filter hook {hook} priority 0; "
                           f"udp dport {PORT} drop; }}; }}")
    try:
        yield
    finally:
        run(space, "nft delete table netdev dropping")


def fates(monitor):
    """What is shown within a while: direction, verdict, device."""
    found = []
    while (seen := monitor.next(0.5)) is not None:
        found.append((seen[0]["direction"], seen[0]["verdict"], seen[0]["ifindex"]))
    return found


def senders(monitor, index):
    """What the sender's monitor shows."""
    sender = kopi.flow()
    sender.bind((HERE, PORT))
    sender.connect((THERE, PORT))
    # Who has which address is asked first.
    sender.send(b"first")
    check("the peer gets it", select.select([FAR], [], [], 30)[0])
    FAR.recv(100)
    fates(monitor)
    sender.send(b"through")
    check("what passes another namespace's bridge is shown once, where it is sent",
          fates(monitor) == [(OUT, PASSED, index)])
    check("and comes to the peer", FAR.recv(100) == b"through")
    for space, hook, where in (("outer", "ingress device vb", "another namespace drops as it comes"),
                               ("outer", "egress device vc", "another namespace drops as it goes on"),
                               ("far", "ingress device vd", "the receiver's namespace drops")):
        with dropping(space, hook):
            sender.send(b"dropped")
            seen = fates(monitor)
            check(f"what {where} is shown as sent, and no more", seen == [(OUT, PASSED, index)], seen)
    with dropping("inner", "egress device va"):
        sender.send(b"dropped")
        seen = fates(monitor)
        check("what its own namespace drops is shown as dropped", seen == [(OUT, DROPPED, index)], seen)
    sender.close()


def receivers():
    """What the receiver's monitor shows."""
    with namespace("far"), contextlib.closing(Monitor()) as monitor:
        index = socket.if_nametoindex("vd")
        FAR.close()
        flow = kopi.flow()
        flow.bind((THERE, PORT))
        with namespace("inner"):
            sender = kopi.flow()
            sender.bind((HERE, PORT))
        sender.connect((THERE, PORT))
        with dropping("far", "ingress device vd"):
            sender.send(b"dropped")
            seen = fates(monitor)
            check("what the receiver's namespace drops is shown there, as the receiver's",
                  seen == [(IN, DROPPED, index)], seen)
        flow.close()
        sender.close()


with spaces():
    with namespace("far"):
        FAR = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    FAR.bind((THERE, PORT))
    with namespace("inner"), contextlib.closing(Monitor()) as MONITOR:
        kopi.attempt(senders, MONITOR, socket.if_nametoindex("va"))
    kopi.attempt(receivers)
kopi.finish()
