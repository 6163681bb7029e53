// SPDX-License-Identifier: GPL-2.0

//! The mapped ring that packets come by, which is libpcap's.

use super::bpf::Instruction;
use kopi::pure::abi::MonHdr;
use nix::time::{clock_gettime, ClockId};
use pcap::{Active, Capture, Error, Precision};
use socket2::{SockFilter, SockRef};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// Room for what isn't read yet.
const SIZE: i32 = 16 << 20;
/// The longest time in milliseconds until a packet is shown.
pub(super) const DELAY: u16 = 100;

/// By then a packet that was captured is shown.
pub(super) const SHOWN: Duration = Duration::from_millis(2 * DELAY as u64);

/// A packet as it lies in the ring, with the header in front of it.
pub(super) struct Frame<'a> {
    /// Since 1970.
    pub(super) time: Duration,
    /// Of the whole frame, in bytes.
    pub(super) length: u32,
    /// What was captured of it.
    pub(super) bytes: &'a [u8],
}

/// The ring of a monitor device.
pub(super) struct Ring {
    capture: Capture<Active>,
    /// When the filter came, by the clock that packets have, and by one that nobody sets. What came before
    /// had no filter; none once nothing of that can be left.
    filtered: Option<(Duration, Instant)>,
}

impl Ring {
    /// Captures what the filter lets pass, and of each packet at most `snaplen` bytes.
    pub(super) fn open(device: &str, filter: &[Instruction], snaplen: u32) -> anyhow::Result<Self> {
        let snaplen = snaplen.saturating_add(u32::try_from(MonHdr::LEN)?);
        let capture = Capture::from_device(device)?
            .snaplen(snaplen.try_into().unwrap_or(i32::MAX))
            .buffer_size(SIZE)
            .timeout(DELAY.into())
            .precision(Precision::Nano)
            .open()
            .map_err(explained)?
            .setnonblock()?;
        // libpcap would take it to be about what is in front.
        let filter = filter.iter().map(|instruction| {
            let Instruction { code, jt, jf, k } = *instruction;
            SockFilter::new(code, jt, jf, k)
        });
        SockRef::from(&capture).attach_filter(&filter.collect::<Vec<_>>())?;
        Ok(Self {
            capture,
            filtered: Some((now()?, Instant::now())),
        })
    }

    /// The time of the first packets that had the filter, while there may be older ones. Not for ever, since
    /// the clock may be set back.
    pub(super) fn since(&self) -> Option<Duration> {
        self.filtered.map(|(since, _)| since)
    }

    /// There was no packet: after a while, none can be left of those that had no filter.
    pub(super) fn was_empty(&mut self) {
        self.filtered.take_if(|(_, at)| at.elapsed() > SHOWN);
    }

    /// The next packet, if there is one.
    pub(super) fn next(&mut self) -> anyhow::Result<Option<Frame<'_>>> {
        let packet = match self.capture.next_packet() {
            Ok(packet) => packet,
            Err(Error::TimeoutExpired) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // In nanoseconds, as asked for.
        let stamp = packet.header.ts;
        Ok(Some(Frame {
            time: Duration::new(stamp.tv_sec.try_into()?, stamp.tv_usec.try_into()?),
            length: packet.header.len,
            bytes: packet.data,
        }))
    }

    /// Packets that found no room, since the beginning.
    pub(super) fn dropped(&mut self) -> anyhow::Result<u32> {
        Ok(self.capture.stats()?.dropped)
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.capture.as_fd()
    }
}

/// The time that packets have.
pub(super) fn now() -> nix::Result<Duration> {
    clock_gettime(ClockId::CLOCK_REALTIME).map(Duration::from)
}

/// libpcap says in words only what is not permitted.
fn explained(error: Error) -> anyhow::Error {
    match error {
        Error::PcapError(text) if text.contains("Operation not permitted") => {
            io::Error::new(io::ErrorKind::PermissionDenied, text).into()
        }
        error => error.into(),
    }
}
