#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""By `kopi run`, descriptors that are copied, passed, inherited and closed in whatever way send and receive
as those of UDP sockets; each datagram is read once; the program's end is its own."""

import array
import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import kopi
import limits
import memory
from kopi import wait_until
from linux import Iovec, Mmsghdr, SO_TIMESTAMPING

LIBC = ctypes.CDLL(None, use_errno=True)
SOL_KOPI, OPT_INFO, OPT_STATS = 0x4b4f, 1, 4
SELF = os.path.abspath(__file__)
# Without the library, and with it: how a program is started.
RUN = ["kopi", "run", "--min-datagrams", "1"]


def outcome(case, *by, **options):
    """Has a process of its own make one of the cases below."""
    return subprocess.run([*by, sys.executable, SELF, case], capture_output=True, text=True, timeout=600, **options)


def by_rings(sock):
    """Datagrams of a flow that rings have sent, or sendmsg() by what the channel remembers."""
    return struct.unpack("=Q", sock.getsockopt(SOL_KOPI, OPT_STATS, 8))[0]


def together(fd, *datagrams):
    """Sends by one call of sendmmsg(): how many were sent, or -1. From four on a ring has them."""
    pieces = [Iovec(ctypes.cast(data, ctypes.c_void_p), len(data)) for data in datagrams]
    messages = (Mmsghdr * len(datagrams))()
    for message, piece in zip(messages, pieces):
        message.hdr.iov, message.hdr.iovlen = ctypes.pointer(piece), 1
    return LIBC.sendmmsg(fd, messages, len(datagrams), 0)


def on_channel(sock):
    return struct.unpack("=4I", sock.getsockopt(SOL_KOPI, OPT_INFO, 16))[3] == 1


FOUR = [b"one", b"two", b"three", b"four"]


def pair():
    """A receiver, and a sender that is on a ring."""
    receiver, sender = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    receiver.bind(("127.0.0.1", 0))
    receiver.settimeout(20)
    sender.connect(receiver.getsockname())
    # More than one where many sockets had channels before.
    for _ in range(1000):
        sender.send(b"first")
        assert receiver.recv(100) == b"first"
        if on_channel(sender):
            break
    assert on_channel(sender)
    assert together(sender.fileno(), *FOUR) == 4 and [receiver.recv(100) for _ in FOUR] == FOUR
    return receiver, sender


def sends(receiver, sender, rings=None):
    """Sends by whatever descriptor, and has it arrive once."""
    before = by_rings(sender)
    assert sender.send(b"hello") == 5 and together(sender.fileno(), *FOUR) == 4
    assert [receiver.recv(100) for _ in range(5)] == [b"hello", *FOUR]
    if rings is not None:
        assert by_rings(sender) - before == 5 * rings, (before, by_rings(sender))


def case_copies():
    """Copies send by the ring, too, also after the first one was closed."""
    receiver, sender = pair()
    import fcntl
    copies = [os.dup(sender.fileno()), fcntl.fcntl(sender.fileno(), fcntl.F_DUPFD, 100),
              fcntl.fcntl(sender.fileno(), fcntl.F_DUPFD_CLOEXEC, 200)]
    os.dup2(sender.fileno(), 300)
    copies.append(300)
    sockets = [socket.socket(fileno=fd) for fd in copies]
    for sock in sockets:
        sends(receiver, sock, 1)
    sender.close()
    for sock in sockets:
        sends(receiver, sock, 1)


