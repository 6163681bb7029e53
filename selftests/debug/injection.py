# SPDX-License-Identifier: GPL-2.0
"""Fault injection into the allocations of one thread: the n-th one fails, or memory runs out."""

import collections
import os

import faults
from kopi import Wrong


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
