//! Mappings: where a range of a file lies on its device, and in which state.
//!
//! Owns the shape only. Files make mappings ([`File::map`](crate::File::map)); the engine reads them.

/// The state of a mapped range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MappingKind {
    /// Written: the device has the data.
    Mapped,
    /// Space without data; reads as zeroes, becomes `Mapped` after a write.
    Unwritten,
    /// No space; reads as zeroes. A file gives a hole only to readers.
    Hole,
}

/// The range has other owners; a write must go elsewhere first, and the mapping is already the new place.
pub const MAP_SHARED: u8 = 1 << 0;
/// The space was allocated for this write.
pub const MAP_NEW: u8 = 1 << 1;
/// The file has metadata for the range that is not durable.
pub const MAP_DIRTY: u8 = 1 << 2;
/// The file keeps checksums of the range: it sees the memory of each I/O at its end ([`File::end_summed`]).
///
/// [`File::end_summed`]: crate::File::end_summed
pub const MAP_SUMMED: u8 = 1 << 3;
/// A write completes in the issuer's task at the earliest, and not where the device's completion is reaped.
pub const MAP_TASK: u8 = 1 << 4;
/// A write completes in a worker, where the file hears of it ([`File::end_write`]), whether a sync follows or not. For
/// files that have more to do then than the other flags say; the data may still go with FUA.
///
/// [`File::end_write`]: crate::File::end_write
pub const MAP_WORKER: u8 = 1 << 5;

/// Where the bytes `offset..offset + len` of a file lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First byte of the file that the mapping covers.
    pub offset: u64,
    /// Bytes covered; not 0.
    pub len: u64,
    /// First byte on the device; of no meaning for a hole.
    pub addr: u64,
    /// State of the range.
    pub kind: MappingKind,
    /// `MAP_*` bits.
    pub flags: u8,
}

/// What a mapping is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Intent {
    /// To read.
    Read,
    /// To write: the file makes room if there is none.
    Write,
}

/// The mappings of one I/O, in order. One needs no memory beside this; more keep their room when cleared.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    /// The only one; `more` is empty then.
    one: Option<[Mapping; 1]>,
    more: Vec<Mapping>,
}

impl Pieces {
    /// All of them.
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Mapping] {
        match &self.one {
            Some(one) => one,
            None => &self.more,
        }
    }

    /// Makes room for so many in all.
    pub fn reserve(&mut self, pieces: usize) {
        self.more.reserve(pieces.saturating_sub(self.more.len()));
    }

    /// Forgets all.
    #[inline]
    pub fn clear(&mut self) {
        self.one = None;
        self.more.clear();
    }

    /// Appends one.
    #[inline]
    pub fn push(&mut self, mapping: Mapping) {
        match self.one.take() {
            None if self.more.is_empty() => self.one = Some([mapping]),
            None => self.more.push(mapping),
            Some([first]) => self.more.extend([first, mapping]),
        }
    }

    /// Keeps the first `count`.
    pub fn truncate(&mut self, count: usize) {
        self.more.truncate(count);
        if count == 0 {
            self.one = None;
        }
    }

    /// Becomes a copy of these, in the room that there is.
    pub fn copy_from(&mut self, pieces: &[Mapping]) {
        self.clear();
        pieces.iter().for_each(|&mapping| self.push(mapping));
    }
}

#[cfg(test)]
mod tests;
