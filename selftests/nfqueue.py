# SPDX-License-Identifier: GPL-2.0
"""A program behind nftables' `queue`: gives verdicts by nfnetlink_queue.

Source: include/uapi/linux/netfilter/nfnetlink_queue.h
"""

import os
import select
import socket
import struct
import time

from linux import NETLINK_NETFILTER, NLM_F_ACK, NLM_F_REQUEST, SO_RCVBUFFORCE

SUBSYSTEM = 3 << 8
MSG_PACKET, MSG_VERDICT, MSG_CONFIG = 0, 1, 2
CFG_CMD, CFG_PARAMS, CFG_FLAGS, CFG_MASK = 1, 2, 5, 4
CMD_BIND = 1
COPY_PACKET = 2
F_GSO = 4
ATTRIBUTE_PACKET_HEADER, ATTRIBUTE_VERDICT = 1, 2
NF_DROP, NF_ACCEPT = 0, 1


def _message(kind, flags, queue, attributes):
    body = struct.pack(">BBH", socket.AF_UNSPEC, 0, queue) + attributes
    return struct.pack("=IHHII", 16 + len(body), SUBSYSTEM | kind, flags, 0, 0) + body


def _attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


class Queue:
    """A queue of the current network namespace, bound; GSO packets come as one."""

    def __init__(self, number):
        self.number = number
        self.sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self.sock.bind((0, 0))
        self.sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 22)
        self._configure(_attribute(CFG_CMD, struct.pack(">BxH", CMD_BIND, 0)))
        self._configure(_attribute(CFG_PARAMS, struct.pack(">IB", 0xFFFF, COPY_PACKET)))
        self._configure(_attribute(CFG_FLAGS, struct.pack(">I", F_GSO))
                        + _attribute(CFG_MASK, struct.pack(">I", F_GSO)))

    def _configure(self, attributes):
        self.sock.send(_message(MSG_CONFIG, NLM_F_REQUEST | NLM_F_ACK, self.number, attributes))
        error = struct.unpack_from("=i", self.sock.recv(65536), 16)[0]
        if error:
            raise OSError(-error, f"nfqueue {self.number}: {os.strerror(-error)}")

    def receive(self):
        """The identifier of the next packet, or None."""
        if not select.select([self.sock], [], [], 0.2)[0]:
            return None
        data = self.sock.recv(1 << 17)
        at = 20
        while at + 4 <= len(data):
            length, kind = struct.unpack_from("=HH", data, at)
            if kind & 0x3FFF == ATTRIBUTE_PACKET_HEADER:
                return struct.unpack_from(">I", data, at + 4)[0]
            at += (length + 3) & ~3
        return None

    def verdict(self, packet, accept):
        """Lets the packet pass, or not."""
        body = struct.pack(">II", NF_ACCEPT if accept else NF_DROP, packet)
        self.sock.send(_message(MSG_VERDICT, NLM_F_REQUEST, self.number,
                                _attribute(ATTRIBUTE_VERDICT, body)))


class Server:
    """A child process that serves a queue."""

    def __init__(self, pid):
        self.pid = pid

    def stop(self):
        """Ends it."""
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)


def serve(number, accepts):
    """Serves a queue in a child; `accepts` says of the n-th packet whether it passes."""
    queue = Queue(number)
    pid = os.fork()
    if pid == 0:
        count = 0
        while True:
            packet = queue.receive()
            if packet is not None:
                queue.verdict(packet, accepts(count))
                count += 1
    queue.sock.close()
    return Server(pid)


def settle():
    """Waits until no packet waits for its verdict."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with open("/proc/net/netfilter/nfnetlink_queue", encoding="ascii") as queues:
            if all(line.split()[2] == "0" for line in queues):
                return
        time.sleep(0.01)
