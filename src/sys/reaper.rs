// SPDX-License-Identifier: GPL-2.0

//! Freeing and receiving what can't be freed or received in softirq, in a workqueue of the module's own.
//!
//! C header: `include/linux/workqueue.h`

use super::bindings;
use super::region::Region;
use core::{
    mem::ManuallyDrop,
    ops::Deref,
    ptr::NonNull,
    sync::atomic::{AtomicPtr, Ordering}, //
};
use kernel::{
    prelude::*,
    workqueue::{
        self,
        impl_has_work,
        new_work,
        Work,
        WorkItem, //
    }, //
};

/// The workqueue while the module is loaded, else null.
static QUEUE: AtomicPtr<bindings::workqueue_struct> = AtomicPtr::new(core::ptr::null_mut());

/// The workqueue: waits for all that is to be freed when it is dropped.
pub(crate) struct Reaper(NonNull<bindings::workqueue_struct>);

// SAFETY: A workqueue is not bound to a task.
unsafe impl Send for Reaper {}
// SAFETY: As above.
unsafe impl Sync for Reaper {}

impl Reaper {
    /// Starts the workqueue. There can be one at a time.
    pub(crate) fn new() -> Result<Self> {
        // SAFETY: Process context.
        let queue = NonNull::new(unsafe { bindings::kopi_alloc_workqueue() }).ok_or(ENOMEM)?;
        QUEUE.store(queue.as_ptr(), Ordering::Release);
        Ok(Self(queue))
    }
}

/// Waits until all that was dropped before is freed, and its charges returned. Process context.
pub(crate) fn flush() {
    let queue = QUEUE.load(Ordering::Acquire);
    // SAFETY: Called on behalf of a socket, which holds a reference to the module, so the queue is
    // there. What RCU is to free goes to the queue first.
    unsafe {
        bindings::rcu_barrier();
        bindings::__flush_workqueue(queue);
    }
}

/// Has the workqueue do some work after a number of jiffies, unless it is queued already.
///
/// # Safety
///
/// The work must be initialised, and disabled before it is freed; it is a socket's, which holds a
/// reference to the module.
pub(super) unsafe fn queue_delayed(work: *mut bindings::delayed_work, delay: c_ulong) {
    // SAFETY: As required of the caller; so the queue is there.
    unsafe { bindings::kopi_queue_delayed_work(QUEUE.load(Ordering::Acquire), work, delay) };
}

impl Drop for Reaper {
    fn drop(&mut self) {
        // SAFETY: The module is going: all flows are gone, and what RCU was to free is freed after
        // the barrier, so that nothing is enqueued after it. The queue is this value's.
        unsafe {
            bindings::rcu_barrier();
            QUEUE.store(core::ptr::null_mut(), Ordering::Release);
            bindings::destroy_workqueue(self.0.as_ptr());
        }
    }
}

/// What is dropped in process context, in whatever context its last owner drops it: as a region is, whose
/// pages are many, or a set of rules.
pub(crate) struct Deferred<T: Send + 'static>(ManuallyDrop<Pin<KBox<Reaped<T>>>>);

/// A region that packets, too, may be the last to use.
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
        // SAFETY: Taken once, here.
        let reaped = unsafe { ManuallyDrop::take(&mut self.0) };
        let queue = QUEUE.load(Ordering::Acquire);
        // SAFETY: Regions and flows hold a reference to the module, and namespaces' states go before its
        // reaper, which waits for RCU first: so the queue is still there.
        let queue = unsafe { workqueue::Queue::from_raw(queue.cast()) };
        queue.enqueue(reaped);
    }
}
