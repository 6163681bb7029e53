# SPDX-License-Identifier: GPL-2.0
"""Fault injection into the allocations of one thread: the n-th one fails, or memory runs out."""

import collections
import errno
import itertools
import os

import faults
import kopi
import memory
from kopi import Wrong, wait_until

DOCUMENTED = {errno.ENOMEM, errno.ENOBUFS}


class Nth:
    """Has the n-th allocation fail that this thread makes."""

    def __init__(self):
        self.fd = os.open(faults.NTH, os.O_RDWR)

    def run(self, number, call):
        """Gives the call's result, its errno, and whether it came to its n-th allocation."""
        text, result, error = b"%d" % number, None, 0
        os.pwrite(self.fd, text, 0)
        try:
            result = call()
        except OSError as caught:
            error = caught.errno
        left = os.pread(self.fd, 16, 0)
        os.pwrite(self.fd, b"0", 0)
        return result, error, left == b"0\n"


class RunsOut:
    """Has all of this thread's slab allocations fail from one on, so that no second try helps."""

    MANY = 1 << 20

    def __init__(self):
        self.task = os.open("/proc/thread-self/make-it-fail", os.O_RDWR)

    def run(self, space, call):
        """Gives the call's result, its errno, and whether it needed more bytes than there were."""
        result, error = None, 0
        faults.put(f"{faults.DEBUG}/failslab/times", self.MANY)
        faults.put(f"{faults.DEBUG}/failslab/space", space)
        os.pwrite(self.task, b"1", 0)
        try:
            result = call()
        except OSError as caught:
            error = caught.errno
        os.pwrite(self.task, b"0", 0)
        return result, error, int(faults.get(f"{faults.DEBUG}/failslab/times")) < self.MANY

    @staticmethod
    def spaces():
        """Bytes, in steps smaller than most objects."""
        space = 0
        while True:
            yield space
            space += max(64, space // 20)


nth, runs_out = Nth(), RunsOut()


def once(steps, injector, number):
    """Runs the steps with a fault at that point: the errnos given, and whether it was reached."""
    course = steps()
    result, error, injected = injector.run(number, next(course))
    try:
        course.send((result, error))
    except StopIteration as end:
        return ([error] if error else []) + list(end.value or ()), injected
    raise RuntimeError("more steps than one")


def in_turn(steps, injector, numbers):
    """Has a fault at each point: their number, how often which errno came, and what was wrong."""
    errors, wrong = collections.Counter(), []
    for count, number in enumerate(numbers):
        try:
            seen, injected = once(steps, injector, number)
        except (Wrong, OSError, MemoryError) as error:
            wrong.append(f"{number}: {type(error).__name__} {error}")
            if len(wrong) > 4:
                return count, errors, wrong
            continue
        errors.update(seen)
        if not injected:
            if seen:
                wrong.append(f"{seen} without a fault")
            return count, errors, wrong
    return 0, errors, ["no end"]


def names(numbers):
    """Errnos in words."""
    return " ".join(errno.errorcode[number] + (f":{count}" if count else "")
                    for number, count in sorted(numbers.items())) or "none"


def attempt(entry, kernel_memory, also, dry):
    """Tries an entry point, that is its name, its steps and those of an ordinary socket. Errnos may be those
    that the ordinary socket gives, and others; with `dry`, memory runs out in it, too. Gives how many there were
    of faults, points and refusals."""
    name, steps, ordinary = entry
    kilobytes = kernel_memory()
    # A process has many mappings that are none of KOPI's.
    step = 7 if name.startswith("fork") else 1
    number, errors, wrong = in_turn(steps, nth, itertools.count(1, step))
    allowed, of_ordinary = dict.fromkeys(DOCUMENTED | also, 0), ""
    if ordinary:
        count, usual, bad = in_turn(ordinary, nth, itertools.count(1))
        allowed |= dict.fromkeys(usual, 0)
        wrong += [f"of an ordinary socket: {one}" for one in bad]
        of_ordinary = f", of an ordinary socket's {count}"
    points = 0
    if dry:
        points, more, bad = in_turn(steps, runs_out, RunsOut.spaces())
        errors += more
        wrong += [f"memory runs out: {one}" for one in bad]
        if ordinary:
            allowed |= dict.fromkeys(in_turn(ordinary, runs_out, RunsOut.spaces())[1], 0)
    if set(errors) - set(allowed):
        wrong.append(f"documented are {names(allowed)}")
    if not wait_until(memory.is_unused):
        wrong.append(f"{memory.module_users()} references to the module are left")
    if not wait_until(lambda: kernel_memory() - kilobytes < faults.SLACK_KB, 10):
        wrong.append(f"{kernel_memory() - kilobytes} KB of kernel memory are left")
    kopi.check(f"{name}: {number} allocations fail in turn{of_ordinary}; memory runs out at {points} "
               f"points; errnos: {names(errors)}", not wrong, "; ".join(wrong))
    return collections.Counter(faults=number, points=points, refused=sum(errors.values()))
