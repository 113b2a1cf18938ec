//! Pools that another host holds or takes over: the daemon waits for them, opens them when that host has died, and
//! gives them up when this host was fenced. The threads that do so are in [`standby`](crate::standby).
//!
//! The storage decides which host may have a pool, and keeps two hosts apart. A device that *fences* grants its claim
//! to another client only after it has stopped accepting I/O from the previous one
//! ([`Capabilities::fences`](sheave_blk::driver::Capabilities)); it is claimed before anything of the pool is read.
//!
//! * S1. A standby daemon never opens a pool if one of its devices does not fence (`PoolPlace::open_fenced`).
//! * S2. When a pool is lost, its exports end before the daemon waits for it again, and no operation begins on it once
//!   it is marked as lost. Operations in progress, such as a copy, are not waited for.
//! * S3. A thread that opens a pool while a reload may run either puts it in place of the entry it was opened for, or
//!   closes it.

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
    /// Asks the storage whether this host still owns the pool. Blocks until the storage responds.
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
    /// Pools that the daemon is waiting for.
    pub(crate) fn waited_for(&self) -> Vec<Arc<Held>> {
        self.pools().into_iter().filter(|held| held.is_waited_for()).collect()
    }

    /// Open pools that another host can take over.
    pub(crate) fn losable(&self) -> Vec<Arc<Held>> {
        let is = |held: &Arc<Held>| !held.plan.read_only && held.pool().is_ok_and(|pool| pool.fences());
        self.pools().into_iter().filter(is).collect()
    }

    /// Tries to open a pool that the daemon has been waiting for since `since`.
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

    /// Replaces the entry `before` by `now`, if it is still in the list.
    fn replace(&self, before: &Arc<Held>, now: &Arc<Held>) -> bool {
        let mut pools = locked(&self.pools);
        let place = pools.get_mut(&before.plan.name).filter(|held| Arc::ptr_eq(held, before));
        place.map(|held| *held = now.clone()).is_some()
    }

    /// Ends the exports of a pool that another host has or may have, and waits for the pool if the daemon stands by
    /// (S2). The turn (D1) is not taken, since its holder may be blocked on the storage. Exports that are being added
    /// are still seen, because the list is locked while they are added.
    pub(crate) fn lose(&self, held: &Arc<Held>, why: Failure) {
        // Pairs with the load in `Held::is_lost`, and with itself: a single caller proceeds.
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
        // In parallel, since each may wait for clients whose requests the storage does not complete.
        std::thread::scope(|scope| {
            for row in &served {
                // The export is taken out even if its clients do not disconnect in time.
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
