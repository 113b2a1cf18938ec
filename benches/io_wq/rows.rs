//! The rows: what each times, and how its figures are printed.
#![allow(unsafe_code)] // SQEs with addresses, and a copy as the inline peer of a read.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use sheave_base::buf::Buf;
use sheave_uring::WorkDone;
use sheave_uring::io_wq::{Ends, Pool, PoolOptions, Section, Source, WorkFlags};
use sheave_uring::sqe::{IOSQE_ASYNC, IOSQE_FIXED_FILE, Sqe, opcode};

use crate::loops::{Cost, Depth, Side, flood, one_by_one, timed};
use crate::ours::Ours;
use crate::peer::Peer;
use crate::timing::{median, process_ns, spread};
use crate::{Plan, Result};

/// A row: its name, what it times in one sentence, and how.
type Row = (&'static str, &'static str, fn(&Plan) -> Result<()>);

/// All rows.
pub const ROWS: &[Row] = &[
    ("copy", "IOSQE_ASYNC reads of 4 KiB out of 64 MiB of memory (ram: and a memfd), executed by workers", |plan| {
        copy(plan, 4 << 10, FLOOD)
    }),
    ("copy-1m", "the same with reads of 1 MiB, depth 16", |plan| copy(plan, 1 << 20, Depth { depth: 16, batch: 4 })),
    ("write", "IOSQE_ASYNC buffered writes of 64 KiB to a file of 64 MiB, executed by workers", write),
    ("direct-4k", "IOSQE_ASYNC reads of 4 KiB past the page cache, depth 32; no worker waits for them", |plan| {
        direct(plan, 4 << 10)
    }),
    ("direct-16k", "the same with 16 KiB", |plan| direct(plan, 16 << 10)),
    ("direct-64k", "the same with 64 KiB", |plan| direct(plan, 64 << 10)),
    ("direct-256k", "the same with 256 KiB", |plan| direct(plan, 256 << 10)),
    ("late", "IOSQE_ASYNC reads of null:latency=100us at depth 32, of 16 and of 20 KiB", late),
    (
        "crc",
        "CRC32C of 64 KiB each, 1,024 queued, 512 results waited for, executed by workers of the pool by itself",
        crc,
    ),
    ("nop", "IOSQE_ASYNC NOPs through a ring, depth 128, batch 32, executed by workers", |plan| nop(plan, false)),
    ("nop-help", "the same where the ring may run its short items itself before it waits", |plan| nop(plan, true)),
    ("qd1", "one IOSQE_ASYNC NOP at a time from before its push to after its CQE, executed by a worker", |plan| {
        qd1(plan, false)
    }),
    ("qd1-help", "the same where the ring may run it itself before it waits", |plan| qd1(plan, true)),
    ("idle", "CPU time of the process in a second in which a ring and its workers have nothing to do", idle),
    ("cancel", "one ASYNC_CANCEL of all 8,192 pending timeouts, until the last of their CQEs is read", cancel),
];

const CHUNK: u32 = 64 << 10;
const BYTES: u64 = 64 << 20;
/// Odd, and about a golden part of the blocks: no block is next to the last.
const STEP: u64 = 0x9E37_79B1;
const FLOOD: Depth = Depth { depth: 128, batch: 32 };

/// Costs of both sides, and of the same work inline, in pairs of turns.
#[derive(Default)]
struct Pairs {
    ours: Vec<Cost>,
    kernel: Vec<Cost>,
    inline: Vec<Cost>,
}

type Turn<'a> = &'a mut dyn FnMut() -> Result<u64>;

