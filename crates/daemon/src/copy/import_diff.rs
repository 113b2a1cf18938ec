//! Imports a diff: brings a volume from one snapshot to the next.
//!
//! ```text
//!   base ──clone──> NAME.import-diff ──ranges──> synced ──snapshot──> TO ──rollback of NAME to TO──> done
//!                   (interim)                                         (the original's identity)
//! ```
//!
//! - I1: at any moment and after any crash, NAME has the content of base or of TO, and TO exists completely or not at
//!   all.
//! - I2: an import that is killed leaves either an [interim](super::interim) volume, which is deleted when the pool is
//!   opened the next time, or the complete TO with NAME still at base, which the next import of the diff finishes.
//! - I3: a diff is applied only to the snapshot it begins at: the snapshot has the identity that the diff names, and
//!   the volume is unchanged since the snapshot. Where either has no random bits (version 1, older programs, a pool
//!   that was not upgraded), names, times and allocated ranges are compared, and a warning says that this proves
//!   nothing.
//! - I4: TO gets the identity of the original, so that the next diff finds it.
//! - I5: a snapshot that has its volume's name, `V@S`, becomes `NAME@S` here. One without keeps its name, unless the
//!   diff begins at a snapshot that exists here as `NAME@S`. Both belong to NAME: it is their origin.
//! - I6: when there is nothing to do, the rest of a stream is read all the same. The process that writes it into a pipe
//!   would fail otherwise, and with it a pipeline that has achieved its purpose.
//!
//! A diff that begins at nothing creates the volume, which must not exist.

use std::io::{self, BufReader, Read};

use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_vol::rbd_diff::{Header, Identity, Likeness, Reader, Version};
use sheave_vol::{CopyOptions, Pool, Purpose, Volume};

use super::Meter;
use super::interim::{Interim, lacks_identities};
use super::lanes::Lanes;
use super::patch::{self, Patch, Patched};
use super::source::Source;
use crate::failure::{self, Failure};
use crate::place::VolumePlace;
use crate::value;

/// Suffix of the interim volume's name.
const SUFFIX: &str = ".import-diff";

/// Size of the read buffer; most records are short.
const BUFFER: usize = 64 << 10;

/// Value of [`Imported::done`] when all of the diff was applied.
const IMPORTED: &str = "imported";

/// Target of an import, with its options.
pub struct Wanted<'a> {
    /// Name of the diff in error messages.
    pub file: &'a str,
    pub place: &'a VolumePlace,
    /// Local name of the snapshot that the diff begins at, if it differs from the one in the diff.
    pub base: Option<&'a str>,
    /// Name to give the snapshot that the diff leads to, if not the one in the diff.
    pub name: Option<&'a str>,
}

/// Result of an import.
#[derive(Debug)]
pub struct Imported {
    /// `imported`; or `finished` if an earlier import had only the end left to do, `present` if it had done everything.
    pub done: &'static str,
    /// Snapshot that the diff begins at.
    pub from: Option<String>,
    /// Snapshot that the diff leads to.
    pub to: Option<String>,
    /// Version of the format.
    pub format: &'static str,
    pub copied_bytes: u64,
    pub zero_bytes: u64,
    /// Properties that could not be verified.
    pub warnings: Vec<String>,
}

/// The state of one import.
struct Job<'a, R> {
    pool: &'a Pool,
    args: &'a Wanted<'a>,
    reader: &'a mut Reader<R>,
    header: &'a Header,
    /// Local names of the snapshots that the diff begins at and leads to.
    base: Option<String>,
    to: Option<String>,
    warnings: Vec<String>,
    stop: &'a AtomicBool,
}

/// A diff whose header was read.
pub struct Begun<'a> {
    reader: Reader<BufReader<Interruptible<'a>>>,
    header: Header,
    is_stream: bool,
    stop: &'a AtomicBool,
}

/// Reads the header, and checks the names of its snapshots.
///
/// # Errors
///
/// The source cannot be read, or is not a diff, or a name is invalid.
pub fn begin<'a>(wanted: &Wanted<'_>, source: Source, stop: &'a AtomicBool) -> Result<Begun<'a>, Failure> {
    source.refuse_locked()?;
    let is_stream = source.size().is_none();
    let stream = BufReader::with_capacity(BUFFER, Interruptible { source, stop });
    let (reader, header) = Reader::begin(stream).map_err(|err| patch::failed(wanted.file, &err))?;
    check_names(wanted, &header)?;
    Ok(Begun { reader, header, is_stream, stop })
}

