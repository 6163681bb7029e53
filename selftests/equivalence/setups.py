# SPDX-License-Identifier: GPL-2.0
"""Steps that set up a policy and undo it again: command lines, nft's rulesets, addresses, and the
namespace and the user that they are for.
"""

import contextlib
import ctypes
import json
import os
import pwd
import socket
import subprocess

import kopi
from links import inside

ADDRESSES = {4: {"host": "192.0.2.1", "peer": "192.0.2.2"},
             6: {"host": "2001:db8::1", "peer": "2001:db8::2"}}
SECOND = {4: "192.0.2.77", 6: "2001:db8::77"}
PATIENCE = 30.0
RTF_LOCAL = 0x80000000
NFT_JSON = 1 << 4
# What only a shell understands.
SHELL = frozenset("|&;<>()$`\\\"'*?[]#~{}!\n")

_undo = contextlib.ExitStack()


def undo(function, *arguments):
    """Has the function called when the policy's exchange is over, the last one first."""
    _undo.callback(function, *arguments)


def undo_all():
    """Calls all that was given to undo()."""
    set_aside().close()


def set_aside():
    """Takes all that was given to undo(), and gives an ExitStack that calls it."""
    return _undo.pop_all()


def sh(command, check=True):
    """Runs a command line in the current namespace, and gives its output."""
    # A shell takes longer to start than most of the commands.
    words = ["bash", "-c", command] if SHELL & set(command) else command.split()
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stderr or done.stdout}")
    return done.stdout


def namespace(name):
    """Runs the block in a network namespace."""
    return inside(f"/run/netns/{name}")


def devices(space):
    """What is said of the devices that are attached in a namespace, which is a name or a path."""
    with inside(space if "/" in space else f"/run/netns/{space}"):
        return json.loads(sh("kopictl info --json")).get("devices", [])


@contextlib.contextmanager
def user(name):
    """Makes the block the user's, but for what it takes to come back."""
    uid = pwd.getpwnam(name).pw_uid
    os.setresuid(uid, uid, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


@contextlib.contextmanager
def as_root():
    """Runs the block as the superuser, whichever user the exchange is of."""
    euid = os.geteuid()
    os.seteuid(0)
    try:
        yield
    finally:
        os.seteuid(euid)


_nftables = ctypes.CDLL("libnftables.so.1")
_nftables.nft_ctx_new.restype = ctypes.c_void_p
_nftables.nft_ctx_get_output_buffer.restype = ctypes.c_char_p
_nftables.nft_ctx_get_error_buffer.restype = ctypes.c_char_p


def run_nft(commands, as_json=False):
    """Runs nft's commands in this namespace, by nft's own library; gives the output."""
    context = ctypes.c_void_p(_nftables.nft_ctx_new(0))
    try:
        _nftables.nft_ctx_buffer_output(context)
        _nftables.nft_ctx_buffer_error(context)
        if as_json:
            _nftables.nft_ctx_output_set_flags(context, NFT_JSON)
        if _nftables.nft_run_cmd_from_buffer(context, commands.encode()):
            raise RuntimeError(f"nft: {_nftables.nft_ctx_get_error_buffer(context).decode()}")
        return _nftables.nft_ctx_get_output_buffer(context).decode()
    finally:
        _nftables.nft_ctx_free(context)


def nft(rules, flush=True):
    """Loads a ruleset in this namespace until the exchange is over."""
    if flush:
        undo(run_nft, "flush ruleset")
    run_nft(rules)


def chain(hook, *rules):
    """A chain of a ruleset: chain("filter hook output priority 0", RULE...)."""
    name = "".join(c if c.isalnum() else "_" for c in hook)
    return "\n".join([f"chain {name} {{", f"type {hook}; policy accept;", *rules, "}"])


def nft_table(*parts, family="inet"):
    """A setup that loads one table `t` of these sets, chains and the like."""
    return lambda: nft("\n".join([f"table {family} t {{", *parts, "}"]))


def await_address(address):
    """Waits until an IPv6 address that was added is this namespace's own: its local route, without
    which nothing is received, is made later, by a worker of the kernel."""
    packed = socket.inet_pton(socket.AF_INET6, address).hex()

    def is_local():
        with open("/proc/net/ipv6_route", encoding="ascii") as file:
            routes = map(str.split, file)
            return any(route[0] == packed and int(route[8], 16) & RTF_LOCAL for route in routes)

    if not kopi.wait_until(is_local, PATIENCE):
        raise RuntimeError(f"{address} is not local")


def second_address():
    """A second address of the host, SECOND, until the exchange is over."""
    for version, size in ((4, 24), (6, 64)):
        address = f"{SECOND[version]}/{size} dev eth0"
        sh(f"ip addr add {address}{' nodad' if version == 6 else ''}")
        undo(sh, f"ip addr del {address}")
    await_address(SECOND[6])


def do(*commands, undo_with=()):
    """A setup that runs command lines; those of `undo_with` undo it."""
    def setup():
        for command in undo_with:
            undo(sh, command, False)
        for command in commands:
            sh(command)
    return setup


def together(*setups):
    """A setup of several."""
    def setup():
        for each in setups:
            each()
    return setup


def cgroup(name):
    """A setup that makes a cgroup below the root."""
    def make():
        os.makedirs(f"/sys/fs/cgroup/{name}", exist_ok=True)
        undo(sh, f"rmdir /sys/fs/cgroup/{name}", False)
    return make


def by_family(option4, option6, value):
    """What sets the option that the IP version has for it."""
    def prepare(subject):
        if subject.family == 4:
            subject.sock.setsockopt(socket.IPPROTO_IP, option4, value)
        else:
            subject.sock.setsockopt(socket.IPPROTO_IPV6, option6, value)
    return prepare


def fix_neighbours():
    """Nothing but the exchange's packets is to be on the wire, so that they can be counted."""
    links = {"host": "eth0", "peer": "eth1"}
    addresses = {family: {"host": (ADDRESSES[family]["host"], SECOND[family]),
                          "peer": (ADDRESSES[family]["peer"],)} for family in (4, 6)}
    ethernet = {end: json.loads(sh(f"ip -n {end} -j link show {link}"))[0]["address"]
                for end, link in links.items()}
    for end, link in links.items():
        # No router is looked for, either.
        sh(f"ip netns exec {end} sysctl -qw net.ipv6.conf.{link}.accept_ra=0")
        other = {"host": "peer", "peer": "host"}[end]
        for family in (4, 6):
            for address in addresses[family][other]:
                sh(f"ip -n {end} -{family} neigh replace {address} "
                   f"lladdr {ethernet[other]} nud permanent dev {link}")
