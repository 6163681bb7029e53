// SPDX-License-Identifier: GPL-2.0

//! Standard output that a slow reader and a signal can't hang: signals that end a capture are blocked, to be
//! read, and so a write() that waits for a reader would never end by one.

use super::wait_for;
use nix::{
    poll::{PollFd, PollFlags},
    unistd,
};
use std::{
    io::{self, ErrorKind, Write},
    os::fd::{AsFd, BorrowedFd},
    time::{Duration, Instant},
};

/// A pipe that has room takes so many bytes without waiting: `PIPE_BUF`.
const AT_ONCE: usize = 4096;
/// How long it is waited for a reader in all, once a signal is there.
const PATIENCE: Duration = Duration::from_secs(5);

/// A file that somebody reads, such as a pipe.
pub(super) struct Out<F, S> {
    file: F,
    signals: S,
    /// What is left of the patience, once there was a signal.
    left: Option<Duration>,
}

impl<F: AsFd, S: AsFd> Out<F, S> {
    /// Writes to a file until `signals` can be read.
    pub(super) fn new(file: F, signals: S) -> Self {
        Self {
            file,
            signals,
            left: None,
        }
    }

    /// Waits until something can be written, be it that it fails.
    fn wait(&mut self) -> io::Result<()> {
        loop {
            let begun = Instant::now();
            let mut fds = [
                PollFd::new(self.file.as_fd(), PollFlags::POLLOUT),
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            ];
            let asked = if self.left.is_some() { 1 } else { 2 };
            wait_for(&mut fds[..asked], self.left)?;
            let happened = |fd: &PollFd<'_>| fd.revents().is_some_and(|events| !events.is_empty());
            let (ready, signalled) = (happened(&fds[0]), happened(&fds[1]));
            if let Some(left) = &mut self.left {
                *left = left.saturating_sub(begun.elapsed());
            }
            if ready {
                return Ok(());
            }
            match self.left {
                Some(Duration::ZERO) => {
                    let text = "standard output takes no more: not all packets are written";
                    return Err(io::Error::new(ErrorKind::TimedOut, text));
                }
                None if signalled => self.left = Some(PATIENCE),
                _ => (),
            }
        }
    }
}

impl<F: AsFd, S: AsFd> Write for Out<F, S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait()?;
        let file: BorrowedFd<'_> = self.file.as_fd();
        Ok(unistd::write(file, &bytes[..bytes.len().min(AT_ONCE)])?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, io::Read};

    fn pipe() -> (File, File) {
        let (reader, writer) = unistd::pipe().unwrap();
        (reader.into(), writer.into())
    }

    #[test]
    fn a_signal_ends_the_wait_for_a_reader() {
        let ((mut reader, file), (signals, mut signal)) = (pipe(), pipe());
        let mut out = Out::new(file, signals);
        signal.write_all(b"x").unwrap();
        // There is a signal, but also room.
        out.write_all(b"hello").unwrap();
        out.left = Some(Duration::from_millis(50));
        let error = out.write_all(&[0; 1 << 20]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let mut read = [0; 5];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"hello");
        drop(reader);
        let error = out.write_all(b"x").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_signal_is_noticed_while_it_waits() {
        let ((_reader, file), (signals, mut signal)) = (pipe(), pipe());
        let mut out = Out::new(file, signals);
        let writer = std::thread::spawn(move || out.write_all(&[0; 1 << 20]).unwrap_err().kind());
        signal.write_all(b"x").unwrap();
        assert_eq!(writer.join().unwrap(), ErrorKind::TimedOut);
    }
}
