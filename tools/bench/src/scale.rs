// SPDX-License-Identifier: GPL-2.0

//! What many sockets cost, or many flows on one channel: in instructions, each packet by a random
//! one of them, and in kernel memory.

use crate::{
    measure::{name, peer},
    meter::{kernel, Meter},
    nic::Count,
    row::Row,
    send::{Fleet, FleetMode},
    traffic::{Random, Traffic, HEADERS},
};
use clap::Args;
use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddrV4},
    thread,
    time::Duration,
};

/// Ports of each local address, and the first of them.
const PORTS: u32 = 10_000;
const FIRST_PORT: u16 = 20_000;
/// Descriptors besides those of sockets.
const OTHER_FILES: u64 = 100;
/// What was closed goes some time later: memory is looked at until it stays so for a while.
const SETTLING: Duration = Duration::from_millis(100);
const SETTLED: u64 = 64 << 10;
const LOOKS_MAX: usize = 100;

#[derive(Args)]
pub(crate) struct Options {
    /// The device to send by
    #[arg(long)]
    nic: String,

    /// Its address: the peer is as for `send`, and the sockets have the addresses from 65,536 behind
    /// it on, 10,000 each
    #[arg(long)]
    local: Ipv4Addr,

    /// Modes
    #[arg(long, value_delimiter = ',', default_value = "send,kopi_doorbell")]
    modes: Vec<FleetMode>,

    /// How many sockets or flows, in ascending order
    #[arg(long, value_delimiter = ',', default_value = "1,100,1000,10000,100000")]
    flows: Vec<u32>,

    /// Bytes of payload
    #[arg(long, default_value_t = 64)]
    payload: usize,

    /// Packets of each run
    #[arg(long, default_value_t = 8192)]
    packets: usize,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let most = options.flows.iter().copied().max().unwrap_or_default();
    allow_files(u64::from(most) + OTHER_FILES)?;
    let meter = Meter::open(&options.nic)?;
    let kernel = kernel()?;
    let mut all_right = true;
    for &mode in &options.modes {
        if let Err(error) = rows(options, &meter, &kernel, mode) {
            all_right = false;
            eprintln!("not ok: many flows, {}: {error}", name(mode));
        }
    }
    Ok(all_right)
}

/// The rows of one mode.
fn rows(options: &Options, meter: &Meter, kernel: &str, mode: FleetMode) -> io::Result<()> {
    let mac = meter.nic().mac(&std::net::UdpSocket::bind("0.0.0.0:0")?)?;
    let peer = peer(options.local, 1);
    let mut traffic = Traffic::new(options.local, mac, vec![peer], options.payload);
    let mut random = Random::new();
    let before = settled_memory()?;
    let mut fleet: Option<Box<dyn Fleet>> = None;
    let mut there = 0;
    for &flows in &options.flows {
        let fleet = match &mut fleet {
            Some(fleet) => fleet,
            none => {
                none.insert(mode.open(local(options.local, 0), peer.socket(), options.payload)?)
            }
        };
        there = there.max(1);
        while there < flows {
            fleet.add(local(options.local, there), peer.socket())?;
            there += 1;
        }
        // Before anything is sent: of idle ones.
        let kernel_bytes = settled_memory()?.saturating_sub(before);
        let warm_up = options.packets / 4;
        let count = |packets| expected(options, mode, there, packets);
        send_by_each(meter, &mut **fleet, &mut traffic, there, warm_up, count)?;
        let packets = options.packets;
        let runs = meter.runs(packets, count(packets), || {
            fleet.send(&mut traffic, packets, &mut || random.below(there))
        })?;
        let sent = (runs.each.len() * packets) as u64;
        let row = Row {
            mode: name(mode),
            direction: "send".to_owned(),
            payload: options.payload,
            policy: "none".to_owned(),
            flows: there,
            peers: 1,
            batch: fleet.batch(),
            insn_per_packet: Some(runs.mean),
            runs: runs.each,
            wakeups_per_packet: runs.sleeps as f64 / sent as f64,
            warm_up: u64::from(there),
            sent,
            nic_packets: runs.left.packets,
            nic_bytes: runs.left.bytes,
            kernel_bytes: Some(kernel_bytes),
            kernel: kernel.to_owned(),
            ..Row::default()
        };
        println!("{}", serde_json::to_string(&row)?);
    }
    Ok(())
}

