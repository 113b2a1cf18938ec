//! The journal: a ring of blocks with the records since the checkpoint.
//!
//! Owns where a block lies ([`Ring`]), how records become the blocks of one commit ([`Commit`]), and what a crash has
//! left of them ([`scan`]). Writing, flushing and waiting are the matter of the pool.
//!
//! The block with sequence number `s` lies at place `s mod N`. One commit is one run of consecutive numbers, which
//! every block of it names; the run is written only when all before it are durable.
//!
//! Invariants:
//! - J1: [`scan`] gives the records of consecutive commits from the first that the checkpoint does not contain.
//! - J2: it ends silently only where a crash can have ended it. A commit was torn if no block of a later commit
//!   follows: a later one was begun only after this one was durable. Otherwise acknowledged records are lost, and that
//!   is told.
//! - J3: a commit is replayed as a whole or not at all: of a torn one the first blocks may be there.

use std::ops::ControlFlow;

use sheave_base::status::Status;
use zerocopy::{FromBytes, IntoBytes};

use crate::format::block::{Block, Head, open, require_zero_tail, seal};
use crate::format::damage::{Damage, require};
use crate::format::record::Record;
use crate::format::superblock::{Geometry, Superblock};
use crate::format::{
    BLOCK, BLOCK_BYTES, HEADER, JOURNAL_PAYLOAD, JOURNAL_START, JournalHead, MAX_VOLUMES, PAYLOAD, kind,
};

const RECORDS: usize = HEADER + size_of::<JournalHead>();
const _: () = assert!(RECORDS + JOURNAL_PAYLOAD == BLOCK && JOURNAL_PAYLOAD + size_of::<JournalHead>() == PAYLOAD);

/// Where the journal's blocks lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Opening of the pool whose blocks count.
    pub incarnation: u64,
    /// Blocks.
    pub blocks: u32,
}

impl Ring {
    /// That of a superblock.
    pub fn of(sb: &Superblock) -> Ring {
        Ring { pool: sb.pool, incarnation: sb.incarnation, blocks: sb.journal_blocks }
    }

    /// Byte address of a block.
    pub fn address(&self, seq: u64) -> u64 {
        JOURNAL_START + seq % u64::from(self.blocks) * BLOCK_BYTES
    }

    /// Blocks that may be written before the next checkpoint is durable.
    pub fn free(&self, next_seq: u64, replay_seq: u64) -> u64 {
        u64::from(self.blocks).saturating_sub(next_seq.saturating_sub(replay_seq))
    }
}

/// The blocks of one commit, while records are put in.
#[derive(Debug)]
pub struct Commit {
    blocks: Vec<u8>,
    /// Bytes of records in the last block.
    used: usize,
    counts: Vec<u32>,
}

impl Commit {
    /// With room for `records` in memory before it must grow.
    pub fn with_capacity(blocks: usize) -> Commit {
        let bytes = blocks.saturating_mul(BLOCK);
        Commit { blocks: Vec::with_capacity(bytes), used: 0, counts: Vec::with_capacity(blocks) }
    }

    /// Takes one more record.
    pub fn push(&mut self, geometry: &Geometry, record: &Record) {
        let len = record.bytes(geometry);
        if self.counts.is_empty() || self.used + len > JOURNAL_PAYLOAD {
            self.blocks.resize(self.blocks.len() + BLOCK, 0);
            self.counts.push(0);
            self.used = 0;
        }
        let from = self.blocks.len() - JOURNAL_PAYLOAD + self.used;
        let taken = record.encode(geometry, &mut self.blocks[from..]).expect("an empty block has room for any record");
        self.used += taken;
        *self.counts.last_mut().expect("there is a block") = self.used as u32;
    }

    /// Blocks so far.
    pub fn blocks(&self) -> u64 {
        self.counts.len() as u64
    }

