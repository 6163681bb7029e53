// SPDX-License-Identifier: GPL-2.0

//! Numbers that an administrator sets below `/proc/sys/net/kopi`.
//!
//! C header: `include/linux/sysctl.h`

use super::bindings;
use core::{
    cell::UnsafeCell,
    mem::size_of,
    ptr::NonNull,
    sync::atomic::{AtomicU32, Ordering}, //
};
use kernel::{
    prelude::*,
    str::CStr, //
};

/// A number, which may be read at any time.
pub(crate) struct SysctlU32(AtomicU32);

impl SysctlU32 {
    /// A number with its default.
    pub(crate) const fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    /// What it is now. Any context.
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Room for the kernel's table of `N` numbers.
pub(crate) struct SysctlTable<const N: usize>(UnsafeCell<[bindings::ctl_table; N]>);

// SAFETY: Written by `Sysctls::register` only, before the kernel gets it.
unsafe impl<const N: usize> Sync for SysctlTable<N> {}

impl<const N: usize> SysctlTable<N> {
    /// An empty table.
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new([pin_init::zeroed(); N]))
    }
}

/// Registered numbers, of the initial network namespace, for root to write.
pub(crate) struct Sysctls(NonNull<bindings::ctl_table_header>);

// SAFETY: A registration is not bound to a task.
unsafe impl Send for Sysctls {}
// SAFETY: As above.
unsafe impl Sync for Sysctls {}

impl Sysctls {
    /// Registers the numbers by their names; `ENOMEM`. Process context.
    ///
    /// # Safety
    ///
    /// To be called once for a table.
    pub(crate) unsafe fn register<const N: usize>(
        table: &'static SysctlTable<N>,
        numbers: [(&'static CStr, &'static SysctlU32); N],
    ) -> Result<Self> {
        let entries = numbers.map(|(name, number)| bindings::ctl_table {
            procname: name.as_char_ptr(),
            data: number.0.as_ptr().cast(),
            maxlen: size_of::<u32>() as c_int,
            mode: 0o644,
            proc_handler: Some(bindings::proc_douintvec),
            ..pin_init::zeroed()
        });
        // SAFETY: By the contract the table is not in use yet. It is static, as are names and
        // numbers; the kernel reads and writes a number as a whole.
        let header = unsafe {
            table.0.get().write(entries);
            bindings::register_net_sysctl_sz(
                &raw mut bindings::init_net,
                c"net/kopi".as_char_ptr(),
                table.0.get().cast(),
                N,
            )
        };
        NonNull::new(header).map(Self).ok_or(ENOMEM)
    }
}

impl Drop for Sysctls {
    fn drop(&mut self) {
        // SAFETY: Registered by `register`, and taken back once.
        unsafe { bindings::unregister_net_sysctl_table(self.0.as_ptr()) };
    }
}
