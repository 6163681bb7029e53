// SPDX-License-Identifier: GPL-2.0

//! Netlink attributes as fields of structs. `attributes!` declares a set of uapi/kopi.yaml once, with
//! its numbers and its words; reading, writing and explaining it follow from that.

use netlink_packet_core::{
    parse_ip, parse_u16, parse_u16_be, parse_u32, parse_u64, parse_u8, DecodeError, DefaultNla,
    Parseable, NLA_F_NESTED,
};
use std::net::IpAddr;

/// An attribute of a set.
#[derive(Debug)]
pub(crate) struct Attribute {
    /// Its number on the wire.
    pub(crate) number: u16,
    /// Its name in the specification, but with underscores.
    pub(crate) name: &'static str,
    /// What the specification says about it.
    pub(crate) doc: &'static str,
    /// The attributes that are nested in it.
    pub(crate) set: &'static [Attribute],
}

impl Attribute {
    /// Its name in the specification.
    pub(crate) fn spec_name(&self) -> String {
        self.name.replace('_', "-")
    }
}

/// An attribute that is there, for people.
pub(crate) struct Row {
    /// Which.
    pub(crate) attribute: &'static Attribute,
    /// What it holds.
    pub(crate) text: String,
    /// The same, if it is a plain number.
    pub(crate) number: Option<u64>,
}

/// A struct that `attributes!` made.
pub(crate) trait Set: Default + for<'a> Parseable<[u8]> {
    /// All there are, in the order of the specification.
    const ATTRIBUTES: &'static [Attribute];
    /// Those that are there, for the wire.
    fn attributes(&self) -> Vec<DefaultNla>;
    /// Those that are there and hold a single value, for people.
    fn rows(&self) -> Vec<Row>;
    /// All of it, as bytes.
    fn to_bytes(&self) -> Vec<u8> {
        use netlink_packet_core::Emitable;
        let attributes = self.attributes();
        let mut bytes = vec![0; attributes.as_slice().buffer_len()];
        attributes.as_slice().emit(&mut bytes);
        bytes
    }
}

/// What an attribute can hold.
pub(crate) trait Value: Sized {
    /// Flags of its kind on the wire.
    const FLAGS: u16 = 0;
    /// What is nested in it.
    const SET: &'static [Attribute] = &[];
    /// Reads it.
    fn read(bytes: &[u8]) -> Result<Self, DecodeError>;
    /// Writes it.
    fn write(&self) -> Vec<u8>;
    /// For people; nothing if it has rows of its own.
    fn text(&self) -> Option<String>;
    /// A plain number.
    fn number(&self) -> Option<u64> {
        None
    }
}

macro_rules! number {
    ($type:ty, $read:expr) => {
        impl Value for $type {
            fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
                $read(bytes)
            }
            fn write(&self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }
            fn text(&self) -> Option<String> {
                Some(self.to_string())
            }
            fn number(&self) -> Option<u64> {
                Some(u64::from(*self))
            }
        }
    };
}
number!(u8, parse_u8);
number!(u16, parse_u16);
number!(u32, parse_u32);

/// The specification's `uint`, which takes four bytes if it fits.
impl Value for u64 {
    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes.len() {
            4 => parse_u32(bytes).map(u64::from),
            _ => parse_u64(bytes),
        }
    }
    fn write(&self) -> Vec<u8> {
        u32::try_from(*self).map_or_else(
            |_| self.to_ne_bytes().to_vec(),
            |small| small.to_ne_bytes().to_vec(),
        )
    }
    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
    fn number(&self) -> Option<u64> {
        Some(*self)
    }
}

/// A port in network byte order.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
#[serde(transparent)]
pub(crate) struct Port(pub(crate) u16);

impl Value for Port {
    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        parse_u16_be(bytes).map(Self)
    }
    fn write(&self) -> Vec<u8> {
        self.0.to_be_bytes().to_vec()
    }
    fn text(&self) -> Option<String> {
        Some(self.0.to_string())
    }
}

impl Value for IpAddr {
    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        parse_ip(bytes)
    }
    fn write(&self) -> Vec<u8> {
        match self {
            Self::V4(address) => address.octets().to_vec(),
            Self::V6(address) => address.octets().to_vec(),
        }
    }
    fn text(&self) -> Option<String> {
        Some(self.to_string())
    }
}

/// Ends at the first zero. Names of files needn't be UTF-8: what isn't is shown as U+FFFD.
impl Value for String {
    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        let end = bytes.iter().position(|&byte| byte == 0);
        Ok(Self::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned())
    }
    fn write(&self) -> Vec<u8> {
        [self.as_bytes(), &[0]].concat()
    }
    fn text(&self) -> Option<String> {
        Some(self.clone())
    }
}

impl<S: Set> Value for S {
    const FLAGS: u16 = NLA_F_NESTED;
    const SET: &'static [Attribute] = S::ATTRIBUTES;
    fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::parse(bytes)
    }
    fn write(&self) -> Vec<u8> {
        self.to_bytes()
    }
    fn text(&self) -> Option<String> {
        None
    }
}

