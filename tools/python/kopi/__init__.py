# SPDX-License-Identifier: GPL-2.0
"""UDP by mapped rings, under the kernel's policies: KOPI's sockets in Python.

`Socket` has the methods of `socket.socket` that UDP has, and batches. `kopi.endpoint` has asyncio's datagram
endpoint. Both need the kernel module, and libkopi.so.1: from where the system has it, or the environment
variable KOPI_LIBRARY says.
"""

from ._library import family
from .packets import Batch, Packet
from .sockets import Socket

__all__ = ["Batch", "Packet", "Socket", "family"]
