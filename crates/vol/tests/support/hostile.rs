//! Forged journals, which hold as many records of a kind as fit.

use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::block_io::{BlockIo, DeviceIo};
use sheave_vol::format::{BLOCK, SUPERBLOCKS};
use sheave_vol::journal::{Commit, Ring};
use sheave_vol::record::Record;
use sheave_vol::superblock::{Superblock, choose};
use sheave_vol::{Checksum, CreateOptions, Pool};

/// Bytes of the largest journal.
pub const JOURNAL_BYTES: u64 = 64 << 20;

/// Makes a pool with a journal of 64 MiB that holds as many of `records` as fit, in one commit, or in one commit for
/// each record. With checksums, `marks` sets the feature of the same name.
pub fn with_journal(
    checksum: Checksum,
    marks: bool,
    small_commits: bool,
    records: impl Iterator<Item = Record>,
) -> Device {
    with_journal_on("ram:size=1G", checksum, marks, small_commits, records)
}

/// Does what [`with_journal`] does, on the device `spec`.
pub fn with_journal_on(
    spec: &str,
    checksum: Checksum,
    marks: bool,
    small_commits: bool,
    records: impl Iterator<Item = Record>,
) -> Device {
    let device = open_device(spec).expect("opens");
    let options = CreateOptions::default().journal_bytes(Some(JOURNAL_BYTES)).checksum(checksum);
    Pool::create(&device, &options).expect("formats");
    let io = DeviceIo::new(&device).expect("attaches");
    let mut sb = newest(&io);
    (sb.clean, sb.generation) = (false, sb.generation + 1);
    sb.marks &= marks;
    write_journal(&io, &sb, small_commits, records);
    device
}

/// Writes a superblock and a journal of `records`.
pub fn write_journal(io: &DeviceIo, sb: &Superblock, small_commits: bool, records: impl Iterator<Item = Record>) {
    let mut block = [0; BLOCK];
    let at = sb.encode(&mut block);
    io.write(at, &block).expect("writes");
    let (ring, mut seq) = (Ring::of(sb), sb.replay_seq);
    let mut commit = Commit::with_capacity(1);
    let mut write = |commit: &mut Commit| {
        commit.seal(&ring, seq);
        commit.pieces(&ring, seq).for_each(|(at, bytes)| io.write(at, bytes).expect("writes"));
        seq += commit.blocks();
        commit.clear();
        seq - sb.replay_seq + 1 >= u64::from(sb.journal_blocks)
    };
    for record in records {
        commit.push(&sb.geometry(), &record);
        if small_commits && write(&mut commit) {
            break;
        }
        if commit.blocks() + 1 >= u64::from(sb.journal_blocks) {
            break;
        }
    }
    if !commit.is_empty() {
        write(&mut commit);
    }
}

/// Returns the newer superblock.
pub fn newest(io: &DeviceIo) -> Superblock {
    let slots = SUPERBLOCKS.map(|at| {
        let mut block = [0; BLOCK];
        io.read(at, &mut block).expect("reads");
        Superblock::decode(&block, at, u64::MAX)
    });
    choose(slots).expect("a pool").0
}

/// Creates volume `volume`, of 1 GiB.
pub fn volume(volume: u32) -> Record {
    let (size, max_size, name) = (1 << 30, 1 << 50, volume.to_string());
    Record::Create { volume, grows: false, size, max_size, created: 0, name }
}

/// Maps a unit of volume 1, with one written block.
pub fn set(unit: u64) -> Record {
    set_in(1, unit)
}

/// Maps a unit of a volume, with one written block.
pub fn set_in(volume: u32, unit: u64) -> Record {
    Record::Set { volume, unit, phys: 2000, written: [1, 0, 0, 0] }
}

/// Creates volume `volume` as a snapshot of volume 1.
pub fn copy(volume: u32) -> Record {
    let (size, max_size, name) = (1 << 50, 1 << 50, volume.to_string());
    Record::Copy { volume, source: 1, snapshot: true, grows: false, size, max_size, created: 0, name }
}
