// SPDX-License-Identifier: GPL-2.0

//! What there is of KOPI in one network namespace: its flows, its channels, its rules, its
//! monitors.
//!
//! docs/architecture.md has the order of its locks.

use crate::channel::Channel;
use crate::direct::RedirectedPorts;
use crate::identity::Owner;
use crate::pure::abi::Stats;
use crate::rules::NetPolicy;
use crate::sys::{
    context::{cond_resched, now},
    monitor::Devices,
    pernet::{self, Namespace, NetRef},
    socket::{Socket, SocketMap, SocketReservation}, //
};
use kernel::{
    new_mutex,
    prelude::*,
    rbtree::RBTree,
    sync::{
        atomic::{ordering::Relaxed, Atomic},
        Arc,
        Mutex, //
    }, //
};

/// Flows that are gone through before others that wait for the lock get it.
pub(crate) const FLOWS_AT_ONCE: usize = 256;

/// The flows, and what there was of those that are closed.
pub(crate) struct Flows {
    pub(crate) open: SocketMap,
    /// The owner of the flow that was opened last, as long as any is open: most are opened by the
    /// process that opened the one before, and share its identity.
    opener: Option<Owner>,
    /// The number that was given last.
    last: u32,
    pub(crate) opened: u64,
    /// Sum over closed ones.
    closed: Stats,
    /// A sum over all that is being made.
    summing: Option<Summing>,
}

/// A sum that is being made, in which each flow is counted once, also one that is closed meanwhile.
struct Summing {
    /// The flows with smaller numbers are counted.
    next: u64,
    /// Those with greater numbers were opened later.
    end: u32,
    stats: Stats,
}

/// Sum over all flows that were ever open in a namespace.
#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    /// When the sum was begun, in nanoseconds.
    begun: u64,
    pub(crate) stats: Stats,
    /// Number of flows.
    pub(crate) opened: u64,
}

/// See the module's documentation.
#[pin_data]
pub(crate) struct Net {
    #[pin]
    pub(crate) flows: Mutex<Flows>,
    /// The last sum that was made; held while one is made.
    #[pin]
    totals: Mutex<Totals>,
    #[pin]
    pub(crate) channels: Mutex<RBTree<u32, Arc<Channel>>>,
    /// Flows have it, too.
    pub(crate) policy: Arc<NetPolicy>,
    /// Whether what flows send is judged by a hook. Written under `changing`.
    hooked: Atomic<bool>,
    /// One change of the rules at a time.
    #[pin]
    pub(crate) changing: Mutex<()>,
    /// The UDP ports whose datagrams the XDP programs of attached devices redirect. Process context.
    #[pin]
    pub(crate) redirected_ports: Mutex<RedirectedPorts>,
}

pernet::serve!(Net);

