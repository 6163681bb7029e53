#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Attaching turns off the offloads that are in its way, on any model of NIC (qemu/vm --model), and detaching turns
them on again; a NIC whose driver takes no frames is refused with a word. A configuration attaches a NIC once, and
anew if its program was taken off."""

import json
import socket
import subprocess

import kopi
import memory
from attached import carrier, host, peer, said_of
from equivalence import devices, namespace
from redirected import BATCH, Incoming

STRIPS = "rx-vlan-offload"
ON, OFF = f"eth0: {STRIPS} turned on again", f"eth0: {STRIPS} turned off until it is detached"
# An alternative name may be longer than that by which a device is shown.
OTHER = "other-name-of-eth0"


def strips():
    """Whether the offload is on."""
    return json.loads(host("ethtool --json -k eth0"))[0][STRIPS]["active"]


def index():
    """The NIC's number."""
    return json.loads(host("ip -j link show eth0"))[0]["ifindex"]


def applies(lines, *options):
    """Puts a configuration in force."""
    with open("/tmp/offloads.conf", "w", encoding="utf-8") as file:
        file.write(f"{lines}\n")
    return said_of("kopictl", "config", "apply", *options, "/tmp/offloads.conf")


def vlan_works(what):
    """A VLAN device on the attached one gets what is tagged, and nobody else does."""
    for side, nic, number in (("host", "eth0", 1), ("peer", "eth1", 2)):
        for command in (f"link add tagged0 link {nic} type vlan id 7", f"addr add 198.51.100.{number}/24 dev tagged0",
                        "link set tagged0 up"):
            kopi.expect(subprocess.run(["ip", "-n", side, *command.split()], check=False).returncode == 0, command)
    traffic = Incoming()
    with namespace("host"):
        tagged = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    tagged.bind(("198.51.100.1", traffic.source.getpeername()[1]))
    tagged.settimeout(20)
    with namespace("peer"):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sender.sendto(b"tagged", tagged.getsockname())
    kopi.check(f"{what}: what is tagged comes by the VLAN's device", tagged.recv(100) == b"tagged")
    traffic.passes(f"{what}: what isn't tagged comes to the flow, in order", BATCH, 200)
    for sock in (tagged, sender):
        sock.close()
    traffic.close()
    host("ip link del tagged0")
    peer("ip link del tagged0")


def attaches(stripped):
    """With the offload as it is by itself."""
    status, said = said_of("kopictl", "attach", "eth0")
    kopi.check("attached", status == 0, said)
    kopi.check("it is said what was turned off", said == (OFF if stripped else ""), said)
    kopi.check("VLAN tags stay in the packets", not strips())
    carrier()
    [device] = devices("host")
    kopi.check("packets come directly", device["rx_path"] == "direct", device)
    vlan_works("attached")
    [device] = devices("host")
    kopi.check("what came was redirected", device["received"] >= BATCH, device)
    # The note is with the program, which stays.
    kopi.expect(memory.unload(), "nothing holds the module")
    kopi.expect(memory.load(), "the module comes again")
    status, said = said_of("kopictl", "attach", "eth0")
    kopi.check("attached by a new module: it is still known what was turned off",
               status == 0 and said == (OFF if stripped else ""), said)
    carrier()
    status, said = said_of("kopictl", "detach", "eth0")
    kopi.check("detached: it is on again", status == 0 and said == (ON if stripped else "")
               and strips() == stripped, said)
    carrier()
    status, said = said_of("kopictl", "attach", "--keep-offloads", "eth0")
    kopi.check("--keep-offloads: nothing is turned off", (status, said, strips()) == (0, "", stripped), said)
    carrier()
    [device] = devices("host")
    kopi.check("and it is said how packets come", device["rx_path"] == ("vlan" if stripped else "direct"), device)
    vlan_works("--keep-offloads")
    status, said = applies("attach eth0")
    kopi.check("a configuration without it: turned off", (status, said, strips()) == (0, OFF if stripped else "", False), said)
    carrier()
    [device] = devices("host")
    kopi.check("and packets come directly", device["rx_path"] == "direct", device)
    status, said = applies("attach eth0")
    kopi.check("once more: nothing is said", (status, said) == (0, ""), said)
    status, said = applies("attach eth0 keep-offloads")
    kopi.check("a configuration with it: on again", (status, said, strips()) == (0, ON if stripped else "", stripped), said)
    carrier()
    status, said = applies("attach eth0 keep-offloads")
    kopi.check("once more: nothing is said", (status, said) == (0, ""), said)
    status, said = said_of("kopictl", "detach", "eth0")
    kopi.check("detached: nothing is turned on", (status, said, strips()) == (0, "", stripped), said)
    carrier()
    if stripped:
        host(f"ethtool -K eth0 {STRIPS} off")
    status, said = said_of("kopictl", "attach", "eth0")
    kopi.check("attached where it is off already: nothing is said", (status, said) == (0, ""), said)
    carrier()
    status, said = said_of("kopictl", "detach", "eth0")
    kopi.check("detached: it stays off", (status, said, strips()) == (0, "", False), said)
    if stripped:
        host(f"ethtool -K eth0 {STRIPS} on")
    carrier()
    said_of("kopictl", "attach", "eth0")
    carrier()
    kopi.expect(memory.unload(), "nothing holds the module")
    status, said = said_of("kopictl", "detach", "eth0")
    kopi.check("detached without the module: it is on again",
               status == 0 and said == (ON if stripped else "") and strips() == stripped, said)
    kopi.expect(memory.load(), "the module comes again")
    carrier()


