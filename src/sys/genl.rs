// SPDX-License-Identifier: GPL-2.0

//! Generic netlink: requests, replies, dumps and events of the family in `src/netlink/family.c`.
//!
//! That file, made from `uapi/kopi.yaml`, checks attributes and names functions
//! that [`operations`] and [`dumps`] define.
//!
//! C header: `include/net/genetlink.h`

use super::bindings;
use super::pernet::NetRef;
use core::{
    marker::PhantomData,
    ptr::{self, NonNull}, //
};
use kernel::{
    error::{from_result, to_result},
    prelude::*,
    str::CStr, //
};

/// The registered family.
pub(crate) struct Family(());

impl Family {
    /// Registers it: `EEXIST`, `ENOMEM`. There can be one registration at a time.
    pub(crate) fn register() -> Result<Self> {
        // SAFETY: Process context; only the module's init registers it.
        to_result(unsafe { bindings::kopi_genl_register() })?;
        Ok(Self(()))
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        // SAFETY: Registered by `register`. No operation runs when this returns.
        unsafe { bindings::kopi_genl_unregister() };
    }
}

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) struct Requester<'a> {
    skb: NonNull<bindings::sk_buff>,
    _request: PhantomData<&'a bindings::sk_buff>,
}

impl Requester<'_> {
    /// The network namespace that is asked about.
    pub(crate) fn net(&self) -> &NetRef {
        // SAFETY: The request's socket is kept, and keeps its namespace.
        unsafe { NetRef::from_raw(bindings::kopi_skb_net(self.skb.as_ptr())) }
    }

    /// Whether it has CAP_NET_ADMIN in the namespace.
    pub(crate) fn is_net_admin(&self) -> bool {
        // SAFETY: The request is valid.
        unsafe { bindings::kopi_netlink_net_admin(self.skb.as_ptr()) }
    }

    /// Whether it has CAP_NET_ADMIN in the initial user namespace.
    pub(crate) fn is_admin(&self) -> bool {
        // SAFETY: The request is valid.
        unsafe { bindings::kopi_netlink_admin(self.skb.as_ptr()) }
    }

    /// The user that opened the socket, of the initial user namespace.
    pub(crate) fn uid(&self) -> u32 {
        // SAFETY: The request is valid.
        unsafe { bindings::kopi_netlink_uid(self.skb.as_ptr()) }
    }

    /// A user as the requester's namespace names it.
    pub(crate) fn show_uid(&self, uid: u32) -> u32 {
        // SAFETY: The request is valid.
        unsafe { bindings::kopi_netlink_show_uid(self.skb.as_ptr(), uid) }
    }

    /// A group as the requester's namespace names it.
    pub(crate) fn show_gid(&self, gid: u32) -> u32 {
        // SAFETY: The request is valid.
        unsafe { bindings::kopi_netlink_show_gid(self.skb.as_ptr(), gid) }
    }

    /// A user that the requester names; `None` if its namespace has no such.
    pub(crate) fn make_uid(&self, uid: u32) -> Option<u32> {
        // SAFETY: The request is valid.
        let made = unsafe { bindings::kopi_netlink_make_uid(self.skb.as_ptr(), uid) };
        (made != u32::MAX).then_some(made)
    }

    /// A group that the requester names; `None` if its namespace has no such.
    pub(crate) fn make_gid(&self, gid: u32) -> Option<u32> {
        // SAFETY: The request is valid.
        let made = unsafe { bindings::kopi_netlink_make_gid(self.skb.as_ptr(), gid) };
        (made != u32::MAX).then_some(made)
    }
}

/// An attribute, whose length the policy has checked.
#[derive(Clone, Copy)]
pub(crate) struct Attribute<'a> {
    attr: NonNull<bindings::nlattr>,
    _request: PhantomData<&'a bindings::nlattr>,
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
        // SAFETY: A valid attribute, whose length its message has room for.
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
    /// The attribute of a type, if it is there.
    pub(crate) fn get(&self, kind: u32) -> Option<Attribute<'a>> {
        let attr = *self.attrs.get(kind as usize)?;
        // SAFETY: As the parser left it.
        unsafe { Attribute::from_raw(attr) }
    }
}

/// A rule's attributes that may be given.
pub(crate) type RuleInput<'a> = Table<'a, { bindings::KOPI_A_RULE_WEIGHT as usize + 1 }>;
/// A rule's attributes that name it.
pub(crate) type RuleNamed<'a> = Table<'a, { bindings::KOPI_A_RULE_HANDLE as usize + 1 }>;

