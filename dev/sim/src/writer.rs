//! A process that a test kills: it writes to a volume in a real file and prints what has been flushed.
//!
//! Owns the sequence of its writes, which a seed determines, so that the parent can compute it too. Writes are issued
//! one after the other; after each batch comes a flush, and then a line `flushed N`: write N and all before it are
//! durable. Now and then it takes a snapshot, named after the write that preceded it.

use std::io::Write;

use sheave_base::buf::Buf;
use sheave_base::sync::Arc;
use sheave_iomap::File;
use sheave_uring::{Ring, prep};
use sheave_vol::{CreateOptions, OpenOptions, Pool};

use crate::disk::SECTOR;
use crate::tag::{Value, fill_all};
use sheave_base::rng::{Rng, mix};
use sheave_drivers::open_device;

pub const VOLUME: &str = "data";
pub const VOLUME_BYTES: u64 = 4 << 20;
/// Bytes of the file.
pub const POOL_BYTES: u64 = 32 << 20;
/// Number of snapshots that are kept.
const SNAPSHOTS: usize = 4;
/// Number of the volume in the tags of its sectors.
pub const VOLUME_ID: u32 = 1;

/// One write of the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub pos: u64,
    pub len: u64,
    /// True if the write is durable when it ends.
    pub dsync: bool,
    /// True if a flush follows the write.
    pub flush: bool,
    /// True if a snapshot follows the write.
    pub snapshot: bool,
}

/// Returns write number `value` of the sequence of `seed`.
#[must_use]
pub fn planned(seed: u64, value: Value) -> Planned {
    let mut rng = Rng::new(mix(seed) ^ u64::from(value));
    let align = if rng.percent(30) { SECTOR as u64 } else { 4096 };
    let most = if rng.percent(10) { 64 } else { 4 };
    let pos = rng.below(VOLUME_BYTES / align) * align;
    let len = (rng.between(1, most) * align).min(VOLUME_BYTES - pos);
    let (dsync, flush, snapshot) = (rng.percent(10), rng.percent(12), rng.percent(2));
    Planned { pos, len, dsync, flush, snapshot }
}

/// Returns the name of the snapshot taken after write number `value`.
#[must_use]
pub fn snapshot_name(value: Value) -> String {
    format!("after-{value}")
}

/// Creates the pool and the volume.
pub fn format(spec: &str) -> Result<(), String> {
    let device = open_device(spec).map_err(|error| error.to_string())?;
    let options = CreateOptions::default().journal_bytes(Some(128 << 10));
    Pool::create(&device, &options).map_err(|error| error.to_string())?;
    let pool = Pool::open(&device, &OpenOptions::default()).map_err(|error| error.to_string())?;
    pool.create_volume(VOLUME, VOLUME_BYTES).map_err(|error| error.to_string())?;
    pool.close().map_err(|error| error.to_string())
}

/// Writes from number `first` on until the process is killed.
pub fn write_until_killed(spec: &str, seed: u64, first: Value) -> Result<(), String> {
    let device = open_device(spec).map_err(|error| error.to_string())?;
    let pool = Pool::open(&device, &OpenOptions::default()).map_err(|error| error.to_string())?;
    let volume = pool.open_volume(VOLUME).map_err(|error| error.to_string())?;
    let file: Arc<dyn File> = Arc::new(volume);
    let mut ring = Ring::builder().entries(64).build().map_err(|error| error.to_string())?;
    let fd = ring.attach_file(file).map_err(|error| error.to_string())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "started").and_then(|()| out.flush()).map_err(|error| error.to_string())?;
    for value in first.. {
        let Planned { pos, len, dsync, flush, snapshot } = planned(seed, value);
        let mut buf = Buf::zeroed(len as usize, 4096).map_err(|error| error.to_string())?;
        fill_all(seed, value, VOLUME_ID, pos / SECTOR as u64, &mut buf);
        let write = prep::write(fd, buf).offset(pos);
        one(&mut ring, if dsync { write.dsync() } else { write }, len as i32)?;
        if snapshot {
            take_snapshot(&pool, value)?;
        }
        if flush || dsync {
            one(&mut ring, prep::fsync(fd), 0)?;
            writeln!(out, "flushed {value}").and_then(|()| out.flush()).map_err(|error| error.to_string())?;
        }
    }
    Ok(())
}

fn one(ring: &mut Ring, entry: impl prep::Op, wanted: i32) -> Result<(), String> {
    ring.push(entry).map_err(|full| full.to_string())?;
    ring.submit_and_wait(1).map_err(|error| error.to_string())?;
    let done = ring.completions().next().ok_or("no completion")?;
    if done.res == wanted { Ok(()) } else { Err(format!("an operation gave {} and not {wanted}", done.res)) }
}

fn take_snapshot(pool: &Pool, value: Value) -> Result<(), String> {
    let mut old: Vec<Value> =
        pool.volumes().iter().filter_map(|one| one.name.strip_prefix("after-")?.parse().ok()).collect();
    old.sort_unstable();
    while old.len() >= SNAPSHOTS {
        pool.delete(&snapshot_name(old.remove(0))).map_err(|error| error.to_string())?;
    }
    pool.snapshot(VOLUME, &snapshot_name(value)).map_err(|error| error.to_string())
}
