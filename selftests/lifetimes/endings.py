# SPDX-License-Identifier: GPL-2.0
"""Endings: what can end a flow, or what is below it."""

import contextlib
import dataclasses
import errno
import signal
import subprocess
from typing import Callable

import links
from kopi import expect
from links import inside

from .case import delete_module, has_device, sh
from .driven import kill
from .program import NEAR, PORT, Program, wait


def close(case):
    """The descriptor is closed; the mapping keeps the flow."""
    case.ask("close")
    case.open = False


def unmap(case):
    """The region is unmapped; the descriptor keeps the flow."""
    case.ask("unmap")
    case.mapped = False


def kill_program(case):
    """The program is killed."""
    status = kill(case.pid)
    expect(status == signal.SIGKILL, "killed", status)
    case.alive = False


def execute(case):
    """The program becomes another, which inherits the descriptor."""
    descriptor = case.replace_program()
    case.adopted = Program()
    case.adopted.adopt(descriptor)
    case.mapped = False


def delete_namespace(case):
    """The namespace loses its name; the flow, as any socket, keeps it."""
    sh("ip netns del doomed")
    case.space = f"/proc/{case.pid}/ns/net"
    with inside(case.space):
        expect(has_device("near"), "the flow keeps the namespace")


def remove_address(case):
    """The address to which the flow is bound is removed."""
    with inside(case.space):
        sh(f"ip addr del {NEAR}/24 dev near")


def restore_address(case):
    """It comes back."""
    with inside(case.space):
        links.set_address("near", NEAR)


def link_down(case):
    """The flow's device is set down."""
    with inside(case.space):
        sh("ip link set near down")


def link_up(case):
    """It is set up again."""
    if case.state == "netem":
        case.release_netem()
    with inside(case.space):
        links.set_up("near", True)
    # Which the other end takes a moment to see.
    case.udp.setblocking(False)

    def heard():
        case.far.sendto(b"?", (NEAR, PORT + 1))
        with contextlib.suppress(BlockingIOError):
            return case.udp.recv(1)

    wait("the link", heard)


def unplug(case):
    """The NIC is pulled out."""
    case.slot.pull_out()


def replug(case):
    """It is put in again."""
    case.make_near()


def move(case):
    """The device goes to another namespace, as if it were new there."""
    sh("ip -n doomed link set near netns away")


def move_back(case):
    """It comes back."""
    sh("ip -n away link set near netns doomed")
    case.configure_near()


def detach(case):
    """The device is detached; the stack goes on."""
    with inside(case.space):
        sh("kopictl detach near")


def replace_qdisc(case):
    """Its device gets another qdisc, and yet another."""
    with inside(case.space):
        done = subprocess.run(["tc", "-batch", "-"], capture_output=True, text=True, check=False,
                              input="qdisc replace dev near root fq\n"
                                    "qdisc replace dev near root netem delay 1ms\n"
                                    "qdisc replace dev near root pfifo limit 100\n")
    expect(done.returncode == 0, "tc", done.stderr)


def unload_module(_case):
    """The module is to go, and can't."""
    for _ in range(20):
        got = delete_module()
        expect(got == errno.EWOULDBLOCK, "it is in use", got)


@dataclasses.dataclass
class Ending:
    """One of them."""

    name: str
    apply: Callable
    restore: Callable | None = None
    # Until it is restored, nothing gets in or out.
    cuts: bool = False
    # The states in which packets are held that it drops.
    drops: tuple = ()
    # Packets that have their route already lose it.
    unroutes: bool = False
    # It wants a NIC.
    nic: bool = False
    # It is about devices that are attached.
    attached: bool = False


ENDINGS = (
    Ending("close", close),
    Ending("munmap", unmap),
    Ending("kill", kill_program),
    Ending("exec", execute),
    Ending("netns deletion", delete_namespace),
    Ending("address removal", remove_address, restore_address, cuts=True, unroutes=True),
    Ending("link down", link_down, link_up, cuts=True, drops=("netem", "nfqueue")),
    Ending("unplug", unplug, replug, cuts=True, drops=("netem", "nfqueue"), nic=True),
    Ending("qdisc replacement", replace_qdisc, drops=("netem",)),
    Ending("rmmod", unload_module),
    Ending("move", move, move_back, cuts=True, attached=True),
    Ending("detach", detach, attached=True),
)
