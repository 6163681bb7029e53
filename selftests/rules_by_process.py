#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""Rules that see the process: who may bind and connect, and what becomes of live flows."""

import errno
import os
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time

import kopi
from control import add, ask, family, mine, refused, rules, ruled
from equivalence import namespace, nft_counters, run_nft
from kopi import check, fails, wait_until
from linux import SO_PEEK_OFF

HOST, PEER = "192.0.2.1", "192.0.2.2"
PYTHON = os.path.realpath(sys.executable)
GROUP = "/sys/fs/cgroup/ruled"


def bind_as(who, port, program=PYTHON, group=None):
    """What a user's process of that program gets from bind(): 0 or an errno."""
    code = ("import ctypes,os,socket,struct,sys;s=socket.socket(%d,2);"
            "l=ctypes.CDLL(None,use_errno=True);"
            "r=l.bind(s.fileno(),struct.pack('=H2s4s8x',2,(%d).to_bytes(2,'big'),bytes((192,0,2,1))),16);"
            "os._exit(ctypes.get_errno() if r else 0)") % (kopi.AF_KOPI, port)
    pid = os.fork()
    if pid == 0:
        if group:
            kopi.move_to(group)
        uid = {"alice": 1001, "bob": 1002, "charlie": 1003, "root": 0}[who]
        os.setresuid(uid, uid, uid)
        os.environ["PYTHONHOME"] = sys.base_prefix
        os.execv(program, [program, "-c", code])
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def completions(channel):
    """The errors of all that was completed."""
    errors = []
    while entry := channel.completion.pop():
        errors.append(entry[4])
    return errors


def who_may_bind(ynl):
    """The paper's second scenario: only bob's postgres on 5432, only charlie's mysqld on 3306."""
    names = ("/tmp/postgres", "/tmp/mysqld", "/tmp/impostor")
    for name in names:
        shutil.copy(PYTHON, name)
    postgres, mysqld, impostor = names
    add(ynl, uid_min=1002, exe=postgres, local_port_min=5432)
    add(ynl, uid_min=1003, exe=mysqld, local_port_min=3306)
    last = [add(ynl, local_port_min=port, verdict="deny") for port in (5432, 3306)]
    check("bob's postgres has its port", bind_as("bob", 5432, postgres) == 0)
    check("charlie's mysqld has its port", bind_as("charlie", 3306, mysqld) == 0)
    check("other ports are anybody's", bind_as("alice", 5433, impostor) == 0)
    for who, port, program, what in (
            ("charlie", 5432, postgres, "charlie's postgres"), ("bob", 3306, mysqld, "bob's mysqld"),
            ("bob", 5432, mysqld, "bob's mysqld on postgres's port"), ("bob", 5432, impostor, "a copy"),
            ("root", 5432, postgres, "root's postgres")):
        check(f"{what}: EACCES", bind_as(who, port, program) == errno.EACCES)
    os.rename(postgres, "/tmp/moved")
    os.rename(impostor, postgres)
    check("another file at its path: EACCES", bind_as("bob", 5432, postgres) == errno.EACCES)
    check("the file that was moved", bind_as("bob", 5432, "/tmp/moved") == 0)
    check("the rule is shown as stale", [rule.get("exe-stale", False) for rule in rules(ynl)]
          == [True, False, False, False], rules(ynl))
    counted = {rule["handle"]: rule["denied"] for rule in rules(ynl)}
    check("refusals are counted by rule", [counted[handle] for handle in last] == [5, 1], counted)
    ask(ynl, "ruleset-set")
    check("without rules all may", bind_as("alice", 5432, postgres) == 0)
    for name in (postgres, mysqld, "/tmp/moved"):
        os.unlink(name)


