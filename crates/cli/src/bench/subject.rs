//! The device that a run drives, or the volume in its pool (`vol:POOL#NAME`).
//!
//! A pool in memory (`vol:ram:size=1G`, `vol:null:size=1T`) is created for the run, with one volume. Any other pool
//! must exist. Also owns the raw device with which `--compare raw` compares the volume. That device is of the same kind
//! as the one under the pool, but never that one itself.

use std::path::PathBuf;
use std::sync::Arc;

use sheave::{Device, Fd, Ring, RingError};
use sheave_base::units::fmt_bytes;
use sheave_blk::claim::{Claim, Sharing};
use sheave_daemon::devices::open_device;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::{VolumePlace, open_options};
use sheave_vol::format::{BLOCK_BYTES, JOURNAL_START, MIN_JOURNAL_BLOCKS};
use sheave_vol::{CreateOptions, ExtentKind, OpenOptions, Pool, PoolError, Volume};

use crate::args::{BenchArgs, Peer};
use crate::bench::plan::{self, Plan};
use crate::bench::storage::{self, Target};
use crate::space::Warner;

/// Maximum size of the journal of a pool on a null device.
const MAX_JOURNAL: u64 = 16 << 20;

/// A device or volume.
pub enum Subject {
    /// A device, claimed if the run writes to it.
    Device(Device, Claim),
    Volume(InPool),
}

/// A volume and its open pool.
pub struct InPool {
    pool: Pool,
    volume: Volume,
    place: VolumePlace,
    /// The device under the pool.
    device: Device,
}

impl Subject {
    /// Opens the device or volume that the plan names.
    pub fn open(plan: &Plan) -> Result<Self, Failure> {
        match &plan.target {
            Target::Volume(place) if place.pool.is_volatile() => make(&plan.args, place).map(Self::Volume),
            Target::Volume(place) => open(plan, place).map(Self::Volume),
            _ => {
                let device = open_device(&spec_of(plan)?).map_err(failure::device)?;
                refuse_poll(&plan.args, &device)?;
                let claim = if plan.writes() { device.claim(Sharing::Alone) } else { Ok(Claim::nothing()) };
                Ok(Self::Device(device, claim.map_err(failure::device)?))
            }
        }
    }

    /// Attaches the device or volume to a ring.
    pub fn attach(&self, ring: &mut Ring) -> Result<Fd, RingError> {
        match self {
            Self::Device(device, _) => ring.attach(device),
            Self::Volume(within) => ring.attach_file(Arc::new(within.volume.clone())),
        }
    }

    /// Returns the name for the report.
    pub fn name(&self) -> String {
        match self {
            Self::Device(device, _) => device.name().to_owned(),
            Self::Volume(within) => format!("vol:{}", within.place),
        }
    }

    /// Returns the current size in bytes.
    pub fn size_bytes(&self) -> u64 {
        match self {
            Self::Device(device, _) => device.size_bytes(),
            Self::Volume(within) => sheave::File::size_bytes(&within.volume),
        }
    }

    /// Returns the number of bytes that the run may use: the current size, or the maximum size of a growing volume if
    /// the run writes before it reads.
    pub fn room(&self, plan: &Plan) -> Result<u64, Failure> {
        let size = self.size_bytes();
        let Self::Volume(within) = self else { return Ok(size) };
        let Some(max) = sheave::File::max_bytes(&within.volume) else { return Ok(size) };
        if plan.fill || !(plan.args.rw.reads() || plan.args.verify) {
            return Ok(max);
        }
        if size > 0 && plan.args.range.is_none_or(|range| range <= size) {
            return Ok(size);
        }
        let what = format!("{} has {} now, and this run would read beyond that", self.name(), fmt_bytes(size));
        Err(Failure::usage(what)
            .fix("add --fill, which writes the range first and makes the volume as large, or use a smaller --range"))
    }

    /// Returns the size of the smallest block in bytes.
    pub fn block_bytes(&self) -> u32 {
        match self {
            Self::Device(device, _) => device.limits().logical_block,
            Self::Volume(within) => sheave::File::block_bytes(&within.volume),
        }
    }

    /// Returns the maximum number of pieces that an I/O of `bytes` may be split into.
    pub fn pieces(&self, bytes: u32) -> u32 {
        match self {
            Self::Device(..) => 1,
            Self::Volume(within) => (u64::from(bytes) / within.pool.info().unit_bytes) as u32 + 1,
        }
    }

    /// Returns the device. For a volume it is the device under the pool.
    pub fn device(&self) -> &Device {
        match self {
            Self::Device(device, _) => device,
            Self::Volume(within) => &within.device,
        }
    }

    /// Returns notices for the user, after a run over `range` bytes.
    pub fn notices(&self, reads: bool, range: u64) -> Vec<String> {
        let mut notices = self.device().notices();
        if let (Self::Volume(within), true) = (self, reads)
            && let Ok(written) = within.written_bytes(range)
            && written < range
        {
            let percent = plan::percent_of(range - written, range);
            notices.push(format!(
                "{percent} % of the range was never written, and reads as zeroes without touching the disk; --fill \
                 writes it first"
            ));
        }
        notices
    }

