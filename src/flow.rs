// SPDX-License-Identifier: GPL-2.0

//! A flow: what a KOPI socket is beyond the UDP socket that it is.

use crate::channel::Channel;
use crate::limits::Charge;
use crate::pure::{
    abi,
    geometry::Geometry,
    quota::Holding, //
};
use crate::sys::{
    errno::{
        enoprotoopt,
        enotconn,
        eopnotsupp, //
    },
    family::{self, Protocol},
    region::Vma,
    sock::Sock,
    socket::{Socket, SocketFile},
    user::{OptionIn, OptionOut},
    wait::PollTable, //
};
use crate::tx;
use kernel::{
    prelude::*,
    sync::{
        atomic::{
            ordering::{Full, Relaxed},
            Atomic,
        },
        Arc,
        SetOnce, //
    }, //
};

/// A counter that has one writer at a time.
pub(crate) struct Counter(Atomic<u64>);

impl Default for Counter {
    fn default() -> Self {
        Self(Atomic::new(0))
    }
}

impl Counter {
    /// Adds, where the caller holds the lock that goes with the counter.
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// The count. Any context.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// What happened to a flow's packets.
///
/// Those named `tx` are written under the channel's sender, those named `rx` under its receiver.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) tx_packets: Counter,
    pub(crate) tx_bytes: Counter,
    pub(crate) tx_errors: Counter,
    pub(crate) tx_zerocopy: Counter,
    pub(crate) tx_taken: Counter,
    pub(crate) tx_drop_denied: Counter,
    pub(crate) tx_drop_unreachable: Counter,
    pub(crate) tx_drop_too_long: Counter,
    pub(crate) tx_drop_no_buffer: Counter,
    pub(crate) tx_drop_invalid: Counter,
    pub(crate) tx_drop_other: Counter,
    pub(crate) rx_taken: Counter,
    pub(crate) rx_packets: Counter,
    pub(crate) rx_bytes: Counter,
    pub(crate) rx_drop_ring_full: Counter,
    pub(crate) rx_drop_no_frame: Counter,
    pub(crate) rx_drop_too_long: Counter,
}

impl Counters {
    /// Gives those of sending, which agree with each other under the channel's sender.
    pub(crate) fn fill_sent(&self, stats: &mut abi::Stats) {
        stats.tx_packets = self.tx_packets.get();
        stats.tx_bytes = self.tx_bytes.get();
        stats.tx_errors = self.tx_errors.get();
        stats.tx_zerocopy = self.tx_zerocopy.get();
        stats.tx_taken = self.tx_taken.get();
        stats.tx_drop_denied = self.tx_drop_denied.get();
        stats.tx_drop_unreachable = self.tx_drop_unreachable.get();
        stats.tx_drop_too_long = self.tx_drop_too_long.get();
        stats.tx_drop_no_buffer = self.tx_drop_no_buffer.get();
        stats.tx_drop_invalid = self.tx_drop_invalid.get();
        stats.tx_drop_other = self.tx_drop_other.get();
    }

    /// Gives those of receiving, which agree with each other under the channel's receiver.
    pub(crate) fn fill_received(&self, stats: &mut abi::Stats) {
        stats.rx_taken = self.rx_taken.get();
        stats.rx_packets = self.rx_packets.get();
        stats.rx_bytes = self.rx_bytes.get();
        stats.rx_drop_ring_full = self.rx_drop_ring_full.get();
        stats.rx_drop_no_frame = self.rx_drop_no_frame.get();
        stats.rx_drop_too_long = self.rx_drop_too_long.get();
    }
}

/// A flow's place on a channel.
struct Attachment {
    channel: Arc<Channel>,
    number: u32,
}

/// A KOPI socket.
pub(crate) struct Flow {
    /// Set once: a flow stays on its channel until it is closed.
    attachment: SetOnce<Attachment>,
    pub(crate) counters: Counters,
    /// Somebody may have come to wait for the socket, as epoll does once and for all, before it had
    /// a channel.
    polled_early: Atomic<bool>,
    _charge: Charge,
}

impl Flow {
    fn channel(&self) -> Option<&Arc<Channel>> {
        Some(&self.attachment.as_ref()?.channel)
    }

    /// The flow's number on its channel; 0 without one.
    pub(crate) fn number(&self) -> u32 {
        self.attachment.as_ref().map_or(0, |at| at.number)
    }

    /// Makes a channel for the flow.
    fn open_channel(&self, socket: &Socket, request: &abi::ChannelReq) -> Result {
        let geometry = Geometry::new(request).map_err(|_| EINVAL)?;
        if self.channel().is_some() {
            return Err(EBUSY);
        }
        self.attach(socket, Channel::new(geometry, socket.sk().net_cookie())?)
    }

