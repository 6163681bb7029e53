// SPDX-License-Identifier: GPL-2.0

//! A packet with its owner: as a line, as JSON, and in words.

use super::{
    flows::Paths,
    reasons::{verdict, Reasons},
    ring::Frame,
};
use crate::{names::Names, output::clean};
use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use jiff::{tz::TimeZone, Timestamp};
use kopi::pure::abi::{MonHdr, MON_OUT};
use serde::Serialize;
use std::{
    borrow::Cow,
    fmt::Write,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// What is needed to give things names.
pub(super) struct Words {
    /// Of users and devices.
    pub(super) names: Names,
    /// Of the kernel.
    pub(super) reasons: Reasons,
}

/// A packet without its header.
pub(super) struct Packet<'a> {
    /// Since 1970.
    pub(super) time: Duration,
    /// What was in front of it.
    pub(super) header: MonHdr,
    /// Its length, of which not all may have been captured.
    pub(super) length: u32,
    /// What was captured, from the IP header on.
    pub(super) bytes: &'a [u8],
    /// What the header doesn't say.
    pub(super) paths: Paths<'a>,
}

/// The owner of a packet, and its verdict.
#[derive(Debug, Serialize)]
pub(super) struct Owner<'a> {
    direction: &'static str,
    flow: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pid: u32,
    program: Cow<'a, str>,
    command: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exe: Option<&'a str>,
    uid: u32,
    gid: u32,
    user: String,
    cgroup: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cgroup_path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<u32>,
    #[serde(skip_serializing_if = "is_zero")]
    gso_size: u32,
    #[serde(skip)]
    phrase: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What the packet's own headers say.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Ends {
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source_port: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination_port: Option<u16>,
    /// Bytes of the IP packet.
    length: u32,
    /// Bytes of UDP's or TCP's payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<u32>,
}

/// All about a packet.
#[derive(Serialize)]
pub(super) struct Line<'a> {
    time: String,
    #[serde(flatten)]
    owner: Owner<'a>,
    #[serde(flatten)]
    ends: Ends,
}

impl<'a> Packet<'a> {
    /// Takes off the header, which was read from the frame.
    pub(super) fn new(header: MonHdr, frame: &Frame<'a>, paths: Paths<'a>) -> Self {
        let front = u32::from(header.len);
        Self {
            time: frame.time,
            header,
            length: frame.length.saturating_sub(front),
            bytes: frame.bytes.get(header.len.into()..).unwrap_or_default(),
            paths,
        }
    }

