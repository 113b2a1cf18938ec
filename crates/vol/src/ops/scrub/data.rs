//! Reads every written block of every volume once, however many volumes share it, and compares it with its checksum.
//!
//! Owns the walk over the maps, which takes no lock: a range is looked up and read as a ring would, in a section of the
//! volume's grace, so that its units keep their contents until the read has ended. A block that looks bad is looked up
//! and read again. It is reported only if it does not match between two moments without a write to it, and the volume
//! still has it in that place (S1 of [`scrub`](super)).
//!
//! - D1: no unit is pinned while the scrub waits for its rate.

use std::collections::{HashMap, HashSet};

use sheave_base::buf::Buf;
use sheave_base::grace::{Grace, Seat};
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_base::sync::atomic::Ordering;
use sheave_iomap::MappingKind;

use super::{Run, Stop, place};
use crate::engine::inner::PoolInner;
use crate::engine::sums::verify::Look;
use crate::finding::{Finding, FindingKind, Place};
use crate::format::BLOCK_SHIFT;
use crate::format::{BLOCK, BLOCK_BYTES};
use crate::state::sums::crc;
use crate::state::table::VolumeCore;

/// Bytes read at once, without a rate.
const MOST: u64 = 4 << 20;
/// Smallest number of bytes read at once, with a rate.
const LEAST: u64 = 64 << 10;
/// Largest number of mappings looked up in one section.
const LOOKUPS: usize = 4096;
/// Largest number of looks at a block that is being written.
const LOOKS: usize = 8;
/// Binary logarithm of the number of blocks in a chunk of [`Seen`] (128 MiB).
const CHUNK_SHIFT: u32 = 15;

/// Bitmap of the blocks of the pool that were read: 32 MiB for a TiB of data.
#[derive(Default)]
struct Seen {
    chunks: HashMap<u64, Box<[u64]>>,
    /// Bad blocks. They are read again for each volume that has them, so that each volume is named in a finding.
    bad: HashSet<u64>,
}

/// A run of blocks to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    pos: u64,
    addr: u64,
    len: u64,
}

/// Result of a second look at a block.
enum Again {
    /// The block is good, or no longer there.
    Good,
    /// The block was being written at every look.
    Busy,
    /// The block is bad. Has its address, and the status of the read.
    Bad(u64, Status),
}

impl Seen {
    /// Marks a block as seen. Returns true if it was new, or is bad and must be read for each volume.
    fn is_new(&mut self, block: u64) -> bool {
        let chunk = self.chunks.entry(block >> CHUNK_SHIFT).or_insert_with(|| vec![0; 1 << (CHUNK_SHIFT - 6)].into());
        let inside = (block & ((1 << CHUNK_SHIFT) - 1)) as usize;
        let (word, bit) = (&mut chunk[inside >> 6], 1 << (inside & 63));
        let new = *word & bit == 0 || self.bad.contains(&block);
        *word |= bit;
        new
    }

    /// Returns the bytes of a run that are known to be bad: they were read before.
    fn bad_bytes(&self, piece: &Piece) -> u64 {
        if self.bad.is_empty() {
            return 0;
        }
        let blocks = piece.addr >> BLOCK_SHIFT..(piece.addr + piece.len) >> BLOCK_SHIFT;
        blocks.filter(|block| self.bad.contains(block)).count() as u64 * BLOCK_BYTES
    }

    /// Appends the blocks of a range that must be read to `out`, in runs.
    fn take(&mut self, piece: Piece, out: &mut Vec<Piece>) {
        for (pos, addr) in (piece.pos..).step_by(BLOCK).zip((piece.addr..piece.addr + piece.len).step_by(BLOCK)) {
            if !self.is_new(addr >> BLOCK_SHIFT) {
                continue;
            }
            match out.last_mut() {
                Some(last) if last.addr + last.len == addr && last.pos + last.len == pos => last.len += BLOCK_BYTES,
                _ => out.push(Piece { pos, addr, len: BLOCK_BYTES }),
            }
        }
    }
}

/// A volume that is being read through.
struct Source<'a> {
    pool: &'a PoolInner,
    core: Arc<VolumeCore>,
    seat: Seat,
    at: u64,
}

