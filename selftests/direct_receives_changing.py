#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Nothing is lost or comes twice while devices, ports, programs, the namespace and the module come and go."""

import contextlib
import errno
import json
import pathlib
import shutil
import socket
import struct
import subprocess
import threading

import kopi
import memory
from attached import attach, change_by, detached, host, kopictl, link, redirection
from control import ask, family, refused
from equivalence import devices, namespace, payload, sh, snmp
from redirected import BATCH, PORT, Incoming


def ways_change(ynl):
    """The device that takes them, merging and the tags of VLANs come and go under traffic."""
    target = redirection()

    @contextlib.contextmanager
    def changed(begin, end):
        host(begin)
        try:
            yield
        finally:
            host(end)

    traffic = Incoming()
    for what, way, other in (
            ("down", "down", lambda: changed(f"ip link set {target} down", f"ip link set {target} up")),
            ("gro", "direct", lambda: changed("ethtool -K eth0 gro off", "ethtool -K eth0 gro on"))):
        with other():
            kopi.check(f"{what}: it is said", link(ynl)["rx-path"] == way, link(ynl))
            before = link(ynl)
            traffic.passes(f"{what}: all arrive, in order", BATCH, 200)
            kopi.check(f"{what}: no GRO packets are made", link(ynl)["gro-packets"] == before["gro-packets"], link(ynl))
        before = link(ynl)
        traffic.passes(f"{what}, and afterwards: all arrive, in order", BATCH, 200)
        kopi.check(f"{what}, and afterwards: as GRO packets", link(ynl)["gro-packets"] > before["gro-packets"], link(ynl))

        thread = threading.Thread(target=change_by, args=(other,))
        thread.start()
        lost = ""
        while thread.is_alive() and not lost:
            first = traffic.sent
            traffic.send(BATCH, 200)
            received = []
            kopi.wait_until(lambda received=received: (received.extend(traffic.receive()), len(received) >= BATCH)[1])
            # As they are redirected, or not any more, those of one round of NAPI can overtake each other.
            if sorted(received) != [payload(number, 200) for number in range(first, traffic.sent)]:
                lost = f"{len(received)} of {BATCH}: {traffic.channel.stats()}"
        thread.join()
        kopi.check(f"{what}: comes and goes, and nothing is lost or comes twice", not lost, lost)
        traffic.taken = traffic.sent
    with detached():
        traffic.passes("detached: all arrive, in order", BATCH, 200)
    traffic.passes("attached again: all arrive, in order", BATCH, 200)
    kopi.check("attached again: redirected", link(ynl)["received"] == BATCH, link(ynl))
    traffic.close()


def ports_come_and_go(ynl):
    """What is redirected follows the flows' ports."""
    unspecified = struct.pack("=H14x", socket.AF_UNSPEC)
    for what, bind, how in (("bound first", True, "closed"), ("chosen by the stack", False, "closed"),
                            ("chosen by the stack", False, "disconnected")):
        traffic = Incoming()
        with namespace("host"):
            flow = kopi.flow()
        if bind:
            flow.bind(("192.0.2.1", 7100))
        channel = kopi.Channel(flow, flags=kopi.OFFLOADS)
        for number in range(32, 64):
            channel.fill.push(channel.frame(number))
        if not bind:
            with namespace("peer"):
                sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            sink.bind(("192.0.2.2", 7101))
            sink.settimeout(20)
            channel.send(0, b"where", ("192.0.2.2", 7101))
            channel.bell()
            sink.recv(100)
            sink.close()
        before = link(ynl)
        traffic.source.connect(flow.getsockname() if bind else ("192.0.2.1", flow.getsockname()[1]))
        traffic.send(BATCH, 80)
        kopi.wait_until(lambda: channel.stats()["rx_taken"] == BATCH)
        kopi.check(f"{what}: redirected", link(ynl)["received"] - before["received"] == BATCH, link(ynl))
        if how == "closed":
            flow.close()
            channel.region.close()
        else:
            kopi.libc.connect(flow.fileno(), unspecified, len(unspecified))
        before = link(ynl)
        with namespace("host"):
            no_port = snmp()["UdpNoPorts"]
            traffic.send(BATCH, 80)
            refused_all = kopi.wait_until(lambda: snmp()["UdpNoPorts"] == no_port + BATCH)
            kopi.check(f"{what}: not any more when it is {how}",
                       refused_all and link(ynl)["received"] == before["received"], (snmp(), link(ynl)))
        flow.close()
        channel.region.close()
        traffic.close()


def programs_are_left_alone():
    """Another one's program stays."""
    sh("bpftool prog loadall /kopi/build/bpf/policy.bpf.o /sys/fs/bpf/others")
    host("bpftool net attach xdpdrv pinned /sys/fs/bpf/others/others_pass dev eth0 overwrite")
    with namespace("host"):
        ynl = family()
    kopi.check("another program in the place of kopictl's: it is seen",
               link(ynl)["rx-path"] == "no-program", link(ynl))
    ynl.sock.close()
    kopictl("detach", "eth0")
    kopi.check("another program: stays when the device is detached",
               "xdp" in json.loads(host("ip -j link show eth0"))[0])
    shutil.rmtree("/sys/fs/bpf/others")
    kopictl("attach", "eth0")
    with namespace("host"):
        ynl = family()
    kopi.check("another program: sending only", link(ynl)["rx-path"] == "no-program", link(ynl))
    traffic = Incoming()
    traffic.passes("another program: all arrive, in order", BATCH, 90)
    traffic.close()
    ynl.sock.close()
    kopictl("detach", "eth0")
    shown = json.loads(host("ip -j link show eth0"))[0]
    kopi.check("another program: stays", "xdp" in shown, shown)
    host("ip link set dev eth0 xdp off")


