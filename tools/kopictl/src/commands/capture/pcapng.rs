// SPDX-License-Identifier: GPL-2.0

//! The file: pcapng. A packet's owner is in a comment and in an option of KOPI's.

use super::packet::{Packet, Words};
use kopi::pure::abi::{MON_IN, MON_OUT};
use pcap_file::{
    pcapng::{
        blocks::{
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
            interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption},
            ENHANCED_PACKET_BLOCK,
        },
        PcapNgWriter, RawBlock,
    },
    DataLink, Endianness, PcapError,
};
use std::{borrow::Cow, collections::HashMap, io::Write, time::Duration};

/// Options of packets: a comment, the direction, and what others define, in UTF-8.
const COMMENT: u16 = 1;
const FLAGS: u16 = 2;
const CUSTOM_UTF8: u16 = 2988;
/// The private enterprise number for documentation, of RFC 5612, until KOPI has its own.
const ENTERPRISE: u32 = 32473;
/// Packets begin with their IP header.
const RAW: DataLink = DataLink::RAW;
/// Times are in nanoseconds.
const NANOSECONDS: u8 = 9;
/// A block's type, and its length before and behind it.
const AROUND: usize = 12;
/// The first interface: the monitor device, and packets that were dropped before they had another, or whose
/// device came when there were enough.
const MONITOR: u32 = 0;
/// So many interfaces: users choose how many devices there are, and a reader of the file keeps them all.
const INTERFACES_MAX: usize = 1024;
/// What the option says of the direction.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// A file that packets are written to.
pub(super) struct File<W: Write> {
    writer: PcapNgWriter<W>,
    interfaces: HashMap<u32, u32>,
    snaplen: u32,
    /// Each packet is passed on at once.
    live: bool,
}

impl<W: Write> File<W> {
    /// Begins one. Big-endian, since the crate writes times of statistics as one number, and the halves
    /// are in that order only so.
    pub(super) fn new(writer: W, monitor: &str, snaplen: u32, live: bool) -> anyhow::Result<Self> {
        let writer = PcapNgWriter::with_endianness(writer, Endianness::Big).map_err(explained)?;
        let interfaces = HashMap::from([(0, MONITOR)]);
        let mut file = Self {
            writer,
            interfaces,
            snaplen,
            live,
        };
        file.interface(monitor, "packets of KOPI's flows")?;
        file.flush()?;
        Ok(file)
    }

    fn interface(&mut self, name: &str, description: &str) -> anyhow::Result<()> {
        let block = InterfaceDescriptionBlock {
            linktype: RAW,
            snaplen: self.snaplen,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                InterfaceDescriptionOption::IfDescription(Cow::Borrowed(description)),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        self.writer.write_pcapng_block(block).map_err(explained)?;
        Ok(())
    }

    /// The number of the interface for a device.
    fn interface_of(&mut self, ifindex: u32, words: &Words) -> anyhow::Result<u32> {
        if let Some(&number) = self.interfaces.get(&ifindex) {
            return Ok(number);
        }
        if self.interfaces.len() >= INTERFACES_MAX {
            return Ok(MONITOR);
        }
        let number = u32::try_from(self.interfaces.len())?;
        self.interface(
            &words.names.device(ifindex),
            "packets of KOPI's flows on it",
        )?;
        self.interfaces.insert(ifindex, number);
        Ok(number)
    }

    /// Writes a packet.
    pub(super) fn packet(&mut self, packet: &Packet<'_>, words: &Words) -> anyhow::Result<()> {
        let interface_id = self.interface_of(packet.header.ifindex, words)?;
        let owner = packet.owner(words);
        let flags = match packet.header.direction {
            MON_OUT => OUTBOUND,
            MON_IN => INBOUND,
            _ => 0,
        };
        let custom = serde_json::to_string(&owner)?;
        let mut body = fixed_part(interface_id, packet)?;
        option(&mut body, COMMENT, &[owner.comment().as_bytes()])?;
        option(&mut body, FLAGS, &[&flags.to_be_bytes()])?;
        let custom = [&ENTERPRISE.to_be_bytes(), custom.as_bytes()];
        option(&mut body, CUSTOM_UTF8, &custom)?;
        option(&mut body, 0, &[])?;
        let length = u32::try_from(body.len() + AROUND)?;
        let block = RawBlock {
            type_: ENHANCED_PACKET_BLOCK,
            initial_len: length,
            body: body.into(),
            trailer_len: length,
        };
        self.writer.write_raw_block(&block).map_err(explained)?;
        if self.live {
            self.flush()?;
        }
        Ok(())
    }

    /// Ends it, with how many packets were captured, and how many were lost on their way here.
    pub(super) fn finish(
        &mut self,
        time: Duration,
        captured: u64,
        dropped: u64,
    ) -> anyhow::Result<()> {
        let block = InterfaceStatisticsBlock {
            interface_id: MONITOR,
            timestamp: time.as_nanos().try_into()?,
            options: vec![
                InterfaceStatisticsOption::IsbIfRecv(captured + dropped),
                InterfaceStatisticsOption::IsbIfDrop(dropped),
            ],
        };
        self.writer.write_pcapng_block(block).map_err(explained)?;
        self.flush()
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        Ok(self.writer.get_mut().flush()?)
    }
}

/// An enhanced packet's block without its options. The crate would write all of it, but for custom options,
/// whose type can't be named outside.
fn fixed_part(interface: u32, packet: &Packet<'_>) -> anyhow::Result<Vec<u8>> {
    let captured = u32::try_from(packet.bytes.len())?;
    let time = u64::try_from(packet.time.as_nanos())?;
    let mut body = interface.to_be_bytes().to_vec();
    body.extend(time.to_be_bytes());
    body.extend(captured.to_be_bytes());
    body.extend(packet.length.to_be_bytes());
    body.extend(packet.bytes);
    body.resize(body.len().next_multiple_of(4), 0);
    Ok(body)
}

/// Adds an option.
fn option(body: &mut Vec<u8>, code: u16, value: &[&[u8]]) -> anyhow::Result<()> {
    let value = value.concat();
    body.extend(code.to_be_bytes());
    body.extend(u16::try_from(value.len())?.to_be_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
    Ok(())
}

/// That a pipe was closed is to be seen.
fn explained(error: PcapError) -> anyhow::Error {
    match error {
        PcapError::IoError(error) => error.into(),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            flows::Paths,
            packet::tests::{header, with_packet, words},
        },
        *,
    };
    use kopi::pure::abi::MonHdr;
    use pcap_file::pcapng::{blocks::enhanced_packet::EnhancedPacketOption, Block, PcapNgReader};

    fn blocks(bytes: &[u8]) -> Vec<Block<'static>> {
        let mut reader = PcapNgReader::new(bytes).unwrap();
        let mut blocks = vec![];
        while let Some(block) = reader.next_block() {
            blocks.push(block.unwrap().into_owned());
        }
        blocks
    }

