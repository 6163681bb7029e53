#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A set-user-ID program that is given a flow or a socket, as its standard error, say, doesn't make its user the owner:
who starts such programs gets nothing of what rules allow to root."""

import os
import socket

from enforced import CHARLIE, HOST, IMPOSTOR, PYTHON, Program, begin, end, kopictl, restore
from equivalence import namespace, sh
from kopi import check, finish, wait_until

SET_UID = "/tmp/enforced/root"


def stats(program):
    """The flow's counters."""
    return eval(program("ch.stats()"))


with namespace("host"):
    begin()
    sh(f"cp {PYTHON} {SET_UID} && chown root {SET_UID} && chmod 4755 {SET_UID} && mount -o remount,suid /tmp || true")
    restore("default allow\n")
    with Program(IMPOSTOR, CHARLIE) as charlie:
        charlie.do("sys.path.insert(0, '/kopi/selftests')", "import kopi, subprocess", "u = kopi.flow()",
                   "ch = kopi.Channel(u)", "for n in range(ch.frame_count): ch.fill.push(ch.frame(n))")
        restore("default deny\nuser root protocol udp allow\n")
        code = "import os; print(os.geteuid()); os.write(9, bytes(1))"
        ran = charlie(f"(os.dup2(u.fileno(), 9), subprocess.run([{SET_UID!r}, '-c', {code!r}], pass_fds=[9], "
                      "capture_output=True, text=True))[1]")
        check("the program ran as root, and wrote to the flow", "stdout='0" in ran and "Destination address required" in ran, ran)
        port = int(charlie("u.getsockname()[1]"))
        with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"for root", (HOST, port))
        check("what comes is judged as of who opened the flow", wait_until(lambda: stats(charlie)["rx_taken"] == 1)
              and stats(charlie)["rx_drop_rule"] == 1, stats(charlie))
        got = charlie("(ch.send(0, b'x', ('192.0.2.2', 9)), ch.bell(), ch.completion.pop()[4])[2]")
        check("and so is what it sends", got == "13", got)
    restore("default allow\nenforce on\nuser root protocol udp allow\nremote 192.0.2.2 protocol udp deny\n")
    with Program(IMPOSTOR, CHARLIE) as charlie:
        charlie.do("import subprocess", "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
        ran = charlie(f"(os.dup2(s.fileno(), 9), subprocess.run([{SET_UID!r}, '-c', {code!r}], pass_fds=[9], "
                      "capture_output=True, text=True))[1]")
        check("the program made the first call on an ordinary socket", "stdout='0" in ran, ran)
        port = int(charlie("s.getsockname()[1]"))
        with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"for root", (HOST, port))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"for charlie", (HOST, port))
        got = charlie("s.recv(64)")
        check("what comes to that is judged as of who made it", got == repr(b"for charlie"), got)
    restore("default allow\nenforce off\n")
    end()
finish()
