//! fio job files: the work of a run in the notation of the usual benchmark program.
//!
//! | module | holds |
//! |---|---|
//! | [`lines`] | the lines of a file, split like fio splits them |
//! | [`values`] | numbers, sizes and times in fio's grammar |
//! | [`refused`] | the options that a run cannot do, with the reasons |
//!
//! Owns the subset of fio's options that a run can do with their exact meaning, and the error messages for the rest. An
//! option that is not in [`SETTINGS`], a value with a different meaning here, and a second job are errors with the
//! file, the line and the section. Options that do not change the work are accepted and ignored.
//! `docs/reference/jobs.md` explains each option; a test compares its tables with [`SETTINGS`] and
//! [`REFUSED`](refused::REFUSED).
//!
//! * J1. An accepted job has the same meaning in fio: fio's defaults are the defaults here (buffered I/O, one I/O in
//!   flight, blocks of 4 KiB, sequential reads, an end after one pass over the file), and a job for which the two
//!   differ is refused. Fio's default engine is psync, so a job must name io_uring.

mod lines;
mod refused;
mod values;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::error::LoadError;
use crate::rw::Rw;
use crate::value::{self, CpuList};
use lines::{Env, Line};
#[cfg(test)]
use refused::REFUSED;
use values::{block_size, count, number, only, size, switch, time};

/// Largest size of a job file in bytes. Job files are written by hand, so they are small.
const MAX_BYTES: u64 = 64 << 10;

/// Section with the settings of every job.
const GLOBAL: &str = "global";

/// One job of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Name of the section.
    pub name: String,
    /// Path of the file or block device.
    pub filename: Option<String>,
    /// Number of bytes of the file that the job uses, from its start.
    pub size: Option<u64>,
    /// True if I/O bypasses the page cache.
    pub direct: bool,
    /// True if the pages of the file are dropped from the page cache before the run.
    pub invalidate: bool,
    pub rw: Rw,
    /// Percentage of reads of `randrw`.
    pub mix: u8,
    /// Size of one I/O in bytes.
    pub bs: u32,
    /// Number of I/Os in flight, for each thread.
    pub depth: u32,
    /// Number of I/Os submitted at a time.
    pub batch: u32,
    /// Number of completions waited for at a time.
    pub complete: u32,
    /// Number of threads, each with a ring of its own.
    pub threads: u32,
    /// True if the run polls for completions.
    pub poll: bool,
    /// True if the buffers are registered with the ring.
    pub fixed_buffers: bool,
    /// True if every write is durable when it ends.
    pub dsync: bool,
    /// Longest time of the run.
    pub runtime: Option<Duration>,
    /// Work after which the run ends, if the time does not end it first.
    pub work: Work,
    /// Number of I/Os per second that each thread starts.
    pub rate: Option<u64>,
    /// Seed of the random offsets.
    pub seed: Option<u64>,
    /// CPUs for the threads.
    pub cpus: Option<CpuList>,
}

/// The work of each thread of a job, after which it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// True if only the time ends the run, not an amount of work.
    pub endless: bool,
    /// Number of bytes to read or write, if it differs from the size of the range.
    pub io_size: Option<u64>,
    /// Largest number of I/Os in each loop.
    pub ios: Option<u64>,
    /// Number of loops.
    pub loops: u64,
}

impl Work {
    /// Returns the number of I/Os that one thread does over a range of `range` bytes, or `None` if there is no end.
    pub fn ios(&self, range: u64, bs: u32) -> Option<u64> {
        let bs = u64::from(bs);
        // Fio rounds the size down to whole blocks, and does I/O until io_size is reached.
        let all = self.io_size.map_or(range / bs, |bytes| bytes.div_ceil(bs));
        (!self.endless).then(|| all.min(self.ios.unwrap_or(u64::MAX)).saturating_mul(self.loops))
    }
}

/// Settings from the lines that have been read so far.
#[derive(Clone, Debug)]
struct Draft {
    job: Job,
    has_engine: bool,
    time_based: bool,
    no_map: bool,
}

impl Default for Draft {
    /// fio's own defaults (J1).
    fn default() -> Self {
        let job = Job {
            name: String::new(),
            filename: None,
            size: None,
            direct: false,
            invalidate: true,
            rw: Rw::Read,
            mix: 50,
            bs: 4096,
            depth: 1,
            batch: 1,
            complete: 1,
            threads: 1,
            poll: false,
            fixed_buffers: false,
            dsync: false,
            runtime: None,
            work: Work { endless: false, io_size: None, ios: None, loops: 1 },
            rate: None,
            seed: None,
            cpus: None,
        };
        Self { job, has_engine: false, time_based: false, no_map: false }
    }
}

