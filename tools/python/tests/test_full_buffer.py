# SPDX-License-Identifier: GPL-2.0
"""What the send buffer has no room for isn't lost: on a slow loopback device, which whoever runs this has set up."""

import asyncio
import errno
import os
import socket
import time
import unittest

from kopi import endpoint
from test_kopi import LOCAL, PATIENCE, Pair, plain

DATA = 900
MANY = 20


def numbered(number):
    """A datagram."""
    return b"%4d" % number + bytes(DATA)


class FullBuffer(Pair):
    """A socket with room for a few datagrams."""

    def setUp(self):
        super().setUp()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        self.sock.connect(self.address)

    def fill(self):
        """Sends until there is no room; says how many datagrams were sent. One of them is left."""
        self.sock.setblocking(False)
        count, before = 0, self.sock.stats()["tx_taken"]
        with self.assertRaises(BlockingIOError):
            while True:
                self.sock.send(numbered(count))
                count += 1
        self.assertEqual(self.sock.stats()["tx_taken"] - before, count - 1)
        return count

    def arrive(self, first, end):
        """The peer gets these, in order."""
        self.assertEqual([int(self.peer.recv(2000)[:4]) for _ in range(first, end)], list(range(first, end)))

    def test_a_call_that_waits_to_receive_sends_what_is_left(self):
        for receive in (lambda: self.sock.recv(10), self.sock.recv_batch):
            count = self.fill()
            self.sock.settimeout(2)
            self.assertRaises(TimeoutError, receive)
            self.arrive(0, count)

    def test_one_that_finds_nothing_does_so_too(self):
        count = self.fill()
        self.arrive(0, count - 1)
        self.assertRaises(BlockingIOError, self.sock.recv, 10)
        self.arrive(count - 1, count)

    def test_and_closing(self):
        count = self.fill()
        self.arrive(0, count - 1)
        self.sock.close()
        self.arrive(count - 1, count)

    def test_but_not_in_a_child(self):
        count = self.fill()
        self.arrive(0, count - 1)
        child = os.fork()
        if not child:
            self.sock.close()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0), (child, 0))
        self.assertEqual(self.sock.stats()["tx_taken"], count - 1)
        self.assertTrue(self.sock.flush())
        self.arrive(count - 1, count)

    def test_it_goes_to_the_peer_of_before(self):
        with plain() as other:
            other.bind((LOCAL, 0))
            first = self.fill()
            self.sock.settimeout(PATIENCE)
            self.sock.connect(other.getsockname())
            self.assertEqual(self.sock.stats()["tx_taken"], first)
            self.arrive(0, first)
            self.sock.connect(self.peer.getsockname())
            second = self.fill()
            while error := self.sock.connect_ex(other.getsockname()):
                self.assertEqual(error, errno.EAGAIN)
            self.assertEqual(self.sock.stats()["tx_taken"], first + second)
            self.arrive(0, second)
            self.assertEqual(self.sock.getpeername(), other.getsockname())

    def test_sending_waits_for_room(self):
        for number in range(MANY):
            self.sock.send(numbered(number))
        self.assertEqual(self.sock.stats()["tx_taken"], MANY)
        self.arrive(0, MANY)
        self.assertEqual(self.sock.send_batch((numbered(number), None) for number in range(MANY)), MANY)
        self.assertEqual(self.sock.stats()["tx_taken"], 2 * MANY)
        self.arrive(0, MANY)

    def test_times_are_kept(self):
        self.fill()
        self.sock.settimeout(0.001)
        begin = time.monotonic()
        with self.assertRaises(TimeoutError):
            for number in range(MANY):
                self.sock.send(numbered(number))
        self.assertLess(self.sock.send_batch((numbered(number), None) for number in range(5000)), 5000)
        self.assertLess(time.monotonic() - begin, PATIENCE)

    def test_answers_leave_while_the_next_batch_is_waited_for(self):
        for number in range(MANY):
            self.peer.sendto(numbered(number), self.sock.getsockname())
        answered = 0
        self.sock.settimeout(2)
        with self.assertRaises(TimeoutError):
            while True:
                with self.sock.recv_batch() as batch:
                    for packet in list(batch):
                        self.assertTrue(batch.answer(packet))
                        answered += 1
                if answered == MANY:
                    self.sock.flush()
        self.arrive(0, MANY)


class FullEndpoint(unittest.IsolatedAsyncioTestCase):
    """The same for tasks."""

    async def asyncSetUp(self):
        self.peer = plain()
        self.peer.bind((LOCAL, 0))
        self.peer.setblocking(False)
        self.transport, _ = await endpoint.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=self.peer.getsockname())
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)

    async def asyncTearDown(self):
        self.transport.abort()
        await asyncio.sleep(0)
        self.peer.close()

    async def arrive(self, count):
        """The peer gets so many, in order."""
        receive = asyncio.get_running_loop().sock_recv
        got = [int((await asyncio.wait_for(receive(self.peer, 2000), PATIENCE))[:4]) for _ in range(count)]
        self.assertEqual(got, list(range(count)))

    async def test_the_last_of_a_burst_leaves(self):
        for number in range(MANY):
            self.transport.sendto(numbered(number))
        await self.arrive(MANY)

    async def test_so_does_one_without_others_behind_it(self):
        sock, count = self.transport.get_extra_info("socket"), 0
        while sock.stats()["tx_taken"] == count:
            self.transport.sendto(numbered(count))
            count += 1
        self.assertEqual(self.transport.get_write_buffer_size(), 0)
        await self.arrive(count)

    async def test_closing_waits_for_them(self):
        for number in range(MANY):
            self.transport.sendto(numbered(number))
        self.transport.close()
        await self.arrive(MANY)


if __name__ == "__main__":
    unittest.main()
