// SPDX-License-Identifier: GPL-2.0

//! `struct sock`: the protocol's side of a socket, here a UDP or TCP one.
//!
//! C header: `include/net/sock.h`

mod ends;
mod lock;
mod stream;
mod waiting;

use crate::{
    pure::peer::{mapped, Peer},
    sys::{bindings, context::might_sleep},
};
use core::ptr;
pub(super) use ends::BeforeBind;
pub(crate) use ends::Ends;
use kernel::{error::to_result, prelude::*, types::Opaque};
pub(crate) use lock::{wants_gro, LockedSock, SockRef};
pub(crate) use stream::LockedStream;

/// The jiffies of a read that may sleep without end (`MAX_SCHEDULE_TIMEOUT`).
pub(super) const FOREVER: isize = isize::MAX;

/// A `struct sock` of UDP or TCP.
///
/// Methods that say so are for UDP socks only: of streams, which have no channel, nothing calls them.
///
/// # Invariants
///
/// The sock belongs to a socket of family AF_INET or AF_INET6, and of type SOCK_DGRAM and protocol
/// UDP, or type SOCK_STREAM and protocol TCP. It is a full sock: no request, and none in TIME_WAIT.
#[repr(transparent)]
pub(crate) struct Sock(Opaque<bindings::sock>);

// SAFETY: The kernel's functions that are called here take the locks that they need, and fields are
// read and written without tearing, as the kernel does without the lock.
unsafe impl Sync for Sock {}

