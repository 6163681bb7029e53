// SPDX-License-Identifier: GPL-2.0

//! The socket: questions and their answers, dumps, events, and what the kernel says of an error.

use crate::{
    attributes::{attributes, Attribute, Set},
    kernel::release,
    message::{Command, Event, Kopi, Rule, Ruleset, EVENTS, FAMILY, VERSION},
};
use netlink_packet_core::{
    Emitable, NetlinkBuffer, NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload,
    NetlinkSerializable, NlasIterator, Parseable, ParseableParametrized, NLM_F_ACK, NLM_F_CAPPED,
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST,
};
use netlink_packet_generic::{
    ctrl::{
        nlas::{GenlCtrlAttrs, McastGrpAttrs},
        GenlCtrl, GenlCtrlCmd,
    },
    GenlFamily, GenlHeader, GenlMessage,
};
use netlink_sys::{protocols::NETLINK_GENERIC, Socket, SocketAddr};
use nix::{
    errno::Errno,
    poll::{poll, PollFd, PollFlags, PollTimeout},
    sys::socket::setsockopt,
    sys::socket::sockopt::SndBufForce,
};
use std::{
    fmt,
    fmt::Debug,
    io,
    os::fd::{AsFd, BorrowedFd},
    thread,
    time::Duration,
};

impl Command {
    fn changes_rules(self) -> bool {
        matches!(self, Self::RuleAdd | Self::RuleDel | Self::RulesetSet)
    }
}

/// Where the attributes begin in a message.
const ATTRIBUTES: usize = 16 + 4;
/// No message of the kernel's is longer: dumps come in pieces of half of that.
const RECEIVED_MAX: usize = 1 << 16;
/// How often a change of the rules is tried while another is changing them, and how long it waits before
/// it tries again: 5 s in all.
const BUSY: usize = 100;
const PAUSE: Duration = Duration::from_millis(50);
/// How often a dump is begun anew when what it shows changes.
const DUMPS: usize = 10;

/// What the kernel answered when it wouldn't.
#[derive(Debug)]
pub(crate) enum Error {
    /// There is no KOPI in this kernel.
    NoKopi,
    /// It said no.
    Refused(Refusal),
    /// The dump was interrupted each time.
    Unsteady,
    /// Events were lost.
    Lost,
    /// It was of no use.
    Malformed(String),
    /// The socket failed.
    Socket(&'static str, io::Error),
}

/// An error with its extended ack.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    /// The error, positive.
    pub(crate) errno: i32,
    /// What the kernel says about it.
    pub(crate) message: Option<String>,
    /// The attribute that it is about, from the outermost: each with how many of its kind are before it.
    pub(crate) attribute: Vec<(String, usize)>,
    /// An attribute that is missing.
    pub(crate) missing: Option<String>,
}

