#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Processes that use a socket at the same time are judged each for itself, and a process whose user has changed as that
user."""

import errno
import os
import select
import signal
import socket
import threading
import time

import kopi
from control import ask, ruled
from enforced import BOB, CHARLIE, begin, end, floods, kopictl, restore
from equivalence import namespace
from kopi import become, check, told_by_child, wait_until

HOST, PEER = "192.0.2.1", "192.0.2.2"
SECONDS = 15
# Of x86-64.
SYS_EXIT, SYS_SETRESUID, SYS_SETRESGID = 60, 117, 119


def reads(sock, user, until):
    """A user's process that reads all the time: how much it got."""
    become(user)
    got = 0
    while time.monotonic() < until:
        try:
            sock.recv(64, socket.MSG_DONTWAIT)
            got += 1
        except OSError:
            pass
    return got


def race(what, make):
    """Bob may read, and Charlie may not."""
    with make() as sock:
        sock.bind((HOST, 0))
        sender = kopi.in_child(lambda: floods(sock.getsockname()[1], 0.0005))
        until = time.monotonic() + SECONDS
        readers = []
        for user in (BOB, CHARLIE, CHARLIE):
            reader, writer = os.pipe()
            pid = kopi.in_child(lambda user=user, writer=writer: os.write(writer, b"%d" % reads(sock, user, until)))
            os.close(writer)
            readers.append((pid, reader))
        got = []
        for pid, reader in readers:
            got.append(int(os.read(reader, 64)))
            os.close(reader)
            os.waitpid(pid, 0)
        os.kill(sender, signal.SIGKILL)
        os.waitpid(sender, 0)
        check(f"{what}: bob gets some", got[0] > 0, got)
        check(f"{what}: charlie gets nothing", got[1] + got[2] == 0, got)


def changes_user(make):
    """Root's daemon has its socket, and becomes another user."""
    with make() as sock:
        sock.bind((HOST, 0))
        sock.sendto(b"as root", (PEER, 9))
        become(CHARLIE)
        try:
            sock.sendto(b"as charlie", (PEER, 9))
        except OSError as error:
            return error.strerror
    return "sent"


def refused_once():
    """Who may not send learns it by the call, and by no other one."""
    sock = kopi.ip_flow()
    sock.bind((HOST, 0))
    with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"for charlie", sock.getsockname())
    wait_until(lambda: select.select([sock], [], [], 0)[0])
    become(CHARLIE)
    said = []
    for call in lambda: sock.sendto(b"x", (PEER, 9)), lambda: sock.recv(64, socket.MSG_DONTWAIT):
        try:
            said.append(call())
        except OSError as error:
            said.append(errno.errorcode[error.errno])
    return said


def rings_as_another():
    """Root's daemon has its ring, and becomes another user."""
    channel = kopi.Channel(kopi.ip_flow())
    channel.sock.bind((HOST, 0))
    channel.send(0, b"as root", (PEER, 9))
    first = channel.complete(1)
    become(CHARLIE)
    channel.send(0, b"as charlie", (PEER, 9))
    return first + channel.complete(1)


def ready_ring():
    """A channel with frames to receive into, and a socket of the peer's that may send to it."""
    channel = kopi.Channel(kopi.ip_flow())
    for number in range(channel.frame_count):
        channel.fill.push(channel.frame(number))
    with namespace("peer"):
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    channel.sock.bind((HOST, 0))
    return channel, sender


def refused_of(channel, sender):
    """How many of one datagram are refused."""
    sender.sendto(b"for charlie", channel.sock.getsockname())
    wait_until(lambda: channel.stats()["rx_taken"] == 1)
    return channel.stats()["rx_drop_rule"]


def receives_as_another():
    """Root's daemon has mapped its ring, and becomes another user: what is refused of what comes then."""
    channel, sender = ready_ring()
    become(CHARLIE)
    # Nothing else says so: no call follows.
    return refused_of(channel, sender)


def outlives_its_first_thread(tell):
    """Root's first thread has ended; another one has become another user, and rings: what is refused of what comes."""
    channel, sender = ready_ring()

    def has_ended():
        with open(f"/proc/self/task/{os.getpid()}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "Z"

    def rest():
        wait_until(has_ended)
        # The C library would wait for the first thread.
        for call in (SYS_SETRESGID, SYS_SETRESUID):
            kopi.libc.syscall(call, CHARLIE, CHARLIE, CHARLIE)
        channel.bell()
        os.write(tell, str(refused_of(channel, sender)).encode())
        os._exit(0)

    threading.Thread(target=rest).start()
    kopi.libc.syscall(SYS_EXIT, 0)


def told_without_first_thread():
    """What that tells."""
    told, tell = os.pipe()
    child = kopi.in_child(lambda: outlives_its_first_thread(tell))
    os.close(tell)
    with os.fdopen(told) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


with ruled() as YNL:
    ask(YNL, "ruleset-set", {"default": "deny", "rule": [
        {"uid-min": user, "verdict": "allow"} for user in (0, BOB)]})
    said = told_by_child(lambda: changes_user(kopi.ip_flow))
    check("a flow's process is judged by the user that it has become", said == "Permission denied", said)
    said = told_by_child(rings_as_another)
    check("so is what it sends by a ring", said == str([0, errno.EACCES]), said)
    race("a flow", kopi.ip_flow)
    ask(YNL, "ruleset-set", {"rule": [{"uid-min": CHARLIE, "direction": "out", "verdict": "deny"}]})
    said = told_by_child(refused_once)
    check("a refused call leaves no error for the next one", said == str(["EACCES", b"for charlie"]), said)
    ask(YNL, "ruleset-set", {"rule": [
        {"uid-min": CHARLIE, "remote-address": PEER, "remote-prefix": 32, "direction": "in", "verdict": "deny"}]})
    refused = told_by_child(receives_as_another)
    check("who has become another user receives as that one by a ring", refused == "1", refused)
    refused = told_without_first_thread()
    check("so does a process whose first thread has ended, which stays what it was", refused == "1", refused)
with namespace("host"):
    begin()
    restore("default deny\nenforce on\nuser root allow\nuser bob allow\n")
    said = told_by_child(lambda: changes_user(kopi.plain_datagram))
    check("so is that of an ordinary socket", said == "Permission denied", said)
    race("an ordinary socket", kopi.plain_datagram)
    restore("default allow\nenforce on\nuser charlie deny\n")
    told_by_child(lambda: changes_user(kopi.plain_datagram))
    check("the rule counts the call that it has refused",
          wait_until(lambda: '"denied": 1' in kopictl("rule", "list", "--json")[1] or
                     '"denied":1' in kopictl("rule", "list", "--json")[1]), kopictl("rule", "list", "--json"))
    restore("default allow\nenforce off\n")
    end()
kopi.finish()
