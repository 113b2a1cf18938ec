//! fio job files: the work of a run as the programs that measure block I/O write it down.
//!
//! Owns the subset of fio's options that a run can do as they are meant, and the words for what it cannot: an option
//! that is not in [`SETTINGS`], a value that would be understood in another way, and a section too many are errors
//! with the file, the line and the section. Nothing is ignored. The syntax of the file is `ini_core`'s business.
//! What each option means here stands in `docs/jobs.md`, whose table a test compares with [`SETTINGS`].
//!
//! * J1. A job that is returned means the same to fio: what fio's default is, is the default here (buffered I/O, one
//!   I/O in flight, blocks of 4 KiB, reads from front to back), and where the two cannot agree the job is refused.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use ini_core::{Item, Parser};
use sheave_base::units;

use crate::error::LoadError;
use crate::rw::Rw;
use crate::value::{self, CpuList};

/// Bytes that a job file has at most: it is written by hand.
const MAX_BYTES: u64 = 64 << 10;

/// The section whose settings are those of every job.
const GLOBAL: &str = "global";

/// One job of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The section's name.
    pub name: String,
    /// The file or block device.
    pub filename: Option<String>,
    /// Bytes of the file that are used.
    pub size: Option<u64>,
    /// Past the page cache.
    pub direct: bool,
    /// Kind of work.
    pub rw: Rw,
    /// Share of reads of `randrw`, in percent.
    pub mix: u8,
    /// Bytes of one I/O.
    pub bs: u32,
    /// I/Os in flight, per thread.
    pub depth: u32,
    /// I/Os handed over in one submit, and waited for at once.
    pub batch: u32,
    /// Threads, each with a ring of its own.
    pub threads: u32,
    /// Poll for completions.
    pub poll: bool,
    /// Register the buffers.
    pub fixed_buffers: bool,
    /// Every write is durable when it ends.
    pub dsync: bool,
    /// How long it runs.
    pub runtime: Option<Duration>,
    /// After how many I/Os of each thread it ends.
    pub ios: Option<u64>,
    /// How many I/Os a second each thread starts.
    pub rate: Option<u64>,
    /// Seed of the random offsets.
    pub seed: Option<u64>,
    /// CPUs for the threads.
    pub cpus: Option<CpuList>,
}

/// What the lines of the file said so far.
#[derive(Clone, Debug)]
struct Draft {
    job: Job,
    /// I/Os that are waited for at once.
    complete: u32,
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
            rw: Rw::Read,
            mix: 50,
            bs: 4096,
            depth: 1,
            batch: 1,
            threads: 1,
            poll: false,
            fixed_buffers: false,
            dsync: false,
            runtime: None,
            ios: None,
            rate: None,
            seed: None,
            cpus: None,
        };
        Self { job, complete: 1, time_based: false, no_map: false }
    }
}

/// An option that is known.
struct Setting {
    /// Its names in fio.
    names: &'static [&'static str],
    /// Reads its value.
    set: fn(&mut Draft, &str) -> Result<(), String>,
}

/// What a file may say.
const SETTINGS: &[Setting] = &[
    Setting { names: &["filename"], set: |draft, text| filename(text).map(|path| draft.job.filename = Some(path)) },
    Setting { names: &["size"], set: |draft, text| size(text).map(|bytes| draft.job.size = Some(bytes)) },
    Setting { names: &["direct"], set: |draft, text| switch(text).map(|on| draft.job.direct = on) },
    Setting { names: &["buffered"], set: |draft, text| switch(text).map(|on| draft.job.direct = !on) },
    Setting { names: &["rw", "readwrite"], set: |draft, text| text.parse().map(|rw| draft.job.rw = rw) },
    Setting { names: &["rwmixread"], set: |draft, text| number(text, 0, 100).map(|mix| draft.job.mix = mix as u8) },
    Setting { names: &["bs", "blocksize"], set: |draft, text| block_size(text).map(|bs| draft.job.bs = bs) },
    Setting { names: &["norandommap"], set: |draft, text| switch(text).map(|on| draft.no_map = on) },
    Setting { names: &["randseed"], set: |draft, text| number(text, 0, u64::MAX).map(|n| draft.job.seed = Some(n)) },
    Setting { names: &["ioengine"], set: |_, text| only(text, "io_uring", "a run drives Sheave's own io_uring") },
    Setting { names: &["iodepth"], set: |draft, text| count(text, 4096).map(|n| draft.job.depth = n) },
    Setting {
        names: &["iodepth_batch", "iodepth_batch_submit"],
        set: |draft, text| count(text, 4096).map(|n| draft.job.batch = n),
    },
    Setting {
        names: &["iodepth_batch_complete_min", "iodepth_batch_complete"],
        set: |draft, text| count(text, 4096).map(|n| draft.complete = n),
    },
    Setting { names: &["hipri"], set: |draft, text| switch(text).map(|on| draft.job.poll = on) },
    Setting { names: &["fixedbufs"], set: |draft, text| switch(text).map(|on| draft.job.fixed_buffers = on) },
    Setting { names: &["registerfiles"], set: |_, text| only(text, "1", "a ring here holds its file registered") },
    Setting { names: &["numjobs"], set: |draft, text| count(text, 1024).map(|n| draft.job.threads = n) },
    Setting { names: &["thread"], set: |_, text| only(text, "1", "jobs here are threads of one process") },
    Setting { names: &["group_reporting"], set: |_, text| only(text, "1", "a report here is of all threads") },
    Setting { names: &["cpus_allowed"], set: |draft, text| cpus(text).map(|list| draft.job.cpus = Some(list)) },
    Setting { names: &["sync"], set: |draft, text| sync(text).map(|on| draft.job.dsync = on) },
    Setting { names: &["time_based"], set: |draft, text| switch(text).map(|on| draft.time_based = on) },
    Setting {
        names: &["runtime"],
        set: |draft, text| value::duration(text).map(|time| draft.job.runtime = Some(time)),
    },
    Setting { names: &["number_ios"], set: |draft, text| number(text, 1, 1 << 50).map(|n| draft.job.ios = Some(n)) },
    Setting { names: &["rate_iops"], set: |draft, text| number(text, 1, 1 << 40).map(|n| draft.job.rate = Some(n)) },
];

