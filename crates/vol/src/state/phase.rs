//! What an open pool does at all: the one state machine of its life.
//!
//! ```text
//!             Close                CloseDone
//!    Open  ----------->  Closing  ----------->  Closed
//!     |    <-----------     |
//!     |     CloseFailed     |
//!     +-------> Degraded <--+
//!     FlushFailed     FlushFailed
//! ```
//!
//! Owns the phases and every transition. What is done in a phase is in [`commit`](crate::engine::commit), and what
//! being degraded means in [`loss`](crate::engine::loss).
//!
//! - P1: nothing leaves `Degraded` and `Closed`: only opening the pool again does.
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
    /// A flush of its device failed, in this way. What that flush was to make durable may be lost, so nothing more is
    /// written or called durable; reads go on.
    Degraded(Status),
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
            (Phase::Open | Phase::Closing, Event::FlushFailed(status)) => Phase::Degraded(status),
            (Phase::Open, Event::Close) => Phase::Closing,
            (Phase::Closing, Event::CloseFailed) => Phase::Open,
            (Phase::Closing, Event::CloseDone) => Phase::Closed,
            (phase, _) => phase,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Event = Event::FlushFailed(Status::IoErr);
    const DEGRADED: Phase = Phase::Degraded(Status::IoErr);

    #[test]
    fn every_transition() {
        let events = [FAILED, Event::Close, Event::CloseFailed, Event::CloseDone];
        let table = [
            (Phase::Open, [DEGRADED, Phase::Closing, Phase::Open, Phase::Open]),
            (Phase::Closing, [DEGRADED, Phase::Closing, Phase::Open, Phase::Closed]),
            (DEGRADED, [DEGRADED; 4]),
            (Phase::Closed, [Phase::Closed; 4]),
        ];
        for (phase, expect) in table {
            assert_eq!(events.map(|event| phase.after(event)), expect, "{phase:?}");
        }
        assert_eq!(DEGRADED.after(Event::FlushFailed(Status::Timeout)), DEGRADED, "the first cause stays");
    }
}
