//! Acknowledged writes survive the death of the process (V35): the pool is dropped, with its device and the memory of
//! recent changes left as a killed process leaves them.

use std::collections::BTreeMap;

use crate::support::{User, format};
use sheave_base::lasting::Lasting;
use sheave_base::rng::Rng;
use sheave_base::sync::Arc;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_vol::{CheckOptions, Checksum, CreateOptions, OpenOptions, Pool, check, with_recent_memory};

const BLOCK: u64 = 4096;
/// Numbers of a file of recent changes.
const NUMBERS: usize = 64 + (4 << 20) / 8;

fn memory() -> Arc<Lasting> {
    Arc::new(Lasting::in_memory(NUMBERS).expect("memory"))
}

fn open(device: &Device, memory: &Arc<Lasting>) -> Pool {
    Pool::open(device, &with_recent_memory(OpenOptions::default(), Some(memory.clone()))).expect("opens")
}

fn user(pool: &Pool, name: &str) -> User {
    User::new(pool.open_volume(name).expect("is there"))
}

fn check_clean(device: &Device, pool: Pool) {
    pool.close().expect("nothing is open");
    let io = sheave_vol::block_io::DeviceIo::new(device).expect("attaches");
    let report = check(&io, &CheckOptions::default()).expect("it is a pool");
    assert!(report.is_clean(), "{:?}", report.findings);
}

#[test]
fn a_write_that_was_never_flushed_is_there_after_the_death_of_the_process() {
    for kept in [true, false] {
        let device = open_device("ram:size=32M").expect("opens");
        format(&device, 65536);
        let mine = memory();
        let pool = open(&device, &mine);
        assert_eq!(pool.info().no_recent, None);
        let writer = User::new(pool.create_volume("v", 8 << 20).expect("creates"));
        writer.write(5 * BLOCK, &[7; 3 * BLOCK as usize]).expect("writes");
        writer.write(100 * BLOCK + 512, &[8; 512]).expect("writes");
        drop((writer, pool));
        let pool = open(&device, &if kept { mine } else { memory() });
        let reader = user(&pool, "v");
        let found = [5, 7, 100].map(|block| reader.read(block * BLOCK, 1024).expect("reads")[512]);
        assert_eq!(found, if kept { [7, 7, 8] } else { [0, 0, 0] });
        drop(reader);
        check_clean(&device, pool);
    }
}

/// A file of another opening, of another pool, or of another commit names nothing that is replayed.
#[test]
fn the_changes_of_another_opening_are_never_replayed() {
    let device = open_device("ram:size=32M").expect("opens");
    format(&device, 65536);
    let (old, new) = (memory(), memory());
    let pool = open(&device, &old);
    let writer = User::new(pool.create_volume("v", 8 << 20).expect("creates"));
    writer.write(0, &[1; BLOCK as usize]).expect("writes");
    drop((writer, pool));
    // Another opening does not see that file, and makes a checkpoint without its changes.
    let pool = open(&device, &new);
    let writer = user(&pool, "v");
    assert_eq!(writer.read(0, 1).expect("reads"), [0]);
    writer.write(BLOCK, &[2; BLOCK as usize]).expect("writes");
    drop((writer, pool));
    let pool = open(&device, &old);
    let reader = user(&pool, "v");
    assert_eq!((reader.read(0, 1).expect("reads"), reader.read(BLOCK, 1).expect("reads")), (vec![0], vec![0]));
    drop(reader);
    check_clean(&device, pool);
}