#[expect(unsafe_code, reason = "the slot's type")]
// SAFETY: `Net` is the module's only type that implements `Namespace`.
unsafe impl Namespace for Net {
    /// Nothing yet: no flows, no rules, and all is allowed.
    fn new() -> Result<Arc<Self>> {
        let policy = NetPolicy::new()?;
        Arc::pin_init(
            pin_init!(Self {
                flows <- new_mutex!(Flows {
                    open: SocketMap::new(),
                    opener: None,
                    last: 0,
                    opened: 0,
                    closed: Stats::default(),
                    summing: None,
                }, "kopi::Net::flows"),
                totals <- new_mutex!(Totals::default(), "kopi::Net::totals"),
                channels <- new_mutex!(RBTree::new(), "kopi::Net::channels"),
                policy,
                hooked: Atomic::new(false),
                changing <- new_mutex!((), "kopi::Net::changing"),
                redirected_ports <-
                    new_mutex!(RedirectedPorts::new(), "kopi::Net::redirected_ports"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    fn is_hooked(&self) -> bool {
        self.hooked.load(Relaxed)
    }

    fn end(&self) {
        self.policy.end();
    }

    fn monitors(&self) -> &Devices {
        &self.policy.monitors
    }
}

impl NetRef {
    /// What KOPI keeps for the namespace. Any context.
    pub(crate) fn state(&self) -> Arc<Net> {
        self.state_of()
    }
}

impl Net {
    /// The current process, as the owner of a flow that it opens. Process context.
    pub(crate) fn opener(&self) -> Result<Owner> {
        let last = self.flows.lock().opener.clone();
        match last {
            Some(last) => last.shared_or_current(),
            None => Owner::current(),
        }
    }

    /// Enters a flow's socket, which this owner has opened, and gives it a number. Process context.
    ///
    /// # Safety
    ///
    /// [`Net::close`] must be called before the socket is released.
    #[expect(unsafe_code, reason = "a list of sockets trusts its owner")]
    pub(crate) unsafe fn open(&self, socket: &Socket, owner: Owner) -> Result<u32> {
        let room = SocketReservation::new()?;
        // Dropped out of the lock.
        let _before;
        let mut flows = self.flows.lock();
        let mut number = flows.last;
        loop {
            number = number.wrapping_add(1);
            // A channel is known by the number of the flow that made it, which it may outlive.
            if number != 0
                && flows.open.get(number).is_none()
                && self.channels.lock().get(&number).is_none()
            {
                break;
            }
        }
        // SAFETY: The caller calls `close`, which removes the socket, before its release.
        unsafe { flows.open.insert(number, socket, room) }?;
        flows.last = number;
        flows.opened = flows.opened.wrapping_add(1);
        _before = flows.opener.replace(owner);
        Ok(number)
    }

    /// Takes a channel out. Process context.
    pub(crate) fn unlist(&self, channel: &Arc<Channel>) {
        let id = channel.id();
        let mut channels = self.channels.lock();
        // It isn't there if there was no memory for its entry.
        let unlisted = match channels.get(&id) {
            Some(listed) if Arc::ptr_eq(listed, channel) => channels.remove(&id),
            _ => None,
        };
        drop(channels);
        drop(unlisted);
    }

    /// Takes a flow out, whose counters were these at last. Process context.
    pub(crate) fn close(&self, number: u32, stats: &Stats) {
        // Dropped out of the lock.
        let _opener;
        let mut flows = self.flows.lock();
        flows.open.remove(number);
        _opener = match flows.open.len() {
            0 => flows.opener.take(),
            _ => None,
        };
        flows.closed.add(stats);
        if let Some(summing) = flows
            .summing
            .as_mut()
            .filter(|sum| sum.next <= u64::from(number))
        {
            summing.stats.add(stats);
        }
    }

    /// Sums over all flows, by the counters that `stats_of` gives of an open one. Process context.
    ///
    /// Others get `flows` after each [`FLOWS_AT_ONCE`] flows. A task that waited for another's sum
    /// takes a sum that was begun after the call: so nobody waits for more than two.
    pub(crate) fn totals(&self, stats_of: impl Fn(&Socket) -> Option<Stats>) -> Totals {
        let called = now();
        let mut last = self.totals.lock();
        if last.begun > called {
            return *last;
        }
        let begun = now();
        {
            let mut flows = self.flows.lock();
            flows.summing = Some(Summing {
                next: 0,
                end: flows.open.end(),
                stats: flows.closed,
            });
        }
        while self.sum_some(&stats_of) {
            cond_resched();
        }
        let mut flows = self.flows.lock();
        let stats = flows.summing.take().map_or(flows.closed, |sum| sum.stats);
        *last = Totals {
            begun,
            stats,
            opened: flows.opened,
        };
        *last
    }

    /// Adds the next flows to the sum that is being made; says whether there may be more.
    fn sum_some(&self, stats_of: impl Fn(&Socket) -> Option<Stats>) -> bool {
        let mut flows = self.flows.lock();
        let Flows { open, summing, .. } = &mut *flows;
        let Some(summing) = summing else {
            return false;
        };
        let Ok(start) = u32::try_from(summing.next) else {
            return false;
        };
        let mut summed = 0usize;
        for (number, socket) in open.within(start..=summing.end).take(FLOWS_AT_ONCE) {
            if let Some(stats) = stats_of(socket) {
                summing.stats.add(&stats);
            }
            summing.next = u64::from(number).saturating_add(1);
            summed = summed.wrapping_add(1);
        }
        summed == FLOWS_AT_ONCE
    }

    /// Records whether LOCAL_OUT is hooked. The caller holds `changing`.
    pub(crate) fn set_hooked(&self, hooked: bool) {
        self.hooked.store(hooked, Relaxed);
    }
}
