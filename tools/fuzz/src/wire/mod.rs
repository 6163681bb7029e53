// SPDX-License-Identifier: GPL-2.0

//! A host on the wire that sends frames of all kinds, each to a flow and to a UDP socket beside it: both must be
//! told the same, and the kernel must count the same.

mod counters;
mod ends;
mod frame;
mod layers;

use self::{
    counters::Counters,
    ends::{End, Setting, Told},
    frame::{Frames, Target},
};
use crate::{pick, random, Run};
use nix::{
    errno::Errno,
    sys::socket::{self, AddressFamily, SockFlag, SockType},
};
use rand::{rngs::SmallRng, Rng};
use std::{
    fmt::{self, Write},
    fs::File,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    ops::Range,
    os::fd::{AsRawFd, OwnedFd},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

/// Ports of senders.
const FROM: Range<u16> = 7001..7004;
/// Of the flow and of the socket, or the other way round.
const PORTS: [u16; 2] = [9300, 9302];
/// Of a socket behind which nothing is left that goes by the stack.
const STACK_PORT: u16 = 9304;
/// A batch has at most so many: as many as are redirected at once or a few times, or as a NIC's ring holds.
const BATCHES: [u64; 3] = [16, 64, 256];
const PATIENCE: Duration = Duration::from_secs(60);
const LATE: Duration = Duration::from_millis(200);
/// Longer than a batch takes, and less than fragments are kept: the machine has stood still.
const STOOD: Duration = Duration::from_secs(1);
/// For what is on its way: the machine has few CPUs, and one of them is the wire.
const PAUSE: Duration = Duration::from_micros(100);
/// Frames that an error shows.
const SHOWN: usize = 8;
/// Of a batch, if only counters differ, or frames are lost.
const TRIES: usize = 4;

/// Where frames come from and go to.
#[derive(clap::Args)]
pub(crate) struct Wire {
    /// The network namespace of the sending NIC
    #[arg(long, value_name = "FILE")]
    from: PathBuf,

    /// That NIC's name
    #[arg(long, value_name = "NAME")]
    by: String,

    /// The receiving NIC's name, in this network namespace
    #[arg(long, value_name = "NAME")]
    to: String,

    /// Its address of IPv4
    #[arg(long, value_name = "ADDRESS")]
    ipv4: Ipv4Addr,

    /// Its address of IPv6
    #[arg(long, value_name = "ADDRESS")]
    ipv6: Ipv6Addr,
}

/// A round's sockets, and the way to them.
struct Round<'w> {
    wire: &'w Wire,
    mac: [u8; 6],
    sender: &'w OwnedFd,
    setting: Setting,
    /// The flow, and the socket.
    ends: Vec<End>,
    ports: [u16; 2],
    stack: UdpSocket,
    /// Of the next packet in fragments.
    identification: u32,
    /// When the last batch had been received.
    counters: Counters,
}

/// What one socket was told of a batch, and what the kernel counted.
struct Outcome {
    told: Vec<Told>,
    /// Peers and numbers of those that can't be overtaken.
    order: Vec<(SocketAddr, u64)>,
    counted: Vec<(String, u64)>,
    /// The NIC has not counted all: a busy machine may lose frames between them.
    lost: bool,
}

impl Outcome {
    /// Adds what the socket has been told late.
    fn add(&mut self, socket: &End) -> io::Result<()> {
        socket.take(&mut self.told)?;
        self.told.sort();
        Ok(())
    }
}

/// Rounds until the time is over.
pub(crate) fn run(run: &Run, wire: &Wire) -> io::Result<()> {
    let sender = wire.open()?;
    // Not those of a run before.
    let (mut frames, mut identification) = (0, std::process::id() << 16);
    let done = run.repeat(|seed, deadline| {
        let random = &mut random(seed, 0);
        let mut round = Round::open(random, wire, &sender, identification)?;
        let mut done = 0;
        while done < run.operations && !crate::is_over(deadline) {
            let most = pick(random, &BATCHES);
            let count = random.random_range(1..=most);
            let numbers: Vec<_> = (done..done + count).collect();
            round.batch(seed, &numbers)?;
            done += count;
        }
        frames += done;
        identification = round.identification;
        Ok(())
    })?;
    done.tell(&[("frames to each", frames)]);
    Ok(())
}

impl Wire {
    /// The receiving NIC's address.
    fn mac(&self) -> io::Result<[u8; 6]> {
        let mut all = nix::ifaddrs::getifaddrs()?.filter(|each| each.interface_name == self.to);
        let mac = all.find_map(|each| each.address?.as_link_addr()?.addr());
        mac.ok_or_else(|| io::Error::other(format!("{}: no such NIC", self.to)))
    }

    /// A socket that sends frames as they are.
    fn open(&self) -> io::Result<OwnedFd> {
        let namespace = File::open(&self.from)?;
        // A thread's own namespace: this one's stays.
        let opened = thread::scope(|scope| {
            let thread = scope.spawn(|| -> io::Result<OwnedFd> {
                nix::sched::setns(namespace, nix::sched::CloneFlags::CLONE_NEWNET)?;
                let fd = socket::socket(
                    AddressFamily::Packet,
                    SockType::Raw,
                    SockFlag::SOCK_CLOEXEC,
                    None,
                )?;
                let index = nix::net::if_::if_nametoindex(self.by.as_str())?;
                bind(&fd, index)?;
                Ok(fd)
            });
            thread.join()
        });
        opened.map_err(|_| io::Error::other("a thread panicked"))?
    }
}

