// SPDX-License-Identifier: GPL-2.0

//! Datagrams that are sent by remembered routes, of either IP version.

use super::{
    bindings,
    errno::enobufs,
    ipv4,
    ipv6,
    region::Bytes,
    sock::Sock,
    socket::Socket, //
};
use crate::pure::abi::Meta;
use core::ptr;
use kernel::{error::Error, prelude::*, sync::rcu};

/// Maximum size in bytes of a datagram with linear memory. For longer ones udp_sendmsg() uses
/// pages, which are available even if memory is fragmented.
pub(super) const LINEAR_MAX: u32 = 8192;

/// A datagram that is about to be sent.
#[derive(Clone, Copy)]
pub(crate) enum Datagram<'a> {
    V4(ipv4::DatagramV4<'a>),
    V6(ipv6::DatagramV6<'a>),
}

/// The options of a sock that affect each datagram of one IP version. They are read once for each
/// batch.
pub(crate) trait Options: Sized {
    /// The address family of its peers, as in [`Meta::family`].
    const FAMILY: u16;
    /// What a route is looked up for.
    type Key: Copy + PartialEq;
    /// A route that is remembered.
    type Route;

    /// The current options of the sock of the flow with this number; `None` if the ordinary sendmsg
    /// has to send its datagrams. Process context.
    fn of(sk: &Sock, flow: u32) -> Option<Self>;

    /// Whether the sock has the mark and the ports with which they were read. A rule may have set another mark
    /// since, connect() other ports, and `ss -K` may have taken both. Any context.
    fn are_current(&self, sk: &Sock) -> bool;

    /// The route cache's key for a datagram that goes where metadata say. `None` if the ordinary
    /// sendmsg has to send it. Any context.
    fn key(&self, meta: &Meta) -> Option<Self::Key>;

    /// A hash of a key.
    fn hash(key: &Self::Key) -> u32;

    /// Looks up the route of a datagram of `sk`. `None` if the ordinary sendmsg has to send the
    /// datagram, or to report the error. Any context.
    fn look_up(sk: &Sock, key: &Self::Key) -> Option<Self::Route>;

    /// Changes whenever all routes that were looked up before stop being valid. Any context.
    fn generation(sk: &Sock) -> i32;

    /// Whether a route is still valid: rules, addresses, devices and other routes may have changed.
    /// Any context.
    fn is_valid(sk: &Sock, route: &Self::Route) -> bool;

    /// A datagram to the connected peer, if the route is still valid. Any context.
    fn to_peer<'a>(&'a self, sk: &Sock, data: Bytes<'a>) -> Option<Datagram<'a>>;

    /// A datagram of a key, by its route.
    fn by<'a>(&'a self, key: &Self::Key, route: &'a Self::Route, data: Bytes<'a>) -> Datagram<'a>;
}