def case_reused_number():
    """A number that is another file's by now, without a close() that the library sees, gets what is written."""
    receiver, sender = pair()
    fd = sender.fileno()
    keeps = os.dup(fd)
    udp = kopi.flow()
    udp.connect(receiver.getsockname())
    for where in ("file", "pipe", "udp", "udp on a ring"):
        other = pair() if where.endswith("ring") else None
        out, into = os.pipe2(0)
        # As the C library closes a stream's descriptor.
        assert LIBC.syscall(3, fd) == 0
        if where == "file":
            made = LIBC.syscall(2, b"/tmp/reused", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        elif where == "pipe":
            made = LIBC.syscall(33, into, fd)
        else:
            plain = other[1] if other else udp
            made = LIBC.syscall(33, plain.fileno(), fd)
        assert made == fd, (where, made, fd)
        assert os.write(fd, b"not for the old peer") == 20
        if where.startswith("udp"):
            assert together(fd, *FOUR) == 4
        else:
            assert together(fd, *FOUR) == -1 and ctypes.get_errno() == errno.ENOTSOCK
        if where == "file":
            assert os.pread(fd, 100, 0) == b"not for the old peer"
        elif where == "pipe":
            assert os.read(out, 100) == b"not for the old peer"
        else:
            whose = other[0] if other else receiver
            assert [whose.recv(100) for _ in range(5)] == [b"not for the old peer", *FOUR]
        receiver.setblocking(False)
        try:
            assert False, receiver.recv(100)
        except BlockingIOError:
            pass
        receiver.settimeout(20)
        os.dup2(keeps, fd)
        assert os.write(fd, b"again") == 5 and receiver.recv(100) == b"again"
        assert together(fd, *FOUR) == 4 and [receiver.recv(100) for _ in FOUR] == FOUR


def case_exchanged_number():
    """A number that another thread makes another socket all the time: each call sends by one of the two."""
    pairs = [pair() for _ in range(2)]
    for receiver, _ in pairs:
        receiver.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
    got, sent, stop = [[], []], 0, threading.Event()

    def exchange():
        while not stop.is_set():
            for _, sender in pairs:
                LIBC.dup2(sender.fileno(), 300)

    def drain():
        while (ready := select.select([receiver for receiver, _ in pairs], [], [], 0)[0]):
            for number, (receiver, _) in enumerate(pairs):
                if receiver in ready:
                    got[number].append(receiver.recv(100))

    os.dup2(pairs[0][1].fileno(), 300)
    exchanging = threading.Thread(target=exchange)
    exchanging.start()
    for call in range(300):
        count = together(300, *[b"%d" % call] * 200)
        assert 1 <= count <= 200, (call, count)
        sent += count
        drain()
    stop.set()
    exchanging.join()
    while sum(map(len, got)) < sent:
        assert select.select([receiver for receiver, _ in pairs], [], [], 60)[0], (sent, got)
        drain()
    assert got[0] and got[1] and not set(got[0]) & set(got[1]), sorted(set(got[0]) & set(got[1]), key=int)


def case_fork():
    """Parent and child use both sockets, and each datagram is read once."""
    receiver, sender = pair()
    assert kopi.regions() == 1
    child = os.fork()
    if not child:
        assert kopi.regions() == 0
        for number in range(0, 50, 5):
            assert sender.send(b"c%02d" % number) > 0
            assert together(sender.fileno(), *(b"c%02d" % more for more in range(number + 1, number + 5))) == 4
        # The child's own sockets get to rings of its own.
        mine, other = pair()
        sends(mine, other, 1)
        os._exit(0)
    for number in range(0, 50, 5):
        assert sender.send(b"p%02d" % number) > 0
        assert together(sender.fileno(), *(b"p%02d" % more for more in range(number + 1, number + 5))) == 4
    assert os.waitpid(child, 0)[1] == 0
    got = [receiver.recv(100) for _ in range(100)]
    assert len(set(got)) == 100
    for who in b"pc":
        theirs = [data for data in got if data[0] == who]
        assert theirs == sorted(theirs, key=lambda data: int(data[1:])), theirs
    sends(receiver, sender, 1)
    # A child receives what came before it was made, once.
    sender.send(b"for one of them")
    child = os.fork()
    if not child:
        os._exit(0 if receiver.recv(100) == b"for one of them" else 1)
    assert os.waitpid(child, 0)[1] == 0
    receiver.setblocking(False)
    try:
        assert False, receiver.recv(100)
    except BlockingIOError:
        pass


READER = "import os, sys; sys.stdout.write(os.read(0, 100).decode()); sys.exit(7)"
SENDER = "import os; assert os.write(0, b'from another program') == 20"


def case_exec():
    """A program that inherits a flow that is on a ring reads and sends, with the library and without."""
    receiver, sender = pair()
    without = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    for environment in (None, without):
        # Both ways: what is received by a socket that sends by a ring.
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"waits", receiver.getsockname())
        assert on_channel(sender)
        done = subprocess.run([sys.executable, "-c", READER], stdin=receiver, stdout=subprocess.PIPE,
                              env=environment, check=False)
        assert (done.returncode, done.stdout) == (7, b"waits"), done
        receiver.sendto(b"answer", sender.getsockname())
        done = subprocess.run([sys.executable, "-c", READER], stdin=sender, stdout=subprocess.PIPE,
                              env=environment, check=False)
        assert (done.returncode, done.stdout) == (7, b"answer"), done
        subprocess.run([sys.executable, "-c", SENDER], stdin=sender, check=True, env=environment)
        assert receiver.recv(100) == b"from another program"
    sends(receiver, sender, 1)


