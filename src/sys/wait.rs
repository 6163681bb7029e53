// SPDX-License-Identifier: GPL-2.0

//! Wait queues, for poll and for sleeping.
//!
//! C header: `include/linux/wait.h`

use super::{
    bindings,
    context::{might_sleep, smp_mb},
    socket::Socket,
};
use core::{cell::Cell, marker::PhantomData, mem::ManuallyDrop, ptr};
use kernel::{
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc, //
    },
    types::Opaque, //
};

/// `POLLIN | POLLRDNORM`.
pub(crate) const POLL_IN: u32 = bindings::KOPI_CONST_EPOLLIN;
/// `POLLOUT | POLLWRNORM`.
pub(crate) const POLL_OUT: u32 = bindings::KOPI_CONST_EPOLLOUT;
/// `POLLERR`.
const POLL_ERR: u32 = bindings::KOPI_CONST_EPOLLERR;
/// `POLLWRBAND`.
pub(crate) const POLL_WRBAND: u32 = bindings::KOPI_CONST_EPOLLWRBAND;

/// The arguments of a `poll` operation.
///
/// # Invariants
///
/// The pointers are the arguments of a running call of `poll`.
pub(crate) struct PollTable {
    file: *mut bindings::file,
    table: *mut bindings::poll_table_struct,
}

impl PollTable {
    /// # Safety
    ///
    /// The pointers must be the arguments of a `poll` operation that outlasts the result.
    pub(super) unsafe fn from_raw(
        file: *mut bindings::file,
        table: *mut bindings::poll_table_struct,
    ) -> Self {
        Self { file, table }
    }
}

/// A wait queue.
#[pin_data]
#[repr(transparent)]
pub(crate) struct WaitQueue {
    #[pin]
    head: Opaque<bindings::wait_queue_head_t>,
}

// SAFETY: A wait queue is not bound to a task.
unsafe impl Send for WaitQueue {}
// SAFETY: The kernel's functions for wait queues take the queue's own lock.
unsafe impl Sync for WaitQueue {}

impl WaitQueue {
    /// Makes an empty queue.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            // SAFETY: `slot` is memory for a wait queue head, which stays where it is.
            head <- Opaque::ffi_init(|slot| unsafe { bindings::kopi_init_waitqueue_head(slot) }),
        })
    }

    /// A queue of the kernel's, or `None` for null.
    ///
    /// # Safety
    ///
    /// Unless it is null, `head` must be initialised and live at least as long as the result is
    /// used.
    pub(super) unsafe fn from_raw<'a>(head: *mut bindings::wait_queue_head_t) -> Option<&'a Self> {
        // SAFETY: `WaitQueue` is transparent. The caller passes null, or an initialised queue that
        // lives long enough.
        unsafe { head.cast::<Self>().as_ref() }
    }

    /// Registers the caller of poll to be woken by [`WaitQueue::wake`].
    ///
    /// The caller of poll holds the file open, and the file's flow keeps this queue.
    pub(crate) fn register(&self, table: &PollTable) {
        // SAFETY: `head` is initialised. `table` has the arguments of a running call, by its
        // invariants.
        unsafe { bindings::kopi_poll_wait(table.file, self.head.get(), table.table) };
    }

    /// Wakes the tasks that wait for any of `events`. Any context.
    pub(crate) fn wake(&self, events: u32) {
        // As in sock_def_readable(), all pollers are woken, and one exclusive sleeper.
        self.wake_sleepers(events, 1);
    }

    /// The same, and all exclusive sleepers. Any context.
    pub(crate) fn wake_all(&self, events: u32) {
        self.wake_sleepers(events, 0);
    }

    /// Wakes all that aren't exclusive, and so many that are; 0 for all.
    fn wake_sleepers(&self, events: u32, exclusive: c_int) {
        // SAFETY: `head` is initialised.
        if !unsafe { bindings::kopi_wq_has_sleeper(self.head.get()) } {
            return;
        }
        let key = events as usize as *mut c_void;
        // SAFETY: `head` is initialised; the key is a poll mask, as poll's wake functions expect.
        unsafe { bindings::__wake_up(self.head.get(), bindings::TASK_NORMAL, exclusive, key) };
    }

    /// Sleeps until `condition` holds, for at most `timeout` jiffies. Process context.
    ///
    /// The condition is checked when this queue is woken for `events`, and when the socket's own
    /// queue is woken for packets, errors or a shutdown. `EAGAIN` after the timeout, `ERESTARTSYS`
    /// on a signal.
    pub(crate) fn wait(
        &self,
        socket: &Socket,
        events: u32,
        timeout: isize,
        mut condition: impl FnMut() -> bool,
    ) -> Result {
        might_sleep();
        let mut left = timeout;
        let own = WaitEntry::new(self.head.get(), events);
        // SAFETY: A socket's own queue is initialised, and lives as long as the socket.
        let queue = unsafe { &raw mut (*socket.as_ptr()).wq.wait };
        // Without POLLOUT: each packet that was sent reports room in the send buffer.
        let socket = WaitEntry::new(queue, POLL_IN | POLL_ERR);
        loop {
            let signal = own.prepare() | socket.prepare();
            if condition() {
                return Ok(());
            }
            // First: to a call that doesn't sleep a signal doesn't matter, as to UDP's recvmsg().
            if left == 0 {
                return Err(EAGAIN);
            }
            if signal != 0 {
                return Err(ERESTARTSYS);
            }
            // SAFETY: The caller is in process context, as this function requires.
            left = unsafe { bindings::schedule_timeout(left) };
            // Before the entries are queued again, which usually isn't needed.
            if condition() {
                return Ok(());
            }
        }
    }
}

