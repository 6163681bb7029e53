// SPDX-License-Identifier: GPL-2.0

//! Sleeping until a sock has received something, and waking those who do.

use super::Sock;
use crate::sys::{
    bindings,
    context::might_sleep,
    wait::{WaitQueue, POLL_IN},
};
use core::ptr;
use kernel::{error::to_result, prelude::*, sync::rcu};

impl Sock {
    /// How long a read may sleep: SO_RCVTIMEO in jiffies, [`FOREVER`] without one, or 0 if it may not sleep.
    pub(crate) fn receive_timeout(&self, nonblocking: bool) -> isize {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sock_rcvtimeo(self.as_ptr(), nonblocking) }
    }

    /// UDP socks only. Sleeps until a datagram may be queued, or until it is woken and `is_over` holds, for at most
    /// `timeout` jiffies, and leaves the rest of that time in `timeout`. Returns `false` if no more datagrams will
    /// come. Errors are those of recvmsg. Process context.
    pub(crate) fn wait_for_datagrams<F: Fn() -> bool>(
        &self,
        timeout: &mut isize,
        is_over: F,
    ) -> Result<bool> {
        might_sleep();
        self.busy_poll(false, || !self.is_queue_empty() || is_over());
        let asked = ptr::from_ref(&is_over).cast_mut().cast();
        // SAFETY: The sock is borrowed, and a UDP sock, as said above. The function is called only within the call,
        // with `is_over`, which outlives it.
        let result =
            unsafe { bindings::kopi_udp_wait(self.as_ptr(), timeout, Some(holds::<F>), asked) };
        to_result(result)?;
        Ok(result > 0)
    }

    /// The error of a read that a signal interrupted and that could sleep for `timeout` jiffies.
    pub(crate) fn interrupted(&self, timeout: isize) -> Error {
        // SAFETY: The function only computes on its argument.
        Error::from_errno(unsafe { bindings::kopi_sock_intr_errno(timeout) })
    }

    /// Polls the NIC's queue by which packets came, as SO_BUSY_POLL says, until `done`, or until
    /// its time is over; only once if `nonblocking`. Process context.
    pub(crate) fn busy_poll<F: Fn() -> bool>(&self, nonblocking: bool, done: F) {
        // SAFETY: The sock is valid. `busy_poll_end::<F>` is called only within the second call,
        // with `poll`, a `BusyPoll<F>` that outlives the call.
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

    /// Wakes the tasks that wait for data on the socket's own queue. Any context but hard
    /// interrupts.
    pub(crate) fn wake_readers(&self) {
        self.with_queue(|queue| queue.wake(POLL_IN));
    }

    /// Wakes all tasks that wait for data on the socket's own queue, also those of which each gets other data. Process
    /// context, with the socket.
    pub(crate) fn wake_all_readers(&self) {
        self.with_queue(|queue| queue.wake_all(POLL_IN));
    }

    /// Calls `act` with the socket's own queue, unless close() has taken the socket away.
    fn with_queue(&self, act: impl FnOnce(&WaitQueue)) {
        let _rcu = rcu::read_lock();
        // SAFETY: The sock is valid. Its pointer to the queue is read once, and is null if close()
        // has detached the socket meanwhile. RCU, held here, keeps the queue.
        let queue = unsafe { WaitQueue::from_raw(bindings::kopi_sk_sleep(self.as_ptr())) };
        if let Some(queue) = queue {
            act(queue);
        }
    }

    /// Sends SIGIO for received data to the process that asked for it.
    pub(crate) fn signal_io(&self) {
        // SAFETY: The sock is borrowed, and so valid.
        unsafe { bindings::kopi_sk_wake_async(self.as_ptr()) };
    }
}

type LoopEnd = Option<unsafe extern "C" fn(*mut c_void, usize) -> bool>;

/// The argument of a running [`Sock::busy_poll`].
struct BusyPoll<'a, F> {
    sk: &'a Sock,
    done: F,
}

/// # Safety
///
/// Only the kernel may call it, as the end of a loop that was given a `BusyPoll<F>`.
unsafe extern "C" fn busy_poll_end<F: Fn() -> bool>(poll: *mut c_void, start: usize) -> bool {
    // SAFETY: The loop passes the `BusyPoll<F>` that it was given, which outlives the loop.
    let poll = unsafe { &*poll.cast_const().cast::<BusyPoll<'_, F>>() };
    // SAFETY: The sock is borrowed, and so valid.
    (poll.done)() || unsafe { bindings::kopi_sk_busy_loop_timeout(poll.sk.as_ptr(), start) }
}

/// # Safety
///
/// `condition` must be a valid `F`.
unsafe extern "C" fn holds<F: Fn() -> bool>(condition: *mut c_void) -> bool {
    // SAFETY: Required of the caller.
    unsafe { (*condition.cast_const().cast::<F>())() }
}
