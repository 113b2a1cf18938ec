//! The plan of a run: the arguments are checked in combination, then against the device.
//!
//! Everything that can be refused is refused here, before a byte is written.

use std::path::Path;
use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_daemon::failure::Failure;
use sheave_load::pace::Pace;
use sheave_load::verify::generations::MAX_BLOCKS;
use sheave_load::{Rw, cpu};

use crate::args::{BenchArgs, Peer};
use crate::bench::content;
use crate::bench::storage::Target;

/// A consistent plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub args: BenchArgs,
    /// The kind of device that the spec names.
    pub target: Target,
    /// Number of I/Os per submission.
    pub batch: u32,
    /// Number of I/Os that a wait waits for.
    pub complete: u32,
    /// Time limit; `None` if only the number of I/Os limits the run.
    pub runtime: Option<Duration>,
    /// CPU of each thread; empty if threads are not pinned.
    pub cpus: Vec<usize>,
    /// True if the range is written before the run.
    pub fill: bool,
}

/// The part of the device that one thread uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Offset of the first byte.
    pub base: u64,
    /// Length in blocks of `bs` bytes each.
    pub blocks: u64,
}

impl Plan {
    /// Checks the arguments.
    pub fn new(args: &BenchArgs) -> Result<Self, Failure> {
        let target = Target::of(&args.spec)?;
        let batch = match args.batch {
            Some(batch) if batch > args.depth() => {
                return Err(Failure::usage(format!("--batch {batch} is more than --depth {}", args.depth()))
                    .fix("a batch is a part of what is in flight: raise --depth or lower --batch"));
            }
            Some(batch) => batch,
            None => (args.depth() / 4).clamp(1, 32),
        };
        let complete = match args.batch_complete {
            Some(complete) if complete > args.depth() => {
                let cause = format!("--batch-complete {complete} is more than --depth {}", args.depth());
                return Err(Failure::usage(cause).fix("no more can end at once than are in flight: lower it"));
            }
            Some(complete) => complete,
            None => args.says.as_ref().map_or(batch, |says| says.complete),
        };
        refuse_contradictions(args, &target)?;
        let ends = args.ios.is_some() || args.says.as_ref().is_some_and(|says| says.work.is_some());
        let runtime = args.runtime.or((!ends).then_some(Duration::from_secs(5)));
        let cpus = if args.pin.is_on() { place(args)? } else { Vec::new() };
        // A read of a block that was never written takes less time, and the first write of a block takes more. Both
        // would falsify the result.
        let fresh = match &target {
            Target::Ram => args.rw.reads(),
            Target::File(path) => !path.exists() && (args.rw != Rw::Write || args.compare.is_some()),
            Target::Volume(place) => place.pool.is_volatile() && (args.rw.reads() || args.compare.is_some()),
            Target::Null | Target::Other => false,
        };
        let fill = !args.verify && (args.fill || fresh);
        refuse_to_overwrite(args, &target, fill)?;
        Ok(Self { args: args.clone(), target, batch, complete, runtime, cpus, fill })
    }

    /// Returns the length of the range that the run uses, in whole blocks of `bs`.
    pub fn range(&self, size_bytes: u64, logical_block: u32) -> Result<u64, Failure> {
        let bs = self.args.bs;
        if !bs.is_multiple_of(logical_block) {
            return Err(Failure::usage(format!(
                "--bs {bs} is not a multiple of the device's block of {logical_block} bytes"
            ))
            .fix(format!("use --bs {logical_block} or a multiple of it")));
        }
        let asked = self.args.range.unwrap_or(size_bytes);
        if asked > size_bytes {
            return Err(Failure::usage(format!(
                "--range {asked} goes beyond the device, which has {size_bytes} bytes"
            ))
            .fix("leave --range out to use the whole device"));
        }
        let blocks = asked / u64::from(bs);
        if blocks < u64::from(self.args.threads) {
            return Err(Failure::usage(format!(
                "{asked} bytes hold {blocks} blocks of {bs} bytes, too few for {} thread(s)",
                self.args.threads
            ))
            .fix("use a larger device (size=...), or a smaller --bs"));
        }
        if self.args.verify && blocks > MAX_BLOCKS {
            return Err(Failure::usage(format!(
                "--verify keeps generations of {MAX_BLOCKS} blocks at most in memory; here are {blocks}"
            ))
            .fix(format!("use a larger --bs, or --range {}", MAX_BLOCKS * u64::from(bs))));
        }
        Ok(blocks * u64::from(bs))
    }

