//! Pools that open for deletes alone, because the file system of the disk is full: volumes are deleted until the pool
//! accepts everything again, or none is left. Crashes are simulated during the deletes as during any other work.

use std::collections::BTreeMap;

use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_vol::{Pool, PoolError};

use super::{Explorer, MAX_DEPTH, Run};
use crate::audit::audit;
use crate::disk::{Image, SimDisk};
use crate::model::{Change, Event, Model};
use crate::observe::observe;
use crate::world::{Counters, History};

/// Largest number of volumes deleted in one opening.
const MOST: u64 = 4;
/// Number of crashes to simulate during those deletes.
const CUTS: usize = 6;

impl Explorer<'_> {
    /// Deletes volumes of a pool that accepts nothing else, compares the remaining volumes with the model after each
    /// delete, and then simulates crashes at points between the deletes' writes.
    pub(super) fn delete_some(
        &mut self,
        (pool, disk): (Pool, SimDisk),
        (before, model, counters): (Image, Model, Counters),
        grown: bool,
        rng: &mut Rng,
        depth: u32,
    ) -> Result<(), String> {
        let (mut now, mut history, from) = (model.clone(), History::default(), disk.time());
        // A pool in this state must refuse everything that needs space.
        let refused = pool.create_volume("refused", 4096);
        if !matches!(refused, Err(PoolError::HostFull { .. })) {
            return Err(format!("a pool that takes deletes alone makes a volume: {refused:?}"));
        }
        for _ in 0..rng.between(1, MOST) {
            let names: Vec<String> = now.volumes().keys().cloned().collect();
            if names.is_empty() {
                break;
            }
            let change = Change::Delete { name: rng.pick(&names).clone() };
            let mut note = |event: Event, at: usize| {
                now.apply(&event);
                history.events.push((at, event));
            };
            history.trace.push((disk.time(), change.to_string()));
            note(Event::Change(change.clone()), disk.time());
            let Change::Delete { name } = &change else { break };
            let result = pool.delete(name);
            note(Event::Changed { ok: result.is_ok(), sizes: Vec::new() }, disk.time());
            self.report.tally.count("deletes where nothing else is taken");
            match result {
                Ok(()) => {}
                // The journal has no block left.
                Err(PoolError::HostFull { .. } | PoolError::Io { status: Status::NoSpc, .. }) => break,
                // The disk failed. Either the delete is made but not durable, or it has not begun, so nothing can be
                // compared.
                Err(_) if self.plan.setup.disk.errors.any() => return Ok(()),
                Err(error) => return Err(format!("{change}: {error}")),
            }
            now.is_readable(&observe(&pool, &disk.image(), self.plan.setup.seed)?)?;
            audit(&pool)?;
            if !pool.info().deletes_only {
                self.report.tally.count("deletes that made room for everything else");
                break;
            }
        }
        self.check(&disk.image())?;
        drop(pool);
        self.check(&disk.image())?;
        if depth + 1 >= MAX_DEPTH {
            return Ok(());
        }
        let (lies, degraded, failed) = (false, false, false);
        let log = disk.log();
        let left = BTreeMap::new();
        let run = Run { before, log, history, model, counters, from, grown, lies, degraded, failed, left };
        self.path.push("in a pool that takes deletes alone".into());
        let before = self.report.crashes;
        self.cut(&run, CUTS, depth + 1)?;
        self.report.tally.count_times(self.report.crashes - before, "crashes among such deletes");
        self.path.pop();
        Ok(())
    }
}
