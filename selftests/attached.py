# SPDX-License-Identifier: GPL-2.0
"""What the selftests of attached devices share: the host's eth0, and how to look at it."""

import contextlib
import fcntl
import json
import os
import socket
import struct
import subprocess
import termios
import time

import kopi
from equivalence import devices, namespace, run_nft, sh, user
from linux import (ETH_P_ALL, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC, SOL_PACKET, SO_RCVBUFFORCE,
                   SO_SNDBUFFORCE)

ADDRESSES = {4: ("192.0.2.1", "192.0.2.2"), 6: ("2001:db8::1", "2001:db8::2")}
# Changes of the way, of each kind.
CHANGES = int(os.environ.get("CHANGES", "15"))
# And of those that one process can make.
OFTEN = int(os.environ.get("CHANGES", "200"))


class UserFlow:
    """A user's flow in the host's namespace, on a channel with room for many packets; with GSO packets, unless the
    flags are others."""

    def __init__(self, name, flags=kopi.OFFLOADS):
        with namespace("host"), user(name):
            self.channel = kopi.Channel(flags=flags, frame_size=4096, frames=256, tx=256, completion=256)
        self.channel.sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 8 << 20)
        self.number = 0

    def put(self, address, data, gso_size=0):
        """Puts a datagram in the ring, or a GSO packet of datagrams of that size."""
        self.channel.send(self.number % 256, data, address, meta={"gso_size": gso_size})
        self.number += 1

    def bell(self):
        """Sends what is in the ring."""
        kopi.wait_until(lambda: (self.channel.bell(), self.channel.tx.get(self.channel.tx.consumer) == self.number)[1])
        while self.channel.completion.pop():
            pass

    def send(self, address, data, gso_size=0):
        """Sends one."""
        self.put(address, data, gso_size)
        self.bell()

    def close(self):
        """Ends it."""
        self.channel.sock.close()
        self.channel.region.close()


def by_the_driver(ynl, name, before, patience):
    """Whether, and after how many seconds, a device's driver has taken more than `before`."""
    begin = time.monotonic()
    came = kopi.wait_until(lambda: link(ynl, name)["packets"] > before, patience)
    return came, time.monotonic() - begin


def link(ynl, name="eth0"):
    """What is said of an attached device."""
    with namespace("host"):
        index = socket.if_nametoindex(name)
    return next(each for each in ynl.dump("device-get", {}) if each["ifindex"] == index)


def host(command):
    """Runs a command in the host's namespace."""
    return sh(f"nsenter --net=/run/netns/host {command}")


def know_neighbours():
    """Neither end asks for the other one, which would be counted with what tests send."""
    nics = {"host": "eth0", "peer": "eth1"}
    shown = {where: json.loads(sh(f"ip -n {where} -j addr show {nic}"))[0] for where, nic in nics.items()}
    for where, other in ("host", "peer"), ("peer", "host"):
        for address in (each["local"] for each in shown[other]["addr_info"]):
            sh(f"ip -n {where} neigh replace {address} lladdr {shown[other]['address']} nud permanent dev {nics[where]}")


def overheard(protocol):
    """A packet socket for all that arrives at the peer's NIC of a protocol of Ethernet, whomever it is for."""
    with namespace("peer"):
        sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(protocol))
        sock.bind(("eth1", protocol))
        index = socket.if_nametoindex("eth1")
        sock.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, struct.pack("=iHH8x", index, PACKET_MR_PROMISC, 0))
    return sock


@contextlib.contextmanager
def sysctl(name, value):
    """Another value in the host's namespace."""
    before = host(f"sysctl -n {name}").strip()
    host(f"sysctl -qw {name}={value}")
    try:
        yield
    finally:
        host(f"sysctl -qw {name}={before}")


def kopictl(*words):
    """Runs kopictl in the host's namespace."""
    return host(" ".join(("kopictl", *words)))


