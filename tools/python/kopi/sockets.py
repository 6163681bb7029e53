# SPDX-License-Identifier: GPL-2.0
"""A UDP socket by rings, with the methods of socket.socket."""

import contextlib
import ctypes
import errno
import functools
import operator
import os
import select
import socket
import time
from ctypes import byref

from . import _library
from ._library import library
from .packets import Batch

# A payload's maximum in bytes.
LONGEST = 65535
# Seconds after which to look again where poll(2) can't sleep.
NAP = 0.005
# Descriptors that a batch has at most, besides those of its last packet.
BATCH_MAX = 1024


def _not_negative(call, size):
    """The size of a buffer. A negative one would be a huge one for the library, which then writes beyond the end."""
    if size < 0:
        raise ValueError(f"negative buffersize in {call}")
    return size


def _no_flags(flags=0):
    """Refuses flags that would change something, which rings can't."""
    if operator.index(flags) & ~socket.MSG_NOSIGNAL:
        raise OSError(errno.EOPNOTSUPP, f"flags {flags:#x}: KOPI sockets take only 0 and MSG_NOSIGNAL")


class Mapping:
    """A channel's memory, which is unmapped when nothing refers to it any more: what reads there holds it, since
    another thread, or a signal handler, may close the socket at any time."""

    def __init__(self, channel, flow):
        self._channel, self._flow = channel, flow

    def __del__(self, library=library):
        library.channel_close(self._channel)
        library.flow_close(self._flow)


class Channel:
    """A flow on a channel of its own."""

    def __init__(self, version, options):
        self.flow, self.pointer = ctypes.c_void_p(), ctypes.c_void_p()
        self.batches, self.maker = set(), os.getpid()
        library.flow_open(byref(self.flow), version)
        try:
            library.channel_open(byref(self.pointer), self.flow, byref(options))
        except OSError:
            library.flow_close(self.flow)
            raise
        self.mapping = Mapping(ctypes.c_void_p(self.pointer.value), ctypes.c_void_p(self.flow.value))

    def close(self):
        """Frees it: `batches` must have ended. What is queued leaves if there is room by now; of a child's copy it
        stays the parent's."""
        if self.maker == os.getpid():
            with contextlib.suppress(OSError):
                library.flush(self.pointer)
        # A thread that is about to call finds NULL, which the library refuses.
        self.pointer.value = self.flow.value = self.mapping = None


