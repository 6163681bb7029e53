#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Receiving and sending by rings: waiting in all ways, drops, chains, sharing."""

import array
import errno as e
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import time

import kopi
from kopi import (BELL_WAIT_COMPLETION, BELL_WAIT_RX, Channel, JOIN, META_FORMAT, SOL_KOPI, attempt, check,
                  fails, flow, in_child, wait_until)
from linux import SO_TIMESTAMPING, SO_TIMESTAMPNS, SOF_TIMESTAMPING_RX_SOFTWARE, SOF_TIMESTAMPING_SOFTWARE

SYS_EPOLL_WAIT = "232"
plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
plain.settimeout(10)
plain.bind(("127.0.0.1", 0))


def receiver(**sizes):
    """A bound channel whose FILL ring has all its frames."""
    channel = Channel(**sizes)
    channel.sock.bind(("127.0.0.1", 0))
    for number in range(channel.frame_count):
        channel.fill.push(channel.frame(number))
    return channel


def later(call):
    """Runs it in a child, when this process is likely to sleep."""
    return in_child(lambda: (time.sleep(0.3), call()))


def send_to(channel, data):
    plain.sendto(data, channel.sock.getsockname())


def receive(channel):
    """The next datagram and its metadata, its frames given back."""
    wait_until(lambda: channel.rx.get(channel.rx.producer) != channel.rx.get(channel.rx.consumer))
    data, meta = b"", None
    while entry := channel.rx.pop():
        offset, length, _, flags, _ = entry
        if meta is None:
            meta = struct.unpack_from(META_FORMAT, channel.region, offset - 64)
        data += channel.region[offset:offset + length]
        channel.fill.push(offset - 64)
        if not flags & kopi.MORE:
            break
    return data, meta


def arrivals(channel):
    """What arrives is whole, with what is known of it."""
    send_to(channel, b"one")
    data, meta = receive(channel)
    check("a datagram arrives", data == b"one", data)
    check("with its peer", meta[0][:4] == socket.inet_aton("127.0.0.1")
          and struct.unpack(">H", meta[2])[0] == plain.getsockname()[1] and meta[4] == socket.AF_INET, meta)
    check("and its local address, device and length", meta[1][:4] == socket.inet_aton("127.0.0.1")
          and meta[6] == socket.if_nametoindex("lo") and meta[10] == 3, meta)
    check("without a timestamp", meta[12] == 0, meta)
    send_to(channel, b"")
    check("an empty datagram arrives", receive(channel)[0] == b"")
    big = os.urandom(60000)
    send_to(channel, big)
    check("one of many frames arrives", receive(channel)[0] == big)
    channel.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    plain.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x2A)
    send_to(channel, b"when")
    _, meta = receive(channel)
    check("a timestamp when asked", abs(meta[12] / 1e9 - time.time()) < 60, meta)
    check("TOS and ECN", meta[8] == 0x2A, meta)
    channel.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 0)
    channel.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE)
    send_to(channel, b"when")
    check("and when asked by SO_TIMESTAMPING", receive(channel)[1][12] > 1 << 60)
    channel.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, 0)


def polling(channel):
    """poll(), select() and epoll tell of what came."""
    fd = channel.sock.fileno()
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    check("poll: nothing to read", poll.poll(0) == [])
    send_to(channel, b"poll")
    check("poll: something", poll.poll(10000) == [(fd, select.POLLIN)])
    check("poll: level-triggered", poll.poll(0) == [(fd, select.POLLIN)])
    check("select: something", select.select([fd], [], [], 0)[0] == [fd])
    receive(channel)
    check("select: nothing", select.select([fd], [], [], 0)[0] == [])
    epoll = select.epoll()
    epoll.register(fd, select.EPOLLIN | select.EPOLLET)
    send_to(channel, b"edge")
    check("EPOLLET: once", epoll.poll(10) == [(fd, select.EPOLLIN)])
    check("EPOLLET: not twice", epoll.poll(0) == [])
    send_to(channel, b"edge")
    check("EPOLLET: for each that comes", epoll.poll(10) == [(fd, select.EPOLLIN)])
    epoll.close()
    receive(channel)
    receive(channel)
    early = kopi.flow()
    early.bind(("127.0.0.1", 0))
    epoll = select.epoll()
    epoll.register(early.fileno(), select.EPOLLIN)
    late = kopi.Channel(early)
    late.fill.push(late.frame(0))
    check("epoll, registered before there was a channel: nothing", epoll.poll(0) == [])
    pid = later(lambda: send_to(late, b"early"))
    check("and something", epoll.poll(10) == [(early.fileno(), select.EPOLLIN)])
    os.waitpid(pid, 0)
    epoll.close()
    late.region.close()
    early.close()


