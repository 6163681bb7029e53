// SPDX-License-Identifier: GPL-2.0

//! What the running context may do: bottom halves, interrupts, signals.

use super::bindings;
use kernel::types::NotThreadSafe;

/// Keeps softirqs off this CPU while it lives; the context may be process or softirq.
pub(crate) struct BottomHalvesOff(());

impl BottomHalvesOff {
    /// Turns softirqs off.
    pub(crate) fn new() -> Self {
        // SAFETY: May be called in process and softirq context, and is undone in `drop`.
        unsafe { bindings::kopi_local_bh_disable() };
        Self(())
    }
}

impl Drop for BottomHalvesOff {
    fn drop(&mut self) {
        // SAFETY: Undoes the call in `new`.
        unsafe { bindings::kopi_local_bh_enable() };
    }
}

/// Says that softirqs are off this CPU, as [`BottomHalvesOff`] or the kernel sees to.
pub(crate) struct SoftirqsOff(NotThreadSafe);

impl SoftirqsOff {
    /// # Safety
    ///
    /// Softirqs must be off this CPU for `'a`.
    pub(super) unsafe fn assume<'a>() -> &'a Self {
        const OFF: &SoftirqsOff = &SoftirqsOff(NotThreadSafe);
        OFF
    }
}

/// Keeps interrupts off this CPU while it lives, in any context.
pub(crate) struct InterruptsOff(usize);

impl InterruptsOff {
    /// Turns interrupts off.
    pub(crate) fn new() -> Self {
        // SAFETY: May be called in any context, and is undone in `drop`.
        Self(unsafe { bindings::kopi_local_irq_save() })
    }
}

impl Drop for InterruptsOff {
    fn drop(&mut self) {
        // SAFETY: The flags are those that `new` saved.
        unsafe { bindings::kopi_local_irq_restore(self.0) };
    }
}

/// The current user's real id, in the initial user namespace. Process context.
pub(crate) fn current_uid() -> u32 {
    // SAFETY: `current` is always valid.
    unsafe { bindings::kopi_current_uid() }
}

/// The user, in the initial user namespace, who is charged for the current user's objects. Within a
/// user namespace it is the maker of the outermost one, whatever users that has; if root made it,
/// its root. Process context.
pub(crate) fn charged_uid() -> u32 {
    // SAFETY: `current` is always valid.
    unsafe { bindings::kopi_charged_uid() }
}

/// Whether the current task has a signal to deliver. Process context.
pub(crate) fn signal_pending() -> bool {
    // SAFETY: `current` is always valid.
    unsafe { bindings::kopi_signal_pending() }
}

/// Lets other tasks run if they should. Process context.
pub(crate) fn cond_resched() {
    // SAFETY: Touches nothing of the caller's. As a sleep in the wrong place, it is found by debug
    // kernels, which look here whether it may sleep, whatever comes of it.
    unsafe { bindings::kopi_cond_resched() }
}

/// Nanoseconds of a clock that never goes back. Any context.
pub(crate) fn now() -> u64 {
    // SAFETY: Reads a clock.
    unsafe { bindings::kopi_ktime_get_ns() }
}

/// A full barrier of the kernel's memory model, which pairs with the kernel's own. Any context.
pub(crate) fn smp_mb() {
    // SAFETY: Orders what stands before it and after it; has no other effect.
    unsafe { bindings::kopi_smp_mb() };
}
