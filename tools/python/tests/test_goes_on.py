# SPDX-License-Identifier: GPL-2.0
"""After what failed, a socket goes on, with a real kernel: what comes rarely is put into calls of the library."""

import asyncio
import errno
import os
import time
import unittest
from operator import attrgetter
from unittest import mock

from kopi import endpoint, sockets
from test_endpoint import Collector
from test_kopi import LOCAL, PATIENCE, Pair, plain


def fails(call, number, times=1):
    """The library's function of this name fails with this errno, so many times, and then does what it does."""
    failure = OSError(number, os.strerror(number))
    return mock.patch.object(sockets.library, call, wraps=getattr(sockets.library, call),
                             side_effect=[failure] * times + [mock.DEFAULT] * 1000)


def always_fails(call, number):
    """The same for ever."""
    return mock.patch.object(sockets.library, call, side_effect=OSError(number, os.strerror(number)))


class Sockets(Pair):
    """A socket and a peer."""

    def test_frames_whose_completions_another_thread_took(self):
        # No event of the kernel's tells of them.
        self.sock.settimeout(10)
        with fails("send", errno.EAGAIN):
            self.sock.sendto(b"one", self.address)
        with fails("queue", errno.EAGAIN, 3):
            self.assertEqual(self.sock.send_batch([(b"two", self.address)]), 1)
        self.assertEqual([self.peer.recv(10), self.peer.recv(10)], [b"one", b"two"])

    def test_waiting_for_frames_ends_with_its_time(self):
        self.sock.settimeout(0.05)
        for call, send in (("send", lambda: self.sock.sendto(b"x", self.address)),
                           ("queue", lambda: self.assertEqual(self.sock.send_batch([(b"x", self.address)]), 0))):
            begin = time.monotonic()
            with always_fails(call, errno.EAGAIN):
                if call == "send":
                    self.assertRaises(TimeoutError, send)
                else:
                    send()
            self.assertGreaterEqual(time.monotonic() - begin, 0.04)

    def test_whatever_is_wrong_with_one_those_before_it_leave(self):
        for wrong, error in (("text", self.address), TypeError), ((b"x", (LOCAL, 70000)), OverflowError), \
                ((b"x", (LOCAL, "9")), TypeError), ((b"x", ("x" * 64, 9)), UnicodeError), ((b"x",), ValueError):
            with self.subTest(wrong=wrong):
                rest = [wrong, (b"third", self.address)]
                self.assertEqual(self.sock.send_batch([(b"first", self.address), *rest]), 1)
                self.assertEqual(self.peer.recv(10), b"first")
                self.assertRaises(error, self.sock.send_batch, rest)

    def test_what_the_callers_iterator_raises_is_raised(self):
        def broken():
            yield b"before", self.address
            raise KeyError
        self.assertRaises(KeyError, self.sock.send_batch, broken())
        self.assertEqual(self.peer.recv(10), b"before")

    def test_an_answer_without_room_is_the_packet_as_it_was(self):
        for number, tries in (errno.EAGAIN, 2), (errno.EIO, 2):
            self.peer.sendto(b"question", self.sock.getsockname())
            with self.sock.recv_batch() as batch:
                packet, = batch
                shown = attrgetter("peer", "local", "tos", "ttl", "gso_size")
                before = shown(packet), bytes(packet.data)
                with fails("commit", number, tries):
                    for _ in range(tries):
                        if number == errno.EAGAIN:
                            self.assertFalse(batch.answer(packet, size=3))
                        else:
                            self.assertRaises(OSError, batch.answer, packet, size=3)
                        self.assertEqual((shown(packet), bytes(packet.data)), before)
                        self.assertEqual(batch.packets, [packet])
                    packet.data[:3] = b"yes"
                    self.assertTrue(batch.answer(packet, size=3))
                self.assertEqual(len(batch), 0)
            self.assertTrue(self.sock.flush())
            self.assertEqual(self.peer.recv(10), b"yes")


class Endpoints(unittest.IsolatedAsyncioTestCase):
    """An endpoint and a peer."""

    async def asyncSetUp(self):
        self.peer = plain()
        self.peer.bind((LOCAL, 0))
        self.peer.setblocking(False)
        self.address = self.peer.getsockname()

    async def asyncTearDown(self):
        self.transport.abort()
        await asyncio.sleep(0)
        self.peer.close()

    async def open(self, factory=Collector):
        """Opens it."""
        self.transport, mine = await endpoint.create_datagram_endpoint(factory, local_addr=(LOCAL, 0))
        return mine

    async def arrives(self, data):
        """The peer gets this next."""
        got = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.peer, 100), 10)
        self.assertEqual(got, data)

    async def test_wrong_addresses_hold_nothing_up(self):
        mine = await self.open()
        with fails("send", errno.EAGAIN):
            self.transport.sendto(b"first", self.address)
        self.assertEqual(self.transport.get_write_buffer_size(), 5)
        for data, address, error in ((b"x", (LOCAL, 70000), OverflowError), (b"x", ("x" * 64, 9), UnicodeError),
                                     (b"x", (LOCAL, "9"), TypeError), ("text", self.address, TypeError)):
            self.assertRaises(error, self.transport.sendto, data, address)
        self.transport.sendto(b"x", (LOCAL, 0))
        self.assertEqual((await asyncio.wait_for(mine.errors.get(), PATIENCE)).errno, errno.EINVAL)
        self.transport.sendto(bytearray(b"second"), self.address)
        for data in b"first", b"second":
            await self.arrives(data)
        self.assertEqual(self.transport.get_write_buffer_size(), 0)

    async def test_abort_when_what_waited_is_refused(self):
        class Aborts(Collector):
            """Ends with the first error."""

            def error_received(self, exc):
                super().error_received(exc)
                self.transport.abort()
        raised = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
        mine = await self.open(Aborts)
        with fails("send", errno.EAGAIN):
            for _ in range(3):
                self.transport.sendto(b"waits", self.address)
        with always_fails("send", errno.EPERM):
            self.assertIsNone(await asyncio.wait_for(mine.lost, PATIENCE))
        self.assertEqual((mine.errors.qsize(), self.transport.get_write_buffer_size(), raised), (1, 0, []))

    async def test_a_protocol_that_has_paused_goes_on_after_an_error(self):
        mine = await self.open()
        with always_fails("send", errno.EAGAIN):
            for _ in range(80):
                self.transport.sendto(bytes(1000), self.address)
            self.assertEqual(mine.paused, 1)
            with always_fails("flush", errno.EIO):
                self.transport.sendto(bytes(1000), self.address)
        self.assertEqual((await asyncio.wait_for(mine.errors.get(), PATIENCE)).errno, errno.EIO)
        self.assertEqual((mine.paused, self.transport.get_write_buffer_size()), (0, 0))
        self.transport.sendto(b"again", self.address)
        await self.arrives(b"again")


if __name__ == "__main__":
    unittest.main()
