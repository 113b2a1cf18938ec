//! Mappings: the place of a range of a file on its device, and the state of the range.
//!
//! Owns only the structure. Files make mappings ([`File::map`](crate::File::map)), and the engine reads them.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// The state of a mapped range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MappingKind {
    /// Written: the device has the data.
    Mapped,
    /// Space without data; reads as zeroes, becomes `Mapped` after a write.
    Unwritten,
    /// No space; reads as zeroes. A file returns a hole only for a read.
    Hole,
}

/// Properties of a mapping besides its state.
///
/// ```
/// use sheave_iomap::mapping::MapFlags;
///
/// let flags = MapFlags::NEW | MapFlags::DIRTY;
/// assert!(flags.any(MapFlags::NEW | MapFlags::SHARED) && !flags.any(MapFlags::SUMMED));
/// assert_eq!(format!("{flags:?}"), "NEW | DIRTY");
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct MapFlags(u8);

impl MapFlags {
    /// No flag.
    pub const NONE: MapFlags = MapFlags(0);
    /// The range has other owners, so that a write must go to another place; the mapping is that new place already.
    pub const SHARED: MapFlags = MapFlags(1 << 0);
    /// The space was allocated for this write.
    pub const NEW: MapFlags = MapFlags(1 << 1);
    /// The file has metadata for the range that is not durable.
    pub const DIRTY: MapFlags = MapFlags(1 << 2);
    /// The file keeps checksums of the range: it is given the memory of each I/O when that ends ([`File::end_summed`]).
    ///
    /// [`File::end_summed`]: crate::File::end_summed
    pub const SUMMED: MapFlags = MapFlags(1 << 3);
    /// A write completes in the issuer's task at the earliest, and not where the device's completion is reaped.
    pub const TASK: MapFlags = MapFlags(1 << 4);
    /// A write completes on a worker, where [`File::end_write`] is called, whether a sync follows or not. For files
    /// with completion work that the other flags do not announce; the data may still go with FUA.
    ///
    /// [`File::end_write`]: crate::File::end_write
    pub const WORKER: MapFlags = MapFlags(1 << 5);

    const NAMES: [(MapFlags, &'static str); 6] = [
        (MapFlags::SHARED, "SHARED"),
        (MapFlags::NEW, "NEW"),
        (MapFlags::DIRTY, "DIRTY"),
        (MapFlags::SUMMED, "SUMMED"),
        (MapFlags::TASK, "TASK"),
        (MapFlags::WORKER, "WORKER"),
    ];

    /// Returns the flags of these bits, numbered in the order of the constants above; other bits are dropped.
    #[inline]
    #[must_use]
    pub const fn from_bits(bits: u8) -> MapFlags {
        MapFlags(bits & ((1 << Self::NAMES.len()) - 1))
    }

    /// Returns true if at least one of `others` is set.
    #[inline(always)]
    #[must_use]
    pub const fn any(self, others: MapFlags) -> bool {
        self.0 & others.0 != 0
    }

    /// Returns the union of `self` and `others`.
    #[inline(always)]
    #[must_use]
    pub const fn with(self, others: MapFlags) -> MapFlags {
        MapFlags(self.0 | others.0)
    }

    /// Returns `self` if `set`, otherwise no flag.
    #[inline(always)]
    #[must_use]
    pub const fn only_if(self, set: bool) -> MapFlags {
        MapFlags(self.0 * set as u8)
    }
}

impl BitOr for MapFlags {
    type Output = MapFlags;

    #[inline(always)]
    fn bitor(self, others: MapFlags) -> MapFlags {
        self.with(others)
    }
}

impl BitOrAssign for MapFlags {
    #[inline(always)]
    fn bitor_assign(&mut self, others: MapFlags) {
        *self = self.with(others);
    }
}

impl fmt::Debug for MapFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = Self::NAMES.iter().filter(|(flag, _)| self.any(*flag)).map(|(_, name)| *name);
        let names: Vec<&str> = set.collect();
        f.write_str(if names.is_empty() { "NONE" } else { "" })?;
        f.write_str(&names.join(" | "))
    }
}