impl WaitQueue {
    /// Makes a kernel thread sleep until `condition` holds. The condition is checked when this
    /// queue is woken, and when the thread is told to stop. Process context.
    pub(crate) fn sleep_until(&self, mut condition: impl FnMut() -> bool) {
        might_sleep();
        let entry = WaitEntry::new(self.head.get(), u32::MAX);
        loop {
            entry.prepare();
            if condition() {
                return;
            }
            // SAFETY: The caller is in process context, as this function requires.
            unsafe { bindings::schedule_timeout(isize::MAX) };
        }
    }
}

/// The current task's entry of a wait queue, which it leaves when it is dropped.
#[repr(C)]
struct WaitEntry {
    /// First, so that [`wake_for_events`] can cast a pointer to it.
    entry: Opaque<bindings::wait_queue_entry>,
    queue: *mut bindings::wait_queue_head_t,
    events: u32,
    prepared: Cell<bool>,
}

impl WaitEntry {
    /// An entry for the queue, which must outlive it, to be woken for any of `events`. It is queued
    /// by [`WaitEntry::prepare`].
    fn new(queue: *mut bindings::wait_queue_head_t, events: u32) -> Self {
        Self {
            entry: Opaque::uninit(),
            queue,
            events,
            prepared: Cell::new(false),
        }
    }

    /// Queues the entry if it isn't queued, and prepares the task to sleep. Returns 0 unless a
    /// signal is pending. The entry must not move after this.
    fn prepare(&self) -> c_long {
        // SAFETY: `wait` and `sleep_until`, the only callers, hold the entry in a local variable
        // that they don't move. Its queue lives longer. The entry is initialised before it is
        // queued.
        unsafe {
            if !self.prepared.replace(true) {
                bindings::init_wait_entry(self.entry.get(), 0);
                (*self.entry.get()).func = Some(wake_for_events);
            }
            bindings::prepare_to_wait_event(
                self.queue,
                self.entry.get(),
                bindings::TASK_INTERRUPTIBLE as c_int,
            )
        }
    }
}

impl Drop for WaitEntry {
    fn drop(&mut self) {
        if self.prepared.get() {
            // SAFETY: `prepare` initialised the entry and put it on the queue, which still lives.
            unsafe { bindings::finish_wait(self.queue, self.entry.get()) };
        }
    }
}

/// Wakes the task, unless its queue is woken for other events, as receiver_wake_function() does.
///
/// # Safety
///
/// Only the kernel may call it, as the function of a queued [`WaitEntry`].
unsafe extern "C" fn wake_for_events(
    entry: *mut bindings::wait_queue_entry,
    mode: c_uint,
    flags: c_int,
    key: *mut c_void,
) -> c_int {
    // SAFETY: `entry` is the first field of an `WaitEntry`. The caller holds the queue's lock,
    // which the entry takes to leave the queue before it is dropped, so it lives through the call.
    unsafe {
        let events = (*entry.cast::<WaitEntry>()).events;
        if !key.is_null() && key as usize as u32 & events == 0 {
            return 0;
        }
        bindings::autoremove_wake_function(entry, mode, flags, key)
    }
}

