// SPDX-License-Identifier: GPL-2.0

//! Names and addresses from a hosts file, and DNS answers made of them.

use simple_dns::{
    header_buffer,
    rdata::{RData, A, AAAA, PTR},
    Name, Packet, PacketFlag, ResourceRecord, CLASS, OPCODE, QCLASS, QTYPE, RCODE, TYPE,
};
use std::{
    collections::{HashMap, HashSet},
    net::IpAddr,
};

/// Seconds for which an answer may be kept.
const TTL: u32 = 60;
/// Bytes of an answer for a client that doesn't speak of its limit.
const PLAIN_LIMIT: usize = 512;
/// Bytes of an answer at most, whatever a client says: what passes every path in one piece.
const LIMIT: u16 = 1232;
/// Bytes of a message before its questions.
const HEADER: usize = 12;
/// Records of a question at most: it may have an OPT record, and a signature.
const RECORDS: u16 = 4;

/// What a hosts file says, by lower-case name.
#[derive(Debug, Default)]
pub struct Hosts {
    addresses: HashMap<String, Vec<IpAddr>>,
    /// The first name of each address, by the address's name in the reverse tree.
    names: HashMap<String, String>,
    /// The domains above the names.
    above: HashSet<String>,
}

impl Hosts {
    /// Reads lines of an address and names, as in /etc/hosts; says what is wrong, and where.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut hosts = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(address) = words.next() else {
                continue;
            };
            let address: IpAddr = address
                .parse()
                .map_err(|_| format!("line {}: no address: {address}", number + 1))?;
            for name in words {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                Name::new(&name).map_err(|_| format!("line {}: no name: {name}", number + 1))?;
                hosts.insert(&name, address);
            }
        }
        Ok(hosts)
    }

    fn insert(&mut self, name: &str, address: IpAddr) {
        let reverse = reverse_name(address);
        self.add_above(name);
        self.add_above(&reverse);
        self.names.entry(reverse).or_insert_with(|| name.into());
        let addresses = self.addresses.entry(name.into()).or_default();
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }

    fn add_above(&mut self, name: &str) {
        let mut rest = name;
        while let Some((_, above)) = rest.split_once('.') {
            self.above.insert(above.into());
            rest = above;
        }
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The records of a name; `None` if there is no such name.
    fn look_up(&self, name: &str, kind: QTYPE) -> Option<Vec<RData<'_>>> {
        let any = kind == QTYPE::ANY;
        let wants = |of: TYPE| any || kind == QTYPE::TYPE(of);
        if let Some(addresses) = self.addresses.get(name) {
            let records = addresses.iter().filter_map(|address| match address {
                IpAddr::V4(address) if wants(TYPE::A) => Some(RData::A(A {
                    address: (*address).into(),
                })),
                IpAddr::V6(address) if wants(TYPE::AAAA) => Some(RData::AAAA(AAAA {
                    address: (*address).into(),
                })),
                _ => None,
            });
            return Some(records.collect());
        }
        if let Some(host) = self.names.get(name) {
            let host = wants(TYPE::PTR).then(|| RData::PTR(PTR(Name::new_unchecked(host))));
            return Some(host.into_iter().collect());
        }
        self.above.contains(name).then(Vec::new)
    }

    /// The answer to a DNS message; `None` if it deserves none.
    pub fn answer(&self, message: &[u8]) -> Option<Vec<u8>> {
        if header_buffer::has_flags(message, PacketFlag::RESPONSE).ok()? {
            return None;
        }
        // Nobody asks several questions at once, and to read a thousand takes long.
        if !is_one_question(message.get(..HEADER)?) {
            return malformed(message);
        }
        match Packet::parse(message) {
            Ok(query) => self.answer_query(&query),
            Err(_) => malformed(message),
        }
    }

    fn answer_query(&self, query: &Packet<'_>) -> Option<Vec<u8>> {
        let mut reply = Packet::new_reply(query.id());
        *reply.opcode_mut() = query.opcode();
        if query.has_flags(PacketFlag::RECURSION_DESIRED) {
            reply.set_flags(PacketFlag::RECURSION_DESIRED);
        }
        let limit = match query.opt() {
            Some(opt) => {
                let mut own = opt.clone();
                own.udp_packet_size = LIMIT;
                own.version = 0;
                own.opt_codes.clear();
                *reply.opt_mut() = Some(own);
                usize::from(opt.udp_packet_size.min(LIMIT)).max(PLAIN_LIMIT)
            }
            None => PLAIN_LIMIT,
        };

        *reply.rcode_mut() = match query.questions.as_slice() {
            _ if query.opcode() != OPCODE::StandardQuery => RCODE::NotImplemented,
            [question] if !is_internet(question.qclass) => RCODE::Refused,
            [question] => {
                reply.set_flags(PacketFlag::AUTHORITATIVE_ANSWER);
                let name = question.qname.to_string().to_ascii_lowercase();
                match self.look_up(&name, question.qtype) {
                    Some(records) => {
                        reply.answers.extend(records.into_iter().map(|rdata| {
                            ResourceRecord::new(question.qname.clone(), CLASS::IN, TTL, rdata)
                        }));
                        RCODE::NoError
                    }
                    None => RCODE::NameError,
                }
            }
            _ => RCODE::FormatError,
        };
        reply.questions.clone_from(&query.questions);

        let bytes = reply.build_bytes_vec_compressed().ok()?;
        if bytes.len() <= limit {
            return Some(bytes);
        }
        reply.answers.clear();
        reply.set_flags(PacketFlag::TRUNCATION);
        let bytes = reply.build_bytes_vec_compressed().ok()?;
        // A name has 255 bytes at most.
        (bytes.len() <= limit).then_some(bytes)
    }
}

