// SPDX-License-Identifier: GPL-2.0

//! `struct socket`: the process's side of a socket.
//!
//! C header: `include/linux/net.h`

use super::bindings;
use super::{
    errno::enotsock,
    sock::Sock, //
};
use core::{
    mem::{size_of, MaybeUninit},
    ptr::{self, NonNull}, //
};
use kernel::{
    error::to_result,
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    types::Opaque, //
};

/// A socket with a UDP sock.
///
/// # Invariants
///
/// `sk` is a UDP sock as long as the socket is not released.
#[repr(transparent)]
pub(crate) struct Socket(Opaque<bindings::socket>);

// SAFETY: The kernel's functions that are called here lock what they need.
unsafe impl Sync for Socket {}

impl Socket {
    /// # Safety
    ///
    /// `socket` must be as the invariants say, and live at least as long as the result.
    pub(super) unsafe fn from_raw<'a>(socket: *mut bindings::socket) -> &'a Self {
        // SAFETY: `Socket` is transparent; the rest is the caller's to see to.
        unsafe { &*socket.cast() }
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::socket {
        self.0.get()
    }

    /// The protocol's side.
    pub(crate) fn sk(&self) -> &Sock {
        // SAFETY: By the invariants; the socket holds a reference to it.
        unsafe { Sock::from_raw((*self.as_ptr()).sk) }
    }

    /// Whether O_NONBLOCK is set.
    pub(crate) fn is_nonblocking(&self) -> bool {
        // SAFETY: Sockets that system calls reach have a file; the flags are read once.
        unsafe {
            let file = (*self.as_ptr()).file;
            !file.is_null()
                && ptr::read_volatile(&raw const (*file).f_flags) & bindings::O_NONBLOCK != 0
        }
    }

    /// Whether the security module lets the current process receive: `EACCES`, `EPERM`.
    ///
    /// Asks as recvmsg does, without taking anything. Process context.
    pub(crate) fn may_receive(&self) -> Result {
        // SAFETY: A msghdr of zeroes has no room for anything; the socket is valid.
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

    /// Has received datagrams coalesced to GRO packets, as setsockopt(SOL_UDP, UDP_GRO) does.
    pub(crate) fn enable_gro(&self) -> Result {
        let on: i32 = 1;
        let mut value: bindings::sockptr_t = pin_init::zeroed();
        value.__bindgen_anon_1.kernel = ptr::from_ref(&on).cast_mut().cast();
        value.set_is_kernel(true);
        // SAFETY: A valid socket; its operations are those of UDP, or KOPI's, which pass other
        // levels than their own on to those.
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

/// A reference to the socket behind a file descriptor.
pub(crate) struct SocketFile(NonNull<bindings::socket>);

impl SocketFile {
    /// Looks up a descriptor of the current process: `EBADF`, or `ENOTSOCK`.
    pub(crate) fn get(fd: i32) -> Result<Self> {
        let mut error = 0;
        // SAFETY: Process context; `error` is written to.
        let socket = unsafe { bindings::sockfd_lookup(fd, &mut error) };
        NonNull::new(socket).map(Self).ok_or_else(|| {
            if error == EBADF.to_errno() {
                EBADF
            } else {
                enotsock()
            }
        })
    }

    pub(super) fn as_ptr(&self) -> *mut bindings::socket {
        self.0.as_ptr()
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // SAFETY: The reference to the file that `sockfd_lookup` took.
        unsafe { bindings::fput((*self.as_ptr()).file) };
    }
}

/// Sockets by number.
///
/// # Invariants
///
/// Every socket in the table is alive and of a flow.
pub(crate) struct SocketTable {
    slots: KVVec<Option<NonNull<bindings::socket>>>,
    /// Numbers that are free again.
    free: KVVec<u32>,
    used: u32,
}

// SAFETY: Sockets are not bound to a task.
unsafe impl Send for SocketTable {}

/// Memory for a larger table, which is allocated before the table's lock is taken.
pub(crate) struct TableRoom {
    slots: KVVec<Option<NonNull<bindings::socket>>>,
    free: KVVec<u32>,
}

impl TableRoom {
    /// Room for `size` sockets: `ENOMEM`. Process context.
    pub(crate) fn new(size: usize) -> Result<Self> {
        let slots = KVVec::with_capacity(size, GFP_KERNEL_ACCOUNT)?;
        // Capacities may be larger than what was asked for.
        let free = KVVec::with_capacity(slots.capacity(), GFP_KERNEL_ACCOUNT)?;
        Ok(Self { slots, free })
    }
}

/// The most sockets in one table.
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

    /// Gives the socket a number: `None` if the table has to [`SocketTable::grow`] before, or
    /// `ENOSPC` if there is none left.
    ///
    /// # Safety
    ///
    /// The socket must be removed before it is released.
    pub(crate) unsafe fn insert(&mut self, socket: &Socket) -> Result<Option<u32>> {
        let entry = NonNull::new(socket.as_ptr());
        // INVARIANT: As the caller sees to.
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
        // So that `remove` need not allocate.
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
    pub(crate) fn grow(&mut self, mut room: TableRoom) {
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

    /// Takes the number back.
    pub(crate) fn remove(&mut self, number: u32) {
        if let Some(slot) = self.slots.get_mut(number as usize) {
            if slot.take().is_some() {
                self.used = self.used.wrapping_sub(1);
                // There is room, by `insert`.
                let _ = self.free.push_within_capacity(number);
            }
        }
    }

    /// The socket of that number.
    pub(crate) fn get(&self, number: u32) -> Option<&Socket> {
        let socket = (*self.slots.get(number as usize)?)?;
        // SAFETY: By the invariants.
        Some(unsafe { Socket::from_raw(socket.as_ptr()) })
    }

    /// Number of sockets.
    pub(crate) fn len(&self) -> u32 {
        self.used
    }
}

/// Sockets of flows by number, in order.
///
/// # Invariants
///
/// Every socket in the map is alive and of a flow.
pub(crate) struct SocketMap {
    /// By number without [`GROUP_BITS`], which are the place.
    groups: RBTree<u32, Group>,
    used: usize,
}

const GROUP_BITS: u32 = 4;

/// Sockets of numbers in a row, which share a node of the tree: numbers are given in order.
type Group = [Option<SocketPtr>; 1 << GROUP_BITS];

#[derive(Clone, Copy)]
struct SocketPtr(NonNull<bindings::socket>);

// SAFETY: Sockets are not bound to a task.
unsafe impl Send for SocketPtr {}
// SAFETY: As above.
unsafe impl Sync for SocketPtr {}

/// What another socket of a map may need, to be had before the map's lock is taken: memory that is
/// charged to a cgroup may be long in coming.
pub(crate) struct SocketRoom(RBTreeNodeReservation<u32, Group>);

impl SocketRoom {
    /// `ENOMEM`. Process context.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?))
    }
}

/// Which group a number is in, and where.
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

    /// Enters a socket under a number that is free, where there may be need of the room.
    ///
    /// # Safety
    ///
    /// The socket must be removed before it is released.
    pub(crate) unsafe fn insert(
        &mut self,
        number: u32,
        socket: &Socket,
        room: SocketRoom,
    ) -> Result {
        let entry = SocketPtr(NonNull::new(socket.as_ptr()).ok_or(EINVAL)?);
        let (group, at) = place(number);
        if self.groups.get(&group).is_none() {
            self.groups
                .insert(room.0.into_node(group, Group::default()));
        }
        let sockets = self.groups.get_mut(&group).ok_or(ENOMEM)?;
        // INVARIANT: As the caller sees to.
        *sockets.get_mut(at).ok_or(EINVAL)? = Some(entry);
        self.used = self.used.wrapping_add(1);
        Ok(())
    }

    /// Takes a socket out, which is in.
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
        // SAFETY: By the invariants; the map is borrowed.
        Some(unsafe { Socket::from_raw(entry.0.as_ptr()) })
    }

    /// All sockets from a number on.
    pub(crate) fn from(&self, number: u32) -> impl Iterator<Item = (u32, &Socket)> {
        let mut next = Some(number);
        core::iter::from_fn(move || loop {
            let number = next?;
            let (group, _) = place(number);
            let cursor = self.groups.cursor_lower_bound(&group)?;
            let (&found, _) = cursor.current();
            // The first one of the next group, if this one has ended.
            let number = number.max(found << GROUP_BITS);
            next = number.checked_add(1);
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
