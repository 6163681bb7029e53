// SPDX-License-Identifier: GPL-2.0

//! Datagrams that a driver has received, as skbs around its frames.
//!
//! An skb's memory is used again for the next frame, unless somebody has kept the skb.

use super::{
    datagram_ends::{Addresses, AddressesV4, AddressesV6, DatagramEnds, Receives},
    input_routes::InputRoutes,
    redirected::XdpFrame, //
};
use crate::pure::ip::{IpVersion, HEADER_V4, HEADER_V6};
use crate::sys::{
    bindings,
    family::{self, Protocol},
    netdev::Device,
    skb::SkBuff,
    sock::Sock,
};
use core::{
    mem::ManuallyDrop,
    ptr::{self, NonNull},
};
use kernel::sync::rcu;

/// An skb without data for the next frame of a device, or none.
pub(crate) struct SpareSkb {
    skb: *mut bindings::sk_buff,
    /// Hooks haven't seen it.
    is_plain: bool,
}

// SAFETY: An skb is not bound to a CPU or task, and this value is its only owner.
unsafe impl Send for SpareSkb {}

impl SpareSkb {
    /// None.
    pub(crate) const NONE: Self = Self {
        skb: ptr::null_mut(),
        is_plain: false,
    };
}

impl Drop for SpareSkb {
    fn drop(&mut self) {
        if !self.skb.is_null() {
            // SAFETY: This value owns the skb, which was released from its frame.
            unsafe { bindings::kopi_free_frame_skb(self.skb) };
        }
    }
}

/// A datagram that was received as a frame, and not given to the stack.
///
/// # Invariants
///
/// This value owns the skb, whose data are the frame's. The skb's network and transport headers are
/// in the linear part, in front of or at the start of the data.
pub(crate) struct Incoming {
    skb: NonNull<bindings::sk_buff>,
    /// The frame, whose memory the skb owns as long as it has it.
    frame: ManuallyDrop<XdpFrame>,
    version: IpVersion,
    /// IP has counted it.
    counted: bool,
    /// Hooks have seen it.
    hooked: bool,
}

/// Why a sock's filters drop a datagram.
pub(crate) struct Filtered(bindings::skb_drop_reason);