def said_of(*words):
    """Runs a command in the host's namespace; gives its status, and what it says of how things are."""
    done = subprocess.run(["nsenter", "--net=/run/netns/host", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr.strip()


def model():
    """What the machine's NICs are: of qemu/vm --model."""
    with open("/proc/cmdline", encoding="ascii") as cmdline:
        words = dict(word.partition("=")[::2] for word in cmdline.read().split())
    return words.get("kopi.model")


def unsent(sock):
    """Bytes that a socket is charged for what it sends."""
    return struct.unpack("=i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))[0]


def carrier():
    """Waits until the peer reaches the host's NIC: some drivers reset it."""
    ping = "ip netns exec peer ping -c1 -W1 192.0.2.1"
    kopi.expect(kopi.wait_until(lambda: subprocess.run(ping.split(), check=False, capture_output=True).returncode == 0),
                "the carrier comes back")


def attach():
    """Attaches it, and as new if it is already."""
    if devices("host"):
        kopictl("detach", "eth0")
    kopictl("attach", "eth0")


@contextlib.contextmanager
def detached():
    """It isn't attached."""
    kopictl("detach", "eth0")
    try:
        yield
    finally:
        kopictl("attach", "eth0")


def rules(*lines):
    """Loads rules of nft's."""
    run_nft("\n".join(lines) + "\n")


def counted(table, name):
    """Packets that a counter of nft's has."""
    return json.loads(run_nft(f"list counter {table} {name}", as_json=True))["nftables"][1]["counter"]["packets"]


def redirection():
    """The device that GSO packets are redirected to; None if there is none."""
    names = (each["ifname"] for each in json.loads(host("ip -j link")))
    return next((name for name in names if name.startswith("kopirx")), None)


def peer(command):
    """Runs a command in the peer's namespace."""
    return sh(f"nsenter --net=/run/netns/peer {command}")


def give_back(name):
    """The peer has its NIC again, as qemu/namespaces has set it up; which is there, and has this name."""
    sh(f"ip link set {name} name eth1 netns peer" if name else "true")
    for address in ("192.0.2.2/24", "2001:db8::2/64 nodad"):
        peer(f"ip addr replace {address} dev eth1")
    peer("ip link set eth1 allmulticast on up")
    for address in ADDRESSES[4][0], ADDRESSES[6][0]:
        peer(f"ping -q -c1 -w20 {address}")


@contextlib.contextmanager
def nobody_takes():
    """The peer's NIC has no driver: QEMU keeps what the host's sends, until its ring is full."""
    said = peer("ethtool -i eth1")
    bus = next(line.split()[1] for line in said.splitlines() if line.startswith("bus-info"))
    device = next(each for each in os.listdir(f"/sys/bus/pci/devices/{bus}") if each.startswith("virtio"))
    driver = "/sys/bus/virtio/drivers/virtio_net"
    with open(f"{driver}/unbind", "w", encoding="ascii") as unbind:
        unbind.write(device)
    try:
        yield
    finally:
        with open(f"{driver}/bind", "w", encoding="ascii") as bind:
            bind.write(device)
        give_back(os.listdir(f"/sys/bus/virtio/devices/{device}/net")[0])


@contextlib.contextmanager
def second_nic():
    """The peer's NIC is the host's second one, named eth1."""
    sh("ip -n peer link set eth1 netns host")
    host("ip link set eth1 up")
    try:
        yield
    finally:
        sh("ip -n host link set eth1 netns peer")
        give_back(None)


@contextlib.contextmanager
def slow_device(run=host):
    """A device beside it, or in the namespace in which `run` runs commands, whose qdisc holds what is sent to
    203.0.113.2."""
    run("ip link add slow0 type dummy")
    run("ip addr add 203.0.113.1/24 dev slow0")
    run("ip link set slow0 up")
    run("ip neigh add 203.0.113.2 lladdr 02:00:00:00:00:09 dev slow0")
    run("tc qdisc add dev slow0 root tbf rate 1kbit burst 1600 limit 1m")
    try:
        yield
    finally:
        run("ip link del slow0")


# What has GSO packets leave through the stack: how it is said, how it begins, and how it ends. Of some the commands:
# tc looks at what leaves; a qdisc lets nothing pass it by; a monitor is up.
COMMANDS = {"tc": ("tc", ["qdisc add dev eth0 clsact"], ["qdisc del dev eth0 clsact"]),
            "qdisc": ("tc", ["qdisc replace dev eth0 root tbf rate 1gbit burst 100k limit 1m"],
                      ["qdisc del dev eth0 root"]),
            "monitor": ("ip", ["link add mon0 type kopimon", "link set mon0 up"], ["link del mon0"])}


def commanded(tool, begin, end):
    """It begins and ends by commands."""
    @contextlib.contextmanager
    def other():
        for command in begin:
            host(f"{tool} {command}")
        try:
            yield
        finally:
            for command in end:
                host(f"{tool} {command}")
    return other


@contextlib.contextmanager
def tapped(name="eth0"):
    """A packet socket sees all."""
    with namespace("host"):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    with tap:
        tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        tap.bind((name, ETH_P_ALL))
        yield tap


@contextlib.contextmanager
def unprogrammed():
    """No XDP program is attached."""
    program = json.loads(host("ip -j -d link show eth0"))[0]["xdp"]["prog"]["id"]
    host(f"bpftool prog pin id {program} /sys/fs/bpf/kept")
    host("ip link set dev eth0 xdp off")
    try:
        yield
    finally:
        host("bpftool net attach xdpdrv pinned /sys/fs/bpf/kept dev eth0")
        os.unlink("/sys/fs/bpf/kept")


OTHERS = {**{way: commanded(*commands) for way, commands in COMMANDS.items()}, "tap": tapped,
          "no-program": unprogrammed}


def change(way, other):
    """It begins and ends, many times where one process can do all: a command's own takes longer than what it does."""
    if way in COMMANDS:
        tool, begin, end = COMMANDS[way]
        commands = "".join(f"{command}\n" for command in (begin + end) * OFTEN)
        subprocess.run(["nsenter", "--net=/run/netns/host", tool, "-b", "-"], input=commands, text=True, check=True)
    else:
        change_by(other)


def change_by(other):
    """The same, each time by commands of its own."""
    for _ in range(CHANGES):
        with other():
            time.sleep(0.002)
        time.sleep(0.002)


@contextlib.contextmanager
def last_hook():
    """A hook of netfilter's egress that comes later."""
    with detached(), namespace("host"):
        # Of two that want to be the last, the one that came first is.
        rules("table netdev late {", "chain out {",
              "type filter hook egress device eth0 priority 2147483647", "counter", "}", "}")
    try:
        yield
    finally:
        with namespace("host"):
            run_nft("delete table netdev late")
