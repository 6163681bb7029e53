// SPDX-License-Identifier: GPL-2.0

//! What users and network namespaces hold, and the limits of it: `net.kopi.*` of sysctl.
//!
//! A user is the maker of a flow or a channel, by the real user id, in whatever network namespace:
//! passing a socket on leaves the charge with its maker. In user namespaces it is the maker of the
//! outermost one, so that subordinate users don't multiply the limits. The memory of frames counts
//! against RLIMIT_MEMLOCK and the memory cgroup besides.

use crate::events::notify_limit;
use crate::pure::quota::{Holding, Over};
use crate::sys::{
    context,
    errno::enobufs,
    lock::LockIrq,
    pernet::NetRef,
    reaper,
    sysctl::{SysctlTable, SysctlU32, Sysctls},
};
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNode},
    str::CStr,
    sync::global_lock,
};

static USER_FLOWS: SysctlU32 = SysctlU32::new(1 << 16);
static USER_CHANNELS: SysctlU32 = SysctlU32::new(1 << 10);
static USER_FRAMES: SysctlU32 = SysctlU32::new(1 << 22);
static NET_FLOWS: SysctlU32 = SysctlU32::new(1 << 18);
static NET_CHANNELS: SysctlU32 = SysctlU32::new(1 << 12);
static NET_FRAMES: SysctlU32 = SysctlU32::new(1 << 24);

static SYSCTLS: SysctlTable<6> = SysctlTable::new();

/// A holder of flows, channels and frames.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    /// A user, by the number in the initial user namespace.
    User(u32),
    /// A network namespace, by its cookie.
    Net(u64),
}

impl Holder {
    /// The sysctl that limits it.
    fn name(self, over: Over) -> &'static CStr {
        match (self, over) {
            (Self::User(_), Over::Flows) => c"user_max_flows",
            (Self::User(_), Over::Channels) => c"user_max_channels",
            (Self::User(_), Over::Frames) => c"user_max_frames",
            (Self::Net(_), Over::Flows) => c"netns_max_flows",
            (Self::Net(_), Over::Channels) => c"netns_max_channels",
            (Self::Net(_), Over::Frames) => c"netns_max_frames",
        }
    }

    fn limit(self) -> Holding {
        match self {
            Self::User(_) => Holding {
                flows: USER_FLOWS.get(),
                channels: USER_CHANNELS.get(),
                frames: USER_FRAMES.get(),
            },
            Self::Net(_) => Holding {
                flows: NET_FLOWS.get(),
                channels: NET_CHANNELS.get(),
                frames: NET_FRAMES.get(),
            },
        }
    }
}

global_lock! {
    // SAFETY: `Limits::register` initializes it, before there is any socket.
    /// All that is held. Taken with interrupts off, since the last user of a channel may be an skb
    /// that is freed anywhere. Holders of nothing are left out, so that it is empty in the end.
    unsafe(uninit) static LEDGER: SpinLock<Option<RBTree<Holder, Holding>>> = None;
}

/// The registered limits.
pub(crate) struct Limits {
    _sysctls: Sysctls,
}

impl Limits {
    /// Shows the limits to administrators; only the module's init does, once.
    #[expect(unsafe_code, reason = "a global lock is initialised once")]
    pub(crate) fn register() -> Result<Self> {
        // Which user and which namespace doesn't matter to the names.
        let (user, net) = (Holder::User(0), Holder::Net(0));
        let numbers = [
            (user.name(Over::Flows), &USER_FLOWS),
            (user.name(Over::Channels), &USER_CHANNELS),
            (user.name(Over::Frames), &USER_FRAMES),
            (net.name(Over::Flows), &NET_FLOWS),
            (net.name(Over::Channels), &NET_CHANNELS),
            (net.name(Over::Frames), &NET_FRAMES),
        ];
        // SAFETY: Called once, by the module's init, before there is any socket.
        let sysctls = unsafe {
            LEDGER.init();
            Sysctls::register(&SYSCTLS, numbers)?
        };
        Ok(Self { _sysctls: sysctls })
    }
}

/// The user, by its id in the initial user namespace, to whom the current process's flows,
/// channels and monitor devices are charged. Process context.
pub(crate) fn charged_uid() -> u32 {
    let charged = context::outermost_user_namespace().and_then(|ns| match ns.owner {
        // Root makes namespaces for others, and gives each one its own users.
        Some(0) => ns.root,
        owner => owner,
    });
    charged.unwrap_or_else(context::current_uid)
}

