// SPDX-License-Identifier: GPL-2.0

//! Waits of tasks, until something can be done.

use super::{Shared, READABLE};
use ::tokio::{
    io::{
        unix::{AsyncFd, AsyncFdReadyGuard},
        Interest,
    },
    sync::Notify,
    task::coop,
};
use std::{
    future::{poll_fn, Future},
    io::{self, ErrorKind},
    pin::pin,
    sync::{Mutex, PoisonError},
    task::{ready, Context, Poll, Waker},
};

/// Those that wait to receive, and are to hear of an error of what was left: no event tells of it.
#[derive(Debug, Default)]
pub(super) struct Late {
    waiting: Notify,
    /// The last task that waits by a method named `poll_`.
    polling: Mutex<Option<Waker>>,
}

impl Late {
    /// Wakes them.
    pub(super) fn tell(&self) {
        self.waiting.notify_waiters();
        if let Some(waker) = self.replace(None) {
            waker.wake();
        }
    }

    fn replace(&self, waker: Option<Waker>) -> Option<Waker> {
        let mut polling = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut polling, waker)
    }
}

impl Shared {
    /// Does something as soon as it can be done. What can be done already needs no event to come.
    pub(super) async fn when_ready<T>(
        &self,
        interest: Interest,
        mut act: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        coop::consume_budget().await;
        match act() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.fd.async_io(interest, |_| act()).await
            }
            done => done,
        }
    }

    pub(super) fn poll_when_ready<T>(
        &self,
        context: &mut Context<'_>,
        poll: PollReady,
        mut act: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let budget = ready!(coop::poll_proceed(context));
        let mut done = act();
        while would_block(&done) {
            let mut guard = ready!(poll(&self.fd, context))?;
            // It forgets that the descriptor was ready if this would block.
            if let Ok(tried) = guard.try_io(|_| act()) {
                done = tried;
            }
        }
        budget.made_progress();
        Poll::Ready(done)
    }

    /// Does something if it can be done now; the next wait for any of the events isn't to end at once
    /// if it would block.
    pub(super) fn try_now<T>(
        &self,
        events: &[Interest],
        mut act: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        // try_io() forgets an event of one kind only.
        for event in events {
            let done = self.fd.try_io(*event, |_| act());
            if !would_block(&done) {
                return done;
            }
        }
        // There may be no event yet.
        act()
    }

    /// As `when_ready`, to receive.
    pub(super) async fn when_received<T>(
        &self,
        mut act: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        coop::consume_budget().await;
        let mut done = act();
        while would_block(&done) {
            let mut told = pin!(self.late.waiting.notified());
            // Before the next attempt, so that no error comes between that and the wait.
            told.as_mut().enable();
            let mut received = pin!(self.when_ready(READABLE, &mut act));
            done = poll_fn(|context| match told.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Err(ErrorKind::WouldBlock.into())),
                Poll::Pending => received.as_mut().poll(context),
            })
            .await;
        }
        done
    }

    /// As `poll_when_ready`, to receive.
    pub(super) fn poll_when_received<T>(
        &self,
        context: &mut Context<'_>,
        act: impl FnMut() -> io::Result<T>,
    ) -> Poll<io::Result<T>> {
        let polled = self.poll_when_ready(context, AsyncFd::poll_read_ready, act);
        if polled.is_pending() {
            self.late.replace(Some(context.waker().clone()));
            // It came before this one was there to be woken.
            if self.socket().has_late_error() {
                context.waker().wake_by_ref();
            }
        }
        polled
    }
}

/// [`AsyncFd::poll_read_ready`] or its like.
pub(super) type PollReady = for<'a> fn(
    &'a AsyncFd<crate::UdpSocket>,
    &mut Context<'_>,
)
    -> Poll<io::Result<AsyncFdReadyGuard<'a, crate::UdpSocket>>>;

pub(super) fn would_block<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if error.kind() == ErrorKind::WouldBlock)
}
