# SPDX-License-Identifier: GPL-2.0
"""The same traffic under one policy, by a UDP socket and by a KOPI flow: nothing may differ.

An exchange sends datagrams from a subject in the namespace `host` to an ordinary UDP socket in
`peer`, and then back. Its outcome is written down: the errors that the sender got, what
arrived, in which order, from which address, with which TOS and TTL, and what the counters of the
policy and of the stack say. It is done with a UDP socket as the subject and with a KOPI flow, both
without GSO packets and with them (UDP_SEGMENT and UDP_GRO for the UDP socket), over IPv4 and IPv6.

A file of policies ends with `run(AREA, [Policy(...), ...])`. A policy's `setup` is called in the
namespace `host` before each exchange; what undoes it is given to `undo()`.

setups.py has the steps of a policy, subjects.py the two kinds of subject, observers.py what reads
counters, policy.py the fields of a policy and the comparison, and runner.py the exchange.
"""

# pylint: disable=unused-import
from .observers import conntrack, nft_counters, snmp  # noqa: F401
from .policy import ALL, ANY, NONE, WHATEVER, Policy, arrived  # noqa: F401
from .runner import current, run, same  # noqa: F401
from .setups import (ADDRESSES, PATIENCE, SECOND, as_root, await_address, by_family, cgroup, chain,  # noqa: F401
                     devices, do, namespace, nft, nft_table, run_nft, second_address, sh, together, undo, user)
from .subjects import (COUNT, FAMILIES, PEER_PORT, PEERS, SUBJECT_PORT, SUBJECTS, KopiSubject,  # noqa: F401
                       UdpSubject, checksum, errno_name, payload, tells)
