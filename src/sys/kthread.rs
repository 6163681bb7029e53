// SPDX-License-Identifier: GPL-2.0

//! Kernel threads of one CPU each.
//!
//! C header: `include/linux/kthread.h`

use super::bindings;
use core::ptr::NonNull;
use kernel::{
    error::{from_err_ptr, to_result},
    prelude::*,
    sync::Arc,
    task::might_sleep,
    types::NotThreadSafe, //
};

/// What a thread does.
pub(crate) trait Work: Send + Sync + 'static {
    /// What a CPU's thread is called, with one `%u` for the CPU's number.
    const NAME: &'static CStr;

    /// Works until [`Running::should_stop`], and not a moment less: the thread is waited for by its
    /// task.
    fn run(&self, thread: &Running);
}

/// The current task, as the thread that it is: what runs in one gets it, and can't give it to
/// others.
///
/// # Invariants
///
/// The current task was made by [`Thread::start`].
pub(crate) struct Running(NotThreadSafe);

impl Running {
    /// Whether it was told to stop.
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

/// A thread; stopped, and waited for, when dropped.
pub(crate) struct Thread<T: Work> {
    task: NonNull<bindings::task_struct>,
    /// Kept longer than the thread runs.
    _work: Arc<T>,
}

// SAFETY: A `struct task_struct` is not bound to the task that made it.
unsafe impl<T: Work> Send for Thread<T> {}

impl<T: Work> Thread<T> {
    /// Starts one: `EINVAL` if there is no such CPU, or if it is offline. Process context.
    pub(crate) fn start(work: Arc<T>, cpu: u32) -> Result<Self> {
        might_sleep();
        // SAFETY: The call reads a mask of CPUs, and checks the bounds.
        if !unsafe { bindings::kopi_cpu_online(cpu) } {
            return Err(EINVAL);
        }
        let data = core::ptr::from_ref::<T>(&work).cast_mut().cast::<c_void>();
        // SAFETY: Process context. The data outlive the thread, as `_work` is dropped after it has
        // ended; the name has the one conversion that the function wants.
        let task = from_err_ptr(unsafe {
            bindings::kthread_create_on_cpu(Some(main::<T>), data, cpu, T::NAME.as_char_ptr())
        })?;
        let task = NonNull::new(task).ok_or(ENOMEM)?;
        // SAFETY: The thread was just made, and ends only when it is told to.
        unsafe { bindings::wake_up_process(task.as_ptr()) };
        Ok(Self { task, _work: work })
    }
}

impl<T: Work> Drop for Thread<T> {
    fn drop(&mut self) {
        // SAFETY: The thread exists until it is stopped, here. One that was stopped before it ever
        // ran gives an error, and is stopped all the same.
        let ended = to_result(unsafe { bindings::kthread_stop(self.task.as_ptr()) });
        if let Err(error) = ended {
            pr_debug!("a thread didn't run: {}\n", error.to_errno());
        }
    }
}

/// # Safety
///
/// To be called by the kernel only, as a thread's function.
unsafe extern "C" fn main<T: Work>(data: *mut c_void) -> c_int {
    // INVARIANT: This is the function of a thread that `start` made.
    let thread = Running(NotThreadSafe);
    // SAFETY: The data that `start` gave, which outlive the thread.
    unsafe { (*data.cast::<T>()).run(&thread) };
    0
}