/// An accepted option.
struct Setting {
    /// Names of the option in fio.
    names: &'static [&'static str],
    /// True if the option may stand without a value; its value is then 1.
    bare: bool,
    /// Parses and stores the value.
    set: fn(&mut Draft, &str) -> Result<(), String>,
}

/// Makes an option that needs a value.
const fn valued(names: &'static [&'static str], set: fn(&mut Draft, &str) -> Result<(), String>) -> Setting {
    Setting { names, bare: false, set }
}

/// Makes an option that may stand without a value.
const fn bare(names: &'static [&'static str], set: fn(&mut Draft, &str) -> Result<(), String>) -> Setting {
    Setting { names, bare: true, set }
}

/// Accepted options.
const SETTINGS: &[Setting] = &[
    valued(&["filename"], |draft, text| filename(text).map(|path| draft.job.filename = Some(path))),
    valued(&["size"], |draft, text| size(text).map(|bytes| draft.job.size = Some(bytes))),
    valued(&["io_size", "io_limit"], |draft, text| size(text).map(|bytes| draft.job.work.io_size = Some(bytes))),
    valued(&["loops"], |draft, text| number(text, 1, 1 << 30).map(|n| draft.job.work.loops = n)),
    valued(&["direct"], |draft, text| switch(text).map(|on| draft.job.direct = on)),
    valued(&["buffered"], |draft, text| switch(text).map(|on| draft.job.direct = !on)),
    valued(&["invalidate"], |draft, text| switch(text).map(|on| draft.job.invalidate = on)),
    valued(&["rw", "readwrite"], |draft, text| text.parse().map(|rw| draft.job.rw = rw)),
    valued(&["rwmixread"], |draft, text| number(text, 0, 100).map(|mix| draft.job.mix = mix as u8)),
    valued(&["bs", "blocksize"], |draft, text| block_size(text).map(|bs| draft.job.bs = bs)),
    bare(&["norandommap"], |draft, text| switch(text).map(|on| draft.no_map = on)),
    valued(&["randseed"], |draft, text| number(text, 0, u64::MAX).map(|n| draft.job.seed = Some(n))),
    valued(&["randrepeat"], |_, text| only(text, "1", "the same seed makes the same run")),
    valued(&["ioengine"], |draft, text| {
        draft.has_engine = true;
        only(text, "io_uring", "a run drives Sheave's own io_uring")
    }),
    valued(&["iodepth"], |draft, text| count(text, 4096).map(|n| draft.job.depth = n)),
    valued(&["iodepth_batch", "iodepth_batch_submit"], |draft, text| count(text, 4096).map(|n| draft.job.batch = n)),
    valued(&["iodepth_batch_complete_min", "iodepth_batch_complete"], |draft, text| {
        count(text, 4096).map(|n| draft.job.complete = n)
    }),
    bare(&["hipri"], |draft, text| switch(text).map(|on| draft.job.poll = on)),
    bare(&["fixedbufs"], |draft, text| switch(text).map(|on| draft.job.fixed_buffers = on)),
    bare(&["registerfiles"], |_, text| only(text, "1", "a ring here holds its file registered")),
    valued(&["numjobs"], |draft, text| count(text, 1024).map(|n| draft.job.threads = n)),
    bare(&["thread"], |_, text| only(text, "1", "jobs here are threads of one process")),
    bare(&["group_reporting"], |_, text| only(text, "1", "a report here is of all threads")),
    valued(&["cpus_allowed"], |draft, text| value::cpu_list(text).map(|list| draft.job.cpus = Some(list))),
    valued(&["sync"], |draft, text| sync(text).map(|on| draft.job.dsync = on)),
    bare(&["time_based"], |draft, text| switch(text).map(|on| draft.time_based = on)),
    valued(&["runtime"], |draft, text| time(text).map(|time| draft.job.runtime = Some(time))),
    valued(&["number_ios"], |draft, text| number(text, 1, 1 << 50).map(|n| draft.job.work.ios = Some(n))),
    valued(&["rate_iops"], |draft, text| number(text, 1, 1 << 40).map(|n| draft.job.rate = Some(n))),
    valued(&["name", "description"], |_, _| Ok(())),
    bare(&["stonewall", "wait_for_previous"], |_, text| switch(text).map(drop)),
    bare(&["new_group"], |_, text| switch(text).map(drop)),
    valued(&["kb_base"], |_, text| only(text, "1024", "a k is 1024 bytes here")),
    valued(&["unit_base"], |_, text| number(text, 0, 8).map(drop)),
    valued(&["disk_util"], |_, text| switch(text).map(drop)),
    valued(&["significant_figures"], |_, text| number(text, 1, 10).map(drop)),
];