/// What is held, and charged.
pub(crate) trait Charged {
    /// How much it is. Doesn't change.
    fn holding(&self) -> Holding;
}

impl Charged for Holding {
    fn holding(&self) -> Holding {
        *self
    }
}

/// A flow. Nothing need be remembered of it: there may be many.
pub(crate) struct OneFlow;

impl Charged for OneFlow {
    fn holding(&self) -> Holding {
        Holding {
            flows: 1,
            ..Holding::default()
        }
    }
}

/// A charge for something held, given back when dropped, in any context.
pub(crate) struct Charge<H: Charged = Holding> {
    user: u32,
    /// The namespace's cookie, in halves: a flow's charge is twelve bytes so.
    net: [u32; 2],
    held: H,
}

impl<H: Charged> Charge<H> {
    /// Charges the current user, and `net`, on behalf of a socket. Process context.
    ///
    /// `EMFILE` over a limit of flows or channels, `ENOBUFS` over one of frames, `ENOMEM`.
    pub(crate) fn new(net: &NetRef, held: H) -> Result<Self> {
        let holding = held.holding();
        let (user, cookie) = (charged_uid(), net.cookie());
        let holders = holders(user, cookie);
        let mut taken = take(holders, holding)?;
        if taken.is_err() {
            // The charge of a closed socket may not be given back yet.
            reaper::flush();
            taken = take(holders, holding)?;
        }
        let Err((holder, over)) = taken else {
            return Ok(Self {
                user,
                net: [(cookie >> 32) as u32, cookie as u32],
                held,
            });
        };
        notify_limit(net, holder.name(over));
        match over {
            Over::Frames => Err(enobufs()),
            Over::Flows | Over::Channels => Err(EMFILE),
        }
    }

    /// The user who is charged, by the number in the initial user namespace.
    pub(crate) fn user(&self) -> u32 {
        self.user
    }
}

/// Both holders of what a user has in a namespace.
fn holders(user: u32, net: u64) -> [Holder; 2] {
    [Holder::User(user), Holder::Net(net)]
}

/// Enters it for both holders, or for none.
fn take(holders: [Holder; 2], holding: Holding) -> Result<Result<(), (Holder, Over)>> {
    // Made and freed out of the lock; most holders have some already.
    let mut spare = [None, None];
    loop {
        if let Some(result) = enter(holders, holding, &mut spare) {
            return Ok(result);
        }
        for (node, holder) in spare.iter_mut().zip(holders) {
            *node = Some(RBTreeNode::new(holder, holding, GFP_KERNEL)?);
        }
    }
}

/// Enters what is held, under the lock; `None` if a holder is new, and has no node in `spare`.
fn enter(
    holders: [Holder; 2],
    holding: Holding,
    spare: &mut [Option<RBTreeNode<Holder, Holding>>; 2],
) -> Option<core::result::Result<(), (Holder, Over)>> {
    let mut guard = LEDGER.lock_irq();
    let ledger = guard.get_or_insert_with(RBTree::new);
    let mut sums = [Holding::default(); 2];
    for ((sum, holder), node) in sums.iter_mut().zip(holders).zip(&*spare) {
        let held = ledger.get(&holder).copied();
        if held.is_none() && node.is_none() {
            return None;
        }
        *sum = match held.unwrap_or_default().plus(holding, holder.limit()) {
            Ok(sum) => sum,
            Err(over) => return Some(Err((holder, over))),
        };
    }
    for ((node, holder), sum) in spare.iter_mut().zip(holders).zip(sums) {
        if let Some(held) = ledger.get_mut(&holder) {
            *held = sum;
        } else if let Some(node) = node.take() {
            ledger.insert(node);
        }
    }
    Some(Ok(()))
}

impl<H: Charged> Drop for Charge<H> {
    fn drop(&mut self) {
        let mut guard = LEDGER.lock_irq();
        let Some(ledger) = guard.as_mut() else {
            return;
        };
        let [high, low] = self.net.map(u64::from);
        let cookie = high << 32 | low;
        for holder in holders(self.user, cookie) {
            if let Some(mut entry) = ledger.find_mut(&holder) {
                let left = entry.get().minus(self.held.holding());
                if left.is_empty() {
                    entry.remove();
                } else {
                    *entry.get_mut() = left;
                }
            }
        }
    }
}
