// SPDX-License-Identifier: GPL-2.0

//! A channel: the rings and frames that a process and the kernel share.

use crate::{
    flow::{Flow, FlowId},
    frame::{Frame, Payload},
    message::Message,
    packet::Packet,
    pure::{
        abi::{
            ChannelReq, Desc, Layout, CHAIN_MAX, CHANNEL_ENGINE, CHANNEL_GRO, CHANNEL_GRO_MERGED,
            CHANNEL_GSO, DESC_META, DESC_MORE, OPT_CHANNEL,
        },
        ring::{Broken, Consumer, Producer},
    },
    region::Region,
    sys,
};
use socket2::Socket;
use std::{
    cell::RefCell,
    fmt, io,
    ops::BitOr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    ptr,
    sync::Arc,
    time::Duration,
};

mod entries;

/// Frames go back to the kernel when this many are due, or when no packet is there.
const REFILL_BATCH: u32 = 32;

/// What a channel is to be like; from [`Channel::builder`].
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    request: ChannelReq,
    rx_frames: Option<u32>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            request: ChannelReq {
                flags: 0,
                frame_size: 2048,
                frame_count: 1024,
                tx_entries: 1024,
                completion_entries: 1024,
                fill_entries: 1024,
                rx_entries: 1024,
                reserved: [0; 9],
            },
            rx_frames: None,
        }
    }
}

impl Builder {
    /// Bytes of each frame: a power of two, of which 64 bytes are headroom. 2048 unless said.
    #[must_use]
    pub fn frame_size(mut self, bytes: u32) -> Self {
        self.request.frame_size = bytes;
        self
    }

    /// Number of frames, 1024 unless said.
    #[must_use]
    pub fn frames(mut self, count: u32) -> Self {
        self.request.frame_count = count;
        self
    }

    /// How many of the frames the kernel may have for packets to come, half of them unless said.
    #[must_use]
    pub fn rx_frames(mut self, count: u32) -> Self {
        self.rx_frames = Some(count);
        self
    }

    /// Entries of the TX and COMPLETION rings: a power of two, 1024 unless said.
    #[must_use]
    pub fn tx_entries(mut self, entries: u32) -> Self {
        self.request.tx_entries = entries;
        self.request.completion_entries = entries;
        self
    }

    /// Entries of the FILL and RX rings: a power of two, 1024 unless said.
    #[must_use]
    pub fn rx_entries(mut self, entries: u32) -> Self {
        self.request.fill_entries = entries;
        self.request.rx_entries = entries;
        self
    }

    /// Whether datagrams of one size to one peer that are sent in turn travel as one GSO packet, which
    /// costs less, and counts as one with rules and limits.
    #[must_use]
    pub fn gso(self, yes: bool) -> Self {
        self.flag(CHANNEL_GSO, yes)
    }

    /// Whether datagrams from one peer may be received as one GRO packet, which costs less, and counts
    /// as one with rules and limits.
    #[must_use]
    pub fn gro(self, yes: bool) -> Self {
        self.flag(CHANNEL_GRO, yes)
    }

    /// Whether a GRO packet comes as one packet with its
    /// [`segment_size`](Packet::segment_size).
    #[must_use]
    pub fn gro_merged(self, yes: bool) -> Self {
        self.flag(CHANNEL_GRO_MERGED, yes)
    }

    /// Whether the kernel's engines, if an administrator has set some, look at what is sent, so that
    /// no system call is needed while the channel is busy.
    #[must_use]
    pub fn engine(self, yes: bool) -> Self {
        self.flag(CHANNEL_ENGINE, yes)
    }

    fn flag(mut self, flag: u32, yes: bool) -> Self {
        self.request.flags &= !flag;
        if yes {
            self.request.flags |= flag;
        }
        self
    }

    /// Makes the channel, with `flow` as the first on it.
    ///
    /// Memory counts against RLIMIT_MEMLOCK, for all channels of a user together, and against the
    /// cgroup's limit. What isn't said otherwise takes two of the eight megabytes that systems
    /// commonly allow.
    pub fn open(self, flow: &Flow) -> io::Result<Channel> {
        let fd = flow.as_raw_fd();
        sys::set_option(fd, OPT_CHANNEL, &self.request).map_err(|error| self.explain(error))?;
        let layout: Layout = sys::get_option(fd, OPT_CHANNEL)?;
        let region = Region::map(fd, layout)?;
        let channel = self.assemble(region, Bell::Socket(flow.socket().clone()))?;
        flow.learn_number()?;
        Ok(channel)
    }

