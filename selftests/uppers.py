# SPDX-License-Identifier: GPL-2.0
"""Devices above the host's NIC, which have its addresses then: a bond, teams, a bridge, a macvlan, a VLAN."""

import contextlib
import errno
import json
import socket
import struct

import kopi
from attached import carrier, give_back, host, peer
from control import NlError, family
from equivalence import namespace

HERE = ("192.0.2.1/24", "2001:db8::1/64 nodad")
THERE = ("192.0.2.2/24", "2001:db8::2/64 nodad")
# The kinds, and how they are made, but for teams: ip link add up0 …
KINDS = {"bond": "type bond mode active-backup", "bridge": "type bridge", "macvlan": "link eth0 type macvlan mode bridge",
         "VLAN": "link eth0 type vlan id 7"}
# Those that a NIC is enslaved to; some want it down.
MASTERS, DOWN = ("bond", "team", "bridge"), ("bond", "team")
# Modes of a team, which has none by itself and then passes nothing.
TEAMS = ("team activebackup", "team roundrobin", "team loadbalance")
# Types of options of teams: NLA_U32, NLA_STRING (net/netlink.h).
NUMBER, STRING = 3, 5


def set_option(name, kind, data):
    """Sets an option of the team, as teamd does."""
    with namespace("host"):
        option = {"name": name, "type": kind, "data": data}
        request = {"team-ifindex": socket.if_nametoindex("up0"), "list-option": {"option": option}}
        try:
            family("team").do("options-set", request)
        except NlError as error:
            # The option is set, and nobody listens to that.
            if error.error != errno.ESRCH:
                raise


def make(kind):
    """Makes it, with the NIC below it."""
    word, _, mode = kind.partition(" ")
    host(f"ip link add up0 {KINDS.get(kind, 'type team')}")
    if mode:
        # As teamd does it; in some modes a team and its port keep the addresses that they have.
        host(f"ip link set up0 address {json.loads(host('ip -j link show eth0'))[0]['address']}")
        set_option("mode", STRING, mode.encode() + b"\0")
    if word in MASTERS:
        if word in DOWN:
            host("ip link set eth0 down")
        host("ip link set eth0 master up0")
        host("ip link set eth0 up")
    if mode == "activebackup":
        with namespace("host"):
            set_option("activeport", NUMBER, struct.pack("=I", socket.if_nametoindex("eth0")))


@contextlib.contextmanager
def tagged():
    """What comes and goes at the peer's NIC has the tag of the VLAN."""
    peer("ip addr flush dev eth1 scope global")
    peer("ip link add tagged0 link eth1 type vlan id 7")
    for address in THERE:
        peer(f"ip addr add {address} dev tagged0")
    peer("ip link set tagged0 up")
    try:
        yield
    finally:
        peer("ip link del tagged0")
        for address in THERE:
            peer(f"ip addr replace {address} dev eth1")


@contextlib.contextmanager
def above(kind):
    """One is above the NIC, and has its addresses."""
    make(kind)
    host("ip addr flush dev eth0 scope global")
    for address in HERE:
        host(f"ip addr add {address} dev up0")
    host("ip link set up0 up")
    mac = json.loads(host("ip -j link show up0"))[0]["address"]
    with tagged() if kind == "VLAN" else contextlib.nullcontext():
        device = "tagged0" if kind == "VLAN" else "eth1"
        peer(f"ip neigh replace 192.0.2.1 lladdr {mac} dev {device} nud permanent")
        try:
            carrier()
            yield
        finally:
            peer(f"ip neigh del 192.0.2.1 dev {device}")
            host("ip link del up0")
            host("ip link set eth0 up allmulticast on")
            for address in HERE:
                host(f"ip addr replace {address} dev eth0")
    carrier()
    # What enslaving has taken from it.
    kopi.expect(kopi.wait_until(lambda: "fe80:" in host("ip -6 addr show dev eth0 scope link -tentative")),
                "it has its link-local address again")
    if kind == "VLAN":
        give_back(None)