impl Begun<'_> {
    /// Applies the diff to the volume.
    ///
    /// # Errors
    ///
    /// The diff does not apply, or a read or write failed. The volume is unchanged.
    pub fn into_pool(&mut self, pool: &Pool, wanted: &Wanted<'_>, meter: &mut dyn Meter) -> Result<Imported, Failure> {
        let Begun { reader, header, stop, .. } = self;
        let format = if reader.version() == Version::V1 { "v1" } else { "v2" };
        let (base, to) = names(pool, wanted, header);
        let mut job = Job { pool, args: wanted, reader, header, base, to, warnings: Vec::new(), stop };
        let (done, Patched { copied_bytes, zero_bytes, .. }) = job.run(meter)?;
        let Job { base: from, to, warnings, .. } = job;
        Ok(Imported { done, from, to, format, copied_bytes, zero_bytes, warnings })
    }

    /// Reads the rest of a stream that was not needed (I6); no pool is involved. If that part of the diff is truncated
    /// or corrupt, `imported` gets a warning only, since its result is already present.
    ///
    /// # Errors
    ///
    /// The import was stopped.
    pub fn read_rest(mut self, imported: &mut Imported, meter: &mut dyn Meter) -> Result<(), Failure> {
        if !self.is_stream || imported.done == IMPORTED {
            return Ok(());
        }
        let left = patch::pass_over(&mut self.reader, meter, self.stop);
        // Relaxed: the flag carries nothing but itself.
        if self.stop.load(Ordering::Relaxed) {
            return Err(Failure::interrupted(
                "it was ended while the rest of the diff was read; what it leads to is here",
            ));
        }
        if let Err(error) = left {
            imported.warnings.push(format!("nothing of the diff was needed; the rest of it is not whole: {error}"));
        }
        Ok(())
    }
}

/// Rejects snapshot names that are invalid here.
fn check_names(args: &Wanted<'_>, header: &Header) -> Result<(), Failure> {
    if header.from.is_none() && args.base.is_some() {
        return Err(Failure::usage("--base is given, and the diff begins at nothing").fix("leave --base out"));
    }
    let known = |name: &Option<String>, given: Option<&str>, option: &str| match (name, given) {
        (Some(name), None) => value::volume_name(name).map(drop).map_err(|why| {
            Failure::usage(format!("the diff names a snapshot {name:?}: {why}"))
                .fix(format!("say what it is called here: {option} NAME"))
        }),
        _ => Ok(()),
    };
    known(&header.from, args.base, "--base")?;
    known(&header.to, args.name, "--as")
}

/// Returns the local names of the diff's snapshots (I5).
fn names(pool: &Pool, args: &Wanted<'_>, header: &Header) -> (Option<String>, Option<String>) {
    let volume = args.place.name.as_str();
    let own = |name: &str| format!("{volume}@{name}");
    let is_own = |name: &str| pool.volume_info(&own(name)).is_ok_and(|info| info.origin.as_deref() == Some(volume));
    let here = |name: &str, as_own: bool| match value::split_snapshot(name) {
        Some((_, name)) => own(name),
        None if as_own => own(name),
        None => name.to_owned(),
    };
    let from = header.from.as_deref();
    let base = from.map(|from| match args.base {
        Some(base) => value::snapshot_of(volume, base),
        None => here(from, is_own(from)),
    });
    let as_own = from.is_some() && base.as_deref().is_some_and(|base| base.starts_with(&own("")));
    let to = match args.name {
        Some(name) => Some(value::snapshot_of(volume, name)),
        None => header.to.as_deref().map(|to| here(to, as_own)),
    };
    (base, to)
}

impl<'a, R: Read> Job<'a, R> {
    fn run(&mut self, meter: &mut dyn Meter) -> Result<(&'static str, Patched), Failure> {
        if let Some(done) = self.went_before()? {
            return Ok((done, Patched::default()));
        }
        self.check_base()?;
        self.warn_of_old_pool();
        let interim = self.begin()?;
        let patched = self.fill(&interim.volume()?, meter)?;
        self.publish(interim)?;
        Ok((IMPORTED, patched))
    }

    /// Adds a warning if the pool is too old to keep the identity of TO: no later diff can then be verified against it.
    fn warn_of_old_pool(&mut self) {
        if let Some(to) = &self.to
            && self.header.to_identity.is_some_and(|theirs| theirs.unique.is_some())
            && lacks_identities(self.pool)
        {
            self.warnings.push(format!(
                "an older program made the pool of {}, and '{to}' keeps no identity in it: a diff that begins there \
                 cannot be verified. After sheave pool upgrade, snapshots that are imported keep theirs",
                self.args.place
            ));
        }
    }

