// SPDX-License-Identifier: GPL-2.0

//! `kopictl capture`

mod bpf;
mod device;
mod flows;
mod out;
mod packet;
mod pcapng;
mod program;
mod reasons;
mod ring;
mod summary;

use self::{
    bpf::Criteria,
    device::Monitor,
    flows::Flows,
    out::Out,
    packet::{Packet, Words},
    reasons::Reasons,
    ring::{now, Frame, Ring, SHOWN},
    summary::Summary,
};
use super::{is_permission, seconds, user, Usage};
use crate::{names::Names, output};
use anyhow::{bail, Context};
use clap::Args;
use kopi::pure::abi::MonHdr;
use nix::{
    errno::Errno,
    net::if_::if_nametoindex,
    poll::{poll, PollFd, PollFlags, PollTimeout},
    sys::{
        signal::{SigSet, Signal},
        signalfd::SignalFd,
    },
};
use std::{
    fs::{self, File},
    io::{self, BufWriter, IsTerminal, LineWriter, Stdout, Write},
    os::fd::AsFd,
    path::{Path, PathBuf},
    rc::Rc,
    time::{Duration, Instant},
};

/// More than any packet.
const WHOLE: u32 = 262_144;
/// Enough for the headers, which lines are made of.
const HEADERS: u32 = 128;
/// So many packets, and then it is looked whether something else happened.
const AT_ONCE: usize = 4096;

/// Which packets, and where to.
#[derive(Args)]
pub(crate) struct Options {
    /// Only packets on this device
    #[arg(long, short, value_name = "NAME")]
    interface: Option<String>,

    /// Write pcapng to this file; - is standard output
    #[arg(long, short, value_name = "FILE")]
    write: Option<PathBuf>,

    /// End after this number of packets
    #[arg(long, short = 'c', value_name = "N")]
    count: Option<u64>,

    /// End after this time
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,

    /// Number of bytes of each packet that are captured, from its IP header on; by default all in a
    /// file, and the headers otherwise
    #[arg(long, short, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=i64::from(WHOLE)))]
    snaplen: Option<u32>,

    /// Only packets of this process
    #[arg(long)]
    pid: Option<u32>,

    /// Only packets of this user's processes
    #[arg(long, value_name = "NAME|UID", value_parser = user)]
    user: Option<u32>,

    /// Only packets of sockets in this cgroup, or below it
    #[arg(long, value_name = "PATH", value_parser = cgroup)]
    cgroup: Option<String>,

    /// Only packets of this program, which is the file with this path now
    #[arg(long, value_name = "PATH")]
    exe: Option<PathBuf>,

    /// Only packets of this flow
    #[arg(long, value_name = "ID")]
    flow: Option<u32>,

    /// Only packets that did not pass
    #[arg(long)]
    dropped: bool,

    /// Print no packets, but at the end the numbers of packets by process
    #[arg(long, conflicts_with = "write")]
    summary: bool,

    /// Print numbers instead of names of users and devices
    #[arg(long, short)]
    numeric: bool,

    /// Only packets that match this expression of tcpdump's syntax, such as `udp port 53 and not
    /// net 10.0.0.0/8`
    filter: Vec<String>,
}

fn cgroup(text: &str) -> Result<String, String> {
    match text.strip_prefix('/') {
        Some(path) => Ok(format!("/{}", path.trim_end_matches('/'))),
        None => Err("an absolute path was expected, as `kopictl ps` shows it".to_owned()),
    }
}

impl Options {
    /// The program to be attached to the ring, and how much it keeps of a packet.
    fn filter(&self) -> anyhow::Result<(Vec<bpf::Instruction>, u32)> {
        let device = |name: &String| if_nametoindex(name.as_str()).context(name.clone());
        let program =
            |path: &PathBuf| program::identify(path).with_context(|| format!("{}", path.display()));
        let criteria = Criteria {
            pid: self.pid,
            uid: self.user,
            exe: self.exe.as_ref().map(program).transpose()?,
            flow: self.flow,
            ifindex: self.interface.as_ref().map(device).transpose()?,
            dropped: self.dropped,
        };
        let all = if self.write.is_some() { WHOLE } else { HEADERS };
        let snaplen = self.snaplen.unwrap_or(all);
        let filter = bpf::filter(&criteria, &self.filter.join(" "), snaplen);
        let filter = filter.map_err(|error| Usage(format!("filter: {error:#}")))?;
        Ok((filter, snaplen))
    }

    /// Where packets go.
    fn output(
        &self,
        monitor: &str,
        snaplen: u32,
        as_json: bool,
        signals: &Rc<SignalFd>,
    ) -> anyhow::Result<Output> {
        let stdout = || Out::new(io::stdout(), Rc::clone(signals));
        Ok(match &self.write {
            _ if self.summary => Output::Summary(Summary::default()),
            None if as_json => Output::Json(BufWriter::new(stdout())),
            None => Output::Lines(LineWriter::new(stdout())),
            Some(path) if path == Path::new("-") => {
                let out: Box<dyn Write> = Box::new(BufWriter::new(stdout()));
                Output::File(pcapng::File::new(out, monitor, snaplen, true)?)
            }
            Some(path) => {
                let file = File::create(path).with_context(|| format!("{}", path.display()))?;
                let out: Box<dyn Write> = Box::new(BufWriter::new(file));
                Output::File(pcapng::File::new(out, monitor, snaplen, false)?)
            }
        })
    }

