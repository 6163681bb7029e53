// SPDX-License-Identifier: GPL-2.0

//! What became of the packets of calls that wait to hear it.

use std::io;

/// Calls of which the kernel has yet to say what became of their packets.
#[derive(Debug, Default)]
pub(super) struct Sends {
    next: u64,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    /// The last of the packet.
    frame: u32,
    verdict: Option<u16>,
}

impl Sends {
    /// Begins to wait for a packet with this last frame.
    pub(super) fn begin(&mut self, frame: u32) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.waiting.push(Waiting {
            ticket,
            frame,
            verdict: None,
        });
        ticket
    }

    /// Takes the completion of a frame, found by any thread; says whether a call waits for it. Then the
    /// frame may be another packet's, whose completion isn't this call's.
    pub(super) fn complete(&mut self, frame: u32, error: u16) -> bool {
        let mut waiting = self.waiting.iter_mut();
        match waiting.find(|call| call.frame == frame && call.verdict.is_none()) {
            Some(call) => {
                call.verdict = Some(error);
                true
            }
            None => false,
        }
    }

    pub(super) fn verdict(&self, ticket: u64) -> Option<u16> {
        let mut waiting = self.waiting.iter();
        waiting.find(|call| call.ticket == ticket)?.verdict
    }

    pub(super) fn end(&mut self, ticket: u64) {
        self.waiting.retain(|call| call.ticket != ticket);
    }
}

/// The error with which a packet was refused, if it was.
pub(super) fn refusal(verdict: Option<u16>) -> io::Result<()> {
    match verdict {
        None | Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two packets of one frame, one after the other, are two calls'.
    #[test]
    fn completions_are_of_the_call_that_sent() {
        let mut sends = Sends::default();
        let first = sends.begin(64);
        assert!(!sends.complete(128, 1));
        assert_eq!(sends.verdict(first), None);
        assert!(sends.complete(64, 0));
        // The frame is free, and taken by another call, whose packet is refused.
        let second = sends.begin(64);
        assert_eq!(
            (sends.verdict(first), sends.verdict(second)),
            (Some(0), None)
        );
        assert!(sends.complete(64, 13));
        assert_eq!(
            (sends.verdict(first), sends.verdict(second)),
            (Some(0), Some(13))
        );
        // A third call waits no more.
        sends.end(first);
        sends.end(second);
        assert!(!sends.complete(64, 13));
    }
}