    /// Returns true if the local snapshot `here` is the one with identity `theirs`. Adds a warning if they look alike,
    /// but have no identity that would prove it.
    fn is_it(&mut self, theirs: &Identity, here: &str) -> Result<bool, Failure> {
        let ours = self.identity(here)?;
        let likeness = theirs.compare(&ours);
        if likeness == Likeness::Alike {
            let (who, fix) = match theirs.unique {
                None => ("the diff has", "one that a newer sheave makes, of a pool that was upgraded, has it"),
                Some(_) => ("the snapshot here has", "after sheave pool upgrade, new ones get it"),
            };
            self.warnings.push(format!(
                "'{here}' is taken for the snapshot that the diff means, because it is of the same time and size, with \
                 data in the same places; {who} no identity that would prove it ({fix})"
            ));
        }
        Ok(likeness != Likeness::Other)
    }

    fn exists(&self, name: &str) -> bool {
        self.pool.volume_info(name).is_ok()
    }

    fn identity(&self, name: &str) -> Result<Identity, Failure> {
        self.pool.open_volume(name).map(|volume| volume.identity()).map_err(failure::pool)
    }

    /// Returns true if the maps of two volumes show the same content.
    fn same(&self, one: &str, other: &str) -> Result<bool, Failure> {
        let size = |name: &str| self.pool.volume_info(name).map(|info| info.size_bytes).map_err(failure::pool);
        let open = |name: &str| self.pool.open_volume(name).map_err(failure::pool);
        if size(one)? != size(other)? {
            return Ok(false);
        }
        let (one, other) = (open(one)?, open(other)?);
        Ok(one.changes_since(&other, 0, u64::MAX).map_err(failure::pool)?.is_empty())
    }

