#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""While a CPU goes offline and comes back, nothing is lost or overtaken of what flows send and receive: by attached
NICs, which have a queue of waiting packets for each CPU, in GSO packets and one by one."""

import kopi
from attached import attach, kopictl, link, peer
from control import family
from equivalence import namespace, sh
from transfers import Transfer

# As many as take several times what a CPU takes to go and come.
COUNT = 12000
SWITCH = "/sys/devices/system/cpu/cpu1/online"
WAYS = (("single datagrams", ("--size", "200"), ()), ("GSO packets", ("--size", "1000", "--offloads"), ("--offloads",)))


def switch(online):
    """Takes the CPU away, or gives it back."""
    sh(f"echo {online} >{SWITCH}")


attach()
peer("kopictl attach eth1")
with namespace("host"):
    YNL = family()
before = link(YNL)
transfers = [Transfer(f"{what}, from {far} to {near}", near, far, f"{address}:{7000 + number}", COUNT, sends, receives,
                      patience=120)
             for number, (what, sends, receives) in enumerate(WAYS)
             for near, far, address in (("host", "peer", "192.0.2.1"), ("peer", "host", "192.0.2.2"))]
for each in transfers:
    each.begin()
times = 0
try:
    while any(each.goes_on() for each in transfers):
        for online in (0, 1):
            switch(online)
        times += 1
finally:
    switch(1)
for each in transfers:
    each.end()
kopi.check(f"the CPU went {times} times meanwhile", times >= 3, times)
after = link(YNL)
kopi.check("packets left by the driver, and came from it",
           all(after[name] - before[name] > COUNT // 10 for name in ("packets", "received-direct")), after)
kopictl("detach", "eth0")
peer("kopictl detach eth1")
kopi.finish()