def case_exec_self():
    """exec() in the process that has the ring."""
    receiver, sender = pair()
    os.set_inheritable(sender.fileno(), True)
    sender.send(b"before")
    child = os.fork()
    if not child:
        os.dup2(sender.fileno(), 0)
        os.execv(sys.executable, [sys.executable, "-c", SENDER])
    assert os.waitpid(child, 0)[1] == 0
    assert [receiver.recv(100) for _ in range(2)] == [b"before", b"from another program"]


def case_vfork():
    """A child that vfork() made closes its descriptors: those of its parent stay flows."""
    receiver, sender = pair()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as fresh:
        # Without anything that has to be done before exec(), Python uses vfork().
        assert subprocess._USE_VFORK and subprocess.run(["true"], close_fds=True, check=True)
        fresh.connect(receiver.getsockname())
        fresh.send(b"one")
        fresh.send(b"two")
        assert [receiver.recv(100) for _ in range(2)] == [b"one", b"two"] and on_channel(fresh)
    before = by_rings(sender)
    assert together(sender.fileno(), *FOUR) == 4 and [receiver.recv(100) for _ in FOUR] == FOUR
    assert by_rings(sender) == before + 4


def case_passed():
    """A program without the library that gets a descriptor by SCM_RIGHTS reads each datagram, and sends."""
    receiver, sender = pair()
    receiver.sendto(b"one", sender.getsockname())
    receiver.sendto(b"two", sender.getsockname())
    ours, theirs = socket.socketpair()
    without = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    code = ("import array, socket, os; s = socket.socket(fileno=0); d, c, f, a = s.recvmsg(10, 100); "
            "fd = array.array('i', c[0][2][:4])[0]; print(os.read(fd, 99)); os.write(fd, b'passed')")
    with subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=subprocess.PIPE,
                          env=without) as outsider:
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sender.fileno()]))])
        assert outsider.stdout.read() == b"b'one'\n"
    assert sender.recv(100) == b"two"
    assert receiver.recv(100) == b"passed"
    # And by this process, which has the ring, from a descriptor that the library never saw.
    ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sender.fileno()]))])
    _, control, _, _ = theirs.recvmsg(10, 100)
    os.write(array.array("i", control[0][2][:4])[0], b"unseen")
    assert receiver.recv(100) == b"unseen"


def case_closed():
    """A port is free as soon as the last descriptor is closed, in whatever way."""
    for way in ("close", "close_range", "closefrom", "system call"):
        _, sender = pair()
        name = sender.getsockname()
        fd = os.dup(sender.fileno())
        os.dup2(fd, 900)
        os.close(fd)
        sender.close()
        os.write(900, b"still open")
        if way == "close":
            os.close(900)
        elif way == "close_range":
            assert LIBC.close_range(900, 1000, 0) == 0
        elif way == "closefrom":
            LIBC.closefrom(900)
        else:
            assert LIBC.syscall(3, 900) == 0
        again = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        again.bind(name)
        again.close()


