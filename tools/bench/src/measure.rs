// SPDX-License-Identifier: GPL-2.0

//! Measures sending, row by row.

use crate::{
    clock::Clock,
    nic::{Count, Nic},
    policy::{Packets, Policy},
    row::{agreed, Row},
    send::{Mode, Sender},
    traffic::{Peer, Traffic, HEADERS},
};
use clap::{Args, ValueEnum};
use std::{
    fs, io,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

/// Peers of the rows with many.
const MANY: u8 = 255;
/// How often a row is run until two runs after each other agree.
const RUNS_MAX: usize = 4;
/// Between two looks at the NIC's counters.
const NAP: Duration = Duration::from_micros(100);
/// How long packets may take to leave.
const PATIENCE: Duration = Duration::from_secs(1);
/// Looks at the NIC's counters from which their cost is had.
const LOOKS: u32 = 32;

/// To whom packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Peers {
    /// One, to whom the socket is connected
    One,
    /// One of 255, at random
    Many,
}

#[derive(Args)]
pub(crate) struct Options {
    /// The device to send by
    #[arg(long)]
    nic: String,

    /// Its address; those of the peers, of which it must know the neighbours, are the next ones
    #[arg(long)]
    local: Ipv4Addr,

    /// Modes, if not all
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Mode>,

    /// Bytes of payload
    #[arg(long, value_delimiter = ',', default_value = "64,512,1400")]
    payloads: Vec<usize>,

    /// To whom
    #[arg(long, value_delimiter = ',', default_value = "one")]
    peers: Vec<Peers>,

    /// Packets of each run
    #[arg(long, default_value_t = 8192)]
    packets: usize,

    /// Mark of the sockets
    #[arg(long, default_value_t = 0)]
    mark: u32,

    /// The NIC cuts up trains itself, and counts them as one packet
    #[arg(long)]
    offloads: bool,

    #[command(flatten)]
    policy: Policy,
}

/// Peer number `number`, as the machine's set-up has them.
fn peer(local: Ipv4Addr, number: u8) -> Peer {
    Peer {
        address: Ipv4Addr::from(u32::from(local) + 256 + u32::from(number)),
        mac: [2, 0, 0, 0, 1, number],
    }
}

