// SPDX-License-Identifier: GPL-2.0

use super::*;
use crate::pure::gso::Headers;
use crate::pure::gso::ID_V4;

fn add(bytes: &[u8], to: u32) -> u32 {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(2), 0);
    u32::from(!fold(u64::from(to) + sum(&padded)))
}

fn template(is_ipv6: bool) -> Vec<u8> {
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    if is_ipv6 {
        packet.extend([0x86, 0xdd, 0x60, 1, 2, 3, 0, 0, 17, 64]);
        packet.extend((0..32).map(|byte| byte | 0x20));
    } else {
        packet.extend([8, 0, 0x45, 0xb8, 0, 0, 0xff, 0xff, 0x40, 0, 63, 17, 0, 0]);
        packet.extend([192, 0, 2, 1, 198, 51, 100, 7]);
    }
    packet.extend([0x1b, 0x59, 0x1b, 0x5a, 0, 0, 0, 1]);
    packet
}

fn frame(is_ipv6: bool, number: u16, payload: &[u8]) -> Vec<u8> {
    let mut headers = Headers::parse(&template(is_ipv6), false).unwrap();
    let made = headers.make(number, payload.len() as u16, add(payload, 0));
    let mut frame = made.to_vec();
    frame.extend(payload);
    frame
}

#[test]
fn what_is_right_is_taken_and_padding_left_out() {
    for is_ipv6 in [false, true] {
        for len in [1, 2, 17, 18, 1400] {
            let payload: Vec<u8> = (0..len).map(|byte| byte as u8 ^ 0x5a).collect();
            let mut frame = frame(is_ipv6, 3, &payload);
            frame.extend([0xff; 9]);
            let datagram = UdpFrame::parse(&frame, add).unwrap();
            assert_eq!(datagram.payload(), payload);
            assert_eq!(
                datagram.headers(),
                &frame[..udp_header(datagram.headers()) + 8]
            );
            let ends = ends(datagram.headers());
            assert_eq!((ends.source.port, ends.destination.port), (7001, 7002));
            if !is_ipv6 {
                assert_eq!(ends.source.address, mapped([192, 0, 2, 1]));
                assert_eq!(ends.destination.address, mapped([198, 51, 100, 7]));
            } else {
                assert_eq!(ends.source.address[..2], [0x20, 0x21]);
                assert_eq!(ends.destination.address[..2], [0x30, 0x31]);
            }
        }
    }
}

#[test]
fn any_changed_bit_of_ip_and_udp_is_seen() {
    for is_ipv6 in [false, true] {
        let right = frame(is_ipv6, 0, b"some payload");
        for byte in 12..right.len() {
            for bit in 0..8 {
                let mut wrong = right.clone();
                wrong[byte] ^= 1 << bit;
                let taken = UdpFrame::parse(&wrong, add).is_some();
                // IPv6 sums neither class and flow label, nor the hop limit.
                let unsummed = is_ipv6 && (matches!(byte, 15..=17 | 21) || byte == 14 && bit < 4);
                assert_eq!(taken, unsummed, "byte {byte}, bit {bit}");
            }
        }
    }
}

#[test]
fn what_is_short_or_has_no_payload_or_checksum_is_not_taken() {
    for is_ipv6 in [false, true] {
        let whole = frame(is_ipv6, 0, b"ab");
        for len in 0..whole.len() {
            assert!(UdpFrame::parse(&whole[..len], add).is_none());
        }
        assert!(UdpFrame::parse(&frame(is_ipv6, 0, b""), add).is_none());
        let mut unsummed = whole.clone();
        let udp = whole.len() - 10;
        unsummed[udp + 6..udp + 8].fill(0);
        assert!(UdpFrame::parse(&unsummed, add).is_none());
    }
}

#[test]
fn gro_packets_are_of_one_flow_with_headers_alike() {
    for is_ipv6 in [false, true] {
        let headers = |frame: &[u8]| UdpFrame::parse(frame, add).unwrap().headers().to_vec();
        let first = headers(&frame(is_ipv6, 0, b"abcd"));
        let second = headers(&frame(is_ipv6, 7, b"xyz"));
        assert!(are_of_one_flow(&first, &second) && are_alike(&first, &second));
        let udp = udp_header(&first);
        for byte in 0..udp + 4 {
            let mut other = first.clone();
            other[byte] ^= 1;
            let end = if is_ipv6 { udp - 32 } else { udp - 8 };
            assert_eq!(are_of_one_flow(&first, &other), byte < end, "{byte}");
            let free = match is_ipv6 {
                true => matches!(byte, 18..=19),
                false => matches!(byte, 16..=19 | 24..=25),
            };
            assert_eq!(are_alike(&first, &other), free || byte >= end, "{byte}");
        }
    }
    let (a, b) = (frame(false, 0, b"a"), frame(true, 0, b"a"));
    assert!(!are_of_one_flow(&a[..ALL_V4], &b[..ALL_V6]));
}

