// SPDX-License-Identifier: GPL-2.0

//! XDP programs: one that gives a device's packets to a socket of AF_XDP, and one that drops and counts them.

use socket2::Socket;
use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const MAP_TYPE_ARRAY: u32 = 2;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// By the driver, not by a generic hook behind it.
const XDP_FLAGS_DRV_MODE: u32 = 4;

/// `struct bpf_insn`.
#[repr(C)]
struct Insn {
    code: u8,
    registers: u8,
    offset: i16,
    value: i32,
}

/// `union bpf_attr`, as words: as much of it as is needed.
type Attr = [u32; 32];

/// # Safety
///
/// What `attr` points to must be as the command takes it.
unsafe fn bpf(command: libc::c_long, attr: &Attr) -> io::Result<libc::c_long> {
    // SAFETY: As required of the caller.
    match unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of::<Attr>()) } {
        result @ 0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

/// As above, for commands that make something.
///
/// # Safety
///
/// As above.
unsafe fn made(command: libc::c_long, attr: &Attr) -> io::Result<OwnedFd> {
    // SAFETY: As required of the caller; the descriptor is new.
    unsafe { Ok(OwnedFd::from_raw_fd(bpf(command, attr)? as libc::c_int)) }
}

/// Writes a pointer's two words.
fn put<T>(attr: &mut Attr, at: usize, pointer: *const T) {
    let value = pointer as u64;
    attr[at] = value as u32;
    attr[at + 1] = (value >> 32) as u32;
}

/// Makes a map with one entry, with keys of four bytes.
fn map(kind: u32, value_size: u32) -> io::Result<OwnedFd> {
    let mut attr: Attr = [0; 32];
    // Type, bytes of keys and of values, entries.
    attr[..4].copy_from_slice(&[kind, 4, value_size, 1]);
    // SAFETY: No pointers.
    unsafe { made(MAP_CREATE, &attr) }
}

const fn insn(code: u8, registers: u8, offset: i16, value: i32) -> Insn {
    Insn {
        code,
        registers,
        offset,
        value,
    }
}

/// Has a device's driver run a program, until what this gives is dropped.
fn attach(device: u32, program: &[Insn]) -> io::Result<OwnedFd> {
    let mut attr: Attr = [0; 32];
    attr[..2].copy_from_slice(&[PROG_TYPE_XDP, program.len() as u32]);
    put(&mut attr, 2, program.as_ptr());
    put(&mut attr, 4, c"GPL".as_ptr());
    // SAFETY: So many instructions, and a string.
    let program = unsafe { made(PROG_LOAD, &attr) }?;
    let mut attr: Attr = [0; 32];
    let program = program.as_raw_fd() as u32;
    attr[..4].copy_from_slice(&[program, device, ATTACH_XDP, XDP_FLAGS_DRV_MODE]);
    // SAFETY: No pointers.
    unsafe { made(LINK_CREATE, &attr) }
}

/// The program that redirects, at its device until this is dropped.
pub(crate) struct Redirect {
    _link: OwnedFd,
    _map: OwnedFd,
}

impl Redirect {
    /// Gives what comes by the device's first queue to the socket, which is bound to that.
    pub(crate) fn new(device: u32, socket: &Socket) -> io::Result<Self> {
        let map = map(MAP_TYPE_XSKMAP, 4)?;
        let program = [
            // r2 = ctx->rx_queue_index
            insn(0x61, 0x12, 16, 0),
            // r1 = map
            insn(0x18, 0x11, 0, map.as_raw_fd()),
            insn(0, 0, 0, 0),
            // r3 = XDP_PASS, for other queues
            insn(0xb7, 0x03, 0, 2),
            // return bpf_redirect_map(r1, r2, r3)
            insn(0x85, 0, 0, 51),
            insn(0x95, 0, 0, 0),
        ];
        let (key, value) = (0u32, socket.as_raw_fd());
        let mut attr: Attr = [0; 32];
        attr[0] = map.as_raw_fd() as u32;
        put(&mut attr, 2, &raw const key);
        put(&mut attr, 4, &raw const value);
        // SAFETY: A key and a value of their sizes.
        unsafe { bpf(MAP_UPDATE_ELEM, &attr) }?;
        Ok(Self {
            _link: attach(device, &program)?,
            _map: map,
        })
    }
}

/// The program that drops, at its device until this is dropped.
pub(crate) struct Dropping {
    _link: OwnedFd,
    map: OwnedFd,
}

impl Dropping {
    /// Drops all that comes by the device.
    pub(crate) fn new(device: u32) -> io::Result<Self> {
        let map = map(MAP_TYPE_ARRAY, 8)?;
        let program = [
            // r1 = the map's value
            insn(0x18, 0x21, 0, map.as_raw_fd()),
            insn(0, 0, 0, 0),
            // *r1 += 1
            insn(0x79, 0x12, 0, 0),
            insn(0x07, 0x02, 0, 1),
            insn(0x7b, 0x21, 0, 0),
            // return XDP_DROP
            insn(0xb7, 0x00, 0, 1),
            insn(0x95, 0, 0, 0),
        ];
        Ok(Self {
            _link: attach(device, &program)?,
            map,
        })
    }

    /// How many it has dropped.
    pub(crate) fn count(&self) -> io::Result<u64> {
        let (key, mut value) = (0u32, 0u64);
        let mut attr: Attr = [0; 32];
        attr[0] = self.map.as_raw_fd() as u32;
        put(&mut attr, 2, &raw const key);
        put(&mut attr, 4, &raw mut value);
        // SAFETY: A key and a value of their sizes.
        unsafe { bpf(MAP_LOOKUP_ELEM, &attr) }?;
        Ok(value)
    }
}
