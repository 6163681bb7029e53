# SPDX-License-Identifier: GPL-2.0
"""The program under test: what it does by itself in a thread, and what it is asked to do."""

import contextlib
import errno
import os
import select
import socket
import struct
import sys
import threading
import time
import traceback

import kopi
from kopi import expect
from linux import SO_BUSY_POLL

NEAR, FAR, PORT = "198.51.100.2", "198.51.100.1", 7000
# By reference where the device can, and in one piece where the MTU is Ethernet's.
COUNT, SIZE = 16, 1400
# Frames of the region: for what comes in, for the state's own packets, and for single ones.
FILLED, OWN, SINGLE = range(32), range(32, 64), 64
# Seconds after which a condition that isn't true never will be.
DEBUG = os.path.exists("/sys/kernel/debug/kcov")
PATIENCE = 300 if DEBUG else 60
EXECUTED = "/usr/bin/sleep"


def wait(what, condition):
    """Waits until it is so, and gives what the condition gave."""
    result = kopi.wait_until(condition, PATIENCE)
    expect(result, f"never came: {what}")
    return result


def payload(number):
    """The n-th datagram."""
    return struct.pack("=I", number) + bytes((number + i) & 0xFF for i in range(SIZE - 4))


class Program:
    """The program under test: what it does by itself in a thread, and what it is asked to do."""

    def __init__(self):
        self.channel = None
        self.lock = threading.Lock()
        self.rings_asked = False
        self.free = list(OWN)
        # Batches sent, or datagrams received.
        self.beats = 0
        self.errors = []
        # What came back of the packets that were to be held.
        self.completed = []
        self.woken = None

    def start(self, state, flags):
        """Opens a flow with a channel that has these flags, and goes into the state."""
        flow = kopi.flow()
        # For the doorbell; not settimeout(), which would make it non-blocking.
        flow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", PATIENCE, 0))
        if flags & kopi.ENGINE:
            flow.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, 50)
        flow.bind((NEAR, PORT))
        self.channel = kopi.Channel(flow, frames=96, flags=flags)
        for number in FILLED:
            self.channel.fill.push(self.channel.frame(number))
        work = {"sending": self._send_on, "receiving": self._receive_on, "poll": self._sleep}
        if state in work:
            threading.Thread(target=work[state], daemon=True).start()

    def adopt(self, descriptor):
        """Takes over the flow of another program."""
        self.channel = kopi.Channel.of(kopi.Flow(fileno=descriptor))

    @contextlib.contextmanager
    def _rings(self):
        """Has the rings for the block; the thread, which never rests, gives way."""
        self.rings_asked = True
        with self.lock:
            self.rings_asked = False
            yield

    def _give_way(self):
        while self.rings_asked:
            time.sleep(0)

    def _send_on(self):
        while True:
            self._give_way()
            with self.lock:
                try:
                    self._reap()
                    while self.free:
                        data = struct.pack("=Q", self.beats).ljust(SIZE, b"x")
                        self.channel.send(self.free[-1], data, (FAR, PORT))
                        self.free.pop()
                except ValueError:
                    # Unmapped; the doorbell goes on.
                    pass
                if self.channel.sock.fileno() < 0:
                    return
                try:
                    self.channel.bell()
                except OSError as error:
                    if error.errno != errno.EBADF:
                        self.errors.append(error.errno)
            self.beats += 1

    def _receive_on(self):
        while True:
            self._give_way()
            try:
                with self.lock:
                    before = self.beats
                    while (entry := self.channel.rx.pop()) is not None:
                        self._refill(entry)
                        self.beats += 1
                if self.beats == before:
                    self.channel.bell(kopi.BELL_WAIT_RX)
            except (ValueError, OSError):
                # Without a mapping, or without a descriptor.
                time.sleep(0.001)

    def _sleep(self):
        poll = select.poll()
        poll.register(self.channel.sock, select.POLLIN)
        self.woken = [events for _, events in poll.poll()]

    def _refill(self, entry):
        channel = self.channel
        channel.fill.push(entry[0] - (entry[0] - channel.frames) % channel.frame_size)

    def _reap(self):
        while (entry := self.channel.completion.pop()) is not None:
            number = (entry[0] - self.channel.frames) // self.channel.frame_size
            if number in OWN:
                self.free.append(number)
                self.completed.append(entry[4])
            self.errors.append(entry[4])

    def completions(self):
        """The errors of all that was completed of the state's own packets."""
        with self._rings():
            self._reap()
            return self.completed

    def send_all(self):
        """Sends the packets that are to be held."""
        with self._rings():
            for number in range(COUNT):
                self.channel.send(self.free.pop(), payload(number), (FAR, PORT))
            expect(self.channel.bell() == COUNT, "the doorbell took all")

    def send(self, data):
        """Sends one datagram; gives what its completion says."""
        with self._rings():
            self._reap()
            self.errors.clear()
            # Of a size that is copied, and so completed at once.
            self.channel.send(SINGLE, data.encode(), (FAR, PORT))
            self.channel.bell()
            self._reap()
            expect(self.errors, "completed at once")
            return self.errors[-1]

    def receive(self, data):
        """Waits until this datagram comes; others may come before."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with self._rings():
                entry = self.channel.rx.pop()
                if entry is not None:
                    got = self.channel.region[entry[0]:entry[0] + entry[1]]
                    self._refill(entry)
                    if got == data.encode():
                        return True
            if entry is None:
                if self.channel.sock.fileno() >= 0:
                    self.channel.bell(kopi.BELL_WAIT_RX)
                else:
                    time.sleep(0.001)
        return False

    def progress(self):
        """How far its thread is."""
        return self.beats

    def recent(self):
        """The errors of what is sent from now on."""
        with self._rings():
            # What has been put into the ring may have been sent already.
            self.channel.bell()
            self._reap()
            self.errors.clear()
            before = self.beats
        wait("batches", lambda: self.beats > before + 3)
        with self._rings():
            return sorted(set(self.errors))

    def events(self):
        """What poll() gave, or None if it still sleeps."""
        return self.woken

    def stats(self):
        """The counters."""
        return self.channel.stats()

    def describe(self):
        """Where it stands: for a case that failed."""
        channel = self.channel
        rings = {name: (ring.get(ring.producer), ring.get(ring.consumer), ring.get(ring.flags))
                 for name in ("tx", "completion", "fill", "rx") if (ring := getattr(channel, name))}
        threads = [traceback.format_stack(frame, 3) for frame in sys._current_frames().values()]
        return f"{rings}, {channel.stats()}, {self.beats} beats, threads in {threads}"

    def unaccounted(self):
        """The packets that the counters don't explain, at whatever moment they are read."""
        return next(filter(None, (self.channel.unaccounted() for _ in range(100))), "")

    def ring(self):
        """Rings the doorbell; gives its errno."""
        try:
            self.channel.bell()
        except OSError as error:
            return error.errno
        return 0

    def close(self):
        """Closes the descriptor; the mapping remains."""
        self.channel.sock.close()

    def unmap(self):
        """Unmaps the region, while its thread may be in the doorbell, but not at the rings."""
        with self._rings():
            self.channel.region.close()

    def remap(self):
        """Maps it again."""
        with self._rings():
            self.channel.attach(self.channel.sock)

    def descriptor(self):
        """The flow's, which will outlive exec."""
        os.set_inheritable(self.channel.sock.fileno(), True)
        return self.channel.sock.fileno()

    def execute(self):
        """Becomes another program."""
        os.execv(EXECUTED, [EXECUTED, "infinity"])

    def leave(self):
        """Gives up an adopted flow."""
        self.channel.region.close()
        self.channel.sock.close()
