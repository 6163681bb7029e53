// SPDX-License-Identifier: GPL-2.0

//! What only TCP socks have: a state, an end that others can make, pacing.

use super::Sock;
use crate::sys::{bindings, context::might_sleep};
use core::ptr;
use kernel::{error::to_result, prelude::*};

/// What a stream has sent and received.
pub(crate) use bindings::kopi_tcp_counts as StreamCounts;

impl Sock {
    /// IPPROTO_UDP or IPPROTO_TCP, which MPTCP and SMC speak, too. Any context.
    pub(crate) fn protocol(&self) -> u8 {
        // SAFETY: The sock is borrowed, and so valid. The field is read once: MPTCP changes it when it
        // falls back to TCP.
        let protocol = unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).sk_protocol) };
        if u32::from(protocol) == bindings::IPPROTO_UDP {
            bindings::IPPROTO_UDP as u8
        } else {
            bindings::IPPROTO_TCP as u8
        }
    }

    /// Whether it is a TCP sock. Any context.
    pub(crate) fn is_stream(&self) -> bool {
        i32::from(self.protocol()) == bindings::IPPROTO_TCP as i32
    }

    fn state(&self) -> u8 {
        // SAFETY: The sock is borrowed, and so valid. The field is read once.
        unsafe { ptr::read_volatile(&raw const (*self.as_ptr()).__sk_common.skc_state) }
    }

    /// The state of a TCP sock, as `net/tcp_states.h` numbers them. Any context.
    pub(crate) fn stream_state(&self) -> Option<u8> {
        self.is_stream().then(|| self.state())
    }

    /// Whether it waits for connections. Any context.
    pub(crate) fn is_listening(&self) -> bool {
        self.is_stream() && u32::from(self.state()) == bindings::TCP_LISTEN
    }

    /// Keeps others from taking the connection over by its descriptor: `EBUSY` if one has done so.
    /// TCP socks only. Process context.
    pub(in crate::sys) fn occupy(&self) -> Result {
        might_sleep();
        // SAFETY: The sock is borrowed, and a TCP sock, as said above.
        to_result(unsafe { bindings::kopi_tcp_occupy(self.as_ptr()) })
    }

    /// Locks a TCP sock meanwhile. TCP socks only. Process context; a process can make this last, so
    /// nothing that others wait for may be held.
    pub(crate) fn with_stream_locked<R>(&self, act: impl FnOnce(&LockedStream<'_>) -> R) -> R {
        might_sleep();
        // SAFETY: The sock is borrowed, and a TCP sock, as said above. It stays locked while
        // `LockedStream` is used.
        unsafe {
            bindings::kopi_lock_sock(self.as_ptr());
            let result = act(&LockedStream::from_locked(self));
            bindings::release_sock(self.as_ptr());
            result
        }
    }

    /// What a TCP sock has sent and received; nothing of others. Any context.
    pub(crate) fn stream_counts(&self) -> StreamCounts {
        let mut counts = StreamCounts {
            tx_bytes: 0,
            rx_bytes: 0,
            tx_segments: 0,
            rx_segments: 0,
        };
        if self.is_stream() {
            // SAFETY: The sock is borrowed, and a TCP sock.
            unsafe { bindings::kopi_tcp_counts(self.as_ptr(), &mut counts) };
        }
        counts
    }
}

/// A locked TCP sock. Process context.
///
/// # Invariants
///
/// The sock is a TCP sock, and the current task has locked it, as long as this value lives.
pub(crate) struct LockedStream<'a>(&'a Sock);

impl<'a> LockedStream<'a> {
    /// # Safety
    ///
    /// The sock must be a TCP sock that the current task has locked for `'a`.
    pub(in crate::sys) unsafe fn from_locked(sk: &'a Sock) -> Self {
        // INVARIANT: As required of the caller.
        Self(sk)
    }

    /// The sock.
    pub(crate) fn sk(&self) -> &Sock {
        self.0
    }

    /// Gives up what [`Sock::occupy`] has occupied, if it has.
    pub(in crate::sys) fn vacate(&self) {
        // SAFETY: The sock is a locked TCP sock, by the invariants.
        unsafe { bindings::kopi_tcp_vacate(self.0.as_ptr()) };
    }

    /// Ends the connection with an error that the program gets; the peer gets a RST.
    pub(crate) fn abort(&self, error: Error) {
        let errno = error.to_errno().wrapping_neg();
        // SAFETY: The sock is a locked TCP sock, by the invariants.
        unsafe { bindings::kopi_tcp_abort_locked(self.0.as_ptr(), errno) };
    }

    /// SO_MAX_PACING_RATE, in bytes a second; `u64::MAX` is no limit.
    pub(crate) fn max_pacing_rate(&self) -> u64 {
        // SAFETY: The sock is locked, by the invariants.
        unsafe { bindings::kopi_sk_max_pacing_rate(self.0.as_ptr()) as u64 }
    }

    /// Sets SO_MAX_PACING_RATE.
    pub(crate) fn set_max_pacing_rate(&self, rate: u64) {
        // SAFETY: The sock is locked, by the invariants.
        unsafe { bindings::kopi_sk_set_max_pacing_rate(self.0.as_ptr(), rate as usize) };
    }
}
