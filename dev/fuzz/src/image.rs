//! A valid pool with all kinds of metadata, and the fuzzer's damage to it.
//!
//! Owns the image (made once, by the pool's own code), and [`damaged`], which changes blocks of the image and then
//! seals them and updates every reference to them. So no checksum detects the damage.

use std::collections::BTreeMap;
use std::sync::{Mutex, OnceLock};

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::block::{Block, identify};
use sheave_vol::block_io::DeviceIo;
use sheave_vol::format::{BLOCK, SUPERBLOCKS};
use sheave_vol::journal::{Commit, Ring};
use sheave_vol::record::Record;
use sheave_vol::superblock::{Superblock, choose};
use sheave_vol::{BlockIo, Checksum, CreateOptions, OpenOptions, Pool};

const SIZE: u64 = 8 << 20;
const SPEC: &str = "linear:over=ram:size=4M+ram:size=4M";

/// A device in memory; blocks that are not there are zero.
#[derive(Debug, Default)]
pub struct Memory {
    blocks: Mutex<BTreeMap<u64, Box<Block>>>,
}

impl Memory {
    fn blocks(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Box<Block>>> {
        self.blocks.lock().expect("no panic under this lock")
    }

    /// Returns a device with these bytes.
    pub fn to_device(&self) -> Device {
        let device = open_device(SPEC).expect("opens");
        let io = DeviceIo::new(&device).expect("attaches");
        self.blocks().iter().for_each(|(&at, block)| io.write(at, &block[..]).expect("writes"));
        drop(io);
        device
    }
}

impl BlockIo for Memory {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        let blocks = self.blocks();
        for (chunk, at) in buf.chunks_mut(BLOCK).zip((at..).step_by(BLOCK)) {
            assert!(at < SIZE, "reads are inside the device");
            match blocks.get(&at) {
                Some(block) => chunk.copy_from_slice(&block[..]),
                None => chunk.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        let mut blocks = self.blocks();
        for (chunk, at) in buf.chunks(BLOCK).zip((at..).step_by(BLOCK)) {
            assert!(at < SIZE, "writes are inside the device");
            blocks.insert(at, Box::new(crate::block(chunk)));
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Status> {
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        SIZE
    }
}

/// Returns the blocks of metadata of a valid pool of two members, with checksums of data or without.
fn image(checksum: Checksum) -> &'static BTreeMap<u64, Box<Block>> {
    static IMAGES: [OnceLock<BTreeMap<u64, Box<Block>>>; 2] = [const { OnceLock::new() }; 2];
    IMAGES[usize::from(checksum == Checksum::Crc32c)].get_or_init(|| {
        let device = open_device(SPEC).expect("opens");
        let options =
            CreateOptions::default().unit_bytes(16384).uuid(Some(crate::POOL)).checksum(checksum);
        Pool::create(&device, &options).expect("formats");
        let open = || Pool::open(&device, &OpenOptions::default()).expect("opens");
        let pool = open();
        pool.create_volume("a", 4 << 30).expect("creates");
        pool.create_volume("b", 1 << 30).expect("creates");
        pool.close().expect("closes");
        // Maps without data suffice: the opening relies on the records of the journal that name units as written.
        let set = |volume, unit, phys, bits| Record::Set { volume, unit, phys, written: [bits, 0, 0, 0] };
        commit(&device, &[Record::Run { volume: 1, unit: 0, count: 30, phys: 100 }, set(1, 200_000, 140, 3)]);
        commit(&device, &[Record::Run { volume: 2, unit: 250, count: 12, phys: 150 }]);
        let pool = open();
        pool.snapshot("a", "a-1").expect("snapshots");
        pool.close().expect("closes");
        commit(&device, &[set(1, 3, 170, 1), set(2, 251, 0, 0), Record::Resize { volume: 2, size: 2 << 30 }]);
        let io = DeviceIo::new(&device).expect("attaches");
        let mut blocks = BTreeMap::new();
        for at in (0..SIZE).step_by(BLOCK) {
            let mut block = Box::new([0; BLOCK]);
            io.read(at, &mut block[..]).expect("reads");
            if identify(&block).is_ok() {
                blocks.insert(at, block);
            }
        }
        blocks
    })
}

/// Adds a commit to the journal, behind the existing ones, like an open pool would.
fn commit(device: &Device, records: &[Record]) {
    let io = DeviceIo::new(device).expect("attaches");
    let slots = SUPERBLOCKS.map(|at| {
        let mut block = [0; BLOCK];
        io.read(at, &mut block).expect("reads");
        Superblock::decode(&block, at, SIZE)
    });
    let mut sb = choose(slots).expect("there is a pool").0;
    if sb.clean {
        sb.clean = false;
        sb.generation += 1;
        let mut block = [0; BLOCK];
        let at = sb.encode(&mut block);
        io.write(at, &block).expect("writes");
    }
    let mut journal = vec![0; sb.journal_blocks as usize * BLOCK];
    io.read(sheave_vol::format::JOURNAL_START, &mut journal).expect("reads");
    let first = sheave_vol::journal::scan(&journal, &sb, &mut |_| ()).expect("intact").next_seq;
    let mut commit = Commit::with_capacity(1);
    if sb.checksum == Checksum::Crc32c {
        // An intent precedes any write. Because of it, opening the pool after a crash computes the checksums of the
        // data in the regions.
        let count = sb.geometry().regions(sb.total_units);
        commit.push(&sb.geometry(), &Record::Intent { first: 0, count });
    }
    records.iter().for_each(|record| commit.push(&sb.geometry(), record));
    let ring = Ring::of(&sb);
    commit.seal(&ring, first);
    commit.pieces(&ring, first).for_each(|(at, bytes)| io.write(at, bytes).expect("writes"));
}

/// Returns the image with the fuzzer's changes. The first byte of `data` decides if the pool has checksums of data.
/// Then follow 6 bytes for each change: the block, the position in it, and the new bytes.
pub fn damaged(data: &[u8]) -> Memory {
    let (kind, data) = data.split_first().unwrap_or((&0, &[]));
    let mut blocks = image(if kind & 1 == 0 { Checksum::None } else { Checksum::Crc32c }).clone();
    let addresses: Vec<u64> = blocks.keys().copied().collect();
    for change in data.chunks_exact(6).take(16) {
        let at = addresses[usize::from(change[0]) % addresses.len()];
        let place = usize::from(u16::from_le_bytes([change[1], change[2]])) % BLOCK;
        // The lowest bit of the sixth byte decides if one byte or two are written.
        let len = if change[5] & 1 == 0 { 1 } else { 2 };
        let bytes = [change[3], change[4]];
        let sealed = change[5] & 0xF0 != 0xF0;
        set(&mut blocks, &addresses, at, sealed, &mut |block| {
            for (to, from) in block[place..].iter_mut().zip(&bytes[..len]) {
                *to = *from;
            }
        });
    }
    Memory { blocks: Mutex::new(blocks) }
}

/// Changes a block. If it is to be sealed, updates its checksum and all references to it.
fn set(
    blocks: &mut BTreeMap<u64, Box<Block>>,
    addresses: &[u64],
    at: u64,
    sealed: bool,
    change: &mut dyn FnMut(&mut Block),
) {
    let Some(block) = blocks.get_mut(&at) else { return };
    let mut before = at.to_le_bytes().to_vec();
    before.extend_from_slice(&block[8..12]);
    change(block);
    if !sealed {
        return;
    }
    crate::seal(block);
    let sum = [block[8], block[9], block[10], block[11]];
    if sum == before[8..] {
        return;
    }
    for &parent in addresses.iter().filter(|&&parent| parent != at) {
        let found = blocks.get(&parent).and_then(|block| block.windows(12).position(|bytes| bytes == before));
        if let Some(place) = found {
            set(blocks, addresses, parent, true, &mut |block| block[place + 8..place + 12].copy_from_slice(&sum));
        }
    }
}
