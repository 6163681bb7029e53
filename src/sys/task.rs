// SPDX-License-Identifier: GPL-2.0

//! The identity of a process: its program, its user, its cgroup.
//!
//! C headers: `include/linux/sched.h`, `include/linux/fs.h`, `include/linux/cgroup.h`

use super::bindings;
use super::{pernet::NetRef, sock::Sock};
use crate::pure::rule::{Cgroup, FileId};
use core::ptr::NonNull;
use kernel::{
    error::{from_err_ptr, to_result},
    prelude::*,
    str::CStr,
    sync::rcu, //
};

/// A reference to a process's pid. While it is held, the pid doesn't become another process's.
#[derive(PartialEq, Eq)]
pub(crate) struct Pid(NonNull<bindings::pid>);

// SAFETY: A reference to a `struct pid` is not bound to a task.
unsafe impl Send for Pid {}
// SAFETY: Through a shared reference, a `struct pid` is only read, under the kernel's own rules.
unsafe impl Sync for Pid {}

impl Pid {
    /// The current process's.
    pub(crate) fn current() -> Result<Self> {
        // SAFETY: Process context; gives a reference.
        NonNull::new(unsafe { bindings::kopi_get_current_tgid() })
            .map(Self)
            .ok_or(ESRCH)
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::pid {
        self.0.as_ptr()
    }

    /// The number in the current process's pid namespace; 0 where it has none there.
    pub(crate) fn here(&self) -> u32 {
        // SAFETY: The reference is held.
        u32::try_from(unsafe { bindings::kopi_pid_nr_here(self.0.as_ptr()) }).unwrap_or(0)
    }

    /// The number for the owner of a network namespace. If that belongs to the initial user
    /// namespace, it is the number in the initial pid namespace; otherwise it is that in the
    /// process's own. Any context.
    pub(crate) fn shown_in(&self, net: &NetRef) -> u32 {
        // SAFETY: The reference is held, and the namespace is valid.
        let number = unsafe { bindings::kopi_net_show_pid(net.as_ptr(), self.0.as_ptr()) };
        u32::try_from(number).unwrap_or(0)
    }
}

impl Drop for Pid {
    fn drop(&mut self) {
        // SAFETY: The reference that `current` took. Any context.
        unsafe { bindings::put_pid(self.0.as_ptr()) };
    }
}

/// The longest path, in bytes with the zero.
const PATH_MAX: usize = bindings::KOPI_FILE_PATH_MAX as usize + 1;

/// Has the kernel write a string into a buffer of the largest size, and gives a copy of it.
fn copy_path(write: impl FnOnce(&mut [u8]) -> Result<(usize, usize)>) -> Result<KVec<u8>> {
    let mut buffer = KVec::from_elem(0u8, PATH_MAX, GFP_KERNEL)?;
    let (start, len) = write(&mut buffer)?;
    let mut path = KVec::new();
    let range = start..start.checked_add(len).ok_or(EINVAL)?;
    path.extend_from_slice(buffer.get(range).ok_or(EINVAL)?, GFP_KERNEL_ACCOUNT)?;
    Ok(path)
}

/// A path, or an empty one if it is too long or not available. Only `ENOMEM` stays an error.
fn known(path: Result<KVec<u8>>) -> Result<KVec<u8>> {
    match path {
        Err(error) if error != ENOMEM => Ok(KVec::new()),
        result => result,
    }
}

/// The file of a program.
pub(crate) struct Program {
    /// Device, inode and generation.
    pub(crate) id: FileId,
    /// Its path when the identity was taken; may end in " (deleted)". Empty if it is too long.
    pub(crate) path: KVec<u8>,
}

/// # Safety
///
/// The inode must be valid.
unsafe fn file_id(inode: *const bindings::inode) -> FileId {
    // SAFETY: As required of the caller.
    unsafe {
        FileId {
            device: bindings::kopi_inode_device(inode),
            inode: bindings::kopi_inode_number(inode),
            generation: bindings::kopi_inode_generation(inode),
        }
    }
}

/// The file of an absolute path, in the current process's view: `ENOENT` and the like. Without
/// `may_wait` it fails with `EAGAIN` if a file system would have to be asked, since a user's file
/// system may never answer. Process context.
pub(crate) fn file_at(path: &CStr, may_wait: bool) -> Result<FileId> {
    let cached = if may_wait {
        0
    } else {
        bindings::KOPI_CONST_LOOKUP_CACHED
    };
    let mut found: bindings::path = pin_init::zeroed();
    // SAFETY: Process context; the path is a string, and `found` is written to. What is found is
    // kept until it is put.
    unsafe {
        to_result(bindings::kern_path(
            path.as_char_ptr(),
            bindings::KOPI_CONST_LOOKUP_FOLLOW | cached,
            &mut found,
        ))?;
        let id = file_id(bindings::kopi_path_inode(&found));
        bindings::path_put(&found);
        Ok(id)
    }
}

/// The identity of a flow's process.
pub(crate) struct Identity {
    pub(crate) process: Process,
    /// Effective ids, of the initial user namespace.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The name that the process gives itself, with zeroes at its end.
    pub(crate) command: [u8; 16],
    /// `None` for a process that has no program, as one of the kernel's.
    pub(crate) program: Option<Program>,
}

impl Identity {
    /// The current process. Process context.
    pub(crate) fn current() -> Result<Self> {
        Ok(Self {
            process: Process::current()?,
            // SAFETY: `current` is always valid.
            uid: unsafe { bindings::kopi_current_euid() },
            // SAFETY: As above.
            gid: unsafe { bindings::kopi_current_egid() },
            command: current_command(),
            program: current_program()?,
        })
    }

