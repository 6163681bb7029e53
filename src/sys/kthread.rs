// SPDX-License-Identifier: GPL-2.0

//! Kernel threads of one CPU each.
//!
//! C header: `include/linux/kthread.h`

use super::{bindings, context::might_sleep};
use core::ptr::NonNull;
use kernel::{
    error::{from_err_ptr, to_result},
    prelude::*,
    sync::Arc,
    types::NotThreadSafe, //
};

/// The work of a thread on each CPU.
pub(crate) trait Work: Send + Sync + 'static {
    /// The name of a CPU's thread, with one `%u` for the CPU's number.
    const NAME: &'static CStr;

    /// Works until [`Running::should_stop`] returns true. It mustn't return earlier, because the
    /// thread's `task_struct` is used until the thread is stopped.
    fn run(&self, thread: &Running);
}

/// Proof that the current task is a thread of [`Thread::start`]. It can't be passed to other tasks.
///
/// # Invariants
///
/// The current task was made by [`Thread::start`].
pub(crate) struct Running(NotThreadSafe);

impl Running {
    /// Whether the thread is to stop.
    pub(crate) fn should_stop(&self) -> bool {
        // SAFETY: By the invariants, the current task is a kernel thread.
        unsafe { bindings::kthread_should_stop() }
    }

    /// Yields the CPU if necessary, and reports a quiescent state of tasks-RCU: a thread that never
    /// sleeps would otherwise delay its grace periods without end.
    pub(crate) fn cond_resched_tasks_rcu_qs(&self) {
        // SAFETY: The task may sleep, by the invariants, and the call accesses no memory of the
        // caller. If the task held a spinlock, debug kernels would report it here.
        unsafe { bindings::kopi_cond_resched_tasks_rcu_qs() }
    }

    /// Yields this CPU to other tasks that are ready to run.
    pub(crate) fn yield_cpu(&self) {
        might_sleep();
        // SAFETY: The task may sleep, by the invariants, which `might_sleep` checks on debug
        // kernels.
        unsafe { bindings::yield_() };
    }
}

/// A thread. When this value is dropped, it stops the thread, and waits for its end.
///
/// # Invariants
///
/// The thread exists, and has not been stopped.
pub(crate) struct Thread<T: Work> {
    task: NonNull<bindings::task_struct>,
    /// The work, which outlives the thread: it is dropped after the thread was stopped.
    _work: Arc<T>,
}

// SAFETY: A `struct task_struct` is not bound to the task that made it.
unsafe impl<T: Work> Send for Thread<T> {}

impl<T: Work> Thread<T> {
    /// Starts a thread: `EINVAL` if there is no such CPU, or if it is offline. Process context.
    pub(crate) fn start(work: Arc<T>, cpu: u32) -> Result<Self> {
        might_sleep();
        // SAFETY: The call checks that the number is within the mask of CPUs, which it reads.
        if !unsafe { bindings::kopi_cpu_online(cpu) } {
            return Err(EINVAL);
        }
        let data = core::ptr::from_ref::<T>(&work).cast_mut().cast::<c_void>();
        // SAFETY: The caller is in process context, as this function requires. `data` points into
        // the `Arc` of `_work`, which is dropped after the thread has ended. The name has the one
        // conversion that the function expects.
        let task = from_err_ptr(unsafe {
            bindings::kthread_create_on_cpu(Some(main::<T>), data, cpu, T::NAME.as_char_ptr())
        })?;
        let task = NonNull::new(task).ok_or(ENOMEM)?;
        // SAFETY: The thread was just made, and doesn't end before it is stopped.
        // INVARIANT: So it exists.
        unsafe { bindings::wake_up_process(task.as_ptr()) };
        Ok(Self { task, _work: work })
    }
}

impl<T: Work> Drop for Thread<T> {
    fn drop(&mut self) {
        // A thread that never ran returns an error, and has ended, too.
        // SAFETY: By the invariants, the thread exists, and this is the only call that stops it.
        let ended = to_result(unsafe { bindings::kthread_stop(self.task.as_ptr()) });
        if let Err(error) = ended {
            pr_debug!("a thread didn't run: {}\n", error.to_errno());
        }
    }
}

/// The function of a thread.
///
/// # Safety
///
/// Only the kernel may call it, as the function of a thread that [`Thread::start`] made.
unsafe extern "C" fn main<T: Work>(data: *mut c_void) -> c_int {
    // INVARIANT: The kernel calls this in a thread that `start` made.
    let thread = Running(NotThreadSafe);
    // SAFETY: `data` is the pointer that `start` passed, to a `T` that outlives the thread.
    unsafe { (*data.cast::<T>()).run(&thread) };
    0
}
