// SPDX-License-Identifier: GPL-2.0

//! A flow's place on a channel: one that it makes, or another flow's. A corked socket has none.

use super::Flow;
use crate::channel::Channel;
use crate::pure::{abi, geometry::Geometry};
use crate::rules::Policy;
use crate::sys::{
    context::current_euid,
    errno::{enotconn, eopnotsupp},
    family,
    sock::Sock,
    socket::{Socket, SocketFile},
    uapi, //
};
use kernel::{
    prelude::*,
    rbtree::RBTreeNode,
    sync::{
        atomic::ordering::{Full, Relaxed},
        Arc, //
    },
};

/// A flow's place on a channel.
pub(super) struct Place {
    pub(super) channel: Arc<Channel>,
    pub(super) number: u32,
    standing: Standing,
}

/// How a flow came to its channel.
#[derive(Clone, Copy, PartialEq)]
enum Standing {
    /// It made the channel. A channel's id doesn't say so: it is the number of that flow, which another flow may have
    /// when that one is closed.
    Maker,
    /// It is of the user who made the channel.
    Member,
    /// It belongs to another user than the channel. A process of the user who made the channel has put it there, and
    /// nobody else uses the rings by its file descriptor.
    Guest,
}

impl Flow {
    /// Makes a channel for the flow.
    pub(super) fn open_channel(&self, socket: &Socket, request: &abi::ChannelReq) -> Result {
        let geometry = Geometry::new(request).map_err(|_| EINVAL)?;
        if self.channel().is_some() {
            return Err(EBUSY);
        }
        let channel = Channel::new(geometry, socket.sk().net(), self.id(), current_euid())?;
        self.enter(socket, channel, Standing::Maker)
    }

    /// The channel, for a process that uses its rings by this flow's file descriptor: `ENOTCONN` without one, and
    /// `EPERM` for other users if the flow is a guest there. Process context.
    pub(super) fn usable_channel(&self) -> Result<&Arc<Channel>> {
        let place = self.place.as_ref().ok_or_else(enotconn)?;
        if place.standing == Standing::Guest && place.channel.maker_uid() != current_euid() {
            return Err(EPERM);
        }
        Ok(&place.channel)
    }

    /// The channel, for a process that maps the rings, or has everything sent that is in them. Of a channel that
    /// only sends, `EPERM` unless this flow made it. A process that was passed the socket's file descriptor may use
    /// that socket, but has no part in what the program sends by others.
    pub(super) fn whole_channel(&self) -> Result<&Arc<Channel>> {
        let channel = self.usable_channel()?;
        if channel.is_tx_only() && !self.has_made_channel() {
            return Err(EPERM);
        }
        Ok(channel)
    }

    /// Whether the flow is on a channel that it has made.
    pub(super) fn has_made_channel(&self) -> bool {
        self.standing() == Some(Standing::Maker)
    }

    fn standing(&self) -> Option<Standing> {
        self.place.as_ref().map(|place| place.standing)
    }

    /// The channel, for a process that has packets of this flow sent, and of no other. The process becomes the
    /// flow's owner, as by sendmsg().
    pub(super) fn channel_to_send_by(&self, sk: &Sock) -> Result<&Arc<Channel>> {
        let channel = self.usable_channel()?;
        if let Some(policy) = self.policy_in_force() {
            policy.identify_if_new(sk)?;
        }
        Ok(channel)
    }

    /// Puts the flow on the channel of another one: `EPERM` if they are of two users, but for an
    /// administrator, and for a process that puts a flow on its own user's channel that only sends.
    /// That is what servers do which open their sockets as root, and give up root then. They hold the
    /// flow, so they may send by it, and nothing that it receives comes to the channel.
    pub(super) fn join_channel(&self, socket: &Socket, request: &abi::Join) -> Result {
        if request.reserved.iter().any(|&word| word != 0) {
            return Err(EINVAL);
        }
        let file = SocketFile::get(request.fd)?;
        let other = file.socket().ok_or_else(eopnotsupp)?;
        if core::ptr::eq(other, socket) {
            return Err(EINVAL);
        }
        if self.channel().is_some() {
            return Err(EBUSY);
        }
        let flow = family::protocol::<Flow>(other).ok_or_else(enotconn)?;
        let channel = flow.usable_channel()?;
        if !socket.sk().same_net(other.sk()) {
            return Err(EXDEV);
        }
        let same_user = socket.sk().same_user(other.sk()) || socket.sk().net_admin();
        let is_guest = !same_user || flow.standing() == Some(Standing::Guest);
        if is_guest && !(channel.is_tx_only() && channel.maker_uid() == current_euid()) {
            return Err(EPERM);
        }
        // A channel's owner reads what all of its flows receive.
        other.may_receive()?;
        let standing = match is_guest {
            true => Standing::Guest,
            false => Standing::Member,
        };
        self.enter(socket, channel.clone(), standing)
    }

