#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Every way in which a stream, or what is below it, can end, in every state in which it can be.

For each way there is a network namespace on a veth pair, with two programs for each state: one has a stream in it,
the other a plain TCP socket. Then it ends, and whoever has the socket, or is its peer, sees the same of both;
rules end streams only. What was written arrives, as far as the plain socket's does. Nothing refers to the module but
streams that are open. When all is closed nothing refers to it, and the namespace is gone.

    streams_lifetimes.py [PATTERN...]    cases that match, as 'close/*' or '*/unread'
"""

import contextlib
import dataclasses
import errno
import json
import os
import signal
import socket
import time
import traceback
from typing import Callable

import kopi
import links
import memory
from equivalence import run_nft
from kopi import Wrong, expect, wait_until
from lifetimes.case import be_quiet, has_device, sh
from lifetimes.driven import kill
from lifetimes.endings import unload_module
from lifetimes.matrix import check_memory, chosen
from lifetimes.program import FAR, NEAR, PATIENCE, wait
from lifetimes.stream_program import StreamProgram, plain
from lifetimes.stream_states import NOWHERE, OPEN, SLOW, STATES, UNANSWERED, UNREAD, Member, drain_all, state_of
from links import inside
from memory import module_users
from watchdog import Watchdog

AWAY = "/run/netns/away"
# Of which the program has nothing more.
GONE = ("lingering", "closed", "waiting")
UNUSED = ("fresh", "bound")
LISTENING = ("listening", "requested", "accepting")


def close(member):
    """The descriptor is closed."""
    member.ask("close")
    member.open = False


def lose(member):
    """It is passed in a message, and nobody is left to receive that."""
    member.ask("lose")
    member.open = False


def leave(member):
    """The program exits."""
    member.tell("end")
    os.waitpid(member.pid, 0)
    member.alive = member.open = False


def kill_program(member):
    """The program is killed."""
    expect(kill(member.pid) == signal.SIGKILL, "killed")
    member.alive = member.open = False


def execute(member):
    """The program becomes another, which inherits the descriptor; the test looks at it there."""
    descriptor = member.replace_program()
    member.sleeper = None
    member.adopted = StreamProgram()
    if descriptor is None:
        member.open = member.alive = False
        member.adopted.sock = plain()
        member.adopted.close()
        return
    member.adopted.sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=descriptor)


def abort(member):
    """The peer resets the connection."""
    member.leave(True)


def deny(case):
    """A rule denies all that streams do."""
    with inside(case.space):
        sh("kopictl rule add protocol tcp deny")


def allow(case):
    """It is taken back."""
    with inside(case.space):
        sh("kopictl rule flush")


def delete_namespace(case):
    """The namespace loses its name; sockets keep it."""
    sh("ip netns del doomed")


def link_down(case):
    """The device is set down."""
    with inside(case.space):
        links.set_up("near", False)
    case.is_down = True


def link_up(case):
    """It is set up again."""
    with inside(case.space):
        links.set_up("near", True)
    case.is_down = False
    case.set_neighbours()


def delete_device(case):
    """The device is deleted."""
    with inside(case.space):
        sh("ip link del near")


def kill_sockets(case):
    """As an administrator ends connections."""
    with inside(case.space):
        sh("ss -Kta")


@dataclasses.dataclass
class Way:
    """A way to end."""

    name: str
    # What does it to a member, or to all.
    member: Callable | None = None
    all: Callable | None = None
    restore: Callable | None = None
    # Where it makes no sense.
    without: tuple = ()
    # What was written doesn't arrive.
    loses: bool = False


WAYS = (
    Way("close", close, without=GONE),
    Way("exit", leave),
    Way("kill", kill_program),
    Way("exec", execute),
    Way("passed and lost", lose, without=GONE),
    Way("abort by the peer", abort, without=("fresh", "bound", "connecting", "waiting", "accepting"), loses=True),
    Way("rule", all=deny, restore=allow, loses=True),
    Way("netns deletion", all=delete_namespace),
    Way("link down", all=link_down, restore=link_up),
    Way("device deletion", all=delete_device, loses=True),
    Way("ss -K", all=kill_sockets, loses=True),
    Way("rmmod", all=unload_module),
)


class Case:
    """A way, and pairs of members by state."""

    def __init__(self, way, states):
        self.way, self.wrong, self.pairs = way, {}, {}
        # The other end's sockets, of all members.
        self.far = []
        self.space, self.here = "/run/netns/doomed", AWAY
        links.make_namespace("doomed")
        be_quiet(self.space)
        # Which outlives the name.
        self.kept = os.open(self.space, os.O_RDONLY)
        self.space = f"/proc/{os.getpid()}/fd/{self.kept}"
        # A late machine sends a FIN twice, and the answer to the second one ends TIME_WAIT.
        with inside(self.space), open("/proc/sys/net/ipv4/tcp_rfc1337", "w", encoding="ascii") as rfc1337:
            rfc1337.write("1")
        self.listeners = {}
        self.is_down = False
        with inside(AWAY):
            links.make_veth("far", "near", self.space)
            links.set_address("far", FAR)
            links.set_up("far", True)
            for port in OPEN, SLOW:
                self.listeners[port] = plain()
                self.listeners[port].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if port == SLOW:
                    self.listeners[port].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
                self.listeners[port].settimeout(PATIENCE)
                self.listeners[port].bind((FAR, port))
                self.listeners[port].listen(64)
        with inside(self.space):
            links.set_address("near", NEAR)
            links.set_up("near", True)
        self.set_neighbours()
        # Requests last for a minute, and are asked again ever more seldom.
        for number, state in enumerate(sorted(states, key=lambda state: state == "requested")):
            self.step(state, self.enter, state, 7100 + 2 * number)

    def set_neighbours(self):
        """Both ends reach each other, and nobody."""
        with inside(AWAY):
            wait("the link", lambda: links.is_running("far"))
            far = links.mac("far")
        with inside(self.space):
            wait("the link", lambda: links.is_running("near"))
            for address in FAR, NOWHERE:
                links.set_neighbour("near", address, far)
            near = links.mac("near")
        with inside(AWAY):
            links.set_neighbour("far", NEAR, near)

    def step(self, state, call, *arguments):
        """Does something for a state; what is wrong is the state's."""
        try:
            return call(*arguments)
        except Wrong as problem:
            self.wrong.setdefault(state, []).append(str(problem))
        except Exception:  # pylint: disable=broad-exception-caught
            self.wrong.setdefault(state, []).append(traceback.format_exc(limit=-3))
        return None

    def enter(self, state, port):
        """Brings both into the state."""
        self.pairs[state] = [Member(self, state, False, port), Member(self, state, True, port + 1)]

    def members(self):
        """All of them, with their states."""
        return [(state, member) for state, pair in self.pairs.items() for member in pair]

    def connections(self, port, state):
        """What the namespace's table has of a local port, in a state of TCP."""
        with inside(self.space), open("/proc/net/tcp", encoding="ascii") as table:
            rows = [line.split() for line in table][1:]
        return [row for row in rows if int(row[1].split(":")[1], 16) == port and int(row[3], 16) == state]

    def run(self):
        """The way, and what must hold after it."""
        self.check_references("in their states")
        for state, member in self.members() if self.way.member else ():
            self.step(state, self.way.member, member)
        if self.way.all:
            self.step("all", self.way.all, self)
        judge = self.check_denied if self.way.all is deny else self.check_same
        for state, pair in self.pairs.items():
            self.step(state, judge, state, *pair)
        self.check_references("after it")
        if self.way.restore:
            self.step("all", self.way.restore, self)
            for state, pair in self.pairs.items():
                self.step(state, self.check_restored, state, *pair)
        self.step("all", self.check_others)
        for state, pair in self.pairs.items():
            for member in pair:
                self.step(state, self.finish, state, member)
        self.check_references("when all are closed")

    def check_references(self, when):
        """Nothing refers to the module but streams that are open; and these are shown."""
        expected = sum(member.holds() for _, member in self.members())
        holds = wait_until(lambda: module_users() == expected, PATIENCE)
        self.step("all", expect, holds, f"{expected} references to the module {when}", module_users())
        shown = sum(member.is_shown() for _, member in self.members())
        with inside(self.space):
            flows = json.loads(sh("kopictl ps --json"))
        self.step("all", expect, len(flows) == shown, f"{shown} flows {when}", len(flows))

    def check_same(self, state, usual, flow):
        """Both ends see the same of both."""
        def far_state(far):
            # How far TCP has come with what was written isn't the same at each moment; finish() sees whether all comes.
            return 1 if state in UNREAD and state_of(far) == 8 else state_of(far)

        def seen(member):
            woken = member.ask("awake") if member.sleeper and member.alive else None
            if state == "writing" and woken and isinstance(woken[0], int):
                woken = "some was written"
            return [member.ask("state") if member.open else None, woken, [far_state(far) for far in member.far]]
        wait_until(lambda: seen(usual) == seen(flow), PATIENCE)
        if state == "requested":
            usual.wait_for_refusals()
            flow.wait_for_refusals()

        def far_result(member):
            if state in UNREAD and self.is_down:
                # What is read now opens a window of which the sender would not hear.
                return [failure_of(far) for far in member.far]
            ends = member.far_result()
            return [how.replace("end", "more may come") for (_, how), _ in ends] if state in UNREAD else ends

        def agree():
            results[:] = [far_result(member) for member in (usual, flow)]
            return results[0] == results[1]
        looks = [seen(member) + [member.look() if member.open else None] for member in (usual, flow)]
        # What look() has done to the other ends takes a moment to get there.
        results = []
        wait_until(agree, PATIENCE)
        for look, result in zip(looks, results):
            look.append(result)
        expect(looks[0] == looks[1], "the same", f"plain {looks[0]}, stream {looks[1]}")

    def check_denied(self, state, usual, flow):
        """The stream is ended, or refused; the plain socket goes on."""
        if state in GONE:
            self.check_same(state, usual, flow)
            return
        if state in UNUSED:
            got = flow.ask("begins", FAR, OPEN)
            expect(got == ["EACCES", "EACCES"], "listen() and connect()", got)
        elif state == "accepting":
            # As long as nobody comes, who could be denied.
            expect(flow.sleeps(), "it waits", flow.ask("awake"))
        elif state in LISTENING:
            expect(flow.look()[0] == "EACCES", "accept()", flow.look())
        else:
            wait("it is closed", lambda: flow.ask("state")[0] == 7)
            if flow.sleeper:
                got = wait("the call ends", lambda: flow.ask("awake"))[0]
                expect(got == "EACCES" or state == "writing" and got > 0, "its result", got)
            else:
                expect(flow.look()[2] == "EACCES", "its error")
            if flow.far:
                wait("the peer is told", lambda: flow.far_result()[0][1] == 7)
        expect(usual.ask("state")[0] != 7 or state in UNUSED, "the plain socket goes on", usual.ask("state"))

    def check_restored(self, state, usual, flow):
        """What the way didn't end goes on."""
        if self.way.all is not deny:
            self.check_same(state, usual, flow)
        elif state in UNUSED:
            got = flow.ask("begins", FAR, OPEN)
            expect(got[0] is None, "listen()", got)
        elif state in LISTENING:
            expect(flow.ask("state")[0] == 10, "it listens", flow.ask("state"))
            flow.look()
            got = flow.look()[0]
            expect(got == (None if state == "listening" else "EAGAIN"), "accept()", got)

    def check_others(self):
        """Others' streams work there."""
        with inside(self.space):
            one, other = kopi.connection()
        with one, other:
            one.sendall(b"others")
            expect(other.recv(10) == b"others", "others work")

    def finish(self, state, member):
        """Its program closes it, and ends calls that sleep; what was written arrives."""
        if member.open:
            member.close()
        if member.sleeps() and self.way.loses:
            kill_program(member)
        elif member.sleeps():
            member.wake()
        if state in UNREAD and member.far and not self.way.loses:
            drain_all(member.far[0], member)

    def close(self):
        """Ends all of it."""
        for _, member in self.members():
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                kill(member.pid)
            member.orders.close()
            member.leave(True)
        for each in self.listeners.values():
            each.close()
        # What goes on by itself for minutes.
        for space in self.space, AWAY:
            with inside(space):
                sh("ss -Kta")
        os.close(self.kept)
        if os.path.exists("/run/netns/doomed"):
            links.drop_namespace("doomed")
        self.step("all", wait, "nothing refers to the module", lambda: module_users() == 0)
        self.step("all", wait, "the namespace is gone", lambda: not has_far())


