#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Whether other users are served while something hostile goes on: each call in time, or it is said.

Every half second, on each CPU: another user opens a socket of KOPI and closes it; from one of them: he has a datagram
sent, by an engine if there is any; and, anywhere: root shows the
links of the initial namespace and sets its loopback device up, and lists the flows of another namespace. Each
is a process, which may come to stand for ever. All have real-time priority: busy CPUs don't delay
them, but locks and softirqs do.

    watchdog.py COMMAND...    runs it, ends with its status, or 3 if others weren't served meanwhile
"""

import contextlib
import glob
import json
import mmap
import os
import pwd
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback

import kopi
from links import inside
from linux import (IFF_UP, NLMSG_DONE, NLMSG_ERROR, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, PR_SET_PDEATHSIG,
                   RTM_GETLINK, RTM_NEWLINK)

# In seconds; the debug kernel is many times slower.
BOUND = 20 if os.path.exists("/sys/kernel/debug/kcov") else 6
EVERY, LOOK = 0.5, 0.1
# What a look counts at most: the host may let the whole machine stand for a while.
MOST = 0.2
NETLINK_GENERIC, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 16, 16, 3, 1, 2
FLOW_GET = 2
# What changes devices, addresses or namespaces, with RTNL.
NETWORK = re.compile("rtnetlink_rcv_msg|cleanup_net|rtnl|dev_ioctl|devinet_ioctl|setsockopt|netdev|net_ns|kopi")


def talk(sock, kind, flags, body):
    """Sends a request; gives the messages that came, up to the last one."""
    sock.send(struct.pack("=IHHII", 16 + len(body), kind, NLM_F_REQUEST | flags, 1, 0) + body)
    messages = []
    while True:
        data = sock.recv(1 << 17)
        while data:
            length, kind, flags = struct.unpack_from("=IHH", data)
            if kind == NLMSG_ERROR and (error := struct.unpack_from("=i", data, 16)[0]):
                raise OSError(-error, os.strerror(-error))
            messages.append(data[16:length])
            data = data[length + 3 & ~3:]
        # An acknowledgement, or the end of a dump, or an answer of one part to one who wanted no acknowledgement.
        if kind in (NLMSG_ERROR, NLMSG_DONE) or not flags & 2:
            return messages


def links():
    """As `ip link show`, and `ip link set lo up`."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        talk(sock, RTM_GETLINK, NLM_F_DUMP, bytes(16))
        talk(sock, RTM_NEWLINK, NLM_F_ACK, struct.pack("=BxHiII", 0, 0, 1, IFF_UP, IFF_UP))


def flows():
    """As `kopictl ps`."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as sock:
        name = struct.pack("=HH", 9, CTRL_ATTR_FAMILY_NAME) + b"kopi\0\0\0\0"
        answer = talk(sock, GENL_ID_CTRL, 0, struct.pack("=BBH", CTRL_CMD_GETFAMILY, 1, 0) + name)[0][4:]
        family = 0
        while not family:
            length, kind = struct.unpack_from("=HH", answer)
            if kind == CTRL_ATTR_FAMILY_ID:
                family = struct.unpack_from("=H", answer, 4)[0]
            answer = answer[length + 3 & ~3:]
        talk(sock, family, NLM_F_DUMP, struct.pack("=BBH", FLOW_GET, 1, 0))


def opens():
    """As any program that uses KOPI."""
    # Another user may have used up what all may have together, but not for ever.
    with contextlib.suppress(BlockingIOError), kopi.flow():
        pass


def sends():
    """As a program that lets engines look at its channel, and rings while none does."""
    # As above.
    with contextlib.suppress(BlockingIOError), kopi.flow() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())
        channel = kopi.Channel(sock, flags=kopi.ENGINE, frames=4, tx=4, completion=4, fill=4, rx=4)
        with channel.region:
            channel.send(0, b"served")
            rings = channel.tx.get(channel.tx.flags) & 1
            channel.bell((kopi.BELL_TX if rings else 0) | kopi.BELL_WAIT_COMPLETION)


def stack_of(task):
    """The functions of the kernel in which a task stands, the innermost first; none if it runs."""
    with open(f"/proc/{task}/stack", encoding="ascii") as stack:
        return [line.split()[1].split("+")[0] for line in stack]


def holders(but):
    """Who may hold what somebody waits for: all tasks but some that stand in the network's code, or run."""
    found = []
    for path in glob.glob("/proc/[0-9]*/task/[0-9]*"):
        task = path.removeprefix("/proc/")
        with contextlib.suppress(OSError, IndexError):
            with open(f"{path}/stat", encoding="utf-8", errors="replace") as stat:
                name, state = stat.read().split("(", 1)[1].rsplit(") ", 1)
            functions = stack_of(task)
            runs = state[0] == "R" and name != "watchdog.py"
            if int(task.split("/")[0]) not in but and (runs or NETWORK.search(" ".join(functions))):
                found.append(f"{name}, {state[0]}: {' '.join(functions)}")
    return found


