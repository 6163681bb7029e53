// SPDX-License-Identifier: GPL-2.0

//! The local ports of a namespace's flows that asked for GRO packets: what XDP programs of attached devices redirect.

use crate::sys::direct::port_map::PortMap;
use kernel::{
    prelude::*,
    rbtree::{RBTree, RBTreeNodeReservation},
    sync::Arc,
};

/// See the module's documentation.
pub(crate) struct RedirectedPorts {
    /// How many flows each port has.
    ports: RBTree<u16, u32>,
    /// Of devices that take what is redirected.
    programs: KVec<Arc<PortMap>>,
}

/// What another port may need, to be had before the lock is taken.
pub(crate) struct Room(RBTreeNodeReservation<u16, u32>);

impl Room {
    /// `ENOMEM`. Process context.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self(RBTreeNodeReservation::new(GFP_KERNEL_ACCOUNT)?))
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

    fn tell(&self, port: u16, wanted: bool) {
        for program in &self.programs {
            program.set(port, wanted);
        }
    }

    /// A flow has a port from now on.
    pub(crate) fn add(&mut self, port: u16, room: Room) {
        if let Some(flows) = self.ports.get_mut(&port) {
            *flows = flows.saturating_add(1);
            return;
        }
        self.ports.insert(room.0.into_node(port, 1));
        self.tell(port, true);
    }

    /// A flow doesn't have a port any more.
    pub(crate) fn remove(&mut self, port: u16) {
        match self.ports.get_mut(&port) {
            Some(flows) if *flows > 1 => *flows = flows.saturating_sub(1),
            _ => {
                let _gone = self.ports.remove(&port);
                self.tell(port, false);
            }
        }
    }

    /// A program is to redirect what these ports get: `ENOMEM`.
    pub(crate) fn attach(&mut self, program: &Arc<PortMap>) -> Result {
        self.programs.push(program.clone(), GFP_KERNEL_ACCOUNT)?;
        for port in self.ports.keys() {
            program.set(*port, true);
        }
        Ok(())
    }

    /// A program is to redirect nothing.
    pub(crate) fn detach(&mut self, program: &Arc<PortMap>) {
        self.programs.retain(|each| !Arc::ptr_eq(each, program));
        program.clear();
    }
}
