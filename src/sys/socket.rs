// SPDX-License-Identifier: GPL-2.0

//! `struct socket`: the side of a socket that system calls use.
//!
//! C header: `include/linux/net.h`

use super::bindings;
use super::{
    context::might_sleep,
    errno::enotsock,
    sock::Sock, //
};
use core::{
    mem::{size_of, MaybeUninit},
    ops::RangeInclusive,
    ptr::{self, NonNull}, //
};
use kernel::{
    error::to_result,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    types::Opaque, //
};

/// A socket with a UDP or TCP sock.
///
/// # Invariants
///
/// The socket isn't released as long as it is borrowed, and its `sk` is a full UDP or TCP sock.
#[repr(transparent)]
pub(crate) struct Socket(Opaque<bindings::socket>);

// SAFETY: Through a shared reference, `sk`, `ops` and `file` are only read: they don't change while
// the socket has users. The functions of the kernel that get the socket are those of system calls,
// which may be made by several tasks at once.
unsafe impl Sync for Socket {}

impl Socket {
    /// # Safety
    ///
    /// The type's invariants must hold for `socket` as long as the result is used.
    pub(super) unsafe fn from_raw<'a>(socket: *mut bindings::socket) -> &'a Self {
        // SAFETY: `Socket` is transparent. The caller passes a socket that outlives the result.
        unsafe { &*socket.cast() }
    }

    /// The C structure.
    pub(super) fn as_ptr(&self) -> *mut bindings::socket {
        self.0.get()
    }

    /// The socket's sock.
    pub(crate) fn sk(&self) -> &Sock {
        // SAFETY: By the invariants, `sk` is such a sock. A socket that isn't released holds a
        // reference to it, and isn't released during the borrow.
        unsafe { Sock::from_raw((*self.as_ptr()).sk) }
    }

    /// Whether the kernel itself makes the call that goes on now, for nbd, say: the current process, if there
    /// is one, may only be reading a file. Process context.
    pub(crate) fn is_called_by_kernel(&self) -> bool {
        // SAFETY: The socket is borrowed, and so are its sock and its file, if it has one.
        unsafe { bindings::kopi_call_is_kernels(self.as_ptr()) }
    }

    /// Whether O_NONBLOCK is set.
    pub(crate) fn is_nonblocking(&self) -> bool {
        // SAFETY: The file is null, or lives as long as its socket, which is borrowed. fcntl() may
        // change the flags meanwhile, so they are read once.
        unsafe {
            let file = (*self.as_ptr()).file;
            !file.is_null()
                && ptr::read_volatile(&raw const (*file).f_flags) & bindings::O_NONBLOCK != 0
        }
    }