    /// Adds what to do to the errors that need it.
    fn explain(&self, error: io::Error) -> io::Error {
        match error.raw_os_error() {
            Some(libc::ENOBUFS) => io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!(
                    "{} frames of {} bytes are more than RLIMIT_MEMLOCK allows this user: raise \
                     it (ulimit -l) or ask for fewer ({error})",
                    self.request.frame_count, self.request.frame_size
                ),
            ),
            _ => error,
        }
    }

    pub(crate) fn assemble(self, region: Region, bell: Bell) -> io::Result<Channel> {
        let layout = *region.layout();
        // SAFETY: The rings live in the channel, beside the region and no longer than it; it was
        // made just now, so nobody else has a side of one.
        let (tx, completion, fill, rx) = unsafe {
            (
                region.producer(&layout.tx),
                region.consumer(&layout.completion),
                region.producer(&layout.fill),
                region.consumer(&layout.rx),
            )
        };
        let rx_frames = self
            .rx_frames
            .unwrap_or(layout.frame_count / 2)
            .min(layout.frame_count)
            .min(layout.fill.size);
        let channel = Channel {
            tx: RefCell::new(Tx {
                ring: tx,
                completion,
            }),
            rx: RefCell::new(Rx {
                ring: rx,
                fill,
                posted: 0,
                target: rx_frames,
            }),
            free: RefCell::new(
                (0..layout.frame_count)
                    .rev()
                    .map(|number| region.frame(number))
                    .collect(),
            ),
            bell,
            region,
        };
        channel.refill(&mut channel.rx.borrow_mut())?;
        Ok(channel)
    }

    #[cfg(test)]
    pub(crate) fn request(&self) -> &ChannelReq {
        &self.request
    }
}

/// How the kernel is asked to look at the channel.
pub(crate) enum Bell {
    /// By a socket that is on it.
    Socket(Arc<Socket>),
    /// There is no kernel, but a test.
    #[cfg(test)]
    Fake(Box<RefCell<crate::fake::Kernel>>),
}

/// The sending half: what the program writes of it, and what comes back.
struct Tx {
    ring: Producer<Desc>,
    completion: Consumer<Desc>,
}

/// The receiving half.
struct Rx {
    ring: Consumer<Desc>,
    fill: Producer<u64>,
    /// Frames in the FILL ring, with the kernel or in the RX ring.
    posted: u32,
    /// The number of them that there should be.
    target: u32,
}

/// What the kernel took of the TX ring.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    All,
    Some,
    None,
}

/// A channel: mapped frames and the four rings that carry them.
///
/// Packets of all flows on it come from [`Channel::recv`] and go by [`Channel::send`]. Both work on
/// memory alone; [`Channel::flush`] shows the kernel what was sent, with one system call for all of
/// it, and [`Channel::wait`] sleeps.
///
/// A channel can be moved to another thread, while no frame of it is out, but not be shared: each
/// ring has one writer and one reader. Threads that send and receive at once take a channel each, or
/// use [`UdpSocket`](crate::UdpSocket).
///
/// # Forks
///
/// A forked child has the same memory mapped. It must not use the channel, nor frames of it, as long
/// as the parent does.
pub struct Channel {
    tx: RefCell<Tx>,
    rx: RefCell<Rx>,
    /// First bytes of the frames that neither the kernel has nor a [`Frame`].
    free: RefCell<Vec<u32>>,
    bell: Bell,
    /// Holds what the rings point to, so stays behind them.
    region: Region,
}

/// A packet's frame that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The flow that sent it.
    pub flow: FlowId,
    /// The [`Frame::id`] of the frame.
    pub frame: u32,
    /// Bytes that the frame held.
    pub len: u32,
    /// The errno with which the packet was refused, or 0.
    pub error: u16,
    /// Whether more frames of the same packet follow.
    pub more: bool,
}

impl Completion {
    /// The error with which the packet was refused, if it was.
    pub fn result(&self) -> io::Result<()> {
        match self.error {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno.into())),
        }
    }
}

/// What [`Channel::wait`] waits for; sets of it are made with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest(u8);

