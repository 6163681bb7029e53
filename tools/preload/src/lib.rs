// SPDX-License-Identifier: GPL-2.0

//! What `kopi run` preloads: a program's UDP sockets are KOPI flows, and send by channels. With
//! `--tcp`, its TCP sockets are flows, too, which have none.
//!
//! A flow is a UDP or TCP socket of the kernel's. So whatever this library doesn't have, or doesn't know,
//! is a system call on the same descriptor, and gives what it gives for any such socket. It does
//! three things:
//!
//! - `socket()` makes flows (`sockets.rs`). accept(2) does by itself, where the listener is one.
//! - A UDP flow that has sent some datagrams joins a channel whose rings only send (`rings.rs`). What
//!   flows receive stays in the kernel's queue, for whoever asks.
//! - What a flow on a channel sends by a call of its own is that call's: the kernel uses what the channel
//!   remembers of routes. Several messages of one sendmmsg() that have nothing that rings can't have go by
//!   the ring (`send.rs`, `sendmmsg.rs`, `datagram.rs`). The doorbell sends them at once, by whatever flow the
//!   descriptor is at that moment, or not at all. So nothing has to be known about copies of descriptors.
//!
//! It has no thread and no signal handler. Its functions can be called wherever those of the C
//! library can: in a signal handler, between fork() and exec(), in a thread that is cancelled. It
//! waits for no lock: a ring that another thread uses is passed by.

#[cfg(not(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu")))]
compile_error!("variadic functions are called as on x86-64, and symbols are the GNU C library's");

mod datagram;
mod filters;
mod process;
mod real;
mod rings;
mod room;
mod send;
mod sendmmsg;
mod settings;
mod sockets;
mod table;
