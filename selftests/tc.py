# SPDX-License-Identifier: GPL-2.0
"""tc for the policies: one process for all commands, since it takes longer to start than to do them."""

import json
import subprocess
import tempfile

from equivalence import namespace, sh, undo


class Tc:
    """tc's batch mode in `host`. It keeps the numbers of devices by name, so no device that it is
    told of may be made anew under the same name."""

    def __init__(self):
        self.errors = tempfile.TemporaryFile()  # pylint: disable=consider-using-with
        with namespace("host"):
            self.process = subprocess.Popen(  # pylint: disable=consider-using-with
                ["tc", "-s", "-j", "-force", "-batch", "-"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def __call__(self, *commands, check=True):
        """Carries out commands, in which @ is eth0, and gives what those that show something say."""
        commands = [each.replace("@", "dev eth0", 1) for each in commands]
        # The last one's answer says that all are done.
        commands.append("qdisc show dev lo")
        self.errors.seek(0)
        self.errors.truncate()
        self.process.stdin.write("\n".join(commands) + "\n")
        self.process.stdin.flush()
        shown = [json.loads(self.process.stdout.readline()) for each in commands
                 if " show " in each][:-1]
        self.errors.seek(0)
        failed = self.errors.read().decode()
        if failed and check:
            raise RuntimeError(f"tc: {failed}")
        return shown


run_tc = Tc()


def tc(*commands):
    """A setup of tc commands on eth0: a word that says what, and the rest."""
    def setup():
        undo(lambda: run_tc("qdisc del @ root", "qdisc del @ clsact", check=False))
        run_tc(*commands)
    return setup


def htb(*filters):
    """A setup of three classes, of which 1:20 gets what the filters send there, 1:10 the rest."""
    return tc("qdisc add @ root handle 1: htb default 10",
              "class add @ parent 1: classid 1:10 htb rate 100mbit quantum 3000",
              "class add @ parent 1: classid 1:20 htb rate 50mbit quantum 3000",
              *filters)


def class_of_subject():
    """Packets and bytes of class 1:20."""
    return [(each["handle"], each["stats"]["packets"], each["stats"]["bytes"])
            for each in run_tc("class show @")[0] if each["handle"] == "1:20"]


_other = {"made": False, "before": 0}


def sent_by_other():
    """Packets that the other device was given, ever."""
    with open("/proc/net/dev", encoding="ascii") as file:
        return next(int(line.split()[10]) for line in file if line.split()[0] == "other:")


def other():
    """A setup of a device to mirror to, which stays for all policies."""
    if not _other["made"]:
        # Without IPv6, which would send packets of its own.
        for command in ("ip link add other type dummy",
                        "sysctl -qw net.ipv6.conf.other.disable_ipv6=1", "ip link set other up"):
            sh(command)
        _other["made"] = True
    _other["before"] = sent_by_other()


def on_other():
    """Packets that the other device was given in this exchange."""
    return sent_by_other() - _other["before"]


def remove_other():
    """Takes the device away; to be called when all policies are over."""
    with namespace("host"):
        sh("ip link del other")