/// What is common to all rows.
struct Bench<'o> {
    options: &'o Options,
    nic: Nic,
    clock: Clock,
    /// Instructions of a look at the NIC's counters and a nap.
    look: f64,
    kernel: String,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let nic = Nic::open(&options.nic)?;
    let clock = Clock::new()?;
    let look = clock.each(LOOKS, || {
        nic.sent()?;
        thread::sleep(NAP);
        Ok(())
    })?;
    eprintln!(
        "# an idle loop is {:.4} instructions, a look at the NIC's counters {look:.0}",
        clock.per_loop()
    );
    let bench = Bench {
        options,
        nic,
        clock,
        look,
        kernel: kernel()?,
    };
    let modes = match &options.modes[..] {
        [] => Mode::value_variants(),
        modes => modes,
    };
    let mut all_right = true;
    for &peers in &options.peers {
        for &payload in &options.payloads {
            for &mode in modes {
                if peers == Peers::Many && !mode.can_do_many() {
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

/// The kernel's release.
pub(crate) fn kernel() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(text.trim().to_owned())
}

/// The mode's name, as on the command line.
pub(crate) fn name(mode: impl ValueEnum) -> String {
    mode.to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Bench<'_> {
    fn row(&self, mode: Mode, payload: usize, peers: Peers) -> io::Result<Row> {
        let last = match peers {
            Peers::One => 1,
            Peers::Many => MANY,
        };
        let peers = (1..=last)
            .map(|number| peer(self.options.local, number))
            .collect();
        let mac = self.nic.mac(&std::net::UdpSocket::bind("0.0.0.0:0")?)?;
        let mut traffic = Traffic::new(self.options.local, mac, peers, payload);
        let packets = self.options.packets;
        let seen = self.options.policy.count()?;
        let mut sender = mode.open(self.nic.index(), self.options.mark, &traffic)?;
        // Once round all rings, so that memory is there and caches are as they will be.
        let warm_up = packets / 4;
        let wanted = |count| self.wanted(mode, &traffic, count);
        let (first, each) = (wanted(warm_up)?, wanted(packets)?);
        self.send(sender.as_mut(), &mut traffic, warm_up, first)?;
        let mut runs = Vec::new();
        let mut sleeps = 0;
        let mut left = Count {
            packets: 0,
            bytes: 0,
        };
        // Now and then the kernel has something else to do in between; all runs are shown.
        while runs.len() < 2 || (agreed(&runs[runs.len() - 2..]).is_none() && runs.len() < RUNS_MAX)
        {
            let run = self.send(sender.as_mut(), &mut traffic, packets, each)?;
            runs.push(run.instructions / packets as f64);
            sleeps += run.sleeps;
            left.packets += run.left.packets;
            left.bytes += run.left.bytes;
        }
        drop(sender);
        let mean = agreed(&runs[runs.len() - 2..]).ok_or_else(|| {
            io::Error::other(format!(
                "its runs don't agree: {runs:?} instructions a packet"
            ))
        })?;
        let sent = runs.len() * packets;
        let handed = std::iter::once(warm_up)
            .chain(runs.iter().map(|_| packets))
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
            payload,
            policy: self.options.policy.name.clone(),
            policy_holds: self.options.policy.holds(policy_packets, &seen_packets)?,
            flows: 1,
            peers: traffic.peers.len(),
            batch: mode.batch(payload),
            insn_per_packet: Some(mean),
            runs,
            packets_per_second: None,
            wakeups_per_packet: sleeps as f64 / sent as f64,
            warm_up: warm_up as u64,
            sent: sent as u64,
            delivered: None,
            nic_packets: left.packets,
            nic_bytes: left.bytes,
            policy_packets,
            handed,
            kernel: self.kernel.clone(),
        })
    }

    /// What the NIC has to count of so many packets.
    fn wanted(&self, mode: Mode, traffic: &Traffic, count: usize) -> io::Result<Count> {
        let headers = match self.options.offloads {
            false => count as u64,
            true => mode
                .handed(traffic.payload(), traffic.to_one(), count)
                .ok_or_else(|| io::Error::other("trains by chance, which the NIC cuts up"))?,
        };
        Ok(Count {
            packets: headers,
            bytes: headers * HEADERS as u64 + (count * traffic.payload()) as u64,
        })
    }

    /// Sends, until all have left.
    fn send(
        &self,
        sender: &mut dyn Sender,
        traffic: &mut Traffic,
        count: usize,
        wanted: Count,
    ) -> io::Result<Run> {
        let before = self.nic.sent()?;
        let slept = sleeps();
        let start = self.clock.start();
        sender.send(traffic, count)?;
        let sleeps = sleeps() - slept;
        let deadline = Instant::now() + PATIENCE;
        let mut looks = 0;
        let left = loop {
            let left = self.nic.sent()?.since(before);
            looks += 1;
            if left.packets >= wanted.packets || Instant::now() > deadline {
                break left;
            }
            thread::sleep(NAP);
        };
        let instructions = self.clock.since(start) - f64::from(looks) * self.look;
        if left != wanted {
            return Err(io::Error::other(format!(
                "of {wanted:?} the NIC sent {left:?}"
            )));
        }
        Ok(Run {
            instructions,
            sleeps,
            left,
        })
    }
}

/// What one run has shown.
struct Run {
    instructions: f64,
    sleeps: u64,
    left: Count,
}

/// How often this thread has slept.
pub(crate) fn sleeps() -> u64 {
    // SAFETY: Zeroes are a valid place to write to.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    usage.ru_nvcsw as u64
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
