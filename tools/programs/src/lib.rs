// SPDX-License-Identifier: GPL-2.0

//! What the programs share.

pub mod hosts;

use kopi::{Channel, Completion, Flow, Interest, Message, Payload, SendError};
use std::{
    fmt::Display,
    io::{self, Write},
    net::{SocketAddr, ToSocketAddrs},
    process::ExitCode,
    sync::{atomic::AtomicBool, Arc},
    time::Duration,
};

/// Ends a program: prints what went wrong, and gives its exit code.
pub fn finish(program: &str, result: io::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) => {
            complain(program, error);
            ExitCode::from(2)
        }
    }
}

/// Says what went wrong. If that can't be written, there is nobody to tell.
pub fn complain(program: &str, what: impl Display) {
    let _ = writeln!(io::stderr(), "{program}: {what}");
}

/// Says of what an error is.
pub trait Context<T> {
    /// Puts `what` in front of the error's message.
    fn context(self, what: impl Display) -> io::Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: impl Display) -> io::Result<T> {
        self.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")))
    }
}

/// A flag that SIGINT and SIGTERM set.
///
/// Of the calls that sleep, poll(2) ends with `Interrupted` then, so whoever waits by
/// [`Channel::wait`] looks at the flag in time.
pub fn stop_on_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    Ok(stop)
}

/// Raises the limit of open files to this number: as root beyond the hard limit, else up to that.
pub fn raise_file_limit(wanted: usize) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: The call writes to `limit`.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // Those that a program has anyway.
    let wanted = wanted as libc::rlim_t + 64;
    if wanted <= limit.rlim_cur {
        return Ok(());
    }
    for max in [limit.rlim_max.max(wanted), limit.rlim_max] {
        limit.rlim_max = max;
        limit.rlim_cur = max;
        // SAFETY: The call reads `limit`.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } == 0 {
            return Ok(());
        }
    }
    Err(io::Error::last_os_error())
}

/// The address `offset` ports further on.
pub fn next_port(address: SocketAddr, offset: usize) -> io::Result<SocketAddr> {
    if address.port() == 0 {
        return Ok(address);
    }
    let port = u16::try_from(offset)
        .ok()
        .and_then(|offset| address.port().checked_add(offset))
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("there is no port {} + {offset}", address.port()),
            )
        })?;
    let mut address = address;
    address.set_port(port);
    Ok(address)
}

/// The first address of a name, of the family that is wanted.
pub fn resolve(host: &str, port: u16, ipv6: Option<bool>) -> io::Result<SocketAddr> {
    (host, port)
        .to_socket_addrs()
        .context(host)?
        .find(|address| ipv6.is_none_or(|ipv6| address.is_ipv6() == ipv6))
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{host} has no address of that family"),
            )
        })
}

/// Sends a packet on a channel, and sleeps as long as there is no room.
pub fn send_patiently<'c>(
    channel: &'c Channel,
    flow: kopi::FlowId,
    message: &Message,
    payload: impl Into<Payload<'c>>,
    mut completed: impl FnMut(Completion),
) -> io::Result<()> {
    let mut payload = payload.into();
    loop {
        match channel.send(flow, message, payload) {
            Ok(()) => return Ok(()),
            Err(SendError {
                error,
                payload: unsent,
            }) if error.kind() == io::ErrorKind::WouldBlock => payload = unsent,
            Err(unsent) => return Err(unsent.error),
        }
        channel.flush_with(&mut completed)?;
        channel.wait(Interest::WRITABLE, Some(Duration::from_secs(1)))?;
    }
}

/// Sleeps until there is something of `interest`, a second at most. An error that the channel's
/// `first` flow has learnt, such as that a rule stopped it, is said, and the program goes on.
pub fn doze(program: &str, channel: &Channel, first: &Flow, interest: Interest) -> io::Result<()> {
    match channel.wait(interest, Some(Duration::from_secs(1))) {
        Ok(ready) => {
            // As long as it isn't taken, no wait sleeps.
            if let Some(error) = ready
                .error
                .then(|| first.take_error())
                .transpose()?
                .flatten()
            {
                complain(program, error);
            }
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_count_up() {
        let address: SocketAddr = "192.0.2.1:65000".parse().unwrap();
        assert_eq!(next_port(address, 535).unwrap().port(), 65535);
        assert!(next_port(address, 536).is_err());
        let any: SocketAddr = "[::]:0".parse().unwrap();
        assert_eq!(next_port(any, 9).unwrap(), any);
    }

    #[test]
    fn families_are_chosen() {
        assert!(resolve("127.0.0.1", 1, Some(true)).is_err());
        assert!(resolve("::1", 1, Some(true)).unwrap().is_ipv6());
        assert!(resolve("::1", 1, None).unwrap().is_ipv6());
    }
}
