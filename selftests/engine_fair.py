#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""An engine gives channels their turns by bytes, and no visit is longer than its budget, or than some time."""

import itertools
import os
import resource
import select
import socket
import subprocess

import kopi
from control import add, ask, family
from equivalence import user
from kopi import ENGINE, Channel, check, finish, wait_until
from linux import SO_RCVBUFFORCE, SO_SNDBUFFORCE

# A budget that is sent well within the time that a visit may take, even where the machine is emulated.
BUDGET, ENTRIES, PER_DESCRIPTOR = 2048, 256, 64
WAITERS = 16_000
RULES = 5000
CPU = max(os.sched_getaffinity(0))
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain.settimeout(20)
plain.bind(("127.0.0.1", 0))
plain.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 24)


def polled(owner="root"):
    """A channel of a user's that an engine looks at."""
    with user(owner):
        channel = Channel(flags=ENGINE, frames=ENTRIES, tx=ENTRIES, completion=ENTRIES)
    channel.sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 24)
    channel.sock.bind(("127.0.0.1", 0))
    channel.sock.connect(plain.getsockname())
    channel.bell()
    assert wait_until(lambda: channel.tx.get(channel.tx.flags) & 1 == 0)
    return channel


def consumed(channel):
    return channel.tx.get(channel.tx.consumer)


def fill(channels, sizes):
    """Fills all rings before the engine, which is of the same CPU, can look at any; says whether that
    worked out. Each datagram says whose it is."""
    before = [consumed(channel) for channel in channels]
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    try:
        for number, (channel, size) in enumerate(zip(channels, sizes)):
            for entry in range(ENTRIES):
                channel.region[channel.frame(entry) + 64] = number
                channel.tx.push(channel.frame(entry) + 64, size, 0, 0, 0)
        return before == [consumed(channel) for channel in channels]
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def sent(channels, sizes):
    """Whose each datagram was, in their order."""
    order = []
    for _ in range(ENTRIES * len(channels)):
        try:
            data = plain.recv(4096)
        except TimeoutError:
            for channel in channels:
                entries = iter(channel.completion.pop, None)
                print(f"# in the ring: {channel.tx.get(channel.tx.producer) - consumed(channel)}, flags "
                      f"{channel.tx.get(channel.tx.flags)}, errors {[entry[4] for entry in entries if entry[4]]}")
            print("#", subprocess.run(("kopictl", "engine"), capture_output=True, text=True, check=False).stdout)
            raise
        order.append(data[0])
        if len(data) != sizes[data[0]]:
            check("a datagram's length", False, (data[0], len(data)))
    # The last ones may come after the datagrams; without room for all, the ring would stand the next time.
    for channel in channels:
        left = itertools.count(1 - ENTRIES)
        assert wait_until(lambda channel=channel, left=left: any(
            next(left) == 0 for _ in iter(channel.completion.pop, None)))
    return order


def backlogged(channels, sizes):
    """The order of what was sent while all had something."""
    for _ in range(20):
        whole = fill(channels, sizes)
        order = sent(channels, sizes)
        if whole:
            last = min(len(order) - 1 - order[::-1].index(number) for number in range(len(sizes)))
            return order[:last]
    return []


def worst(order, costs, shares):
    """How far the channels ever were from their shares, and the longest visit, in bytes."""
    bytes_sent, visit, longest, apart, before = [0] * len(costs), 0, 0, 0, None
    for number in order:
        bytes_sent[number] += costs[number]
        visit = costs[number] + (visit if number == before else 0)
        longest = max(longest, visit)
        before = number
        due = [had / share for had, share in zip(bytes_sent, shares)]
        apart = max(apart, max(due) - min(due))
    return apart, longest, bytes_sent