    #[test]
    fn there_is_a_bound_of_interfaces() {
        let (mut bytes, words) = (vec![], words());
        let mut file = File::new(&mut bytes, "kopimon0", 64, false).unwrap();
        let most = u32::try_from(INTERFACES_MAX).unwrap();
        for ifindex in (1..most + 10).chain([most - 1]) {
            let header = MonHdr {
                ifindex,
                ..header()
            };
            with_packet(header, 100, 16, Paths::default(), |packet| {
                file.packet(packet, &words).unwrap();
            });
        }
        let (mut interfaces, mut packets) = (0, vec![]);
        for block in blocks(&bytes) {
            match block {
                Block::InterfaceDescription(_) => interfaces += 1,
                Block::EnhancedPacket(packet) => packets.push(packet.interface_id),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(interfaces, INTERFACES_MAX);
        let mut expected = (1..most).collect::<Vec<_>>();
        expected.extend([MONITOR; 10]);
        expected.push(most - 1);
        assert_eq!(packets, expected);
    }

    /// Of three packets, the second one inbound.
    fn captured() -> Vec<Block<'static>> {
        let (mut bytes, words) = (vec![], words());
        let mut file = File::new(&mut bytes, "kopimon0", 64, true).unwrap();
        let inbound = MonHdr {
            direction: MON_IN,
            ifindex: 0,
            ..header()
        };
        for header in [header(), inbound, header()] {
            with_packet(header, 100, 16, Paths::default(), |packet| {
                file.packet(packet, &words).unwrap();
            });
        }
        file.finish(Duration::new(1, 2), 3, 4).unwrap();
        blocks(&bytes)
    }

    #[test]
    fn interfaces_come_with_their_first_packets() {
        let blocks = captured();
        let kinds = blocks.iter().map(|block| match block {
            Block::InterfaceDescription(interface) => (0, interface.snaplen),
            Block::EnhancedPacket(packet) => (1, packet.interface_id),
            Block::InterfaceStatistics(statistics) => (2, statistics.interface_id),
            other => panic!("{other:?}"),
        });
        // The second interface comes with its first packet.
        let expected = [(0, 64), (0, 64), (1, 1), (1, 0), (1, 1), (2, 0)];
        assert_eq!(kinds.collect::<Vec<_>>(), expected);

        let Some(Block::InterfaceStatistics(statistics)) = blocks.last() else {
            panic!("{blocks:?}");
        };
        assert_eq!(statistics.timestamp, 1_000_000_002);
        assert!(statistics
            .options
            .contains(&InterfaceStatisticsOption::IsbIfDrop(4)));
    }

    #[test]
    fn packets_have_whom_they_are_of() {
        let blocks = captured();
        let [Block::EnhancedPacket(outbound), Block::EnhancedPacket(inbound)] = &blocks[2..4]
        else {
            panic!("{blocks:?}");
        };
        assert_eq!((outbound.original_len, outbound.data.len()), (148, 64));
        assert_eq!(
            outbound.timestamp,
            Duration::new(1_700_000_000, 123_456_789)
        );
        assert!(outbound
            .options
            .contains(&EnhancedPacketOption::Flags(OUTBOUND)));
        assert!(inbound
            .options
            .contains(&EnhancedPacketOption::Flags(INBOUND)));
        let comment = "1001's gen\\n[123], flow 5";
        assert!(outbound
            .options
            .contains(&EnhancedPacketOption::Comment(comment.into())));
        let custom = outbound.options.iter().find_map(|option| match option {
            EnhancedPacketOption::CustomUtf8(custom) => Some(custom),
            _ => None,
        });
        let custom = custom.unwrap();
        assert_eq!((custom.code, custom.pen), (2988, 32473));
        let custom: serde_json::Value = serde_json::from_str(&custom.value).unwrap();
        assert_eq!(
            (&custom["flow"], &custom["direction"]),
            (&5.into(), &"out".into())
        );
    }
}
