# SPDX-License-Identifier: GPL-2.0
"""libkopi.so.1 by ctypes: structs and functions of kopi.h, and errors as exceptions.

The functions are called with the interpreter's lock held, which makes the calls of several threads take turns:
a channel belongs to one thread at a time. None of them sleeps. An interpreter without that lock is refused.
"""

import ctypes
import errno
import os
import socket
import sys
from ctypes import (POINTER, Structure, c_char_p, c_int, c_size_t, c_ssize_t, c_uint8, c_uint16, c_uint32, c_uint64,
                    c_void_p)

# ctypes.PyDLL holds nothing there.
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError("kopi needs the global interpreter lock, without which this Python runs: set PYTHON_GIL=1")

CHAIN_MAX = 160
CHANNEL_GSO, CHANNEL_GRO, CHANNEL_GRO_MERGED = 1, 2, 4
DESC_MORE = 1
META_LOCAL = 1


class Meta(Structure):
    """struct kopi_meta: where a packet came from, or goes to."""

    _fields_ = [("peer", c_uint8 * 16), ("local", c_uint8 * 16), ("peer_port", c_uint16.__ctype_be__),
                ("local_port", c_uint16.__ctype_be__), ("family", c_uint16), ("gso_size", c_uint16),
                ("ifindex", c_uint32), ("flags", c_uint16), ("tos", c_uint8), ("ttl", c_uint8), ("len", c_uint32),
                ("mark", c_uint32), ("timestamp", c_uint64)]


class Options(Structure):
    """struct kopi_options."""

    _fields_ = [("flags", c_uint32), ("frame_size", c_uint32), ("frames", c_uint32), ("rx_frames", c_uint32),
                ("tx_entries", c_uint32), ("rx_entries", c_uint32), ("reserved", c_uint32 * 10)]


class Frame(Structure):
    """struct kopi_frame."""

    _fields_ = [("data", c_void_p), ("meta", POINTER(Meta)), ("len", c_uint32), ("capacity", c_uint32),
                ("flow", c_uint32), ("flags", c_uint32), ("id", c_uint32), ("reserved", c_uint32)]


class Stats(Structure):
    """struct kopi_stats."""

    NAMES = ("tx_packets", "tx_bytes", "tx_errors", "tx_zerocopy", "rx_packets", "rx_bytes", "rx_drop_ring_full",
             "rx_drop_no_frame", "rx_drop_too_long", "tx_invalid", "fill_invalid", "ring_broken", "tx_pending",
             "flows", "tx_taken", "rx_taken", "tx_drop_denied", "tx_drop_unreachable", "tx_drop_too_long",
             "tx_drop_no_buffer", "tx_drop_invalid", "tx_drop_other", "tx_drop_rule", "tx_drop_rate",
             "rx_drop_rule", "rx_drop_rate", "engine_time")
    _fields_ = [*((name, c_uint64) for name in NAMES), ("reserved", c_uint64 * (32 - len(NAMES)))]


# Name: the result, and the arguments.
FUNCTIONS = {
    "family": (c_int,),
    "flow_open": (c_int, c_void_p, c_int),
    "flow_close": (None, c_void_p),
    "flow_fd": (c_int, c_void_p),
    "flow_error": (c_int, c_void_p),
    "flow_stats": (c_int, c_void_p, POINTER(Stats)),
    "channel_open": (c_int, c_void_p, c_void_p, POINTER(Options)),
    "channel_close": (None, c_void_p),
    "channel_fd": (c_int, c_void_p),
    "commit": (c_int, c_void_p, POINTER(Frame), c_uint32),
    "release": (c_int, c_void_p, POINTER(Frame), c_uint32),
    "recv_frames": (c_int, c_void_p, POINTER(Frame), c_uint32),
    "flush": (c_int, c_void_p),
    "doorbell": (c_int, c_void_p),
    "arm": (c_int, c_void_p, c_int),
    "meta_reply": (c_int, POINTER(Meta)),
    "send": (c_ssize_t, c_void_p, c_uint32, c_char_p, c_size_t, POINTER(Meta)),
    "queue": (c_ssize_t, c_void_p, c_uint32, c_char_p, c_size_t, POINTER(Meta)),
    "recv": (c_ssize_t, c_void_p, c_void_p, c_size_t, POINTER(Meta), c_void_p),
}


def checked(result, _function, _arguments):
    """A negative errno as an exception: BlockingIOError for EAGAIN, and so on."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


class Library:
    """The functions, without their prefix; those that give an int raise OSError."""

    def __init__(self):
        path = os.environ.get("KOPI_LIBRARY", "libkopi.so.1")
        try:
            library = ctypes.PyDLL(path)
        except OSError as error:
            raise ImportError(f"libkopi is missing: {error}; install it, or set KOPI_LIBRARY to its path") from error
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(library, f"kopi_{name}")
            function.restype, function.argtypes = result, arguments
            if result is not None:
                function.errcheck = checked
            setattr(self, name, function)


library = Library()


def family():
    """The number of AF_KOPI; OSError (EAFNOSUPPORT) without the module."""
    return library.family()


# What socket.socket knows besides addresses and names of hosts.
_NAMES = {(socket.AF_INET, ""): "0.0.0.0", (socket.AF_INET6, ""): "::",
          (socket.AF_INET, "<broadcast>"): "255.255.255.255"}
# What is before an IPv4 address in an IPv6 one.
_MAPPED = bytes(10) + b"\xff\xff"


def meta_to(address, version):
    """Metadata with a destination: (host, port), or for IPv6 (host, port, flowinfo, scope), where `version` is
    AF_INET or AF_INET6, and the host is an address: OSError if not. Raises what socket.sendto() raises for bad
    ports."""
    host, port, *more = address
    if not isinstance(port, int):
        raise TypeError("the port must be an int")
    if not 0 <= port <= 65535:
        raise OverflowError("the port must be 0-65535")
    if port == 0:
        # As the kernel says of it.
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    meta = Meta(peer_port=port, family=version)
    packed = socket.inet_pton(version, _NAMES.get((version, host), host))
    meta.peer[:len(packed)] = packed
    if len(more) > 1:
        meta.ifindex = more[1]
    return meta


def is_one(meta):
    """Whether the local address is one machine's: no multicast, nor 255.255.255.255, which can't be a source."""
    host = bytes(meta.local)
    if meta.family == socket.AF_INET6:
        if host[:12] != _MAPPED:
            return host[0] != 0xff
        host = host[12:]
    return host[0] >> 4 != 14 and host[:4] != b"\xff" * 4


def look_up(address, version):
    """The address of a name, for meta_to()."""
    host, port, *_ = address
    *_, found = socket.getaddrinfo(host, port, version, socket.SOCK_DGRAM)[0]
    return found[0].split("%")[0], *found[1:]


def address_of(meta, packed, port):
    """An address in metadata, as recvfrom() gives it."""
    if meta.family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, bytes(packed[:4])), port
    packed = bytes(packed)
    # Only these need a scope.
    scope = meta.ifindex if packed[0] == 0xfe and packed[1] & 0xc0 == 0x80 else 0
    return socket.inet_ntop(socket.AF_INET6, packed), port, 0, scope
