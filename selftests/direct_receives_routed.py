#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Datagrams come from an attached device's frames by the kernel's routes: what those say of a sender, or of an
address of the host, holds, though it is remembered."""

import time

import kopi
from attached import host, kopictl
from equivalence import await_address, namespace
from wire import FROM, PORT, V4, V6, Receiver, Told, begin


def comes(wire, receiver, source):
    """A function that checks whether what a source sends comes to a receiver."""
    def check(what, expected):
        wire.send(receiver.ip, what.encode(), source)
        wire.send(receiver.ip, b"mark")
        got = [each.data for each in receiver.take(1 + expected)]
        kopi.check(what, got == [what.encode()] * expected + [b"mark"], got)
    return check


def addresses_end(wire, ip, other):
    """What is sent to an address comes as long as the host has it."""
    host(f"{ip.command()} addr add {other} dev eth0 {'nodad' if ip is V6 else ''}")
    address = other.partition("/")[0]
    if ip is V6:
        with namespace("host"):
            await_address(address)
    moving = Receiver(ip, address=ip.any, port=PORT + 5)
    for _ in range(2):
        wire.send(ip, b"there", to=address, port=PORT + 5)
        kopi.check("another address", [each.data for each in moving.take(1)] == [b"there"])
    host(f"{ip.command()} addr del {other} dev eth0")
    wire.send(ip, b"gone", to=address, port=PORT + 5)
    wire.send(ip, b"mark", port=PORT + 5)
    got = [each.data for each in moving.take(1)]
    kopi.check("that is gone", got == [b"mark"], got)
    moving.close()


def rules_of_routing_hold(wire, receiver, comes_now, network):
    """Rules that are asked before the table of local addresses, which is the first one otherwise."""
    rule = f"{receiver.ip.command()} rule"
    host(f"{rule} add lookup local pref 100")
    host(f"{rule} del pref 0")
    host(f"{rule} add from {network} blackhole pref 1")
    comes_now("a rule of routing", False)
    host(f"{rule} del pref 1")
    host(f"{rule} add ipproto udp sport 7001 blackhole pref 1")
    wire.send(receiver.ip, b"lost", sender=FROM)
    wire.send(receiver.ip, b"mark", sender=FROM + 1)
    got = [each.data for each in receiver.take(1)]
    kopi.check("a rule by port", got == [b"mark"], got)
    host(f"{rule} del pref 1")
    host(f"{rule} add lookup local pref 0")
    host(f"{rule} del pref 100")
    comes_now("no rule any more", True)


def routes_without_a_link(comes_now):
    """Whether those count, of which the kernel tells nobody: it holds after a tenth of a second."""
    host("ip link add dark type veth peer name away")
    host("ip link set dark up")
    host("ip addr add 203.0.113.1/32 dev dark")
    host("ip route add 198.18.0.0/15 dev dark")
    host("ip route add default dev eth0")
    host("sysctl -qw net.ipv4.conf.dark.ignore_routes_with_linkdown=1")
    comes_now("a route back, and another one whose link is down", True)
    comes_now("and once more, by what is remembered", True)
    host("sysctl -qw net.ipv4.conf.dark.ignore_routes_with_linkdown=0")
    time.sleep(0.2)
    comes_now("that one counts again", False)
    host("ip link del dark")
    host("ip route del default dev eth0")


def routes_of_ipv4_are_kept(_ynl, wire, ip=V4):
    """What the kernel's routes say of a source holds at once, though it is remembered."""
    receiver = Receiver(ip)
    comes_now = comes(wire, receiver, "198.18.0.1")
    host("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0")
    comes_now("any source, without rp_filter", True)
    comes_now("and once more", True)
    host("sysctl -qw net.ipv4.conf.eth0.rp_filter=1")
    comes_now("rp_filter: none without a route back", False)
    host("ip route add 198.18.0.0/15 dev eth0")
    comes_now("with a route back", True)
    comes_now("with a route back, remembered", True)
    host("ip route change blackhole 198.18.0.0/15")
    comes_now("the route is a black hole", False)
    host("ip route del blackhole 198.18.0.0/15")
    routes_without_a_link(comes_now)
    host("sysctl -qw net.ipv4.conf.eth0.rp_filter=0")
    comes_now("no rp_filter any more", True)
    rules_of_routing_hold(wire, receiver, comes_now, "198.18.0.0/15")
    addresses_end(wire, ip, "192.0.2.60/24")
    host("ip addr add 198.18.0.1/32 dev lo")
    comes_now("a source that has become this host's", False)
    host("ip addr del 198.18.0.1/32 dev lo")
    comes_now("and isn't any more", True)
    receiver.close()


def the_local_table_is_first(ynl, wire, ip):
    """A route of the main table gives way to one that the local table gets."""
    receiver = Receiver(ip, address=ip.any, port=PORT + 6)
    host("ip -6 route add local 2001:db8:66::/64 dev lo table main")
    with Told(ynl, ip) as told:
        for _ in range(2):
            wire.send(ip, b"there", to="2001:db8:66::1", port=PORT + 6)
            kopi.check("a local route in the main table", [each.data for each in receiver.take(1)] == [b"there"])
    kopi.check("without the stack", told.directly == 2, told)
    host("ip -6 route add blackhole 2001:db8:66::/64 table local")
    wire.send(ip, b"gone", to="2001:db8:66::1", port=PORT + 6)
    wire.send(ip, b"mark", port=PORT + 6)
    got = [each.data for each in receiver.take(1)]
    kopi.check("a black hole in the local table comes first", got == [b"mark"], got)
    host("ip -6 route del blackhole 2001:db8:66::/64 table local")
    host("ip -6 route del local 2001:db8:66::/64 dev lo table main")
    receiver.close()


def routes_of_ipv6_are_kept(ynl, wire, ip=V6):
    """What the kernel's routes say holds at once, though the route to an address is remembered."""
    receiver = Receiver(ip)
    comes_now = comes(wire, receiver, "2001:db8:77::1")
    comes_now("any source", True)
    addresses_end(wire, ip, "2001:db8::60/64")
    with Told(ynl, ip) as told:
        host("ip -6 route add 2001:db8:5::/64 from 2001:db8:77::/48 dev lo")
        comes_now("routes by source", True)
        host("ip -6 route del 2001:db8:5::/64 from 2001:db8:77::/48 dev lo")
        comes_now("none any more", True)
    kopi.check("without the stack", told.directly == 4, told)
    # The kernel never forgets that there were routing rules: this comes before them.
    the_local_table_is_first(ynl, wire, ip)
    rules_of_routing_hold(wire, receiver, comes_now, "2001:db8:77::/48")
    addresses_end(wire, ip, "2001:db8::61/64")
    receiver.close()


YNL, WIRE = begin()
for case in routes_of_ipv4_are_kept, routes_of_ipv6_are_kept:
    case(YNL, WIRE)
kopictl("detach", "eth0")
kopi.finish()
