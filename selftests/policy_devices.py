#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Every kind of device carries a KOPI flow as it carries a UDP socket."""

import contextlib
import fcntl
import os
import select
import socket
import struct
import time

from equivalence import (ADDRESSES, ALL, NONE, PATIENCE, PEER_PORT, SUBJECT_PORT, WHATEVER, Policy, arrived,
                         await_address, namespace, run, sh, undo)
from linux import IFF_NO_PI, IFF_TUN, TUNSETIFF

HERE = {4: "203.0.113.1", 6: "2001:db8:d::1"}
THERE = {4: "203.0.113.2", 6: "2001:db8:d::2"}
LOOP = {4: "127.0.0.1", 6: "::1"}
VETH = "ip link add d0 type veth peer name p0 netns peer; ip link set d0 up; ip -n peer link set p0 up"
ESP = ("proto esp spi 0x%d reqid 7 mode %s aead 'rfc4106(gcm(aes))' "
       "0x0123456789abcdef0123456789abcdef01234567 128")


def at(addresses, port):
    """An address by version."""
    return lambda family: (addresses[family], port)


def address(here, there):
    """Commands that give the two devices their addresses."""
    return f"""
    ip link set {here} up; ip -n peer link set {there} up
    ip addr add 203.0.113.1/24 dev {here}; ip -n peer addr add 203.0.113.2/24 dev {there}
    ip addr add 2001:db8:d::1/64 dev {here} nodad
    ip -n peer addr add 2001:db8:d::2/64 dev {there} nodad"""


REACH = "ping -q -c1 -w30 203.0.113.2 && ping -q -c1 -w30 2001:db8:d::2"


def device(name, commands, here="d0", there="p0", clean=":", reach=REACH, comes_by=None,
           **fields):
    """A policy whose traffic takes a device that the commands make over a pair d0, p0."""
    fields.setdefault("checks", (arrived("out", device=there),
                                 arrived("in", device=comes_by or here)))
    def fixture():
        undo(sh, f"{clean}; ip link del {here}; ip -n peer link del {there}; ip link del d0", False)
        sh(f"{VETH}\n{commands}\n{address(here, there)}\n{reach}")
    fields = {"subject_at": at(HERE, SUBJECT_PORT), "peer_at": at(THERE, PEER_PORT), **fields}
    return Policy(name, fixture=fixture, **fields)


