#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Streams hold the module as long as they are open, in any state, and nothing of it stays in other sockets."""

import array
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time

import kopi
from equivalence import namespace
from kopi import attempt, check, connection, in_child, listener, plain_stream, stream, wait_until
from linux import CLONE_NEWNET, SYS_DELETE_MODULE
from memory import grown, counts, module_users

O_NONBLOCK = 0o4000


def unload():
    """What rmmod gives: 0 or an errno."""
    if kopi.libc.syscall(SYS_DELETE_MODULE, b"kopi", O_NONBLOCK) == 0:
        subprocess.run(["insmod", MODULE], check=True)
        return 0
    return kopi.ctypes.get_errno()


def state_of(sock):
    """TCP's state."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def states():
    """A stream in each state that an open one can have, by name: with what else must stay open."""
    yield "new", stream(), ()
    yield "listening", listener(), ()
    one, other = connection()
    yield "established", one, (other,)
    one, other = connection()
    other.close()
    yield "CLOSE_WAIT", one, ()
    one, other = connection()
    one.shutdown(socket.SHUT_WR)
    yield "FIN_WAIT2", one, (other,)
    one, other = connection()
    with one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
    yield "reset", other, ()
    one = stream()
    one.setblocking(False)
    one.connect_ex(("192.0.2.77", 9))
    yield "SYN_SENT", one, ()


def module_is_held():
    """By each state while it is open; closed ones, and what TCP still does for them, hold nothing."""
    with namespace("host"):
        for name, sock, others in states():
            with sock:
                check(f"{name}: rmmod is refused", unload() in (errno.EBUSY, errno.EWOULDBLOCK))
            for other in others:
                other.close()
        # The last of these go on for a minute, in FIN_WAIT and TIME_WAIT, with data that nobody takes.
        with namespace("peer"):
            far = plain_stream()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            far.bind(("192.0.2.2", 0))
            far.listen(2)
        near = stream()
        near.connect(far.getsockname())
        taken, _ = far.accept()
        near.setblocking(False)
        sent = got = 0
        try:
            while True:
                sent += near.send(bytes(65536))
        except BlockingIOError:
            pass
        near.close()
        check("nothing holds the module", wait_until(lambda: module_users() == 0), module_users())
        orphans = subprocess.run(["ss", "-tn", "state", "fin-wait-1"], check=True, capture_output=True, text=True).stdout
        check("a closed one still sends", "192.0.2.2" in orphans, orphans)
        check("rmmod works then, and insmod", unload() == 0)
        while data := taken.recv(1 << 20):
            got += len(data)
        check("what was written arrives, though the module was unloaded meanwhile", got == sent > 0, (got, sent))
        taken.close()
        far.close()


def queued_ones_hold_nothing():
    """Connections that nobody has accepted go to another listener, or end, without the module."""
    with open("/proc/sys/net/ipv4/tcp_migrate_req", "w", encoding="ascii") as sysctl:
        sysctl.write("1")
    for makes in ((stream, plain_stream), (plain_stream, stream)):
        first, second = (make() for make in makes)
        for sock in (first, second):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        first.bind(("127.0.0.1", 0))
        first.listen(64)
        clients = [plain_stream() for _ in range(8)]
        for client in clients:
            client.connect(first.getsockname())
        # A handshake that is not complete.
        second.bind(first.getsockname())
        second.listen(64)
        first.close()
        accepted = []
        second.setblocking(False)
        while select.select([second], [], [], 2)[0] and len(accepted) < len(clients):
            accepted.append(second.accept()[0])
        check(f"migrated to a {'stream' if makes[1] is stream else 'plain socket'}", len(accepted) == 8, len(accepted))
        for number, client in enumerate(clients):
            client.sendall(b"%d" % number)
        got = sorted(sock.recv(9) for sock in accepted)
        check("they work", got == [b"%d" % number for number in range(8)], got)
        expected = 9 if makes[1] is stream else 0
        check("migrated ones hold the module only if they are streams",
              wait_until(lambda: module_users() == expected), module_users())
        if makes[1] is plain_stream:
            check("rmmod with migrated ones", unload() == 0)
            clients[0].sendall(b"later")
            check("which go on", any(select.select([sock], [], [], 1)[0] and sock.recv(9) == b"later" for sock in accepted))
        for sock in (*clients, *accepted, second):
            sock.close()
    with open("/proc/sys/net/ipv4/tcp_migrate_req", "w", encoding="ascii") as sysctl:
        sysctl.write("0")
    check("all is given back", wait_until(lambda: module_users() == 0), module_users())


def processes_pass_and_die():
    """fork, exec, SCM_RIGHTS and kill -9, with connections in all states."""
    one, other = connection()
    os.set_inheritable(other.fileno(), True)
    child = subprocess.Popen([sys.executable, "-c", f"import socket;s=socket.socket(fileno={other.fileno()});"
                              "s.sendall(s.recv(9)[::-1])"], close_fds=False)
    other.close()
    one.sendall(b"abc")
    check("exec keeps it", one.recv(9) == b"cba")
    child.wait()
    check("and its end ends it", one.recv(9) == b"")
    one.close()
    one, other = connection()
    left, right = socket.socketpair()
    socket.send_fds(left, [b"x"], [other.fileno()])
    other.close()
    _, [fd], _, _ = socket.recv_fds(right, 1, 1)
    with socket.socket(fileno=fd) as passed:
        passed.sendall(b"passed")
        check("SCM_RIGHTS passes it", one.recv(9) == b"passed")
    # In flight for ever.
    socket.send_fds(left, [b"x"], [one.fileno()])
    for sock in (one, left, right):
        sock.close()
    check("all is given back", wait_until(lambda: module_users() == 0), module_users())

    def busy():
        waits = listener(backlog=64)
        socks = [waits]
        for number in range(40):
            made = stream()
            made.setblocking(False)
            made.connect_ex(waits.getsockname())
            socks.append(made)
            if number % 2:
                socks.append(waits.accept()[0])
                try:
                    made.send(bytes(100_000))
                except BlockingIOError:
                    pass
        with open("/tmp/streams_busy", "w", encoding="ascii"):
            pass
        signal.pause()

    for _ in range(5):
        pid = in_child(busy)
        wait_until(lambda: os.path.exists("/tmp/streams_busy"))
        os.unlink("/tmp/streams_busy")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    check("kill -9 gives all back", wait_until(lambda: module_users() == 0), module_users())


def namespaces_end():
    """A network namespace that ends while it has streams, which keep it."""
    pid = os.fork()
    if pid == 0:
        kopi.expect(kopi.libc.unshare(CLONE_NEWNET) == 0, "unshare")
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        left = array.array("i")
        one, other = connection()
        waits = listener()
        del left
        # All go at once, unread data too.
        one.sendall(b"unread")
        del other, waits
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    check("its process ends", status == 0, status)
    check("all is given back", wait_until(lambda: module_users() == 0), module_users())


class Acceptor:
    """A process that has a listener, in a cgroup of its own, and whom no lack of memory kills."""

    GROUP = "/sys/fs/cgroup/accepting"

    def __enter__(self):
        with open("/sys/fs/cgroup/cgroup.subtree_control", "w", encoding="ascii") as control:
            control.write("+memory")
        os.makedirs(self.GROUP, exist_ok=True)
        self.listener = listener(backlog=16)
        self.listener.setblocking(False)
        (asks, self.ask), (self.answer, answers) = os.pipe(), os.pipe()
        self.pid = in_child(lambda: self._run(asks, answers))
        os.close(asks)
        os.close(answers)
        os.read(self.answer, 1)
        return self

    def _run(self, asks, answers):
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
            score.write("-1000")
        kopi.move_to(self.GROUP)
        os.close(self.ask)
        os.write(answers, b"!")
        fd = self.listener.fileno()
        while os.read(asks, 1):
            got = kopi.libc.accept(fd, None, None)
            os.write(answers, b"+" if got >= 0 else b"-")
            if got >= 0:
                os.close(got)

    def limit(self, value):
        """Sets the cgroup's limit."""
        with open(f"{self.GROUP}/memory.max", "w", encoding="ascii") as limit:
            limit.write(str(value))

    def used(self):
        """Bytes that it has; more than it uses are given back first."""
        self.limit(0)
        last = None
        with open(f"{self.GROUP}/memory.current", encoding="ascii") as current:
            while last != (last := current.read()):
                time.sleep(0.1)
                current.seek(0)
        return int(last)

    def accepts(self, room):
        """Whether accept() gives a connection, with so many bytes of memory left."""
        # Else the identity of the acceptor's last flow serves the next one, and little memory is needed.
        stream().close()
        self.limit(self.used() + room)
        os.write(self.ask, b"!")
        # It may need memory for itself.
        select.select([self.answer], [], [], 5)
        self.limit("max")
        return os.read(self.answer, 1) == b"+"

    def __exit__(self, *_):
        os.close(self.ask)
        os.waitpid(self.pid, 0)
        os.close(self.answer)
        self.listener.close()
        os.rmdir(self.GROUP)


