//! What an arm writes to: device, file, and what is between them and the ring.
//!
//! Owns the words of a point's extra parameters, and what each stands for:
//!
//! | parameter | words | means |
//! |---|---|---|
//! | `ends` | `polled`, `interrupt` | the ring polls; a thread on the same CPU completes, as an interrupt would |
//! | `device` | `ram`, `null`, `nvme` | 4 KiB are copied; nothing is; nothing is, and 5 us pass (if polled) |
//! | `file` | `memory`, `volume` | [`Extents`]; a thin volume of a pool |
//! | `cell` | [`Cell`] | what a write finds, and whether it must be durable |
//! | `worker` | `same`, `other` | the CPU of the workers: the ring's, or the next |

use std::sync::Arc;

use sheave::iomap::completion_plan::MayBlock;
use sheave::iomap::file::FallocateMode;
use sheave::iomap::mapping::{MAP_TASK, MAP_WORKER};
use sheave::vol::{CreateOptions, OpenOptions};
use sheave::{Device, File, Pool};

use super::cached;
use super::demoted::Demoted;
use super::extents::{Began, Extents};
use crate::{LabError, Point};

/// Bytes that are written to: small enough for the copies to stay in a cache.
const BYTES: u64 = 16 << 20;

/// What a write finds, and whether it must be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Written space: a pure overwrite.
    Overwrite,
    /// Space without data.
    Unwritten,
    /// Space that others have too.
    Shared,
    /// The end of the file.
    Extending,
    /// Written space; must be durable, on a device with a cache and FUA.
    DsyncFua,
    /// Written space; must be durable, on a device with a cache and no FUA.
    DsyncFlush,
}

impl Cell {
    /// All of them.
    pub const ALL: [Cell; 6] =
        [Cell::Overwrite, Cell::Unwritten, Cell::Shared, Cell::Extending, Cell::DsyncFua, Cell::DsyncFlush];

    /// Its word.
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

    /// Whether its writes need no blocking work when the data is there, so that they may complete at once.
    pub fn is_eligible(self) -> bool {
        matches!(self, Cell::Overwrite | Cell::DsyncFua)
    }

    /// Whether its writes must be durable.
    pub fn dsync(self) -> bool {
        matches!(self, Cell::DsyncFua | Cell::DsyncFlush)
    }

    /// Whether each block can be written once only before the file is to be reset.
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

/// Where overwrites complete at the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A worker.
    Worker,
    /// The issuer's task.
    Task,
    /// Where the device's completion is reaped.
    Inline,
}

/// The word of a parameter, if it is one of these; the first when the point has none.
fn word<'a>(point: &'a Point, name: &str, words: &[&'a str]) -> Result<&'a str, LabError> {
    let word = point.text(name).unwrap_or(words[0]);
    match words.contains(&word) {
        true => Ok(word),
        false => Err(LabError::usage(format!("{name}={word} in the point {point}"))
            .fix(format!("{name}= is one of {}", words.join(", ")))),
    }
}

/// The cell of a point.
pub fn cell(point: &Point) -> Result<Cell, LabError> {
    let words = Cell::ALL.map(Cell::name);
    let word = word(point, "cell", &words)?;
    Ok(Cell::ALL.into_iter().find(|cell| cell.name() == word).unwrap_or(Cell::Overwrite))
}

/// Whether the ring polls.
pub fn is_polled(point: &Point) -> Result<bool, LabError> {
    Ok(word(point, "ends", &["polled", "interrupt"])? == "polled")
}

/// Whether workers have a CPU of their own.
pub fn workers_elsewhere(point: &Point) -> Result<bool, LabError> {
    Ok(word(point, "worker", &["same", "other"])? == "other")
}

/// What is written to.
#[derive(Debug)]
pub struct Subject {
    /// As the arm's ring has it.
    pub file: Arc<dyn File>,
    /// Bytes that may be written to.
    pub bytes: u64,
    way_back: WayBack,
    /// Held until the ring is gone.
    _pool: Option<Pool>,
}

/// How the file becomes what it began as.
#[derive(Debug)]
enum WayBack {
    None,
    Memory(Arc<Extents>),
    Volume(Arc<dyn File>),
}

impl Subject {
    /// The file of a point, whose overwrites complete at this place at the earliest.
    pub fn new(point: &Point, place: Place) -> Result<Subject, LabError> {
        let cell = cell(point)?;
        let (lower, way_back, pool) = match word(point, "file", &["memory", "volume"])? {
            "volume" => volume(point, cell)?,
            _ => {
                let file = Arc::new(Extents::new(&device(point, cell, BYTES)?, cell.began()));
                let way_back = if cell.is_used_up() { WayBack::Memory(file.clone()) } else { WayBack::None };
                (file as Arc<dyn File>, way_back, None)
            }
        };
        let file: Arc<dyn File> = match place {
            Place::Worker => Arc::new(Demoted::new(lower, MAP_WORKER)),
            Place::Task => Arc::new(Demoted::new(lower, MAP_TASK)),
            Place::Inline => lower,
        };
        Ok(Subject { file, bytes: BYTES, way_back, _pool: pool })
    }

    /// Makes the file what it began as, when its cell is used up by being written. Nothing is in flight.
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
                        Err(sheave::base::status::Status::Again) => {}
                        Err(status) => return Err(failed(status)),
                    }
                }
                // What was punched is free again after a commit.
                volume.sync(&token).unwrap_or(Ok(())).map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// The device of a point.
fn device(point: &Point, cell: Cell, bytes: u64) -> Result<Device, LabError> {
    let polled = is_polled(point)?;
    let spec = match (word(point, "device", &["ram", "null", "nvme"])?, polled) {
        ("ram", true) => format!("ram:size={bytes},touch=on"),
        ("nvme", true) => format!("null:size={bytes},latency=5us,complete=timer"),
        (_, true) => format!("null:size={bytes}"),
        // No device in memory completes on another thread.
        (_, false) => format!("null:size={bytes},complete=thread"),
    };
    let device = Device::open(&spec).map_err(|err| LabError::run(err.to_string()))?;
    Ok(match cell {
        Cell::DsyncFua => cached::over(&device, true),
        Cell::DsyncFlush => cached::over(&device, false),
        _ => device,
    })
}

type Made = (Arc<dyn File>, WayBack, Option<Pool>);

/// A thin volume in a pool that has room for some of it more often than once.
fn volume(point: &Point, cell: Cell) -> Result<Made, LabError> {
    if matches!(cell, Cell::Shared | Cell::Extending) {
        return Err(LabError::usage(format!("the lab has no {} writes to volumes", cell.name()))
            .fix("use cell=overwrite, unwritten, dsync-fua or dsync-flush, or file=memory"));
    }
    if !is_polled(point)? {
        return Err(LabError::usage("the lab has no volumes whose device interrupts: null: forgets what is written")
            .fix("use ends=polled, or file=memory"));
    }
    let failed = |err: sheave::vol::PoolError| LabError::run(format!("cannot make a pool in memory: {err}"));
    // Of all devices this one alone keeps what the pool says of itself.
    let device = device(&point.clone().with("device", "ram"), cell, 16 * BYTES)?;
    Pool::create(&device, &CreateOptions::default()).map_err(failed)?;
    let pool = Pool::open(&device, &OpenOptions::default()).map_err(failed)?;
    let volume: Arc<dyn File> = Arc::new(pool.create_volume("lab", BYTES).map_err(failed)?);
    let way_back = if cell.is_used_up() { WayBack::Volume(volume.clone()) } else { WayBack::None };
    Ok((volume, way_back, Some(pool)))
}
