// SPDX-License-Identifier: GPL-2.0

//! Wait queues, for poll and for sleeping.
//!
//! C header: `include/linux/wait.h`

use super::{bindings, context::smp_mb, socket::Socket};
use core::{
    cell::Cell,
    marker::PhantomData,
    mem::ManuallyDrop,
    ptr,
    sync::atomic::{AtomicPtr, Ordering}, //
};
use kernel::{
    prelude::*,
    sync::Arc,
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

/// What a `poll` operation was called with.
///
/// # Invariants
///
/// The pointers are those of a running call of `poll`.
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

/// A queue of tasks that wait.
#[pin_data]
#[repr(transparent)]
pub(crate) struct WaitQueue {
    #[pin]
    head: Opaque<bindings::wait_queue_head_t>,
}

// SAFETY: A wait queue has a lock of its own.
unsafe impl Send for WaitQueue {}
// SAFETY: As above.
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
    /// Unless it is null, `head` must be initialised and live at least as long as the result is used.
    pub(super) unsafe fn from_raw<'a>(head: *mut bindings::wait_queue_head_t) -> Option<&'a Self> {
        // SAFETY: `WaitQueue` is transparent; the rest is the caller's to see to.
        unsafe { head.cast::<Self>().as_ref() }
    }

    /// Has the caller of poll woken by [`WaitQueue::wake`].
    ///
    /// The poller holds the file open, and the file's flow keeps this queue.
    pub(crate) fn register(&self, table: &PollTable) {
        // SAFETY: `head` is initialised, and `table` is of a running call by its invariants.
        unsafe { bindings::kopi_poll_wait(table.file, self.head.get(), table.table) };
    }

    /// Wakes the tasks that wait for any of `events`. Any context.
    pub(crate) fn wake(&self, events: u32) {
        // SAFETY: `head` is initialised.
        if !unsafe { bindings::kopi_wq_has_sleeper(self.head.get()) } {
            return;
        }
        let key = events as usize as *mut c_void;
        // SAFETY: `head` is initialised; the key is a poll mask, as poll's wake functions expect.
        // As in sock_def_readable(): all pollers are woken, of exclusive sleepers one.
        unsafe { bindings::__wake_up(self.head.get(), bindings::TASK_NORMAL, 1, key) };
    }

    /// Sleeps until `condition` holds, `timeout` jiffies at most. Process context.
    ///
    /// The condition is evaluated when this queue is woken for `events`, or the socket's own for packets,
    /// errors or a shutdown. Gives `EAGAIN` when the time is over, and `ERESTARTSYS` on a signal.
    pub(crate) fn wait(
        &self,
        socket: &Socket,
        events: u32,
        timeout: isize,
        mut condition: impl FnMut() -> bool,
    ) -> Result {
        let mut left = timeout;
        let own = WaitEntry::new(self.head.get(), events);
        // SAFETY: A socket's own queue is initialised, and lives as long as the socket.
        let queue = unsafe { &raw mut (*socket.as_ptr()).wq.wait };
        // Not for room in the send buffer, which comes with each packet that has left.
        let socket = WaitEntry::new(queue, POLL_IN | POLL_ERR);
        loop {
            let signal = own.prepare() | socket.prepare();
            if condition() {
                return Ok(());
            }
            if signal != 0 {
                return Err(ERESTARTSYS);
            }
            if left == 0 {
                return Err(EAGAIN);
            }
            // SAFETY: Process context, as this function's caller has to be in.
            left = unsafe { bindings::schedule_timeout(left) };
        }
    }
}

impl WaitQueue {
    /// Has a kernel thread sleep until `condition` holds, which is evaluated when this queue is woken,
    /// or the thread told to stop. Process context.
    pub(crate) fn sleep_until(&self, mut condition: impl FnMut() -> bool) {
        let entry = WaitEntry::new(self.head.get(), u32::MAX);
        loop {
            entry.prepare();
            if condition() {
                return;
            }
            // SAFETY: Process context, as this function's caller has to be in.
            unsafe { bindings::schedule_timeout(isize::MAX) };
        }
    }
}

/// The current task's place on a wait queue; leaves it when dropped.
#[repr(C)]
struct WaitEntry {
    /// At first, where [`wake_for_events`] finds it.
    entry: Opaque<bindings::wait_queue_entry>,
    queue: *mut bindings::wait_queue_head_t,
    events: u32,
    prepared: Cell<bool>,
}

impl WaitEntry {
    /// A place on the queue, which must outlive it, to be woken for any of `events`; see
    /// [`WaitEntry::prepare`].
    fn new(queue: *mut bindings::wait_queue_head_t, events: u32) -> Self {
        Self {
            entry: Opaque::uninit(),
            queue,
            events,
            prepared: Cell::new(false),
        }
    }