def become_another(which, does="sends"):
    """A trusted program sends by its flow, and becomes another one, which tries something; gives the errno."""
    pid = os.fork()
    if pid == 0:
        os.environ["PYTHONHOME"] = sys.base_prefix
        os.execv("/tmp/trusted", ["trusted", __file__, "trusted", which, does, PYTHON])
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def be_trusted(which, does, other):
    """Sends by a flow that a rule allows, and becomes another program, which gets one of two flows."""
    channel = kopi.Channel(kopi.flow())
    channel.sock.bind((HOST, 6001))
    channel.sock.connect((PEER, 7001))
    second = kopi.flow()
    second.setsockopt(kopi.SOL_KOPI, kopi.JOIN, kopi.join_request(channel.sock))
    channel.send(0, b"x" * 64)
    channel.bell()
    if completions(channel) != [0]:
        sys.exit(100)
    for sock in (channel.sock, second):
        os.set_inheritable(sock.fileno(), True)
    given = channel.sock if which == "first" else second
    os.execv(other, ["python3", __file__, "impostor", str(given.fileno()), does])


def be_listener(fd):
    """Maps the channel by the flow that it was left, and waits for what comes to the first one."""
    channel = kopi.Channel.of(kopi.Flow(fileno=fd))
    channel.fill.push(channel.frame(1))
    ynl = family()
    with namespace("peer"), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sender.bind((PEER, 7001))
        sender.sendto(b"z" * 64, (HOST, 6001))
    wait_until(lambda: [flow for flow in mine(ynl).values() if flow["stats"]["rx-taken"]])
    sys.exit(0 if channel.rx.pop() else errno.EACCES)


def be_impostor(fd, does):
    """Sends from the first flow's port, or listens there, by the flow that it was left."""
    if does == "listens":
        be_listener(fd)
    try:
        channel = kopi.Channel.of(kopi.Flow(fileno=fd))
        channel.send(0, b"y" * 64)
        channel.bell()
        sys.exit(completions(channel)[0])
    except OSError as error:
        sys.exit(error.errno)


def names_of_processes(ynl):
    """A process can't name itself past a rule; a program that it becomes is looked at anew."""
    shutil.copy(PYTHON, "/tmp/trusted")
    add(ynl, exe="/tmp/trusted", local_port_min=6000, local_port_max=6010)
    add(ynl, local_port_min=6000, local_port_max=6010, verdict="deny")
    with open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write("trusted")
    fails("a process that calls itself so: bind()", errno.EACCES, lambda: kopi.flow().bind((HOST, 6000)))
    check("what the program becomes can't use its flow: EACCES", become_another("first") == errno.EACCES)
    check("nor by another flow of its channel: EACCES", become_another("second") == errno.EACCES)
    check("nor read what comes, by mapping the channel: EACCES", become_another("second", "listens") == errno.EACCES)
    os.unlink("/tmp/trusted")
    ask(ynl, "ruleset-set")


def by_users_and_groups(ynl):
    """Users, ranges of them, groups, cgroups."""
    os.makedirs(f"{GROUP}/inner", exist_ok=True)
    add(ynl, uid_min=1001, uid_max=1002, local_port_min=6100, verdict="deny")
    check("of a range of users", [bind_as(who, 6100) for who in ("alice", "bob", "charlie")]
          == [errno.EACCES, errno.EACCES, 0])
    add(ynl, cgroup_path="/ruled", local_port_min=6101, verdict="deny")
    check("in a cgroup, and below it", [bind_as("alice", 6101, group=group) for group in
                                        (GROUP, f"{GROUP}/inner", None)] == [errno.EACCES, errno.EACCES, 0])
    refused("a cgroup that isn't there", errno.ENOENT, lambda: add(ynl, cgroup_path="/none"), "cgroup")
    ask(ynl, "ruleset-set", {"default": "deny"})
    check("denied unless a rule allows it", bind_as("alice", 6102) == errno.EACCES)
    add(ynl, uid_min=1001)
    check("allowed by a rule", [bind_as(who, 6102) for who in ("alice", "bob")] == [0, errno.EACCES])
    for group in (f"{GROUP}/inner", GROUP):
        remove(group)
    ask(ynl, "ruleset-set")


