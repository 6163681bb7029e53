// SPDX-License-Identifier: GPL-2.0

//! The identity of a process: its program, its user and group.
//!
//! C headers: `include/linux/sched.h`, `include/linux/fs.h`

use super::bindings;
use super::{
    context::{current_euid, might_sleep},
    pernet::NetRef,
    raw,
    sock::Sock,
};
use crate::pure::rule::FileId;
use core::ptr::NonNull;
use kernel::{
    alloc::Flags,
    error::{from_err_ptr, to_result},
    prelude::*,
    str::CStr,
    sync::{rcu, Arc},
    types::Opaque, //
};

/// A reference to a process's pid. While it is held, the pid doesn't become another process's.
#[derive(PartialEq, Eq)]
pub(crate) struct Pid(NonNull<bindings::pid>);

// SAFETY: A reference to a `struct pid` is not bound to a task.
unsafe impl Send for Pid {}
// SAFETY: Through a shared reference, a `struct pid` is only read, under the kernel's own rules.
unsafe impl Sync for Pid {}

impl Pid {
    /// The current process's pid. Process context.
    pub(crate) fn current() -> Result<Self> {
        // SAFETY: The current task, which there is in process context, has a pid. The call takes a
        // reference, which `drop` puts.
        NonNull::new(unsafe { bindings::kopi_get_current_tgid() })
            .map(Self)
            .ok_or(ESRCH)
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::pid {
        self.0.as_ptr()
    }

    /// The number in the current process's pid namespace; 0 where it has none there.
    pub(crate) fn here(&self) -> u32 {
        // SAFETY: This value's reference keeps the pid.
        u32::try_from(unsafe { bindings::pid_vnr(self.0.as_ptr()) }).unwrap_or(0)
    }

    /// The number for the owner of a network namespace. If that belongs to the initial user
    /// namespace, it is the number in the initial pid namespace; otherwise it is that in the
    /// process's own. Any context.
    pub(crate) fn shown_in(&self, net: &NetRef) -> u32 {
        // SAFETY: This value's reference keeps the pid. The namespace is borrowed, and keeps its
        // user namespace.
        let number = unsafe { bindings::kopi_net_show_pid(net.as_ptr(), self.0.as_ptr()) };
        u32::try_from(number).unwrap_or(0)
    }
}

impl Clone for Pid {
    fn clone(&self) -> Self {
        // SAFETY: This value's reference keeps the pid. The call takes another one, which `drop` puts.
        Self(unsafe {
            bindings::kopi_get_pid(self.0.as_ptr());
            self.0
        })
    }
}

impl Drop for Pid {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference that `current` took, and isn't used any more. It
        // may be put in any context.
        unsafe { bindings::put_pid(self.0.as_ptr()) };
    }
}

/// A task.
///
/// # Invariants
///
/// The task isn't freed as long as it is borrowed.
#[repr(transparent)]
pub(crate) struct Task(Opaque<raw::Task>);

impl Task {
    /// # Safety
    ///
    /// `task` must be a task that isn't freed for `'a`.
    pub(super) unsafe fn from_raw<'a>(task: *mut raw::Task) -> &'a Self {
        // SAFETY: `Task` is transparent. The caller passes a task that lives long enough.
        unsafe { &*task.cast() }
    }

    /// The current task. Process context.
    pub(super) fn current<'a>() -> &'a Self {
        // SAFETY: The current task isn't freed as long as it runs, and the result can't leave it: the
        // type isn't `Sync`.
        unsafe { Self::from_raw(bindings::kopi_current().cast_mut().cast()) }
    }

    /// Whether it is a thread of the kernel's own, which calls for others.
    pub(super) fn is_kernels(&self) -> bool {
        // SAFETY: The task is borrowed, and so valid.
        unsafe { bindings::kopi_task_is_kernels(self.as_ptr()) }
    }

    fn as_ptr(&self) -> *mut raw::Task {
        self.0.get()
    }
}

/// The size of the longest path with its final zero, in bytes.
const PATH_MAX: usize = bindings::KOPI_FILE_PATH_MAX as usize + 1;

/// Calls `write` with a buffer of [`PATH_MAX`] bytes, and returns a copy of the part that it names
/// by start and length. The context is that of the flags.
pub(super) fn copy_path(
    flags: Flags,
    write: impl FnOnce(&mut [u8]) -> Result<(usize, usize)>,
) -> Result<KVec<u8>> {
    let mut buffer = KVec::from_elem(0u8, PATH_MAX, flags)?;
    let (start, len) = write(&mut buffer)?;
    let mut path = KVec::new();
    let range = start..start.checked_add(len).ok_or(EINVAL)?;
    path.extend_from_slice(buffer.get(range).ok_or(EINVAL)?, flags)?;
    Ok(path)
}

/// A path, or an empty one if it is too long or not available. Only `ENOMEM` stays an error.
pub(super) fn known(path: Result<KVec<u8>>) -> Result<KVec<u8>> {
    match path {
        Err(error) if error != ENOMEM => Ok(KVec::new()),
        result => result,
    }
}