    /// Queues the task, or stays queued, and makes it ready to sleep; not 0 when a signal is
    /// pending. The entry must not move from now on.
    fn prepare(&self) -> c_long {
        // SAFETY: `wait` and `sleep_until`, the only callers, made the entry in a local variable that
        // they don't move, with a queue that lives longer; the entry is initialised before it is queued.
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
            // SAFETY: Both were initialised by `prepare`.
            unsafe { bindings::finish_wait(self.queue, self.entry.get()) };
        }
    }
}

/// Wakes the task, unless its queue is woken for other events; as receiver_wake_function() does.
///
/// # Safety
///
/// To be called by the kernel only, as the function of an [`WaitEntry`]'s that is queued.
unsafe extern "C" fn wake_for_events(
    entry: *mut bindings::wait_queue_entry,
    mode: c_uint,
    flags: c_int,
    key: *mut c_void,
) -> c_int {
    // SAFETY: As required of the caller. It has the queue's lock, under which the entry leaves before it goes.
    unsafe {
        let wanted = (*entry.cast::<WaitEntry>()).events;
        if !key.is_null() && key as usize as u32 & wanted == 0 {
            return 0;
        }
        bindings::autoremove_wake_function(entry, mode, flags, key)
    }
}

/// What is told that a socket's send buffer has room.
pub(crate) trait RoomWaiter: Send + Sync + 'static {
    /// It has. Called under the lock of a queue, with interrupts off, perhaps.
    fn room_came(this: &Arc<Self>);
}

/// A sender's place on the queue of a socket, by which it is told that the send buffer has room.
///
/// # Invariants
///
/// `entry` is initialised, and on no queue but `queue`, which is then alive.
#[pin_data]
pub(crate) struct RoomEntry<T: RoomWaiter> {
    #[pin]
    entry: Opaque<bindings::wait_queue_entry>,
    queue: AtomicPtr<bindings::wait_queue_head_t>,
    _sender: PhantomData<Arc<T>>,
}

// SAFETY: The queue's lock is all that an entry needs.
unsafe impl<T: RoomWaiter> Send for RoomEntry<T> {}
// SAFETY: As above.
unsafe impl<T: RoomWaiter> Sync for RoomEntry<T> {}

impl<T: RoomWaiter> RoomEntry<T> {
    /// A place on no queue.
    pub(crate) fn new() -> impl PinInit<Self> {
        // INVARIANT: Initialised, and on no queue.
        pin_init!(Self {
            // SAFETY: `slot` is memory for an entry, which stays where it is.
            entry <- Opaque::ffi_init(|slot| unsafe {
                bindings::kopi_init_wait_entry_func(slot, Some(room_came::<T>));
            }),
            queue: AtomicPtr::new(ptr::null_mut()),
            _sender: PhantomData,
        })
    }

    /// Has [`RoomWaiter::room_came`] called, once, when the socket's send buffer has room: unless it has now, for
    /// which the caller is to look after this. Process context.
    ///
    /// # Safety
    ///
    /// The entry must be the sender's, and on no queue; no other caller may join or leave with it meanwhile.
    /// [`RoomEntry::leave`] must be called before the socket is released or the sender dropped.
    pub(crate) unsafe fn join(&self, socket: &Socket, sender: &Arc<T>) {
        // SAFETY: A socket's own queue is initialised, and lives as long as the socket. Nothing reads the
        // entry as long as it is on no queue.
        unsafe {
            let queue = &raw mut (*socket.as_ptr()).wq.wait;
            // INVARIANT: As required of the caller.
            self.queue.store(queue, Ordering::Relaxed);
            (*self.entry.get()).private = Arc::as_ptr(sender).cast_mut().cast();
            bindings::add_wait_queue(queue, self.entry.get());
        }
        // Pairs with that of sock_def_write_space(): either it finds the entry, or the caller sees the room.
        smp_mb();
    }

    /// Leaves the queue, if it is on one: [`RoomWaiter::room_came`] is neither called nor running after this.
    /// Process context.
    pub(crate) fn leave(&self) {
        let queue = self.queue.swap(ptr::null_mut(), Ordering::Relaxed);
        if !queue.is_null() {
            // SAFETY: By the invariants; it is made for entries that may have left by themselves.
            unsafe { bindings::finish_wait(queue, self.entry.get()) };
        }
    }
}

/// Called under the queue's lock when the socket is woken for anything.
///
/// # Safety
///
/// To be called by the kernel only, as the function of an entry that has joined a queue.
unsafe extern "C" fn room_came<T: RoomWaiter>(
    entry: *mut bindings::wait_queue_entry,
    _mode: c_uint,
    _flags: c_int,
    key: *mut c_void,
) -> c_int {
    if key as usize as u32 & POLL_OUT == 0 {
        return 0;
    }
    // SAFETY: As required of the caller of `join`: the sender lives, so that the reference that is made up
    // here for the call is never the last; and the entry is given up last, since `leave` returns as soon as it finds it gone.
    unsafe {
        let sender = ManuallyDrop::new(Arc::from_raw((*entry).private.cast::<T>()));
        T::room_came(&sender);
        bindings::kopi_wait_entry_leave(entry);
    }
    1
}