/// A sender that waits until a socket's send buffer has room.
pub(crate) trait WriteSpaceWaiter: Send + Sync + 'static {
    /// The send buffer has room. Called under the lock of a wait queue, possibly with interrupts
    /// off.
    fn on_write_space(this: &Arc<Self>);
}

/// A sender's entry in the wait queue of a socket, which reports room in the send buffer.
///
/// # Invariants
///
/// `entry` is initialised. It is on no queue, or on `queue`, which lives as long as it is there.
#[pin_data]
pub(crate) struct WriteSpaceEntry<T: WriteSpaceWaiter> {
    #[pin]
    entry: Opaque<bindings::wait_queue_entry>,
    queue: Atomic<*mut bindings::wait_queue_head_t>,
    _sender: PhantomData<Arc<T>>,
}

// SAFETY: An entry is not bound to a task, and its sender is `Send` and `Sync`.
unsafe impl<T: WriteSpaceWaiter> Send for WriteSpaceEntry<T> {}
// SAFETY: The queue's lock guards a queued entry. `join` requires that no other task uses one that
// is on no queue.
unsafe impl<T: WriteSpaceWaiter> Sync for WriteSpaceEntry<T> {}

impl<T: WriteSpaceWaiter> WriteSpaceEntry<T> {
    /// An entry that is on no queue.
    pub(crate) fn new() -> impl PinInit<Self> {
        // INVARIANT: Initialised, and on no queue.
        pin_init!(Self {
            // SAFETY: `slot` is memory for an entry, which stays where it is.
            entry <- Opaque::ffi_init(|slot| unsafe {
                bindings::kopi_init_wait_entry_func(slot, Some(on_write_space::<T>));
            }),
            queue: Atomic::new(ptr::null_mut()),
            _sender: PhantomData,
        })
    }

    /// Queues the entry: [`WriteSpaceWaiter::on_write_space`] is called once, when the socket's send
    /// buffer gets room. The caller checks after this call whether the send buffer already has
    /// room. Process context.
    ///
    /// # Safety
    ///
    /// The entry must be a part of the sender, and on no queue. No other task may call `join` or
    /// `leave` meanwhile. [`WriteSpaceEntry::leave`] must be called before the socket is released, and
    /// before the sender is dropped.
    pub(crate) unsafe fn join(&self, socket: &Socket, sender: &Arc<T>) {
        // SAFETY: A socket's own queue is initialised, and lives as long as the socket. The entry
        // is on no queue, so no other task accesses it, as required of the caller.
        unsafe {
            let queue = &raw mut (*socket.as_ptr()).wq.wait;
            // INVARIANT: The caller removes the entry before the socket, which has the queue, is
            // released.
            self.queue.store(queue, Relaxed);
            (*self.entry.get()).private = Arc::as_ptr(sender).cast_mut().cast();
            bindings::add_wait_queue(queue, self.entry.get());
        }
        // Pairs with the barrier of sock_def_write_space(): either that finds the entry, or the
        // caller sees the room.
        smp_mb();
    }

    /// Removes the entry from its queue, if it is on one. [`WriteSpaceWaiter::on_write_space`] is neither
    /// called nor running after this. Process context.
    pub(crate) fn leave(&self) {
        let queue = self.queue.xchg(ptr::null_mut(), Relaxed);
        if !queue.is_null() {
            // SAFETY: The queue lives, by the invariants. `finish_wait` allows for entries that
            // have left by themselves: it takes the queue's lock unless the entry is already
            // removed.
            unsafe { bindings::finish_wait(queue, self.entry.get()) };
        }
    }
}

/// Called under the queue's lock when the socket's queue is woken, for whatever event.
///
/// # Safety
///
/// Only the kernel may call it, as the function of an entry that has joined a queue.
unsafe extern "C" fn on_write_space<T: WriteSpaceWaiter>(
    entry: *mut bindings::wait_queue_entry,
    _mode: c_uint,
    _flags: c_int,
    key: *mut c_void,
) -> c_int {
    if key as usize as u32 & POLL_OUT == 0 {
        return 0;
    }
    // SAFETY: `join` requires that the sender is not dropped before `leave` returns, so it lives
    // here. `ManuallyDrop` leaves its reference count as it is. The entry leaves the queue as the
    // last action, because a concurrent `leave` that finds it removed doesn't wait for the queue's
    // lock.
    unsafe {
        let sender = ManuallyDrop::new(Arc::from_raw((*entry).private.cast::<T>()));
        T::on_write_space(&sender);
        bindings::kopi_wait_entry_leave(entry);
    }
    1
}
