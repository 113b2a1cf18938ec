//! The target of an arm's writes: a device, a file, and the layers between the file and the ring.
//!
//! Owns the values of a point's extra parameters and their meaning:
//!
//! | parameter | words | means |
//! |---|---|---|
//! | `ends` | `polled`, `interrupt` | the ring polls; the device ends I/O by itself, on the next CPU |
//! | `device` | `nvme`, `ram`, `null` | if polled: 5 us pass; 4 KiB are copied at once; nothing is done |
//! | `file` | `memory`, `volume` | [`Extents`]; a thin volume of a pool |
//! | `cell` | [`Cell`] | the kind of space that is written, and durable or not |
//! | `worker` | `other`, `same` | the CPU of the workers: the next (default if polled), or the ring's |

use std::sync::Arc;
use std::time::Duration;

use sheave::{Device, File, open_device};
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::FallocateMode;
use sheave_iomap::mapping::MapFlags;
use sheave_vol::{CreateOptions, OpenOptions, Pool};

use super::cached;
use super::demoted::Demoted;
use super::extents::{Began, Extents};
use crate::exp::elsewhere::{Elsewhere, MakeOnEnd, Settings};
use crate::experiment::Lab;
use crate::point::{Parameter, Values};
use crate::{LabError, Point};

/// Size of the range that is written to: small enough for the copies to stay in a CPU cache.
const BYTES: u64 = 16 << 20;
/// Latency of the device. The published figures are 180,000 to 200,000 I/Os a second at queue depth 1, which is about 5
/// us each.
const LATENCY: Duration = Duration::from_micros(5);

/// The kind of space that a write meets, and whether the write must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Written space: a pure overwrite.
    Overwrite,
    /// Allocated space without data.
    Unwritten,
    /// Space shared with other files.
    Shared,
    /// Space beyond the end of the file.
    Extending,
    /// Written space, durable, on a device with a volatile cache and FUA.
    DsyncFua,
    /// Written space, durable, on a device with a volatile cache and no FUA.
    DsyncFlush,
}

impl Cell {
    pub const ALL: [Cell; 6] =
        [Cell::Overwrite, Cell::Unwritten, Cell::Shared, Cell::Extending, Cell::DsyncFua, Cell::DsyncFlush];

    /// Returns the name of the cell, which is a value of the parameter `cell`.
    pub fn name(self) -> &'static str {
        match self {
            Cell::Overwrite => "overwrite",
            Cell::Unwritten => "unwritten",
            Cell::Shared => "shared",
            Cell::Extending => "extending",
            Cell::DsyncFua => "dsync-fua",
            Cell::DsyncFlush => "dsync-flush",
        }
    }

    /// Returns true if writes of this cell need no blocking work after the data, so that they may complete at once.
    pub fn is_eligible(self) -> bool {
        matches!(self, Cell::Overwrite | Cell::DsyncFua)
    }

    /// Returns true if writes of this cell must be durable.
    pub fn dsync(self) -> bool {
        matches!(self, Cell::DsyncFua | Cell::DsyncFlush)
    }

    /// Returns true if the file must be reset after each of its blocks was written once.
    pub fn is_used_up(self) -> bool {
        matches!(self, Cell::Unwritten | Cell::Shared | Cell::Extending)
    }

    fn began(self) -> Began {
        match self {
            Cell::Unwritten => Began::Unwritten,
            Cell::Shared => Began::Shared,
            Cell::Extending => Began::Empty,
            Cell::Overwrite | Cell::DsyncFua | Cell::DsyncFlush => Began::Written,
        }
    }
}

/// Earliest place at which overwrites complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Worker,
    Task,
    /// In the code that reaps the device's completion.
    Inline,
}

