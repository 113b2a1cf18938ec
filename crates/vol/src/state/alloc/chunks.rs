//! Owner counts and free bits of units, in chunks that take memory only while a unit of them is in use.
//!
//! Owns the owner counts, with the values of [`Units`](super::Units), and the search for free units. A chunk without
//! memory is entirely free, so unused space costs one pointer per 16 MiB (units of 4 KiB).
//!
//! - C1: a unit of a chunk with memory is free exactly if its bit is set; `free_units` counts these bits.
//!
//! Called by [`Units`](super::Units).

use std::collections::BTreeSet;

use super::bitmap::Bitmap;

const SHIFT: u32 = 12;
const UNITS: usize = 1 << SHIFT;

#[derive(Debug)]
struct Chunk {
    free_units: u32,
    free: [u64; UNITS / 64],
    owners: [u16; UNITS],
}

impl Chunk {
    /// Makes a chunk whose first `units` units are free and no others.
    fn new(units: usize) -> Box<Chunk> {
        let mut chunk = Box::new(Chunk { free_units: units as u32, free: [0; UNITS / 64], owners: [0; UNITS] });
        for (at, word) in chunk.free.iter_mut().enumerate() {
            *word = match units.saturating_sub(at * 64) {
                0 => 0,
                left if left >= 64 => u64::MAX,
                left => (1 << left) - 1,
            };
        }
        chunk
    }

