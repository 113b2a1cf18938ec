//! The data behind an export: a volume, snapshot or device as a [`File`], with the extents in it.
//!
//! A backend keeps what it serves open until the server drops it.

use std::sync::Arc;

use sheave::{Device, File};
use sheave_base::status::Status;
use sheave_base::units::fmt_bytes;
use sheave_blk::claim::{Claim, Sharing};
use sheave_blk::flush_alarm::{FlushAlarm, FlushWatch};
use sheave_drivers::host::{Passed, open_passed};
use sheave_drivers::spec::masked;
use sheave_iomap::RawFile;
use sheave_serve::{Backend, Export, NoStatus, Question};
use sheave_vol::{Pool, Volume};

use crate::config::{ExportPlan, What};
use crate::devices::open_device;
use crate::failure::{self, Failure};
use crate::rights::Rights;
use crate::vhost_user::VhostUserPlan;
use crate::{confine, contexts, devices};

/// Opens a volume as an export.
pub fn volume(plan: &ExportPlan, pool: &Pool, name: &str) -> Result<Export, Failure> {
    let volume = pool.open_volume(name).map_err(failure::pool)?;
    let file: Arc<dyn File> = Arc::new(volume.clone());
    let unit_bytes = pool.unit_bytes();
    export(plan, Box::new(ServedVolume { volume, file, unit_bytes }))
}

/// Opens a device as an export; `passed` is its file, if the caller sent it open.
pub fn device(plan: &ExportPlan, spec: &str, passed: Option<Passed>, rights: Rights) -> Result<Export, Failure> {
    if !spec.contains(':') {
        return Err(Failure::usage(format!("{spec} names neither a volume nor a device"))
            .fix(format!("write '{spec}#NAME' for a volume of a pool, or file:{spec} for the file as it is")));
    }
    let read_only = plan.read_only;
    let opened = match spec.starts_with("file:") && read_only && !spec.contains(",readonly=") {
        true => format!("{spec},readonly=on"),
        false => spec.to_owned(),
    };
    let device = open(&opened, passed, rights)?;
    let changes = !read_only && !device.capabilities().read_only;
    let sharing = if changes { Sharing::Alone } else { Sharing::WithReaders };
    export(plan, Box::new(ServedDevice::new(device, sharing)?))
}

/// Opens a device for a caller with these `rights`; `passed` is its file, if the caller sent it open.
pub fn open(spec: &str, passed: Option<Passed>, rights: Rights) -> Result<Device, Failure> {
    rights.expect(spec, passed.as_ref())?;
    let device = match passed {
        Some(passed) => open_passed(spec, passed),
        None => {
            let reaches = devices::reaches(spec).map_err(failure::device)?;
            if let Some(refused) = confine::refusal(&reaches) {
                return Err(refused);
            }
            open_device(spec)
        }
    };
    device.map_err(failure::device)
}

/// Builds the export, and binds its vhost-user socket. Every client can read its description, so that contains no paths
/// or specs; those are in the log and the replies of the control socket.
fn export(plan: &ExportPlan, backend: Box<dyn Backend>) -> Result<Export, Failure> {
    let file = backend.file();
    let read_only = if file.is_read_only() { ", read-only" } else { "" };
    let description = format!("{}{read_only}", fmt_bytes(file.size_bytes()));
    let (name, allow) = (plan.name.clone(), plan.allow.clone());
    let vhost_user = plan.vhost_user.as_ref().map(VhostUserPlan::bind).transpose()?;
    Ok(Export { name, description, read_only: plan.read_only, allow, backend, vhost_user })
}

impl ExportPlan {
    /// Returns the pool of the volume, or `None` for a device.
    pub fn pool(&self) -> Option<&str> {
        match &self.what {
            What::Volume { pool, .. } => Some(pool),
            What::Device { .. } => None,
        }
    }

    /// Returns the spec of the device, or `None` for a volume.
    pub fn spec(&self) -> Option<&str> {
        match &self.what {
            What::Device { spec } => Some(spec),
            What::Volume { .. } => None,
        }
    }

    /// Returns the volume, if it belongs to pool `of`.
    pub fn volume_of(&self, of: &str) -> Option<&str> {
        match &self.what {
            What::Volume { pool, volume } if pool == of => Some(volume),
            _ => None,
        }
    }