/// The parameters of a point, each with the words that are its possible values. The first word is the default, except
/// that the default of `worker` is given by [`workers_elsewhere`].
pub const PARAMETERS: [Parameter; 5] = [
    Parameter { name: "ends", values: Values::Words(&["polled", "interrupt"]) },
    Parameter { name: "device", values: Values::Words(&["nvme", "ram", "null"]) },
    Parameter { name: "file", values: Values::Words(&["memory", "volume"]) },
    Parameter {
        name: "cell",
        values: Values::Words(&["overwrite", "unwritten", "shared", "extending", "dsync-fua", "dsync-flush"]),
    },
    Parameter { name: "worker", values: Values::Words(&["other", "same"]) },
];

fn words(name: &str) -> &'static [&'static str] {
    match PARAMETERS.iter().find(|parameter| parameter.name == name).map(|parameter| parameter.values) {
        Some(Values::Words(words)) => words,
        _ => &[],
    }
}

/// Returns the value that the point gives to a parameter, as a word, or the default.
fn word<'a>(point: &'a Point, name: &str) -> Result<&'a str, LabError> {
    let words = words(name);
    let word = point.text(name).or(words.first().copied()).unwrap_or_default();
    match words.contains(&word) {
        true => Ok(word),
        false => Err(LabError::usage(format!("{name}={word} in the point {point}"))
            .fix(format!("{name}= is one of {}", words.join(", ")))),
    }
}

/// Checks that the device of a point can hold the file of that point.
pub fn fits(point: &Point) -> Result<(), LabError> {
    let (on_volume, device) = (word(point, "file")? == "volume", point.text("device"));
    let fits = match (on_volume, is_polled(point)?) {
        (true, polled) => polled && device.is_none_or(|device| device == "ram"),
        (false, polled) => polled || device.is_none(),
    };
    if fits {
        return Ok(());
    }
    Err(LabError::usage(format!("no such device is under such a file in the point {point}"))
        .fix("device= is for ends=polled; a volume lies in device=ram, which is polled"))
}

pub fn cell(point: &Point) -> Result<Cell, LabError> {
    let word = word(point, "cell")?;
    Ok(Cell::ALL.into_iter().find(|cell| cell.name() == word).unwrap_or(Cell::Overwrite))
}

pub fn is_polled(point: &Point) -> Result<bool, LabError> {
    Ok(word(point, "ends")? == "polled")
}

/// Returns true if the workers have a CPU of their own. For polled I/O the default is true, so that no arm has to
/// sleep. For interrupts it is false, because the device's thread uses the next CPU.
pub fn workers_elsewhere(point: &Point) -> Result<bool, LabError> {
    match point.text("worker") {
        Some(_) => Ok(word(point, "worker")? == "other"),
        None => is_polled(point),
    }
}

/// Device and file of a point.
#[derive(Debug)]
pub struct Subject {
    interrupting: Option<Elsewhere>,
    /// The file that the arm's ring has open.
    pub file: Arc<dyn File>,
    /// Number of bytes that may be written to.
    pub bytes: u64,
    way_back: WayBack,
    /// Keeps the pool open until the ring is dropped.
    _pool: Option<Pool>,
}

/// The way to restore the initial state of the file.
#[derive(Debug)]
enum WayBack {
    None,
    Memory(Arc<Extents>),
    Volume(Arc<dyn File>),
}

impl Subject {
    /// Makes the file of a point. `place` is the earliest place at which its overwrites complete.
    pub fn new(lab: &Lab, point: &Point, place: Place) -> Result<Subject, LabError> {
        let cell = cell(point)?;
        let interrupting = if is_polled(point)? { None } else { Some(interrupting(lab)) };
        let (lower, way_back, pool) = match word(point, "file")? {
            "volume" => volume(point, cell)?,
            _ => {
                let device = match &interrupting {
                    Some(elsewhere) => elsewhere.device.clone(),
                    None => polled(point, BYTES)?,
                };
                let file = Arc::new(Extents::new(&with_cache(device, cell), cell.began()));
                let way_back = if cell.is_used_up() { WayBack::Memory(file.clone()) } else { WayBack::None };
                (file as Arc<dyn File>, way_back, None)
            }
        };
        let file: Arc<dyn File> = match place {
            Place::Worker => Arc::new(Demoted::new(lower, MapFlags::WORKER)),
            Place::Task => Arc::new(Demoted::new(lower, MapFlags::TASK)),
            Place::Inline => lower,
        };
        Ok(Subject { interrupting, file, bytes: BYTES, way_back, _pool: pool })
    }