    /// Returns the first free unit from `from` on.
    fn next(&self, from: usize) -> Option<usize> {
        let mut mask = u64::MAX << (from & 63);
        for at in from >> 6..self.free.len() {
            let word = self.free[at] & mask;
            if word != 0 {
                return Some(at << 6 | word.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    /// Returns the first of `units` adjacent free units, aligned to `units`, at or after `from`. `units` is a power of
    /// two of at most 64.
    fn next_window(&self, from: usize, units: usize) -> Option<usize> {
        let mut mask = u64::MAX << (from & 63);
        for at in from >> 6..self.free.len() {
            // Bit `n` is set if the `len` units from `n` on are free. Each turn doubles `len`.
            let (mut word, mut len) = (self.free[at] & mask, 1);
            while len < units {
                word &= word >> len;
                len *= 2;
            }
            // Keeps the bits at multiples of `units`.
            word &= u64::MAX / (u64::MAX >> (64 - units));
            if word != 0 {
                return Some(at << 6 | word.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }
}

/// Returns the chunk of a unit, and its index in the chunk.
fn split(unit: u64) -> (usize, usize) {
    ((unit >> SHIFT) as usize, unit as usize & (UNITS - 1))
}

#[derive(Debug)]
pub(super) struct Chunks {
    total: u64,
    chunks: Vec<Option<Box<Chunk>>>,
    with_free: Bitmap,
    made: u64,
    /// Chunks without memory whose units cannot be allocated (C4).
    barred: BTreeSet<usize>,
}

impl Chunks {
    pub(super) fn new() -> Chunks {
        Chunks { total: 0, chunks: Vec::new(), with_free: Bitmap::new(0), made: 0, barred: BTreeSet::new() }
    }

    /// Grows to `total` units; the new ones are free.
    pub(super) fn grow(&mut self, total: u64) {
        let (first, last) = (self.total >> SHIFT, total.div_ceil(UNITS as u64));
        self.chunks.resize_with(last as usize, || None);
        self.with_free.grow(last);
        self.with_free.set_range(first, last);
        // The chunk in which the pool ended has memory (C2). Its units up to the new end become free.
        let (from, to) = (self.total, total.min((first + 1) << SHIFT));
        if from & (UNITS as u64 - 1) != 0 {
            (from..to).for_each(|unit| self.set_free(unit));
        }
        let (end, inside) = split(total);
        if inside != 0 && self.chunks[end].is_none() {
            self.chunks[end] = Some(Chunk::new(inside));
            self.made += 1;
        }
        self.total = total;
        self.drop_if_free(first as usize);
    }

    pub(super) fn is_free(&self, unit: u64) -> bool {
        let (chunk, at) = split(unit);
        unit < self.total
            && match &self.chunks[chunk] {
                Some(chunk) => chunk.free[at >> 6] >> (at & 63) & 1 != 0,
                None => !self.barred.contains(&chunk),
            }
    }

    /// Takes the free units of `from..to` without an owner. Chunks without memory that lie in the range as a whole are
    /// barred (C4); all other units are appended to `runs` as (first, count). Returns the number of units taken.
    pub(super) fn bar(&mut self, from: u64, to: u64, runs: &mut Vec<(u64, u64)>) -> u64 {
        let (mut unit, mut taken) = (from, 0);
        while let Some(free) = self.next_free(unit).filter(|free| *free < to) {
            let number = split(free).0;
            let (first, end) = ((number << SHIFT) as u64, ((number + 1) << SHIFT) as u64);
            if self.chunks[number].is_none() && from <= first && end <= to {
                self.barred.insert(number);
                self.with_free.clear(number as u64);
                (unit, taken) = (end, taken + UNITS as u64);
                continue;
            }
            self.take(free, 0);
            match runs.last_mut() {
                Some((first, count)) if *first + *count == free => *count += 1,
                _ => runs.push((free, 1)),
            }
            (unit, taken) = (free + 1, taken + 1);
        }
        taken
    }

    /// Calls `run` with runs of free units (first, count), beginning with the chunk of `from` and wrapping around,
    /// until about `most` words were visited. A run ends at the end of a chunk that has memory.
    pub(super) fn free_runs(&self, from: u64, most: u64, run: &mut dyn FnMut(u64, u64)) {
        let (from, last, mut left) = (split(from).0 as u64, self.chunks.len() as u64, most);
        for range in [from..last, 0..from.min(last)] {
            let mut next = self.with_free.next(range.start);
            while let Some(number) = next.filter(|number| range.contains(number) && left > 0) {
                next = self.with_free.next(number + 1);
                let start = number << SHIFT;
                let Some(chunk) = &self.chunks[number as usize] else {
                    left -= 1;
                    run(start, UNITS as u64);
                    continue;
                };
                left = left.saturating_sub(UNITS as u64 / 64);
                let mut at = chunk.next(0);
                while let Some(first) = at {
                    let mut end = first + 1;
                    while end < UNITS && chunk.free[end >> 6] >> (end & 63) & 1 != 0 {
                        // Skips a word at a time where all of it is free.
                        end = if end & 63 == 0 && chunk.free[end >> 6] == u64::MAX { end + 64 } else { end + 1 };
                    }
                    run(start + first as u64, (end - first) as u64);
                    at = if end < UNITS { chunk.next(end) } else { None };
                }
            }
        }
    }

    /// Removes all bars. Returns the number of units that become free.
    pub(super) fn unbar(&mut self) -> u64 {
        let barred = std::mem::take(&mut self.barred);
        barred.iter().for_each(|number| self.with_free.set(*number as u64));
        barred.len() as u64 * UNITS as u64
    }

    /// Returns the owner count of a unit; 0 for one that is free or beyond the pool.
    pub(super) fn owners(&self, unit: u64) -> u16 {
        let (chunk, at) = split(unit);
        self.chunks.get(chunk).and_then(Option::as_ref).map_or(0, |chunk| chunk.owners[at])
    }

    /// Returns the owner count of a unit, for changes, or `None` if its chunk has no memory.
    pub(super) fn owners_mut(&mut self, unit: u64) -> Option<&mut u16> {
        let (chunk, at) = split(unit);
        self.chunks.get_mut(chunk)?.as_mut().map(|chunk| &mut chunk.owners[at])
    }

    /// Takes a free unit and sets its owner count.
    pub(super) fn take(&mut self, unit: u64, owners: u16) {
        debug_assert!(self.is_free(unit), "unit {unit} is not free");
        let (number, at) = split(unit);
        let Some(chunk) = self.chunks.get_mut(number) else { return };
        self.made += u64::from(chunk.is_none());
        let chunk = chunk.get_or_insert_with(|| Chunk::new(UNITS));
        chunk.free[at >> 6] &= !(1 << (at & 63));
        chunk.owners[at] = owners;
        chunk.free_units -= 1;
        if chunk.free_units == 0 {
            self.with_free.clear(number as u64);
        }
    }

    /// Frees a unit without owners.
    pub(super) fn release(&mut self, unit: u64) {
        self.set_free(unit);
        self.drop_if_free(split(unit).0);
    }

    fn set_free(&mut self, unit: u64) {
        let (number, at) = split(unit);
        let Some(chunk) = self.chunks.get_mut(number).and_then(Option::as_mut) else { return };
        chunk.owners[at] = 0;
        chunk.free[at >> 6] |= 1 << (at & 63);
        chunk.free_units += 1;
        self.with_free.set(number as u64);
    }

    /// Gives up the memory of a chunk that is entirely free (C2).
    fn drop_if_free(&mut self, number: usize) {
        if self.chunks.get(number).and_then(Option::as_ref).is_some_and(|chunk| chunk.free_units as usize == UNITS) {
            self.chunks[number] = None;
            self.made -= 1;
        }
    }

    /// Returns the first free unit from `from` on.
    pub(super) fn next_free(&self, from: u64) -> Option<u64> {
        let (number, at) = split(from);
        let here = match self.chunks.get(number)? {
            None => Some(at).filter(|_| !self.barred.contains(&number)),
            Some(chunk) => chunk.next(at),
        };
        if let Some(at) = here {
            return Some((number << SHIFT | at) as u64);
        }
        let number = self.with_free.next(number as u64 + 1)?;
        let at = self.chunks[number as usize].as_ref().map_or(Some(0), |chunk| chunk.next(0))?;
        Some(number << SHIFT | at as u64)
    }

    /// Returns the first of `units` adjacent free units, aligned to `units`, at or after `from` (as
    /// [`Chunk::next_window`]). After `most` chunks without one, returns the unit to continue from as the error.
    pub(super) fn next_window(&self, from: u64, units: u64, most: usize) -> Result<u64, u64> {
        let (mut number, mut at) = split(from);
        for _ in 0..most {
            let found = match self.chunks.get(number) {
                None => return Err(0),
                Some(None) if self.barred.contains(&number) => None,
                Some(None) => Some(at.next_multiple_of(units as usize)).filter(|at| *at < UNITS),
                Some(Some(chunk)) => chunk.next_window(at, units as usize),
            };
            if let Some(at) = found {
                return Ok((number << SHIFT | at) as u64);
            }
            at = 0;
            match self.with_free.next(number as u64 + 1) {
                Some(next) => number = next as usize,
                None => return Err(0),
            }
        }
        Err((number << SHIFT) as u64)
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.made * size_of::<Chunk>() as u64 + self.chunks.len() as u64 * 8 + self.chunks.len() as u64 / 8
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn like_a_plain_map(
            first in 1u64..20_000,
            more in 0u64..20_000,
            steps in prop::collection::vec((any::<u64>(), 0u64..40), 1..60),
        ) {
            let mut chunks = Chunks::new();
            chunks.grow(first);
            let (mut used, mut total) = (BTreeMap::new(), first);
            for (step, (unit, count)) in steps.into_iter().enumerate() {
                if step == 20 {
                    total += more;
                    chunks.grow(total);
                }
                let (unit, release) = (unit % total, unit & (1 << 40) != 0);
                for unit in unit..(unit + count).min(total) {
                    match release {
                        true if used.remove(&unit).is_some() => chunks.release(unit),
                        false if used.insert(unit, unit as u16 | 1).is_none() => chunks.take(unit, unit as u16 | 1),
                        _ => {}
                    }
                }
                for at in [unit, unit + count, 0, total - 1, total, total + 9000] {
                    prop_assert_eq!(chunks.is_free(at), at < total && !used.contains_key(&at));
                    prop_assert_eq!(chunks.owners(at), used.get(&at).copied().unwrap_or(0));
                    let free = (at..total).find(|unit| !used.contains_key(unit));
                    prop_assert_eq!(chunks.next_free(at), free);
                    for units in [1, 2, 4, 8] {
                        let is_free = |first: &u64| (*first..first + units).all(|unit| !used.contains_key(&unit));
                        let starts = at.next_multiple_of(units)..(total + 1).saturating_sub(units);
                        let mut starts = starts.step_by(units as usize);
                        prop_assert_eq!(chunks.next_window(at, units, usize::MAX).ok(), starts.find(is_free));
                    }
                }
            }
            let all: Vec<u64> = used.into_keys().collect();
            all.into_iter().for_each(|unit| chunks.release(unit));
            prop_assert!(chunks.made <= 1, "C2: what is free as a whole has no memory");
        }
    }

    #[test]
    fn space_that_was_never_used_costs_less_than_a_mebibyte_a_tebibyte() {
        let mut chunks = Chunks::new();
        chunks.grow((4 << 40 >> 12) + 5);
        assert!(chunks.memory_bytes() <= 4 << 20, "{}", chunks.memory_bytes());
        assert_eq!(chunks.next_free(1 << 29), Some(1 << 29));
    }
}
