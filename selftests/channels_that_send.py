#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Flows on a channel that only sends receive as UDP sockets, by whoever asks; a doorbell with BELL_SEND sends as
sendmmsg() on its descriptor."""

import errno
import os
import select
import socket
import struct
import subprocess
import threading

import kopi
from kopi import BELL_SEND, BELL_TX, BELL_WAIT_RX, ENGINE, GRO, SOL_KOPI, TX_ONLY, become

MSG_MORE, UDP_CORK = 0x8000, 1
ALICE, BOB = 1001, 1002


def sender(*peer, proto=0, **sizes):
    """A flow on a channel that only sends, and a socket to which it is connected."""
    family, host = (socket.AF_INET6, "::1") if proto else (socket.AF_INET, "127.0.0.1")
    other = socket.socket(family, socket.SOCK_DGRAM)
    other.bind((host, 0))
    other.settimeout(20)
    flow = kopi.flow(proto)
    flow.connect(peer or other.getsockname())
    return kopi.Channel(flow, flags=TX_ONLY, **sizes), other


def errors(channel):
    """The errnos of the completions."""
    found = []
    while entry := channel.completion.pop():
        found.append(entry[4])
    return found


def receives():
    for name, proto in (("IPv4", 0), ("IPv6", kopi.UDP6)):
        channel, other = sender(proto=proto)
        flow = channel.sock
        polled, early = select.poll(), select.epoll()
        polled.register(flow, select.POLLIN | select.POLLOUT)
        early.register(flow, select.EPOLLIN)
        kopi.check(f"{name}: writable, and nothing to read", polled.poll(0) == [(flow.fileno(), select.POLLOUT)])
        other.sendto(b"one", flow.getsockname())
        other.sendto(b"two", flow.getsockname())
        kopi.settle()
        kopi.check(f"{name}: poll, epoll report it", polled.poll(0) == [(flow.fileno(), 5)] and len(early.poll(0)) == 1)
        kopi.check(f"{name}: MSG_PEEK and recvmsg", flow.recv(10, socket.MSG_PEEK) == flow.recv(10) == b"one")
        child = kopi.in_child(lambda flow=flow: kopi.expect(flow.recv(10) == b"two", "the child reads the other one"))
        kopi.check(f"{name}: another process reads what is left", os.waitpid(child, 0)[1] == 0)
        flow.setblocking(False)
        kopi.fails(f"{name}: each is read once", errno.EAGAIN, lambda flow=flow: flow.recv(10))
        stats = channel.stats()
        kopi.check(f"{name}: nothing was put into the RX ring", stats["rx_packets"] == 0 and not channel.rx.pop())
    channel, _ = sender()
    kopi.fails("a doorbell that waits for the RX ring", errno.EINVAL, lambda: channel.bell(BELL_WAIT_RX))
    flow = kopi.flow()
    kopi.fails("with GRO", errno.EINVAL,
               lambda: flow.setsockopt(SOL_KOPI, kopi.CHANNEL, kopi.request(flags=TX_ONLY | GRO)))


def is_not_inherited():
    """fork() doesn't give the rings to a child, which may have given up privileges since."""
    for flags, inherited in ((TX_ONLY, False), (0, True)):
        channel = kopi.Channel(kopi.flow(), flags=flags)
        child = kopi.in_child(lambda: kopi.expect(kopi.regions() == (1 if inherited else 0), "as many regions"))
        kopi.check(f"a region is {'inherited' if inherited else 'not inherited, if the channel only sends'}",
                   kopi.regions() == 1 and os.waitpid(child, 0)[1] == 0)
        channel.region.close()


def waits():
    """A thread that sleeps in recvmsg is woken."""
    channel, other = sender()
    got = []
    thread = threading.Thread(target=lambda: got.append(channel.sock.recv(10)))
    thread.start()
    for number in range(8):
        channel.send(number, b"rings meanwhile")
    channel.bell(BELL_TX | BELL_SEND)
    other.sendto(b"wake", channel.sock.getsockname())
    thread.join(20)
    kopi.check("a reader that sleeps is woken", got == [b"wake"])