fn sync(text: &str) -> Result<bool, String> {
    match text {
        "dsync" => Ok(true),
        "none" | "0" => Ok(false),
        _ => Err("expected dsync or none".into()),
    }
}

/// Refuses names that fio or Sheave would split or read differently: fio ends a name at a colon and takes `-` for
/// stdin, and a device spec of Sheave ends at a comma.
fn filename(text: &str) -> Result<String, String> {
    match text.is_empty() || text == "-" || text.contains([':', ',']) {
        true => Err("expected the path of one file, without : and ,".into()),
        false => Ok(text.into()),
    }
}

/// Position of an error in a file.
struct Place<'a> {
    file: &'a str,
    line: u32,
    section: Option<&'a str>,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.file, self.line)?;
        self.section.map_or(Ok(()), |section| write!(f, ", [{section}]"))
    }
}

impl Job {
    /// Reads the file of one job.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        use std::io::Read;
        let name = path.display().to_string();
        let unread = |err: std::io::Error| LoadError::usage(format!("cannot read the job file {name}: {err}"));
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(unread)?;
        file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(unread)?;
        if text.len() as u64 > MAX_BYTES {
            return Err(LoadError::usage(format!("{name} has more than {MAX_BYTES} bytes: that is no job file")));
        }
        Self::parse(&name, &text)
    }

    /// Parses the text of a job file; `file` is its name, for errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, LoadError> {
        Self::parse_in(file, text, &|name| std::env::var(name).ok())
    }

    /// Same as [`Job::parse`], with the environment variables that `env` returns.
    fn parse_in(file: &str, text: &str, env: Env<'_>) -> Result<Self, LoadError> {
        let (mut draft, mut section) = (Draft::default(), None);
        for (line, text) in (1..).zip(text.lines()) {
            let place = Place { file, line, section };
            match lines::read(text, env) {
                Ok(Line::Blank) => {}
                Ok(Line::Section(name)) => {
                    draft.begin(name, &place)?;
                    section = Some(name);
                }
                Ok(Line::Option { key, value }) => draft.set(key, value.as_deref(), &place)?,
                Err((what, fix)) => return Err(LoadError::usage(format!("{place}: {what}")).fix(fix)),
            }
        }
        draft.finish(file)
    }

    /// Returns the spec of the device that the job names.
    pub fn spec(&self) -> Option<String> {
        let path = self.filename.as_ref()?;
        let direct = if self.direct { "on" } else { "off" };
        // The size is only for a file that does not exist yet. An existing one keeps its size, and the job uses its
        // first bytes.
        let new = self.size.filter(|_| !Path::new(path).exists());
        let size = new.map_or(String::new(), |bytes| format!(",size={bytes}"));
        Some(format!("file:{path}{size},direct={direct}"))
    }

    /// Refuses a missing path below /dev, where a plain file would be created instead of the device.
    ///
    /// # Errors
    ///
    /// Returns an error if the path is missing. Its text names another way to run the job of the file `of`.
    pub fn refuse_missing(&self, of: &Path) -> Result<(), LoadError> {
        let Some(path) = self.filename.as_ref().map(Path::new) else { return Ok(()) };
        if !path.starts_with("/dev") || path.exists() {
            return Ok(());
        }
        let what = format!("{}, [{}]: this machine has no {}", of.display(), self.name, path.display());
        Err(LoadError::usage(what).fix("name a device after the job file, as null:size=1T, or another filename in it"))
    }
}

impl Draft {
    fn begin(&mut self, name: &str, place: &Place<'_>) -> Result<(), LoadError> {
        let refuse = |what: String, fix: &str| Err(LoadError::usage(format!("{place}: {what}")).fix(fix));
        match name {
            _ if !self.job.name.is_empty() => {
                let what = format!("[{name}] comes after the job [{}], and a run does one", self.job.name);
                refuse(what, "give each job a file of its own, with [global] before it")
            }
            "" => refuse("a section without a name".into(), "write [NAME]"),
            GLOBAL => Ok(()),
            _ if name.starts_with(GLOBAL) => {
                refuse(format!("fio takes [{name}] for [global], as all names that begin so"), "choose another name")
            }
            _ => {
                self.job.name = name.into();
                Ok(())
            }
        }
    }

