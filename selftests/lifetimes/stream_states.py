# SPDX-License-Identifier: GPL-2.0
"""States in which a stream can be, and the program that has it there."""

import socket
import time

import kopi
from kopi import expect
from links import inside

from .driven import Driven, kill
from .program import FAR, NEAR, PATIENCE, wait
from .stream_program import StreamProgram, plain

# Ports of the other end: one whose sockets take all, and one whose take next to nothing.
OPEN, SLOW = 7001, 7002
# An address to which packets go, and from which nothing comes; ports from which no SYN-ACK comes back.
NOWHERE = "198.51.100.77"
UNANSWERED = range(7200, 7300)
# The other end has read little.
UNREAD = ("unsent", "zerocopy", "writing", "lingering", "closed")
CALLS = {"recv": ("0", "45"), "accept": ("43", "288"), "send": ("44",), "close": ("3",)}


class Member(Driven):
    """A program that has a stream, or a plain TCP socket, in a state."""

    def __init__(self, case, state, is_flow, port):
        self.case, self.state, self.is_flow, self.port = case, state, is_flow, port
        # The other end's sockets; how much was written to the first of them, and read from it; the thread that sleeps.
        self.far, self.sent, self.taken, self.sleeper = [], 0, 0, None
        # How much was read from each of them.
        self.read = {}
        # The same in the test itself, after exec.
        self.adopted = None
        # Whether the program lives, and has the socket; whether that has been released.
        self.alive, self.open = True, True
        self.begin(case.space, self.make)
        self.ask("open", is_flow)
        getattr(self, f"enter_{state}")()

    def make(self):
        """What the program is, which has nothing of the other end's."""
        for sock in (*self.case.far, *self.case.listeners.values()):
            sock.close()
        return StreamProgram()

    def meet(self, far):
        """Has a socket of the other end's."""
        far.setblocking(False)
        self.far.append(far)
        self.case.far.append(far)
        return far

    def ask(self, name, *arguments):
        """Has the program, or the test that adopted its socket, do something."""
        if self.adopted:
            return getattr(self.adopted, name)(*arguments)
        return super().ask(name, *arguments)

    def far_socket(self):
        """A plain socket of the other end's."""
        with inside(self.case.here):
            return self.meet(plain())

    def enter_fresh(self):
        """Nothing was done with it."""

    def enter_bound(self):
        """It has a port."""
        self.ask("bind", NEAR, self.port)

    def enter_listening(self):
        """With connections that nobody has accepted, one of which has data."""
        self.enter_bound()
        self.ask("listen", 8)
        for number in range(3):
            far = self.far_socket()
            far.connect_ex((NEAR, self.port))
            wait("a connection", lambda far=far: state_of(far) == 1)
            if number:
                far.send(b"early")

    def enter_requested(self):
        """It listens, and handshakes are not complete."""
        self.port += UNANSWERED.start - 7100
        self.enter_bound()
        self.ask("listen", 8)
        for _ in range(3):
            self.far_socket().connect_ex((NEAR, self.port))
        wait("requests", lambda: len(self.case.connections(self.port, 3)) == 3)

    def enter_connecting(self):
        """Nobody answers."""
        self.ask("begin_to_connect", NOWHERE, OPEN)

    def enter_connected(self, port=OPEN):
        """It was connected."""
        self.ask("bind", NEAR, self.port)
        self.ask("connect", FAR, port)
        self.meet(self.case.listeners[port].accept()[0])

    def enter_accepted(self):
        """It was accepted."""
        self.enter_bound()
        self.ask("listen", 1)
        self.far_socket().connect_ex((NEAR, self.port))
        self.ask("accept")

    def enter_shut(self):
        """It sends no more: FIN_WAIT2."""
        self.enter_connected()
        self.ask("shut")
        wait("FIN_WAIT2", lambda: self.ask("state")[0] == 5)

    def enter_left(self):
        """The other end sends no more: CLOSE_WAIT."""
        self.enter_accepted()
        self.far[0].shutdown(socket.SHUT_WR)
        wait("CLOSE_WAIT", lambda: self.ask("state")[0] == 8)

    def enter_unread(self):
        """It has data that nobody has read."""
        self.enter_connected()
        # Less than there is room for, so that all of it has come.
        self.far[0].send(bytes(20_000))

    def enter_unsent(self):
        """It has data that the other end doesn't take."""
        self.enter_connected(SLOW)
        self.sent += self.ask("fill", False)

    def enter_zerocopy(self):
        """The same, by reference to the program's memory."""
        self.enter_connected(SLOW)
        self.sent += self.ask("fill", True)

    def enter_urgent(self):
        """Both ends have sent urgent data, which nobody has read."""
        self.enter_accepted()
        self.far[0].send(b"ab")
        self.far[0].send(b"!", socket.MSG_OOB)
        self.far[0].send(b"c")
        # Urgent bytes aren't read by the test.
        self.sent += self.ask("send", "ab") + self.ask("send_urgent") - 1

    def enter_reading(self):
        """A thread sleeps in recv()."""
        self.enter_connected()
        self.sleep("recv")

    def enter_accepting(self):
        """A thread sleeps in accept()."""
        self.enter_bound()
        self.ask("listen", 8)
        self.sleep("accept")

    def enter_writing(self):
        """A thread sleeps in send()."""
        self.enter_unsent()
        self.sleep("send")

    def enter_lingering(self):
        """A thread sleeps in close(), until the other end has taken all."""
        self.enter_unsent()
        self.sleep("close")
        self.open = False

    def enter_closed(self):
        """The program has closed it, and TCP still sends: FIN_WAIT1."""
        self.enter_unsent()
        self.ask("close")
        self.open = False

    def enter_waiting(self):
        """Both ends have closed it: TIME_WAIT."""
        self.enter_connected()
        self.ask("close")
        self.open = False
        self.far.pop().close()
        wait(f"TIME_WAIT of {'the flow' if self.is_flow else 'the plain socket'}", lambda: self.case.connections(self.port, 6))

    def sleep(self, call):
        """Has a thread sleep in a call."""
        thread = self.ask("sleep_in", call)
        self.sleeper = f"/proc/{self.pid}/task/{thread}/syscall"

        def sleeps():
            with open(self.sleeper, encoding="ascii") as syscall:
                return syscall.read().split()[0] in CALLS[call]

        wait(f"{call}()", sleeps)

    def sleeps(self):
        """Whether the thread still sleeps in its call: then the call holds the socket."""
        return bool(self.alive and self.sleeper and self.ask("awake") is None)

    def holds(self):
        """How many references to the module it has."""
        if not self.is_flow or not self.alive:
            return 0
        sleeps = self.sleeps()
        # A call of accept() has the socket that it is to give.
        return int(self.open or sleeps) + int(sleeps and self.state == "accepting")

    def is_shown(self):
        """Whether its flow is listed."""
        return bool(self.holds()) and self.state != "lingering"

    def wait_for_refusals(self):
        """If nobody listens any more, whoever asks for a connection is told so at its next SYN, a second later."""
        if not self.open or self.ask("state")[0] == 7:
            wait("refusals", lambda: all(state_of(far) == 7 for far in self.far))

    def look(self):
        """What calls on the socket give."""
        seen = self.ask("look")
        # One of which writes a byte.
        self.sent += seen[4:5] == [1]
        if self.state in UNREAD:
            # If there is room for it.
            seen[4:5] = []
        if self.state == "connecting":
            # Of the SYN that was sent last, at whatever time.
            seen.pop()
        return seen

    def close(self):
        """Closes it."""
        if self.adopted:
            # Which has it, too.
            kill(self.pid)
        self.ask("close")
        self.open = False

    def wake(self):
        """Ends the call in which the thread sleeps."""
        if self.state == "reading" and self.far:
            self.far[0].send(b"wake")
        elif self.state == "accepting":
            self.far_socket().connect_ex((NEAR, self.port))
        elif self.state in ("writing", "lingering") and self.far:
            self.far[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            wait("room", lambda: self.far_result() and not self.sleeps())
        wait("the call ends", lambda: self.ask("awake"))

    def far_result(self):
        """What the other end gets: for each of its sockets how much it has read and what then, and its state."""
        ends = []
        for far in self.far:
            got, how = drain(far)
            self.read[far] = self.read.get(far, 0) + got
            ends.append(((self.read[far], how), state_of(far)))
        self.taken = ends[0][0][0] if ends else self.taken
        return ends

    def leave(self, abort):
        """Closes the other end."""
        for far in self.far:
            if abort:
                far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            far.close()
        self.far.clear()


STATES = tuple(name.removeprefix("enter_") for name in vars(Member) if name.startswith("enter_"))


def state_of(sock):
    """TCP's state."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def drain(sock):
    """Reads what there is: how much, and what ended it."""
    got = 0
    try:
        while more := len(sock.recv(1 << 20)):
            got += more
    except BlockingIOError:
        return got, "more may come"
    except OSError as error:
        return got, kopi.errno.errorcode[error.errno]
    return got, "end"


def drain_all(sock, member):
    """Reads to the end, which must come after all that the program has written."""
    got, how, end = member.taken, "more may come", time.monotonic() + PATIENCE
    while how == "more may come" and time.monotonic() < end:
        more, how = drain(sock)
        got += more
        time.sleep(0.01)
    # How much a thread has written in a call that was ended, nobody knows.
    all_came = got >= member.sent if member.state == "writing" else got == member.sent
    expect(all_came and how == "end", f"all {member.sent} bytes come, and the end", (got, how))
