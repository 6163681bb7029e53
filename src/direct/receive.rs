// SPDX-License-Identifier: GPL-2.0

//! Frames that an attached device's XDP program redirects: datagrams become GRO packets before they
//! become skbs.
//!
//! The frames of one NAPI poll come in bulk. The datagrams of a flow that asked for GRO packets go
//! to the stack as one GRO packet, as generic receive offload would have made it. All others go to
//! `DatagramReceiver`, which takes them to their flows without the stack, or hands them to it. The
//! stack takes packets as if the device's driver had made them, so taps, tc, netfilter and all later
//! hooks see them.

use super::counters::Counters;
use super::gro_table::{Coalesced, GroTable};
use super::receive_datagrams::{DatagramReceiver, Kept};
use super::redirected_ports::{PortMapReservation, RedirectedPorts};
use crate::pure::{
    gro::{ends, ip_version},
    ip::IpVersion, //
};
use crate::sys::{
    context::SoftirqsOff,
    direct::{
        port_map::PinnedPortMap,
        redirect_device,
        redirected::{deliver_gro, XdpFrame}, //
    },
    netdev::Device,
    sock,
};
use core::sync::atomic::Ordering::Relaxed;
use kernel::{
    cpu::{nr_cpu_ids, CpuId},
    new_spinlock,
    prelude::*,
    sync::{rcu, Arc, SpinLock}, //
};

/// What one CPU has for the frames that it receives.
struct CpuState {
    table: GroTable,
    kept: Kept,
}

impl CpuState {
    fn new() -> Result<Self> {
        Ok(Self {
            table: GroTable::new()?,
            kept: Kept::new()?,
        })
    }
}

/// The receiver of the redirected frames of one device.
pub(crate) struct RedirectReceiver {
    device: Arc<Device>,
    port_map: Arc<PinnedPortMap>,
    counters: Arc<Counters>,
    /// One for each CPU; `None` while that CPU uses it, without the lock.
    cpus: KVec<Pin<KBox<SpinLock<Option<CpuState>>>>>,
}

impl RedirectReceiver {
    /// A receiver that takes no frames yet: `ENOMEM`. Process context.
    pub(crate) fn new(
        device: Arc<Device>,
        port_map: PinnedPortMap,
        counters: Arc<Counters>,
    ) -> Result<Self> {
        let mut cpus = KVec::with_capacity(nr_cpu_ids() as usize, GFP_KERNEL_ACCOUNT)?;
        for _ in 0..nr_cpu_ids() {
            let cpu = new_spinlock!(Some(CpuState::new()?), "kopi::RedirectReceiver::cpus");
            let cpu = KBox::pin_init(cpu, GFP_KERNEL_ACCOUNT)?;
            cpus.push_within_capacity(cpu).map_err(|_| ENOMEM)?;
        }
        Ok(Self {
            device,
            port_map: Arc::new(port_map, GFP_KERNEL_ACCOUNT)?,
            counters,
            cpus,
        })
    }

    /// Calls `act` with the redirected ports of the device's network namespace, under their lock.
    fn with_redirected_ports<T>(&self, act: impl FnOnce(&mut RedirectedPorts) -> T) -> T {
        act(&mut self.device.net().state().redirected_ports.lock())
    }

    /// Gives all gathered frames to their flows, or to the stack; returns the number of dropped
    /// datagrams.
    fn deliver(&self, table: &mut GroTable, direct: &mut DatagramReceiver<'_>) -> u64 {
        let (mut merged, mut dropped) = (0u64, 0u64);
        for packet in table.drain() {
            let is_gso = packet.frames.len() > 1 && self.wants_gro(packet.first.headers());
            let lost = if is_gso {
                merged = merged.wrapping_add(1);
                direct.pause();
                self.deliver_gro(packet)
            } else {
                self.deliver_datagrams(packet, direct)
            };
            dropped = dropped.wrapping_add(lost);
        }
        self.counters.gro_packets.fetch_add(merged, Relaxed);
        dropped
    }

    /// Whether datagrams may become a GRO packet: the device has generic receive offload on, and
    /// the socket asked for GRO packets.
    fn wants_gro(&self, headers: &[u8]) -> bool {
        self.device.has_gro()
            && sock::wants_gro(self.device.net(), &ends(headers), self.device.ifindex())
    }

    /// Gives the datagrams to the stack as one GRO packet; returns the number of dropped datagrams.
    fn deliver_gro(&self, packet: &mut Coalesced) -> u64 {
        let count = packet.frames.len() as u64;
        let (segment, payload) = (packet.first.payload(), packet.payload());
        let headers = packet.first.headers_mut();
        let delivered = deliver_gro(&self.device, headers, segment, payload, &mut packet.frames);
        packet.frames.clear();
        delivered.map_or(count, |()| 0)
    }

