// SPDX-License-Identifier: GPL-2.0

//! The local port of a flow, as XDP programs of attached devices redirect it.

use super::Flow;
use crate::direct::PortReservation;
use crate::sys::sock::Sock;
use kernel::sync::atomic::ordering::Relaxed;

impl Flow {
    /// Has XDP programs redirect the datagrams for the flow's port, which may have changed, if it is
    /// on a channel. Process context.
    pub(crate) fn update_redirected_port(&self, sk: &Sock) {
        let port = u16::from_be(sk.local_port());
        if u32::from(port) != self.redirected.load(Relaxed) && self.ring_receiver().is_some() {
            self.redirect(sk, port);
        }
    }

    /// Whether XDP programs are to redirect the datagrams for its port.
    pub(crate) fn is_redirected(&self) -> bool {
        self.redirected.load(Relaxed) != 0
    }

    /// Has them redirect the datagrams for one port and no other; 0 for none.
    pub(super) fn redirect(&self, sk: &Sock, port: u16) {
        // Allocated before the lock is taken, which others wait for under RTNL.
        let reservation = (port != 0)
            .then(PortReservation::new)
            .and_then(core::result::Result::ok);
        // Without memory, packets come by the stack, as they would without a program; those of the port before, too.
        let port = if reservation.is_some() { port } else { 0 };
        if port == 0 && !self.is_redirected() {
            return;
        }
        // A flow that has changed ports, or is closed, is on the channel that it was on.
        let gro = self.channel().is_some_and(|channel| channel.has_gro());
        let net = sk.net().state();
        let mut redirected = net.redirected_ports.lock();
        if let Some(reservation) = reservation {
            redirected.add(port, gro, reservation);
        }
        match self.redirected.xchg(port.into(), Relaxed) {
            0 => {}
            before => redirected.remove(before as u16, gro),
        }
    }
}
