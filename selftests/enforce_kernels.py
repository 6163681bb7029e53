#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Rules don't take a user for the owner of a socket by which the kernel reads a file for him: disks by NVMe over TCP,
whose socket is the kernel's own, and by nbd, whose socket a program has made, be it an ordinary one or a flow. A user
who may do nothing would end the disk for all."""

import contextlib
import fcntl
import glob
import os
import pathlib
import socket
import struct
import subprocess
import sys
import threading

from control import family, mine
from enforced import BOB, IMPOSTOR, PYTHON, begin, end, enforce, restore
from equivalence import namespace, sh
from kopi import check, finish, stream, wait_until

LOCAL, NVME_PORT, SIZE = "127.0.0.1", 4420, 1 << 20
TARGET = pathlib.Path("/sys/kernel/config/nvmet")
# ioctls of <linux/nbd.h>, and the numbers of its messages.
NBD_SET_SOCK, NBD_SET_BLKSIZE, NBD_DO_IT, NBD_CLEAR_SOCK, NBD_DISCONNECT, NBD_SET_SIZE_BLOCKS = (
    0xAB00, 0xAB01, 0xAB03, 0xAB04, 0xAB08, 0xAB07)
ASKS, ANSWERS = 0x25609513, 0x67446698
READ = """
import mmap, os, sys
for cpu in sorted(os.sched_getaffinity(0)):
    os.sched_setaffinity(0, {cpu})
    disk = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)
    for place in range(16):
        assert os.preadv(disk, [mmap.mmap(-1, 4096)], place * 4096) == 4096
    os.close(disk)
"""


def reads(disk, user, program=PYTHON):
    """Whether a user can read a disk from each CPU, past the cache; what went wrong, otherwise."""
    try:
        done = subprocess.run([program, "-c", READ, disk], user=user, capture_output=True, text=True, timeout=60,
                              env=os.environ | {"PYTHONHOME": sys.base_prefix}, check=False)
    except subprocess.TimeoutExpired:
        return "it hangs"
    return done.stderr[-200:]


def is_everyones(what, disk):
    """The user to whom all is denied reads it, and so does another one afterwards."""
    assert reads(disk, 0) == ""
    restore("default allow\nenforce on\nuser bob deny\n")
    bob = reads(disk, BOB)
    check(f"{what}: a user who is denied all packets reads a file", bob == "", bob)
    root = reads(disk, 0)
    check(f"{what}: another one reads it, too", root == "", root)
    enforce("off")


def is_its_programs(disk):
    """The stream of a disk is that of the program which has made it, whichever reads the disk, and sends for it."""
    assert reads(disk, 0) == ""
    restore(f"default deny\nexe {PYTHON} allow\n")
    other = reads(disk, BOB, IMPOSTOR)
    check("nbd by a stream: a program that is denied all packets reads a file", other == "", other)
    root = reads(disk, 0)
    check("nbd by a stream: another one reads it, too", root == "", root)
    check("nbd by a stream: it is still the program's", len(mine(family())) == 1, mine(family()))


@contextlib.contextmanager
def nvme():
    """A disk by NVMe over TCP."""
    for module in "nvmet-tcp", "nvme-tcp":
        sh(f"modprobe {module}")
    sh("mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config")
    with open("/tmp/enforced/disk", "wb") as file:
        file.truncate(SIZE)
    subsystem, port = TARGET / "subsystems/kopi", TARGET / "ports/1"
    (subsystem / "namespaces/1").mkdir(parents=True)
    (subsystem / "attr_allow_any_host").write_text("1", encoding="ascii")
    (subsystem / "namespaces/1/device_path").write_text("/tmp/enforced/disk", encoding="ascii")
    (subsystem / "namespaces/1/enable").write_text("1", encoding="ascii")
    port.mkdir()
    for name, value in (("trtype", "tcp"), ("adrfam", "ipv4"), ("traddr", LOCAL), ("trsvcid", NVME_PORT)):
        (port / f"addr_{name}").write_text(str(value), encoding="ascii")
    link = port / "subsystems/kopi"
    link.symlink_to(subsystem)
    host = "hostnqn=nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-11d2-883f-0016d3cca427"
    with open("/dev/nvme-fabrics", "r+b", buffering=0) as fabrics:
        fabrics.write(f"nqn=kopi,transport=tcp,traddr={LOCAL},trsvcid={NVME_PORT},{host},"
                      "hostid=1b4e28ba-2fa1-11d2-883f-0016d3cca427".encode())
    disk, = wait_until(lambda: glob.glob("/dev/nvme[0-9]n[0-9]"))
    os.chmod(disk, 0o666)
    yield disk
    for control in pathlib.Path("/sys/class/nvme").glob("nvme*/delete_controller"):
        control.write_text("1", encoding="ascii")
    link.unlink()
    (subsystem / "namespaces/1/enable").write_text("0", encoding="ascii")
    for directory in port, subsystem / "namespaces/1", subsystem:
        directory.rmdir()


def serve_nbd(server):
    """Answers what nbd asks of a disk of zeroes, until the connection ends."""
    while len(asked := server.recv(28, socket.MSG_WAITALL)) == 28:
        magic, kind, handle, _, length = struct.unpack("!II8sQI", asked)
        assert magic == ASKS
        if kind & 0xFFFF:
            # It ends.
            server.shutdown(socket.SHUT_RDWR)
            return
        server.sendall(struct.pack("!II8s", ANSWERS, 0, handle) + bytes(length))


@contextlib.contextmanager
def nbd(make=socket.socket):
    """A disk by nbd, and by a socket that is made so."""
    sh("modprobe nbd nbds_max=1")
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(open("/dev/nbd0", "r+b", buffering=0))
        listener = stack.enter_context(socket.create_server((LOCAL, 0)))
        client = stack.enter_context(make())
        client.connect(listener.getsockname())
        server = stack.enter_context(listener.accept()[0])
        sock = client.fileno()
        for call, value in (NBD_SET_BLKSIZE, 4096), (NBD_SET_SIZE_BLOCKS, SIZE // 4096), (NBD_SET_SOCK, sock):
            fcntl.ioctl(disk, call, value)
        serves = threading.Thread(target=serve_nbd, args=(server,))
        serves.start()
        # The call lasts as long as the disk is there. Python would hold its lock.
        works = subprocess.Popen([sys.executable, "-c", f"import fcntl; fcntl.ioctl(0, {NBD_DO_IT})"], stdin=disk)
        assert wait_until(lambda: pathlib.Path("/sys/block/nbd0/pid").exists())
        os.chmod("/dev/nbd0", 0o666)
        yield "/dev/nbd0"
        fcntl.ioctl(disk, NBD_DISCONNECT)
        works.wait()
        fcntl.ioctl(disk, NBD_CLEAR_SOCK)
        serves.join()


with namespace("host"):
    begin()
    with nvme() as place:
        is_everyones("NVMe", place)
    with nbd() as place:
        is_everyones("nbd", place)
    with nbd(stream) as place:
        is_its_programs(place)
    restore("default allow\nenforce off\n")
end()
finish()