/// The file of a program.
pub(crate) struct Program {
    /// Which file it is, whatever its path.
    pub(crate) id: FileId,
    /// Its path when the identity was taken; may end in " (deleted)". Empty if it is too long.
    pub(crate) path: KVec<u8>,
}

/// # Safety
///
/// The path must be valid, and that of a file.
unsafe fn file_id(path: *const bindings::path) -> FileId {
    // SAFETY: The caller passes a valid path, which keeps its inode and that of an overlay's layer.
    // Their superblocks, numbers and generations don't change.
    unsafe {
        let inode = bindings::kopi_path_inode(path);
        let layer = bindings::kopi_path_layer_inode(path);
        FileId {
            device: bindings::kopi_inode_device(inode),
            inode: bindings::kopi_inode_number(inode),
            layer: (
                bindings::kopi_inode_device(layer),
                bindings::kopi_inode_number(layer),
            ),
            generation: bindings::kopi_inode_generation(layer),
        }
    }
}

/// The file of an absolute path, in the current process's view: `ENOENT` and the like, `ENOEXEC` if it is no
/// regular file and so no program. Without `may_wait` it fails with `EAGAIN` if a file system would have to be
/// asked, since a user's file system may never answer. Process context.
pub(crate) fn file_at(path: &CStr, may_wait: bool) -> Result<FileId> {
    might_sleep();
    let cached = if may_wait {
        0
    } else {
        bindings::KOPI_CONST_LOOKUP_CACHED
    };
    let mut found: bindings::path = pin_init::zeroed();
    // SAFETY: The lookup is for the current process, which there is in process context, as this
    // function requires. The path ends with a zero. On success `found` has a reference, which keeps
    // the inode until it is put below.
    unsafe {
        to_result(bindings::kern_path(
            path.as_char_ptr(),
            bindings::KOPI_CONST_LOOKUP_FOLLOW | cached,
            &mut found,
        ))?;
        let is_program = bindings::kopi_inode_is_regular(bindings::kopi_path_inode(&found));
        let id = file_id(&found);
        bindings::path_put(&found);
        if is_program {
            Ok(id)
        } else {
            Err(ENOEXEC)
        }
    }
}

/// The identity of a flow's process.
pub(crate) struct Identity {
    pub(crate) process: Process,
    /// Effective ids, in the initial user namespace.
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// It has capabilities in the initial user namespace; of another task than the current one it isn't known.
    pub(crate) has_capabilities: bool,
    /// The command name of the process, padded with zeroes.
    pub(crate) command: [u8; 16],
    /// `None` for a process without a program, such as a kernel thread.
    pub(crate) program: Option<Arc<Program>>,
}

impl Identity {
    /// The current process. Process context.
    pub(crate) fn current() -> Result<Self> {
        Ok(Self {
            process: Process::current()?,
            uid: current_euid(),
            // SAFETY: The call reads the credentials of the current task, which only that task
            // replaces.
            gid: unsafe { bindings::kopi_current_egid() },
            // SAFETY: As above.
            has_capabilities: unsafe { bindings::kopi_current_has_capabilities() },
            command: current_command(),
            program: program(Executable::current(), GFP_KERNEL_ACCOUNT)?,
        })
    }

    /// A task's process: `ENOMEM`. In an RCU read-side section.
    pub(crate) fn of(task: &Task, flags: Flags) -> Result<Self> {
        let mut command = [0u8; 16];
        // SAFETY: The task is borrowed. RCU, held by the caller, keeps its credentials and its
        // group's leader. `command` has room for TASK_COMM_LEN bytes. The call for the pid takes a
        // reference, which `Pid` puts.
        unsafe {
            let task = task.as_ptr();
            bindings::kopi_comm_of(task, command.as_mut_ptr().cast());
            let ids = bindings::kopi_ids_of(task);
            Ok(Self {
                process: Process {
                    pid: Pid(NonNull::new(bindings::kopi_get_tgid_of(task)).ok_or(ESRCH)?),
                    programs: bindings::kopi_task_exec_id(task),
                },
                uid: ids.uid,
                gid: ids.gid,
                has_capabilities: ids.has_capabilities,
                command,
                program: program(
                    NonNull::new(bindings::kopi_get_exe_of(task)).map(Executable),
                    flags,
                )?,
            })
        }
    }

    /// The same with the user and group that the process's first thread has now, if they are others, and that thread
    /// still runs the program. Any context.
    pub(crate) fn with_new_ids(&self) -> Option<Self> {
        let _rcu = rcu::read_lock();
        let pid = &self.process.pid;
        // SAFETY: The pid is kept by its reference. RCU, held here, keeps its task, and that one's credentials.
        let ids = unsafe {
            let task = NonNull::new(bindings::kopi_pid_task(pid.as_ptr()))?;
            bindings::kopi_ids_of(task.as_ptr())
        };
        if (ids.uid, ids.gid) == (self.uid, self.gid) {
            return None;
        }
        // After the ids, which may be another program's, or those of a thread that has ended, which stay.
        self.process.is_running().then(|| Self {
            process: Process {
                pid: pid.clone(),
                programs: self.process.programs,
            },
            uid: ids.uid,
            gid: ids.gid,
            has_capabilities: ids.has_capabilities,
            command: self.command,
            program: self.program.clone(),
        })
    }

