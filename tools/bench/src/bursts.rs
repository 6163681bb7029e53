// SPDX-License-Identifier: GPL-2.0

//! Bursts of packets that come to a NIC from another namespace, and what they cost by themselves: that is
//! measured before, on a NIC that takes all.

use crate::{
    clock::Clock,
    measure::Peers,
    nic::{within, Nic},
    row::agreed,
    send::{gso, PacketRing, Sender},
    traffic::{Peer, Traffic},
};
use clap::Args;
use std::{
    io,
    net::{Ipv4Addr, UdpSocket},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// Packets that come at once.
pub(crate) const BURST: usize = 64;
/// Bursts of a run, and of the warm-up.
pub(crate) const BURSTS: usize = 128;
pub(crate) const WARM_UP: usize = 32;
/// How often a row is run until two runs after each other agree.
pub(crate) const RUNS_MAX: usize = 4;
/// The same of bursts that nobody receives, without which there are no rows.
const BURST_RUNS_MAX: usize = 8;
/// How long a burst takes to leave.
pub(crate) const NAP: Duration = Duration::from_millis(1);
/// The first of many senders.
const FIRST_SOURCE: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);

/// The NICs.
#[derive(Args)]
pub(crate) struct Ends {
    /// The device to receive by
    #[arg(long)]
    pub(crate) nic: String,

    /// Its address
    #[arg(long)]
    pub(crate) local: Ipv4Addr,

    /// The network namespace of the device at the other end, as a file
    #[arg(long)]
    far_netns: PathBuf,

    /// The device at the other end
    #[arg(long)]
    far_nic: String,

    /// Its address
    #[arg(long)]
    pub(crate) far: Ipv4Addr,

    /// The network namespace of a NIC that takes all, and else is as that at the other end
    #[arg(long)]
    void_netns: PathBuf,

    /// That NIC
    #[arg(long)]
    void_nic: String,

    /// Whom the packets come from: one, or at random 255, whose addresses are 198.18.1.1 and the next
    /// ones
    #[arg(long, value_enum, default_value = "one")]
    pub(crate) peers: Peers,
}

/// What is taken out of the measurements, in instructions.
pub(crate) struct Costs {
    /// A burst until it has left.
    pub(crate) burst: f64,
    /// A nap.
    pub(crate) nap: f64,
}

/// What sends bursts to a NIC.
pub(crate) struct Bursts<'o> {
    ends: &'o Ends,
    /// The NICs do checksums and segmentation: bursts are GSO packets.
    offloads: bool,
    pub(crate) nic: Nic,
    mac: [u8; 6],
    far_index: u32,
    far_mac: [u8; 6],
    void_index: u32,
}

/// The addresses of many senders.
fn sources() -> Vec<Ipv4Addr> {
    let first = u32::from(FIRST_SOURCE);
    (0..u32::from(Peers::Many.count()))
        .map(|number| Ipv4Addr::from(first + number))
        .collect()
}

fn mac_of(nic: &Nic) -> io::Result<[u8; 6]> {
    nic.mac(&UdpSocket::bind("0.0.0.0:0")?)
}

impl<'o> Bursts<'o> {
    pub(crate) fn new(ends: &'o Ends, offloads: bool) -> io::Result<Self> {
        let nic = Nic::open(&ends.nic)?;
        let (far_index, far_mac) = within(&ends.far_netns, || {
            let far = Nic::open(&ends.far_nic)?;
            Ok((far.index(), mac_of(&far)?))
        })?;
        let void_index = within(&ends.void_netns, || Ok(Nic::open(&ends.void_nic)?.index()))?;
        Ok(Self {
            ends,
            offloads,
            mac: mac_of(&nic)?,
            nic,
            far_index,
            far_mac,
            void_index,
        })
    }

    /// What comes from the other end.
    pub(crate) fn traffic(&self, payload: usize) -> Traffic {
        let near = Peer {
            address: self.ends.local,
            mac: self.mac,
        };
        let traffic = Traffic::new(self.ends.far, self.far_mac, vec![near], payload);
        match self.ends.peers {
            Peers::One => traffic,
            Peers::Many => traffic.with_sources(sources()),
        }
    }

    /// What sends it from the other end.
    pub(crate) fn sender(&self, traffic: &Traffic) -> io::Result<Box<dyn Sender>> {
        self.sender_by(&self.ends.far_netns, self.far_index, traffic)
    }

    /// What sends it by a device in a namespace.
    fn sender_by(
        &self,
        netns: &Path,
        device: u32,
        traffic: &Traffic,
    ) -> io::Result<Box<dyn Sender>> {
        within(netns, || match self.offloads {
            true => gso(BURST, traffic),
            false => Ok(Box::new(PacketRing::new(device, 0, BURST)?)),
        })
    }

    /// What a burst of such traffic costs until it has left, and a nap.
    pub(crate) fn costs(&self, clock: &Clock, mut traffic: Traffic) -> io::Result<Costs> {
        let nap = clock.each(BURSTS as u32, || {
            thread::sleep(NAP);
            Ok(())
        })?;
        let mut ring = self.sender_by(&self.ends.void_netns, self.void_index, &traffic)?;
        let mut runs = Vec::new();
        for _ in 0..BURST_RUNS_MAX {
            let each = clock.each(BURSTS as u32, || {
                ring.send(&mut traffic, BURST)?;
                thread::sleep(NAP);
                Ok(())
            })?;
            runs.push(each - nap);
            // Not the first one, which warms up.
            if runs.len() > 2 {
                if let Some(burst) = agreed(&runs[runs.len() - 2..]) {
                    let payload = traffic.payload();
                    eprintln!(
                        "# a burst of {BURST} packets of {payload} bytes is {burst:.0} instructions"
                    );
                    return Ok(Costs { burst, nap });
                }
            }
        }
        Err(io::Error::other(format!(
            "the bursts' costs don't agree: {runs:?}"
        )))
    }
}