    /// Whether it is the current process as it is now. Process context.
    pub(crate) fn is_current(&self) -> bool {
        self.process.is_current()
            // SAFETY: `current` is always valid.
            && self.uid == unsafe { bindings::kopi_current_euid() }
            // SAFETY: As above.
            && self.gid == unsafe { bindings::kopi_current_egid() }
            && self.command == current_command()
            && self.program_id() == Executable::current().map(|file| file.id())
    }

    /// Whether it says the same of the same process.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        self.process == other.process
            && (self.uid, self.gid, self.command) == (other.uid, other.gid, other.command)
            && self.program_id() == other.program_id()
    }

    /// Which program it runs.
    pub(crate) fn program_id(&self) -> Option<FileId> {
        Some(self.program.as_ref()?.id)
    }
}

/// The name that the current process gives itself, with zeroes at its end. Process context.
pub(crate) fn current_command() -> [u8; 16] {
    let mut command = [0u8; 16];
    // SAFETY: `current` is always valid; the name has room for TASK_COMM_LEN bytes.
    unsafe { bindings::kopi_current_comm(command.as_mut_ptr().cast()) };
    command
}

/// A process, as the program that it is now: another one after exec.
#[derive(PartialEq, Eq)]
pub(crate) struct Process {
    /// Keeps the number from being another process's.
    pid: Pid,
    programs: u64,
}

impl Process {
    /// Its number.
    pub(crate) fn pid(&self) -> &Pid {
        &self.pid
    }

    /// The current one. Process context.
    pub(crate) fn current() -> Result<Self> {
        Ok(Self {
            pid: Pid::current()?,
            programs: current_programs(),
        })
    }

    /// Whether it is the current one. Process context.
    pub(crate) fn is_current(&self) -> bool {
        // SAFETY: `current` is always valid; the pointer is only compared.
        let pid = unsafe { bindings::kopi_current_tgid() };
        core::ptr::eq(self.pid.0.as_ptr().cast_const().cast(), pid)
            && self.programs == current_programs()
    }

    /// Whether its first thread goes on, as the same program. Any context.
    pub(crate) fn is_running(&self) -> bool {
        let _rcu = rcu::read_lock();
        // SAFETY: The reference to the pid is held, and under RCU so is the task that it leads to.
        unsafe {
            let task = bindings::kopi_pid_task(self.pid.as_ptr());
            !task.is_null()
                && !bindings::kopi_task_exiting(task)
                && bindings::kopi_task_exec_id(task) == self.programs
        }
    }
}

/// Rises with each program that the current process becomes.
fn current_programs() -> u64 {
    // SAFETY: `current` is always valid.
    unsafe { bindings::kopi_current_exec_id() }
}

