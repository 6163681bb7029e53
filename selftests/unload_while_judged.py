#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""The module goes while its rules judge what ordinary sockets send: a CPU that is in its hook still has what it reads.

A BPF program makes each packet stay there for a while, where the state of the namespace is about to be read.
"""

import os
import signal
import socket
import subprocess

import kopi
import memory
from equivalence import namespace, run_nft, sh

# Where a packet is before the module's state of its namespace is read.
SLOW = "BEGIN { printf(\"begun\\n\"); } kprobe:kopi_net_is_alive { $i = 0; while ($i < 1000) { @spent = $i; $i++; } @packets = count(); }"
FAR = ("192.0.2.2", 9)


def send_for_ever(cpu):
    """A process that sends by an ordinary socket, in vain where a rule or a neighbour is against it."""
    child = os.fork()
    if child:
        return child
    os.sched_setaffinity(0, {cpu})
    # Below the kernel's own threads: one that waits for its turn in an RCU section is reported as a stall.
    os.nice(19)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        while True:
            try:
                sock.sendto(b"x", FAR)
            except OSError:
                pass


def slowed():
    """The BPF program, once it runs."""
    program = subprocess.Popen(["bpftrace", "-q", "-e", SLOW], stdout=subprocess.PIPE, text=True)
    kopi.expect("begun" in program.stdout.readline(), "bpftrace runs")
    return program


with namespace("host"):
    senders = [send_for_ever(cpu) for cpu in os.sched_getaffinity(0)]
    sh("kopictl rule add remote-port 7 deny")
    # Without another hook at that place, the kernel changes its code with the last one, which stops all CPUs.
    run_nft("table inet open {\nchain o {\ntype filter hook output priority 0\n}\n}")
    with slowed() as slow:
        # Packets are in the hook all the time.
        went = memory.unload()
        slow.send_signal(signal.SIGINT)
        said = slow.stdout.read()
    for sender in senders:
        os.kill(sender, signal.SIGKILL)
        os.waitpid(sender, 0)
    run_nft("delete table inet open")
kopi.check("the module goes while packets are in its hook", went and int(said.split("@packets:")[1].split()[0]) > 10, said)
kopi.expect(memory.load(), "the module comes again")
kopi.finish()
