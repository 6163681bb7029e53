// SPDX-License-Identifier: GPL-2.0

//! What messages go over.

use super::error::{Error, Result};
use netlink_sys::{Socket, SocketAddr};
use nix::sys::socket::{setsockopt, sockopt::SndBufForce};
use std::io;

/// No message of the kernel's is longer: dumps come in pieces of half of that.
const RECEIVED_MAX: usize = 1 << 16;

/// What messages go over: a netlink socket, or a test.
pub(crate) trait Transport {
    /// Sends one.
    fn send(&self, message: &[u8]) -> Result<()>;
    /// Receives some.
    fn receive(&self) -> Result<Vec<u8>>;
}

impl Transport for Socket {
    fn send(&self, message: &[u8]) -> Result<()> {
        // A set of rules comes in one piece, and may be larger than net.core.wmem_max.
        if message.len() > 1 << 16 {
            setsockopt(self, SndBufForce, &(message.len() + (1 << 16)))
                .map_err(|error| Error::Socket("send buffer", error.into()))?;
        }
        Socket::send(self, message, 0)
            .map(drop)
            .map_err(|error| Error::Socket("send", error))
    }

    fn receive(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(RECEIVED_MAX);
        loop {
            match self.recv(&mut bytes, libc::MSG_TRUNC) {
                Ok(len) if len > bytes.len() => {
                    return Err(Error::Malformed(format!("{len} bytes at once")))
                }
                Ok(_) => return Ok(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    return Err(Error::Lost)
                }
                Err(error) => return Err(Error::Socket("receive", error)),
            }
        }
    }
}

/// Opens a socket to the kernel.
pub(crate) fn open(protocol: isize) -> Result<Socket> {
    let opened = || {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        Ok(socket)
    };
    opened().map_err(|error| Error::Socket("open", error))
}
