// SPDX-License-Identifier: GPL-2.0

//! What isn't in a packet's header: the paths of the program and the cgroup. Events tell them of flows
//! that live for a moment only, and questions of the others.

use crate::{
    message::{flow::Flow, Command},
    netlink::{Connection, Error},
};
use kopi::pure::abi::MonHdr;
use nix::errno::Errno;
use std::{
    collections::HashMap,
    fs,
    hash::Hash,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{DirEntryExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

/// Number of flows, and of cgroups, that are remembered for certain; at most twice as many are: packets of
/// a closed flow may come later, and what is forgotten is asked for again.
const REMEMBERED: usize = 8192;

/// The process in a header: its number, and device and inode of its program.
type Process = (u32, u32, u64);

/// What is known of a flow.
struct Known {
    of: Process,
    exe: Option<String>,
}

impl Known {
    /// What a message says of a process.
    fn new(of: Process, flow: Flow) -> Self {
        let (device, inode) = (flow.exe_device.unwrap_or(0), flow.exe_inode.unwrap_or(0));
        let same = (device, inode) == (of.1, of.2);
        let exe = flow.exe.filter(|exe| same && !exe.is_empty());
        Self { of, exe }
    }
}

/// What was heard last: users choose how much there is to hear.
struct Memory<K, V> {
    new: HashMap<K, V>,
    old: HashMap<K, V>,
}

impl<K, V> Default for Memory<K, V> {
    fn default() -> Self {
        Self {
            new: HashMap::new(),
            old: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash, V> Memory<K, V> {
    fn get(&self, key: &K) -> Option<&V> {
        self.new.get(key).or_else(|| self.old.get(key))
    }

    fn insert(&mut self, key: K, value: V) {
        if self.new.len() >= REMEMBERED {
            self.old = std::mem::take(&mut self.new);
        }
        self.new.insert(key, value);
    }
}

/// Flows by number, and cgroups by theirs.
#[derive(Default)]
struct Table {
    flows: Memory<u32, Known>,
    cgroups: Memory<u64, Option<String>>,
}

impl Table {
    /// Takes a message about a flow as that of the process that it names itself.
    fn add(&mut self, flow: Flow) {
        let of = (
            flow.pid.unwrap_or(0),
            flow.exe_device.unwrap_or(0),
            flow.exe_inode.unwrap_or(0),
        );
        self.add_of(of, flow);
    }

    /// Takes it as that of a process in a header.
    fn add_of(&mut self, of: Process, flow: Flow) {
        if let (Some(cgroup), Some(path)) = (flow.cgroup, &flow.cgroup_path) {
            if !path.is_empty() {
                self.cgroups.insert(cgroup, Some(path.clone()));
            }
        }
        if let Some(id) = flow.id {
            self.flows.insert(id, Known::new(of, flow));
        }
    }

    fn knows(&self, header: &MonHdr) -> bool {
        let flow = self.flows.get(&header.flow);
        let cgroup = header.cgroup == 0 || self.cgroups.get(&header.cgroup).is_some();
        cgroup && (!has_number(header) || flow.is_some_and(|flow| flow.of == process(header)))
    }

    fn paths(&self, header: &MonHdr) -> Paths<'_> {
        let flow = self.flows.get(&header.flow);
        let flow = flow.filter(|flow| flow.of == process(header));
        let cgroup = self.cgroups.get(&header.cgroup);
        Paths {
            exe: flow.and_then(|flow| flow.exe.as_deref()),
            cgroup: cgroup.and_then(Option::as_deref),
        }
    }
}

/// Whether there is a flow to ask for: while accept() makes one, it has no number yet.
fn has_number(header: &MonHdr) -> bool {
    header.flow != 0
}

fn process(header: &MonHdr) -> Process {
    (header.pid, header.exe_device, header.exe_inode)
}

/// What there is to know besides the header.
#[derive(Clone, Copy, Default)]
pub(super) struct Paths<'a> {
    /// Of the program.
    pub(super) exe: Option<&'a str>,
    /// Of the cgroup.
    pub(super) cgroup: Option<&'a str>,
}

/// Knows flows by events and by asking.
pub(super) struct Flows {
    questions: Connection,
    events: Connection,
    table: Table,
}

impl Flows {
    /// Knows those that there are, and from now on hears of others.
    pub(super) fn new() -> Result<Self, Error> {
        let mut events = Connection::open()?;
        events.subscribe()?;
        let mut questions = Connection::open()?;
        let mut table = Table::default();
        for flow in questions.dump(Command::FlowGet)? {
            table.add(flow);
        }
        Ok(Self {
            questions,
            events,
            table,
        })
    }

    /// Hears what there is to hear by now.
    pub(super) fn listen(&mut self) -> Result<(), Error> {
        loop {
            match self.events.events_now() {
                Ok(events) if events.is_empty() => return Ok(()),
                Ok(events) => {
                    for (_, flow) in events {
                        self.table.add(flow);
                    }
                }
                // What isn't known is asked for.
                Err(Error::Lost) => (),
                Err(error) => return Err(error),
            }
        }
    }

    /// The paths that belong to a packet's header.
    pub(super) fn paths(&mut self, header: &MonHdr) -> Result<Paths<'_>, Error> {
        if !self.table.knows(header) {
            self.listen()?;
        }
        if !self.table.knows(header) {
            self.ask(header)?;
        }
        Ok(self.table.paths(header))
    }

    /// Asks for what isn't known. Whatever comes of it, it isn't asked for again because of such a header.
    fn ask(&mut self, header: &MonHdr) -> Result<(), Error> {
        if has_number(header) {
            self.ask_for_flow(header)?;
        }
        let cgroups = &mut self.table.cgroups;
        if cgroups.get(&header.cgroup).is_none() {
            cgroups.insert(header.cgroup, cgroup_path(header.cgroup));
        }
        Ok(())
    }

    fn ask_for_flow(&mut self, header: &MonHdr) -> Result<(), Error> {
        let question = Flow {
            id: Some(header.flow),
            ..Flow::default()
        };
        match self.questions.get::<_, Flow>(Command::FlowGet, &question) {
            Ok(flow) => self.table.add_of(process(header), flow),
            Err(error) if error.is(Errno::ENOENT) => {
                // It was closed meanwhile; then it was heard of, or its events were lost.
                self.listen()?;
                let of = process(header);
                let known = self.table.flows.get(&header.flow);
                // The numbers of processes may be a reader's elsewhere, the program is the same.
                let known = known.filter(|known| (known.of.1, known.of.2) == (of.1, of.2));
                let exe = known.and_then(|known| known.exe.clone());
                self.table.flows.insert(header.flow, Known { of, exe });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl AsFd for Flows {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// The path of a cgroup by its number, which is its folder's inode.
fn cgroup_path(number: u64) -> Option<String> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mut mounts = mounts.lines().map(|mount| mount.split(' '));
    let root = mounts.find_map(|mut mount| {
        let root = mount.nth(1)?;
        (mount.next()? == "cgroup2").then(|| PathBuf::from(root))
    })?;
    if fs::metadata(&root).ok()?.ino() == number {
        return Some("/".to_owned());
    }
    let path = find(&root, number)?;
    let path = path.strip_prefix(&root).ok()?.to_string_lossy();
    Some(format!("/{path}"))
}

/// A folder below this one, by its inode.
fn find(folder: &Path, inode: u64) -> Option<PathBuf> {
    let folders = fs::read_dir(folder).ok()?.flatten();
    let mut folders = folders.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.find_map(|entry| match entry.ino() == inode {
        true => Some(entry.path()),
        false => find(&entry.path(), inode),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(id: u32, pid: u32, inode: u64) -> Flow {
        Flow {
            id: Some(id),
            pid: Some(pid),
            exe: Some(format!("/bin/{inode}")),
            exe_device: Some(1),
            exe_inode: Some(inode),
            cgroup: Some(9),
            ..Flow::default()
        }
    }

    fn header(flow: u32, pid: u32, inode: u64) -> MonHdr {
        MonHdr {
            flow,
            pid,
            exe_device: 1,
            exe_inode: inode,
            cgroup: 9,
            ..MonHdr::default()
        }
    }

    #[test]
    fn flows_are_known_by_their_process() {
        let mut table = Table::default();
        table.add(flow(1, 7, 100));
        let packet = header(1, 7, 100);
        assert!(!table.knows(&packet), "the cgroup has no path");
        table.add(Flow {
            cgroup_path: Some("/x".to_owned()),
            ..flow(2, 8, 200)
        });
        assert!(table.knows(&packet));
        let paths = table.paths(&packet);
        assert_eq!((paths.exe, paths.cgroup), (Some("/bin/100"), Some("/x")));
        for other in [header(1, 8, 100), header(1, 7, 200), header(3, 7, 100)] {
            assert!(!table.knows(&other));
            assert_eq!(table.paths(&other).exe, None);
        }
    }

    #[test]
    fn nobody_asks_for_a_flow_without_a_number() {
        let mut table = Table::default();
        let packet = header(0, 7, 100);
        assert!(!table.knows(&packet), "the cgroup has no path");
        table.cgroups.insert(9, None);
        assert!(table.knows(&packet));
        assert_eq!(table.paths(&packet).exe, None);
    }

    #[test]
    fn answers_are_of_the_process_in_the_header() {
        let mut table = Table::default();
        // The reader's numbers of processes are others.
        table.add_of((7, 1, 100), flow(1, 70_000, 100));
        assert_eq!(table.paths(&header(1, 7, 100)).exe, Some("/bin/100"));
        // It runs another program by now.
        table.add_of((7, 1, 100), flow(1, 7, 200));
        assert_eq!(table.paths(&header(1, 7, 100)).exe, None);
    }

    #[test]
    fn flows_and_cgroups_are_known_for_a_while() {
        let mut table = Table::default();
        let last = u32::try_from(REMEMBERED).unwrap() * 5;
        for id in 1..=last {
            table.add(Flow {
                cgroup: Some(id.into()),
                cgroup_path: Some("/x".to_owned()),
                ..flow(id, 7, 100)
            });
        }
        let recent = last - u32::try_from(REMEMBERED).unwrap() + 1;
        assert_eq!(table.paths(&header(1, 7, 100)).exe, None);
        assert_eq!(table.paths(&header(recent, 7, 100)).exe, Some("/bin/100"));
        assert!(table.flows.new.len() + table.flows.old.len() <= 2 * REMEMBERED);
        assert!(table.cgroups.new.len() + table.cgroups.old.len() <= 2 * REMEMBERED);
        assert!(table.cgroups.get(&recent.into()).is_some() && table.cgroups.get(&1).is_none());
    }

    #[test]
    fn folders_are_found_by_inode() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let commands = here.join("src/commands");
        let inode = fs::metadata(&commands).unwrap().ino();
        assert_eq!(find(here, inode), Some(commands));
        assert_eq!(find(here, u64::MAX), None);
    }
}
