//! The journal: a ring of blocks with the records since the last checkpoint.
//!
//! Owns the address of each block ([`Ring`]), the encoding of records into the blocks of one commit ([`Commit`]), and
//! the reading of the journal after a crash ([`scan`]). The pool writes and flushes the blocks and waits for them.
//!
//! The block with sequence number `s` lies at place `s mod N`. The blocks of one commit have consecutive numbers, and
//! each of them names the first one and the length of the run. The pool writes a commit only when all commits before it
//! are durable.
//!
//! Invariants:
//! - J1: [`scan`] returns the records of consecutive commits, beginning with the first commit that the checkpoint does
//!   not contain.
//! - J2: [`scan`] ends without an error only where a crash can have ended the journal. A damaged commit was torn by the
//!   crash if no block of a later commit exists, because a later commit begins only when this one is durable. If there
//!   is such a block, acknowledged records are lost, and [`scan`] returns an error.
//! - J3: a commit is replayed as a whole or not at all: a torn commit may have left its first blocks.

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

/// Position of the journal's blocks, and the opening that writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Identity of the pool.
    pub pool: [u8; 16],
    /// Opening of the pool whose blocks are valid; blocks of other openings are leftovers.
    pub incarnation: u64,
    /// Number of blocks in the ring.
    pub blocks: u32,
}

impl Ring {
    /// Returns the ring that `sb` describes.
    pub fn of(sb: &Superblock) -> Ring {
        Ring { pool: sb.pool, incarnation: sb.incarnation, blocks: sb.journal_blocks }
    }

    /// Returns the byte address of the block with sequence number `seq`.
    pub fn address(&self, seq: u64) -> u64 {
        JOURNAL_START + seq % u64::from(self.blocks) * BLOCK_BYTES
    }

    /// Returns the number of blocks that may be written before a newer checkpoint must be durable.
    pub fn free(&self, next_seq: u64, replay_seq: u64) -> u64 {
        u64::from(self.blocks).saturating_sub(next_seq.saturating_sub(replay_seq))
    }
}

/// The blocks of one commit. Records are appended to them.
#[derive(Debug)]
pub struct Commit {
    blocks: Vec<u8>,
    /// Bytes of records in the last block.
    used: usize,
    counts: Vec<u32>,
}

impl Commit {
    /// Creates an empty commit with memory for `blocks` blocks.
    pub fn with_capacity(blocks: usize) -> Commit {
        let bytes = blocks.saturating_mul(BLOCK);
        Commit { blocks: Vec::with_capacity(bytes), used: 0, counts: Vec::with_capacity(blocks) }
    }

    /// Appends `record`.
    pub fn push(&mut self, geometry: &Geometry, record: &Record) {
        let len = record.bytes(geometry);
        // A record never crosses the end of a block: each block can be decoded by itself.
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

    /// Returns the number of blocks so far.
    pub fn blocks(&self) -> u64 {
        self.counts.len() as u64
    }

    /// Returns true if there are no records.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Removes all records and keeps the memory.
    pub fn clear(&mut self) {
        self.blocks.clear();
        self.counts.clear();
        self.used = 0;
    }

    /// Gives the blocks their headers, with sequence numbers from `first` on. They are then written to the addresses
    /// that [`Commit::pieces`] returns.
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

    /// Returns the address and bytes of each write: one, or two if the run wraps at the end of the ring. The run must
    /// not be longer than the ring.
    pub fn pieces(&self, ring: &Ring, first: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let before_end = u64::from(ring.blocks) - first % u64::from(ring.blocks);
        let cut = usize::try_from(before_end).map_or(self.blocks.len(), |blocks| blocks.saturating_mul(BLOCK));
        let (a, b) = self.blocks.split_at(cut.min(self.blocks.len()));
        [(ring.address(first), a), (JOURNAL_START, b)].into_iter().filter(|(_, bytes)| !bytes.is_empty())
    }
}

/// The head of an intact journal block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalBlock {
    /// Opening of the pool that wrote it.
    pub incarnation: u64,
    /// Sequence number.
    pub seq: u64,
    /// Sequence number of the first block of the commit.
    pub first: u64,
    /// Number of blocks of the commit.
    pub blocks: u32,
    /// Bytes of records in the block.
    used: usize,
}

impl JournalBlock {
    /// Decodes the head of a block that was read from `address`. Accepts any incarnation of this pool. Does not decode
    /// the records.
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

