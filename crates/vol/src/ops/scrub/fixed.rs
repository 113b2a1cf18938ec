//! Scrubs the blocks at fixed places: superblocks and their copies, labels of members, and the journal blocks that a
//! recovery would need.
//!
//! Owns the rules for these blocks while the pool is open. Both superblocks are intact and of consecutive generations.
//! The newer one equals the superblock in memory, and so do the copies. Each live journal block is of this opening and
//! has its own number. A copy that breaks its rule is rewritten from the newer superblock on the device.

use sheave_base::status::Status;

use super::{AT_ONCE, Run, Stop, place};
use crate::device::copies::{self, USE};
use crate::device::sweep::Sweep;
use crate::engine::inner::PoolInner;
use crate::finding::{Finding, FindingKind};
use crate::format::block::Block;
use crate::format::damage::Damage;
use crate::format::journal::{JournalBlock, Ring};
use crate::format::page::label;
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, SUPERBLOCKS};

/// Number of journal blocks read at once.
const BATCH: usize = 256;

impl Run<'_> {
    pub(super) fn fixed(&mut self) -> Result<(), Stop> {
        let sb = self.superblock()?;
        let blocks = SUPERBLOCKS.len() + sb.members.len() - 1;
        self.wait()?;
        if !look(self.pool, &sb).is_empty() {
            // A checkpoint may be in flight, or the pool may be growing: look again while neither can happen.
            let pool = self.pool;
            let _one = pool.structural();
            let certain = pool.between_commits(|| Ok::<_, Stop>(look(pool, &self.superblock()?)))?;
            certain.into_iter().for_each(|finding| self.found(finding));
        }
        self.read_metadata(blocks)?;
        self.copies()?;
        self.journal()
    }

    /// Scrubs the copies of the superblock.
    fn copies(&mut self) -> Result<(), Stop> {
        let sb = self.superblock()?;
        // An opening that writes no checkpoint skips copies of which it cannot know whether they are bad.
        let is_writable = self.pool.check_writable("looking at copies of the superblock").is_ok();
        let is_known = is_writable || copies::must_be_newest(&*self.pool.io, &sb);
        let all: Vec<u64> = sb.copies.into_iter().filter(|at| *at != 0 && is_known).collect();
        self.wait()?;
        if all.iter().any(|at| copy(self.pool, &sb, *at).is_some()) {
            let pool = self.pool;
            let _one = pool.structural();
            let mended = pool.between_commits(|| {
                let sb = self.superblock()?;
                Ok::<_, Stop>(all.iter().filter_map(|at| mend_copy(pool, &sb, *at)).collect::<Vec<_>>())
            })?;
            for (at, words, failed) in mended {
                let mut state = pool.lock();
                let Some(status) = failed else {
                    state.bad_copies.remove(&at);
                    self.report.mended_copies += 1;
                    continue;
                };
                state.bad_copies.insert(at);
                drop(state);
                let (failure, repair) = if is_writable {
                    let failure = format!(" It was to be written anew, which failed: {status}.");
                    (failure, "Close the pool: that is a checkpoint, which writes all copies anew")
                } else {
                    let repair = "Scrub the pool while it is open for writing, or let sheave pool check --repair write \
                                  the copy anew";
                    (String::new(), repair)
                };
                self.found(Finding {
                    kind: FindingKind::Superblock,
                    place: place("copy of the superblock", at),
                    means: format!("{words}.{failure} {USE}"),
                    repair: Some(repair.into()),
                });
            }
        } else {
            let mut state = self.pool.lock();
            all.iter().for_each(|at| _ = state.bad_copies.remove(at));
        }
        self.read_metadata(all.len())
    }

    /// Scrubs the journal blocks that a recovery would need now.
    fn journal(&mut self) -> Result<(), Stop> {
        let mut sweep = Sweep::new(BATCH)?;
        let mut next = 0;
        loop {
            let (sb, end) = self.live()?;
            next = next.max(sb.replay_seq);
            if next >= end {
                return Ok(());
            }
            let seqs: Vec<u64> = (next..end).take(BATCH).collect();
            self.wait()?;
            let suspects = odd(self.pool, &mut sweep, &sb, &seqs);
            for some in suspects.chunks(AT_ONCE) {
                let seqs: Vec<u64> = some.iter().map(|(seq, _)| *seq).collect();
                let certain = self.pool.between_commits(|| {
                    let (sb, end) = self.live()?;
                    let live: Vec<u64> = seqs.into_iter().filter(|seq| (sb.replay_seq..end).contains(seq)).collect();
                    Ok::<_, Stop>(odd(self.pool, &mut sweep, &sb, &live))
                })?;
                for (seq, words) in certain {
                    self.found(journal_finding(&sb, seq, &words));
                }
            }
            next += seqs.len() as u64;
            self.read_metadata(seqs.len())?;
        }
    }

    /// Returns the superblock, and the number of the first journal block that is not durable.
    fn live(&self) -> Result<(Superblock, u64), Stop> {
        let sb = self.superblock()?;
        let end = self.pool.lock().durable_seq;
        Ok((sb, end))
    }
}

