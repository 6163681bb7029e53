// SPDX-License-Identifier: GPL-2.0

//! Requests and requesters.

use super::nlmsg::{Buffer, Message};
use crate::sys::{bindings, pernet::NetRef};
use core::{
    marker::PhantomData,
    ptr::{self, NonNull},
};
use kernel::{error::to_result, prelude::*, str::CStr};

/// The sender of a request, whose namespaces decide what is shown and under which numbers.
#[derive(Clone, Copy)]
pub(crate) struct Requester<'a> {
    pub(super) skb: NonNull<bindings::sk_buff>,
    pub(super) _request: PhantomData<&'a bindings::sk_buff>,
}

impl Requester<'_> {
    /// The network namespace to which the request was sent.
    pub(crate) fn net(&self) -> &NetRef {
        // SAFETY: Netlink keeps the request's skb and the sockets of both ends during the
        // operation. The requester's socket keeps the namespace.
        unsafe { NetRef::from_raw(bindings::kopi_skb_net(self.skb.as_ptr())) }
    }

    /// Whether it has CAP_NET_ADMIN in the namespace.
    pub(crate) fn is_net_admin(&self) -> bool {
        // SAFETY: Netlink keeps the request's skb, and the sockets of both ends, during the
        // operation.
        unsafe { bindings::kopi_netlink_net_admin(self.skb.as_ptr()) }
    }

    /// Whether it has CAP_NET_ADMIN in the initial user namespace.
    pub(crate) fn is_admin(&self) -> bool {
        // SAFETY: Netlink keeps the request's skb, and the sockets of both ends, during the
        // operation.
        unsafe { bindings::kopi_netlink_admin(self.skb.as_ptr()) }
    }

    /// The user that opened the socket, of the initial user namespace.
    pub(crate) fn uid(&self) -> u32 {
        // SAFETY: Netlink keeps the request's skb, and the sockets of both ends, during the
        // operation.
        unsafe { bindings::kopi_netlink_uid(self.skb.as_ptr()) }
    }

    /// A user as the requester's namespace names it.
    pub(crate) fn show_uid(&self, uid: u32) -> u32 {
        // SAFETY: Netlink keeps the request's skb, and the sockets of both ends, during the
        // operation.
        unsafe { bindings::kopi_netlink_show_uid(self.skb.as_ptr(), uid) }
    }

    /// A group as the requester's namespace names it.
    pub(crate) fn show_gid(&self, gid: u32) -> u32 {
        // SAFETY: Netlink keeps the request's skb, and the sockets of both ends, during the
        // operation.
        unsafe { bindings::kopi_netlink_show_gid(self.skb.as_ptr(), gid) }
    }

    /// A user that the requester names; `None` if its namespace has no such.
    pub(crate) fn make_uid(&self, uid: u32) -> Option<u32> {
        // SAFETY: Netlink keeps the request's skb, and the sockets of both ends, during the
        // operation.
        let made = unsafe { bindings::kopi_netlink_make_uid(self.skb.as_ptr(), uid) };
        (made != u32::MAX).then_some(made)
    }

    /// A group that the requester names; `None` if its namespace has no such.
    pub(crate) fn make_gid(&self, gid: u32) -> Option<u32> {
        // SAFETY: Netlink keeps the request's skb, and the sockets of both ends, during the
        // operation.
        let made = unsafe { bindings::kopi_netlink_make_gid(self.skb.as_ptr(), gid) };
        (made != u32::MAX).then_some(made)
    }
}

/// An attribute, whose length the policy has checked.
#[derive(Clone, Copy)]
pub(crate) struct Attribute<'a> {
    pub(super) attr: NonNull<bindings::nlattr>,
    pub(super) _request: PhantomData<&'a bindings::nlattr>,
}

impl<'a> Attribute<'a> {
    /// # Safety
    ///
    /// `attr` must be null, or an attribute that lives as long as the result.
    unsafe fn from_raw(attr: *mut bindings::nlattr) -> Option<Self> {
        Some(Self {
            attr: NonNull::new(attr)?,
            _request: PhantomData,
        })
    }

    /// Its content.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        // SAFETY: The attribute lives for `'a`. Netlink's parser has checked that its whole length
        // lies within the message, which isn't written any more.
        unsafe {
            let len = usize::try_from(bindings::kopi_nla_len(self.attr.as_ptr())).unwrap_or(0);
            core::slice::from_raw_parts(bindings::kopi_nla_data(self.attr.as_ptr()).cast(), len)
        }
    }

    /// Its content as a number of the host's byte order, of up to 8 bytes.
    pub(crate) fn uint(&self) -> u64 {
        match *self.bytes() {
            [a] => u64::from(a),
            [a, b] => u64::from(u16::from_ne_bytes([a, b])),
            [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
            _ => 0,
        }
    }

    /// Its content as a number of up to 4 bytes.
    pub(crate) fn u32(&self) -> u32 {
        self.uint() as u32
    }

    /// Its content as a number of up to 2 bytes.
    pub(crate) fn u16(&self) -> u16 {
        self.uint() as u16
    }

    /// Its content as a string: `EINVAL` for what is none.
    pub(crate) fn string(&self) -> Result<&'a CStr> {
        CStr::from_bytes_until_nul(self.bytes()).map_err(|_| EINVAL)
    }
}

/// Attributes by type.
pub(crate) struct Table<'a, const SIZE: usize> {
    attrs: [*mut bindings::nlattr; SIZE],
    _request: PhantomData<&'a bindings::nlattr>,
}