    /// Replaces the content of `records` by the block's records, in order. After an error `records` has those before
    /// the wrong one.
    pub fn records(&self, block: &Block, geometry: &Geometry, records: &mut Vec<Record>) -> Result<(), Damage> {
        records.clear();
        Record::decode_all(geometry, &block[RECORDS..RECORDS + self.used], records)
    }
}

/// Limits for all records of a journal together. They bound the time and memory that a forged journal can use even if
/// each of its records is valid by itself.
#[derive(Debug)]
pub(crate) struct Bounds {
    /// Number of further changes of the volume table that a journal may have.
    changes: u64,
    run_units: u64,
    regions: u64,
    marks: u64,
}

impl Bounds {
    /// Number of units that all `RUN` records together may map. A pool writes no `RUN` that maps units.
    const MOST_RUN_UNITS: u64 = 1 << 20;
    /// Number of regions that all `INTENT` records together may open. A pool has at most 2,048 regions open, and opens
    /// 8 with a commit.
    const MOST_REGIONS: u64 = 1 << 20;
    /// Number of blocks that all `MARK` and `UNMARK` records together may name: 128 GiB of data found bad since a
    /// checkpoint.
    const MOST_MARKS: u64 = 1 << 25;
    /// Number of regions that may be open in a journal and the checkpoint before it: twice the limit of an open pool.
    pub(crate) const MOST_OPEN: u64 = 1 << 12;
    /// Number of leaves and index nodes that replayed records may change. An open pool writes a checkpoint when half as
    /// many have changed.
    pub(crate) const MOST_NODES: u64 = 1 << 15;
    /// Limit for the work on maps since a checkpoint, counted in copied node entries; the `_COST` constants have the
    /// same unit. It exists because a record of a few bytes can cause much work. An open pool counts the same work and
    /// writes a checkpoint at a quarter of this limit. Dropping a node adds nothing, because the node was counted when
    /// it was made or loaded.
    pub(crate) const MOST_COST: u64 = 1 << 24;
    /// Cost of sharing one slot of a map.
    pub(crate) const SLOT_COST: u64 = 32;
    /// Cost of making a node. Nodes that remain are dirty, and a pool with 8,192 dirty nodes writes a checkpoint.
    pub(crate) const NODE_COST: u64 = 32;
    /// Cost of discarding some units of a leaf.
    pub(crate) const PART_COST: u64 = 16;
    /// Cost of changing the size of a volume.
    pub(crate) const SIZE_COST: u64 = 16;

    pub(crate) fn new(journal_blocks: u32) -> Bounds {
        // Each of these changes is a commit of its own, and a commit takes a block.
        let changes = 2 * u64::from(journal_blocks) + 64;
        Bounds { changes, run_units: 0, regions: 0, marks: 0 }
    }

    /// Counts `record` and returns an error if it exceeds a limit. `volumes` is the number of volumes before it.
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

    /// Returns an error if `cost` exceeds the cost of the changes that one journal can contain.
    pub(crate) fn check_cost(cost: u64) -> Result<(), Damage> {
        require(cost <= Self::MOST_COST, "journal", cost, "is more work on maps than one journal makes")
    }

    /// Returns an error if `nodes` exceeds the number of nodes that one journal can have changed.
    pub(crate) fn check_nodes(nodes: u64) -> Result<(), Damage> {
        require(nodes <= Self::MOST_NODES, "journal", nodes, "is more pages of maps than one journal changes")
    }

    /// Returns an error if `regions` exceeds the number of regions that a journal and its checkpoint may have open.
    /// Called when a record has opened regions: each open region takes memory, and is read when the pool is opened.
    pub(crate) fn check_open(regions: u64) -> Result<(), Damage> {
        require(regions <= Self::MOST_OPEN, "journal", regions, "is more open regions of checksums than a pool has")
    }
}

/// Result of scanning the journal for a superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Sequence number of the next commit: one beyond the last commit to replay.
    pub next_seq: u64,
    /// Highest sequence number of any intact block of the pool. New blocks need a higher number or a new incarnation.
    pub highest_seq: u64,
    /// Damage of the block at which the scan ended, unless that block is simply not written yet by this opening.
    pub torn: Option<Damage>,
}

