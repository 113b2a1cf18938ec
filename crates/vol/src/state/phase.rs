//! State machine of a pool's life: the operations that it permits.
//!
//! ```text
//!             Close                CloseDone
//!    Open  ----------->  Closing  ----------->  Closed
//!     |    <-----------     |
//!     |     CloseFailed     |
//!     +-------> Degraded <--+
//!     |FlushFailed    FlushFailed
//!     |
//!     |      NoRoom                  FlushFailed
//!     +---------------->  DeletesOnly ----------->  Degraded
//!     <-----------------
//!           Room
//! ```
//!
//! OwnerLost leads from every phase but Closed to Taken.
//!
//! Owns the phases and every transition. The work of each phase is in [`commit`](crate::engine::commit), the rules of a
//! degraded pool are in [`loss`](crate::engine::loss).
//!
//! - P1: no event leaves `Taken` or `Closed`, and only the loss of the pool leaves `Degraded`: the pool must be opened
//!   again.
//! - P2: a failed close has no effect: the pool continues as before, or is degraded if a flush failed.
//!
//! Called under the pool's lock.

use sheave_base::status::Status;

/// The life of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// All operations are permitted.
    #[default]
    Open,
    /// No checkpoint can be written, because its pages find no space on the host or because of a damaged map. The pool
    /// permits reads, and deletes, which are journal records ([`cramped`](crate::engine::cramped)).
    DeletesOnly,
    /// A flush of the device failed with this status. The data of that flush may be lost, so nothing more is written or
    /// reported durable. Reads continue.
    Degraded(Status),
    /// Another opening has the pool ([`owner`](crate::engine::owner)): nothing more is written, reads continue.
    Taken,
    /// The pool is being closed: the next commit is the last one, and is a checkpoint.
    Closing,
    /// Everything is durable, and no operation is accepted.
    Closed,
}

/// Cause of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    FlushFailed(Status),
    /// Another opening has taken the pool for writing.
    OwnerLost,
    /// The first checkpoint cannot be written, for lack of space or because of a damaged map.
    NoRoom,
    /// The first checkpoint can be written after all.
    Room,
    /// The owner closes the pool.
    Close,
    /// The last checkpoint could not be written.
    CloseFailed,
    CloseDone,
}

impl Phase {
    /// Returns the phase after `event`. An event without meaning in a phase leaves it unchanged.
    #[must_use]
    pub(crate) fn after(self, event: Event) -> Phase {
        match (self, event) {
            (Phase::Open | Phase::DeletesOnly | Phase::Closing, Event::FlushFailed(status)) => Phase::Degraded(status),
            (phase, Event::OwnerLost) if phase != Phase::Closed => Phase::Taken,
            (Phase::Open, Event::NoRoom) => Phase::DeletesOnly,
            (Phase::DeletesOnly, Event::Room) => Phase::Open,
            (Phase::Open, Event::Close) => Phase::Closing,
            (Phase::Closing, Event::CloseFailed) => Phase::Open,
            (Phase::Closing, Event::CloseDone) => Phase::Closed,
            (phase, _) => phase,
        }
    }

    pub(crate) fn is_degraded(self) -> bool {
        matches!(self, Phase::Degraded(_))
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const FAILED: Event = Event::FlushFailed(Status::IoErr);
    const DEGRADED: Phase = Phase::Degraded(Status::IoErr);

    #[test]
    fn every_transition() {
        let events =
            [FAILED, Event::NoRoom, Event::Room, Event::Close, Event::CloseFailed, Event::CloseDone, Event::OwnerLost];
        let taken = Phase::Taken;
        let (open, cramped) = (Phase::Open, Phase::DeletesOnly);
        let table = [
            (open, [DEGRADED, cramped, open, Phase::Closing, open, open, taken]),
            (cramped, [DEGRADED, cramped, open, cramped, cramped, cramped, taken]),
            (Phase::Closing, [DEGRADED, Phase::Closing, Phase::Closing, Phase::Closing, open, Phase::Closed, taken]),
            (DEGRADED, [DEGRADED, DEGRADED, DEGRADED, DEGRADED, DEGRADED, DEGRADED, taken]),
            (taken, [taken; 7]),
            (Phase::Closed, [Phase::Closed; 7]),
        ];
        for (phase, expect) in table {
            assert_eq!(events.map(|event| phase.after(event)), expect, "{phase:?}");
        }
        assert_eq!(DEGRADED.after(Event::FlushFailed(Status::Timeout)), DEGRADED, "the first cause stays");
    }
}