def by_another_name():
    """The configuration has an alternative name of a NIC, which comes by the one that is shown."""
    host(f"ip link property add dev eth0 altname {OTHER}")
    status, said = applies(f"attach {OTHER}", "--device", "eth1")
    kopi.check("another NIC comes: nothing is attached", status == 0 and not devices("host"), said)
    status, said = applies(f"attach {OTHER}", "--device", "eth0")
    kopi.check("one comes that the configuration has by an alternative name: attached",
               status == 0 and [device["ifindex"] for device in devices("host")] == [index()], said)
    carrier()
    status, said = applies(f"attach eth0\nattach {OTHER} keep-offloads")
    kopi.check("two lines of one device: the second one is refused, and changes nothing",
               status != 0 and "line 1 has the same device" in said and ON not in said, said)
    host(f"ip link property del dev eth0 altname {OTHER}")
    said_of("kopictl", "detach", "eth0")
    carrier()


def at_once():
    """Several put one configuration in force."""
    with open("/tmp/offloads.conf", "w", encoding="utf-8") as file:
        file.write("attach eth0\n")
    command = "nsenter --net=/run/netns/host kopictl config apply /tmp/offloads.conf"
    started = [subprocess.Popen(command.split(), stderr=subprocess.PIPE, text=True) for _ in range(6)]
    said = [each.communicate()[1].strip() for each in started]
    kopi.check("attached by several at once: each ends well", not any(each.returncode for each in started), said)
    carrier()
    [device] = devices("host")
    kopi.check("and packets come directly", device["rx_path"] == "direct", device)


def without_program():
    """Somebody takes the program off."""
    host("ip link set dev eth0 xdp off")
    carrier()
    found = subprocess.run("ip netns exec host kopictl doctor".split(), capture_output=True, text=True, check=False).stdout
    kopi.check("without its program: doctor says so", "its XDP program was taken off" in found, found)
    status, said = applies("attach eth0")
    kopi.check("a configuration attaches it anew", status == 0, said)
    carrier()
    [device] = devices("host")
    kopi.check("and packets come directly", device["rx_path"] == "direct", device)
    traffic = Incoming()
    traffic.passes("all comes, in order", BATCH, 200)
    traffic.close()
    found = subprocess.run("ip netns exec host kopictl doctor".split(), capture_output=True, text=True, check=False).stdout
    kopi.check("and doctor finds nothing", "its XDP program was taken off" not in found, found)
    said_of("kopictl", "detach", "eth0")
    carrier()


def is_refused(stripped):
    """Its driver takes no frames, and so it stays as it is."""
    status, said = said_of("kopictl", "attach", "eth0")
    kopi.check("the driver takes no frames: refused with a word", status == 1 and "can't send frames" in said, said)
    kopi.check("and its offload is as it was", strips() == stripped)
    traffic = Incoming()
    traffic.passes("all comes by the stack, in order", BATCH, 200)
    traffic.close()


driver = host("ethtool -i eth0").split()[1]
on = strips()
print(f"# {driver}: {STRIPS} is {'on' if on else 'off'}", flush=True)
if driver == "e1000e":
    is_refused(on)
else:
    attaches(on)
    by_another_name()
    at_once()
    without_program()
kopi.finish()