impl Pairs {
    /// A warm-up of each, then pairs.
    fn run(plan: &Plan, ours: Turn<'_>, kernel: Turn<'_>, mut inline: Option<Turn<'_>>) -> Result<Pairs> {
        let mut pairs = Pairs::default();
        for pair in 0..=plan.pairs {
            let turn = |side: &str, turn: Turn<'_>, costs: &mut Vec<Cost>| -> Result<()> {
                let cost = if plan.runs(side) { Some(timed(turn)?) } else { None };
                costs.extend(cost.filter(|_| pair > 0));
                Ok(())
            };
            turn("ours", ours, &mut pairs.ours)?;
            turn("kernel", kernel, &mut pairs.kernel)?;
            if let Some(inline) = &mut inline {
                turn("inline", *inline, &mut pairs.inline)?;
            }
        }
        Ok(pairs)
    }

    fn print(&self) {
        let of = |costs: &[Cost], what: fn(&Cost) -> f64| median(&costs.iter().map(what).collect::<Vec<_>>());
        for (name, costs) in [("ours", &self.ours), ("kernel", &self.kernel), ("inline", &self.inline)] {
            if !costs.is_empty() {
                let (wall, cpu, own) = (of(costs, Cost::wall), of(costs, Cost::cpu), of(costs, Cost::own));
                println!("  {name:8} {wall:9.1} ns wall, {cpu:9.1} ns CPU an item, of these {own:8.1} ns own thread");
            }
        }
        let pairs = || self.ours.iter().zip(&self.kernel);
        let ratio =
            |what: fn(&Cost) -> f64| pairs().map(|(ours, kernel)| what(kernel) / what(ours)).collect::<Vec<_>>();
        if pairs().next().is_none() {
            return;
        }
        println!(
            "  throughput {} the kernel's, items a CPU second {}",
            spread(&ratio(Cost::wall), "x"),
            spread(&ratio(Cost::cpu), "x")
        );
        if !self.inline.is_empty() {
            // Against the inline turn of the same pair: what a copy or a write takes drifts more than what is added.
            let beyond = |costs: &[Cost]| {
                let pairs = costs.iter().zip(&self.inline);
                median(&pairs.map(|(cost, inline)| cost.cpu() - inline.cpu()).collect::<Vec<_>>())
            };
            let (ours, kernel) = (beyond(&self.ours), beyond(&self.kernel));
            println!("  overhead beyond inline: {ours:.0} ns, the kernel's {kernel:.0} ns: {:.2} of it", ours / kernel);
            let work = of(&self.inline, Cost::cpu);
            let [ours, kernel] = [&self.ours, &self.kernel].map(|costs| 100.0 * of(costs, Cost::own) / work);
            println!("  own thread: {ours:.1} % of the work's CPU time, the kernel's {kernel:.1} %");
        }
    }
}

fn none_helped(ours: &Ours) -> Result<()> {
    if ours.helped() > 0 {
        return Err(format!("{} items were the ring's own", ours.helped()).into());
    }
    Ok(())
}

/// The place of the `n`-th item, in blocks of this length.
fn place(n: u64, len: u32) -> u64 {
    n.wrapping_mul(STEP) % (BYTES / u64::from(len)) * u64::from(len)
}

