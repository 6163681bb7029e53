// SPDX-License-Identifier: GPL-2.0

//! The local UDP ports of a namespace's flows that asked for GRO packets, which the XDP programs of
//! attached devices redirect.

use super::attach::ATTACHED_MAX;
use crate::sys::direct::port_map::PinnedPortMap;
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::Arc,
};

/// The redirected ports of one network namespace.
pub(crate) struct RedirectedPorts {
    /// Number of flows of each port.
    ports: RBTree<u16, u32>,
    /// The port maps of the devices whose redirect devices take frames.
    programs: KVec<Arc<PinnedPortMap>>,
}

/// Memory for another port, which is allocated before the lock is taken.
pub(crate) struct PortRoom(RBTreeNodeReservation<u16, u32>);

impl PortRoom {
    /// `ENOMEM`. Process context.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?))
    }
}

/// Memory for the programs of all devices, which is allocated before the lock is taken.
pub(crate) struct ProgramRoom(KVec<Arc<PinnedPortMap>>);

impl ProgramRoom {
    /// `ENOMEM`. Process context.
    pub(crate) fn new() -> Result<Self> {
        let room = KVec::with_capacity(ATTACHED_MAX, GFP_KERNEL_ACCOUNT)?;
        Ok(Self(room))
    }
}

impl RedirectedPorts {
    /// No ports, and no programs.
    pub(crate) fn new() -> Self {
        Self {
            ports: RBTree::new(),
            programs: KVec::new(),
        }
    }

    /// Sets or clears a port in all port maps.
    fn update(&self, port: u16, redirected: bool) {
        for program in &self.programs {
            program.set(port, redirected);
        }
    }

    /// Adds a flow to a port. The port is redirected from its first flow on.
    pub(crate) fn add(&mut self, port: u16, room: PortRoom) {
        if let Some(flows) = self.ports.get_mut(&port) {
            *flows = flows.saturating_add(1);
            return;
        }
        self.ports.insert(room.0.into_node(port, 1));
        self.update(port, true);
    }

    /// Removes a flow from a port. The port is redirected until its last flow is removed.
    pub(crate) fn remove(&mut self, port: u16) {
        match self.ports.get_mut(&port) {
            Some(flows) if *flows > 1 => *flows = flows.saturating_sub(1),
            _ => {
                let _gone = self.ports.remove(&port);
                self.update(port, false);
            }
        }
    }

    /// Makes a program redirect these ports, and the ports that are added later: `ENOMEM` if there
    /// are more programs than devices can be attached.
    pub(crate) fn attach(&mut self, program: &Arc<PinnedPortMap>, room: ProgramRoom) -> Result {
        let mut programs = room.0;
        for each in &self.programs {
            programs
                .push_within_capacity(each.clone())
                .map_err(|_| ENOMEM)?;
        }
        programs
            .push_within_capacity(program.clone())
            .map_err(|_| ENOMEM)?;
        self.programs = programs;
        for port in self.ports.keys() {
            program.set(*port, true);
        }
        Ok(())
    }

    /// Makes a program redirect nothing.
    pub(crate) fn detach(&mut self, program: &Arc<PinnedPortMap>) {
        self.programs.retain(|each| !Arc::ptr_eq(each, program));
        program.clear();
    }
}
