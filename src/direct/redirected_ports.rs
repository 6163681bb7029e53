// SPDX-License-Identifier: GPL-2.0

//! The local UDP ports of a namespace's flows on channels, which the XDP programs of attached devices
//! redirect.

use super::ATTACHED_MAX;
use crate::sys::direct::port_map::PinnedPortMap;
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::Arc,
};

/// The flows of a port.
#[derive(Clone, Copy)]
struct PortFlows {
    all: u32,
    /// Those that asked for GRO packets.
    gro: u32,
}

/// The redirected ports of one network namespace.
pub(crate) struct RedirectedPorts {
    ports: RBTree<u16, PortFlows>,
    /// The port maps of the devices whose redirect devices take frames.
    port_maps: KVec<Arc<PinnedPortMap>>,
}

/// Memory for another port, which is allocated before the lock is taken.
pub(crate) struct PortReservation(RBTreeNodeReservation<u16, PortFlows>);

impl PortReservation {
    /// `ENOMEM`. Process context.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?))
    }
}

/// Memory for the port maps of all devices, which is allocated before the lock is taken.
pub(crate) struct PortMapReservation(KVec<Arc<PinnedPortMap>>);

impl PortMapReservation {
    /// `ENOMEM`. Process context.
    pub(crate) fn new() -> Result<Self> {
        let room = KVec::with_capacity(ATTACHED_MAX, GFP_KERNEL_ACCOUNT)?;
        Ok(Self(room))
    }
}

impl RedirectedPorts {
    /// No ports, and no port maps.
    pub(crate) fn new() -> Self {
        Self {
            ports: RBTree::new(),
            port_maps: KVec::new(),
        }
    }

    /// Tells all port maps about a port.
    fn update(&self, port: u16, flows: PortFlows) {
        for port_map in &self.port_maps {
            port_map.set(port, flows.all > 0, flows.gro > 0);
        }
    }

    /// Adds a flow to a port, which asked for GRO packets or not. The port is redirected from its
    /// first flow on.
    pub(crate) fn add(&mut self, port: u16, gro: bool, reservation: PortReservation) {
        let flows = match self.ports.get_mut(&port) {
            Some(flows) => {
                flows.all = flows.all.saturating_add(1);
                flows.gro = flows.gro.saturating_add(u32::from(gro));
                *flows
            }
            None => {
                let flows = PortFlows {
                    all: 1,
                    gro: u32::from(gro),
                };
                self.ports.insert(reservation.0.into_node(port, flows));
                flows
            }
        };
        self.update(port, flows);
    }

    /// Removes a flow from a port. The port is redirected until its last flow is removed.
    pub(crate) fn remove(&mut self, port: u16, gro: bool) {
        let Some(flows) = self.ports.get_mut(&port) else {
            return;
        };
        flows.all = flows.all.saturating_sub(1);
        flows.gro = flows.gro.saturating_sub(u32::from(gro));
        let left = *flows;
        if left.all == 0 {
            let _gone = self.ports.remove(&port);
        }
        self.update(port, left);
    }

    /// Makes a program redirect these ports, and the ports that are added later: `ENOMEM` if there
    /// are more port maps than devices can be attached.
    pub(crate) fn add_port_map(
        &mut self,
        port_map: &Arc<PinnedPortMap>,
        reservation: PortMapReservation,
    ) -> Result {
        let mut port_maps = reservation.0;
        for each in &self.port_maps {
            port_maps
                .push_within_capacity(each.clone())
                .map_err(|_| ENOMEM)?;
        }
        port_maps
            .push_within_capacity(port_map.clone())
            .map_err(|_| ENOMEM)?;
        self.port_maps = port_maps;
        for (port, flows) in &self.ports {
            port_map.set(*port, true, flows.gro > 0);
        }
        Ok(())
    }

    /// Makes a program redirect nothing.
    pub(crate) fn remove_port_map(&mut self, port_map: &Arc<PinnedPortMap>) {
        self.port_maps.retain(|each| !Arc::ptr_eq(each, port_map));
        port_map.clear();
    }
}
