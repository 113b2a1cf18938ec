//! Arguments of `sheave bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use sheave::RingBuilder;
use sheave_load::{EngineOpts, Job, LoadError, Rw, Work};

use super::progress::ProgressStyle;
use super::switch::Switch;
use super::value;

const EXAMPLES: &str = "\
Devices:
  null:size=1T[,latency=10us]     instant, keeps nothing
  ram:size=1G                     sparse memory
  file:PATH[,size=1G][,direct=on] a file or block device; size= makes a new file
  partition:start=1M,over=SPEC    a part of another device; partition:2,over=SPEC by its table
  linear:over=SPEC+SPEC           devices end to end
  fault:KIND=SHARE,...,over=SPEC  another device with faults, as error=0.01
  vol:POOL#NAME                   a thin volume (sheave pool, sheave volume)
  vol:ram:size=1G, vol:null:size=1T  one in a pool that is made for the run

Examples:
  sheave bench file:/tmp/sheave.img,size=256M --rw randrw --verify
        make a file, fill it, read and write at random, prove that every block is right
  sheave bench null:size=1T --bs 512 --depth 128 --batch 32 --poll --compare kernel
        what an I/O costs in Sheave, and what a NOP costs in the kernel's io_uring, on one core
  sheave bench file:/dev/nvme0n1 --rw randread --depth 32 --threads 4 --runtime 30s --json
  sheave bench null:size=1T --bs 512 --depth 128 --batch 32 --poll --stamp-age 0
        with a clock read for each I/O
  sheave bench ram:size=1G --bs 512 --depth 128 --compare memcpy
  sheave bench vol:null:size=1T --range 1G --fill --rw randwrite --depth 128 --batch 32 --poll --compare raw
        what a thin volume adds to an I/O
  sheave bench --job jobs/bio-cache.fio null:size=1T
        a fio job file, on another device than it names
  sheave bench vol:pool.img#disk --fill --overwrite --rw randwrite --dsync --compare raw

Sizes take k, M, G, T (powers of 1024); counts take k, M (powers of 1000); times take us, ms, s.
Exit code: 0 done, 1 an I/O failed or a block was wrong, 2 the command line makes no sense.";

/// Arguments of `sheave bench`.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXAMPLES, arg_required_else_help = true)]
pub struct BenchArgs {
    /// The device, for example null:size=1T, ram:size=1G or file:PATH,size=1G.
    #[arg(value_name = "SPEC", default_value = "", hide_default_value = true, required_unless_present = "job")]
    pub spec: String,

