#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0
"""Others' tests of sockets give by `kopi run --tcp` what they give with ordinary sockets: suites.py [NAME...]

CPython's and socat's, Debian's own of its servers, and the Linux Test Project's, if `make suites LTP=DIRECTORY` has
built them. Each runs in a network namespace of its own, with ordinary sockets and with flows. What differs is run
twice more by itself in both ways: some tests depend on how busy the machine is.
"""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml

import kopi

WORK = "/tmp/suites"
BUILT = "/kopi/build/suites"
SOCKETS, FLOWS = [], ["kopi", "run", "--tcp", "--min-datagrams", "1"]
# What of CPython's has sockets in it.
MODULES = ("test_socket", "test_asyncio.test_events", "test_asyncio.test_sock_lowlevel", "test_asyncio.test_streams",
           "test_asyncio.test_base_events", "test_asyncio.test_sendfile", "test_asyncio.test_server",
           "test_selectors", "test_socketserver", "test_epoll", "test_ssl", "test_httpservers", "test_xmlrpc",
           "test_logging", "test_smtplib", "test_ftplib")
# The kernel has no UDP-Lite any more, and socket() says so.
LEFT_OUT = ("*UDPLITE*", "*Udplite*")
CONFIG = f"/kernels/{os.uname().release}/build/.config"
# Those of Debian's that want neither systemd nor the Internet, in the order of their packages' debian/tests/control.
DEBIAN = {"nsd": ("simpletest",), "knot": ("authoritative-server",), "memcached": ("daemon", "client.pl"),
          "coturn": ("setup", "udp", "tcp")}
SOCAT = "/usr/share/doc/socat/examples/test.sh"
PROGRAMS = tuple(f"{name.upper()}=/usr/bin/{name}" for name in ("socat", "filan", "procan"))


def alone(way, words, limit):
    """Runs it where there is a loopback device; what it prints, its status, and how many packets flows sent."""
    script = ('ip link set lo up; ip route add 224.0.0.0/4 dev lo; "$@"; status=$?; kopictl --json stats >stats.json; '
              'exit $status')
    with open("output", "wb") as output:
        # A namespace of processes, too, so that nothing stays.
        status = subprocess.run(["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "timeout",
                                 "-k", "5", str(limit), "bash", "-c", script, "suite", *way, *words],
                                stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False).returncode
    with open("output", encoding="utf-8", errors="replace") as output:
        text = output.read()
    try:
        with open("stats.json", encoding="utf-8") as stats:
            sent = json.load(stats)["stats"]["tx_packets"]
    except (OSError, ValueError):
        sent = 0
    return text, status, sent


def cpython(way, module, only=None):
    """What became of each test of a module."""
    if os.path.exists("junit.xml"):
        os.unlink("junit.xml")
    words = ["python3", "-m", "test", "-u", "network", "--junit-xml", "junit.xml", module]
    for pattern in LEFT_OUT:
        words += ["-i", pattern]
    for name in only or ():
        words += ["-m", name.rsplit(".", 1)[-1]]
    text, status, sent = alone(way, words, 900)
    results = {}
    try:
        for case in xml.parse("junit.xml").iter("testcase"):
            outcome = "skipped" if case.get("status") == "notrun" else "passed"
            for child in case:
                if child.tag in ("failure", "error", "skipped"):
                    outcome = child.tag
            results[case.get("name")] = outcome
    except (OSError, xml.ParseError):
        print(f"# {module} ended with {status}: {text[-600:]}")
    return results, sent


def socat(way, _name, only=None):
    """What became of each of socat's tests with UDP."""
    text, _, sent = alone(way, ["env", *PROGRAMS, "bash", SOCAT, "-t", "1", *(only or ["udp"])], 1800)
    # It is coloured.
    text = re.sub(r"\x1b\[\d+m", "", text)
    results = dict(re.findall(r"^test +\d+ (\w+): .*\.\.\. *([A-Z]\w+)", text, re.M))
    if not results:
        print(f"# socat: {text[-600:]}")
    return results, sent


