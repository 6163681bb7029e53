// SPDX-License-Identifier: GPL-2.0

//! The module's workqueue: it frees objects that can't be freed in softirq, and receives packets
//! that can't be received there.
//!
//! C header: `include/linux/workqueue.h`

use super::{bindings, context::might_sleep, region::Region};
use core::{mem::ManuallyDrop, ops::Deref, ptr::NonNull};
use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::{Acquire, Relaxed, Release},
        Atomic, //
    },
    workqueue::{
        self,
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};

/// The workqueue while the module is loaded, else null.
static QUEUE: Atomic<*mut bindings::workqueue_struct> = Atomic::new(core::ptr::null_mut());

/// Number of things that RCU or the workqueue has yet to free.
static LEFT: Atomic<i32> = Atomic::new(0);

/// The workqueue. When it is dropped, it waits for all queued work, and for tasks in the module's code.
pub(crate) struct Reaper(NonNull<bindings::workqueue_struct>);

// SAFETY: A workqueue is not bound to a task: any may destroy it.
unsafe impl Send for Reaper {}
// SAFETY: A shared reference gives no access to the queue.
unsafe impl Sync for Reaper {}

impl Reaper {
    /// Makes the workqueue: `ENOMEM`. There can be one at a time. Process context.
    pub(crate) fn new() -> Result<Self> {
        might_sleep();
        // SAFETY: The allocation may sleep, and the caller is in process context, as this function
        // requires.
        let queue = NonNull::new(unsafe { bindings::kopi_alloc_workqueue() }).ok_or(ENOMEM)?;
        QUEUE.store(queue.as_ptr(), Release);
        Ok(Self(queue))
    }
}

/// RCU or the workqueue is going to free something, and return its charge. Any context.
pub(super) fn will_free() {
    LEFT.add(1, Relaxed);
}

/// RCU or the workqueue has freed that, and returned its charge. Any context.
pub(super) fn has_freed() {
    // Release: a caller who finds nothing left finds the charge returned, too.
    LEFT.fetch_sub(1, Release);
}

/// Waits until everything that was dropped before is freed, and its charges are returned. Process
/// context.
pub(crate) fn flush() {
    might_sleep();
    // The barrier interrupts CPUs, and all that wait for one share a mutex: who is over a limit is not to keep it
    // busy by asking again.
    if LEFT.load(Acquire) == 0 {
        return;
    }
    let queue = QUEUE.load(Acquire);
    // SAFETY: The caller acts for a socket, which holds a reference to the module, so the queue
    // exists. `rcu_barrier` comes first, because RCU callbacks queue work.
    unsafe {
        bindings::rcu_barrier();
        bindings::__flush_workqueue(queue);
    }
}

/// Queues work on the workqueue after `delay` jiffies, unless it is already queued.
///
/// # Safety
///
/// The work must be initialised, and disabled before it is freed. It must belong to a socket, which
/// holds a reference to the module.
pub(super) unsafe fn queue_delayed(work: *mut bindings::delayed_work, delay: c_ulong) {
    // SAFETY: The caller passes initialised work. The socket's reference to the module keeps the
    // queue.
    unsafe { bindings::kopi_queue_delayed_work(QUEUE.load(Acquire), work, delay) };
}

impl Drop for Reaper {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: The module is being unloaded, so no flow is left. All RCU callbacks have run
        // after the barrier, so nothing is queued after it. This value owns the queue.
        unsafe {
            bindings::rcu_barrier();
            QUEUE.store(core::ptr::null_mut(), Release);
            bindings::destroy_workqueue(self.0.as_ptr());
            // Whoever gave the last region to the queue may have been preempted before its return from the
            // module's code: a task that freed a packet, for instance.
            bindings::kopi_synchronize_rcu_tasks();
        }
    }
}

/// A value that is dropped in process context, whatever the context of the last owner: a region
/// with many pages, for instance, or a set of rules.
pub(crate) struct Deferred<T: Send + 'static>(ManuallyDrop<Pin<KBox<Reaped<T>>>>);

/// A region, whose last user may be a packet.
pub(crate) type SharedRegion = Deferred<Region>;

#[pin_data]
struct Reaped<T> {
    value: T,
    #[pin]
    work: Work<Reaped<T>>,
}

impl_has_work! {
    impl{T} HasWork<Self> for Reaped<T> { self.work }
}

impl<T: Send + 'static> WorkItem for Reaped<T> {
    type Pointer = Pin<KBox<Self>>;

    fn run(this: Pin<KBox<Self>>) {
        drop(this);
        has_freed();
    }
}

impl<T: Send + 'static> Deferred<T> {
    /// Wraps a value, which goes before the module's [`Reaper`] does: `ENOMEM`. Process context.
    pub(crate) fn new(value: T) -> Result<Self> {
        let reaped = KBox::pin_init(
            pin_init!(Reaped {
                value,
                work <- new_work!("kopi::Reaped"),
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        Ok(Self(ManuallyDrop::new(reaped)))
    }
}

impl<T: Send + 'static> Deref for Deferred<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Send + 'static> Drop for Deferred<T> {
    fn drop(&mut self) {
        // SAFETY: The value is taken only here, in `drop`, which runs once.
        let reaped = unsafe { ManuallyDrop::take(&mut self.0) };
        let queue = QUEUE.load(Acquire);
        // SAFETY: Regions and flows hold a reference to the module, and namespaces' states go
        // before its reaper, which waits for RCU first: so the queue is still there.
        let queue = unsafe { workqueue::Queue::from_raw(queue.cast()) };
        will_free();
        queue.enqueue(reaped);
    }
}
