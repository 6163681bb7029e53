// SPDX-License-Identifier: GPL-2.0

//! A server by AF_XDP: it does what the stack does for the others, and leaves out what nobody needs here.

use super::{poll, xdp::Incoming, Receiver, Tally};
use crate::{
    bpf::Redirect,
    traffic::HEADERS,
    xdp::{Outgoing, Xsk},
};
use std::{
    io,
    ops::Range,
    time::{Duration, Instant},
};

/// Fields of a frame: Ethernet, IPv4 without options, UDP.
const TO_MAC: Range<usize> = 0..6;
const MACS: usize = 6;
const ADDRESSES: Range<usize> = 26..34;
const PORTS: Range<usize> = 34..38;
/// How long the device may take to send.
const PATIENCE: Duration = Duration::from_secs(1);

/// Answers leave in the frames of the requests.
pub(super) struct Server {
    _redirect: Redirect,
    incoming: Incoming,
    outgoing: Outgoing,
    xsk: Xsk,
    answers: Vec<libc::xdp_desc>,
    /// Frames that were sent and aren't back.
    on_their_way: usize,
}

impl Server {
    pub(super) fn new(device: u32, zero_copy: bool) -> io::Result<Self> {
        let xsk = Xsk::new(&[libc::XDP_RX_RING, libc::XDP_TX_RING])?;
        let incoming = Incoming::new(&xsk)?;
        let outgoing = Outgoing::new(&xsk)?;
        xsk.bind(device, zero_copy)?;
        Ok(Self {
            _redirect: Redirect::new(device, &xsk.socket)?,
            incoming,
            outgoing,
            xsk,
            answers: Vec::new(),
            on_their_way: 0,
        })
    }

    /// Gives the frames of answers that have left back for receiving.
    fn reap(&mut self) {
        let frames = self.outgoing.reap();
        self.on_their_way -= frames.len();
        self.incoming.give(frames);
    }
}

/// Makes a request the answer to it. The sums of IPv4 and UDP stay right, since they don't depend on the order of
/// addresses and ports.
fn turn(frame: &mut [u8]) {
    frame.copy_within(TO_MAC, MACS);
    // Its client's neighbour entry, as `neighbours` of bench/lib.sh makes it.
    let client = frame[ADDRESSES.start + 3];
    frame[TO_MAC].copy_from_slice(&[2, 0, 0, 0, 1, client]);
    frame[ADDRESSES].rotate_left(4);
    frame[PORTS].rotate_left(2);
}

impl Receiver for Server {
    fn receive(&mut self, tally: &mut Tally) -> io::Result<()> {
        self.reap();
        for desc in self.incoming.take() {
            // SAFETY: The kernel has given the frame, and has it no more.
            let frame = unsafe {
                std::slice::from_raw_parts_mut(self.xsk.at(desc.addr), desc.len as usize)
            };
            tally.add_frame(frame, HEADERS);
            if frame.len() >= HEADERS {
                turn(frame);
                self.answers.push(desc);
            }
        }
        if self.answers.is_empty() {
            return poll(&self.xsk.socket);
        }
        self.on_their_way += self.answers.len();
        self.outgoing.send(&self.xsk, self.answers.drain(..))
    }

    fn finish(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.on_their_way > 0 {
            if Instant::now() > deadline {
                return Err(io::Error::other(format!(
                    "{} answers haven't left",
                    self.on_their_way
                )));
            }
            self.reap();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_back() {
        let mut frame = [0; HEADERS];
        frame[..6].copy_from_slice(b"server");
        frame[6..12].copy_from_slice(b"client");
        frame[26..34].copy_from_slice(&[198, 18, 1, 7, 198, 51, 100, 1]);
        frame[34..38].copy_from_slice(&[1, 2, 3, 4]);
        turn(&mut frame);
        assert_eq!(frame[..6], [2, 0, 0, 0, 1, 7]);
        assert_eq!(&frame[6..12], b"server");
        assert_eq!(frame[26..34], [198, 51, 100, 1, 198, 18, 1, 7]);
        assert_eq!(frame[34..38], [3, 4, 1, 2]);
    }
}
