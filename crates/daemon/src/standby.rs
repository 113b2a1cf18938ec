//! The threads of a daemon that stands by: one opens pools that are waited for, one looks whether pools are still this
//! host's. What they do is in `daemon::standby`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::daemon::Daemon;
use crate::failure::Failure;
use crate::ticker::Ticker;

/// The pause between two tries to open pools.
const AGAIN: Duration = Duration::from_secs(1);
/// The pause between two looks whose pools are. Until then what needs no device, reads of space that was never written,
/// is answered as before.
const LOOK: Duration = Duration::from_millis(500);

/// The threads.
pub(crate) struct Standby([Ticker; 2]);

impl Standby {
    /// Begins.
    pub(crate) fn start(daemon: &Arc<Daemon>) -> Result<Standby, Failure> {
        let failed =
            |error| Failure::run(format!("cannot start a thread: {error}")).fix("raise the limit of processes");
        let (opens, looks) = (daemon.clone(), daemon.clone());
        let mut since = Instant::now();
        let open = Ticker::start("sheave-standby", AGAIN, move || opens.take_over(&mut since)).map_err(failed)?;
        match Ticker::start("sheave-owner", LOOK, move || looks.look_at_owners()) {
            Ok(look) => Ok(Standby([open, look])),
            Err(error) => {
                open.stop();
                Err(failed(error))
            }
        }
    }

    /// Ends both. A pool that is being opened is opened first.
    pub(crate) fn stop(self) {
        self.0.into_iter().for_each(Ticker::stop);
    }
}