/// A reference to the file of a program.
struct Executable(NonNull<bindings::file>);

impl Executable {
    /// The current process's, if it has one. Process context.
    fn current() -> Option<Self> {
        // SAFETY: `current` is always valid; gives a reference, or null.
        NonNull::new(unsafe { bindings::kopi_get_current_exe() }).map(Self)
    }

    fn id(&self) -> FileId {
        // SAFETY: The reference is held.
        unsafe { file_id(bindings::kopi_file_inode(self.0.as_ptr())) }
    }

    fn path(&self) -> Result<KVec<u8>> {
        copy_path(|buffer| {
            // SAFETY: The reference is held, and the buffer has `PATH_MAX` bytes.
            let start = from_err_ptr(unsafe {
                bindings::file_path(self.0.as_ptr(), buffer.as_mut_ptr().cast(), PATH_MAX as i32)
            })?;
            // The string ends with the buffer's last byte, a zero.
            let at = start.addr().wrapping_sub(buffer.as_ptr().addr());
            Ok((at, PATH_MAX.saturating_sub(1).saturating_sub(at)))
        })
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        // SAFETY: The reference is this value's.
        unsafe { bindings::fput(self.0.as_ptr()) };
    }
}

fn current_program() -> Result<Option<Program>> {
    let Some(file) = Executable::current() else {
        return Ok(None);
    };
    Ok(Some(Program {
        id: file.id(),
        path: known(file.path())?,
    }))
}

/// The number of a socket's cgroup, which it has for good. Any context.
pub(crate) fn cgroup_of(sk: &Sock) -> Option<u64> {
    // SAFETY: A valid sock, which keeps its cgroup.
    unsafe {
        let cgroup = NonNull::new(bindings::kopi_sk_cgroup(sk.as_ptr()))?;
        Some(bindings::kopi_cgroup_id(cgroup.as_ptr()))
    }
}

/// Whether a socket's cgroup is one, or in it: as fast however deep it is. Any context.
pub(crate) fn is_in_cgroup(sk: &Sock, cgroup: Cgroup) -> bool {
    // SAFETY: A valid sock, which keeps its cgroup, which keeps those that it is in.
    unsafe { bindings::kopi_sk_cgroup_id_at(sk.as_ptr(), cgroup.level) == cgroup.id }
}

/// A reference to a cgroup.
pub(crate) struct CgroupRef(NonNull<bindings::cgroup>);

impl Sock {
    /// A reference to the sock's cgroup. Any context.
    pub(crate) fn cgroup(&self) -> Option<CgroupRef> {
        // SAFETY: A valid sock, which keeps its cgroup. Gives a reference.
        NonNull::new(unsafe { bindings::kopi_sk_cgroup_get(self.as_ptr()) }).map(CgroupRef)
    }
}

impl CgroupRef {
    /// The path of the cgroup, as the current process sees it; empty if it is too long. Process
    /// context; takes the kernel's mutex of cgroups.
    pub(crate) fn path(&self) -> Result<KVec<u8>> {
        let path = copy_path(|buffer| {
            // SAFETY: The reference is held.
            let len = unsafe {
                bindings::kopi_cgroup_path_here(
                    self.0.as_ptr(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                )
            };
            to_result(len)?;
            Ok((0, usize::try_from(len)?))
        });
        known(path)
    }
}

impl Drop for CgroupRef {
    fn drop(&mut self) {
        // SAFETY: The reference is this value's.
        unsafe { bindings::kopi_cgroup_put(self.0.as_ptr()) };
    }
}

/// A cgroup, by its path as the current process sees it: `ENOENT`, `ENOTDIR`.
pub(crate) fn cgroup_at(path: &CStr) -> Result<Cgroup> {
    // SAFETY: Process context; the path is a string. Gives a reference.
    unsafe {
        let cgroup = from_err_ptr(bindings::cgroup_get_from_path(path.as_char_ptr()))?;
        let found = Cgroup {
            id: bindings::kopi_cgroup_id(cgroup),
            level: bindings::kopi_cgroup_level(cgroup),
        };
        bindings::kopi_cgroup_put(cgroup);
        Ok(found)
    }
}