    /// Nothing was put in.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Forgets the records and keeps the memory.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.counts.clear();
        self.used = 0;
    }

    /// Numbers the blocks from `first`. They are then to be written where [`Commit::pieces`] says.
    pub fn seal(&mut self, ring: &Ring, first: u64) {
        let head = JournalHead { first: first.into(), blocks: (self.counts.len() as u32).into(), reserved: 0.into() };
        let (blocks, _) = self.blocks.as_chunks_mut::<BLOCK>();
        for (seq, (block, &count)) in (first..).zip(blocks.iter_mut().zip(&self.counts)) {
            block[HEADER..RECORDS].copy_from_slice(head.as_bytes());
            let header = Head {
                kind: kind::JOURNAL,
                level: 0,
                pool: ring.pool,
                generation: ring.incarnation,
                address: ring.address(seq),
                index: seq,
                owner: 0,
                count,
            };
            seal(block, &header);
        }
    }

    /// Address and bytes: two pieces at most, the second where the run wraps. The run is no longer than the ring.
    pub fn pieces(&self, ring: &Ring, first: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let before_end = u64::from(ring.blocks) - first % u64::from(ring.blocks);
        let cut = usize::try_from(before_end).map_or(self.blocks.len(), |blocks| blocks.saturating_mul(BLOCK));
        let (a, b) = self.blocks.split_at(cut.min(self.blocks.len()));
        [(ring.address(first), a), (JOURNAL_START, b)].into_iter().filter(|(_, bytes)| !bytes.is_empty())
    }
}

/// A block of the journal that is whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalBlock {
    /// Opening of the pool that wrote it.
    pub incarnation: u64,
    /// Sequence number.
    pub seq: u64,
    /// Of the first block of its commit.
    pub first: u64,
    /// Blocks of its commit.
    pub blocks: u32,
    /// Bytes of its records.
    used: usize,
}

impl JournalBlock {
    /// The block read from `address`, of this pool, of any incarnation. Its records are not looked at.
    pub fn decode(block: &Block, pool: &[u8; 16], address: u64, ring_blocks: u32) -> Result<JournalBlock, Damage> {
        let (head, _) = open(block, kind::JOURNAL, Some(pool), address)?;
        let (body, _) = JournalHead::ref_from_prefix(&block[HEADER..]).expect("a block has room for it");
        let (seq, first, blocks) = (head.index, body.first.get(), body.blocks.get());
        let used = head.count as usize;
        let place = JOURNAL_START + seq % u64::from(ring_blocks) * BLOCK_BYTES;
        require(place == address, "index", seq, "does not belong into this place of the ring")?;
        require(blocks <= ring_blocks, "blocks", blocks, "is more than the journal has")?;
        let within = first <= seq && seq - first < u64::from(blocks);
        require(within, "first", first, "is not of the commit that the block belongs to")?;
        require(used > 0 && used <= JOURNAL_PAYLOAD, "count", head.count, "is no number of bytes of records")?;
        require(head.level == 0 && head.owner == 0, "owner", head.owner, "must be 0")?;
        require(body.reserved.get() == 0, "reserved", body.reserved.get(), "must be 0")?;
        require_zero_tail(&block[RECORDS..], used)?;
        Ok(JournalBlock { incarnation: head.generation, seq, first, blocks, used })
    }

    /// Its records in order, in place of what `records` has. After an error those before the wrong one are there.
    pub fn records(&self, block: &Block, geometry: &Geometry, records: &mut Vec<Record>) -> Result<(), Damage> {
        records.clear();
        Record::decode_all(geometry, &block[RECORDS..RECORDS + self.used], records)
    }
}

/// What the records of a journal may come to, whatever each of them says alone: bounds the work and the memory that a
/// journal can cost that no pool has written.
#[derive(Debug)]
pub(crate) struct Bounds {
    /// Changes of the table that there may still be.
    changes: u64,
    run_units: u64,
    regions: u64,
    marks: u64,
}

