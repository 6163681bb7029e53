# SPDX-License-Identifier: GPL-2.0
"""What goes on at once in soak.py: each function works until `end` (of time.monotonic()), and counts what it does in
`count`; it raises an exception for whatever isn't as it should be."""

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import time

import bpf
import kopi
from equivalence import namespace, sh
from kopi import JOIN, SOL_KOPI, Channel, flow

GROUP = "/sys/fs/cgroup/soak"
# veth0 in host, veth1 in peer: here rules change, and packets are lost.
LOSSY = {4: ("198.51.100.1", "198.51.100.2"), 6: ("2001:db8:1::1", "2001:db8:1::2")}
# By the NICs, of which the host's is attached.
NICS = {4: ("192.0.2.1", "192.0.2.2"), 6: ("2001:db8::1", "2001:db8::2")}
# Flows of the peer that get single datagrams, and the first one's port.
SINGLES, SINGLES_PORT = 16, 7100
# A port that only rules are about, which are enforced now and then.
KEPT_PORT = 5999


def whole(end, count):
    """Datagrams of all sizes, between rings and sockets, where nothing changes: all arrive intact."""
    turns = 0
    kinds = [("host", "peer", "192.0.2.1", "", ""), ("peer", "host", "[2001:db8::2]", "--plain", ""),
             ("host", "host", "127.0.0.1", "", "--plain"), ("host", "host", "[::1]", "--offloads", ""),
             ("peer", "host", "192.0.2.2", "--offloads --merged", "--offloads"),
             ("host", "peer", "192.0.2.1", "--offloads --merged", "--offloads")]
    while time.monotonic() < end:
        to, by, address, receiving, sending = kinds[turns % len(kinds)]
        size = "1400" if "offloads" in sending else "0..20000"
        sh(f"cd /tmp; ip netns exec {to} kopi-gen recv --bind {address}:9100 --count 500 "
           f"--timeout 60 {receiving} >soak.recv & for _ in $(seq 600); do grep -q ^listening "
           f"soak.recv && break; sleep 0.05; done; ip netns exec {by} kopi-gen send {address}:9100 "
           f"--count 500 --size {size} {sending} >soak.send && wait $! && rm soak.recv || "
           "{ cat soak.send soak.recv; exit 1; }")
        turns += 1
        count["whole"] = turns * 500


def lossy(end, count):
    """Rings that send to rings at full rate where rules change: each packet is accounted for."""
    turns = 0
    while time.monotonic() < end:
        family = 6 if turns & 1 else 4
        proto = kopi.UDP6 if family == 6 else 0
        with namespace("host"):
            out = Channel(flow(proto), flags=kopi.OFFLOADS * (turns >> 1 & 1))
        with namespace("peer"):
            back = Channel(flow(proto), flags=kopi.OFFLOADS * (turns >> 2 & 1), frames=256, fill=256, rx=256)
        back.sock.bind((LOSSY[family][1], 7001))
        for frame in range(256):
            back.fill.push(back.frame(frame))
        for _ in range(200):
            # As far as the ring has room: where a queue is full, the kernel leaves entries there.
            for frame in range(64 - (out.tx.get(out.tx.producer) - out.tx.get(out.tx.consumer))):
                out.send(frame, bytes([frame]) * (1400 if frame & 1 else 100),
                         (LOSSY[family][1], 7001))
            out.bell()
            while out.completion.pop() is not None:
                pass
            while (entry := back.rx.pop()) is not None:
                data = back.region[entry[0]:entry[0] + entry[1]]
                if data != data[:1] * len(data) or len(data) not in (100, 1400):
                    raise RuntimeError(f"{len(data)} bytes that were not sent so")
                back.fill.push(entry[0] & ~2047)
        for channel in (out, back):
            if channel.unaccounted():
                raise RuntimeError(channel.unaccounted())
        count["sent"] = count.get("sent", 0) + out.stats()["tx_packets"]
        count["received"] = count.get("received", 0) + back.stats()["rx_packets"]
        # With packets in queues of qdiscs and devices.
        for channel in (out, back):
            channel.region.close()
            channel.sock.close()
        turns += 1


def churn(end, count):
    """Flows come, join, exchange a datagram, and go."""
    turns = 0
    while time.monotonic() < end:
        first, second = flow(), flow()
        channel = Channel(first, frames=16, flags=kopi.OFFLOADS * (turns & 1))
        second.setsockopt(SOL_KOPI, JOIN, kopi.join_request(first))
        for sock in (first, second):
            sock.bind(("127.0.0.1", 0))
        channel.fill.push(channel.frame(8))
        channel.send(0, b"to the other", second.getsockname())
        channel.bell()
        channel.bell(kopi.BELL_WAIT_RX)
        entry = channel.rx.pop()
        if channel.region[entry[0]:entry[0] + entry[1]] != b"to the other" or entry[2] != 1:
            raise RuntimeError(f"received {entry}")
        if turns % 3:
            channel.region.close()
        second.close()
        first.close()
        del channel
        turns += 1
        count["churned"] = turns