fn copy(plan: &Plan, len: u32, depth: Depth) -> Result<()> {
    let device = sheave::open_device(&format!("ram:size={BYTES}"))?;
    let mut ours = Ours::over(plan, depth.depth, &device, false)?;
    let (mut memory, image) = (Buf::zeroed((depth.depth * len) as usize, 4096)?, vec![7_u8; BYTES as usize]);
    memory.fill(7);
    let base = memory.as_mut_ptr() as u64;
    let sqe = |op: u8, slot: u32, n: u64| Sqe {
        opcode: op,
        flags: IOSQE_ASYNC | IOSQE_FIXED_FILE,
        fd: 0,
        off: place(n, len),
        addr: base + u64::from(slot * len),
        len,
        ..Sqe::default()
    };
    // All of it has pages.
    let mut left = BYTES / u64::from(len);
    while left > 0 {
        let mut block = 0;
        left -= 1;
        // SAFETY: the memory stays until the end of the row.
        unsafe { ours.push(&Sqe { off: left * u64::from(len), flags: IOSQE_FIXED_FILE, ..sqe(opcode::WRITE, 0, 0) }) };
        ours.submit(1)?;
        ours.reap(&mut |_, res| block = res);
        assert_eq!(block, len as i32);
    }
    let mut shared = File::from(rustix::fs::memfd_create("io_wq", rustix::fs::MemfdFlags::CLOEXEC)?);
    shared.write_all(&image)?;
    let mut kernel = Peer::new(depth.depth, plan.workers, &[shared.as_raw_fd()])?;
    let read = |slot, n| sqe(opcode::READ, slot, n);
    let pairs = Pairs::run(
        plan,
        &mut || flood(&mut ours, depth, plan.turn, len as i32, read),
        &mut || flood(&mut kernel, depth, plan.turn, len as i32, read),
        Some(&mut || {
            let (mut n, start) = (0_u64, Instant::now());
            while start.elapsed() < plan.turn {
                for _ in 0..64 {
                    let (from, to) = (place(n, len) as usize, (n % u64::from(depth.depth)) as usize);
                    let to = &mut memory[to * len as usize..][..len as usize];
                    to.copy_from_slice(&image[from..from + len as usize]);
                    n += 1;
                }
            }
            Ok(n)
        }),
    )?;
    pairs.print();
    none_helped(&ours)
}

fn write(plan: &Plan) -> Result<()> {
    const DEPTH: Depth = Depth { depth: 32, batch: 8 };
    let dir = tempfile::tempdir_in(&plan.dir)?;
    let device = sheave::open_device(&format!("file:{},size={BYTES},direct=off", dir.path().join("ours").display()))?;
    let mut ours = Ours::over(plan, DEPTH.depth, &device, false)?;
    let open = |name: &str| -> Result<File> {
        let file = File::create(dir.path().join(name))?;
        file.set_len(BYTES)?;
        Ok(file)
    };
    let (theirs, plain) = (open("kernel")?, open("inline")?);
    let mut kernel = Peer::new(DEPTH.depth, plan.workers, &[theirs.as_raw_fd()])?;
    let mut memory = Buf::zeroed((DEPTH.depth * CHUNK) as usize, 4096)?;
    memory.fill(7);
    let base = memory.as_ptr() as u64;
    let sqe = |slot: u32, n: u64| Sqe {
        opcode: opcode::WRITE,
        flags: IOSQE_ASYNC | IOSQE_FIXED_FILE,
        fd: 0,
        off: n * u64::from(CHUNK) % BYTES,
        addr: base + u64::from(slot * CHUNK),
        len: CHUNK,
        ..Sqe::default()
    };
    let pairs = Pairs::run(
        plan,
        &mut || flood(&mut ours, DEPTH, plan.turn, CHUNK as i32, sqe),
        &mut || flood(&mut kernel, DEPTH, plan.turn, CHUNK as i32, sqe),
        Some(&mut || {
            let (mut n, start) = (0_u64, Instant::now());
            while start.elapsed() < plan.turn {
                let from = (n % u64::from(DEPTH.depth)) as usize * CHUNK as usize;
                plain.write_all_at(&memory[from..from + CHUNK as usize], n * u64::from(CHUNK) % BYTES)?;
                n += 1;
            }
            Ok(n)
        }),
    )?;
    pairs.print();
    none_helped(&ours)
}

/// A device that holds 32 and answers each as soon as it can.
const DEEP: Depth = Depth { depth: 32, batch: 1 };