/// A request that is being carried out.
pub(crate) struct Request<'a> {
    requester: Requester<'a>,
    info: NonNull<bindings::genl_info>,
    /// The last type of the operation's policy; 0 for one that takes no attributes.
    last: u32,
}

impl<'a> Request<'a> {
    /// Who asks.
    pub(crate) fn requester(&self) -> Requester<'a> {
        self.requester
    }

    /// The attribute of a type; `None` as well if the operation's policy hasn't that type.
    pub(crate) fn get(&self, kind: u32) -> Option<Attribute<'a>> {
        if kind > self.last {
            return None;
        }
        // SAFETY: With a policy there is a table, with room for all of its types.
        unsafe { Attribute::from_raw(*(*self.info.as_ptr()).attrs.add(kind as usize)) }
    }

    /// All attributes of a type, in their order.
    pub(crate) fn each(&self, kind: u32) -> impl Iterator<Item = Attribute<'a>> {
        let mut left = 0;
        // SAFETY: The request is valid.
        let mut attr = unsafe { bindings::kopi_genl_first_attr(self.info.as_ptr(), &mut left) };
        core::iter::from_fn(move || {
            // SAFETY: The message's attributes were checked to lie in it.
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

    /// Parses a rule that is given.
    pub(crate) fn rule_input(&self, attr: &Attribute<'a>) -> Result<RuleInput<'a>> {
        let mut table = Table {
            attrs: [ptr::null_mut(); bindings::KOPI_A_RULE_WEIGHT as usize + 1],
            _request: PhantomData,
        };
        // SAFETY: The attribute is valid, and the table has room for all types of its policy.
        to_result(unsafe {
            bindings::kopi_parse_rule_input(
                table.attrs.as_mut_ptr(),
                attr.attr.as_ptr(),
                (*self.info.as_ptr()).extack,
            )
        })?;
        Ok(table)
    }

    /// Parses a rule that is named.
    pub(crate) fn rule_named(&self, attr: &Attribute<'a>) -> Result<RuleNamed<'a>> {
        let mut table = Table {
            attrs: [ptr::null_mut(); bindings::KOPI_A_RULE_HANDLE as usize + 1],
            _request: PhantomData,
        };
        // SAFETY: As above.
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
        // SAFETY: The request is valid; the message is static, and the attribute the request's.
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
        // SAFETY: A new message, and a valid request.
        let header = unsafe {
            bindings::kopi_genlmsg_put_reply(skb.as_ptr(), self.info.as_ptr(), command as u8)
        };
        Message::write(&skb, header, write)?;
        // SAFETY: The message is whole, and given away.
        to_result(unsafe { bindings::kopi_genlmsg_reply(skb.give(), self.info.as_ptr()) })
    }
}

/// A message of its own.
struct Buffer(NonNull<bindings::sk_buff>);

impl Buffer {
    fn new(gfp: u32) -> Result<Self> {
        // SAFETY: The flags go with the caller's context.
        NonNull::new(unsafe { bindings::kopi_genlmsg_new(gfp) })
            .map(Self)
            .ok_or(ENOMEM)
    }

    fn as_ptr(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    fn give(self) -> *mut bindings::sk_buff {
        core::mem::ManuallyDrop::new(self).as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: It is this value's.
        unsafe { bindings::kopi_nlmsg_free(self.0.as_ptr()) };
    }
}

/// A message that is being written. Everything that is put gives `EMSGSIZE` when there is no room.
pub(crate) struct Message(NonNull<bindings::sk_buff>);

impl Message {
    /// Writes what comes after a header, or takes the header back.
    fn write(
        buffer: &Buffer,
        header: *mut c_void,
        write: impl FnOnce(&mut Self) -> Result,
    ) -> Result {
        if header.is_null() {
            return Err(EMSGSIZE);
        }
        let result = write(&mut Self(buffer.0));
        // SAFETY: The header is the message's last.
        unsafe {
            match result {
                Ok(()) => bindings::kopi_genlmsg_end(buffer.as_ptr(), header),
                Err(_) => bindings::kopi_genlmsg_cancel(buffer.as_ptr(), header),
            }
        }
        result
    }

    /// Puts bytes.
    pub(crate) fn bytes(&mut self, kind: u32, value: &[u8]) -> Result {
        let len = i32::try_from(value.len()).map_err(|_| EINVAL)?;
        // SAFETY: The message is being written; the bytes are valid.
        to_result(unsafe {
            bindings::nla_put(
                self.0.as_ptr(),
                kind as i32,
                len,
                value.as_ptr().cast::<c_void>(),
            )
        })
    }

    /// Puts a byte.
    pub(crate) fn u8(&mut self, kind: u32, value: u8) -> Result {
        self.bytes(kind, &[value])
    }

    /// Puts a number of two bytes; in the byte order that it has.
    pub(crate) fn u16(&mut self, kind: u32, value: u16) -> Result {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Puts a number of four bytes.
    pub(crate) fn u32(&mut self, kind: u32, value: u32) -> Result {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Puts a number of as many bytes as it needs, four or eight.
    pub(crate) fn uint(&mut self, kind: u32, value: u64) -> Result {
        match u32::try_from(value) {
            Ok(value) => self.u32(kind, value),
            Err(_) => self.bytes(kind, &value.to_ne_bytes()),
        }
    }

    /// Puts a string; what is after its first zero is left out.
    pub(crate) fn string(&mut self, kind: u32, value: &[u8]) -> Result {
        let len = value
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(value.len());
        let mut string = KVec::with_capacity(len.saturating_add(1), GFP_ATOMIC)?;
        string.extend_from_slice(value.get(..len).unwrap_or(&[]), GFP_ATOMIC)?;
        string.push(0, GFP_ATOMIC)?;
        self.bytes(kind, &string)
    }

    /// Puts a flag, if it is set.
    pub(crate) fn flag(&mut self, kind: u32, value: bool) -> Result {
        if value {
            self.bytes(kind, &[])
        } else {
            Ok(())
        }
    }

    /// Puts attributes into one.
    pub(crate) fn nest(&mut self, kind: u32, write: impl FnOnce(&mut Self) -> Result) -> Result {
        // SAFETY: The message is being written. What fails within is taken back with the header.
        unsafe {
            let nest = bindings::kopi_nla_nest_start(self.0.as_ptr(), kind as i32);
            if nest.is_null() {
                return Err(EMSGSIZE);
            }
            write(self)?;
            bindings::kopi_nla_nest_end(self.0.as_ptr(), nest);
        }
        Ok(())
    }
}

/// A dump that goes on from message to message.
pub(crate) struct Dump<'a> {
    requester: Requester<'a>,
    callback: NonNull<bindings::netlink_callback>,
    skb: NonNull<bindings::sk_buff>,
    written: usize,
}

impl<'a> Dump<'a> {
    /// Who asks.
    pub(crate) fn requester(&self) -> Requester<'a> {
        self.requester
    }

    /// Where to go on: what [`Dump::go_on_at`] said last, or 0.
    pub(crate) fn position(&self) -> u64 {
        // SAFETY: The callback is the dump's; `ctx` begins with zeroes, and is only ever this.
        unsafe { ptr::read((&raw const (*self.callback.as_ptr()).__bindgen_anon_1).cast::<u64>()) }
    }

    /// Says where the next call goes on.
    pub(crate) fn go_on_at(&mut self, position: u64) {
        // SAFETY: As above.
        unsafe {
            ptr::write(
                (&raw mut (*self.callback.as_ptr()).__bindgen_anon_1).cast::<u64>(),
                position,
            );
        }
    }

    /// Says which state is being shown: if it changes before the dump ends, the requester is told.
    pub(crate) fn shows(&mut self, generation: u64) {
        // SAFETY: The callback is the dump's. Never 0, which means that nothing was shown yet.
        unsafe { (*self.callback.as_ptr()).seq = (generation as u32) | 1 << 31 };
    }

    /// Adds a message; `Ok(false)` when it must go into the next buffer.
    pub(crate) fn add(
        &mut self,
        command: u32,
        write: impl FnOnce(&mut Message) -> Result,
    ) -> Result<bool> {
        // It isn't freed here.
        let buffer = core::mem::ManuallyDrop::new(Buffer(self.skb));
        // SAFETY: The callback and the buffer are the dump's.
        let header = unsafe {
            bindings::kopi_genlmsg_put_part(
                self.skb.as_ptr(),
                self.callback.as_ptr(),
                command as u8,
            )
        };
        match Message::write(&buffer, header, write) {
            Ok(()) => {
                self.written = self.written.saturating_add(1);
                Ok(true)
            }
            // A message that fits into no buffer would be tried for ever.
            Err(error) if error == EMSGSIZE && self.written > 0 => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether anybody listens to events of the namespace. Any context.
pub(crate) fn has_listeners(net: &NetRef) -> bool {
    // SAFETY: The namespace is valid.
    unsafe { bindings::kopi_genl_has_listeners(net.as_ptr()) }
}

/// Sends an event to all who listen in the namespace; `sleeps` says whether the context may.
pub(crate) fn send_event(
    net: &NetRef,
    command: u32,
    sleeps: bool,
    write: impl FnOnce(&mut Message) -> Result,
) -> Result {
    let gfp = if sleeps {
        bindings::KOPI_CONST_GFP_KERNEL
    } else {
        bindings::KOPI_CONST_GFP_ATOMIC
    };
    let skb = Buffer::new(gfp)?;
    // SAFETY: A new message.
    let header = unsafe { bindings::kopi_genlmsg_put_event(skb.as_ptr(), command as u8) };
    Message::write(&skb, header, write)?;
    // SAFETY: The message is whole, and given away. The namespace is valid.
    match unsafe { bindings::kopi_genlmsg_multicast(net.as_ptr(), skb.give(), gfp) } {
        // Nobody listens.
        error if error == ESRCH.to_errno() => Ok(()),
        error => to_result(error),
    }
}

/// The arguments of operations, as C has them.
pub(crate) type RawSkb = bindings::sk_buff;
pub(crate) type RawInfo = bindings::genl_info;
pub(crate) type RawCallback = bindings::netlink_callback;

/// Carries out a request, of whose policy `last` is the last type.
///
/// # Safety
///
/// To be called with the arguments of an operation of the family.
pub(crate) unsafe fn carry_out(
    skb: *mut RawSkb,
    info: *mut RawInfo,
    last: u32,
    function: fn(&Request<'_>) -> Result,
) -> c_int {
    from_result(|| {
        let request = Request {
            requester: Requester {
                skb: NonNull::new(skb).ok_or(EINVAL)?,
                _request: PhantomData,
            },
            info: NonNull::new(info).ok_or(EINVAL)?,
            last,
        };
        function(&request)?;
        Ok(0)
    })
}

/// Goes on with a dump.
///
/// # Safety
///
/// To be called with the arguments of a dump of the family.
pub(crate) unsafe fn go_on(
    skb: *mut RawSkb,
    callback: *mut RawCallback,
    function: fn(&mut Dump<'_>) -> Result,
) -> c_int {
    from_result(|| {
        let callback = NonNull::new(callback).ok_or(EINVAL)?;
        // SAFETY: The callback is that of a running dump, which keeps its request.
        let asking = unsafe { (*callback.as_ptr()).skb };
        let mut dump = Dump {
            requester: Requester {
                skb: NonNull::new(asking).ok_or(EINVAL)?,
                _request: PhantomData,
            },
            callback,
            skb: NonNull::new(skb).ok_or(EINVAL)?,
            written: 0,
        };
        function(&mut dump)?;
        // Asked again until nothing is added.
        // SAFETY: The buffer is the dump's.
        Ok(i32::try_from(unsafe { (*skb).len }).unwrap_or(0))
    })
}

/// Defines the operations that `src/netlink/family.c` names, each with the last type of its policy.
macro_rules! operations {
    ($($name:ident($last:expr) => $function:path,)*) => {
        $(
            #[no_mangle]
            #[expect(unsafe_code, reason = "C calls it, as the family's operation")]
            unsafe extern "C" fn $name(
                skb: *mut $crate::sys::genl::RawSkb,
                info: *mut $crate::sys::genl::RawInfo,
            ) -> c_int {
                // SAFETY: The arguments are those of the operation.
                unsafe { $crate::sys::genl::carry_out(skb, info, $last, $function) }
            }
        )*
    };
}
pub(crate) use operations;

/// Defines the dumps that `src/netlink/family.c` names.
macro_rules! dumps {
    ($($name:ident => $function:path,)*) => {
        $(
            #[no_mangle]
            #[expect(unsafe_code, reason = "C calls it, as the family's dump")]
            unsafe extern "C" fn $name(
                skb: *mut $crate::sys::genl::RawSkb,
                callback: *mut $crate::sys::genl::RawCallback,
            ) -> c_int {
                // SAFETY: The arguments are those of the dump.
                unsafe { $crate::sys::genl::go_on(skb, callback, $function) }
            }
        )*
    };
}
pub(crate) use dumps;
