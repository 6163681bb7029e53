#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""`kopictl ps` and `show` say of each flow what it uses a channel for, or why it uses none: also of programs by
`kopi run`."""

import errno
import json
import os
import socket
import subprocess
import sys

import kopi
import limits
from equivalence import namespace
from kopi import TX_ONLY, check

UDP_CORK, SOL_UDP = 1, 17
BOB = ["setpriv", "--reuid", "bob", "--regid", "bob", "--clear-groups"]
# Sends, does something, sends, and stays.
SENDS = ("import socket, sys\n"
         "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
         "s.connect(('127.0.0.1', int(sys.argv[1])))\n"
         "s.send(b'1'), exec(sys.argv[2]), s.send(b'2')\n"
         "print('sent', flush=True), sys.stdin.read()\n")


def kopictl(*words):
    """What it prints."""
    return subprocess.run(["kopictl", *words], capture_output=True, text=True, check=True).stdout


def shown(pid):
    """A process's flows, as `ps` has them."""
    return json.loads(kopictl("ps", "--json", "--pid", str(pid)))


def says(what, flow, use, error, explained):
    """The commands agree about a flow."""
    number = str(flow["id"])
    one = json.loads(kopictl("show", "flow", number, "--json"))
    seen = [(each.get("channel_use"), each.get("channel_error")) for each in (flow, one)]
    check(f"{what}: {use}", seen == [(use, error and getattr(errno, error))] * 2, str(seen))
    row = [line for line in kopictl("ps", "--wide").splitlines() if line.split()[:1] == [number]]
    word = f" {use}: {error} " if error else f" {use} "
    check(f"{what}: in the table", len(row) == 1 and word in row[0] + " ", str(row))
    text = kopictl("show", "flow", number)
    check(f"{what}: explained", explained in text and (not error or f"({error})" in text), text)


def newest(pid):
    """The process's flow that was opened last."""
    return max(shown(pid), key=lambda flow: flow["id"])


def own():
    """Flows of this process."""
    for what, flags, use, explained in [
            ("a channel", 0, "both-ways", "sends and receives by rings"),
            ("a channel that only sends", TX_ONLY, "send-only", "sends by a channel, receives by system calls")]:
        channel = kopi.Channel(kopi.flow(), flags=flags)
        says(what, newest(os.getpid()), use, None, explained)
        channel.sock.close()
    sock = kopi.flow()
    says("none", newest(os.getpid()), "not-requested", None, "no channel was requested")
    sock.setsockopt(SOL_UDP, UDP_CORK, 1)
    says("UDP_CORK", newest(os.getpid()), "corked", None, "it has been corked")
    sock.close()
    sock = kopi.flow()
    kopi.fails("a request that makes no sense", errno.EINVAL,
               lambda: sock.setsockopt(kopi.SOL_KOPI, kopi.CHANNEL, kopi.request(frame_size=77)))
    says("what the kernel refused", newest(os.getpid()), "refused", "EINVAL", "a channel was refused")
    kopi.Channel(sock)
    says("and then granted", newest(os.getpid()), "both-ways", None, "sends and receives by rings")
    sock.close()
    sock = kopi.stream()
    says("TCP", newest(os.getpid()), "stream", None, "TCP has no channels")
    sock.close()


def program(what, use, error, explained, by=(), least=1, action="0"):
    """A program by `kopi run`."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.bind(("127.0.0.1", 0))
        command = [*by, "kopi", "run", "--min-datagrams", str(least), sys.executable, "-c", SENDS,
                   str(receiver.getsockname()[1]), action]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            check(f"{what}: it sends", process.stdout.readline() == "sent\n")
            # And not the one for which the library made the channel.
            port = receiver.getsockname()[1]
            flows = [flow for flow in shown(process.pid) if flow.get("remote_port") == port]
            check(f"{what}: it has a flow", len(flows) == 1, str(flows))
            says(what, flows[0], use, error, explained)
            process.stdin.close()


def programs():
    """Programs by `kopi run`."""
    program("kopi run", "send-only", None, "sends by a channel")
    program("kopi run, fewer datagrams than it takes", "not-requested", None, "no channel was requested", least=100)
    program("kopi run, corked", "corked", None, "it has been corked",
            action=f"s.setsockopt({SOL_UDP}, {UDP_CORK}, 1), s.setsockopt({SOL_UDP}, {UDP_CORK}, 0)")
    program("kopi run, without memory to lock", "refused", "ENOBUFS", "a channel was refused",
            by=[*BOB, "prlimit", "--memlock=4096"])


with namespace("host"):
    own()
    programs()
# The limits are those of the initial network namespace.
with limits.limited(user_max_channels=0), namespace("host"):
    program("kopi run, at the limit of channels", "refused", "EMFILE", "a channel was refused", by=BOB)
kopi.finish()
