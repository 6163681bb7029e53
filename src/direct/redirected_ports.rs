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
    programs: KVec<Arc<PinnedPortMap>>,
}

/// Memory for another port, which is allocated before the lock is taken.
pub(crate) struct PortRoom(RBTreeNodeReservation<u16, PortFlows>);

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

    /// Tells all port maps about a port.
    fn update(&self, port: u16, flows: PortFlows) {
        for program in &self.programs {
            program.set(port, flows.all > 0, flows.gro > 0);
        }
    }

    /// Adds a flow to a port, which asked for GRO packets or not. The port is redirected from its
    /// first flow on.
    pub(crate) fn add(&mut self, port: u16, gro: bool, room: PortRoom) {
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
                self.ports.insert(room.0.into_node(port, flows));
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
    /// are more programs than devices can be attached.
    pub(crate) fn add_program(
        &mut self,
        program: &Arc<PinnedPortMap>,
        room: ProgramRoom,
    ) -> Result {
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
        for (port, flows) in &self.ports {
            program.set(*port, true, flows.gro > 0);
        }
        Ok(())
    }

    /// Makes a program redirect nothing.
    pub(crate) fn remove_program(&mut self, program: &Arc<PinnedPortMap>) {
        self.programs.retain(|each| !Arc::ptr_eq(each, program));
        program.clear();
    }
}
