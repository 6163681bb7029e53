#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A DNS server with the addresses of a hosts file: a batch of questions is answered by one call of the kernel.

    dns.py ADDRESS PORT [/etc/hosts]

Questions are answered for type A; other types of a name have no answer, other names don't exist (RFC 1035).
"""

import socket
import struct
import sys

import kopi

HEADER = struct.Struct(">6H")
TYPE_A, CLASS_IN = 1, 1
RESPONSE, AUTHORITATIVE, RECURSION_DESIRED, OPCODE = 0x8000, 0x0400, 0x0100, 0x7800
FORMERR, NXDOMAIN, NOTIMP = 1, 3, 4
TTL = 60


def read_hosts(path):
    """The IPv4 address of each name."""
    names = {}
    with open(path, encoding="utf-8") as hosts:
        for line in hosts:
            address, *rest = line.split("#")[0].split() or [""]
            if address and ":" not in address:
                names.update({name.lower().encode(): socket.inet_aton(address) for name in rest})
    return names


def read_name(message, at):
    """A name, and where it ends: IndexError or ValueError if there is none."""
    labels = []
    while size := message[at]:
        if size > 63 or at + size >= len(message):
            raise ValueError("no name")
        labels.append(bytes(message[at + 1:at + 1 + size]))
        at += 1 + size
    return b".".join(labels).lower(), at + 1


def respond(message, names):
    """The answer to a question; None if there is none."""
    if len(message) < HEADER.size:
        return None
    number, flags, questions, *_ = HEADER.unpack_from(message)
    if flags & RESPONSE:
        return None
    flags = RESPONSE | AUTHORITATIVE | flags & (OPCODE | RECURSION_DESIRED)
    if flags & OPCODE:
        return HEADER.pack(number, flags | NOTIMP, 0, 0, 0, 0)
    try:
        name, end = read_name(message, HEADER.size)
        kind, group = struct.unpack_from(">2H", message, end)
        if questions != 1:
            raise ValueError("one question is the rule")
    except (IndexError, ValueError, struct.error):
        return HEADER.pack(number, flags | FORMERR, 0, 0, 0, 0)
    question = bytes(message[HEADER.size:end + 4])
    address = names.get(name)
    if address and (kind, group) == (TYPE_A, CLASS_IN):
        # The name is that of the question, by a pointer.
        answer = struct.pack(">3HIH", 0xc000 | HEADER.size, TYPE_A, CLASS_IN, TTL, 4) + address
        return HEADER.pack(number, flags, 1, 1, 0, 0) + question + answer
    return HEADER.pack(number, flags | (0 if address else NXDOMAIN), 1, 0, 0, 0) + question


def receive(sock, names):
    """The answers to a batch of questions, and whom they are for."""
    answers = []
    with sock.recv_batch(64) as batch:
        for packet in batch:
            response = respond(packet.data, names)
            # Whoever sends from port 0 can't be answered.
            if response and packet.peer[1]:
                answers.append((response, packet.peer))
    return answers


def serve(sock, names):
    """Answers for ever: a batch of questions by one call of the kernel."""
    answers = []
    while True:
        try:
            if answers:
                answers = answers[sock.send_batch(answers):]
            else:
                answers = receive(sock, names)
        except OSError as error:
            # A rule stops it, say, or an answer can't be sent: no reason to end.
            print(f"dns.py: {error}", file=sys.stderr, flush=True)
            answers = answers[1:]


def main(address, port, hosts="/etc/hosts"):
    """Serves by this address."""
    names = read_hosts(hosts)
    with kopi.Socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
        sock.bind((address, int(port)))
        print(f"listening on {address} port {port}, {len(names)} names", flush=True)
        serve(sock, names)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: dns.py ADDRESS PORT [HOSTS]")
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        pass
    except OSError as error:
        sys.exit(f"dns.py: {error}")