    /// Gives the datagrams to their flow, or to the stack, one by one; returns the number of dropped
    /// datagrams.
    fn deliver_datagrams(&self, packet: &mut Coalesced, direct: &mut DatagramReceiver<'_>) -> u64 {
        let headers = packet.first.headers();
        let (start, segment) = (headers.len(), packet.first.payload());
        let mut left = packet.payload();
        let mut dropped = 0u64;
        for frame in packet.frames.drain_all() {
            let len = start.saturating_add(segment.min(left));
            left = left.saturating_sub(segment);
            let datagram = ip_version(headers).map(|version| (version, len));
            let lost = self.deliver_datagram(frame, datagram, direct);
            dropped = dropped.wrapping_add(lost);
        }
        dropped
    }

    /// Gives a frame to its flow, or to the stack; returns the number of dropped datagrams. `datagram` has
    /// the bytes of headers and payload if it is one whose checksums are right.
    #[inline]
    fn deliver_datagram(
        &self,
        mut frame: XdpFrame,
        datagram: Option<(IpVersion, usize)>,
        direct: &mut DatagramReceiver<'_>,
    ) -> u64 {
        if let Some(datagram) = datagram {
            match direct.take(frame, datagram) {
                Ok(()) => return 0,
                Err(back) => frame = back,
            }
        }
        direct.pause();
        u64::from(frame.deliver(&self.device, datagram.is_some()).is_err())
    }

    /// Gives a frame to its flow, or to the stack, if no flow of its port asked for GRO packets.
    /// Datagrams of such a port are never gathered, so that they keep their order.
    #[inline]
    fn receive(
        &self,
        frame: XdpFrame,
        table: &mut GroTable,
        direct: &mut DatagramReceiver<'_>,
    ) -> u64 {
        let frame = match table.extend(frame) {
            Ok(()) => return 0,
            Err(frame) => frame,
        };
        if !self.port_map.has_gro(frame.destination_port()) {
            let datagram = frame
                .datagram()
                .and_then(|datagram| Some((ip_version(datagram.headers())?, datagram.whole())));
            return self.deliver_datagram(frame, datagram, direct);
        }
        let mut dropped = 0;
        if let Err(frame) = table.insert(frame) {
            dropped = self.deliver(table, direct);
            // There is room now.
            let _ = table.insert(frame);
        }
        dropped
    }
}

redirect_device::serve!(RedirectReceiver);

impl redirect_device::FrameReceiver for RedirectReceiver {
    fn device(&self) -> &Device {
        &self.device
    }

    fn redirect_to(&self, ifindex: u32) {
        self.port_map.send_to(ifindex);
    }

    /// Makes the program redirect the namespace's ports: `ENOMEM`. It doesn't if the device strips
    /// VLAN tags, because the program then can't see which VLAN a frame came from. Under RTNL.
    fn open(&self) -> Result {
        if self.device.strips_vlans() {
            return Ok(());
        }
        let room = PortMapReservation::new()?;
        self.with_redirected_ports(|ports| ports.add_port_map(&self.port_map, room))
    }

    /// Makes the program redirect nothing. Under RTNL.
    fn close(&self) {
        self.with_redirected_ports(|ports| ports.remove_port_map(&self.port_map));
    }

    /// Takes no frames if this CPU is already within this function, or has no memory for its table.
    fn xdp_xmit(
        &self,
        frames: impl Iterator<Item = XdpFrame>,
        last: bool,
        softirqs: &SoftirqsOff,
    ) -> bool {
        let Some(cpu) = self.cpus.get(CpuId::current().as_u32() as usize) else {
            return false;
        };
        let taken = cpu.lock().take();
        let Some(CpuState {
            mut table,
            mut kept,
        }) = taken
        else {
            return false;
        };
        let (mut received, mut dropped) = (0u64, 0u64);
        let rcu = rcu::read_lock();
        let mut direct = DatagramReceiver::new(&self.device, &mut kept, &rcu, softirqs);
        for frame in frames {
            received = received.wrapping_add(1);
            dropped = dropped.wrapping_add(self.receive(frame, &mut table, &mut direct));
        }
        if last {
            dropped = dropped.wrapping_add(self.deliver(&mut table, &mut direct));
        }
        let directly = direct.finish();
        drop(rcu);
        let counters = &self.counters;
        counters.received.fetch_add(received, Relaxed);
        counters.received_direct.fetch_add(directly, Relaxed);
        counters.receive_dropped.fetch_add(dropped, Relaxed);
        *cpu.lock() = Some(CpuState { table, kept });
        true
    }
}