def remove(group):
    """Removes a cgroup once its processes have ended."""
    wait_until(lambda: "populated 0" in open(f"{group}/cgroup.events", encoding="ascii").read())
    os.rmdir(group)


def of_a_cgroup_that_is_made_anew(ynl):
    """A rule means the cgroup that was there, and not another one at its path, until it is put in force again."""
    os.mkdir(GROUP)
    ours = {"cgroup-path": "/ruled", "local-port-min": 6103, "verdict": "deny"}
    both = {"rule": [ours, {"cgroup-path": "/", "local-port-min": 6104, "verdict": "deny"}]}
    ask(ynl, "ruleset-set", both)

    def stale():
        return [rule.get("cgroup-stale", False) for rule in rules(ynl)]
    check("of a cgroup that is there", stale() == [False, False] and bind_as("alice", 6103, group=GROUP) == errno.EACCES, rules(ynl))
    remove(GROUP)
    check("it was removed: the rule is shown as stale", stale() == [True, False], rules(ynl))
    os.mkdir(GROUP)
    check("it was made anew: the rule doesn't match it", bind_as("alice", 6103, group=GROUP) == 0)
    check("and is stale still", stale() == [True, False], rules(ynl))
    handles = [rule["handle"] for rule in rules(ynl)]
    ask(ynl, "ruleset-set", both)
    check("put in force again, it matches", stale() == [False, False] and bind_as("alice", 6103, group=GROUP) == errno.EACCES, rules(ynl))
    check("as another rule; what was right stayed", [old == rule["handle"] for old, rule in zip(handles, rules(ynl))]
          == [False, True], rules(ynl))
    remove(GROUP)
    ask(ynl, "ruleset-set")


def by_peers(ynl):
    """Where a flow may send depends on the peer, connected or not."""
    denied = add(ynl, remote_address=PEER, remote_prefix=32, remote_port_min=7005, verdict="deny")
    add(ynl, remote_address="2001:db8::", remote_prefix=32, remote_port_min=7005, verdict="deny")
    fails("connect() to a denied peer", errno.EACCES, lambda: kopi.flow().connect((PEER, 7005)))
    kopi.flow().connect((PEER, 7006))
    fails("connect() by IPv6", errno.EACCES, lambda: kopi.flow(kopi.UDP6).connect(("2001:db8::2", 7005)))
    fails("connect() to an address of IPv4 by IPv6", errno.EACCES,
          lambda: kopi.flow(kopi.UDP6).connect((f"::ffff:{PEER}", 7005)))
    channel = kopi.Channel()
    for number, port in enumerate((7005, 7006, 7005, 7006)):
        channel.send(number, b"z" * 64, (PEER, port))
    channel.bell()
    check("of a ring's datagrams, those to the denied peer are refused",
          completions(channel) == [errno.EACCES, 0, errno.EACCES, 0])
    stats = channel.stats()
    check("they are counted", (stats["tx_drop_rule"], stats["tx_packets"], channel.unaccounted()) == (2, 2, ""), stats)
    plain = kopi.flow()

    def send(port):
        name = kopi.pack_address(PEER, port)
        if kopi.libc.sendto(plain.fileno(), b"p", 1, 0, name, len(name)) < 0:
            raise OSError(kopi.ctypes.get_errno(), "sendto")
    fails("sendto() without rings", errno.EACCES, lambda: send(7005))
    send(7006)
    counted = {rule["handle"]: (rule["packets"], rule["bytes"]) for rule in rules(ynl)}
    check("the rule counts them", counted[denied] == (3, 129), counted)
    ask(ynl, "ruleset-set")


