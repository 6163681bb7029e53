#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""The limits of net.kopi.*: to each user and each namespace its own, and given back in the end."""

import contextlib
import errno
import mmap
import os
import pwd
import resource
import socket
import struct
import subprocess

import bpf
import kopi
from equivalence import namespace, user
from kopi import CHANNEL, SOL_KOPI, check, fails, flow, request
from limits import get, limited, put

DEFAULTS = {"user_max_flows": 1 << 16, "user_max_channels": 1 << 10, "user_max_frames": 1 << 22,
            "netns_max_flows": 1 << 18, "netns_max_channels": 1 << 12,
            "netns_max_frames": 1 << 24}
FRAMES = 64


def channel(frames=FRAMES):
    """A flow with a channel."""
    sock = flow()
    try:
        sock.setsockopt(SOL_KOPI, CHANNEL, request(frames=frames))
    except OSError:
        sock.close()
        raise
    return sock


def until_refused(make, most=100):
    """What could be made, and the errno that ended it."""
    made = []
    try:
        while len(made) < most:
            made.append(make())
    except OSError as error:
        return made, error.errno
    return made, 0


def close(made):
    """Closes all of them."""
    while made:
        made.pop().close()


def by_users_of_a_namespace(maker, first, uids):
    """How many flows users of a user namespace get, one each; the machine's user ids begin at `first`."""
    said, may_go, done = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setresuid(maker, maker, maker)
        os.unshare(os.CLONE_NEWUSER)
        os.write(said[1], b"x")
        os.read(may_go[0], 1)
        opened = []
        with contextlib.suppress(OSError):
            for uid in uids:
                os.setresuid(0, 0, 0)
                os.setresuid(uid, uid, 0)
                opened.append(flow())
        os.write(done[1], bytes([len(opened)]))
        os._exit(0)
    os.read(said[0], 1)
    with open(f"/proc/{pid}/uid_map", "w", encoding="ascii") as file:
        file.write(f"0 {first} 10")
    os.write(may_go[1], b"x")
    got = os.read(done[0], 1)[0]
    os.waitpid(pid, 0)
    for end in (*said, *may_go, *done):
        os.close(end)
    return got


# Not what is tried here; and it is by process, so that no other one is touched.
resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

for limit, default in DEFAULTS.items():
    check(f"{limit} is {default}", get(limit) == default, get(limit))
fails("a limit of letters", errno.EINVAL, lambda: put("user_max_flows", "many"))
fails("a limit below none", errno.EINVAL, lambda: put("user_max_flows", -1))
got = subprocess.run(["setpriv", "--reuid", "bob", "--clear-groups", "sysctl", "-w",
                      "net.kopi.user_max_flows=1"], capture_output=True, text=True, check=False)
check("a user can't set them", get("user_max_flows") == DEFAULTS["user_max_flows"], got)

KINDS = {"flows": (flow, 3, 3, errno.EMFILE), "channels": (channel, 3, 3, errno.EMFILE),
         "frames": (channel, 3 * FRAMES + 1, 3, errno.ENOBUFS)}
for kind, (maker, limit, fit, refusal) in KINDS.items():
    with limited(**{f"user_max_{kind}": limit}):
        with user("bob"):
            opened, refused = until_refused(maker)
            check(f"a user gets {kind} up to the limit", (len(opened), refused) == (fit, refusal),
                  (len(opened), refused))
        with user("alice"):
            others, refused = until_refused(maker, fit)
            check(f"{kind}: another user's are not counted with them", len(others) == fit, refused)
            close(others)
        with namespace("peer"), user("bob"):
            again, refused = until_refused(maker)
            check(f"{kind}: the same user's in another namespace are", (again, refused) ==
                  ([], refusal), (again, refused))
            close(again)
            close(opened)
            # What was closed counts no more, however soon it is asked for again.
            fewest = fit
            for _ in range(30):
                opened, refused = until_refused(maker)
                fewest = min(fewest, len(opened))
                close(opened)
            check(f"{kind}: what is closed can be made again at once", fewest == fit, fewest)
    with limited(**{f"netns_max_{kind}": limit}):
        with namespace("host"):
            with user("bob"):
                opened, refused = until_refused(maker)
                check(f"a namespace gets {kind} up to the limit",
                      (len(opened), refused) == (fit, refusal), (len(opened), refused))
            with user("alice"):
                others, refused = until_refused(maker)
                check(f"{kind}: of all its users", (others, refused) == ([], refusal),
                      (others, refused))
                close(others)
        with namespace("peer"), user("alice"):
            others, refused = until_refused(maker, fit)
            check(f"{kind}: another namespace has its own", len(others) == fit, refused)
            close(others)
        close(opened)

