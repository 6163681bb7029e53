// SPDX-License-Identifier: GPL-2.0

//! Packets per second by the clock on the wall, of one sender or of several at once, each on a CPU of
//! its own. Modes take turns, so that what else the host does meets all of them.

use crate::{
    measure::{name, peer},
    meter::kernel,
    nic::{Count, Nic},
    row::Row,
    send::Mode,
    traffic::{on_wire, Traffic},
};
use clap::Args;
use std::{
    io,
    net::{Ipv4Addr, UdpSocket},
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

/// Between two looks at the NIC's counters.
const NAP: Duration = Duration::from_micros(200);
/// How long packets may take to leave.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Args)]
pub(crate) struct Options {
    /// The device to send by
    #[arg(long)]
    nic: String,

    /// Its address; that of a second sender is 65,536 behind it, and the peer is as for `send`
    #[arg(long)]
    local: Ipv4Addr,

    /// Modes
    #[arg(long, value_delimiter = ',')]
    modes: Vec<Mode>,

    /// How many send at once
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    senders: Vec<u32>,

    /// Bytes of payload
    #[arg(long, default_value_t = 64)]
    payload: usize,

    /// Packets of each sender and round
    #[arg(long, default_value_t = 16384)]
    packets: usize,

    /// How often each mode has its turn
    #[arg(long, default_value_t = 7)]
    rounds: usize,

    /// Transmit queues that the NIC uses, if several
    #[arg(long)]
    queues: Option<u32>,
}

pub(crate) fn run(options: &Options) -> io::Result<bool> {
    let nic = Nic::open(&options.nic)?;
    let mac = nic.mac(&UdpSocket::bind("0.0.0.0:0")?)?;
    let kernel = kernel()?;
    for &senders in &options.senders {
        let mut rates = vec![Vec::new(); options.modes.len()];
        for _ in 0..options.rounds {
            for (rates, &mode) in rates.iter_mut().zip(&options.modes) {
                let rate = round(options, &nic, mac, mode, senders);
                rates.push(rate.map_err(|error| {
                    io::Error::other(format!("{}, {senders} senders: {error}", name(mode)))
                })?);
            }
        }
        for (rates, &mode) in rates.into_iter().zip(&options.modes) {
            let packets = u64::from(senders) * (rates.len() * options.packets) as u64;
            let row = Row {
                mode: name(mode),
                direction: "send".to_owned(),
                queues: options.queues,
                payload: options.payload,
                policy: "none".to_owned(),
                flows: senders,
                peers: 1,
                batch: mode.batch(options.payload),
                packets_per_second: Some(median(&rates)),
                runs: rates,
                sent: packets,
                nic_packets: packets,
                nic_bytes: packets * on_wire(options.payload).1 as u64,
                kernel: kernel.clone(),
                ..Row::default()
            };
            println!("{}", serde_json::to_string(&row)?);
        }
    }
    Ok(true)
}

/// Has all send, and gives how many packets left in a second.
fn round(options: &Options, nic: &Nic, mac: [u8; 6], mode: Mode, senders: u32) -> io::Result<f64> {
    let warm_up = options.packets / 8;
    // Before all are ready, before they begin, and before they close what may not have been taken yet.
    let gates = [(); 3].map(|()| Barrier::new(senders as usize + 1));
    let before = nic.sent()?;
    let all = |packets: usize| {
        let packets = packets * senders as usize;
        let (count, bytes) = on_wire(options.payload);
        Count {
            packets: (packets * count) as u64,
            bytes: (packets * bytes) as u64,
        }
    };
    thread::scope(|scope| {
        let work: Vec<_> = (0..senders)
            .map(|number| {
                let gates = &gates;
                scope.spawn(move || {
                    let done = prepare(options, nic, mac, mode, number, warm_up);
                    gates[0].wait();
                    gates[1].wait();
                    let sent = done.and_then(|(mut sender, mut traffic)| {
                        sender.send(&mut traffic, options.packets)?;
                        Ok(sender)
                    });
                    gates[2].wait();
                    sent.map(drop)
                })
            })
            .collect();
        gates[0].wait();
        let ready = wait_for(nic, before, all(warm_up));
        gates[1].wait();
        let start = Instant::now();
        let left = wait_for(nic, before, all(warm_up + options.packets));
        let elapsed = start.elapsed();
        gates[2].wait();
        for each in work {
            each.join().expect("a sender panicked")?;
        }
        ready?;
        left?;
        Ok(f64::from(senders) * options.packets as f64 / elapsed.as_secs_f64())
    })
}

/// Opens a sender on its CPU, and has it send some.
fn prepare(
    options: &Options,
    nic: &Nic,
    mac: [u8; 6],
    mode: Mode,
    number: u32,
    warm_up: usize,
) -> io::Result<(Box<dyn crate::send::Sender>, Traffic)> {
    pin(number as usize)?;
    let local = Ipv4Addr::from(u32::from(options.local) + (number << 16));
    let peers = vec![peer(options.local, 1)];
    let mut traffic = Traffic::new(local, mac, peers, options.payload);
    let mut sender = mode.open(nic.index(), 0, &traffic)?;
    sender.send(&mut traffic, warm_up)?;
    Ok((sender, traffic))
}

/// Keeps this thread on a CPU.
fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: Zeroes are an empty set; its macro checks the CPU's number.
    let status = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set)
    };
    match status {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits until the NIC has sent so much.
fn wait_for(nic: &Nic, before: Count, expected: Count) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = nic.sent()?.since(before);
        if left == expected {
            return Ok(());
        }
        if left.packets > expected.packets || Instant::now() > deadline {
            return Err(io::Error::other(format!(
                "of {expected:?} the NIC sent {left:?}"
            )));
        }
        thread::sleep(NAP);
    }
}

/// The one in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
