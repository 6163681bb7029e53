#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What IPVS sends on in a tunnel was judged before it was wrapped, and isn't judged as what it is wrapped in."""

import socket
import struct
import subprocess

import kopi
from control import add, ask, ruled
from enforced import POSTGRES, Program, begin, end, kopictl
from equivalence import namespace
from kopi import check
from linux import ETH_P_ALL

HOST, REAL, VIRTUAL, PORT = "192.0.2.1", "192.0.2.2", "198.18.9.9", 7000
IP_VS_SO_SET_ADD, IP_VS_SO_SET_DEL, IP_VS_SO_SET_ADDDEST = 0x482, 0x484, 0x487
TUNNEL = 2


def service():
    """struct ip_vs_service_user."""
    return struct.pack("=HxxIHxxI16sIII", socket.IPPROTO_UDP, struct.unpack("=I", socket.inet_aton(VIRTUAL))[0],
                       socket.htons(PORT), 0, b"rr", 0, 0, 0xffffffff)


def server():
    """struct ip_vs_dest_user."""
    return struct.pack("=IHxxIiII", struct.unpack("=I", socket.inet_aton(REAL))[0], socket.htons(PORT), TUNNEL, 1, 0, 0)


def arrives(tap, payload):
    """Whether the peer gets the datagram, in IPIP, before what is sent now."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"behind", (REAL, 9))
    found = False
    while True:
        packet = tap.recv(2000)
        # And no error that quotes it.
        if packet.endswith(b"behind") and packet[23] == socket.IPPROTO_UDP:
            return found
        found |= packet[12:14] == b"\x08\0" and packet[23] == socket.IPPROTO_IPIP and packet.endswith(payload)


subprocess.run(["modprobe", "-a", "ip_vs", "ip_vs_rr"], check=True)
with namespace("peer"):
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    tap.bind(("eth1", 0))
    tap.settimeout(60)
with ruled() as ynl:
    begin()
    kopictl("rule", "enforce", "off")
    kopictl("rule", "flush")
    subprocess.run(["ip", "addr", "add", f"{VIRTUAL}/32", "dev", "lo"], check=True)
    control = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    control.setsockopt(socket.SOL_IP, IP_VS_SO_SET_ADD, service())
    control.setsockopt(socket.SOL_IP, IP_VS_SO_SET_ADDDEST, service() + server())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        plain.sendto(b"of a UDP socket", (VIRTUAL, PORT))
        check("without rules IPVS wraps a UDP socket's datagram", arrives(tap, b"of a UDP socket"))
    add(ynl, local_port_min=4, verdict="deny")
    flow = kopi.ip_flow()
    flow.sendto(b"of a flow", (VIRTUAL, PORT))
    check("a flow's, with a rule about something else", arrives(tap, b"of a flow"))
    channel = kopi.Channel(flow)
    channel.send(0, b"of a ring", (VIRTUAL, PORT))
    channel.bell()
    check("a ring's", channel.completion.pop()[4] == 0 and arrives(tap, b"of a ring"))
    ask(ynl, "ruleset-set")
    add(ynl, remote_address=VIRTUAL, remote_prefix=32, verdict="deny")
    try:
        flow.sendto(b"denied", (VIRTUAL, PORT))
        check("one to an address that is denied isn't sent", False)
    except PermissionError:
        check("one to an address that is denied isn't sent", not arrives(tap, b"denied"))
    ask(ynl, "ruleset-set")
    with Program(POSTGRES) as program:
        kopictl("restore", "-", given="enforce on\ndefault allow\nlocal-port 4 deny\n")
        program("!s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)")
        said = program(f"s.sendto(b'of a judged one', ({VIRTUAL!r}, {PORT}))")
        check("an ordinary socket's, where rules are enforced", said == "15" and arrives(tap, b"of a judged one"), said)
        kopictl("rule", "enforce", "off")
    control.setsockopt(socket.SOL_IP, IP_VS_SO_SET_DEL, service())
    control.close()
    subprocess.run(["ip", "addr", "del", f"{VIRTUAL}/32", "dev", "lo"], check=True)
end()
tap.close()
kopi.finish()
