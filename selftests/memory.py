# SPDX-License-Identifier: GPL-2.0
"""What of the kernel's memory is taken, and whether the module is in use."""

import os
import re
import subprocess
import time

import kopi

SLABS = re.compile(r"kopi_|UDP|(tw_sock_|request_sock_)?TCP|sock_inode_cache|skbuff_|filp|vm_area_struct|kmalloc-|net_namespace")


def slabs():
    """Objects by slab."""
    # What RCU and the per-CPU caches hold goes first.
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as drop:
        drop.write("3")
    for name in os.listdir("/sys/kernel/slab"):
        if SLABS.match(name):
            with open(f"/sys/kernel/slab/{name}/shrink", "w", encoding="ascii") as shrink:
                shrink.write("1")
    with open("/proc/slabinfo", encoding="ascii") as info:
        return {words[0]: int(words[1]) for words in map(str.split, info) if SLABS.match(words[0])}


def kept_by_cpus():
    """Kilobytes of free memory that the kernel keeps in lists of each CPU: tens of megabytes."""
    with open("/proc/zoneinfo", encoding="ascii") as zones:
        return sum(4 * int(words[1]) for words in map(str.split, zones) if words[0] == "count:")


def counts():
    """Objects by slab, and kilobytes by kind; all pages that are taken, as those of regions."""
    found = slabs()
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        sizes = {words[0]: int(words[1]) for words in map(str.split, meminfo)}
    found["Taken:"] = sizes["MemTotal:"] - sizes["MemAvailable:"] - kept_by_cpus()
    return found | {name: sizes[name] for name in ("VmallocUsed:", "Percpu:")}


def grown(before, objects, kilobytes):
    """What has grown by more than `objects`, or by more than `kilobytes` says of its kind; waits for
    what takes a moment to be given back. Gives the counts, too."""
    # KASAN keeps what was freed for a while, as much as it pleases: there kmemleak tells of leaks.
    kept = 20 if os.path.exists("/sys/kernel/debug/kmemleak") else 1
    for _ in range(50):
        after = counts()
        more = {name: after[name] - count for name, count in before.items()
                if after[name] - count > kilobytes.get(name, objects) * kept}
        if not more:
            break
        time.sleep(0.2)
    return more, after


def module_users():
    """References to the module."""
    with open("/proc/modules", encoding="ascii") as modules:
        return next(int(line.split()[2]) for line in modules if line.startswith("kopi "))


def is_unused():
    """Whether nothing holds the module."""
    return module_users() == 0


def wait_until_unused():
    """Waits until nothing holds the module."""
    return kopi.wait_until(is_unused)


def unload():
    """Removes the module; gives whether it went. A closed socket holds it for a grace period of RCU."""
    return wait_until_unused() and subprocess.run(["rmmod", "kopi"], check=False).returncode == 0


def load():
    """Loads the module again; gives whether it came."""
    module = f"/kopi/build/{os.uname().release}/kopi.ko"
    return subprocess.run(["insmod", module], check=False).returncode == 0