    /// The name of the program's file, or the one that the process gives itself.
    pub(super) fn program(&self) -> Cow<'a, str> {
        let name = |exe: &'a str| exe.rsplit('/').next().unwrap_or(exe);
        let exe = self.paths.exe.map(|exe| Cow::Borrowed(name(exe)));
        exe.unwrap_or_else(|| self.command().into())
    }

    fn command(&self) -> String {
        let command = &self.header.command;
        let end = command.iter().position(|&byte| byte == 0);
        String::from_utf8_lossy(&command[..end.unwrap_or(command.len())]).into_owned()
    }

    /// Its owner.
    pub(super) fn owner(&self, words: &Words) -> Owner<'a> {
        let MonHdr {
            verdict: became,
            ifindex,
            ..
        } = self.header;
        let reason = words.reasons.word(&self.header);
        Owner {
            direction: if self.header.direction == MON_OUT {
                "out"
            } else {
                "in"
            },
            flow: self.header.flow,
            pid: self.header.pid,
            program: self.program(),
            command: self.command().into(),
            exe: self.paths.exe,
            uid: self.header.uid,
            gid: self.header.gid,
            user: words.names.user(self.header.uid),
            cgroup: self.header.cgroup,
            cgroup_path: self.paths.cgroup,
            device: (ifindex != 0).then(|| words.names.device(ifindex)),
            verdict: verdict(became),
            rule: matches!(reason.as_deref(), Some("rule" | "rate")).then_some(self.header.rule),
            reason,
            gso_size: self.header.gso_size,
            phrase: words.reasons.phrase(&self.header),
        }
    }

    /// Where it is from, and where it goes.
    fn ends(&self) -> Ends {
        let mut ends = Ends {
            source: None,
            source_port: None,
            destination: None,
            destination_port: None,
            length: self.length,
            payload: None,
        };
        let Ok(packet) = LaxSlicedPacket::from_ip(self.bytes) else {
            return ends;
        };
        let (source, destination): (IpAddr, IpAddr) = match &packet.net {
            Some(LaxNetSlice::Ipv4(ip)) => (
                ip.header().source_addr().into(),
                ip.header().destination_addr().into(),
            ),
            Some(LaxNetSlice::Ipv6(ip)) => (
                ip.header().source_addr().into(),
                ip.header().destination_addr().into(),
            ),
            _ => return ends,
        };
        (ends.source, ends.destination) = (Some(source), Some(destination));
        let (source, destination, payload) = match &packet.transport {
            Some(TransportSlice::Udp(udp)) => {
                (udp.source_port(), udp.destination_port(), udp.payload())
            }
            Some(TransportSlice::Tcp(tcp)) => {
                (tcp.source_port(), tcp.destination_port(), tcp.payload())
            }
            _ => return ends,
        };
        (ends.source_port, ends.destination_port) = (Some(source), Some(destination));
        let headers = self.bytes.len() - payload.len();
        ends.payload = self.length.checked_sub(u32::try_from(headers).unwrap_or(0));
        ends
    }

    /// How many datagrams or segments it is: a GSO packet is shown as one packet.
    pub(super) fn datagrams(&self) -> u64 {
        let payload = self.ends().payload.unwrap_or(0);
        match self.header.gso_size {
            0 => 1,
            size => payload.div_ceil(size).max(1).into(),
        }
    }

    /// A line about it.
    pub(super) fn line(&self, words: &Words) -> String {
        let (owner, ends) = (self.owner(words), self.ends());
        let time = timestamp(self.time).to_zoned(TimeZone::system());
        let mut line = format!(
            "{} {} {} {:<3} {} > {}",
            time.strftime("%H:%M:%S%.6f"),
            owner.process(),
            owner.user,
            owner.direction,
            end(ends.source, ends.source_port),
            end(ends.destination, ends.destination_port),
        );
        let _ = match ends.payload {
            Some(payload) => write!(line, " length {payload}"),
            None => write!(line, " IP length {}", ends.length),
        };
        if self.header.gso_size != 0 {
            let _ = write!(line, " ({} datagrams)", self.datagrams());
        }
        if let Some(device) = &owner.device {
            let _ = write!(line, " {device}");
        }
        if let Some(phrase) = &owner.phrase {
            let _ = write!(line, " {phrase}");
        }
        clean(&line)
    }

    /// All about it.
    pub(super) fn json(&self, words: &Words) -> Line<'a> {
        Line {
            time: timestamp(self.time).to_string(),
            owner: self.owner(words),
            ends: self.ends(),
        }
    }
}

impl Owner<'_> {
    fn process(&self) -> String {
        match self.pid {
            0 => self.program.to_string(),
            pid => format!("{}[{pid}]", self.program),
        }
    }

    /// In words.
    pub(super) fn comment(&self) -> String {
        let mut comment = format!("{}'s {}", self.user, self.process());
        if let Some(exe) = self.exe {
            let _ = write!(comment, " {exe}");
        }
        if let Some(cgroup) = self.cgroup_path {
            let _ = write!(comment, ", cgroup {cgroup}");
        }
        let _ = write!(comment, ", flow {}", self.flow);
        if let Some(phrase) = &self.phrase {
            let _ = write!(comment, ", {phrase}");
        }
        clean(&comment)
    }
}

/// An address and its port, as far as they are known.
fn end(address: Option<IpAddr>, port: Option<u16>) -> String {
    match (address, port) {
        (None, _) => "?".to_owned(),
        (Some(address), None) => address.to_string(),
        (Some(address), Some(port)) => SocketAddr::new(address, port).to_string(),
    }
}

