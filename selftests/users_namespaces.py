#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""What a user does in namespaces of his own stops neither the machine nor anybody else in it."""

import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import kopi
from control import NlError, add, family
from equivalence import sh
from kopi import check
from linux import SO_BUSY_POLL, UDP_CORK
from watchdog import Watchdog

TUNSETIFF, IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x400454CA, 2, 0x1000, 0x4000
VIRTIO_NEEDS_CSUM, VIRTIO_GSO_UDP = 1, 3
CLONE_NEWNS, MS_NOSUID_NODEV = 0x20000, 6

# What one look at the FILL ring passes over at the most.
INVALID_MAX = 64
# Rules that a user's own namespace can have.
RULES_MAX = 1024
# Datagrams that fit into a receive buffer.
QUEUED = 8000
# Seconds that no going up and down takes, but where it patches text.
PATCHED = 0.02


def error_of(call):
    """The errno with which a call fails, or 0."""
    try:
        call()
        return 0
    except OSError as error:
        return error.errno


def unread_datagrams_die_beside_a_monitor():
    """What UDP drops with a socket lies in a queue, where skb->dev is something else."""
    sh("ip link add mon0 type kopimon; ip link set mon0 up")
    for _ in range(20):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as reader:
            reader.bind(("127.0.0.1", 7777))
            for _ in range(5):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                    sender.sendto(b"x" * 100, ("127.0.0.1", 7777))
    # A queue of a qdisc that is a tree lies over it, too.
    sh("ip link add d0 type dummy; ip addr add 203.0.113.1/24 dev d0; ip link set d0 up;"
       "ip neigh add 203.0.113.2 lladdr 02:00:00:00:00:02 dev d0;"
       "tc qdisc add dev d0 root netem delay 10s")
    flow = kopi.flow()
    flow.connect(("203.0.113.2", 9))
    for _ in range(50):
        flow.send(b"x" * 100)
    sh("tc qdisc del dev d0 root")
    flow.close()
    sh("ip link del mon0")
    check("the kernel survives a monitor that is up while packets die in queues", True)


def invalid_entries_are_bounded():
    """A datagram costs a bounded walk of the FILL ring."""
    channel = kopi.Channel(fill=32768)
    channel.sock.bind(("127.0.0.1", 7778))
    for _ in range(4096):
        channel.fill.push((1 << 64) - 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", ("127.0.0.1", 7778))
    kopi.wait_until(lambda: channel.stats()["rx_drop_no_frame"] == 1)
    passed = channel.stats()["fill_invalid"]
    check("one datagram passes over few entries of the FILL ring", 0 < passed <= INVALID_MAX, passed)
    channel.sock.close()


def bad_checksums_while_polling():
    """Bad checksums at a flow that busy polls: nobody polls under the receiver's lock."""
    pid = os.fork()
    if pid == 0:
        os.unshare(os.CLONE_NEWNET)
        kopi.wait_until(lambda: "vb:" in open("/proc/net/dev", encoding="ascii").read())
        sh("ip addr add 198.51.100.2/24 dev vb; ip link set vb up")
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        end = time.monotonic() + 8
        while time.monotonic() < end:
            try:
                sender.sendto(b"good", ("198.51.100.1", 7779))
            except OSError:
                time.sleep(0.1)
        os._exit(0)
    sh("ip link add va type veth peer name vb; ethtool -K va gro on; ip addr add 198.51.100.1/24 dev va;"
       f"ip link set va up; ip link set vb netns {pid}")
    channel = kopi.Channel()
    channel.sock.bind(("0.0.0.0", 7779))
    kopi.wait_until(lambda: channel.stats()["rx_taken"] > 100, 20)
    channel.sock.setsockopt(socket.SOL_SOCKET, SO_BUSY_POLL, 50)
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    udp = struct.pack(">HHHH", 1234, 7779, 108, 0xdead) + b"b" * 100
    here = socket.inet_aton("127.0.0.1")
    header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, here, here)
    sent, end = 0, time.monotonic() + 5
    while time.monotonic() < end or sent <= 100:
        raw.sendto(header + udp, ("127.0.0.1", 0))
        sent += 1
    check("bad checksums at a flow that busy polls harm nobody", sent > 100, sent)
    os.waitpid(pid, 0)
    channel.sock.close()


