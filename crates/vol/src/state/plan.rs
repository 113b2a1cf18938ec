//! The changes taken by a commit, and a checkpoint ready to be written.
//!
//! Owns the pages of a checkpoint in memory, with their addresses. They are made from the state, and written, in
//! [`checkpoint`](crate::engine::checkpoint).

use sheave_base::buf::Buf;

use super::freed::LetGo;
use crate::format::BLOCK;
use crate::format::block::Block;
use crate::format::page::index::Sink;
use crate::format::page::{Spot, label, second_address};
use crate::format::record::Record;
use crate::format::superblock::Superblock;

/// Largest number of bytes of a single write of pages.
const RUN_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) units: Vec<(u32, u64)>,
    pub(crate) recorded: Vec<(u32, u64)>,
    pub(crate) pending: Vec<Record>,
    pub(crate) grown: Vec<u32>,
    pub(crate) freed: LetGo,
    /// True if the commit removes the last volume with a damaged map (Q4 of `quarantine`).
    pub(crate) ends_quarantine: bool,
}

/// Pages of a checkpoint, in memory.
#[derive(Debug)]
pub(crate) struct Draft {
    addresses: Vec<u64>,
    /// Units of the second copies; empty in a pool with one copy.
    seconds: Vec<u32>,
    unit_bytes: u64,
    used: usize,
    memory: Buf,
}

/// A checkpoint ready to be written, and the lists that are processed when it is durable.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) draft: Draft,
    pub(crate) sb: Superblock,
    /// Blocks of the list of free units, with their addresses.
    pub(crate) free: Vec<(u64, Box<Block>)>,
    /// Block of the loose root, with its address.
    pub(crate) root: Option<(u64, Box<Block>)>,
    /// Furthest step that the write of this checkpoint may have reached.
    pub(crate) reached: Reached,
    pub(crate) replaced: Vec<u64>,
    pub(crate) taken: Taken,
}

/// Part of a checkpoint that may be on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reached {
    /// Pages, to which nothing refers yet.
    Pages,
    /// The superblock, whole or in part; all pages are durable.
    Superblock,
    /// The second superblock, whole or in part; the first is durable.
    Twin,
}

impl Plan {
    /// Returns the labels of the further members for this checkpoint, with their addresses.
    pub(crate) fn labels(&self) -> Vec<(u64, Block)> {
        let numbers = if self.sb.labels_at == 0 { 0..0 } else { 1..self.sb.members.len() };
        let encode = |number| {
            let mut block = [0; BLOCK];
            (label::encode(&mut block, &self.sb, number), block)
        };
        numbers.map(encode).collect()
    }
}

impl Draft {
    /// Makes a draft without pages. Pages get `addresses` in order, and their second copies the same offsets in
    /// `seconds`.
    pub(crate) fn new(addresses: Vec<u64>, seconds: Vec<u32>, unit_bytes: u64, memory: Buf) -> Draft {
        debug_assert!(seconds.is_empty() || seconds.len() == addresses.len());
        Draft { addresses, seconds, unit_bytes, used: 0, memory }
    }

    /// Returns the number of pages so far.
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Returns the addresses of the pages after the first `before`.
    pub(crate) fn since(&self, before: usize) -> &[u64] {
        &self.addresses[before..self.used]
    }

    /// Removes and returns the addresses that no page has got. Called after the last page was made.
    pub(crate) fn split_unused(&mut self) -> Vec<u64> {
        self.addresses.split_off(self.used)
    }

    /// Returns the next page. Panics if no address is left: a checkpoint without that page would lose data.
    pub(crate) fn next(&mut self) -> (Spot, &mut Block) {
        let spot = self.spot();
        let from = self.used * BLOCK;
        self.used += 1;
        let block = self.memory.get_mut(from..from + BLOCK).and_then(|block| block.try_into().ok());
        (spot, block.expect("invariant: as much memory as there are addresses"))
    }

    fn spot(&self) -> Spot {
        let address = self.addresses.get(self.used).expect("invariant: the account counts every page (M2)");
        Spot { address: *address, second: self.seconds.get(self.used).copied().unwrap_or(0) }
    }

    /// Returns the pages and then their second copies, in runs that are contiguous both on the device and in memory.
    pub(crate) fn runs(&self) -> Vec<(u64, &[u8])> {
        let addresses = &self.addresses[..self.used];
        let mut runs = self.runs_at(addresses.iter().copied());
        let seconds = addresses.iter().zip(&self.seconds);
        runs.extend(self.runs_at(seconds.map(|(at, unit)| second_address(*at, *unit, self.unit_bytes))));
        runs
    }

    fn runs_at(&self, addresses: impl Iterator<Item = u64>) -> Vec<(u64, &[u8])> {
        let mut runs: Vec<(u64, usize, usize)> = Vec::new();
        for (at, address) in addresses.enumerate() {
            match runs.last_mut() {
                Some((start, from, to)) if *start + (*to - *from) as u64 == address && *to - *from < RUN_BYTES => {
                    *to += BLOCK;
                    debug_assert_eq!(*to, (at + 1) * BLOCK);
                }
                _ => runs.push((address, at * BLOCK, (at + 1) * BLOCK)),
            }
        }
        runs.into_iter().map(|(start, from, to)| (start, &self.memory[from..to])).collect()
    }
}

impl Sink for Draft {
    fn allocate(&mut self) -> Option<Spot> {
        Some(self.spot())
    }

    fn page(&mut self, address: u64, block: &Block) {
        let (next, to) = self.next();
        debug_assert_eq!(next.address, address);
        to.copy_from_slice(block);
    }
}