/// Reads that begin on one thread and end without any: neither side's workers hold one until its data is there.
fn direct(plan: &Plan, len: u32) -> Result<()> {
    let dir = tempfile::tempdir_in(&plan.dir)?;
    let path = dir.path().join("direct");
    let mut file = File::create(&path)?;
    file.write_all(&vec![7; BYTES as usize])?;
    file.sync_all()?;
    let device = sheave::open_device(&format!("file:{},direct=on,readonly=on", path.display()))?;
    let mut ours = Ours::over(plan, DEEP.depth, &device, true)?;
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let theirs = rustix::fs::open(&path, flags, rustix::fs::Mode::empty())?;
    let mut kernel = Peer::new(DEEP.depth, plan.workers, &[theirs.as_raw_fd()])?;
    let mut memory = Buf::zeroed((DEEP.depth * len) as usize, 4096)?;
    let base = memory.as_mut_ptr() as u64;
    let read = |slot, n| async_read(base, slot, n, len);
    let pairs = Pairs::run(
        plan,
        &mut || flood(&mut ours, DEEP, plan.turn, len as i32, read),
        &mut || flood(&mut kernel, DEEP, plan.turn, len as i32, read),
        None,
    )?;
    pairs.print();
    held_none(&ours)
}

fn async_read(base: u64, slot: u32, n: u64, len: u32) -> Sqe {
    Sqe {
        opcode: opcode::READ,
        flags: IOSQE_ASYNC | IOSQE_FIXED_FILE,
        fd: 0,
        off: place(n, len),
        addr: base + u64::from(slot * len),
        len,
        ..Sqe::default()
    }
}

fn held_none(ours: &Ours) -> Result<()> {
    match ours.wq.counts()[0].created {
        0 => Ok(()),
        created => Err(format!("{created} workers were made for what a device does by itself").into()),
    }
}

fn late(plan: &Plan) -> Result<()> {
    let device = sheave::open_device("null:size=1T,latency=100us")?;
    let mut ours = Ours::over(plan, DEEP.depth, &device, true)?;
    let lens = [16 << 10, 20 << 10];
    let mut memory = Buf::zeroed((DEEP.depth * lens[1]) as usize, 4096)?;
    let base = memory.as_mut_ptr() as u64;
    let mut rates = [Vec::new(), Vec::new()];
    for pair in 0..=plan.pairs {
        for (rates, len) in rates.iter_mut().zip(lens) {
            let turn = || flood(&mut ours, DEEP, plan.turn, len as i32, |slot, n| async_read(base, slot, n, len));
            rates.extend(Some(1e9 / timed(turn)?.wall()).filter(|_| pair > 0));
        }
    }
    let ratio: Vec<f64> = rates[0].iter().zip(&rates[1]).map(|(short, long)| long / short).collect();
    let [short, long] = [median(&rates[0]), median(&rates[1])];
    println!("  {short:.0} reads a second of 16 KiB, {long:.0} of 20 KiB: {:.2}x", median(&ratio));
    held_none(&ours)
}

/// What a checksum of memory is, and who waits for it.
struct Sums {
    memory: Arc<Vec<u8>>,
    done: Arc<(Mutex<Vec<u32>>, Condvar)>,
}

fn sum(memory: &[u8], slot: u32) -> i32 {
    let at = (slot % CRC_CHUNKS) as usize * CHUNK as usize;
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &memory[at..at + CHUNK as usize]) as i32 & i32::MAX
}

impl Source for Sums {
    type Context = ();

    fn run(&self, _: &mut (), slot: u32, _: &Section<'_>) -> WorkDone {
        WorkDone::Result(std::hint::black_box(sum(&self.memory, slot)))
    }

    fn run_short(&self, (): &mut (), slots: &[u32], ends: &mut impl Ends) {
        for (at, &slot) in slots.iter().enumerate() {
            ends.end(at, WorkDone::Result(std::hint::black_box(sum(&self.memory, slot))));
        }
    }

    fn finish(&self, done: &[(u32, WorkDone)]) {
        let mut list = self.done.0.lock().expect("no panic");
        list.extend(done.iter().map(|end| end.0));
        // As a ring that waits for as many is woken.
        if list.len() >= CRC_DEPTH as usize / 2 {
            self.done.1.notify_one();
        }
    }
}

