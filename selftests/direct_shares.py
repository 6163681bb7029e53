#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What one user sends by an attached NIC neither takes the room of other users' packets nor makes them wait for more
than their turn."""

import contextlib
import json
import os
import socket
import time

import kopi
import nfqueue
from attached import ADDRESSES, UserFlow, attach, by_the_driver, host, kopictl, link, nobody_takes, peer, unsent
from control import family
from equivalence import namespace, run_nft, sh
from kopi import check
from links import set_up
from linux import ETH_P_IP, IP_OPTIONS, SO_RCVBUFFORCE

PEER = (ADDRESSES[4][1], 7000)
# An address whose neighbour is old, and one that nobody has.
STALE, NOBODY = "192.0.2.77", "192.0.2.78"
# Datagrams of a GSO packet, as many as it can have, and bytes of each.
MANY, SIZE = 128, 16
FEW = 8
NOPS = b"\x01\x01\x01\x01"


def gso(letter, count):
    """The payload of a GSO packet, and its datagrams' size."""
    return letter * SIZE * count, SIZE


def entered(*flows):
    """Each of the flows has sent by the driver."""
    for flow in flows:
        flow.send(PEER, *gso(b"-", FEW))


# A busy machine may need more than the second after which a driver that takes nothing is given up.
TRIES = 5


def again():
    """Attaches the NIC again: its driver has taken nothing."""
    kopictl("detach", "eth0")
    kopictl("attach", "eth0")


def waits_alone(ynl):
    """A packet that waits for earlier ones of its flow makes no other user's wait."""
    for _ in range(TRIES):
        greedy, other = UserFlow("alice"), UserFlow("bob")
        entered(greedy, other)
        with nobody_takes():
            before = link(ynl)["packets"]
            greedy.send(PEER, *gso(b"a", FEW))
            has_first, _ = by_the_driver(ynl, "eth0", before, 5)
            # By the stack, behind the first.
            greedy.channel.sock.setsockopt(socket.SOL_IP, IP_OPTIONS, NOPS)
            greedy.send(PEER, b"a")
            before = link(ynl)["packets"]
            other.send(PEER, *gso(b"b", FEW))
            taken, after = by_the_driver(ynl, "eth0", before, 5)
        again()
        greedy.close()
        other.close()
        if has_first and taken and after < 0.4:
            break
    check("the driver has the first", has_first, link(ynl))
    check("what waits for the driver holds up no other user", taken and after < 0.4, (after, link(ynl)))


def has_room(ynl):
    """A user who has filled the queue leaves room for others, and sends by the stack what nothing is before."""
    for _ in range(TRIES):
        greedy, second, other = UserFlow("alice"), UserFlow("alice"), UserFlow("bob")
        entered(greedy, second, other)
        with nobody_takes():
            before = link(ynl)
            for _ in range(2):
                for _ in range(100):
                    greedy.put(PEER, *gso(b"a", MANY))
                greedy.bell()
            full = link(ynl)
            other.send(PEER, *gso(b"b", FEW))
            after = link(ynl)
            second.send(PEER, *gso(b"a", FEW))
            last = link(ynl)
        again()
        for flow in greedy, second, other:
            flow.close()
        results = (full["dropped"] > before["dropped"],
                   (after["dropped"], after["passed"]) == (full["dropped"], full["passed"]),
                   (last["dropped"], last["passed"]) == (after["dropped"], after["passed"] + 1))
        if all(results):
            break
    for what, result in zip(("who has filled the queue loses the rest", "another user's packet has room",
                             "another flow's of the same user leaves by the stack"), results):
        check(what, result, (before, full, after, last))


def has_its_turn():
    """A user's packet leaves before what others have sent earlier, but for what the driver has."""
    for _ in range(TRIES):
        behind, came = packets_behind()
        if behind and behind > 40 * MANY:
            break
        again()
    check("another user's packet doesn't wait for all of them", behind and behind > 40 * MANY, (behind, came))


def packets_behind():
    """How many datagrams of a user's leave behind those of another one, who has sent later; and how many in all."""
    greedy, other = UserFlow("alice"), UserFlow("bob")
    entered(greedy, other)
    # Sees all from the moment at which the peer's NIC is up, which its address may be later.
    with namespace("peer"):
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
    tap.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    tap.settimeout(20)
    # The driver has what fills both rings, and stands still: for less than the second after which it is given up.
    peer("ip link set eth1 down")
    for _ in range(60):
        greedy.put(PEER, *gso(b"a", MANY))
    greedy.bell()
    other.send(PEER, *gso(b"b", FEW))
    # Not by a program, which takes a good part of that second to start.
    with namespace("peer"):
        set_up("eth1", True)
    came = []
    with contextlib.suppress(TimeoutError):
        while len(came) < 60 * MANY + FEW:
            letter = tap.recv(100)[28:29]
            if letter in (b"a", b"b"):
                came.append(letter)
    for end in greedy, other, tap:
        end.close()
    return came[came.index(b"b"):].count(b"a") if b"b" in came else None, len(came)