impl Bounds {
    /// Units that all `RUN` records may map. A pool writes none that map any.
    const MOST_RUN_UNITS: u64 = 1 << 20;
    /// Regions that all `INTENT` records may open. A pool has 2,048 open at a time, and opens 8 with a commit.
    const MOST_REGIONS: u64 = 1 << 20;
    /// Blocks that all `MARK` and `UNMARK` records may name: 128 GiB of data that was found bad since a checkpoint.
    const MOST_MARKS: u64 = 1 << 25;
    /// Regions that may be open in a journal and the checkpoint before it: twice as many as a pool has open.
    pub(crate) const MOST_OPEN: u64 = 1 << 12;
    /// Leaves and index nodes that replayed records may change. A pool that is open writes a checkpoint when half as
    /// many have changed.
    pub(crate) const MOST_NODES: u64 = 1 << 15;
    /// What changes may cost since a checkpoint, as far as a few bytes of a record stand for it: 1 an entry of a node
    /// that is copied, and the `_COST` of what follows. A pool that is open counts the same, and writes a checkpoint
    /// when it is a quarter of that. A node that is dropped was made or loaded before, and costs nothing more.
    pub(crate) const MOST_COST: u64 = 1 << 24;
    /// What a slot of a map costs that is shared.
    pub(crate) const SLOT_COST: u64 = 32;
    /// What a node costs that is made. Those that stay are dirty: a pool that has 8,192 of them writes a checkpoint.
    pub(crate) const NODE_COST: u64 = 32;
    /// What a discard of some units of a leaf costs.
    pub(crate) const PART_COST: u64 = 16;
    /// What another size of a volume costs.
    pub(crate) const SIZE_COST: u64 = 16;

    /// Those of a journal of so many blocks.
    pub(crate) fn new(journal_blocks: u32) -> Bounds {
        // Each of these changes is a commit of its own, and a commit takes a block.
        let changes = 2 * u64::from(journal_blocks) + 64;
        Bounds { changes, run_units: 0, regions: 0, marks: 0 }
    }

    /// Whether the record may follow those before it, in a pool that has so many volumes.
    pub(crate) fn check(&mut self, record: &Record, volumes: usize) -> Result<(), Damage> {
        let add = |sum: &mut u64, count: u64, most: u64, what: &'static str| {
            *sum = sum.saturating_add(count);
            require(*sum <= most, "record.count", count, what)
        };
        match record {
            Record::Run { count, phys, .. } if *phys != 0 => {
                add(&mut self.run_units, *count, Self::MOST_RUN_UNITS, "is one run too many")
            }
            Record::Intent { count, .. } => {
                add(&mut self.regions, *count, Self::MOST_REGIONS, "is one region too many")
            }
            Record::Mark { count, .. } => add(&mut self.marks, *count, Self::MOST_MARKS, "is one mark too many"),
            Record::Create { volume, .. } | Record::Copy { volume, .. } => {
                require(volumes < MAX_VOLUMES as usize, "record.volume", *volume, "is one volume too many")?;
                self.change(*volume)
            }
            Record::Rollback { volume, .. }
            | Record::Rename { volume, .. }
            | Record::Limit { volume, .. }
            | Record::Origin { volume, .. }
            | Record::Delete { volume } => self.change(*volume),
            _ => Ok(()),
        }
    }

    fn change(&mut self, volume: u32) -> Result<(), Damage> {
        let left = self.changes.checked_sub(1);
        self.changes = left.unwrap_or(0);
        require(left.is_some(), "record.volume", volume, "has one change too many for a journal of this size")
    }

    /// Whether changes may have cost so much.
    pub(crate) fn check_cost(cost: u64) -> Result<(), Damage> {
        require(cost <= Self::MOST_COST, "journal", cost, "is more work on maps than one journal makes")
    }

    /// Whether so many nodes may have changed.
    pub(crate) fn check_nodes(nodes: u64) -> Result<(), Damage> {
        require(nodes <= Self::MOST_NODES, "journal", nodes, "is more pages of maps than one journal changes")
    }

    /// Whether so many regions may be open, those of the checkpoint included, when a record has opened some: each takes
    /// memory, and is read when the pool is opened.
    pub(crate) fn check_open(regions: u64) -> Result<(), Damage> {
        require(regions <= Self::MOST_OPEN, "journal", regions, "is more open regions of checksums than a pool has")
    }
}