def case_threads():
    """Threads send, poll, receive and close at once: nothing is lost, torn, or sent by another socket."""
    receiver, sender = pair()
    receiver.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
    own = []
    stop = threading.Event()

    def send(number):
        mine, other = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        mine.bind(("127.0.0.1", 0))
        mine.settimeout(20)
        for turn in range(0, 60, 5):
            assert sender.send(b"%d %d" % (number, turn)) > 0
            assert together(sender.fileno(), *(b"%d %d" % (number, turn + more) for more in range(1, 5))) == 4
            other.sendto(b"own %d" % number, mine.getsockname())
            assert mine.recv(100) == b"own %d" % number
            select.select([mine], [sender], [], 0)
            if turn % 15 == 10:
                other.close()
                other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        own.append(number)

    def churn():
        while not stop.is_set():
            os.close(os.open("/dev/null", os.O_WRONLY))
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()

    churning = threading.Thread(target=churn)
    churning.start()
    threads = [threading.Thread(target=send, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    churning.join()
    got = [receiver.recv(100).split() for _ in range(64 * 60)]
    for number in range(64):
        assert [int(turn) for who, turn in got if int(who) == number] == list(range(60)), number
    assert len(own) == 64
    # fork() of a process with threads that send.
    more = [threading.Thread(target=lambda: [sender.send(b"x") for _ in range(500)]) for _ in range(4)]
    for thread in more:
        thread.start()
    for _ in range(10):
        child = os.fork()
        if not child:
            mine, other = pair()
            sends(mine, other)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    for thread in more:
        thread.join()


HOLD = "tc qdisc add dev hold root tbf rate 8bit burst 1700 limit 1000000"
LET_GO = "tc qdisc del dev hold root"


@contextlib.contextmanager
def held():
    """A sender that is on a ring, with a small send buffer, to a device that hardly anything leaves."""
    _, sender = pair()
    LIBC.connect(sender.fileno(), bytes(16), 16)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    subprocess.run(f"""ip link add hold type dummy; ip addr add 198.18.0.1/24 dev hold; ip link set hold up
        {HOLD}; ip neigh add 198.18.0.2 lladdr 2:2:2:2:2:2 dev hold""", shell=True, check=True)
    try:
        sender.connect(("198.18.0.2", 9))
        yield sender
    finally:
        subprocess.run("ip link del hold", shell=True, check=True)


def case_full():
    """A full send buffer: EAGAIN without blocking, and a wait with it, which a signal or a timeout ends."""
    with held() as sender:
        sender.setblocking(False)
        sent = 0
        try:
            while sent < 1000:
                sender.send(b"x" * 500)
                sent += 1
            assert False, "it is never full"
        except BlockingIOError:
            pass
        assert 1 <= sent < 40, sent
        assert not select.select([], [sender], [], 0)[1]
        sender.setblocking(True)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("=qq", 0, 200000))
        for call in (LIBC.send, LIBC.write):
            ctypes.set_errno(0)
            got = call(sender.fileno(), b"x" * 500, 500, 0)
            assert (got, ctypes.get_errno()) == (-1, errno.EAGAIN), (call, got, ctypes.get_errno())
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(16))
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.siginterrupt(signal.SIGALRM, True)
        signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
        ctypes.set_errno(0)
        assert LIBC.send(sender.fileno(), b"x" * 500, 500, 0) == -1 and ctypes.get_errno() == errno.EINTR
        signal.setitimer(signal.ITIMER_REAL, 0)


def case_full_within_a_list():
    """A send buffer that is full within a list: a signal or a timeout ends the wait, with what was sent; room goes on."""
    many = [b"x" * 500] * 64
    with held() as sender:
        signal.signal(signal.SIGALRM, lambda *_: None)
        # SA_RESTART
        signal.siginterrupt(signal.SIGALRM, False)
        signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
        sent = together(sender.fileno(), *many)
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert 1 <= sent < 64, sent

        def renew():
            subprocess.run(f"{LET_GO}; {HOLD}", shell=True, check=True)
            assert select.select([], [sender], [], 60)[1]

        renew()
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("=qq", 0, 200000))
        sent = together(sender.fileno(), *many)
        assert 1 <= sent < 64, sent
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, bytes(16))
        renew()
        sender.setblocking(False)
        sent = together(sender.fileno(), *many)
        assert 1 <= sent < 64, sent
        sender.setblocking(True)
        renew()
        results = []
        thread = threading.Thread(target=lambda: results.append(together(sender.fileno(), *many)))
        thread.start()
        while select.select([], [sender], [], 0)[1]:
            pass
        assert not results
        subprocess.run(LET_GO, shell=True, check=True)
        thread.join()
        assert results == [64], results


def timestamped(sender):
    """Has the socket note when packets leave, which is left unread."""
    sender.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, struct.pack("=I", 0x12))


def case_full_with_an_error_to_read():
    """A list goes on when there is room, also while the error queue has something, of which poll() always tells."""
    with held() as sender:
        timestamped(sender)
        subprocess.run(LET_GO, shell=True, check=True)
        assert together(sender.fileno(), *FOUR) == 4
        wait_until(lambda: select.select([sender], [], [], 0)[0])
        subprocess.run(HOLD, shell=True, check=True)
        results = []
        thread = threading.Thread(target=lambda: results.append(together(sender.fileno(), *[b"x" * 500] * 64)))
        thread.start()
        polled = select.poll()
        polled.register(sender, select.POLLOUT)
        wait_until(lambda: polled.poll(0)[0][1] == select.POLLERR)
        time.sleep(0.3)
        assert not results
        subprocess.run(LET_GO, shell=True, check=True)
        thread.join()
        assert results == [64], results