def full_socket():
    """A flow without a channel whose send buffer is full and doesn't drain."""
    sh("ip link add d1 type dummy; ip addr add 203.0.114.1/24 dev d1; ip link set d1 up;"
       "ip neigh add 203.0.114.2 lladdr 02:00:00:00:00:02 dev d1;"
       "tc qdisc add dev d1 root tbf rate 8bit burst 1600 limit 1000000")
    flow = kopi.flow()
    flow.bind(("203.0.114.1", 0))
    flow.connect(("203.0.114.2", 9))
    flow.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    try:
        while True:
            flow.send(b"x" * 500, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return flow


def a_locked_sock_holds_up_nobody():
    """Who sleeps with a sock locked, as MSG_MORE does, and what may be on a channel."""
    channel = kopi.Channel()
    channel.sock.connect(("127.0.0.1", 9))
    found = error_of(lambda: channel.sock.send(b"x", socket.MSG_MORE))
    check("a flow on a channel takes no MSG_MORE", found == errno.EOPNOTSUPP, found)
    found = error_of(lambda: channel.sock.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1))
    check("and no UDP_CORK", found == errno.EOPNOTSUPP, found)
    channel.sock.close()

    corked = kopi.flow()
    corked.connect(("127.0.0.1", 9))
    corked.send(b"x", socket.MSG_MORE)
    found = error_of(lambda: kopi.Channel(sock=corked))
    check("a flow that has part of a datagram gets no channel", found == errno.EBUSY, found)
    corked.send(b"y")
    found = error_of(lambda: kopi.Channel(sock=corked))
    check("it gets one when the datagram is sent", found == 0, found)
    corked.close()

    flow = full_socket()
    threading.Thread(target=lambda: flow.send(b"x", socket.MSG_MORE), daemon=True).start()
    task = f"/proc/self/task/{threading.enumerate()[-1].native_id}/wchan"
    kopi.wait_until(lambda: "sock" in open(task, encoding="ascii").read())
    found = error_of(lambda: kopi.Channel(sock=flow))
    check("one with which a process sleeps gets none either", found == errno.EBUSY, found)

    def others():
        subprocess.run(["kopictl", "ps"], stdout=subprocess.DEVNULL, check=True, timeout=300)
        kopi.flow().close()
    is_quick, took = kopi.quick(20, others)
    check("meanwhile flows are listed, opened and closed", is_quick, took)


def monitors_come_and_go():
    """To show packets patches the kernel's text, which isn't done each time that a device goes up or down."""
    def goes(name):
        again = f"link set {name} up\nlink set {name} down\n" * 200
        start = time.monotonic()
        subprocess.run(["ip", "-batch", "-"], input=again, text=True, check=True)
        return time.monotonic() - start
    sh("ip link add mon1 type kopimon; ip link add usual1 type dummy")
    # One good try of several will do: the machine may stand still in any.
    for _ in range(5):
        usual, took = goes("usual1"), goes("mon1")
        if took < 3 * usual + 200 * PATCHED:
            break
    check("a monitor goes up and down 200 times, quickly", took < 3 * usual + 200 * PATCHED, (took, usual))
    sh("ip link del usual1")
    sh("ip link set mon1 up")
    with kopi.flow() as flow, socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as tap:
        tap.bind(("mon1", 3))
        tap.settimeout(10)
        flow.connect(("127.0.0.1", 9))
        flow.send(b"seen")
        check("and shows packets then", tap.recv(2048).endswith(b"seen"))
    sh("ip link del mon1")


def fragments_to_be_are_a_datagram():
    """What comes as one datagram, of which fragments would be made (UFO), is no GSO packet."""
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", b"tap0", IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    sh("ip addr add 198.18.1.1/24 dev tap0; ip link set tap0 address 02:00:00:00:00:01 up")
    here, there = (socket.inet_aton(address) for address in ("198.18.1.1", "198.18.1.2"))
    size, head = 3000, 14 + 20 + 8
    header = struct.pack("=BBHHHH", VIRTIO_NEEDS_CSUM, VIRTIO_GSO_UDP, head, 1000, 14 + 20, 6)
    ethernet = bytes.fromhex("020000000001" "020000000002" "0800")
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + 8 + size, 0, 0, 64, 17, 0, there, here)
    total = sum(struct.unpack(">10H", ip))
    ip = ip[:10] + struct.pack(">H", 0xFFFF - total % 0xFFFF) + ip[12:]
    udp = struct.pack(">HHHH", 1234, 7781, 8 + size, 0)
    for what, flags in (("without GSO packets", 0), ("with GSO packets", kopi.OFFLOADS), ("merged", kopi.OFFLOADS | kopi.GRO_MERGED)):
        channel = kopi.Channel(flags=flags, frame_size=4096)
        channel.sock.bind(("198.18.1.1", 7781))
        for number in range(8):
            channel.fill.push(channel.frame(number))
        os.write(tap, header + ethernet + ip + udp + bytes(size))
        kopi.wait_until(lambda rings=channel: rings.stats()["rx_taken"], 10)
        received = []
        while entry := channel.rx.pop():
            meta = struct.unpack_from(kopi.META_FORMAT, channel.region, entry[0] - entry[0] % 4096)
            received.append((entry[1], meta[5]))
        check(f"UFO of a tap's, {what}: one datagram",
              received == [(size, 0)] and channel.stats()["rx_packets"] == 1, received)
        channel.sock.close()
    os.close(tap)


def nobodys_file_system():
    """Adds a rule about a file of a file system that never answers."""
    os.unshare(CLONE_NEWNS)
    place = tempfile.mkdtemp()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if kopi.libc.mount(b"never", place.encode(), b"fuse", MS_NOSUID_NODEV, options):
        raise OSError(ctypes.get_errno(), "mount")
    try:
        add(family(), exe=f"{place}/program", verdict="deny")
    except NlError as error:
        os._exit(error.error)