/// What the journal holds for a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Where the next commit would go: one beyond the last commit to replay.
    pub next_seq: u64,
    /// Highest sequence number of any intact block of the pool; new blocks must be numbered above it or of a new
    /// incarnation.
    pub highest_seq: u64,
    /// Why the run ended, if the block where it did is not merely old.
    pub torn: Option<Damage>,
}

/// Why the journal cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Blocks of a later opening are there.
    #[error(
        "the journal has blocks of opening {incarnation} of the pool, and the superblock is of an earlier one: the \
         newer superblock is lost"
    )]
    Superblock {
        /// The later opening.
        incarnation: u64,
    },
    /// The blocks that are wanted were overwritten by later ones.
    #[error(
        "journal block {wanted} is wanted and block {found} is in its place: the superblock that needed it no more \
         is lost"
    )]
    Overwritten {
        /// The first to replay.
        wanted: u64,
        /// The one there.
        found: u64,
    },
    /// A block is damaged that was durable: later commits follow.
    #[error("journal block {seq} at byte {at} is damaged, and later commits follow it: {damage}")]
    Block {
        /// Which.
        seq: u64,
        /// Where.
        at: u64,
        /// How.
        damage: Damage,
    },
    /// A block is whole and its records cannot be.
    #[error("journal block {seq} at byte {at} is intact and cannot be understood: {damage}")]
    Record {
        /// Which.
        seq: u64,
        /// Where.
        at: u64,
        /// Why.
        damage: Damage,
    },
    /// The pool was closed, and yet there is something to replay.
    #[error("the pool was closed and yet the journal has block {seq} to replay: the newer superblock is lost")]
    Clean {
        /// The block.
        seq: u64,
    },
}

/// The blocks of a journal, by their places in the ring.
pub trait Blocks {
    /// How many there are.
    fn count(&self) -> usize;
    /// The block of a place below that.
    fn block(&mut self, place: usize) -> Result<&Block, Status>;
}

/// A journal that is in memory.
struct InMemory<'a>(&'a [Block]);

impl Blocks for InMemory<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn block(&mut self, place: usize) -> Result<&Block, Status> {
        self.0.get(place).ok_or(Status::IoErr)
    }
}

/// Why a scan has not come to the end of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The journal cannot be replayed.
    Lost(Lost),
    /// The device did not give a block.
    Unread(Status),
    /// Who took the records wants no more of them.
    Enough,
}

/// [`scan_blocks`] of a journal in memory: `bytes` from [`JOURNAL_START`], as long as the superblock says.
pub fn scan(bytes: &[u8], sb: &Superblock, take: &mut dyn FnMut(&Record)) -> Result<Scan, Lost> {
    let (blocks, _) = bytes.as_chunks::<BLOCK>();
    let all = &mut |records: &[Record]| {
        records.iter().for_each(&mut *take);
        ControlFlow::Continue(())
    };
    scan_blocks(&mut InMemory(blocks), sb, all).map_err(|stop| match stop {
        Stop::Lost(lost) => lost,
        Stop::Unread(_) | Stop::Enough => unreachable!("memory can be read, and all records are taken"),
    })
}

