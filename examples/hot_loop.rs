//! The bare loop of a program that embeds Sheave: fill SQEs in place, submit, reap. The program does nothing else per
//! I/O, so its cost is that of Sheave; `tests/budgets` counts its instructions.
//!
//! ```sh
//! cargo run --release --example hot_loop -- null:size=1T read 128 32 10000000
//! ```
//!
//! Does not count instructions itself. Offsets are a fixed pseudo-random sequence, which takes an addition and a mask
//! per I/O.
//!
//! * I1: one registered buffer, which lives as long as the ring, has a place for each I/O of the depth; a place is in
//!   `free` or belongs to one I/O in flight.
#![allow(unsafe_code)] // SQEs that are filled in place carry raw addresses.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use sheave::raw::{IOSQE_FIXED_FILE, Sqe, opcode};
use sheave::volumes::{CreateOptions, OpenOptions, Pool, Volume};
use sheave::{Buf, Device, Ring, open_device};
use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicU64, Ordering};
use sheave_base::trace::writer::TraceWriter;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::grace::Grace;
use sheave_iomap::mapping::Intent;
use sheave_iomap::{File, Mapping, MappingKind, PlainRanges, RawFile, WriteDone};

const USAGE: &str =
    "usage: hot_loop SPEC read|write DEPTH BATCH IOS [nostats|traced] [mapped|volume|fresh] [seq] [4k] [sleep]
  nostats  a ring that keeps no statistics
  traced   a ring that writes each I/O to a trace
  mapped   on a file with mappings on the device, volume: on a thin volume in a pool that is made on it,
           fresh: on one of 1 GiB that nobody has written to, once around
  seq      each I/O begins where the one before it ended, and not far from it
  4k       I/Os of 4096 bytes and not of 512
  sleep    a ring that sleeps until completions come, and does not poll for them";

/// Distance between consecutive I/Os in blocks: odd, so that every block is reached, and large, so that no I/O is next
/// to the last one.
const STEP: u64 = 0x9E37_79B9;

/// The target of the loop's I/O.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    /// The device.
    Raw,
    /// A file with mappings on the device.
    Mapped,
    /// A thin volume, written from end to end, in a pool that is made on the device.
    Volume,
    /// A thin volume without data: each write is the first to its place.
    Fresh,
}

/// Options of the loop.
struct How {
    write: bool,
    depth: u32,
    batch: u32,
    on: On,
    stats: bool,
    traced: bool,
    polled: bool,
    /// Bytes of one I/O.
    block: u32,
    /// Distance between consecutive I/Os, in blocks.
    step: u64,
}

impl How {
    fn new(write: bool, depth: u32, batch: u32, words: &[String]) -> Result<How, Box<dyn Error>> {
        if batch == 0 || !depth.is_multiple_of(batch) {
            return Err("DEPTH must be a multiple of BATCH".into());
        }
        let mut how =
            How { write, depth, batch, on: On::Raw, stats: true, traced: false, polled: true, block: 512, step: STEP };
        for word in words {
            match word.as_str() {
                "nostats" => how.stats = false,
                "traced" => how.traced = true,
                "mapped" => how.on = On::Mapped,
                "volume" => how.on = On::Volume,
                "fresh" => how.on = On::Fresh,
                "seq" => how.step = 1,
                "4k" => how.block = 4096,
                "sleep" => how.polled = false,
                _ => return Err(USAGE.into()),
            }
        }
        Ok(how)
    }
}

/// Number of bytes of a unit of the mapped file. There are few enough units for the table to stay in the cache.
const UNIT: u64 = 1 << 16;

/// A file whose units lie on the device in another order, given by a table in memory, and which counts its I/O in a
/// grace. So its I/O has the cost of mappings, and almost no cost for the lookup.
#[derive(Debug)]
struct Mapped {
    device: Device,
    /// Entry of each unit of the file: its unit on the device, and in the lowest bit 1 if it is written.
    units: Vec<AtomicU64>,
    grace: Arc<Grace>,
}

