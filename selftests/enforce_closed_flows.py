#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Under enforced rules, what an allowed program has sent leaves by its VRF also after the flow was closed."""

import socket
import subprocess

import kopi
from control import ruled
from enforced import IMPOSTOR, POSTGRES, Program, begin, end, kopictl
from equivalence import namespace
from kopi import check
from linux import ETH_P_ALL

NEAR, FAR, PORT = "198.18.6.1", "198.18.6.2", 7001
SETUP = f"""
link add vrf0 type vrf table 10
link set vrf0 up
link add d1 type dummy
link set d1 master vrf0
addr add {NEAR}/24 dev d1
link set d1 up
neigh add {FAR} lladdr 02:00:00:00:00:02 dev d1
"""
# Python takes it for a socket of IP in either case. It is closed while its datagram waits in the VRF's queue.
SEND = ("!s = socket.socket(2, 2, fileno=socket.socket({family}, socket.SOCK_DGRAM).detach()); s.setsockopt(1, 25, b'vrf0'); "
        "s.sendto({data!r}, ({far!r}, {port})); s.close()")


def left(tap):
    """What has left up to the last one."""
    found = []
    while b"last" not in found:
        packet = tap.recv(2000)
        if packet[12:14] == b"\x08\0" and packet[23] == socket.IPPROTO_UDP:
            found.append(packet[42:])
    return found


for module in ("vrf", "sch_netem"):
    subprocess.run(["modprobe", "-q", module], check=False)
with ruled():
    begin()
    subprocess.run(["ip", "-batch", "-"], input=SETUP, text=True, check=True)
    subprocess.run("tc qdisc add dev vrf0 root netem delay 300ms".split(), check=True)
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    tap.bind(("d1", 0))
    tap.settimeout(60)
    kopictl("restore", "-", given=f"enforce on\ndefault deny\nexe {POSTGRES} allow\n")
    with Program(POSTGRES) as postgres, Program(IMPOSTOR) as impostor:
        for what, family in (("a flow", kopi.AF_KOPI), ("an ordinary socket", int(socket.AF_INET))):
            refused = impostor(SEND.format(family=family, data=b"impostor", far=FAR, port=PORT))
            postgres(SEND.format(family=family, data=b"closed", far=FAR, port=PORT))
            postgres(SEND.format(family=family, data=b"last", far=FAR, port=PORT)
                     .replace("; s.close()", "; time.sleep(1); s.close()"))
            got = left(tap)
            check(f"{what}: what was sent before it was closed leaves, another's is refused",
                  (refused, got) == ("EACCES", [b"closed", b"last"]), (refused, got))
    kopictl("rule", "enforce", "off")
    kopictl("rule", "default", "allow")
    tap.close()
    subprocess.run(["ip", "-batch", "-"], input="link del d1\nlink del vrf0\n", text=True, check=True)
end()
kopi.finish()
