# SPDX-License-Identifier: GPL-2.0
"""The package with a real kernel: what a UDP socket does is asked of the standard library's and of KOPI's alike."""

import errno
import gc
import os
import select
import socket
import sys
import threading
import time
import unittest
from unittest import mock

import kopi
from kopi import _library, packets, sockets

LOCAL = "127.0.0.1"
# A hang, and not a busy machine.
PATIENCE = 60
IP_RECVERR = 11


def plain(family=socket.AF_INET):
    """A socket of the standard library's."""
    return socket.socket(family, socket.SOCK_DGRAM)


class AsUdp(unittest.TestCase):
    """What holds for both kinds of sockets."""

    def setUp(self):
        self.opened = []

    def tearDown(self):
        for sock in self.opened:
            sock.close()

    def both(self, family=socket.AF_INET):
        """A socket of each kind, bound, and one of the standard library's as its peer."""
        host = "::1" if family == socket.AF_INET6 else LOCAL
        for kind in (plain, kopi.Socket):
            sock, peer = kind(family), plain(family)
            self.opened += [sock, peer]
            for each in sock, peer:
                each.bind((host, 0))
                each.settimeout(PATIENCE)
            with self.subTest(kind=kind.__name__, family=family.name):
                yield sock, peer

    def test_datagrams_come_and_go(self):
        for family in (socket.AF_INET, socket.AF_INET6):
            for sock, peer in self.both(family):
                for size in (0, 1, 1400, 9000, 65507 if family == socket.AF_INET else 65527):
                    data = bytes(index & 0xff for index in range(size))
                    self.assertEqual(sock.sendto(data, peer.getsockname()), size)
                    self.assertEqual(peer.recvfrom(70000), (data, sock.getsockname()))
                    peer.sendto(data, sock.getsockname())
                    self.assertEqual(sock.recvfrom(70000), (data, peer.getsockname()))

    def test_names_that_are_no_hosts(self):
        for sock, peer in self.both():
            sock.sendto(b"to the any-address", ("", peer.getsockname()[1]))
            self.assertEqual(peer.recv(100), b"to the any-address")
            # Without SO_BROADCAST.
            with self.assertRaises(PermissionError):
                sock.sendto(b"to all", ("<broadcast>", peer.getsockname()[1]))
        for sock, peer in self.both(socket.AF_INET6):
            sock.sendto(b"to the any-address", ("", peer.getsockname()[1]))
            self.assertEqual(peer.recv(100), b"to the any-address")

    def test_port_0_is_nobody(self):
        for family in (socket.AF_INET, socket.AF_INET6):
            for sock, peer in self.both(family):
                sock.connect(peer.getsockname())
                with self.assertRaises(OSError) as raised:
                    sock.sendto(b"to nobody", (peer.getsockname()[0], 0))
                self.assertEqual(raised.exception.errno, errno.EINVAL)

    def test_an_entry_in_the_error_queue_ends_no_timeout(self):
        for sock, peer in self.both():
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            sock.connect(peer.getsockname())
            peer.close()
            sock.settimeout(1)
            sock.send(b"refused")
            with self.assertRaises(ConnectionRefusedError):
                sock.recv(10)
            with self.assertRaises(TimeoutError):
                sock.recv(10)

    def test_an_entry_in_the_error_queue_keeps_nothing_back(self):
        for sock, peer in self.both():
            sock.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
            address = peer.getsockname()
            peer.close()
            sock.sendto(b"refused", address)
            with self.assertRaises(ConnectionRefusedError):
                sock.recv(10)
            again = plain()
            self.opened.append(again)
            timer = threading.Timer(0.3, again.sendto, (b"late", sock.getsockname()))
            timer.start()
            self.assertEqual(sock.recv(10), b"late")
            timer.join()

    def test_all_buffers_are_taken(self):
        for sock, peer in self.both():
            for data in (b"abc", bytearray(b"abc"), memoryview(b"abc"), memoryview(bytearray(b"xabc"))[1:]):
                sock.sendto(data, peer.getsockname())
                self.assertEqual(peer.recv(100), b"abc")
            for wrong in ("abc", 3, None):
                self.assertRaises(TypeError, sock.sendto, wrong, peer.getsockname())

    def test_addresses_are_checked(self):
        for sock, _ in self.both():
            self.assertRaises(TypeError, sock.sendto, b"", (LOCAL, "9"))
            self.assertRaises(OverflowError, sock.sendto, b"", (LOCAL, 65536))
            self.assertRaises(socket.gaierror, sock.sendto, b"", ("no.such.name.invalid", 9))
            self.assertRaises(socket.gaierror, sock.sendto, b"", ("::1", 9))

    def test_names_are_looked_up(self):
        for sock, peer in self.both():
            sock.sendto(b"by name", ("localhost", peer.getsockname()[1]))
            self.assertEqual(peer.recv(100), b"by name")

    def test_what_is_too_long(self):
        for sock, peer in self.both():
            with self.assertRaises(OSError) as raised:
                sock.sendto(bytes(65508), peer.getsockname())
            self.assertEqual(raised.exception.errno, errno.EMSGSIZE)
            peer.sendto(b"cut off", sock.getsockname())
            self.assertEqual(sock.recv(3), b"cut")
            peer.sendto(b"next", sock.getsockname())
            self.assertEqual(sock.recv(100), b"next")

    def test_into_buffers(self):
        for sock, peer in self.both():
            buffer = bytearray(8)
            peer.sendto(b"abcdef", sock.getsockname())
            self.assertEqual(sock.recv_into(buffer), 6)
            self.assertEqual(buffer, b"abcdef\0\0")
            peer.sendto(b"uvwxyz", sock.getsockname())
            self.assertEqual(sock.recvfrom_into(buffer, 2), (2, peer.getsockname()))
            self.assertEqual(buffer, b"uvcdef\0\0")
            self.assertRaises((TypeError, BufferError), sock.recv_into, b"constant")

    def test_flags(self):
        for sock, peer in self.both():
            sock.connect(peer.getsockname())
            self.assertEqual(sock.send(b"by send", 0), 7)
            self.assertEqual(sock.sendto(b"by sendto", socket.MSG_NOSIGNAL, peer.getsockname()), 9)
            self.assertEqual([peer.recv(10), peer.recv(10)], [b"by send", b"by sendto"])
            for _ in range(4):
                peer.sendto(b"back", sock.getsockname())
            buffer = bytearray(4)
            self.assertEqual(sock.recv(10, 0), b"back")
            self.assertEqual(sock.recvfrom(10, 0), (b"back", peer.getsockname()))
            self.assertEqual(sock.recv_into(buffer, nbytes=4, flags=0), 4)
            self.assertEqual(sock.recvfrom_into(buffer, 4, 0), (4, peer.getsockname()))
            for wrong in (), (0, peer.getsockname(), 0), ("0", peer.getsockname()):
                self.assertRaises(TypeError, sock.sendto, b"", *wrong)

    def test_negative_sizes_are_refused(self):
        for sock, peer in self.both():
            # There is something that would be written.
            peer.sendto(b"x" * 5000, sock.getsockname())
            for call, *buffer in (("recv",), ("recvfrom",), ("recv_into", bytearray(16)),
                                  ("recvfrom_into", bytearray(16))):
                for size in (-1, -(1 << 40)):
                    with self.assertRaisesRegex(ValueError, f"^negative buffersize in {call}$"):
                        getattr(sock, call)(*buffer, size)
            self.assertEqual(sock.recv(6000), b"x" * 5000)

    def test_times_are_kept(self):
        for sock, _ in self.both():
            sock.settimeout(0.05)
            begin = time.monotonic()
            self.assertRaises(TimeoutError, sock.recv, 10)
            self.assertGreaterEqual(time.monotonic() - begin, 0.04)
            sock.setblocking(False)
            self.assertFalse(sock.getblocking())
            self.assertRaises(BlockingIOError, sock.recv, 10)
            self.assertRaises(ValueError, sock.settimeout, -1)

    def test_connected(self):
        for sock, peer in self.both():
            self.assertRaises(OSError, sock.send, b"nobody")
            sock.connect(peer.getsockname())
            self.assertEqual(sock.getpeername(), peer.getsockname())
            self.assertEqual(sock.send(b"there"), 5)
            self.assertEqual(peer.recv(10), b"there")
            stranger = plain()
            self.opened.append(stranger)
            stranger.sendto(b"stranger", sock.getsockname())
            peer.sendto(b"back", sock.getsockname())
            self.assertEqual(sock.recv(10), b"back")

    def test_nobody_listens(self):
        for sock, peer in self.both():
            sock.connect(peer.getsockname())
            peer.close()
            sock.send(b"into the void")
            self.assertRaises(ConnectionRefusedError, sock.recv, 10)
            sock.send(b"again")
            sock.setblocking(False)
            poller = select.poll()
            # POLLERR only.
            poller.register(sock, 0)
            self.assertTrue(poller.poll(PATIENCE * 1000))
            self.assertRaises(ConnectionRefusedError, sock.recv, 10)

    def test_select_and_epoll(self):
        for sock, peer in self.both():
            self.assertEqual(select.select([sock], [], [], 0)[0], [])
            with select.epoll() as epoll:
                epoll.register(sock, select.EPOLLIN)
                self.assertEqual(epoll.poll(0), [])
                peer.sendto(b"one", sock.getsockname())
                self.assertEqual(epoll.poll(PATIENCE), [(sock.fileno(), select.EPOLLIN)])
                self.assertEqual(select.select([sock], [sock], [], 0), ([sock], [sock], []))
                sock.recv(10)
                self.assertEqual(epoll.poll(0), [])

    def test_closed(self):
        for sock, peer in self.both():
            with sock:
                pass
            self.assertEqual(sock.fileno(), -1)
            sock.close()
            self.assertRaises(OSError, sock.recv, 10)
            self.assertRaises(OSError, sock.sendto, b"", peer.getsockname())
            self.assertRaises(OSError, sock.getsockname)
            if isinstance(sock, kopi.Socket):
                for call in sock.stats, sock.flush, sock.recv_batch:
                    with self.assertRaises(OSError) as raised:
                        call()
                    self.assertEqual(raised.exception.errno, errno.EBADF)

    def test_one_receives_while_another_sends(self):
        for sock, peer in self.both():
            sock.connect(peer.getsockname())
            peer.connect(sock.getsockname())
            got = []

            def receive(sock=sock, got=got):
                while len(got) < 300:
                    got.append(sock.recv(100))

            def answer(peer=peer):
                for _ in range(300):
                    peer.send(peer.recv(100))
            threads = [threading.Thread(target=target) for target in (receive, answer)]
            for thread in threads:
                thread.start()
            for number in range(300):
                sock.send(b"%d" % number)
                while len(got) < number - 20:
                    time.sleep(0.001)
            for thread in threads:
                thread.join(PATIENCE)
            self.assertEqual(got, [b"%d" % number for number in range(300)])

    def test_several_receive(self):
        """Each gets whole datagrams, whenever the interpreter changes threads."""
        sys.setswitchinterval(1e-6)
        for sock, peer in self.both():
            got = []

            def receive(sock=sock, got=got):
                while data := sock.recv(2000):
                    got.append(data)
            threads = [threading.Thread(target=receive) for _ in range(4)]
            for thread in threads:
                thread.start()
            sent = [bytes([number & 0xff]) * (1 + number % 999) for number in range(1000)]
            for number, data in enumerate(sent):
                peer.sendto(data, sock.getsockname())
                while len(got) < number - 50:
                    time.sleep(0.001)
            while len(got) < len(sent):
                time.sleep(0.001)
            for _ in threads:
                peer.sendto(b"", sock.getsockname())
            for thread in threads:
                thread.join(PATIENCE)
            self.assertEqual(sorted(got), sorted(sent))
        sys.setswitchinterval(0.005)


