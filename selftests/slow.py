# SPDX-License-Identifier: GPL-2.0
"""A page that isn't there until somebody says so: a copy from it lasts as long as a process likes.

Source: include/uapi/linux/userfaultfd.h
"""

import ctypes
import fcntl
import mmap
import os
import select
import struct
import threading

SYS_USERFAULTFD, UFFD_API = 323, 0xAA
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_ZEROPAGE = 0xC018AA3F, 0xC020AA00, 0xC020AA04
libc = ctypes.CDLL(None, use_errno=True)


class SlowPage:
    """Memory of one page; reading it waits for resolve()."""

    def __enter__(self):
        # Of a descriptor that blocks, select() says that it is ready, always.
        self.fd = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd")
        fcntl.ioctl(self.fd, UFFDIO_API, bytearray(struct.pack("=QQQ", UFFD_API, 0, 0)))
        libc.mmap.restype = ctypes.c_void_p
        self.address = ctypes.c_void_p(libc.mmap(None, ctypes.c_size_t(4096), 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
                                                 -1, ctypes.c_size_t(0)))
        fcntl.ioctl(self.fd, UFFDIO_REGISTER, bytearray(struct.pack("=QQQQ", self.address.value, 4096, 1, 0)))
        return self

    def wait_for_fault(self):
        """Until somebody waits for the page."""
        select.select([self.fd], [], [])

    def resolve(self):
        """It is a page of zeroes now."""
        fcntl.ioctl(self.fd, UFFDIO_ZEROPAGE, bytearray(struct.pack("=QQQq", self.address.value, 4096, 0, 0)))

    def __exit__(self, *_):
        os.close(self.fd)


class SlowCall:
    """While it is entered, a call that is given the address of such a page is under way; `got` is its result then."""

    def __init__(self, call):
        self.call, self.page, self.got = call, SlowPage(), None

    def run(self):
        """In a thread of its own."""
        self.got = self.call(self.page.address)

    def __enter__(self):
        self.page.__enter__()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        self.page.wait_for_fault()
        return self

    def __exit__(self, *_):
        self.page.resolve()
        self.thread.join()
        self.page.__exit__()