/// Reads the whole journal and gives the records to replay, in order and those of a block together, to `take` (J1, J2,
/// J3), until that breaks off.
/// After an error `take` may have been called; its effects are to be dropped. Each block is asked for once, in the
/// order of the ring, and then again, in the order of the commits, if its records are wanted.
///
/// The records of one block are in memory at a time: those of the shortest kind take ten times as much there as in the
/// journal.
pub fn scan_blocks(
    blocks: &mut dyn Blocks,
    sb: &Superblock,
    take: &mut dyn FnMut(&[Record]) -> ControlFlow<()>,
) -> Result<Scan, Stop> {
    let geometry = sb.geometry();
    let ring = Ring::of(sb);
    let mut decoded: Vec<Result<JournalBlock, Damage>> = Vec::with_capacity(blocks.count());
    for (place, address) in (0..blocks.count()).zip((JOURNAL_START..).step_by(BLOCK)) {
        let block = blocks.block(place).map_err(Stop::Unread)?;
        decoded.push(JournalBlock::decode(block, &sb.pool, address, ring.blocks));
    }
    let highest_seq = decoded.iter().flatten().map(|block| block.seq).max().unwrap_or(0);
    let newest_first = check_heads(&decoded, sb).map_err(Stop::Lost)?;
    let mut seq = sb.replay_seq;
    // Where the commit that is being read began, and whether all its blocks are there (J3).
    let (mut whole, mut is_whole) = (seq, has_all_blocks(&decoded, sb, seq));
    let mut records = Vec::new();
    let torn = loop {
        let place = (seq % u64::from(ring.blocks)) as usize;
        let at = ring.address(seq);
        let damage = match decoded.get(place) {
            _ if seq - sb.replay_seq == u64::from(ring.blocks) => break None,
            Some(Ok(head)) if head.incarnation == sb.incarnation && head.seq == seq => {
                let block = blocks.block(place).map_err(Stop::Unread)?;
                // It was whole a moment ago, and may have been read anew.
                let again = JournalBlock::decode(block, &sb.pool, at, ring.blocks);
                if let Some(damage) = again.as_ref().err() {
                    return Err(Stop::Lost(Lost::Block { seq, at, damage: *damage }));
                }
                let understood = head.records(block, &geometry, &mut records);
                if is_whole && take(&records).is_break() {
                    return Err(Stop::Enough);
                }
                match understood {
                    Ok(()) => {
                        seq += 1;
                        if seq == head.first + u64::from(head.blocks) {
                            (whole, is_whole) = (seq, has_all_blocks(&decoded, sb, seq));
                        }
                        continue;
                    }
                    // Its checksum is right: this was written so, and is no torn write.
                    Err(damage) => return Err(Stop::Lost(Lost::Record { seq, at, damage })),
                }
            }
            Some(Ok(head)) => Damage::Stale { generation: head.incarnation },
            Some(Err(damage)) => *damage,
            None => Damage::Blank,
        };
        // A commit begun at or before `seq` may be torn; one begun after it proves that `seq` was durable.
        if newest_first > seq {
            return Err(Stop::Lost(Lost::Block { seq, at, damage }));
        }
        break Some(damage).filter(|damage| !matches!(damage, Damage::Stale { .. } | Damage::Blank | Damage::Foreign));
    };
    Ok(Scan { next_seq: whole, highest_seq, torn })
}

/// What the blocks say of themselves fits the superblock; the first block of the newest commit.
fn check_heads(decoded: &[Result<JournalBlock, Damage>], sb: &Superblock) -> Result<u64, Lost> {
    let intact = || decoded.iter().flatten();
    if let Some(block) = intact().find(|block| block.incarnation > sb.incarnation) {
        return Err(Lost::Superblock { incarnation: block.incarnation });
    }
    let ours = || intact().filter(|block| block.incarnation == sb.incarnation);
    if let Some(block) = ours().find(|block| block.seq >= sb.replay_seq.saturating_add(u64::from(sb.journal_blocks))) {
        return Err(Lost::Overwritten { wanted: sb.replay_seq, found: block.seq });
    }
    if let Some(block) = ours().find(|block| sb.clean && block.seq >= sb.replay_seq) {
        return Err(Lost::Clean { seq: block.seq });
    }
    Ok(ours().map(|block| block.first).max().unwrap_or(0))
}

/// Whether all blocks of the commit that begins with this one are there, whatever their records say.
fn has_all_blocks(decoded: &[Result<JournalBlock, Damage>], sb: &Superblock, first: u64) -> bool {
    let ring = u64::from(sb.journal_blocks);
    let end = sb.replay_seq.saturating_add(ring);
    for seq in first..end {
        match decoded.get((seq % ring) as usize) {
            Some(Ok(block)) if block.incarnation == sb.incarnation && block.seq == seq => {
                if seq + 1 == block.first + u64::from(block.blocks) {
                    return true;
                }
            }
            _ => return false,
        }
    }
    false
}

#[cfg(all(test, not(shuttle)))]
mod tests;