fn timestamp(time: Duration) -> Timestamp {
    let time = time.try_into().unwrap_or_default();
    Timestamp::from_duration(time).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use kopi::pure::abi::{MON_DROPPED, MON_REASON_RATE, MON_REFUSED, MON_VERSION};

    /// Names and reasons are numbers.
    pub(in super::super) fn words() -> Words {
        Words {
            names: Names::new(true),
            reasons: Reasons::default(),
        }
    }

    pub(in super::super) fn header() -> MonHdr {
        let mut command = [0; 16];
        command[..4].copy_from_slice(b"gen\n");
        MonHdr {
            version: MON_VERSION,
            len: MonHdr::LEN as u8,
            direction: MON_OUT,
            ifindex: 2,
            flow: 5,
            pid: 123,
            uid: 1001,
            gid: 100,
            command,
            ..MonHdr::default()
        }
    }

    /// A frame of UDP with `payload` bytes of payload, of which `captured` are captured.
    pub(in super::super) fn with_packet<T>(
        header: MonHdr,
        payload: usize,
        captured: usize,
        paths: Paths<'_>,
        then: impl FnOnce(&Packet<'_>) -> T,
    ) -> T {
        let mut bytes = header.to_bytes().to_vec();
        let builder = etherparse::PacketBuilder::ipv6([0x20; 16], [0x21; 16], 64);
        let builder = builder.udp(5000, 53);
        builder.write(&mut bytes, &vec![7; payload]).unwrap();
        let frame = Frame {
            time: Duration::new(1_700_000_000, 123_456_789),
            length: bytes.len().try_into().unwrap(),
            bytes: &bytes[..bytes.len() - payload + captured],
        };
        then(&Packet::new(header, &frame, paths))
    }

    fn paths() -> Paths<'static> {
        Paths {
            exe: Some("/usr/bin/kopi-gen"),
            cgroup: Some("/x"),
        }
    }

    #[test]
    fn segments_have_ports_and_payload() {
        let mut bytes = header().to_bytes().to_vec();
        let builder = etherparse::PacketBuilder::ipv4([192, 0, 2, 1], [192, 0, 2, 2], 64);
        let builder = builder.tcp(5000, 80, 1, 1000).psh();
        builder.write(&mut bytes, &[7; 300]).unwrap();
        let frame = Frame {
            time: Duration::new(1_700_000_000, 0),
            length: bytes.len().try_into().unwrap(),
            bytes: &bytes,
        };
        let ends = Packet::new(header(), &frame, paths()).ends();
        assert_eq!(
            (ends.source_port, ends.destination_port, ends.payload),
            (Some(5000), Some(80), Some(300))
        );
    }

    #[test]
    fn a_packet_is_a_line() {
        let rest = |line: String| line.split_once(' ').unwrap().1.to_owned();
        let line = with_packet(header(), 1000, 8, paths(), |packet| {
            assert_eq!(packet.datagrams(), 1);
            rest(packet.line(&words()))
        });
        let (from, to) = (
            "[2020:2020:2020:2020:2020:2020:2020:2020]:5000",
            "[2121:2121:2121:2121:2121:2121:2121:2121]:53",
        );
        assert_eq!(
            line,
            format!("kopi-gen[123] 1001 out {from} > {to} length 1000 2")
        );
        let gso = MonHdr {
            gso_size: 300,
            pid: 0,
            ifindex: 0,
            verdict: MON_REFUSED,
            reason: MON_REASON_RATE,
            rule: 3,
            ..header()
        };
        let line = with_packet(gso, 1000, 1000, Paths::default(), |packet| {
            assert_eq!(packet.datagrams(), 4);
            rest(packet.line(&words()))
        });
        let rate = "refused: rate of rule 3";
        assert_eq!(
            line,
            format!("gen\\n 1001 out {from} > {to} length 1000 (4 datagrams) {rate}")
        );
    }

    #[test]
    fn what_is_no_packet_is_a_line() {
        for bytes in [&[][..], &[0x45], &[0xff; 60]] {
            let frame = Frame {
                time: Duration::ZERO,
                length: MonHdr::LEN as u32 + 60,
                bytes: &[&header().to_bytes(), bytes].concat(),
            };
            let line = Packet::new(header(), &frame, paths()).line(&words());
            assert!(line.ends_with("out ? > ? IP length 60 2"), "{line}");
        }
    }

    #[test]
    fn json_has_it_all() {
        let dropped = MonHdr {
            verdict: MON_DROPPED,
            reason: 8,
            ..header()
        };
        let json = with_packet(dropped, 10, 10, paths(), |packet| {
            serde_json::to_value(packet.json(&words())).unwrap()
        });
        let expected = serde_json::json!({
            "time": "2023-11-14T22:13:20.123456789Z",
            "direction": "out", "flow": 5, "pid": 123, "program": "kopi-gen", "command": "gen\n",
            "exe": "/usr/bin/kopi-gen", "uid": 1001, "gid": 100, "user": "1001",
            "cgroup": 0, "cgroup_path": "/x", "device": "2", "verdict": "dropped", "reason": "8",
            "source": "2020:2020:2020:2020:2020:2020:2020:2020", "source_port": 5000,
            "destination": "2121:2121:2121:2121:2121:2121:2121:2121", "destination_port": 53,
            "length": 58, "payload": 10,
        });
        assert_eq!(json, expected);
    }

    #[test]
    fn a_comment_is_a_sentence() {
        let dropped = MonHdr {
            verdict: MON_DROPPED,
            reason: 8,
            ..header()
        };
        let comment = with_packet(dropped, 10, 10, paths(), |packet| {
            packet.owner(&words()).comment()
        });
        assert_eq!(
            comment,
            "1001's kopi-gen[123] /usr/bin/kopi-gen, cgroup /x, flow 5, dropped: 8"
        );
    }
}
