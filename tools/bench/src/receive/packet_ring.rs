// SPDX-License-Identifier: GPL-2.0

//! AF_PACKET's RX ring: a copy of what the stack gets.

use super::{poll, Receiver, Tally};
use crate::tpacket::Ring;
use crate::traffic::HEADERS;
use std::{io, sync::atomic::Ordering};

const FRAMES: usize = 1024;

/// What is in the ring.
pub(super) struct PacketRing(Ring);

impl PacketRing {
    pub(super) fn new(device: u32) -> io::Result<Self> {
        // Of all protocols: those of one come behind tc's ingress.
        let all = (libc::ETH_P_ALL as u16).to_be();
        let ring = libc::PACKET_RX_RING;
        Ok(Self(Ring::new(Ring::socket()?, ring, FRAMES, device, all)?))
    }
}

impl Receiver for PacketRing {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        let mut any = false;
        while self.0.status().load(Ordering::Acquire) & libc::TP_STATUS_USER != 0 {
            any = true;
            tally.add_frame(self.0.packet(), HEADERS);
            let status = self.0.status();
            status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
            self.0.advance();
        }
        match any {
            true => Ok(()),
            false => poll(self.0.as_socket()),
        }
    }
}