impl Refusal {
    /// Which rule of a set it is about.
    pub(crate) fn rule(&self) -> Option<usize> {
        let (name, index) = self.attribute.first()?;
        (name == "rule").then_some(*index)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = |name: &str| matches!(&self.message, Some(message) if message.contains(name));
        match self.attribute.last() {
            Some((name, _)) if name != "rule" && !said(name) => write!(out, "{name}: ")?,
            _ => (),
        }
        if let Some(message) = &self.message {
            write!(out, "{message} ")?;
        }
        if let Some(missing) = &self.missing {
            write!(out, "(without {missing}) ")?;
        }
        let errno = Errno::from_raw(self.errno);
        match (&self.message, errno) {
            (None, Errno::ENOENT | Errno::ENODEV) => write!(out, "there is none ({errno:?})"),
            (None, _) => write!(out, "{} ({errno:?})", errno.desc()),
            (Some(_), _) => write!(out, "({errno:?})"),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKopi => {
                write!(out, "no KOPI in this kernel: as root, `modprobe kopi`")?;
                match release() {
                    Ok(release) => {
                        write!(
                            out,
                            "; the module is in the package kopi-modules-{release}, "
                        )?;
                        write!(
                            out,
                            "and kopi-build-module makes it for a kernel without one"
                        )
                    }
                    Err(_) => Ok(()),
                }
            }
            Self::Refused(refusal) => write!(out, "{refusal}"),
            Self::Unsteady => write!(out, "it changed {DUMPS} times while it was read; try again"),
            Self::Lost => write!(
                out,
                "events were lost, they came faster than they were read"
            ),
            Self::Malformed(what) => write!(out, "the kernel's answer makes no sense: {what}"),
            Self::Socket(what, error) => write!(out, "{what}: {error}"),
        }?;
        match self.is_permission() {
            true => write!(
                out,
                ": needs CAP_NET_ADMIN in this network namespace, try sudo"
            ),
            false => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

impl Error {
    /// Whether it would be done for somebody else.
    pub(crate) fn is_permission(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.errno == libc::EPERM,
            Self::Socket(_, error) => error.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    /// Whether it is this error of the kernel's.
    pub(crate) fn is(&self, errno: Errno) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.errno == errno as i32)
    }
}

impl From<netlink_packet_core::DecodeError> for Error {
    fn from(error: netlink_packet_core::DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

type Result<T> = std::result::Result<T, Error>;

/// What messages go over: a netlink socket, or a test.
pub(crate) trait Transport {
    /// Sends one.
    fn send(&self, message: &[u8]) -> Result<()>;
    /// Receives some.
    fn receive(&self) -> Result<Vec<u8>>;
}

impl Transport for Socket {
    fn send(&self, message: &[u8]) -> Result<()> {
        // A set of rules comes in one piece, and may be larger than net.core.wmem_max.
        if message.len() > 1 << 16 {
            setsockopt(self, SndBufForce, &(message.len() + (1 << 16)))
                .map_err(|error| Error::Socket("send buffer", error.into()))?;
        }
        Socket::send(self, message, 0)
            .map(drop)
            .map_err(|error| Error::Socket("send", error))
    }

    fn receive(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(RECEIVED_MAX);
        loop {
            match self.recv(&mut bytes, libc::MSG_TRUNC) {
                Ok(len) if len > bytes.len() => {
                    return Err(Error::Malformed(format!("{len} bytes at once")))
                }
                Ok(_) => return Ok(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    return Err(Error::Lost)
                }
                Err(error) => return Err(Error::Socket("receive", error)),
            }
        }
    }
}

attributes! {
    /// What follows an error.
    Ack {
        /// A message.
        1 message: Option<String>,
        /// Where the attribute is in the request.
        2 offset: Option<u32>,
        /// Type of an attribute that is missing.
        5 missing_type: Option<u32>,
        /// Where the attribute is that it is missing in.
        6 missing_nest: Option<u32>,
    }
}

/// Finds the attribute at `offset` of `bytes`, whose attributes are of `set`.
fn locate(bytes: &[u8], set: &'static [Attribute], offset: usize) -> Vec<(String, usize)> {
    let mut position = 0;
    let mut seen = vec![0; set.len()];
    for attribute in NlasIterator::new(bytes).map_while(std::result::Result::ok) {
        let place = set
            .iter()
            .position(|known| known.number == attribute.kind());
        let length = usize::from(attribute.length());
        if (position..position + length).contains(&offset) {
            let Some(place) = place else {
                return vec![(format!("attribute {}", attribute.kind()), 0)];
            };
            let mut path = vec![(set[place].spec_name(), seen[place])];
            if offset >= position + 4 {
                path.extend(locate(
                    attribute.value(),
                    set[place].set,
                    offset - position - 4,
                ));
            }
            return path;
        }
        if let Some(place) = place {
            seen[place] += 1;
        }
        position += length.next_multiple_of(4);
    }
    Vec::new()
}

/// Understands an error: its number, and the attributes behind it; `request` is what was sent.
fn refusal(errno: i32, ack: &[u8], request: &[u8], set: &'static [Attribute]) -> Refusal {
    let ack = Ack::parse(ack).unwrap_or_default();
    let locate = |offset: u32| {
        let offset = usize::try_from(offset).ok()?.checked_sub(ATTRIBUTES)?;
        if set.is_empty() {
            return None;
        }
        Some(locate(request.get(ATTRIBUTES..)?, set, offset))
    };
    let inner = if ack.missing_nest.is_some() {
        <Rule as Set>::ATTRIBUTES
    } else {
        set
    };
    Refusal {
        errno,
        message: ack.message,
        attribute: ack
            .offset
            .or(ack.missing_nest)
            .and_then(locate)
            .unwrap_or_default(),
        missing: ack.missing_type.map(|number| {
            let known = inner.iter().find(|known| u32::from(known.number) == number);
            known.map_or_else(|| format!("attribute {number}"), Attribute::spec_name)
        }),
    }
}

/// The attributes that follow the request's copy in an error.
fn ack_of(flags: u16, copy: &[u8]) -> &[u8] {
    let length = copy
        .first_chunk()
        .map_or(0, |length| u32::from_ne_bytes(*length));
    let request = match flags & NLM_F_CAPPED {
        0 => usize::try_from(length)
            .unwrap_or(usize::MAX)
            .checked_next_multiple_of(4)
            .unwrap_or(usize::MAX),
        _ => 16,
    };
    copy.get(request..).unwrap_or_default()
}

/// Opens a socket to the kernel.
pub(crate) fn open(protocol: isize) -> Result<Socket> {
    let opened = || {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_ext_ack(true)?;
        socket.set_cap_ack(true)?;
        Ok(socket)
    };
    opened().map_err(|error| Error::Socket("open", error))
}

/// A connection to KOPI in the network namespace of this process.
pub(crate) struct Connection<T = Socket> {
    transport: T,
    family: u16,
    groups: Vec<(String, u32)>,
    sequence: u32,
}

impl Connection {
    /// Opens one.
    pub(crate) fn open() -> Result<Self> {
        Self::over(open(NETLINK_GENERIC)?)
    }

    /// Opens one to another family.
    pub(crate) fn to(family: &str) -> Result<Self> {
        Self::over_to(open(NETLINK_GENERIC)?, family)
    }

    /// From now on events come, too.
    pub(crate) fn subscribe(&mut self) -> Result<()> {
        let group = self.groups.iter().find(|(name, _)| name == EVENTS);
        let (_, id) = group.ok_or_else(|| Error::Malformed(format!("no group {EVENTS}")))?;
        self.transport
            .add_membership(*id)
            .map_err(|error| Error::Socket("events", error))?;
        // Room for bursts; without the privilege, as much as is allowed.
        let size = 4 << 20;
        if setsockopt(
            &self.transport,
            nix::sys::socket::sockopt::RcvBufForce,
            &size,
        )
        .is_err()
        {
            let _ = self
                .transport
                .set_rx_buf_sz(i32::try_from(size).unwrap_or(i32::MAX));
        }
        Ok(())
    }

    /// The events that are there already, as far as they come in one piece; none, if there are none.
    pub(crate) fn events_now<A: Set>(&self) -> Result<Vec<(Event, A)>> {
        let mut socket = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        match poll(&mut socket, PollTimeout::ZERO) {
            Ok(0) | Err(Errno::EINTR) => Ok(Vec::new()),
            Ok(_) => self.events(),
            Err(error) => Err(Error::Socket("poll", error.into())),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

impl<T: Transport> Connection<T> {
    /// Asks for KOPI's family over `transport`.
    pub(crate) fn over(transport: T) -> Result<Self> {
        Self::over_to(transport, FAMILY).map_err(|error| {
            if error.is(Errno::ENOENT) {
                Error::NoKopi
            } else {
                error
            }
        })
    }

    /// Asks for a family over `transport`.
    fn over_to(transport: T, family: &str) -> Result<Self> {
        let mut connection = Self {
            transport,
            family: 0,
            groups: Vec::new(),
            sequence: 0,
        };
        let question = GenlCtrl {
            cmd: GenlCtrlCmd::GetFamily,
            nlas: vec![GenlCtrlAttrs::FamilyName(family.to_owned())],
        };
        let answers = connection.exchange(GenlMessage::from_payload(question), 0, &[])?;
        for attribute in answers.into_iter().flat_map(|answer| answer.nlas) {
            match attribute {
                GenlCtrlAttrs::FamilyId(id) => connection.family = id,
                GenlCtrlAttrs::McastGroups(groups) => {
                    connection.groups = groups.iter().filter_map(|group| group_of(group)).collect();
                }
                _ => (),
            }
        }
        match connection.family {
            0 => Err(Error::Malformed("a family without number".to_owned())),
            _ => Ok(connection),
        }
    }

    /// Sends a request, which may change something, and reads all that is answered.
    pub(crate) fn request<Q: Set, A: Set>(
        &mut self,
        command: Command,
        question: &Q,
    ) -> Result<Vec<A>> {
        for _ in 0..BUSY {
            match self.ask(command as u8, question, 0) {
                Err(error) if error.is(Errno::EBUSY) && command.changes_rules() => {
                    thread::sleep(PAUSE);
                }
                answer => return answer,
            }
        }
        self.ask(command as u8, question, 0)
    }

    /// Reads one thing.
    pub(crate) fn get<Q: Set, A: Set>(&mut self, command: Command, question: &Q) -> Result<A> {
        let answer = self.request(command, question)?.pop();
        answer.ok_or_else(|| Error::Malformed("nothing".to_owned()))
    }

    /// Reads all there are; begins anew if they change meanwhile.
    pub(crate) fn dump<A: Set>(&mut self, command: Command) -> Result<Vec<A>> {
        for _ in 0..DUMPS {
            match self.ask(command as u8, &A::default(), NLM_F_DUMP) {
                Err(Error::Unsteady) => (),
                answer => return answer,
            }
        }
        Err(Error::Unsteady)
    }

    /// All rules, in their order.
    pub(crate) fn rules(&mut self) -> Result<Vec<Rule>> {
        let parts: Vec<Ruleset> = self.dump(Command::RuleGet)?;
        Ok(parts.into_iter().flat_map(|part| part.rule).collect())
    }

    /// Waits for messages, and gives the events among them.
    pub(crate) fn events<A: Set>(&self) -> Result<Vec<(Event, A)>> {
        let mut events = Vec::new();
        for (header, payload) in messages::<GenlMessage<Kopi>>(&self.transport.receive()?)? {
            let NetlinkPayload::InnerMessage(message) = payload else {
                continue;
            };
            if header.message_type != self.family {
                continue;
            }
            if let Some(event) = Event::of(message.header.cmd) {
                events.push((event, A::parse(&message.payload.attributes)?));
            }
        }
        Ok(events)
    }

    /// Sends a request by its number in the family, and reads all that is answered.
    pub(crate) fn ask<Q: Set, A: Set>(
        &mut self,
        command: u8,
        question: &Q,
        flags: u16,
    ) -> Result<Vec<A>> {
        let payload = Kopi {
            command,
            attributes: question.to_bytes(),
        };
        let header = GenlHeader {
            cmd: command,
            version: VERSION,
        };
        let message = GenlMessage::new(header, payload, self.family);
        let answers = self.exchange(message, flags, Q::ATTRIBUTES)?;
        answers
            .iter()
            .map(|answer| Ok(A::parse(&answer.attributes)?))
            .collect()
    }

    /// Sends a message and reads until the kernel has said all.
    fn exchange<F>(
        &mut self,
        message: GenlMessage<F>,
        flags: u16,
        set: &'static [Attribute],
    ) -> Result<Vec<F>>
    where
        F: GenlFamily + Emitable + ParseableParametrized<[u8], GenlHeader> + Debug,
    {
        self.sequence = self.sequence.wrapping_add(1);
        let answers = exchange(&self.transport, self.sequence, message, flags, set)?;
        Ok(answers.into_iter().map(|answer| answer.payload).collect())
    }
}

/// Sends a message, with flags or to be acknowledged, and reads until the kernel has said all; `set` is
/// what the message has of attributes.
pub(crate) fn exchange<M>(
    transport: &impl Transport,
    sequence: u32,
    message: M,
    flags: u16,
    set: &'static [Attribute],
) -> Result<Vec<M>>
where
    M: NetlinkSerializable + NetlinkDeserializable + Debug,
    NetlinkPayload<M>: From<M>,
{
    let ack = if flags & NLM_F_DUMP == NLM_F_DUMP {
        0
    } else {
        NLM_F_ACK
    };
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | ack | flags;
    header.sequence_number = sequence;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(message));
    message.finalize();
    let mut request = vec![0; message.buffer_len()];
    message.serialize(&mut request);
    transport.send(&request)?;

    let (mut answers, mut unsteady) = (Vec::new(), false);
    loop {
        for (header, payload) in messages::<M>(&transport.receive()?)? {
            // Events, and what was left of a dump that failed.
            if header.sequence_number != sequence {
                continue;
            }
            unsteady |= header.flags & NLM_F_DUMP_INTR != 0;
            let (code, ack) = match payload {
                NetlinkPayload::InnerMessage(answer) => {
                    answers.push(answer);
                    continue;
                }
                NetlinkPayload::Error(error) => (
                    error.raw_code(),
                    ack_of(header.flags, &error.header).to_vec(),
                ),
                NetlinkPayload::Done(done) => (done.code, done.extended_ack),
                _ => continue,
            };
            return match code {
                ..0 => Err(Error::Refused(refusal(
                    code.saturating_neg(),
                    &ack,
                    &request,
                    set,
                ))),
                _ if unsteady => Err(Error::Unsteady),
                _ => Ok(answers),
            };
        }
    }
}

/// Name and number of a multicast group.
fn group_of(attributes: &[McastGrpAttrs]) -> Option<(String, u32)> {
    let name = attributes.iter().find_map(|attribute| match attribute {
        McastGrpAttrs::Name(name) => Some(name.clone()),
        McastGrpAttrs::Id(_) => None,
    });
    let id = attributes.iter().find_map(|attribute| match attribute {
        McastGrpAttrs::Id(id) => Some(*id),
        McastGrpAttrs::Name(_) => None,
    });
    name.zip(id)
}

type Message<M> = (NetlinkHeader, NetlinkPayload<M>);

/// The messages of what was received.
fn messages<M: NetlinkDeserializable + Debug>(mut bytes: &[u8]) -> Result<Vec<Message<M>>> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let length =
            usize::try_from(NetlinkBuffer::new_checked(bytes)?.length()).unwrap_or(usize::MAX);
        messages.push(NetlinkMessage::deserialize(bytes)?.into_parts());
        bytes = length
            .checked_next_multiple_of(4)
            .and_then(|next| bytes.get(next..))
            .unwrap_or_default();
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Flow, Info};
    use netlink_packet_core::DefaultNla;
    use proptest::prelude::*;
    use std::{cell::RefCell, collections::VecDeque};

    const KOPI: u16 = 33;

    /// Answers with what is in store, a buffer for each receive; the sequence is put in.
    #[derive(Default)]
    struct Fake {
        sent: RefCell<Vec<Vec<u8>>>,
        store: RefCell<VecDeque<Vec<u8>>>,
    }

    impl Transport for &Fake {
        fn send(&self, message: &[u8]) -> Result<()> {
            self.sent.borrow_mut().push(message.to_vec());
            Ok(())
        }
        fn receive(&self) -> Result<Vec<u8>> {
            self.store.borrow_mut().pop_front().ok_or(Error::Lost)
        }
    }

    fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(16 + payload.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn kopi<S: Set>(command: u8, flags: u16, sequence: u32, set: &S) -> Vec<u8> {
        message(
            KOPI,
            flags,
            sequence,
            &[&[command, 1, 0, 0], &*set.to_bytes()].concat(),
        )
    }

    fn error(sequence: u32, code: i32, ack: &Ack) -> Vec<u8> {
        let header = message(0, 0, sequence, &[]);
        message(
            2,
            NLM_F_CAPPED,
            sequence,
            &[&code.to_ne_bytes(), &*header, &*ack.to_bytes()].concat(),
        )
    }

    fn done(sequence: u32) -> Vec<u8> {
        message(3, 2, sequence, &[0; 4])
    }

    /// Has asked for the family; what follows has sequence 2.
    fn connected(fake: &Fake) -> Connection<&Fake> {
        let mut id = vec![0; 8];
        DefaultNla::new(1, KOPI.to_ne_bytes().to_vec()).emit(&mut id);
        let family = message(16, 0, 1, &[&[1, 2, 0, 0], &*id].concat());
        fake.store
            .borrow_mut()
            .extend([family, error(1, 0, &Ack::default())]);
        Connection::over(fake).unwrap()
    }

    fn info() -> Info {
        Info {
            abi_version: Some(2),
            generation: Some(9),
            ..Info::default()
        }
    }

    #[test]
    fn questions_are_answered() {
        let fake = Fake::default();
        let mut connection = connected(&fake);
        // An event comes between, and the answer and the end of it come at once.
        let event = kopi(10, 0, 0, &Flow::default());
        let answer = [kopi(1, 0, 2, &info()), error(2, 0, &Ack::default())].concat();
        fake.store.borrow_mut().extend([event, answer]);
        let answer: Info = connection.get(Command::InfoGet, &Info::default()).unwrap();
        assert_eq!(answer, info());
        let sent = fake.sent.borrow();
        assert_eq!(
            sent[1],
            message(KOPI, NLM_F_REQUEST | NLM_F_ACK, 2, &[1, 1, 0, 0])
        );
    }

    #[test]
    fn no_family_is_no_kopi() {
        let fake = Fake::default();
        fake.store
            .borrow_mut()
            .push_back(error(1, -libc::ENOENT, &Ack::default()));
        assert!(matches!(Connection::over(&fake), Err(Error::NoKopi)));
    }

    #[test]
    fn interrupted_dumps_are_begun_anew() {
        let fake = Fake::default();
        let mut connection = connected(&fake);
        let flow = |id| Flow {
            id: Some(id),
            ..Flow::default()
        };
        fake.store.borrow_mut().extend([
            [
                kopi(2, 2, 2, &flow(1)),
                kopi(2, 2 | NLM_F_DUMP_INTR, 2, &flow(2)),
            ]
            .concat(),
            done(2),
            [kopi(2, 2, 3, &flow(1)), kopi(2, 2, 3, &flow(3))].concat(),
            done(3),
        ]);
        assert_eq!(
            connection.dump::<Flow>(Command::FlowGet).unwrap(),
            [flow(1), flow(3)]
        );

        for sequence in 4..4 + u32::try_from(DUMPS).unwrap() {
            fake.store
                .borrow_mut()
                .push_back(message(3, 2 | NLM_F_DUMP_INTR, sequence, &[0; 4]));
        }
        assert!(matches!(
            connection.dump::<Flow>(Command::FlowGet),
            Err(Error::Unsteady)
        ));
    }

    #[test]
    fn dumps_can_fail_at_their_end() {
        let fake = Fake::default();
        let mut connection = connected(&fake);
        let ack = Ack {
            message: Some("no more".to_owned()),
            ..Ack::default()
        };
        let end = [&(-libc::ENOMEM).to_ne_bytes(), &*ack.to_bytes()].concat();
        fake.store.borrow_mut().push_back(message(3, 2, 2, &end));
        let error = connection.dump::<Flow>(Command::FlowGet).unwrap_err();
        assert_eq!(error.to_string(), "no more (ENOMEM)");
    }

    #[test]
    fn errors_name_what_is_wrong() {
        let fake = Fake::default();
        let mut connection = connected(&fake);
        let exe = Rule {
            uid_min: Some(1),
            exe: Some("/nowhere".to_owned()),
            ..Rule::default()
        };
        let set = Ruleset {
            rule: vec![
                Rule {
                    mark: Some(1),
                    ..Rule::default()
                },
                exe,
            ],
            ..Ruleset::default()
        };
        // Headers, the first rule's nest of one number, the second's header and its number.
        let offset = Some(20 + 12 + 4 + 8);
        let ack = Ack {
            message: Some("no such program".to_owned()),
            offset,
            ..Ack::default()
        };
        fake.store
            .borrow_mut()
            .push_back(error(2, -libc::ENOENT, &ack));
        let error = connection
            .request::<_, Ruleset>(Command::RulesetSet, &set)
            .unwrap_err();
        assert_eq!(error.to_string(), "exe: no such program (ENOENT)");
        let Error::Refused(refusal) = &error else {
            panic!("{error:?}")
        };
        assert_eq!(refusal.rule(), Some(1));
        assert!(!error.is_permission());
    }

    #[test]
    fn missing_attributes_are_named() {
        let ack = Ack {
            missing_type: Some(1),
            ..Ack::default()
        };
        let refusal = refusal(libc::EINVAL, &ack.to_bytes(), &[], Flow::ATTRIBUTES);
        assert_eq!(
            refusal.to_string(),
            "(without id) Invalid argument (EINVAL)"
        );
    }

    #[test]
    fn what_was_not_capped_is_skipped() {
        let request = message(KOPI, 0, 5, &[1, 1, 0, 0, 9]);
        assert_eq!(ack_of(0, &[&request, &[7; 4][..]].concat()), [7; 4]);
        assert_eq!(
            ack_of(NLM_F_CAPPED, &[&request[..16], &[7; 4]].concat()),
            [7; 4]
        );
        assert!(ack_of(0, &[255; 5]).is_empty());
    }

    #[test]
    fn events_come() {
        let fake = Fake::default();
        let connection = connected(&fake);
        let flow = Flow {
            id: Some(4),
            ..Flow::default()
        };
        let others = message(KOPI + 1, 0, 0, &[14, 1, 0, 0]);
        fake.store
            .borrow_mut()
            .push_back([others, kopi(99, 0, 0, &flow), kopi(14, 0, 0, &flow)].concat());
        assert_eq!(
            connection.events::<Flow>().unwrap(),
            [(Event::FlowDenied, flow)]
        );
    }

    proptest! {
        #[test]
        fn any_answer_is_understood_or_not(bytes: Vec<u8>, place in 0..200_usize, byte: u8) {
            let fake = Fake::default();
            let mut connection = connected(&fake);
            let mut answer = [kopi(1, 0, 2, &info()), error(2, -1, &Ack { offset: Some(24), ..Ack::default() })].concat();
            let length = answer.len();
            answer[place % length] = byte;
            fake.store.borrow_mut().extend([answer, bytes]);
            let _ = connection.get::<_, Info>(Command::InfoGet, &Info::default());
            let _ = connection.events::<Flow>();
        }

        #[test]
        fn any_offset_is_found_or_not(bytes: Vec<u8>, offset: usize) {
            let _ = locate(&bytes, Ruleset::ATTRIBUTES, offset);
        }
    }
}
