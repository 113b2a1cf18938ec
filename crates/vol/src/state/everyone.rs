//! Snapshot of the I/O in flight on all volumes, for waits of the pool as a whole.
//!
//! Owns the list of graces. The wait is in [`engine::wait`](crate::engine::wait).
//!
//! Called under the pool's lock by commits, which begin an epoch, and by checkpoints, which close regions.

use sheave_base::grace::{Grace, Ticket};
use sheave_base::sync::Arc;

use super::table::Table;

/// The I/O of all volumes that was in flight at one moment.
#[derive(Debug)]
pub(crate) struct Everyone(Vec<(Arc<Grace>, Ticket)>);

impl Everyone {
    /// Returns true if all of this I/O has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.0.iter().all(|(grace, ticket)| grace.is_over(*ticket))
    }

    /// Returns the graces, each with the ticket to wait for.
    pub(crate) fn graces(&self) -> impl Iterator<Item = (&Arc<Grace>, Ticket)> {
        self.0.iter().map(|(grace, ticket)| (grace, *ticket))
    }
}

impl FromIterator<(Arc<Grace>, Ticket)> for Everyone {
    fn from_iter<I: IntoIterator<Item = (Arc<Grace>, Ticket)>>(graces: I) -> Everyone {
        Everyone(graces.into_iter().collect())
    }
}

impl Table {
    /// Returns a snapshot of the I/O in flight now. An I/O that has not entered a grace yet looks up maps and regions
    /// after this call, so it need not be in the snapshot.
    pub(crate) fn everyone(&mut self) -> Everyone {
        let graces = self.in_use().map(|vol| vol.core.top.grace());
        // A grace without a seat has no user that could have I/O in flight.
        graces.filter(|grace| grace.seats() > 0).map(|grace| (Arc::clone(grace), grace.start())).collect()
    }
}
