//! The media of a disk: durable data, data in the cache, writes under way, and the contents that a crash leaves.
//!
//! Owns [`Media`], which changes by [`Step`]s alone. A disk logs its steps as it runs; the same steps on the same image
//! give the same media, so a run can be cut at any step after it is over.
//!
//! Invariants:
//! - I1: a flush that ends makes durable the writes that had ended when it arrived, in the order in which they ended.
//! - I2: a FUA write that ends is durable, and nothing older in the cache can overwrite it.
//! - I3: a read sees every write that has ended, and no other.
//! - I4: a sector is written wholly or not at all.

use std::collections::BTreeMap;
use std::ops::Range;

use sheave_base::sync::Arc;

use super::cut::{Cut, Loose};
use super::image::{Image, SECTOR, hash_bytes};
use super::lie::Lie;
use sheave_base::rng::{Rng, mix};

/// The arrival or end of a request that changes something. Reads have no steps.
#[derive(Clone, Debug)]
pub enum Step {
    /// A write arrives; for zeroes and discards, `data` is what the range will hold.
    Write {
        id: u64,
        sector: u64,
        /// Whole sectors.
        data: Arc<[u8]>,
        /// Durable when it ends.
        fua: bool,
    },
    /// A flush arrives, at the disk or at one of several that lie end to end.
    Flush {
        id: u64,
        /// The sectors of that disk.
        sectors: Range<u64>,
    },
    Fail {
        id: u64,
        /// The write took effect nevertheless, in the cache.
        done: bool,
    },
    /// A request succeeds.
    End { id: u64 },
}

impl Step {
    #[must_use]
    pub fn hash(&self) -> u64 {
        match self {
            Step::Write { id, sector, data, fua } => {
                mix(*id ^ 1 << 60) ^ mix(sector << 1 | u64::from(*fua)) ^ hash_bytes(data)
            }
            Step::Flush { id, sectors } => mix(*id ^ 2 << 60) ^ mix(sectors.start),
            Step::End { id } => mix(*id ^ 3 << 60),
            Step::Fail { id, done } => mix(*id ^ 4 << 60) ^ u64::from(*done),
        }
    }
}

#[derive(Clone, Debug)]
enum Moving {
    Write {
        sector: u64,
        data: Arc<[u8]>,
        fua: bool,
    },
    /// `covers`: the number of writes that had ended when the flush arrived.
    Flush {
        covers: u64,
        sectors: Range<u64>,
    },
}

/// A write in the cache: ended, not durable.
#[derive(Clone, Debug)]
struct Cached {
    /// Position in the order in which writes ended.
    seq: u64,
    sector: u64,
    data: Arc<[u8]>,
    /// Sectors that a later FUA write has overwritten.
    dead: Vec<u64>,
}

#[derive(Clone, Debug)]
pub struct Media {
    /// Contents that survive every crash.
    durable: Image,
    /// Contents that readers see.
    current: Image,
    cache: Vec<Cached>,
    moving: BTreeMap<u64, Moving>,
    ended: u64,
    /// Writes that had ended when the last flush arrived; only for [`Lie::LateFlush`].
    last_flush: u64,
    lie: Option<Lie>,
}

impl Media {
    /// Returns media with `image` as their content, all of it durable.
    #[must_use]
    pub fn new(image: Image, lie: Option<Lie>) -> Media {
        let (current, cache, moving) = (image.clone(), Vec::new(), BTreeMap::new());
        Media { durable: image, current, cache, moving, ended: 0, last_flush: 0, lie }
    }

    /// Returns the contents that readers see.
    #[must_use]
    pub fn current(&self) -> &Image {
        &self.current
    }

    pub fn grow(&mut self, size_bytes: u64) {
        self.durable.grow(size_bytes);
        self.current.grow(size_bytes);
    }

    pub fn step(&mut self, step: &Step) {
        match step {
            Step::Write { id, sector, data, fua } => {
                let write = Moving::Write { sector: *sector, data: data.clone(), fua: *fua };
                self.moving.insert(*id, write);
            }
            Step::Flush { id, sectors } => {
                let covers = match self.lie {
                    Some(Lie::LateFlush) => std::mem::replace(&mut self.last_flush, self.ended),
                    _ => self.ended,
                };
                self.moving.insert(*id, Moving::Flush { covers, sectors: sectors.clone() });
            }
            Step::Fail { id, done } => match self.moving.remove(id) {
                Some(Moving::Write { sector, data, .. }) if *done => self.end_write(sector, data, false),
                Some(Moving::Flush { covers, sectors }) => {
                    // A failed flush drops what it was to make durable, as kernels and disks do; readers still see it.
                    self.cache.retain(|write| write.seq > covers || !sectors.contains(&write.sector));
                }
                _ => {}
            },
            Step::End { id } => match self.moving.remove(id) {
                Some(Moving::Write { sector, data, fua }) => self.end_write(sector, data, fua),
                Some(Moving::Flush { covers, sectors }) => self.end_flush(covers, &sectors),
                None => debug_assert!(false, "what ends came before"),
            },
        }
    }

    fn end_write(&mut self, sector: u64, data: Arc<[u8]>, fua: bool) {
        self.current.write(sector, &data);
        self.ended += 1;
        if fua && self.lie != Some(Lie::FuaIsVolatile) {
            self.durable.write(sector, &data);
            let end = sector + (data.len() / SECTOR) as u64;
            for older in &mut self.cache {
                older.dead.extend(sector..end); // I2
            }
        } else {
            self.cache.push(Cached { seq: self.ended, sector, data, dead: Vec::new() });
        }
    }

    fn end_flush(&mut self, covers: u64, sectors: &Range<u64>) {
        if self.lie == Some(Lie::FlushDoesNothing) {
            return;
        }
        let is_covered = |write: &mut Cached| write.seq <= covers && sectors.contains(&write.sector);
        for write in self.cache.extract_if(.., is_covered) {
            for (at, piece) in write.data.chunks(SECTOR).enumerate() {
                let sector = write.sector + at as u64;
                if !write.dead.contains(&sector) {
                    self.durable.write(sector, piece); // I1
                }
            }
        }
    }

    /// Returns the writes that are not durable: ended ones in the order of their ends, then those under way.
    #[must_use]
    pub fn loose(&self) -> Vec<Loose> {
        let cached = self.cache.iter().map(|write| Loose {
            sector: write.sector,
            data: write.data.clone(),
            dead: write.dead.clone(),
            ended: true,
        });
        let moving = self.moving.values().filter_map(|moving| match moving {
            Moving::Write { sector, data, .. } => {
                Some(Loose { sector: *sector, data: data.clone(), dead: Vec::new(), ended: false })
            }
            Moving::Flush { .. } => None,
        });
        cached.chain(moving).collect()
    }

    /// Returns the contents left when the power goes now, and the cut that was drawn.
    #[must_use]
    pub fn crash(&self, rng: &mut Rng) -> (Image, Cut) {
        let cut = Cut::draw(&self.loose(), rng);
        (self.crash_as(&cut), cut)
    }

    /// Returns the contents left when each loose write has the fate in `cut`.
    #[must_use]
    pub fn crash_as(&self, cut: &Cut) -> Image {
        let mut image = self.durable.clone();
        cut.apply(&self.loose(), &mut image);
        image
    }
}

#[cfg(test)]
mod tests;