    /// Asks the security module whether the current process may receive: `EACCES` or `EPERM` if
    /// not. Process context.
    ///
    /// It calls recvmsg with MSG_PEEK, which asks and leaves all packets in the queue.
    pub(crate) fn may_receive(&self) -> Result {
        might_sleep();
        // SAFETY: A msghdr has pointers, integers and a union of pointers, for all of which zeroes
        // are valid. Its iterator has no room, so nothing is written. The socket is borrowed.
        let peek = || unsafe {
            let mut header: bindings::msghdr = MaybeUninit::zeroed().assume_init();
            bindings::sock_recvmsg(
                self.as_ptr(),
                &mut header,
                (bindings::MSG_PEEK | bindings::MSG_DONTWAIT) as i32,
            )
        };
        match to_result(self.sk().with_error_saved(peek)) {
            Err(error) if [EACCES, EPERM].contains(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the stack coalesce received datagrams to GRO packets, as setsockopt(SOL_UDP, UDP_GRO)
    /// does. Process context.
    pub(crate) fn enable_gro(&self) -> Result {
        might_sleep();
        let on: i32 = 1;
        let mut value: bindings::sockptr_t = pin_init::zeroed();
        value.__bindgen_anon_1.kernel = ptr::from_ref(&on).cast_mut().cast();
        value.set_is_kernel(true);
        // SAFETY: The socket is borrowed. Its operations are UDP's, or KOPI's, which pass options
        // of other levels to UDP's. `value` is marked as a kernel pointer, to an integer that
        // outlives the call.
        let result = unsafe {
            let set = (*(*self.as_ptr()).ops).setsockopt.ok_or(EINVAL)?;
            set(
                self.as_ptr(),
                bindings::SOL_UDP as i32,
                bindings::UDP_GRO as i32,
                value,
                size_of::<i32>() as u32,
            )
        };
        to_result(result)
    }
}

/// A reference to the file of a socket.
///
/// # Invariants
///
/// This value owns a reference to the socket's file, which keeps the socket.
pub(crate) struct SocketFile(NonNull<bindings::socket>);

impl SocketFile {
    /// Looks up a descriptor of the current process: `EBADF`, or `ENOTSOCK`. Process context.
    pub(crate) fn get(fd: i32) -> Result<Self> {
        let mut error = 0;
        // SAFETY: The call looks into the current process's table of files, which there is in
        // process context, as this function requires. `error` may be written.
        let socket = unsafe { bindings::sockfd_lookup(fd, &mut error) };
        // INVARIANT: The lookup takes a reference to the file.
        NonNull::new(socket).map(Self).ok_or_else(|| {
            if error == EBADF.to_errno() {
                EBADF
            } else {
                enotsock()
            }
        })
    }

    /// The C structure.
    pub(super) fn as_ptr(&self) -> *mut bindings::socket {
        self.0.as_ptr()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // SAFETY: This value owns the reference to the file, by the invariants, and isn't used any
        // more.
        unsafe { bindings::fput((*self.as_ptr()).file) };
    }
}

/// Sockets by small numbers, which are the indexes of a table.
///
/// # Invariants
///
/// Every socket in the table belongs to a flow and isn't released.
pub(crate) struct SocketTable {
    slots: KVVec<Option<NonNull<bindings::socket>>>,
    /// Numbers of removed sockets. Its capacity suffices for all numbers.
    free: KVVec<u32>,
    /// The number of sockets.
    used: u32,
}

// SAFETY: Sockets are not bound to a task, and the owner of the table is the only one to use it.
unsafe impl Send for SocketTable {}

/// Memory for a larger table, which is allocated before the table's lock is taken.
pub(crate) struct TableReservation {
    slots: KVVec<Option<NonNull<bindings::socket>>>,
    free: KVVec<u32>,
}

impl TableReservation {
    /// Room for `size` sockets: `ENOMEM`. Process context.
    pub(crate) fn new(size: usize) -> Result<Self> {
        let slots = KVVec::with_capacity(size, GFP_KERNEL_ACCOUNT)?;
        // Capacities may be larger than what was asked for.
        let free = KVVec::with_capacity(slots.capacity(), GFP_KERNEL_ACCOUNT)?;
        Ok(Self { slots, free })
    }
}

/// The maximum number of sockets in one table.
const SLOTS_MAX: usize = 1 << 20;

impl SocketTable {
    /// An empty table.
    pub(crate) fn new() -> Self {
        Self {
            slots: KVVec::new(),
            free: KVVec::new(),
            used: 0,
        }
    }

    /// Adds a socket, and returns its number: `None` if the table has to [`SocketTable::grow`]
    /// before, or `ENOSPC` if it is full.
    ///
    /// # Safety
    ///
    /// The socket must be removed before it is released.
    pub(crate) unsafe fn insert(&mut self, socket: &Socket) -> Result<Option<u32>> {
        let entry = NonNull::new(socket.as_ptr());
        // INVARIANT: The socket is borrowed, and the caller removes it before it is released.
        if let Some(number) = self.free.pop() {
            if let Some(slot) = self.slots.get_mut(number as usize) {
                *slot = entry;
            }
            self.used = self.used.wrapping_add(1);
            return Ok(Some(number));
        }
        if self.slots.len() >= SLOTS_MAX {
            return Err(ENOSPC);
        }
        // `remove` can't allocate, so there is room for all numbers.
        if self.free.capacity() <= self.slots.len()
            || self.slots.push_within_capacity(entry).is_err()
        {
            return Ok(None);
        }
        self.used = self.used.wrapping_add(1);
        Ok(Some(self.slots.len().wrapping_sub(1) as u32))
    }

    /// The size to which the table grows next.
    pub(crate) fn next_size(&self) -> usize {
        self.slots.len().saturating_mul(2).max(16)
    }

    /// Grows to the room's size, if that is larger.
    pub(crate) fn grow(&mut self, mut room: TableReservation) {
        if room.slots.capacity() <= self.slots.len() || room.free.capacity() < room.slots.capacity()
        {
            return;
        }
        // There is room, by what was just compared: there are never more free numbers than slots.
        for slot in &self.slots {
            let _ = room.slots.push_within_capacity(*slot);
        }
        for number in &self.free {
            let _ = room.free.push_within_capacity(*number);
        }
        (self.slots, self.free) = (room.slots, room.free);
    }

    /// Removes a socket; its number may be used again. Without sockets, the table gives its memory back. Process
    /// context.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            if slot.take().is_some() {
                self.used = self.used.wrapping_sub(1);
                // This can't fail: `insert` ensures room for all numbers.
                let _ = self.free.push_within_capacity(number);
            }
        }
        if self.used == 0 {
            // Not left to the table's own end, which may come where vfree() must not sleep: in the RCU read-side
            // section of who frees a channel's last packet.
            *self = Self::new();
        }
    }

    /// The socket of a number.
    pub(crate) fn get(&self, number: u32) -> Option<&Socket> {
        let socket = (*self.slots.get(number as usize)?)?;
        // SAFETY: By the invariants, the socket isn't released before it is removed, which takes an
        // exclusive borrow of the table.
        Some(unsafe { Socket::from_raw(socket.as_ptr()) })
    }

