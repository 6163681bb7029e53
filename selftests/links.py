# SPDX-License-Identifier: GPL-2.0
"""Namespaces and devices made without starting a program, which takes a machine without KVM longer
than the rest of a test.

Source: rtnetlink(7), netdevice(7), arp(7), ipv6(7)
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct

from linux import IFF_RUNNING, IFF_UP, RTM_NEWLINK, SIOCGIFFLAGS, SIOCSIFFLAGS

libc = ctypes.CDLL(None, use_errno=True)
MS_BIND, MNT_DETACH = 4096, 2
SIOCSIFADDR, SIOCSIFNETMASK = 0x8916, 0x891C
SIOCGIFHWADDR, SIOCSARP = 0x8927, 0x8955
NLM_F_NEW = 0x605
IFLA_IFNAME, IFLA_LINKINFO, IFLA_NET_NS_FD, IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_PEER = 3, 18, 28, 1, 2, 1


@contextlib.contextmanager
def inside(path):
    """Runs the block in the network namespace of a file; only the main thread moves."""
    before = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(path, os.O_RDONLY)
    os.setns(there, os.CLONE_NEWNET)
    # Held by this process's being there, and no longer.
    os.close(there)
    try:
        yield
    finally:
        os.setns(before, os.CLONE_NEWNET)
        os.close(before)


def _must(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def make_namespace(name):
    """As `ip netns add`, with its loopback up."""
    path = f"/run/netns/{name}"
    before = os.open("/proc/self/ns/net", os.O_RDONLY)
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    os.unshare(os.CLONE_NEWNET)
    _must(libc.mount(b"/proc/self/ns/net", path.encode(), None, MS_BIND, None))
    set_up("lo", True)
    os.setns(before, os.CLONE_NEWNET)
    os.close(before)


def make_users_namespace(name, uid):
    """The same, but for a namespace that a user has made in a user namespace of his own."""
    path = f"/run/netns/{name}"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    (made, make), (go, done) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNET)
            os.write(make, b"x")
            os.close(done)
            os.read(go, 1)
        finally:
            os._exit(0)
    os.close(make)
    os.close(go)
    _must(0 if os.read(made, 1) else -1)
    _must(libc.mount(f"/proc/{pid}/ns/net".encode(), path.encode(), None, MS_BIND, None))
    os.close(done)
    os.close(made)
    os.waitpid(pid, 0)
    with inside(path):
        set_up("lo", True)


def drop_namespace(name):
    """As `ip netns del`."""
    _must(libc.umount2(f"/run/netns/{name}".encode(), MNT_DETACH))
    os.unlink(f"/run/netns/{name}")


def _ask(request, data, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_DGRAM) as asker:
        return fcntl.ioctl(asker, request, data)


def _flags(name):
    return struct.unpack_from("=16xH", _ask(SIOCGIFFLAGS, name + bytes(24)))[0]


def is_running(device):
    """Whether the kernel has seen that the link is up: until then it drops what is sent."""
    return bool(_flags(device.encode().ljust(16, b"\0")) & IFF_RUNNING)


def set_up(device, up):
    """Sets a device up or down."""
    name = device.encode().ljust(16, b"\0")
    flags = _flags(name)
    flags = flags | IFF_UP if up else flags & ~IFF_UP
    _ask(SIOCSIFFLAGS, struct.pack("=16sH22x", name, flags))


def mac(device):
    """A device's Ethernet address."""
    return _ask(SIOCGIFHWADDR, device.encode().ljust(40, b"\0"))[18:24]


def set_address(device, address):
    """Gives a device an IPv4 address, with a mask of 24 bits."""
    name = device.encode().ljust(16, b"\0")
    for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.0")):
        _ask(request, struct.pack("=16sHxx4s16x", name, socket.AF_INET, socket.inet_aton(value)))


def set_neighbour(device, address, ethernet):
    """Enters a neighbour for good, so that nothing is asked for on the wire."""
    _ask(SIOCSARP, struct.pack("=Hxx4s8xH6s8xi16x16s", socket.AF_INET, socket.inet_aton(address), 1,
                               ethernet, 4 | 2, device.encode()))


def _attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def make_veth(device, other, there):
    """Makes a veth pair, of which `other` is in the namespace of the file `there`."""
    nowhere = bytes(16)
    space = os.open(there, os.O_RDONLY)
    peer = (nowhere + _attribute(IFLA_IFNAME, other.encode() + b"\0")
            + _attribute(IFLA_NET_NS_FD, struct.pack("=I", space)))
    body = (nowhere + _attribute(IFLA_IFNAME, device.encode() + b"\0")
            + _attribute(IFLA_LINKINFO, _attribute(IFLA_INFO_KIND, b"veth")
                         + _attribute(IFLA_INFO_DATA, _attribute(VETH_PEER, peer))))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.send(struct.pack("=IHHII", 16 + len(body), RTM_NEWLINK, NLM_F_NEW, 0, 0) + body)
        error = struct.unpack_from("=i", netlink.recv(4096), 16)[0]
    os.close(space)
    if error:
        raise OSError(-error, f"veth: {os.strerror(-error)}")