    /// Sets the number of I/Os from the work of a job file, once the range is known.
    pub fn take_work(&mut self, range: u64) {
        let Some(work) = self.args.says.as_ref().and_then(|says| says.work) else { return };
        let each = work.ios(range, self.args.bs);
        self.args.ios = each.map(|ios| ios.saturating_mul(u64::from(self.args.threads)));
    }

    /// Returns the part of the range that thread `index` uses. Threads with random I/O share the range unless they
    /// verify: if two of them wrote the same block, neither would know its contents.
    pub fn part(&self, range: u64, index: u32) -> Part {
        let blocks = range / u64::from(self.args.bs);
        if self.args.rw.random() && !self.args.verify {
            return Part { base: 0, blocks };
        }
        self.slice(blocks, index)
    }

    /// Returns the part that thread `index` fills.
    pub fn fill_part(&self, range: u64, index: u32) -> Part {
        self.slice(range / u64::from(self.args.bs), index)
    }

    fn slice(&self, blocks: u64, index: u32) -> Part {
        let threads = u64::from(self.args.threads);
        let cut = |at: u64| (u128::from(blocks) * u128::from(at) / u128::from(threads)) as u64;
        let (from, to) = (cut(u64::from(index)), cut(u64::from(index) + 1));
        Part { base: from * u64::from(self.args.bs), blocks: to - from }
    }

    /// Returns the maximum number of I/Os of thread `index`.
    pub fn ios(&self, index: u32) -> u64 {
        let Some(total) = self.args.ios else { return u64::MAX };
        let threads = u64::from(self.args.threads);
        total / threads + u64::from(u64::from(index) < total % threads)
    }

    /// Returns a warning if the run reads holes among the first `range` bytes of a file.
    pub fn holes(&self, range: u64) -> Option<String> {
        let Target::File(path) = &self.target else { return None };
        path.metadata().ok().filter(|meta| meta.is_file() && self.args.rw.reads())?;
        let data = content::data_bytes(&std::fs::File::open(path).ok()?, range).ok()?;
        let percent = percent_of(range.saturating_sub(data), range);
        (percent > 0).then(|| {
            format!("{percent} % of the range is holes, which read without touching the disk; --fill writes it first")
        })
    }

    /// Returns true if the run writes anything, before or during its measured part.
    pub fn writes(&self) -> bool {
        self.fill || writes(&self.args)
    }

    /// Returns the pace of one thread, starting now.
    pub fn pace(&self, clock: &Clock) -> Pace {
        match self.args.rate {
            Some(rate) => Pace::rate(clock, (rate / u64::from(self.args.threads)).max(1)),
            None => Pace::Unlimited,
        }
    }
}

/// Returns the size of a part of a range in percent, rounded down.
pub fn percent_of(part: u64, range: u64) -> u64 {
    (u128::from(part) * 100 / u128::from(range.max(1))) as u64
}

fn writes(args: &BenchArgs) -> bool {
    args.rw.writes() || args.verify || args.fill
}

/// Fails if the run would overwrite existing data. A pool in memory has none, because it is created for the run. The
/// data of a volume in an existing pool is checked once the pool is open.
fn refuse_to_overwrite(args: &BenchArgs, target: &Target, fill: bool) -> Result<(), Failure> {
    match target {
        _ if args.overwrite => Ok(()),
        Target::Volume(place) if place.pool.is_volatile() => {
            place.pool.leaves().iter().try_for_each(|leaf| content::refuse_to_overwrite(leaf))
        }
        Target::Volume(_) => Ok(()),
        _ if fill || writes(args) => content::refuse_to_overwrite(&args.spec),
        _ => Ok(()),
    }
}

/// Refuses options that would have no effect, because a user who gives one expects an effect.
fn refuse_without_effect(args: &BenchArgs, target: &Target) -> Result<(), Failure> {
    let in_memory = matches!(target, Target::Volume(place) if place.pool.is_volatile());
    let of_the_pool = "is for the pool that a run makes for vol: in memory";
    let refused = [
        (args.pairs.is_some() && args.compare.is_none(), "--pairs counts the turns of a comparison", "add --compare"),
        (
            args.vol.block.is_some() && !in_memory,
            &format!("--block {of_the_pool}"),
            "use vol:ram:size=1G, or leave --block out",
        ),
        (
            args.vol.checksum.is_some() && !in_memory,
            &format!("--checksum {of_the_pool}"),
            "use vol:ram:size=1G, or leave --checksum out",
        ),
        (
            args.nop && *target != Target::Null,
            "--nop sends NOPs, which reach no device",
            "name null:size=1T, or leave --nop out",
        ),
        (
            args.nop && (writes(args) || args.trace.is_some()),
            "--nop reads and writes nothing, and there is nothing to trace",
            "leave --nop out, or the option that writes or traces",
        ),
        (args.dsync && !writes(args), "--dsync makes writes durable, and this run only reads", "add --rw randwrite"),
        (
            args.stamp_age.is_some() && !args.stats.is_on(),
            "--stamp-age is about time stamps for statistics, and --stats is off",
            "leave one of them out",
        ),
        (
            args.cpu.is_some() && !args.pin.is_on(),
            "--cpu says where threads are pinned, and --pin is off",
            "leave one of them out; taskset places threads without pinning each",
        ),
    ];
    match refused.into_iter().find(|(is_so, ..)| *is_so) {
        Some((_, cause, fix)) => Err(Failure::usage(cause).fix(fix)),
        None => Ok(()),
    }
}

