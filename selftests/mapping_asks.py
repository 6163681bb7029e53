#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Who maps a flow's region was let receive when it asked where the rings lie, as is who joins its channel;
mapping itself asks nobody, and so waits for no lock under which a program's memory is read."""

import mmap
import os
import signal
import socket
import threading
import time

import kopi
from apparmor import confine, profiles
from equivalence import tells

SECONDS = 5


def in_child(*steps):
    """What comes of each step in a child process, up to the first that fails."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        for step in steps:
            result = tells(step)
            os.write(writer, result.encode() + b" ")
            if result != "ok":
                break
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as said:
        results = said.read().split()
    os.waitpid(pid, 0)
    return results


CHANNEL = kopi.Channel(kopi.flow(), frames=16)
FLOW = CHANNEL.sock
FLOW.bind(("127.0.0.1", 0))


def ask():
    """Asks where the rings lie."""
    return FLOW.getsockopt(kopi.SOL_KOPI, kopi.CHANNEL, 256)


def map_it():
    """Maps the region, of which the size is known."""
    mmap.mmap(FLOW.fileno(), CHANNEL.size, trackfd=False).close()


def who_asked():
    """It is the process, as it is now, that must have asked."""
    kopi.check("mapped again by who has asked", tells(map_it) == "ok")
    results = in_child(map_it)
    kopi.check("by a child that hasn't: EACCES", results == ["EACCES"], results)
    results = in_child(ask, map_it)
    kopi.check("by a child that has", results == ["ok", "ok"], results)
    kopi.check("by its parent, which doesn't know: EACCES", tells(map_it) == "EACCES")
    ask()
    kopi.check("which asks again", tells(map_it) == "ok")
    results = in_child(ask, lambda: os.setuid(1001), map_it)
    kopi.check("by who has another user since: EACCES", results == ["ok", "ok", "EACCES"], results)
    results = in_child(lambda: os.setuid(1001), ask, map_it)
    kopi.check("by another user who has asked", results == ["ok"] * 3, results)


def security_module():
    """AppArmor says who may receive."""
    results = in_child(lambda: confine("all"), ask, map_it)
    kopi.check("under a profile that lets receive", results == ["ok"] * 3, results)
    results = in_child(lambda: confine("deaf"), ask)
    kopi.check("under one that doesn't, asking: EACCES", results == ["ok", "EACCES"], results)
    ask()
    results = in_child(lambda: confine("deaf"), map_it)
    kopi.check("and mapping, after another has asked: EACCES", results == ["ok", "EACCES"], results)
    results = in_child(ask, lambda: confine("deaf"), map_it)
    kopi.check("and after it has asked itself, under another: EACCES", results == ["ok", "ok", "EACCES"],
               results)


def who_joins():
    """Of a flow that joins another's channel, each must be one that the process may receive by."""
    other = kopi.Channel(kopi.flow(kopi.UDP6), frames=16).sock

    def join(proto, sock):
        with kopi.flow(proto) as joining:
            joining.setsockopt(kopi.SOL_KOPI, kopi.JOIN, kopi.join_request(sock))

    for profile, expected in (("all", "ok"), ("deaf", "EACCES")):
        for what, proto, sock in (("a flow", 0, other), ("the channel of one", kopi.UDP6, FLOW)):
            results = in_child(lambda name=profile: confine(name), lambda to=sock, by=proto: join(by, to))
            kopi.check(f"under {profile}, {what} of IPv4 joins, or is joined: {expected}",
                       results == ["ok", expected], results)
    other.close()


def maps_while_sending():
    """A datagram is made piece by piece from memory that isn't there yet: with the sock locked, its
    sender waits for the memory map."""
    confine("all")
    end = time.monotonic() + SECONDS
    FLOW.connect(FLOW.getsockname())
    pieces = 0

    def send():
        nonlocal pieces
        while time.monotonic() < end:
            for flags in (socket.MSG_MORE, 0):
                with mmap.mmap(-1, 16384) as fresh:
                    FLOW.send(fresh, flags)
                pieces += 1

    sender = threading.Thread(target=send)
    sender.start()
    ask()
    maps = 0
    while time.monotonic() < end:
        map_it()
        maps += 1
    sender.join()
    print(f"# {maps} mappings, {pieces} pieces", flush=True)


def whether_it_ends():
    """In a process of its own, which may stand for ever."""
    pid = kopi.in_child(maps_while_sending)
    ended = []
    kopi.wait_until(lambda: ended or ended.extend(filter(None, os.waitpid(pid, os.WNOHANG)[:1])))
    kopi.check("one thread maps, another sends from memory that is new", ended == [pid])
    if not ended:
        os.kill(pid, signal.SIGKILL)


with profiles({"all": "", "deaf": "deny network (receive) inet dgram,"}):
    who_asked()
    security_module()
    who_joins()
    whether_it_ends()
kopi.finish()
