# SPDX-License-Identifier: GPL-2.0
"""The kernel's counters of a network namespace, as /proc/net has them."""


def table(path="/proc/net/snmp"):
    """Those of a file with a line of names before each line of numbers, as `Ip:OutRequests`."""
    with open(path, encoding="ascii") as file:
        lines = [line.split() for line in file]
    return {names[0] + name: int(number) for names, numbers in zip(lines[::2], lines[1::2])
            for name, number in zip(names[1:], numbers[1:])}


def of_ipv6(path="/proc/net/snmp6"):
    """Those of a file with a name and a number in each line, as `Ip6OutRequests`."""
    with open(path, encoding="ascii") as file:
        return {name: int(number) for name, number in map(str.split, file)}
