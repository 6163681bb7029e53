# SPDX-License-Identifier: GPL-2.0
"""Programs whose ordinary sockets are judged by enforced rules."""

import os
import shutil
import socket
import subprocess
import sys
import time

from equivalence import namespace, sh
from kopi import become, expect, move_to

HOST, PEER, PORT = "192.0.2.1", "192.0.2.2", 5432
HOST6 = "2001:db8::1"
PYTHON = os.path.realpath(sys.executable)
BOB, CHARLIE = 1002, 1003
POSTGRES, IMPOSTOR = "/tmp/enforced/postgres", "/tmp/enforced/impostor"
RULES = f"""default allow
enforce on
user bob exe {POSTGRES} local-port {PORT} allow
local-port {PORT} deny
"""


def kopictl(*words, given=None):
    """Runs kopictl; gives its status and what it wrote."""
    done = subprocess.run(["kopictl", *words], input=given, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def restore(text):
    """Puts rules in force."""
    status, said = kopictl("restore", "-", given=text)
    assert status == 0, said


def enforce(switch):
    """Turns it on or off."""
    status, said = kopictl("rule", "enforce", switch)
    assert status == 0, said


class Program:
    """A program that a user runs, as Python code that is fed line by line; each line's result is an errno's name,
    or what the expression gives."""

    FEED = ("import errno,os,socket,struct,sys,array,time\n"
            "for line in sys.stdin:\n"
            "    try: out = repr(eval(line)) if not line.startswith('!') else exec(line[1:])\n"
            "    except OSError as error: out = errno.errorcode.get(error.errno, type(error).__name__)\n"
            "    except Exception as error: out = repr(error)\n"
            "    print(out, flush=True)\n")

    def __init__(self, program=POSTGRES, user=BOB, pass_fds=(), group=None, groups=()):
        def prepare():
            if group:
                move_to(group)
            become(user, groups)
        self.process = subprocess.Popen([program, "-c", self.FEED], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, preexec_fn=prepare, pass_fds=pass_fds,
                                        env=os.environ | {"PYTHONHOME": sys.base_prefix})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def tell(self, line):
        """Feeds a line."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def __call__(self, line):
        self.tell(line)
        return self.process.stdout.readline().strip()

    def do(self, *lines):
        """Executes statements, each of which has to succeed."""
        for line in lines:
            said = self(f"!{line}")
            expect(said == "None", line, said)

    def listen(self, address=HOST, port=PORT, options=""):
        """Makes `s`, a listener; gives what the first call gave that failed, or None."""
        family = "socket.AF_INET6" if ":" in address else "socket.AF_INET"
        self(f"!s = socket.socket({family}, socket.SOCK_STREAM)")
        self("s.setsockopt(1, 2, 1)")
        for option in options.split(";"):
            self(option or "0")
        bound = self(f"s.bind(({address!r}, {port}))")
        return bound if bound != "None" else self("s.listen()")


def connected(peers, program, name="c", protocol=0):
    """A connection of the peer's to the program, which calls its end that."""
    with namespace("peer"):
        peer = peers.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol))
    peer.settimeout(10)
    peer.connect((HOST, PORT))
    program(f"!{name} = s.accept()[0]")
    return peer


def begin():
    """The programs, which are copies of one, and the rules."""
    sh("mountpoint -q /sys/fs/bpf || mount -t bpf none /sys/fs/bpf")
    os.makedirs("/tmp/enforced", exist_ok=True)
    os.chmod("/tmp/enforced", 0o777)
    for name in POSTGRES, IMPOSTOR:
        shutil.copy(PYTHON, name)
    restore(RULES)


def reaches(address=HOST, port=PORT, within=20):
    """Whether the peer gets a connection in that time, in seconds."""
    with namespace("peer"), socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
        sock.settimeout(within)
        return sock.connect_ex((address, port)) == 0


def floods(port, pause=0):
    """The peer, which sends all the time, with a pause in seconds behind each datagram."""
    with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        while True:
            sender.sendto(b"for bob", (HOST, port))
            if pause:
                time.sleep(pause)


def end():
    """Takes the programs away."""
    shutil.rmtree("/tmp/enforced")