    /// Keeps the errno of a request for a channel, for those who ask by netlink.
    pub(super) fn note_channel_request(&self, result: Result) -> Result {
        let errno = result.map_or_else(|error| error.to_errno().wrapping_neg(), |()| 0);
        self.channel_errno.store(errno as i16, Relaxed);
        result
    }

    /// What the flow does by a channel, or why nothing, as `enum channel-use` of `uapi/kopi.yaml` has it; and the
    /// errno of a request that failed.
    pub(crate) fn channel_use(&self, sk: &Sock) -> (u32, Option<u32>) {
        let errno = self.channel_errno.load(Relaxed).unsigned_abs().into();
        let channel_use = match self.channel() {
            _ if sk.is_stream() => uapi::KOPI_CHANNEL_USE_STREAM,
            _ if self.corking.is_corked() => uapi::KOPI_CHANNEL_USE_CORKED,
            Some(channel) if channel.is_tx_only() => uapi::KOPI_CHANNEL_USE_SEND_ONLY,
            Some(_) => uapi::KOPI_CHANNEL_USE_BOTH_WAYS,
            None if errno != 0 => uapi::KOPI_CHANNEL_USE_REFUSED,
            None => uapi::KOPI_CHANNEL_USE_NOT_REQUESTED,
        };
        let errno = (channel_use == uapi::KOPI_CHANNEL_USE_REFUSED).then_some(errno);
        (channel_use, errno)
    }

    /// Puts the flow on a channel: `EBUSY` if it is corked, has another, or if a BPF program in a sockmap has what
    /// it receives.
    fn enter(&self, socket: &Socket, channel: Arc<Channel>, standing: Standing) -> Result {
        let tx_only = channel.is_tx_only();
        self.corking.enter_channel(tx_only)?;
        let entered = if socket.sk().is_corked() {
            Err(EBUSY)
        } else {
            self.enter_uncorked(socket, channel, standing)
        };
        if entered.is_err() {
            self.corking.leave_channel();
        }
        entered
    }

    fn enter_uncorked(&self, socket: &Socket, channel: Arc<Channel>, standing: Standing) -> Result {
        socket.may_receive()?;
        let policy = self.policy();
        // Before other processes can send by it.
        policy.identify_if_new(socket.sk())?;
        // A reader that has judged a datagram reads that one, before the rest goes to the ring.
        let reader_lock = match policy.is_in_force() {
            true => Some(policy.reader_lock()?),
            false => None,
        };
        let _reader = reader_lock
            .as_deref()
            .map(family::lock_reader)
            .transpose()?;
        if !channel.is_tx_only() {
            family::install_callback::<Flow>(socket)?;
        }
        // A ring sends nothing for the flow before begin_busy() can find the channel.
        self.busy.fetch_add(1, Full);
        let placed = self.take_place(socket, &channel, standing);
        self.end_busy();
        if placed.is_err() && !channel.is_tx_only() {
            family::remove_callback::<Flow>(socket);
        }
        placed?;
        self.begin_on(policy, socket, &channel)
    }

    #[expect(unsafe_code, reason = "a list of sockets trusts its owner")]
    fn take_place(&self, socket: &Socket, channel: &Arc<Channel>, standing: Standing) -> Result {
        // SAFETY: Removed below, or by `release`, which comes before the socket's.
        let number = unsafe { channel.add_flow(socket) }?;
        // Last of what may fail: it stays with a socket that is refused.
        if channel.has_gro() {
            if let Err(error) = socket.enable_gro() {
                Channel::remove_flow(channel, number);
                return Err(error);
            }
        }
        let is_first = self.place.populate(Place {
            channel: channel.clone(),
            number,
            standing,
        });
        if !is_first {
            // Another thread was faster.
            Channel::remove_flow(channel, number);
            return Err(EBUSY);
        }
        Ok(())
    }

    /// Begins to use the channel on which the flow has a place now.
    fn begin_on(&self, policy: &Policy, socket: &Socket, channel: &Arc<Channel>) -> Result {
        policy.join(channel.owner());
        if self.has_made_channel() {
            // Allocated before the lock is taken.
            match RBTreeNode::new(channel.id(), channel.clone(), GFP_KERNEL_ACCOUNT) {
                Ok(node) => {
                    socket.sk().net().state().channels.lock().insert(node);
                }
                // The channel works, and isn't shown.
                Err(error) => pr_debug!("a channel isn't listed: {}\n", error.to_errno()),
            }
        }
        if channel.is_tx_only() {
            return Ok(());
        }
        self.update_redirected_port(socket.sk());
        // The packets that are queued already go to the ring, too.
        family::drain::<Flow>(socket);
        // Those who sleep in recvmsg() get nothing there any more.
        socket.sk().wake_all_readers();
        Ok(())
    }
}