    /// Whether packets go to standard output as they come.
    fn to_stdout(&self) -> bool {
        !self.summary
            && self
                .write
                .as_ref()
                .is_none_or(|path| path == Path::new("-"))
    }
}

/// Where packets go.
enum Output {
    Lines(LineWriter<Out<Stdout, Rc<SignalFd>>>),
    Json(BufWriter<Out<Stdout, Rc<SignalFd>>>),
    Summary(Summary),
    File(pcapng::File<Box<dyn Write>>),
}

/// What is done with packets.
struct Sink<'a> {
    flows: Flows,
    words: Words,
    output: Output,
    cgroup: Option<&'a str>,
    /// Packets so far.
    captured: u64,
    /// Packets to come.
    left: u64,
}

impl Sink<'_> {
    fn take(&mut self, frame: &Frame<'_>) -> anyhow::Result<()> {
        let header = MonHdr::from_bytes(frame.bytes);
        let header = header.filter(|header| usize::from(header.len) == MonHdr::LEN);
        let header = header.context(
            "the KOPI in this kernel shows packets in a way that this kopictl doesn't know: \
             use both of the same version",
        )?;
        let paths = self.flows.paths(&header)?;
        if self.cgroup.is_some_and(|of| !is_in(paths.cgroup, of)) {
            return Ok(());
        }
        let packet = Packet::new(header, frame, paths);
        match &mut self.output {
            Output::Lines(out) => writeln!(out, "{}", packet.line(&self.words))?,
            Output::Json(out) => output::json_to(out, &packet.json(&self.words))?,
            Output::Summary(summary) => summary.add(&packet),
            Output::File(file) => file.packet(&packet, &self.words)?,
        }
        self.captured += 1;
        self.left -= 1;
        Ok(())
    }
}