with limited(user_max_flows=2, user_max_channels=1):
    with user("bob"):
        kept = channel()
        joined = flow()
        joined.setsockopt(SOL_KOPI, kopi.JOIN, kopi.join_request(kept))
        check("a flow that joins makes no channel", True)
    # A copy of the descriptor, in another's hands.
    left, right = socket.socketpair(socket.AF_UNIX)
    socket.send_fds(left, [b"x"], [kept.fileno()])
    with user("bob"):
        kept.close()
        fails("what was passed on still counts for its maker", errno.EMFILE, flow)
        os.close(socket.recv_fds(right, 1, 1)[1][0])
        with flow() as third:
            check("and no more when it is closed", True)
            fails("the channel is still the joined flow's", errno.EMFILE,
                  lambda: third.setsockopt(SOL_KOPI, CHANNEL, request()))
        joined.close()
        kept = channel()
        size = int.from_bytes(kept.getsockopt(SOL_KOPI, CHANNEL, 256)[:8], "little")
        region = mmap.mmap(kept.fileno(), size, trackfd=False)
        kept.close()
        fails("a mapping keeps the channel counted", errno.EMFILE, channel)
        region.close()
        channel().close()
        check("until it goes", True)
    left.close()
    right.close()

BOB = pwd.getpwnam("bob").pw_uid
with limited(user_max_flows=3):
    with user("bob"):
        one = flow()
    got = by_users_of_a_namespace(BOB, 300000, range(1, 6))
    check("users of a user namespace count as who made it", got == 2, got)
    one.close()
    opened = [flow() for _ in range(3)]
    got = by_users_of_a_namespace(0, 400000, range(1, 6))
    check("or as its root, if the machine's root made it", got == 3, got)
    close(opened)

with user("bob"):
    opened = [channel() for _ in range(3)]
with limited(user_max_flows=1, user_max_channels=1, user_max_frames=1):
    with user("bob"):
        fails("a limit below what is held refuses more", errno.EMFILE, flow)
        check("and leaves what is there", opened[2].getsockopt(SOL_KOPI, kopi.STATS, 256))
        close(opened)
        with flow() as one:
            fails("each kind for itself", errno.ENOBUFS,
                  lambda: one.setsockopt(SOL_KOPI, CHANNEL, request()))
bpf.load("asked")
bpf.update("asked", 0, struct.pack("=Q", os.getpid()))
barrier = bpf.link("rcu_barriers", 0, "trace_fentry")
with limited(user_max_flows=3):
    barriers = []
    with user("bob"):
        opened, _ = until_refused(flow)
    for closes in (0, 1):
        bpf.update("asked", 2, bytes(8))
        with user("bob"):
            close(opened[3 - closes:])
            del opened[3 - closes:]
            opened += until_refused(flow)[0]
            refused = [until_refused(flow) for _ in range(50)]
        barriers.append(struct.unpack("=Q", bpf.lookup("asked", 2, 8))[0])
    check("who asks again, over a limit, has nobody wait for RCU unless something is closed",
          refused == [([], errno.EMFILE)] * 50 and barriers[0] == 0 and barriers[1] <= 2, barriers)
    close(opened)
os.close(barrier)
bpf.unload()

with limited(user_max_flows=0):
    fails("none at all, for root too", errno.EMFILE, flow)
kopi.finish()
