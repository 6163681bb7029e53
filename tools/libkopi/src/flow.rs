// SPDX-License-Identifier: GPL-2.0

//! Flows.

use crate::{
    channel::Channel,
    error::{give, Errno, INVALID},
    pointer::{room, shared},
};
use kopi::{
    pure::abi::{Stats, AF_INET, AF_INET6},
    Flow,
};
use libc::{sockaddr, socklen_t};
use std::{ffi::c_int, io, os::fd::AsRawFd};

/// The number of AF_KOPI.
#[no_mangle]
pub extern "C" fn kopi_family() -> c_int {
    give(kopi::family().map_err(Errno::from))
}

/// Makes a flow.
#[no_mangle]
pub unsafe extern "C" fn kopi_flow_open(flow: *mut *mut Flow, family: c_int) -> c_int {
    // SAFETY: The caller sees to the pointer.
    let flow = unsafe { room(flow) };
    give((|| {
        let place = flow?;
        let flow = match u16::try_from(family) {
            Ok(AF_INET) => Flow::new_v4()?,
            Ok(AF_INET6) => Flow::new_v6()?,
            _ => return Err(Errno(libc::EAFNOSUPPORT)),
        };
        place.write(Box::into_raw(Box::new(flow)));
        Ok(0)
    })())
}

/// Frees a flow.
#[no_mangle]
pub unsafe extern "C" fn kopi_flow_close(flow: *mut Flow) {
    if !flow.is_null() {
        // SAFETY: From `kopi_flow_open`, and used no more, as the caller sees to.
        drop(unsafe { Box::from_raw(flow) });
    }
}

/// The file descriptor.
#[no_mangle]
pub unsafe extern "C" fn kopi_flow_fd(flow: *const Flow) -> c_int {
    // SAFETY: The caller sees to the pointer.
    give(unsafe { shared(flow) }.map(AsRawFd::as_raw_fd))
}

/// A system call about an address.
type AddressCall = unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int;

/// As bind(2) and connect(2).
///
/// # Safety
///
/// The pointers must be NULL or valid, the address for so many bytes.
unsafe fn at_address(
    call: AddressCall,
    flow: *const Flow,
    address: *const sockaddr,
    len: socklen_t,
) -> Result<c_int, Errno> {
    // SAFETY: The caller sees to the pointer.
    let flow = unsafe { shared(flow) }?;
    if address.is_null() {
        return Err(INVALID);
    }
    // SAFETY: The caller sees to the address.
    if unsafe { call(flow.as_raw_fd(), address, len) } < 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(0)
}

/// Binds to an address.
#[no_mangle]
pub unsafe extern "C" fn kopi_flow_bind(
    flow: *mut Flow,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    give(unsafe { at_address(libc::bind, flow, address, len) })
}

/// Connects to a peer.
#[no_mangle]
pub unsafe extern "C" fn kopi_flow_connect(
    flow: *mut Flow,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: The caller sees to the pointers.
    give(unsafe { at_address(libc::connect, flow, address, len) })
}

/// Puts a flow on a channel.
#[no_mangle]
pub unsafe extern "C" fn kopi_flow_join(flow: *mut Flow, channel: *mut Channel) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (flow, channel) = unsafe { (shared(flow), shared(channel)) };
    give((|| {
        flow?.join(&channel?.rings)?;
        Ok(0)
    })())
}

/// The number on its channel.
#[no_mangle]
pub unsafe extern "C" fn kopi_flow_number(flow: *const Flow) -> c_int {
    // SAFETY: The caller sees to the pointer.
    let flow = unsafe { shared(flow) };
    give((|| {
        let id = flow?.id().ok_or(Errno(libc::ENOTCONN))?;
        c_int::try_from(id.0).map_err(|_| Errno(libc::EIO))
    })())
}

/// Takes the pending error.
#[no_mangle]
pub unsafe extern "C" fn kopi_flow_error(flow: *mut Flow) -> c_int {
    // SAFETY: The caller sees to the pointer.
    let flow = unsafe { shared(flow) };
    give((|| match flow?.take_error()? {
        None => Ok(0),
        Some(error) => Err(error.into()),
    })())
}

/// The counters.
#[no_mangle]
pub unsafe extern "C" fn kopi_flow_stats(flow: *const Flow, stats: *mut Stats) -> c_int {
    // SAFETY: The caller sees to the pointers.
    let (flow, stats) = unsafe { (shared(flow), room(stats)) };
    give((|| {
        stats?.write(flow?.stats()?);
        Ok(0)
    })())
}