class Pair(unittest.TestCase):
    """A socket and a peer; without tests."""

    options = {}

    def setUp(self):
        self.sock, self.peer = kopi.Socket(**self.options), plain()
        for each in self.sock, self.peer:
            each.bind((LOCAL, 0))
            each.settimeout(PATIENCE)
        self.address = self.peer.getsockname()

    def tearDown(self):
        self.sock.close()
        self.peer.close()


class Batches(Pair):
    """What only KOPI's sockets do."""

    options = {"frames": 256}

    def ask(self, count):
        """Datagrams from the peer, which have come."""
        for number in range(count):
            self.peer.sendto(b"number %d" % number, self.sock.getsockname())

    def test_many_are_sent(self):
        datagrams = [(b"number %d" % number, self.address) for number in range(100)]
        self.assertEqual(self.sock.send_batch(datagrams), 100)
        self.assertEqual([self.peer.recv(100) for _ in range(100)], [data for data, _ in datagrams])
        self.assertEqual(self.sock.send_batch([]), 0)
        stats = self.sock.stats()
        self.assertEqual((stats["tx_packets"], stats["tx_errors"]), (100, 0))
        self.sock.connect(self.address)
        self.assertEqual(self.sock.send_batch([(b"connected", None)] * 3), 3)
        self.assertEqual(self.peer.recv(100), b"connected")

    def test_a_batch_ends_before_what_cant_be_sent(self):
        for wrong in (bytes(70000), self.address), (b"x", ("::1", 1)):
            rest = [wrong, (b"third", self.address)]
            self.assertEqual(self.sock.send_batch([(b"first", self.address), *rest]), 1)
            self.assertEqual(self.peer.recv(100), b"first")
            self.assertRaises(OSError, self.sock.send_batch, rest)
        self.assertEqual(self.sock.stats()["tx_taken"], 2)

    def test_views_are_the_frames(self):
        self.ask(3)
        end = time.monotonic() + PATIENCE
        # On a busy machine the loopback device is a moment late.
        while self.sock.stats()["rx_packets"] < 3 and time.monotonic() < end:
            time.sleep(0.001)
        with self.sock.recv_batch() as batch:
            self.assertEqual([bytes(packet.data) for packet in batch], [b"number 0", b"number 1", b"number 2"])
            self.assertEqual({packet.peer for packet in batch}, {self.address})
            self.assertEqual(batch.packets[0].local, self.sock.getsockname())
            self.assertEqual((batch.packets[0].gso_size, batch.packets[0].tos, batch.packets[0].ttl), (0, 0, 64))
            batch.packets[0].data[:6] = b"NUMBER"
            self.assertEqual(bytes(batch.packets[0].data), b"NUMBER 0")
            view = batch.packets[1].data
            kept, packet = list(batch), batch.packets[2]
            self.assertTrue(batch.answer(packet))
            self.assertRaises(ValueError, batch.answer, packet)
        self.assertRaises(ValueError, bytes, view)
        self.sock.close()
        for packet in kept:
            self.assertRaises(ValueError, lambda packet=packet: packet.peer)

    def test_answers_leave_from_their_frames(self):
        for _ in range(20):
            self.ask(50)
            answered = 0
            while answered < 50:
                with self.sock.recv_batch() as batch:
                    for packet in list(batch):
                        packet.data[:6] = b"NUMBER"
                        self.assertTrue(batch.answer(packet, size=6))
                        answered += 1
                    self.assertEqual(len(batch), 0)
                self.assertTrue(self.sock.flush())
            self.assertEqual({self.peer.recv(100) for _ in range(50)}, {b"NUMBER"})

    def test_no_answer_has_the_address_of_many(self):
        group = "224.0.0.99"
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        with kopi.Socket() as sock:
            sock.bind(("", 0))
            sock.settimeout(PATIENCE)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group) + socket.inet_aton(LOCAL))
            for asked in group, "255.255.255.255":
                self.peer.sendto(b"who?", (asked, sock.getsockname()[1]))
                with sock.recv_batch() as batch:
                    packet, = batch
                    self.assertEqual(packet.local[0], asked)
                    self.assertTrue(batch.answer(packet))
                self.assertTrue(sock.flush())
                self.assertEqual(sock.stats()["tx_errors"], 0)
                self.assertEqual(self.peer.recv(10), b"who?")

    def test_addresses_of_many(self):
        for host, is_one in (("192.0.2.1", True), ("240.0.0.1", True), ("224.0.0.1", False), ("239.1.2.3", False),
                             ("255.255.255.255", False), ("2001:db8::1", True), ("ff02::1", False),
                             ("::ffff:192.0.2.1", True), ("::ffff:224.0.0.1", False),
                             ("::ffff:255.255.255.255", False)):
            version = socket.AF_INET6 if ":" in host else socket.AF_INET
            packed = socket.inet_pton(version, host)
            meta = _library.Meta(family=version)
            meta.local[:len(packed)] = packed
            self.assertEqual(_library.is_one(meta), is_one, host)

    def test_an_error_comes_with_the_next_call_if_the_datagram_is_queued(self):
        refused = ConnectionRefusedError(errno.ECONNREFUSED, "another one's")
        for send in (lambda: self.sock.sendto(b"x", self.address),
                     lambda: self.sock.send_batch([(b"x", self.address)])):
            for call in (lambda: self.sock.recv(10), send):
                with mock.patch.object(sockets.library, "flush", return_value=0), \
                        mock.patch.object(self.sock, "_wait", side_effect=refused):
                    self.assertEqual(send(), 1)
                self.assertRaises(ConnectionRefusedError, call)
                self.assertTrue(self.sock.flush())
                self.assertEqual(self.peer.recv(10), b"x")
        self.sock.setblocking(False)
        self.assertRaises(BlockingIOError, self.sock.recv, 10)

    def test_an_answer_isnt_longer(self):
        self.ask(1)
        with self.sock.recv_batch() as batch:
            self.assertRaises(ValueError, batch.answer, batch.packets[0], size=9)

    def test_sizes_are_whole_numbers(self):
        class Six:
            """As numpy's integers."""

            def __index__(self):
                return 6

        self.ask(1)
        with self.sock.recv_batch() as batch:
            packet, = batch
            for size in 6.0, "6":
                self.assertRaises(TypeError, batch.answer, packet, size)
            self.assertEqual((bytes(packet.data), packet.peer), (b"number 0", self.address))
            self.assertTrue(batch.answer(packet, Six()))
        self.assertTrue(self.sock.flush())
        self.assertEqual(self.peer.recv(10), b"number")

    def test_a_batch_answers_only_its_own(self):
        self.ask(1)
        with self.sock.recv_batch() as one:
            packet, = one
            self.ask(1)
            with self.sock.recv_batch() as other:
                self.assertRaises(ValueError, other.answer, packet)
                self.assertEqual((bytes(packet.data), len(one), len(other)), (b"number 0", 1, 1))
            self.assertTrue(self.sock.flush())
            self.assertEqual(self.sock.stats()["tx_taken"], 0)
            self.assertTrue(one.answer(packet))
        self.assertTrue(self.sock.flush())
        self.assertEqual(self.peer.recv(10), b"number 0")

    def test_an_error_at_the_end_loses_no_frame(self):
        self.ask(1)
        batch = self.sock.recv_batch()
        packet, = batch
        # One that isn't the program's any more when its turn comes, before another one.
        self.ask(1)
        other = self.sock.recv_batch()
        frames = [packet.frames[0], packet.frames[0], other.packets[0].frames[0]]
        packet.frames = list(frames)
        self.assertRaises(OSError, batch.release)
        channel = self.sock._channel
        for frame in frames:
            self.assertRaises(OSError, _library.library.release, channel.pointer, frame, 1)
        self.assertNotIn(batch, channel.batches)
        other.packets[0].take()
        other.packets.clear()
        other.release()

    def test_a_view_in_use_keeps_its_frame(self):
        self.ask(1)
        batch = self.sock.recv_batch()
        view = batch.packets[0].data[3:]
        self.assertRaises(BufferError, batch.release)
        self.assertRaises(BufferError, self.sock.close)
        self.assertEqual(bytes(view), b"ber 0")
        packet = batch.packets[0]
        self.assertRaises(BufferError, batch.answer, packet, 3)
        self.assertEqual(bytes(packet.data), b"number 0")
        view.release()
        self.assertTrue(batch.answer(packet, 3))
        self.sock.flush()
        self.assertEqual(self.peer.recv(100), b"num")
        batch.release()
        self.assertEqual(len(batch), 0)
        batch.release()

    def test_a_socket_that_is_forgotten_keeps_views(self):
        sock = kopi.Socket()
        sock.bind((LOCAL, 0))
        self.peer.sendto(b"kept", sock.getsockname())
        view = sock.recv_batch().packets[0].data[:]
        del sock
        gc.collect()
        self.assertEqual(bytes(view), b"kept")

    def in_a_child(self, run):
        """A child process does this, and doesn't die of it."""
        child = os.fork()
        if not child:
            try:
                run()
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(os.waitpid(child, 0), (child, 0))

    def test_closing_while_a_batch_is_made(self):
        def make(*arguments):
            # As another thread may, or a signal handler.
            self.sock.close()
            return packets.Batch(*arguments)

        def run():
            with mock.patch.object(sockets, "Batch", make):
                batch = self.sock.recv_batch()
            packet = batch.packets[0]
            self.assertEqual((bytes(packet.data), packet.peer, packet.local), (b"number 0", self.address, address))
            self.assertRaises(OSError, self.sock.recv, 10)
            batch.release()
            self.assertRaises(ValueError, lambda: packet.peer)
        address = self.sock.getsockname()
        self.ask(1)
        self.in_a_child(run)

    def test_closing_while_an_answer_is_made(self):
        def run():
            batch = self.sock.recv_batch()
            with mock.patch.object(_library.library, "meta_reply", lambda _: self.sock.close()):
                self.assertRaises(OSError, batch.answer, batch.packets[0])
            self.assertEqual(len(batch), 0)
        self.ask(1)
        self.in_a_child(run)

    def test_what_is_closed_is_unmapped(self):
        def mapped():
            with open("/proc/self/maps", encoding="utf-8") as maps:
                return len([line for line in maps if "KOPI" in line or "socket:" in line])
        before = mapped()
        sock = kopi.Socket()
        sock.bind((LOCAL, 0))
        self.assertGreater(mapped(), before)
        self.peer.sendto(b"gone", sock.getsockname())
        # These are still known, and hold nothing.
        batch = sock.recv_batch()
        packet = batch.packets[0]
        sock.close()
        self.assertEqual(mapped(), before)
        self.assertEqual((len(batch), packet.frames), (0, []))

    def test_a_child_that_closes_takes_no_frame_of_its_parents(self):
        sock = kopi.Socket(frames=64)
        sock.bind((LOCAL, 0))
        self.peer.sendto(b"the parent's", sock.getsockname())
        batch = sock.recv_batch()
        child = os.fork()
        if not child:
            sock.close()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0), (child, 0))
        for number in range(200):
            self.peer.sendto(b"number %6d" % number, sock.getsockname())
            self.assertEqual(sock.recv(100), b"number %6d" % number)
        self.assertEqual(bytes(batch.packets[0].data), b"the parent's")
        batch.release()
        sock.close()

    def test_frames_come_back(self):
        for _ in range(40):
            self.ask(20)
            received = 0
            while received < 20:
                with self.sock.recv_batch(7) as batch:
                    received += len(batch)
        self.sock.setblocking(False)
        self.assertRaises(BlockingIOError, self.sock.recv_batch)

    def test_long_ones_have_parts(self):
        data = bytes(index & 0xff for index in range(9000))
        self.peer.sendto(data, self.sock.getsockname())
        with self.sock.recv_batch() as batch:
            packet, = batch
            self.assertGreater(len(packet.parts), 1)
            self.assertEqual(packet.data, data)
            self.assertTrue(batch.answer(packet))
        self.sock.flush()
        self.assertEqual(self.peer.recv(70000), data)

    def test_gso_and_gro(self):
        with kopi.Socket(gso=True) as sender, kopi.Socket(gro=True) as receiver:
            receiver.bind((LOCAL, 0))
            receiver.settimeout(PATIENCE)
            sender.connect(receiver.getsockname())
            sender.send_batch([(b"%100d" % number, None) for number in range(100)])
            got, merged = b"", 0
            while len(got) < 10000:
                with receiver.recv_batch() as batch:
                    for packet in batch:
                        got += bytes(packet.data)
                        merged += packet.gso_size == 100
            self.assertEqual(got, b"".join(b"%100d" % number for number in range(100)))
            self.assertGreater(merged, 0)

    def test_more_than_there_are_frames(self):
        receiver = threading.Thread(target=lambda: [self.peer.recv(2000) for _ in range(2000)])
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        receiver.start()
        for _ in range(20):
            self.assertEqual(self.sock.send_batch([(b"x" * 10, self.address)] * 100), 100)
            time.sleep(0.01)
        receiver.join(PATIENCE)
        self.assertFalse(receiver.is_alive())

    def test_closed_by_another_thread(self):
        closer = threading.Timer(0.2, self.sock.close)
        closer.start()
        # The descriptor's file lives on in poll().
        self.sock.settimeout(3)
        with self.assertRaises(OSError) as raised:
            self.sock.recv(10)
        self.assertEqual(raised.exception.errno, errno.EBADF)
        closer.join()

    def test_other_flags_are_refused(self):
        for call, *arguments in (("send", b""), ("recv", 10), ("recvfrom", 10), ("recv_into", bytearray(4), 4),
                                 ("recvfrom_into", bytearray(4), 4)):
            with self.assertRaisesRegex(OSError, "flags 0x2: KOPI sockets take only 0 and MSG_NOSIGNAL"):
                getattr(self.sock, call)(*arguments, socket.MSG_PEEK)
        with self.assertRaises(OSError) as raised:
            self.sock.sendto(b"", socket.MSG_OOB, self.address)
        self.assertEqual(raised.exception.errno, errno.EOPNOTSUPP)

    def test_options_are_checked(self):
        for wrong in ({"frame_size": 1000}, {"frame_size": 1 << 30}, {"frames": 1 << 31}):
            self.assertRaises(OSError, kopi.Socket, **wrong)
        self.assertRaises(OSError, kopi.Socket, socket.AF_UNIX)


if __name__ == "__main__":
    unittest.main()