def sends():
    channel, other = sender()
    for number in range(3):
        channel.send(number, b"%d" % number)
    channel.bell(BELL_TX | BELL_SEND)
    kopi.check("all are sent and completed", errors(channel) == [0, 0, 0] and
               [other.recv(9) for _ in range(3)] == [b"0", b"1", b"2"])
    channel.send(0, b"before")
    channel.send(1, b"x", address=("255.255.255.255", 9))
    channel.send(2, b"behind")
    channel.bell(BELL_TX | BELL_SEND)
    other.setblocking(False)
    got = errors(channel)
    kopi.check("what comes after a packet that fails isn't sent", got[0] == 0 and got[1] != 0 and
               got[2] == errno.ECANCELED and other.recv(9) == b"before", str(got))
    kopi.fails("it did not arrive", errno.EAGAIN, lambda: other.recv(9))
    channel.send(0, b"again")
    channel.bell(BELL_TX | BELL_SEND)
    kopi.check("the next doorbell sends", errors(channel) == [0] and other.recv(9) == b"again")
    kopi.check("counters agree", not channel.unaccounted(), channel.unaccounted())
    second = kopi.flow()
    second.connect(other.getsockname())
    second.setsockopt(SOL_KOPI, kopi.JOIN, kopi.join_request(channel.sock))
    channel.send(0, b"of the first", flow_number=kopi.number_of(channel.sock))
    kopi.fcntl.ioctl(second.fileno(), kopi.DOORBELL, BELL_TX | BELL_SEND)
    kopi.check("another flow's descriptor doesn't send it, nor complete it", errors(channel) == [])
    kopi.fails("nor did it arrive", errno.EAGAIN, lambda: other.recv(9))
    channel.bell(BELL_TX | BELL_SEND)
    kopi.check("its own does", errors(channel) == [0] and other.recv(99) == b"of the first")
    channel.tx.push(1 << 30, 9, kopi.number_of(channel.sock), 0, 0)
    kopi.fcntl.ioctl(second.fileno(), kopi.DOORBELL, BELL_TX | BELL_SEND)
    kopi.check("nor is one that is wrong another's to complete", errors(channel) == [])
    channel.bell(BELL_TX | BELL_SEND)
    kopi.check("but its own's", errors(channel) == [errno.EFAULT])
    kopi.fails("it doesn't ring for all flows: EPERM", errno.EPERM,
               lambda: kopi.fcntl.ioctl(second.fileno(), kopi.DOORBELL, BELL_TX))
    kopi.fails("nor has it the rings mapped: EPERM", errno.EPERM, lambda: kopi.Channel.of(second))
    channel.send(0, b"y" * 1984)
    kopi.check("a long payload is copied", channel.bell(BELL_TX | BELL_SEND) == 1 and errors(channel) == [0]
               and channel.stats()["tx_zerocopy"] == 0)
    kopi.fails("BELL_SEND without BELL_TX", errno.EINVAL, lambda: channel.bell(BELL_SEND))
    polled = kopi.Channel(flags=ENGINE)
    kopi.fails("with engines", errno.EINVAL, lambda: polled.bell(BELL_TX | BELL_SEND))


def full():
    """Hardly anything leaves this device."""
    subprocess.run("""ip link add hold type dummy; ip addr add 198.18.0.1/24 dev hold; ip link set hold up
        tc qdisc add dev hold root tbf rate 8bit burst 1700 limit 1000000; ip neigh add 198.18.0.2 lladdr 2:2:2:2:2:2 dev hold""",
                   shell=True, check=True)
    try:
        channel, _ = sender("198.18.0.2", 9)
        channel.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
        for number in range(60):
            channel.send(number, b"x" * 500)
        taken = channel.bell(BELL_TX | BELL_SEND)
        got = errors(channel)
        sent = got.index(errno.EAGAIN) if errno.EAGAIN in got else -1
        kopi.check("a full send buffer: EAGAIN, and nothing stays in the ring", taken == 60 and 0 < sent < 40 and
                   got == [0] * sent + [errno.EAGAIN] + [errno.ECANCELED] * (59 - sent), str(got))
        kopi.check("what wasn't sent isn't counted", channel.stats()["tx_taken"] == sent and not channel.unaccounted())
        polled = select.poll()
        polled.register(channel.sock, select.POLLOUT)
        kopi.check("poll reports no room", polled.poll(0) == [])
        channel.sock.setblocking(False)
        kopi.fails("and so does sendmsg", errno.EAGAIN, lambda: channel.sock.send(b"x" * 500))
    finally:
        subprocess.run("ip link del hold", shell=True, check=True)


