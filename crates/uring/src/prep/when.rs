//! Time at which a timeout fires: after a span, or at a moment of a clock.

use std::time::{Duration, Instant, SystemTime};

use sheave_base::clock::{Clock, Timeline};

use crate::sqe::{TIMEOUT_ABS, TIMEOUT_REALTIME};

/// Time at which a timeout fires. Made from a `Duration`, an `Instant` or a `SystemTime`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum When {
    /// Fires this long after its issue.
    After(Duration),
    /// Fires at this moment, or at once if the moment has passed.
    At(Instant),
    /// Fires at this moment of the wall clock. Follows the clock if that is set.
    AtTime(SystemTime),
}

impl From<Duration> for When {
    fn from(span: Duration) -> When {
        When::After(span)
    }
}

impl From<Instant> for When {
    fn from(moment: Instant) -> When {
        When::At(moment)
    }
}

impl From<SystemTime> for When {
    fn from(moment: SystemTime) -> When {
        When::AtTime(moment)
    }
}

impl When {
    /// Returns the bits of `timeout_flags`.
    pub(super) fn flags(self) -> u32 {
        match self {
            When::After(_) => 0,
            When::At(_) => TIMEOUT_ABS,
            When::AtTime(_) => TIMEOUT_ABS | TIMEOUT_REALTIME,
        }
    }

    /// Returns the time as a timespec. An `Instant` does not show its position on the clock, so its distance from now
    /// is used.
    pub(crate) fn timespec(self, clock: &Clock) -> [i64; 2] {
        let span = match self {
            When::After(span) => span,
            When::At(moment) => {
                let (here, now) = (Duration::from_nanos(clock.now_ns(Timeline::Monotonic)), Instant::now());
                let late = now.saturating_duration_since(moment);
                here.saturating_add(moment.saturating_duration_since(now)).saturating_sub(late)
            }
            When::AtTime(moment) => moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        };
        [i64::try_from(span.as_secs()).unwrap_or(i64::MAX), span.subsec_nanos().into()]
    }
}
