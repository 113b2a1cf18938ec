//! Disks that lie: each breaks one promise, so that tests can prove that the simulator sees it.

/// A promise that a simulated disk breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Flushes succeed, and nothing becomes durable.
    FlushDoesNothing,
    /// A flush makes durable only the writes that had ended when the previous flush arrived.
    LateFlush,
    /// FUA writes end in the cache like all others.
    FuaIsVolatile,
    /// Some writes land in another place and succeed, while requests are [held](super::SimDisk::hold).
    Misdirects,
}

impl Lie {
    pub const ALL: [Lie; 4] = [Lie::FlushDoesNothing, Lie::LateFlush, Lie::FuaIsVolatile, Lie::Misdirects];
}
