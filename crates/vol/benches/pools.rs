//! Cost of opening, recovering and snapshotting a large pool.
//!
//! Makes a sparse pool of a bit over 1 TiB in a file, with one volume of 1 TiB in 1,000,000 extents of one unit each,
//! no two of them adjacent. Their data is not written: only metadata is measured. Then it measures, a few times each:
//! the opening of a closed pool, the opening of a pool that was dropped with half a journal to replay, and a snapshot.
//!
//! ```sh
//! cargo bench -p sheave-vol --bench pools -- --path /tmp/pools.img --extents 1000000 --rounds 5
//! ```

use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::WriteDone;
use sheave_iomap::mapping::Intent;
use sheave_vol::{CreateOptions, OpenOptions, Pool, Volume};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const VOLUME: u64 = 1 << 40;
const UNIT: u64 = 65536;
/// Number of changes of a session that is cut off. Each is a record in the journal.
const UNCLOSED: u64 = 30_000;

/// File in the repository's target directory, wherever cargo starts this program.
const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/pools.img");

struct Args {
    path: String,
    extents: u64,
    rounds: u32,
}

fn main() -> Result<()> {
    let args = parse()?;
    println!("| layout | open, closed before | open, dropped before | snapshot | memory | metadata |");
    println!("|---|---:|---:|---:|---:|---:|");
    for (name, scattered) in [("every other unit", false), ("scattered", true)] {
        println!("{}", run(&args, name, &|n| place(n, scattered))?);
    }
    std::fs::remove_file(&args.path)?;
    Ok(())
}

fn parse() -> Result<Args> {
    let mut args = Args { path: PATH.into(), extents: 1_000_000, rounds: 5 };
    let mut given = std::env::args().skip(1).filter(|arg| arg != "--bench");
    while let Some(arg) = given.next() {
        let value = given.next().ok_or_else(|| format!("{arg} needs a value"))?;
        match arg.as_str() {
            "--path" => args.path = value,
            "--extents" => args.extents = value.parse()?,
            "--rounds" => args.rounds = value.parse()?,
            _ => return Err(format!("{arg}: known are --path, --extents, --rounds").into()),
        }
    }
    let most = VOLUME / UNIT / 2 - UNCLOSED * u64::from(args.rounds + 1);
    if args.extents == 0 || args.rounds == 0 || args.extents > most {
        return Err(format!("--extents 1 to {most}, --rounds 1 or more").into());
    }
    Ok(args)
}

/// Returns the n-th unit of the volume that is used. No two of them are adjacent. They are every other unit, either in
/// order or scattered by a multiplier, which is odd so that it reaches each of them.
fn place(n: u64, scattered: bool) -> u64 {
    let all = VOLUME / UNIT / 2;
    2 * if scattered { n.wrapping_mul(0x9e37_79b1) % all } else { n % all }
}

fn run(args: &Args, name: &str, place: &dyn Fn(u64) -> u64) -> Result<String> {
    let spec = format!("file:{},size={}", args.path, VOLUME + (32 << 30));
    let device = open_device(&spec)?;
    Pool::create(&device, &CreateOptions::default().overwrite(true))?;
    let pool = Pool::open(&device, &OpenOptions::default())?;
    let volume = pool.create_volume("v", VOLUME)?;
    allocate(&volume, (0..args.extents).map(place))?;
    close(pool, volume)?;

    let (mut closed, mut dropped, mut snapshots) = (Vec::new(), Vec::new(), Vec::new());
    let mut info = None;
    for round in 0..u64::from(args.rounds) {
        let (time, pool) = timed(|| Pool::open(&device, &OpenOptions::default()))?;
        closed.push(time);
        let volume = pool.open_volume("v")?;
        let first = args.extents + round * UNCLOSED;
        allocate(&volume, (first..first + UNCLOSED).map(place))?;
        drop((pool, volume));

        let (time, pool) = timed(|| Pool::open(&device, &OpenOptions::default()))?;
        dropped.push(time);
        let (time, _) = timed(|| pool.snapshot("v", "s"))?;
        snapshots.push(time);
        pool.delete("s")?;
        info = Some(pool.info());
        pool.close()?;
    }
    let info = info.ok_or("no round")?;
    Ok(format!(
        "| {} extents, {name} | {:.0?} | {:.0?} | {:.1?} | {} MiB | {} MiB |",
        info.entries,
        median(closed),
        median(dropped),
        median(snapshots),
        info.memory_bytes >> 20,
        info.metadata_bytes >> 20
    ))
}

/// Makes first writes of whole units, without their data, and then a sync.
fn allocate(volume: &Volume, units: impl Iterator<Item = u64>) -> Result<()> {
    let token = MayBlock::on_worker();
    for unit in units {
        let pos = unit * UNIT;
        let mapping = match volume.map(pos, UNIT, Intent::Write) {
            Err(Status::Again) => volume.map_blocking(pos, UNIT, Intent::Write, &token),
            mapping => mapping,
        };
        let mapping = mapping.map_err(|status| format!("unit {unit}: {status}"))?;
        volume
            .end_write(WriteDone::new(pos, UNIT, Status::Ok, &[mapping]), &token)
            .map_err(|status| format!("unit {unit}: {status}"))?;
    }
    volume.sync(&token).unwrap_or(Ok(())).map_err(|status| format!("sync: {status}").into())
}

fn close(pool: Pool, volume: Volume) -> Result<()> {
    drop(volume);
    Ok(pool.close()?)
}

fn timed<T, E: Into<Box<dyn std::error::Error>>>(
    work: impl FnOnce() -> std::result::Result<T, E>,
) -> Result<(Duration, T)> {
    let start = Instant::now();
    let done = work().map_err(Into::into)?;
    Ok((start.elapsed(), done))
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