def tun():
    """A child carries packets between a tun device on either side."""
    sh("modprobe tun")
    ends = []
    for space, name in (("host", "t0"), ("peer", "t1")):
        with namespace(space):
            fd = os.open("/dev/net/tun", os.O_RDWR)
            fcntl.ioctl(fd, TUNSETIFF, struct.pack("=16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
            ends.append(fd)
    pid = os.fork()
    if pid == 0:
        while True:
            for fd in select.select(ends, [], [])[0]:
                # Until the other one is up, what comes is lost.
                with contextlib.suppress(OSError):
                    os.write(ends[1 - ends.index(fd)], os.read(fd, 65536))
    for fd in ends:
        os.close(fd)
    undo(lambda: (os.kill(pid, 9), os.waitpid(pid, 0)))
    sh(address("t0", "t1") + "\n" + REACH)


def wireguard():
    """A WireGuard tunnel over the NICs."""
    undo(sh, "ip link del wg0; ip -n peer link del wg1", False)
    sh(f"""
    k0=$(wg genkey) k1=$(wg genkey)
    ip link add wg0 type wireguard; ip -n peer link add wg1 type wireguard
    wg set wg0 private-key <(echo $k0) listen-port 51820 peer $(wg pubkey <<<$k1) \
        endpoint 192.0.2.2:51820 allowed-ips 0.0.0.0/0,::/0
    ip netns exec peer wg set wg1 private-key <(echo $k1) listen-port 51820 \
        peer $(wg pubkey <<<$k0) endpoint 192.0.2.1:51820 allowed-ips 0.0.0.0/0,::/0
    {address("wg0", "wg1")}
    {REACH}""")


def esp(mode, spaces=("", "-n peer")):
    """Commands that protect what goes between the pair by static ESP states."""
    lines = []
    for space, mine, yours, way in (("", 1, 2, 100), ("-n peer", 2, 1, 200)):
        if space not in spaces:
            continue
        for prefix, size in (("203.0.113.", 32), ("2001:db8:d::", 128)):
            for source, target, spi in ((mine, yours, way), (yours, mine, 300 - way)):
                pair = f"src {prefix}{source} dst {prefix}{target}"
                lines.append(f"ip {space} xfrm state add {pair} " + ESP % (spi, mode))
                lines.append(
                    f"ip {space} xfrm policy add src {prefix}{source}/{size} "
                    f"dst {prefix}{target}/{size} dir {'out' if source == mine else 'in'} "
                    f"tmpl {pair} proto esp reqid 7 mode {mode}")
    return "\n".join(lines)


CLEAR_ESP = "for n in host peer; do ip -n $n xfrm policy flush; ip -n $n xfrm state flush; done"


def namespaces():
    """The pair's near end goes to a namespace of its own, where the subject lives."""
    undo(sh, "ip netns del moved", False)
    sh(f"""ip netns add moved; {VETH}; ip link set d0 netns moved
    ip -n moved link set d0 up
    ip -n moved addr add 203.0.113.1/24 dev d0; ip -n peer addr add 203.0.113.2/24 dev p0
    ip -n moved addr add 2001:db8:d::1/64 dev d0 nodad
    ip -n peer addr add 2001:db8:d::2/64 dev p0 nodad
    ip netns exec moved bash -c '{REACH}'""")


def sent_from(space):
    """What has a process of another network namespace send and receive by the socket."""
    def prepare(subject):
        send, receive = subject.send, subject.receive

        def send_there(*arguments, **named):
            with namespace(space):
                return send(*arguments, **named)

        def receive_there():
            with namespace(space):
                return receive()
        subject.send, subject.receive = send_there, receive_there
    return prepare


def namespace_deleted():
    """The namespace has no name any more, and lives on with its sockets."""
    undo(sh, f"ip netns attach moved {os.getpid()}")
    sh("ip netns del moved")


def moved_and_back():
    """The device goes to another namespace, and comes back without its addresses."""
    sh("""ip netns add elsewhere; ip link set d0 netns elsewhere
    ip -n elsewhere link set d0 netns host; ip netns del elsewhere
    ip link set d0 up; ip addr add 203.0.113.1/24 dev d0
    ip addr add 2001:db8:d::1/64 dev d0 nodad""")
    await_address(HERE[6])


def bond_fails():
    """The active device goes down, and the other takes over."""
    # The bond takes it once it has seen its link.
    undo(sh, """ip link set d0 up
    for turn in $(seq 200); do ip link set bond0 type bond active_slave d0 2>/dev/null && break; sleep 0.1; done""")
    sh("ip link set d0 down")
    deadline = time.monotonic() + PATIENCE
    while '"active_slave":"d1"' not in sh("ip -d -j link show bond0"):
        if time.monotonic() > deadline:
            raise RuntimeError("the bond stays with the device that failed")


def any_address(family):
    """A subject that is bound to none."""
    return {4: "0.0.0.0", 6: "::"}[family], SUBJECT_PORT


def vrf_device(subject):
    """Lives in the VRF."""
    subject.sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"vrf0")


# So that a tunnel over the pair has room for what the NIC has room for.
LARGE = "ip link set d0 mtu 1700; ip -n peer link set p0 mtu 1700; "
VRF = ("ip link add vrf0 type vrf table 50; ip link set vrf0 up; ip link set d0 master vrf0")
UNVRF = "ip link del vrf0"
VRF_REACH = "ping -I vrf0 -q -c1 -w30 203.0.113.2 && ping -I vrf0 -q -c1 -w30 2001:db8:d::2"
PAIR = {"subject_at": at(HERE, SUBJECT_PORT), "peer_at": at(THERE, PEER_PORT)}
SINGLE = {"gso": (False,)}
OWN = {"snmp": "the tunnel's own packets count as UDP, and their number changes from run to run"}
# Where the stack takes no GSO packets, KOPI sends what is in them one by one.
ONE_BY_ONE = {"gso": (True,), "out": WHATEVER, "kopi_out": ALL, "into": None,
              "errors": ("EIO", "EMSGSIZE", "ok"),
              "differs": {what: "the stack takes no GSO packets here and refuses UDP_SEGMENT's; KOPI then "
                          "sends their datagrams one by one" for what in ("errors", "out")}}

run("devices", [
    Policy("loopback", subject_at=at(LOOP, SUBJECT_PORT), peer_at=at(LOOP, PEER_PORT),
           peer_namespace="host", checks=(arrived("out", device="lo"), arrived("in", device="lo"))),
    Policy("one's own address", peer_namespace="host",
           peer_at=lambda family: (ADDRESSES[family]["host"], PEER_PORT)),
    device("veth", ""),
    device("veth, no offloads", "ethtool -K d0 tx off gso off gro off; "
           "ip netns exec peer ethtool -K p0 tx off gso off gro off >/dev/null"),
    device("VLAN", "ip link add link d0 name d0.5 type vlan id 5; "
           "ip -n peer link add link p0 name p0.5 type vlan id 5", "d0.5", "p0.5"),
    device("bridge", "ip link add br0 type bridge; ip link set d0 master br0", "br0"),
    device("bond", "ip link add bond0 type bond mode active-backup; ip link set d0 down; "
           "ip link set d0 master bond0; ip link set d0 up", "bond0"),
    device("macvlan", "ip link add link d0 name mv0 type macvlan mode bridge", "mv0"),
    device("ipvlan", "ip link add link d0 name iv0 type ipvlan mode l2", "iv0"),
    device("VXLAN", LARGE + "ip addr add 10.9.0.1/24 dev d0; ip -n peer addr add 10.9.0.2/24 dev p0; "
           "ip link add vx0 type vxlan id 9 remote 10.9.0.2 dstport 4789; "
           "ip -n peer link add vx1 type vxlan id 9 remote 10.9.0.1 dstport 4789; "
           "ip link set vx0 addrgenmode none; ip -n peer link set vx1 addrgenmode none",
           "vx0", "vx1", differs=OWN),
    device("GRE", LARGE + "ip addr add 10.9.0.1/24 dev d0; ip -n peer addr add 10.9.0.2/24 dev p0; "
           "ip link add gre9 type gre local 10.9.0.1 remote 10.9.0.2; "
           "ip -n peer link add gre9 type gre local 10.9.0.2 remote 10.9.0.1", "gre9", "gre9"),
    device("IPIP", LARGE + "ip addr add 10.9.0.1/24 dev d0; ip -n peer addr add 10.9.0.2/24 dev p0; "
           "ip link add tl9 type ipip local 10.9.0.1 remote 10.9.0.2; "
           "ip -n peer link add tl9 type ipip local 10.9.0.2 remote 10.9.0.1", "tl9", "tl9",
           reach="ping -q -c1 -w30 203.0.113.2", families=(4,)),
    device("bond, whose active device fails in mid-flow",
           "ip link add d1 type veth peer name p1 netns peer; "
           "ip link add bond0 type bond mode active-backup miimon 10; ip link set d0 down; "
           "ip link set d0 master bond0; ip link set d1 master bond0; "
           "ip -n peer link add br1 type bridge; "
           "ip -n peer link set p0 master br1; ip -n peer link set p1 master br1; "
           "ip -n peer link set p1 up; ip link set d0 up; ip link set d1 up", "bond0", "br1",
           clean="ip link del d1", between=bond_fails, **SINGLE),
    device("VRF, a socket outside of it", VRF, clean=UNVRF, reach=VRF_REACH, checks=(),
           subject_at=any_address, peer_sends_to=at(HERE, SUBJECT_PORT), out=NONE, into=NONE,
           errors=("ENETUNREACH",), connected=False, sentinel=False, **SINGLE),
    device("VRF, udp_l3mdev_accept", VRF + "; sysctl -qw net.ipv4.udp_l3mdev_accept=1",
           clean=UNVRF + "; sysctl -qw net.ipv4.udp_l3mdev_accept=0", reach=VRF_REACH,
           checks=(), subject_at=any_address, peer_sends_to=at(HERE, SUBJECT_PORT), out=None,
           connected=False, sentinel=False,
           prepare=lambda subject: subject.family == 4 and subject.sock.setsockopt(
               socket.IPPROTO_IP, 8, 1)),
    device("VRF", VRF, clean=UNVRF, reach=VRF_REACH, prepare=vrf_device, sentinel=False),
    device("ESP, transport", esp("transport"), clean=CLEAR_ESP, **SINGLE),
    device("ESP, tunnel", esp("tunnel"), clean=CLEAR_ESP, **SINGLE),
    device("ESP, transport, GSO packets", esp("transport"), clean=CLEAR_ESP, **ONE_BY_ONE),
    device("ESP, with a peer that has none", esp("transport", ("",)), clean=CLEAR_ESP, reach=":",
           out=NONE, into=NONE, sentinel=False, **SINGLE),
    Policy("tun", fixture=tun, **PAIR, checks=(arrived("out", device="t1"),
                                               arrived("in", device="t0"))),
    Policy("WireGuard", fixture=wireguard, ordered=False, differs=OWN, **PAIR, **SINGLE),
    Policy("dummy", fixture=lambda: (
        undo(sh, "ip link del nowhere", False),
        sh("ip link add nowhere type dummy; ip link set nowhere up; "
           "ip addr add 203.0.113.1/24 dev nowhere; "
           "ip addr add 2001:db8:d::1/64 dev nowhere nodad")),
           subject_at=at(HERE, SUBJECT_PORT), subject_sends_to=at(THERE, PEER_PORT),
           out=NONE, into=None, sentinel=False),
    Policy("a device moved to another namespace", fixture=namespaces, subject_namespace="moved",
           **PAIR, checks=(arrived("out", device="p0"), arrived("in", device="d0"))),
    Policy("a process in another namespace than its socket's", prepare=sent_from("peer")),
    Policy("a namespace deleted in mid-flow", fixture=namespaces, subject_namespace="moved",
           between=namespace_deleted, sentinel=False, **PAIR, **SINGLE),
    device("a device moved away and back in mid-flow", "", between=moved_and_back, sentinel=False,
           **SINGLE),
])