impl Run<'_> {
    pub(super) fn data(&mut self) -> Result<(), Stop> {
        let most = self.pace.piece(MOST, LEAST) & !(BLOCK_BYTES - 1);
        let mut memory = Buf::zeroed(most as usize, BLOCK).map_err(|_| Status::NoMem)?;
        let mut seen = Seen::default();
        let cores: Vec<Arc<VolumeCore>> = {
            let state = self.pool.lock();
            state.table.iter().filter(|vol| !vol.unborn).map(|vol| Arc::clone(&vol.core)).collect()
        };
        for core in cores {
            let seat = Grace::seat(core.top.grace());
            let mut source = Source { pool: self.pool, core, seat, at: 0 };
            while source.at < source.end() {
                self.wait()?;
                let (read, again) = self.batch(&mut source, most, &mut memory, &mut seen)?;
                self.pace.pay(read);
                self.report.data_bytes += read - again;
                self.done += read - again;
                self.tell()?;
            }
        }
        Ok(())
    }

    /// Reads the next blocks, at most `most` bytes. Returns the number of bytes read, and how many of them had been
    /// read before for another volume with the same blocks.
    fn batch(
        &mut self,
        source: &mut Source<'_>,
        most: u64,
        memory: &mut Buf,
        seen: &mut Seen,
    ) -> Result<(u64, u64), Stop> {
        source.seat.enter();
        let pieces = source.gather(most, seen);
        if pieces.is_empty() {
            source.seat.leave();
            return Ok((0, 0));
        }
        let again = pieces.iter().map(|piece| seen.bad_bytes(piece)).sum();
        let phase = source.seat.count();
        source.seat.leave();
        let suspects = suspects(self.pool, &pieces, memory);
        source.seat.uncount(phase);
        let mut bad = Vec::new();
        for pos in suspects {
            match source.look_again(pos)? {
                Again::Good => {}
                Again::Busy => self.report.busy_bytes += BLOCK_BYTES,
                Again::Bad(addr, status) => bad.push((pos, addr, status)),
            }
        }
        // Precedes the findings: a block that was reported bad must stay bad after a crash (V16).
        self.pool.make_marks_durable()?;
        for (pos, addr, status) in bad {
            // Each volume that has the block is reported, but the block counts once.
            if seen.bad.insert(addr >> BLOCK_SHIFT) {
                self.report.bad_bytes += BLOCK_BYTES;
            }
            let finding = source.finding(pos, addr, status);
            self.found(finding);
        }
        Ok((pieces.iter().map(|piece| piece.len).sum(), again))
    }
}

impl Source<'_> {
    /// Returns the end of the volume in whole blocks.
    fn end(&self) -> u64 {
        self.core.size().next_multiple_of(BLOCK_BYTES)
    }

    /// Collects the next written blocks that were not read yet. Called in a section of the grace.
    fn gather(&mut self, most: u64, seen: &mut Seen) -> Vec<Piece> {
        let map = &self.pool.map;
        let slot_bytes = map.geometry.unit_shift + map.geometry.slot_shift();
        let mut pieces: Vec<Piece> = Vec::new();
        let mut bytes = 0;
        for _ in 0..LOOKUPS {
            let end = self.end();
            if self.at >= end || bytes >= most {
                break;
            }
            // Acquire: pairs with the Release stores of numbers in `tree`.
            let slot =
                self.core.top.word((self.at >> slot_bytes) as u32).map_or(0, |word| word.load(Ordering::Acquire));
            if slot == 0 {
                self.at = ((self.at >> slot_bytes) + 1) << slot_bytes;
                continue;
            }
            // The entry has changed just now: it is looked up again.
            let Ok(mapping) = map.lookup_read_far(&self.core.top, self.at, (end - self.at).min(most - bytes)) else {
                continue;
            };
            if mapping.kind == MappingKind::Mapped {
                let before: u64 = pieces.iter().map(|piece| piece.len).sum();
                seen.take(Piece { pos: mapping.offset, addr: mapping.addr, len: mapping.len }, &mut pieces);
                bytes += pieces.iter().map(|piece| piece.len).sum::<u64>() - before;
            }
            self.at += mapping.len;
        }
        pieces
    }

    /// Looks a block up and reads it until it is certainly good or bad.
    fn look_again(&self, pos: u64) -> Result<Again, Status> {
        let mut memory = Buf::zeroed(BLOCK, BLOCK).map_err(|_| Status::NoMem)?;
        for _ in 0..LOOKS {
            self.seat.enter();
            let Some(addr) = self.lookup(pos) else {
                self.seat.leave();
                return Ok(Again::Good);
            };
            let phase = self.seat.count();
            self.seat.leave();
            let io = &*self.pool.io;
            let looked = match &self.pool.sums {
                Some(sums) => match sums.settle(io, addr >> BLOCK_SHIFT, &mut memory) {
                    Ok(Look::Good) => Ok(()),
                    Ok(Look::Busy) => Err(Status::Again),
                    Ok(Look::Bad(found)) => {
                        self.pool.mark(found).and_then(|bad| Err(if bad { Status::Protection } else { Status::Again }))
                    }
                    Ok(Look::Marked) => Err(Status::Protection),
                    Err(status) => Err(status),
                },
                // If the second read succeeds, the medium has no fault.
                None => io.read(addr, &mut memory).or_else(|_| io.read(addr, &mut memory)),
            };
            // The unit cannot be reused before the count is dropped: the same address is the same block.
            self.seat.enter();
            let now = self.lookup(pos);
            self.seat.leave();
            self.seat.uncount(phase);
            match looked {
                Ok(()) if now == Some(addr) => return Ok(Again::Good),
                Err(Status::Again) => {}
                Err(status) if now == Some(addr) => return Ok(Again::Bad(addr, status)),
                // The block was moved or discarded meanwhile.
                _ => {}
            }
        }
        Ok(Again::Busy)
    }

    /// Returns the address of a block, if it is written. Called in a section of the grace.
    fn lookup(&self, pos: u64) -> Option<u64> {
        loop {
            match self.pool.map.lookup_read_far(&self.core.top, pos, BLOCK_BYTES) {
                Ok(mapping) if pos < self.end() => {
                    return Some(mapping.addr).filter(|_| mapping.kind == MappingKind::Mapped);
                }
                Ok(_) => return None,
                // The entry has changed just now.
                Err(_) => std::hint::spin_loop(),
            }
        }
    }

    fn finding(&self, pos: u64, addr: u64, status: Status) -> Finding {
        let id = self.core.id;
        let name = self.pool.lock().table.get(id).map_or_else(|| format!("number {id}"), |vol| vol.name.clone());
        let (kind, means) = match status {
            Status::Protection => (
                FindingKind::Data,
                "it does not match its checksum, so it is not what was written; reads of it fail with EILSEQ. Restore \
                 it from a copy; writing or discarding it heals it"
                    .into(),
            ),
            status => (
                FindingKind::Unreadable,
                format!("the device cannot read it ({status}). Restore it from a copy, and replace the device"),
            ),
        };
        let place = Place { volume: Some(name), range: Some((pos, BLOCK_BYTES)), ..place("data", addr) };
        Finding { kind, place, means, repair: None }
    }
}