/// Makes an enum something that an attribute can hold, and says what it is: its values are their numbers
/// on the wire.
macro_rules! numbered {
    ($type:ty, $what:literal) => {
        impl crate::attributes::Value for $type {
            fn read(bytes: &[u8]) -> Result<Self, netlink_packet_core::DecodeError> {
                let number = netlink_packet_core::parse_u32(bytes)?;
                let mut known = <Self as clap::ValueEnum>::value_variants().iter().copied();
                known.find(|&each| each as u32 == number).ok_or_else(|| {
                    format!("{number} is no {} that this program knows", $what).into()
                })
            }
            fn write(&self) -> Vec<u8> {
                crate::attributes::Value::write(&(*self as u32))
            }
            fn text(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    };
}

/// How often an attribute can be there: an Option (once), a bool (a flag), a Vec (many times).
pub(crate) trait Field {
    /// What is nested in it.
    const SET: &'static [Attribute] = &[];
    /// Adds one that was read.
    fn add(&mut self, bytes: &[u8]) -> Result<(), DecodeError>;
    /// Those to be written.
    fn attributes(&self, number: u16) -> Vec<DefaultNla>;
    /// For people: its text, and its number.
    fn row(&self) -> Option<(String, Option<u64>)>;
    /// Whether it isn't there.
    fn is_absent(&self) -> bool;
}

impl<V: Value> Field for Option<V> {
    const SET: &'static [Attribute] = V::SET;
    fn add(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        *self = Some(V::read(bytes)?);
        Ok(())
    }
    fn attributes(&self, number: u16) -> Vec<DefaultNla> {
        self.iter()
            .map(|value| DefaultNla::new(number | V::FLAGS, value.write()))
            .collect()
    }
    fn row(&self) -> Option<(String, Option<u64>)> {
        self.as_ref()
            .and_then(|value| Some((value.text()?, value.number())))
    }
    fn is_absent(&self) -> bool {
        self.is_none()
    }
}

impl Field for bool {
    fn add(&mut self, _: &[u8]) -> Result<(), DecodeError> {
        *self = true;
        Ok(())
    }
    fn attributes(&self, number: u16) -> Vec<DefaultNla> {
        self.then(|| DefaultNla::new(number, Vec::new()))
            .into_iter()
            .collect()
    }
    fn row(&self) -> Option<(String, Option<u64>)> {
        self.then(|| ("yes".to_owned(), None))
    }
    fn is_absent(&self) -> bool {
        !self
    }
}

impl<V: Value> Field for Vec<V> {
    const SET: &'static [Attribute] = V::SET;
    fn add(&mut self, bytes: &[u8]) -> Result<(), DecodeError> {
        self.push(V::read(bytes)?);
        Ok(())
    }
    fn attributes(&self, number: u16) -> Vec<DefaultNla> {
        self.iter()
            .map(|value| DefaultNla::new(number | V::FLAGS, value.write()))
            .collect()
    }
    fn row(&self) -> Option<(String, Option<u64>)> {
        None
    }
    fn is_absent(&self) -> bool {
        self.is_empty()
    }
}

/// Declares a struct for a set of attributes: `NUMBER name: type`, where the type is an Option, a bool
/// or a Vec of what can be a [`Value`]. Attributes that it doesn't know are passed over.
macro_rules! attributes {
    ($(#[doc = $about:literal])+ $name:ident {
        $( $(#[doc = $doc:literal])+ $number:literal $field:ident: $type:ty, )+
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
        pub(crate) struct $name {
            $(
                $(#[doc = $doc])+
                #[serde(skip_serializing_if = "crate::attributes::Field::is_absent")]
                pub(crate) $field: $type,
            )+
        }

        impl netlink_packet_core::Parseable<[u8]> for $name {
            fn parse(bytes: &[u8]) -> std::result::Result<Self, netlink_packet_core::DecodeError> {
                use netlink_packet_core::ErrorContext;
                let mut set = Self::default();
                for attribute in netlink_packet_core::NlasIterator::new(bytes) {
                    let attribute = attribute?;
                    match attribute.kind() {
                        $( $number => crate::attributes::Field::add(&mut set.$field, attribute.value())
                            .context(stringify!($field))?, )+
                        _ => (),
                    }
                }
                Ok(set)
            }
        }

        impl crate::attributes::Set for $name {
            const ATTRIBUTES: &'static [crate::attributes::Attribute] = &[
                $( crate::attributes::Attribute {
                    number: $number,
                    name: stringify!($field),
                    doc: concat!($($doc),+),
                    set: <$type as crate::attributes::Field>::SET,
                }, )+
            ];

            fn attributes(&self) -> Vec<netlink_packet_core::DefaultNla> {
                let fields = [$( crate::attributes::Field::attributes(&self.$field, $number), )+];
                fields.concat()
            }

            fn rows(&self) -> Vec<crate::attributes::Row> {
                let values = [$( crate::attributes::Field::row(&self.$field), )+];
                std::iter::zip(Self::ATTRIBUTES, values)
                    .filter_map(|(attribute, value)| {
                        let (text, number) = value?;
                        Some(crate::attributes::Row { attribute, text, number })
                    })
                    .collect()
            }
        }
    };
}
pub(crate) use {attributes, numbered};