def case_full_and_shut_down():
    """shutdown() by another thread ends the wait of a list."""
    with held() as sender:
        results = []
        thread = threading.Thread(target=lambda: results.append(together(sender.fileno(), *[b"x" * 500] * 64)))
        thread.start()
        while select.select([], [sender], [], 0)[1]:
            pass
        sender.shutdown(socket.SHUT_WR)
        thread.join(30)
        assert results and 1 <= results[0] < 64, results


def case_lists_beside_options():
    """Lists that don't wait are sent whole, whatever another thread does to the socket's options."""
    receiver, sender = pair()
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    LIBC.connect(sender.fileno(), bytes(16), 16)
    sender.connect(receiver.getsockname())
    sender.setblocking(False)
    stop = []

    def sets():
        while not stop:
            LIBC.setsockopt(sender.fileno(), socket.SOL_SOCKET, socket.SO_PRIORITY, struct.pack("=i", 1), 4)

    thread = threading.Thread(target=sets)
    thread.start()
    short = []
    for _ in range(300):
        sent = together(sender.fileno(), *[b"x"] * 64)
        short += [sent] if sent != 64 else []
        for _ in range(64):
            receiver.recv(9)
    stop.append(True)
    thread.join()
    assert not short, short


def restrict(by):
    """Has the process restrict its system calls, by the function that calls prctl()."""
    receiver, sender = pair()
    # A filter that kills for ioctl() and for sockets of other families: BPF of seccomp.
    ins = struct.pack
    program = b"".join([
        ins("=HBBI", 0x20, 0, 0, 0),                     # the number
        ins("=HBBI", 0x15, 4, 0, 16),                    # ioctl: kill
        ins("=HBBI", 0x15, 0, 2, 41),                    # socket:
        ins("=HBBI", 0x20, 0, 0, 16),                    # its domain
        ins("=HBBI", 0x15, 1, 0, kopi.AF_KOPI),          # kill
        ins("=HBBI", 0x06, 0, 0, 0x7fff0000),            # else allow
        ins("=HBBI", 0x06, 0, 0, 0x80000000)])
    memory = ctypes.create_string_buffer(program)
    descriptor = struct.pack("=HxxxxxxQ", 7, ctypes.addressof(memory))
    assert LIBC.prctl(38, 1, 0, 0, 0) == 0
    assert by(22, 2, ctypes.c_char_p(descriptor), 0, 0) == 0
    for _ in range(5):
        assert sender.send(b"quietly") == 7
        assert receiver.recv(100) == b"quietly"
        assert together(sender.fileno(), *FOUR) == 4 and [receiver.recv(100) for _ in FOUR] == FOUR
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()


def case_restricted():
    """A program that restricts its system calls makes only its own from then on."""
    restrict(LIBC.prctl)


def case_restricted_by_syscall():
    """One that does so by syscall(), as well."""
    restrict(lambda *arguments: LIBC.syscall(157, *arguments))


def case_sleeps():
    """SO_RCVTIMEO, signals that interrupt, O_NONBLOCK by any copy, MSG_PEEK."""
    receiver, sender = pair()
    os.set_blocking(os.dup(receiver.fileno()), False)
    receiver = socket.socket(fileno=os.dup(receiver.fileno()))
    assert LIBC.recv(receiver.fileno(), ctypes.create_string_buffer(9), 9, 0) == -1
    assert ctypes.get_errno() == errno.EAGAIN
    os.set_blocking(receiver.fileno(), True)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 100000))
    assert LIBC.recv(receiver.fileno(), ctypes.create_string_buffer(9), 9, 0) == -1
    assert ctypes.get_errno() == errno.EAGAIN
    sender.send(b"peek")
    assert receiver.recv(9, socket.MSG_PEEK) == b"peek" and receiver.recv(9) == b"peek"


def case_dies():
    """A program that a signal ends."""
    pair()
    os.kill(os.getpid(), signal.SIGUSR1)