    /// Returns the CPU time that the device's own thread has used so far.
    pub fn device_cpu_ns(&self) -> u64 {
        self.interrupting.as_ref().map_or(0, Elsewhere::cpu_ns)
    }

    /// Restores the initial state of a file whose blocks can be written only once. Nothing may be in flight.
    pub fn reset(&self) -> Result<(), LabError> {
        match &self.way_back {
            WayBack::None => {}
            WayBack::Memory(file) => file.reset(),
            WayBack::Volume(volume) => {
                let token = MayBlock::on_worker();
                let failed = |status| LabError::run(format!("cannot punch the volume: {status}"));
                loop {
                    match volume.fallocate(FallocateMode::PunchHole, 0, self.bytes, &token) {
                        Ok(()) => break,
                        Err(sheave_base::status::Status::Again) => {}
                        Err(status) => return Err(failed(status)),
                    }
                }
                // Punched space becomes free only with a commit.
                volume.sync(&token).unwrap_or(Ok(())).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// Opens the polled device of a point.
fn polled(point: &Point, bytes: u64) -> Result<Device, LabError> {
    let spec = match word(point, "device")? {
        "ram" => format!("ram:size={bytes},touch=on"),
        "null" => format!("null:size={bytes}"),
        _ => format!("null:size={bytes},latency={}us,complete=timer", LATENCY.as_micros()),
    };
    open_device(&spec).map_err(|err| LabError::run(err.to_string()))
}

/// Makes a device that ends each request by itself after `LATENCY`, on the next CPU if there is one.
fn interrupting(lab: &Lab) -> Elsewhere {
    let alone = lab.cpus.len() > 1;
    let on_end: MakeOnEnd = Box::new(|| Box::new(|_| ()));
    Elsewhere::new(Settings { size: BYTES, latency: LATENCY, cpus: vec![lab.cpu(1)], alone, on_end })
}

/// Adds the volatile cache that the cell needs.
fn with_cache(device: Device, cell: Cell) -> Device {
    match cell {
        Cell::DsyncFua => cached::over(&device, true),
        Cell::DsyncFlush => cached::over(&device, false),
        _ => device,
    }
}

type Made = (Arc<dyn File>, WayBack, Option<Pool>);

/// Makes a thin volume in a pool with enough free space to write the blocks of the volume several times.
fn volume(point: &Point, cell: Cell) -> Result<Made, LabError> {
    if matches!(cell, Cell::Shared | Cell::Extending) {
        return Err(LabError::usage(format!("the lab has no {} writes to volumes", cell.name()))
            .fix("use cell=overwrite, unwritten, dsync-fua or dsync-flush, or file=memory"));
    }
    if !is_polled(point)? {
        return Err(LabError::usage("the lab has no volumes whose device interrupts: null: forgets what is written")
            .fix("use ends=polled, or file=memory"));
    }
    let failed = |err: sheave_vol::PoolError| LabError::run(format!("cannot make a pool in memory: {err}"));
    // The pool needs a device that keeps its metadata; of the lab's devices only `ram` does.
    let device = with_cache(polled(&point.clone().with("device", "ram"), 16 * BYTES)?, cell);
    Pool::create(&device, &CreateOptions::default()).map_err(failed)?;
    let pool = Pool::open(&device, &OpenOptions::default()).map_err(failed)?;
    let volume: Arc<dyn File> = Arc::new(pool.create_volume("lab", BYTES).map_err(failed)?);
    let way_back = if cell.is_used_up() { WayBack::Volume(volume.clone()) } else { WayBack::None };
    Ok((volume, way_back, Some(pool)))
}
