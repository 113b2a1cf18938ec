//! A file like a thin volume's: units in any order, a grace, and hooks for its calls that may block.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::grace::Grace;
use sheave_iomap::mapping::{Intent, MapFlags};
use sheave_iomap::{FallocateMode, File, Mapping, MappingKind, WriteDone};

pub const UNIT: u64 = 8192;

/// Calls that the file received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    MapBlocking(u64),
    End { pos: u64, len: u64, status: Status, pieces: Vec<Mapping> },
    Sync,
    Fallocate(FallocateMode, u64, u64),
}

type Hook = Box<dyn Fn(&Thin, &Call, &MayBlock<'_>) -> Result<(), Status> + Send + Sync>;

pub struct Thin {
    device: Device,
    grace: Arc<Grace>,
    /// Address, kind and flags of each unit. `None`: mapped by `map_blocking`, to address 0.
    pub units: Mutex<Vec<Option<(u64, MappingKind, MapFlags)>>>,
    pub needs_sync: AtomicBool,
    calls: Mutex<Vec<Call>>,
    hook: Hook,
}

impl std::fmt::Debug for Thin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Thin")
    }
}

impl Thin {
    /// Makes a file of `units` units of this kind, in reverse order on the device. `hook` runs in every call that may
    /// block.
    pub fn new(
        device: &Device,
        units: u64,
        kind: MappingKind,
        hook: impl Fn(&Thin, &Call, &MayBlock<'_>) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Arc<Thin> {
        let units = (0..units).rev().map(|at| Some((at * UNIT, kind, MapFlags::NONE))).collect();
        Arc::new(Thin {
            device: device.clone(),
            grace: Arc::new(Grace::new()),
            units: Mutex::new(units),
            needs_sync: AtomicBool::new(true),
            calls: Mutex::new(Vec::new()),
            hook: Box::new(hook),
        })
    }

    pub fn graces(&self) -> &Arc<Grace> {
        &self.grace
    }

    /// Returns the calls since the last time.
    pub fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }

    /// Returns the mapping of a range within a unit.
    pub fn piece(&self, pos: u64, len: u64) -> Mapping {
        self.map(pos, len, Intent::Write).expect("mapped")
    }

    /// Removes the mapping of a unit, so that it needs `map_blocking`.
    pub fn forget(&self, unit: usize) {
        self.units.lock().unwrap()[unit] = None;
    }

    fn called(&self, call: Call, token: &MayBlock<'_>) -> Result<(), Status> {
        self.calls.lock().unwrap().push(call.clone());
        (self.hook)(self, &call, token)
    }
}

impl File for Thin {
    fn device(&self) -> &Device {
        &self.device
    }

    fn size_bytes(&self) -> u64 {
        self.units.lock().unwrap().len() as u64 * UNIT
    }

    fn grace(&self) -> Option<&Arc<Grace>> {
        Some(&self.grace)
    }

    fn map(&self, pos: u64, len: u64, _: Intent) -> Result<Mapping, Status> {
        let (addr, kind, flags) = self.units.lock().unwrap()[(pos / UNIT) as usize].ok_or(Status::Again)?;
        let within = pos % UNIT;
        Ok(Mapping::new(kind, pos, len.min(UNIT - within), addr + within).flags(flags))
    }

    fn map_blocking(&self, pos: u64, len: u64, intent: Intent, token: &MayBlock<'_>) -> Result<Mapping, Status> {
        self.called(Call::MapBlocking(pos), token)?;
        self.units.lock().unwrap()[(pos / UNIT) as usize].get_or_insert((0, MappingKind::Mapped, MapFlags::NONE));
        self.map(pos, len, intent)
    }

    fn end_write(&self, done: WriteDone<'_>, token: &MayBlock<'_>) -> Result<(), Status> {
        let WriteDone { pos, len, status, pieces, .. } = done;
        self.called(Call::End { pos, len, status, pieces: pieces.to_vec() }, token)?;
        if status.is_ok() { Ok(()) } else { Err(status) }
    }

    fn needs_sync(&self) -> bool {
        self.needs_sync.load(Ordering::SeqCst)
    }

    fn sync(&self, token: &MayBlock<'_>) -> Option<Result<(), Status>> {
        match self.called(Call::Sync, token) {
            Ok(()) => Some(Ok(())),
            // A hook returns `Again` to leave the sync to a flush of the device.
            Err(Status::Again) => None,
            Err(status) => Some(Err(status)),
        }
    }

    fn fallocate(&self, mode: FallocateMode, pos: u64, len: u64, token: &MayBlock<'_>) -> Result<(), Status> {
        self.called(Call::Fallocate(mode, pos, len), token)
    }
}