/// Has each of so many sockets or flows send, `at_once` at a time: those of a busy server have sent before.
/// `count` is what the NIC has to count of a number of packets.
fn send_by_each(
    meter: &Meter,
    fleet: &mut dyn Fleet,
    traffic: &mut Traffic,
    flows: u32,
    at_once: usize,
    count: impl Fn(usize) -> Option<Count>,
) -> io::Result<()> {
    for first in (0..flows).step_by(at_once) {
        // One or two alone would take another way.
        let some = at_once.min((flows - first) as usize).max(fleet.batch());
        let mut next = first..flows;
        meter.run(count(some), &mut || {
            fleet.send(traffic, some, &mut || next.next().unwrap_or(first))
        })?;
    }
    Ok(())
}

/// What the NIC has to count of packets of so many sockets or flows, if it counts them.
fn expected(options: &Options, mode: FleetMode, flows: u32, packets: usize) -> Option<Count> {
    // virtio-net doesn't count packets of the stack that it frees when it is given frames.
    let counted = !mode.is_direct() || flows == 1;
    counted.then_some(Count {
        packets: packets as u64,
        bytes: (packets * (HEADERS + options.payload + mode.miscounted())) as u64,
    })
}

/// The address of a socket.
fn local(first: Ipv4Addr, number: u32) -> SocketAddrV4 {
    let address = u32::from(first) + (1 << 16) + number / PORTS;
    SocketAddrV4::new(address.into(), FIRST_PORT + (number % PORTS) as u16)
}

/// Lets this process have that number of descriptors.
fn allow_files(count: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: count,
        rlim_max: count,
    };
    // SAFETY: A whole limit.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes of memory that the kernel has for itself, when that changes no more.
fn settled_memory() -> io::Result<u64> {
    let mut last = kernel_memory()?;
    for _ in 0..LOOKS_MAX {
        thread::sleep(SETTLING);
        let now = kernel_memory()?;
        if now.abs_diff(last) <= SETTLED {
            return Ok(now);
        }
        last = now;
    }
    Err(io::Error::other("the kernel's memory doesn't settle"))
}

fn kernel_memory() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    memory(&text).ok_or_else(|| io::Error::other("/proc/meminfo lacks something"))
}

/// Bytes of slabs, of vmalloc and of what each CPU has.
fn memory(text: &str) -> Option<u64> {
    let field = |name: &str| -> Option<u64> {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes = value.trim().strip_suffix(" kB")?;
        Some(kilobytes.parse::<u64>().ok()? << 10)
    };
    Some(field("Slab:")? + field("VmallocUsed:")? + field("Percpu:")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_socket_has_its_own_address() {
        let first = Ipv4Addr::new(198, 18, 0, 0);
        let at = |number| local(first, number).to_string();
        assert_eq!(at(0), "198.19.0.0:20000");
        assert_eq!(at(9_999), "198.19.0.0:29999");
        assert_eq!(at(10_000), "198.19.0.1:20000");
        assert_eq!(at(99_999), "198.19.0.9:29999");
    }

    #[test]
    fn memory_is_what_the_kernel_has() {
        let text = "MemTotal:        1520000 kB
Slab:              30000 kB
SReclaimable:      10000 kB
VmallocUsed:        8000 kB
Percpu:              500 kB
";
        assert_eq!(memory(text), Some(38500 << 10));
        assert_eq!(memory("Slab: 1 kB\n"), None);
    }
}