/// Returns findings about superblocks and labels, given that `sb` is the newest superblock.
fn look(pool: &PoolInner, sb: &Superblock) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (slot, address) in SUPERBLOCKS.into_iter().enumerate() {
        let Some(words) = superblock(pool, sb, address) else { continue };
        findings.push(Finding {
            kind: FindingKind::Superblock,
            place: place(format!("superblock {}", ["A", "B"][slot]), address),
            means: format!("{words}. The other one stands for it until the next checkpoint, which writes both anew"),
            repair: Some("Close the pool: that is a checkpoint".into()),
        });
    }
    for (number, &(start, _)) in sb.members.iter().enumerate().skip(1) {
        let mut block: Block = [0; BLOCK];
        let words = match pool.io.read(start, &mut block) {
            Err(status) => format!("it cannot be read: {status}"),
            Ok(()) => match label::verify(&block, sb, number) {
                Ok(()) => continue,
                Err(damage) => damage.to_string(),
            },
        };
        findings.push(Finding {
            kind: FindingKind::Label,
            place: place(format!("label of member {number}"), start),
            means: format!(
                "{words}. The label only tells which member this is; an opening after a crash refuses the pool"
            ),
            repair: Some(
                match sb.labels_at {
                    0 => "Close the pool, then sheave pool check --repair writes the label anew",
                    _ => "Close the pool: that is a checkpoint, which writes all labels anew",
                }
                .into(),
            ),
        });
    }
    findings
}

/// Describes the defect of the superblock at `address`, or returns `None` if it has none.
fn superblock(pool: &PoolInner, sb: &Superblock, address: u64) -> Option<String> {
    let mut block: Block = [0; BLOCK];
    if let Err(status) = pool.io.read(address, &mut block) {
        return Some(format!("it cannot be read: {status}"));
    }
    // Slots alternate: the other one has the generation before.
    let wanted = if address == sb.slot() { sb.generation } else { sb.generation - 1 };
    match Superblock::decode(&block, address, pool.io.size_bytes()) {
        Err(damage) => Some(damage.to_string()),
        Ok(there) if there.pool != sb.pool => Some(Damage::Foreign.to_string()),
        Ok(there) if there.generation != wanted => Some(format!(
            "it is intact, but of generation {} and should be of {wanted}: a write was lost",
            there.generation
        )),
        Ok(_) => None,
    }
}

/// Describes the defect of the copy of the superblock at `at`, or returns `None` if it has none.
fn copy(pool: &PoolInner, sb: &Superblock, at: u64) -> Option<String> {
    let mut block: Block = [0; BLOCK];
    if let Err(status) = pool.io.read(at, &mut block) {
        return Some(format!("it cannot be read: {status}"));
    }
    match Superblock::decode_copy(&block, at, pool.io.size_bytes()) {
        Err(damage) => Some(damage.to_string()),
        Ok(there) if there.pool != sb.pool => Some(Damage::Foreign.to_string()),
        Ok(there) if there.generation != sb.generation => Some(format!(
            "it is intact, but of generation {} and should be of {}: a write was lost",
            there.generation, sb.generation
        )),
        Ok(_) => None,
    }
}

/// Rewrites a bad copy of the superblock from the newer superblock on the device, and reads it back. Called while
/// commits are held off. Returns the place of the copy, what was wrong, and the error if the copy could not be
/// rewritten. Returns `None` if the copy is good.
fn mend_copy(pool: &PoolInner, sb: &Superblock, at: u64) -> Option<(u64, String, Option<Status>)> {
    let words = copy(pool, sb, at)?;
    let write = || {
        if pool.check_writable("writing a copy of the superblock anew").is_err() {
            return Err(Status::Invalid);
        }
        // Another opening may have the pool and use this place (O1 of `owner`).
        pool.look(None)?;
        let mut block: Block = [0; BLOCK];
        pool.io.read(sb.slot(), &mut block)?;
        // The superblock in memory may be ahead of the device, as in a pool that grows.
        let there = Superblock::decode(&block, sb.slot(), pool.io.size_bytes()).map_err(|_| Status::IoErr)?;
        let same = (there.pool, there.generation) == (sb.pool, sb.generation);
        let copies = there.encode_copies();
        let (_, block) = copies.iter().find(|(place, _)| same && *place == at).ok_or(Status::IoErr)?;
        pool.io.write(at, block)?;
        pool.flush()?;
        // Read back, because a device may accept a write and keep nothing.
        if copy(pool, sb, at).is_none() { Ok(()) } else { Err(Status::IoErr) }
    };
    Some((at, words, write().err()))
}

/// Returns the blocks of `seqs` that are wrong, each with a description of the defect.
fn odd(pool: &PoolInner, sweep: &mut Sweep, sb: &Superblock, seqs: &[u64]) -> Vec<(u64, String)> {
    let ring = Ring::of(sb);
    let geometry = sb.geometry();
    let addresses: Vec<u64> = seqs.iter().map(|seq| ring.address(*seq)).collect();
    sweep.read(&*pool.io, &addresses);
    let mut odd = Vec::new();
    for (at, (&seq, address)) in seqs.iter().zip(addresses).enumerate() {
        let words = match sweep.block(at) {
            Err(status) => Some(format!("it cannot be read: {status}")),
            Ok(block) => match JournalBlock::decode(block, &sb.pool, address, ring.blocks) {
                Err(damage) => Some(damage.to_string()),
                Ok(found) if (found.incarnation, found.seq) != (ring.incarnation, seq) => {
                    Some(Damage::Stale { generation: found.incarnation }.to_string())
                }
                Ok(found) => {
                    let all = found.records(block, &geometry, &mut Vec::new());
                    all.err().map(|damage| damage.to_string())
                }
            },
        };
        odd.extend(words.map(|words| (seq, words)));
    }
    odd
}

fn journal_finding(sb: &Superblock, seq: u64, words: &str) -> Finding {
    Finding {
        kind: FindingKind::Journal,
        place: place(format!("journal block {seq}"), Ring::of(sb).address(seq)),
        means: format!("{words}. After a crash the pool would not open; once it is closed the block is not needed"),
        repair: Some("Close the pool: that is a checkpoint, which needs none of the journal".into()),
    }
}