def reading_by_peers(ynl):
    """What a flow without rings may read depends on the peer, too."""
    with namespace("peer"):
        bad, good = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        bad.bind((PEER, 7005))
        good.bind((PEER, 7006))
    plain = kopi.flow()
    plain.bind((HOST, 6400))
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=QQ", 20, 0))
    add(ynl, remote_address=PEER, remote_prefix=32, remote_port_min=7005, verdict="deny")

    def both(*datagrams):
        for sock, data in datagrams:
            sock.sendto(data, (HOST, 6400))
    both((bad, b"no"), (bad, b"no"), (good, b"yes"), (bad, b"no"), (good, b"more"))
    check("only the other's is peeked at", plain.recv(100, socket.MSG_PEEK) == b"yes")
    check("and read", [plain.recv(100), plain.recv(100)] == [b"yes", b"more"])
    reader = threading.Thread(target=lambda: check("by one who waits, too", plain.recv(100) == b"late"))
    reader.start()
    task = f"/proc/self/task/{reader.native_id}/wchan"
    wait_until(lambda: open(task, encoding="ascii").read() not in ("", "0"))
    both((bad, b"no"), (good, b"late"))
    reader.join()
    both((bad, b"no"))
    fails("without waiting there is nothing", errno.EAGAIN, lambda: plain.recv(100, socket.MSG_DONTWAIT))
    both((bad, b"no"), (good, b"yes"))
    plain.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, 1)
    fails("what is looked at can't be another than what is read", errno.EOPNOTSUPP, lambda: plain.recv(100))
    plain.setsockopt(socket.SOL_SOCKET, SO_PEEK_OFF, -1)
    check("as it can be again", plain.recv(100) == b"yes")
    stats = [flow["stats"] for flow in mine(ynl).values() if flow["local-port"] == 6400]
    check("what is refused is counted", [each["rx-drop-rule"] for each in stats] == [6], stats)
    ask(ynl, "ruleset-set")
    # The second would pass a minute later.
    add(ynl, local_port_min=6400, direction="in", rate_bytes=1, burst=60)
    both((good, b"1" * 60), (good, b"2" * 60))
    check("a rate holds", plain.recv(100) == b"1" * 60)
    fails("for what comes after it", errno.EAGAIN, lambda: plain.recv(100, socket.MSG_DONTWAIT))
    ask(ynl, "ruleset-set")


def live_flows(ynl, peer):
    """A change counts at once for flows that live, and their processes learn of it."""
    channel = kopi.Channel(kopi.flow(), frames=64)
    channel.sock.bind((HOST, 6200))
    channel.sock.connect((PEER, 7001))
    for number in range(32, 48):
        channel.fill.push(channel.frame(number))

    def exchange():
        """What becomes of a datagram out, and of one in."""
        while channel.rx.pop():
            pass
        before = channel.stats()
        channel.send(0, b"m" * 64)
        channel.bell()
        peer.sendto(b"n" * 64, (HOST, 6200))
        wait_until(lambda: channel.stats()["rx_taken"] > before["rx_taken"])
        after = channel.stats()
        return (completions(channel), after["rx_packets"] - before["rx_packets"],
                after["rx_drop_rule"] - before["rx_drop_rule"])

    check("before any rule", exchange() == ([0], 1, 0))
    handle = add(ynl, local_port_min=6200, verdict="deny")
    error = channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    check("its process learns why nothing passes: EACCES", error == errno.EACCES, error)
    check("denied: neither out nor in", exchange() == ([errno.EACCES], 0, 1))
    shown = mine(ynl)
    check("it is shown", [(flow.get("rule-in"), flow.get("rule-out"), flow["denied"])
                          for flow in shown.values() if flow["local-port"] == 6200] == [(handle, handle, {"in", "out"})],
          shown)
    channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    ask(ynl, "rule-del", {"rule": {"handle": handle}})
    check("allowed again", exchange() == ([0], 1, 0))
    add(ynl, local_port_min=6200, direction={"in"}, verdict="deny")
    channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    check("denied in one direction", exchange() == ([0], 0, 1))
    check("no packet is unaccounted for", channel.unaccounted() == "", channel.unaccounted())
    ask(ynl, "ruleset-set")

    woken(ynl, channel)
    return channel