    fn set(&mut self, key: &str, value: Option<&str>, place: &Place<'_>) -> Result<(), LoadError> {
        if place.section.is_none() {
            let what = LoadError::usage(format!("{place}: {key} stands before the first section"));
            return Err(what.fix("begin with [global] or with the name of the job, as [randread]"));
        }
        let Some(setting) = SETTINGS.iter().find(|setting| setting.names.contains(&key)) else {
            return Err(unknown(key, place));
        };
        let text = match value {
            Some(text) => text,
            None if setting.bare => "1",
            None => {
                let what = LoadError::usage(format!("{place}: {key} has no value"));
                return Err(what.fix(format!("write {key}=VALUE, without which fio refuses it too")));
            }
        };
        (setting.set)(self, text).map_err(|why| LoadError::usage(format!("{place}: {key}={text} cannot be")).fix(why))
    }

    /// Checks the job as a whole.
    fn finish(mut self, file: &str) -> Result<Job, LoadError> {
        let refused = self.contradictions();
        let name = &self.job.name;
        match refused.into_iter().find(|(is_so, ..)| *is_so) {
            Some((_, cause, fix)) if name.is_empty() => Err(LoadError::usage(format!("{file}: {cause}")).fix(fix)),
            Some((_, cause, fix)) => Err(LoadError::usage(format!("{file}, [{name}]: {cause}")).fix(fix)),
            None => {
                self.job.work.endless = self.time_based;
                Ok(self.job)
            }
        }
    }

    /// Returns the checks of the whole job. Each has true if the job is refused, then the cause and the fix.
    fn contradictions(&self) -> [(bool, &'static str, &'static str); 12] {
        let Self { job, has_engine, time_based, no_map } = self;
        let (time_based, work) = (*time_based, &job.work);
        [
            (job.name.is_empty(), "there is no job", "name it in a section of its own, as [randread]"),
            (
                !has_engine,
                "there is no ioengine, and fio's default is psync, which does one I/O at a time by system calls",
                "add ioengine=io_uring",
            ),
            (job.batch > job.depth, "the batch is more than iodepth", "raise iodepth, or lower the batch"),
            (
                job.complete > job.depth,
                "iodepth_batch_complete_min is more than iodepth",
                "raise iodepth, or wait for fewer at once",
            ),
            (
                job.rw.random() && !no_map,
                "fio reads or writes each block once, which a run does not keep a map for",
                "add norandommap",
            ),
            (
                !job.rw.random() && job.threads > 1,
                "each of fio's jobs goes through the whole file, and a run's threads through a part each",
                "use numjobs=1, or rw=randread, randwrite or randrw",
            ),
            (
                job.cpus.as_ref().is_some_and(|cpus| cpus.0.len() != job.threads as usize),
                "fio lets each job run on all of cpus_allowed, and a run pins each thread to one CPU",
                "name as many CPUs as there are jobs (numjobs)",
            ),
            (job.mix != 50 && job.rw != Rw::Randrw, "rwmixread is for rw=randrw", "leave it out, or use rw=randrw"),
            (
                job.rate.is_some() && job.rw == Rw::Randrw,
                "fio's rate_iops is that of reads and again that of writes, and a run has one for both",
                "leave it out, or use rw=randread or randwrite; sheave bench --rate paces both together",
            ),
            (
                time_based && job.runtime.is_none(),
                "time_based has no runtime, and fio ignores it then",
                "add runtime=10, or leave time_based out",
            ),
            (
                time_based && (work.ios.is_some() || work.io_size.is_some() || work.loops > 1),
                "fio ignores number_ios, io_size and loops beside time_based",
                "leave either out",
            ),
            (
                work.loops > 1 && work.io_size.is_some(),
                "io_size is what all loops do together or each of them, by the version of fio",
                "leave loops out, and give all of it as io_size",
            ),
        ]
    }
}

/// Returns the error for an unknown option, with the reason if fio has the option.
fn unknown(key: &str, place: &Place<'_>) -> LoadError {
    let known: Vec<&str> = SETTINGS.iter().flat_map(|setting| setting.names).copied().collect();
    let known = format!("known are {}", known.join(", "));
    // Fio takes every line that begins with this word for the directive.
    let key = if key.starts_with("include") { "include" } else { key };
    match refused::reason(key) {
        Some(why) => {
            LoadError::usage(format!("{place}: {key} is refused: {why}")).fix(format!("leave it out; {known}"))
        }
        None => LoadError::usage(format!("{place}: there is no option {key}")).fix(known),
    }
}

#[cfg(test)]
mod tests;
