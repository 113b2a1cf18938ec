//! The cut: the effect of a crash on each write that was not durable.
//!
//! Owns [`Cut`], the fates and the order of the loose writes of one crash. It is drawn from a seed, prints what it did,
//! and can be made gentler fate by fate to reduce a failure.

use std::fmt;

use sheave_base::sync::Arc;

use super::image::{Image, SECTOR};
use sheave_base::rng::Rng;

/// Sectors of a misdirected write that land elsewhere: one block.
const MISDIRECTED: usize = 8;

/// A write that a crash may lose.
#[derive(Clone, Debug)]
pub struct Loose {
    pub sector: u64,
    /// Whole sectors.
    pub data: Arc<[u8]>,
    /// Sectors of the write that have a later durable content.
    pub dead: Vec<u64>,
    /// True if the write was acknowledged.
    pub ended: bool,
}

/// The effect of a crash on a loose write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All of it is on the medium.
    Kept,
    /// None of it is on the medium.
    Lost,
    /// The sectors whose bits are set are on the medium; the pattern repeats every 64.
    Torn(u64),
}

/// The effect of one crash on all loose writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The fate of each loose write.
    pub fates: Vec<Fate>,
    /// The order in which kept writes reach the medium.
    pub order: Vec<usize>,
    /// Index of the write whose first block lands elsewhere, and the sector at which it lands. Set only if a test asks
    /// for it.
    pub misdirected: Option<(usize, u64)>,
}

impl Cut {
    /// Returns the cut in which every write reaches the medium, in order.
    #[must_use]
    pub fn keep_all(loose: usize) -> Cut {
        Cut { fates: vec![Fate::Kept; loose], order: (0..loose).collect(), misdirected: None }
    }

    /// Returns the cut in which no write reaches the medium.
    #[must_use]
    pub fn lose_all(loose: usize) -> Cut {
        Cut { fates: vec![Fate::Lost; loose], ..Cut::keep_all(loose) }
    }

    /// Draws the fates: sometimes one fate for all, or for all but one, or a kept prefix; else each by itself.
    #[must_use]
    pub fn draw(loose: &[Loose], rng: &mut Rng) -> Cut {
        let count = loose.len();
        let mut cut = Cut::keep_all(count);
        let style = rng.below(10);
        let odd = rng.below(count as u64) as usize;
        // A prefix of the writes, like a disk leaves it that writes its cache back in order.
        let prefix = rng.below(count as u64 + 1) as usize;
        for (at, write) in loose.iter().enumerate() {
            cut.fates[at] = match style {
                0 => Fate::Lost,
                1 => Fate::Kept,
                2 if at == odd => Fate::Lost,
                2 => Fate::Kept,
                3 if at == odd => Fate::Kept,
                3 => Fate::Lost,
                4 if at < prefix => Fate::Kept,
                4 if at == prefix => Fate::Torn(tear(rng, write.data.len() / SECTOR)),
                4 => Fate::Lost,
                5 => Fate::Torn(tear(rng, write.data.len() / SECTOR)),
                _ => match rng.below(3) {
                    0 => Fate::Kept,
                    1 => Fate::Lost,
                    _ => Fate::Torn(tear(rng, write.data.len() / SECTOR)),
                },
            };
        }
        // A disk may write its cache back in any order.
        if rng.percent(40) {
            rng.shuffle(&mut cut.order);
        }
        cut
    }

    /// Applies to `image` what the cut leaves of the loose writes.
    pub fn apply(&self, loose: &[Loose], image: &mut Image) {
        for &at in &self.order {
            let (Some(write), Some(&fate)) = (loose.get(at), self.fates.get(at)) else { continue };
            let elsewhere = self.misdirected.filter(|&(victim, _)| victim == at).map(|(_, sector)| sector);
            for (index, piece) in write.data.chunks(SECTOR).enumerate() {
                let sector = write.sector + index as u64;
                let keeps = match fate {
                    Fate::Kept => true,
                    Fate::Lost => false,
                    Fate::Torn(mask) => mask >> (index % 64) & 1 == 1,
                };
                match elsewhere {
                    Some(to) if index < MISDIRECTED => image.write(to + index as u64, piece),
                    Some(_) => {}
                    None if keeps && !write.dead.contains(&sector) => image.write(sector, piece),
                    None => {}
                }
            }
        }
    }
}

/// Returns a mask of the sectors that are kept. It is drawn from four kinds:
///
/// - the sectors before a random one, as if the power had gone in mid-write,
/// - the sectors from a random one on,
/// - whole blocks of 4 KiB, like a disk that emulates 512-byte sectors,
/// - any sectors.
fn tear(rng: &mut Rng, sectors: usize) -> u64 {
    let place = rng.below(sectors.min(63) as u64 + 1);
    match rng.below(8) {
        0..3 => (1 << place) - 1,
        3 => !((1 << place) - 1),
        4..6 => blocks(rng.draw()),
        _ => rng.draw(),
    }
}

/// Returns a mask in which all sectors of a block are alike.
fn blocks(drawn: u64) -> u64 {
    u64::from_le_bytes(drawn.to_le_bytes().map(|byte| if byte & 1 == 0 { 0 } else { u8::MAX }))
}

impl fmt::Display for Cut {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |fate: fn(&Fate) -> bool| self.fates.iter().filter(|one| fate(one)).count();
        let kept = count(|fate| *fate == Fate::Kept);
        let lost = count(|fate| *fate == Fate::Lost);
        write!(
            out,
            "{} loose writes: {kept} kept, {lost} lost, {} torn",
            self.fates.len(),
            self.fates.len() - kept - lost
        )?;
        if self.order.windows(2).any(|pair| pair[0] > pair[1]) {
            write!(out, ", out of order")?;
        }
        match self.misdirected {
            Some((at, to)) => write!(out, ", write {at} misdirected to sector {to}"),
            None => Ok(()),
        }
    }
}
