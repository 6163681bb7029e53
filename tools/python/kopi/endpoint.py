# SPDX-License-Identifier: GPL-2.0
"""asyncio's datagram endpoint on a KOPI socket: for protocols written for loop.create_datagram_endpoint()."""

import asyncio
import collections
import os
import socket
from ctypes import byref

from .sockets import Socket

# Packets that are received before other tasks get their turn.
AT_ONCE = 64
# Bytes that wait for room before the protocol is asked to pause, and until it is asked to resume.
HIGH, LOW = 64 * 1024, 16 * 1024
# Seconds until frames are asked for again that the kernel still has.
AGAIN = 0.001


async def create_datagram_endpoint(protocol_factory, local_addr=None, remote_addr=None, *, family=0, **options):
    """As loop.create_datagram_endpoint(): gives (transport, protocol). `options` are Socket's."""
    loop = asyncio.get_running_loop()
    if not local_addr and not remote_addr:
        raise ValueError("an address is needed")
    errors = []
    for version, local, remote in await _pairs(loop, local_addr, remote_addr, family):
        try:
            sock = _opened(version, local, remote, options)
            break
        except OSError as error:
            errors.append(error)
    else:
        raise errors[0]
    protocol = protocol_factory()
    return Transport(loop, sock, protocol, remote), protocol


async def _pairs(loop, local_addr, remote_addr, family):
    """The families of which both addresses have one, and these, as loop.create_datagram_endpoint() finds them."""
    found = {}
    for which, address in enumerate((local_addr, remote_addr)):
        if address:
            if not (isinstance(address, tuple) and len(address) == 2):
                raise TypeError("2-tuple is expected")
            infos = await loop.getaddrinfo(*address, family=family, type=socket.SOCK_DGRAM)
            for version, _, _, _, resolved in infos:
                found.setdefault(version, [None, None])[which] = resolved
    pairs = [(version, local, remote) for version, (local, remote) in found.items()
             if bool(local) == bool(local_addr) and bool(remote) == bool(remote_addr)]
    if not pairs:
        raise ValueError("can not get address information")
    return pairs


def _opened(version, local, remote, options):
    """A socket with these addresses, whose calls don't wait."""
    sock = Socket(version, **options)
    try:
        sock.setblocking(False)
        if local:
            sock.bind(local)
        if remote:
            sock.connect(remote)
    except BaseException:
        sock.close()
        raise
    return sock


class Transport(asyncio.DatagramTransport):
    """What the protocol sends by. Errors that the kernel says of a datagram go to error_received()."""

    def __init__(self, loop, sock, protocol, peer):
        super().__init__({"socket": sock, "sockname": sock.getsockname(), "peername": peer})
        self._loop, self._socket, self._protocol, self._peer = loop, sock, protocol, peer
        self._waiting, self._bytes = collections.deque(), 0
        self._closing = self._paused = False
        self._again = None
        protocol.connection_made(self)
        # It may have closed the transport.
        if not self._closing:
            loop.add_reader(sock.fileno(), self._readable)

    def _readable(self):
        """Receives what is there, but not for ever."""
        for _ in range(AT_ONCE):
            if self._closing:
                return
            try:
                data, peer = self._socket.recvfrom(65535)
            except BlockingIOError:
                return
            except OSError as error:
                self._protocol.error_received(error)
                return
            self._protocol.datagram_received(data, peer)

    def sendto(self, data, addr=None):
        """Sends a datagram, or keeps it until there is room. Raises what socket.sendto() raises, other than OSError,
        for what is no datagram or no address; the transport goes on."""
        if self._closing:
            return
        if self._peer and addr not in (None, self._peer):
            raise ValueError(f"Invalid address: must be None or {self._peer}")
        # All that can be wrong with them is found here: who calls is told, and nothing behind it is held up.
        data = data if isinstance(data, bytes) else bytes(memoryview(data))
        try:
            meta = None if self._peer or addr is None else byref(self._socket._to(addr))
        except OSError as error:
            self._protocol.error_received(error)
            return
        if self._waiting or not self._send(data, meta):
            self._waiting.append((data, meta))
            self._bytes += len(data)
            if self._bytes > HIGH and not self._paused:
                self._paused = True
                self._protocol.pause_writing()
        self._go_on()

    def _send(self, data, meta):
        """False: there is no room."""
        try:
            self._socket._send(data, meta)
        except BlockingIOError:
            return False
        except OSError as error:
            self._protocol.error_received(error)
        return True

    def _go_on(self):
        """Sees to it that what is left is sent when there is room; says whether there is something."""
        try:
            if not self._socket.flush():
                self._loop.add_writer(self._socket.fileno(), self._room)
                return True
        except OSError as error:
            self._waiting.clear()
            self._bytes = 0
            self._protocol.error_received(error)
            self._resume()
        # Frames are under way, of which epoll tells by an event that loops don't know.
        if self._waiting and not self._again:
            self._again = self._loop.call_later(AGAIN, self._room)
        return bool(self._waiting)

    def _room(self):
        """Sends what has waited."""
        self._loop.remove_writer(self._socket.fileno())
        if self._again:
            self._again.cancel()
            self._again = None
        if self._closing:
            self._take_error()
        while self._waiting:
            # error_received() may call abort(), which drops what waits.
            data, meta = self._waiting.popleft()
            self._bytes -= len(data)
            if not self._send(data, meta):
                self._waiting.appendleft((data, meta))
                self._bytes += len(data)
                break
        self._resume()
        if not self._go_on() and self._closing:
            self._finish(None)

    def _resume(self):
        """Has the protocol go on writing if little waits."""
        if self._paused and self._bytes <= LOW:
            self._paused = False
            self._protocol.resume_writing()

    def _take_error(self):
        """Tells of the socket's error, which nobody receives any more, and with which it always counts as writable."""
        error = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._protocol.error_received(OSError(error, os.strerror(error)))

    def is_closing(self):
        """Whether close() or abort() was called."""
        return self._closing

    def close(self):
        """Closes it, when all that was sent has left."""
        if self._stop() and not self._go_on():
            self._loop.call_soon(self._finish, None)

    def abort(self):
        """Closes it at once, also after close(); what waits is lost."""
        self._waiting.clear()
        self._bytes = 0
        self._stop()
        self._loop.call_soon(self._finish, None)

    def _stop(self):
        """Neither receives nor sends any more: False if so it was."""
        if self._closing:
            return False
        self._closing = True
        self._loop.remove_reader(self._socket.fileno())
        return True

    def get_write_buffer_size(self):
        """Bytes that wait for room."""
        return self._bytes

    def _finish(self, error):
        if not self._socket:
            return
        self._loop.remove_writer(self._socket.fileno())
        if self._again:
            self._again.cancel()
        sock, self._socket = self._socket, None
        sock.close()
        self._protocol.connection_lost(error)
