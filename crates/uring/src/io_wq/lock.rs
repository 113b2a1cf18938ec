//! The mutex of a pool's shards and rosters. A build for the lab has one with the same calls that measures, in
//! `measure`.

use sheave_base::sync::{Mutex, MutexGuard};

#[derive(Debug)]
pub(super) struct Lock<T>(Mutex<T>);

/// Guard of a `Lock`.
pub(super) type Held<'a, T> = MutexGuard<'a, T>;

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }

    #[inline]
    pub(super) fn lock(&self) -> Held<'_, T> {
        self.0.lock().expect("invariant: no panic under a lock of the pool")
    }
}
