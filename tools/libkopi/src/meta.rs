// SPDX-License-Identifier: GPL-2.0

//! Metadata and the socket interface's addresses.

use crate::{
    error::{give, number, Errno, INVALID},
    pointer::{room, shared, unique},
};
use kopi::{
    has_scope,
    pure::abi::{Meta, AF_INET, AF_INET6},
};
use libc::{in6_addr, in_addr, sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage, socklen_t};
use std::{
    ffi::c_int,
    mem::{size_of, MaybeUninit},
};

/// Reads an address of a family's own type, wherever it lies.
///
/// # Safety
///
/// `address` must be readable for `len` bytes.
unsafe fn read<T>(address: *const sockaddr, len: socklen_t) -> Result<T, Errno> {
    if (len as usize) < size_of::<T>() {
        return Err(INVALID);
    }
    // SAFETY: As required of the caller; an address is of integers.
    Ok(unsafe { address.cast::<T>().read_unaligned() })
}

/// The metadata that sends to an address.
///
/// # Safety
///
/// `peer` must be NULL, or readable for `len` bytes.
unsafe fn to(peer: *const sockaddr, len: socklen_t) -> Result<Meta, Errno> {
    if peer.is_null() {
        return Err(INVALID);
    }
    // SAFETY: As required of the caller.
    let family = unsafe { read::<libc::sa_family_t>(peer, len) }?;
    let mut meta = Meta {
        family,
        ..Meta::default()
    };
    match family {
        AF_INET => {
            // SAFETY: As required of the caller.
            let peer = unsafe { read::<sockaddr_in>(peer, len) }?;
            let [a, b, c, d] = peer.sin_addr.s_addr.to_ne_bytes();
            [meta.peer[0], meta.peer[1], meta.peer[2], meta.peer[3]] = [a, b, c, d];
            meta.peer_port = peer.sin_port;
        }
        AF_INET6 => {
            // SAFETY: As required of the caller.
            let peer = unsafe { read::<sockaddr_in6>(peer, len) }?;
            meta.peer = peer.sin6_addr.s6_addr;
            meta.peer_port = peer.sin6_port;
            meta.ifindex = peer.sin6_scope_id;
        }
        _ => return Err(Errno(libc::EAFNOSUPPORT)),
    }
    if meta.peer_port == 0 {
        // As the kernel says of it.
        return Err(INVALID);
    }
    Ok(meta)
}

/// Writes an address of metadata, and gives its size.
fn write(
    meta: &Meta,
    octets: &[u8; 16],
    port: u16,
    place: &mut MaybeUninit<sockaddr_storage>,
) -> Result<c_int, Errno> {
    match meta.family {
        AF_INET => {
            let [a, b, c, d, ..] = *octets;
            let address = sockaddr_in {
                sin_family: AF_INET,
                sin_port: port,
                sin_addr: in_addr {
                    s_addr: u32::from_ne_bytes([a, b, c, d]),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: A `sockaddr_storage` has room, and the alignment, for it.
            unsafe { place.as_mut_ptr().cast::<sockaddr_in>().write(address) };
            Ok(number(size_of::<sockaddr_in>()))
        }
        AF_INET6 => {
            let scoped = has_scope((*octets).into());
            let address = sockaddr_in6 {
                sin6_family: AF_INET6,
                sin6_port: port,
                sin6_flowinfo: 0,
                sin6_addr: in6_addr { s6_addr: *octets },
                sin6_scope_id: if scoped { meta.ifindex } else { 0 },
            };
            // SAFETY: As above.
            unsafe { place.as_mut_ptr().cast::<sockaddr_in6>().write(address) };
            Ok(number(size_of::<sockaddr_in6>()))
        }
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Sets the peer.
#[no_mangle]
pub unsafe extern "C" fn kopi_meta_to(
    meta: *mut Meta,
    peer: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (place, meta) = unsafe { (room(meta), to(peer, len)) };
    give((|| {
        place?.write(meta?);
        Ok(0)
    })())
}

/// Turns metadata around.
#[no_mangle]
pub unsafe extern "C" fn kopi_meta_reply(meta: *mut Meta) -> c_int {
    // SAFETY: The caller sees to the pointer.
    let meta = unsafe { unique(meta) };
    give(meta.map(|meta| {
        let scoped = meta.family == AF_INET6 && has_scope(meta.peer.into());
        *meta = Meta {
            peer: meta.peer,
            peer_port: meta.peer_port,
            family: meta.family,
            local: meta.local,
            ifindex: if scoped { meta.ifindex } else { 0 },
            ..Meta::default()
        };
        0
    }))
}

/// The source of a packet.
#[no_mangle]
pub unsafe extern "C" fn kopi_meta_peer(
    meta: *const Meta,
    address: *mut sockaddr_storage,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (meta, place) = unsafe { (shared(meta), room(address)) };
    give((|| {
        let meta = meta?;
        write(meta, &meta.peer, meta.peer_port, place?)
    })())
}

/// Where a packet went to.
#[no_mangle]
pub unsafe extern "C" fn kopi_meta_local(
    meta: *const Meta,
    address: *mut sockaddr_storage,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (meta, place) = unsafe { (shared(meta), room(address)) };
    give((|| {
        let meta = meta?;
        write(meta, &meta.local, meta.local_port, place?)
    })())
}
