// SPDX-License-Identifier: GPL-2.0

//! What KOPI knows without a kernel: the memory layout, the rings, the checks.
//!
//! These files use nothing but `core`, and allocate nothing. They are compiled into the module,
//! into the `kopi` crate of the programs, and into host tests, so that a ring is written once for
//! both its sides.

#[expect(unsafe_code, reason = "structs of the ABI are copied as bytes")]
pub mod abi;
pub mod bucket;
pub mod cache;
pub mod counters;
pub mod descriptor;
pub mod drr;
pub mod geometry;
pub mod gro;
pub mod gso;
pub mod gso_batch;
pub mod ip;
pub mod lookahead;
pub mod peer;
pub mod quota;
#[expect(unsafe_code, reason = "rings lie in memory shared with the other side")]
pub mod ring;
pub mod rule;
pub mod share;
