#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""A doorbell that mustn't sleep says EAGAIN where nothing has come, also while signals arrive, as recv() of a UDP
socket does; one that sleeps is ended by them."""

import ctypes
import errno
import os
import signal
import socket
import time

import kopi
from kopi import BELL_WAIT_RX, DOORBELL, check

LIBC = ctypes.CDLL(None, use_errno=True)
SECONDS = 3

flow = kopi.flow()
flow.bind(("127.0.0.1", 0))
channel = kopi.Channel(flow)
flow.setblocking(False)
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken = ctypes.create_string_buffer(8)


def errnos(call):
    """The errnos of a call that fails, made again and again while signals come, each of which is handled."""
    signals, found = [0], set()

    def count(*_):
        signals[0] += 1
    signal.signal(signal.SIGALRM, count)
    # So that it doesn't end the call that it interrupts.
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    until = time.monotonic() + SECONDS
    while time.monotonic() < until or signals[0] < 1000:
        for _ in range(100):
            found.add(errno.errorcode[ctypes.get_errno()] if call() < 0 else "none")
    signal.setitimer(signal.ITIMER_REAL, 0)
    return found


by_doorbell = errnos(lambda: LIBC.ioctl(flow.fileno(), ctypes.c_ulong(DOORBELL), ctypes.c_ulong(BELL_WAIT_RX)))
by_recv = errnos(lambda: LIBC.recv(plain.fileno(), taken, 8, socket.MSG_DONTWAIT))
check("a UDP socket's recv() says EAGAIN", by_recv == {"EAGAIN"}, by_recv)
check("the doorbell, too", by_doorbell == by_recv, by_doorbell)

flow.setblocking(True)
signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)
ended = LIBC.ioctl(flow.fileno(), ctypes.c_ulong(DOORBELL), ctypes.c_ulong(BELL_WAIT_RX))
check("one that sleeps is ended by a signal", (ended, ctypes.get_errno()) == (-1, errno.EINTR), os.strerror(ctypes.get_errno()))
signal.setitimer(signal.ITIMER_REAL, 0)
channel.region.close()
kopi.finish()
