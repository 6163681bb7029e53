// SPDX-License-Identifier: GPL-2.0

//! A server of a page or two by HTTP. Clients may be hostile, so all that one can take has a bound: bytes of
//! a request, time, connections. No request has a body, each has one answer, and then it is closed.

use nix::{
    errno::Errno,
    poll::{poll, PollFd, PollFlags, PollTimeout},
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv6Addr, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixListener,
    },
    rc::Rc,
    thread::sleep,
    time::{Duration, Instant},
};

/// Bytes of a request, which is a header.
const HEADER_MAX: usize = 8192;
/// For the request; and for the answer, once it is ready.
const PATIENCE: Duration = Duration::from_secs(5);
/// At once; the oldest gives way to one more.
const CONNECTIONS: usize = 16;
/// So many more, and then those that there are have their turn.
const ACCEPTED: usize = CONNECTIONS / 2;
/// Before it is tried again, where there is no descriptor.
const NAP: Duration = Duration::from_millis(100);

/// Where clients come from.
pub(crate) enum Listener {
    /// Those who may open the file.
    Unix(UnixListener),
    /// All of this machine, by its own addresses.
    Tcp(TcpListener),
}

impl Listener {
    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Unix(listener) => {
                let stream = listener.accept()?.0;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
            Self::Tcp(listener) => {
                let stream = listener.accept()?.0;
                stream.set_nonblocking(true)?;
                Box::new(stream)
            }
        })
    }

    /// Whether clients may call this machine what they like. A browser connects to an address for any page whose
    /// name leads there, and gives the page what it gets; no browser opens a file of a socket.
    fn has_any_name(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Unix(listener) => listener.set_nonblocking(true),
            Self::Tcp(listener) => listener.set_nonblocking(true),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

trait Stream: Read + Write + AsFd {}
impl<T: Read + Write + AsFd> Stream for T {}

/// What a client gets: the bytes, which all who get the same share.
#[derive(Clone)]
pub(crate) struct Answer(Rc<Vec<u8>>);

impl Answer {
    /// The status and its words, what the body is, and the body.
    pub(crate) fn new(status: &str, kind: &str, body: &str) -> Self {
        let length = body.len();
        let bytes = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        Self(Rc::new(bytes.into_bytes()))
    }

    /// A line of text.
    pub(crate) fn line(status: &str, text: &str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", &format!("{text}\n"))
    }
}

/// An answer that is given again for a while: clients choose how often they ask.
pub(crate) struct Recent {
    lasts: Duration,
    made: Option<(Instant, Answer)>,
}

impl Recent {
    /// None yet.
    pub(crate) fn new(lasts: Duration) -> Self {
        Self { lasts, made: None }
    }

    /// The answer, which is made if there is none, or if it is too old.
    pub(crate) fn get(&mut self, make: impl FnOnce() -> Answer) -> Answer {
        match &self.made {
            Some((when, answer)) if when.elapsed() < self.lasts => answer.clone(),
            _ => {
                let answer = make();
                self.made = Some((Instant::now(), answer.clone()));
                answer
            }
        }
    }
}

struct Connection {
    stream: Box<dyn Stream>,
    /// Whether a request may have any Host.
    any_name: bool,
    deadline: Instant,
    request: Vec<u8>,
    /// Once there is one, and how many of its bytes are sent.
    answer: Option<(Answer, usize)>,
}

impl Connection {
    fn new(stream: Box<dyn Stream>, any_name: bool) -> Self {
        Self {
            stream,
            any_name,
            deadline: Instant::now() + PATIENCE,
            request: Vec::new(),
            answer: None,
        }
    }

    fn events(&self) -> PollFlags {
        match self.answer {
            None => PollFlags::POLLIN,
            Some(_) => PollFlags::POLLOUT,
        }
    }

    /// Goes on as far as it can; an error, or the end, is the connection's.
    fn step(&mut self, page: &mut impl FnMut(&str) -> Answer) -> io::Result<()> {
        while self.answer.is_none() {
            let mut buffer = [0; 1024];
            let count = self.stream.read(&mut buffer)?;
            if count == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.request.extend(&buffer[..count]);
            if let Some(answer) = answer(&self.request, self.any_name, page) {
                // What it took to make it isn't the client's fault.
                self.deadline = Instant::now() + PATIENCE;
                self.answer = Some((answer, 0));
            }
        }
        while let Some((Answer(bytes), sent)) = &mut self.answer {
            if *sent == bytes.len() {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            *sent += self.stream.write(&bytes[*sent..])?;
        }
        Ok(())
    }

    /// Whether it is to be kept.
    fn goes_on(&mut self, page: &mut impl FnMut(&str) -> Answer) -> bool {
        match self.step(page) {
            Ok(()) => true,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }
}

/// The answer to a request, once its header is complete.
fn answer(request: &[u8], any_name: bool, page: &mut impl FnMut(&str) -> Answer) -> Option<Answer> {
    let ends = |end: &[u8]| request.windows(end.len()).any(|part| part == end);
    if request.len() > HEADER_MAX {
        let status = "431 Request Header Fields Too Large";
        return Some(Answer::line(status, "too long"));
    }
    if !ends(b"\r\n\r\n") && !ends(b"\n\n") {
        return None;
    }
    let request = String::from_utf8_lossy(request);
    let mut lines = request.lines();
    let words: Vec<&str> = lines.next()?.split_whitespace().collect();
    if !any_name && !lines.filter_map(host).all(is_this_machine) {
        return Some(Answer::line(
            "403 Forbidden",
            "for localhost and this machine's own addresses only",
        ));
    }
    Some(match words[..] {
        ["GET", path, version] if version.starts_with("HTTP/1.") => page(path),
        [_, _, version] if version.starts_with("HTTP/1.") => {
            Answer::line("405 Method Not Allowed", "GET only")
        }
        _ => Answer::line("400 Bad Request", "HTTP/1.1 only"),
    })
}

/// What a line of a header says of the host that it asks, if it is about that.
fn host(line: &str) -> Option<&str> {
    let (name, value) = line.split_once(':')?;
    let is_it = name.trim().eq_ignore_ascii_case("host");
    is_it.then(|| value.trim())
}

/// Whether a Host, with a port or without, can only be this machine.
fn is_this_machine(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let address = rest.split_once(']').map(|(address, _)| address.parse());
        return matches!(address, Some(Ok(Ipv6Addr::LOCALHOST)));
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    let address = name.parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// Answers requests for ever; `page` has the answer to a path.
pub(crate) fn serve(listener: &Listener, mut page: impl FnMut(&str) -> Answer) -> io::Result<()> {
    listener.set_nonblocking()?;
    let mut connections = Vec::<Connection>::new();
    loop {
        let (comes, ready) = wait(listener, &connections)?;
        let mut ready = ready.into_iter();
        connections.retain_mut(|connection| {
            let goes_on = !ready.next().unwrap_or(false) || connection.goes_on(&mut page);
            goes_on && connection.deadline > Instant::now()
        });
        for _ in 0..if comes { ACCEPTED } else { 0 } {
            match listener.accept() {
                Ok(stream) => {
                    let mut connection = Connection::new(stream, listener.has_any_name());
                    if !connection.goes_on(&mut page) {
                        continue;
                    }
                    if connections.len() >= CONNECTIONS {
                        connections.remove(0);
                    }
                    connections.push(connection);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => (),
                // No descriptor, say.
                Err(_) if !connections.is_empty() => drop(connections.remove(0)),
                Err(_) => {
                    sleep(NAP);
                    break;
                }
            }
        }
    }
}

/// Sleeps until something happens: whether a client comes, and which connections can go on.
fn wait(listener: &Listener, connections: &[Connection]) -> io::Result<(bool, Vec<bool>)> {
    let mut fds = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    fds.extend(
        connections
            .iter()
            .map(|connection| PollFd::new(connection.stream.as_fd(), connection.events())),
    );
    let first = connections
        .iter()
        .map(|connection| connection.deadline)
        .min();
    let timeout = first.map_or(PollTimeout::NONE, |first| {
        let left = first.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    });
    match poll(&mut fds, timeout) {
        Ok(_) | Err(Errno::EINTR) => (),
        Err(error) => return Err(error.into()),
    }
    let happened = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
    let ready = fds.iter().skip(1).map(happened).collect();
    Ok((fds.first().is_some_and(happened), ready))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        net::{Shutdown, SocketAddr, TcpStream},
        thread,
    };

    /// More bytes than the kernel keeps for who doesn't read.
    const LARGE: usize = 1 << 26;

    fn server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            serve(&Listener::Tcp(listener), |path| match path {
                "/page" => Answer::line("200 OK", &"x".repeat(1 << 20)),
                "/slow" => {
                    sleep(PATIENCE);
                    Answer::line("200 OK", &"x".repeat(LARGE))
                }
                _ => Answer::line("404 Not Found", "see /page"),
            })
        });
        address
    }

    fn send(server: SocketAddr, request: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(server).unwrap();
        stream.set_read_timeout(Some(PATIENCE * 6)).unwrap();
        // It may have been closed by now.
        let _ = stream.write_all(request);
        stream
    }

    fn reply(mut stream: TcpStream) -> String {
        let mut reply = String::new();
        let _ = stream.read_to_string(&mut reply);
        reply
    }

    #[test]
    fn pages_are_served() {
        let server = server();
        let get = |request: &str| reply(send(server, request.as_bytes()));
        let page = get("GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{}", &page[..20]);
        let (header, body) = page.split_once("\r\n\r\n").unwrap();
        assert!(header.contains(&format!("Content-Length: {}", body.len())));
        assert_eq!(body.len(), (1 << 20) + 1);
        for (request, status) in [
            ("GET / HTTP/1.0\n\n", "404"),
            (
                "POST /page HTTP/1.1\r\nContent-Length: 18446744073709551615\r\n\r\n",
                "405",
            ),
            ("nonsense\r\n\r\n", "400"),
            ("GET /page HTTP/2\r\n\r\n", "400"),
        ] {
            assert!(
                get(request).starts_with(&format!("HTTP/1.1 {status}")),
                "{request}"
            );
        }
        let long = format!("GET /page HTTP/1.1\r\nX: {}", "x".repeat(HEADER_MAX));
        let reply = get(&long);
        assert!(
            reply.is_empty() || reply.starts_with("HTTP/1.1 431"),
            "{reply}"
        );
    }

    #[test]
    fn pages_of_others_get_nothing() {
        let server = server();
        for (hosts, is_served) in [
            ("", true),
            ("Host: 127.0.0.1:9\r\n", true),
            ("host:LOCALHOST\r\n", true),
            ("HOST: 127.9.9.9\r\n", true),
            ("Host: [::1]:9\r\n", true),
            ("Host: evil.example:9\r\n", false),
            ("Host: 127.0.0.1.evil.example\r\n", false),
            ("Host: [2001:db8::1]\r\n", false),
            ("Host: 192.0.2.1\r\n", false),
            ("Host:\r\n", false),
            ("Host: localhost\r\nX: y\r\nHost : evil.example\r\n", false),
        ] {
            let request = format!("GET /page HTTP/1.1\r\n{hosts}\r\n");
            let status = match is_served {
                true => "HTTP/1.1 200",
                false => "HTTP/1.1 403",
            };
            let reply = reply(send(server, request.as_bytes()));
            assert!(reply.starts_with(status), "{hosts}");
        }
        let named = b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";
        let served = answer(named, true, &mut |_| {
            Answer::line("200 OK", "by a Unix socket")
        });
        assert!(served.unwrap().0.starts_with(b"HTTP/1.1 200"));
    }

    #[test]
    fn answers_are_given_again_for_a_while() {
        let mut made = 0;
        let mut get = |recent: &mut Recent| {
            recent.get(|| {
                made += 1;
                Answer::line("200 OK", &made.to_string())
            })
        };
        let mut long = Recent::new(PATIENCE * 100);
        let (first, second) = (get(&mut long), get(&mut long));
        assert!(first.0.ends_with(b"\r\n\r\n1\n"));
        assert!(Rc::ptr_eq(&first.0, &second.0), "it is there once");
        let mut short = Recent::new(Duration::ZERO);
        assert!(get(&mut short).0.ends_with(b"\n2\n"));
        assert!(get(&mut short).0.ends_with(b"\n3\n"));
    }

    #[test]
    fn an_answer_has_its_time_from_when_it_is_ready() {
        let page = reply(send(server(), b"GET /slow HTTP/1.1\r\n\r\n"));
        assert!(page.len() > LARGE, "{} bytes", page.len());
    }

    #[test]
    fn clients_that_say_nothing_hinder_nobody() {
        let server = server();
        let mut silent: Vec<_> = (0..4 * CONNECTIONS)
            .map(|_| send(server, b"GET /pa"))
            .collect();
        let page = reply(send(server, b"GET /page HTTP/1.1\r\n\r\n"));
        assert!(page.starts_with("HTTP/1.1 200"));
        // The first gave way, and the last ones have their time.
        assert_eq!(reply(silent.remove(0)), "");
        let last = silent.pop().unwrap();
        let begun = Instant::now();
        assert_eq!(reply(last), "");
        assert!(begun.elapsed() < PATIENCE * 5);
    }

    #[test]
    fn what_is_said_bit_by_bit_is_heard() {
        let mut stream = send(server(), b"GET /page ");
        thread::sleep(Duration::from_millis(50));
        stream.write_all(b"HTTP/1.1\r\n\r\n").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert!(reply(stream).starts_with("HTTP/1.1 200"));
    }
}
