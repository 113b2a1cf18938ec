//! What a disk holds: what is durable, what is only in its cache, what is on its way. And what is left after a crash.
//!
//! Owns [`Media`], which changes by [`Step`]s alone. A disk that runs logs its steps; the same steps on the same image
//! give the same media again, so a crash can be cut at any step of a run after the run is over.
//!
//! Invariants:
//! - I1: a flush that ends makes durable what had ended when the flush came, in the order in which it ended.
//! - I2: a FUA write that ends is durable, and nothing older in the cache can come after it.
//! - I3: a read sees everything that has ended, and nothing that has not.
//! - I4: a sector is written as a whole or not at all.

use std::collections::BTreeMap;
use std::ops::Range;

use sheave_base::sync::Arc;

use super::cut::{Cut, Loose};
use super::image::{Image, SECTOR, hash_bytes};
use super::lie::Lie;
use sheave_base::rng::{Rng, mix};

/// A request that changes something comes to the disk, or ends there. Reads change nothing.
#[derive(Clone, Debug)]
pub enum Step {
    /// A write (or zeroes, or a discard: what the range will hold) comes.
    Write {
        /// Number of the request.
        id: u64,
        /// First sector.
        sector: u64,
        /// Whole sectors.
        data: Arc<[u8]>,
        /// Durable when it ends.
        fua: bool,
    },
    /// A flush comes, to the disk or to one of several that lie end to end.
    Flush {
        /// Number of the request.
        id: u64,
        /// The sectors of that disk.
        sectors: Range<u64>,
    },
    /// A request fails.
    Fail {
        /// Its number.
        id: u64,
        /// A write: it is done nevertheless, in the cache.
        done: bool,
    },
    /// A request ends.
    End {
        /// Its number.
        id: u64,
    },
}

impl Step {
    /// A number that tells steps apart.
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
    /// Covers what ended before this many writes had, on these sectors.
    Flush {
        covers: u64,
        sectors: Range<u64>,
    },
}

/// A write in the cache: ended, not durable.
#[derive(Clone, Debug)]
struct Cached {
    /// Which one it was to end.
    seq: u64,
    sector: u64,
    data: Arc<[u8]>,
    /// Sectors that a later FUA write has taken the place of.
    dead: Vec<u64>,
}

/// The state of a disk.
#[derive(Clone, Debug)]
pub struct Media {
    /// Survives everything.
    durable: Image,
    /// What readers see.
    current: Image,
    cache: Vec<Cached>,
    moving: BTreeMap<u64, Moving>,
    ended: u64,
    /// Writes ended when the last flush came; for the lie of the late flush.
    last_flush: u64,
    lie: Option<Lie>,
}

impl Media {
    /// A disk with this content, all durable.
    #[must_use]
    pub fn new(image: Image, lie: Option<Lie>) -> Media {
        let (current, cache, moving) = (image.clone(), Vec::new(), BTreeMap::new());
        Media { durable: image, current, cache, moving, ended: 0, last_flush: 0, lie }
    }

    /// What readers see.
    #[must_use]
    pub fn current(&self) -> &Image {
        &self.current
    }

    /// Makes the disk larger.
    pub fn grow(&mut self, size_bytes: u64) {
        self.durable.grow(size_bytes);
        self.current.grow(size_bytes);
    }

    /// Takes one step.
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

    /// What is not durable: in the order in which it ended, then what is on its way.
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

    /// What is left when the power goes now, and how it came about.
    #[must_use]
    pub fn crash(&self, rng: &mut Rng) -> (Image, Cut) {
        let cut = Cut::draw(&self.loose(), rng);
        (self.crash_as(&cut), cut)
    }

    /// What is left when each loose write has the fate that the cut says.
    #[must_use]
    pub fn crash_as(&self, cut: &Cut) -> Image {
        let mut image = self.durable.clone();
        cut.apply(&self.loose(), &mut image);
        image
    }
}

#[cfg(test)]
mod tests;