impl Incoming {
    /// Makes an skb of the first `len` bytes of a frame: headers of Ethernet, of that version of IP
    /// without options or extension headers, and of UDP, with right checksums, and payload. Gives the
    /// frame back if IP wouldn't take it, or memory is short. `napi_id` is [`XdpFrame::napi_id`]. In an
    /// RCU read-side section, with softirqs off.
    #[inline]
    pub(crate) fn wrap(
        spare: &mut SpareSkb,
        frame: XdpFrame,
        device: &Device,
        (version, len): (IpVersion, usize),
        napi_id: u32,
    ) -> core::result::Result<Self, XdpFrame> {
        if !frame.has(len) {
            return Err(frame);
        }
        // SAFETY: The frame is owned, and has `len` bytes, as checked. The spare skb has no data.
        // The device is referenced, and outlives the NAPI poll.
        let skb = unsafe {
            bindings::kopi_wrap_frame(
                spare.skb,
                spare.is_plain,
                frame.as_ptr(),
                device.as_ptr(),
                len as u32,
                napi_id,
            )
        };
        let Some(skb) = NonNull::new(skb) else {
            return Err(frame);
        };
        spare.skb = ptr::null_mut();
        // INVARIANT: Just made around the frame, with all headers in its linear part.
        Ok(Self {
            skb,
            frame: ManuallyDrop::new(frame),
            version,
            counted: false,
            hooked: false,
        })
    }

    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.skb.as_ptr()
    }

    /// Gives the frame back, which nobody else has seen.
    pub(crate) fn into_frame(self, spare: &mut SpareSkb) -> XdpFrame {
        // SAFETY: This value owns the skb, and nobody else has a reference.
        unsafe { bindings::kopi_unwrap_frame(self.as_ptr()) };
        // INVARIANT of `SpareSkb`: Without data, and nobody else's.
        spare.skb = self.as_ptr();
        spare.is_plain = !self.hooked;
        ManuallyDrop::into_inner(self.frame)
    }

    /// Counts it as received by IP, before anybody else has seen it. Softirqs are off.
    fn count(&mut self) {
        self.counted = true;
        let frame = self.frame.as_ptr();
        // SAFETY: This value owns the skb, whose device outlives the NAPI poll, and the frame, whose
        // struct is in front of the data.
        unsafe {
            match self.version {
                IpVersion::V4 => bindings::kopi_count_input4(self.as_ptr(), frame),
                IpVersion::V6 => bindings::kopi_count_input6(self.as_ptr(), frame),
            }
        }
    }

    /// The addresses and ports of the headers.
    #[inline]
    pub(crate) fn ends(&self) -> DatagramEnds {
        // SAFETY: This value owns the skb, whose headers are in its linear part. They needn't be
        // aligned.
        unsafe {
            let udp = bindings::kopi_udp_hdr(self.as_ptr());
            DatagramEnds {
                addresses: match self.version {
                    IpVersion::V4 => self.addresses_v4(),
                    IpVersion::V6 => self.addresses_v6(),
                },
                source_port: (&raw const (*udp).source).read_unaligned(),
                local_port: (&raw const (*udp).dest).read_unaligned(),
            }
        }
    }

    /// # Safety
    ///
    /// It must be of IPv4.
    #[inline]
    unsafe fn addresses_v4(&self) -> Addresses {
        // SAFETY: As above. Both addresses are plain numbers.
        unsafe {
            let ip = bindings::kopi_ip_hdr(self.as_ptr());
            let addresses = (&raw const (*ip).__bindgen_anon_1.addrs).read_unaligned();
            Addresses::V4(AddressesV4 {
                source: addresses.saddr,
                local: addresses.daddr,
                tos: (&raw const (*ip).tos).read_unaligned(),
            })
        }
    }

    /// # Safety
    ///
    /// It must be of IPv6.
    #[inline]
    unsafe fn addresses_v6(&self) -> Addresses {
        // SAFETY: As above. Any bytes are an address.
        unsafe {
            let ip = bindings::kopi_ipv6_hdr(self.as_ptr());
            let addresses = (&raw const (*ip).__bindgen_anon_1.addrs).read_unaligned();
            Addresses::V6(AddressesV6 {
                source: u128::from_ne_bytes(addresses.saddr.in6_u.u6_addr8),
                local: u128::from_ne_bytes(addresses.daddr.in6_u.u6_addr8),
            })
        }
    }

    /// Finds its route, and remembers one that ends at this host. Returns whether it does. An IPv6 datagram has
    /// the route afterwards, whose device it is counted for. To be called before hooks are asked. In an RCU
    /// read-side section.
    #[inline]
    pub(crate) fn route_here(
        &self,
        ends: &DatagramEnds,
        routes: &mut InputRoutes,
        _rcu: &rcu::Guard,
    ) -> bool {
        let known = routes.find(ends);
        // SAFETY: This value owns the skb, whose data begin with the IP header. RCU, held here,
        // keeps the route.
        unsafe {
            if !known.is_null() {
                if self.version == IpVersion::V6 {
                    bindings::kopi_use_route6(self.as_ptr(), known);
                }
                return true;
            }
            let ends_here = match self.version {
                IpVersion::V4 => bindings::kopi_route_here4(self.as_ptr()),
                IpVersion::V6 => bindings::kopi_route_here6(self.as_ptr()),
            };
            if ends_here {
                routes.learn(ends, self.as_ptr());
            }
            ends_here
        }
    }

    /// Asks the hooks of PRE_ROUTING and LOCAL_IN, and gives it back if they let it pass as a packet
    /// for this host. In an RCU read-side section, with softirqs off.
    pub(crate) fn ask_hooks(mut self, routes: &mut InputRoutes, rcu: &rcu::Guard) -> Option<Self> {
        self.count();
        self.hooked = true;
        let ends = self.ends();
        let mut known = routes.find(&ends);
        if known.is_null() && self.route_here(&ends, routes, rcu) {
            known = routes.find(&ends);
        }
        // SAFETY: This value owns the skb, whose data begin with the IP header, and RCU, held here,
        // keeps the route. If the call gives false, the skb has another owner, and with it the
        // frame's memory.
        let passes = unsafe {
            match self.version {
                IpVersion::V4 => bindings::kopi_ask_input_hooks4(self.as_ptr(), known),
                IpVersion::V6 => bindings::kopi_ask_input_hooks6(self.as_ptr(), known),
            }
        };
        passes.then_some(self)
    }

    /// Whether this is still one whole datagram with a right checksum after hooks have seen it, and no hook has
    /// chosen its receiver.
    pub(crate) fn is_whole(&self) -> bool {
        // SAFETY: This value owns the skb, whose data begin with the IP header.
        let is_datagram = || unsafe {
            match self.version {
                IpVersion::V4 => bindings::kopi_is_datagram4(self.as_ptr()),
                IpVersion::V6 => bindings::kopi_is_datagram6(self.as_ptr()),
            }
        };
        !self.hooked || is_datagram()
    }

    /// The flow that receives it, if UDP would queue what the flow's sock gets as it is; and which
    /// other datagrams it receives. It must be whole. In an RCU read-side section.
    pub(crate) fn receiver<'b, T: Protocol>(
        &self,
        _rcu: &'b rcu::Guard,
    ) -> Option<(&'b Sock, &'b T, Receives)> {
        // SAFETY: This value owns the skb, whose data begin with the IP header. RCU, held for `'b`,
        // keeps the sock, and a flow's state.
        unsafe {
            let sk = match self.version {
                IpVersion::V4 => bindings::kopi_find_receiver4(self.as_ptr()),
                IpVersion::V6 => bindings::kopi_find_receiver6(self.as_ptr()),
            };
            let (sock, flow) = family::flow_of::<T>(sk)?;
            bindings::kopi_sock_receives_plainly(sk, family::data_ready_of::<T>())
                .then(|| (sock, flow, Receives::of(bindings::kopi_sock_receives(sk))))
        }
    }

    /// Gives UDP a datagram that hooks have let pass. In an RCU read-side section, with softirqs
    /// off.
    pub(crate) fn go_on(self, _rcu: &rcu::Guard) {
        // SAFETY: This value owned the skb, whose data begin with the IP header. The stack owns it
        // from here, and with it the frame's memory.
        unsafe {
            match self.version {
                IpVersion::V4 => bindings::kopi_input_by_stack4(self.as_ptr()),
                IpVersion::V6 => bindings::kopi_input_by_stack6(self.as_ptr()),
            }
        }
    }

    /// Bytes of payload. To be asked before [`Incoming::filter`].
    pub(crate) fn payload_len(&self) -> u32 {
        let headers = match self.version {
            IpVersion::V4 => HEADER_V4,
            IpVersion::V6 => HEADER_V6,
        };
        // SAFETY: This value owns the skb, whose data begin with the headers of IP and UDP.
        unsafe { (*self.as_ptr()).len }.saturating_sub(headers as u32)
    }

    /// Asks the filters of the sock that receives it. Softirqs are off. To be called once.
    pub(crate) fn filter(&mut self, sk: &Sock) -> core::result::Result<(), Filtered> {
        if !self.counted {
            self.count();
        }
        // SAFETY: This value owns the skb, whose data begin with the IP header; one of IPv6 has a
        // route. The sock is borrowed, and a UDP sock; of IPv6, if the datagram is.
        let reason = unsafe {
            match self.version {
                IpVersion::V4 => {
                    bindings::kopi_enter_udp4(self.as_ptr());
                    bindings::kopi_filter_datagram4(sk.as_ptr(), self.as_ptr())
                }
                IpVersion::V6 => {
                    bindings::kopi_enter_udp6(self.as_ptr());
                    bindings::kopi_filter_datagram6(sk.as_ptr(), self.as_ptr())
                }
            }
        };
        match reason {
            0 => Ok(()),
            reason => Err(Filtered(reason as bindings::skb_drop_reason)),
        }
    }

    /// Calls `act` with it, after [`Incoming::filter`] has let it pass.
    pub(crate) fn with_skb<R>(&self, act: impl FnOnce(&SkBuff) -> R) -> R {
        // SAFETY: The skb's headers are as `SkBuff` requires, and its data begin with the payload.
        // The value isn't dropped, so that the skb stays this one's.
        let skb = ManuallyDrop::new(unsafe { SkBuff::from_raw(self.skb) });
        act(&skb)
    }

    /// The skb, with the frame's memory.
    pub(crate) fn into_skb(self) -> SkBuff {
        // SAFETY: As above. The skb owns the frame's memory from here.
        unsafe { SkBuff::from_raw(self.skb) }
    }

    /// Frees a datagram that was received, or keeps its skb for the next one.
    #[inline]
    pub(crate) fn finish(self, spare: &mut SpareSkb) {
        let head = self.frame.memory();
        // SAFETY: This value owns the skb. If nobody else has it or its memory, the frame is freed
        // as one; otherwise the skb is.
        unsafe {
            if bindings::kopi_is_frame_alone(self.as_ptr(), head) {
                drop(self.into_frame(spare));
            } else {
                bindings::consume_skb(self.as_ptr());
            }
        }
    }

    /// Drops it, as the filters said. In an RCU read-side section.
    pub(crate) fn drop(self, sk: &Sock, why: Filtered) {
        // SAFETY: This value owned the skb, which isn't used any more. The sock is borrowed.
        unsafe { bindings::sk_skb_reason_drop(sk.as_ptr(), self.as_ptr(), why.0) };
    }
}