    /// Do what this fio job file says (docs/reference/jobs.md has the options that are known). SPEC then takes the
    /// place of its filename, --runtime or --ios that of its length, --depth that of its depth, --cpu that of its CPUs.
    #[arg(long, value_name = "FILE", help_heading = "Work",
          conflicts_with_all = ["rw", "bs", "mix", "range", "dsync", "seed", "batch", "batch_complete", "threads",
                                "poll", "fixed_buffers", "rate"])]
    pub job: Option<PathBuf>,

    /// What to do to it.
    #[arg(long, value_parser = value::rw(), default_value = "randread", help_heading = "Work")]
    pub rw: Rw,

    /// Bytes of one I/O.
    #[arg(long, value_name = "SIZE", value_parser = value::block_size, default_value = "4k", help_heading = "Work")]
    pub bs: u32,

    /// Share of reads in `randrw`, in percent.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100),
          default_value_t = 50, help_heading = "Work")]
    pub mix: u8,

    /// Use only the first SIZE bytes of the device.
    #[arg(long, value_name = "SIZE", value_parser = value::size, help_heading = "Work")]
    pub range: Option<u64>,

    /// Every write is durable when it ends (RWF_DSYNC).
    #[arg(long, help_heading = "Work")]
    pub dsync: bool,

    /// Seed of the random offsets and of the mix; the same seed makes the same run.
    #[arg(long, default_value_t = 1, help_heading = "Work")]
    pub seed: u64,

    /// I/Os in flight, per thread [default: 32, or as the job says].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Ring")]
    pub depth: Option<u32>,

    /// I/Os handed over in one submit, and waited for at once [default: a quarter of the depth, at most 32].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Ring")]
    pub batch: Option<u32>,

    /// I/Os waited for at once, when no more may be in flight [default: as many as are handed over, or as the job
    /// says].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = "Ring")]
    pub batch_complete: Option<u32>,

    /// Send NOPs of the ring in place of reads, which no device gets: what the ring costs by itself (null: only).
    #[arg(long, help_heading = "Ring")]
    pub nop: bool,

    /// Threads, each with a ring of its own, each on a CPU of its own.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024),
          default_value_t = 1, help_heading = "Ring")]
    pub threads: u32,

    /// Poll for completions instead of sleeping.
    #[arg(long, value_enum, value_name = "ON|OFF", default_value = "off", hide_default_value = true,
          num_args = 0..=1, require_equals = true, default_missing_value = "on",
          hide_possible_values = true, help_heading = "Ring")]
    pub poll: Switch,

    /// Register the buffers with the ring once instead of passing their addresses.
    #[arg(long, value_enum, value_name = "ON|OFF", default_value = "on",
          num_args = 0..=1, require_equals = true, default_missing_value = "on",
          hide_possible_values = true, help_heading = "Ring")]
    pub fixed_buffers: Switch,

    /// Keep the ring's per-queue statistics; a run without shows what they cost.
    #[arg(
        long,
        value_enum,
        value_name = "ON|OFF",
        default_value = "on",
        hide_possible_values = true,
        help_heading = "Ring"
    )]
    pub stats: Switch,

    /// How old the time stamp may be that I/Os of a batch share in statistics: a time, 0 (each reads the clock) or
    /// unbounded [default: 50us].
    #[arg(long, value_name = "TIME", value_parser = value::stamp_age, help_heading = "Ring")]
    pub stamp_age: Option<Duration>,

    /// CPUs to place the threads on, in order, such as 1 or 0-3 [default: those of the process, the last first].
    #[arg(long, value_name = "LIST", value_parser = value::cpu_list, help_heading = "Ring")]
    pub cpu: Option<value::CpuList>,

    /// Pin each thread to its CPU.
    #[arg(long, value_enum, value_name = "ON|OFF", default_value = "on",
          num_args = 0..=1, require_equals = true, default_missing_value = "on",
          hide_possible_values = true, help_heading = "Ring")]
    pub pin: Switch,

    /// Stop after this time [default: 5s, unless --ios is given].
    #[arg(long, value_name = "TIME", value_parser = value::duration, help_heading = "Length and speed")]
    pub runtime: Option<Duration>,

    /// Stop after this many I/Os (of all threads together).
    #[arg(long, value_name = "COUNT", value_parser = value::count, help_heading = "Length and speed")]
    pub ios: Option<u64>,

    /// Start this many I/Os a second (of all threads together), evenly spaced. The latency of an I/O then
    /// counts from the moment it was due, and waiting for that moment costs CPU time.
    #[arg(long, value_name = "COUNT", value_parser = value::count, help_heading = "Length and speed")]
    pub rate: Option<u64>,

    /// Give every block its address, a generation and a checksum, and check each block that is read. Fills the
    /// device first when the run reads; ends by reading back all that was written. Overwrites the device.
    #[arg(long, help_heading = "Checking")]
    pub verify: bool,

    /// Write the whole range once before the run, so that it overwrites [default: for ram: and for a file that the
    /// run makes, whose unwritten blocks cost little to read and more to write]. Overwrites the device.
    #[arg(long, help_heading = "Checking")]
    pub fill: bool,

    /// Go on after this many failed I/Os [default: stop at the first].
    #[arg(long, value_name = "COUNT", value_parser = value::count, help_heading = "Checking")]
    pub max_errors: Option<u64>,

    /// Allow a run that writes to a block device, to a volume that has data, or to a file that holds anything that
    /// bench did not write itself.
    #[arg(long, help_heading = "Checking")]
    pub overwrite: bool,

    /// Run this beside Sheave, in turns, on the same core.
    #[arg(long, value_enum, value_name = "PEER", help_heading = "Comparing")]
    pub compare: Option<Peer>,

    /// Pairs of turns with --compare; --runtime is what each side gets in all [default: 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000),
          help_heading = "Comparing")]
    pub pairs: Option<u32>,

    /// For vol: in memory.
    #[command(flatten)]
    pub vol: super::vol::VolArgs,

    /// Record the last requests of each thread in this directory, for `sheave trace export --from DIR`. Replaces the
    /// traces that are there.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub trace: Option<PathBuf>,

    /// Print one JSON object to stdout instead of the table.
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// How to show the run while it goes on.
    #[arg(long, value_enum, default_value = "auto", help_heading = "Output")]
    pub progress: ProgressStyle,

    /// Settings of the job file.
    #[arg(skip)]
    pub says: Option<JobSays>,
}