impl Mapped {
    fn new(device: &Device) -> Mapped {
        let count = (device.size_bytes() / UNIT).min(1 << 12);
        let units = (0..count).map(|unit| AtomicU64::new((count - 1 - unit) << 1 | 1)).collect();
        Mapped { device: device.clone(), units, grace: Arc::new(Grace::new()) }
    }
}

impl File for Mapped {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        self.units.len() as u64 * UNIT
    }

    fn grace(&self) -> Option<&Arc<Grace>> {
        Some(&self.grace)
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        let within = pos % UNIT;
        // Acquire: needed in a file that changes its table; pairs with the Release store of its writer.
        let unit = self.units.get((pos / UNIT) as usize).ok_or(Status::Invalid)?.load(Ordering::Acquire);
        let kind = if unit & 1 == 1 { MappingKind::Mapped } else { MappingKind::Unwritten };
        Ok(Mapping::new(kind, pos, len.min(UNIT - within), (unit >> 1) * UNIT + within))
    }

    fn map_plain(&self, at: &mut [u64], ranges: &PlainRanges) -> usize {
        let mut many = 0;
        for at in at {
            let (unit, within) = (*at / UNIT, *at % UNIT);
            // Acquire: as above.
            let Some(unit) = self.units.get(unit as usize).map(|unit| unit.load(Ordering::Acquire)) else { break };
            if unit & 1 == 0 || within + ranges.len > UNIT {
                break;
            }
            *at = (unit >> 1) * UNIT + within;
            many += 1;
        }
        many
    }
}

/// Size of the volume that is never written.
const FRESH: u64 = 1 << 30;

/// Makes a pool on the device, with a volume that is written from end to end, or never.
fn volume(device: &Device, on: On) -> Result<(Pool, Volume), Box<dyn Error>> {
    Pool::create(device, &CreateOptions::default().unit_bytes(UNIT).journal_bytes(Some(1 << 20)))?;
    let pool = Pool::open(device, &OpenOptions::default())?;
    if on == On::Fresh {
        let volume = pool.create_volume("hot", FRESH)?;
        return Ok((pool, volume));
    }
    let volume = pool.create_volume("hot", 1024 * UNIT)?;
    // Mapped as a worker of a ring maps a write, but on this thread: idle worker threads would be counted too.
    let may_block = MayBlock::on_worker();
    let failed = |status: Status| format!("filling the volume: {status}");
    for pos in (0..1024).map(|unit| unit * UNIT) {
        let mapping = volume.map_blocking(pos, UNIT, Intent::Write, &may_block).map_err(failed)?;
        volume.end_write(WriteDone::new(pos, UNIT, Status::Ok, &[mapping]), &may_block).map_err(failed)?;
    }
    Ok((pool, volume))
}

struct HotLoop {
    ring: Ring,
    /// Keeps the volume's pool open.
    _pool: Option<Pool>,
    how: How,
    /// Address of the buffer (I1).
    base: u64,
    /// Mask of offsets: whole blocks, of which there are a power of two.
    mask: u64,
    offset: u64,
    /// Places in the buffer that no I/O uses (I1).
    free: Vec<u32>,
}

impl HotLoop {
    fn new(spec: &str, how: How) -> Result<HotLoop, Box<dyn Error>> {
        let How { depth, on, stats, traced, polled, block, .. } = how;
        let device = open_device(spec)?;
        let (mut pool, mut file): (_, Arc<dyn File>) = (None, Arc::new(RawFile::new(device.clone())));
        match on {
            On::Raw => {}
            On::Mapped => file = Arc::new(Mapped::new(&device)),
            On::Volume | On::Fresh => {
                let (of, volume) = volume(&device, on)?;
                (pool, file) = (Some(of), Arc::new(volume));
            }
        }
        let blocks = file.size_bytes() / u64::from(block);
        if blocks == 0 {
            return Err(format!("{spec} has not even one block of {block} bytes").into());
        }
        let mask = ((1 << blocks.ilog2()) - 1) * u64::from(block);
        let mut ring = Ring::builder().entries(depth).polled(polled).stats(stats).build()?;
        if traced {
            let path = std::env::temp_dir().join(format!("hot_loop-{}.trace", std::process::id()));
            ring.trace_to(Some(TraceWriter::create(&path, 0, 2 << 20)?));
            // Only the mapping of the file is needed.
            std::fs::remove_file(&path)?;
        }
        let fd = ring.attach_file(file)?;
        ring.register_files(&[fd])?;
        ring.register_buffers(vec![Buf::zeroed((depth * block) as usize, 4096)?])?;
        let (base, _) = ring.buffer_range(0).ok_or("the buffer was just registered")?;
        let free = (0..depth).rev().collect();
        let mut hot = HotLoop { ring, _pool: pool, how, base, mask, offset: 0, free };
        hot.fill_entries()?;
        Ok(hot)
    }

