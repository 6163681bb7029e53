#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""A hostile place: what an ordinary user gets by `unshare -Urn`, and what he can have there.

    hostile.py COMMAND...    runs it there as bob, who is root of his user namespace; ends with its status,
                             or with 3 if others weren't served meanwhile (see watchdog.py)

    here                                                 there: another network namespace of his
    lo         127.0.0.1, ::1
    va         198.51.100.1, 2001:db8:51::1  1500 ═════ 1300   vb  198.51.100.2, 2001:db8:51::2; netem at both
    slow       203.0.113.1                        ═════        vd  tbf: a datagram takes seconds
    vx         198.18.0.1  vxlan over va          ═════        vx  198.18.0.2
    tap0       198.18.1.1, read by nobody
    mon        a monitor device, up

Root of the initial namespace has installed rules there, with rates, a priority and cgroups, and engines. From
there kopi-fuzz sends what no host should. $HOSTILE_SLOW is a file by FUSE, whose pages come when it
pleases its server; $HOSTILE_THERE the way to the other namespace. With HOSTILE_CHURN=1 devices, addresses and qdiscs
come and go. What is started here ends with the command.
"""

import contextlib
import ctypes
import fcntl
import os
import random
import shutil
import struct
import subprocess
import sys
import threading
import time

import kopi
from linux import CLONE_NEWNET, IFF_NO_PI, IFF_TAP, TUNSETIFF
from watchdog import Watchdog

SLOW = "/tmp/hostile"
GROUP = "/sys/fs/cgroup/hostile"
HERE = """
link set lo up
link add va type veth peer name vb
link add slow type veth peer name vd
addr add 198.51.100.1/24 dev va
addr add 2001:db8:51::1/64 dev va nodad
addr add 203.0.113.1/24 dev slow
link set va up
link set slow up
neigh add 203.0.113.2 lladdr 02:00:00:00:00:02 dev slow
link add vx type vxlan id 5 dev va dstport 4789 remote 198.51.100.2
addr add 198.18.0.1/24 dev vx
link set vx up
addr add 198.18.1.1/24 dev tap0
link set tap0 txqueuelen 4 up
neigh add 198.18.1.2 lladdr 02:00:00:00:00:03 dev tap0
link add mon type kopimon
link set mon up
"""
QDISCS = """
qdisc add dev slow root tbf rate 8kbit burst 1600 limit 100000
qdisc add dev va root netem delay 1ms loss 1% duplicate 1% corrupt 1% reorder 5%
"""
THERE = """
link set lo up
addr add 198.51.100.2/24 dev vb
addr add 2001:db8:51::2/64 dev vb nodad
link set vb mtu 1300 up
link set vd up
link add vx type vxlan id 5 dev vb dstport 4789 remote 198.51.100.1
addr add 198.18.0.2/24 dev vx
link set vx up
"""
RULES = ("remote-port 9207 deny", "remote-port 9206 rate 50pps burst 5", "local-port 9205 rate 1Mbit shared",
         "cgroup /hostile/inner remote-port 9204 mark 7 priority 5", "cgroup /hostile rate 100kpps")
# What comes and goes, as ip and as tc want it.
CHURN = (
    ("ip", "link set mon down", "link set mon up"),
    ("ip", "link del mon", "link add mon type kopimon\nlink set mon up"),
    ("ip", "link set va mtu 600", "link set va mtu 9000"),
    ("ip", "link set va down", "link set va up"),
    ("ip", "addr del 198.51.100.1/24 dev va", "addr add 198.51.100.1/24 dev va"),
    ("ip", "link add v0 type vxlan id 6 dev mon dstport 4790 remote 198.51.100.2", "link del v0"),
    ("ip", "link add v1 link kopirx0 type macvlan", "link del v1"),
    ("ip", "link add v2 link va type macvlan\nlink set v2 up", "link del v2"),
    ("ip", "link add v3 type bond\nlink set v3 up\nlink set mon master v3", "link del v3"),
    ("ip", "link add v4 link mon name v4 type vlan id 3\nlink set v4 up", "link del v4"),
    ("tc", "qdisc replace dev va root tbf rate 1mbit burst 2k limit 20k", "qdisc replace dev va root pfifo limit 1"),
    ("tc", "qdisc replace dev mon root netem delay 10ms", "qdisc del dev mon root"),
    ("tc", "qdisc add dev lo root netem delay 1ms limit 50", "qdisc del dev lo root"),
)


def batch(tool, lines, must=True):
    """Runs lines by ip or tc."""
    done = subprocess.run([tool, "-force", "-batch", "-"], input=lines, text=True, check=False, capture_output=True)
    if must and done.returncode:
        raise RuntimeError(f"{tool}: {done.stderr}")


class SlowFile:
    """A filesystem with one file, of a terabyte, of which each page comes late."""

    SIZE = 1 << 40
    INIT, LOOKUP, GETATTR, OPEN, READ, FORGET, INTERRUPT = 26, 1, 3, 14, 15, 2, 36

    def __init__(self):
        self.device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0".encode()
        if kopi.libc.mount(b"slow", SLOW.encode(), b"fuse", 6, options):
            raise OSError(ctypes.get_errno(), "mount of the slow file")
        threading.Thread(target=self._serve, daemon=True).start()

    def _answer(self, unique, body=b"", error=0):
        # Who asked may have been killed meanwhile.
        with contextlib.suppress(OSError):
            os.write(self.device, struct.pack("=IiQ", 16 + len(body), -error, unique) + body)

    def _attributes(self, node):
        mode, size = (0o40755, 0) if node == 1 else (0o100666, self.SIZE)
        return struct.pack("=6Q3I7I", node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def _serve(self):
        chance = random.Random(1)
        while True:
            try:
                request = os.read(self.device, 1 << 20)
            except OSError:
                return
            _, code, unique, node = struct.unpack_from("=IIQQ", request)
            if code == self.INIT:
                self._answer(unique, struct.pack("=4I2H2I2HI", 7, 31, 0, 0, 16, 12, 1 << 16, 1, 0, 0, 0).ljust(64, b"\0"))
            elif code == self.LOOKUP:
                self._answer(unique, struct.pack("=4Q2I", 2, 0, 1 << 20, 1 << 20, 0, 0) + self._attributes(2))
            elif code == self.GETATTR:
                self._answer(unique, struct.pack("=Q2I", 1 << 20, 0, 0) + self._attributes(node))
            elif code == self.OPEN:
                self._answer(unique, bytes(16))
            elif code == self.READ:
                size = struct.unpack_from("=QQI", request, 40)[2]
                delay = chance.choice((0, 0, 0.01, 0.1, 4))
                threading.Timer(delay, self._answer, (unique, bytes(size))).start()
            elif code not in (self.FORGET, self.INTERRUPT):
                self._answer(unique, error=38)


def churn():
    """Has things come and go for as long as it lives."""
    chance = random.Random()
    while True:
        tool, one, other = chance.choice(CHURN)
        for lines in (one, other):
            batch(tool, lines + "\n", must=False)
            time.sleep(chance.choice((0.05, 0.1, 0.3)))


def other_side(ready, go):
    """The other namespace, from which a hostile host sends."""
    os.unshare(CLONE_NEWNET)
    os.write(ready, b"x")
    os.read(go, 1)
    batch("ip", THERE)
    batch("tc", "qdisc add dev vb root netem delay 1ms loss 1% duplicate 1% corrupt 1%\n")
    os.write(ready, b"x")
    os.execvp("kopi-fuzz", ["kopi-fuzz", "host", "--seconds", "31536000", "--near", "198.51.100.2",
                            "--far", "198.51.100.1", "--near", "2001:db8:51::2", "--far", "2001:db8:51::1"])


def from_within(ready, go, command):
    """Makes the place, being root there, and runs the command."""
    (from_there, to_here), (from_here, to_there) = os.pipe(), os.pipe()
    there = os.fork()
    if there == 0:
        with open("/tmp/hostile.there", "wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        other_side(to_here, from_here)
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"tap0", IFF_TAP | IFF_NO_PI))
    batch("ip", HERE)
    batch("tc", QDISCS)
    os.read(from_there, 1)
    batch("ip", f"link set vb netns {there}\nlink set vd netns {there}\n")
    os.write(to_there, b"x")
    os.read(from_there, 1)
    # Root of the initial namespace puts rules in force.
    os.write(ready, b"x")
    os.read(go, 1)
    if os.environ.get("HOSTILE_CHURN") and os.fork() == 0:
        churn()
    os.makedirs(SLOW, exist_ok=True)
    slow = SlowFile()
    process = subprocess.Popen(command, env=os.environ | {
        "HOSTILE_SLOW": f"{SLOW}/file", "HOSTILE_THERE": f"/proc/{there}/ns/net"})
    status = process.wait()
    # Nobody waits for its pages any more; and all others end with this, the first process of its namespace.
    os.close(slow.device)
    os._exit(status if status >= 0 else 128 - status)


def run(command):
    """As root of the initial namespace: has bob make the place and run the command; gives its status."""
    for module in ("tun", "fuse", "veth", "vxlan", "sch_tbf", "sch_netem", "macvlan", "bonding", "8021q"):
        # Any of them may be built in.
        subprocess.run(["modprobe", "-q", module], check=False)
    for device in ("/dev/fuse", "/dev/net/tun"):
        # As udev does.
        os.chmod(device, 0o666)
    # Of what anyone may write, the place's own.
    for left in (SLOW, "/tmp/hostile.there"):
        with contextlib.suppress(OSError):
            shutil.rmtree(left) if os.path.isdir(left) else os.unlink(left)
    os.makedirs(f"{GROUP}/inner", exist_ok=True)
    listed = subprocess.run("kopictl engine".split(), check=True, capture_output=True, text=True).stdout
    engines = len(listed.splitlines()) < 2
    (from_place, ready), (go, to_place) = os.pipe(), os.pipe()
    with subprocess.Popen(["bash", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', f"{GROUP}/inner",
                           *"setpriv --reuid bob --regid bob --clear-groups unshare --user --map-root-user".split(),
                           *"--net --mount --pid --fork --kill-child --mount-proc".split(),
                           os.path.abspath(__file__), "--within", str(ready), str(go), *command],
                          pass_fds=(ready, go)) as place:
        os.close(ready)
        os.close(go)
        if os.read(from_place, 1):
            space = f"nsenter --net=/proc/{place.pid}/ns/net"
            for rule in RULES:
                subprocess.run(f"{space} kopictl rule add {rule}".split(), check=True, stdout=subprocess.DEVNULL)
            # Unless there are some.
            if engines:
                cpus = ",".join(map(str, os.sched_getaffinity(0)))
                subprocess.run(f"kopictl engine set --cpus {cpus} --idle 100 --budget 4096".split(), check=True)
            with Watchdog(f"/proc/{place.pid}/ns/net") as watchdog:
                os.write(to_place, b"x")
                status = place.wait()
            status = status if watchdog.verdict() else 3
        else:
            status = place.wait() or 2
    if engines:
        subprocess.run("kopictl engine off".split(), check=False)
    for group in (f"{GROUP}/inner", GROUP):
        # Processes in it may be ending still.
        kopi.wait_until(lambda group=group: not os.path.exists(group) or removed(group))
    return status


def removed(group):
    """Removes a cgroup, if it can be."""
    with contextlib.suppress(OSError):
        os.rmdir(group)
        return True
    return False


def main():
    """Either side."""
    if len(sys.argv) > 4 and sys.argv[1] == "--within":
        from_within(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
