//! The memory of a request, piece by piece, whether it is a plain record or carries bios.
//!
//! Owns the walk alone. Made by [`RqTable::segments`](super::RqTable::segments) for drivers that put the pieces
//! together.

use crate::bio::{Bio, Segment};
use crate::bio_set::BioSet;

/// Iterator over the pieces of memory of a request.
#[derive(Debug)]
pub struct Segments<'a> {
    pub(super) bios: &'a BioSet,
    pub(super) bio: Option<&'a Bio>,
    /// The memory of a plain record.
    pub(super) own: Option<Segment>,
    pub(super) at: usize,
    /// Bytes to come: fewer than the bios have when the request was made shorter on its way to the driver.
    pub(super) left: usize,
}

impl Iterator for Segments<'_> {
    type Item = Segment;

    #[inline]
    fn next(&mut self) -> Option<Segment> {
        if self.own.is_some() {
            return self.own.take();
        }
        loop {
            let bio = self.bio?;
            if self.left == 0 {
                return None;
            }
            if let Some(mut segment) = bio.segments().get(self.at).copied() {
                segment.truncate(self.left);
                self.at += 1;
                self.left -= segment.len();
                return Some(segment);
            }
            self.at = 0;
            self.bio = bio.next.is_some().then(|| &self.bios[bio.next]);
        }
    }
}