fn number(text: &str, low: u64, high: u64) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(number) if (low..=high).contains(&number) => Ok(number),
        _ => Err(format!("expected a whole number from {low} to {high}")),
    }
}

fn count(text: &str, most: u32) -> Result<u32, String> {
    number(text, 1, u64::from(most)).map(|number| number as u32)
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => Err("expected 1 or 0".into()),
    }
}

fn only(text: &str, known: &str, why: &str) -> Result<(), String> {
    if text == known { Ok(()) } else { Err(format!("expected {known}: {why}")) }
}

fn size(text: &str) -> Result<u64, String> {
    match units::parse_size(text).map_err(|err| err.to_string())? {
        0 => Err("0 leaves nothing to read or write".into()),
        bytes => Ok(bytes),
    }
}

fn block_size(text: &str) -> Result<u32, String> {
    const MAX: u64 = 16 << 20;
    match size(text)? {
        bytes if bytes.is_multiple_of(512) && bytes <= MAX => Ok(bytes as u32),
        _ => Err("expected a multiple of 512 bytes up to 16M".into()),
    }
}

fn sync(text: &str) -> Result<bool, String> {
    match text {
        "dsync" => Ok(true),
        "none" | "0" => Ok(false),
        _ => Err("expected dsync or none".into()),
    }
}

fn cpus(text: &str) -> Result<CpuList, String> {
    value::cpu_list(text)
}

/// fio takes a colon for the end of a name, and the specs of Sheave a comma.
fn filename(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains([':', ',']) {
        true => Err("expected the path of one file, without : and ,".into()),
        false => Ok(text.into()),
    }
}

/// Where in a file something is wrong.
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

    /// Reads the text of a job file; `file` is its name, for errors.
    pub fn parse(file: &str, text: &str) -> Result<Self, LoadError> {
        let mut parser = Parser::new(text).auto_trim(true);
        let (mut draft, mut section) = (Draft::default(), None);
        while let Some(item) = parser.next() {
            let place = Place { file, line: parser.line(), section };
            match item {
                Item::Blank | Item::Comment(_) | Item::SectionEnd => {}
                Item::Property(key, _) if key.starts_with('#') => {}
                Item::Error(line) => {
                    let what = LoadError::usage(format!("{place}: {line:?} is no section"));
                    return Err(what.fix("write [NAME] on a line of its own"));
                }
                Item::Section(name) => {
                    draft.begin(name, &place)?;
                    section = Some(name);
                }
                Item::Property(key, value) => draft.set(key, value, &place)?,
            }
        }
        draft.finish(file)
    }

    /// The spec of the device that the job names.
    pub fn spec(&self) -> Option<String> {
        let path = self.filename.as_ref()?;
        let direct = if self.direct { "on" } else { "off" };
        // An existing file keeps its size; the job uses the first bytes of it.
        let new = self.size.filter(|_| !Path::new(path).exists());
        let size = new.map_or(String::new(), |bytes| format!(",size={bytes}"));
        Some(format!("file:{path}{size},direct={direct}"))
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
            let known: Vec<&str> = SETTINGS.iter().flat_map(|setting| setting.names).copied().collect();
            let what = LoadError::usage(format!("{place}: there is no option {key}"));
            return Err(what.fix(format!("known are {}", known.join(", "))));
        };
        // As in fio, an option by itself is a switch that is on.
        let text = value.unwrap_or("1");
        (setting.set)(self, text).map_err(|why| LoadError::usage(format!("{place}: {key}={text} cannot be")).fix(why))
    }

    /// What holds of the whole job.
    fn finish(self, file: &str) -> Result<Job, LoadError> {
        let Self { job, complete, time_based, no_map } = self;
        let name = &job.name;
        let refused = [
            (name.is_empty(), "there is no job", "name it in a section of its own, as [randread]"),
            (
                job.batch != complete,
                "iodepth_batch_submit and iodepth_batch_complete_min differ, and a run has one batch for both",
                "give both the same number; left out, either is 1",
            ),
            (job.batch > job.depth, "the batch is more than iodepth", "raise iodepth, or lower the batch"),
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
                job.runtime.is_some() != time_based,
                "a run ends by time with time_based and runtime, not when size has been read or written",
                "give both of them, or only number_ios",
            ),
            (
                job.runtime.is_none() && job.ios.is_none(),
                "nothing ends it: a run does not end when size has been read or written",
                "add time_based and runtime=10, or number_ios",
            ),
        ];
        match refused.into_iter().find(|(is_so, ..)| *is_so) {
            Some((_, cause, fix)) if name.is_empty() => Err(LoadError::usage(format!("{file}: {cause}")).fix(fix)),
            Some((_, cause, fix)) => Err(LoadError::usage(format!("{file}, [{name}]: {cause}")).fix(fix)),
            None => Ok(job),
        }
    }
}

#[cfg(test)]
mod tests;
