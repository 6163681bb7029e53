#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Rules permit streams' calls and connections, and end those that live; the program learns why."""

import errno
import json
import os
import select
import socket
import subprocess
import threading
import time

import kopi
from control import add, ask, flows, mine, refused, rules, ruled
from equivalence import namespace, run_nft, sh
from kopi import TCP6, attempt, check, fails, listener, plain_stream, stream, wait_until
from linux import MSG_FASTOPEN, SO_MAX_PACING_RATE, TCP_FASTOPEN
from slow import SlowCall

HOST, PEER = "192.0.2.1", "192.0.2.2"
HOST6, PEER6 = "2001:db8::1", "2001:db8::2"
# Of TCP_INFO: states, and that the peer took the data of a SYN.
SYN_SENT, CLOSE, TOOK_SYN_DATA = 2, 7, 32


def clear(ynl):
    """No rules."""
    ask(ynl, "ruleset-set")


def pair(proto=0):
    """A stream on the host and a plain socket of the peer's, connected by accept()."""
    host = HOST6 if proto == TCP6 else HOST
    with listener(proto, (host, 0)) as waits:
        with namespace("peer"):
            far = plain_stream(proto)
        far.connect(waits.getsockname())
        near, _ = waits.accept()
    return near, far


def calls_are_judged(ynl):
    """bind(), listen() and connect() by port and peer."""
    for proto, host, peer in ((0, HOST, PEER), (TCP6, HOST6, PEER6)):
        version = 6 if proto else 4
        denied = add(ynl, protocol=6, local_port_min=5432, verdict="deny")
        add(ynl, protocol=6, local_port_min=5433, direction={"in"}, verdict="deny")
        add(ynl, remote_address=peer, remote_port_min=81, verdict="deny")
        add(ynl, remote_address=peer, remote_port_min=82, direction={"in"}, verdict="deny")
        with stream(proto) as sock:
            fails(f"bind, IPv{version}", errno.EACCES, lambda: sock.bind((host, 5432)))
            sock.bind((host, 5433))
            fails(f"listen, IPv{version}", errno.EACCES, lambda: sock.listen(1))
        with kopi.flow(kopi.UDP6 if proto else 0) as datagram:
            datagram.bind((host, 5432))
            check(f"a rule of TCP leaves UDP alone, IPv{version}", True)
        for port, what in ((81, "both ways"), (82, "in")):
            with stream(proto) as sock:
                fails(f"connect, denied {what}, IPv{version}", errno.EACCES, lambda port=port: sock.connect((peer, port)))
                fails(f"it is not connected, IPv{version}", errno.ENOTCONN, sock.getpeername)
        counted = {rule["handle"]: rule["denied"] for rule in rules(ynl)}
        check(f"refusals are counted, IPv{version}", counted[denied] == 1, counted)
        clear(ynl)
        add(ynl, protocol=6, local_port_min=1, local_port_max=65535, verdict="deny")
        with stream(proto) as sock:
            fails(f"listen on a chosen port, IPv{version}", errno.EACCES, lambda: sock.listen(1))
            check(f"it doesn't listen, IPv{version}",
                  sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0)
            with plain_stream(proto) as other:
                other.bind((host, sock.getsockname()[1]))
                check(f"it has no port, IPv{version}", True)
        with listener_of_peer(proto) as (waits, address), stream(proto) as sock:
            fails(f"connect from a chosen port, IPv{version}", errno.EACCES, lambda address=address: sock.connect(address))
            check(f"no SYN came, IPv{version}", not select.select([waits], [], [], 0)[0])
        clear(ynl)


def counters_of_nft():
    """Packets of the table's counters."""
    shown = subprocess.run(["nft", "-j", "list", "counters"], check=True, capture_output=True).stdout
    each = (entry["counter"] for entry in json.loads(shown)["nftables"] if "counter" in entry)
    return {counter["name"]: counter["packets"] for counter in each}


class listener_of_peer:
    """A plain listener in the peer's namespace, with its address."""

    def __init__(self, proto=0):
        with namespace("peer"):
            self.sock = plain_stream(proto)
        self.sock.bind((PEER6 if proto == TCP6 else PEER, 0))
        self.sock.listen(8)

    def __enter__(self):
        return self.sock, self.sock.getsockname()[:2]

    def __exit__(self, *_):
        self.sock.close()


