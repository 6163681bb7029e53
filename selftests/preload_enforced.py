#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Enforced rules by executable hold for a program that `kopi run` can't give flows: one that is statically linked,
and makes its system calls by itself, as Go's do."""

import os
import shutil
import subprocess

from equivalence import namespace
from kopi import check, finish

FOLDER = "/tmp/preload_enforced"
MAY, IMPOSTOR, PORT = f"{FOLDER}/may", f"{FOLDER}/impostor", 5432
# Says what socket(), bind() and listen() gave: by the instruction, and without a C library.
SOURCE = r"""
static long call(long number, long a, long b, long c)
{
	long got;

	__asm__ volatile("syscall" : "=a"(got) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
	return got;
}

void _start(void)
{
	struct { unsigned short family, port; unsigned int address; char rest[8]; } name = { 2, PORT, 0, "" };
	long fd = call(41, 2, TYPE, 0), error;

	error = fd < 0 ? fd : call(49, fd, (long)&name, sizeof(name));
	if (!error && TYPE == 1)
		error = call(50, fd, 1, 0);
	call(231, -error, 0, 0);
}
"""


def build(kind):
    """The programs, which are copies of one."""
    swapped = (PORT & 0xff) << 8 | PORT >> 8
    subprocess.run(["gcc", "-O2", "-w", "-static", "-nostdlib", "-fno-stack-protector", f"-DTYPE={kind}",
                    f"-DPORT={swapped}", "-x", "c", "-", "-o", MAY], input=SOURCE, text=True, check=True)
    shutil.copy(MAY, IMPOSTOR)


def rules(text):
    """Puts rules in force."""
    subprocess.run(["kopictl", "restore", "-"], input=text, text=True, check=True, capture_output=True)


def start(program):
    """Runs it by `kopi run`: what its calls gave, and what kopi run said."""
    done = subprocess.run(["kopi", "run", "--tcp", program], capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def holds(name, kind):
    """The rules hold for one of UDP's or TCP's."""
    build(kind)
    status, said = start(IMPOSTOR)
    check(f"{name}: without rules it gets the port", status == 0, said)
    check(f"{name}: kopi run says that it has ordinary sockets", "statically linked" in said, said)
    rules(f"default allow\nenforce on\nexe {MAY} local-port {PORT} allow\nlocal-port {PORT} deny\n")
    check(f"{name}: the program of the rule gets it", start(MAY)[0] == 0)
    status, said = start(IMPOSTOR)
    check(f"{name}: another one gets EACCES", status == 13, f"{status} {said}")
    rules(f"default allow\nenforce off\nlocal-port {PORT} deny\n")
    check(f"{name}: not without enforce", start(IMPOSTOR)[0] == 0)
    rules("default allow\nenforce off\n")


os.makedirs(FOLDER, exist_ok=True)
with namespace("host"):
    try:
        holds("UDP", 2)
        holds("TCP", 1)
    finally:
        rules("default allow\nenforce off\n")
        shutil.rmtree(FOLDER)
finish()