impl Sock {
    /// # Safety
    ///
    /// `sk` must be a full sock of UDP or TCP that lives at least as long as the result.
    pub(super) unsafe fn from_raw<'a>(sk: *mut bindings::sock) -> &'a Self {
        // SAFETY: `Sock` is transparent. The caller passes such a sock, which lives long enough.
        unsafe { &*sk.cast() }
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::sock {
        self.0.get()
    }

    /// Whether the socket was made for IPv6.
    pub(crate) fn is_ipv6(&self) -> bool {
        // SAFETY: The sock is borrowed, and so valid. The field never changes for an IPv4 sock.
        // IPV6_ADDRFORM can change an IPv6 sock into an IPv4 one, which the volatile read allows
        // for.
        let family =
            unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).__sk_common.skc_family) };
        u32::from(family) == bindings::AF_INET6
    }

    /// Whether it has no peers of IPv4, although it is of IPv6: IPV6_V6ONLY.
    pub(in crate::sys) fn is_ipv6_only(&self) -> bool {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sk_ipv6only(self.as_ptr()) }
    }

    /// Whether both belong to one network namespace.
    pub(crate) fn same_net(&self, other: &Sock) -> bool {
        // SAFETY: Both socks are borrowed, and so valid. Their namespaces don't change.
        unsafe { bindings::kopi_sock_net(self.as_ptr()) == bindings::kopi_sock_net(other.as_ptr()) }
    }

    /// Whether both belong to one user.
    pub(crate) fn same_user(&self, other: &Sock) -> bool {
        // SAFETY: Both socks are borrowed, and so valid.
        unsafe { bindings::kopi_sk_uid(self.as_ptr()) == bindings::kopi_sk_uid(other.as_ptr()) }
    }

    /// Whether it has a socket now: not before accept(), nor after close(). Any context.
    pub(crate) fn has_socket(&self) -> bool {
        // SAFETY: The sock is borrowed, and so valid; the field is read once.
        !unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).sk_socket) }.is_null()
    }

    /// Whether the kernel made it for itself. Any context.
    pub(crate) fn is_kernels(&self) -> bool {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sk_is_kernels(self.as_ptr()) }
    }

    /// The user that made the socket, in the initial user namespace. Any context.
    pub(crate) fn uid(&self) -> u32 {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sk_uid(self.as_ptr()) }
    }

    /// The group that made the socket, in the initial user namespace; the greatest number if the
    /// socket is closed. Any context.
    pub(crate) fn gid(&self) -> u32 {
        let _rcu = kernel::sync::rcu::read_lock();
        // SAFETY: The sock is borrowed, and so valid. RCU, held here, keeps its inode.
        unsafe { bindings::kopi_sk_gid(self.as_ptr()) }
    }

    /// Whether the current process has CAP_NET_ADMIN in the socket's network namespace.
    pub(crate) fn net_admin(&self) -> bool {
        // SAFETY: The sock is valid, and keeps its namespace, which keeps its user namespace.
        unsafe {
            let net = bindings::kopi_sock_net(self.as_ptr());
            bindings::kopi_ns_capable_net_admin(bindings::kopi_net_user_ns(net))
        }
    }

    /// Takes the pending error, if there is one.
    pub(crate) fn take_error(&self) -> Result {
        // SAFETY: The sock is borrowed, and so valid.
        to_result(unsafe { bindings::kopi_sock_error(self.as_ptr()) })
    }

    /// Whether an error is pending.
    pub(crate) fn has_error(&self) -> bool {
        // SAFETY: The sock is valid, and the field is read once.
        unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).sk_err) != 0 }
    }

    /// Makes an error pending, and wakes the tasks that wait for errors.
    pub(crate) fn set_error(&self, error: Error) {
        let errno = error.to_errno().wrapping_neg();
        // SAFETY: The sock is valid. The kernel, too, writes sk_err without a lock.
        unsafe {
            ptr::write_volatile(&raw mut (*self.as_ptr()).sk_err, errno);
            bindings::sk_error_report(self.as_ptr());
        }
    }

    /// Runs `call` without a pending error, and makes the error pending again before it returns.
    /// read_skb() and recvmsg() would otherwise return and consume an error that belongs to the
    /// program.
    pub(crate) fn with_error_saved<R>(&self, call: impl FnOnce() -> R) -> R {
        let pending = self.take_error().err();
        let result = call();
        if let Some(pending) = pending {
            self.set_error(pending);
        }
        result
    }

    /// Whether UDP_CORK is on, or a part of a datagram waits for the rest. UDP socks only.
    pub(crate) fn is_corked(&self) -> bool {
        // SAFETY: The sock is borrowed, and a UDP sock, as said above.
        unsafe { bindings::kopi_udp_is_corked(self.as_ptr()) }
    }

    /// Whether SO_PEEK_OFF is on, so that the program peeks at later datagrams, too.
    pub(crate) fn peeks_on(&self) -> bool {
        // SAFETY: The sock is valid. The kernel writes the field without a lock, and it is read
        // once.
        unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).sk_peek_off) >= 0 }
    }

    /// Whether the receiving side is shut down.
    pub(crate) fn is_receive_shutdown(&self) -> bool {
        // SAFETY: The sock is valid, and the field is read once.
        let shutdown = unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).sk_shutdown) };
        u32::from(shutdown) & bindings::RCV_SHUTDOWN != 0
    }

    /// Bytes that the send buffer is charged for packets. Any context.
    pub(crate) fn sending(&self) -> u32 {
        // The counter includes one for the sock itself.
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sk_wmem_alloc(self.as_ptr()) }.saturating_sub(1)
    }

    /// Whether sending may begin: there is room in the send buffer, no pending error, and no shutdown.
    pub(crate) fn can_send(&self) -> bool {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sock_can_send(self.as_ptr()) }
    }

    /// Whether poll would report it as writable.
    pub(crate) fn is_writeable(&self) -> bool {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sock_writeable(self.as_ptr()) }
    }

    /// Whether no packet is queued. UDP socks only.
    pub(crate) fn is_queue_empty(&self) -> bool {
        // SAFETY: The sock is borrowed, and a UDP sock, as said above.
        unsafe { bindings::kopi_udp_queues_empty(self.as_ptr()) }
    }

    /// Whether the datagram that was peeked at came to another port or device than the sock has at this
    /// moment. UDP socks only.
    pub(crate) fn is_first_of_old_end(&self) -> bool {
        // SAFETY: The sock is borrowed, and a UDP sock, as said above.
        unsafe { bindings::kopi_udp_is_first_of_old_end(self.as_ptr()) }
    }

    /// Whether datagrams are queued that came to a port which the sock doesn't have any more: UDP's abort, by
    /// `ss -K`, takes the port away, and leaves the queue.
    pub(crate) fn has_lost_port(&self) -> bool {
        self.local_port() == 0 && !self.is_stream() && !self.is_queue_empty()
    }

    /// Whether no packet is queued, nor about to be queued by another CPU. UDP socks only.
    pub(crate) fn is_queue_at_rest(&self) -> bool {
        // SAFETY: The sock is borrowed, and a UDP sock, as said above.
        !unsafe { bindings::kopi_udp_is_queueing(self.as_ptr()) } && self.is_queue_empty()
    }

    /// UDP socks only. UDP_SEGMENT: bytes of each datagram into which a sent message is segmented; 0
    /// if it isn't on.
    pub(crate) fn gso_size(&self) -> u32 {
        // SAFETY: The sock is borrowed, and a UDP sock, as said above.
        u32::from(unsafe { bindings::kopi_udp_gso_size(self.as_ptr()) })
    }

    /// Whether received packets are reported with their time stamp.
    pub(crate) fn wants_timestamp(&self) -> bool {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sock_wants_timestamp(self.as_ptr()) }
    }

    /// Whether received packets are reported with their mark.
    pub(crate) fn wants_mark(&self) -> bool {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sock_flag_rcvmark(self.as_ptr()) }
    }

    /// The local port, big-endian; 0 when not bound.
    pub(crate) fn local_port(&self) -> u16 {
        let inet = self.as_ptr().cast::<bindings::inet_sock>();
        // SAFETY: The sock begins with an inet_sock; the field is read once.
        unsafe { ptr::read_volatile(&raw const (*inet).inet_sport) }
    }

    /// The local port and the peer's, to be compared: 0 as soon as others may have the former. Any context.
    #[inline]
    pub(crate) fn ports(&self) -> u32 {
        let common = self.as_ptr().cast::<bindings::sock_common>();
        // SAFETY: The sock is valid, and begins with its sock_common. The kernel may set the field meanwhile, and it is
        // read once.
        unsafe { ptr::read_volatile(&raw const (*common).__bindgen_anon_3.skc_portpair) }
    }

    /// Whether a cgroup's BPF program has to see the source of each received packet. UDP
    /// socks only.
    pub(crate) fn has_receive_hook(&self) -> bool {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe {
            if self.is_ipv6() {
                bindings::kopi_udp6_recvmsg_hooked(self.as_ptr())
            } else {
                bindings::kopi_udp4_recvmsg_hooked(self.as_ptr())
            }
        }
    }
}

