//! Journals that no pool has written: the work of replaying one is bounded by its bytes.
//!
//! Owns the counts: entries and words of nodes that were read or zeroed, and walks to leaves. `benches/hostile.rs`
//! measures the times, `tests/hostile.rs` checks what is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::lost::LostVolumes;
use super::super::{Unsure, read_superblock, replay};
use super::*;
use crate::Checksum;
use crate::format::JOURNAL_START;
use crate::format::superblock::Superblock;
use crate::state::State;

/// Bytes of the largest journal.
const BYTES: u64 = 64 << 20;
/// Largest number of entries read per byte of a journal: it opens, or is refused, within a fraction of a second.
const LOOKS: u64 = 6;

/// Largest number of walks from the number of a volume to a leaf: each takes a microsecond when nothing of it is in a
/// cache.
const MOST_WALKS: u64 = 50_000;

/// Makes a pool that was cut off, with as many of these records in its journal as fit. Returns its superblock, and the
/// number of journal blocks.
fn cut_off(checksum: Checksum, records: impl Iterator<Item = Record>) -> (Device, Superblock, u64) {
    let device = open_device("ram:size=1G").unwrap();
    let options = CreateOptions { journal_bytes: Some(BYTES), checksum, ..CreateOptions::default() };
    Pool::create(&device, &options).unwrap();
    let io = DeviceIo::new(&device).unwrap();
    let mut sb = read_superblock(&io, &mut Unsure::new(false)).unwrap().0;
    (sb.clean, sb.generation) = (false, sb.generation + 1);
    let mut block = [0; BLOCK];
    let at = sb.encode(&mut block);
    io.write(at, &block).unwrap();
    let mut commit = Commit::with_capacity(1);
    for record in records {
        commit.push(&sb.geometry(), &record);
        if commit.blocks() + 1 >= u64::from(sb.journal_blocks) {
            break;
        }
    }
    let ring = Ring::of(&sb);
    commit.seal(&ring, sb.replay_seq);
    commit.pieces(&ring, sb.replay_seq).for_each(|(at, bytes)| io.write(at, bytes).unwrap());
    (device, sb, commit.blocks())
}

/// Replays a journal that is full of these records.
fn replayed(records: impl Iterator<Item = Record>) -> State {
    let (device, sb, blocks) = cut_off(Checksum::None, records);
    assert!(blocks * 4096 > BYTES - (1 << 20), "the journal is full, from byte {JOURNAL_START} on");
    let io = DeviceIo::new(&device).unwrap();
    let mut state = State::new(sb);
    state.tree.counts_later = true;
    state.set_reserve();
    let _ = replay(&io, &mut state, &mut Unsure::new(false), &mut LostVolumes::default());
    state
}

fn volume(volume: u32) -> Record {
    Record::Create { volume, grows: false, size: 1 << 30, max_size: 1 << 50, created: 0, name: volume.to_string() }
}

fn set(unit: u64) -> Record {
    Record::Set { volume: 1, unit, phys: 2000, written: [1, 0, 0, 0] }
}

fn check(what: &str, records: impl Iterator<Item = Record>) {
    let state = replayed(std::iter::once(volume(1)).chain(records));
    let (looks, memory) = (state.tree.looked, state.tree.memory_bytes());
    assert!(looks <= LOOKS * BYTES, "{what}: {looks} looks at entries, {} a byte", looks / BYTES);
    assert!(memory <= 2 * BYTES, "{what}: {memory} bytes of memory");
}

#[test]
fn nodes_that_are_made_and_dropped_over_and_over() {
    let discard = |unit, count| Record::Run { volume: 1, unit, count, phys: 0 };
    check("a unit", (0..).flat_map(move |_| [set(5), discard(5, 1)]));
    let far = (1 << 34) - 1;
    let resize = |size| Record::Resize { volume: 1, size };
    check("cuts", (0..).flat_map(move |_| [set(far), resize(1 << 50), resize(4096)]));
}

#[test]
fn discards_of_parts_of_a_leaf() {
    let discard = |unit, count| Record::Run { volume: 1, unit, count, phys: 0 };
    check("one of many", std::iter::once(set(0)).chain((0..).flat_map(move |_| [set(128), discard(1, 128)])));
    check("holes", std::iter::once(set(0)).chain((0..).map(move |_| discard(1, 128))));
}

#[test]
fn copies_of_maps_over_and_over() {
    let copy = |volume| Record::Copy {
        volume,
        source: 1,
        snapshot: true,
        grows: false,
        size: 1 << 30,
        max_size: 1 << 50,
        created: 0,
        name: volume.to_string(),
    };
    let dense = (0..200).map(|leaf| set(leaf << 9));
    let copies = (2..).flat_map(move |number| {
        let leaves = (0..200).map(|leaf| set(leaf << 9));
        std::iter::once(copy(number)).chain(leaves).chain([Record::Delete { volume: number }])
    });
    check("copies", dense.chain(copies));
}

/// Records that name many leaves, and many volumes, in turn: each leaf is looked up once, and not once per record.
#[test]
fn records_of_many_leaves_in_turn() {
    let of = |at: u64| (at * 7919 % 10_000) as u32 + 1;
    let volumes = || (2..=10_000).map(volume);
    let walks = |what: &str, records: &mut dyn Iterator<Item = Record>| {
        let state = replayed(std::iter::once(volume(1)).chain(records));
        assert!(state.tree.walked <= MOST_WALKS, "{what}: {} walks to leaves", state.tree.walked);
    };
    walks("leaves", &mut (0..).map(|at| set((at * 7919 % 30_000) << 8 | at >> 15 & 255)));
    let set_in = |volume, unit| Record::Set { volume, unit, phys: 2000, written: [1, 0, 0, 0] };
    walks("volumes", &mut volumes().chain((0..).map(|at| set_in(of(at), at & 255))));
    let discard = |volume| Record::Run { volume, unit: 1, count: 128, phys: 0 };
    let both = (0..).flat_map(|at| [set_in(of(at), 0), set_in(of(at), 1), discard(of(at))]);
    walks("discards in volumes", &mut volumes().chain(both));
}

/// A device that counts the bytes that are read.
struct Counted(DeviceIo, Arc<AtomicU64>);

impl BlockIo for Counted {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.1.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.0.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        self.0.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.0.flush()
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        self.0.discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
}

/// A record of 32 bytes names 64 KiB of data, which opening reads if its region was open: each block once.
#[test]
fn data_that_many_entries_share_is_read_once() {
    let unit =
        |at: u64| Record::Set { volume: 1, unit: at, phys: 2000 + at % 3, written: [0xFFFF >> (at % 16), 0, 0, 0] };
    let records = [volume(1), Record::Intent { first: 32, count: 2 }].into_iter().chain((0..20_000).map(unit));
    let (device, _, blocks) = cut_off(Checksum::Crc32c, records);
    let read = Arc::new(AtomicU64::new(0));
    let io = Box::new(Counted(DeviceIo::new(&device).unwrap(), Arc::clone(&read)));
    let pool = Pool::open_through(&device, io, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    assert_eq!(pool.info().rebuilt_checksums, 3 * 16, "all blocks of three units");
    let (read, least) = (read.load(Ordering::Relaxed), BYTES + blocks * 4096);
    assert!(read < least + (1 << 20), "{} bytes beside the journal", read - least);
}