def accepted_in_vain():
    """A connection that accept() has no memory to make a flow of stays in the queue, or is reset."""
    seen = []
    with Acceptor() as acceptor:
        for pages in [*range(8)] * 2:
            with plain_stream() as client:
                client.settimeout(20)
                client.connect(acceptor.listener.getsockname())
                if acceptor.accepts(pages * 4096):
                    continue
                if select.select([acceptor.listener], [], [], 0)[0]:
                    # It stayed.
                    acceptor.accepts(1 << 30)
                    seen.append("stayed")
                    continue
                try:
                    seen.append(client.recv(1))
                except ConnectionResetError:
                    seen.append("reset")
    check("a connection that is accepted in vain stays, or is reset", seen and set(seen) <= {"stayed", "reset"}, seen)
    check("all is given back", wait_until(lambda: module_users() == 0), module_users())


def many_come_and_go():
    """Thousands of connections leave no memory behind."""
    with listener(backlog=128) as waits:
        address = waits.getsockname()

        def turn(count):
            for number in range(count):
                one = plain_stream() if number % 2 else stream()
                # No TIME_WAIT.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
                one.connect(address)
                waits.accept()[0].close()
                one.close()

        turn(200)
        before = counts()
        turn(int(os.environ.get("STREAMS", "3000")))
        more, _ = grown(before, 300, {"Taken:": 16384, "VmallocUsed:": 512, "Percpu:": 512})
        check("memory is back", not more, more)


MODULE = f"/kopi/build/{os.uname().release}/kopi.ko"
for case in (module_is_held, queued_ones_hold_nothing, processes_pass_and_die, namespaces_end, accepted_in_vain,
             many_come_and_go):
    attempt(case)
kopi.finish()
