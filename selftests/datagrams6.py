# SPDX-License-Identifier: GPL-2.0
"""What IPv6 datagrams of a flow become on the wire, and of a UDP socket: for tests that hold the two together, by one
of a flow's ways to send them.

Begin with `ways()`; WAY is the flow's from then on."""

import contextlib
import errno
import socket
import struct
import time

import kernel_counters
import kopi
from attached import host, know_neighbours, link, overheard, peer, sysctl
from control import family
from equivalence import checksum, namespace, payload, sh
from linux import (ETH_P_IPV6, IPV6_ADDR_PREFERENCES, IPV6_AUTOFLOWLABEL, IPV6_DONTFRAG, IPV6_FLOWINFO_SEND,
                   IPV6_FLOWLABEL_MGR, IPV6_HOPOPTS, IPV6_MTU, IPV6_MTU_DISCOVER, IPV6_PKTINFO, IPV6_TCLASS,
                   IPV6_UNICAST_HOPS, IPV6_UNICAST_IF, UDP_NO_CHECK6_TX)

NEAR, FAR, FOREIGN = "2001:db8::1", "2001:db8::2", "2001:db8:9::1"
PORT, FROM, FRAMES = 7000, 7001, 16
IP6, UDP = socket.IPPROTO_IPV6, socket.IPPROTO_UDP
# Fields of /proc/net/snmp, of snmp6 and of the device's that datagrams change.
COUNTERS = ("Ip:OutRequests", "Ip:OutDiscards", "Ip:OutTransmits", "Ip:FragCreates", "Udp:OutDatagrams", "Udp:SndbufErrors",
            "Ip6OutRequests", "Ip6OutDiscards", "Ip6OutNoRoutes", "Ip6OutOctets", "Ip6OutTransmits", "Ip6FragCreates",
            "Udp6OutDatagrams", "Udp6SndbufErrors", "Udp6InErrors", "Icmp6OutMsgs")
LABEL = 0x12345
# How flows send; their control; what gets the datagrams.
WAY, YNL, SINKS = None, None, []


def zero_payload():
    """Two bytes with which the checksum would be 0, which means none."""
    ends = socket.inet_pton(socket.AF_INET6, NEAR) + socket.inet_pton(socket.AF_INET6, FAR)
    return struct.pack(">H", checksum(ends + struct.pack(">HHHHHH", 10, 17, FROM, PORT, 10, 0)))


class Connected(kopi.Flow):
    """A flow that can connect to an address with flow information."""

    def connect(self, address):
        name = bytearray(kopi.pack_address(*address))
        name[4:8] = struct.pack(">I", address[2] if len(address) > 2 else 0)
        self._call(kopi.libc.connect, bytes(name))

    def _call(self, function, address):
        if isinstance(address, bytes):
            if function(self.fileno(), address, len(address)):
                raise OSError(kopi.ctypes.get_errno(), "")
        else:
            super()._call(function, address)


class Frames:
    """By the ring, as frames of an attached device."""
    name = "as frames"

    @staticmethod
    def flow():
        """A flow."""
        return Connected(kopi.AF_KOPI, socket.SOCK_DGRAM, kopi.UDP6)

    @staticmethod
    def channel(sock):
        """The channel of a flow."""
        return kopi.Channel(sock, frames=FRAMES, tx=FRAMES, completion=FRAMES)

    @staticmethod
    def taken(_sender):
        """Datagrams that went so, of all senders."""
        return link(YNL)["packets"]


class Routes:
    """By sendmsg() of a flow on a channel that only sends, by the routes that it remembers."""
    name = "by routes"

    @staticmethod
    def flow():
        """A flow, whose addresses Python knows."""
        return kopi.ip_flow(kopi.UDP6)

    @staticmethod
    def channel(sock):
        """The channel of a flow."""
        return kopi.Channel(sock, flags=kopi.TX_ONLY)

    @staticmethod
    def taken(sender):
        """Datagrams that went so, of this sender."""
        return sender.channel.stats()["tx_packets"] if sender and sender.rings else 0


