// SPDX-License-Identifier: GPL-2.0

//! What is known of ordinary socks: a value for each, which ends with the sock.
//!
//! C header: `include/linux/rhashtable.h`

use super::JudgesOrdinary;
use crate::sys::{bindings, context::might_sleep, sock::Sock};
use core::{cell::UnsafeCell, marker::PhantomData, mem::MaybeUninit};
use kernel::{
    alloc::Flags,
    error::to_result,
    prelude::*,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        rcu,
        Arc, //
    },
};

/// An entry of the table.
#[repr(C)]
struct SockEntry<T> {
    /// The node of the table, the key and the head for RCU. It must be first.
    head: UnsafeCell<bindings::kopi_known>,
    /// The sock's cookie; 0 as long as it isn't known, since a sock that is being cloned has that of
    /// the other. A sock that gets the memory of one whose end nobody saw has another cookie.
    cookie: Atomic<u64>,
    value: Arc<T>,
}

/// The table, of which there can be one. When it is dropped, nothing may use it any more.
pub(super) struct SockTable<T>(PhantomData<T>);

impl<T: JudgesOrdinary> SockTable<T> {
    /// Makes the table: `ENOMEM`. Only the module's init calls this, once, with the type that all
    /// other calls have. Process context.
    pub(super) fn new() -> Result<Self> {
        might_sleep();
        // SAFETY: The module's init runs in process context, and nothing uses the table yet.
        to_result(unsafe { bindings::kopi_known_init() })?;
        Ok(Self(PhantomData))
    }

    /// The value of a sock, if it is of any use still. Any context but hard interrupts.
    pub(super) fn find(sk: &Sock) -> Option<Arc<T>> {
        let _rcu = rcu::read_lock();
        // SAFETY: The table exists as long as BPF programs or hooks can call. RCU, held here,
        // keeps the entry, which `insert` made as a `SockEntry<T>`.
        let known = unsafe {
            bindings::kopi_known_find(sk.as_ptr())
                .cast::<SockEntry<T>>()
                .as_ref()?
        };
        // SAFETY: The sock is borrowed, and so valid.
        let cookie = unsafe { bindings::kopi_sock_cookie(sk.as_ptr()) };
        if known
            .cookie
            .cmpxchg(0, cookie, Relaxed)
            .is_err_and(|old| old != cookie)
            || !known.value.is_noted()
        {
            return None;
        }
        Some(known.value.clone())
    }

    /// Gives a sock a value: `EEXIST`, `ENOMEM`. `is_new` says that the sock is being made, and has
    /// no cookie of its own yet. Any context but hard interrupts, by the flags.
    pub(super) fn insert(sk: &Sock, value: Arc<T>, is_new: bool, flags: Flags) -> Result {
        let cookie = if is_new {
            0
        } else {
            // SAFETY: The sock is borrowed, and so valid.
            unsafe { bindings::kopi_sock_cookie(sk.as_ptr()) }
        };
        // SAFETY: All zeroes are a value of the C structure.
        let mut head: bindings::kopi_known = unsafe { MaybeUninit::zeroed().assume_init() };
        head.sk = sk.as_ptr();
        let known = KBox::new(
            SockEntry {
                head: UnsafeCell::new(head),
                cookie: Atomic::new(cookie),
                value,
            },
            flags,
        )?;
        let raw = KBox::into_raw(known);
        // SAFETY: The entry begins with the C structure, and stays where it is until the table gives
        // it back.
        let insert = || to_result(unsafe { bindings::kopi_known_insert(raw.cast()) });
        let mut result = insert();
        if result == Err(EEXIST) && (is_new || Self::find(sk).is_none()) {
            // Of a sock whose end nobody saw, or from when the rules were enforced before.
            Self::remove(sk.as_ptr());
            result = insert();
        }
        if result.is_err() {
            // SAFETY: The table didn't take the entry, which is still this function's own.
            drop(unsafe { KBox::from_raw(raw) });
        }
        result
    }

    /// Forgets a sock, which isn't used but as a number. Any context but hard interrupts.
    pub(super) fn remove(sk: *const bindings::sock) {
        // SAFETY: As in `find`; the table reads only the pointer itself. The entry is freed by RCU,
        // by the caller that took it out of the table.
        unsafe {
            if bindings::kopi_known_is_empty() {
                return;
            }
            let _rcu = rcu::read_lock();
            let known = bindings::kopi_known_find(sk);
            if !known.is_null() && bindings::kopi_known_remove(known) {
                SockEntry::<T>::free_later(known);
            }
        }
    }

    /// Forgets the socks whose value is of no use any more. Process context.
    pub(super) fn clear() {
        might_sleep();
        // SAFETY: As in `find`. An empty table isn't walked. The call takes each entry out of the
        // table before it passes it on.
        unsafe {
            if !bindings::kopi_known_is_empty() {
                bindings::kopi_known_clear(
                    Some(SockEntry::<T>::is_noted),
                    Some(SockEntry::<T>::free_later),
                );
            }
        }
    }
}

impl<T: JudgesOrdinary> SockEntry<T> {
    /// # Safety
    ///
    /// The entry must be one that `insert` made. In an RCU read-side section, or a walk of the table.
    unsafe extern "C" fn is_noted(known: *const bindings::kopi_known) -> bool {
        // SAFETY: `insert` made the entry, and the caller keeps it.
        unsafe { (*known.cast::<Self>()).value.is_noted() }
    }
}

impl<T> SockEntry<T> {
    /// # Safety
    ///
    /// The entry must have been taken out of the table, by the caller.
    unsafe extern "C" fn free_later(known: *mut bindings::kopi_known) {
        // SAFETY: Nobody finds the entry any more, and RCU frees it when nobody uses it either.
        unsafe { bindings::call_rcu(&raw mut (*known).rcu, Some(Self::free_by_rcu)) };
    }

    /// # Safety
    ///
    /// Only RCU may call it, with the head of an entry that was taken out of the table.
    unsafe extern "C" fn free_by_rcu(rcu: *mut bindings::callback_head) {
        // SAFETY: The head is a part of the C structure with which the entry begins.
        unsafe { Self::free(kernel::container_of!(rcu, bindings::kopi_known, rcu)) };
    }

    /// # Safety
    ///
    /// The entry must be one that nothing uses any more.
    unsafe extern "C" fn free(known: *mut bindings::kopi_known) {
        // SAFETY: `insert` made the entry of a `KBox`, and the caller passes it on.
        drop(unsafe { KBox::from_raw(known.cast::<SockEntry<T>>()) });
    }
}

impl<T> Drop for SockTable<T> {
    fn drop(&mut self) {
        might_sleep();
        // SAFETY: Programs of BPF have references to the module, and its hooks are gone, so that
        // nothing uses the table. Entries that RCU frees are out of the table already.
        unsafe {
            bindings::kopi_known_destroy(Some(SockEntry::<T>::free));
            bindings::rcu_barrier();
        }
    }
}