/// Whether a header speaks of one question, and of no more than belongs to it.
fn is_one_question(header: &[u8]) -> bool {
    let mut counts = header
        .chunks_exact(2)
        .skip(2)
        .map(|count| u16::from_be_bytes([count[0], count[1]]));
    counts.next() == Some(1) && counts.fold(0, u16::saturating_add) <= RECORDS
}

/// The answer to what makes no sense: a header alone.
fn malformed(message: &[u8]) -> Option<Vec<u8>> {
    let mut reply = Packet::new_reply(header_buffer::id(message).ok()?);
    *reply.rcode_mut() = RCODE::FormatError;
    reply.build_bytes_vec().ok()
}

fn is_internet(class: QCLASS) -> bool {
    matches!(class, QCLASS::CLASS(CLASS::IN) | QCLASS::ANY)
}

/// The name of an address in the reverse tree.
fn reverse_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(address) => {
            let mut name = String::new();
            for octet in address.octets().iter().rev() {
                name += &format!("{:x}.{:x}.", octet & 0xf, octet >> 4);
            }
            name + "ip6.arpa"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use simple_dns::Question;

    const HOSTS: &str = "\
# A comment.
192.0.2.1   host.kopi.test host
2001:db8::1 host.kopi.test   # the same
192.0.2.2   Peer.kopi.test.

";

    fn ask(name: &str, kind: QTYPE) -> (RCODE, Vec<String>) {
        let hosts = Hosts::parse(HOSTS).unwrap();
        let mut query = Packet::new_query(7);
        query.questions.push(Question::new(
            Name::new(name).unwrap(),
            kind,
            CLASS::IN.into(),
            false,
        ));
        let bytes = hosts
            .answer(&query.build_bytes_vec().unwrap())
            .expect("an answer");
        let reply = Packet::parse(&bytes).unwrap();
        assert_eq!(reply.id(), 7);
        assert_eq!(reply.questions.len(), 1);
        let answers = reply.answers.iter().map(|record| match &record.rdata {
            RData::A(a) => IpAddr::V4(a.address.into()).to_string(),
            RData::AAAA(aaaa) => IpAddr::V6(aaaa.address.into()).to_string(),
            RData::PTR(ptr) => ptr.0.to_string(),
            other => format!("{other:?}"),
        });
        (reply.rcode(), answers.collect())
    }

    #[test]
    fn names_have_addresses() {
        let found = |answers: &[&str]| {
            let answers = answers.iter().map(|text| text.to_string()).collect();
            (RCODE::NoError, answers)
        };
        assert_eq!(ask("host.kopi.test", TYPE::A.into()), found(&["192.0.2.1"]));
        assert_eq!(ask("HOST.Kopi.Test", TYPE::A.into()), found(&["192.0.2.1"]));
        assert_eq!(
            ask("host.kopi.test", TYPE::AAAA.into()),
            found(&["2001:db8::1"])
        );
        assert_eq!(
            ask("host.kopi.test", QTYPE::ANY),
            found(&["192.0.2.1", "2001:db8::1"])
        );
        assert_eq!(ask("peer.kopi.test", TYPE::AAAA.into()), found(&[]));
        assert_eq!(ask("kopi.test", TYPE::A.into()), found(&[]));
        assert_eq!(
            ask("1.2.0.192.in-addr.arpa", TYPE::PTR.into()),
            found(&["host.kopi.test"])
        );
    }

    #[test]
    fn others_are_denied() {
        let (code, answers) = ask("nobody.kopi.test", TYPE::A.into());
        assert_eq!(code, RCODE::NameError);
        assert!(answers.is_empty());
    }

    #[test]
    fn reverse_names() {
        let address = "2001:db8::567:89ab".parse().unwrap();
        let expected = "b.a.9.8.7.6.5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa";
        assert_eq!(reverse_name(address), expected);
    }

    #[test]
    fn nonsense_is_told() {
        let hosts = Hosts::parse(HOSTS).unwrap();
        assert_eq!(hosts.answer(b""), None);
        assert_eq!(hosts.answer(&[0; 11]), None);
        // A response.
        assert_eq!(hosts.answer(&[0, 1, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0]), None);
        // It says one question and has none.
        let reply = hosts.answer(&[0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(Packet::parse(&reply).unwrap().rcode(), RCODE::FormatError);
    }

    #[test]
    fn only_single_questions_are_read() {
        let hosts = Hosts::parse(HOSTS).unwrap();
        let mut counts = vec![[0, 0, 0, 0], [2, 0, 0, 0], [1, 3, 1, 1]];
        counts.extend([
            [10_000, 0, 0, 0],
            [1, 0, 0, 10_000],
            [1, 65_535, 65_535, 65_535],
        ]);
        for counts in counts {
            let mut message = vec![0, 1, 0, 0];
            message.extend(counts.iter().flat_map(|count: &u16| count.to_be_bytes()));
            // Questions for the root.
            message.resize(60_000, 0);
            let reply = hosts.answer(&message).unwrap();
            assert_eq!(reply.len(), HEADER, "{counts:?}");
            let reply = Packet::parse(&reply).unwrap();
            assert_eq!((reply.id(), reply.rcode()), (1, RCODE::FormatError));
        }
    }

    #[test]
    fn errors_keep_to_the_limit() {
        let hosts = Hosts::parse(HOSTS).unwrap();
        let name = [["a"; 31].concat(), ["b"; 63].concat(), ["c"; 63].concat()].join(".");
        for opcode in [OPCODE::StandardQuery, OPCODE::Notify] {
            let mut query = Packet::new_query(1);
            *query.opcode_mut() = opcode;
            let name = Name::new(&name).unwrap();
            let kind = TYPE::A.into();
            let question = Question::new(name, kind, CLASS::IN.into(), false);
            query.questions.push(question);
            let reply = hosts.answer(&query.build_bytes_vec().unwrap()).unwrap();
            assert!(reply.len() <= PLAIN_LIMIT);
            assert_ne!(Packet::parse(&reply).unwrap().rcode(), RCODE::NoError);
        }
    }

    #[test]
    fn long_answers_are_cut() {
        let lines: Vec<String> = (0..100)
            .map(|number| format!("192.0.2.{number} many.test"))
            .collect();
        let text = lines.join("\n");
        let hosts = Hosts::parse(&text).unwrap();
        let mut query = Packet::new_query(1);
        query.questions.push(Question::new(
            Name::new("many.test").unwrap(),
            TYPE::A.into(),
            CLASS::IN.into(),
            false,
        ));
        let bytes = hosts.answer(&query.build_bytes_vec().unwrap()).unwrap();
        assert!(bytes.len() <= PLAIN_LIMIT);
        let reply = Packet::parse(&bytes).unwrap();
        assert!(reply.has_flags(PacketFlag::TRUNCATION));
    }

    #[test]
    fn bad_lines_are_named() {
        assert!(Hosts::parse("192.0.2.1 a\nx b\n")
            .unwrap_err()
            .contains("line 2"));
    }
}
