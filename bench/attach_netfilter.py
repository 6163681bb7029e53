#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Attaches a pinned BPF program to netfilter's LOCAL_IN and LOCAL_OUT of this network namespace, for IPv4, at the
priority of filters, until the links that it pins beside the program are removed: attach_netfilter.py PROGRAM

bpftool can't attach programs of this type.
"""

import ctypes
import os
import struct
import sys

sys.path.insert(0, f"{os.path.dirname(os.path.abspath(__file__))}/../selftests")
# pylint: disable=wrong-import-position
import bpf

OBJ_PIN = 6
NFPROTO_IPV4 = 2
HOOKS = {"local_in": 1, "local_out": 3}

program = os.path.abspath(sys.argv[1])
bpf.PINS = os.path.dirname(program)
for name, hook in HOOKS.items():
    link = bpf.link(os.path.basename(program), 0, "netfilter", struct.pack("=IIiI", NFPROTO_IPV4, hook, 0, 0))
    path = ctypes.create_string_buffer(f"{program}_{name}".encode())
    bpf.call(OBJ_PIN, struct.pack("=QII", ctypes.addressof(path), link, 0))
