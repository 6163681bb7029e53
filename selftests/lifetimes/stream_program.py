# SPDX-License-Identifier: GPL-2.0
"""The program of streams_lifetimes.py: a stream or a plain TCP socket, with which it does what it is asked to."""

import contextlib
import errno
import os
import select
import socket
import struct
import threading

import kopi
from kopi import expect
from linux import MSG_ZEROCOPY, SO_ZEROCOPY

from .program import EXECUTED

QUIETLY = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
# Of poll(2): those that say what there is to do, or that something has ended.
EVENTS = select.POLLIN | select.POLLPRI | select.POLLOUT | select.POLLRDHUP


def result(call, *arguments):
    """What a call gives, or its errno in words."""
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]


def plain():
    """A socket that isn't KOPI's."""
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM)


class StreamProgram:
    """One socket, and at most one thread that sleeps in a call."""

    def __init__(self):
        self.sock = None
        # What the sleeping thread's call gave; how much it was asked to send.
        self.woken, self.sleeper = None, None

    def open(self, is_flow):
        """Makes the socket."""
        self.sock = kopi.stream() if is_flow else plain()

    def bind(self, address, port):
        """Binds it."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind((address, port))

    def listen(self, backlog):
        """Has it listen."""
        self.sock.listen(backlog)

    def connect(self, address, port):
        """Connects it."""
        self.sock.connect((address, port))

    def begin_to_connect(self, address, port):
        """Connects it to nobody."""
        self.sock.setblocking(False)
        got = self.sock.connect_ex((address, port))
        expect(got == errno.EINPROGRESS, "connect", got)
        self.sock.setblocking(True)

    def accept(self):
        """Has a connection of it instead of the listener."""
        accepted, _ = self.sock.accept()
        self.sock.close()
        self.sock = accepted

    def shut(self):
        """Says that it sends no more."""
        self.sock.shutdown(socket.SHUT_WR)

    def send(self, data):
        """Sends something; gives how much."""
        return self.sock.send(data.encode())

    def send_urgent(self):
        """Sends a byte that is urgent."""
        return self.sock.send(b"!", socket.MSG_OOB)

    def fill(self, by_reference):
        """Sends until there is no room; gives how much was sent."""
        if by_reference:
            self.sock.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        sent, flags = 0, QUIETLY | (MSG_ZEROCOPY if by_reference else 0)
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += self.sock.send(bytes(1 << 16), flags)
        return sent

    def sleep_in(self, name):
        """Has a thread sleep in a call."""
        call = {"recv": lambda: len(self.sock.recv(100)),
                "accept": lambda: bool(self.sock.accept()),
                "send": lambda: self.sock.send(bytes(1 << 22), socket.MSG_NOSIGNAL),
                "close": lambda: os.close(self.sock.detach())}[name]

        def work():
            self.woken = [result(call)]

        if name == "close":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 600))
        self.sleeper = threading.Thread(target=work, daemon=True)
        self.sleeper.start()
        return self.sleeper.native_id

    def awake(self):
        """What the sleeping call gave, in a list; None until it has ended."""
        return self.woken

    def state(self):
        """TCP's state, and the events that can be polled."""
        with contextlib.suppress(OSError):
            poller = select.poll()
            poller.register(self.sock, EVENTS)
            events = poller.poll(0)
            return self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0], events[0][1] if events else 0
        return None

    def look(self):
        """What calls give now, in one order."""
        if self.sock.fileno() < 0:
            return []
        self.sock.setblocking(False)
        return [
            result(lambda: self.sock.accept()[0].close()),
            result(lambda: self.sock.recv(1, socket.MSG_OOB).decode()),
            result(lambda: len(self.sock.recv(1 << 20, QUIETLY))),
            result(lambda: len(self.sock.recv(1 << 20, QUIETLY))),
            result(lambda: self.sock.send(b"x", QUIETLY)),
            result(lambda: self.sock.getpeername()[0]),
            self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR),
        ]

    def begins(self, address, port):
        """What listen() gives, or connect() where it can't be."""
        return result(self.sock.listen, 1), result(self.sock.connect, (address, port))

    def close(self):
        """Closes it."""
        self.sock.close()

    def lose(self):
        """Passes it in a message, to sockets that only messages in each other's queues keep."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(ours, [b"x"], [self.sock.fileno(), ours.fileno()])
            socket.send_fds(theirs, [b"x"], [theirs.fileno()])
        self.sock.close()
        # Which has the kernel look for such sockets.
        for each in socket.socketpair():
            each.close()

    def descriptor(self):
        """Its number, which outlives exec; -1 if it is closed."""
        if self.sock.fileno() >= 0:
            os.set_inheritable(self.sock.fileno(), True)
        return self.sock.fileno()

    def execute(self):
        """Becomes another program."""
        os.execv(EXECUTED, [EXECUTED, "infinity"])

    def end(self):
        """exit(2)."""
        os._exit(0)