def peers_are_judged(ynl):
    """accept() gives no connection of a denied peer, who gets no SYN-ACK if that was known before."""
    for proto, host, peer in ((0, HOST, PEER), (TCP6, HOST6, PEER6)):
        version = 6 if proto else 4
        with listener(proto, (host, 0)) as waits:
            # Done before there is a rule.
            with namespace("peer"):
                early = plain_stream(proto)
            early.connect(waits.getsockname())
            add(ynl, remote_address=peer, verdict="deny")
            fails(f"accept, IPv{version}", errno.ECONNABORTED, waits.accept)
            fails(f"the peer is told, IPv{version}", errno.ECONNRESET, lambda: early.recv(1))
            early.close()
            with namespace("peer"):
                late = plain_stream(proto)
            late.setblocking(False)
            late.connect_ex(waits.getsockname())
            check(f"no SYN-ACK, IPv{version}", not select.select([], [late], [], 1.5)[1])
            check(f"nothing to accept, IPv{version}", not select.select([waits], [], [], 0)[0])
            clear(ynl)
            check(f"the next SYN is answered, IPv{version}", select.select([], [late], [], 10)[1])
            accepted, _ = waits.accept()
            check(f"accepted, IPv{version}", accepted.getpeername() == late.getsockname())
            accepted.close()
            late.close()
            # A listener that may not be one any more.
            handle = add(ynl, protocol=6, local_port_min=waits.getsockname()[1], verdict="deny")
            fails(f"accept of a denied listener, IPv{version}", errno.EACCES, waits.accept)
            ask(ynl, "rule-del", {"rule": {"handle": handle}})


def tcp_info(sock):
    """The state of a socket, and flags."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)
    return info[0], info[5]


def opens_fast(waits, proto, is_answered=True):
    """A socket of the peer's that has sent a SYN, with data if it has a cookie. Who waits for an answer has a cookie
    then."""
    with namespace("peer"):
        far = plain_stream(proto)
    far.setblocking(is_answered)
    far.sendto(b"first", MSG_FASTOPEN, waits.getsockname())
    return far


def fast_open_is_judged(ynl):
    """A SYN with data gets no answer where a SYN doesn't; by an ordinary listener neither, under enforced rules."""
    sh("mountpoint -q /sys/fs/bpf || mount -t bpf none /sys/fs/bpf")
    for space in "host", "peer":
        with namespace(space):
            sh("sysctl -qw net.ipv4.tcp_fastopen=3")
    for make, proto in ((stream, 0), (stream, TCP6), (plain_stream, 0), (plain_stream, TCP6)):
        is_flow, version = make is stream, 6 if proto else 4
        what = f"{'flow' if is_flow else 'ordinary'}, IPv{version}"
        with listener(proto, (HOST6 if proto else HOST, 0), make=make) as waits:
            waits.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 5)
            waits.settimeout(60)
            # The first one gets a cookie.
            for _ in range(2):
                far = opens_fast(waits, proto)
                near, _ = waits.accept()
                with near, far:
                    check(f"{what}: it has the data", near.recv(9) == b"first")
                    took = tcp_info(far)[1] & TOOK_SYN_DATA
            check(f"{what}: of the second SYN", took)
            if not is_flow:
                sh("kopictl rule enforce on")
                waits.listen(16)
            # An ordinary listener doesn't even see the SYN of a peer whose packets are denied.
            add(ynl, remote_address=PEER6 if proto else PEER, verdict="deny", **{} if is_flow else {"direction": {"out"}})
            with opens_fast(waits, proto, False) as far:
                check(f"{what}: it is a connection for the listener", select.select([waits], [], [], 10)[0])
                # In that time both send again.
                time.sleep(2.5)
                check(f"{what}: no SYN-ACK", tcp_info(far)[0] == SYN_SENT, tcp_info(far))
                if is_flow:
                    fails(f"{what}: accept", errno.ECONNABORTED, waits.accept)
                    check(f"{what}: the peer is told", wait_until(lambda far=far: tcp_info(far)[0] == CLOSE), tcp_info(far))
                else:
                    waits.accept()[0].close()
            sh("kopictl rule enforce off")
            clear(ynl)


