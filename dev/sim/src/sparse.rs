//! A map from the sectors of a volume to values, most of which are missing.
//!
//! Owns [`Sparse`]. Values are kept in chunks, which copies share until one of them changes. So a volume of a TiB uses
//! memory only for what was written to it, and a copy of it only for what differs.

use std::collections::BTreeMap;
use std::ops::Range;

use sheave_base::sync::Arc;

/// Number of sectors in a chunk.
const CHUNK: u64 = 64;

/// A sparse map from sectors to values.
#[derive(Clone, Debug)]
pub struct Sparse<T> {
    chunks: BTreeMap<u64, Arc<Vec<T>>>,
}

impl<T> Default for Sparse<T> {
    fn default() -> Self {
        Sparse { chunks: BTreeMap::new() }
    }
}

impl<T: Clone> Sparse<T> {
    /// Returns the value of a sector, if it or another sector of its chunk was touched.
    #[must_use]
    pub fn get(&self, sector: u64) -> Option<&T> {
        self.chunks.get(&(sector / CHUNK)).map(|chunk| &chunk[(sector % CHUNK) as usize])
    }

    /// Returns all sectors with values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.chunks.iter().flat_map(|(&at, chunk)| (at * CHUNK..).zip(chunk.iter()))
    }

    /// Gives a value to every sector of every chunk that overlaps the range. A sector without a value gets the one that
    /// `fresh` returns.
    pub fn touch(&mut self, range: Range<u64>, mut fresh: impl FnMut(u64) -> T) {
        if range.is_empty() {
            return;
        }
        for at in range.start / CHUNK..=(range.end - 1) / CHUNK {
            let make = || Arc::new((at * CHUNK..(at + 1) * CHUNK).map(&mut fresh).collect());
            self.chunks.entry(at).or_insert_with(make);
        }
    }

    /// Calls `change` on the values in a range for which `wants` returns true.
    pub fn change(&mut self, range: Range<u64>, wants: impl Fn(&T) -> bool, mut change: impl FnMut(u64, &mut T)) {
        if range.is_empty() {
            return;
        }
        for (&at, chunk) in self.chunks.range_mut(range.start / CHUNK..=(range.end - 1) / CHUNK) {
            let first = range.start.max(at * CHUNK) - at * CHUNK;
            let end = range.end.min((at + 1) * CHUNK) - at * CHUNK;
            let within = first as usize..end as usize;
            if chunk[within.clone()].iter().any(&wants) {
                let sectors = at * CHUNK + first..;
                let cells = &mut Arc::make_mut(chunk)[within];
                sectors.zip(cells).filter(|(_, cell)| wants(cell)).for_each(|(sector, cell)| change(sector, cell));
            }
        }
    }

    /// Removes all values from sector `from` on. The rest of its chunk becomes `nothing`.
    pub fn cut(&mut self, from: u64, nothing: &T) {
        let mut gone = self.chunks.split_off(&(from / CHUNK));
        if let Some(mut chunk) = gone.remove(&(from / CHUNK)).filter(|_| !from.is_multiple_of(CHUNK)) {
            Arc::make_mut(&mut chunk)[(from % CHUNK) as usize..].fill(nothing.clone());
            self.chunks.insert(from / CHUNK, chunk);
        }
    }

    /// Returns a map with the same sectors, each with the value that `change` returns.
    #[must_use]
    pub fn map<U>(&self, mut change: impl FnMut(u64, &T) -> U) -> Sparse<U> {
        let chunk = |at: u64, chunk: &[T], change: &mut dyn FnMut(u64, &T) -> U| {
            Arc::new((at * CHUNK..).zip(chunk).map(|(sector, cell)| change(sector, cell)).collect())
        };
        Sparse { chunks: self.chunks.iter().map(|(&at, cells)| (at, chunk(at, cells, &mut change))).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_a_list_is_and_copies_do_not_see_each_other() {
        let mut rng = sheave_base::rng::Rng::new(7);
        let (mut sparse, mut list) = (Sparse::<u32>::default(), vec![0; 1000]);
        for number in 1..2000 {
            let (a, b) = (rng.below(1000), rng.below(1000));
            let range = a.min(b)..a.max(b);
            let copy = sparse.clone();
            let before: Vec<u32> = (0..1000).map(|at| copy.get(at).copied().unwrap_or(0)).collect();
            match rng.below(3) {
                0 => {
                    sparse.touch(range.clone(), |_| 0);
                    sparse.change(range.clone(), |_| true, |_, cell| *cell = number);
                    list[range.start as usize..range.end as usize].fill(number);
                }
                1 => {
                    sparse.change(range.clone(), |cell| cell % 2 == 1, |sector, cell| *cell = sector as u32);
                    let odd = range.filter(|at| list[*at as usize] % 2 == 1).collect::<Vec<_>>();
                    odd.into_iter().for_each(|at| list[at as usize] = at as u32);
                }
                _ if number % 8 == 0 => {
                    sparse.cut(a, &0);
                    list[a as usize..].fill(0);
                }
                _ => sparse = sparse.map(|_, cell| *cell),
            }
            assert!((0..1000).all(|at| sparse.get(at).copied().unwrap_or(0) == list[at as usize]), "step {number}");
            assert!(sparse.iter().filter(|(at, _)| *at < 1000).all(|(at, cell)| list[at as usize] == *cell));
            assert!((0..1000).all(|at| copy.get(at).copied().unwrap_or(0) == before[at as usize]), "step {number}");
        }
        sparse = Sparse::default();
        sparse.touch(1 << 40..(1 << 40) + 1, |_| 1);
        assert_eq!((sparse.iter().count() as u64, sparse.get(1 << 40), sparse.get(0)), (CHUNK, Some(&1), None));
    }
}
