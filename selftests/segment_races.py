#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What a rule has counted of a ring's datagrams is what is sent, although another process turns UDP_SEGMENT on and
off meanwhile."""

import itertools
import os
import signal
import socket

import kopi
from control import ask, rules, ruled
from equivalence import namespace
from kopi import check, wait_until
from linux import SO_RCVBUFFORCE, SO_SNDBUFFORCE, UDP_SEGMENT

HOST, PEER = "192.0.2.1", "192.0.2.2"
# Two peers in turn, so that all rules are asked about each datagram: time between counting and sending.
PORTS = (7001, 7002)
RULES, SOL_UDP = 300, 17
COUNT = 32
# The part of the datagrams that comes, at least.
LEAST = 0.98
# What a remembered route sends, and what is longer than the MTU.
SIZES = {"shorter than the MTU": 1400, "longer than the MTU": 2000}


def sink(port):
    """Receives for a peer."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
    sock.bind((PEER, port))
    sock.setblocking(False)
    return sock


def drain(sock):
    """Number of datagrams that have come."""
    count = 0
    try:
        while True:
            sock.recv(4096)
            count += 1
    except BlockingIOError:
        return count


def flip(sock):
    """Turns the option on and off, until it is killed."""
    for size in itertools.cycle((100, 0)):
        sock.setsockopt(SOL_UDP, UDP_SEGMENT, size)


def is_mixed(channel, rounds, size):
    """Whether some were counted with the option, and some without."""
    return COUNT * rounds < channel.stats()["tx_packets"] < COUNT * rounds * (size // 100)


def race(ynl, what, size, sinks, tries=3):
    """Compares what is counted with what comes."""
    channel = kopi.Channel(kopi.flow(), frame_size=4096)
    channel.sock.bind((HOST, 0))
    channel.sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 64 << 20)
    before = sum(rule["packets"] for rule in rules(ynl))
    pid = kopi.in_child(lambda: flip(channel.sock))
    try:
        rounds = 0
        while rounds < 30 or not is_mixed(channel, rounds, size) and rounds < 1000:
            for index in range(COUNT):
                channel.send(index, bytes(size), (PEER, PORTS[index % 2]))
            rounds += 1
            wait_until(lambda: (channel.bell(), channel.tx.get(channel.tx.consumer) == COUNT * rounds)[1])
            while channel.completion.pop():
                pass
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    sent, counted = channel.stats(), sum(rule["packets"] for rule in rules(ynl)) - before
    come = 0

    def all_come():
        nonlocal come
        come += sum(drain(each) for each in sinks)
        return come >= counted

    wait_until(all_come, 20)
    # What is too much has come by now, too.
    come += sum(drain(each) for each in sinks)
    if come < counted * LEAST and sent["tx_packets"] == counted and tries > 1:
        print(f"# {what}: {come} of {counted} came, again")
        channel.sock.close()
        return race(ynl, what, size, sinks, tries - 1)
    check(f"{what}: the option was on, and off", is_mixed(channel, rounds, size), (rounds, counted))
    # A NIC that is flooded may lose some; many, where its CPU stands still meanwhile.
    check(f"{what}: as many come as were counted",
          sent["tx_packets"] == counted and counted * LEAST <= come <= counted, (come, sent["tx_packets"], counted))
    channel.sock.close()
    return None


with ruled() as YNL:
    others = [{"remote-address": f"198.18.{number // 200}.{number % 200}", "remote-prefix": 32, "verdict": "deny"}
              for number in range(RULES)]
    ask(YNL, "ruleset-set", {"rule": others + [{"remote-address": PEER, "remote-prefix": 32, "rate-packets": 1 << 30,
                                                "burst": 1 << 30}]})
    with namespace("peer"):
        SINKS = [sink(port) for port in PORTS]
    for name, length in SIZES.items():
        race(YNL, name, length, SINKS)
kopi.finish()