def failure_of(sock):
    """Why nothing can be read, if not for want of data."""
    try:
        sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        pass
    except OSError as error:
        return errno.errorcode[error.errno]
    return None


def has_far():
    """Whether the veth pair is there, of which one end goes with the namespace."""
    with inside(AWAY):
        return has_device("far")


def sockets():
    """What the kernel has of TCP in the whole machine: orphans, and all."""
    with open("/proc/net/sockstat", encoding="ascii") as stats:
        words = next(line.split() for line in stats if line.startswith("TCP:"))
    return {name: int(words[words.index(name) + 1]) for name in ("orphan", "alloc")}


def try_way(way, states, remark=""):
    """A way to end, in those states; each is a check."""
    begun = time.monotonic()
    case = Case(way, states)
    case.run()
    case.close()
    print(f"# {way.name}: {time.monotonic() - begun:.0f} s", flush=True)
    for state in (*states, "all"):
        wrong = case.wrong.get(state)
        kopi.check(f"{way.name}/{state}{remark}", not wrong, "; ".join(wrong or ()))


def main():
    """All cases, between two counts of memory."""
    links.make_namespace("away")
    be_quiet(AWAY)
    with inside(AWAY):
        run_nft("table ip t {\nchain i {\ntype filter hook input priority 0;\n"
                f"tcp sport {UNANSWERED.start}-{UNANSWERED.stop - 1} tcp flags & (syn | ack) == syn | ack drop\n}}\n}}")
    names = chosen([f"{way.name}/{state}" for way in WAYS for state in STATES if state not in way.without])
    # So that memory is counted when all that is made once is there.
    try_way(WAYS[0], [state for state in STATES if state not in WAYS[0].without], ", for the first time")
    counts, before = memory.counts(), sockets()
    with Watchdog() as watchdog:
        for way in WAYS:
            states = [state for state in STATES if f"{way.name}/{state}" in names]
            if states:
                try_way(way, states)
    watchdog.check()
    check_memory(counts)
    kopi.check("TCP has the sockets that it had", wait_until(lambda: sockets() == before), (before, sockets()))
    links.drop_namespace("away")


main()
kopi.finish()