def live_ones_end(ynl):
    """Each kind of rule ends what it denies, whoever waits; nothing else."""
    for proto, peer in ((0, PEER), (TCP6, PEER6)):
        for what, rule in (("by port", lambda near: {"local_port_min": near.getsockname()[1]}),
                           ("by peer", lambda near: {"remote_address": near.getpeername()[0]}),
                           ("in", lambda near: {"remote_address": near.getpeername()[0], "direction": {"in"}}),
                           ("out", lambda near: {"remote_address": near.getpeername()[0], "direction": {"out"}}),
                           ("by user", lambda near: {"uid_min": 0})):
            near, far = pair(proto)
            with near, far:
                got = []
                reader = threading.Thread(target=lambda near=near, got=got: got.append(error_of(lambda: near.recv(1))))
                reader.start()
                wait_until(lambda reader=reader: in_recv(reader))
                add(ynl, verdict="deny", **rule(near))
                reader.join(20)
                what_now = f"{what}, IPv{6 if proto else 4}"
                check(f"{what_now}: recv() learns why", got == [errno.EACCES], got)
                check(f"{what_now}: send() is refused", error_of(lambda near=near: near.send(b"x")) == errno.EACCES)
                check(f"{what_now}: the peer is reset", error_of(lambda far=far: far.recv(1)) == errno.ECONNRESET)
                state = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
                check(f"{what_now}: closed", state == 7, state)
                clear(ynl)
        near, far = pair(proto)
        with near, far:
            add(ynl, remote_address=peer, remote_port_min=1, verdict="deny")
            near.sendall(b"goes on")
            check(f"others go on, IPv{6 if proto else 4}", far.recv(10) == b"goes on")
            clear(ynl)
    near, far = pair()
    with near, far:
        poller = select.poll()
        poller.register(near, 0)
        add(ynl, remote_address=PEER, verdict="deny")
        events = poller.poll(5000)
        check("poll() tells", events and events[0][1] & select.POLLERR, events)
        check("SO_ERROR has it", near.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.EACCES)
        clear(ynl)


def error_of(call):
    """The errno, or 0."""
    try:
        call()
    except OSError as error:
        return error.errno
    return 0


def in_recv(thread):
    """Whether the thread sleeps in recvfrom(2)."""
    with open(f"/proc/self/task/{thread.native_id}/syscall", encoding="ascii") as call:
        return call.read().split()[0] == "45"


def marks_hold(ynl):
    """A rule's mark and priority are the packets', from the first on, and are undone."""
    with namespace("host"):
        run_nft("add table inet streams; add counter inet streams marked; add counter inet streams other; "
                "add chain inet streams out { type filter hook output priority 0; }; "
                "add rule inet streams out meta l4proto tcp tcp dport 7801 mark 77 counter name marked; "
                "add rule inet streams out meta l4proto tcp tcp dport 7801 mark != 77 counter name other")
        try:
            with namespace("peer"):
                waits = plain_stream()
            waits.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            waits.bind((PEER, 7801))
            waits.listen(4)
            add(ynl, remote_port_min=7801, mark=77, priority=5)
            with stream() as near:
                near.connect((PEER, 7801))
                far, _ = waits.accept()
                near.sendall(b"marked")
                far.recv(10)
                check("the socket has them", (near.getsockopt(socket.SOL_SOCKET, socket.SO_MARK),
                                              near.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)) == (77, 5))
                counters = counters_of_nft()
                check("all packets have the mark", counters["other"] == 0 and counters["marked"] >= 3, counters)
                clear(ynl)
                check("they are undone", wait_until(lambda: (
                    near.getsockopt(socket.SOL_SOCKET, socket.SO_MARK),
                    near.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY)) == (0, 0), 10))
                near.sendall(b"plain")
                far.recv(10)
                far.close()
            waits.close()
        finally:
            run_nft("delete table inet streams")


