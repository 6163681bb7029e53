#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""By `kopi run`, a program does what it does alone, however it was built and whatever it inherits: with
AddressSanitizer, fortified, static; with another preloaded library; with a filter of system calls."""

import ctypes
import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

import kopi
from kopi import check

HERE = os.path.dirname(os.path.abspath(__file__))
RUN = ["kopi", "run", "--min-datagrams", "1"]
BESIDE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/socket.h>
ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *name, socklen_t len)
{
	fprintf(stderr, "beside\n");
	return ((__typeof__(&sendto))dlsym(RTLD_NEXT, "sendto"))(fd, data, size, flags, name, len);
}
"""
TCP = ("import socket; a = socket.create_server(('127.0.0.1', 0)); b = socket.create_connection(a.getsockname()); "
       "c = a.accept()[0]; b.send(b'hello'); print(c.recv(9))")


def build(name, *options, source=f"{HERE}/preload/sends.c"):
    """Compiles it."""
    subprocess.run(["gcc", "-O2", "-g", "-w", *options, source, "-o", name], check=True)
    return os.path.abspath(name)


def outcome(*command, **options):
    """Runs it: its status, what it said without what a channel has to do with, and all of it."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, **options)
    return done.returncode, [line for line in done.stdout.splitlines() if not line.startswith("channel")], done


def is_same(what, program, channel="channel: 1", lines=21, **options):
    """The same by `kopi run`, on a channel."""
    alone, run = outcome(program, **options), outcome(*RUN, program, **options)
    check(f"{what}: the same as alone", alone[:2] == run[:2] and alone[0] == 0 and len(alone[1]) == lines,
          f"{alone} {run}".replace("\n", "\n# "))
    check(f"{what}: {channel}", channel in run[2].stdout, run[2].stderr)
    return run[2]


def sanitized():
    """AddressSanitizer, whose library wants to be the first one, or is part of the program."""
    for what, options in (("AddressSanitizer", ()), ("AddressSanitizer in the program", ("-static-libasan",))):
        program = build("sanitized", "-fsanitize=address", *options)
        is_same(what, program)
        is_same(f"{what}, with options of one's own", program,
                env=os.environ | {"ASAN_OPTIONS": "detect_stack_use_after_return=1"})
        for by in ([], RUN):
            status, _, done = outcome(*by, program, "x")
            check(f"{what}: finds what is wrong {'by kopi run' if by else 'alone'}",
                  status == 1 and "heap-buffer-overflow" in done.stderr, f"{status} {done.stderr[-500:]}")


def built():
    """Fortified, and static."""
    is_same("fortified", build("fortified", "-D_FORTIFY_SOURCE=3"))
    said = is_same("static", build("static", "-static"), "channel: no flow").stderr
    check("static: kopi run says that it has ordinary sockets", "statically linked" in said, said)


def beside():
    """A library that the user preloads keeps its place before the C library."""
    with open("beside.c", "w", encoding="ascii") as source:
        source.write(BESIDE)
    library = build("beside.so", "-shared", "-fPIC", source="beside.c")
    done = is_same("another preloaded library", build("plain"), env=os.environ | {"LD_PRELOAD": library})
    check("another preloaded library: is called", done.stderr.count("beside") >= 1, done.stderr)
    with open("other.c", "w", encoding="ascii") as source:
        source.write(BESIDE.replace("ssize_t sendto(int fd, const void *data, size_t size, int flags, const struct sockaddr *name, "
                                    "socklen_t len)", "int socket(int fd, int data, int size)")
                     .replace("&sendto", "&socket").replace('"sendto"', '"socket"')
                     .replace("(fd, data, size, flags, name, len)", "(fd, data, size)"))
    library = build("other.so", "-shared", "-fPIC", source="other.c")
    status, said, done = outcome("kopi", "run", "--verbose", os.path.abspath("plain"), env=os.environ | {"LD_PRELOAD": library})
    check("one that has a socket() of its own: has it for each socket, and the program gets no flows",
          status == 0 and len(said) == 21 and "beside" in done.stderr and "channel: no flow" in done.stdout
          and "a socket() of its own" in done.stderr, str(done))


def cancelled():
    """Threads that are cancelled end where they would alone, and the process goes on."""
    is_same("threads that are cancelled", build("cancelled", "-pthread", source=f"{HERE}/preload/cancelled.c"), lines=83)


def forked():
    """A signal handler calls fork() as a ring has sent: parent and child go on as they would alone."""
    is_same("a handler that calls fork()", build("forked", source=f"{HERE}/preload/forked.c"), lines=15)


def jumped():
    """Signal handlers leave calls by siglongjmp(): threads can be cancelled, and further sockets get to rings."""
    program = build("jumped", "-pthread", source=f"{HERE}/preload/jumped.c")
    is_same("handlers that leave by siglongjmp()", program, lines=2)


def capable():
    """The loader loads no libraries of its caller's into a program whose file has capabilities, but for root."""
    plain = build("capable")
    # CAP_NET_RAW, permitted and effective: VFS_CAP_REVISION_2.
    os.setxattr(plain, "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
    os.chmod(".", 0o755)
    is_same("a file with capabilities, for root", plain)
    bob = ["setpriv", "--reuid", "bob", "--regid", "bob", "--clear-groups"]
    for by, word in ((bob, "programs with capabilities"), ([], None)):
        status, _, done = outcome(*by, *RUN, plain)
        check(f"a file with capabilities: {'kopi run says so to bob' if by else 'nothing is said to root'}",
              status == 0 and (word in done.stderr if word else not done.stderr)
              and ("no flow" in done.stdout) == bool(by), str(done))


UNTIL_THEN = """
import os, resource, socket, sys
def make():
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            try:
                return len(sock.getsockopt(0x4b4f, 1, 16))
            except OSError:
                return "no flow"
    except OSError as error:
        return error.errno
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 4096))
first = make()
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
print(first, make())
"""
REUSED = """
import os, socket
os.close(2)
assert os.open("said", os.O_RDWR | os.O_CREAT, 0o600) == 2
for _ in range(2):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", 9))
        sock.send(b"x")
print(os.path.getsize("said"))
"""


def transient():
    """A first socket() that fails for now doesn't turn flows off."""
    _, said, done = outcome(*RUN, sys.executable, "-c", UNTIL_THEN)
    check("no descriptor for the first socket: the next one is a flow", said == [f"{errno.EMFILE} 16"], str(done))


ASKING = """
import ctypes, socket
assert ctypes.CDLL(None).prctl(22, 2, None, 0, 0) == -1
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
    print(len(sock.getsockopt(0x4b4f, 1, 16)))
"""


def asking():
    """A program that asks whether there are filters, by one at no address, restricts nothing."""
    _, said, done = outcome(*RUN, sys.executable, "-c", ASKING)
    check("prctl() with a filter at no address: sockets are flows", said == ["16"], str(done))


def misplaced():
    """`kopi` in folders whose paths LD_PRELOAD can't have."""
    program = os.path.realpath(shutil.which("kopi"))
    places = [os.path.join(os.path.dirname(program), place)
              for place in ("libkopi_preload.so", "../lib/libkopi-preload.so", "../lib/kopi/libkopi-preload.so")]
    library = next(filter(os.path.exists, places))
    for folder in ("a folder", "a:folder"):
        os.mkdir(folder)
        shutil.copy(program, folder)
        shutil.copy(library, f"{folder}/libkopi_preload.so")
        status, _, done = outcome(os.path.abspath(f"{folder}/kopi"), "run", os.path.abspath("plain"))
        check(f"kopi in \"{folder}\": the program runs with UDP sockets, and kopi run says so",
              status == 0 and "a space or a colon" in done.stderr and "no flow" in done.stdout, str(done))


def silent():
    """What is said doesn't come into another file that is descriptor 2 by now."""
    said, told = (outcome(*RUN[:2], "--explain", *RUN[2:], sys.executable, "-c", code)
                  for code in (REUSED, REUSED.replace("os.close(2)", "os.close(os.dup(2))").replace("== 2", "> 2")))
    check("descriptor 2 is another file: nothing is said in it", said[1] == ["0"] and not said[2].stderr, str(said[2]))
    nobody, into = os.pipe()
    os.close(nobody)
    with os.fdopen(into, "wb") as pipe, open("/dev/full", "wb") as full:
        for what, stderr in (("a pipe that nobody reads", pipe), ("a full disk", full)):
            # Of the static one kopi run itself has something to say.
            for program, out in (("plain", "channel: 1"), ("static", "channel: no flow")):
                done = subprocess.run([*RUN[:2], "--explain", *RUN[2:], os.path.abspath(program)], text=True,
                                      stdout=subprocess.PIPE, stderr=stderr, timeout=300, check=False)
                check(f"{what}: the program is started, and isn't ended: {program}",
                      done.returncode == 0 and out in done.stdout, str(done))
        missing = subprocess.run([*RUN, os.path.abspath("missing")], stderr=full, timeout=300, check=False).returncode
    check("a full disk, and no program: 127", missing == 127, missing)
    check("while it is standard error, it is said there", "sends by a channel" in told[2].stderr, str(told[2]))


def filtered(action):
    """Has the calling process restrict its system calls: socket() of KOPI's family gets `action`."""
    ins = struct.pack
    program = b"".join([
        ins("=HBBI", 0x20, 0, 0, 0),                     # the number
        ins("=HBBI", 0x15, 0, 3, 41),                    # socket:
        ins("=HBBI", 0x20, 0, 0, 16),                    # its domain
        ins("=HBBI", 0x15, 0, 1, kopi.AF_KOPI),
        ins("=HBBI", 0x06, 0, 0, action),
        ins("=HBBI", 0x06, 0, 0, 0x7fff0000)])           # else allow
    memory = ctypes.create_string_buffer(program)
    descriptor = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", 6, ctypes.addressof(memory)))
    assert kopi.libc.prctl(38, 1, 0, 0, 0) == 0 and kopi.libc.prctl(22, 2, descriptor, 0, 0) == 0


def restricted():
    """A filter that the program inherits."""
    for number in (errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT):
        def refuse(number=number):
            filtered(0x00050000 | number)
        name = errno.errorcode[number]
        is_same(f"a filter that gives {name}", os.path.abspath("plain"), "channel: no flow", preexec_fn=refuse)
        status, said, done = outcome("kopi", "run", "--tcp", "--verbose", sys.executable, "-c", TCP, preexec_fn=refuse)
        check(f"a filter that gives {name}: TCP, too, and kopi run says so",
              (status, said) == (0, ["b'hello'"]) and "ordinary sockets" in done.stderr, str(done))
    status, _, done = outcome(*RUN, os.path.abspath("plain"), preexec_fn=lambda: filtered(0x80000000))
    check("a filter that kills for an unknown family kills", status == -signal.SIGSYS, str(done))


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    sanitized()
    built()
    beside()
    cancelled()
    forked()
    jumped()
    capable()
    transient()
    asking()
    misplaced()
    silent()
    restricted()
    os.chdir("/")
kopi.finish()
