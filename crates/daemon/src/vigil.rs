//! Looks at the pools now and then, and tells the log what somebody has to act on: space that runs out, a failed flush,
//! data that does not match its checksum.
//!
//! Every [`TICK`], which is rare enough to cost nothing. What a pool tells between two looks and takes back is not
//! told.

use std::collections::HashMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec};
use sheave_base::units::fmt_bytes;
use sheave_vol::{PoolInfo, SpaceState};
use tracing::{error, info, warn};

use crate::daemon::Daemon;

/// How often it looks.
const TICK: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// What was told of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    state: SpaceState,
    metadata_low: bool,
    degraded: bool,
    checksum_errors: u64,
}

/// The thread that looks.
pub(crate) struct Vigil {
    thread: JoinHandle<()>,
    /// Closed to end it.
    ends: UnixStream,
}

impl Vigil {
    /// Begins.
    pub(crate) fn start(daemon: &Arc<Daemon>) -> std::io::Result<Vigil> {
        let (ends, told) = UnixStream::pair()?;
        let daemon = daemon.clone();
        let run = move || {
            let mut pools = HashMap::new();
            loop {
                look(&daemon, &mut pools);
                // Readable: the other end is closed.
                if matches!(rustix::event::poll(&mut [PollFd::new(&told, PollFlags::IN)], Some(&TICK)), Ok(1..)) {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("sheave-vigil".into()).spawn(run)?;
        Ok(Vigil { thread, ends })
    }

    /// Ends it, so that nobody but the caller has the daemon.
    pub(crate) fn stop(self) {
        drop(self.ends);
        // A thread that has panicked has said so.
        let _ = self.thread.join();
    }
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
