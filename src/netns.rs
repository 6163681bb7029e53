// SPDX-License-Identifier: GPL-2.0

//! What there is of KOPI in one network namespace: its flows, its channels, its rules, its monitors.
//!
//! `flows` and `channels` are taken before the locks of a channel, and never both at once. The lock of the
//! rules is taken after all others.

use crate::channel::Channel;
use crate::direct::RedirectedPorts;
use crate::pure::abi::Stats;
use crate::rules::NetPolicy;
use crate::sys::{
    monitor::Devices,
    pernet::{self, Namespace, NetRef},
    socket::{Socket, SocketMap, SocketRoom}, //
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
    /// Flows have it, too.
    pub(crate) policy: Arc<NetPolicy>,
    /// Whether what flows send is judged by a hook. Written under `changing`.
    hooked: Atomic<bool>,
    /// One change of the rules at a time.
    #[pin]
    pub(crate) changing: Mutex<()>,
    /// Taken last, in process context.
    #[pin]
    pub(crate) listening: Mutex<RedirectedPorts>,
}

pernet::serve!(Net);

#[expect(unsafe_code, reason = "the slot's type")]
// SAFETY: No other type implements it.
unsafe impl Namespace for Net {
    /// Nothing yet: no flows, no rules, and all is allowed.
    fn new() -> Result<Arc<Self>> {
        let policy = NetPolicy::new()?;
        Arc::pin_init(
            pin_init!(Self {
                flows <- new_mutex!(Flows {
                    open: SocketMap::new(),
                    last: 0,
                    opened: 0,
                    closed: Stats::default(),
                }, "kopi::Net::flows"),
                channels <- new_mutex!(RBTree::new(), "kopi::Net::channels"),
                policy,
                hooked: Atomic::new(false),
                changing <- new_mutex!((), "kopi::Net::changing"),
                listening <- new_mutex!(RedirectedPorts::new(), "kopi::Net::listening"),
            }),
            GFP_KERNEL_ACCOUNT,
        )
    }

    fn is_hooked(&self) -> bool {
        self.hooked.load(Relaxed)
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
    /// Enters a flow's socket, and gives it a number. Process context.
    ///
    /// # Safety
    ///
    /// [`Net::close`] must be called before the socket is released.
    #[expect(unsafe_code, reason = "a list of sockets trusts its owner")]
    pub(crate) unsafe fn open(&self, socket: &Socket) -> Result<u32> {
        let room = SocketRoom::new()?;
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

    /// Notes whether it is; the caller holds `changing`.
    pub(crate) fn set_hooked(&self, hooked: bool) {
        self.hooked.store(hooked, Relaxed);
    }
}