/// Place of the bytes `offset..offset + len` of a file.
///
/// ```
/// use sheave_iomap::mapping::{MapFlags, Mapping, MappingKind};
///
/// // 4 KiB at 64 KiB of the file, at 1 MiB of its device.
/// let written = Mapping::new(MappingKind::Mapped, 64 << 10, 4096, 1 << 20);
/// let fresh = Mapping::new(MappingKind::Unwritten, 64 << 10, 4096, 1 << 20).flags(MapFlags::NEW);
/// assert!(!written.flags.any(MapFlags::NEW) && fresh.flags.any(MapFlags::NEW));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapping {
    /// First byte of the file that the mapping covers.
    pub offset: u64,
    /// Bytes covered; not 0.
    pub len: u64,
    /// First byte on the device; without meaning for a hole.
    pub addr: u64,
    /// Kind of the mapping.
    pub kind: MappingKind,
    /// Flags of the mapping.
    pub flags: MapFlags,
}

impl Mapping {
    /// Maps `len` bytes of a file, from its byte `offset` on, to byte `addr` of its device.
    #[inline(always)]
    #[must_use]
    pub const fn new(kind: MappingKind, offset: u64, len: u64, addr: u64) -> Mapping {
        Mapping { offset, len, addr, kind, flags: MapFlags::NONE }
    }
}

sheave_base::setters!(Mapping { len: u64, flags: MapFlags });

/// Purpose of the I/O that a mapping is requested for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Intent {
    /// A read.
    Read,
    /// A write: the file allocates space if the range has none.
    Write,
}

/// The mappings of one I/O, in order. A single one is stored inline; the vector for more keeps its capacity when
/// cleared.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    /// The only mapping; `more` is empty then.
    one: Option<[Mapping; 1]>,
    more: Vec<Mapping>,
}

impl Pieces {
    #[inline]
    #[must_use]
    pub fn as_slice(&self) -> &[Mapping] {
        match &self.one {
            Some(one) => one,
            None => &self.more,
        }
    }

    /// Reserves room for `pieces` mappings in all.
    pub fn reserve(&mut self, pieces: usize) {
        self.more.reserve(pieces.saturating_sub(self.more.len()));
    }

    #[inline]
    pub fn clear(&mut self) {
        self.one = None;
        self.more.clear();
    }

    #[inline]
    pub fn push(&mut self, mapping: Mapping) {
        match self.one.take() {
            None if self.more.is_empty() => self.one = Some([mapping]),
            None => self.more.push(mapping),
            Some([first]) => self.more.extend([first, mapping]),
        }
    }

    /// Keeps the first `count` mappings.
    pub fn truncate(&mut self, count: usize) {
        self.more.truncate(count);
        if count == 0 {
            self.one = None;
        }
    }

    /// Copies `pieces` into the room that is already allocated.
    pub fn copy_from(&mut self, pieces: &[Mapping]) {
        self.clear();
        pieces.iter().for_each(|&mapping| self.push(mapping));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(n: u64) -> Mapping {
        Mapping::new(MappingKind::Mapped, n, 1, n)
    }

    #[test]
    fn pieces_keep_their_order_however_many_there_are() {
        let mut pieces = Pieces::default();
        for round in 0..3 {
            for count in 0..6 {
                let wanted: Vec<Mapping> = (0..count).map(|n| piece(n + round)).collect();
                pieces.copy_from(&wanted);
                assert_eq!(pieces.as_slice(), wanted);
                for keep in (0..=count as usize).rev() {
                    pieces.truncate(keep);
                    assert_eq!(pieces.as_slice(), &wanted[..keep]);
                }
            }
        }
    }
}