impl<'a> Datagram<'a> {
    /// The payload.
    pub(crate) fn data(&self) -> Bytes<'a> {
        match self {
            Self::V4(datagram) => datagram.data,
            Self::V6(datagram) => datagram.data,
        }
    }

    /// Bytes of the IP packet.
    pub(super) fn whole(&self) -> usize {
        match self {
            Self::V4(datagram) => datagram.whole(),
            Self::V6(datagram) => datagram.whole(),
        }
    }

    /// The dst, to which the route owns a reference.
    pub(super) fn dst(&self) -> *mut bindings::dst_entry {
        match self {
            Self::V4(datagram) => datagram.dst(),
            Self::V6(datagram) => datagram.dst(),
        }
    }

    /// The address of the route's device, which is only compared.
    pub(crate) fn device(&self) -> usize {
        match self {
            Self::V4(datagram) => datagram.device(),
            Self::V6(datagram) => datagram.device(),
        }
    }

    /// Whether it is of IPv6.
    pub(crate) fn is_ipv6(&self) -> bool {
        matches!(self, Self::V6(_))
    }

    /// The mark of the skb.
    pub(super) fn mark(&self) -> u32 {
        match self {
            Self::V4(datagram) => datagram.options.mark,
            Self::V6(datagram) => datagram.options.of_sock.mark,
        }
    }

    /// The flow hash that the skb has from the start, or 0.
    pub(super) fn hash(&self) -> u32 {
        match self {
            Self::V4(_) => 0,
            Self::V6(datagram) => datagram.hash(),
        }
    }

    /// Whether the stack would send it as one packet with linear memory.
    pub(crate) fn fits_route(&self) -> bool {
        match self {
            Self::V4(datagram) => datagram.fits_route(),
            Self::V6(datagram) => datagram.fits_route(),
        }
    }

    /// Whether it may be fragmented, should a hook have it leave by another route.
    fn ignores_df(&self) -> bool {
        match self {
            Self::V4(datagram) => datagram.ignores_df(),
            Self::V6(datagram) => datagram.ignores_df(),
        }
    }

    /// Writes the IP packet, complete with checksums.
    ///
    /// # Safety
    ///
    /// `sk` must be the valid sock of the options. `at` must have room for [`Self::whole`] bytes.
    pub(super) unsafe fn write(&self, sk: *mut bindings::sock, at: *mut u8) {
        // SAFETY: Required of the caller.
        unsafe {
            match self {
                Self::V4(datagram) => datagram.write(sk, at),
                Self::V6(datagram) => datagram.write(at),
            }
        }
    }

    /// Sends it as the ordinary sendmsg would, and returns the same result. `None` if that has to send it, since it
    /// is too long, for instance, or since the send buffer is full: no hook has seen it then. Process context.
    ///
    /// # Safety
    ///
    /// `sk` must be the valid sock of the options, with its socket.
    #[inline(always)]
    pub(super) unsafe fn send(&self, sk: *mut bindings::sock) -> Option<c_int> {
        // SAFETY: Required of the caller. Both functions are IP's for skbs with a route.
        unsafe {
            match self {
                Self::V4(datagram) if datagram.fits_route() => {
                    let (dst, len) = (datagram.dst(), datagram.data.len());
                    give(sk, dst, len, datagram.make(sk), bindings::ip_local_out)
                }
                Self::V6(datagram) if datagram.fits_route() => {
                    let (dst, len) = (datagram.dst(), datagram.data.len());
                    give(sk, dst, len, datagram.make(sk), bindings::ip6_local_out)
                }
                _ => None,
            }
        }
    }

    /// Sends it by the socket that it was made for, and returns sendmsg's result. `None` if sendmsg has to send
    /// it, or to wait for room: hooks haven't seen it then. Process context.
    pub(crate) fn send_by(&self, socket: &Socket) -> Option<c_int> {
        // SAFETY: The socket is in use, and so is its sock.
        unsafe { self.send(socket.sk().as_ptr()) }
    }

    /// Makes an skb around the IP packet that is at `start` of `size` bytes of pages, by the memory
    /// of `skb` if that isn't null; null if memory is short. In an RCU read-side section, which
    /// must last as long as the skb has the route.
    ///
    /// # Safety
    ///
    /// `sk` must be the valid sock of the options. `skb` must be null, or an skb without data that
    /// the caller gives away. The memory must end with room for an skb's shared information.
    pub(super) unsafe fn wrap(
        &self,
        sk: *mut bindings::sock,
        skb: *mut bindings::sk_buff,
        memory: *mut u8,
        size: usize,
        start: usize,
    ) -> *mut bindings::sk_buff {
        let (size, start, whole) = (size as u32, start as u32, self.whole() as u32);
        let (dst, mark, ignores_df) = (self.dst(), self.mark(), self.ignores_df());
        let head = memory.cast();
        // SAFETY: The caller passes a valid sock, memory as the call needs it, and an skb that it
        // doesn't use any more. The route's reference keeps the dst. The new skb is owned.
        unsafe {
            let skb = bindings::kopi_build_frame_skb(
                skb, head, size, start, whole, sk, dst, mark, ignores_df,
            );
            if !skb.is_null() {
                bindings::kopi_skb_set_flow_hash(skb, self.hash());
            }
            skb
        }
    }
}

/// IP's function that sends an skb of a sock by its route.
type LocalOut =
    unsafe extern "C" fn(*mut bindings::net, *mut bindings::sock, *mut bindings::sk_buff) -> c_int;

/// Gives IP the skb of a datagram of `len` bytes, and returns what sendmsg returns; or what it returns
/// since there is no skb: `None` if the send buffer is full.
///
/// # Safety
///
/// `sk` must be valid, with its socket. `dst` must be the valid one of the route, which the caller keeps.
/// `skb` must be owned, and is not used by the caller any more. `local_out` must be that of its IP version.
#[inline(always)]
unsafe fn give(
    sk: *mut bindings::sock,
    dst: *mut bindings::dst_entry,
    len: usize,
    skb: Result<*mut bindings::sk_buff>,
    local_out: LocalOut,
) -> Option<c_int> {
    // SAFETY: As the caller says.
    unsafe {
        Some(match skb {
            Ok(skb) => {
                // Under RCU the skb needs no reference to the dst. Code that keeps it longer takes one.
                let _rcu = rcu::read_lock();
                bindings::kopi_skb_dst_set_noref(skb, dst);
                sent(
                    sk,
                    dst,
                    len,
                    local_out(bindings::kopi_sock_net(sk), sk, skb),
                )
            }
            // Full: UDP waits for room, or counts that there is none.
            Err(error) if error == EAGAIN => return None,
            Err(error) => {
                bindings::kopi_output_inc_stats(sk, dst, bindings::IPSTATS_MIB_OUTDISCARDS as i32);
                report(sk, dst, len, error.to_errno())
            }
        })
    }
}

