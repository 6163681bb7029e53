#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A listener to which TPROXY gives connections of other ports has them while rules are enforced, and rules that deny
its process refuse them."""

import socket

import kopi
from enforced import begin, end, restore
from equivalence import namespace, sh
from kopi import check

HOST, SERVICE, LISTENER = "192.0.2.1", 8080, 5000
IP_TRANSPARENT = 19
TPROXY = f"""table ip served {{
    chain prerouting {{
        type filter hook prerouting priority mangle
        tcp dport {SERVICE} tproxy to :{LISTENER} meta mark set 1 accept
    }}
}}
"""


def set_up():
    """What is marked is local, whatever its address."""
    sh("ip rule add fwmark 1 lookup 100; ip route add local default dev lo table 100")
    sh(f"nft -f - <<'END'\n{TPROXY}END")


def undo():
    """As it was."""
    sh("nft delete table ip served; ip rule del fwmark 1; ip route flush table 100")


def is_served(within=30):
    """Whether the peer gets a connection."""
    with namespace("peer"), socket.socket() as client:
        client.settimeout(within)
        return client.connect_ex((HOST, SERVICE)) == 0


def serve(what, make):
    """By a listener of that kind."""
    with make() as listener:
        listener.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
        listener.bind(("0.0.0.0", LISTENER))
        listener.listen()
        check(f"{what} is served without enforced rules", is_served())
        restore("default allow\nenforce on\nuser charlie deny\n")
        check(f"{what} is served with them", is_served())
        restore("default allow\nenforce on\nuser root deny\n")
        check(f"{what} isn't where they deny it", not is_served(3))
    restore("default allow\nenforce off\n")


with namespace("host"):
    begin()
    restore("default allow\nenforce off\n")
    set_up()
    try:
        serve("an ordinary listener", socket.socket)
        serve("a flow", kopi.stream)
    finally:
        restore("default allow\nenforce off\n")
        undo()
        end()
kopi.finish()