def corks():
    for name, cork in (("MSG_MORE", lambda flow: flow.send(b"corked ", MSG_MORE)),
                       ("UDP_CORK", lambda flow: flow.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1) or
                        flow.send(b"corked "))):
        channel, other = sender()
        cork(channel.sock)
        channel.send(0, b"by the ring")
        channel.send(1, b"by the ring")
        channel.bell()
        kopi.check(f"{name}: the ring sends no more", errors(channel) == [errno.EOPNOTSUPP] * 2)
        if name == "UDP_CORK":
            channel.sock.send(b"together")
            channel.sock.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 0)
        else:
            channel.sock.send(b"together")
        kopi.check(f"{name}: the datagram is whole", other.recv(99) == b"corked together")
        kopi.check(f"{name}: for good", not channel.send(0, b"z") and channel.bell() == 1
                   and errors(channel) == [errno.EOPNOTSUPP])
        channel.sock.close()
    corked = kopi.flow()
    corked.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 0)
    kopi.fails("a flow that was corked before gets no channel", errno.EBUSY,
               lambda: corked.setsockopt(SOL_KOPI, kopi.CHANNEL, kopi.request(flags=TX_ONLY)))


def corks_while_sending():
    """Threads cork while the ring sends: whole datagrams arrive, and each of them once."""
    channel, other = sender()
    other.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)
    stop = threading.Event()
    sent = [0]

    def ring():
        while not stop.is_set():
            channel.send(0, b"ring")
            channel.bell(BELL_TX | BELL_SEND)
            sent[0] += errors(channel).count(0)

    thread = threading.Thread(target=ring)
    thread.start()
    kopi.wait_until(lambda: sent[0] > 20)
    for _ in range(200):
        channel.sock.send(b"a", MSG_MORE)
        channel.sock.send(b"b")
    stop.set()
    thread.join()
    kopi.settle()
    other.setblocking(False)
    got = []
    try:
        while True:
            got.append(other.recv(99))
    except BlockingIOError:
        pass
    kopi.check("corked and not corked datagrams are whole", got.count(b"ring") == sent[0] and got.count(b"ab") == 200
               and len(got) == sent[0] + 200, f"{sent[0]} {len(got)} {set(got)}")


def rules_and_owner():
    """The process that rings is the flow's owner, and rules decide about what is received when it is read."""
    channel, other = sender()
    channel.send(0, b"x")
    channel.bell(BELL_TX | BELL_SEND)
    other.recv(9)
    port = channel.sock.getsockname()[1]
    shown = subprocess.run(["kopictl", "ps"], capture_output=True, text=True, check=True).stdout
    kopi.check("kopictl ps shows it", f":{port}" in shown, shown)
    added = subprocess.run(["kopictl", "rule", "add", "local-port", str(port), "direction", "in", "deny"],
                           capture_output=True, text=True, check=False)
    if added.returncode:
        kopi.check("a rule is added", False, added.stderr)
        return
    try:
        other.sendto(b"denied", channel.sock.getsockname())
        channel.sock.setblocking(False)
        kopi.fails("a rule that denies: recvmsg", errno.EACCES, lambda: channel.sock.recv(9))
    finally:
        subprocess.run(["kopictl", "rule", "del", added.stdout.strip()], check=True)


def passed_flow():
    """Who is passed a flow of a channel rings for that flow, and is its user, and of no other of the channel."""
    maker, other = sender()
    first, second = kopi.flow(), kopi.flow()
    for flow in (first, second):
        flow.connect(other.getsockname())
        flow.setsockopt(SOL_KOPI, kopi.JOIN, kopi.join_request(maker.sock))
    maker.send(0, b"mine", flow_number=kopi.number_of(first))

    def charlie():
        become(ALICE)
        kopi.fcntl.ioctl(second.fileno(), kopi.DOORBELL, BELL_TX | BELL_SEND)

    denies = ["kopictl", "rule", "add", "user", str(ALICE), "deny"]
    handle = subprocess.run(denies, capture_output=True, text=True, check=True).stdout.strip()
    try:
        kopi.check("another user rings", os.waitpid(kopi.in_child(charlie), 0)[1] == 0)
        other.settimeout(20)
        kopi.check("which changes nothing in the ring", errors(maker) == [])
        kopi.fcntl.ioctl(first.fileno(), kopi.DOORBELL, BELL_TX | BELL_SEND)
        kopi.check("a flow that wasn't passed isn't under the rule for that user",
                   errors(maker) == [0] and other.recv(9) == b"mine")
        kopi.check("nor has it an error", first.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0)
    finally:
        subprocess.run(["kopictl", "rule", "del", handle], check=True)


