//! The media of a disk: durable data, data in the cache, writes under way, and the contents that a crash leaves.
//!
//! Owns [`Media`]. Only [`Step`]s change it. A disk logs its steps while it runs, and the same steps on the same image
//! give the same media. So a run can be cut at any step after it is over.
//!
//! Invariants:
//! - I1: a flush that ends makes durable the writes that had ended when it arrived, in the order in which they ended.
//! - I2: a FUA write that ends is durable, and nothing older in the cache can overwrite it.
//! - I3: a read sees every write that has ended, and no other.
//! - I4: a sector is written wholly or not at all.

use std::collections::BTreeMap;
use std::ops::Range;

use sheave_base::sync::Arc;

use super::cut::{Cut, Fate, Loose};
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
        /// True if the write is durable when it ends.
        fua: bool,
    },
    /// A flush arrives, at the disk or at one of the members that form it end to end.
    Flush {
        id: u64,
        /// The sectors of the disk or member that is flushed.
        sectors: Range<u64>,
    },
    Fail {
        id: u64,
        /// True if the write took effect nevertheless, in the cache.
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
    /// `covers` is the number of writes that had ended when the flush arrived.
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
                    // A failed flush drops the data that it was to make durable, like kernels and disks do; readers
                    // still see that data.
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

    /// Returns the contents left when the process dies now and the disk goes on: all writes that have ended, and any
    /// part of those under way.
    #[must_use]
    pub fn die(&self, rng: &mut Rng) -> (Image, Cut) {
        let loose = self.loose();
        let mut cut = Cut::draw(&loose, rng);
        cut.order = (0..loose.len()).collect();
        loose.iter().zip(&mut cut.fates).filter(|(write, _)| write.ended).for_each(|(_, fate)| *fate = Fate::Kept);
        (self.crash_as(&cut), cut)
    }

    /// Returns the contents left when each loose write has the fate that `cut` gives it.
    #[must_use]
    pub fn crash_as(&self, cut: &Cut) -> Image {
        let mut image = self.durable.clone();
        cut.apply(&self.loose(), &mut image);
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 16;

    fn write(id: u64, sector: u64, byte: u8, fua: bool) -> Step {
        Step::Write { id, sector, data: vec![byte; SECTOR].into(), fua }
    }

    fn flush(id: u64) -> Step {
        Step::Flush { id, sectors: 0..u64::MAX }
    }

    fn media(steps: &[Step], lie: Option<Lie>) -> Media {
        let mut media = Media::new(Image::new(SIZE), lie);
        steps.iter().for_each(|step| media.step(step));
        media
    }

    /// Returns the contents that a sector may have after a crash, from 400 draws.
    fn outcomes(media: &Media, sector: u64) -> Vec<u8> {
        let mut rng = Rng::new(1);
        let mut seen: Vec<u8> = (0..400).map(|_| media.crash(&mut rng).0.sector(sector)[0]).collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    #[test]
    fn readers_see_what_ended_and_nothing_else() {
        let mut media = media(&[write(0, 3, 7, false)], None);
        assert_eq!(media.current().sector(3)[0], 0);
        media.step(&Step::End { id: 0 });
        assert_eq!(media.current().sector(3)[0], 7);
    }

    #[test]
    fn a_write_on_its_way_or_in_the_cache_may_be_kept_or_lost() {
        let mut media = media(&[write(0, 3, 7, false)], None);
        assert_eq!(outcomes(&media, 3), [0, 7]);
        media.step(&Step::End { id: 0 });
        assert_eq!(outcomes(&media, 3), [0, 7]);
    }

    #[test]
    fn a_flush_covers_what_ended_before_it_came() {
        let steps = [
            write(0, 1, 1, false),
            write(1, 2, 2, false),
            Step::End { id: 0 },
            flush(2),
            Step::End { id: 1 },
            Step::End { id: 2 },
        ];
        let media = media(&steps, None);
        assert_eq!(outcomes(&media, 1), [1]);
        assert_eq!(outcomes(&media, 2), [0, 2], "ended after the flush came");
    }

    #[test]
    fn a_flush_of_one_disk_covers_no_other() {
        let steps = [write(0, 1, 1, false), write(1, 100, 2, false), Step::End { id: 0 }, Step::End { id: 1 }];
        let mut media = media(&steps, None);
        media.step(&Step::Flush { id: 2, sectors: 64..128 });
        media.step(&Step::End { id: 2 });
        assert_eq!((outcomes(&media, 1), outcomes(&media, 100)), (vec![0, 1], vec![2]));
    }

    #[test]
    fn a_flush_that_has_not_ended_covers_nothing() {
        let media = media(&[write(0, 1, 1, false), Step::End { id: 0 }, flush(1)], None);
        assert_eq!(outcomes(&media, 1), [0, 1]);
    }

    #[test]
    fn fua_is_durable_and_nothing_older_comes_after_it() {
        let steps = [write(0, 1, 1, false), Step::End { id: 0 }, write(1, 1, 2, true), Step::End { id: 1 }];
        let mut media = media(&steps, None);
        assert_eq!(outcomes(&media, 1), [2]);
        media.step(&flush(2));
        media.step(&Step::End { id: 2 });
        assert_eq!(outcomes(&media, 1), [2], "the older one is not brought back by a flush");
    }

    #[test]
    fn of_two_versions_either_may_be_left() {
        let steps = [write(0, 1, 1, false), Step::End { id: 0 }, write(1, 1, 2, false), Step::End { id: 1 }];
        assert_eq!(outcomes(&media(&steps, None), 1), [0, 1, 2]);
    }

    #[test]
    fn writes_are_torn_between_sectors_only() {
        let data: Arc<[u8]> = vec![9; 8 * SECTOR].into();
        let media = media(&[Step::Write { id: 0, sector: 8, data, fua: false }, Step::End { id: 0 }], None);
        let mut rng = Rng::new(5);
        let mut torn = 0;
        for _ in 0..200 {
            let (image, _) = media.crash(&mut rng);
            let sectors: Vec<[u8; SECTOR]> = (8..16).map(|sector| image.sector(sector)).collect();
            assert!(sectors.iter().all(|sector| *sector == [0; SECTOR] || *sector == [9; SECTOR]));
            torn += usize::from(sectors.iter().any(|sector| sector != &sectors[0]));
        }
        assert!(torn > 20, "{torn} of 200 were torn");
    }

    #[test]
    fn the_same_cut_leaves_the_same_image() {
        let steps: Vec<Step> = (0..20).flat_map(|id| [write(id, id % 7, id as u8, false), Step::End { id }]).collect();
        let media = media(&steps, None);
        let (image, cut) = media.crash(&mut Rng::new(9));
        assert_eq!(media.crash_as(&cut).hash(), image.hash());
        assert_eq!(media.crash(&mut Rng::new(9)).0.hash(), image.hash());
        let kept = Cut { fates: vec![Fate::Kept; 20], order: (0..20).collect(), misdirected: None };
        assert_eq!(media.crash_as(&kept).hash(), media.current().hash());
    }

    #[test]
    fn each_lie_is_one() {
        let steps = [write(0, 1, 1, true), Step::End { id: 0 }];
        assert_eq!(outcomes(&media(&steps, Some(Lie::FuaIsVolatile)), 1), [0, 1]);
        let steps = [write(0, 1, 1, false), Step::End { id: 0 }, flush(1), Step::End { id: 1 }];
        assert_eq!(outcomes(&media(&steps, Some(Lie::FlushDoesNothing)), 1), [0, 1]);
        let mut late = media(&steps, Some(Lie::LateFlush));
        assert_eq!(outcomes(&late, 1), [0, 1]);
        late.step(&flush(2));
        late.step(&Step::End { id: 2 });
        assert_eq!(outcomes(&late, 1), [1]);
    }
}