def dear_packets_end_visits(ynl):
    """Packets that take long end a visit, however many of them the budget would be enough for."""
    ask(ynl, "engine-set", {"cpu": [CPU], "idle": 3_600_000_000, "budget": 1 << 24})
    channels = [polled() for _ in range(2)]
    rules = "".join("ip daddr 192.0.2.1 drop\n" for _ in range(RULES))
    subprocess.run(("nft", "-f", "-"), check=True, text=True,
                   input=f"table ip dear {{ chain out {{ type filter hook output priority 0;\n{rules}}}\n}}\n")
    for _ in range(20):
        whole = fill(channels, (64, 64))
        order = sent(channels, (64, 64))
        if whole:
            break
    subprocess.run(("nft", "delete", "table", "ip", "dear"), check=True)
    longest = max(len(list(visit)) for _, visit in itertools.groupby(order))
    print(f"# {RULES} rules: {longest} datagrams in a visit")
    check("packets that take long end a visit", whole and longest <= ENTRIES // 2, longest)
    for channel in channels:
        channel.region.close()
        channel.sock.close()


def a_user_waits_for_no_other(ynl):
    """A user with many busy channels gets no longer turns than one with one."""
    ask(ynl, "engine-set", {"cpu": [CPU], "idle": 3_600_000_000, "budget": 1 << 24})
    channels = [polled() for _ in range(8)]
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    channels.append(polled("bob"))
    rules = "".join("ip daddr 192.0.2.1 drop\n" for _ in range(RULES))
    subprocess.run(("nft", "-f", "-"), check=True, text=True,
                   input=f"table ip dear {{ chain out {{ type filter hook output priority 0;\n{rules}}}\n}}\n")
    waits = []
    for _ in range(20):
        whole = fill(channels, [64] * len(channels))
        order = sent(channels, [64] * len(channels))
        if whole:
            # Before his first, and between two visits of his.
            his = [at for at, number in enumerate(order) if number == len(channels) - 1]
            waits = [his[0]] + [after - before - 1 for before, after in zip(his, his[1:])]
            break
    subprocess.run(("nft", "delete", "table", "ip", "dear"), check=True)
    visit = max(len(list(visit)) for _, visit in itertools.groupby(order))
    print(f"# at most {max(waits)} datagrams of another user before one of his, {visit} in a visit")
    check("a user waits for one visit of another, who has eight channels", waits and max(waits) <= 2 * visit, waits)
    for channel in channels:
        channel.region.close()
        channel.sock.close()


def time_to_send(channel):
    """How long the engine works for a channel that sends half a ring, in nanoseconds."""
    before = channel.stats()["engine_time"]
    for entry in range(ENTRIES // 2):
        channel.tx.push(channel.frame(entry) + 64, 64, 0, 0, 0)
    for _ in range(ENTRIES // 2):
        plain.recv(99)
    left = itertools.count(1 - ENTRIES // 2)
    assert wait_until(lambda: any(next(left) == 0 for _ in iter(channel.completion.pop, None)))
    return channel.stats()["engine_time"] - before


def waking_counts(ynl):
    """The time in which those are woken that wait for room in a ring is that of its user, too."""
    ask(ynl, "engine-set", {"cpu": [CPU], "idle": 3_600_000_000, "budget": BUDGET})
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * WAITERS, 2 * WAITERS))
    channel = polled()
    # The host may let the machine stand, and other tasks the engine.
    alone = min(time_to_send(channel) for _ in range(9))
    # By another flow of the channel: what the first one sends wakes nobody at this one's own queue.
    other = kopi.flow()
    other.setsockopt(kopi.SOL_KOPI, kopi.JOIN, kopi.join_request(channel.sock))
    copies = [os.dup(other.fileno()) for _ in range(WAITERS)]
    with select.epoll() as poller:
        for copy in copies:
            poller.register(copy, select.EPOLLOUT)
        # What completes wakes nobody then.
        channel.completion.put(channel.completion.flags, 0)
        watched = min(time_to_send(channel) for _ in range(9))
    print(f"# {alone} ns, and with {WAITERS} that wait {watched}")
    check("who is woken counts", watched > 2 * alone, (alone, watched))
    for copy in copies:
        os.close(copy)
    other.close()
    channel.region.close()
    channel.sock.close()


os.sched_setaffinity(0, {CPU})
ynl = family()
ask(ynl, "engine-set", {"cpu": [CPU], "idle": 3_600_000_000, "budget": BUDGET})
for name, sizes, shares in (
        ("alike", (500, 500), (1, 1)), ("small and large", (64, 1900), (1, 1)),
        ("three", (1, 300, 1900), (1, 1, 1)), ("by weight", (500, 500), (1, 3)),
        ("three, by weight", (1900, 64, 1000), (2, 1, 3))):
    channels = [polled() for _ in sizes]
    for channel, share in zip(channels, shares):
        if share > 1:
            add(ynl, local_port_min=channel.sock.getsockname()[1], weight=share)
    costs = [size + PER_DESCRIPTOR for size in sizes]
    # A visit ends early when the host lets the CPU stand, and its rest is lost: that is no share of the engine's.
    for _ in range(15):
        order = backlogged(channels, sizes)
        apart, longest, bytes_sent = worst(order, costs, shares)
        if apart <= BUDGET + 2 * max(costs):
            break
    print(f"# {name}: {bytes_sent} bytes, {apart:.0f} apart at worst, {longest} in a visit")
    check(f"{name}: all sent while others waited", len(order) > ENTRIES / 4, len(order))
    check(f"{name}: bytes are shared", apart <= BUDGET + 2 * max(costs), (apart, bytes_sent))
    check(f"{name}: no visit is longer than the budget and a packet", longest < max(shares) * BUDGET + max(costs), longest)
    ask(ynl, "ruleset-set")
    for channel in channels:
        channel.region.close()
        channel.sock.close()
dear_packets_end_visits(ynl)
a_user_waits_for_no_other(ynl)
waking_counts(ynl)
ask(ynl, "engine-set")
finish()