/// Returns the failure for a device that cannot be polled.
pub fn no_poll(what: &str) -> Failure {
    Failure::usage(format!("--poll: {what} cannot be polled for completions"))
        .fix("leave it out; null: and ram: can be polled, and block devices with poll queues of the kernel's")
}

/// Refuses combinations of options that exclude each other.
fn refuse_contradictions(args: &BenchArgs, target: &Target) -> Result<(), Failure> {
    let forgets = match target {
        Target::Null => true,
        Target::Volume(place) => place.pool.leaves().iter().any(|leaf| leaf.starts_with("null:")),
        _ => false,
    };
    if args.verify && forgets {
        return Err(Failure::usage("--verify makes no sense on null:, which keeps nothing")
            .fix("verify ram:, file: or a device stacked on them"));
    }
    refuse_without_effect(args, target)?;
    if args.mix != 50 && args.rw != Rw::Randrw {
        return Err(Failure::usage(format!(
            "--mix sets the share of reads of randrw, but the run is {}",
            args.rw.name()
        ))
        .fix("add --rw randrw"));
    }
    if let Target::File(path) = target
        && path.as_os_str().is_empty()
    {
        return Err(
            Failure::usage("the spec names no file").fix("write file:PATH, for example file:/tmp/sheave.img,size=1G")
        );
    }
    if let Target::File(path) = target
        && args.poll.is_on()
        && !target.is_block_device()
    {
        return Err(no_poll(&path.display().to_string()));
    }
    let Some(peer) = args.compare else { return Ok(()) };
    let alone = "a comparison takes turns on one core";
    if args.threads > 1 {
        return Err(Failure::usage(format!("--compare and --threads {}: {alone}", args.threads)).fix("use --threads 1"));
    }
    if args.verify || args.rate.is_some() {
        return Err(Failure::usage("--compare measures speed; --verify and --rate change what is measured")
            .fix("do them in a run of their own"));
    }
    if args.ios.is_some() {
        return Err(Failure::usage("--compare gives both sides the same time, not the same number of I/Os")
            .fix("use --runtime instead of --ios"));
    }
    match (peer, target) {
        (Peer::Memcpy, Target::Ram) if !args.rw.writes() => Ok(()),
        (Peer::Memcpy, _) => Err(Failure::usage("--compare memcpy copies out of memory, as reads from ram: do")
            .fix("use it with a ram: device and --rw randread or read")),
        (Peer::Raw, Target::Volume(_)) => Ok(()),
        (Peer::Raw, _) => Err(Failure::usage("--compare raw puts a volume beside its device, and this is a device")
            .fix("use it with vol:, as in vol:ram:size=1G")),
        (Peer::Kernel, Target::Volume(_)) => Err(Failure::usage("the kernel has nothing like this volume")
            .fix("use --compare raw; and compare the device itself with --compare kernel in a run of its own")),
        (Peer::Kernel, Target::Other) => Err(Failure::usage("the kernel has nothing like this device to compare with")
            .fix("compare null:, ram: or file:")),
        (Peer::Kernel, _) => Ok(()),
    }
}

/// Returns a CPU for each thread: the CPUs of --cpu in their order, otherwise the allowed CPUs from the last one down,
/// because interrupts and other programs prefer the first.
fn place(args: &BenchArgs) -> Result<Vec<usize>, Failure> {
    let choice = match &args.cpu {
        Some(list) => list.allowed()?.to_vec(),
        None => cpu::allowed().into_iter().rev().collect(),
    };
    let threads = args.threads as usize;
    if args.cpu.is_some() && choice.len() < threads {
        return Err(Failure::usage(format!("--cpu names {} CPU(s) for {threads} threads", choice.len()))
            .fix("name a CPU for each thread, or leave --cpu out"));
    }
    // If there are more threads than CPUs, they are not pinned.
    Ok(if choice.len() < threads { Vec::new() } else { choice[..threads].to_vec() })
}