    /// Checks whether an earlier import created TO, and was perhaps killed before NAME followed (I2).
    fn went_before(&mut self) -> Result<Option<&'static str>, Failure> {
        let name = &self.args.place.name;
        let Some(to) = self.to.clone().filter(|to| self.exists(to)) else { return Ok(None) };
        let snapshot = self.pool.volume_info(&to).map_err(failure::pool)?.snapshot;
        let is_it = match self.header.to_identity {
            Some(theirs) if snapshot => self.is_it(&theirs, &to)?,
            _ => false,
        };
        let here = self.exists(name);
        if is_it && here && (self.same(name, &to)? || self.went_on(&to)?) {
            return Ok(Some("present"));
        }
        let behind = match &self.base {
            Some(base) => here && self.exists(base) && self.same(name, base)?,
            None => !here,
        };
        if is_it && behind {
            match here {
                true => self.pool.rollback(name, &to).map_err(failure::pool)?,
                false => self.pool.clone_volume(&to, name).map_err(failure::pool)?,
            }
            return Ok(Some("finished"));
        }
        if is_it && here {
            return Err(Failure::run(format!("{} has changed since its snapshot '{to}'", self.args.place)).fix(format!(
                "keep what is in it, if it is needed (sheave volume snapshot), then: sheave volume rollback '{}' {to}",
                self.args.place
            )));
        }
        let fix = "give the new one another name: --as NAME; or delete the one that is there";
        Err(Failure::run(format!("there is a snapshot or volume '{to}' already, and it is not this one")).fix(fix))
    }

    /// Returns true if NAME equals a snapshot of it that is later than `snapshot`, so that further diffs were applied
    /// since.
    fn went_on(&self, snapshot: &str) -> Result<bool, Failure> {
        let name = self.args.place.name.as_str();
        let first = self.pool.volume_info(snapshot).map_err(failure::pool)?.id;
        for later in self.pool.volumes() {
            let is_later = later.snapshot && later.id > first && later.origin.as_deref() == Some(name);
            if is_later && self.same(name, &later.name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Checks that the diff applies to the local snapshot and volume (I3).
    fn check_base(&mut self) -> Result<(), Failure> {
        let place = self.args.place;
        let Some(base) = self.base.clone() else {
            if self.exists(&place.name) {
                return Err(Failure::run(format!("{place} exists, and the diff begins at nothing: it makes a volume"))
                    .fix("name a volume that does not exist"));
            }
            return Ok(());
        };
        for (name, what) in [(&place.name, "volume"), (&base, "snapshot")] {
            if !self.exists(name) {
                return Err(Failure::run(format!("there is no {what} '{name}', and the diff begins at '{base}'")).fix(
                    "import the diffs before this one first; if the snapshot has another name here: --base NAME",
                ));
            }
        }
        let info = self.pool.volume_info(&base).map_err(failure::pool)?;
        if !info.snapshot || self.pool.volume_info(&place.name).map_err(failure::pool)?.snapshot {
            return Err(Failure::usage(format!("a diff goes onto a volume, from a snapshot: {place} from '{base}'"))
                .fix("name the volume; what the snapshot is called, --base says"));
        }
        let theirs = self.header.from_identity;
        match theirs {
            Some(theirs) if !self.is_it(&theirs, &base)? => {
                return Err(Failure::run(format!("'{base}' here is another snapshot than the one the diff begins at"))
                    .fix("import the diffs in order, each into the volume that has those before it"));
            }
            Some(_) => {}
            None => self.warnings.push(format!(
                "the diff names its beginning '{base}' and does not identify it: whether it is the one here cannot be \
                 verified"
            )),
        }
        if !self.same(&place.name, &base)? {
            return Err(Failure::run(format!("{place} has changed since its snapshot '{base}'")).fix(format!(
                "keep what is in it, if it is needed (sheave volume snapshot), then: sheave volume rollback '{place}' \
                 {base}"
            )));
        }
        Ok(())
    }

    /// Creates the interim volume that the ranges are written to.
    fn begin(&self) -> Result<Interim<'a>, Failure> {
        let (name, size) = (&self.args.place.name, self.header.size);
        let interim = Interim::make(self.pool, name, SUFFIX, |interim| match &self.base {
            None => self.pool.create_interim(interim, size, self.mark()),
            Some(base) => {
                let options = CopyOptions::default().interim(Some(self.mark()));
                self.pool.clone_with(base, interim, &options)
            }
        })?;
        let now = self.pool.volume_info(interim.name()).map_err(failure::pool)?.size_bytes;
        if now != size {
            self.pool.resize(interim.name(), size).map_err(failure::pool)?;
        }
        Ok(interim)
    }

    /// Marks a volume as the interim volume of this import.
    fn mark(&self) -> sheave_vol::Interim {
        let owner = self.pool.volume_info(&self.args.place.name).map_or(0, |info| info.id);
        sheave_vol::Interim::new(Purpose::ImportDiff, owner)
    }

    fn fill(&mut self, volume: &Volume, meter: &mut dyn Meter) -> Result<Patched, Failure> {
        let place = self.args.place;
        let name = self.args.file;
        let mut lanes = Lanes::new(volume, place)?;
        let mut patch = Patch { lanes: &mut lanes, size: self.header.size, stop: self.stop };
        let outcome = patch.all(self.reader, name, meter);
        // Relaxed: the flag carries nothing but itself.
        if self.stop.load(Ordering::Relaxed) || outcome.as_ref().is_ok_and(|patched| patched.stopped) {
            return Err(Failure::interrupted(format!("the import was ended; {place} is as it was")));
        }
        let patched = outcome?;
        lanes.sync()?;
        if let Some(theirs) = &self.header.to_identity
            && !theirs.is_same_layout(&volume.identity())
        {
            return Err(Failure::run(format!(
                "{name} does not lead to the snapshot that it names; {place} is as it was"
            ))
            .fix("make the diff anew; if it comes out the same, report it"));
        }
        Ok(patched)
    }

    /// Makes the filled volume the new content of NAME, in one step (I1).
    fn publish(&self, interim: Interim<'_>) -> Result<(), Failure> {
        let name = &self.args.place.name;
        let fail = failure::pool;
        let snapshot = |to: &str, origin: Option<String>| {
            let theirs = self.header.to_identity;
            let options = CopyOptions::default()
                .created(theirs.map(|theirs| theirs.created))
                .identity(theirs.and_then(|theirs| theirs.unique))
                .origin(origin);
            self.pool.snapshot_with(interim.name(), to, &options).map(drop).map_err(fail)
        };
        if self.base.is_none() {
            if let Some(to) = &self.to {
                snapshot(to, None)?;
            }
            return interim.become_volume(name);
        }
        match &self.to {
            Some(to) => {
                snapshot(to, Some(name.clone()))?;
                self.pool.rollback(name, to).map_err(fail)?;
            }
            None => {
                // `rollback` accepts snapshots only, so a temporary one is made.
                let options = CopyOptions::default().interim(Some(self.mark()));
                let make = |frozen: &str| self.pool.snapshot_with(interim.name(), frozen, &options);
                let frozen = Interim::make(self.pool, name, SUFFIX, make)?;
                let rolled = self.pool.rollback(name, frozen.name()).map_err(fail);
                let deleted = frozen.remove();
                rolled.and(deleted)?;
            }
        }
        interim.remove()
    }
}

/// The diff as a stream whose reads fail once `stop` is set.
struct Interruptible<'a> {
    source: Source,
    stop: &'a AtomicBool,
}

impl Read for Interruptible<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.source.read(buf, self.stop)
    }
}
