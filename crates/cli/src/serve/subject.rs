//! What is served: a volume or snapshot with its pool open around it, or a device.

use std::sync::Arc;

use sheave::base::units::fmt_bytes;
use sheave::blk::claim::{Claim, Sharing};
use sheave::iomap::RawFile;
use sheave::vol::{Extent, ExtentKind};
use sheave::{Device, File, Pool, Volume, open_device};
use sheave_nbd::reply::MAX_EXTENTS;
use sheave_nbd::wire::state;
use sheave_serve::{Backend, Export};

use crate::args::serve::ServeArgs;
use crate::failure::{self, Failure};
use crate::pool::place::{Access, VolumePlace};

/// Name of an export that is no volume.
const DISK: &str = "disk";
/// Units of a pool that one question for extents looks at: some milliseconds.
const UNITS_AT_ONCE: u64 = 1 << 16;
/// Units that are looked at before the extents that were found are counted: what bounds the memory of an answer.
const UNITS_PER_STEP: u64 = 1 << 9;

/// What is served, and what must stay open for it.
pub struct Subject {
    what: What,
    name: String,
    text: String,
}

enum What {
    Volume { pool: Pool, volume: Volume, unit_bytes: u64 },
    Device { device: Device, claim: Claim },
}

impl Subject {
    /// Opens it.
    pub fn open(args: &ServeArgs) -> Result<Subject, Failure> {
        let spec = args.spec.strip_prefix("vol:").unwrap_or(&args.spec);
        let what = match spec.contains('#') && !std::path::Path::new(spec).exists() {
            true => open_volume(spec, args.read_only)?,
            false => open_raw(&args.spec, args.read_only)?,
        };
        let name = match &what.1 {
            _ if args.name.is_some() => args.name.clone().unwrap_or_default(),
            Some(place) => place.name.clone(),
            None => DISK.into(),
        };
        Ok(Subject { what: what.0, name, text: args.spec.clone() })
    }

    /// The export's name.
    pub fn export_name(&self) -> &str {
        &self.name
    }

    /// For people.
    pub fn describe(&self) -> String {
        let (size, read_only) = match &self.what {
            What::Volume { volume, .. } => (File::size_bytes(volume), File::is_read_only(volume)),
            What::Device { device, .. } => (device.size_bytes(), device.capabilities().read_only),
        };
        format!("{} ({}{})", self.text, fmt_bytes(size), if read_only { ", read-only" } else { "" })
    }

    /// The export.
    pub fn export(&self, args: &ServeArgs) -> Export {
        let backend: Box<dyn Backend> = match &self.what {
            What::Volume { volume, unit_bytes, .. } => Box::new(ServedVolume {
                volume: volume.clone(),
                file: Arc::new(volume.clone()),
                unit_bytes: *unit_bytes,
            }),
            What::Device { device, .. } => {
                let file: Arc<dyn File> = Arc::new(RawFile::new(device.clone()));
                Box::new(ServedDevice { file })
            }
        };
        Export { name: self.name.clone(), description: self.describe(), read_only: args.read_only, backend }
    }

    /// Lets go of it: a pool is closed, so that its next opening has nothing to recover.
    pub fn close(self) -> Result<(), Failure> {
        match self.what {
            What::Device { device, claim } => {
                drop((device, claim));
                Ok(())
            }
            What::Volume { pool, volume, .. } => {
                drop(volume);
                pool.close().map_err(failure::pool)
            }
        }
    }
}

fn open_volume(spec: &str, read_only: bool) -> Result<(What, Option<VolumePlace>), Failure> {
    let place: VolumePlace = spec.parse().map_err(|why| Failure::usage(format!("{spec}: {why}")))?;
    let pool = place.pool.open(if read_only { Access::Look } else { Access::Change })?;
    let volume = pool.open_volume(&place.name).map_err(failure::pool)?;
    let unit_bytes = pool.info().unit_bytes;
    Ok((What::Volume { pool, volume, unit_bytes }, Some(place)))
}

fn open_raw(spec: &str, read_only: bool) -> Result<(What, Option<VolumePlace>), Failure> {
    if !spec.contains(':') {
        return Err(Failure::usage(format!("{spec} names neither a volume nor a device"))
            .fix(format!("write '{spec}#NAME' for a volume of a pool, or file:{spec} for the file as it is")));
    }
    let spec = match spec.starts_with("file:") && read_only && !spec.contains(",readonly=") {
        true => format!("{spec},readonly=on"),
        false => spec.to_owned(),
    };
    let device = open_device(&spec).map_err(failure::device)?;
    let changes = !read_only && !device.capabilities().read_only;
    let sharing = if changes { Sharing::Alone } else { Sharing::WithReaders };
    let claim = device.claim(sharing).map_err(failure::device)?;
    Ok((What::Device { device, claim }, None))
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

    fn extents(&self, _: u32, pos: u64, len: u64) -> Vec<sheave_nbd::Extent> {
        let end = pos + len.min(self.unit_bytes.saturating_mul(UNITS_AT_ONCE));
        let mut extents: Vec<sheave_nbd::Extent> = Vec::new();
        let mut at = pos;
        while at < end && extents.len() <= MAX_EXTENTS {
            let step = (end - at).min(self.unit_bytes.saturating_mul(UNITS_PER_STEP));
            let found = self.volume.extents(at, step).unwrap_or_default();
            let covered: u64 = found.iter().map(|extent| extent.len).sum();
            found.iter().for_each(|extent| add_extent(&mut extents, extent));
            if covered < step {
                // Beyond the end of the volume, which has become smaller.
                break;
            }
            at += step;
        }
        extents
    }

    fn is_fast_to_zero(&self) -> bool {
        true
    }
}

/// Adds what a volume has in a range to what was found before it.
fn add_extent(extents: &mut Vec<sheave_nbd::Extent>, extent: &Extent) {
    let status = match extent.kind {
        ExtentKind::Data => 0,
        ExtentKind::Unwritten => state::ZERO,
        ExtentKind::Hole => state::HOLE | state::ZERO,
    };
    match extents.last_mut() {
        Some(last) if last.status == status => last.len += extent.len,
        _ => extents.push(sheave_nbd::Extent { len: extent.len, status }),
    }
}

#[derive(Debug)]
struct ServedDevice {
    file: Arc<dyn File>,
}

impl Backend for ServedDevice {
    fn file(&self) -> &Arc<dyn File> {
        &self.file
    }

    fn is_fast_to_zero(&self) -> bool {
        self.file.device().capabilities().write_zeroes
    }
}
