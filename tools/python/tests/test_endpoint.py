# SPDX-License-Identifier: GPL-2.0
"""asyncio's endpoints with a real kernel: the standard library's and KOPI's alike."""

import asyncio
import errno
import socket
import threading
import unittest

from kopi import endpoint
from test_kopi import LOCAL, PATIENCE, plain


class Collector(asyncio.DatagramProtocol):
    """What comes to an endpoint."""

    def __init__(self, answers=False):
        self.answers, self.got, self.errors, self.paused = answers, asyncio.Queue(), asyncio.Queue(), 0
        self.transport = None
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        if self.answers:
            self.transport.sendto(data, addr)
        self.got.put_nowait((data, addr))

    def error_received(self, exc):
        self.errors.put_nowait(exc)

    def pause_writing(self):
        self.paused += 1

    def resume_writing(self):
        self.paused -= 1

    def connection_lost(self, exc):
        self.lost.set_result(exc)


class Endpoints(unittest.IsolatedAsyncioTestCase):
    """asyncio's endpoints, of both kinds."""

    async def kinds(self):
        """How endpoints of each kind are made."""
        loop = asyncio.get_running_loop()
        for make in (loop.create_datagram_endpoint, endpoint.create_datagram_endpoint):
            with self.subTest(make=make.__module__):
                yield make

    async def test_echo(self):
        async for make in self.kinds():
            server, _ = await make(lambda: Collector(answers=True), local_addr=(LOCAL, 0))
            address = server.get_extra_info("sockname")
            client, mine = await make(Collector, remote_addr=address)
            for number in range(500):
                client.sendto(b"%d" % number)
                data, peer = await asyncio.wait_for(mine.got.get(), PATIENCE)
                self.assertEqual((data, peer), (b"%d" % number, address))
            self.assertEqual(client.get_extra_info("peername"), address)
            for transport in client, server:
                transport.close()
                self.assertTrue(transport.is_closing())
            self.assertIsNone(await asyncio.wait_for(mine.lost, PATIENCE))

    async def test_names_with_addresses_of_both_families(self):
        loop = asyncio.get_running_loop()
        look_up = loop.getaddrinfo

        async def getaddrinfo(host, port, **options):
            if host == "elsewhere":
                # Nobody here has it.
                return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", ("198.51.100.1", port))]
            if host != "both":
                return await look_up(host, port, **options)
            return [(socket.AF_INET6, socket.SOCK_DGRAM, 17, "", ("2001:db8:9::9", port, 0, 0)),
                    (socket.AF_INET, socket.SOCK_DGRAM, 17, "", (LOCAL, port))]
        loop.getaddrinfo = getaddrinfo
        async for make in self.kinds():
            for local, remote in ((LOCAL, 0), ("both", 9)), (("both", 0), None), (("both", 0), (LOCAL, 9)):
                with self.subTest(local=local, remote=remote):
                    transport, mine = await make(Collector, local_addr=local, remote_addr=remote)
                    self.assertEqual(transport.get_extra_info("sockname")[0], LOCAL)
                    self.assertEqual(transport.get_extra_info("peername"), (LOCAL, 9) if remote else None)
                    transport.close()
                    await asyncio.wait_for(mine.lost, PATIENCE)
            with self.assertRaises(ValueError):
                await make(Collector, local_addr=("::1", 0), remote_addr=(LOCAL, 9))
            with self.assertRaises(TypeError):
                await make(Collector, local_addr=("::1", 0, 0, 0))
            with self.assertRaises(OSError) as raised:
                await make(Collector, local_addr=("elsewhere", 0))
            self.assertEqual(raised.exception.errno, errno.EADDRNOTAVAIL)

    async def test_errors_are_told(self):
        async for make in self.kinds():
            unused = plain()
            unused.bind((LOCAL, 0))
            client, mine = await make(Collector, remote_addr=unused.getsockname())
            unused.close()
            client.sendto(b"into the void")
            error = await asyncio.wait_for(mine.errors.get(), PATIENCE)
            self.assertIsInstance(error, ConnectionRefusedError)
            self.assertRaises(ValueError, client.sendto, b"", (LOCAL, 1))
            client.close()
            await asyncio.wait_for(mine.lost, PATIENCE)

    async def test_a_protocol_closes_at_once(self):
        class Closer(Collector):
            """Closes its transport as soon as it has it."""

            def connection_made(self, transport):
                super().connection_made(transport)
                self.number = transport.get_extra_info("socket").fileno()
                transport.close()
        async for make in self.kinds():
            _, mine = await make(Closer, local_addr=(LOCAL, 0))
            await asyncio.wait_for(mine.lost, PATIENCE)
            # Nothing is left that watches it.
            self.assertFalse(asyncio.get_running_loop().remove_reader(mine.number))

    async def test_abort_after_close(self):
        transport, mine = await endpoint.create_datagram_endpoint(Collector, local_addr=(LOCAL, 0))
        # No room, whatever is sent.
        transport._send = lambda *_: False
        transport.sendto(b"waits", (LOCAL, 9))
        transport.close()
        await asyncio.sleep(0.01)
        self.assertFalse(mine.lost.done())
        transport.abort()
        await asyncio.sleep(0)
        self.assertTrue(mine.lost.done())

    async def test_many_at_once_arrive(self):
        sink = plain()
        sink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sink.bind((LOCAL, 0))
        sink.settimeout(PATIENCE)
        got = []
        receiver = threading.Thread(target=lambda: got.extend(sink.recv(2000) for _ in range(300)))
        receiver.start()
        client, mine = await endpoint.create_datagram_endpoint(Collector, remote_addr=sink.getsockname(), frames=16)
        for number in range(300):
            client.sendto(b"%4d" % number + bytes(100))
            if number % 50 == 0:
                await asyncio.sleep(0.01)
        client.close()
        await asyncio.wait_for(mine.lost, PATIENCE)
        receiver.join(PATIENCE)
        self.assertEqual([data[:4] for data in got], [b"%4d" % number for number in range(300)])
        sink.close()

    async def test_what_is_closed_loses_what_waits(self):
        transport, mine = await endpoint.create_datagram_endpoint(Collector, local_addr=(LOCAL, 0))
        transport.abort()
        transport.sendto(b"too late", (LOCAL, 9))
        await asyncio.wait_for(mine.lost, PATIENCE)
        self.assertEqual(transport.get_write_buffer_size(), 0)
        with self.assertRaises(ValueError):
            await endpoint.create_datagram_endpoint(Collector)


if __name__ == "__main__":
    unittest.main()