/// Has it send by that device, without a qdisc, in which packets of one sender could overtake another's.
fn bind(fd: &OwnedFd, index: u32) -> io::Result<()> {
    crate::sys::set(
        fd.as_raw_fd(),
        libc::SOL_PACKET,
        libc::PACKET_QDISC_BYPASS,
        &1i32.to_ne_bytes(),
    )?;
    // struct sockaddr_ll
    let mut name = vec![0; 20];
    name[..2].copy_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
    name[4..8].copy_from_slice(&index.to_ne_bytes());
    crate::sys::bind(fd.as_raw_fd(), &name)?;
    Ok(())
}

impl<'w> Round<'w> {
    fn open(
        random: &mut SmallRng,
        wire: &'w Wire,
        sender: &'w OwnedFd,
        identification: u32,
    ) -> io::Result<Self> {
        let at: IpAddr = pick(
            random,
            &[
                wire.ipv4.into(),
                wire.ipv6.into(),
                Ipv4Addr::UNSPECIFIED.into(),
                Ipv6Addr::UNSPECIFIED.into(),
            ],
        );
        let mut setting = Setting {
            at,
            peer: None,
            gro: pick(random, &[None, Some(false), Some(true)]),
        };
        if random.random_ratio(1, 4) {
            setting.peer = Some(SocketAddr::new(setting.sender(wire), FROM.start));
        }
        println!("{setting:?}");
        let stack = UdpSocket::bind((wire.ipv4, STACK_PORT))?;
        stack.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            wire,
            mac: wire.mac()?,
            sender,
            ends: setting.open(PORTS)?,
            ports: PORTS,
            stack,
            setting,
            identification,
            counters: counters::read()?,
        })
    }

    /// Sends these frames to both; an error if they are not told the same.
    fn batch(&mut self, seed: u64, numbers: &[u64]) -> io::Result<()> {
        let Some(mut wrong) = self.compare(seed, numbers)? else {
            return Ok(());
        };
        // The fewest that are told differently.
        let mut numbers = numbers.to_vec();
        let mut step = numbers.len() / 2;
        while step > 0 {
            let mut at = 0;
            while at < numbers.len() {
                let mut fewer = numbers.clone();
                fewer.drain(at..(at + step).min(numbers.len()));
                match self.compare(seed, &fewer)? {
                    Some(still) => (wrong, numbers) = (still, fewer),
                    None => at += step,
                }
            }
            step /= 2;
        }
        if self.compare(seed, &numbers)?.is_some() {
            self.exchange_ports()?;
            if self.compare(seed, &numbers)?.is_none() {
                // It is the port's: a wrong checksum is right for one port in 65,536.
                return Ok(());
            }
        }
        let frames = numbers
            .iter()
            .flat_map(|&number| self.frames(seed, number, self.ports[0]).frames);
        let shown: Vec<_> = frames.take(SHOWN).map(|frame| hex(&frame)).collect();
        Err(io::Error::other(format!(
            "frames {numbers:?} of {:?}\n{wrong}\n{}",
            self.setting,
            shown.join("\n")
        )))
    }

    /// Opens both anew, each at the other's port.
    fn exchange_ports(&mut self) -> io::Result<()> {
        self.ends.clear();
        self.ports.reverse();
        self.ends = self.setting.open(self.ports)?;
        Ok(())
    }

    /// How what the two are told of these frames differs.
    fn compare(&mut self, seed: u64, numbers: &[u64]) -> io::Result<Option<String>> {
        let mut wrong = None;
        for attempt in 0..TRIES {
            if attempt > 0 {
                // Some is counted after a datagram was handed over: it takes time, and seldom matters.
                thread::sleep(LATE);
                self.counters = counters::read()?;
            }
            let begun = Instant::now();
            let mut rings = self.send(0, seed, numbers)?;
            let mut socket = self.send(1, seed, numbers)?;
            // Generic receive offload may keep some until the NIC has no more.
            let sent = Instant::now();
            while rings.told != socket.told && sent.elapsed() < 4 * LATE {
                thread::sleep(PAUSE);
                rings.add(&self.ends[0])?;
                socket.add(&self.ends[1])?;
            }
            let same = rings.told == socket.told && rings.order == socket.order;
            if same && rings.counted == socket.counted {
                return Ok(None);
            }
            wrong = Some(format!(
                "{}{}{}",
                differences("told", &rings.told, &socket.told),
                differences("order", &rings.order, &socket.order),
                differences("counted", &rings.counted, &socket.counted)
            ));
            // Other packets count, too, now and then.
            if !same && !rings.lost && !socket.lost && begun.elapsed() < STOOD + 4 * LATE {
                break;
            }
        }
        Ok(wrong)
    }

    fn target(&self, port: u16) -> Target {
        Target {
            mac: self.mac,
            near: (self.wire.ipv4, self.wire.ipv6),
            port,
            identification: self.identification,
        }
    }

    /// Sends them to one of the two; gives what it is told, and what is counted.
    fn send(&mut self, which: usize, seed: u64, numbers: &[u64]) -> io::Result<Outcome> {
        let port = self.ports[which];
        let frames = counters::frames(&self.wire.to)?;
        let (mut sent, mut plain) = (0, Vec::new());
        for &number in numbers {
            self.identification = self.identification.wrapping_add(1);
            let Frames { frames, odd } = self.frames(seed, number, port);
            if !odd {
                plain.push(number);
            }
            for frame in frames {
                // A NIC may leave others to other hosts and VLANs.
                let counts = frame.starts_with(&self.mac) && !layers::is_tagged(&frame);
                sent += u64::from(self.transmit(&frame)? && counts);
            }
        }
        let mut told = self.receive_all(which)?;
        let lost = counters::frames(&self.wire.to)?.wrapping_sub(frames) < sent;
        let now = counters::read()?;
        let mut counted = counters::between(&self.counters, &now);
        self.counters = now;
        if self.setting.gro.is_some() {
            // Datagrams that come together are one packet for IP.
            counted.retain(|name, _| name.contains("Err"));
        }
        let mut order: Vec<_> = told.iter().filter_map(Told::number).collect();
        order.retain(|(_, number)| plain.contains(number));
        // Of one peer they come in its order; odd ones can be overtaken.
        order.sort_by_key(|&(peer, _)| peer);
        told.sort();
        Ok(Outcome {
            told,
            order,
            counted: counted.into_iter().collect(),
            lost,
        })
    }

    /// What one of the two has been told of all frames that were sent.
    fn receive_all(&self, which: usize) -> io::Result<Vec<Told>> {
        let (socket, port) = (&self.ends[which], self.ports[which]);
        let end = format!("the end of {port}, {}", self.identification).into_bytes();
        let to = match self.setting.at {
            at if !at.is_unspecified() => at,
            IpAddr::V4(_) => self.wire.ipv4.into(),
            IpAddr::V6(_) => self.wire.ipv6.into(),
        };
        self.transmit(&frame::last(&self.target(port), to, &end))?;
        let stack = self.target(STACK_PORT);
        self.transmit(&frame::last(&stack, self.wire.ipv4.into(), &end))?;
        let mut told = Vec::new();
        let began = Instant::now();
        let is_last = |each: &Told| matches!(each, Told::Datagram { data, .. } if *data == end);
        while !told.iter().any(is_last) {
            if began.elapsed() > PATIENCE {
                let end = String::from_utf8_lossy(&end);
                return Err(io::Error::other(format!("{end} doesn't come")));
            }
            let before = told.len();
            socket.take(&mut told)?;
            if told.len() == before {
                thread::sleep(PAUSE);
            }
        }
        // Frames that are redirected overtake those that aren't and come with them.
        self.stack.recv(&mut [0; 64])?;
        socket.take(&mut told)?;
        told.retain(|each| !is_last(each));
        Ok(told)
    }

    /// The frames of that number, to one of the two.
    fn frames(&self, seed: u64, number: u64, port: u16) -> Frames {
        // The same random numbers for both.
        Frames::new(|of| random(seed, 1 + of), &self.target(port), number)
    }

    /// Whether it could be sent.
    fn transmit(&self, frame: &[u8]) -> io::Result<bool> {
        loop {
            match socket::send(self.sender.as_raw_fd(), frame, socket::MsgFlags::empty()) {
                Ok(_) => return Ok(true),
                // The driver's ring is full.
                Err(Errno::ENOBUFS) => thread::yield_now(),
                // More than the wire takes.
                Err(Errno::EMSGSIZE) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Setting {
    /// The flow and the socket.
    fn open(&self, ports: [u16; 2]) -> io::Result<Vec<End>> {
        Ok(vec![
            End::rings(self, ports[0])?,
            End::socket(self, ports[1])?,
        ])
    }

    /// The peer of connected ones.
    fn sender(&self, wire: &Wire) -> IpAddr {
        let near = match self.at {
            IpAddr::V4(_) => wire.ipv4.into(),
            IpAddr::V6(_) => wire.ipv6.into(),
        };
        frame::other(near, 100)
    }
}

/// What only one of the two has, in words.
fn differences<T: PartialEq + fmt::Debug>(what: &str, rings: &[T], socket: &[T]) -> String {
    let without = |all: &[T], others: &[T]| -> Vec<String> {
        let mut left: Vec<&T> = others.iter().collect();
        all.iter()
            .filter(|each| {
                let at = left.iter().position(|other| other == each);
                at.map(|at| left.remove(at)).is_none()
            })
            .map(|each| format!("{each:?}"))
            .collect()
    };
    if rings == socket {
        return String::new();
    }
    format!(
        "{what}: the flow {:?}, the socket {:?}\n",
        without(rings, socket),
        without(socket, rings)
    )
}

/// A frame's headers.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes.iter().take(120) {
        // A string takes all.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
