// SPDX-License-Identifier: GPL-2.0

//! Calls of processes: whose they are, and what the rules decide about them.
//!
//! Several processes can use a socket at the same time. Each call is judged as its own process's: that one
//! is the owner while the rules are asked.

use super::policy::{Caller, Policy};
use super::set::{Rule, RuleSet};
use super::verdict::with_facts;
use super::Denial;
use crate::identity::Owner;
use crate::pure::{
    peer::Peer,
    rule::{Direction, Judgement}, //
};
use crate::sys::sock::Sock;
use kernel::{prelude::*, sync::Arc};

/// What the rules decide about a call.
type Permission = core::result::Result<(), Denial>;

impl Policy {
    /// The current process becomes the flow's owner, if the flow is its own: `ENOMEM`. Gives who it is, for
    /// what judges its call. Process context.
    pub(crate) fn identify(&self, sk: &Sock) -> Result<Owner> {
        let owner = self.owner().or_current(sk)?;
        let caller = owner.clone();
        let (old, channel_owner) =
            self.with_state(|state| (state.change_owner(owner), state.channel_owner.clone()));
        drop(old);
        if let Some(channel_owner) = channel_owner {
            channel_owner.note_flow_change();
        }
        Ok(caller)
    }

    /// The same as [`Self::identify`], if the current process is another one than the owner, runs another program, or
    /// has other ids. Process context.
    pub(crate) fn identify_if_new(&self, sk: &Sock) -> Result<Owner> {
        let owner = self.owner();
        if owner.identity.is_process() || owner.is_kept(sk) {
            return Ok(owner);
        }
        self.identify(sk)
    }

    /// Decides whether the flow may be bound to a local port. Process context.
    pub(crate) fn may_bind(&self, caller: Caller<'_>, sk: &Sock, port: u16) -> Permission {
        self.may(caller, |owner, set| {
            with_facts(Some(owner), sk, port, |facts| {
                let [out, into] = set.judge(facts, None);
                (set.denies(out) && set.denies(into)).then_some((into, Direction::In))
            })
        })
    }

    /// Decides whether the flow may be connected to a peer. A connection of TCP needs both
    /// directions. Process context.
    pub(crate) fn may_connect(&self, caller: Caller<'_>, sk: &Sock, peer: &Peer) -> Permission {
        self.may_have(caller, sk, Some(peer), sk.is_stream())
    }

    /// Decides whether the stream may wait for connections, whoever the peers are. Process context.
    pub(crate) fn may_listen(&self, caller: Caller<'_>, sk: &Sock) -> Permission {
        self.may_have(caller, sk, None, true)
    }

    fn may_have(
        &self,
        caller: Caller<'_>,
        sk: &Sock,
        peer: Option<&Peer>,
        both: bool,
    ) -> Permission {
        self.may(caller, |owner, set| {
            with_facts(Some(owner), sk, u16::from_be(sk.local_port()), |facts| {
                let [out, into] = set.judge(facts, peer);
                if set.denies(out) {
                    Some((out, Direction::Out))
                } else {
                    (both && set.denies(into)).then_some((into, Direction::In))
                }
            })
        })
    }

    fn may(
        &self,
        caller: Caller<'_>,
        denied: impl FnOnce(&Owner, &RuleSet) -> Option<(Judgement, Direction)>,
    ) -> Permission {
        if !self.net.is_in_force() {
            return Ok(());
        }
        let set = self.net.rules();
        let found = self.with_state_of(caller, |state| denied(&state.owner, &set));
        let Some((judgement, direction)) = found else {
            return Ok(());
        };
        Err(self.count_denied(set.rule(judgement), direction))
    }

    /// Counts a call that a rule, or the default, denies.
    fn count_denied(&self, rule: Option<&Arc<Rule>>, direction: Direction) -> Denial {
        self.net.count_denied(rule.map(Arc::as_ref));
        Denial {
            rule: rule.map_or(0, |rule| rule.handle),
            direction,
        }
    }

    /// Decides whether a process may send to a peer, or receive from it, by a call; without a peer, whether
    /// it may from any. A connection of TCP needs both directions. Process context.
    pub(crate) fn may_exchange(
        &self,
        caller: &Owner,
        sk: &Sock,
        direction: Direction,
        peer: Option<&Peer>,
    ) -> Permission {
        let other = (sk.is_stream() && peer.is_some()).then_some(direction.other());
        let denied = self.with_evaluation_of(Some(caller), sk, |evaluation| {
            [Some(direction), other]
                .into_iter()
                .flatten()
                .find_map(|direction| {
                    let judgement = evaluation.judge_on(direction, peer);
                    let verdicts = &evaluation.verdicts;
                    verdicts
                        .denies(judgement)
                        .then(|| (verdicts.rule(judgement).cloned(), direction))
                })
        });
        match denied {
            Some(None) => Ok(()),
            Some(Some((rule, direction))) => Err(self.count_denied(rule.as_ref(), direction)),
            // Without memory.
            None => Err(self.count_denied(None, direction)),
        }
    }
}