class Others:
    """Those who are to be served, each a process; and who looks whether they are, a process, too."""

    def __init__(self, place):
        cpus = sorted(os.sched_getaffinity(0))
        self.kinds = [(f"socket() and close() on CPU {cpu}", opens, cpu) for cpu in cpus]
        self.kinds += [("a datagram by an engine", sends, cpus[0])]
        self.kinds += [("ip link", links, None), ("kopictl ps", flows, "/run/netns/peer")]
        if place:
            self.kinds += [("kopictl ps there", flows, place), ("socket() and close() there", opens, place)]
        # How often each has begun and ended: odd while it runs.
        self.table = mmap.mmap(-1, mmap.PAGESIZE)
        self.pids, self.complaints, self.longest = [], [], 0.0

    def watch(self, until):
        """Looks at them until that can be read; says what it saw."""
        # With the one who started it.
        kopi.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in range(len(self.kinds)):
            self.pids.append(os.fork())
            if self.pids[-1] == 0:
                try:
                    self._serve(number)
                except BaseException:  # pylint: disable=broad-except
                    traceback.print_exc()
                finally:
                    os._exit(1)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(2))
        counts, ages = [0] * len(self.kinds), [0.0] * len(self.kinds)
        before = time.monotonic()
        # And until each was served once: a busy host may have let none begin before it was over.
        while not select.select([until], [], [], 0)[0] or not (self.complaints or min(counts) > 1):
            time.sleep(LOOK)
            now = time.monotonic()
            passed, before = min(now - before, MOST), now
            for number, count in enumerate(self._counts()):
                if count != counts[number] or not count & 1:
                    counts[number], ages[number] = count, 0
                    continue
                late = ages[number] <= BOUND < ages[number] + passed
                ages[number] += passed
                self.longest = max(self.longest, ages[number])
                if late:
                    self._complain(number)
        # Those that stand can't be waited for.
        for pid in self.pids:
            os.kill(pid, signal.SIGKILL)
        return {"complaints": self.complaints, "longest": self.longest,
                "served": [count // 2 for count in self._counts()]}

    def _counts(self):
        return [struct.unpack_from("=Q", self.table, 16 * number)[0] for number in range(len(self.kinds))]

    def _serve(self, number):
        """What the process of a kind does, until it is killed."""
        what, call, where = self.kinds[number]
        kopi.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        if not isinstance(where, int):
            with inside(where) if where else contextlib.nullcontext():
                self._repeat(number, what, call)
        os.sched_setaffinity(0, {where})
        alice = pwd.getpwnam("alice").pw_uid
        os.setgroups([])
        os.setresgid(alice, alice, alice)
        os.setresuid(alice, alice, alice)
        # Which the change has taken back.
        kopi.libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        self._repeat(number, what, call)

    def _repeat(self, number, what, call):
        count = 0
        while True:
            for step in (call, lambda: time.sleep(EVERY)):
                count += 1
                kopi.store(self.table, 16 * number, "=Q", count)
                try:
                    step()
                except OSError as error:
                    print(f"# watchdog: {what}: {error}", file=sys.stderr, flush=True)

    def _complain(self, number):
        """Says it at once, on the console, too: the machine may be about to hang."""
        try:
            where = " ".join(stack_of(self.pids[number]))
        except OSError as error:
            where = str(error)
        complaint = f"{self.kinds[number][0]} takes more than {BOUND} s, and stands in {where or 'nothing'}"
        self.complaints.append(complaint)
        print(f"# watchdog: {complaint}", file=sys.stderr, flush=True)
        for who in holders(self.pids):
            print(f"# watchdog: meanwhile {who}", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError), open("/dev/kmsg", "w", encoding="ascii") as log:
            log.write(f"watchdog: {complaint}\n")


class Watchdog:
    """Looks while it is entered; then knows what was too late. Where somebody hostile has a network namespace,
    root must be able to look into that, too."""

    def __init__(self, place=None):
        self.place = place

    def __enter__(self):
        self.said, saying = os.pipe()
        until, self.go_on = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.go_on)
            try:
                os.write(saying, json.dumps(Others(self.place).watch(until)).encode())
            except BaseException:  # pylint: disable=broad-except
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(saying)
        os.close(until)
        return self

    def __exit__(self, *_):
        os.close(self.go_on)
        with os.fdopen(self.said) as said:
            self.seen = json.loads(said.read() or '{"complaints": ["nobody looked"], "served": [], "longest": 0}')
        os.waitpid(self.pid, 0)

    def verdict(self):
        """Whether all were served in time; says how it was."""
        print(f"# others were served {self.seen['served']} times, in {max(LOOK, self.seen['longest']):.1f} s at most",
              flush=True)
        return not self.seen["complaints"] and all(self.seen["served"])

    def check(self):
        """The test's line."""
        kopi.check("meanwhile others were served in time", self.verdict(), self.seen["complaints"])


def main():
    """Watches while a command runs."""
    with Watchdog() as watchdog:
        status = subprocess.call(sys.argv[1:])
    sys.exit(status if watchdog.verdict() else 3)


if __name__ == "__main__":
    main()