def make_service():
    """What starts and stops servers where there is no systemd: the packages' own scripts, with the environment."""
    os.makedirs("bin", exist_ok=True)
    for name, words in ("service", '"/etc/init.d/$1" "$2"'), ("systemctl", '"/etc/init.d/${2%.service}" "$1"'):
        with open(f"bin/{name}", "w", encoding="ascii") as script:
            os.chmod(script.fileno(), 0o755)
            # systemd would wait until the server says that it is ready.
            script.write(f"#!/bin/sh\n{words} && sleep 5\n")


def debian(way, name, only=None):
    """What became of each test of a package's, all of which see the servers that the first of them has started."""
    make_service()
    shutil.rmtree("debian", ignore_errors=True)
    shutil.copytree(f"{BUILT}/debian/{name}", "debian")
    if not os.path.exists("debian/examples"):
        os.symlink(f"/usr/share/doc/{name}/examples", "debian/examples")
    for test in DEBIAN[name]:
        # The sources' packer has left that out.
        os.chmod(f"debian/debian/tests/{test}", 0o755)
    script = ('export PATH="$PWD/bin:$PATH:$PROGRAMS/usr/bin" AUTOPKGTEST_TMP=$PWD; cd debian; for test in "$@"; do '
              '"debian/tests/$test"; echo "test $test: $?"; done')
    command = ["env", f"PROGRAMS={BUILT}/debian/programs", "bash", "-c", script, "debian", *DEBIAN[name]]
    text, _, sent = alone(way, command, 600)
    results = dict(re.findall(r"^test (\S+): (\d+)$", text, re.M))
    for test, status in results.items():
        if status != "0" and not only:
            print(f"# {name}, {test}: {text[-600:]}")
    return results, sent


def ltp(way, _name, only=None):
    """The results of each program of LTP's, line by line of their sources."""
    results, total = {}, 0
    for path in sorted(glob.glob(f"{BUILT}/ltp/testcases/kernel/syscalls/*/*[0-9]")):
        name = os.path.basename(path)
        if only and name not in only:
            continue
        shutil.rmtree("ltp", ignore_errors=True)
        os.mkdir("ltp")
        # Some look for races as long as they may.
        settings = [f"TMPDIR={WORK}/ltp", f"KCONFIG_PATH={CONFIG}", "LTP_RUNTIME_MUL=0.1"]
        text, status, sent = alone(way, ["env", *settings, path], 60)
        lines = re.findall(r"^(\S+\.[ch]:\d+): (T[A-Z]+)", text, re.M)
        results[name] = f"{status}: " + " ".join(sorted(f"{line} {kind}" for line, kind in lines if kind != "TINFO"))
        total += sent
    return results, total


def differences(one, other):
    return {name: (one.get(name), other.get(name)) for name in one.keys() | other.keys()
            if one.get(name) != other.get(name)}


def kinds(suite, results):
    """How many of each result."""
    if suite is ltp:
        words = " ".join(results.values()).split()
        results = dict(enumerate(word for word in words if re.fullmatch("T[A-Z]+", word)))
    return ", ".join(f"{list(results.values()).count(each)} {each}" for each in sorted(set(results.values())))


def compare(suite, name):
    """Runs one in both ways."""
    plain, _ = suite(SOCKETS, name)
    results, sent = suite(FLOWS, name)
    left = differences(plain, results)
    for _ in range(2):
        if not left:
            break
        print(f"# once more: {left}")
        left = differences(suite(SOCKETS, name, left)[0], suite(FLOWS, name, left)[0])
    kopi.check(f"{name}, as with sockets: {kinds(suite, results)}; {sent} packets sent by flows", bool(plain) and not left
               and not {"126", "127"} & set(plain.values()), left or plain or "no result")


def main():
    os.makedirs(WORK, exist_ok=True)
    os.chdir(WORK)
    # Debian has a part of the package in another one.
    shutil.copytree(f"{BUILT}/python/test", "/usr/lib/python3.13/test", dirs_exist_ok=True)
    with_ltp = os.path.exists(f"{BUILT}/ltp/config.status")
    suites = {"socat": socat, "ltp": ltp, **dict.fromkeys(DEBIAN, debian)}
    for name in sys.argv[1:] or [*MODULES, *DEBIAN, "socat", *(["ltp"] if with_ltp else [])]:
        compare(suites.get(name, cpython), name)
    kopi.finish()


main()
