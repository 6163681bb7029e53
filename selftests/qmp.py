# SPDX-License-Identifier: GPL-2.0
"""A NIC that is plugged into the running machine and out again, by QEMU's monitor.

qemu/vm has the monitor on a port named `qmp`, and a free PCIe slot named `spare`. On a kernel that
knows no hotplug slots (the debug kernel) the NIC stays in the slot, and what is removed is its
device in the kernel, which the driver sees in the same way.
"""

import glob
import json
import os
import re
import select

MAC = "52:54:00:00:00:33"


class Nic:
    """A NIC of the machine's model (qemu/vm --model) on a wire of QEMU's; the first one is that between `host` and
    `peer`."""

    def __init__(self, wire=1):
        name = next(path for path in glob.glob("/sys/class/virtio-ports/*/name")
                    if self._read(path) == "qmp")
        self.port = os.open(f"/dev/{name.split('/')[4]}", os.O_RDWR)
        self.received = b""
        self.model = re.search(r"kopi\.model=(\S+)", self._read("/proc/cmdline"))[1]
        self.hotplug = bool(glob.glob("/sys/bus/pci/slots/*"))
        # Others may have used the monitor before: then it has left this mode.
        os.write(self.port, b'{"execute": "qmp_capabilities"}\n')
        self._next("return", "error")
        # In the slot, as where an earlier user couldn't take it out; and known to the kernel, too.
        self.plugged = "spare-nic" in (
            each["name"] for each in self._do("qom-list", path="/machine/peripheral"))
        self.present = bool(self._devices())
        if not self.plugged:
            self._do("netdev_add", type="hubport", id="spare-wire", hubid=wire)

    @staticmethod
    def _read(path):
        with open(path, encoding="ascii") as file:
            return file.read().strip()

    def _next(self, *kinds):
        """The monitor's next message of one of these kinds."""
        while True:
            while b"\n" not in self.received:
                if not select.select([self.port], [], [], 30)[0]:
                    raise TimeoutError(f"QEMU's monitor gives no {kinds}")
                self.received += os.read(self.port, 1 << 16)
            line, _, self.received = self.received.partition(b"\n")
            message = json.loads(line)
            if any(kind in message for kind in kinds):
                return message

    def _do(self, command, **arguments):
        """Has the monitor do something; gives what it returns."""
        os.write(self.port, json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        answer = self._next("return", "error")
        if "error" in answer:
            raise OSError(f"{command}: {answer['error']['desc']}")
        return answer["return"]

    @staticmethod
    def _devices():
        """The NIC's network device in the machine's initial namespace, if it is there."""
        # Not what bonding has there besides.
        return [os.path.dirname(path) for path in glob.glob("/sys/class/net/*/address")
                if Nic._read(path) == MAC]

    def plug_in(self, patiently):
        """Puts it in; gives its network device's name. `patiently` waits until a function is true."""
        if not self.plugged:
            driver = "virtio-net-pci" if self.model == "virtio" else self.model
            self._do("device_add", driver=driver, id="spare-nic", netdev="spare-wire",
                     bus="spare", mac=MAC)
            self.plugged = True
        if not self.hotplug:
            with open("/sys/bus/pci/rescan", "w", encoding="ascii") as rescan:
                rescan.write("1")
        patiently(self._devices)
        self.present = True
        return os.path.basename(self._devices()[0])

    def pull_out(self):
        """Takes it out if it is in, and returns when the kernel has let go of it."""
        if not self.present:
            return
        self.present = False
        if self.hotplug:
            self._do("device_del", id="spare-nic")
            while self._next("event")["data"].get("device") != "spare-nic":
                pass
            self.plugged = False
            return
        for path in glob.glob("/sys/bus/pci/devices/*"):
            # Behind the port of the spare slot, of which there is one.
            if not os.path.basename(os.path.realpath(path)).startswith("0000:00:"):
                with open(f"{path}/remove", "w", encoding="ascii") as remove:
                    remove.write("1")

    def close(self):
        """Leaves the slot empty, where that can be, and the wire as it was."""
        self.pull_out()
        if not self.plugged:
            self._do("netdev_del", id="spare-wire")
        os.close(self.port)
