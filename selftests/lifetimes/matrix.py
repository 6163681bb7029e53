# SPDX-License-Identifier: GPL-2.0
"""What the matrices share: the cases that are chosen, and memory before and after them."""

import fnmatch
import os
import re
import sys
import time

import kopi
import memory

from .program import DEBUG

# What a CPU keeps for what NAPI receives (NAPI_SKB_CACHE_SIZE).
NAPI_CACHE = 128


def chosen(names):
    """Those of the names that the command line's patterns match."""
    patterns = sys.argv[1:] or ["*"]
    return [name for name in names if any(fnmatch.fnmatch(name, each) for each in patterns)]


def allowed(name):
    """How many objects more a slab may have."""
    # Of what flows are made fewer than if the cases of one ending left one each; of what packets are
    # made, and others use all the time, fewer than if the cases of one state left each packet.
    if not re.match("kmalloc|skbuff", name):
        return 6
    return 60 + (NAPI_CACHE * os.cpu_count() if name == "skbuff_head_cache" else 0)


def grown(before, sweep):
    """The slabs that have more objects than before, and by how many."""
    sweep()
    after = memory.counts()
    # Not where the debug kernel keeps dead reference trackers, up to 128 for each namespace and device.
    return {name: after[name] - count for name, count in before.items()
            if not name.endswith(":") and not (DEBUG and name == "kmalloc-32")
            and after[name] - count > allowed(name)}


def check_memory(counts, sweep=lambda: None):
    """The slabs have the objects that they had; `sweep` has others free what they are slow to free."""
    left = grown(counts, sweep)
    for _ in range(60):
        if not left:
            break
        # What RCU and work queues have yet to free.
        time.sleep(1)
        left = grown(counts, sweep)
    kopi.check(f"{len(counts)} slabs have the objects that they had", not left, left)
