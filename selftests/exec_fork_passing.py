#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Flows and mappings over fork, exec and descriptor passing are those of any socket and mapping."""

import array
import ctypes
import errno
import os
import signal
import socket
import struct
import subprocess
import sys

import kopi


def loop(channel, number=0, data=b"hello"):
    """Sends a datagram to the flow itself; gives what comes out of the RX ring."""
    channel.fill.push(channel.frame(number))
    channel.send(number + 1, data, channel.sock.getsockname())
    channel.bell(kopi.BELL_TX | kopi.BELL_WAIT_RX)
    while channel.completion.pop() is not None:
        pass
    entry = channel.rx.pop()
    return entry and channel.region[entry[0]:entry[0] + entry[1]]


def opened():
    """A flow with a channel, bound to a port of loopback."""
    flow = kopi.flow()
    flow.settimeout(None)
    flow.bind(("127.0.0.1", 0))
    return kopi.Channel(flow)


def status(pid):
    """A child's exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def map_again(fd):
    """What a process does that has the descriptor, but no mapping."""
    return kopi.Channel.of(kopi.Flow(fileno=fd))


if len(sys.argv) > 1:
    # The program that was executed: the flow is there, the mapping isn't.
    with open("/proc/self/maps", encoding="ascii") as maps:
        if any("socket:" in line for line in maps):
            sys.exit(3)
    sys.exit(0 if loop(map_again(int(sys.argv[1])), 4, b"after exec") == b"after exec" else 4)

one = opened()
kopi.check("a channel works", loop(one) == b"hello")

pid = os.fork()
if pid == 0:
    os._exit(0 if loop(one, 8, b"child") == b"child" else 1)
kopi.check("a forked child uses the rings by the mapping that it inherited", status(pid) == 0)
kopi.check("and its parent goes on", loop(one, 12, b"parent") == b"parent")

# FUTEX_WAKE without FUTEX_PRIVATE_FLAG: for processes, by the memory's identity.
word = ctypes.addressof(ctypes.c_char.from_buffer(one.region, one.frames))
kopi.check("a region can't hold a futex between processes: EFAULT",
           kopi.libc.syscall(202, ctypes.c_void_p(word), 1, 1, None, None, 0) == -1
           and ctypes.get_errno() == errno.EFAULT, ctypes.get_errno())

flow = one.sock
os.set_inheritable(flow.fileno(), True)
kopi.check("after exec the mapping is gone, and the flow can be mapped anew",
           (done := subprocess.run([sys.executable, __file__, str(flow.fileno())], close_fds=False,
                                   check=False)).returncode == 0, done.returncode)
os.set_inheritable(flow.fileno(), False)
done = subprocess.run(["ls", f"/proc/self/fd/{flow.fileno()}"], close_fds=False,
                      capture_output=True, check=False)
kopi.check("one with O_CLOEXEC doesn't survive exec", done.returncode != 0)

two = os.dup(flow.fileno())
address = flow.getsockname()
os.close(flow.detach())
one.sock = kopi.Flow(fileno=two)
kopi.check("a dup keeps the flow", loop(one, 16, b"dup") == b"dup")

# Its maker passes a flow on and is killed.
ends = socket.socketpair()
pid = os.fork()
if pid == 0:
    mine = opened()
    ends[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                              array.array("i", [mine.sock.fileno()]))])
    signal.pause()
data, control, _, _ = ends[1].recvmsg(1, 64)
passed = map_again(struct.unpack_from("=i", control[0][2])[0])
kopi.check("a passed flow can be mapped by who gets it", loop(passed, 4, b"passed") == b"passed")
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
kopi.check("and outlives its maker", loop(passed, 8, b"orphan") == b"orphan")

one.sock.close()
again = kopi.flow()
kopi.fails("a mapping keeps its flow open", errno.EADDRINUSE, lambda: again.bind(address))
one.region.close()
again.bind(address)
kopi.check("and munmap closes it", again.getsockname() == address)
kopi.finish()