/// Reason why the journal cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The journal has blocks of a later opening than the superblock's.
    #[error(
        "the journal has blocks of opening {incarnation} of the pool, and the superblock is of an earlier one: the \
         newer superblock is lost"
    )]
    Superblock {
        /// Incarnation of the later opening.
        incarnation: u64,
    },
    /// Later blocks have overwritten the first blocks to replay.
    #[error(
        "journal block {wanted} is wanted and block {found} is in its place: the superblock that needed it no more \
         is lost"
    )]
    Overwritten {
        /// Sequence number of the first block to replay.
        wanted: u64,
        /// Sequence number of the block in its place.
        found: u64,
    },
    /// A damaged block was durable before, because later commits follow it.
    #[error("journal block {seq} at byte {at} is damaged, and later commits follow it: {damage}")]
    Block {
        /// Sequence number of the block.
        seq: u64,
        /// Byte address of the block.
        at: u64,
        /// Damage of the block.
        damage: Damage,
    },
    /// A block is intact and contains an invalid record.
    #[error("journal block {seq} at byte {at} is intact and cannot be understood: {damage}")]
    Record {
        /// Sequence number of the block.
        seq: u64,
        /// Byte address of the block.
        at: u64,
        /// Damage of the record.
        damage: Damage,
    },
    /// The superblock says that the pool was closed, and the journal has a block to replay.
    #[error("the pool was closed and yet the journal has block {seq} to replay: the newer superblock is lost")]
    Clean {
        /// Sequence number of the block.
        seq: u64,
    },
}

/// Source of journal blocks, by their places in the ring.
pub trait Blocks {
    /// Returns the number of blocks.
    fn count(&self) -> usize;
    /// Returns the block at `place`, which is less than [`Blocks::count`].
    fn block(&mut self, place: usize) -> Result<&Block, Status>;
}

struct InMemory<'a>(&'a [Block]);

impl Blocks for InMemory<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn block(&mut self, place: usize) -> Result<&Block, Status> {
        self.0.get(place).ok_or(Status::IoErr)
    }
}

/// Reason why a scan ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The journal cannot be replayed.
    Lost(Lost),
    /// The device failed to read a block.
    Unread(Status),
    /// The caller's `take` broke off.
    Enough,
}

/// Calls [`scan_blocks`] for a journal in memory. `bytes` begin at [`JOURNAL_START`] and have the length that `sb`
/// gives.
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

/// Reads the whole journal and passes the records to replay to `take`, in order, one call for each block (J1, J2, J3),
/// until `take` breaks off. If this returns an error, the caller must drop the effects of the calls of `take` so far.
///
/// Reads each block once in the order of the ring, and each block to replay a second time in the order of commits. So
/// only the records of one block are in memory at a time: the shortest records take ten times more space decoded than
/// in the journal.
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
    // Start of the commit that is being read, and true if all of its blocks are intact (J3).
    let (mut whole, mut is_whole) = (seq, has_all_blocks(&decoded, sb, seq));
    let mut records = Vec::new();
    let torn = loop {
        let place = (seq % u64::from(ring.blocks)) as usize;
        let at = ring.address(seq);
        let damage = match decoded.get(place) {
            // All blocks of the ring are replayed: the next place is that of the first one.
            _ if seq - sb.replay_seq == u64::from(ring.blocks) => break None,
            Some(Ok(head)) if head.incarnation == sb.incarnation && head.seq == seq => {
                let block = blocks.block(place).map_err(Stop::Unread)?;
                // The first pass decoded this block already, but `blocks` may have read it anew since.
                let again = JournalBlock::decode(block, &sb.pool, at, ring.blocks);
                if let Some(damage) = again.as_ref().err() {
                    return Err(Stop::Lost(Lost::Block { seq, at, damage: *damage }));
                }
                let understood = head.records(block, &geometry, &mut records);
                // Called even if a record is invalid: `records` then has the records before that one.
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
                    // The checksum of the block is right, so the block is not torn: the pool wrote it like this.
                    Err(damage) => return Err(Stop::Lost(Lost::Record { seq, at, damage })),
                }
            }
            Some(Ok(head)) => Damage::Stale { generation: head.incarnation },
            Some(Err(damage)) => *damage,
            None => Damage::Blank,
        };
        // A commit that began at or before `seq` may be the torn one. A commit that began after `seq` proves that `seq`
        // was durable.
        if newest_first > seq {
            return Err(Stop::Lost(Lost::Block { seq, at, damage }));
        }
        // A block of another opening or pool, an older block, or zeroes: this opening has not written to the place yet.
        break Some(damage).filter(|damage| !matches!(damage, Damage::Stale { .. } | Damage::Blank | Damage::Foreign));
    };
    Ok(Scan { next_seq: whole, highest_seq, torn })
}

