#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""What netlink shows of flows and channels is what they are, to those who may see it."""

import errno
import os
import random
import socket
import struct
import threading

import control
import kopi
from control import ask, family, flows, mine, refused
from equivalence import namespace, sh, user
from kopi import check, wait_until
from linux import NETLINK_GET_STRICT_CHK, SOL_NETLINK

KINDS = {"local": "192.0.2.1", "peer": "192.0.2.2"}


with namespace("host"):
    ynl = family()
    info = ask(ynl, "info-get")
    check("info: ABI version and family", info["abi-version"] == kopi.ABI_VERSION and info["address-family"] == kopi.AF_KOPI, info)

    opened = ask(ynl, "totals-get")["flows-opened"]
    channel = kopi.Channel(kopi.flow(), frames=64)
    channel.sock.bind((KINDS["local"], 7000))
    channel.sock.connect((KINDS["peer"], 7001))
    joined = kopi.flow()
    joined.setsockopt(kopi.SOL_KOPI, kopi.JOIN, kopi.join_request(channel.sock))
    plain = kopi.flow(kopi.UDP6)
    with namespace("peer"):
        peer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        peer.bind((KINDS["peer"], 7001))

    seen = mine(ynl)
    check("all flows of the process are shown", len(seen) == 3, seen)
    first, second, third = sorted(seen)
    shown = seen[first]
    check("its number is that of flow-get", ask(ynl, "flow-get", {"id": first})["id"] == first)
    check("addresses and ports", (shown["local-address"], shown["local-port"], shown["remote-address"],
                                  shown["remote-port"]) == (KINDS["local"], 7000, KINDS["peer"], 7001), shown)
    check("a flow that isn't bound or connected", seen[third]["local-port"] == 0
          and "remote-port" not in seen[third] and "channel" not in seen[third], seen[third])
    check("ss has the same", f"{KINDS['local']}:7000" in sh("ss -uanp") and f"pid={os.getpid()}" in sh("ss -uanp"))
    program = os.path.realpath("/proc/self/exe")
    stat = os.stat(program)
    check("the program is python", shown["exe"] == program and shown["exe-inode"] == stat.st_ino, shown)
    check("user, group, command", (shown["uid"], shown["gid"]) == (0, 0)
          and shown["command"] == open("/proc/self/comm", encoding="ascii").read().strip(), shown)
    check("the cgroup is the process's", shown["cgroup-path"] == "/"
          and shown["cgroup"] == os.stat("/sys/fs/cgroup").st_ino, shown)
    check("the two on a channel have numbers", (shown["channel"], shown["number"]) == (first, 0)
          and (seen[second]["channel"], seen[second]["number"]) == (first, 1), seen)

    # What is sent and received.
    channel.send(0, b"x" * 100)
    channel.bell()
    peer.recv(200)
    channel.fill.push(channel.frame(8))
    peer.sendto(b"y" * 50, (KINDS["local"], 7000))
    kopi.check("what the peer sent has come", wait_until(lambda: channel.rx.pop()))
    stats = ask(ynl, "flow-get", {"id": first})["stats"]
    own = channel.stats()
    check("counters are those of the flow", all(own[name.replace("-", "_")] == value for name, value in stats.items())
          and (stats["tx-packets"], stats["tx-bytes"], stats["rx-packets"], stats["rx-bytes"]) == (1, 100, 1, 50), stats)

    shown = ask(ynl, "channel-get", {"id": first})
    check("the channel", (shown["flows"], shown["frame-count"], shown["frame-size"], shown["uid"]) == (2, 64, 2048, 0)
          and shown["region-size"] == len(channel.region), shown)
    check("its rings", shown["tx"] == {"size": 64, "producer": 1, "consumer": 1}
          and shown["rx"] == {"size": 64, "producer": 1, "consumer": 1}
          and shown["fill"]["producer"] == 1, shown)
    check("all channels are shown", first in {each["id"] for each in ynl.dump("channel-get", {})})

    # A descriptor that makes no sense.
    channel.tx.push(1 << 31, 10, 0, 0, 0)
    channel.bell()
    stats = ask(ynl, "flow-get", {"id": first})["stats"]
    check("what is dropped is shown by its reason", stats["tx-drop-invalid"] == 1, stats)

    # Who may see.
    with user("bob"):
        theirs = kopi.flow()
    refused("a flow that isn't there", errno.ENOENT, lambda: ask(ynl, "flow-get", {"id": 1 << 30}), "no such flow")
    refused("no number", errno.EINVAL, lambda: ask(ynl, "flow-get"), "which flow")

    def as_bob():
        os.setresuid(1002, 1002, 1002)
        other = family()
        mine_only = {each["uid"] for each in flows(other).values()}
        channels = {each["uid"] for each in other.dump("channel-get", {})}
        errors = []
        for name, request in (("flow-get", {"id": first}), ("channel-get", {"id": first}), ("totals-get", {}),
                              ("rule-add", {"rule": {"verdict": "deny"}}), ("ruleset-set", {}),
                              ("ruleset-get", {}), ("rule-del", {"rule": {"handle": 1}})):
            try:
                ask(other, name, request)
                errors.append(0)
            except control.NlError as error:
                errors.append(error.error)
        try:
            family().ntf_subscribe("events")
            errors.append(0)
        except OSError as error:
            errors.append(error.errno)
        return mine_only, channels, errors, "abi-version" in ask(other, "info-get")

    check("another user sees his own flows only, and may change nothing",
          kopi.told_by_child(as_bob) == repr(({1002}, set(), [errno.EPERM] * 8, True)), kopi.told_by_child(as_bob))
    theirs.close()

    # Strictness.
    def send_raw(payload, flags=5, command=2):
        """A message as bytes, to the family; gives the errno."""
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
        sock.setsockopt(SOL_NETLINK, NETLINK_GET_STRICT_CHK, 1)
        body = struct.pack("=BBH", command, 1, 0) + payload
        number = ynl.nlproto.family_id
        sock.send(struct.pack("=IHHII", 16 + len(body), number, flags, 1, 0) + body)
        answer = sock.recv(65536)
        return -struct.unpack_from("=i", answer, 16)[0] if struct.unpack_from("=H", answer, 4)[0] == 2 else 0

    check("an unknown attribute is refused", send_raw(struct.pack("=HHI", 8, 99, 1)) == errno.EINVAL)
    check("a number that is too short is refused", send_raw(struct.pack("=HHH2x", 6, 1, 1)) == errno.ERANGE
          or send_raw(struct.pack("=HHH2x", 6, 1, 1)) == errno.EINVAL)
    check("an attribute beyond the message is refused", send_raw(struct.pack("=HHI", 80, 1, 1)) == errno.EINVAL)

    before = len(flows(ynl))
    many = [kopi.flow() for _ in range(500)]
    numbers = [each["id"] for each in ynl.dump("flow-get", {})]
    check("a dump of many is whole and in order", len(numbers) == before + 500 and numbers == sorted(set(numbers)),
          len(numbers))
    # One whose cgroup's path is as long as paths can be: it fits into the first buffer of a dump.
    path = "/sys/fs/cgroup" + ("/" + "x" * 250) * 15
    os.makedirs(path)
    with open("/proc/self/cgroup", encoding="ascii") as own:
        before_that = own.read().strip().rpartition(":")[2]
    kopi.move_to(path)
    long = kopi.flow()
    kopi.move_to(f"/sys/fs/cgroup{before_that}")
    shown = [each for each in family().dump("flow-get", {}) if len(each["cgroup-path"]) > 3000]
    check("a flow whose path is long is shown", len(shown) == 1 and shown[0]["cgroup-path"] == path[14:], shown)
    long.close()
    for depth in range(15, 0, -1):
        os.rmdir("/sys/fs/cgroup" + ("/" + "x" * 250) * depth)
    # Flows that close while sums are made, some before they are counted and some after.
    for each in many:
        each.connect((KINDS["peer"], 7001))
        each.send(b"x")
    sum_before = ask(ynl, "totals-get")["stats"]["tx-packets"]
    closing = threading.Thread(target=lambda: [each.close() for each in random.sample(many, len(many))])
    closing.start()
    wrong, sums = [], 0
    while closing.is_alive() or not sums:
        sums += 1
        found = ask(ynl, "totals-get")["stats"]["tx-packets"]
        wrong += [found] if found != sum_before else []
    closing.join()
    check("a flow that closes during a sum is in it once", not wrong, (sum_before, wrong))
    print(f"# {sums} sums")
    joined.close()
    plain.close()
    sum_before = ask(ynl, "totals-get")
    channel.sock.close()
    channel.region.close()
    sum_after = ask(ynl, "totals-get")
    check("what is closed stays in the sums", sum_before["stats"] == sum_after["stats"]
          and sum_after["stats"]["tx-packets"] >= 1, (sum_before, sum_after))
    check("opened flows are counted", sum_after["flows-opened"] == opened + 505, (opened, sum_after["flows-opened"]))
    check("nothing of the process is left", not mine(ynl) and first not in {each["id"] for each in ynl.dump("channel-get", {})})
with namespace("peer"):
    check("another namespace sees nothing of it", ask(family(), "info-get")["flows"] == 0)
kopi.finish()
