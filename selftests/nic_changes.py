#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""An attached NIC below a bond, team, bridge, macvlan or VLAN, with a socket of AF_XDP on its queue, with other
channels, traffic classes or another MTU, on any model of NIC (qemu/vm --model): all arrives both ways, in order, or
a word says what can't be."""

import ctypes
import mmap
import os
import socket
import struct
import subprocess

import kopi
from attached import carrier, host, kopictl, model, said_of
from equivalence import devices, namespace, payload
from redirected import BATCH, Incoming
from uppers import KINDS, TEAMS, above

AF_XDP, SOL_XDP = 44, 283
XDP_RX_RING, XDP_UMEM_REG, XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_COPY = 2, 4, 5, 6, 2
LIBC = ctypes.CDLL(None, use_errno=True)


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
    kopi.check(f"{what}: packets come in this way: {way}", device["rx_path"] == way, device)


def both_ways(what, way=None):
    """All arrive, and it is shown how they come in."""
    traffic = Incoming()
    traffic.passes(f"{what}: all come, in order", BATCH, 200)
    traffic.close()
    sends(f"{what}: all leave, in order")
    if way:
        comes(what, way)


def below(kind):
    """It is below such a device, before it is attached and after."""
    with above(kind):
        status, said = said_of("kopictl", "attach", "up0")
        kopi.check(f"{kind}: isn't attached itself, and it is said what can be",
                   status == 1 and "attach the NICs below it" in said, said)
        both_ways(f"below a {kind}", "direct" if kind == "VLAN" else "upper")
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


def classes():
    """Traffic classes, by which the priority of a packet chooses its queue, and not its CPU."""
    host("tc qdisc replace dev eth0 root mqprio num_tc 2 map 0 1 queues 1@0 1@1 hw 0")
    for way in "qdisc", "direct":
        both_ways(f"traffic classes by mqprio, {way}", "direct")
        [device] = devices("host")
        kopi.check(f"and packets leave in this way: {way}", device["tx_path"] == way, device)
        if way == "qdisc":
            host("tc qdisc del dev eth0 root")


def channels_detached():
    """With more channels than CPUs, and no queue more for each CPU, virtio_net would send frames by queues that it
    hasn't."""
    for number, way in (2, "direct"), (5, "refused"), (1, "direct"):
        kopictl("detach", "eth0")
        host(f"ethtool -L eth0 combined {number}")
        kopictl("attach", "eth0")
        carrier()
        both_ways(f"combined {number} by ethtool, then attached", "direct")
        [device] = devices("host")
        kopi.check(f"and packets leave in this way: {way}", device["tx_path"] == way, device)
        if number == 2:
            classes()


def channels():
    """Other numbers of queues, by ethtool."""
    if model() == "virtio-taps":
        channels_detached()
    if driver != "igb":
        print(f"# {driver} has one queue here, or other numbers only while no program is attached", flush=True)
        return
    traffic = Incoming()
    for number in 2, 1:
        host(f"ethtool -L eth0 combined {number}")
        carrier()
        traffic.passes(f"combined {number} by ethtool: all come, in order", BATCH, 200)
        sends(f"combined {number} by ethtool: all leave, in order")
        comes(f"combined {number} by ethtool", "direct")
    traffic.close()


def doctor(*before):
    """What kopictl doctor says of the NIC, with the sysfs of that namespace, and its exit status."""
    found = subprocess.run([*"ip netns exec host".split(), *before, "kopictl", "doctor"], capture_output=True, text=True,
                           check=False)
    return found.returncode, found.stdout


def whose():
    """Who may not see what is attached isn't told whose the NIC's program is."""
    found = doctor(*"setpriv --reuid bob --regid bob --clear-groups --".split())[1]
    kopi.check("an ordinary user's doctor says nothing of whose the program is",
               "eth0         has an XDP program; root sees whose" in found, found)
    found = doctor()[1]
    kopi.check("root's says that it is attached", "eth0         attached" in found, found)


def large():
    """A larger MTU than the driver can have with a program."""
    status, said = said_of("ip", "link", "set", "eth0", "mtu", "9000")
    print(f"# mtu 9000 while attached: {status} {said}", flush=True)
    if driver == "igb":
        kopi.check("a large MTU while attached: refused", status == 2, said)
    else:
        # Then the NIC drops larger packets than before, for everybody: docs/admin.md.
        kopi.check("a large MTU while attached: the driver takes it", status == 0, said)
        status, found = doctor()
        kopi.check("and kopictl doctor says what is lost then", status == 1
                   and "loses received packets above" in found, found)
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
for each in (*KINDS, TEAMS[0]):
    below(each)
beside_af_xdp()
channels()
whose()
large()
kopictl("detach", "eth0")
carrier()
kopi.finish()