    /// Where a socket isn't its own, the same of the user who made the socket, and without a program unless
    /// that user is its own.
    pub(crate) fn or_maker(mut self, sk: &Sock, is_lent: bool) -> Self {
        let maker = (sk.uid(), sk.gid());
        if is_lent && maker != (self.uid, self.gid) {
            (self.uid, self.gid) = maker;
            self.program = None;
        }
        self
    }

    /// Whether the current process is the same, runs the same program, and has the same user and group.
    /// Process context.
    pub(crate) fn is_process(&self) -> bool {
        self.process.is_current()
            && self.uid == current_euid()
            // SAFETY: The call reads the credentials of the current task, which only that task
            // replaces.
            && self.gid == unsafe { bindings::kopi_current_egid() }
    }

    /// Whether it equals the identity that the current process has now. Process context.
    pub(crate) fn is_current(&self) -> bool {
        self.is_process()
            && self.command == current_command()
            && self.program_id() == Executable::current().map(|file| file.id())
    }

    /// Whether both are of the same process, and equal.
    pub(crate) fn is_as(&self, other: &Self) -> bool {
        self.process == other.process
            && (self.uid, self.gid, self.command) == (other.uid, other.gid, other.command)
            && self.program_id() == other.program_id()
    }

    /// The file of its program.
    pub(crate) fn program_id(&self) -> Option<FileId> {
        Some(self.program.as_ref()?.id)
    }
}

/// The command name of the current process, padded with zeroes. Process context.
pub(crate) fn current_command() -> [u8; 16] {
    let mut command = [0u8; 16];
    // SAFETY: The current task keeps its group's leader. `command` has room for TASK_COMM_LEN
    // bytes.
    unsafe { bindings::kopi_current_comm(command.as_mut_ptr().cast()) };
    command
}

/// A process that runs a certain program: after exec() it is another `Process`.
#[derive(PartialEq, Eq)]
pub(crate) struct Process {
    /// The reference to the pid, which no other process gets meanwhile.
    pid: Pid,
    /// The process's count of programs, as [`current_programs`] returns it.
    programs: u64,
}

impl Process {
    /// Its pid.
    pub(crate) fn pid(&self) -> &Pid {
        &self.pid
    }

    /// The current process. Process context.
    pub(crate) fn current() -> Result<Self> {
        Ok(Self {
            pid: Pid::current()?,
            programs: current_programs(),
        })
    }

    /// Whether it is the current process. Process context.
    pub(crate) fn is_current(&self) -> bool {
        // SAFETY: The current task has a pid, whose pointer is only compared.
        let pid = unsafe { bindings::kopi_current_tgid() };
        core::ptr::eq(self.pid.0.as_ptr().cast_const().cast(), pid)
            && self.programs == current_programs()
    }

    /// Whether its first thread still runs, and runs the same program. Any context.
    pub(crate) fn is_running(&self) -> bool {
        let _rcu = rcu::read_lock();
        // SAFETY: This value's reference keeps the pid. RCU, held here, keeps the task of the pid.
        unsafe {
            let task = bindings::kopi_pid_task(self.pid.as_ptr());
            !task.is_null()
                && !bindings::kopi_task_exiting(task)
                && bindings::kopi_task_exec_id(task) == self.programs
        }
    }
}

/// The current process's count of programs, which each exec() raises. Process context.
fn current_programs() -> u64 {
    // SAFETY: The call reads a field of the current task, which exists as long as it runs.
    unsafe { bindings::kopi_current_exec_id() }
}

/// A reference to the file of a program.
struct Executable(NonNull<bindings::file>);

impl Executable {
    /// The file of the current process's program, if it has one. Process context.
    fn current() -> Option<Self> {
        // SAFETY: The current task keeps its memory map, which has the file. The call takes a
        // reference, which `drop` puts, or returns null.
        NonNull::new(unsafe { bindings::kopi_get_current_exe() }).map(Self)
    }

    fn id(&self) -> FileId {
        // SAFETY: This value's reference keeps the file, and with it the path.
        unsafe { file_id(bindings::kopi_file_path(self.0.as_ptr())) }
    }

    fn path(&self, flags: Flags) -> Result<KVec<u8>> {
        copy_path(flags, |buffer| {
            // SAFETY: This value's reference keeps the file. The buffer has `PATH_MAX` bytes, as
            // `copy_path` makes it.
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
        // SAFETY: This value owns the reference to the file, and isn't used any more.
        unsafe { bindings::fput(self.0.as_ptr()) };
    }
}

/// What is kept of the file of a program. The context is that of the flags.
fn program(file: Option<Executable>, flags: Flags) -> Result<Option<Arc<Program>>> {
    let Some(file) = file else {
        return Ok(None);
    };
    let program = Program {
        id: file.id(),
        path: known(file.path(flags))?,
    };
    Ok(Some(Arc::new(program, flags)?))
}