impl Interest {
    /// A packet to receive.
    pub const READABLE: Self = Self(1);
    /// Room to send.
    pub const WRITABLE: Self = Self(2);
    /// A completion.
    pub const COMPLETION: Self = Self(4);

    fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

impl BitOr for Interest {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// What [`Channel::wait`] found; nothing of it after a timeout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// There are packets.
    pub readable: bool,
    /// There is room to send.
    pub writable: bool,
    /// There are completions.
    pub completion: bool,
    /// The channel's first flow has an error to [take](Flow::take_error).
    pub error: bool,
}

impl Ready {
    /// Whether there is anything.
    pub fn any(self) -> bool {
        self != Self::default()
    }
}

/// Why [`Channel::send`] didn't take a packet, and the packet.
#[derive(Debug)]
pub struct SendError<'c> {
    /// `WouldBlock` if there is no room now: [wait](Channel::wait) for [`Interest::WRITABLE`] or
    /// drop the packet.
    pub error: io::Error,
    /// What was to be sent.
    pub payload: Payload<'c>,
}

impl fmt::Display for SendError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for SendError<'_> {}

impl From<SendError<'_>> for io::Error {
    fn from(unsent: SendError<'_>) -> Self {
        unsent.error
    }
}

impl From<Broken> for io::Error {
    fn from(_: Broken) -> Self {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "a ring of the channel is broken: something else wrote to it",
        )
    }
}

impl Channel {
    /// Describes a channel to be made.
    pub fn builder() -> Builder {
        Builder::default()
    }

    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Where rings and frames lie in the mapping.
    pub fn layout(&self) -> &Layout {
        self.region.layout()
    }

    /// Bytes of payload that one frame holds.
    pub fn frame_capacity(&self) -> usize {
        self.region.capacity() as usize
    }