def compared():
    """What a program is to its parent is the same with and without the library."""
    script = 'echo out; echo err >&2; read line; echo "$line"; ps -o pgid= -p $$ | tr -d " "; trap -p; exit 42'
    both = [subprocess.run([*by, "bash", "-c", script], input="in\n", capture_output=True, text=True, check=False)
            for by in ([], RUN)]
    kopi.check("exit status, standard streams and process group are the program's",
               both[0].returncode == both[1].returncode == 42 and both[0].stdout == both[1].stdout
               and both[0].stderr == both[1].stderr, str(both))
    for what, script in (("a signal that is ignored", "trap '' PIPE; exec %s grep SigIgn /proc/self/status"),
                         ("a standard descriptor that is closed", "exec %s sh -c 'test -e /proc/self/fd/0; echo $?' <&-")):
        said = [subprocess.run(["sh", "-c", script % " ".join(by)], capture_output=True, text=True, check=False).stdout
                for by in ([], RUN)]
        kopi.check(f"{what} stays so", said[0] == said[1] != "", said)
    kopi.check("a signal that ends the program is what its parent sees",
               outcome("dies", *RUN).returncode == -signal.SIGUSR1)
    missing = subprocess.run([*RUN, "/nowhere"], capture_output=True, text=True, check=False)
    kopi.check("a program that isn't there: 127, and a word", missing.returncode == 127 and "/nowhere" in missing.stderr)
    static = subprocess.run([*RUN, "busybox", "true"], capture_output=True, text=True, check=False)
    kopi.check("a static program runs with UDP sockets, and kopi run says so",
               static.returncode == 0 and "statically linked" in static.stderr, str(static))


def limited():
    """Without what flows need, programs run with UDP sockets."""
    code = ("import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('127.0.0.1', 9)); "
            "[s.send(b'x') if i % 2 == 0 else s.getsockopt(1, 4) for i in range(20)]; "
            "print('done', s.getsockopt(1, 39))")
    cases = {
        "no memory may be locked": ["setpriv", "--reuid", "bob", "--regid", "bob", "--clear-groups",
                                    "prlimit", "--memlock=4096"],
        "a user's limit of channels": ["setpriv", "--reuid", "bob", "--regid", "bob", "--clear-groups"],
    }
    for name, by in cases.items():
        with limits.limited(**({"user_max_channels": 0} if name.startswith("a user") else {})):
            done = subprocess.run([*by, *RUN[:2], "--explain", *RUN[2:], sys.executable, "-c", code],
                                  capture_output=True, text=True, check=False)
        kopi.check(f"{name}: the program sends all the same, and --explain says so",
                   done.stdout == "done 2\n" and "sends without a channel" in done.stderr, str(done))
    kopi.check("nothing of that is left", memory.unload())
    done = subprocess.run([*RUN, sys.executable, "-c", code], capture_output=True, text=True, check=False)
    kopi.check("without the module the program runs with UDP sockets, and kopi run says why",
               done.stdout == "done 2\n" and "the kopi module is not loaded" in done.stderr, str(done))
    kopi.expect(memory.load(), "the module comes again")


def copied_before():
    """A descriptor that was copied before its socket joined a channel uses the ring, too."""
    code = ("import os, socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); "
            "s.connect(s.getsockname()); copy = os.dup(s.fileno()); s.send(b'x'); os.write(copy, b'x'); print(len(s.recv(9)))")
    done = subprocess.run([*RUN[:2], "--explain", *RUN[2:], sys.executable, "-c", code], capture_output=True, text=True, check=False)
    kopi.check("a copy from before there was a channel sends by it, too",
               done.stdout == "1\n" and done.stderr.count("sends by a channel") == 2, str(done))


def short_lived():
    """Sockets that live for a few datagrams get no channel each."""
    code = ("import socket\nfor _ in range(200):\n s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            " s.connect(('127.0.0.1', 9))\n for i in range(8):\n  s.send(b'x') if i % 2 == 0 else s.getsockopt(1, 4)\n s.close()")
    done = subprocess.run([*RUN[:2], "--explain", *RUN[2:], sys.executable, "-c", code], capture_output=True, text=True, check=False)
    made = done.stderr.count("made ring")
    kopi.check("200 short-lived sockets: some channels are made, and not one for each", done.returncode == 0 and 16 < made < 25, made)


CASES = {name[5:]: work for name, work in globals().items() if name.startswith("case_")}


def main():
    for case, work in CASES.items():
        if case == "dies":
            continue
        done = outcome(case, *RUN)
        kopi.check(f"{case}: {work.__doc__.splitlines()[0]}", done.returncode == 0,
                   f"{done.returncode} {done.stderr[-1500:]}".replace("\n", "\n# "))
    compared()
    copied_before()
    short_lived()
    limited()
    kopi.finish()


if len(sys.argv) > 1:
    CASES[sys.argv[1]]()
else:
    main()