def woken(ynl, channel):
    """A process that waits for packets learns of it, once."""
    rounds = 200
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for _ in range(rounds):
                os.write(writing, bytes((wait_for_packets(channel),)))
        finally:
            os._exit(0)
    os.close(writing)
    told, left = set(), []
    for _ in range(rounds):
        wait_until(lambda: "S" in open(f"/proc/{pid}/stat", encoding="ascii").read().split()[2])
        add(ynl, local_port_min=6200, verdict="deny")
        told.add(os.read(reading, 1))
        left.append(channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
        ask(ynl, "ruleset-set")
    os.waitpid(pid, 0)
    os.close(reading)
    check("a process that waits is woken: EACCES", told == {bytes((errno.EACCES,))}, told)
    check("and the next call has no error left", not any(left), left)


def wait_for_packets(channel):
    """Waits for the RX ring by the doorbell; gives the errno."""
    try:
        channel.bell(kopi.BELL_WAIT_RX)
    except OSError as error:
        return error.errno
    return 0


def actions(ynl, channel, peer):
    """Marks, priorities, rates."""
    completions(channel)
    run_nft("table inet t {\nchain c {\ntype filter hook output priority 0;\n"
            "meta mark 7 meta priority 1:5 counter\nmeta mark 0 counter\n}\n}")
    handle = add(ynl, local_port_min=6200, mark=7, priority=0x10005)
    for _ in range(2):
        channel.send(0, b"m" * 64)
        channel.bell()
    own = channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_MARK)
    errors = completions(channel)
    check("mark and priority are on what is sent", nft_counters()[0][0] == 2 and own == 7, (nft_counters(), errors))
    ask(ynl, "rule-del", {"rule": {"handle": handle}})
    channel.send(0, b"m" * 64)
    channel.bell()
    own = channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_MARK)
    check("and are the flow's own again", nft_counters()[1][0] == 1 and own == 0, nft_counters())
    run_nft("flush ruleset")
    while channel.completion.pop():
        pass

    add(ynl, local_port_min=6200, direction={"out"}, rate_packets=1, burst=10)
    begun = time.monotonic()
    for _ in range(40):
        channel.send(0, b"r" * 64)
        channel.bell()
    errors, took = completions(channel), time.monotonic() - begun
    # Ten at once, and one a second.
    check("a rate lets a burst pass, and refuses more: ENOBUFS", 10 <= errors.count(0) <= 11 + took
          and errors.count(errno.ENOBUFS) == 40 - errors.count(0), (errors, took))
    stats = channel.stats()
    check("it is counted", stats["tx_drop_rate"] == errors.count(errno.ENOBUFS) and channel.unaccounted() == "", stats)
    while True:
        try:
            peer.recv(2048, socket.MSG_DONTWAIT)
        except BlockingIOError:
            break
    ask(ynl, "ruleset-set")