class Socket:
    """A KOPI socket whose datagrams travel by rings: as socket.socket(family, SOCK_DGRAM), and batches.

    `gso`: datagrams in a row to one peer leave as one GSO packet. `gro`: what is received may be several datagrams of
    one peer, whose size only recv_batch() tells. Rules then see and count GSO and GRO packets. `frames` and
    `frame_size`, in bytes and a power of two, are the memory. Raises what socket.socket() raises, and OSError with
    EAFNOSUPPORT without the module, ENOBUFS over RLIMIT_MEMLOCK or net.kopi's limits, EACCES if a rule denies it.

    A call that sends waits until the send buffer had room, as far as calls wait. If they don't, one datagram counts as
    sent that it had no room for; it leaves by a later call, while one waits, or by close() if there is room by then.
    flush() says whether something is left. connect() waits for it, or raises BlockingIOError. An error that comes
    while a call waits with its datagram queued is raised by the next call that sends or receives.

    Flags of calls can be 0 or MSG_NOSIGNAL: others raise OSError with EOPNOTSUPP. These are missing of socket.socket:
    recvmsg(), recvmsg_into(), sendmsg(), sendall(), sendfile(), makefile(), shutdown(), dup(), detach(),
    get_inheritable(), set_inheritable(), proto and timeout, besides those of other kinds of sockets.

    Threads may share it: their calls take turns. A child process may close it, and must not use it otherwise.
    """

    def __init__(self, family=socket.AF_INET, *, gso=False, gro=False, frames=0, frame_size=0):
        self._channel = self._plain = None
        flags = _library.CHANNEL_GSO * gso | (_library.CHANNEL_GRO | _library.CHANNEL_GRO_MERGED) * gro
        self._channel = Channel(family, _library.Options(flags=flags, frames=frames, frame_size=frame_size))
        # The same socket, for all that isn't sending and receiving.
        self._plain = socket.socket(fileno=os.dup(library.flow_fd(self._channel.flow)))
        self._family, self._timeout = family, socket.getdefaulttimeout()
        # The errno of an error that came when the call's datagrams were queued, or 0.
        self._late = 0
        self._to_address = functools.lru_cache(maxsize=4096)(functools.partial(_library.meta_to, version=family))
        library.arm(self._pointer, 1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        # With views in use it is unmapped when those are gone.
        with contextlib.suppress(BufferError):
            self.close()

    def __getattr__(self, name):
        # A flow is a UDP socket.
        if name in ("bind", "getsockname", "getpeername", "getsockopt", "setsockopt", "family", "type"):
            return getattr(self._plain, name)
        raise AttributeError(f"'Socket' object has no attribute '{name}'")

    @property
    def _opened(self):
        """The channel, which another thread may close at any time."""
        channel = self._channel
        if not channel or not channel.pointer:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return channel

    @property
    def _pointer(self):
        return self._opened.pointer

    def _to(self, address):
        """Metadata with a destination, from the last ones if it is an address."""
        try:
            return self._to_address(address)
        except OSError:
            return _library.meta_to(_library.look_up(address, self._family), self._family)

    def close(self):
        """Closes it: BufferError while a batch has views that are in use."""
        if self._channel:
            for batch in list(self._channel.batches):
                batch.release()
            channel, self._channel = self._channel, None
            if self._plain:
                self._plain.close()
            channel.close()

    def connect(self, address):
        """Connects to a peer. What was left goes to the one of before, so this waits as calls that send do."""
        self._drain()
        self._plain.connect(address)

    def connect_ex(self, address):
        """The same, but gives the errno, or 0."""
        try:
            self._drain()
        except OSError as error:
            # A time that is over has none.
            return error.errno or errno.EAGAIN
        return self._plain.connect_ex(address)

    def fileno(self):
        """A file descriptor for select, poll and epoll, which is readable when there is something to receive;
        -1 when it is closed."""
        channel = self._channel
        return library.channel_fd(channel.pointer) if channel else -1

    def settimeout(self, seconds):
        """How long calls wait: None for ever, 0 not at all."""
        if seconds is not None and seconds < 0:
            raise ValueError("Timeout value out of range")
        self._timeout = seconds

    def gettimeout(self):
        """What settimeout() has set."""
        return self._timeout

    def setblocking(self, blocking):
        """As settimeout(None), or settimeout(0)."""
        self._timeout = None if blocking else 0

    def getblocking(self):
        """Whether calls wait."""
        return self._timeout != 0

    def _wait(self, events, until):
        """Shows the kernel what is queued, and sleeps until there is one of the events, as poll(2) has them, or the
        kernel takes more, or frames come back; or raises TimeoutError, or BlockingIOError if calls don't wait. An
        error of the socket's ends the sleep and is raised.

        Frames that came back before the sleep end it, so that what failed without them is tried again. Who waits for
        nothing but frames looks again after NAP."""
        if self._timeout == 0:
            library.flow_error(self._opened.flow)
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        events |= select.POLLWRBAND
        if not library.doorbell(self._pointer):
            events |= select.POLLOUT
        poll = select.poll()
        poll.register(library.channel_fd(self._pointer), events)
        left = None if until is None else max(until - time.monotonic(), 0)
        # Completions that another thread takes are no event for this one, which may go on by them.
        nap = events == select.POLLWRBAND and (left is None or left > NAP)
        if nap:
            left = NAP
        found = poll.poll(None if left is None else left * 1000)
        library.flush(self._pointer)
        if not found:
            if nap:
                return
            raise TimeoutError("timed out")
        if found[0][1] & select.POLLERR:
            library.flow_error(self._opened.flow)
            if not found[0][1] & events:
                self._nap(until)

    @staticmethod
    def _nap(until):
        """There is something in the error queue, say: poll(2) can't be told to pass it over."""
        left = NAP if until is None else until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        time.sleep(min(NAP, left))

    def _deadline(self):
        return None if self._timeout is None else time.monotonic() + self._timeout

    def _receive(self, take):
        """What `take` gives, which raises BlockingIOError while there is nothing; waits for it."""
        self._take_late()
        try:
            return take()
        except BlockingIOError:
            # What an earlier call left goes first. Frames that come back are for what comes.
            library.flush(self._pointer)
        until = self._deadline()
        while True:
            try:
                return take()
            except BlockingIOError:
                self._wait(select.POLLIN, until)

    def _copy(self, buffer, size, meta):
        """One packet into a buffer."""
        return self._receive(lambda: library.recv(self._pointer, buffer, size, meta, None))

    def recv(self, size, flags=0):
        """A datagram's first `size` bytes; the rest is lost."""
        _no_flags(flags)
        return self._bytes("recv", size, None)

    def recvfrom(self, size, flags=0):
        """The same, and the address that it came from."""
        _no_flags(flags)
        meta = _library.Meta()
        data = self._bytes("recvfrom", size, byref(meta))
        return data, _library.address_of(meta, meta.peer, meta.peer_port)

    def recv_into(self, buffer, nbytes=0, flags=0):
        """A datagram into a writable buffer; gives its length, at most the buffer's."""
        _no_flags(flags)
        return self._into("recv_into", buffer, nbytes, None)

    def recvfrom_into(self, buffer, nbytes=0, flags=0):
        """The same, and the address that it came from."""
        _no_flags(flags)
        meta = _library.Meta()
        count = self._into("recvfrom_into", buffer, nbytes, byref(meta))
        return count, _library.address_of(meta, meta.peer, meta.peer_port)

    def _bytes(self, call, size, meta):
        size = min(_not_negative(call, size), LONGEST)
        # One for each call: other threads may receive before this one has looked at it.
        buffer = ctypes.create_string_buffer(size)
        return ctypes.string_at(buffer, self._copy(buffer, size, meta))

    def _into(self, call, buffer, size, meta):
        view = memoryview(buffer).cast("B")
        size = min(_not_negative(call, size) or len(view), len(view))
        return self._copy((ctypes.c_uint8 * len(view)).from_buffer(view), size, meta)

    def send(self, data, flags=0):
        """Sends a datagram to the connected peer; gives its length. Raises what the kernel says of it."""
        _no_flags(flags)
        return self._send(data, None)

    def sendto(self, data, *arguments):
        """sendto(data[, flags], address): sends a datagram to an address."""
        if not 1 <= len(arguments) <= 2:
            raise TypeError(f"sendto() takes 2 or 3 arguments ({1 + len(arguments)} given)")
        *flags, address = arguments
        _no_flags(*flags)
        return self._send(data, byref(self._to(address)))

    def _send(self, data, meta):
        self._take_late()
        data = data if isinstance(data, bytes) else bytes(memoryview(data))
        until = None
        while True:
            try:
                sent = library.send(self._pointer, 0, data, len(data), meta)
                break
            except BlockingIOError:
                until = until or self._deadline()
                self._wait(0, until)
        if self._timeout != 0:
            self._leave(until)
        return sent

    def _drain(self):
        """Waits, if calls wait, until the kernel has taken what is queued. Another error is the next call's."""
        until = self._deadline()
        while not library.flush(self._pointer):
            try:
                self._wait(0, until)
            except OSError as error:
                if error.errno in (None, errno.EAGAIN):
                    raise
                self._keep(error)

    def _leave(self, until):
        """Shows the kernel what is queued, and waits, if calls wait, until it has taken that. What it hasn't after the
        time, or an error, leaves by a later call. The error is the next call's: whoever got it of this one would send
        again what is queued."""
        try:
            while not library.flush(self._pointer):
                until = until or self._deadline()
                self._wait(0, until)
        except OSError as error:
            self._keep(error)

    def _keep(self, error):
        """Keeps an error for the next call, unless it only says that the time is over."""
        if error.errno not in (None, errno.EAGAIN):
            self._late = error.errno

    def _take_late(self):
        """Raises what an earlier call kept."""
        late, self._late = self._late, 0
        if late:
            raise OSError(late, os.strerror(late))

    def _has_room(self, until, queued):
        """Waits until the kernel takes more, or has given frames back; False if calls don't wait, or the time is
        over, or there is an error while something is `queued`."""
        try:
            if self._timeout == 0:
                library.flush(self._pointer)
                return False
            self._wait(0, until)
        except OSError as error:
            if not queued and error.errno:
                raise
            self._keep(error)
            return False
        return True

    def send_batch(self, datagrams):
        """Sends (data, address) pairs; an address of None is the connected peer. One call of the kernel for all
        that fit. Gives how many were given to the kernel, which is all, unless calls don't wait, the time is over or
        there is an error, which the next call raises, or before one that can't be sent, which raises if it is the
        first one; what the kernel says of each is counted in stats(). What `datagrams` itself raises is raised."""
        self._take_late()
        count, until = 0, self._deadline()
        try:
            for datagram in datagrams:
                try:
                    data, address = datagram
                    if not self._queue(data, address, until, count):
                        return count
                except Exception:
                    # As with sendmmsg(2): whoever sends the rest hears of it.
                    if not count:
                        raise
                    break
                count += 1
        except BaseException:
            # Those before it leave nevertheless.
            with contextlib.suppress(OSError):
                library.flush(self._pointer)
            raise
        self._leave(until)
        return count

    def _queue(self, data, address, until, queued):
        """Queues one after `queued` others; False as `_has_room` says it."""
        data = data if isinstance(data, bytes) else bytes(memoryview(data))
        meta = None if address is None else byref(self._to(address))
        while True:
            try:
                library.queue(self._pointer, 0, data, len(data), meta)
                return True
            except BlockingIOError:
                if not self._has_room(until, queued):
                    return False

    def recv_batch(self, limit=64):
        """Waits for a packet, and gives a Batch of those that are there, up to about `limit`, without a copy."""
        size = max(1, min(limit, BATCH_MAX)) + _library.CHAIN_MAX
        frames = (_library.Frame * size)()

        def take():
            count = library.recv_frames(self._pointer, frames, size)
            if not count:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return count
        count, channel = self._receive(take), self._opened
        mapping = channel.mapping
        if not mapping:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        batch = Batch(channel, mapping, frames, count)
        channel.batches.add(batch)
        return batch

    def flush(self):
        """Shows the kernel what is queued; False if the send buffer has no room for all of it. The rest leaves by later
        calls, and while one waits: a program that sleeps in a poll of its own waits for room, too, and calls this
        again."""
        return bool(library.flush(self._pointer))

    def stats(self):
        """The counters of struct kopi_stats, as a dict: docs/abi.md."""
        stats = _library.Stats()
        library.flow_stats(self._opened.flow, byref(stats))
        return {name: getattr(stats, name) for name in stats.NAMES}
