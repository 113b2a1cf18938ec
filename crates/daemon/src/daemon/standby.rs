//! Pools that another host has, or takes: they are waited for, opened when that host has died, and let go of when this
//! one was cut off. The threads that do so are in [`standby`](crate::standby).
//!
//! Owns neither who may have a pool nor what keeps two hosts apart: both are the storage's. A device that *fences*
//! gives its claim to another client only when it takes nothing any more from the one before
//! ([`Capabilities::fences`](sheave_blk::driver::Capabilities)), and it is claimed before anything of the pool is read.
//!
//! * S1. A pool of which a device does not fence is never opened by a daemon that stands by (`PoolPlace::open_fenced`).
//! * S2. When a pool was lost its exports end before it is waited for again.
//! * S3. Who opens a pool beside a reload puts it in the place of what it was opened for, or lets go of it.

use std::sync::Arc;
use std::time::Instant;

use sheave_base::status::Status;
use sheave_vol::{Pool, PoolError};
use tracing::{error, info};

use super::{Daemon, Held, Row, locked, open_all};
use crate::config::PoolPlan;
use crate::failure::{self, Failure};
use crate::systemd;

impl Daemon {
    /// Tries to open the pools that are waited for. `since`: when none was waited for last.
    pub(crate) fn take_over(&self, since: &mut Instant) {
        let waited: Vec<_> = self.pools().into_iter().filter(|held| held.is_waited_for()).collect();
        if waited.is_empty() {
            *since = Instant::now();
            return;
        }
        let plans: Vec<PoolPlan> = waited.iter().map(|held| held.plan.clone()).collect();
        for (opened, before) in open_all(&plans).into_iter().zip(waited) {
            let (opened, name) = (Arc::new(opened), before.plan.name.as_str());
            if let (Some(now), Some(then)) = (opened.failed(), before.failed())
                && now.cause() != then.cause()
            {
                opened.plan.tell_failed(now);
            }
            if !self.replace(&before, &opened) {
                continue; // S3
            }
            if opened.failed().is_some() {
                continue;
            }
            let after = since.elapsed().as_secs_f64();
            info!(event = "pool_taken", pool = name, "pool '{name}' is open, after a wait of {after:.1} s");
            for row in self.rows().into_iter().filter(|row| row.failed.is_some()) {
                if row.plan.volume_of(name).is_some()
                    && let Err(why) = self.add_export(row.plan.clone(), None, row.configured)
                {
                    row.plan.tell_failed(&why);
                }
            }
            systemd::ready(&format!("serving {} exports", self.server.exports().len()));
        }
    }

    /// Puts a pool in the place of what is there, if that is still `before`.
    fn replace(&self, before: &Arc<Held>, now: &Arc<Held>) -> bool {
        let mut pools = locked(&self.pools);
        let place = pools.get_mut(&before.plan.name).filter(|held| Arc::ptr_eq(held, before));
        place.map(|held| *held = now.clone()).is_some()
    }

    /// Looks whether the pools that it has are still its own, and lets go of those that are not.
    pub(crate) fn look_at_owners(&self) {
        for held in self.pools().into_iter().filter(|held| held.plan.standby) {
            let why = match held.pool().map(Pool::check_owner) {
                Err(_) | Ok(Ok(())) => continue,
                Ok(Err(PoolError::Io { status: Status::Offline, .. })) => {
                    Failure::busy("its storage takes nothing more from this host: it was cut off by another")
                }
                Ok(Err(why @ PoolError::Busy { .. })) => failure::pool(why),
                Ok(Err(_)) => continue, // The device does not answer: whose the pool is, it will tell.
            };
            self.lose(&held, &why.fix("another host has it now; this one waits for it"));
        }
    }

    /// Ends the exports of a pool that another host has now, and waits for the pool (S2).
    fn lose(&self, held: &Arc<Held>, why: &Failure) {
        let name = held.plan.name.as_str();
        error!(event = "pool_lost", pool = name, "pool '{name}' is lost: {}", why.in_a_line());
        let _turn = held.turn();
        let is_served = |row: &Row| row.failed.is_none() && row.plan.volume_of(name).is_some();
        for row in self.rows().iter().filter(|row| is_served(row)) {
            // With clients that do not end at once it is taken out all the same.
            let _ = self.server.take_export(&row.plan.name, true);
            self.server.forget_export(&row.plan.name);
        }
        locked(&self.exports).iter_mut().filter(|row| is_served(row)).for_each(|row| row.failed = Some(why.clone()));
        self.replace(held, &Arc::new(Held::new(&held.plan, held.devices(), Err(why.clone()))));
        systemd::ready(&format!("serving {} exports", self.server.exports().len()));
    }
}
