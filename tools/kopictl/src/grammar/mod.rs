// SPDX-License-Identifier: GPL-2.0

//! Rules as words, `user bob exe /usr/bin/postgres local-port 5432 allow`, and files of them.

mod file;
mod parse;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use self::{
    file::{each_line, File},
    parse::parse,
    text::text_of,
};

use std::net::IpAddr;

/// The grammar, for `--help` and the man page.
pub(crate) const HELP: &str = "\
A rule is a list of words, in any order. It applies to flows that match all of:
  user NAME|UID[-UID]      the process's user
  group NAME|GID           the process's group
  cgroup PATH              the socket's cgroup, or one below it
  exe PATH                 the process's program: the file with this
                           path now, even after it is moved; not a
                           file that replaces it, nor a script, of
                           which the program is the interpreter
  protocol udp|tcp         the flow's protocol
  local-port N[-M]         the local port
  remote ADDR[/LEN]        the peer's address
  remote-port N[-M]        the peer's port
  device NAME              the device to which the flow is bound
  direction in|out         only incoming or outgoing packets
and decides about their packets:
  allow                    they pass
  deny                     they don't, and a TCP connection ends.
                           EACCES: bind() if both directions are
                           denied; connect() of UDP if \"out\" is;
                           connect() and listen() of TCP if either is
  mark N                   outgoing packets get this mark (SO_MARK)
  priority N|MAJOR:MINOR   or this priority, or class, as in tc (hex)
  weight N                 N times the bytes of others where engines
                           send (kopictl engine); 1 to 1000
  rate N[k|M|G]bit         bits of payload that pass per second, or
       N[k|M|G]byte        bytes, or
       N[k|M|G]pps         datagrams, not of TCP; k is 1000
  burst N[k|M|G]           bytes, or datagrams, that may pass at once;
                           by default what the rate lets pass in a
                           tenth of a second, but at least 1
  shared                   the rate applies to all flows together
and has properties of its own:
  comment TEXT             a comment
  before HANDLE            (rule add) the rule that follows it;
                           by default it becomes the last
The first matching rule decides; if none matches, the default does.";

type Result<T> = std::result::Result<T, String>;

/// Bits of an address, which is the longest prefix.
fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() {
        32
    } else {
        128
    }
}
