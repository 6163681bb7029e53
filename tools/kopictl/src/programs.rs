// SPDX-License-Identifier: GPL-2.0

//! The BPF programs that are loaded.

use aya::programs::{loaded_programs, ProgramError};
use std::io::ErrorKind;

/// The longest name that the kernel keeps, in bytes: BPF_OBJ_NAME_LEN, without its end.
const NAME_MAX: usize = 15;

/// The number and the name of each, as far as the kernel keeps it; none if it isn't permitted to ask, which
/// takes CAP_SYS_ADMIN. Those that end meanwhile can't be looked at, and aren't asked about.
pub(crate) fn loaded() -> Option<Vec<(u32, String)>> {
    let mut programs = Vec::new();
    for program in loaded_programs() {
        match program {
            Ok(program) => programs.extend(
                program
                    .name_as_str()
                    .map(|name| (program.id(), name.to_owned())),
            ),
            Err(ProgramError::SyscallError(error))
                if error.io_error.kind() == ErrorKind::PermissionDenied =>
            {
                return None
            }
            Err(_) => (),
        }
    }
    Some(programs)
}

/// A name as the kernel keeps it.
pub(crate) fn kept(name: &str) -> &str {
    name.get(..NAME_MAX).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut() {
        assert_eq!(kept("kopi_add_subflow"), "kopi_add_subflo");
        assert_eq!(kept("kopi_bind"), "kopi_bind");
    }
}