/// A copy of the pool's file that was made after the death gets nothing, and takes nothing from the original.
#[test]
fn a_copy_of_a_pool_does_not_get_the_changes_of_the_original() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let options = OpenOptions::default().runtime_dir(Some(dir.path().join("recent")));
    let device = |name: &str, more: &str| open_device(&format!("file:{}{more}", path(name))).expect("opens");
    let first = device("a", ",size=32M");
    format(&first, 65536);
    let pool = Pool::open(&first, &options).expect("opens");
    assert_eq!(pool.info().no_recent, None);
    let writer = User::new(pool.create_volume("v", 8 << 20).expect("creates"));
    writer.write(0, &[7; BLOCK as usize]).expect("writes");
    drop((writer, pool, first));
    std::fs::copy(path("a"), path("b")).expect("copied");
    for (name, wanted) in [("b", 0), ("a", 7)] {
        let device = device(name, "");
        let pool = Pool::open(&device, &options).expect("opens");
        assert_eq!(user(&pool, "v").read(0, BLOCK as usize).expect("reads"), [wanted; BLOCK as usize], "{name}");
        check_clean(&device, pool);
    }
    assert_eq!(std::fs::read_dir(dir.path().join("recent")).expect("made").count(), 0, "removed by the closes");
}

/// Random operations on volumes, snapshots and clones, with a death after any of them: the next opening has everything
/// that was acknowledged.
#[test]
fn everything_that_was_acknowledged_survives_death_after_death() {
    let rounds = if sheave_testkit::under_sanitizer() { 2 } else { 12 };
    for seed in sheave_testkit::seeds(rounds) {
        let mut rng = Rng::new(seed);
        let device = open_device("ram:size=48M").expect("opens");
        let checksum = [Checksum::None, Checksum::Crc32c][rng.below(2) as usize];
        let unit = [4096, 65536, 1 << 20][rng.below(3) as usize];
        Pool::create(&device, &CreateOptions::default().unit_bytes(unit).checksum(checksum)).expect("formats");
        let memory = memory();
        let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut count = 0;
        for _life in 0..8 {
            let pool = open(&device, &memory);
            let names: Vec<String> = pool.volumes().into_iter().map(|volume| volume.name).collect();
            assert_eq!(names.len(), model.len(), "seed {seed}: {names:?}");
            for (name, blocks) in &model {
                let reader = user(&pool, name);
                for (block, wanted) in blocks.iter().enumerate() {
                    let found = reader.read(block as u64 * BLOCK, BLOCK as usize).expect("reads");
                    assert!(found.iter().all(|byte| byte == wanted), "seed {seed}: {name}, {block}: {wanted}");
                }
            }
            for _ in 0..rng.below(60) {
                count += 1;
                step(&pool, &mut model, &mut rng, count)
                    .unwrap_or_else(|why| panic!("seed {seed}, step {count}: {why}"));
            }
            assert_eq!(pool.info().no_recent, None, "seed {seed}");
            drop(pool);
        }
        let pool = open(&device, &memory);
        check_clean(&device, pool);
    }
}

/// Makes one change, and the same to the model: the byte of each block.
fn step(pool: &Pool, model: &mut BTreeMap<String, Vec<u8>>, rng: &mut Rng, count: u64) -> Result<(), String> {
    const BLOCKS: u64 = 300;
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let names: Vec<String> = model.keys().filter(|name| name.starts_with('v')).cloned().collect();
    if names.is_empty() || names.len() < 4 && rng.below(20) == 0 {
        let name = format!("v{count}");
        pool.create_volume(&name, BLOCKS * BLOCK).map_err(|error| text(&error))?;
        model.insert(name, vec![0; BLOCKS as usize]);
        return Ok(());
    }
    let name = &names[rng.below(names.len() as u64) as usize];
    let writer = user(pool, name);
    let size = model[name].len() as u64;
    let first = rng.below(size);
    let blocks = (1 + rng.below(20)).min(size - first);
    let range = first as usize..(first + blocks) as usize;
    match rng.below(24) {
        0 => {
            let new = format!("s{count}");
            pool.snapshot(name, &new).map_err(|error| text(&error))?;
            model.insert(new, model[name].clone());
        }
        1 => {
            let new = format!("v{count}");
            if names.len() < 5 {
                pool.clone_volume(name, &new).map_err(|error| text(&error))?;
                model.insert(new, model[name].clone());
            }
        }
        2 => {
            let Some(snapshot) = model.keys().find(|name| name.starts_with('s')).cloned() else { return Ok(()) };
            pool.delete(&snapshot).map_err(|error| text(&error))?;
            model.remove(&snapshot);
        }
        3 => writer.sync().map_err(|error| text(&error))?,
        4 => {
            drop(writer);
            let size = 1 + rng.below(2 * BLOCKS);
            pool.resize(name, size * BLOCK).map_err(|error| text(&error))?;
            model.get_mut(name).expect("it is there").resize(size as usize, 0);
        }
        5..=8 => {
            writer.punch(first * BLOCK, blocks * BLOCK).map_err(|error| text(&error))?;
            model.get_mut(name).expect("it is there")[range].fill(0);
        }
        _ => {
            let byte = 1 + (count % 255) as u8;
            writer.write(first * BLOCK, &vec![byte; (blocks * BLOCK) as usize]).map_err(|error| text(&error))?;
            model.get_mut(name).expect("it is there")[range].fill(byte);
        }
    }
    Ok(())
}