/// Whether a cgroup is this one or below it.
fn is_in(path: Option<&str>, of: &str) -> bool {
    let below = |path: &str| {
        path.strip_prefix(of)
            .map(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    of == "/" || path.and_then(below).unwrap_or(false)
}

/// A capture that runs. The ring is gone before the device is.
struct Session<'a> {
    ring: Ring,
    monitor: Monitor,
    sink: Sink<'a>,
    signals: Rc<SignalFd>,
    to_stdout: bool,
}

/// Captures until there was enough.
pub(crate) fn run(options: &Options, as_json: bool) -> anyhow::Result<()> {
    if as_json && options.write.is_some() {
        bail!(Usage("a file is pcapng: it can't be JSON".to_owned()));
    }
    if options.write.is_some() && options.to_stdout() && io::stdout().is_terminal() {
        let text = "pcapng is for a file or a pipe, as `kopictl capture -w - | wireshark -k -i -`";
        bail!(Usage(text.to_owned()));
    }
    let mut session = Session::begin(options, as_json)?;
    output::remark(format!("capturing on {}", session.monitor.name));
    let begun = Instant::now();
    session.capture(options.seconds)?;
    let took = begun.elapsed();

    let dropped = session.ring.dropped()?;
    let Sink {
        captured,
        output,
        words,
        ..
    } = &mut session.sink;
    match output {
        Output::Summary(summary) => summary.print(took, &words.names, as_json)?,
        Output::File(file) => file.finish(now()?, *captured, dropped.into())?,
        Output::Lines(_) | Output::Json(_) => (),
    }
    output::remark(format!(
        "{captured} packets captured, {dropped} dropped by the capture"
    ));
    Ok(())
}

impl<'a> Session<'a> {
    fn begin(options: &'a Options, as_json: bool) -> anyhow::Result<Self> {
        let (filter, snaplen) = options.filter()?;
        let signals = Rc::new(signals()?);
        let flows = Flows::new().map_err(|error| explain_permission(error.into()))?;
        let monitor = Monitor::new().map_err(explain_permission)?;
        let ring = Ring::open(&monitor.name, &filter, snaplen).map_err(explain_permission)?;
        monitor.mark()?;
        let words = Words {
            names: Names::new(options.numeric),
            reasons: Reasons::of_kernel(),
        };
        let sink = Sink {
            flows,
            words,
            output: options.output(&monitor.name, snaplen, as_json, &signals)?,
            cgroup: options.cgroup.as_deref(),
            captured: 0,
            left: options.count.unwrap_or(u64::MAX),
        };
        let to_stdout = options.to_stdout();
        Ok(Self {
            ring,
            monitor,
            sink,
            signals,
            to_stdout,
        })
    }

    /// Takes packets until there were enough, the time is over, or a signal says so.
    fn capture(&mut self, seconds: Option<Duration>) -> anyhow::Result<()> {
        let begun = Instant::now();
        let left = || seconds.map(|seconds| seconds.saturating_sub(begun.elapsed()));
        let mut drained = Drained::Empty;
        while self.sink.left > 0 && left() != Some(Duration::ZERO) {
            let timeout = match drained {
                Drained::Partly => Some(Duration::ZERO),
                Drained::Empty | Drained::Enough => left(),
            };
            // By then it is looked whether there is none.
            let timeout = match self.ring.since() {
                Some(_) => Some(timeout.unwrap_or(SHOWN).min(SHOWN)),
                None => timeout,
            };
            if self.wait(timeout)? {
                break;
            }
            drained = self.drain(None)?;
            self.sink.flows.listen()?;
        }
        // Those that the kernel has put into the ring, and not shown yet.
        let (end, ended) = (now()?, Instant::now());
        loop {
            match self.drain(Some(end))? {
                Drained::Partly => (),
                Drained::Empty if ended.elapsed() < SHOWN => {
                    let ring = PollFd::new(self.ring.as_fd(), PollFlags::POLLIN);
                    wait_for(&mut [ring], Some(SHOWN.saturating_sub(ended.elapsed())))?;
                }
                Drained::Empty | Drained::Enough => return Ok(()),
            }
        }
    }

    /// Takes packets that are there already, but none that came after `end`.
    fn drain(&mut self, end: Option<Duration>) -> anyhow::Result<Drained> {
        let since = self.ring.since();
        for _ in 0..AT_ONCE {
            if self.sink.left == 0 {
                return Ok(Drained::Enough);
            }
            let Some(frame) = self.ring.next()? else {
                self.ring.was_empty();
                return Ok(Drained::Empty);
            };
            if end.is_some_and(|end| frame.time > end) {
                return Ok(Drained::Enough);
            }
            if since.is_none_or(|since| frame.time >= since) {
                self.sink.take(&frame)?;
            }
        }
        Ok(Drained::Partly)
    }

    /// Waits until something happens; says whether that is the end.
    fn wait(&self, timeout: Option<Duration>) -> anyhow::Result<bool> {
        let stdout = io::stdout();
        // A closed pipe is an error, without being asked for.
        let readers = PollFd::new(stdout.as_fd(), PollFlags::empty());
        let mut fds = [
            PollFd::new(self.ring.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.sink.flows.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            readers,
        ];
        let asked = if self.to_stdout { 4 } else { 3 };
        wait_for(&mut fds[..asked], timeout)?;
        let happened =
            |fd: &PollFd<'_>, what| fd.revents().is_some_and(|events| events.contains(what));
        if asked > 3 && happened(&fds[3], PollFlags::POLLERR) {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        Ok(happened(&fds[2], PollFlags::POLLIN))
    }
}

/// What is left in the ring.
#[derive(Clone, Copy)]
enum Drained {
    /// Nothing.
    Empty,
    /// More, perhaps.
    Partly,
    /// No packet that was asked for.
    Enough,
}

fn wait_for(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> nix::Result<()> {
    let timeout = timeout.map_or(PollTimeout::NONE, |timeout| {
        // Rounded up, or it would not be over yet.
        let timeout = timeout + Duration::from_micros(999);
        PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)
    });
    match poll(fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The signals that end a capture, to be read. Those that were ignored from the beginning, as by nohup or in a
/// script's background, still are: blocked, they would come.
fn signals() -> anyhow::Result<SignalFd> {
    let ignored = ignored(&fs::read_to_string("/proc/self/status")?);
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        if ignored & (1 << (signal as u32 - 1)) == 0 {
            signals.add(signal);
        }
    }
    signals.thread_block()?;
    Ok(SignalFd::new(&signals)?)
}

/// The signals that a process ignores, a bit each, as proc(5) has it.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}

/// Says what a capture needs, if it isn't permitted.
fn explain_permission(error: anyhow::Error) -> anyhow::Error {
    if !is_permission(&error) {
        return error;
    }
    let needs = "a capture needs CAP_NET_ADMIN and CAP_NET_RAW in this network namespace, try sudo";
    io::Error::new(io::ErrorKind::PermissionDenied, needs).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_have_subtrees() {
        for (path, of, inside) in [
            (Some("/a/b"), "/a/b", true),
            (Some("/a/b/c"), "/a/b", true),
            (Some("/a/bc"), "/a/b", false),
            (Some("/a"), "/a/b", false),
            (Some("/a"), "/", true),
            (None, "/", true),
            (None, "/a", false),
        ] {
            assert_eq!(is_in(path, of), inside, "{path:?} {of}");
        }
    }

    #[test]
    fn ignored_signals_are_known() {
        let status = "Name:\tx\nSigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored(status), 0x1001);
        assert_eq!(ignored("Name:\tx\n"), 0);
    }

    #[test]
    fn cgroups_are_absolute() {
        assert_eq!(cgroup("/a/b/").as_deref(), Ok("/a/b"));
        assert_eq!(cgroup("/").as_deref(), Ok("/"));
        assert!(cgroup("a").is_err());
    }
}
