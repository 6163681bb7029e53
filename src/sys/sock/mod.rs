// SPDX-License-Identifier: GPL-2.0

//! `struct sock`: the protocol's side of a socket, here always a UDP one.
//!
//! C header: `include/net/sock.h`

mod ends;
mod lock;

use crate::{
    pure::rule::Peer,
    sys::{
        bindings,
        wait::{WaitQueue, POLL_IN},
    },
};
use core::ptr;
pub(super) use ends::BeforeBind;
pub(crate) use ends::Ends;
use kernel::{error::to_result, prelude::*, types::Opaque};
pub(crate) use lock::{wants_gro, LockedSock, SockRef};

/// A UDP `struct sock`.
///
/// # Invariants
///
/// Of a socket of family AF_INET or AF_INET6, type SOCK_DGRAM and protocol UDP.
#[repr(transparent)]
pub(crate) struct Sock(Opaque<bindings::sock>);

// SAFETY: The kernel's functions that are called here lock what they need.
unsafe impl Sync for Sock {}

impl Sock {
    /// # Safety
    ///
    /// `sk` must be a UDP sock that lives at least as long as the result.
    pub(super) unsafe fn from_raw<'a>(sk: *mut bindings::sock) -> &'a Self {
        // SAFETY: `Sock` is transparent; the rest is the caller's to see to.
        unsafe { &*sk.cast() }
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::sock {
        self.0.get()
    }

    /// Whether the socket was made for IPv6.
    pub(crate) fn is_ipv6(&self) -> bool {
        // SAFETY: A valid sock; the field never changes for an IPv4 sock. IPV6_ADDRFORM can turn
        // an IPv6 one into IPv4, which the volatile read allows for.
        let family =
            unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).__sk_common.skc_family) };
        u32::from(family) == bindings::AF_INET6
    }

    /// Whether both are of one network namespace.
    pub(crate) fn same_net(&self, other: &Sock) -> bool {
        // SAFETY: Both are valid socks, whose namespace doesn't change.
        unsafe { bindings::kopi_sock_net(self.as_ptr()) == bindings::kopi_sock_net(other.as_ptr()) }
    }

    /// Whether both are of one user.
    pub(crate) fn same_user(&self, other: &Sock) -> bool {
        // SAFETY: Both are valid socks.
        unsafe { bindings::kopi_sk_uid(self.as_ptr()) == bindings::kopi_sk_uid(other.as_ptr()) }
    }

    /// Whether the current process has CAP_NET_ADMIN in the socket's network namespace.
    pub(crate) fn net_admin(&self) -> bool {
        // SAFETY: A valid sock, which keeps its namespace, which keeps its user namespace.
        unsafe {
            let net = bindings::kopi_sock_net(self.as_ptr());
            bindings::kopi_ns_capable_net_admin(bindings::kopi_net_user_ns(net))
        }
    }

    /// Takes the pending error, if there is one.
    pub(crate) fn take_error(&self) -> Result {
        // SAFETY: A valid sock.
        to_result(unsafe { bindings::kopi_sock_error(self.as_ptr()) })
    }

    /// Whether an error is pending.
    pub(crate) fn has_error(&self) -> bool {
        // SAFETY: A valid sock; the field is read once.
        unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).sk_err) != 0 }
    }

    /// Leaves an error for the program, and wakes the tasks that wait for it.
    pub(crate) fn set_error(&self, error: Error) {
        let errno = error.to_errno().wrapping_neg();
        // SAFETY: A valid sock; as sk_err is written elsewhere, without a lock.
        unsafe {
            ptr::write_volatile(&raw mut (*self.as_ptr()).sk_err, errno);
            bindings::sk_error_report(self.as_ptr());
        }
    }

    /// Calls what would give a pending error in place of what it is to give; the error, which is the
    /// program's to get, is there again before anybody knows the result.
    pub(crate) fn with_error_saved<R>(&self, call: impl FnOnce() -> R) -> R {
        let pending = self.take_error().err();
        let result = call();
        if let Some(pending) = pending {
            self.set_error(pending);
        }
        result
    }

    /// Whether UDP_CORK is on, or part of a datagram waits for the rest.
    pub(crate) fn is_corked(&self) -> bool {
        // SAFETY: A valid UDP sock.
        unsafe { bindings::kopi_udp_is_corked(self.as_ptr()) }
    }

    /// Whether SO_PEEK_OFF is on: the program can peek behind the first datagram.
    pub(crate) fn peeks_on(&self) -> bool {
        // SAFETY: A valid sock; written without a lock elsewhere, too.
        unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).sk_peek_off) >= 0 }
    }

    /// Whether the receiving side is shut down.
    pub(crate) fn is_receive_shutdown(&self) -> bool {
        // SAFETY: A valid sock; the field is read once.
        let shutdown = unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).sk_shutdown) };
        u32::from(shutdown) & bindings::RCV_SHUTDOWN != 0
    }

    /// Bytes that it is charged for packets in flight. Any context.
    pub(crate) fn sending(&self) -> u32 {
        // SAFETY: A valid sock. One is what the sock itself has.
        unsafe { bindings::kopi_sk_wmem_alloc(self.as_ptr()) }.saturating_sub(1)
    }

    /// Whether poll would call it writable.
    pub(crate) fn is_writeable(&self) -> bool {
        // SAFETY: A valid sock.
        unsafe { bindings::kopi_sock_writeable(self.as_ptr()) }
    }

    /// Whether no packet is queued.
    pub(crate) fn is_queue_empty(&self) -> bool {
        // SAFETY: A valid UDP sock.
        unsafe { bindings::kopi_udp_queues_empty(self.as_ptr()) }
    }

    /// How long a read may sleep: SO_RCVTIMEO in jiffies, or 0 when it may not.
    pub(crate) fn receive_timeout(&self, nonblocking: bool) -> isize {
        // SAFETY: A valid sock.
        unsafe { bindings::kopi_sock_rcvtimeo(self.as_ptr(), nonblocking) }
    }

    /// Sleeps until a datagram may be queued, for `timeout` jiffies at most, of which it leaves what is left:
    /// `false` if no more will come. Errors as recvmsg's. Process context.
    pub(crate) fn wait_for_datagrams(&self, timeout: &mut isize) -> Result<bool> {
        self.busy_poll(false, || !self.is_queue_empty());
        // SAFETY: A valid UDP sock.
        let result = unsafe { bindings::kopi_udp_wait(self.as_ptr(), timeout) };
        to_result(result)?;
        Ok(result > 0)
    }

    /// What a read that a signal broke off gives, if it could sleep for `timeout` jiffies.
    pub(crate) fn interrupted(&self, timeout: isize) -> Error {
        // SAFETY: Computes on its argument only.
        Error::from_errno(unsafe { bindings::kopi_sock_intr_errno(timeout) })
    }

    /// Polls the NIC's queue that delivered its packets, as SO_BUSY_POLL says: until `done`, or its time is
    /// over; once, if it may not take time. Process context.
    pub(crate) fn busy_poll<F: Fn() -> bool>(&self, nonblocking: bool, done: F) {
        // SAFETY: A valid sock. The function is called within the second call only, with the
        // argument that goes with it.
        unsafe {
            if !bindings::kopi_sk_can_busy_loop(self.as_ptr()) {
                return;
            }
            let poll = BusyPoll { sk: self, done };
            let end: LoopEnd = if nonblocking {
                None
            } else {
                Some(busy_poll_end::<F>)
            };
            bindings::kopi_sk_busy_loop(self.as_ptr(), end, ptr::from_ref(&poll).cast_mut().cast());
        }
    }

    /// UDP_SEGMENT: bytes of each datagram that what is sent is cut into; 0 if it isn't.
    pub(crate) fn gso_size(&self) -> u32 {
        // SAFETY: A valid UDP sock.
        u32::from(unsafe { bindings::kopi_udp_gso_size(self.as_ptr()) })
    }

    /// Whether packets are to carry the time of their arrival.
    pub(crate) fn wants_timestamp(&self) -> bool {
        // SAFETY: A valid sock.
        unsafe { bindings::kopi_sock_flag_rcvtstamp(self.as_ptr()) }
    }

    /// Whether packets are to carry their mark.
    pub(crate) fn wants_mark(&self) -> bool {
        // SAFETY: A valid sock.
        unsafe { bindings::kopi_sock_flag_rcvmark(self.as_ptr()) }
    }

    /// The local port, big-endian; 0 when not bound.
    pub(crate) fn local_port(&self) -> u16 {
        let inet = self.as_ptr().cast::<bindings::inet_sock>();
        // SAFETY: A UDP sock begins with an inet_sock; the field is read once.
        unsafe { ptr::read_volatile(&raw const (*inet).inet_sport) }
    }

    /// Whether a cgroup's program is to see the source of each packet that is received.
    pub(crate) fn has_receive_hook(&self) -> bool {
        // SAFETY: A valid sock.
        unsafe {
            if self.is_ipv6() {
                bindings::kopi_udp6_recvmsg_hooked(self.as_ptr())
            } else {
                bindings::kopi_udp4_recvmsg_hooked(self.as_ptr())
            }
        }
    }

    /// Wakes the tasks that wait for data on the socket's own queue. Any context but hard interrupts.
    pub(crate) fn wake_readers(&self) {
        let _rcu = kernel::sync::rcu::read_lock();
        // SAFETY: A valid sock. Its pointer to the queue is read once, and is null when close() has
        // taken the socket away meanwhile; the queue lives on for a grace period.
        let queue = unsafe { WaitQueue::from_raw(bindings::kopi_sk_sleep(self.as_ptr())) };
        if let Some(queue) = queue {
            queue.wake(POLL_IN);
        }
    }

    /// Sends SIGIO to the owner that asked for it: data have arrived.
    pub(crate) fn signal_io(&self) {
        // SAFETY: A valid sock.
        unsafe { bindings::kopi_sk_wake_async(self.as_ptr()) };
    }
}