    /// Describes the export and its location, for the log; `place` maps the name of a pool to its location.
    pub fn in_words(&self, export: &Export, place: impl Fn(&str) -> String) -> String {
        let what = match &self.what {
            What::Volume { pool, volume } => format!("{}#{volume}", place(pool)),
            What::Device { spec } => masked(spec),
        };
        format!("{what} ({})", export.description)
    }
}

#[derive(Debug)]
struct ServedVolume {
    volume: Volume,
    file: Arc<dyn File>,
    unit_bytes: u64,
}

impl Backend for ServedVolume {
    fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    fn contexts(&self, each: &mut dyn FnMut(&str)) {
        contexts::tell(&self.volume, each);
    }

    fn context(&self, name: &[u8]) -> Option<u64> {
        contexts::number(&self.volume, name)
    }

    fn reads_for_status(&self, context: u64) -> bool {
        contexts::reads(context)
    }

    fn extents(&self, question: &Question) -> Result<Vec<sheave_nbd::Extent>, NoStatus> {
        contexts::answer(&self.volume, self.unit_bytes, question)
    }

    fn is_fast_to_zero(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct ServedDevice {
    file: Arc<dyn File>,
    /// After one flush has failed, all later ones fail. A kernel reports a writeback error to only one of the callers
    /// that flush, but every client on every connection must learn that its writes may be lost.
    _watch: FlushWatch,
    alarm: Arc<FlushAlarm>,
    /// Keeps other users in this process away from the device.
    _claim: Claim,
}

impl ServedDevice {
    fn new(device: Device, sharing: Sharing) -> Result<ServedDevice, Failure> {
        let claim = device.claim(sharing).map_err(failure::device)?;
        let alarm = Arc::default();
        let watch = device.watch_flushes(&alarm);
        Ok(ServedDevice { file: Arc::new(RawFile::new(device)), _watch: watch, alarm, _claim: claim })
    }
}

impl Backend for ServedDevice {
    fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    fn is_fast_to_zero(&self) -> bool {
        self.file.device().capabilities().write_zeroes
    }

    fn flush_failed(&self) -> Option<Status> {
        self.alarm.failed()
    }
}

#[cfg(test)]
mod tests {
    use sheave::{Ring, op};
    use sheave_drivers::fault::{self, FaultKind, FaultPlan};

    use super::*;

    #[test]
    fn after_a_flush_of_a_device_has_failed_none_ends_well() {
        let dir = tempfile::tempdir().expect("a directory");
        let disk = sheave::open_device(&format!("file:{}/disk,size=1M", dir.path().display())).expect("a device");
        // Each flush fails with a probability of one half.
        let plan = FaultPlan::new(1).with(FaultKind::Error, 0.5);
        let (device, _) = fault::over("bad", &disk, &plan).expect("a device");
        let served = ServedDevice::new(device, Sharing::Alone).expect("claimed");
        let mut rings = [0, 1].map(|_| {
            let mut ring = Ring::builder().entries(8).build().expect("a ring");
            let fd = ring.attach_file(served.file().clone()).expect("attached");
            (ring, fd)
        });
        let ended: Vec<bool> = (0..64)
            .map(|number| {
                let (ring, fd) = &mut rings[number % 2];
                ring.push(op::fsync(*fd)).expect("pushed");
                ring.submit_and_wait(1).expect("waited");
                ring.completions().next().expect("it ended").result().is_ok()
            })
            .collect();
        let failed = ended.iter().position(|well| !well).expect("one has failed");
        assert!(ended[failed..].iter().all(|well| !well), "a client heard that all is durable: {ended:?}");
    }

    #[test]
    fn questions_that_compare_with_a_snapshot_are_not_for_a_reactor() {
        let device = sheave::open_device("ram:size=64M").expect("a device");
        sheave_vol::Pool::create(&device, &sheave_vol::CreateOptions::default()).expect("made");
        let pool = sheave_vol::Pool::open(&device, &sheave_vol::OpenOptions::default()).expect("opened");
        let volume = pool.create_volume("v", 1 << 20).expect("made");
        pool.snapshot("v", "s").expect("frozen");
        let served = ServedVolume { file: Arc::new(volume.clone()), volume, unit_bytes: 65536 };
        let reads = |name: &str| served.reads_for_status(served.context(name.as_bytes()).expect("it has one"));
        let names = ["base:allocation", "qemu:allocation-depth", "qemu:dirty-bitmap:since-s"];
        assert_eq!(names.map(reads), [false, false, true]);
    }
}
