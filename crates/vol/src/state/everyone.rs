//! The I/O of all volumes at one moment: what the pool as a whole waits for.
//!
//! Owns the list of graces. Waiting for them is in [`engine::wait`](crate::engine::wait).
//!
//! Called under the pool's lock by commits, which begin an epoch, and by checkpoints, which close regions.

use sheave_base::grace::{Grace, Ticket};
use sheave_base::sync::Arc;

use super::table::Table;

/// The I/O of all volumes that was under way at one moment.
#[derive(Debug)]
pub(crate) struct Everyone(Vec<(Arc<Grace>, Ticket)>);

impl Everyone {
    /// Whether all of it has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.0.iter().all(|(grace, ticket)| grace.is_over(*ticket))
    }

    /// The graces, each with the moment that is waited for.
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
    /// The I/O of all volumes as it is now. Who is in no grace now looks maps and regions up later than this.
    pub(crate) fn everyone(&mut self) -> Everyone {
        let graces = self.in_use().map(|vol| vol.core.top.grace());
        graces.filter(|grace| grace.seats() > 0).map(|grace| (Arc::clone(grace), grace.start())).collect()
    }
}
