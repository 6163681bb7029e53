# SPDX-License-Identifier: GPL-2.0
"""Datagrams of kopi-gen between the two namespaces, which are numbered, checked and acknowledged."""

import json
import subprocess

import kopi


class Transfer:
    """One who receives at an address, `near` there, and one who sends to it; each with options of its own."""

    def __init__(self, what, near, far, address, count, sends=(), receives=(), by=(), in_order=True,
                 patience=60):
        self.what, self.far, self.address, self.count, self.by = what, far, address, count, by
        self.sends, self.sender = sends, None
        self.receiver = self._start(near, "recv", "--bind", address, "--timeout", str(patience), *receives)
        line = self.receiver.stdout.readline()
        kopi.expect(line.startswith("listening"), line)
        self.wrong = ("missing", "corrupt", "duplicate", "wrong_flow") + (("reordered",) if in_order else ())

    def _start(self, space, *words):
        return subprocess.Popen(["nsenter", f"--net=/run/netns/{space}", *self.by, "kopi-gen", *words, "--json",
                                 "--count", str(self.count)], stdout=subprocess.PIPE, text=True)

    def begin(self):
        """Begins to send."""
        self.sender = self._start(self.far, "send", self.address, *self.sends)

    def goes_on(self):
        """Whether it still sends."""
        return self.sender.poll() is None

    def end(self):
        """Checks what has been received."""
        sent, got = self.sender.communicate()[0], self.receiver.communicate()[0]
        report = json.loads(got.splitlines()[-1])
        kopi.check(f"{self.what}: nothing is lost" + (", or overtaken" if "reordered" in self.wrong else ""),
                   report["received"] == self.count and not any(report[key] for key in self.wrong), (report, sent))