class Sender:
    """A plain socket, or a flow on a channel."""

    def __init__(self, rings, setup=None, bind=(NEAR, FROM), connect=None):
        self.rings = rings
        with namespace("host"):
            if rings:
                self.sock = WAY.flow()
            else:
                self.sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
            if setup:
                setup(self.sock)
            self.sock.bind(bind)
            if connect:
                self.sock.connect(connect)
            if rings:
                self.channel = WAY.channel(self.sock)

    def close(self):
        """Ends it."""
        self.sock.close()
        if self.rings:
            self.channel.region.close()

    def send(self, datagrams, address=None, local=None, ifindex=0):
        """Sends each; gives their errnos."""
        if not self.rings or WAY is Routes:
            return [self.send_one(data, address, local, ifindex) for data in datagrams]
        errors = []
        for number, data in enumerate(datagrams):
            meta = {"ifindex": ifindex} if ifindex else {}
            meta |= {"local": local} if local else {}
            self.channel.send(number % FRAMES, data, address, meta=meta or None)
            if number % FRAMES == FRAMES - 1 or number == len(datagrams) - 1:
                errors += self.channel.complete(number % FRAMES + 1)
        return errors

    def send_one(self, data, address, local, ifindex):
        """Sends one by sendmsg(); gives its errno."""
        control = []
        if local:
            info = socket.inet_pton(socket.AF_INET6, local) + struct.pack("=I", ifindex)
            control = [(IP6, IPV6_PKTINFO, info)]
        try:
            if address and len(address) == 2:
                address = (*address, 0, ifindex)
            self.sock.sendmsg([data], control, 0, *([address] if address else []))
        except OSError as error:
            return error.errno
        return 0


class Overheard:
    """What arrives at the peer's NIC, with its Ethernet headers: what UDP sends by IPv6, or by IPv4."""

    def __init__(self, protocol=ETH_P_IPV6):
        self.sock = overheard(protocol)
        self.is_ipv6 = protocol == ETH_P_IPV6

    def take(self, count=0, patience=0.3):
        """As many as are expected, or as have come."""
        got = []
        self.sock.settimeout(patience)
        end = time.monotonic() + 10
        with contextlib.suppress(TimeoutError):
            while time.monotonic() < end and (not count or len(got) < count):
                packet = self.sock.recv(65536)
                # Not what multicast groups are reported by.
                if self.is_ipv6 and (packet[20] in (17, 44, 50) or packet[20] == 0 and packet[54] == 17) or \
                        not self.is_ipv6 and packet[23] == 17:
                    got.append(packet)
        return got


def counters():
    """The namespace's, the device's, and those of the device's interface."""
    values = {}
    with namespace("host"):
        for path in ("snmp", "snmp6", "dev_snmp6/eth0"):
            read = kernel_counters.table if path == "snmp" else kernel_counters.of_ipv6
            values |= {f"{path} {name}": value for name, value in read(f"/proc/net/{path}").items() if name in COUNTERS}
        with open("/proc/net/dev", encoding="ascii") as file:
            words = next(line for line in file if "eth0:" in line).split()
    # Of bytes virtio_net counts its own header, too, where it is given frames.
    return values | {"packets": int(words[10]), "dropped": int(words[12])}


def observe(wire, rings, datagrams, setup=None, bind=(NEAR, FROM), connect=None, patience=0.3, **way):
    """What datagrams become: (errnos, packets, counters), and how many went the flow's way. What is still to come
    comes within `patience` seconds."""
    taken = WAY.taken(None)
    wire.take(0, patience / 15)
    sender = Sender(rings, setup, bind, connect)
    before = counters()
    errors = sender.send(datagrams, **way)
    packets = wire.take(sum(error == 0 for error in errors), patience)
    if wire.is_ipv6 and connect and len({packet[15:18] for packet in packets}) == 1:
        # Its label is made of a random number of the sock's; see labels_stay().
        packets = [packet[:15] + bytes([packet[15] & 0xf0]) + packet[18:] for packet in packets]
    # virtio_net counts frames when it frees them.
    kopi.wait_until(lambda: counters()["packets"] - before["packets"] >= len(packets), 5)
    told = {name: value - before[name] for name, value in counters().items()}
    taken = WAY.taken(sender) - taken
    sender.close()
    return (errors, packets, told), taken


def unlike(want, have):
    """Counters that differ, by name."""
    return {name: (number, have[name]) for name, number in want.items() if number != have[name]}


