// SPDX-License-Identifier: GPL-2.0

//! What the tests of a real kernel share.

/// Whether there is a module to test; it must be there if `KOPI_REQUIRED` is set.
pub(crate) fn has_module() -> bool {
    match kopi::family() {
        Ok(_) => true,
        Err(error) => {
            assert!(std::env::var_os("KOPI_REQUIRED").is_none(), "{error}");
            eprintln!("skipped: {error}");
            false
        }
    }
}