impl<'a, const SIZE: usize> Table<'a, SIZE> {
    fn empty() -> Self {
        Self {
            attrs: [ptr::null_mut(); SIZE],
            _request: PhantomData,
        }
    }

    /// The attribute of a type, if it is there.
    pub(crate) fn get(&self, kind: u32) -> Option<Attribute<'a>> {
        let attr = *self.attrs.get(kind as usize)?;
        // SAFETY: The table has null, or a pointer that the parser set, to an attribute of the
        // request, which lives for `'a`.
        unsafe { Attribute::from_raw(attr) }
    }
}

/// The attributes that a request may have for a rule that is to be added.
pub(crate) type RuleInput<'a> = Table<'a, { bindings::KOPI_A_RULE_WEIGHT as usize + 1 }>;

/// The attributes that a request may have to name a rule.
pub(crate) type RuleNamed<'a> = Table<'a, { bindings::KOPI_A_RULE_HANDLE as usize + 1 }>;

/// A request that is being carried out.
pub(crate) struct Request<'a> {
    pub(super) requester: Requester<'a>,
    pub(super) info: NonNull<bindings::genl_info>,
    /// The last type of the operation's policy; 0 for one that takes no attributes.
    pub(super) last: u32,
}

impl<'a> Request<'a> {
    /// The requester.
    pub(crate) fn requester(&self) -> Requester<'a> {
        self.requester
    }

    /// The attribute of a type; `None` as well if the operation's policy hasn't that type.
    pub(crate) fn get(&self, kind: u32) -> Option<Attribute<'a>> {
        if kind > self.last {
            return None;
        }
        // SAFETY: The operation keeps its arguments. `kind` is at most the last type of the
        // operation's policy, so there is a policy, and netlink has made a table with an entry for
        // each type.
        unsafe { Attribute::from_raw(*(*self.info.as_ptr()).attrs.add(kind as usize)) }
    }

    /// All attributes of a type, in their order.
    pub(crate) fn each(&self, kind: u32) -> impl Iterator<Item = Attribute<'a>> {
        let mut left = 0;
        // SAFETY: The operation, which keeps the request, lasts for `'a`.
        let mut attr = unsafe { bindings::kopi_genl_first_attr(self.info.as_ptr(), &mut left) };
        core::iter::from_fn(move || {
            // SAFETY: `attr` and `left` describe the rest of the request, which lives for `'a`.
            // `kopi_nla_ok` checks that the attribute lies within that rest.
            unsafe {
                while bindings::kopi_nla_ok(attr, left) {
                    let this = attr;
                    attr = bindings::kopi_nla_next(this, &mut left);
                    if u32::try_from(bindings::kopi_nla_type(this)) == Ok(kind) {
                        return Attribute::from_raw(this);
                    }
                }
            }
            None
        })
    }

    /// The attributes of a rule that is to be added.
    pub(crate) fn rule_input(&self, attr: &Attribute<'a>) -> Result<RuleInput<'a>> {
        let mut table = RuleInput::empty();
        // SAFETY: The attribute lives for `'a`, and the operation keeps its arguments. The table
        // has an entry for each type of the policy, as netlink.c asserts.
        to_result(unsafe {
            bindings::kopi_parse_rule_input(
                table.attrs.as_mut_ptr(),
                attr.attr.as_ptr(),
                (*self.info.as_ptr()).extack,
            )
        })?;
        Ok(table)
    }

    /// The attributes of a rule that only names another one.
    pub(crate) fn rule_named(&self, attr: &Attribute<'a>) -> Result<RuleNamed<'a>> {
        let mut table = RuleNamed::empty();
        // SAFETY: The attribute lives for `'a`, and the operation keeps its arguments. The table
        // has an entry for each type of the policy, as netlink.c asserts.
        to_result(unsafe {
            bindings::kopi_parse_rule_named(
                table.attrs.as_mut_ptr(),
                attr.attr.as_ptr(),
                (*self.info.as_ptr()).extack,
            )
        })?;
        Ok(table)
    }

    /// Says what is wrong with the request, and with which attribute; gives the error.
    pub(crate) fn refuse(
        &self,
        error: Error,
        why: &'static CStr,
        attr: Option<&Attribute<'a>>,
    ) -> Error {
        // SAFETY: The operation keeps its arguments. The text is static, and the attribute is a
        // part of the request, so both outlive the answer.
        unsafe {
            let extack = (*self.info.as_ptr()).extack;
            if !extack.is_null() {
                (*extack)._msg = why.as_char_ptr();
                (*extack).bad_attr = attr.map_or(ptr::null(), |attr| attr.attr.as_ptr());
            }
        }
        error
    }

    /// Answers with one message of a command.
    pub(crate) fn reply(&self, command: u32, write: impl FnOnce(&mut Message) -> Result) -> Result {
        let skb = Buffer::new(bindings::KOPI_CONST_GFP_KERNEL)?;
        // SAFETY: The skb is new, and has room for the headers, or the call returns null. The
        // operation keeps the request.
        let header = unsafe {
            bindings::kopi_genlmsg_put_reply(skb.as_ptr(), self.info.as_ptr(), command as u8)
        };
        Message::write(&skb, header, write)?;
        // SAFETY: The message is complete, and netlink owns it from here. The operation keeps the
        // request.
        to_result(unsafe { bindings::kopi_genlmsg_reply(skb.give(), self.info.as_ptr()) })
    }
}