const CRC_DEPTH: u32 = 1024;
/// Places that are summed.
const CRC_CHUNKS: u32 = 64;

fn crc(plan: &Plan) -> Result<()> {
    const DEPTH: u32 = CRC_DEPTH;
    let memory = Arc::new((0..CRC_CHUNKS * CHUNK).map(|at| at as u8).collect::<Vec<_>>());
    let done = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
    let pool = Pool::new(PoolOptions { max_workers: [plan.workers; 2], help: false, ..PoolOptions::default() });
    let source = Sums { memory: Arc::clone(&memory), done: Arc::clone(&done) };
    let mut submitter = pool.submitter(source, DEPTH).ok_or("no room for a client")?;
    let mut workers = || {
        let (mut free, mut ended, mut items, start) = ((0..DEPTH).collect::<Vec<_>>(), Vec::new(), 0, Instant::now());
        while start.elapsed() < plan.turn || free.len() < DEPTH as usize {
            if start.elapsed() < plan.turn {
                for slot in free.drain(..) {
                    submitter.queue(slot, WorkFlags::SHORT);
                }
                submitter.commit();
            }
            let mut list = done.0.lock().expect("no panic");
            let most = (DEPTH as usize - free.len()).min(DEPTH as usize / 2);
            while list.len() < most {
                // The last ones are fewer than anybody is woken for.
                list = done.1.wait_timeout(list, Duration::from_millis(1)).expect("no panic").0;
            }
            std::mem::swap(&mut *list, &mut ended);
            drop(list);
            items += ended.len() as u64;
            free.append(&mut ended);
        }
        Ok(items)
    };
    let inline = || {
        let (mut n, start) = (0_u64, Instant::now());
        while start.elapsed() < plan.turn {
            std::hint::black_box(sum(&memory, (n % u64::from(CRC_CHUNKS)) as u32));
            n += 1;
        }
        Ok(n)
    };
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for pair in 0..=plan.pairs {
        let costs = (timed(&mut workers)?, timed(inline)?);
        if pair > 0 {
            ours.push(costs.0);
            plain.push(costs.1);
        }
    }
    let of = |costs: &[Cost], what: fn(&Cost) -> f64| median(&costs.iter().map(what).collect::<Vec<_>>());
    let (cpu, work) = (of(&ours, Cost::cpu), of(&plain, Cost::cpu));
    println!("  {:.2}x the throughput of one thread inline", of(&plain, Cost::wall) / of(&ours, Cost::wall));
    println!("  {cpu:.0} ns CPU an item; inline {work:.0} ns; overhead {:.1} %", 100.0 * (cpu / work - 1.0));
    println!("  own thread: {:.1} % of the work's CPU time", 100.0 * of(&ours, Cost::own) / work);
    Ok(())
}

fn async_nop() -> Sqe {
    Sqe { opcode: opcode::NOP, flags: IOSQE_ASYNC, fd: -1, ..Sqe::default() }
}

fn nop(plan: &Plan, help: bool) -> Result<()> {
    let mut ours = Ours::new(plan, FLOOD.depth, help)?;
    let mut kernel = Peer::new(FLOOD.depth, plan.workers, &[])?;
    let mut items = 0;
    let pairs = Pairs::run(
        plan,
        &mut || {
            let done = flood(&mut ours, FLOOD, plan.turn, 0, |_, _| async_nop())?;
            items += done;
            Ok(done)
        },
        &mut || flood(&mut kernel, FLOOD, plan.turn, 0, |_, _| async_nop()),
        None,
    )?;
    pairs.print();
    helped(&ours, items, help)
}

fn helped(ours: &Ours, items: u64, help: bool) -> Result<()> {
    if !help {
        return none_helped(ours);
    }
    println!("  the ring ran {:.1} % of the items itself", 100.0 * ours.helped() as f64 / items as f64);
    Ok(())
}