/// Settings of a job file that no argument corresponds to.
#[derive(Clone, Debug, Default)]
pub struct JobSays {
    /// Amount of work, unless the command line limits it.
    pub work: Option<Work>,
    /// Number of completions to wait for at once.
    pub complete: u32,
    /// File whose pages are dropped from the page cache before the run.
    pub invalidates: Option<PathBuf>,
    /// Differences between the run and the job file, for the report.
    pub notices: Vec<String>,
}

impl BenchArgs {
    /// Fills in the settings of the job file, if there is one. Values given on the command line stay.
    pub fn with_job(mut self) -> Result<Self, LoadError> {
        let Some(path) = self.job.clone() else { return Ok(self) };
        let job = Job::open(&path)?;
        let from_job = self.spec.is_empty();
        if from_job {
            let missing = || {
                LoadError::usage(format!("{}, [{}] names no file", path.display(), job.name))
                    .fix("add filename=PATH, or name the device after the job file, as null:size=1T")
            };
            self.spec = job.spec().ok_or_else(missing)?;
            job.refuse_missing(&path)?;
        }
        let threads = u64::from(job.threads);
        let mut says = JobSays { complete: job.complete, ..JobSays::default() };
        if self.runtime.is_none() && self.ios.is_none() {
            self.runtime = job.runtime;
            says.work = Some(job.work);
        }
        if from_job && job.invalidate && !job.direct {
            says.invalidates = job.filename.clone().map(PathBuf::from);
        }
        (self.rw, self.bs, self.mix, self.range) = (job.rw, job.bs, job.mix, job.size);
        // Batches cannot be larger than the depth, which may have been lowered.
        let depth = self.depth.unwrap_or(job.depth);
        says.complete = says.complete.min(depth);
        (self.depth, self.batch, self.threads) = (Some(depth), Some(job.batch.min(depth)), job.threads);
        (self.poll, self.fixed_buffers) = (job.poll.into(), job.fixed_buffers.into());
        self.dsync = job.dsync;
        self.seed = job.seed.unwrap_or(self.seed);
        self.rate = job.rate.map(|rate| rate.saturating_mul(threads));
        if self.cpu.is_none()
            && let Some(cpus) = job.cpus
        {
            let (cpus, notice) = cpus.on_this_machine();
            says.notices.extend(notice.map(|notice| format!("[{}]: {notice}", job.name)));
            self.cpu = Some(cpus);
        }
        self.says = Some(says);
        Ok(self)
    }

    /// Returns the number of I/Os in flight, for each thread.
    pub fn depth(&self) -> u32 {
        self.depth.unwrap_or(32)
    }

    /// Returns the number of pairs of turns in a comparison.
    pub fn pairs(&self) -> u32 {
        self.pairs.unwrap_or(5)
    }

    /// Returns the options of a thread's engine.
    pub fn engine(&self) -> EngineOpts {
        EngineOpts {
            depth: self.depth(),
            bs: self.bs,
            poll: self.poll.is_on(),
            stats: self.stats.is_on(),
            fixed_buffers: self.fixed_buffers.is_on(),
            dsync: self.dsync,
            ioprio: 0,
        }
    }
}

impl BenchArgs {
    /// Returns the builder of a thread's ring. `pieces` is the largest number of pieces of an I/O.
    pub fn ring(&self, pieces: u32) -> RingBuilder {
        let mut ring = self.engine().ring(pieces);
        if let Some(age) = self.stamp_age {
            ring = ring.stamp_age(age);
        }
        ring
    }
}

/// What to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    /// The kernel's io_uring by itself: NOP for null: and ram:, the same I/O on the same file for file:.
    Kernel,
    /// The device itself, without the thin volume (vol: only).
    Raw,
    /// A plain loop that copies the same random blocks (ram: only).
    Memcpy,
}