@contextlib.contextmanager
def hooks(*lines):
    """Rules of the host's output, while flows of two users send datagrams as frames."""
    greedy, other = UserFlow("alice", 0), UserFlow("bob", 0)
    for flow in greedy, other, greedy, other:
        put_few(flow)
        flow.bell()
        until_sent(flow)
    with namespace("host"):
        run_nft("table ip shown {\nchain o {\ntype filter hook output priority 0\n" + "\n".join(lines) + "\n}\n}")
    try:
        yield greedy, other
    finally:
        with namespace("host"):
            run_nft("flush ruleset")
        for flow in greedy, other:
            flow.close()


def put_few(flow, *others):
    """Puts some datagrams in a flow's ring, and behind them one to each other address."""
    for number in range(FEW):
        flow.put(PEER, bytes([number]))
    for address in others:
        flow.put(address, b"other")


def until_sent(flow, left=0):
    """How many seconds it takes until a flow isn't charged for more than that."""
    begin = time.monotonic()
    kopi.wait_until(lambda: unsent(flow.channel.sock) <= left)
    return time.monotonic() - begin


def soon(what, took):
    """Checks that most of some times are less than the second that the driver has at the most."""
    check(what, sorted(took)[len(took) // 2] < 0.4, took)


def completes():
    """What a hook keeps of a user's datagrams doesn't keep others' memory, which lies elsewhere."""
    took, kept = [], 0
    with namespace("host"):
        queue = nfqueue.Queue(0)
    with hooks(f"udp dport {PEER[1] + 1} queue num 0") as (greedy, other):
        for _ in range(5):
            put_few(greedy, (PEER[0], PEER[1] + 1))
            greedy.bell()
            put_few(other)
            other.bell()
            took.append(until_sent(other))
        kept = unsent(greedy.channel.sock)
    soon("what others sent is complete at once, behind what a hook keeps", took)
    check("which is kept", kept > 0, kept)
    queue.sock.close()


def is_let_go():
    """What a hook has let go is complete, though it keeps what another user sent before."""
    took = []
    with namespace("host"):
        keeps, passes = nfqueue.Queue(0), nfqueue.Queue(1)
    with hooks(f"udp dport {PEER[1] + 1} queue num 0", f"udp dport {PEER[1] + 2} queue num 1") as (greedy, other):
        for _ in range(5):
            put_few(greedy, (PEER[0], PEER[1] + 1))
            greedy.bell()
            put_few(other, (PEER[0], PEER[1] + 2))
            other.bell()
            packet = kopi.wait_until(passes.receive)
            passes.verdict(packet, True)
            took.append(until_sent(other))
    soon("what a hook lets go of is complete at once, behind what it keeps", took)
    for queue in keeps, passes:
        queue.sock.close()


def waits_for_address():
    """A datagram that waits for an address, or finds it old, doesn't keep those that it was sent with."""
    took = {}
    with hooks("accept") as (flow, _):
        for what, address, state in ("an old address", STALE, f"lladdr {ADDRESS} nud stale"), ("no address", NOBODY, None):
            took[what] = []
            for _ in range(5):
                if state:
                    host(f"ip neigh replace {address} {state} dev eth0")
                put_few(flow, (address, PEER[1]))
                flow.bell()
                # But for those that wait, of which a neighbour keeps few.
                took[what].append(until_sent(flow, 0 if state else 5 * 1024))
    for what, times in took.items():
        soon(f"what was sent with a datagram for which there is {what} is complete at once", times)
    host(f"ip neigh del {STALE} dev eth0")


os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
attach()
with namespace("host"):
    YNL = family()
with namespace("peer"):
    # Nobody reads it, but it says nothing either.
    SINK = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    SINK.bind(PEER)
    # Of IPv6, which is the same one afterwards.
    sh("sysctl -qw net.ipv6.conf.eth1.keep_addr_on_down=1")
# No question for the peer's address leaves through the stack: nobody would take it, and the driver stop its queue.
ADDRESS = json.loads(peer("ip -j link show eth1"))[0]["address"]
host(f"ip neigh replace {PEER[0]} lladdr {ADDRESS} dev eth0 nud permanent")
completes()
is_let_go()
waits_for_address()
has_its_turn()
waits_alone(YNL)
has_room(YNL)
kopictl("detach", "eth0")
host(f"ip neigh del {PEER[0]} dev eth0")
kopi.finish()
