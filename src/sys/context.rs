// SPDX-License-Identifier: GPL-2.0

//! The current context: softirqs, interrupts, the current task, clocks and barriers.

use super::bindings;
use core::{ops::Deref, ptr::NonNull};
/// Reports on debug kernels if the context mustn't sleep. Wrappers of C functions that may sleep
/// call it, unless the function's first act is to check the context itself.
pub(super) use kernel::task::might_sleep;
use kernel::types::NotThreadSafe;

/// Keeps softirqs off this CPU while it lives. It may be made in process and softirq context.
pub(crate) struct BottomHalvesOff(SoftirqsOff);

impl BottomHalvesOff {
    /// Turns softirqs off.
    pub(crate) fn new() -> Self {
        // SAFETY: The call only raises this CPU's count of reasons to keep softirqs off. `drop`
        // lowers it again.
        unsafe { bindings::kopi_local_bh_disable() };
        Self(SoftirqsOff(NotThreadSafe))
    }
}

impl Deref for BottomHalvesOff {
    type Target = SoftirqsOff;

    fn deref(&self) -> &SoftirqsOff {
        &self.0
    }
}

impl Drop for BottomHalvesOff {
    fn drop(&mut self) {
        // SAFETY: `new` raised the count that this call lowers, on this CPU: a task doesn't leave
        // its CPU while softirqs are off.
        unsafe { bindings::kopi_local_bh_enable() };
    }
}

/// Proof that softirqs are off on this CPU, because of a [`BottomHalvesOff`] or of the kernel. That counts as
/// an RCU read-side section, for the kernel's functions that say so.
pub(crate) struct SoftirqsOff(NotThreadSafe);

impl SoftirqsOff {
    /// # Safety
    ///
    /// Softirqs must be off on this CPU for `'a`.
    pub(super) unsafe fn assume<'a>() -> &'a Self {
        const OFF: &SoftirqsOff = &SoftirqsOff(NotThreadSafe);
        OFF
    }
}

/// Keeps interrupts off this CPU while it lives, in any context, for a spinlock that is taken next. With
/// PREEMPT_RT they stay on, since no interrupt handler takes such a lock then.
pub(crate) struct InterruptsOff(usize, NotThreadSafe);

impl InterruptsOff {
    /// Turns interrupts off.
    pub(crate) fn new() -> Self {
        // SAFETY: The call saves and changes the interrupt flag of this CPU. `drop` restores it.
        Self(unsafe { bindings::kopi_lock_irq_save() }, NotThreadSafe)
    }
}

impl Drop for InterruptsOff {
    fn drop(&mut self) {
        // SAFETY: The flags are those that `new` saved on this CPU: a task doesn't leave its CPU
        // while interrupts are off. With PREEMPT_RT the call does nothing.
        unsafe { bindings::kopi_lock_irq_restore(self.0) };
    }
}

/// The real id of the current user, in the initial user namespace. Process context.
pub(crate) fn current_uid() -> u32 {
    // SAFETY: The call reads the credentials of the current task, which only that task replaces.
    unsafe { bindings::kopi_current_uid() }
}

/// The real id of the current group, in the initial user namespace. Process context.
pub(crate) fn current_gid() -> u32 {
    // SAFETY: The call reads the credentials of the current task, which only that task replaces.
    unsafe { bindings::kopi_current_gid() }
}

/// The effective id of the current user, in the initial user namespace. Process context.
pub(crate) fn current_euid() -> u32 {
    // SAFETY: The call reads the credentials of the current task, which only that task replaces.
    unsafe { bindings::kopi_current_euid() }
}

/// Whether the current process was started from a set-user-ID or set-group-ID file, or one with capabilities.
/// The process can change the memory that says so. Process context.
pub(crate) fn is_secure() -> bool {
    // SAFETY: The call reads the memory map of the current task, which it keeps.
    unsafe { bindings::kopi_current_is_secure() }
}

/// Whether the current process has, or can take again, ids that its user hasn't (the real ones, and supplementary
/// groups), or has capabilities. Process context.
pub(crate) fn has_other_ids() -> bool {
    // SAFETY: The call reads the credentials of the current task, which only that task replaces.
    unsafe { bindings::kopi_current_has_other_ids() }
}

/// A user namespace, by ids of the initial one.
pub(crate) struct UserNamespace {
    /// The maker of the namespace, if the user has an id.
    pub(crate) owner: Option<u32>,
    /// The user with the id 0 in the namespace, if there is one.
    pub(crate) root: Option<u32>,
}

/// The outermost user namespace around the current process, below the initial one. `None` if the
/// process is in the initial one. Process context.
pub(crate) fn outermost_user_namespace() -> Option<UserNamespace> {
    let uid = |uid: u32| (uid != u32::MAX).then_some(uid);
    // SAFETY: The current task keeps its user namespace, which keeps its parents. Only the initial
    // one has no parent.
    unsafe {
        let mut ns = NonNull::new(bindings::kopi_current_user_ns())?;
        let mut outermost = None;
        while let Some(parent) = NonNull::new(bindings::kopi_user_ns_parent(ns.as_ptr())) {
            outermost = Some(ns);
            ns = parent;
        }
        let ns = outermost?.as_ptr();
        Some(UserNamespace {
            owner: uid(bindings::kopi_user_ns_owner(ns)),
            root: uid(bindings::kopi_user_ns_root(ns)),
        })
    }
}

/// Whether the current task has a signal to deliver. Process context.
pub(crate) fn signal_pending() -> bool {
    // SAFETY: The call reads a flag of the current task, which exists as long as it runs.
    unsafe { bindings::kopi_signal_pending() }
}

/// Whether the current task has a signal that kills it. Process context.
pub(crate) fn fatal_signal_pending() -> bool {
    // SAFETY: As in `signal_pending`.
    unsafe { bindings::kopi_fatal_signal_pending() }
}

/// Yields the CPU if another task should run. Process context.
pub(crate) fn cond_resched() {
    // SAFETY: The call accesses no memory of the caller. A call in a context that mustn't sleep is
    // reported by debug kernels, which check the context here even if no other task is to run.
    unsafe { bindings::kopi_cond_resched() }
}

/// The time of the monotonic clock in nanoseconds. Any context.
pub(crate) fn now() -> u64 {
    // SAFETY: The call only reads a clock, which may be read in any context.
    unsafe { bindings::kopi_ktime_get_ns() }
}

/// The kernel's count of timer ticks, which wraps around. Any context.
pub(super) fn jiffies() -> usize {
    // SAFETY: The call only reads a counter.
    unsafe { bindings::kopi_jiffies() }
}

/// One run of the softirq of received packets, or a timer tick of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RxRun {
    cpu_and_count: u64,
    ticks: usize,
}

impl RxRun {
    /// The current run of softirqs on this CPU, or the last one. Softirqs are off.
    pub(crate) fn current(_softirqs: &SoftirqsOff) -> Self {
        Self {
            // SAFETY: The call only reads a counter. The task doesn't leave its CPU.
            cpu_and_count: unsafe { bindings::kopi_rx_softirq_run() },
            ticks: jiffies(),
        }
    }
}

/// A full barrier of the kernel's memory model, which pairs with the kernel's own. Any context.
pub(crate) fn smp_mb() {
    // SAFETY: A barrier orders memory accesses, and has no other effect.
    unsafe { bindings::kopi_smp_mb() };
}