fn qd1(plan: &Plan, help: bool) -> Result<()> {
    let mut ours = Ours::new(plan, 8, help)?;
    let mut kernel = Peer::new(8, plan.workers, &[])?;
    let (mut all, mut items) = ([Vec::new(), Vec::new()], 0);
    for _ in 0..=plan.pairs {
        let turns = [one_by_one(&mut ours, plan.turn, async_nop())?, one_by_one(&mut kernel, plan.turn, async_nop())?];
        items += turns[0].len() as u64;
        for (all, times) in all.iter_mut().zip(turns) {
            all.push([50, 99].map(|percent| times[times.len() * percent / 100] as f64));
        }
    }
    for (name, times) in ["ours", "kernel"].into_iter().zip(&all) {
        let [p50, p99] = [0, 1].map(|at| median(&times[1..].iter().map(|time| time[at]).collect::<Vec<_>>()));
        println!("  {name:8} p50 {p50:8.0} ns, p99 {p99:8.0} ns");
    }
    let ratio: Vec<f64> = all[0].iter().zip(&all[1]).skip(1).map(|(ours, kernel)| ours[0] / kernel[0]).collect();
    println!("  p50 {:.2} of the kernel's", median(&ratio));
    helped(&ours, items, help)
}

fn idle(plan: &Plan) -> Result<()> {
    let mut ours = Ours::new(plan, FLOOD.depth, true)?;
    flood(&mut ours, FLOOD, plan.turn, 0, |_, _| async_nop())?;
    std::thread::sleep(Duration::from_millis(100));
    let before = process_ns();
    std::thread::sleep(Duration::from_secs(1));
    println!("  {:.3} ms of CPU time in 1 s", (process_ns() - before) / 1e6);
    Ok(())
}

fn cancel(plan: &Plan) -> Result<()> {
    const TIMEOUTS: u32 = 8192;
    let mut ours = {
        let wq = sheave_uring::IoWq::builder().build()?;
        let ring = sheave_uring::Ring::builder().entries(2 * TIMEOUTS).io_wq(&wq).build()?;
        Ours { ring, wq }
    };
    let mut kernel = Peer::new(2 * TIMEOUTS, plan.workers, &[])?;
    let hour = [3600_i64, 0];
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..=plan.pairs {
        all[0].push(cancel_all(&mut ours, TIMEOUTS, &hour)?);
        all[1].push(cancel_all(&mut kernel, TIMEOUTS, &hour)?);
    }
    let [ours, kernel] = all.map(|times| median(&times[1..]));
    println!("  ours {:.3} ms, the kernel's {:.3} ms: {:.3} of it", ours / 1e6, kernel / 1e6, ours / kernel);
    Ok(())
}

/// Time of the cancel, in ns.
fn cancel_all(side: &mut dyn Side, timeouts: u32, hour: &[i64; 2]) -> Result<f64> {
    const CANCEL_ALL_ANY: u32 = 1 << 0 | 1 << 2;
    let timeout =
        Sqe { opcode: opcode::TIMEOUT, fd: -1, addr: hour.as_ptr() as u64, len: 1, user_data: 1, ..Sqe::default() };
    for _ in 0..timeouts {
        // SAFETY: the time is read when it is submitted.
        unsafe { side.push(&timeout) };
    }
    side.submit(0)?;
    let start = Instant::now();
    let cancel = Sqe { opcode: opcode::ASYNC_CANCEL, fd: -1, op_flags: CANCEL_ALL_ANY, user_data: 2, ..Sqe::default() };
    // SAFETY: a cancel names no memory.
    unsafe { side.push(&cancel) };
    let (mut ended, mut said) = (0, 0);
    while ended <= timeouts {
        side.submit(1)?;
        side.reap(&mut |user_data, res| {
            ended += 1;
            if user_data == 2 {
                said = res;
            }
        });
    }
    if said != timeouts as i32 {
        return Err(format!("the cancel found {said}, not {timeouts}").into());
    }
    Ok(start.elapsed().as_nanos() as f64)
}