def sleeps_in_epoll(pid):
    """Whether a process sleeps in epoll_wait()."""
    with open(f"/proc/{pid}/syscall", encoding="ascii") as call:
        return call.read().split()[0] == SYS_EPOLL_WAIT


def woken_in_turn(channel):
    """Of two programs of which one is woken at a time, the second one is, though the first reads nothing."""
    def wait():
        with select.epoll() as epoll:
            epoll.register(channel.sock.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE)
            assert epoll.poll(60)

    pids = [in_child(wait) for _ in range(2)]
    wait_until(lambda: all(map(sleeps_in_epoll, pids)))
    for number in range(2):
        send_to(channel, b"exclusive")
        ended, status = os.wait()
        check(f"EPOLLEXCLUSIVE: program {number + 1} of two is woken", ended in pids and status == 0, status)
    receive(channel)
    receive(channel)


def time_limits(channel):
    """The doorbell waits as long as SO_RCVTIMEO says."""
    channel.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 50000))
    fails("a wait ends after SO_RCVTIMEO", e.EAGAIN, lambda: channel.bell(BELL_WAIT_RX))
    channel.sock.setblocking(False)
    fails("no wait with O_NONBLOCK", e.EAGAIN, lambda: channel.bell(BELL_WAIT_RX))
    channel.sock.setblocking(True)


def room_to_send(channel):
    """A wait for packets isn't ended by room to send."""
    # What was sent before leaves bit by bit meanwhile, and the send buffer has more room each time.
    for command in ("ip link add room0 type dummy", "ip address add 192.0.2.1/24 dev room0", "ip link set room0 up",
                    "tc qdisc add dev room0 root tbf rate 300kbit burst 2000 limit 1m"):
        subprocess.run(command.split(), check=True)
    sender = Channel()
    sender.sock.connect(("192.0.2.2", 9))
    sender.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 1, 0))
    for number in range(32):
        sender.send(number, bytes(900))
    sender.bell()

    def left_device():
        """How many have left."""
        with open("/sys/class/net/room0/statistics/tx_packets", encoding="ascii") as file:
            return int(file.read())

    before, slept = left_device(), resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    fails("who waits for packets waits on", e.EAGAIN, lambda: sender.bell(BELL_WAIT_RX))
    slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - slept
    check("and isn't woken by room to send", slept < 8, slept)
    check("of which there was more and more", before < 32 and wait_until(lambda: left_device() >= 32),
          (before, left_device()))
    subprocess.run("ip link del room0".split(), check=True)


def wake_ups(channel):
    """A wait ends with a datagram, or with a signal."""
    # A longer wait is endless.
    channel.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 60, 0))

    child = later(lambda: send_to(channel, b"wake"))
    check("a wait ends when a datagram comes", channel.bell(BELL_WAIT_RX) == 0 and receive(channel)[0] == b"wake")
    os.waitpid(child, 0)
    reading, writing = os.pipe()

    def send_around_sleeps():
        """A datagram for each byte of the pipe, before its reader sleeps, after, and meanwhile."""
        for number in range(2000):
            os.read(reading, 1)
            end = time.perf_counter() + number % 100 * 2e-6
            while time.perf_counter() < end:
                pass
            send_to(channel, b"%d" % number)

    child = in_child(send_around_sleeps)
    wrong = 0
    for number in range(2000):
        os.write(writing, b"!")
        channel.bell(BELL_WAIT_RX)
        wrong += receive(channel)[0] != b"%d" % number
    os.waitpid(child, 0)
    check("no wake-up is lost in 2,000", wrong == 0, wrong)

    class Alarm(Exception):
        """From the signal's handler."""

    def alarm(*_):
        raise Alarm

    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        channel.bell(BELL_WAIT_RX)
        check("a signal ends a wait", False)
    except (Alarm, InterruptedError):
        check("a signal ends a wait", True)