/// Reads the pieces. Returns the positions of blocks that do not match their checksums, or cannot be read.
fn suspects(pool: &PoolInner, pieces: &[Piece], memory: &mut Buf) -> Vec<u64> {
    let mut rest: &mut [u8] = memory;
    let mut runs = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let (run, more) = rest.split_at_mut(piece.len as usize);
        runs.push((piece.addr, run));
        rest = more;
    }
    let mut suspects = Vec::new();
    let all = pool.io.read_many(&mut runs).is_ok();
    for (piece, (addr, run)) in pieces.iter().zip(&mut runs) {
        let whole = all || pool.io.read(*addr, run).is_ok();
        for (pos, block) in (piece.pos..).step_by(BLOCK).zip(run.chunks_mut(BLOCK)) {
            let at = piece.addr + (pos - piece.pos);
            let good = (whole || pool.io.read(at, block).is_ok())
                && pool.sums.as_ref().is_none_or(|sums| {
                    sums.get(at >> BLOCK_SHIFT) == Some(crc(block)) && !sums.is_marked(at >> BLOCK_SHIFT)
                });
            if !good {
                suspects.push(pos);
            }
        }
    }
    suspects
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn piece(pos: u64, addr: u64, blocks: u64) -> Piece {
        Piece { pos: pos << 12, addr: addr << 12, len: blocks << 12 }
    }

    fn take(seen: &mut Seen, piece: Piece) -> Vec<Piece> {
        let mut out = Vec::new();
        seen.take(piece, &mut out);
        out
    }

    #[test]
    fn a_shared_block_is_read_once() {
        let mut seen = Seen::default();
        assert_eq!(take(&mut seen, piece(0, 100, 16)), [piece(0, 100, 16)]);
        assert_eq!(take(&mut seen, piece(0, 100, 16)), []);
        // Over the border of a chunk, with a block in the middle that was read before.
        let border = 1 << CHUNK_SHIFT;
        assert_eq!(take(&mut seen, piece(7, border - 1, 2)), [piece(7, border - 1, 2)]);
        assert_eq!(take(&mut seen, piece(5, border - 3, 6)), [piece(5, border - 3, 2), piece(9, border + 1, 2)]);
    }

    #[test]
    fn a_bad_block_is_read_again_for_each_who_has_it() {
        let mut seen = Seen::default();
        take(&mut seen, piece(0, 100, 16));
        seen.bad.insert(103);
        assert_eq!(take(&mut seen, piece(50, 100, 16)), [piece(53, 103, 1)]);
        assert_eq!(take(&mut seen, piece(90, 100, 16)), [piece(93, 103, 1)]);
    }
}
