#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""IPv6 datagrams that sendmsg() of a flow sends by remembered routes are those of a UDP socket, bit by bit, and
counted alike; what has special needs goes to UDP. (What changes meanwhile, direct_ipv6.py has: the routes are the
same.)"""

import datagrams6
import kopi

WIRE = datagrams6.ways(datagrams6.Routes)
datagrams6.options(WIRE)
datagrams6.sources_and_scopes(WIRE)
kopi.finish()