type LoopEnd = Option<unsafe extern "C" fn(*mut c_void, usize) -> bool>;

/// A [`Sock::busy_poll`] that goes on.
struct BusyPoll<'a, F> {
    sk: &'a Sock,
    done: F,
}

/// # Safety
///
/// To be called by the kernel only, as the end of a loop that was given a `BusyPoll<F>`.
unsafe extern "C" fn busy_poll_end<F: Fn() -> bool>(poll: *mut c_void, start: usize) -> bool {
    // SAFETY: As required of the caller.
    let poll = unsafe { &*poll.cast_const().cast::<BusyPoll<'_, F>>() };
    // SAFETY: A valid sock.
    (poll.done)() || unsafe { bindings::kopi_sk_busy_loop_timeout(poll.sk.as_ptr(), start) }
}

impl Sock {
    /// What there is to be put back by [`Sock::unbind`].
    pub(super) fn before_bind(&self) -> BeforeBind {
        BeforeBind {
            device: self.bound_device(),
            // SAFETY: A valid sock.
            ipv6only: unsafe { bindings::kopi_sk_ipv6only(self.as_ptr()) },
        }
    }

    /// Takes back a bind() that has succeeded. Process context.
    pub(super) fn unbind(&self, before: BeforeBind) {
        // SAFETY: A valid UDP sock.
        unsafe { bindings::kopi_sk_unbind(self.as_ptr(), before.device, before.ipv6only) };
    }

    /// Takes back a connect() that has succeeded; the device is the one from before. Process context.
    pub(super) fn disconnect(&self, device: i32) {
        // SAFETY: A valid UDP sock.
        unsafe { bindings::kopi_sk_disconnect(self.as_ptr(), device) };
    }
}

impl Sock {
    /// Addresses and ports. Any context; one may change while another is read.
    pub(crate) fn ends(&self) -> Ends {
        let mut ends = Ends {
            is_ipv6: self.is_ipv6(),
            local: [0; 16],
            remote: [0; 16],
            local_port: self.local_port(),
            // SAFETY: A valid UDP sock.
            remote_port: unsafe { bindings::kopi_sk_dport(self.as_ptr()) },
            ifindex: self.bound_device(),
        };
        // SAFETY: A valid UDP sock. Addresses of IPv6 are copied byte by byte.
        unsafe {
            if self.is_ipv6() {
                ends.local = ptr::read_volatile(
                    bindings::kopi_sk_v6_rcv_saddr(self.as_ptr()).cast::<[u8; 16]>(),
                );
                ends.remote = ptr::read_volatile(bindings::kopi_sk_v6_daddr(self.as_ptr()).cast());
            } else {
                let address = |of: u32| {
                    let [a, b, c, d] = of.to_ne_bytes();
                    [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
                };
                ends.local = address(bindings::kopi_sk_rcv_saddr(self.as_ptr()));
                ends.remote = address(bindings::kopi_sk_daddr(self.as_ptr()));
            }
        }
        ends
    }

    /// The peer, if it is connected. Any context.
    pub(crate) fn peer(&self) -> Option<Peer> {
        let ends = self.ends();
        (ends.remote_port != 0).then(|| ends.as_peer(ends.remote, ends.remote_port))
    }

    /// This side's address and port, as far as it is bound. Any context.
    pub(crate) fn local_end(&self) -> Peer {
        let ends = self.ends();
        ends.as_peer(ends.local, ends.local_port)
    }

    /// The device that it is bound to, or 0. Any context.
    pub(crate) fn bound_device(&self) -> i32 {
        // SAFETY: A valid sock.
        unsafe { bindings::kopi_sk_bound_dev_if(self.as_ptr()) }
    }

    /// The name of the device that it is bound to. Any context.
    pub(crate) fn bound_device_name(&self) -> Option<[u8; 16]> {
        match self.bound_device() {
            0 => None,
            ifindex => self.net().device_name(ifindex),
        }
    }

    /// SO_MARK. Any context.
    pub(crate) fn mark(&self) -> u32 {
        // SAFETY: A valid sock; others may set it meanwhile.
        unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).sk_mark) }
    }

    /// Sets SO_MARK, and forgets the route. Any context.
    pub(crate) fn set_mark(&self, mark: u32) {
        // SAFETY: A valid sock.
        unsafe { bindings::kopi_sk_set_mark(self.as_ptr(), mark) };
    }

    /// SO_PRIORITY. Any context.
    pub(crate) fn priority(&self) -> u32 {
        // SAFETY: A valid sock.
        unsafe { bindings::kopi_sk_priority(self.as_ptr()) }
    }

    /// Sets SO_PRIORITY. Any context.
    pub(crate) fn set_priority(&self, priority: u32) {
        // SAFETY: A valid sock.
        unsafe { bindings::kopi_sk_set_priority(self.as_ptr(), priority) };
    }
}