def rates_hold(ynl):
    """A rate of bytes paces; what can't be kept is refused."""
    rate = 200_000
    add(ynl, protocol=6, rate_bytes=rate, burst=20_000)
    near, far = pair()
    with near, far:
        check("SO_MAX_PACING_RATE has it", near.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE) == rate,
              near.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE))
        size, begun = 500_000, time.monotonic()
        sender = threading.Thread(target=near.sendall, args=(bytes(size),))
        sender.start()
        left = size
        while left:
            left -= len(far.recv(min(left, 100_000)))
        took = time.monotonic() - begun
        sender.join()
        # What a burst and one packet may be ahead.
        check("it is kept", took > (size - 20_000 - 65_536) / rate, took)
        clear(ynl)
        check("it is undone", wait_until(lambda: near.getsockopt(
            socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8) == b"\xff" * 8, 10),
            near.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8))
    for what, fields, words in (("of packets", {"rate_packets": 5}, "of bytes"),
                                ("that is shared", {"rate_bytes": 5000, "shared": True}, "shared"),
                                ("of what comes", {"rate_bytes": 5000, "direction": {"in"}}, "receives")):
        refused(f"a rate {what}", errno.EOPNOTSUPP, lambda fields=fields: add(ynl, protocol=6, **fields), words)


def is_shown(ynl):
    """Netlink shows protocol, state, ends and who accepted."""
    with listener(0, (HOST, 0)) as waits, namespace("host"):
        [shown] = mine(ynl).values()
        check("a listener is shown", (shown["protocol"], shown["tcp-state"]) == (6, "listen"), shown)
        with namespace("peer"):
            far = plain_stream()
        far.connect(waits.getsockname())
        near, _ = waits.accept()
        with near, far:
            near.sendall(b"four")
            far.recv(4)
            far.sendall(b"seven!!")
            near.recv(9)
            shown = [flow for flow in mine(ynl).values() if flow["tcp-state"] == "established"]
            check("an accepted connection is shown", len(shown) == 1
                  and shown[0]["remote-port"] == far.getsockname()[1]
                  and shown[0]["stats"]["tx-bytes"] == 4 and shown[0]["stats"]["rx-bytes"] == 7, shown)
        with namespace("peer"):
            far = plain_stream()
        far.connect(waits.getsockname())
        pid = os.fork()
        if pid == 0:
            far.close()
            os.setresuid(1002, 1002, 1002)
            near, _ = waits.accept()
            near.recv(1)
            os._exit(0)
        seen = wait_until(lambda: [flow for flow in flows(ynl).values() if flow["pid"] == pid])
        check("who accepts is its owner", seen and seen[0]["uid"] == 1002, seen)
        far.close()
        os.waitpid(pid, 0)
        with kopi.flow() as datagram:
            del datagram
            shown = [flow for flow in mine(ynl).values() if flow["protocol"] == 17]
            check("datagrams have no state", len(shown) == 1 and "tcp-state" not in shown[0], shown)


def tries(seconds):
    """How often the work of streams runs in that time."""
    tracing = "/sys/kernel/tracing"
    event = f"{tracing}/events/workqueue/workqueue_execute_start/enable"

    def put(path, value):
        with open(path, "w", encoding="ascii") as file:
            file.write(value)
    put(f"{tracing}/trace", "")
    put(event, "1")
    time.sleep(seconds)
    put(event, "0")
    with open(f"{tracing}/trace", encoding="ascii") as trace:
        return sum("6stream4work" in line for line in trace)


def held_locks_hold_nobody_up(ynl):
    """A process that makes its socket's lock last delays no change of rules, and ends when it goes on."""
    near, far = pair()
    with near, far:
        with SlowCall(lambda page: kopi.libc.send(near.fileno(), page, 4096, socket.MSG_NOSIGNAL)):
            # Until then, the process has the lock.
            add(ynl, remote_address=PEER, verdict="deny")
            check("rules and listings don't wait", mine(ynl))
            tried = tries(3)
            check("the lock is tried more and more seldom", 1 <= tried <= 12, tried)
        check("it is ended then", wait_until(lambda: near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 7, 60))
        clear(ynl)


with ruled() as control:
    for case in (calls_are_judged, peers_are_judged, fast_open_is_judged, live_ones_end, marks_hold, rates_hold, is_shown,
                 held_locks_hold_nobody_up):
        attempt(case, control)
kopi.finish()