def rules_wait_for_nobodys_file_system():
    """A request would hold generic netlink's lock meanwhile."""
    pid, ended = kopi.in_child(nobodys_file_system), []
    kopi.wait_until(lambda: ended or ended.extend(each for each in [os.waitpid(pid, os.WNOHANG)] if each[0]), 60)
    check("a rule about a file by FUSE is refused, and waits for nobody",
          ended and os.waitstatus_to_exitcode(ended[0][1]) == errno.EAGAIN, ended)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def rules_are_fewer():
    """A change of the rules takes time for each rule and flow, and holds generic netlink's lock."""
    ynl = family()
    ynl.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    for count, expected in ((RULES_MAX, 0), (RULES_MAX + 1, errno.ENOSPC)):
        try:
            ynl.do("ruleset-set", {"rule": [{"local-port-min": 1, "verdict": "deny"}] * count})
            found = 0
        except NlError as error:
            found = error.error
        check(f"{count} rules give {expected}", found == expected, found)
    ynl.do("ruleset-set", {})


def fill_queue(port):
    """A flow without a channel that has a full queue, from two peers in turn."""
    flow = kopi.flow()
    flow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
    flow.bind(("127.0.0.1", port))
    senders = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    for number, sender in enumerate(senders):
        # The verdict on one peer is remembered, not those on two.
        sender.bind((f"127.0.0.{number + 1}", 0))
    for number in range(QUEUED):
        senders[number % 2].sendto(b"x", ("127.0.0.1", port))
    return flow


def longest_gap(act):
    """The longest time, while it acts, in which another thread didn't get this CPU; and the whole time."""
    cpu, gaps, over = min(os.sched_getaffinity(0)), [0], threading.Event()

    def look():
        os.sched_setaffinity(0, {cpu})
        last = time.monotonic()
        while not over.is_set():
            time.sleep(0.001)
            now = time.monotonic()
            gaps.append(now - last)
            last = now

    looker = threading.Thread(target=look)
    looker.start()
    os.sched_setaffinity(0, {cpu})
    start = time.monotonic()
    act()
    took = time.monotonic() - start
    over.set()
    looker.join()
    os.sched_setaffinity(0, range(os.cpu_count()))
    return max(gaps), took


def a_full_queue_is_taken_in_turns():
    """What was queued before the flow has a channel is judged, with softirqs off, a few datagrams at a time."""
    ynl = family()
    ynl.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    seen, lost = [], 0
    # A busy host makes a gap longer, and none shorter: one good try of several will do.
    for port in range(7782, 7787):
        ynl.do("ruleset-set", {})
        flow = fill_queue(port)
        ynl.do("ruleset-set", {"rule": [{"remote-address": socket.inet_aton(f"198.51.{number >> 8}.{number & 255}"),
                                         "direction": {"in"}, "verdict": "deny"} for number in range(RULES_MAX)]})

        def take(flow=flow):
            channel = kopi.Channel(sock=flow, rx=32768)
            # It waits until there was a frame.
            channel.fill.push(channel.frame(0))
            select.select([flow], [], [], 0)
            return kopi.wait_until(lambda: channel.stats()["rx_taken"] == QUEUED, 60)

        seen.append(longest_gap(take))
        lost += QUEUED - kopi.Channel.of(flow).stats()["rx_taken"]
        flow.close()
        if seen[-1][0] < seen[-1][1] / 3:
            break
    print(f"# {QUEUED} datagrams, {RULES_MAX} rules: longest gap and whole time {seen}")
    check("all that was queued is taken", not lost, lost)
    check("and the CPU serves others meanwhile", seen[-1][0] < seen[-1][1] / 3, seen)
    ynl.do("ruleset-set", {})


def engines_are_the_machines():
    """A weight is a share of the machine's engines."""
    done = subprocess.run(["kopictl", "rule", "add", "local-port", "7780", "weight", "1000"], check=False,
                          capture_output=True, text=True)
    check("a rule gives no weight", done.returncode != 0 and "CAP_NET_ADMIN" in done.stderr, done.stderr)


def main():
    if "inside" not in sys.argv:
        command = ["setpriv", "--reuid", "bob", "--regid", "bob", "--clear-groups", "unshare", "-Urn",
                   sys.executable, __file__, "inside"]
        for module, device in (("tun", "/dev/net/tun"), ("fuse", "/dev/fuse")):
            # Any of them may be built in. As udev does.
            subprocess.run(["modprobe", "-q", module], check=False)
            os.chmod(device, 0o666)
        with Watchdog() as watchdog:
            status = subprocess.run(command, check=False, timeout=800).returncode
        sys.exit(status if watchdog.verdict() else 3)
    sh("ip link set lo up")
    unread_datagrams_die_beside_a_monitor()
    invalid_entries_are_bounded()
    bad_checksums_while_polling()
    a_locked_sock_holds_up_nobody()
    monitors_come_and_go()
    fragments_to_be_are_a_datagram()
    rules_wait_for_nobodys_file_system()
    rules_are_fewer()
    a_full_queue_is_taken_in_turns()
    engines_are_the_machines()
    kopi.finish()


main()