    /// Returns a monitor that warns when the pool runs low, if the run may allocate from it.
    pub fn warner(&self, plan: &Plan) -> Option<Warner> {
        match self {
            Self::Volume(within) if plan.writes() && !within.place.pool.is_volatile() => {
                Some(Warner::new(&within.place.pool, &within.pool))
            }
            _ => None,
        }
    }

    /// Closes the device or pool. A pool is closed cleanly, so that opening it the next time needs no recovery.
    pub fn close(self) -> Result<(), Failure> {
        match self {
            Self::Device(device, claim) => {
                drop((device, claim));
                Ok(())
            }
            Self::Volume(InPool { pool, volume, .. }) => {
                drop(volume);
                pool.close().map_err(failure::pool)
            }
        }
    }
}

impl InPool {
    /// Returns the number of bytes that were written among the first `range` bytes of the volume.
    fn written_bytes(&self, range: u64) -> Result<u64, PoolError> {
        let all = self.pool.volume_info(&self.place.name)?.written_bytes;
        if all == 0 || range >= sheave::File::size_bytes(&self.volume) {
            return Ok(all);
        }
        // This is done in pieces, because the extents of a large volume need much memory.
        const AT_ONCE: u64 = 1 << 30;
        let (mut pos, mut bytes) = (0, 0);
        while pos < range {
            let len = AT_ONCE.min(range - pos);
            let extents = self.volume.extents(pos, len)?;
            bytes += extents.iter().filter(|one| one.kind == ExtentKind::Data).map(|one| one.len).sum::<u64>();
            pos += len;
        }
        Ok(bytes)
    }
}

/// Fails if `--poll` is used with a device that cannot be polled: the run would poll for completions that arrive by
/// themselves.
fn refuse_poll(args: &BenchArgs, device: &Device) -> Result<(), Failure> {
    match args.poll.is_on() && !device.capabilities().polled {
        true => Err(plan::no_poll(device.name())),
        false => Ok(()),
    }
}

/// Returns the spec of the device. A run that only reads opens a file read-only, so that the file does not grow and
/// need not be writable.
fn spec_of(plan: &Plan) -> Result<String, Failure> {
    let spec = &plan.args.spec;
    let Target::File(path) = &plan.target else { return Ok(spec.clone()) };
    if plan.writes() || spec.contains(",readonly=") {
        return Ok(spec.clone());
    }
    if let (Some(size), Ok(meta)) = (storage::size_of(spec), path.metadata())
        && meta.is_file()
        && meta.len() < size
    {
        let (has, size) = (fmt_bytes(meta.len()), fmt_bytes(size));
        return Err(Failure::usage(format!(
            "{} has {has}, and a run that only reads does not make it {size}",
            path.display()
        ))
        .fix("leave size= out, or add --fill, which makes it as large and writes all of it first"));
    }
    Ok(format!("{spec},readonly=on"))
}

/// Creates a pool and a volume in memory for this run.
fn make(args: &BenchArgs, place: &VolumePlace) -> Result<InPool, Failure> {
    let memory = InMemory::of(&place.pool.to_string())?;
    let device = open_device(&memory.spec).map_err(failure::device)?;
    refuse_poll(args, &device)?;
    let options = CreateOptions::default()
        .unit_bytes(args.vol.block())
        .journal_bytes(memory.journal)
        .checksum(args.vol.checksum().kind());
    Pool::create(&device, &options).map_err(failure::pool)?;
    let pool = Pool::open(&device, &OpenOptions::default()).map_err(failure::pool)?;
    let room = pool.info().free_bytes / args.vol.block() * args.vol.block();
    let size = args.range.map_or(room, |range| range.next_multiple_of(args.vol.block()));
    if size > room {
        return Err(Failure::usage(format!("--range {size} is more than the pool's {room} free bytes"))
            .fix("give the device a larger size="));
    }
    let volume = pool.create_volume(&place.name, size).map_err(failure::pool)?;
    Ok(InPool { pool, volume, place: place.clone(), device })
}

/// Opens a volume of an existing pool.
fn open(plan: &Plan, place: &VolumePlace) -> Result<InPool, Failure> {
    place.pool.expect_pool()?;
    let device = place.pool.open_device("")?;
    refuse_poll(&plan.args, &device)?;
    let options = open_options();
    let pool = Pool::open(&device, &options).map_err(failure::pool)?;
    let info = pool.volume_info(&place.name).map_err(failure::pool)?;
    if plan.writes() && info.snapshot {
        return Err(Failure::usage(format!("{place} is a snapshot, which cannot be written"))
            .fix("read it (--rw randread), or make a clone of it"));
    }
    if plan.writes() && info.written_bytes > 0 && !plan.args.overwrite {
        let written = fmt_bytes(info.written_bytes);
        return Err(Failure::usage(format!("this run would overwrite {place}, which holds {written} of data"))
            .fix("add --overwrite if nothing in the volume is needed, or make one for it (sheave volume create)"));
    }
    let volume = pool.open_volume(&place.name).map_err(failure::pool)?;
    Ok(InPool { pool, volume, place: place.clone(), device })
}

