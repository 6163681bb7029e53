#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A process that only says that it is a set-user-ID program, by an auxiliary vector of its own, has nothing of what
rules allow to another user: neither by a new flow, nor by a flow or a socket of that user's."""

import ctypes
import os
import shutil
import socket
import struct

from enforced import BOB, CHARLIE, IMPOSTOR, POSTGRES, Program, begin, end, restore
from equivalence import namespace
from kopi import check, expect, finish, ip_flow, wait_until

AT_NULL, AT_SECURE, PR_SET_MM, PR_SET_MM_MAP = 0, 23, 35, 14
# Of /proc/PID/stat, from 1, in the order of struct prctl_mm_map; brk is missing there.
STAT_OF_MAP = (26, 27, 45, 46, 47, None, 28, 48, 49, 50, 51)


def claim_set_uid():
    """The current process is a set-user-ID program from now on, by what it says of itself."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    with open("/proc/self/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    words = [libc.sbrk(0) if at is None else int(fields[at - 3]) for at in STAT_OF_MAP]
    auxv = (ctypes.c_uint64 * 4)(AT_SECURE, 1, AT_NULL, 0)
    as_map = struct.pack("=12QIi", *words, ctypes.addressof(auxv), ctypes.sizeof(auxv), -1)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, as_map, len(as_map), 0):
        return ctypes.get_errno()
    with open("/proc/self/auxv", "rb") as said:
        return struct.unpack("=2Q", said.read(16)) == (AT_SECURE, 1)


def of_capable_program():
    """A socket that a program with capabilities has inherited, and of which nothing was known before rules were
    enforced, isn't that program's for who claims to be a set-user-ID program."""
    capable = "/tmp/enforced/capable"
    shutil.copy(shutil.which("sleep"), capable)
    os.setxattr(capable, "security.capability", struct.pack("<5I", 0x02000001, 1 << 13, 0, 0, 0))
    with Program(IMPOSTOR, CHARLIE) as charlie:
        charlie.do("sys.path.insert(0, '/kopi/selftests')", "import subprocess",
                   "from rules_claimed_set_uid import claim_set_uid", "to = ('192.0.2.2', 9)",
                   "sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "sock.bind(('192.0.2.1', 0))",
                   f"started = subprocess.Popen(['{capable}', '600'], pass_fds=[sock.fileno()])")
        wait_until(lambda: charlie("os.readlink(f'/proc/{started.pid}/exe')") in (f"'{capable}'", "EACCES"))
        restore(f"default deny\nenforce on\nuser charlie exe {capable} allow\n")
        claimed = charlie("claim_set_uid()")
        expect(claimed == "True", "charlie claims to be a set-user-ID program", claimed)
        got = charlie("sock.sendto(b'x', to)")
        check("who claims it has nothing of what a program with capabilities may", got == "EACCES", got)
        charlie("!started.kill()")
    restore("default allow\nenforce off\n")


def of_same_user():
    """What a program has opened isn't that program's any more in the hands of another one of the same user, whatever
    that says of itself: each call of a flow and of a socket is judged as of who makes it."""
    restore(f"default deny\nenforce on\nuser charlie exe {POSTGRES} allow\n")
    # A user can give each file of his to one of his groups, as a set-group-ID program.
    copy = "/tmp/enforced/copy"
    shutil.copy(IMPOSTOR, copy)
    os.chown(copy, CHARLIE, BOB)
    os.chmod(copy, 0o2755)
    inherited_by(IMPOSTOR, "claim_set_uid()")
    # That is one in truth.
    inherited_by(copy, "os.getegid() != os.getgid()")
    restore("default allow\nenforce off\n")


def inherited_by(program, becomes):
    """Another program gets a flow and a socket of charlie's by exec; what makes it a set-user-ID program is said."""
    with Program(POSTGRES, CHARLIE, groups=(BOB,)) as charlie:
        charlie.do("sys.path.insert(0, '/kopi/selftests')", "import kopi", "to = ('192.0.2.2', 9)",
                   "make = [kopi.ip_flow, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)]",
                   "socks = [each() for each in make * 2]",
                   "[each.set_inheritable(True) for each in socks]")
        sent = charlie("[each.sendto(b'x', to) for each in socks]")
        expect(sent == "[1, 1, 1, 1]", "the program that rules name sends", sent)
        numbers = charlie("[each.fileno() for each in socks]")
        charlie.tell(f"!os.execv({program!r}, [{program!r}, '-c', {Program.FEED!r}])")
        wait_until(lambda: os.readlink(f"/proc/{charlie.process.pid}/exe") == program)
        charlie.do("sys.path.insert(0, '/kopi/selftests')", "from rules_claimed_set_uid import claim_set_uid",
                   f"given = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM, fileno=fd) for fd in {numbers}]",
                   "to = ('192.0.2.2', 9)")
        for what, at in ("flow", 0), ("socket", 1):
            got = charlie(f"given[{at}].sendto(b'x', to)")
            check(f"{program}, the same user's, may not use its {what}", got == "EACCES", got)
        claimed = charlie(becomes)
        expect(claimed == "True", "it is such a program by what it says, or in truth", claimed)
        # Those that it has not used yet.
        for what, at in ("flow", 2), ("socket", 3):
            for call in "sendto(b'x', to)", "connect(to)":
                got = charlie(f"given[{at}].{call}")
                check(f"nor may it then: its {what}'s {call}", got == "EACCES", got)


def main():
    """The test."""
    with namespace("host"):
        begin()
        restore("default deny\nenforce on\nuser root protocol udp allow\n")
        with ip_flow() as roots_flow, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as roots_socket:
            for each in roots_flow, roots_socket:
                each.bind(("0.0.0.0", 0))
                each.sendto(b"root's", ("192.0.2.2", 9))
            passed = [roots_flow.fileno(), roots_socket.fileno()]
            with Program(IMPOSTOR, CHARLIE, pass_fds=passed) as charlie:
                charlie.do("sys.path.insert(0, '/kopi/selftests')",
                           "import kopi; from rules_claimed_set_uid import claim_set_uid",
                           f"fds = {passed}", "to = ('192.0.2.2', 9)", "new = kopi.ip_flow()",
                           "given = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM, fileno=fd) for fd in fds]")
                denied = charlie("new.sendto(b'x', to)")
                expect(denied == "EACCES", "charlie may not send", denied)
                claimed = charlie("claim_set_uid()")
                expect(claimed == "True", "charlie claims to be a set-user-ID program", claimed)
                with ip_flow():
                    got = charlie("kopi.ip_flow().sendto(b'x', to)")
                check("who opens a flow owns it, whoever opened one before", got == "EACCES", got)
                for what, at in ("flow", 0), ("socket", 1):
                    got = charlie(f"given[{at}].sendto(b'x', to)")
                    check(f"who uses another user's {what} is judged as of himself", got == "EACCES", got)
        restore("default allow\nenforce off\n")
        of_capable_program()
        of_same_user()
        end()
    finish()


if __name__ == "__main__":
    main()
