// SPDX-License-Identifier: GPL-2.0

//! Sysctls: integers that an administrator sets below `/proc/sys/net/kopi`.
//!
//! C header: `include/linux/sysctl.h`

use super::{bindings, context::might_sleep};
use core::{cell::UnsafeCell, mem::size_of, ptr::NonNull};
use kernel::{
    prelude::*,
    str::CStr,
    sync::atomic::{ordering::Relaxed, Atomic}, //
};

/// The value of a sysctl.
pub(crate) struct SysctlU32(Atomic<u32>);

impl SysctlU32 {
    /// A value with its default.
    pub(crate) const fn new(value: u32) -> Self {
        Self(Atomic::new(value))
    }

    /// The current value. Any context.
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

/// Memory for the kernel's table of `N` sysctls.
pub(crate) struct SysctlTable<const N: usize>(UnsafeCell<[bindings::ctl_table; N]>);

// SAFETY: Only `Sysctls::register` accesses the memory. It writes once, by its contract, and then
// gives the memory to the kernel, which has its own lock for tables.
unsafe impl<const N: usize> Sync for SysctlTable<N> {}

impl<const N: usize> SysctlTable<N> {
    /// An empty table.
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new([pin_init::zeroed(); N]))
    }
}

/// The registration of a table in the initial network namespace. Only root can write the values.
///
/// # Invariants
///
/// The header is that of a registered table.
pub(crate) struct Sysctls(NonNull<bindings::ctl_table_header>);

// SAFETY: A registration is not bound to a task: any may end it.
unsafe impl Send for Sysctls {}
// SAFETY: A shared reference gives no access to the header.
unsafe impl Sync for Sysctls {}

impl Sysctls {
    /// Registers values under their names: `ENOMEM`. Process context.
    ///
    /// # Safety
    ///
    /// This function must be called at most once for each table.
    pub(crate) unsafe fn register<const N: usize>(
        table: &'static SysctlTable<N>,
        numbers: [(&'static CStr, &'static SysctlU32); N],
    ) -> Result<Self> {
        might_sleep();
        let entries = numbers.map(|(name, number)| bindings::ctl_table {
            procname: name.as_char_ptr(),
            data: number.0.as_ptr().cast(),
            maxlen: size_of::<u32>() as c_int,
            mode: 0o644,
            proc_handler: Some(bindings::proc_douintvec),
            ..pin_init::zeroed()
        });
        // SAFETY: By the contract, nothing else uses the table yet. The table, the names and the
        // values are static, so they outlive the registration. `proc_douintvec` accesses a value by
        // READ_ONCE and WRITE_ONCE, which go together with this module's atomic reads.
        let header = unsafe {
            table.0.get().write(entries);
            bindings::register_net_sysctl_sz(
                &raw mut bindings::init_net,
                c"net/kopi".as_char_ptr(),
                table.0.get().cast(),
                N,
            )
        };
        // INVARIANT: The table was just registered.
        NonNull::new(header).map(Self).ok_or(ENOMEM)
    }
}

impl Drop for Sysctls {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: The table is registered, by the invariants, and this value isn't used any more.
        // The call waits for accesses that still run.
        unsafe { bindings::unregister_net_sysctl_table(self.0.as_ptr()) };
    }
}
