#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""By an attached NIC, a user whose port is flooded, and one who never reads, take nothing of what comes for others;
what they lose is counted."""

import itertools

import kopi
from attached import kopictl
from equivalence import payload
from wire import FRAMES, PORT, V4, V6, Receiver, Told, begin

# Of each burst, which a NIC's ring has room for; and more bursts than the greedy one has frames.
FLOOD, OTHERS, BURSTS = 60, 4, 40


def kinds(stats):
    """Datagrams by what became of them, those for which the ring had no place or no frame together."""
    return stats["rx_packets"], sum(stats[name] for name in stats if name.startswith("rx_drop"))


def others_get_all(ynl, wire, ip, what, reads):
    """A neighbour of a greedy flow, whose datagrams come between its ones."""
    greedy, neighbour = Receiver(ip, port=PORT + 1), Receiver(ip)
    numbers, got, theirs = itertools.count(), [], 0
    with Told(ynl, ip) as told:
        for burst in range(BURSTS):
            for number in range(FLOOD):
                wire.send(ip, payload(number, 400), ip.others[number % 8], port=PORT + 1)
                if number % (FLOOD // OTHERS) == 0:
                    wire.send(ip, payload(next(numbers), 64), ip.others[burst % 16])
            got += [each.data for each in neighbour.take(OTHERS)]
            if reads:
                theirs += len(greedy.take(FLOOD))
        kopi.wait_until(lambda: sum(kinds(greedy.channel.stats())) == FLOOD * BURSTS)
    sent = FLOOD * BURSTS
    kopi.check(f"{what}: others get all that is theirs, in order",
               got == [payload(number, 64) for number in range(OTHERS * BURSTS)], (len(got), told))
    came, lost = kinds(greedy.channel.stats())
    # What finds no frame is the stack's to drop.
    kopi.check(f"{what}: all that could came without the stack", told.directly == came + OTHERS * BURSTS, told)
    kopi.check(f"{what}: each of the greedy one's is delivered, or counted as dropped",
               (came, lost) == ((sent, 0) if reads else (FRAMES, sent - FRAMES)), greedy.channel.stats())
    kopi.check(f"{what}: nor does the namespace lose count of any",
               told.snmp["Udp:RcvbufErrors"] == lost and (not reads or theirs == sent), (told, theirs))
    greedy.close()
    neighbour.close()


YNL, WIRE = begin()
for version in V4, V6:
    others_get_all(YNL, WIRE, version, f"IPv{version.version}, flooded", True)
    others_get_all(YNL, WIRE, version, f"IPv{version.version}, who never reads", False)
kopictl("detach", "eth0")
kopi.finish()
