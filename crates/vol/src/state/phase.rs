//! What an open pool does at all: the one state machine of its life.
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
//! From each but Closed, OwnerLost leads to Taken.
//!
//! Owns the phases and every transition. What is done in a phase is in [`commit`](crate::engine::commit), and what
//! being degraded means in [`loss`](crate::engine::loss).
//!
//! - P1: nothing leaves `Taken` and `Closed`, and nothing but the loss of the pool leaves `Degraded`: only opening it
//!   again does.
//! - P2: a close that fails is no close: the pool goes on as it was, or is degraded if a flush failed.
//!
//! Called under the pool's lock.

use sheave_base::status::Status;

/// The life of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It does everything.
    #[default]
    Open,
    /// No checkpoint can be written: its pages find no space on the host, or a damaged map stands in the way. The pool
    /// is read, and takes deletes, which are records of the journal ([`cramped`](crate::engine::cramped)).
    DeletesOnly,
    /// A flush of its device failed, in this way. What that flush was to make durable may be lost, so nothing more is
    /// written or called durable; reads go on.
    Degraded(Status),
    /// Another opening has the pool ([`owner`](crate::engine::owner)): nothing is written any more, reads go on.
    Taken,
    /// The next commit is the last: a checkpoint after which the pool is closed.
    Closing,
    /// Everything is durable, and nothing more is taken.
    Closed,
}

/// What moves a pool from one phase to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A flush of the device failed.
    FlushFailed(Status),
    /// Another has opened the pool for writing.
    OwnerLost,
    /// The first checkpoint cannot be written, for want of space or for a damaged map.
    NoRoom,
    /// It can.
    Room,
    /// Its owner closes it.
    Close,
    /// The last checkpoint could not be written.
    CloseFailed,
    /// The last checkpoint is durable.
    CloseDone,
}

impl Phase {
    /// The phase after an event. One that means nothing in a phase changes nothing.
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

    /// Whether a flush of the device has failed.
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