def programs_that_come_meanwhile_are_left_alone():
    """One that is put in the place of kopictl's between kopictl's look at the device and its change of it."""
    calls = "/tmp/calls"
    traced = ["nsenter", "--net=/run/netns/host", "strace", "-o", calls, "-e", "trace=sendto"]
    kopictl("attach", "eth0")
    subprocess.run([*traced, "kopictl", "detach", "eth0"], check=True)
    with open(calls, encoding="utf-8") as file:
        change = next(number for number, line in enumerate(file) if "RTM_SETLINK" in line)
    sh("bpftool prog loadall /kopi/build/bpf/policy.bpf.o /sys/fs/bpf/others")
    kopictl("attach", "eth0")
    # Behind the last request before that one.
    stop = f"inject=sendto:signal=SIGSTOP:when={change}"
    with subprocess.Popen([*traced, "-e", stop, "kopictl", "detach", "eth0"], stderr=subprocess.PIPE) as tracer:
        kopi.expect(kopi.wait_until(lambda: "stopped by" in pathlib.Path(calls).read_text("utf-8")), "kopictl stops")
        host("bpftool net attach xdpdrv pinned /sys/fs/bpf/others/others_pass dev eth0 overwrite")
        subprocess.run(["pkill", "-CONT", "-P", str(tracer.pid)], check=True)
        said = tracer.communicate()[1].decode()
    shown = json.loads(host("ip -j link show eth0"))[0]
    kopi.check("another program that came while the device was detached: stays", "xdp" in shown, shown)
    kopi.check("which is said", tracer.returncode == 0 and "by somebody meanwhile" in said, said)
    shutil.rmtree("/sys/fs/bpf/others")
    host("ip link set dev eth0 xdp off")


def bad_input(ynl):
    """Memory that isn't there, or not the asker's to write to."""
    with namespace("host"):
        nic = socket.if_nametoindex("eth0")
    for what, number, address in (("nowhere", errno.EFAULT, 0x10000), ("no page's start", errno.EINVAL, 0x10008),
                                  ("the kernel's", errno.EFAULT, 0xFFFF888000000000)):
        refused(what, number, lambda address=address: ask(ynl, "device-attach", {"ifindex": nic, "port-map": address}),
                "memory of a map")
    kopi.check("and nothing is left of it", not redirection())


def devices_on_top(ynl):
    """What it is redirected to carries no other device, which would hold up who detaches it."""
    target = redirection()
    for kind in "vxlan id 5 dstport 4789", "vlan id 5", "macvlan", "ipvlan":
        below = f"type {kind} dev" if kind.startswith("vxlan") else "link"
        command = f"link add top0 {below} {target}" + ("" if kind.startswith("vxlan") else f" type {kind}")
        made = subprocess.run(["ip", "-n", "host", *command.split()], check=False, capture_output=True, text=True)
        kopi.check(f"{kind.split()[0]} on {target}: refused", made.returncode, made)
    # Where one was made all the same.
    with subprocess.Popen(["nsenter", "--net=/run/netns/host", "kopictl", "detach", "eth0"]) as detaching:
        kopi.check("detached", detaching.wait(20) == 0)
    kopictl("attach", "eth0")
    kopi.check("attached again", link(ynl)["rx-path"] == "direct", link(ynl))


def namespace_goes(ynl):
    """Its namespace is deleted, with a flow and packets on their way; the NIC isn't attached afterwards."""
    # It would keep the namespace.
    ynl.sock.close()
    kopictl("attach", "eth0")
    traffic = Incoming()
    traffic.send(4 * BATCH, 1000)
    sh("ip netns del host")
    traffic.close()
    sh("/kopi/qemu/namespaces")
    shown = devices("host")
    kopi.check("it isn't attached any more", not shown, shown)
    # The program stays, and redirects nothing.
    traffic = Incoming()
    traffic.passes("what comes comes by the stack", BATCH, 1000)
    kopictl("attach", "eth0")
    with namespace("host"):
        ynl = family()
    traffic.passes("attached again: all arrive, in order", BATCH, 1000)
    kopi.check("attached again: redirected", link(ynl)["received"] == BATCH, link(ynl))
    traffic.close()
    ynl.sock.close()


def module_goes():
    """Its program stays, and passes all; it gives way when the module comes anew."""
    kopi.check("the module can go", memory.unload())
    with namespace("host"):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sink.bind(("192.0.2.1", PORT))
    sink.settimeout(20)
    with namespace("peer"):
        source = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    source.sendto(b"without", ("192.0.2.1", PORT))
    kopi.check("without the module all passes", sink.recv(100) == b"without")
    sink.close()
    source.close()
    shown = host("ip link")
    kopi.check("and the program is there, but no device", "prog/xdp" in shown and "kopirx" not in shown, shown)
    kopi.expect(memory.load(), "the module comes again")
    kopictl("attach", "eth0")
    traffic = Incoming()
    traffic.passes("with a new module: all arrive, in order", BATCH, 90)
    # Not by YNL's library, which remembers the old one's number.
    device = devices("host")[0]
    kopi.check("with a new module: redirected", device["received"] == BATCH, device)
    traffic.close()


attach()
with namespace("host"):
    YNL = family()
for case in (ways_change, ports_come_and_go, devices_on_top):
    case(YNL)
YNL.sock.close()
programs_are_left_alone()
programs_that_come_meanwhile_are_left_alone()
with namespace("host"):
    YNL = family()
bad_input(YNL)
namespace_goes(YNL)
module_goes()
kopictl("detach", "eth0")
kopi.check("detached, nothing is left", "xdp" not in json.loads(host("ip -j link show eth0"))[0]
           and not redirection(), host("ip link"))
kopi.finish()
