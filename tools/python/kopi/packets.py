# SPDX-License-Identifier: GPL-2.0
"""Received packets where the kernel has put them: no copy, until their batch ends."""

import contextlib
import ctypes
import operator
import os
import weakref
from ctypes import byref

from . import _library
from ._library import library


class Packet:
    """A received packet of a batch; with GRO it may be several datagrams of one peer."""

    __slots__ = ("frames", "parts", "_memory", "_mapping")

    def __init__(self, frames, mapping):
        self.frames, self._mapping = frames, mapping
        self._memory = []
        self.show()

    def show(self):
        """Makes the views of the payload, anew if they had ended."""
        mapping = self._mapping
        memory = [(ctypes.c_uint8 * frame.len).from_address(frame.data) for frame in self.frames]
        for part in memory:
            part.mapping = mapping
        #: The payload, as writable memoryviews: one, unless it didn't fit into a frame.
        self.parts = [memoryview(part).cast("B") for part in memory]
        # Views keep the array that they are of; nothing else does. There may be some from before.
        used = [part for part in self._memory if part() is not None]
        self._memory = used + [weakref.ref(part) for part in memory]

    def end(self):
        """Ends the views of the payload: BufferError if there are others of it, and the packet stays as it was, with
        new views."""
        try:
            for part in self.parts:
                part.release()
            if any(memory() is not None for memory in self._memory):
                raise BufferError("a view of the packet is in use")
        except BufferError:
            self.show()
            raise

    def take(self):
        """Its frames, for whoever ends its time in the batch."""
        frames, self.frames = self.frames, []
        self._mapping = None
        return frames

    @property
    def _meta(self):
        # Another thread may close the socket meanwhile: the mapping first, which keeps what the frames tell of.
        mapping, frames = self._mapping, self.frames
        if not mapping or not frames:
            raise ValueError("the packet isn't the batch's any more")
        meta = frames[0].meta.contents
        meta.mapping = mapping
        return meta

    @property
    def data(self):
        """The payload: a memoryview of the first part, or bytes if there are more."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    @property
    def peer(self):
        """The address that it came from, as recvfrom() gives it."""
        meta = self._meta
        return _library.address_of(meta, meta.peer, meta.peer_port)

    @property
    def local(self):
        """The address that it was sent to."""
        meta = self._meta
        return _library.address_of(meta, meta.local, meta.local_port)

    @property
    def gso_size(self):
        """Bytes of each datagram in a GRO packet; 0: it is one datagram."""
        return self._meta.gso_size

    @property
    def tos(self):
        """TOS or traffic class, with ECN."""
        return self._meta.tos

    @property
    def ttl(self):
        """TTL or hop limit."""
        return self._meta.ttl


class Batch:
    """Packets that were received together: a context manager, at whose end their memory is the kernel's again.

    While a slice or another view of a payload is in use it can't end: BufferError. Frames of a batch that isn't ended
    are lost to the socket.
    """

    def __init__(self, channel, mapping, frames, count):
        self._channel = channel
        self.packets = []
        begin = 0
        for at in range(count):
            if not frames[at].flags & _library.DESC_MORE:
                self.packets.append(Packet([frames[index] for index in range(begin, at + 1)], mapping))
                begin = at + 1

    def __iter__(self):
        return iter(self.packets)

    def __len__(self):
        return len(self.packets)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()

    def answer(self, packet, size=None):
        """Queues a packet, with what was written to it, as the answer to its peer, from the address that was
        asked, or from one that the kernel chooses if that was multicast or 255.255.255.255; `size`, if given, is the
        new length of the payload, at most the packet's. The socket's flush() sends it. False: no room, and the packet
        is still the batch's as it was, with new views, and can be answered again. So it is after an OSError.

        The broadcast address of a subnet looks like any other: the kernel refuses answers from there, which stats()
        counts. A program that is asked at one answers by sendto()."""
        if packet not in self.packets:
            raise ValueError("the packet isn't this batch's")
        # Whatever is a whole number, and before anything has changed.
        size = None if size is None else operator.index(size)
        # In this order: if another thread's close() has taken them meanwhile, there is no metadata.
        frames, meta = packet.frames, packet._meta
        if size is not None:
            if len(frames) != 1 or not 0 <= size <= len(packet.parts[0]):
                raise ValueError("size is more than the packet's, or the packet has several parts")
        packet.end()
        length, before = frames[0].len, _library.Meta.from_buffer_copy(meta)
        library.meta_reply(byref(meta))
        meta.flags = _library.META_LOCAL if _library.is_one(meta) else 0
        if size is not None:
            frames[0].len = size
        try:
            library.commit(self._channel.pointer, (_library.Frame * len(frames))(*frames), len(frames))
        except OSError as error:
            # Another thread may have closed the socket, which took them away.
            if packet.frames:
                frames[0].len = length
                ctypes.memmove(byref(meta), byref(before), ctypes.sizeof(before))
                packet.show()
            if isinstance(error, BlockingIOError):
                return False
            raise
        # Another thread may be ending the batch.
        with contextlib.suppress(ValueError):
            self.packets.remove(packet)
        packet.take()
        return True

    def release(self):
        """Ends the batch; its packets can't be used any more. After a BufferError they all can, with new views."""
        ended = []
        for packet in list(self.packets):
            try:
                packet.end()
            except BufferError:
                for other in ended:
                    other.show()
                raise
            ended.append(packet)
        frames = []
        # Another thread may be about to end it, too: each packet is given to one of both.
        with contextlib.suppress(IndexError):
            while True:
                frames += self.packets.pop().take()
        try:
            # What a child has of them is its parent's.
            if frames and self._channel.pointer and self._channel.maker == os.getpid():
                self._give_back(frames)
        finally:
            self._channel.batches.discard(self)

    def _give_back(self, frames):
        try:
            library.release(self._channel.pointer, (_library.Frame * len(frames))(*frames), len(frames))
        except OSError:
            # Those behind the one that isn't the program's are not lost for that.
            for frame in frames:
                with contextlib.suppress(OSError):
                    library.release(self._channel.pointer, byref(frame), 1)
            raise
