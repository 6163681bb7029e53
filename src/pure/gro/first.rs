// SPDX-License-Identifier: GPL-2.0

//! The first datagram of a GRO packet, and whether another one may follow.

use super::{
    addresses, at, number, pseudo_header, udp_header, UdpFrame, ALL_V4, ALL_V6, UDP_V4, UDP_V6,
};
use crate::pure::gso::{CHECKSUM_V4, HEADERS_MAX, ID_V4};

/// IPv4's flag that forbids fragmentation, in the word with its offset.
const DONT_FRAGMENT: u16 = 0x4000;

/// What a sum with a right checksum is a multiple of.
const ONES: u32 = 0xffff;
/// Where an IPv4 header's identification is in eight bytes two before it.
const ID: u64 = u64::from_ne_bytes([0, 0, 0xff, 0xff, 0, 0, 0, 0]);

/// Where two differ in eight bytes at an offset: there the result isn't 0.
#[inline(always)]
fn differ(a: &[u8], b: &[u8], offset: usize) -> u64 {
    u64::from_ne_bytes(at(a, offset)) ^ u64::from_ne_bytes(at(b, offset))
}

/// What an IPv4 header's identification and checksum add to its sum, as a remainder: the sum of the
/// whole is right if it is a multiple of this.
#[inline(always)]
fn sum_of_id_and_checksum(headers: &[u8; ALL_V4]) -> u32 {
    let number = |offset| u32::from(u16::from_ne_bytes(at(headers, offset)));
    number(ID_V4).wrapping_add(number(CHECKSUM_V4)) % ONES
}

/// The IPv4 identifications of a GRO packet's datagrams. A forwarder that segments the packet makes
/// each one more than the one before. In atomic datagrams they don't matter (RFC 6864), and may all
/// be the same as well, as `inet_gro_flush` has it.
#[derive(Clone, Copy)]
struct Ids {
    /// That of the first datagram.
    first: u16,
    /// The difference of each and the one before; none if there is one only.
    step: Option<u16>,
    /// All may be the same.
    may_stay: bool,
}

impl Ids {
    /// Of IPv6, which has none.
    const NONE: Self = Self {
        first: 0,
        step: None,
        may_stay: true,
    };

    /// Those that begin with the one in an IPv4 header.
    fn new(headers: &[u8]) -> Self {
        Self {
            first: number(headers, ID_V4),
            step: None,
            may_stay: number(headers, ID_V4 + 2) & DONT_FRAGMENT != 0,
        }
    }

    /// Whether one may come next, after `count` datagrams.
    #[inline(always)]
    fn fits(&self, next: u16, count: usize) -> bool {
        let more = next.wrapping_sub(self.first);
        match self.step {
            Some(step) => more == step.wrapping_mul(count as u16),
            None => more == 1 || (more == 0 && self.may_stay),
        }
    }
}

/// The headers of a GRO packet's first datagram, and the identifications of all.
pub struct FirstFrame {
    bytes: [u8; HEADERS_MAX],
    len: usize,
    /// Bytes of headers and payload.
    whole: usize,
    /// Of an IPv4 header.
    sum: u32,
    ids: Ids,
    /// Of the pseudo-header.
    udp_sum: u32,
}

impl FirstFrame {
    /// No datagram, which none follows.
    pub const NONE: Self = Self {
        bytes: [0; HEADERS_MAX],
        len: 0,
        whole: 0,
        sum: 0,
        ids: Ids::NONE,
        udp_sum: 0,
    };

    /// The first datagram of a GRO packet.
    pub fn new(datagram: &UdpFrame<'_>) -> Self {
        let headers = datagram.headers;
        let mut first = Self::NONE;
        if let Some(place) = first.bytes.get_mut(..headers.len()) {
            place.copy_from_slice(headers);
            first.len = headers.len();
            first.whole = headers.len().saturating_add(datagram.payload.len());
        }
        let udp = udp_header(headers);
        let addresses = headers.get(addresses(udp)).unwrap_or(&[]);
        first.udp_sum = pseudo_header(addresses, number(headers, udp + 4));
        if let Ok(headers) = headers.try_into() {
            first.sum = sum_of_id_and_checksum(headers);
            first.ids = Ids::new(headers);
        }
        first
    }

    /// The IPv4 identification of a frame; 0 of IPv6.
    fn number_of(&self, frame: &[u8]) -> u16 {
        match self.len {
            ALL_V4 => number(frame, ID_V4),
            _ => 0,
        }
    }

    /// Whether the IPv4 identification of a frame of the same flow may come next, after `count`
    /// datagrams.
    pub fn is_next(&self, frame: &[u8], count: usize) -> bool {
        self.ids.fits(self.number_of(frame), count)
    }

    /// Takes a frame for the second one: the identifications of all that follow go on as they
    /// began.
    pub fn begin_ids(&mut self, frame: &[u8]) {
        let more = self.number_of(frame).wrapping_sub(self.ids.first);
        self.ids.step = Some(more);
    }

    /// The headers; none if there is no datagram.
    pub fn headers(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or(&[])
    }

    /// As above.
    pub fn headers_mut(&mut self) -> &mut [u8] {
        self.bytes.get_mut(..self.len).unwrap_or(&mut [])
    }

    /// Bytes of the first datagram's payload.
    pub fn payload(&self) -> usize {
        self.whole.saturating_sub(self.len)
    }

    /// The headers, if they are so long, and as many bytes of a frame.
    #[inline(always)]
    fn beside<'a, const N: usize>(&'a self, frame: &'a [u8]) -> Option<(&'a [u8; N], &'a [u8; N])> {
        (self.len == N).then(|| Some((self.bytes.first_chunk()?, frame.first_chunk()?)))?
    }

    /// Whether a frame has a datagram that `UdpFrame::parse` would take, and which is of the same
    /// flow, as long, alike, and next after `count`. In fewer steps, since all but identifications
    /// and checksums is as it was.
    #[inline(always)]
    pub fn is_followed_by(
        &self,
        frame: &[u8],
        count: usize,
        add: impl Fn(&[u8], u32) -> u32,
    ) -> bool {
        let (is_alike, udp) = if let Some((a, b)) = self.beside::<ALL_V4>(frame) {
            let before = differ(a, b, 0) | differ(a, b, 8) | differ(a, b, ID_V4 - 2) & !ID;
            let behind = differ(a, b, CHECKSUM_V4 + 2) | differ(a, b, ALL_V4 - 2 - 8);
            (
                before | behind == 0
                    && sum_of_id_and_checksum(b) == self.sum
                    && self.ids.fits(number(b, ID_V4), count),
                UDP_V4,
            )
        } else if let Some((a, b)) = self.beside::<ALL_V6>(frame) {
            let differs = differ(a, b, 0) | differ(a, b, 8) | differ(a, b, 16) | differ(a, b, 24);
            let differs = differs | differ(a, b, 32) | differ(a, b, 40) | differ(a, b, 48);
            let differs = differs | differ(a, b, ALL_V6 - 2 - 8);
            (differs == 0, UDP_V6)
        } else {
            return false;
        };
        let Some(datagram) = frame.get(udp..self.whole).filter(|_| is_alike) else {
            return false;
        };
        number(frame, udp + 6) != 0 && add(datagram, self.udp_sum) % ONES == 0
    }
}
