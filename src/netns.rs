// SPDX-License-Identifier: GPL-2.0

//! What there is of KOPI in one network namespace: its flows, its channels, its rules, its monitors.
//!
//! `flows` and `channels` are taken before the locks of a channel, and never both at once. `rules`
//! is taken last of all.

use crate::channel::Channel;
use crate::direct::RedirectedPorts;
use crate::pure::abi::Stats;
use crate::rules::{RuleSet, SharedRules};
use crate::sys::{
    lock::SpinLockIrq,
    monitor::Devices,
    pernet::{self, Namespace, NetRef},
    socket::{Room, Socket, SocketMap}, //
};
use kernel::{
    new_mutex,
    new_spinlock,
    prelude::*,
    rbtree::RBTree,
    sync::{
        atomic::{
            ordering::{Acquire, Relaxed, Release},
            Atomic,
        },
        Arc,
        Mutex, //
    }, //
};

/// The flows, and what there was of those that are closed.
pub(crate) struct Flows {
    pub(crate) open: SocketMap,
    /// The number that was given last.
    last: u32,
    pub(crate) opened: u64,
    /// Sum over closed ones.
    pub(crate) closed: Stats,
}

/// See the module's documentation.
#[pin_data]
pub(crate) struct Net {
    #[pin]
    pub(crate) flows: Mutex<Flows>,
    #[pin]
    pub(crate) channels: Mutex<RBTree<u32, Arc<Channel>>>,
    #[pin]
    rules: SpinLockIrq<SharedRules>,
    /// Of `rules`. Flows compare it with what they were judged by.
    generation: Atomic<u64>,
    /// Whether any packet can be refused, or marked.
    in_force: Atomic<bool>,
    /// Whether what flows send is judged by a hook. Written under `changing`.
    hooked: Atomic<bool>,
    /// One change of the rules at a time.
    #[pin]
    pub(crate) changing: Mutex<()>,
    /// Calls and live flows that rules stopped.
    pub(crate) denied: Atomic<u64>,
    /// Taken last, in process context.
    #[pin]
    pub(crate) listening: Mutex<RedirectedPorts>,
    /// Where packets are shown to who looks.
    pub(crate) monitors: Devices,
}

pernet::serve!(Net);

#[expect(unsafe_code, reason = "the slot's type")]
// SAFETY: No other type implements it.
unsafe impl Namespace for Net {
    /// Nothing yet: no flows, no rules, and all is allowed.
    fn new() -> Result<Arc<Self>> {
        let rules = RuleSet::empty().share()?;
        Arc::pin_init(
            pin_init!(Self {
                flows <- new_mutex!(Flows {
                    open: SocketMap::new(),
                    last: 0,
                    opened: 0,
                    closed: Stats::default(),
                }, "kopi::Net::flows"),
                channels <- new_mutex!(RBTree::new(), "kopi::Net::channels"),
                rules <- SpinLockIrq::new(new_spinlock!(rules, "kopi::Net::rules")),
                generation: Atomic::new(1),
                in_force: Atomic::new(false),
                hooked: Atomic::new(false),
                changing <- new_mutex!((), "kopi::Net::changing"),
                denied: Atomic::new(0),
                listening <- new_mutex!(RedirectedPorts::new(), "kopi::Net::listening"),
                monitors: Devices::new(),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    fn is_hooked(&self) -> bool {
        self.hooked.load(Relaxed)
    }

    fn monitors(&self) -> &Devices {
        &self.monitors
    }
}

impl NetRef {
    /// What KOPI keeps for the namespace. Any context.
    pub(crate) fn state(&self) -> Arc<Net> {
        self.state_of()
    }
}

impl Net {
    /// Enters a flow's socket, and gives it a number. Process context.
    ///
    /// # Safety
    ///
    /// [`Net::close`] must be called before the socket is released.
    #[expect(unsafe_code, reason = "a list of sockets trusts its owner")]
    pub(crate) unsafe fn open(&self, socket: &Socket) -> Result<u32> {
        let room = Room::new()?;
        let mut flows = self.flows.lock();
        let mut number = flows.last;
        loop {
            number = number.wrapping_add(1);
            if number != 0 && flows.open.get(number).is_none() {
                break;
            }
        }
        // SAFETY: As required of the caller.
        unsafe { flows.open.insert(number, socket, room) }?;
        flows.last = number;
        flows.opened = flows.opened.wrapping_add(1);
        Ok(number)
    }

    /// Takes a flow out, whose counters were these at last. Process context.
    pub(crate) fn close(&self, number: u32, stats: &Stats) {
        let mut flows = self.flows.lock();
        flows.open.remove(number);
        flows.closed.add(stats);
    }

    /// The rules. Any context but hard interrupts.
    pub(crate) fn rules(&self) -> SharedRules {
        self.rules.lock().clone()
    }

    /// Which rules they are: rises with each change. Any context.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    /// Whether flows need be judged. Any context.
    pub(crate) fn has_rules(&self) -> bool {
        self.in_force.load(Relaxed)
    }

    /// Notes whether it is; the caller holds `changing`.
    pub(crate) fn set_hooked(&self, hooked: bool) {
        self.hooked.store(hooked, Relaxed);
    }

    /// Puts other rules in force; the caller holds `changing`.
    pub(crate) fn set_rules(&self, new: SharedRules) {
        let in_force = !new.is_open();
        let old = core::mem::replace(&mut *self.rules.lock(), new);
        if in_force {
            self.in_force.store(true, Relaxed);
        }
        self.generation
            .store(self.generation.load(Relaxed).wrapping_add(1), Release);
        if !in_force {
            self.in_force.store(false, Relaxed);
        }
        drop(old);
    }
}
