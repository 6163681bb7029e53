// SPDX-License-Identifier: GPL-2.0

//! The running kernel.

use nix::sys::utsname::uname;

/// Its release, as `uname -r` prints it.
pub(crate) fn release() -> nix::Result<String> {
    Ok(uname()?.release().to_string_lossy().into_owned())
}