def victim():
    """Sends and receives until it is killed."""
    channel = Channel(frames=32)
    channel.sock.bind(("127.0.0.1", 0))
    address = channel.sock.getsockname()
    while True:
        for frame in range(16):
            channel.send(frame, b"x" * (1900 if frame & 1 else 10), address)
        channel.bell()
        while channel.completion.pop() is not None:
            pass
        channel.fill.push(channel.frame(20))
        channel.rx.pop()


def killed(end, count):
    """Processes are killed in the middle of it."""
    chance = random.Random(1)
    while time.monotonic() < end:
        pid = kopi.in_child(victim)
        time.sleep(chance.uniform(0.01, 0.1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        count["killed"] = count.get("killed", 0) + 1


CHANGES = [
    ("nft 'table inet soak { chain c { type filter hook output priority 0; udp dport 7001 limit rate "
     "over 1000/second drop; }; }'", "nft delete table inet soak"),
    ("nft 'table ip soak { chain c { type nat hook postrouting priority 100; oif veth0 masquerade; "
     "}; }'", "nft delete table ip soak"),
    ("tc qdisc replace dev veth0 root netem delay 20ms loss 5% duplicate 5% reorder 10%",
     "tc qdisc del dev veth0 root"),
    ("tc qdisc replace dev veth0 root tbf rate 10mbit burst 20k limit 50k",
     "tc qdisc replace dev veth0 root fq; tc qdisc del dev veth0 root"),
    ("tc qdisc add dev veth0 clsact; tc filter add dev veth0 egress protocol ip flower action drop",
     "tc qdisc del dev veth0 clsact"),
    ("iptables-legacy -A OUTPUT -p udp --dport 7001 -m statistic --mode random --probability 0.3 -j DROP",
     "iptables-legacy -F OUTPUT"),
    ("ip route add blackhole 198.51.100.2/32", "ip route del blackhole 198.51.100.2/32"),
    ("ip link set veth0 mtu 1300", "ip link set veth0 mtu 1500"),
    ("ip addr add 198.51.100.3/24 dev veth0", "ip addr del 198.51.100.3/24 dev veth0"),
    ("ip link set veth0 down", "ip link set veth0 up; "
     "ip addr replace 2001:db8:1::1/64 dev veth0 nodad"),
    ("timeout 1 tcpdump -i veth0 -c 50 -w /dev/null", "true"),
    ("kopictl detach eth0; sleep 1", "kopictl attach eth0"),
]


def rules(end, count):
    """Rules, qdiscs, routes, addresses, programs and taps come and go."""
    turns = 0
    while time.monotonic() < end:
        for change in CHANGES[turns % len(CHANGES)]:
            # The tap's timeout is no fault.
            sh(f"nsenter --net=/run/netns/host bash -c {json.dumps(change)} || [ $? = 124 ]")
            time.sleep(0.1)
        turns += 1
        count["changes"] = turns


def cgroup_programs(end, count):
    """Programs on the cgroup of all of them come and go."""
    turns = 0
    while time.monotonic() < end:
        group = os.open(GROUP, os.O_RDONLY)
        detach = bpf.attach(group, ("egress_count", "ingress_count")[turns & 1],
                            ("cgroup_inet_egress", "cgroup_inet_ingress")[turns & 1])
        time.sleep(0.3)
        detach()
        os.close(group)
        turns += 1
        count["programs"] = turns


def singles(end, count):
    """Single datagrams of one flow to sixteen of the other machine, and answers, by rings and the attached NIC."""
    turns = 0
    while time.monotonic() < end:
        family = 6 if turns & 1 else 4
        proto, (near, far) = kopi.UDP6 if family == 6 else 0, NICS[family]
        with namespace("host"):
            out = Channel(flow(proto), frames=128, fill=64, rx=64)
        out.sock.bind((near, 0))
        port = out.sock.getsockname()[1]
        with namespace("peer"):
            back = Channel(flow(proto), frames=256, fill=128, rx=128)
            others = [flow(proto) for _ in range(SINGLES - 1)]
        for number, sock in enumerate([back.sock, *others]):
            if number:
                sock.setsockopt(SOL_KOPI, JOIN, kopi.join_request(back.sock))
            sock.bind((far, SINGLES_PORT + number))
        for channel, first in ((out, 64), (back, 128)):
            for frame in range(first, 2 * first):
                channel.fill.push(channel.frame(frame))
        for turn in range(100):
            for number in range(SINGLES):
                out.send(number, struct.pack("=II", turn, number) * 8, (far, SINGLES_PORT + number))
            out.complete(SINGLES)
            while answer_singles(back, (near, port), count):
                pass
            while (entry := out.rx.pop()) is not None:
                check_single(out, entry)
                count["answers"] = count.get("answers", 0) + 1
                out.fill.push(entry[0] & ~2047)
        for channel in (out, back):
            if channel.unaccounted():
                raise RuntimeError(channel.unaccounted())
            channel.region.close()
            channel.sock.close()
        for sock in others:
            sock.close()
        turns += 1
        count["singles"] = turns * 100 * SINGLES


def check_single(channel, entry):
    """The number in a datagram, which is repeated in it."""
    data = bytes(channel.region[entry[0]:entry[0] + entry[1]])
    if len(data) != 64 or data != data[:8] * 8:
        raise RuntimeError(f"{data.hex()} wasn't sent so")
    return struct.unpack_from("=II", data)[1]


def answer_singles(back, asker, count):
    """Each flow of the peer answers what it has got; gives how many did."""
    got = 0
    # More than the TX ring has room for may have waited.
    while got < SINGLES and (entry := back.rx.pop()) is not None:
        number = check_single(back, entry)
        if entry[2] != number:
            raise RuntimeError(f"flow {entry[2]} got what was for {number}")
        back.send(got, bytes(back.region[entry[0]:entry[0] + 64]), asker, number)
        back.fill.push(entry[0] & ~2047)
        got += 1
    if got:
        back.complete(got)
    count["asked"] = count.get("asked", 0) + got
    return got


def streams(end, count):
    """TCP flows to plain sockets and to flows of the other machine: what is sent arrives, or the connection is reset."""
    chance = random.Random(2)
    turns = 0
    while time.monotonic() < end:
        family = 6 if turns & 1 else 4
        proto, (near, far) = kopi.TCP6 if family == 6 else 0, NICS[family]
        with namespace("peer"):
            listener = kopi.listener(proto, (far, 0)) if turns & 2 else socket.create_server((far, 0), family=(
                socket.AF_INET6 if family == 6 else socket.AF_INET))
        with namespace("host"):
            one = kopi.stream(proto)
        one.bind((near, 0))
        one.connect(listener.getsockname())
        other, _ = listener.accept()
        for sock in (one, other):
            sock.settimeout(60)
        data = chance.randbytes(chance.choice((1, 1000, 100_000)))
        if turns % 5 == 4:
            # Closed with data that nobody has read.
            other.sendall(data[:100])
            one.sendall(data[:100])
        elif os.fork() == 0:
            one.sendall(data)
            one.shutdown(socket.SHUT_WR)
            os._exit(0 if one.recv(1) == b"" else 1)
        else:
            got = b""
            while len(got) < len(data) and (more := other.recv(65536)):
                got += more
            if got != data:
                raise RuntimeError(f"{len(got)} bytes of {len(data)} arrived, or others")
            other.shutdown(socket.SHUT_WR)
            if os.wait()[1]:
                raise RuntimeError("the other side got something")
        for sock in (one, other, listener):
            if turns % 4:
                # What waits for a minute after an end counts as memory.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))
            sock.close()
        turns += 1
        count["streams"] = turns


def as_they_are(end, count):
    """A program of Debian's by `kopi run`, which answers, and is killed or ended now and then."""
    turns = 0
    while time.monotonic() < end:
        with namespace("host"), subprocess.Popen(
                "exec kopi run --min-datagrams 1 dnsmasq -k -C /dev/null --no-resolv --no-hosts --user=root --pid-file= "
                "--listen-address=192.0.2.1,2001:db8::1 --bind-interfaces --port=9053 --host-record=a.test,198.51.100.7",
                shell=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            for ask in range(8):
                # The first question may come too early.
                said = sh(f"ip netns exec peer dig +short +time=3 +tries=20 @{NICS[6 if ask & 1 else 4][0]} -p 9053 a.test")
                if "198.51.100.7" not in said:
                    raise RuntimeError(f"dnsmasq said {said}")
                count["questions"] = count.get("questions", 0) + 1
            server.send_signal(signal.SIGKILL if turns & 1 else signal.SIGTERM)
        turns += 1


def enforced(end, count):
    """A rule that denies a port to all but one program comes and goes, enforced or not: it holds, whatever goes on."""
    rule = f"nsenter --net=/run/netns/host kopictl rule add local-port {KEPT_PORT} deny"
    turns = 0
    while time.monotonic() < end:
        sh(rule)
        sh(f"nsenter --net=/run/netns/host kopictl rule enforce {'on' if turns & 1 else 'off'}")
        for kind in ("flow", "stream", "plain"):
            if kind_may_bind(kind) != (kind == "plain" and not turns & 1):
                raise RuntimeError(f"a rule doesn't hold for a {kind}, turn {turns}")
        sh("nsenter --net=/run/netns/host bash -c 'kopictl rule enforce off; kopictl rule flush'")
        if not kind_may_bind("plain") or not kind_may_bind("flow"):
            raise RuntimeError("a rule that isn't there holds")
        turns += 1
        count["enforced"] = turns


def kind_may_bind(kind):
    """Whether a socket of a kind may be bound to the port that rules are about."""
    with namespace("host"):
        sock = {"flow": flow, "stream": kopi.stream,
                "plain": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)}[kind]()
    with contextlib.closing(sock):
        try:
            sock.bind((NICS[4][0], KEPT_PORT))
        except PermissionError:
            return False
    return True


WORKERS = (whole, lossy, churn, killed, rules, cgroup_programs, singles, streams, as_they_are, enforced)
