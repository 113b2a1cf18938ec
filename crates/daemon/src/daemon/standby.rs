//! Pools that another host has, or takes: they are waited for, opened when that host has died, and let go of when this
//! one was cut off. The threads that do so are in [`standby`](crate::standby).
//!
//! Owns neither who may have a pool nor what keeps two hosts apart: both are the storage's. A device that *fences*
//! gives its claim to another client only when it takes nothing any more from the one before
//! ([`Capabilities::fences`](sheave_blk::driver::Capabilities)), and it is claimed before anything of the pool is read.
//!
//! * S1. A pool of which a device does not fence is never opened by a daemon that stands by (`PoolPlace::open_fenced`).
//! * S2. When a pool was lost its exports end before it is waited for again, and nothing begins on it from the moment
//!   on at which it is marked so. What is under way on it, a copy say, is not waited for.
//! * S3. Who opens a pool beside a reload puts it in the place of what it was opened for, or lets go of it.

use std::sync::Arc;
use std::time::Instant;

use sheave_base::status::Status;
use sheave_base::sync::atomic::Ordering;
use sheave_vol::PoolError;
use tracing::{error, info};

use super::{Daemon, Held, Look, Row, locked};
use crate::failure::{self, Failure};
use crate::rights::Rights;

impl Held {
    /// Looks whether a pool is still this host's, for as long as its storage takes to tell.
    pub(crate) fn look_at_owner(&self) -> Look {
        let pool = match self.pool() {
            Ok(pool) => pool,
            Err(why) => return Look::Lost(why),
        };
        match pool.check_owner() {
            Ok(()) => Look::Own,
            Err(PoolError::Io { status: Status::Offline, .. }) => {
                Look::Lost(Failure::busy("its storage takes nothing more from this host: it was cut off by another"))
            }
            Err(why @ PoolError::Busy { .. }) => Look::Lost(failure::pool(why)),
            Err(_) => Look::Unknown,
        }
    }
}

impl Daemon {
    /// The pools that are waited for.
    pub(crate) fn waited_for(&self) -> Vec<Arc<Held>> {
        self.pools().into_iter().filter(|held| held.is_waited_for()).collect()
    }

    /// The open pools whose storage can cut this host off.
    pub(crate) fn losable(&self) -> Vec<Arc<Held>> {
        let is = |held: &Arc<Held>| !held.plan.read_only && held.pool().is_ok_and(|pool| pool.fences());
        self.pools().into_iter().filter(is).collect()
    }

    /// Tries to open a pool that has been waited for since then.
    pub(crate) fn take_over(&self, before: &Arc<Held>, since: Instant) {
        let (opened, name) = (Arc::new(Held::open(&before.plan)), before.plan.name.as_str());
        if let (Some(now), Some(then)) = (opened.failed(), before.failed())
            && now.cause() != then.cause()
        {
            opened.plan.tell_waits(now);
        }
        if !self.replace(before, &opened) || opened.failed().is_some() {
            return; // S3
        }
        let after = since.elapsed().as_secs_f64();
        info!(event = "pool_taken", pool = name, "pool '{name}' is open, after a wait of {after:.1} s");
        for row in self.rows().into_iter().filter(|row| row.failed.is_some()) {
            if row.plan.volume_of(name).is_some()
                && let Err(why) = self.add_export(row.plan.clone(), None, Rights::Own, row.configured)
            {
                self.keep_failure(&row.plan, why);
            }
        }
    }

    /// Puts a pool in the place of another, if that is still there.
    fn replace(&self, before: &Arc<Held>, now: &Arc<Held>) -> bool {
        let mut pools = locked(&self.pools);
        let place = pools.get_mut(&before.plan.name).filter(|held| Arc::ptr_eq(held, before));
        place.map(|held| *held = now.clone()).is_some()
    }

    /// Ends the exports of a pool that another host has now, or may have, and waits for the pool if the daemon stands
    /// by (S2). It takes no turn of the pool (D1): who has it may wait for the storage. Exports that come are seen all
    /// the same, for their list is locked while they come.
    pub(crate) fn lose(&self, held: &Arc<Held>, why: Failure) {
        // Pairs with the load in `Held::is_lost`, and with itself: one caller goes on.
        if held.lost.swap(true, Ordering::AcqRel) {
            return;
        }
        let name = held.plan.name.as_str();
        let why = why.fix(match held.plan.standby {
            true => "another host has it now; this one waits for it",
            false => {
                "end what has it elsewhere and reload the daemon (SIGHUP); with `standby = true` on both hosts it waits"
            }
        });
        error!(event = "pool_lost", pool = name, "pool '{name}' is lost: {}", why.in_a_line());
        let is_served = |row: &Row| row.failed.is_none() && row.plan.volume_of(name).is_some();
        let served: Vec<Row> = self.rows().into_iter().filter(is_served).collect();
        // At once: each may wait for clients whose requests the storage does not answer.
        std::thread::scope(|scope| {
            for row in &served {
                // With clients that do not end at once it is taken out all the same.
                let take = || _ = self.server.take_export(&row.plan.name, true);
                if std::thread::Builder::new().spawn_scoped(scope, take).is_err() {
                    take();
                }
            }
        });
        served.iter().for_each(|row| self.server.forget_export(&row.plan.name));
        locked(&self.exports).iter_mut().filter(|row| is_served(row)).for_each(|row| row.failed = Some(why.clone()));
        self.replace(held, &Arc::new(Held::new(&held.plan, held.at(), Err(why))));
    }
}