/// Compares the heads of all intact blocks with the superblock. Returns the number of the first block of the newest
/// commit.
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

/// Returns true if all blocks of the commit that begins with block `first` are intact. Does not look at their records.
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
mod tests {
    use sheave_base::rng::Rng;

    use super::*;
    use crate::format::block::samples::{self, POOL};
    use crate::format::record::MAX_ENTRY_WORDS;

    const N: u64 = 32;

    /// A journal in memory, with a superblock that replays from block 40.
    struct Bench {
        sb: Superblock,
        bytes: Vec<u8>,
        next: u64,
    }

    impl Bench {
        fn new() -> Bench {
            let sb = samples::superblock(65536);
            Bench { next: sb.replay_seq, bytes: vec![0; N as usize * BLOCK], sb }
        }

        /// Commits records that fill `blocks` blocks. Their unit numbers ascend.
        fn commit(&mut self, blocks: u64) {
            let geometry = self.sb.geometry();
            let mut commit = Commit::with_capacity(1);
            let mut unit = self.next * 1000;
            while commit.blocks() < blocks {
                commit.push(&geometry, &Record::Set { volume: 1, unit, phys: 0, written: [0; MAX_ENTRY_WORDS] });
                unit += 1;
            }
            let ring = Ring::of(&self.sb);
            commit.seal(&ring, self.next);
            for (address, bytes) in commit.pieces(&ring, self.next) {
                let at = (address - JOURNAL_START) as usize;
                self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            }
            self.next += commit.blocks();
        }

        fn block(&mut self, seq: u64) -> &mut [u8] {
            let at = (seq % N) as usize * BLOCK;
            &mut self.bytes[at..at + BLOCK]
        }

        fn scan(&self) -> Result<(Scan, usize), Lost> {
            let mut count = 0;
            let scan = scan(&self.bytes, &self.sb, &mut |_| count += 1)?;
            Ok((scan, count))
        }
    }

    #[test]
    fn commits_come_back_in_order_across_the_end_of_the_ring() {
        let mut bench = Bench::new();
        (0..6).for_each(|at| bench.commit(1 + at % 3 * 4));
        assert!(bench.next > 64, "the run has wrapped");
        let mut units = Vec::new();
        let scan = scan(&bench.bytes, &bench.sb, &mut |record| match record {
            Record::Set { unit, .. } => units.push(*unit),
            other => panic!("{other:?}"),
        })
        .expect("intact");
        assert_eq!(scan, Scan { next_seq: bench.next, highest_seq: bench.next - 1, torn: None });
        assert!(units.is_sorted() && units[0] == 40_000, "{}", units[0]);
    }

    #[test]
    fn a_full_ring_is_replayed_whole() {
        let mut bench = Bench::new();
        bench.commit(N);
        assert_eq!(Ring::of(&bench.sb).free(bench.next, bench.sb.replay_seq), 0);
        let (scan, count) = bench.scan().expect("intact");
        assert_eq!(scan.next_seq, 40 + N);
        assert!(count as u64 > N);
    }

    #[test]
    fn an_empty_journal_has_nothing_to_replay() {
        let bench = Bench::new();
        assert_eq!(bench.scan(), Ok((Scan { next_seq: 40, highest_seq: 0, torn: None }, 0)));
    }

    #[test]
    fn older_blocks_end_the_run() {
        let mut bench = Bench::new();
        bench.next = 20;
        (0..5).for_each(|_| bench.commit(4));
        bench.next = 40;
        bench.commit(3);
        let (scan, _) = bench.scan().expect("intact");
        assert_eq!((scan.next_seq, scan.torn), (43, None));
    }