def same(wire, what, datagrams=None, directly=True, **how):
    """Checks that a flow's datagrams become what a UDP socket's do, and whether they go the flow's way."""
    datagrams = datagrams or [payload(number, size) for number, size in enumerate((0, 1, 7, 64, 511, 1400, 1452) * 2)]
    # On a busy machine some may come late; what the host says of its own is seldom there in a short time.
    for patience in 0.3, 1, 3, 8, 1, 1:
        plain, _ = observe(wire, False, datagrams, patience=patience, **how)
        ring, taken = observe(wire, True, datagrams, patience=patience, **how)
        if plain == ring:
            break
        print(f"# {what}, within {patience} s: {plain[0] == ring[0]} {plain[1] == ring[1]} {unlike(plain[2], ring[2])}",
              flush=True)
    for part, want, have in zip(("errors", "packets", "counters"), plain, ring):
        said = (want, have)
        if part == "counters":
            said = unlike(want, have)
        if part == "packets" and want != have:
            pairs = [(a.hex(), b.hex()) for a, b in zip(want, have) if a != b]
            said = (len(want), len(have), [(a[:160], b[:160]) for a, b in pairs[:1]])
        kopi.check(f"{what}: the same {part}", want == have, said)
    sent = sum(error == 0 for error in plain[0])
    kopi.check(f"{what}: " + (WAY.name if directly else "by the stack"), taken == (sent if directly else 0), taken)


def option(level, name, value):
    """What sets an option."""
    return lambda sock: sock.setsockopt(level, name, value)


def leased(sock):
    """Has a flow label of its own, and sends it."""
    lease = struct.pack("=16sIBBHHH4x", socket.inet_pton(socket.AF_INET6, FAR), socket.htonl(LABEL), 0, 255, 1, 10, 10)
    sock.setsockopt(IP6, IPV6_FLOWLABEL_MGR, lease)
    sock.setsockopt(IP6, IPV6_FLOWINFO_SEND, 1)