    /// Writes the fields that all SQEs have in common into every SQ entry, by a round of NOPs: an entry keeps its last
    /// content.
    fn fill_entries(&mut self) -> Result<(), Box<dyn Error>> {
        let entries = self.ring.sq_space();
        for _ in 0..entries {
            let nop =
                Sqe { opcode: opcode::NOP, flags: IOSQE_FIXED_FILE, fd: 0, len: self.how.block, ..Sqe::default() };
            // SAFETY: a NOP uses no address.
            let pushed = unsafe { self.ring.push_sqe(&nop) };
            assert!(pushed, "there is space for as many");
        }
        self.ring.submit_and_wait(entries)?;
        self.ring.completions().for_each(drop);
        Ok(())
    }

    /// Fills the SQEs of one batch.
    #[inline]
    fn fill(&mut self) {
        let How { write, batch, block, step, .. } = self.how;
        let opcode = if write { opcode::WRITE_FIXED } else { opcode::READ_FIXED };
        for _ in 0..batch {
            let Some(place) = self.free.pop() else { unreachable!("there is a place for each I/O of the depth") };
            self.offset = self.offset.wrapping_add(step * u64::from(block)) & self.mask;
            // SAFETY: the place is a part of the registered buffer, and no I/O uses it (I1).
            let Some(sqe) = (unsafe { self.ring.get_sqe() }) else {
                unreachable!("the SQ has an entry for each place");
            };
            sqe.opcode = opcode;
            sqe.off = self.offset;
            sqe.addr = self.base + u64::from(place * block);
            sqe.user_data = u64::from(place);
        }
    }

    /// Runs `ios` I/Os, or a few more to complete the last batch. Returns their number.
    fn run(&mut self, ios: u64) -> Result<u64, Box<dyn Error>> {
        let How { batch, block, .. } = self.how;
        let (mut submitted, mut reaped, mut bytes) = (0u64, 0u64, 0i64);
        while reaped < submitted || submitted < ios {
            if submitted < ios && self.free.len() >= batch as usize {
                self.fill();
                submitted += u64::from(batch);
            }
            // While there is room for another batch, there is no need to wait.
            if submitted < ios && self.free.len() >= batch as usize {
                self.ring.submit()?;
            } else {
                self.ring.submit_and_wait(batch.min((submitted - reaped) as u32))?;
            }
            let free = &mut self.free;
            reaped += u64::from(self.ring.for_each_cqe(|cqe| {
                bytes += i64::from(cqe.res);
                free.push(cqe.user_data as u32);
            }));
        }
        let expected = reaped as i64 * i64::from(block);
        if bytes == expected { Ok(reaped) } else { Err(format!("{bytes} bytes moved, not {expected}").into()) }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [spec, rw, depth, batch, ios, rest @ ..] = args.as_slice() else { return Err(USAGE.into()) };
    let write = match rw.as_str() {
        "read" => false,
        "write" => true,
        _ => return Err(USAGE.into()),
    };
    let how = How::new(write, depth.parse()?, batch.parse()?, rest)?;
    let mut hot = HotLoop::new(spec, how)?;
    let start = Instant::now();
    let done = hot.run(ios.parse()?)?;
    let ns = start.elapsed().as_nanos() as f64 / done.max(1) as f64;
    println!("{done} I/Os, {ns:.1} ns each");
    Ok(())
}
