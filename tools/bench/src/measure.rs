// SPDX-License-Identifier: GPL-2.0

//! Measures sending, row by row.

use crate::{
    meter::{kernel, Meter},
    nic::Count,
    policy::{Packets, Policy},
    row::Row,
    send::{named_or_all, Mode},
    traffic::{on_wire, Peer, Traffic, HEADERS, UNFRAGMENTED_MAX},
};
use clap::{Args, ValueEnum};
use std::{io, net::Ipv4Addr};

/// Peers of the rows with many.
const MANY: u8 = 255;

/// The destinations of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peers {
    /// One, to whom the socket is connected
    One,
    /// One of 255, at random
    Many,
}

impl Peers {
    /// Their number.
    pub(crate) fn count(self) -> u8 {
        match self {
            Self::One => 1,
            Self::Many => MANY,
        }
    }
}

#[derive(Args)]
pub(crate) struct Options {
    /// The device to send by
    #[arg(long)]
    nic: String,

    /// Its address; those of the peers, of which it must know the neighbours, are the next ones
    #[arg(long)]
    local: Ipv4Addr,

    /// Modes, if not all that any NIC can do
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Mode>,

    /// Bytes of payload
    #[arg(long, value_delimiter = ',', default_value = "64,512,1400")]
    payloads: Vec<usize>,

    /// The destinations
    #[arg(long, value_delimiter = ',', default_value = "one")]
    peers: Vec<Peers>,

    /// Packets of each run
    #[arg(long, default_value_t = 8192)]
    packets: usize,

    /// Mark of the sockets
    #[arg(long, default_value_t = 0)]
    mark: u32,

    /// The NIC cuts up GSO packets itself, and counts them as one packet
    #[arg(long)]
    offloads: bool,

    /// Transmit queues that the NIC was told to use, if several
    #[arg(long)]
    queues: Option<u32>,

    #[command(flatten)]
    policy: Policy,
}

/// Peer number `number`, as the machine's set-up has them.
pub(crate) fn peer(local: Ipv4Addr, number: u8) -> Peer {
    Peer {
        address: Ipv4Addr::from(u32::from(local) + 256 + u32::from(number)),
        mac: [2, 0, 0, 0, 1, number],
    }
}

/// What is common to all rows.
struct Bench<'o> {
    options: &'o Options,
    meter: Meter,
    kernel: String,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let bench = Bench {
        options,
        meter: Meter::open(&options.nic)?,
        kernel: kernel()?,
    };
    let modes = named_or_all(&options.modes);
    let mut all_right = true;
    for &peers in &options.peers {
        for &payload in &options.payloads {
            for &mode in &modes {
                if peers == Peers::Many && !mode.can_do_many()
                    || payload > UNFRAGMENTED_MAX && !mode.can_do_bulk()
                {
                    continue;
                }
                match bench.row(mode, payload, peers) {
                    Ok(row) => println!("{}", serde_json::to_string(&row)?),
                    Err(error) => {
                        all_right = false;
                        let name = name(mode);
                        let policy = &options.policy.name;
                        eprintln!("not ok: {name}, {payload} bytes, {peers:?}, {policy}: {error}");
                    }
                }
            }
        }
    }
    Ok(all_right)
}

/// The mode's name, as on the command line.
pub(crate) fn name(mode: impl ValueEnum) -> String {
    mode.to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Bench<'_> {
    fn row(&self, mode: Mode, payload: usize, peers: Peers) -> io::Result<Row> {
        let peers = (1..=peers.count())
            .map(|number| peer(self.options.local, number))
            .collect();
        let nic = self.meter.nic();
        let mac = nic.mac(&std::net::UdpSocket::bind("0.0.0.0:0")?)?;
        let mut traffic = Traffic::new(self.options.local, mac, peers, payload);
        let packets = self.options.packets;
        let seen = self.options.policy.count()?;
        let mut sender = mode.open(nic.index(), self.options.mark, &traffic)?;
        // Once round all rings, so that memory is there and caches are as they will be.
        let warm_up = packets / 4;
        let expected = |count| self.expected(mode, &traffic, count);
        let (first, each) = (expected(warm_up)?, expected(packets)?);
        self.meter
            .run(first, &mut || sender.send(&mut traffic, warm_up))?;
        let runs = self
            .meter
            .runs(packets, each, || sender.send(&mut traffic, packets))?;
        drop(sender);
        let sent = runs.each.len() * packets;
        let handed = std::iter::once(warm_up)
            .chain(runs.each.iter().map(|_| packets))
            .map(|count| mode.handed(payload, traffic.to_one(), count))
            .sum();
        let seen_packets = Packets {
            meet_hooks: mode.meets_hooks(),
            meet_device: mode.meets_device(),
            handed,
            datagrams: (warm_up + sent) as u64,
        };
        let policy_packets = match (seen, self.options.policy.count()?) {
            (Some(before), Some(after)) => Some(after - before),
            _ => None,
        };
        Ok(Row {
            mode: name(mode),
            direction: "send".to_owned(),
            offloads: self.options.offloads,
            queues: self.options.queues,
            payload,
            policy: self.options.policy.name.clone(),
            policy_holds: self.options.policy.holds(policy_packets, &seen_packets)?,
            flows: 1,
            peers: traffic.peers.len(),
            batch: mode.batch(payload),
            insn_per_packet: Some(runs.mean),
            runs: runs.each,
            wakeups_per_packet: runs.sleeps as f64 / sent as f64,
            warm_up: warm_up as u64,
            sent: sent as u64,
            nic_packets: runs.left.packets,
            nic_bytes: runs.left.bytes,
            policy_packets,
            handed,
            kernel: self.kernel.clone(),
            ..Row::default()
        })
    }

    /// What the NIC has to count of that number of packets, if it counts them.
    fn expected(&self, mode: Mode, traffic: &Traffic, count: usize) -> io::Result<Option<Count>> {
        if !mode.counted() {
            return Ok(None);
        }
        let payload = traffic.payload();
        let (packets, bytes) = match self.options.offloads && !mode.by_frames() {
            false => {
                let (packets, bytes) = on_wire(payload);
                (
                    (count * packets) as u64,
                    (count * (bytes + mode.miscounted())) as u64,
                )
            }
            true => {
                let gso = mode.handed(payload, traffic.to_one(), count);
                let gso = gso.ok_or_else(|| {
                    io::Error::other("GSO packets by chance, which the NIC cuts up")
                })?;
                (gso, gso * HEADERS as u64 + (count * payload) as u64)
            }
        };
        Ok(Some(Count { packets, bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_behind_the_local_address() {
        let first = peer(Ipv4Addr::new(198, 18, 0, 0), 1);
        assert_eq!(first.address, Ipv4Addr::new(198, 18, 1, 1));
        assert_eq!(first.mac, [2, 0, 0, 0, 1, 1]);
        let last = peer(Ipv4Addr::new(198, 18, 0, 0), MANY);
        assert_eq!(last.address, Ipv4Addr::new(198, 18, 1, 255));
    }
}
