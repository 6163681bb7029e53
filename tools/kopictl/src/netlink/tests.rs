// SPDX-License-Identifier: GPL-2.0

//! Connections to a kernel that says what a test wants.

use super::{refusal::Ack, *};
use crate::message::{flow::Flow, info::Info};
use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLM_F_REQUEST};
use proptest::prelude::*;
use std::{cell::RefCell, collections::VecDeque};

pub(super) const KOPI: u16 = 33;

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

pub(super) fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
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

#[test]
fn a_family_that_comes_back_is_heard_of() {
    let told = |command: GenlCtrlCmd, name: &str, id: u16| {
        let control = GenlCtrl {
            cmd: command,
            nlas: vec![
                GenlCtrlAttrs::FamilyName(name.to_owned()),
                GenlCtrlAttrs::FamilyId(id),
                GenlCtrlAttrs::McastGroups(vec![vec![
                    McastGrpAttrs::Name(EVENTS.to_owned()),
                    McastGrpAttrs::Id(77),
                ]]),
            ],
        };
        let mut bytes = vec![0; control.buffer_len()];
        control.emit(&mut bytes);
        message(16, 0, 0, &[&[command.into(), 2, 0, 0], &*bytes].concat())
    };
    let fake = Fake::default();
    let mut connection = connected(&fake);
    let flow = Flow::default();
    let later = message(KOPI + 1, 0, 0, &[14, 1, 0, 0]);
    fake.store.borrow_mut().push_back(
        [
            told(GenlCtrlCmd::DelFamily, "other", 5),
            later.clone(),
            told(GenlCtrlCmd::DelFamily, FAMILY, KOPI),
            kopi(14, 0, 0, &flow),
            told(GenlCtrlCmd::NewFamily, FAMILY, KOPI + 1),
            later,
        ]
        .concat(),
    );
    assert_eq!(
        connection.hear::<Flow>().unwrap(),
        [
            Heard::Gone,
            Heard::Back,
            Heard::Event(Event::FlowDenied, flow)
        ]
    );
    assert_eq!(connection.groups, [(EVENTS.to_owned(), 77)]);
}

proptest! {
    #[test]
    fn any_answer_is_understood_or_not(bytes: Vec<u8>, place in 0..200_usize, byte: u8) {
        let fake = Fake::default();
        let mut connection = connected(&fake);
        let mut answer = [kopi(1, 0, 2, &info()), error(2, -1, &Ack { offset: Some(24), ..Ack::default() })].concat();
        let length = answer.len();
        answer[place % length] = byte;
        fake.store.borrow_mut().extend([answer, bytes.clone(), bytes]);
        let _ = connection.get::<_, Info>(Command::InfoGet, &Info::default());
        let _ = connection.events::<Flow>();
        let _ = connection.hear::<Flow>();
    }
}