impl Sock {
    /// The state that [`Sock::unbind`] restores.
    pub(super) fn before_bind(&self) -> BeforeBind {
        BeforeBind {
            device: self.bound_device(),
            ipv6only: self.is_ipv6_only(),
        }
    }

    /// Undoes a bind() that has succeeded. Process context.
    pub(super) fn unbind(&self, before: BeforeBind) {
        let unbind = if self.is_stream() {
            bindings::kopi_tcp_unbind
        } else {
            bindings::kopi_sk_unbind
        };
        // SAFETY: The sock is borrowed, and of the function's protocol.
        unsafe { unbind(self.as_ptr(), before.device, before.ipv6only) };
    }

    /// Undoes a connect() of UDP that has succeeded, and restores the bound device. Process context.
    pub(super) fn disconnect(&self, device: i32) {
        might_sleep();
        // SAFETY: The sock is borrowed, and a UDP sock, as said above.
        unsafe { bindings::kopi_sk_disconnect(self.as_ptr(), device) };
    }
}

impl Sock {
    /// Addresses and ports. Any context. They are not a consistent snapshot: one may change while
    /// another is read.
    pub(crate) fn ends(&self) -> Ends {
        let mut ends = Ends {
            is_ipv6: self.is_ipv6(),
            local: [0; 16],
            remote: [0; 16],
            local_port: self.local_port(),
            // SAFETY: The sock is borrowed, and so valid.
            remote_port: unsafe { bindings::kopi_sk_dport(self.as_ptr()) },
            ifindex: self.bound_device(),
            protocol: self.protocol(),
            state: self.stream_state(),
        };
        // SAFETY: The sock is a valid one of IP, whose addresses have 16 bytes if it is of IPv6.
        // They may change meanwhile, and are read by volatile accesses.
        unsafe {
            if self.is_ipv6() {
                ends.local = ptr::read_volatile(
                    bindings::kopi_sk_v6_rcv_saddr(self.as_ptr()).cast::<[u8; 16]>(),
                );
                ends.remote = self.remote_ipv6().0;
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

    /// The address and port that one of IPv6 is connected to; port 0 if it isn't. Any context.
    #[inline]
    pub(crate) fn remote_ipv6(&self) -> ([u8; 16], u16) {
        // SAFETY: The sock is a valid one of IP; the address is in its common part in either version. What
        // connect() changes meanwhile is read by volatile accesses.
        unsafe {
            let address = ptr::read_volatile(bindings::kopi_sk_v6_daddr(self.as_ptr()).cast());
            (address, bindings::kopi_sk_dport(self.as_ptr()))
        }
    }

    /// The local address and port, as far as it is bound. Any context.
    pub(crate) fn local_end(&self) -> Peer {
        let ends = self.ends();
        ends.as_peer(ends.local, ends.local_port)
    }

    /// The address that it sends from, where a call names none, as one of IPv6; an any-address if the route
    /// decides. Any context.
    pub(crate) fn source(&self) -> [u8; 16] {
        // SAFETY: The sock is a valid one of IP, so it begins with an inet_sock, and one of IPv6 has its part for
        // that. What bind() and connect() change meanwhile is read by volatile accesses.
        unsafe {
            if self.is_ipv6() {
                return ptr::read_volatile(bindings::kopi_sk_v6_saddr(self.as_ptr()).cast());
            }
            let inet = self.as_ptr().cast::<bindings::inet_sock>();
            mapped(ptr::read_volatile(&raw const (*inet).inet_saddr).to_ne_bytes())
        }
    }

    /// The peer that is reached by the address that a call gives. `None` where that is known by the packet only: what
    /// is for the any-address goes to the address of the device, if the sock is bound to one or has IP_UNICAST_IF
    /// (ip_route_output_key_hash_rcu()). Any context.
    pub(crate) fn reached(&self, peer: Peer) -> Option<Peer> {
        let inet = self.as_ptr().cast::<bindings::inet_sock>();
        // SAFETY: The sock is a valid one of IP, so it begins with an inet_sock; the field is read once.
        let by_device = || unsafe { ptr::read_volatile(&raw const (*inet).uc_index) } != 0;
        if peer.is_anywhere_ipv4() && (self.bound_device() != 0 || by_device()) {
            return None;
        }
        Some(peer.or_own(|| self.source()))
    }

    /// The device that it is bound to, or 0. Any context.
    pub(crate) fn bound_device(&self) -> i32 {
        // SAFETY: The sock is borrowed, and so valid.
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
        // SAFETY: The sock is valid. Other tasks may set the field meanwhile, and it is read once.
        unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).sk_mark) }
    }

    /// Sets SO_MARK, and forgets the route. Any context.
    pub(crate) fn set_mark(&self, mark: u32) {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sk_set_mark(self.as_ptr(), mark) };
    }

    /// SO_PRIORITY. Any context.
    pub(crate) fn priority(&self) -> u32 {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sk_priority(self.as_ptr()) }
    }

    /// Sets SO_PRIORITY. Any context.
    pub(crate) fn set_priority(&self, priority: u32) {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sk_set_priority(self.as_ptr(), priority) };
    }
}
