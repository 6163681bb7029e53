#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Enforced rules hold for ordinary sockets: only bob's postgres has port 5432, whatever an impostor tries."""

import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess

from enforced import (BOB, CHARLIE, HOST, HOST6, IMPOSTOR, PEER, PORT, POSTGRES, PYTHON, RULES, Program, begin, connected, end,
                      enforce, kopictl, reaches, restore)
from equivalence import namespace, sh
from kopi import check, finish, wait_until
from linux import IPPROTO_MPTCP
from memory import wait_until_unused

GROUP = "/sys/fs/cgroup/enforced"


def owner_works():
    """Bob's postgres serves its port, by both versions of IP, TCP and UDP; other ports are everybody's."""
    with Program() as postgres:
        check("bob's postgres listens", postgres.listen() == "None")
        check("and the peer reaches it", reaches())
        check("it accepts", "socket.socket" in postgres("(c := s.accept()[0])"))
        check("and sends", postgres("c.send(b'answer')") == "6")
        postgres("!u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
        check("it has the port of UDP", postgres(f"u.bind(({HOST!r}, {PORT}))") == "None")
        with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(10)
            sock.sendto(b"question", (HOST, PORT))
            check("datagrams come", postgres("(got := u.recvfrom(100))[0]") == "b'question'")
            check("and go", postgres("u.sendto(b'answer', got[1])") == "6")
            check("to the peer", sock.recv(100) == b"answer")
    with Program() as postgres:
        check("IPv6, too", postgres.listen("::") == "None" and reaches(HOST6))
    with Program() as postgres:
        # The option makes MPTCP's first TCP sock, before bind().
        postgres(f"!s = socket.socket(2, 1, {IPPROTO_MPTCP}); s.setsockopt(1, 2, 1)")
        postgres(f"s.bind(({HOST!r}, {PORT}))")
        postgres("s.listen()")
        check("MPTCP, too", reaches() and "socket.socket" in postgres("s.accept()[0]"))
    with Program(IMPOSTOR, CHARLIE) as other:
        check("other ports are everybody's", other.listen(port=5433) == "None" and reaches(port=5433))


@contextlib.contextmanager
def only_port():
    """The kernel has no other port to choose."""
    name = "/proc/sys/net/ipv4/ip_local_port_range"
    with open(name, encoding="ascii") as file:
        before_it = file.read()

    def write(text):
        with open(name, "w", encoding="ascii") as file:
            file.write(text)
    write(f"{PORT} {PORT}")
    try:
        yield
    finally:
        write(before_it)


def ports_by_kernel(impostor):
    """A call that has the kernel choose the port can't be refused: no packet passes."""
    with namespace("peer"), socket.create_server((PEER, 7000)) as server:
        server.settimeout(1.5)
        impostor("!s = socket.socket(); s.settimeout(1)")
        said = impostor(f"s.connect(({PEER!r}, 7000))")
        try:
            server.accept()
            came = True
        except TimeoutError:
            came = False
        check("8: a port that the kernel chooses when it connects",
              not came and impostor("s.getsockname()[1]") == str(PORT), said)
    impostor("s.close()")
    impostor("!s = socket.socket()")
    impostor("s.listen()")
    check("9: or when it listens", impostor("s.getsockname()[1]") == str(PORT) and not reaches(within=1.5))
    impostor("s.close()")
    with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sink:
        sink.bind((PEER, 7001))
        sink.settimeout(1)
        impostor("!s = socket.socket(2, 2)")
        got = impostor(f"s.sendto(b'x', ({PEER!r}, 7001))")
        check("10: or when it sends", got == "EACCES", got)


def direct_ways():
    """What a program can ask for by itself."""
    with Program(IMPOSTOR, BOB) as impostor:
        check("1: an ordinary socket", impostor.listen() == "EACCES")
        check("2: of UDP", impostor(f"socket.socket(2, 2).bind(({HOST!r}, {PORT}))") == "EACCES")
        check("3: IPv6", impostor.listen("::1") == "EACCES")
        check("4: an IPv4-mapped address", impostor.listen(f"::ffff:{HOST}") == "EACCES")
        check("5: the wildcard of both", impostor.listen("::", options="s.setsockopt(41, 26, 0)") == "EACCES")
        with Program() as postgres:
            check("6: SO_REUSEPORT beside the owner",
                  postgres.listen(options="s.setsockopt(1, 15, 1)") == "None"
                  and impostor.listen(options="s.setsockopt(1, 15, 1)") == "EACCES")
        impostor("!s = socket.socket()")
        check("7: connecting from the port", impostor(f"s.bind(('0.0.0.0', {PORT}))") == "EACCES")
        with only_port():
            ports_by_kernel(impostor)
        check("11: MPTCP", impostor(f"socket.socket(2, 1, {IPPROTO_MPTCP}).bind(({HOST!r}, {PORT}))") == "EACCES")


def io_uring_bind():
    """bind() by io_uring, by its system calls."""
    code = f"""!
import ctypes, mmap
def ring_bind():
    libc = ctypes.CDLL(None, use_errno=True)
    params = bytearray(120)
    fd = libc.syscall(425, 4, (ctypes.c_char * 120).from_buffer(params))
    off = struct.unpack_from("=10I", params, 40)
    sq = mmap.mmap(fd, 4096, offset=0)
    sqes = mmap.mmap(fd, 4096, offset=0x10000000)
    s = socket.socket()
    name = ctypes.create_string_buffer(struct.pack("=H2s4s8x", 2, ({PORT}).to_bytes(2, "big"), socket.inet_aton({HOST!r})))
    sqes[:64] = struct.pack("=BBHiQQIIQ24x", 56, 0, 0, s.fileno(), 16, ctypes.addressof(name), 0, 0, 7)
    struct.pack_into("=I", sq, off[6], 0)
    tail = struct.unpack_from("=I", sq, off[1])[0]
    struct.pack_into("=I", sq, off[1], tail + 1)
    libc.syscall(426, fd, 1, 1, 1, None, 0)
    cq_off = struct.unpack_from("=10I", params, 80)
    cq = mmap.mmap(fd, 4096, offset=0x8000000)
    return struct.unpack_from("=Qi", cq, cq_off[5])
"""
    with Program(IMPOSTOR, BOB) as impostor:
        # One line, as the program is fed.
        impostor("!exec(" + repr(code[1:]) + ", globals())")
        got = impostor("ring_bind()")
        check("12: io_uring", got == f"(7, {-errno.EACCES})", got)


def places():
    """Where a program runs, and as whom."""
    os.makedirs(GROUP, exist_ok=True)
    with Program(IMPOSTOR, BOB, group=GROUP) as impostor:
        check("13: in another cgroup", impostor.listen() == "EACCES")
    with Program(POSTGRES, CHARLIE) as impostor:
        check("14: another user's postgres", impostor.listen() == "EACCES")
    with Program(IMPOSTOR, 0) as root:
        check("15: root", root.listen() == "EACCES")
    with namespace("peer"):
        impostor = Program(IMPOSTOR, BOB)
    with impostor:
        check("16: another network namespace has other rules", impostor.listen(PEER) == "None")
        check("and isn't this port", not reaches(within=1.5))


def programs():
    """What a program can be."""
    def tries(what, path, allowed=False, pass_fds=()):
        with Program(path, BOB, pass_fds) as program:
            got = program.listen()
        check(what, got == ("None" if allowed else "EACCES"), got)

    copy = "/tmp/enforced/copy"
    shutil.copy(POSTGRES, copy)
    tries("17: a copy of postgres", copy)
    os.rename(POSTGRES, "/tmp/enforced/renamed")
    shutil.copy(PYTHON, POSTGRES)
    tries("18: another file in its place", POSTGRES)
    os.rename("/tmp/enforced/renamed", POSTGRES)
    tries("the file itself, back in its place", POSTGRES, True)
    os.link(POSTGRES, "/tmp/enforced/linked")
    tries("a hard link is the same file", "/tmp/enforced/linked", True)
    sh(f"mount --bind {IMPOSTOR} {POSTGRES}")
    tries("19: a bind mount over it", POSTGRES)
    sh(f"umount {POSTGRES}")
    sh("mkdir -p /tmp/layers && mount -t tmpfs none /tmp/layers && mkdir /tmp/layers/up /tmp/layers/work /tmp/layers/all")
    sh("mount -t overlay none -o lowerdir=/tmp/enforced,upperdir=/tmp/layers/up,workdir=/tmp/layers/work /tmp/layers/all")
    shutil.copy(IMPOSTOR, "/tmp/layers/all/postgres")
    tries("20: overlayfs", "/tmp/layers/all/postgres")
    sh("umount /tmp/layers/all && umount /tmp/layers")
    memory = os.memfd_create("postgres", 0)
    with open(PYTHON, "rb") as file:
        os.sendfile(memory, file.fileno(), 0, os.fstat(file.fileno()).st_size)
    os.chmod(memory, 0o755)
    tries("21: memory that is executed", f"/proc/self/fd/{memory}", pass_fds=(memory,))
    os.close(memory)
    script = "/tmp/enforced/script"
    with open(script, "w", encoding="ascii") as file:
        file.write(f"#!{IMPOSTOR}\n{Program.FEED}")
    os.chmod(script, 0o755)
    restore(RULES.replace(POSTGRES, script))
    tries("22: a script isn't the program: its interpreter is", script)
    restore(RULES)
    with Program() as postgres:
        os.unlink(POSTGRES)
        shutil.copy(PYTHON, POSTGRES)
        check("a running program whose file was deleted stays what it is", postgres.listen() == "None" and reaches())
        tries("23: a new file of the name", POSTGRES)
    restore(RULES)


def refusals():
    """How often the rules have refused something."""
    return sum(rule["denied"] for rule in json.loads(kopictl("rule", "list", "--json")[1])["rules"])


def overlaid():
    """An overlay gives its files the numbers of those in its layers: two can have the same."""
    lower, layers = "/tmp/lower", "/tmp/layers"
    names = (f"{layers}/all/{number}" for number in range(100, 10000))
    sh(f"mkdir -p {lower} {layers} && mount -t tmpfs none {lower} && mount -t tmpfs none {layers}")
    sh(f"cd {layers} && mkdir up work all && touch {lower}/{{1..50}} && cp {PYTHON} {lower}/postgres && chmod 755 {lower}")
    sh(f"mount -t overlay none -o lowerdir={lower},upperdir={layers}/up,workdir={layers}/work {layers}/all")
    postgres = f"{layers}/all/postgres"
    restore(RULES.replace(POSTGRES, postgres))
    number = os.stat(f"{lower}/postgres").st_ino
    for name in names:
        os.close(os.open(name, os.O_CREAT, 0o755))
        if os.stat(name.replace("/all/", "/up/")).st_ino == number:
            break
    else:
        raise AssertionError("no file of the upper layer has the number")
    shutil.copy(PYTHON, name)

    def tries(what, path, wanted):
        with Program(path, BOB) as program:
            got = program.listen()
        check(f"in an overlay: {what}", got == wanted, got)
    tries("its program has the port", postgres, "None")
    tries("28: another layer's file with its inode number", name, "EACCES")
    os.chmod(postgres, 0o711)
    tries("the program's copy in the upper layer", postgres, "EACCES")
    restore(RULES.replace(POSTGRES, postgres))
    tries("which has the port when the rules are restored", postgres, "None")
    sh(f"umount {layers}/all {layers} {lower} && rmdir {layers} {lower}")
    restore(RULES)


L2TP = """!
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
def l2tp(fd, session):
    "A socket of PPP by L2TP, by a tunnel through the UDP socket, which session 0 makes."
    made = socket.socket(24, socket.SOCK_DGRAM, 1)
    name = struct.pack("=HIii16s4H", 24, 1, 0, fd, bytes(16), TUNNEL, session, TUNNEL, session)
    if libc.connect(made.fileno(), name, len(name)):
        raise OSError(ctypes.get_errno(), "connect")
    return made
"""
FAR = 7002


def l2tp_of(tunnel):
    """The code that makes a tunnel of that number, for a program that is fed line by line."""
    return "!exec(" + repr(L2TP[1:].replace("TUNNEL", str(tunnel))) + ", globals())"


def tunnels():
    """L2TP takes a process's UDP socket, sends by it, and gets what comes to it."""
    if os.uname().release.endswith("-debug"):
        # It has no L2TP.
        return
    sh("modprobe l2tp_ppp")
    connects = f"!u = socket.socket(2, 2); u.connect(({PEER!r}, {FAR}))"
    with Program(IMPOSTOR, CHARLIE) as impostor:
        impostor(l2tp_of(1))
        impostor(connects)
        got = impostor("(a := l2tp(u.fileno(), 0))")
        check("31: a tunnel of L2TP through its UDP socket", got == "EACCES", got)
        enforce("off")
        made = impostor("(a := l2tp(u.fileno(), 0))"), impostor("(b := l2tp(u.fileno(), 1))")
        check("without enforcing, it is anybody's", impostor("b.send(b'x')") == "1", made)
        enforce("on")
        check("32: a tunnel from before", impostor("b.send(b'x')") == "EACCES" and impostor("b.recv(9)") == "EACCES")
    tunnel_of_flow()
    restore(RULES)


def occupied():
    """AF_RXRPC has the kernel bind a UDP socket, or sends by one that it has made for another user."""
    if os.uname().release.endswith("-debug"):
        # It has no AF_RXRPC.
        return
    sh("modprobe rxrpc")
    with Program(IMPOSTOR, CHARLIE) as impostor:
        impostor("!import ctypes, struct; libc = ctypes.CDLL(None, use_errno=True)")
        impostor("!x = socket.socket(33, socket.SOCK_DGRAM, socket.AF_INET)")
        impostor(f"!name = struct.pack('=4HH', 33, 0, 2, 16, 2) + struct.pack('>H', {PORT}) + bytes(24)")
        got = impostor("libc.bind(x.fileno(), name, len(name)) and errno.errorcode[ctypes.get_errno()]")
        check("34: a port that rules keep for others, by AF_RXRPC", got == "'EACCES'", got)
        impostor("!x = socket.socket(33, socket.SOCK_DGRAM, socket.AF_INET)")
        impostor(f"!name = struct.pack('=4HH', 33, 1, 2, 16, 2) + struct.pack('>H', {FAR})"
                 f" + socket.inet_aton({PEER!r}) + bytes(20)")
        got = impostor("libc.connect(x.fileno(), name, len(name)) and errno.errorcode[ctypes.get_errno()]")
        check("35: a UDP socket of the kernel's, by AF_RXRPC", got == "'EACCES'", got)
        got = impostor("libc.sendto(x.fileno(), b'x', 1, 0, name, len(name)) and errno.errorcode[ctypes.get_errno()]")
        check("36: the same without connect()", got == "'EACCES'", got)
        impostor("!x = socket.socket(33, socket.SOCK_DGRAM, socket.AF_INET)")
        impostor(f"!name = struct.pack('=4HH', 33, 0, 2, 16, 2) + struct.pack('>H', {PORT}) + bytes(24)")
        enforce("off")
        got = impostor("libc.bind(x.fileno(), name, len(name)) and errno.errorcode[ctypes.get_errno()]")
        check("without enforcing, it is bound", got == "0", got)
    enforce("on")
    by_rds()
    by_tipc()


def by_rds():
    """AF_RDS sends by a connection of the kernel's, for all users."""
    sh("modprobe -a rds rds_tcp")
    with Program(IMPOSTOR, CHARLIE) as impostor:
        impostor("!import ctypes, struct; libc = ctypes.CDLL(None, use_errno=True)")
        impostor("!x = socket.socket(21, socket.SOCK_SEQPACKET, 0)")
        for what, address, call in (("37: RDS", HOST, "libc.bind(x.fileno(), name, 16)"),
                                    ("38: RDS, sending", PEER, "libc.sendto(x.fileno(), b'x', 1, 0, name, 16)")):
            impostor(f"!name = struct.pack('=H', 2) + struct.pack('>H', 4000) + socket.inet_aton({address!r}) + bytes(8)")
            got = impostor(f"{call} and errno.errorcode[ctypes.get_errno()]")
            check(what, got == "'EACCES'", got)
        enforce("off")
        impostor(f"!name = struct.pack('=H', 2) + struct.pack('>H', 4000) + socket.inet_aton({HOST!r}) + bytes(8)")
        got = impostor("libc.bind(x.fileno(), name, 16) and errno.errorcode[ctypes.get_errno()]")
        check("without enforcing, it is bound", got == "0", got)
    enforce("on")
    sh("modprobe -r rds_tcp rds")


def by_tipc():
    """TIPC sends by a UDP bearer of the administrator's."""
    # L2TP over IP is refused in the same place. Not here: its slab's name has a slash (7.3.4), so that nobody can list
    # /sys/kernel/slab any more once it was loaded.
    sh("modprobe tipc")
    with Program(IMPOSTOR, CHARLIE) as impostor:
        impostor("!import ctypes, struct; libc = ctypes.CDLL(None, use_errno=True)")
        impostor("!x = socket.socket(30, socket.SOCK_RDM, 0)")
        impostor("!name = struct.pack('=HBbIII', 30, 2, 1, 1000, 1, 0)")
        send = "(libc.sendto(x.fileno(), b'out', 3, 0x40, name, len(name)) < 0) and errno.errorcode[ctypes.get_errno()]"
        got = impostor(send)
        check("39: TIPC", got == "'EACCES'", got)
        enforce("off")
        got = impostor(send)
        check("without enforcing, TIPC is not refused", got != "'EACCES'", got)
        enforce("on")
        impostor("!x.close()")
    # A closed socket holds its module for a while.
    check("the module goes", wait_until(lambda: not subprocess.run(
        ["modprobe", "-r", "tipc"], capture_output=True, check=False).returncode))


def tunnel_of_flow():
    """The same through a flow, whose packets are judged with any rules."""
    restore("default allow\nenforce off\n")
    with namespace("peer"):
        sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sink, Program(IMPOSTOR, CHARLIE) as impostor:
        sink.bind((PEER, FAR))
        sink.settimeout(20)
        impostor("!sys.path.insert(0, '/kopi/selftests'); import kopi")
        impostor(l2tp_of(2))
        impostor(f"!u = kopi.flow(); u.bind(({HOST!r}, 0)); u.connect(({PEER!r}, {FAR}))")
        made = impostor("(a := l2tp(u.fileno(), 0))"), impostor("(b := l2tp(u.fileno(), 1))")
        impostor("b.send(b'before')")
        check("L2TP sends by a flow", sink.recv(100).endswith(b"before"), made)
        restore(f"default allow\nexe {IMPOSTOR} remote-port {FAR} deny\n")
        impostor("b.send(b'after')")
        sink.settimeout(1.5)
        try:
            came = sink.recv(100)
        except TimeoutError:
            came = None
        sink.settimeout(20)
        judged = json.loads(kopictl("rule", "list", "--json")[1])["rules"][0]["packets"]
        check("33: what it sends by a flow that a rule denies", came is None and judged == 1, (came, judged))
        restore("default allow\n")
        impostor("b.send(b'again')")
        check("and without the rule it comes again", sink.recv(100).endswith(b"again"))


def flows():
    """Flows are judged as before: with data before accept(), and after close()."""
    with Program() as postgres:
        refused = refusals()
        postgres("!sys.path.insert(0, '/kopi/selftests'); import kopi")
        made = postgres(f"(s := kopi.listener(address=({HOST!r}, {PORT})))")
        with namespace("peer"), socket.create_connection((HOST, PORT), 10) as peer:
            peer.send(b"early")
            peer.settimeout(30)
            postgres("!c = s.accept()[0]")
            check("a flow gets what came before accept()", postgres("c.recv(100)") == "b'early'", made)
            postgres("c.send(b'late')")
            postgres("c.close()")
            check("and what it wrote before close() goes", peer.recv(100) == b"late" and peer.recv(100) == b"")
        check("at once: nothing is refused, to be sent again", refusals() == refused, refusals() - refused)


def given_away():
    """Sockets that their owner gives to others."""
    with Program() as postgres:
        assert postgres.listen() == "None"
        postgres("os.set_inheritable(s.fileno(), True)")
        number = int(postgres("s.fileno()"))
        # The same process, as another program.
        postgres.tell(f"!os.execv({IMPOSTOR!r}, [{IMPOSTOR!r}, '-c', {Program.FEED!r}])")
        program = f"/proc/{postgres.process.pid}/exe"
        # What it is fed before that, the first program may have read.
        assert wait_until(lambda: os.readlink(program) == IMPOSTOR)
        postgres(f"!s = socket.socket(fileno={number})")
        check("24: exec of another program", postgres("s.accept()") == "EACCES")
        check("which the peer can't use", not reaches(within=1.5))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    os.chmod("/tmp/enforced", 0o777)
    with ours, theirs, Program(pass_fds=(theirs.fileno(),)) as postgres, \
            Program(IMPOSTOR, CHARLIE, pass_fds=(ours.fileno(),)) as impostor:
        postgres(f"!u = socket.socket(fileno={theirs.fileno()})")
        impostor(f"!u = socket.socket(fileno={ours.fileno()})")
        assert postgres.listen() == "None"
        with namespace("peer"), socket.create_connection((HOST, PORT), 10) as peer:
            postgres("!c = s.accept()[0]")
            postgres("socket.send_fds(u, [b'x'], [s.fileno(), c.fileno()])")
            impostor("!fds = socket.recv_fds(u, 1, 2)[1]")
            impostor("!s, c = (socket.socket(fileno=fd) for fd in fds)")
            peer.send(b"a secret")
            check("25: a connection by SCM_RIGHTS: it can't be read", impostor("c.recv(100)") == "EACCES")
            check("nor written", impostor("c.send(b'x')") == "EACCES")
            check("26: a listener by SCM_RIGHTS", impostor("s.accept()") == "EACCES")
            check("its owner has all that came", postgres("c.recv(100)") == "b'a secret'")


def before():
    """Sockets that were there before the rules were enforced."""
    enforce("off")
    with Program(IMPOSTOR, CHARLIE) as impostor:
        check("without enforcing, the port is anybody's", impostor.listen() == "None" and reaches())
        enforce("on")
        check("27: a listener from before", not reaches(within=1.5) and impostor("s.accept()") == "EACCES")
    enforce("off")
    with Program() as postgres:
        assert postgres.listen() == "None"
        enforce("on")
        check("the owner's from before is known, though it sleeps", reaches())
    mptcp_before()


def mptcp_before():
    """The same of MPTCP, whose sockets have TCP socks that are the kernel's, with a connection."""
    def listens(program):
        program(f"!s = socket.socket(2, 1, {IPPROTO_MPTCP}); s.setsockopt(1, 2, 1)")
        return program(f"s.bind(({HOST!r}, {PORT}))"), program("s.listen()")

    enforce("off")
    with Program(IMPOSTOR, CHARLIE) as impostor, contextlib.ExitStack() as peers:
        assert listens(impostor) == ("None", "None")
        kept = connected(peers, impostor)
        enforce("on")
        check("29: MPTCP's listener from before", not reaches(within=1.5))
        kept.send(b"question")
        check("30: and its connection", impostor("c.recv(100)") == "EACCES" and impostor("c.send(b'x')") == "EACCES")
    enforce("off")
    with Program() as postgres, contextlib.ExitStack() as peers:
        assert listens(postgres) == ("None", "None")
        kept = [connected(peers, postgres, "c"), connected(peers, postgres, "d", IPPROTO_MPTCP)]
        enforce("on")
        check("the owner's MPTCP from before is known", reaches())
        for peer, name in zip(kept, "cd"):
            peer.send(b"question")
            check("and its connection gets", postgres(f"{name}.recv(100)") == "b'question'")
            check("and sends", postgres(f"{name}.send(b'answer')") == "6" and peer.recv(100) == b"answer")


def others_are_as_they_were():
    """What is shown and saved; who may; what is left."""
    status, said = kopictl("rule", "save")
    check("it is saved", status == 0 and "\nenforce on\n" in said, said)
    check("and listed", "enforce on" in kopictl("rule", "list")[1])
    check("the hooks are kept", os.path.exists("/sys/fs/bpf/kopi-enforce/kopi_bind"))
    check("the module stays", subprocess.run(["rmmod", "kopi"], capture_output=True, check=False).returncode != 0)
    done = subprocess.run(["unshare", "-Urn", "kopictl", "rule", "enforce", "on"], user=CHARLIE, capture_output=True,
                          text=True, check=False)
    check("root of a user namespace can't", done.returncode != 0 and "initial user namespace" in done.stderr, done.stderr)
    restore("default allow\n")
    check("without a word it stays", "enforce on" in kopictl("rule", "list")[1])
    enforce("off")
    check("off: the hooks are gone", not os.path.exists("/sys/fs/bpf/kopi-enforce"))
    check("and nothing holds the module", wait_until_unused())


with namespace("host"):
    begin()
    for case in (owner_works, direct_ways, io_uring_bind, places, programs, overlaid, flows, given_away, before,
                 tunnels, occupied, others_are_as_they_were):
        case()
end()
os.rmdir(GROUP)
finish()
