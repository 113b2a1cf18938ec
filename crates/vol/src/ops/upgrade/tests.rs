//! An upgrade while reads find bad blocks.

use std::sync::{Arc, Mutex, Weak};

use sheave_base::status::Status;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, IoMemory, SummedDone};

use super::*;
use crate::device::block_io::{BlockIo, DeviceIo};
use crate::engine::sums::verify::Look;
use crate::format::superblock::Superblock;
use crate::format::{BLOCK, SUPERBLOCKS};
use crate::{CreateOptions, OpenOptions, Pool, Volume};

/// A block that a reader finds bad while the pool's next own write is in flight.
type Finder = Arc<Mutex<Option<(Weak<PoolInner>, u64)>>>;

struct Found {
    io: DeviceIo,
    finder: Finder,
}

impl BlockIo for Found {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        let found = self.finder.lock().unwrap().take();
        if let Some((pool, block)) = found.and_then(|(pool, block)| Some((pool.upgrade()?, block))) {
            let look = pool.sums.as_ref().unwrap().settle(&self.io, block, &mut [0; BLOCK]);
            let Ok(Look::Bad(found)) = look else { panic!("it has rotted: {look:?}") };
            assert_eq!(pool.mark(found), Ok(true), "nobody writes to it");
        }
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.io.flush()
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        self.io.discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }
}

fn write(volume: &Volume, pos: u64) -> u64 {
    let (may_block, mut data) = (MayBlock::on_worker(), [1; BLOCK]);
    let mapping = loop {
        match volume.map(pos, BLOCK as u64, Intent::Write) {
            Ok(mapping) => break mapping,
            Err(_) => volume.map_blocking(pos, BLOCK as u64, Intent::Write, &may_block).map(drop).expect("has space"),
        }
    };
    volume.begin_write(&mapping);
    volume.pool().io.write(mapping.addr, &data).expect("it writes");
    let (addr, pieces) = (mapping.addr, [mapping]);
    IoMemory::over(&mut data, |memory| {
        let done = SummedDone::of_write(WriteDone::new(pos, BLOCK as u64, Status::Ok, &pieces), memory);
        volume.end_summed(&done).expect("nobody else writes");
    });
    let done = WriteDone::new(pos, BLOCK as u64, Status::Ok, &pieces);
    volume.end_write(done, &may_block).expect("it ends");
    addr >> 12
}

/// V16: an upgrade has to write a checkpoint first to make room. Meanwhile a block in a region without marks is found
/// bad. It is reported bad, and after the upgrade that outlives a crash.
#[test]
fn what_is_told_bad_while_an_upgrade_makes_room_stays_bad() {
    let device = open_device("ram:size=64M").expect("opens");
    let options = CreateOptions { checksum: Checksum::Crc32c, ..CreateOptions::default() };
    Pool::create(&device, &options).expect("formats");
    // State that a program without marks leaves.
    let io = DeviceIo::new(&device).expect("attaches");
    for at in SUPERBLOCKS {
        let mut block = [0; BLOCK];
        io.read(at, &mut block).expect("it reads");
        let mut sb = Superblock::decode(&block, at, u64::MAX).expect("intact");
        (sb.marks, sb.identities) = (false, false);
        sb.encode(&mut block);
        io.write(at, &block).expect("it writes");
    }
    let finder = Finder::default();
    let io = Box::new(Found { io, finder: Arc::clone(&finder) });
    let pool = Pool::open_through(&device, io, &OpenOptions::default()).expect("opens");
    let volume = pool.create_volume("v", 1 << 40).expect("creates");
    let block = write(&volume, 0);
    // Makes pages dirty; a checkpoint makes them clean.
    (1..60).for_each(|slot| _ = write(&volume, slot << 32));
    let mut state = pool.inner.lock();
    let free = state.tree.pages.available(&state.tree.units);
    let wanted = state.pages_due() + state.table.bare_pages();
    state.spare_pages = 2 * (free - wanted + 1);
    assert!(!state.can_pay(0, Spender::Table) && state.can_pay_after_checkpoint(2, Spender::Table));
    drop(state);
    DeviceIo::new(&device).expect("attaches").write(block << 12, &[9; BLOCK]).expect("it rots");
    *finder.lock().unwrap() = Some((Arc::downgrade(&pool.inner), block));
    assert_eq!(pool.upgrade().expect("upgrades").len(), 2);
    assert!(finder.lock().unwrap().is_none() && pool.info().bad_blocks == 1, "it was found meanwhile");
    drop((volume, pool));
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opens");
    assert_eq!(pool.info().bad_blocks, 1);
}
