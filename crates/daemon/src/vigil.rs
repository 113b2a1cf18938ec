//! Looks at the pools now and then, and tells the log what somebody has to act on: space that runs out, a failed flush,
//! data that does not match its checksum.
//!
//! Every [`TICK`], which is rare enough to cost nothing. What a pool tells between two looks and takes back is not
//! told.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sheave_base::units::fmt_bytes;
use sheave_vol::{PoolInfo, SpaceState};
use tracing::{error, info, warn};

use crate::daemon::Daemon;
use crate::ticker::Ticker;

/// How often it looks.
const TICK: Duration = Duration::from_secs(2);

/// What was told of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    state: SpaceState,
    metadata_low: bool,
    degraded: bool,
    taken: bool,
    checksum_errors: u64,
}

/// Begins to look.
pub(crate) fn start(daemon: &Arc<Daemon>) -> std::io::Result<Ticker> {
    let (daemon, mut pools) = (daemon.clone(), HashMap::new());
    Ticker::start("sheave-vigil", TICK, move || look(&daemon, &mut pools))
}

fn look(daemon: &Daemon, pools: &mut HashMap<String, Told>) {
    let held = daemon.pools();
    pools.retain(|name, _| held.iter().any(|held| held.plan.name == *name));
    for held in held {
        let Ok(pool) = held.pool() else { continue };
        let (name, info) = (held.plan.name.as_str(), pool.info());
        let before = pools.insert(name.to_owned(), Told::of(&info)).unwrap_or_default();
        Told::of(&info).tell_since(&before, name, &info);
    }
}

impl Told {
    fn of(info: &PoolInfo) -> Told {
        Told {
            state: info.state,
            metadata_low: info.metadata_low,
            degraded: info.degraded.is_some(),
            taken: info.taken_by.is_some(),
            checksum_errors: info.checksum_errors,
        }
    }

    /// Tells what has changed.
    fn tell_since(&self, before: &Told, name: &str, info: &PoolInfo) {
        const MORE: &str = "delete snapshots, or give it more: sheave pool grow";
        let free = fmt_bytes(info.free_bytes);
        if self.state != before.state {
            let free_bytes = info.free_bytes;
            match self.state {
                SpaceState::Full => {
                    error!(event = "pool_full", pool = name, free_bytes, "pool '{name}' is full, writes fail: {MORE}");
                }
                SpaceState::Low => {
                    warn!(event = "pool_low", pool = name, free_bytes, "pool '{name}' is low, {free} free: {MORE}");
                }
                // `Ok`, and what a later pool may tell beside it.
                _ => {
                    info!(event = "pool_ok", pool = name, free_bytes, "pool '{name}' has space again, {free} free");
                }
            }
        }
        if self.metadata_low && !before.metadata_low {
            warn!(
                event = "metadata_low",
                pool = name,
                "the metadata of pool '{name}' runs short: delete volumes or snapshots"
            );
        }
        if self.degraded && !before.degraded {
            error!(
                event = "pool_degraded",
                pool = name,
                "a flush of pool '{name}' has failed, it takes no writes: look at its device, then restart the daemon"
            );
        }
        if let Some(who) = info.taken_by.as_ref().filter(|_| !before.taken) {
            error!(
                event = "pool_lost",
                pool = name,
                "pool '{name}' takes no writes, for it is not this daemon's any more: {who}. End the other user or the \
                 second path to its bytes, then restart the daemon"
            );
        }
        if self.checksum_errors > before.checksum_errors {
            let errors = self.checksum_errors - before.checksum_errors;
            error!(
                event = "checksum_errors",
                pool = name,
                errors,
                "{errors} reads of pool '{name}' did not match their checksums: sheave pool scrub tells which volumes"
            );
        }
    }
}
