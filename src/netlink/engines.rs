// SPDX-License-Identifier: GPL-2.0

//! Engines: setting and showing them.

use crate::engine::{self, Engine, Settings};
use crate::sys::{
    genl::{Dump, Message, Request},
    uapi, //
};
use kernel::{
    prelude::*,
    sync::atomic::ordering::Relaxed, //
};

/// Nanoseconds in the unit of a request's times.
const NS_PER_US: u64 = 1000;
/// The idle time if the request has no such attribute, in microseconds.
const DEFAULT_IDLE_US: u64 = 1000;
/// The share of a channel in a round if the request has no such attribute, in bytes.
const DEFAULT_BUDGET: u32 = 65536;

/// `engine-set`: `EINVAL` for a CPU that isn't there, `EEXIST` for one that is named twice.
pub(crate) fn replace(request: &Request<'_>) -> Result {
    let idle = request
        .get(uapi::KOPI_A_ENGINES_IDLE)
        .map_or(DEFAULT_IDLE_US, |attr| attr.uint());
    let settings = Settings {
        idle: idle.saturating_mul(NS_PER_US),
        budget: request
            .get(uapi::KOPI_A_ENGINES_BUDGET)
            .map_or(DEFAULT_BUDGET, |attr| attr.u32()),
    };
    let cpus = || request.each(uapi::KOPI_A_ENGINES_CPU);
    engine::set(cpus().map(|attr| attr.u32()), settings).map_err(|(error, cpu)| {
        let attr = cpus().filter(|attr| attr.u32() == cpu).last();
        let why = match error {
            EINVAL => c"there is no such CPU, or it is offline",
            EEXIST => c"the CPU is named twice",
            _ => c"a thread can't be started",
        };
        request.refuse(error, why, attr.as_ref())
    })
}

fn put_engine(message: &mut Message, engine: &Engine) -> Result {
    let counters = &engine.counters;
    message.u32(uapi::KOPI_A_ENGINE_CPU, engine.cpu)?;
    message.uint(uapi::KOPI_A_ENGINE_IDLE, engine.settings.idle / NS_PER_US)?;
    message.u32(uapi::KOPI_A_ENGINE_BUDGET, engine.settings.budget)?;
    message.u32(uapi::KOPI_A_ENGINE_CHANNELS, engine.channels.load(Relaxed))?;
    message.uint(uapi::KOPI_A_ENGINE_VISITS, counters.visits.get())?;
    message.uint(uapi::KOPI_A_ENGINE_WAKEUPS, counters.wakeups.get())?;
    message.uint(uapi::KOPI_A_ENGINE_BUSY, counters.busy.get())?;
    message.uint(uapi::KOPI_A_ENGINE_AWAKE, counters.awake.get())
}

/// `engine-get` of all.
pub(crate) fn dump(dump: &mut Dump<'_>) -> Result {
    let start = usize::try_from(dump.position()).unwrap_or(usize::MAX);
    let (engines, generation) = engine::all()?;
    dump.set_generation(generation);
    for (place, engine) in engines.iter().enumerate().skip(start) {
        if !dump.add(uapi::KOPI_CMD_ENGINE_GET, |message| {
            put_engine(message, engine)
        })? {
            break;
        }
        dump.go_on_at((place as u64).wrapping_add(1));
    }
    Ok(())
}