/// A device in memory for a pool.
#[derive(Debug, PartialEq, Eq)]
struct InMemory {
    spec: String,
    /// Size of the pool's journal, if it differs from the default.
    journal: Option<u64>,
    /// First byte that the raw device of a comparison uses: behind the part that a null device keeps, like the data of
    /// the volume.
    base: u64,
}

impl InMemory {
    /// Returns the device in memory for a spec. A null device keeps exactly superblocks and journal, so all data lies
    /// behind that part. A ram device touches all its memory at the start, so that first writes do not include page
    /// faults of the host.
    fn of(spec: &str) -> Result<Self, Failure> {
        let as_it_is = |spec: String| Ok(Self { spec, journal: None, base: 0 });
        if let Some(rest) = spec.strip_prefix("ram:").filter(|rest| !rest.contains("touch=")) {
            let comma = if rest.is_empty() { "" } else { "," };
            return as_it_is(format!("ram:{rest}{comma}touch=on"));
        }
        let Some(rest) = spec.strip_prefix("null:").filter(|rest| !rest.contains("keep=")) else {
            return as_it_is(spec.to_owned());
        };
        let size = open_device(spec).map_err(failure::device)?.size_bytes();
        let journal =
            (size / 256 / BLOCK_BYTES * BLOCK_BYTES).clamp(u64::from(MIN_JOURNAL_BLOCKS) * BLOCK_BYTES, MAX_JOURNAL);
        let keep = JOURNAL_START + journal;
        let comma = if rest.is_empty() { "" } else { "," };
        Ok(Self { spec: format!("null:{rest}{comma}keep={keep}"), journal: Some(journal), base: keep })
    }
}

/// The raw device of a comparison. A file that was created for it is unlinked at once, so that it disappears with this
/// value or the process, however that ends.
pub struct RawPeer {
    pub device: Device,
    /// Offset of the first byte to use.
    pub base: u64,
}

impl RawPeer {
    /// Opens a device of the same kind as the pool's own, of at least `range` bytes. Returns `None` unless the plan
    /// compares a volume with the raw device.
    pub fn of(plan: &Plan, range: u64) -> Result<Option<Self>, Failure> {
        let (Some(Peer::Raw), Target::Volume(place)) = (plan.args.compare, &plan.target) else { return Ok(None) };
        let pool = place.pool.to_string();
        let (spec, base, made) = match place.pool.file_spec() {
            _ if place.pool.is_volatile() => {
                let memory = InMemory::of(&pool)?;
                (memory.spec, memory.base, None)
            }
            Some((path, options)) if std::path::Path::new(&path).is_file() => {
                let raw = format!("{path}.raw-{}", std::process::id());
                let size = range.next_multiple_of(4096);
                (
                    format!("file:{},size={size}{options}", sheave_drivers::spec::quoted(&raw)),
                    0,
                    Some(PathBuf::from(raw)),
                )
            }
            _ => {
                return Err(Failure::usage(format!(
                    "--compare raw makes a device of the kind that {pool} is on; it cannot"
                ))
                .fix("use a pool in one file, or vol:ram:size=1G, or vol:null:size=1T"));
            }
        };
        let device = open_device(&spec).map_err(failure::device)?;
        if let Some(path) = made {
            // Ignored: the file, which is open, may already have been removed.
            let _ = std::fs::remove_file(path);
        }
        Ok(Some(Self { device, base }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave::open_device;

    #[test]
    fn a_null_device_keeps_what_the_pool_needs_and_no_data() {
        let of = |spec| InMemory::of(spec).expect(spec);
        let keep = 8192 + (16 << 20);
        assert_eq!(
            of("null:size=1T"),
            InMemory { spec: format!("null:size=1T,keep={keep}"), journal: Some(16 << 20), base: keep }
        );
        assert_eq!(of("null:").spec, format!("null:keep={}", 8192 + (4 << 20)));
        assert_eq!(
            (of("ram:size=1G").spec.as_str(), of("ram:").spec.as_str()),
            ("ram:size=1G,touch=on", "ram:touch=on")
        );
        for spec in ["null:size=1T,keep=64M", "ram:touch=off"] {
            assert_eq!(of(spec), InMemory { spec: spec.into(), journal: None, base: 0 });
        }
        assert!(InMemory::of("null:size=zz").is_err());
        let made = open_device(&of("null:size=1G").spec).expect("a device");
        let options = CreateOptions::default().journal_bytes(of("null:size=1G").journal);
        Pool::create(&made, &options).expect("a pool");
        assert_eq!(Pool::open(&made, &OpenOptions::default()).expect("it was kept").info().volumes, 0);
    }
}