    /// Takes a free frame; `None` while there is none.
    ///
    /// Frames become free when packets are dropped, and by [`Channel::flush`] when the kernel has
    /// let go of what was sent.
    #[inline]
    pub fn frame(&self) -> Option<Frame<'_>> {
        let start = self.free.borrow_mut().pop()?;
        let offset = start + crate::pure::abi::FRAME_HEADROOM;
        // SAFETY: It was on the free list, and so is nobody's.
        Some(unsafe { Frame::new(self, start, offset, 0) })
    }

    /// Takes as many frames as `data` needs, and copies it there; `None` while there are too few.
    pub fn payload(&self, data: &[u8]) -> Option<Payload<'_>> {
        let mut first = self.frame()?;
        let mut at = first.extend_from_slice(data);
        let mut payload = Payload::from(first);
        while at < data.len() {
            let mut frame = self.frame()?;
            at += frame.extend_from_slice(&data[at..]);
            payload.push(frame);
        }
        Some(payload)
    }

    /// Number of free frames that aren't due to the kernel for packets to come.
    pub(crate) fn spare_frames(&self) -> usize {
        let rx = self.rx.borrow();
        let due = rx.target.saturating_sub(rx.posted);
        self.free.borrow().len().saturating_sub(due as usize)
    }

    #[inline]
    pub(crate) fn put_free(&self, start: u32) {
        self.free.borrow_mut().push(start);
    }

    /// Queues a packet of `flow`; the kernel sees it at the next [`Channel::flush`].
    ///
    /// When the ring is full the kernel is shown what is there; what has been completed by then is
    /// left for the next flush.
    ///
    /// # Panics
    ///
    /// If the payload is of another channel.
    #[inline]
    pub fn send<'c>(
        &'c self,
        flow: FlowId,
        message: &Message,
        payload: impl Into<Payload<'c>>,
    ) -> Result<(), SendError<'c>> {
        let payload = payload.into();
        match self.room_for(payload.count() as u32) {
            Ok(()) => {
                self.queue(flow, message, payload);
                Ok(())
            }
            Err(error) => Err(SendError { error, payload }),
        }
    }

    /// Finds room in the TX ring.
    #[inline]
    fn room_for(&self, needed: u32) -> io::Result<()> {
        if self.tx.borrow_mut().ring.room(needed)? >= needed {
            return Ok(());
        }
        self.make_room(needed)
    }

    /// Has the kernel take what is in the TX ring.
    #[cold]
    fn make_room(&self, needed: u32) -> io::Result<()> {
        let size = self.tx.borrow().ring.size();
        if needed > size.min(CHAIN_MAX) {
            return Err(io::Error::from_raw_os_error(libc::EMSGSIZE));
        }
        self.show()?;
        if self.tx.borrow_mut().ring.room(needed)? >= needed {
            Ok(())
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }

    /// Writes descriptors for which there is room.
    #[inline]
    fn queue(&self, flow: FlowId, message: &Message, payload: Payload<'_>) {
        payload.for_each(|frame| {
            assert!(
                ptr::eq(frame.channel(), self),
                "a payload of another channel"
            );
        });
        let first = payload.first();
        let mut flags = 0;
        if let Some(meta) = message.meta() {
            // SAFETY: The frame is the program's, by way of `first`.
            unsafe { self.region.write_meta(first.start(), meta) };
            flags = DESC_META;
        }
        let mut tx = self.tx.borrow_mut();
        let mut left = payload.count();
        payload.for_each(|frame| {
            left -= 1;
            tx.ring.write(Desc {
                offset: frame.offset(),
                len: frame.len() as u32,
                flow: flow.0,
                flags: if left > 0 { flags | DESC_MORE } else { flags },
                error: 0,
            });
            flags = 0;
        });
        payload.into_kernel();
    }

    /// Shows the kernel what was sent, and takes back the frames that it is done with.
    ///
    /// Gives `true` if the kernel has taken everything; `false` if it stopped, since a flow's send
    /// buffer is full: [wait](Channel::wait) for [`Interest::WRITABLE`] and flush again. What became
    /// of packets is told by [`Channel::flush_with`], and by [`Flow::stats`].
    pub fn flush(&self) -> io::Result<bool> {
        self.flush_with(|_| {})
    }

    /// As [`Channel::flush`], and tells of each frame that came back.
    pub fn flush_with(&self, mut completed: impl FnMut(Completion)) -> io::Result<bool> {
        loop {
            self.reap(&mut completed)?;
            let shown = self.show()?;
            self.reap(&mut completed)?;
            match shown {
                Shown::All => return Ok(true),
                Shown::None => return Ok(false),
                // There may be room for more completions now.
                Shown::Some => {}
            }
        }
    }

    /// Submits what was written, and rings the doorbell if it must be.
    fn show(&self) -> io::Result<Shown> {
        {
            let mut tx = self.tx.borrow_mut();
            tx.ring.submit();
            // Without need of a doorbell the kernel takes it soon, and that is as good.
            if !tx.ring.is_unread() || !tx.ring.needs_wakeup() {
                return Ok(Shown::All);
            }
        }
        let taken = self.ring_tx()?;
        if !self.tx.borrow().ring.is_unread() {
            Ok(Shown::All)
        } else if taken > 0 {
            Ok(Shown::Some)
        } else {
            Ok(Shown::None)
        }
    }

    fn ring_tx(&self) -> io::Result<u32> {
        match &self.bell {
            Bell::Socket(socket) => sys::ring_tx(socket.as_raw_fd()),
            #[cfg(test)]
            Bell::Fake(kernel) => Ok(kernel.borrow_mut().transmit()),
        }
    }

    /// Takes back the frames that the kernel is done with, and tells of each.
    pub fn reap(&self, completed: impl FnMut(Completion)) -> io::Result<()> {
        self.reap_up_to(u32::MAX, completed).map(drop)
    }

    /// As [`Channel::reap`], but of a maximum number of frames; returns their number.
    pub fn reap_up_to(&self, max: u32, mut completed: impl FnMut(Completion)) -> io::Result<u32> {
        let mut count = 0;
        loop {
            let desc = {
                let completion = &mut self.tx.borrow_mut().completion;
                if count == max || completion.available(1)? == 0 {
                    // All that were read.
                    completion.release(0);
                    return Ok(count);
                }
                completion.read()
            };
            let Some(start) = self.region.frame_of_payload(desc.offset, desc.len) else {
                // A descriptor that was refused for its place; none of this crate's.
                continue;
            };
            count += 1;
            self.put_free(start);
            completed(Completion {
                flow: FlowId(desc.flow),
                frame: start,
                len: desc.len,
                error: desc.error,
                more: desc.flags & DESC_MORE != 0,
            });
        }
    }

    /// Takes the next packet, of whichever flow; `None` while there is none.
    pub fn recv(&self) -> io::Result<Option<Packet<'_>>> {
        let rx = &mut *self.rx.borrow_mut();
        let Some((packet, count)) = self.next(rx)? else {
            return Ok(None);
        };
        self.taken(rx, count)?;
        Ok(Some(packet))
    }

    /// Steps past entries of the RX ring whose frames are the program's now.
    fn taken(&self, rx: &mut Rx, count: u32) -> io::Result<()> {
        rx.ring.release(count);
        rx.posted = rx.posted.saturating_sub(count);
        if rx.target.saturating_sub(rx.posted) >= REFILL_BATCH {
            self.refill(rx)?;
        }
        Ok(())
    }

    /// Shows the next packet without taking it.
    pub(crate) fn peek<R>(&self, show: impl FnOnce(&Packet<'_>) -> R) -> io::Result<Option<R>> {
        let rx = &mut *self.rx.borrow_mut();
        let Some((packet, _)) = self.next(rx)? else {
            return Ok(None);
        };
        let shown = show(&packet);
        // The frames stay the RX ring's.
        packet.into_payload().into_kernel();
        Ok(Some(shown))
    }

    /// The next packet, and its number of entries, which are not released yet.
    fn next(&self, rx: &mut Rx) -> io::Result<Option<(Packet<'_>, u32)>> {
        let Some((first, count)) = self.next_entries(rx)? else {
            return Ok(None);
        };
        let mut payload = Payload::from(self.received(first)?);
        for ahead in 1..count {
            match self.received(rx.ring.peek(ahead)) {
                Ok(frame) => payload.push(frame),
                Err(error) => {
                    // What is in the ring still is not the program's.
                    payload.into_kernel();
                    return Err(error);
                }
            }
        }
        Ok(Some((Packet::new(FlowId(first.flow), payload), count)))
    }

    /// The first entry of the next packet, and its number of entries; `None` while the last one isn't
    /// there.
    #[inline]
    fn next_entries(&self, rx: &mut Rx) -> io::Result<Option<(Desc, u32)>> {
        if rx.ring.available(1)? == 0 {
            self.refill(rx)?;
            return Ok(None);
        }
        let first = rx.ring.peek(0);
        let mut count = 1;
        let mut last = first;
        while last.flags & DESC_MORE != 0 {
            if rx.ring.available(count + 1)? <= count {
                // The rest isn't there yet.
                return Ok(None);
            }
            last = rx.ring.peek(count);
            count += 1;
        }
        Ok(Some((first, count)))
    }

    /// The frame of an RX entry.
    fn received(&self, desc: Desc) -> io::Result<Frame<'_>> {
        let start = self
            .region
            .frame_of_payload(desc.offset, desc.len)
            .ok_or(Broken)?;
        // SAFETY: A frame that the kernel gives to the program by its RX ring, and the payload in
        // it, as just checked. The kernel had it from the FILL ring, and puts none there twice.
        Ok(unsafe { Frame::new(self, start, desc.offset, desc.len) })
    }

    /// Gives free frames to the kernel for packets to come.
    fn refill(&self, rx: &mut Rx) -> io::Result<()> {
        let want = rx.target.saturating_sub(rx.posted);
        if want == 0 {
            return Ok(());
        }
        let room = rx.fill.room(want)?;
        let mut free = self.free.borrow_mut();
        let count = want.min(room).min(free.len() as u32);
        let left = free.len() - count as usize;
        for start in free.drain(left..) {
            rx.fill.write(u64::from(start));
        }
        rx.posted += count;
        rx.fill.submit();
        Ok(())
    }

    /// Asks the kernel to wake this side for packets and completions, or not to take the trouble.
    ///
    /// So it is from the start; after [`Channel::wait`] it is so no more. A program that sleeps in a
    /// poll of its own (epoll, an executor) calls this with `true` before each sleep, and sleeps
    /// only if it gives `false`: there is nothing to receive, and what was sent needs no
    /// [flush](Channel::flush) to go on. It asks for POLLWRBAND, too: what an engine has not sent yet
    /// may need the room of completions.
    pub fn arm(&self, want: bool) -> io::Result<bool> {
        let received = self.want_wakeups(want)?;
        if !want || received {
            return Ok(received);
        }
        // An engine may have let go of the channel since it was flushed.
        self.show()?;
        let tx = &mut *self.tx.borrow_mut();
        Ok(tx.ring.is_unread() && tx.completion.available(1)? > 0)
    }

    /// Asks to be woken or not; says whether there is something to receive.
    fn want_wakeups(&self, want: bool) -> io::Result<bool> {
        self.tx.borrow().completion.want_wakeup(want);
        let mut rx = self.rx.borrow_mut();
        rx.ring.want_wakeup(want);
        Ok(rx.ring.available(1)? > 0)
    }

    /// Whether a call to receive has something to do: there are entries in the RX ring, or nonsense.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_received(&self) -> bool {
        !matches!(self.rx.borrow_mut().ring.available(1), Ok(0))
    }

    /// Whether the kernel has yet to take something of the TX ring.
    #[cfg(feature = "tokio")]
    pub(crate) fn has_unsent(&self) -> bool {
        self.tx.borrow().ring.is_unread()
    }

    /// Shows the kernel what was sent, and sleeps until there is something of `interest` or the time
    /// is over.
    ///
    /// Completions are left for the next [flush](Channel::flush). They end other waits, too, when
    /// they are what is needed to go on (frames for what comes, room for what goes): so flush
    /// before each wait.
    ///
    /// The first flow's pending error ends the sleep, too. A signal ends it with
    /// [`io::ErrorKind::Interrupted`].
    pub fn wait(&self, interest: Interest, timeout: Option<Duration>) -> io::Result<Ready> {
        self.show()?;
        let mut events = 0;
        if interest.has(Interest::READABLE) {
            let mut rx = self.rx.borrow_mut();
            self.refill(&mut rx)?;
            events |= libc::POLLIN;
            // Packets need frames, which completions give back: half of them, or what one packet may
            // need.
            if rx.posted < (rx.target / 2).max(CHAIN_MAX).min(rx.target) {
                events |= libc::POLLWRBAND;
            }
        }
        if interest.has(Interest::WRITABLE) {
            events |= libc::POLLOUT;
        }
        if interest.has(Interest::COMPLETION) || interest.has(Interest::WRITABLE) {
            events |= libc::POLLWRBAND;
        }
        if self.tx.borrow().ring.is_unread() {
            // The kernel may stop there until completions are taken.
            events |= libc::POLLWRBAND;
        }
        let received = self.want_wakeups(true)?;
        if received && interest.has(Interest::READABLE) {
            return Ok(Ready {
                readable: true,
                ..Ready::default()
            });
        }
        let polled = self.poll(events, timeout);
        self.want_wakeups(false)?;
        let polled = polled?;
        Ok(Ready {
            readable: polled & libc::POLLIN != 0,
            writable: polled & libc::POLLOUT != 0,
            completion: polled & libc::POLLWRBAND != 0,
            error: polled & libc::POLLERR != 0,
        })
    }

    fn poll(&self, events: i16, timeout: Option<Duration>) -> io::Result<i16> {
        match &self.bell {
            Bell::Socket(socket) => sys::poll(socket.as_raw_fd(), events, timeout),
            #[cfg(test)]
            Bell::Fake(kernel) => Ok(events & kernel.borrow().ready()),
        }
    }

    /// The fake kernel.
    #[cfg(test)]
    pub(crate) fn fake(&self) -> &RefCell<crate::fake::Kernel> {
        match &self.bell {
            Bell::Socket(_) => unreachable!("a channel of a real kernel"),
            Bell::Fake(kernel) => kernel,
        }
    }

    #[cfg(test)]
    pub(crate) fn is_fake(&self) -> bool {
        matches!(self.bell, Bell::Fake(_))
    }

    /// Number of free frames.
    #[cfg(test)]
    pub(crate) fn free_frames(&self) -> usize {
        self.free.borrow().len()
    }
}

impl AsRawFd for Channel {
    /// A socket on the channel, for poll(2) and the like.
    fn as_raw_fd(&self) -> RawFd {
        match &self.bell {
            Bell::Socket(socket) => socket.as_raw_fd(),
            #[cfg(test)]
            Bell::Fake(_) => -1,
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.bell {
            Bell::Socket(socket) => socket.as_fd(),
            #[cfg(test)]
            Bell::Fake(_) => unreachable!("a channel without a kernel has no descriptor"),
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel")
            .field("layout", self.layout())
            .finish_non_exhaustive()
    }
}