/// Opens the peer's file with the flags that make it behave like the device.
pub fn open_peer_file(path: &Path, write: bool, direct: bool, dsync: bool) -> Result<std::fs::File, Failure> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(if direct { libc::O_DIRECT } else { 0 } | if dsync { libc::O_DSYNC } else { 0 })
        .open(path)
        .map_err(|err| {
            Failure::run(format!("cannot open {} for the kernel's side of the comparison: {err}", path.display()))
                .fix("`sheave doctor PATH` tells what the file supports")
        })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn plan(line: &str) -> Result<Plan, Failure> {
        let words = ["sheave", "bench", "--pin=off"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).expect("the line parses").command {
            Command::Bench(args) => Plan::new(&args),
            _ => unreachable!("the line says bench"),
        }
    }

    fn good(line: &str) -> Plan {
        plan(line).expect("the plan is good")
    }

    #[test]
    fn targets() {
        let of = |spec| Target::of(spec).expect(spec);
        assert_eq!(of("null:size=1T"), Target::Null);
        assert_eq!(of("ram:size=1G"), Target::Ram);
        assert_eq!(of("file:/a/b,size=1G"), Target::File("/a/b".into()));
        assert_eq!(of("fault:error=0.1,over=ram:size=1G"), Target::Other);
        assert!(matches!(of("vol:pool.img#disk"), Target::Volume(place) if place.name == "disk"));
        assert!(Target::of("vol:pool.img").is_err());
    }

    #[test]
    fn defaults() {
        let plan = good("null:size=1T");
        assert_eq!((plan.batch, plan.runtime, plan.fill), (8, Some(Duration::from_secs(5)), false));
        assert_eq!(good("null: --depth 1").batch, 1);
        assert_eq!(good("null: --depth 128").batch, 32);
        assert_eq!(good("null: --ios 5").runtime, None);
        assert!(good("ram:size=1G").fill);
        assert!(!good("ram:size=1G --verify").fill);
        assert!(!good("ram:size=1G --rw write").fill);
        assert!(good("vol:ram:size=1G").fill && good("vol:ram:size=1G --rw write --compare raw").fill);
        assert!(!good("vol:ram:size=1G --rw randwrite").fill, "first writes are what this measures");
        assert!(!good("vol:pool.img#disk").fill, "it has data of somebody's");
    }

    #[test]
    fn contradictions_name_a_fix() {
        for line in [
            "null: --depth 4 --batch 8",
            "null: --verify",
            "null: --mix 70",
            "null: --compare memcpy",
            "null: --compare kernel --threads 2",
            "null: --compare kernel --ios 100",
            "ram:size=1G --compare memcpy --rw randwrite",
            "ram:size=1G --compare kernel --verify",
            "fault:over=ram: --compare kernel",
            "ram:size=1G --compare raw",
            "vol:ram:size=1G --compare kernel",
            "vol:null:size=1T --verify",
            "file: --rw read",
            "file:,size=1G",
        ] {
            let failure = plan(line).expect_err(line);
            assert!(failure.to_string().contains("fix: "), "{line}: {failure}");
        }
    }

    #[test]
    fn ranges() {
        let plan = good("null: --bs 4k");
        assert_eq!(plan.range(10_000, 512).expect("fits"), 8192);
        assert!(plan.range(10_000, 8192).is_err());
        assert!(plan.range(4095, 512).is_err());
        assert!(good("null: --range 1M").range(4096, 512).is_err());
        assert_eq!(good("null: --range 1M").range(1 << 30, 512).expect("fits"), 1 << 20);
        assert!(good("ram:size=1G --bs 512 --verify").range(1 << 40, 512).is_err());
    }

    #[test]
    fn parts_cover_the_range_once() {
        let plan = good("ram:size=1G --threads 3 --rw write --bs 512");
        let parts: Vec<Part> = (0..3).map(|index| plan.part(512 * 100, index)).collect();
        assert_eq!(parts.iter().map(|part| part.blocks).sum::<u64>(), 100);
        assert_eq!(parts[1].base, parts[0].blocks * 512);
        assert_eq!(parts[2].base, parts[1].base + parts[1].blocks * 512);
        assert_eq!(good("ram:size=1G --threads 3").part(4096 * 9, 2), Part { base: 0, blocks: 9 });
    }

    #[test]
    fn ios_are_shared_out_exactly() {
        let plan = good("null: --threads 3 --ios 11");
        assert_eq!((0..3).map(|index| plan.ios(index)).collect::<Vec<_>>(), [4, 4, 3]);
        assert_eq!(good("null:").ios(0), u64::MAX);
    }
}
