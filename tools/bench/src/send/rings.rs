// SPDX-License-Identifier: GPL-2.0

//! KOPI's rings.

use super::Sender;
use crate::traffic::{Traffic, UNFRAGMENTED_MAX};
use kopi::{Builder, Channel, Completion, Flow, FlowId, Frame, Interest, Message};
use std::{io, time::Duration};

/// Nothing takes so long, but for an error.
const PATIENCE: Duration = Duration::from_secs(1);

/// A channel and its flow.
pub(super) struct Port {
    pub(super) channel: Channel,
    pub(super) flow: Flow,
}

impl Port {
    /// Rings the doorbell until all is taken; sleeps while there is no room.
    pub(super) fn flush(&self) -> io::Result<()> {
        let mut error = Ok(());
        let mut note = |completion: Completion| {
            if error.is_ok() {
                error = completion.result();
            }
        };
        while !self.channel.flush_with(&mut note)? {
            self.sleep(Interest::WRITABLE)?;
        }
        error
    }

    fn sleep(&self, interest: Interest) -> io::Result<()> {
        if self.channel.wait(interest, Some(PATIENCE))?.any() {
            return Ok(());
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// A free frame; sleeps while there is none.
    pub(super) fn frame(&self) -> io::Result<Frame<'_>> {
        loop {
            if let Some(frame) = self.channel.frame() {
                return Ok(frame);
            }
            self.sleep(Interest::COMPLETION)?;
            self.flush()?;
        }
    }

    pub(super) fn send(&self, message: &Message, frame: Frame<'_>) -> io::Result<()> {
        let flow = self.flow.id().expect("a flow on its channel");
        self.send_by(flow, message, frame)
    }

    /// Sends by any flow on the channel.
    pub(super) fn send_by(
        &self,
        flow: FlowId,
        message: &Message,
        frame: Frame<'_>,
    ) -> io::Result<()> {
        Ok(self.channel.send(flow, message, frame)?)
    }
}

/// A batch of packets by each doorbell.
pub(super) struct Rings {
    port: Port,
    batch: usize,
}

impl Rings {
    pub(super) fn new(
        builder: Builder,
        flow: Flow,
        batch: usize,
        payload: usize,
    ) -> io::Result<Self> {
        let mut builder = builder.rx_frames(0);
        if payload > UNFRAGMENTED_MAX {
            builder = builder.frame_size(65536).frames(4 * batch as u32);
        }
        let channel = builder.open(&flow)?;
        Ok(Self {
            port: Port { channel, flow },
            batch,
        })
    }
}

impl Sender for Rings {
    fn send(&mut self, traffic: &mut Traffic, mut count: usize) -> io::Result<()> {
        let one = traffic.to_one();
        while count > 0 {
            let batch = count.min(self.batch);
            for _ in 0..batch {
                let peer = traffic.next_peer();
                let mut frame = self.port.frame()?;
                frame.set_len(traffic.payload());
                traffic.fill(&mut frame);
                let message = match one {
                    true => Message::connected(),
                    false => Message::to(traffic.peers[peer].socket().into()),
                };
                self.port.send(&message, frame)?;
            }
            self.port.flush()?;
            count -= batch;
        }
        Ok(())
    }
}

/// A packet that is a GSO packet by each doorbell.
pub(super) struct Segments {
    port: Port,
    batch: usize,
}

impl Segments {
    pub(super) fn new(flow: Flow, batch: usize) -> io::Result<Self> {
        let channel = Channel::builder()
            .frame_size(65536)
            .frames(32)
            .rx_frames(0)
            .gso(true)
            .open(&flow)?;
        Ok(Self {
            port: Port { channel, flow },
            batch,
        })
    }
}

impl Sender for Segments {
    fn send(&mut self, traffic: &mut Traffic, mut count: usize) -> io::Result<()> {
        let payload = traffic.payload();
        while count > 0 {
            let mut frame = self.port.frame()?;
            let batch = count.min(self.batch).min(frame.capacity() / payload);
            frame.set_len(batch * payload);
            traffic.fill_gso(&mut frame);
            let message = Message::connected().segment_size(payload as u16);
            self.port.send(&message, frame)?;
            self.port.flush()?;
            count -= batch;
        }
        Ok(())
    }
}
