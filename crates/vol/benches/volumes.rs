//! Cost of a pool with very many volumes: processor time of a delete among them, of a checkpoint and of opening.
//!
//! ```sh
//! cargo bench -p sheave-vol --bench volumes -- --volumes 10000
//! ```
//!
//! Sets no limits: docs/concepts/volumes.md has the expected figures. Times are the time that this thread was on the
//! processor, so that a busy machine gives nearly the same figures as an idle one. The device is `ram:`.

use sheave_base::status::Status;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;
use sheave_vol::{CreateOptions, OpenOptions, Pool, Volume};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Number of volumes in ten that are written to.
const WRITTEN_OF_TEN: u64 = 3;
const DELETES: u64 = 200;

fn main() -> Result<()> {
    let volumes = parse()?;
    let device = open_device("ram:size=4G")?;
    Pool::create(&device, &CreateOptions::default())?;
    let pool = Pool::open(&device, &OpenOptions::default())?;
    let create = timed(|| (0..volumes).try_for_each(|n| pool.create_volume(&name(n), 1 << 30).map(drop)))?;
    for n in (0..volumes).filter(|n| n % 10 < WRITTEN_OF_TEN) {
        first_write(&pool.open_volume(&name(n))?)?;
    }
    let dirty = timed(|| pool.sync())?;
    let one = pool.create_volume("one", 1 << 30)?;
    first_write(&one)?;
    let clean = timed(|| pool.sync())?;
    drop(one);
    let delete = timed(|| (0..DELETES.min(volumes)).try_for_each(|n| pool.delete(&name(n))))?;
    let close = timed(|| pool.close())?;
    let mut open = u64::MAX;
    for _ in 0..3 {
        let mut pool = None;
        open = open.min(timed(|| Pool::open(&device, &OpenOptions::default()).map(|opened| pool = Some(opened)))?);
        pool.ok_or("it was opened")?.close()?;
    }
    let us = |ns: u64, count: u64| ns as f64 / count as f64 / 1000.0;
    println!("{volumes} volumes, CPU time of the thread in us:");
    println!("  create, each  {:10.1}", us(create, volumes));
    println!("  sync of all   {:10.1}", us(dirty, 1));
    println!("  sync of one   {:10.1}", us(clean, 1));
    println!("  delete, each  {:10.1}", us(delete, DELETES.min(volumes)));
    println!("  close         {:10.1}", us(close, 1));
    println!("  open          {:10.1}", us(open, 1));
    Ok(())
}

fn parse() -> Result<u64> {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    match (args.next().as_deref(), args.next()) {
        (None, _) => Ok(10_000),
        (Some("--volumes"), Some(volumes)) => Ok(volumes.parse()?),
        _ => Err("known is --volumes N".into()),
    }
}

fn name(n: u64) -> String {
    format!("volume-{n}")
}

/// Makes a first write of a block, without its data.
fn first_write(volume: &Volume) -> Result<()> {
    let token = MayBlock::on_worker();
    let mapping = match volume.map(0, 4096, Intent::Write) {
        Err(Status::Again) => volume.map_blocking(0, 4096, Intent::Write, &token),
        mapping => mapping,
    };
    let mapping = mapping.map_err(|status| format!("mapping: {status}"))?;
    volume
        .end_write(WriteDone::new(0, 4096, Status::Ok, &[mapping]), &token)
        .map_err(|status| format!("ending: {status}").into())
}

/// Returns the nanoseconds that this thread was on the processor during the work.
fn timed<E: Into<Box<dyn std::error::Error>>>(work: impl FnOnce() -> std::result::Result<(), E>) -> Result<u64> {
    let start = on_processor()?;
    work().map_err(Into::into)?;
    Ok(on_processor()? - start)
}

/// Returns the nanoseconds that this thread has been on the processor. The kernel updates the number at its ticks,
/// which are milliseconds apart, and when it chooses the next thread: a yield makes the number exact.
fn on_processor() -> Result<u64> {
    std::thread::yield_now();
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(stat.split_whitespace().next().ok_or("the kernel keeps no times of threads")?.parse()?)
}