/// A volume that grows has its size and the data behind its old end.
#[test]
fn growth_survives_the_death_of_the_process() {
    let device = open_device("ram:size=32M").expect("opens");
    format(&device, 65536);
    let memory = memory();
    let pool = open(&device, &memory);
    let writer = User::new(pool.create_growing_volume("v", 0, 8 << 20).expect("creates"));
    for block in [0, 1, 2, 40, 41] {
        writer.write(block * BLOCK, &[block as u8 + 1; BLOCK as usize]).expect("writes");
    }
    drop((writer, pool));
    let pool = open(&device, &memory);
    let reader = user(&pool, "v");
    assert_eq!(reader.volume.size_bytes(), 42 * BLOCK);
    let found = [0, 1, 2, 3, 40, 41].map(|block| reader.read(block * BLOCK, BLOCK as usize).expect("reads")[0]);
    assert_eq!(found, [1, 2, 3, 0, 41, 42]);
    drop(reader);
    check_clean(&device, pool);
}

/// A file that was made up, or that rotted, is refused with the way out, and changes nothing.
#[test]
fn a_damaged_file_of_changes_is_refused_by_name() {
    let device = open_device("ram:size=32M").expect("opens");
    format(&device, 65536);
    let memory = memory();
    let pool = open(&device, &memory);
    let writer = User::new(pool.create_volume("v", 8 << 20).expect("creates"));
    writer.write(0, &[7; BLOCK as usize]).expect("writes");
    drop((writer, pool));
    let before: Vec<u64> = (0..NUMBERS).map(|at| memory.get(at)).collect();
    let refused = |at: usize, number: u64| {
        memory.put(at, number);
        let options = with_recent_memory(OpenOptions::default(), Some(memory.clone()));
        let error = Pool::open(&device, &options).expect_err("it is damaged").to_string();
        assert!(error.contains("remove the file"), "{error}");
        memory.put(at, before[at]);
    };
    // The record of the write is the first one behind the newest mark.
    let at = 64 + [15, 19, 23].into_iter().map(|mark| before[mark]).max().expect("marks") as usize;
    assert_eq!(before[at] & 0xff, 1, "it maps a unit");
    refused(at, before[at] | 0xff); // the kind of the record
    refused(at + 1, u64::MAX); // its unit of the volume
    refused(at + 2, u64::MAX); // its unit of the pool
    refused(at + 2, 1); // a unit that has no data
    refused(at + 3, u64::MAX); // blocks that the unit has not
    refused(10, u64::MAX); // the head
    let pool = open(&device, &memory);
    assert_eq!(user(&pool, "v").read(0, BLOCK as usize).expect("reads"), [7; BLOCK as usize]);
    check_clean(&device, pool);
}
