# SPDX-License-Identifier: GPL-2.0
"""Why the kernel drops packets, by its tracepoint skb:kfree_skb."""

import collections
import re

TRACING = "/sys/kernel/tracing"
EVENT = f"{TRACING}/events/skb/kfree_skb"


def _put(path, value):
    with open(path, "w", encoding="ascii") as file:
        file.write(value)


def start(also_purged=False):
    """Starts to record drops that have a reason: 2 says that none is specified, as of what a qdisc held that is
    taken away."""
    _put(f"{TRACING}/trace", "")
    _put(f"{EVENT}/filter", "reason > 1" if also_purged else "reason > 2")
    _put(f"{EVENT}/enable", "1")


def stop():
    """Stops to record drops."""
    _put(f"{EVENT}/enable", "0")
    _put(f"{EVENT}/filter", "0")


# Where the kernel drops what a qdisc holds that is taken away: what it was asked to drop after RTNL, pfifo_fast's, and
# what the driver had no room for: qdisc_reset() (net/sched/sch_generic.c, 7.3.4).
PURGES = (r"\w*rtnl_unlock\S* reason: NOT_SPECIFIED", r"pfifo_fast_reset\S* reason: NOT_SPECIFIED",
          r"qdisc_reset\S* reason: QUEUE_PURGE")


def purged():
    """The number of IPv4 packets that qdiscs held when they were taken away."""
    with open(f"{TRACING}/trace", encoding="ascii") as trace:
        return len(re.findall("protocol=2048 location=(?:" + "|".join(PURGES) + ")", trace.read()))


def recorded():
    """The number of recorded drops by reason; a GSO packet is one."""
    with open(f"{TRACING}/trace", encoding="ascii") as trace:
        return collections.Counter(re.findall(r"reason: (\w+)", trace.read()))
