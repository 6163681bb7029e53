# SPDX-License-Identifier: GPL-2.0
"""Datagrams that leave the host by its NIC, from the ring of flows that share a channel, and who receives them."""

import contextlib
import os
import random
import socket
import struct
import time

import kopi
from attached import ADDRESSES, OTHERS, change
from equivalence import namespace, payload
from linux import SO_RCVBUFFORCE

PORT = 7000
FRAMES = 128


class Datagrams:
    """A flow on a channel without GSO, and sinks in the other namespace, each on a port of its own."""

    def __init__(self, version, ports=1, flows=1, row=4, flags=0):
        near, self.far = ADDRESSES[version]
        self.row = row
        kind, proto = (socket.AF_INET, 0) if version == 4 else (socket.AF_INET6, kopi.UDP6)
        self.sinks = []
        with namespace("peer"):
            for port in range(ports):
                sink = socket.socket(kind, socket.SOCK_DGRAM)
                sink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
                sink.bind(("", PORT + port))
                sink.settimeout(10)
                self.sinks.append(sink)
        with namespace("host"):
            self.channel = kopi.Channel(kopi.flow(proto), frames=FRAMES, tx=FRAMES, completion=FRAMES, flags=flags)
            self.channel.sock.bind((near, 0))
            self.numbers, self.joined = [0], []
            for _ in range(flows - 1):
                flow = kopi.flow(proto)
                flow.bind((near, 0))
                flow.setsockopt(kopi.SOL_KOPI, kopi.JOIN, kopi.join_request(self.channel.sock))
                self.joined.append(flow)
                self.numbers.append(kopi.number_of(flow))
        self.free = list(range(FRAMES))
        self.errors = []

    def close(self):
        """Ends it."""
        for sock in (*self.joined, self.channel.sock, *self.sinks):
            sock.close()
        self.channel.region.close()

    def reap(self):
        """Takes frames back."""
        while (done := self.channel.completion.pop()):
            self.free.append((done[0] - self.channel.frames) // self.channel.frame_size)
            self.errors.append(done[4])

    def send(self, datagrams, address=None):
        """Sends (port, data) each, as many a doorbell as fit, by the flows in turn, a row by each. Gives how many were
        refused."""
        self.errors = []
        for number, (port, data) in enumerate(datagrams):
            if not self.free:
                kopi.wait_until(lambda: (self.channel.bell(), self.reap(), self.free)[2])
            flow = self.numbers[number // self.row % len(self.numbers)]
            self.channel.send(self.free.pop(), data, (address or self.far, PORT + port), flow_number=flow)
        kopi.wait_until(lambda: (self.channel.bell(), self.reap(), len(self.free) == FRAMES)[2])
        return sum(error != 0 for error in self.errors)

    def receive(self, port, count):
        """What a sink receives, as far as it comes."""
        received = []
        with contextlib.suppress(TimeoutError):
            while len(received) < count:
                received.append(self.sinks[port].recv(65536))
        return received

    def receive_behind(self, received, number, patience):
        """Receives what there is, and waits until one of that number or a later one has come, or for that long nothing:
        so not much is under way, and no NIC's ring gets full, of which QEMU takes packets out of order."""
        end = time.monotonic() + patience
        self.sinks[0].setblocking(False)
        while True:
            with contextlib.suppress(BlockingIOError):
                while True:
                    received.append(self.sinks[0].recv(2000))
                    end = time.monotonic() + patience
            last = struct.unpack_from(">I", received[-1])[0] if received else -1
            if last + 1 >= number or time.monotonic() > end:
                return
            time.sleep(0.001)

    def send_while(self, way, other):
        """Sends whole turns of numbered datagrams to the first sink while something comes and goes, and one more. Gives
        how many were sent, and what has arrived of all but the last turns."""
        pid = os.fork()
        if pid == 0:
            if way in OTHERS:
                change(way, other)
            else:
                for _ in range(10):
                    with other():
                        time.sleep(0.01)
                    time.sleep(0.01)
            os._exit(0)
        sent, received, turn = 0, [], len(self.numbers)
        chance = random.Random(way)
        while not os.waitpid(pid, os.WNOHANG)[0]:
            count = turn * chance.randint(1, FRAMES // turn)
            self.send([(0, payload(number, 300)) for number in range(sent, sent + count)])
            sent += count
            # Of what tc and its qdiscs drop nothing comes.
            self.receive_behind(received, sent - count, 0.5 if way in ("tc", "qdisc") else 10)
        self.send([(0, payload(sent, 300))])
        return sent + 1, received

    def arrive(self, what, datagrams):
        """Checks that all arrive, and in order at each port."""
        for port in range(len(self.sinks)):
            mine = [data for to, data in datagrams if to == port]
            received = self.receive(port, len(mine))
            wrong = next((number for number, pair in enumerate(zip(received, mine)) if pair[0] != pair[1]), None)
            kopi.check(f"{what}: all arrive, in order" + (f" (port {port})" if len(self.sinks) > 1 else ""),
                       received == mine, f"{len(received)} of {len(mine)}, the first wrong one: {wrong}")


def several(count, ports=1, sizes=(100,)):
    """Datagrams for ports in turn."""
    return [(number % ports, payload(number, sizes[number // ports % len(sizes)])) for number in range(count)]