    #[test]
    fn the_last_commit_may_be_torn_anywhere() {
        for torn in 44..48 {
            let mut bench = Bench::new();
            bench.commit(4);
            bench.commit(4);
            bench.block(torn)[700..].fill(0x5A);
            let (scan, count) = bench.scan().expect("a crash can leave this");
            assert_eq!(scan.next_seq, 44, "none of it counts");
            let mut whole = Bench::new();
            whole.commit(4);
            assert_eq!(count, whole.scan().expect("intact").1, "nor do its first blocks");
            assert!(matches!(scan.torn, Some(Damage::Checksum { .. })), "{scan:?}");
        }
    }

    #[test]
    fn a_damaged_block_before_the_last_commit_is_told() {
        for rotten in 40..44 {
            let mut bench = Bench::new();
            bench.commit(4);
            bench.commit(4);
            bench.block(rotten)[700] ^= 1;
            match bench.scan() {
                Err(Lost::Block { seq, at, damage: Damage::Checksum { .. } }) => {
                    assert_eq!((seq, at), (rotten, JOURNAL_START + rotten % N * 4096));
                }
                other => panic!("block {rotten}: {other:?}"),
            }
            bench.block(rotten).fill(0);
            assert!(matches!(bench.scan(), Err(Lost::Block { damage: Damage::Blank, .. })), "a lost write");
        }
    }

    #[test]
    fn a_stale_superblock_is_told() {
        // The ring has wrapped over the blocks that the superblock needs.
        let mut bench = Bench::new();
        (0..10).for_each(|_| bench.commit(4));
        assert_eq!(bench.scan(), Err(Lost::Overwritten { wanted: 40, found: 72 }));
        // The journal has blocks of a later opening.
        let mut bench = Bench::new();
        bench.commit(2);
        bench.sb.incarnation = 9;
        bench.commit(1);
        bench.sb.incarnation = 3;
        assert_eq!(bench.scan(), Err(Lost::Superblock { incarnation: 9 }));
        // The pool was closed, and a block follows the checkpoint.
        let mut bench = Bench::new();
        bench.commit(1);
        bench.sb.clean = true;
        assert_eq!(bench.scan(), Err(Lost::Clean { seq: 40 }));
    }

    #[test]
    fn blocks_of_other_pools_and_earlier_openings_do_not_count() {
        let mut bench = Bench::new();
        bench.sb.incarnation = 2;
        bench.commit(5);
        bench.sb.incarnation = 3;
        assert_eq!(bench.scan().expect("old blocks").0, Scan { next_seq: 40, highest_seq: 44, torn: None });
        bench.sb.pool = [1; 16];
        assert_eq!(bench.scan().expect("another's blocks").0, Scan { next_seq: 40, highest_seq: 0, torn: None });
    }

    #[test]
    fn an_intact_block_that_cannot_be_understood_is_told() {
        let mut bench = Bench::new();
        bench.commit(1);
        bench.block(40)[HEADER + 16] = 99;
        let sum = crate::format::checksum((&*bench.block(40)).try_into().expect("a block"));
        bench.block(40)[8..12].copy_from_slice(&sum.to_le_bytes());
        assert!(matches!(bench.scan(), Err(Lost::Record { seq: 40, at: 40_960, .. })), "{:?}", bench.scan());
    }

    #[test]
    fn addresses_follow_the_sequence() {
        let ring = Ring { pool: POOL, incarnation: 1, blocks: 16 };
        assert_eq!(ring.address(0), 8192);
        assert_eq!(ring.address(15), 8192 + 15 * 4096);
        assert_eq!(ring.address(16), 8192);
        assert_eq!(ring.address(u64::MAX), 8192 + 15 * 4096);
        assert_eq!((ring.free(10, 10), ring.free(26, 10), ring.free(18, 10)), (16, 0, 8));
    }

    #[test]
    fn a_scan_of_garbage_never_panics() {
        let mut bench = Bench::new();
        bench.commit(20);
        for seed in sheave_testkit::seeds(64) {
            let mut bytes = bench.bytes.clone();
            let mut rng = Rng::new(seed);
            for _ in 0..40 {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.draw() as u8;
                if rng.percent(50) {
                    let start = at - at % BLOCK;
                    let sum = crate::format::checksum(bytes[start..start + BLOCK].as_array().expect("a block"));
                    bytes[start + 8..start + 12].copy_from_slice(&sum.to_le_bytes());
                }
            }
            let mut count = 0u64;
            let result = scan(&bytes, &bench.sb, &mut |_| count += 1);
            assert!(count < N * 600, "SHEAVE_SEED={seed}: {result:?}");
        }
    }
}
