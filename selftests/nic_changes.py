#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""An attached NIC below a bond, team, bridge, macvlan or VLAN, with a socket of AF_XDP on its queue, with other
channels or another MTU, on any model of NIC (qemu/vm --model): all arrives both ways, in order, or a word says
what can't be."""

import contextlib
import ctypes
import json
import mmap
import os
import socket
import struct
import subprocess

import kopi
from attached import carrier, host, kopictl, peer, said_of
from equivalence import devices, namespace, payload
from redirected import BATCH, Traffic

AF_XDP, SOL_XDP = 44, 283
XDP_RX_RING, XDP_UMEM_REG, XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_COPY = 2, 4, 5, 6, 2
LIBC = ctypes.CDLL(None, use_errno=True)
ADDRESS = ("192.0.2.1/24", "2001:db8::1/64 nodad")
# What is made above the NIC. A team that has no teamd passes nothing.
UPPERS = {"bond": ("link add up0 type bond mode active-backup", "link set eth0 down", "link set eth0 master up0"),
          "team": ("link add up0 type team", "link set eth0 down", "link set eth0 master up0", "link set eth0 up"),
          "bridge": ("link add up0 type bridge", "link set eth0 master up0"),
          "macvlan": ("link add up0 link eth0 type macvlan mode bridge",)}


def sends(what):
    """A flow sends; all arrive at the peer, in order."""
    with namespace("peer"):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("192.0.2.2", 7100))
    sink.settimeout(20)
    with namespace("host"):
        channel = kopi.Channel(flags=kopi.OFFLOADS, frame_size=4096)
    for number in range(BATCH):
        channel.send(number, payload(number, 200), ("192.0.2.2", 7100))
    channel.bell()
    got = [sink.recv(2000) for _ in range(BATCH)]
    kopi.check(what, got == [payload(number, 200) for number in range(BATCH)])
    channel.sock.close()
    channel.region.close()
    sink.close()


def comes(what, way):
    """It is shown how packets come in."""
    [device] = devices("host")
    kopi.check(f"{what}: packets come in this way: {way}", device["receive_path"] == way, device)


def both_ways(what, way=None):
    """All arrive, and it is shown how they come in."""
    traffic = Traffic()
    traffic.passes(f"{what}: all come, in order", BATCH, 200)
    traffic.close()
    sends(f"{what}: all leave, in order")
    if way:
        comes(what, way)


@contextlib.contextmanager
def above(kind):
    """A device above the NIC has its addresses."""
    for command in UPPERS[kind]:
        host(f"ip {command}")
    host("ip addr flush dev eth0 scope global")
    for address in ADDRESS:
        host(f"ip addr add {address} dev up0")
    host("ip link set up0 up")
    mac = json.loads(host("ip -j link show up0"))[0]["address"]
    peer(f"ip neigh replace 192.0.2.1 lladdr {mac} dev eth1 nud permanent")
    try:
        yield
    finally:
        peer("ip neigh del 192.0.2.1 dev eth1")
        host("ip link del up0")
        host("ip link set eth0 up allmulticast on")
        for address in ADDRESS:
            host(f"ip addr replace {address} dev eth0")
        carrier()
        # What enslaving has taken from it.
        kopi.expect(kopi.wait_until(lambda: "fe80:" in host("ip -6 addr show dev eth0 scope link -tentative")),
                    "it has its link-local address again")


def below(kind):
    """It is below such a device, before it is attached and after."""
    with above(kind):
        status, said = said_of("kopictl", "attach", "up0")
        kopi.check(f"{kind}: isn't attached itself, and it is said what can be",
                   status == 1 and "attach the NICs below it" in said, said)
        if kind != "team":
            traffic = Traffic()
            traffic.passes(f"below a {kind}: all come, in order", BATCH, 200)
            traffic.close()
            sends(f"below a {kind}: all leave, in order")
        comes(f"below a {kind}", "upper")
    both_ways(f"not below a {kind} any more", "direct")


def af_xdp():
    """A socket of AF_XDP on the first queue, which gets nothing by kopictl's program."""
    region = mmap.mmap(-1, 64 * 2048)
    with namespace("host"):
        sock = socket.socket(AF_XDP, socket.SOCK_RAW)
        index = socket.if_nametoindex("eth0")
    start = ctypes.addressof(ctypes.c_char.from_buffer(region))
    sock.setsockopt(SOL_XDP, XDP_UMEM_REG, struct.pack("QQIIII", start, 64 * 2048, 2048, 0, 0, 0))
    for ring in XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING:
        sock.setsockopt(SOL_XDP, ring, struct.pack("I", 64))
    address = struct.pack("HHIII", AF_XDP, XDP_COPY, index, 0, 0)
    kopi.expect(LIBC.bind(sock.fileno(), address, len(address)) == 0, os.strerror(ctypes.get_errno()))
    return sock, region


def beside_af_xdp():
    """Such a socket, on the attached NIC and before it is attached."""
    sock, _region = af_xdp()
    both_ways("a socket of AF_XDP is bound to the queue", "direct")
    kopictl("detach", "eth0")
    kopictl("attach", "eth0")
    carrier()
    both_ways("attached beside a socket of AF_XDP", "direct")
    sock.close()
    both_ways("without that socket", "direct")


def channels():
    """Other numbers of queues, by ethtool."""
    if driver != "igb":
        print(f"# {driver} has one queue here", flush=True)
        return
    traffic = Traffic()
    for number in 2, 1:
        host(f"ethtool -L eth0 combined {number}")
        carrier()
        traffic.passes(f"combined {number} by ethtool: all come, in order", BATCH, 200)
        sends(f"combined {number} by ethtool: all leave, in order")
        comes(f"combined {number} by ethtool", "direct")
    traffic.close()


def large():
    """A larger MTU than the driver can have with a program."""
    status, said = said_of("ip", "link", "set", "eth0", "mtu", "9000")
    print(f"# mtu 9000 while attached: {status} {said}", flush=True)
    if driver == "igb":
        kopi.check("a large MTU while attached: refused", status == 2, said)
    else:
        # Then the NIC drops larger packets than before, for everybody: docs/admin.md.
        kopi.check("a large MTU while attached: the driver takes it", status == 0, said)
        # With the sysfs of that namespace.
        found = subprocess.run("ip netns exec host kopictl doctor".split(), capture_output=True, text=True, check=False)
        kopi.check("and kopictl doctor says what is lost then", found.returncode == 1
                   and "loses received packets above" in found.stdout, found.stdout)
    carrier()
    both_ways("ordinary packets then, attached", "direct")
    kopictl("detach", "eth0")
    host("ip link set eth0 mtu 9000")
    carrier()
    status, said = said_of("kopictl", "attach", "eth0")
    print(f"# attach at mtu 9000: {status}: {said}", flush=True)
    kopi.check("attaching with a large MTU: refused, and the driver's word is passed on",
               status == 1 and ("MTU" in said or "too small for the frame size" in said), said)
    kopi.check("and it isn't attached", not devices("host"))
    carrier()
    both_ways("then, by the stack")
    host("ip link set eth0 mtu 1500")
    carrier()
    kopictl("attach", "eth0")
    carrier()
    both_ways("attached with an ordinary MTU", "direct")


driver = host("ethtool -i eth0").split()[1]
kopictl("attach", "eth0")
carrier()
both_ways("attached", "direct")
for each in UPPERS:
    below(each)
beside_af_xdp()
channels()
large()
kopictl("detach", "eth0")
carrier()
kopi.finish()