    /// Number of sockets.
    pub(crate) fn len(&self) -> u32 {
        self.used
    }
}

/// Sockets by number, in the order of their numbers.
///
/// # Invariants
///
/// Every socket in the map belongs to a flow and isn't released.
pub(crate) struct SocketMap {
    /// The groups by the upper bits of their numbers. The lower [`GROUP_BITS`] bits are the place
    /// in the group.
    groups: RBTree<u32, Group>,
    /// The number of sockets.
    used: usize,
}

/// The number of bits of a number that are the place in a group.
const GROUP_BITS: u32 = 4;

/// A node of the tree, which holds the sockets of consecutive numbers. Flows are numbered in order,
/// so most nodes are full.
type Group = [Option<SocketPtr>; 1 << GROUP_BITS];

/// The address of a socket in a map.
#[derive(Clone, Copy)]
struct SocketPtr(NonNull<bindings::socket>);

// SAFETY: Sockets are not bound to a task.
unsafe impl Send for SocketPtr {}
// SAFETY: The address is plain data. `SocketMap::get` makes a `Socket` of it, which is `Sync`.
unsafe impl Sync for SocketPtr {}

/// Memory for another socket of a map. It is allocated before the map's lock is taken, because an
/// allocation that is charged to a cgroup can take long.
pub(crate) struct SocketReservation(RBTreeNodeReservation<u32, Group>);

impl SocketReservation {
    /// Allocates it: `ENOMEM`. Process context.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?))
    }
}

/// The group of a number, and the place in it.
fn place(number: u32) -> (u32, usize) {
    let mask = (1 << GROUP_BITS) - 1;
    (number >> GROUP_BITS, (number & mask) as usize)
}

impl SocketMap {
    /// An empty map.
    pub(crate) fn new() -> Self {
        Self {
            groups: RBTree::new(),
            used: 0,
        }
    }

    /// Adds a socket under a free number. It needs `room` if the number begins a new group.
    ///
    /// # Safety
    ///
    /// The socket must be removed before it is released.
    pub(crate) unsafe fn insert(
        &mut self,
        number: u32,
        socket: &Socket,
        room: SocketReservation,
    ) -> Result {
        let entry = SocketPtr(NonNull::new(socket.as_ptr()).ok_or(EINVAL)?);
        let (group, at) = place(number);
        if self.groups.get(&group).is_none() {
            self.groups
                .insert(room.0.into_node(group, Group::default()));
        }
        let sockets = self.groups.get_mut(&group).ok_or(ENOMEM)?;
        // INVARIANT: The socket is borrowed, and the caller removes it before it is released.
        *sockets.get_mut(at).ok_or(EINVAL)? = Some(entry);
        self.used = self.used.wrapping_add(1);
        Ok(())
    }

    /// Removes the socket of a number, if there is one.
    pub(crate) fn remove(&mut self, number: u32) {
        let (group, at) = place(number);
        let Some(sockets) = self.groups.get_mut(&group) else {
            return;
        };
        if sockets.get_mut(at).and_then(Option::take).is_some() {
            self.used = self.used.wrapping_sub(1);
        }
        if sockets.iter().all(Option::is_none) {
            self.groups.remove(&group);
        }
    }

    /// The socket of a number.
    pub(crate) fn get(&self, number: u32) -> Option<&Socket> {
        let (group, at) = place(number);
        let entry = (*self.groups.get(&group)?.get(at)?)?;
        // SAFETY: By the invariants, the socket isn't released before it is removed, which takes an
        // exclusive borrow of the map.
        Some(unsafe { Socket::from_raw(entry.0.as_ptr()) })
    }

    /// A number that is no smaller than any in the map. Walks that let others change the map meanwhile end
    /// there: flows that are opened faster than a walk goes on would make it endless.
    pub(crate) fn end(&self) -> u32 {
        let (_, last_place) = place(u32::MAX);
        self.groups.cursor_back().map_or(0, |cursor| {
            (cursor.current().0 << GROUP_BITS) | last_place as u32
        })
    }

    /// All sockets of these numbers, in order.
    pub(crate) fn within(
        &self,
        numbers: RangeInclusive<u32>,
    ) -> impl Iterator<Item = (u32, &Socket)> {
        let mut next = Some(*numbers.start());
        core::iter::from_fn(move || loop {
            let number = next?;
            let (group, _) = place(number);
            let cursor = self.groups.cursor_lower_bound(&group)?;
            let (&found, _) = cursor.current();
            // If this group has ended, go on with the first number of the next one.
            let number = number.max(found << GROUP_BITS);
            next = number.checked_add(1);
            if number > *numbers.end() {
                return None;
            }
            if let Some(socket) = self.get(number) {
                return Some((number, socket));
            }
        })
    }

    /// Number of sockets in the map.
    pub(crate) fn len(&self) -> usize {
        self.used
    }
}
