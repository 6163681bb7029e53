# SPDX-License-Identifier: GPL-2.0
"""A program in a process of its own, which does what it is asked to."""

import ctypes
import json
import os
import signal
import socket
import traceback

import kopi
from kopi import Wrong, expect
from links import inside
from linux import SYS_PIDFD_GETFD

from .program import EXECUTED, PATIENCE, wait


def fork(space, work):
    """Runs the work in a child in a namespace; gives its process identifier."""
    def there():
        with inside(space):
            work()

    return kopi.in_child(there)


def kill(pid):
    """Kills a child and waits for its end; gives its status."""
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def serve(orders, program):
    """The program: does what it is asked to, until the other end of the socket is closed."""
    while order := orders.recv(1 << 16):
        name, *arguments = json.loads(order)
        try:
            answer = {"result": getattr(program, name)(*arguments)}
        except Exception:  # pylint: disable=broad-exception-caught
            answer = {"error": traceback.format_exc(limit=-2)}
        orders.send(json.dumps(answer).encode())


class Driven:
    """The program, seen from the test."""

    pid = orders = None

    def begin(self, space, make):
        """Starts it in a namespace; `make` makes the object whose methods it is asked for."""
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.orders.settimeout(PATIENCE + 20)

        def work():
            self.orders.close()
            serve(theirs, make())

        self.pid = fork(space, work)
        theirs.close()

    def tell(self, name, *arguments):
        """Asks it without waiting for an answer."""
        self.orders.send(json.dumps([name, *arguments]).encode())

    def ask(self, name, *arguments):
        """Has it do something; gives the result."""
        self.tell(name, *arguments)
        try:
            answer = json.loads(self.orders.recv(1 << 16) or '{"error": "it ended"}')
        except TimeoutError:
            raise Wrong(f"hangs in {name}") from None
        expect("error" not in answer, name, answer.get("error"))
        return answer["result"]

    def replace_program(self):
        """The program becomes another, which inherits the descriptor; gives a copy of that, as any program could have
        to which it is passed, or None if it is closed."""
        number = self.ask("descriptor")
        self.tell("execute")
        expect(self.orders.recv(4096) == b"", "nothing is answered any more")
        wait("exec", lambda: os.readlink(f"/proc/{self.pid}/exe") == EXECUTED)
        if number < 0:
            return None
        process = os.pidfd_open(self.pid)
        descriptor = kopi.libc.syscall(SYS_PIDFD_GETFD, process, number, 0)
        expect(descriptor >= 0, "the descriptor outlives exec", os.strerror(ctypes.get_errno()))
        os.close(process)
        return descriptor