def options(wire):
    """Each option, connected and not."""
    with namespace("host"):
        index = socket.if_nametoindex("eth0")
    to = {"address": (FAR, PORT)}
    ways = {"by address": to, "connected": {"connect": (FAR, PORT)}}
    settings = {
        "no option": (None, True),
        "traffic class": (option(IP6, IPV6_TCLASS, 0x28), True),
        "hop limit": (option(IP6, IPV6_UNICAST_HOPS, 9), True),
        "no flow labels": (option(IP6, IPV6_AUTOFLOWLABEL, 0), True),
        "DONTFRAG": (option(IP6, IPV6_DONTFRAG, 1), True),
        "IPV6_PMTUDISC_DO": (option(IP6, IPV6_MTU_DISCOVER, 2), True),
        "IPV6_PMTUDISC_DONT": (option(IP6, IPV6_MTU_DISCOVER, 0), True),
        "IPV6_PMTUDISC_PROBE": (option(IP6, IPV6_MTU_DISCOVER, 3), True),
        "IPV6_PMTUDISC_OMIT": (option(IP6, IPV6_MTU_DISCOVER, 5), True),
        "IPV6_MTU": (option(IP6, IPV6_MTU, 1450), True),
        "IPV6_UNICAST_IF": (option(IP6, IPV6_UNICAST_IF, socket.htonl(index)), True),
        "SO_BINDTODEVICE": (option(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0\0"), True),
        "IPV6_PKTINFO": (option(IP6, IPV6_PKTINFO, struct.pack("=16xI", index)), True),
        "addresses of preference": (option(IP6, IPV6_ADDR_PREFERENCES, 2), True),
        "no checksum": (option(UDP, UDP_NO_CHECK6_TX, 1), False),
        "hop-by-hop options": (option(IP6, IPV6_HOPOPTS, b"\0\0\5\2\0\0\1\0"), False),
    }
    for what, (setup, directly) in settings.items():
        for way, how in ways.items():
            # A stack's fragments have numbers by chance: what is sent fits.
            sizes = (0, 1, 511, 1400)
            same(wire, f"{what}, {way}", [payload(number, size) for number, size in enumerate(sizes)], directly,
                 setup=setup, **how)
    same(wire, "all lengths", [payload(number, number) for number in range(0, 1453, 33)], **to)
    same(wire, "unbound", bind=("::", FROM), **to)
    same(wire, "a checksum of 0", [zero_payload()] * 3, **to)
    for value in (0, 1, 2, 3):
        with sysctl("net.ipv6.auto_flowlabels", value):
            for way, how in ways.items():
                same(wire, f"auto_flowlabels {value}, {way}", [b"a"] * 3, **how)
                same(wire, f"auto_flowlabels {value}, asked for, {way}", [b"a"] * 3,
                     setup=option(IP6, IPV6_AUTOFLOWLABEL, 1), **how)
    with sysctl("net.ipv6.flowlabel_state_ranges", 1):
        same(wire, "stateless labels", [b"a"] * 3, **to)
    with sysctl("net.ipv6.conf.eth0.hop_limit", 33):
        same(wire, "the device's hop limit", [b"a"] * 3, **to)
    same(wire, "a leased label", [b"a"] * 3, setup=leased, connect=(FAR, PORT, LABEL, 0))
    same(wire, "a leased label by address", [b"a"] * 3, setup=leased, **to)


def sources_and_scopes(wire):
    """Sources in metadata, and link-local peers."""
    with namespace("host"):
        index = socket.if_nametoindex("eth0")
    host("ip addr add 2001:db8::11/64 dev eth0 nodad")
    to = {"address": (FAR, PORT)}
    for bind in ("::", NEAR):
        same(wire, f"another source, bound to {bind}", bind=(bind, FROM), local="2001:db8::11", **to)
        same(wire, f"another source by a device, bound to {bind}", bind=(bind, FROM), local="2001:db8::11",
             ifindex=index, **to)
        # The attack: an address of somebody else's.
        same(wire, f"a source that isn't the host's, bound to {bind}", [b"a"] * 3, bind=(bind, FROM), local=FOREIGN,
             **to, directly=True)
        same(wire, f"the peer's address as the source, bound to {bind}", [b"a"] * 3, bind=(bind, FROM), local=FAR, **to)
        same(wire, f"the source of a device that isn't there, bound to {bind}", [b"a"] * 3, bind=(bind, FROM),
             local=NEAR, ifindex=4242, **to)
        same(wire, f"a link's source without a device, bound to {bind}", [b"a"] * 3, bind=(bind, FROM), local="fe80::1",
             **to)
    wrong, _ = observe(wire, True, [b"a"], bind=("::", FROM), local=FOREIGN, **to)
    kopi.check("a source that isn't the host's is refused", wrong[:2] == ([errno.EINVAL], []), wrong[:2])
    host("ip addr del 2001:db8::11/64 dev eth0")
    scoped = peer("ip -6 -j addr show dev eth1 scope link")
    near = scoped.split('"local":"')[1].split('"')[0]
    same(wire, "a link-local peer", [b"a"] * 5, bind=("::", FROM), address=(near, PORT), ifindex=index)
    same(wire, "a link-local peer without a device", [b"a"] * 3, bind=("::", FROM), address=(near, PORT))
    same(wire, "the any-address", [b"a"] * 3, bind=("::", FROM), address=("::", PORT), directly=False)
    same(wire, "this host", [b"a"] * 3, address=(NEAR, PORT), directly=WAY is Routes)


def labels_stay(wire):
    """A connected flow has one label, by each way."""
    sender = Sender(True, connect=(FAR, PORT))
    labels = []
    for unchecked in (0, 1, 0):
        # Only the stack sends without a checksum.
        sender.sock.setsockopt(UDP, UDP_NO_CHECK6_TX, unchecked)
        sender.send([b"a"] * 4)
        labels += [packet[15:18].hex() for packet in wire.take(4, 10)]
    kopi.check("a connected flow's label", len(labels) == 12 and len(set(labels)) == 1 and labels[0][1:] != "00000",
               labels)
    sender.close()


class Living:
    """A plain socket and a flow that live while something changes: after each change, both send alike."""

    def __init__(self, wire, connect):
        self.wire = wire
        how = {"connect": (FAR, PORT)} if connect else {}
        self.way = {} if connect else {"address": (FAR, PORT)}
        self.name = "connected" if connect else "by address"
        self.senders = [Sender(rings, None, ("::", port), **how) for rings, port in ((False, FROM), (True, FROM + 1))]

    def close(self):
        """Ends it."""
        for sender in self.senders:
            sender.close()

    def seen_of(self, sender, size, count, patience):
        """What a sender's calls and packets are."""
        self.wire.take(0, patience / 5)
        errors = sender.send([payload(number, size) for number in range(count)], **self.way)
        packets = self.wire.take(0, patience)
        # Ethernet's header, length, next header, hop limit, addresses; of what is whole, the payload.
        # The kernel sends what waited for a neighbour's address after what came just then.
        return errors, sorted((each[:14], each[18:54], each[62:] if each[20] == 17 else bytes(len(each)))
                              for each in packets)

    def look(self, what, size=100, count=4):
        """Checks that both send the same, but for the port, the label and what follows from them."""
        # On a busy machine something may come late.
        for patience in 0.1, 1, 2:
            seen = [self.seen_of(sender, size, count, patience) for sender in self.senders]
            if seen[0] == seen[1]:
                break
        kopi.check(f"{what}, {self.name}: the same", seen[0] == seen[1],
                   [(errors, len(packets), packets[:1]) for errors, packets in seen])


def changes(wire):
    """What changes between datagrams counts for the next one."""
    mac = "02:00:00:00:00:%02x"
    for connect in (False, True):
        living = Living(wire, connect)
        living.look("at first")
        for what, begin, end in (
                ("a neighbour's address", f"ip neigh replace {FAR} lladdr {mac % 1} dev eth0 nud permanent",
                 f"ip neigh del {FAR} dev eth0"),
                ("a host route", f"ip -6 route add {FAR}/128 dev eth0 mtu 1300", f"ip -6 route del {FAR}/128"),
                ("no route", f"ip -6 route add unreachable {FAR}/128", f"ip -6 route del {FAR}/128"),
                ("forbidden", f"ip -6 route add prohibit {FAR}/128", f"ip -6 route del {FAR}/128"),
                ("a gateway", f"ip neigh replace 2001:db8::3 lladdr {mac % 3} dev eth0; "
                 f"nsenter --net=/run/netns/host ip -6 route add {FAR}/128 via 2001:db8::3", f"ip -6 route del {FAR}/128"),
                ("a smaller MTU", "ip link set eth0 mtu 1400", "ip link set eth0 mtu 1500"),
                ("an IPsec policy that blocks", f"ip xfrm policy add dir out dst {FAR} action block",
                 f"ip xfrm policy del dir out dst {FAR}"),
                ("a policy for another", f"ip xfrm policy add dir out dst {FOREIGN} action block",
                 f"ip xfrm policy del dir out dst {FOREIGN}"),
                ("another hop limit", "sysctl -qw net.ipv6.conf.eth0.hop_limit=7",
                 "sysctl -qw net.ipv6.conf.eth0.hop_limit=64"),
                ("another source", f"ip -6 route add {FAR}/128 dev eth0 src 2001:db8::12", f"ip -6 route del {FAR}/128"),
                ("a deprecated address", f"ip addr change {NEAR}/64 dev eth0 preferred_lft 0",
                 f"ip addr change {NEAR}/64 dev eth0 preferred_lft forever"),
                ("an address label", "ip addrlabel add prefix 2001:db8::12/128 label 99; nsenter --net=/run/netns/host "
                 f"ip addrlabel add prefix {FAR}/128 label 99",
                 "ip addrlabel del prefix 2001:db8::12/128 label 99; nsenter --net=/run/netns/host "
                 f"ip addrlabel del prefix {FAR}/128 label 99")):
            if "2001:db8::12" in begin or "deprecated" in what:
                host("ip addr add 2001:db8::12/64 dev eth0 nodad")
            living.look(f"before {what}")
            host(begin)
            living.look(what)
            living.look(what, 1350)
            host(end)
            living.look(f"after {what}")
            if "2001:db8::12" in begin or "deprecated" in what:
                host("ip addr del 2001:db8::12/64 dev eth0")
            living.look(f"without {what}")
        living.close()
        # A table that had nothing for the peer gets something: no route that was used before changes.
        living = Living(wire, connect)
        host(f"ip -6 rule add to {FAR} lookup 100 pref 60")
        host(f"ip -6 route add {FOREIGN}/128 dev eth0 table 100")
        living.look("a rule of routing")
        host(f"ip neigh replace 2001:db8::3 lladdr {mac % 3} dev eth0")
        host(f"ip -6 route add {FAR}/128 via 2001:db8::3 table 100")
        # Connected sockets keep what they have found.
        living.look("a route in another table")
        host("ip -6 route flush table 100")
        living.look("none there again")
        host(f"ip -6 rule del to {FAR} lookup 100 pref 60")
        living.close()
        host(f"ping -q -c1 -w20 {FAR}")


def ways(way):
    """Has flows send so from now on; gives what hears what arrives."""
    global WAY, YNL
    WAY = way
    with namespace("host"):
        YNL = family()
    know_neighbours()
    sh(f"ip netns exec host ping -q -c1 -w20 {FAR}")
    if not SINKS:
        with namespace("peer"):
            SINKS.append(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        SINKS[0].bind(("::", PORT))
    return Overheard()
