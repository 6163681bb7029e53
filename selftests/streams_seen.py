#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What administrators have for TCP sees streams, and stops them, as it does ordinary sockets; monitors see them, too."""

import errno
import json
import os
import socket
import struct
import subprocess
import threading
import time

import kopi
from equivalence import namespace, run_nft, sh
from kopi import TCP6, attempt, check, fails, plain_stream, stream
from monitors import DROPPED, IN, OUT, PASSED, Monitor

HOST, PEER = "192.0.2.1", "192.0.2.2"
HOST6, PEER6 = "2001:db8::1", "2001:db8::2"
PORT = 7900
GROUP = "/sys/fs/cgroup/streams"


def far_listener(proto=0):
    """An ordinary listener of the peer's."""
    with namespace("peer"):
        waits = plain_stream(proto)
    waits.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    waits.bind((PEER6 if proto == TCP6 else PEER, PORT))
    waits.listen(8)
    return waits


def connect(make, proto=0, patience=20):
    """A connection from the host to the peer: both ends, or the errno; seconds until it is given up."""
    with far_listener(proto) as waits:
        near = make(proto)
        near.settimeout(patience)
        try:
            near.connect(waits.getsockname()[:2])
        except TimeoutError:
            near.close()
            return errno.ETIMEDOUT
        except OSError as error:
            near.close()
            return error.errno
        # What ends the handshake may be what is dropped.
        waits.settimeout(patience)
        try:
            far, _ = waits.accept()
        except TimeoutError:
            near.close()
            return errno.ETIMEDOUT
        return near, far


def exchange(make, proto, patience, for_answer):
    """What a connection comes to: an errno, or what arrived."""
    made = connect(make, proto, patience)
    if isinstance(made, int):
        return errno.errorcode[made]
    near, far = made
    with near, far:
        near.sendall(b"ask" * 1000)
        got = 0
        far.settimeout(patience)
        try:
            while got < 3000:
                got += len(far.recv(5000))
            far.sendall(b"answer")
            near.settimeout(for_answer)
            answer = near.recv(100)
        except TimeoutError:
            return f"{got} bytes, and no more"
        return got, answer


def as_user(make):
    """The socket is bob's."""
    def made(proto):
        os.seteuid(1002)
        try:
            return make(proto)
        finally:
            os.seteuid(0)
    return made


def in_group(make):
    """The socket is of a cgroup."""
    def made(proto):
        os.makedirs(GROUP, exist_ok=True)
        kopi.move_to(GROUP)
        try:
            return make(proto)
        finally:
            kopi.move_to("")
    return made


def verdicts_are_equal():
    """Each policy gives the same for both, and something else without it."""
    table = "add table inet streams; add chain inet streams {hook} {{ type filter hook {hook} priority 0; }}; " \
            "add counter inet streams seen; add rule inet streams {hook} meta l4proto tcp {rule}"
    policies = (
        ("no policy", None, None, "answer"),
        ("output: count", "output", "counter name seen", "answer"),
        ("output: drop", "output", "counter name seen drop", "ETIMEDOUT"),
        ("input: drop", "input", "counter name seen drop", "ETIMEDOUT"),
        ("input: drop data", "input", "tcp flags & (syn|fin) == 0 meta length > 45 counter name seen drop", "no more"),
        ("output: reject with a RST", "output", "counter name seen reject with tcp reset", "ETIMEDOUT"),
        ("meta skuid of bob's", "output", "meta skuid 1002 counter name seen drop", "ETIMEDOUT"),
        ("meta skuid of another", "output", "meta skuid 1003 counter name seen drop", "answer"),
        ("socket cgroupv2", "output", 'socket cgroupv2 level 1 "streams" counter name seen drop', "ETIMEDOUT"),
        ("ct state", "output", "ct state established counter name seen drop", "ETIMEDOUT"),
        ("ct: only answers come in", "input", "ct direction original counter name seen drop", "answer"),
    )
    os.makedirs(GROUP, exist_ok=True)
    # A dropped packet takes its time to be missed: some are enough by IPv6.
    both = ("no policy", "output: drop", "input: drop data", "meta skuid of bob's", "ct state")
    for what, hook, rule, expected in policies:
        for proto in (0, TCP6) if what in both else (0,):
            outcomes = []
            for make in (plain_stream, stream):
                if "skuid" in what:
                    make = as_user(make)
                if "cgroupv2" in what:
                    make = in_group(make)
                if hook:
                    run_nft(table.format(hook=hook, rule=rule))
                try:
                    outcome = exchange(make, proto, 1.5 if expected == "ETIMEDOUT" else 20,
                                       20 if expected == "answer" else 1.5)
                    seen = json.loads(sh("nft -j list counters"))["nftables"] if hook else []
                    seen = [entry["counter"]["packets"] > 0 for entry in seen if "counter" in entry]
                    outcomes.append((outcome, seen))
                finally:
                    if hook:
                        run_nft("delete table inet streams")
            check(f"{what}, IPv{6 if proto == TCP6 else 4}", outcomes[0] == outcomes[1] and expected in str(outcomes[0]),
                  f"TCP {outcomes[0]}, KOPI {outcomes[1]}")