#[test]
fn what_follows_is_what_is_taken_alike_and_as_long() {
    for is_ipv6 in [false, true] {
        let begin = frame(is_ipv6, 0, b"some payload");
        let begin = UdpFrame::parse(&begin, add).unwrap();
        let first = FirstFrame::new(&begin);
        assert_eq!(first.headers(), begin.headers());
        let check = |frame: &[u8]| {
            let follows = UdpFrame::parse(frame, add).is_some_and(|next| {
                are_of_one_flow(begin.headers(), next.headers())
                    && are_alike(begin.headers(), next.headers())
                    && next.payload().len() == begin.payload().len()
                    && first.is_next(next.headers(), 1)
            });
            assert_eq!(first.is_followed_by(frame, 1, add), follows, "{frame:?}");
            assert!(!FirstFrame::NONE.is_followed_by(frame, 1, add));
            follows
        };
        for number in [0, 1, 77, 0xfffe, 0xffff] {
            let mut next = frame(is_ipv6, number, b"what follows");
            let is_next = is_ipv6 || number < 2;
            assert_eq!(check(&next), is_next);
            for byte in 0..next.len() {
                for bit in 0..8 {
                    let mut wrong = next.clone();
                    wrong[byte] ^= 1 << bit;
                    check(&wrong);
                }
                check(&next[..byte]);
            }
            let udp = next.len() - 20;
            next.extend([0xff; 6]);
            assert_eq!(check(&next), is_next);
            next[udp + 6..udp + 8].fill(0);
            assert!(!check(&next));
        }
        assert!(!check(&frame(is_ipv6, 0, b"less")));
        assert!(!check(&frame(is_ipv6, 0, b"more than there was")));
        assert!(!check(&frame(!is_ipv6, 0, b"what follows")));
    }
}

#[test]
fn ids_are_those_that_a_gro_packet_is_segmented_to() {
    let gro = |dont_fragment: bool, ids: &[u16]| {
        let with = |id: &u16| {
            let mut headers = template(false);
            headers[ID_V4..ID_V4 + 2].copy_from_slice(&id.to_be_bytes());
            headers[ID_V4 + 2] = if dont_fragment { 0x40 } else { 0 };
            headers
        };
        let begin = with(&ids[0]);
        let mut first = FirstFrame::new(&UdpFrame {
            headers: &begin,
            payload: b"x",
        });
        ids[1..].iter().enumerate().all(|(before, id)| {
            let next = with(id);
            let fits = first.is_next(&next, before + 1);
            if before == 0 {
                first.begin_ids(&next);
            }
            fits
        })
    };
    for dont_fragment in [false, true] {
        assert!(gro(dont_fragment, &[7, 8, 9, 10]));
        assert!(gro(dont_fragment, &[0xfffe, 0xffff, 0, 1]));
        assert_eq!(gro(dont_fragment, &[7, 7, 7]), dont_fragment);
        assert_eq!(gro(dont_fragment, &[0, 0]), dont_fragment);
        for ids in [[7, 7, 8], [7, 8, 8], [7, 8, 10], [7, 9, 10], [7, 6, 5]] {
            assert!(!gro(dont_fragment, &ids), "{ids:?}");
        }
    }
}

#[test]
fn gro_headers_are_as_the_kernel_makes_them() {
    for is_ipv6 in [false, true] {
        let first = frame(is_ipv6, 5, b"0123456789");
        let mut headers = UdpFrame::parse(&first, add).unwrap().headers().to_vec();
        make_gro(&mut headers, 25);
        let udp = udp_header(&headers);
        assert_eq!(number(&headers, udp + 4), 33);
        if is_ipv6 {
            assert_eq!(number(&headers, HEADER_ETHERNET + 4), 33);
        } else {
            assert_eq!(number(&headers, HEADER_ETHERNET + 2), 53);
            assert_eq!(fold(sum(&headers[HEADER_ETHERNET..UDP_V4])), 0);
        }
        // With ports, length and payload the sum is a right checksum.
        let payload = [7; 25];
        let partial = add(&payload, add(&headers[udp..], 0));
        headers[udp + 6..udp + 8].copy_from_slice(&fold(u64::from(partial)).to_ne_bytes());
        headers.extend(payload);
        assert!(UdpFrame::parse(&headers, add).is_some());
    }
}
