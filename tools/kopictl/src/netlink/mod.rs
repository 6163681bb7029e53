// SPDX-License-Identifier: GPL-2.0

//! Connections to the kernel: questions and their answers, dumps, and events.

mod error;
mod exchange;
mod refusal;
#[cfg(test)]
mod tests;
mod transport;

#[cfg(test)]
pub(crate) use self::refusal::Refusal;
pub(crate) use self::{error::Error, exchange::exchange, transport::open};

use self::{error::Result, exchange::messages, transport::Transport};
use crate::{
    attributes::{Attribute, Set},
    message::{
        rule::{Rule, Ruleset},
        Command, Event, Kopi, EVENTS, FAMILY, VERSION,
    },
};
use netlink_packet_core::{Emitable, NetlinkPayload, ParseableParametrized, NLM_F_DUMP};
use netlink_packet_generic::{
    ctrl::{
        nlas::{GenlCtrlAttrs, McastGrpAttrs},
        GenlCtrl, GenlCtrlCmd,
    },
    GenlFamily, GenlHeader, GenlMessage,
};
use netlink_sys::{protocols::NETLINK_GENERIC, Socket};
use nix::{
    errno::Errno,
    poll::{poll, PollFd, PollFlags, PollTimeout},
    sys::socket::{setsockopt, sockopt::RcvBufForce},
};
use std::{
    fmt::Debug,
    os::fd::{AsFd, BorrowedFd},
    thread,
    time::Duration,
};

/// How often a change of the rules is tried while another is changing them, and how long it waits before
/// it tries again: 5 s in all.
const BUSY: usize = 100;
const PAUSE: Duration = Duration::from_millis(50);
/// How often a dump is begun anew when what it shows changes.
const DUMPS: usize = 10;

impl Command {
    fn changes_rules(self) -> bool {
        matches!(self, Self::RuleAdd | Self::RuleDel | Self::RulesetSet)
    }
}

/// The family of families, and its group, which has the same number: `GENL_ID_CTRL`.
const FAMILIES: u32 = 16;

/// What was heard.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard<A> {
    /// An event.
    Event(Event, A),
    /// KOPI's family is gone, and with it what was subscribed to.
    Gone,
    /// It is there again.
    Back,
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
        if setsockopt(&self.transport, RcvBufForce, &size).is_err() {
            let _ = self
                .transport
                .set_rx_buf_sz(i32::try_from(size).unwrap_or(i32::MAX));
        }
        Ok(())
    }

    /// From now on it is also heard when KOPI's module comes and goes.
    pub(crate) fn subscribe_to_families(&mut self) -> Result<()> {
        self.transport
            .add_membership(FAMILIES)
            .map_err(|error| Error::Socket("families", error))
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
        for answer in answers {
            connection.know(answer.nlas);
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

    /// Waits for messages, and gives what they tell. Once the family is back, requests are for the new one.
    pub(crate) fn hear<A: Set>(&mut self) -> Result<Vec<Heard<A>>> {
        let mut heard = Vec::new();
        for (header, payload) in messages::<GenlMessage<Kopi>>(&self.transport.receive()?)? {
            let NetlinkPayload::InnerMessage(message) = payload else {
                continue;
            };
            let (head, payload) = (message.header, message.payload);
            if u32::from(header.message_type) == FAMILIES {
                heard.extend(self.hear_of_family(head, &payload.attributes)?);
            } else if header.message_type == self.family {
                if let Some(event) = Event::of(head.cmd) {
                    heard.push(Heard::Event(event, A::parse(&payload.attributes)?));
                }
            }
        }
        Ok(heard)
    }

    /// What is told of a family, if it is KOPI's.
    fn hear_of_family<A>(&mut self, head: GenlHeader, bytes: &[u8]) -> Result<Option<Heard<A>>> {
        let [gone, back]: [u8; 2] =
            [GenlCtrlCmd::DelFamily, GenlCtrlCmd::NewFamily].map(Into::into);
        if head.cmd != gone && head.cmd != back {
            return Ok(None);
        }
        let told = GenlCtrl::parse_with_param(bytes, head)?.nlas;
        if !told.contains(&GenlCtrlAttrs::FamilyName(FAMILY.to_owned())) {
            return Ok(None);
        }
        (self.family, self.groups) = (0, Vec::new());
        if head.cmd == gone {
            return Ok(Some(Heard::Gone));
        }
        self.know(told);
        Ok(Some(Heard::Back))
    }

    /// Takes over what is said of the family.
    fn know(&mut self, attributes: Vec<GenlCtrlAttrs>) {
        for attribute in attributes {
            match attribute {
                GenlCtrlAttrs::FamilyId(id) => self.family = id,
                GenlCtrlAttrs::McastGroups(groups) => {
                    self.groups = groups.iter().filter_map(|group| group_of(group)).collect();
                }
                _ => (),
            }
        }
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
