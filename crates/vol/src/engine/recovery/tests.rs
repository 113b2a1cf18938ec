//! Opens pools of which a part cannot be read.

mod hostile;
mod lost;
mod pairs;
mod quarantine;
mod repaired;
mod sums;
mod superblocks;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, MappingKind};

use crate::device::block_io::DeviceIo;
use crate::device::reader::MAX_UNREADABLE;
use crate::format::block::identify;
use crate::format::journal::{Commit, Ring};
use crate::format::record::Record;
use crate::format::{BLOCK, SUPERBLOCKS, kind};
use crate::state::extent_map::id_of;
use crate::{BlockIo, CheckOptions, CreateOptions, OpenOptions, Pool, PoolError, ScrubOptions, check_device};

const UNIT: u64 = 65536;

/// A disk with blocks that cannot be read until they are written.
struct Unreadable {
    io: DeviceIo,
    bad: std::sync::Mutex<Vec<u64>>,
}

impl BlockIo for Unreadable {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        let end = at + buf.len() as u64;
        match self.bad.lock().unwrap().iter().any(|bad| (at..end).contains(bad)) {
            true => Err(Status::Medium),
            false => self.io.read(at, buf),
        }
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        let end = at + buf.len() as u64;
        self.bad.lock().unwrap().retain(|bad| !(at..end).contains(bad));
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

fn open(device: &Device, bad: &[u64]) -> Result<Pool, PoolError> {
    let io = Unreadable { io: DeviceIo::new(device).unwrap(), bad: bad.to_vec().into() };
    Pool::open_through(device, Box::new(io), &OpenOptions::default())
}

#[test]
fn two_superblocks_that_cannot_be_read_are_no_pool() {
    let device = open_device("ram:size=7M").unwrap();
    Pool::create(&device, &CreateOptions::default()).unwrap();
    let error = open(&device, &SUPERBLOCKS).unwrap_err();
    assert!(matches!(error, PoolError::Io { status: Status::Medium, .. }), "{error}");
}

/// Maps a block for a write and ends the write without data: only maps matter here.
fn write(pool: &Pool, name: &str, pos: u64) {
    let (volume, token) = (pool.open_volume(name).unwrap(), MayBlock::on_worker());
    let piece = volume.map_blocking(pos, 4096, Intent::Write, &token).unwrap();
    volume.end_write(WriteDone::new(pos, 4096, Status::Ok, &[piece]), &token).unwrap();
}

/// Three places of a volume, each in a leaf of its own. The last has an index page of its own too, and the root is
/// above.
const PLACES: [u64; 3] = [0, 1 << 30, 5 << 30];

/// Returns the addresses of the volume's data at `PLACES`; `None` for a hole.
fn places(pool: &Pool, name: &str) -> Vec<Option<u64>> {
    let volume = pool.open_volume(name).unwrap();
    let map = |at: &u64| volume.map(*at, 4096, Intent::Read).unwrap();
    PLACES.iter().map(map).map(|found| (found.kind == MappingKind::Mapped).then_some(found.addr)).collect()
}

/// Writes volumes `a` and `b`, and a place of `a` once more after its snapshot `s`.
fn fill(pool: &Pool) {
    for name in ["a", "b"] {
        drop(pool.create_volume(name, 8 << 30).unwrap());
        PLACES.iter().for_each(|at| write(pool, name, *at));
    }
    pool.snapshot("a", "s").unwrap();
    write(pool, "a", PLACES[0]);
}

/// Returns a closed pool with volume `a`, its snapshot `s`, which shares all but one leaf with it, and the unrelated
/// volume `b`.
fn three_volumes() -> Device {
    let device = open_device("ram:size=16M").unwrap();
    Pool::create(&device, &CreateOptions::default()).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    fill(&pool);
    pool.close().unwrap();
    device
}

/// Returns the map pages of the newest checkpoint, with the volumes that need each.
fn map_pages(device: &Device) -> Vec<(u64, Vec<&'static str>)> {
    let pool = Pool::open(device, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
    let volume = pool.open_volume("b").unwrap();
    let state = volume.pool().lock();
    let mut pages: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for name in ["a", "b", "s"] {
        let vol = state.table.named(name).unwrap();
        vol.upper.iter().for_each(|at| pages.entry(*at).or_default().push(name));
        for slot in 0..vol.slots {
            let word = vol.core.top.word(slot as u32).map_or(0, |word| word.load(Ordering::Relaxed));
            let index = id_of(word);
            if index == 0 {
                continue;
            }
            pages.entry(state.tree.index.node(index).page.address).or_default().push(name);
            for word in state.tree.map.index.node(index).unwrap() {
                let leaf = id_of(word.load(Ordering::Relaxed));
                if leaf != 0 {
                    pages.entry(state.tree.leaves.node(leaf).page.address).or_default().push(name);
                }
            }
        }
    }
    pages.into_iter().collect()
}

fn flip(device: &Device, at: u64) {
    let io = DeviceIo::new(device).unwrap();
    let mut block = [0; BLOCK];
    io.read(at, &mut block).unwrap();
    block[77] ^= 4;
    io.write(at, &block).unwrap();
}

fn bytes_of(device: &Device) -> Vec<u8> {
    let mut bytes = vec![0; 16 << 20];
    DeviceIo::new(device).unwrap().read(0, &mut bytes).unwrap();
    bytes
}

/// Checks that the `lost` volumes do not open, that their errors name the remedy, and that the others are as before.
fn holds_but(pool: &Pool, lost: &[&str], at: u64, before: &[(&str, Vec<Option<u64>>)]) {
    let info = pool.info();
    assert_eq!(info.damaged.iter().map(|found| &found.0[..]).collect::<Vec<_>>(), lost, "page {at}");
    assert!(info.damaged.iter().all(|(_, damage)| damage.at == at && damage.pages == 1), "{:?}", info.damaged);
    for (name, places_before) in before {
        let listed = pool.volume_info(name).unwrap().damage;
        if !lost.contains(name) {
            assert_eq!((&places(pool, name), listed), (places_before, None), "'{name}' without page {at}");
            continue;
        }
        let error = pool.open_volume(name).unwrap_err();
        let text = error.to_string();
        let words = [&at.to_string(), "check --repair", "volume delete"];
        assert!(words.into_iter().all(|word| text.contains(word)), "{text}");
        let PoolError::DamagedMap { volume, damage, .. } = error else { panic!("{text}") };
        assert_eq!((&volume[..], Some(damage)), (*name, listed));
    }
    let scrubbed = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(scrubbed.findings.iter().any(|found| found.place.address == Some(at)), "{:?}", scrubbed.findings);
}

#[test]
fn a_damaged_page_of_a_map_costs_the_volumes_that_need_it_and_no_other() {
    let device = three_volumes();
    let pages = map_pages(&device);
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let before: Vec<_> = {
        let pool = Pool::open(&device, &read_only).unwrap();
        ["a", "b", "s"].map(|name| (name, places(&pool, name))).into()
    };
    // Each volume has a root, two index pages and three leaves; `a` and `s` share one index page and two leaves.
    assert_eq!((pages.len(), pages.iter().filter(|page| page.1.len() == 2).count()), (15, 3), "{pages:?}");
    let whole = bytes_of(&device);
    for (at, lost) in &pages {
        flip(&device, *at);
        let damaged = bytes_of(&device);
        let pool = Pool::open(&device, &read_only).unwrap();
        holds_but(&pool, lost, *at, &before);
        drop(pool);
        assert!(bytes_of(&device) == damaged, "nothing is written to a pool that is opened read-only");
        for _ in 0..2 {
            let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
            holds_but(&pool, lost, *at, &before);
            pool.sync().unwrap();
            pool.close().unwrap();
        }
        // The same with a disk that cannot read the page.
        DeviceIo::new(&device).unwrap().write(0, &whole).unwrap();
        let pool = open(&device, &[*at]).unwrap();
        holds_but(&pool, lost, *at, &before);
        assert!(pool.info().damaged[0].1.why.contains("cannot be read"));
        drop(pool);
        // A repair makes holes of the lost ranges, and all volumes open.
        flip(&device, *at);
        assert!(check_device(&device, &CheckOptions { repair: true }).unwrap().repaired);
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        for (name, places_before) in &before {
            let now = places(&pool, name);
            assert_eq!(&now == places_before, !lost.contains(name), "'{name}' after the repair of page {at}");
            assert!(now.iter().zip(places_before).all(|(now, before)| now == before || now.is_none()));
        }
        write(&pool, "b", 77 * UNIT);
        pool.close().unwrap();
        DeviceIo::new(&device).unwrap().write(0, &whole).unwrap();
    }
}

#[test]
fn what_the_journal_makes_of_a_volume_with_a_damaged_map() {
    type Change = fn(&Pool);
    // Changes after the checkpoint, and the volumes that are lost with a leaf of `a` alone.
    let changes: [(Change, &[&str]); 7] = [
        (|pool| write(pool, "a", 3 * UNIT), &["a"]),
        (|pool| write(pool, "b", 3 * UNIT), &["a"]),
        (|pool| pool.snapshot("a", "t").unwrap(), &["a", "t"]),
        (|pool| pool.rename("a", "z").unwrap(), &["z"]),
        (|pool| pool.delete("a").unwrap(), &[]),
        (|pool| pool.rollback("a", "s").unwrap(), &[]),
        (|pool| pool.clone_volume("s", "t").unwrap(), &["a"]),
    ];
    for (number, (change, lost)) in changes.into_iter().enumerate() {
        let pages = map_pages(&three_volumes()).into_iter().filter(|page| page.1 == ["a"]);
        let pages: Vec<u64> = pages.map(|page| page.0).collect();
        assert_eq!(pages.len(), 3, "a root, an index page, a leaf");
        for at in pages {
            let device = three_volumes();
            let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
            change(&pool);
            pool.sync().unwrap();
            let before = places(&pool, "b");
            let volume = pool.open_volume("b").unwrap();
            let state = volume.pool().lock();
            assert!(state.next_seq > state.sb.replay_seq, "change {number} is in the journal");
            drop(state);
            drop((volume, pool));
            flip(&device, at);
            let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
            let info = pool.info();
            assert_eq!(info.damaged.iter().map(|found| &found.0[..]).collect::<Vec<_>>(), lost, "change {number}");
            assert_eq!(places(&pool, "b"), before, "change {number}");
            // A page above shared pages cannot be in two maps: only that change has to wait for deletes.
            let is_root = info.damaged.iter().any(|(_, damage)| damage.range == (0, 8 << 30));
            assert_eq!(info.deletes_only, number == 2 && is_root, "change {number}");
            if !info.deletes_only {
                write(&pool, "b", 5 * UNIT);
                pool.sync().unwrap();
            }
            lost.iter().for_each(|name| pool.delete(name).unwrap());
            // No volume needs the page any more: the pool is whole.
            let info = pool.info();
            assert_eq!((info.deletes_only, info.quarantined_bytes, info.damaged.len()), (false, 0, 0));
            write(&pool, "b", 9 * UNIT);
            pool.close().unwrap();
            let report = check_device(&device, &CheckOptions::default()).unwrap();
            assert!(report.is_clean(), "change {number}: {:?}", report.findings);
        }
    }
}

#[test]
fn too_many_unreadable_pages_refuse_the_pool() {
    let device = open_device("ram:size=64M").unwrap();
    Pool::create(&device, &CreateOptions { unit_bytes: 4096, ..CreateOptions::default() }).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    drop(pool.create_volume("a", 1 << 40).unwrap());
    (0..MAX_UNREADABLE as u64 + 10).for_each(|leaf| write(&pool, "a", leaf << 20));
    pool.close().unwrap();
    let leaves: Vec<u64> =
        (0..64 << 20).step_by(BLOCK).filter(|at| kind_at(&device, *at) == Some(kind::LEAF)).collect();
    let pool = open(&device, &leaves[..MAX_UNREADABLE]).unwrap();
    assert_eq!(pool.info().damaged[0].1.pages, MAX_UNREADABLE as u64);
    drop(pool);
    let error = open(&device, &leaves).unwrap_err();
    assert!(matches!(error, PoolError::Io { status: Status::Medium, .. }), "{error}");
}

fn kind_at(device: &Device, at: u64) -> Option<u16> {
    let mut block = [0; BLOCK];
    DeviceIo::new(device).unwrap().read(at, &mut block).unwrap();
    identify(&block).ok().map(|found| found.0.kind)
}

/// A crash leaves the second block of a commit without its first. The next commit begins at the number of the first,
/// and that second block must not be taken for its continuation: the incarnation distinguishes the blocks of each
/// opening.
#[test]
fn what_is_left_of_a_torn_commit_never_continues_a_later_one() {
    let device = open_device("ram:size=16M").unwrap();
    Pool::create(&device, &CreateOptions::default()).unwrap();
    let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
    drop(pool.create_volume("v", 1 << 20).unwrap());
    let (ring, next, geometry, id, opening) = {
        let state = pool.inner.lock();
        let id = state.table.named("v").unwrap().id;
        (Ring::of(&state.sb), state.next_seq, state.sb.geometry(), id, state.sb.incarnation)
    };
    drop(pool);
    let mut torn = Commit::with_capacity(2);
    while torn.blocks() < 2 {
        torn.push(&geometry, &Record::Delete { volume: id });
    }
    torn.seal(&ring, next);
    let io = DeviceIo::new(&device).unwrap();
    let (at, bytes) = torn.pieces(&ring, next).next().unwrap();
    io.write(at + BLOCK as u64, &bytes[BLOCK..]).unwrap();
    for crash in 1..=3 {
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        let sb = pool.inner.lock().sb.clone();
        assert!(sb.incarnation >= opening + crash, "each opening has an incarnation of its own");
        assert_eq!(sb.replay_seq, pool.inner.lock().next_seq, "and its checkpoint is durable before anything else");
        write(&pool, "v", crash << 16);
        pool.sync().unwrap();
        drop(pool);
    }
    assert_eq!(open(&device, &[]).unwrap().info().volumes, 1, "nobody has deleted it");
}

/// A pool may have more nodes than one journal may change, and still opens after a crash.
#[test]
fn loading_a_checkpoint_does_not_count_as_replay_work() {
    let device = three_volumes();
    let recovered =
        super::recover(&DeviceIo::new(&device).unwrap(), &OpenOptions::default(), |_| Err("none".into())).unwrap();
    assert!(recovered.state.tree.index.live() > 4, "it has loaded some");
    assert_eq!(recovered.state.tree.cost, 0);
}