def forked_worker():
    """A worker, which has another user than who made the channel and the rules' consent, rings for its flow."""
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    other.bind(("127.0.0.1", 0))
    other.settimeout(20)
    flow = kopi.flow()
    flow.connect(other.getsockname())
    channel = kopi.Channel(flow)

    def worker():
        become(ALICE)
        # Of its maker, whom the rules deny it.
        flow.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        channel.send(0, b"worker's")
        channel.bell(BELL_TX | BELL_SEND)
        found = errors(channel)
        kopi.expect(found == [0], "it is sent", found)

    rules = f"default deny\nuser {ALICE} allow\n"
    subprocess.run(["kopictl", "restore", "-"], input=rules, text=True, check=True)
    try:
        kopi.check("a worker's doorbell makes it the user of a channel that receives, too",
                   os.waitpid(kopi.in_child(worker), 0)[1] == 0 and other.recv(99) == b"worker's")
    finally:
        subprocess.run(["kopictl", "restore", "-"], input="default allow\n", text=True, check=True)


def is_refused(call):
    """Whether it fails with EPERM."""
    try:
        call()
    except PermissionError as error:
        return error.errno == errno.EPERM
    return False


def guests():
    """A server opens its socket as root, gives up root, and puts the socket on a channel of its own."""
    roots, others = kopi.flow(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    others.bind(("127.0.0.1", 0))
    others.settimeout(20)
    roots.bind(("127.0.0.1", 0))
    roots.connect(others.getsockname())
    ours, theirs = socket.socketpair()

    def server():
        become(BOB)
        channel, both = kopi.Channel(flags=TX_ONLY), kopi.Channel()
        kopi.expect(is_refused(lambda: roots.setsockopt(SOL_KOPI, kopi.JOIN, kopi.join_request(both.sock))),
                    "not on one that receives, too")
        roots.setsockopt(SOL_KOPI, kopi.JOIN, kopi.join_request(channel.sock))
        channel.send(0, b"as bob", flow_number=kopi.number_of(roots))
        taken = kopi.fcntl.ioctl(roots.fileno(), kopi.DOORBELL, BELL_TX | BELL_SEND)
        kopi.expect(taken == 1 and errors(channel) == [0], "it is sent")
        # By another of root's, which is on the channel as well.
        second = socket.socket(fileno=os.dup(spare.fileno()))
        second.setsockopt(SOL_KOPI, kopi.JOIN, kopi.join_request(roots))
        socket.send_fds(theirs, [b"x"], [channel.sock.fileno()])
        theirs.recv(1)

    spare = kopi.flow()
    child = kopi.in_child(server)
    kopi.check("a server that has given up root sends by a ring", others.recv(9) == b"as bob")
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    of_bob = socket.socket(fileno=descriptors[0])

    def other():
        become(ALICE)
        mine = kopi.flow()
        for what, call in (
                ("the layout", lambda: roots.getsockopt(SOL_KOPI, kopi.CHANNEL, 256)),
                ("a doorbell", lambda: kopi.fcntl.ioctl(roots.fileno(), kopi.DOORBELL, BELL_TX)),
                ("a socket of its own there", lambda: mine.setsockopt(SOL_KOPI, kopi.JOIN, kopi.join_request(roots))),
                ("by the owner's", lambda: mine.setsockopt(SOL_KOPI, kopi.JOIN, kopi.join_request(of_bob)))):
            kopi.expect(is_refused(call), f"{what} is refused")
        roots.send(b"by alice")

    kopi.check("who else has the socket has nothing of the channel", os.waitpid(kopi.in_child(other), 0)[1] == 0)
    kopi.check("but sends by it", others.recv(9) == b"by alice")
    kopi.fails("nor has root", errno.EPERM, lambda: roots.getsockopt(SOL_KOPI, kopi.CHANNEL, 256))
    ours.send(b"x")
    kopi.check("the server ends", os.waitpid(child, 0)[1] == 0)


def passed_by_root():
    """Who makes a channel on a flow that root has made puts flows of his own there, too."""
    roots = kopi.flow()

    def server():
        become(BOB)
        channel, own = kopi.Channel(roots, flags=TX_ONLY), kopi.flow()
        own.setsockopt(SOL_KOPI, kopi.JOIN, kopi.join_request(channel.sock))
        kopi.expect(kopi.number_of(own) == 1, "it has joined")
        kopi.libc_fails("of which it has no memory, as UDP has none", errno.ENODEV,
                        lambda: kopi.libc.mmap(None, channel.size, 3, 1, own.fileno(), 0))

    kopi.check("on a channel that its user has made by root's flow", os.waitpid(kopi.in_child(server), 0)[1] == 0)


def main():
    for part in (receives, is_not_inherited, waits, sends, full, corks, corks_while_sending, rules_and_owner, passed_flow, forked_worker, guests,
                 passed_by_root):
        kopi.attempt(part)
    kopi.finish()


main()