def errors_come(channel):
    """Errors come as for UDP."""
    dead = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    dead.bind(("127.0.0.1", 0))
    nowhere = dead.getsockname()
    dead.close()
    errors = Channel()
    errors.sock.connect(nowhere)
    errors.send(0, b"?")
    errors.bell()
    errors.completion.pop()
    poll = select.poll()
    poll.register(errors.sock.fileno(), 0)
    check("ICMP errors: POLLERR", poll.poll(10000) == [(errors.sock.fileno(), select.POLLERR)])
    check("ICMP errors: SO_ERROR", errors.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == e.ECONNREFUSED)
    errors.send(0, b"?")
    errors.bell()
    errors.completion.pop()
    poll.poll(10000)
    errors.send(0, b"?")
    errors.bell()
    check("ICMP errors: in the next completion", errors.completion.pop()[4] == e.ECONNREFUSED)


def drops(channel):
    """What finds no frame or no room is dropped and counted."""
    tight = receiver(frames=4, fill=4, rx=16)
    for _ in range(7):
        send_to(tight, b"x")
    check("without frames: dropped and counted", wait_until(lambda: tight.stats()["rx_drop_no_frame"] == 3), tight.stats())
    for _ in range(4):
        receive(tight)
    send_to(tight, b"after")
    check("and with frames again it goes on", receive(tight)[0] == b"after")
    tight = receiver(frames=16, fill=16, rx=4)
    for _ in range(7):
        send_to(tight, b"x")
    check("without room: dropped and counted", wait_until(lambda: tight.stats()["rx_drop_ring_full"] == 3), tight.stats())
    tight.fill.put(tight.fill.producer, tight.fill.get(tight.fill.producer) + 1000)
    for _ in range(4):
        receive(tight)
    wild = receiver(frames=4, fill=16, rx=16)
    for bad in (0, 1, 2**63, wild.frame(0) + 64, wild.frame(4)):
        wild.fill.push(bad)
    for _ in range(5):
        send_to(wild, b"x")
    check("FILL entries that are no frame: counted", wait_until(lambda: wild.stats()["fill_invalid"] == 5), wild.stats())


def sharing(channel):
    """Several flows share a channel, and payload goes by reference."""
    fd = channel.sock.fileno()
    second = flow()
    second.bind(("127.0.0.1", 0))
    second.setsockopt(SOL_KOPI, JOIN, kopi.join_request(channel.sock))
    number = kopi.number_of(second)
    plain.sendto(b"second", second.getsockname())
    wait_until(lambda: select.select([fd], [], [], 0)[0])
    entry = channel.rx.pop()
    check("a packet names its flow", number != 0 and entry[2] == number, entry)
    channel.fill.push(entry[0] - 64)
    channel.send(5, b"from the second", plain.getsockname(), number)
    check("a flow sends as itself", channel.bell() == 1 and plain.recvfrom(99) ==
          (b"from the second", second.getsockname()))
    channel.completion.pop()
    second.close()
    channel.send(5, b"closed", plain.getsockname(), number)
    channel.bell()
    check("a closed flow is none", channel.completion.pop()[4] == e.EBADF)
    kopi.send_by_reference()
    payload = os.urandom(1900)
    channel.send(6, payload, plain.getsockname())
    check("a payload over the copybreak arrives", channel.bell() == 1 and plain.recv(2000) == payload)
    check("and comes back", channel.bell(BELL_WAIT_COMPLETION) == 0 and channel.completion.pop()[4] == 0)


def passing(channel):
    """A flow that is passed on goes on."""
    fd = channel.sock.fileno()
    left, right = socket.socketpair(socket.AF_UNIX)
    child = os.fork()
    if child == 0:
        _, ancillary, _, _ = right.recvmsg(1, socket.CMSG_SPACE(4))
        got = array.array("i", ancillary[0][2])[0]
        kopi.fcntl.ioctl(got, kopi.DOORBELL, BELL_WAIT_RX)
        os._exit(0 if receive(channel)[0] == b"passed" else 1)
    left.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
    send_to(channel, b"passed")
    check("SCM_RIGHTS and fork: a child reads the ring", os.waitpid(child, 0)[1] == 0)
    copy = os.dup(fd)
    address = channel.sock.getsockname()
    channel.sock.close()
    plain.sendto(b"dup", address)
    check("dup keeps the flow", receive(channel)[0] == b"dup")
    os.close(copy)
    plain.sendto(b"closed", address)
    check("the mapping outlives the flow", len(channel.region[0:4096]) == 4096)


shared = receiver(frames=64, fill=64, rx=64)
for case in (arrivals, polling, woken_in_turn, time_limits, room_to_send, wake_ups, errors_come, drops, sharing, passing):
    attempt(case, shared)
kopi.finish()
