// SPDX-License-Identifier: GPL-2.0

//! NULL in each place, and addresses of all kinds: without the kernel module.

use kopi::pure::abi::{Meta, META_TOS};
use kopi_c::*;
use libc::{sockaddr, sockaddr_in6, sockaddr_storage, socklen_t, EAFNOSUPPORT, EINVAL};
use std::{
    mem::{size_of, zeroed},
    ptr::{from_mut, from_ref, null, null_mut},
};

#[test]
fn null_is_invalid() {
    // SAFETY: NULL is allowed in all places.
    let results = unsafe {
        [
            kopi_flow_open(null_mut(), libc::AF_INET),
            kopi_flow_fd(null()),
            kopi_flow_bind(null_mut(), null(), 0),
            kopi_flow_connect(null_mut(), null(), 0),
            kopi_flow_join(null_mut(), null_mut()),
            kopi_flow_number(null()),
            kopi_flow_error(null_mut()),
            kopi_flow_stats(null(), null_mut()),
            kopi_channel_open(null_mut(), null_mut(), null()),
            kopi_channel_fd(null()),
            kopi_channel_layout(null(), null_mut()),
            kopi_reserve(null_mut(), 0, null_mut(), 0),
            kopi_commit(null_mut(), null(), 0),
            kopi_release(null_mut(), null(), 0),
            kopi_recv_frames(null_mut(), null_mut(), 0),
            kopi_flush(null_mut()),
            kopi_doorbell(null_mut()),
            kopi_complete(null_mut(), null_mut(), 0),
            kopi_send(null_mut(), 0, null(), 0, null()) as i32,
            kopi_queue(null_mut(), 0, null(), 0, null()) as i32,
            kopi_recv(null_mut(), null_mut(), 0, null_mut(), null_mut()) as i32,
            kopi_wait(null_mut(), READABLE, null()),
            kopi_arm(null_mut(), 1),
            kopi_meta_to(null_mut(), null(), 0),
            kopi_meta_reply(null_mut()),
            kopi_meta_peer(null(), null_mut()),
            kopi_meta_local(null(), null_mut()),
        ]
    };
    assert_eq!(results, [-EINVAL; 27]);
    // SAFETY: As above.
    unsafe {
        kopi_flow_close(null_mut());
        kopi_channel_close(null_mut());
    }
}

#[test]
fn families_are_checked() {
    let mut flow = null_mut();
    for family in [0, 1, -1, 19, i32::MAX, i32::MIN] {
        // SAFETY: The pointer is valid.
        let result = unsafe { kopi_flow_open(&mut flow, family) };
        assert_eq!(result, -EAFNOSUPPORT, "{family}");
        assert!(flow.is_null());
    }
}

fn ipv6(text: &str, scope: u32) -> sockaddr_in6 {
    // SAFETY: An address is of integers.
    let mut address: sockaddr_in6 = unsafe { zeroed() };
    address.sin6_family = libc::AF_INET6 as libc::sa_family_t;
    address.sin6_port = 53_u16.to_be();
    address.sin6_addr.s6_addr = text.parse::<std::net::Ipv6Addr>().unwrap().octets();
    address.sin6_scope_id = scope;
    address
}

#[test]
fn addresses_come_back() {
    let mut meta = Meta {
        mark: 7,
        ..Meta::default()
    };
    // SAFETY: An address is of integers.
    let mut back: sockaddr_storage = unsafe { zeroed() };
    for (text, scope, expected) in [("2001:db8::1", 3, 0), ("fe80::1", 3, 3), ("ff02::1", 4, 4)] {
        let address = ipv6(text, scope);
        let peer = from_ref(&address).cast::<sockaddr>();
        let len = size_of::<sockaddr_in6>() as socklen_t;
        // SAFETY: The pointers are valid.
        unsafe {
            assert_eq!(kopi_meta_to(&mut meta, peer, len), 0);
            assert_eq!(kopi_meta_to(&mut meta, peer, len - 1), -EINVAL);
            let nowhere = sockaddr_in6 {
                sin6_port: 0,
                ..address
            };
            let nowhere = from_ref(&nowhere).cast::<sockaddr>();
            assert_eq!(kopi_meta_to(&mut meta, nowhere, len), -EINVAL);
            assert_eq!(kopi_meta_to(&mut meta, peer, len), 0);
            assert_eq!(kopi_meta_to(&mut meta, peer, 1), -EINVAL);
            assert_eq!((meta.mark, meta.ifindex), (0, scope));
            meta.local = meta.peer;
            meta.len = 5;
            meta.flags = META_TOS;
            assert_eq!(kopi_meta_reply(&mut meta), 0);
            assert_eq!((meta.len, meta.flags, meta.ifindex), (0, 0, expected));
            assert_eq!(meta.local, meta.peer);
            assert_eq!(kopi_meta_peer(&meta, &mut back), len as i32);
            let back = from_mut(&mut back).cast::<sockaddr_in6>().read();
            assert_eq!(back.sin6_addr.s6_addr, address.sin6_addr.s6_addr);
            assert_eq!(
                (back.sin6_port, back.sin6_scope_id),
                (address.sin6_port, expected)
            );
        }
    }
    // SAFETY: The pointers are valid.
    unsafe {
        meta.family = 0;
        assert_eq!(kopi_meta_peer(&meta, &mut back), -EAFNOSUPPORT);
        assert_eq!(kopi_meta_local(&meta, &mut back), -EAFNOSUPPORT);
        back.ss_family = libc::AF_UNIX as libc::sa_family_t;
        let address = from_ref(&back).cast::<sockaddr>();
        assert_eq!(kopi_meta_to(&mut meta, address, 128), -EAFNOSUPPORT);
    }
}
