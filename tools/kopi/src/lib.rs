// SPDX-License-Identifier: GPL-2.0

//! Mapped packet rings with the kernel on the path.
//!
//! KOPI is a Linux kernel module that gives a process its packets in mapped rings, and yet has every
//! packet meet the firewall, traffic control, taps and accounting that a UDP socket's would. This
//! crate is the program's side of it, in layers:
//!
//! - [`UdpSocket`] has the shape of [`std::net::UdpSocket`], and copies like it.
//! - [`Channel`], [`Frame`], [`Packet`] and [`Flow`] are the rings themselves: payload is written
//!   and read where the kernel has it, and one doorbell serves a batch of packets.
//! - With the feature `tokio`, `tokio::UdpSocket` is a UDP socket for tasks; with the feature `mio`,
//!   sockets and channels are event sources of mio's.
//! - [`pure`] is the interface in numbers and structs, shared with the module.
//!
//! It does not talk to the network except through the kernel module, brings no executor, and starts
//! no threads. A channel belongs to one thread at a time; programs with several use a channel each.
//!
//! # Examples
//!
//! An echo server that answers from the frames in which the questions came:
//!
//! ```no_run
//! use kopi::{Channel, Flow, Interest, Message};
//!
//! fn main() -> std::io::Result<()> {
//!     let flow = Flow::bind("0.0.0.0:7".parse().unwrap())?;
//!     let channel = Channel::builder().open(&flow)?;
//!     loop {
//!         while let Some(packet) = channel.recv()? {
//!             let (flow, back) = (packet.flow(), Message::reply_to(&packet));
//!             // What doesn't fit into the ring is dropped, as a network may.
//!             let _ = channel.send(flow, &back, packet);
//!         }
//!         let interest = match channel.flush()? {
//!             true => Interest::READABLE,
//!             // The send buffer is full: the rest waits for room.
//!             false => Interest::READABLE | Interest::WRITABLE,
//!         };
//!         if channel.wait(interest, None)?.error {
//!             // As long as it isn't taken, no wait sleeps.
//!             if let Some(error) = flow.take_error()? {
//!                 eprintln!("{error}");
//!             }
//!         }
//!     }
//! }
//! ```

pub mod pure;

// Under the model checker there is nothing but the rings.
#[cfg(not(loom))]
mod channel;
#[cfg(all(test, not(loom)))]
mod fake;
#[cfg(not(loom))]
mod flow;
#[cfg(not(loom))]
mod frame;
#[cfg(not(loom))]
mod message;
#[cfg(all(feature = "mio", not(loom)))]
mod mio;
#[cfg(not(loom))]
mod packet;
#[cfg(all(feature = "quinn", not(loom)))]
pub mod quinn;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod send_ring;
#[cfg(not(loom))]
mod sys;
#[cfg(all(feature = "tokio", not(loom)))]
pub mod tokio;
#[cfg(not(loom))]
mod udp;

#[cfg(not(loom))]
pub use self::{
    channel::{Builder, Channel, Completion, Interest, Ready, SendError},
    flow::{Flow, FlowId},
    frame::{Frame, Payload},
    message::{has_scope, Message},
    packet::Packet,
    send_ring::{Rung, SendRing, Sent},
    sys::is_absence,
    udp::UdpSocket,
};

/// The number of AF_KOPI on this machine, for programs that make sockets themselves.
///
/// Fails with a word on what to do if the module isn't loaded, or the process may not open its
/// sockets. The environment variable
/// `KOPI_FAMILY` overrides what the module says.
#[cfg(not(loom))]
pub fn family() -> std::io::Result<i32> {
    sys::family()
}

/// The code of the document is compiled.
#[cfg(all(doctest, feature = "quinn", not(loom)))]
#[doc = include_str!("../programming.md")]
mod programming {}
