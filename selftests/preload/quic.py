#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0
"""QUIC by aioquic: a server that returns each stream, and a client that asks it: quic.py serve|ask ADDRESS PORT

The server's key and certificate are key.pem and cert.pem of the current directory."""

import asyncio
import hashlib
import ssl
import sys

from aioquic.asyncio import connect, serve
from aioquic.quic.configuration import QuicConfiguration

STREAMS, SIZE = 3, 60_000


async def returned(reader, writer):
    writer.write(await reader.read())
    writer.write_eof()


async def server(address, port):
    configuration = QuicConfiguration(is_client=False, alpn_protocols=["echo"])
    configuration.load_cert_chain("cert.pem", "key.pem")
    await serve(address, port, configuration=configuration,
                stream_handler=lambda reader, writer: asyncio.ensure_future(returned(reader, writer)))
    await asyncio.Event().wait()


async def client(address, port):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["echo"], verify_mode=ssl.CERT_NONE)
    async with connect(address, port, configuration=configuration) as connection:
        for number in range(STREAMS):
            reader, writer = await connection.create_stream()
            sent = hashlib.shake_128(bytes([number])).digest(SIZE)
            writer.write(sent)
            writer.write_eof()
            print(number, len(sent), await reader.read() == sent)


asyncio.run({"serve": server, "ask": client}[sys.argv[1]](sys.argv[2], int(sys.argv[3])))