    /// Puts the flow on the channel of another one.
    fn join_channel(&self, socket: &Socket, request: &abi::Join) -> Result {
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
        let channel = flow.channel().ok_or_else(enotconn)?;
        if !socket.sk().same_net(other.sk()) {
            return Err(EXDEV);
        }
        if !socket.sk().same_user(other.sk()) && !socket.sk().net_admin() {
            return Err(EPERM);
        }
        self.attach(socket, channel.clone())
    }

    fn attach(&self, socket: &Socket, channel: Arc<Channel>) -> Result {
        socket.may_receive()?;
        // SAFETY: Removed below, or by `release`, which comes before the socket's.
        let number = unsafe { channel.add_flow(socket) }?;
        // Last of what may fail: a socket that is refused would be left with it.
        if channel.has_trains() {
            if let Err(error) = socket.enable_gro() {
                channel.remove_flow(number);
                return Err(error);
            }
        }
        let attached = self.attachment.populate(Attachment {
            channel: channel.clone(),
            number,
        });
        if !attached {
            // Another thread was faster.
            channel.remove_flow(number);
            return Err(EBUSY);
        }
        family::take_over::<Flow>(socket);
        // What came before goes to the ring, too.
        family::poke::<Flow>(socket);
        Ok(())
    }

    /// Whether somebody may wait on the socket's own queue, and not on the channel's. To be asked
    /// after a full fence.
    pub(crate) fn was_polled_early(&self) -> bool {
        self.polled_early.load(Relaxed)
    }

    fn info(&self) -> abi::Info {
        abi::Info {
            abi_version: abi::ABI_VERSION,
            family: u32::try_from(family::wanted_number()).unwrap_or(0),
            flow: self.number(),
            has_channel: u32::from(self.channel().is_some()),
            frame_headroom: abi::FRAME_HEADROOM,
            frame_size_min: abi::FRAME_SIZE_MIN,
            frame_size_max: abi::FRAME_SIZE_MAX,
            frames_max: abi::FRAMES_MAX,
            ring_entries_max: abi::RING_ENTRIES_MAX,
            region_size_max: abi::REGION_SIZE_MAX,
            chain_max: abi::CHAIN_MAX,
            copybreak: tx::copybreak(),
            reserved: [0; 4],
        }
    }

    fn stats(&self) -> abi::Stats {
        let mut stats = abi::Stats::default();
        if let Some(channel) = self.channel() {
            channel.fill_stats(&self.counters, &mut stats);
        }
        stats
    }
}

impl Protocol for Flow {
    fn new(net_cookie: u64) -> Result<Self> {
        let one = Holding {
            flows: 1,
            ..Holding::default()
        };
        Ok(Self {
            attachment: SetOnce::new(),
            counters: Counters::default(),
            polled_early: Atomic::new(false),
            _charge: Charge::new(net_cookie, one)?,
        })
    }

    fn release(&self, _socket: &Socket) {
        if let Some(at) = self.attachment.as_ref() {
            at.channel.remove_flow(at.number);
        }
    }

    fn poll(&self, socket: &Socket, table: &PollTable, inner: u32) -> u32 {
        if self.channel().is_none() {
            // Full order, as the fence in needs_wakeup(): either this sees the channel now, or the
            // channel sees this.
            self.polled_early.xchg(true, Full);
        }
        match self.channel() {
            Some(channel) => channel.poll(socket.sk(), table, inner),
            None => inner,
        }
    }

    fn ioctl(&self, socket: &Socket, request: u32, argument: usize) -> Option<Result<i32>> {
        if request != abi::IOC_DOORBELL {
            return None;
        }
        Some((|| {
            let channel = self.channel().ok_or_else(enotconn)?;
            let flags = u32::try_from(argument).map_err(|_| EINVAL)?;
            Channel::doorbell(channel, socket, flags)
        })())
    }

    fn set_option(&self, socket: &Socket, name: i32, value: &OptionIn) -> Result {
        match name {
            abi::OPT_CHANNEL => self.open_channel(socket, &value.read()?),
            abi::OPT_JOIN => self.join_channel(socket, &value.read()?),
            _ => Err(enoprotoopt()),
        }
    }

    fn get_option(&self, name: i32, value: &OptionOut) -> Result {
        match name {
            abi::OPT_INFO => value.write(&self.info()),
            abi::OPT_CHANNEL => value.write(self.channel().ok_or_else(enotconn)?.layout()),
            abi::OPT_STATS => value.write(&self.stats()),
            _ => Err(enoprotoopt()),
        }
    }

    fn has_queue(&self) -> bool {
        self.channel().is_none()
    }

    fn map(&self, vma: &Vma) -> Result {
        Channel::map(self.channel().ok_or(ENODEV)?, vma)
    }

    fn data_ready(&self, sk: &Sock, locked: bool) {
        if let Some(channel) = self.channel() {
            channel.receive(self, sk, locked);
        }
    }

    fn write_space(&self, sk: &Sock) {
        if let Some(channel) = self.channel() {
            channel.write_space(sk);
        }
    }
}
