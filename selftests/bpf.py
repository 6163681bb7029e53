# SPDX-License-Identifier: GPL-2.0
"""BPF programs of selftests/bpf: loaded by bpftool, attached by bpf(2).

Source: include/uapi/linux/bpf.h
"""

import ctypes
import os
import shutil
import struct
import subprocess

from linux import SYS_BPF

MAP_LOOKUP, MAP_UPDATE, MAP_DELETE, OBJ_GET, PROG_ATTACH, PROG_DETACH, LINK_CREATE = 1, 2, 3, 7, 8, 9, 28
ATTACH = {name: number for number, name in enumerate(
    "cgroup_inet_ingress cgroup_inet_egress cgroup_inet_sock_create cgroup_sock_ops "
    "sk_skb_stream_parser sk_skb_stream_verdict cgroup_device sk_msg_verdict cgroup_inet4_bind "
    "cgroup_inet6_bind cgroup_inet4_connect cgroup_inet6_connect cgroup_inet4_post_bind "
    "cgroup_inet6_post_bind cgroup_udp4_sendmsg cgroup_udp6_sendmsg lirc_mode2 flow_dissector "
    "cgroup_sysctl cgroup_udp4_recvmsg cgroup_udp6_recvmsg cgroup_getsockopt cgroup_setsockopt "
    "trace_raw_tp trace_fentry trace_fexit modify_return lsm_mac trace_iter "
    "cgroup_inet4_getpeername cgroup_inet6_getpeername cgroup_inet4_getsockname "
    "cgroup_inet6_getsockname xdp_devmap cgroup_inet_sock_release xdp_cpumap sk_lookup xdp "
    "sk_skb_verdict sk_reuseport_select sk_reuseport_select_or_migrate perf_event "
    "trace_kprobe_multi lsm_cgroup struct_ops netfilter tcx_ingress tcx_egress".split())}
PINS = "/sys/fs/bpf/kopi-test"
OBJECTS = f"{os.path.dirname(os.path.abspath(__file__))}/../build/bpf"
libc = ctypes.CDLL(None, use_errno=True)


def call(command, attributes):
    """bpf(2)."""
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    result = libc.syscall(SYS_BPF, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf {command}: {os.strerror(ctypes.get_errno())}")
    return result


def load(name="policy"):
    """Loads and pins all programs and maps of an object."""
    # The suite's namespaces see another mount of /sys than the one that the machine booted with.
    if not os.path.ismount("/sys/fs/bpf"):
        subprocess.run(["mount", "-t", "bpf", "bpf", "/sys/fs/bpf"], check=True)
    unload()
    subprocess.run(["bpftool", "prog", "loadall", f"{OBJECTS}/{name}.bpf.o", PINS, "pinmaps", f"{PINS}/maps"],
                   check=True)


def unload():
    """Takes all of them away."""
    shutil.rmtree(PINS, ignore_errors=True)


def pinned(name):
    """A descriptor of a program, or of a map as maps/NAME."""
    path = ctypes.create_string_buffer(f"{PINS}/{name}".encode())
    return call(OBJ_GET, struct.pack("=QII", ctypes.addressof(path), 0, 0))


def attach(target, program, kind):
    """Attaches a program to a cgroup or a network namespace; gives what detaches it."""
    fd = pinned(program)
    target = os.dup(target)
    call(PROG_ATTACH, struct.pack("=IIII", target, fd, ATTACH[kind], 0))

    def detach():
        call(PROG_DETACH, struct.pack("=III", target, fd, ATTACH[kind]))
        os.close(fd)
        os.close(target)
    return detach


def link(program, target, kind, extra=b""):
    """Attaches by a link, which lasts until its descriptor is closed."""
    fd = pinned(program)
    made = call(LINK_CREATE, struct.pack("=IIII", fd, target, ATTACH[kind], 0) + extra)
    os.close(fd)
    return made


def update(name, key, value):
    """Sets an element of a map."""
    fd = pinned(f"maps/{name}")
    keys = ctypes.create_string_buffer(struct.pack("=I", key), 4)
    values = ctypes.create_string_buffer(value, len(value))
    try:
        call(MAP_UPDATE, struct.pack("=IIQQQ", fd, 0, ctypes.addressof(keys),
                                     ctypes.addressof(values), 0))
    finally:
        os.close(fd)


def delete(name, key):
    """Takes an element of a map away."""
    fd = pinned(f"maps/{name}")
    keys = ctypes.create_string_buffer(struct.pack("=I", key), 4)
    try:
        call(MAP_DELETE, struct.pack("=IIQ", fd, 0, ctypes.addressof(keys)))
    finally:
        os.close(fd)


def lookup(name, key, size):
    """An element of a map."""
    fd = pinned(f"maps/{name}")
    keys = ctypes.create_string_buffer(struct.pack("=I", key), 4)
    values = ctypes.create_string_buffer(size)
    try:
        call(MAP_LOOKUP, struct.pack("=IIQQQ", fd, 0, ctypes.addressof(keys),
                                     ctypes.addressof(values), 0))
    finally:
        os.close(fd)
    return values.raw
