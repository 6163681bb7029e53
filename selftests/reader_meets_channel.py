#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Who sleeps in recvmsg() when the flow comes to a channel, where nothing comes to its queue any more, is told so."""

import ctypes
import errno
import signal
import socket
import threading

import kopi
from control import add, ask, ruled
from kopi import CHANNEL, JOIN, SOL_KOPI, TX_ONLY, check, fails, wait_until
from slow import SlowCall

MSG_MORE = 0x8000
ROUNDS = 1000


def asleep(flow, results):
    """A thread that sleeps in recv(), whose errno goes to the results."""
    def read():
        try:
            results.append(flow.recv(99))
        except OSError as error:
            results.append(error.errno)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    wait_until(lambda: kopi.where(reader) not in ("", "0"))
    return reader


def sleepers_are_told():
    for proto in (0, kopi.UDP6):
        flow, results = kopi.flow(proto), []
        flow.bind(("::1", 0) if proto else ("127.0.0.1", 0))
        readers = [asleep(flow, results) for _ in range(3)]
        flow.setsockopt(SOL_KOPI, CHANNEL, kopi.request())
        wait_until(lambda told=results: len(told) == 3)
        check(f"{'IPv6' if proto else 'IPv4'}: three that sleep get EOPNOTSUPP", results == [errno.EOPNOTSUPP] * 3, results)
        for reader in readers:
            reader.join(0 if len(results) < 3 else None)
        flow.close()


def those_about_to_sleep_are_told():
    """Readers that come to sleep just then, again and again."""
    late = []
    for _ in range(ROUNDS):
        flow, results = kopi.flow(), []
        flow.bind(("127.0.0.1", 0))
        begin = threading.Barrier(2)
        page = ctypes.create_string_buffer(9)

        def read(flow=flow, results=results, begin=begin, page=page):
            begin.wait()
            got = kopi.libc.recv(flow.fileno(), page, 9, 0)
            results.append(ctypes.get_errno() if got < 0 else got)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        request = kopi.request()
        begin.wait()
        entered = kopi.libc.setsockopt(flow.fileno(), SOL_KOPI, CHANNEL, request, len(request))
        reader.join(20)
        if entered or results != [errno.EOPNOTSUPP]:
            late.append((entered, results))
        flow.close()
        if late:
            break
    check(f"{ROUNDS} readers that are about to sleep get it, too", not late, late)


def a_refusal_leaves_no_cork():
    """A flow that doesn't come to a channel for a signal comes to it later, whatever was sent meanwhile."""
    signal.signal(signal.SIGUSR1, lambda *_: None)
    with ruled() as ynl, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        peer.bind(("127.0.0.1", 0))
        add(ynl, remote_port_min=9, verdict="deny")
        maker, flow = kopi.Channel(flags=TX_ONLY), kopi.flow()
        flow.bind(("127.0.0.1", 0))
        flow.connect(peer.getsockname())
        peer.sendto(b"x", flow.getsockname())
        wait_until(lambda: flow.recv(1, socket.MSG_PEEK))
        results = []

        def join():
            # Python's own call would keep its other threads from running.
            request = kopi.join_request(maker.sock)
            failed = kopi.libc.setsockopt(flow.fileno(), SOL_KOPI, JOIN, request, len(request))
            results.append(errno.errorcode[ctypes.get_errno()] if failed else "joined")

        # The reader, whose memory is slow, has the lock of the flow's readers, for which a flow waits that comes to a channel.
        with SlowCall(lambda page: kopi.libc.recv(flow.fileno(), page, 1, 0)):
            joiner = threading.Thread(target=join)
            joiner.start()
            check("a request waits for the readers' lock", wait_until(lambda: "kopi" in kopi.where(joiner)), kopi.where(joiner))
            fails("it is on the way to a channel", errno.EBUSY,
                  lambda: flow.setsockopt(SOL_KOPI, CHANNEL, kopi.request(flags=TX_ONLY)))
            flow.send(b"in ", MSG_MORE)
            flow.send(b"parts")
            while joiner.is_alive():
                signal.pthread_kill(joiner.ident, signal.SIGUSR1)
                joiner.join(0.1)
        check("the request was interrupted", results == ["EINTR"], results)
        check("what was sent meanwhile is whole", peer.recv(99) == b"in parts")
        join()
        check("the next request succeeds", results[1:] == ["joined"], results)
        ask(ynl, "ruleset-set")
        flow.close()


sleepers_are_told()
those_about_to_sleep_are_told()
a_refusal_leaves_no_cork()
kopi.finish()
