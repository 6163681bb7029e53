#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A GSO packet that a hook sends by another way, where its datagrams are too long, isn't sent once more: what has left
has left once."""

import errno
import socket

import kopi
from equivalence import namespace, run_nft, sh
from linux import ETH_P_ALL, IPV6_MTU_DISCOVER

FAR, LAST = "2001:db8:7::2", 255
sh("nsenter --net=/run/netns/host bash -c 'ip link add wide type dummy; ip link add narrow mtu 1280 type dummy; "
   "ip link set wide up; ip link set narrow up; ip addr add 2001:db8:7::1/64 dev wide nodad; "
   "ip -6 route add 2001:db8:7::/64 dev narrow table 100; ip -6 rule add fwmark 7 table 100; "
   f"for dev in wide narrow; do ip neigh add {FAR} lladdr 2:2:2:2:2:2 dev $dev; done'")
with namespace("host"):
    tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    tap.bind(("narrow", 0))
    tap.settimeout(60)
    run_nft("table ip6 other {\nchain o {\ntype route hook output priority 0\nudp dport 9 meta mark set 7\n}\n}")
    flow = kopi.flow(kopi.UDP6)
# IPV6_PMTUDISC_PROBE: by the device's MTU.
flow.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, 3)
flow.bind(("::", 0))
channel = kopi.Channel(flow, flags=kopi.GSO)


def send(meta=None):
    """Sends four, the last of which isn't too long: the errnos, and which left by the other way."""
    for number, size in enumerate((1400, 1400, 1400, 100)):
        channel.send(number, bytes([number]) * size, (FAR, 9, 0, 0), meta=meta)
    channel.bell()
    errors = [channel.completion.pop()[4] for _ in range(4)]
    with namespace("host"), socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as other:
        # By the same way, after all of them.
        other.sendto(bytes([LAST]), (FAR, 9))
    left = []
    while LAST not in left:
        packet = tap.recv(2000)
        if packet[12:14] == b"\x86\xdd" and packet[20] == 17:
            left.append(packet[62])
    return errors, left


errors, left = send()
kopi.check("the one that isn't too long leaves, once", left == [3, LAST], left)
kopi.check("it is said that they are too long", errors == [errno.EMSGSIZE] * 4, errors)
# With an option of its own, none goes by a remembered route, and so none is known to fit.
errors, left = send({"tos": 2})
kopi.check("also where the route isn't remembered", left == [3, LAST], left)
kopi.check("there, only those are said to be", errors == [errno.EMSGSIZE] * 3 + [0], errors)
channel.sock.close()
tap.close()
sh("nsenter --net=/run/netns/host bash -c 'nft delete table ip6 other; ip -6 rule del fwmark 7 table 100; "
   "ip -6 route flush table 100; ip link del wide; ip link del narrow'")
kopi.finish()