/// Allocates an skb with `room` bytes for a datagram of a route, charged to the sock's send buffer.
/// Fails with the sock's error, or with `EAGAIN` if the send buffer is full. Process context; doesn't
/// wait.
///
/// # Safety
///
/// `sk` must be valid, with its socket.
#[inline(always)]
pub(super) unsafe fn allocate(
    sk: *mut bindings::sock,
    room: usize,
) -> Result<*mut bindings::sk_buff> {
    // SAFETY: The caller passes a valid sock. Fields that other tasks write meanwhile are read
    // once.
    unsafe {
        let is_well = ptr::read_volatile(&raw const (*sk).sk_err) == 0
            && u32::from(ptr::read_volatile(&raw const (*sk).sk_shutdown))
                & bindings::SEND_SHUTDOWN
                == 0;
        if is_well {
            let skb = bindings::sock_wmalloc(sk, room, 0, (*sk).sk_allocation);
            if !skb.is_null() {
                return Ok(skb);
            }
        }
        // This call finds the error, and marks the socket so that waiting tasks are told of room.
        let dont_wait = 1;
        let mut error = 0;
        let skb = bindings::sock_alloc_send_pskb(sk, room, 0, dont_wait, &mut error, 0);
        if skb.is_null() {
            return Err(Error::from_errno(error));
        }
        Ok(skb)
    }
}

/// Sets what a new skb of a datagram has of either IP version: __ip_make_skb(), __ip6_make_skb().
///
/// # Safety
///
/// `sk` must be valid, and the caller must own `skb`.
#[inline(always)]
pub(super) unsafe fn set_fields(
    sk: *mut bindings::sock,
    skb: *mut bindings::sk_buff,
    has_checksums: bool,
    ignores_df: bool,
) {
    // SAFETY: The caller passes a valid sock, whose priority is read once, and an skb of its own.
    unsafe {
        let fields = (*skb).__bindgen_anon_4.headers.as_mut();
        if has_checksums {
            fields.set_ip_summed(bindings::CHECKSUM_PARTIAL as u8);
        }
        fields.set_ignore_df(u8::from(ignores_df));
        fields.priority = ptr::read_volatile(&raw const (*sk).sk_priority);
    }
}

/// Whether an option is set that only the ordinary sendmsg implements, whatever the IP version.
pub(super) fn is_special(sk: &Sock) -> bool {
    let raw = sk.as_ptr();
    // SAFETY: The sock is borrowed, and a UDP one. A field that system calls change meanwhile is
    // read once.
    unsafe {
        bindings::kopi_inet_has_options(raw)
            || sk.is_corked()
            || bindings::kopi_udp_gso_size(raw) != 0
            || bindings::kopi_sk_no_check_tx(raw)
            || bindings::kopi_sock_flag_txtime(raw)
            || bindings::kopi_sock_flag_localroute(raw)
            || bindings::kopi_sk_has_policy_out(raw)
            || ptr::read_volatile(&raw const (*raw).sk_tsflags) != 0
    }
}

/// Counts a datagram as the end of udp_send_skb() does, or of udp_v6_send_skb() and ip6_send_skb(), by
/// what ip_local_out() returned. Returns 0 or an errno.
///
/// # Safety
///
/// `sk` must be valid. `dst` must be the valid one of the datagram's route.
pub(super) unsafe fn count(
    sk: *mut bindings::sock,
    dst: *mut bindings::dst_entry,
    result: c_int,
) -> c_int {
    // SAFETY: The caller passes a valid sock and dst.
    unsafe {
        let error = match result {
            1.. => bindings::kopi_net_xmit_errno(result),
            error => error,
        };
        if error == 0 {
            bindings::kopi_udp_inc_stats(sk, dst, bindings::UDP_MIB_OUTDATAGRAMS as i32);
            return 0;
        }
        bindings::kopi_output_inc_stats(sk, dst, bindings::IPSTATS_MIB_OUTDISCARDS as i32);
        if error == enobufs().to_errno() && !bindings::kopi_inet_recverr(sk, dst) {
            bindings::kopi_udp_inc_stats(sk, dst, bindings::UDP_MIB_SNDBUFERRORS as i32);
            return 0;
        }
        error
    }
}

/// What udp_sendmsg() or udpv6_sendmsg() returns for `len` bytes, and counts, when it ends with 0 or
/// an errno.
///
/// # Safety
///
/// `sk` must be valid, with its socket. `dst` must be the valid one of the datagram's route.
#[inline]
pub(super) unsafe fn report(
    sk: *mut bindings::sock,
    dst: *mut bindings::dst_entry,
    len: usize,
    error: c_int,
) -> c_int {
    if error == 0 {
        return len as c_int;
    }
    // SAFETY: The caller passes a valid sock with its socket, and a valid dst.
    unsafe {
        if error == enobufs().to_errno() || bindings::kopi_sock_is_nospace(sk) {
            bindings::kopi_udp_inc_stats(sk, dst, bindings::UDP_MIB_SNDBUFERRORS as i32);
        }
    }
    error
}

/// Counts a datagram of `len` bytes, and returns what the ordinary sendmsg returns for it, by what
/// ip_local_out() returned.
///
/// # Safety
///
/// `sk` must be valid, with its socket. `dst` must be the valid one of the datagram's route.
#[inline]
pub(super) unsafe fn sent(
    sk: *mut bindings::sock,
    dst: *mut bindings::dst_entry,
    len: usize,
    result: c_int,
) -> c_int {
    // SAFETY: The caller passes a valid sock with its socket, and a valid dst.
    unsafe { report(sk, dst, len, count(sk, dst, result)) }
}