def tools_see():
    """ss, conntrack and tcpdump."""
    for proto in (0, TCP6):
        version = 6 if proto == TCP6 else 4
        with subprocess.Popen(("tcpdump", "-lni", "eth0", "tcp", "port", str(PORT)), stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as dump:
            dump.stderr.readline()
            dump.stderr.readline()
            near, far = connect(stream, proto)
            with near, far:
                line = sh(f"ss -Htnp state established dport = {PORT}")
                check(f"ss -tnp, IPv{version}", f"pid={os.getpid()},fd={near.fileno()}" in line, line)
                # Something of earlier connections may be among it.
                late = threading.Timer(30, dump.kill)
                late.start()
                shown = ""
                for line in dump.stdout:
                    shown += line
                    if "Flags [S]," in shown and "Flags [S.]," in shown:
                        break
                late.cancel()
                dump.kill()
                check(f"tcpdump, IPv{version}", "Flags [S]," in shown and "Flags [S.]," in shown, shown)
                check(f"ss -K, IPv{version}", str(PORT) in sh(f"ss -KHtn dport = {PORT}"))
                fails(f"it is aborted, IPv{version}", errno.ECONNABORTED, lambda near=near: near.recv(1))
                fails(f"the peer is reset, IPv{version}", errno.ECONNRESET, lambda far=far: far.recv(1))


def monitors_see():
    """What a stream sends, receives and loses, with its process; nothing of others."""
    for proto in (0, TCP6):
        version = 6 if proto == TCP6 else 4
        monitor = Monitor()
        try:
            with plain_stream(proto) as other, far_listener(proto) as waits:
                other.connect(waits.getsockname()[:2])
                waits.accept()[0].close()
            near, far = connect(stream, proto)
            with near, far:
                near.sendall(b"outgoing bytes")
                far.recv(100)
                far.sendall(b"incoming bytes")
                near.recv(100)
                seen = []
                while (shown := monitor.next(1.0)) is not None:
                    seen.append(shown)
                check(f"all is this process's, IPv{version}", seen and all(
                    header["pid"] == os.getpid() and header["verdict"] == PASSED for header, _ in seen),
                    [header for header, _ in seen][:3])
                check(f"what is sent, IPv{version}",
                      any(header["direction"] == OUT and packet.endswith(b"outgoing bytes") for header, packet in seen))
                check(f"what is received, IPv{version}",
                      any(header["direction"] == IN and packet.endswith(b"incoming bytes") for header, packet in seen))
                check(f"packets are of IP, IPv{version}", all(packet[0] >> 4 == version for _, packet in seen))
                run_nft("add table inet streams; add chain inet streams output { type filter hook output priority 0; }; "
                        "add rule inet streams output meta l4proto tcp drop")
                try:
                    near.send(b"lost bytes")
                    header, packet = monitor.next()
                    check(f"what is dropped, IPv{version}",
                          (header["direction"], header["verdict"]) == (OUT, DROPPED) and packet.endswith(b"lost bytes"), header)
                finally:
                    run_nft("delete table inet streams")
        finally:
            monitor.close()


def strays_are_told_apart():
    """Segments to no flow, of requests and in TIME_WAIT, while streams and sockets come and go beside a monitor."""
    monitor = Monitor()
    stop = threading.Event()
    try:
        with stream() as waits, namespace("host"):
            waits.bind((HOST, 0))
            waits.listen(64)
            address = waits.getsockname()

            def churn(make):
                while not stop.is_set():
                    with namespace("peer"):
                        one = make()
                    one.settimeout(2)
                    try:
                        one.connect(address)
                        one.send(b"x")
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", os.urandom(1)[0] & 1, 0))
                    except OSError:
                        pass
                    one.close()

            def stray():
                """Any flags, to the listener's port from ports that connections had."""
                with namespace("peer"):
                    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
                with raw:
                    raw.bind((PEER, 0))
                    while not stop.is_set():
                        source = 32768 + int.from_bytes(os.urandom(2)) % 28000
                        body = struct.pack("!HHIIBBHHH", source, address[1], int.from_bytes(os.urandom(4)), 1, 5 << 4,
                                           os.urandom(1)[0] & 0x3f, 1000, 0, 0)
                        pseudo = socket.inet_aton(PEER) + socket.inet_aton(HOST) + struct.pack("!BBH", 0, 6, len(body))
                        total = sum(struct.unpack(f"!{(len(pseudo) + len(body)) // 2}H", pseudo + body))
                        total = (total >> 16) + (total & 0xffff)
                        total = ~((total >> 16) + total) & 0xffff
                        try:
                            raw.sendto(body[:16] + struct.pack("!H", total) + body[18:], (HOST, 0))
                        except OSError as error:
                            if error.errno != errno.ENOBUFS:
                                raise

            threads = [threading.Thread(target=churn, args=(plain_stream,)) for _ in range(2)]
            threads.append(threading.Thread(target=stray))
            for thread in threads:
                thread.start()
            accepted = shown = 0
            waits.settimeout(1)
            odd = []
            end = time.monotonic() + 30
            while accepted < int(os.environ.get("STREAMS", "400")) and time.monotonic() < end:
                try:
                    one, _ = waits.accept()
                except OSError:
                    continue
                accepted += 1
                one.close()
                # Others go on, and it may be that there is always another one.
                for _ in range(32):
                    if (packet := monitor.next(0)) is None:
                        break
                    shown += 1
                    if packet[0]["pid"] != os.getpid():
                        odd.append(packet[0])
            stop.set()
            for thread in threads:
                thread.join()
            check("streams came and went", accepted > 20 and shown > accepted, (accepted, shown))
            check("all that is shown is this process's", not odd, odd[:3])
    finally:
        stop.set()
        monitor.close()


with namespace("host"):
    for case in (verdicts_are_equal, tools_see, monitors_see, strays_are_told_apart):
        attempt(case)
kopi.finish()