def sets(ynl):
    """Sets are replaced whole, or not at all."""
    first = add(ynl, local_port_min=1)
    second = add(ynl, local_port_min=2, comment="second")
    third = add(ynl, local_port_min=3, before=first)
    check("rules are in order, by handle", [rule["handle"] for rule in rules(ynl)] == [third, first, second])
    generation = ask(ynl, "ruleset-get")["generation"]
    bad = {"rule": [{"local-port-min": 9}, {"exe": "/nowhere"}]}
    refused("a set with a bad rule", errno.ENOENT, lambda: ask(ynl, "ruleset-set", bad), "exe")
    check("changes nothing", [rule["handle"] for rule in rules(ynl)] == [third, first, second])
    same = {"rule": [{"local-port-min": 3}, {"local-port-min": 1}, {"local-port-min": 2, "comment": "second"}]}
    check("the same set changes nothing", ask(ynl, "ruleset-set", same)["generation"] == generation)
    refused("a set for rules that have changed", errno.EAGAIN,
            lambda: ask(ynl, "ruleset-set", {"generation": generation - 1}), "changed")
    ask(ynl, "ruleset-set", {"rule": [{"local-port-min": 9}], "check": True})
    check("a check changes nothing", ask(ynl, "ruleset-get")["generation"] == generation)
    ask(ynl, "ruleset-set", {"rule": [{"local-port-min": 9}], "default": "deny"})
    check("all of it is replaced", ([rule["local-port-min"] for rule in rules(ynl)], ask(ynl, "ruleset-get")["default"])
          == ([9], "deny"))
    with tempfile.NamedTemporaryFile(dir="/tmp") as program:
        add(ynl, exe=program.name, local_port_min=10)
    before = rules(ynl)
    ask(ynl, "ruleset-set", {"default": "allow", "keep": True})
    check("a default by itself keeps the rules, also of a file that is gone", rules(ynl) == before and before[-1].get("exe-stale"),
          rules(ynl))
    ask(ynl, "ruleset-set", {"keep": True})
    check("and without a default, that stays", (rules(ynl), ask(ynl, "ruleset-get")["default"]) == (before, "allow"))
    refused("rules beside those that are kept: EINVAL", errno.EINVAL,
            lambda: ask(ynl, "ruleset-set", {"rule": [{"local-port-min": 9}], "keep": True}), "kept")
    for what, rule in (
            ("a range that ends before it begins", {"local-port-min": 5, "local-port-max": 4}),
            ("an end without a beginning", {"uid-max": 4}),
            ("a prefix longer than its address", {"remote-address": PEER, "remote-prefix": 33}),
            ("a prefix of nothing", {"remote-prefix": 8}),
            ("two rates", {"rate-bytes": 5, "rate-packets": 5}), ("a rate of nothing", {"rate-bytes": 0}),
            ("a burst of no rate", {"burst": 1}), ("a denial that marks", {"verdict": "deny", "mark": 1}),
            ("a path that isn't absolute", {"exe": "bin/sh"})):
        refused(f"{what}: EINVAL", errno.EINVAL, lambda rule=rule: ask(ynl, "rule-add", {"rule": rule}))
    for what, path in (("a folder", "/usr/bin"), ("a device", "/dev/null")):
        refused(f"{what} as a program: ENOEXEC", errno.ENOEXEC, lambda path=path: add(ynl, exe=path), "no regular file")
    refused("a handle of no rule: ENOENT", errno.ENOENT, lambda: ask(ynl, "rule-del", {"rule": {"handle": 1 << 30}}))
    ask(ynl, "ruleset-set", {"default": "deny"})
    with kopi.flow() as ours:
        fails("a default of its own denies here", errno.EACCES, lambda: ours.bind((HOST, 6300)))
    with namespace("peer"), kopi.flow() as theirs:
        theirs.bind((PEER, 6300))
        check("another namespace has rules of its own", theirs.getsockname() == (PEER, 6300))
    ask(ynl, "ruleset-set", {"default": "allow"})


if sys.argv[1:2] == ["trusted"]:
    be_trusted(*sys.argv[2:])
if sys.argv[1:2] == ["impostor"]:
    be_impostor(int(sys.argv[2]), sys.argv[3])
with namespace("peer"):
    far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    # What be_listener() sends comes from there, too.
    far.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    far.bind((PEER, 7001))
with ruled() as netlink:
    who_may_bind(netlink)
    names_of_processes(netlink)
    by_users_and_groups(netlink)
    of_a_cgroup_that_is_made_anew(netlink)
    by_peers(netlink)
    reading_by_peers(netlink)
    actions(netlink, live_flows(netlink, far), far)
    sets(netlink)
kopi.finish()
