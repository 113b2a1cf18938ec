//! A lean virtio-blk driver to measure vhost-user back-ends: a thread for each queue, which keeps a number of requests
//! under way. All new requests of a batch go with one kick; a thread without completions waits for a call.
//!
//! ```text
//! vhost_load SOCKET [--rw randread|randwrite] [--bs 4096] [--depth 32] [--queues 1] [--queue-size 128] [--size BYTES]
//!            [--seconds 2] [--warm 0.3] [--pid BACK-END] [--direct] [--in-order] [--poll] [--fill] [--idle] [--json]
//! ```
//!
//! Prints requests, seconds, CPU time per request of the back-end (all its threads) and of itself, and the numbers of
//! requests for each kick and for each wait. `--direct` uses no indirect descriptors, `--in-order` negotiates IN_ORDER,
//! `--poll` spins in place of waiting. `--fill` first writes the part of the device that is used. `--idle` sends no
//! request, and prints the CPU time of the back-end.

use std::error::Error;
use std::fs;
use std::io::Write;
use std::time::{Duration, Instant};

use sheave_vhost_front::{Driver, DriverQueue, Operation, Options, RegionSpec, STATUS_OK, Segment, features};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Guest address of the data of requests, behind the memory of rings.
const DATA: u64 = 0x1_0000_0000;
/// Number of bytes that `--fill` writes with one request.
const FILLED_AT_ONCE: u32 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of the command line.
struct Wanted {
    socket: String,
    write: bool,
    bs: u32,
    depth: usize,
    queues: u16,
    queue_size: u16,
    size: u64,
    time: Duration,
    warm: Duration,
    pid: Option<u32>,
    direct: bool,
    in_order: bool,
    poll: bool,
    fill: bool,
    idle: bool,
    json: bool,
}

fn parse() -> Result<Wanted> {
    let mut wanted = Wanted {
        socket: String::new(),
        write: false,
        bs: 4096,
        depth: 32,
        queues: 1,
        queue_size: 128,
        size: 0,
        time: Duration::from_secs(2),
        warm: Duration::from_millis(300),
        pid: None,
        direct: false,
        in_order: false,
        poll: false,
        fill: false,
        idle: false,
        json: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value"));
        match arg.as_str() {
            "--rw" => wanted.write = value()? == "randwrite",
            "--bs" => wanted.bs = value()?.parse()?,
            "--depth" => wanted.depth = value()?.parse()?,
            "--queues" => wanted.queues = value()?.parse()?,
            "--queue-size" => wanted.queue_size = value()?.parse()?,
            "--size" => wanted.size = value()?.parse()?,
            "--seconds" => wanted.time = Duration::try_from_secs_f64(value()?.parse()?)?,
            "--warm" => wanted.warm = Duration::try_from_secs_f64(value()?.parse()?)?,
            "--pid" => wanted.pid = Some(value()?.parse()?),
            "--direct" => wanted.direct = true,
            "--in-order" => wanted.in_order = true,
            "--poll" => wanted.poll = true,
            "--fill" => wanted.fill = true,
            "--idle" => wanted.idle = true,
            "--json" => wanted.json = true,
            _ if !arg.starts_with('-') && wanted.socket.is_empty() => wanted.socket = arg,
            _ => return Err(format!("no option {arg}; the head of this file has them").into()),
        }
    }
    if wanted.socket.is_empty() || wanted.bs < 512 || wanted.depth == 0 || wanted.queues == 0 {
        return Err("a socket, --bs of at least 512, --depth and --queues of at least 1".into());
    }
    Ok(wanted)
}

/// The counts of a thread during the measured time.
#[derive(Default, Clone, Copy)]
struct Counts {
    requests: u64,
    kicks: u64,
    waits: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.kicks += other.kicks;
        self.waits += other.waits;
    }
}

/// A queue with its requests. Each request has a buffer of its own.
struct Load<'a> {
    wanted: &'a Wanted,
    queue: DriverQueue,
    /// Buffers that no request uses.
    idle: Vec<u64>,
    /// Buffer of the request with this head.
    buffers: Vec<u64>,
    blocks: u64,
    random: u64,
}

impl<'a> Load<'a> {
    fn new(wanted: &'a Wanted, mut queue: DriverQueue, len: u64) -> Self {
        let stride = u64::from(wanted.bs).next_multiple_of(4096);
        let first = DATA + u64::from(queue.number()) * wanted.depth as u64 * stride;
        if wanted.direct {
            queue.set_indirect(false);
        }
        Load {
            wanted,
            idle: (0..wanted.depth as u64).map(|at| first + at * stride).collect(),
            buffers: vec![0; usize::from(wanted.queue_size)],
            blocks: (len / u64::from(wanted.bs)).max(1),
            random: 0x9E37_79B9_7F4A_7C15 ^ u64::from(queue.number()),
            queue,
        }
    }

    /// Returns pseudo-random numbers, the same ones each time (xorshift).
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }

    /// Keeps requests under way until the time is up. Requests that are under way then stay so.
    fn run(&mut self, until: Instant) -> Result<Counts> {
        let (bs, mut counts) = (self.wanted.bs, Counts::default());
        let operation = if self.wanted.write { Operation::Write } else { Operation::Read };
        loop {
            let mut failed = 0;
            let (idle, buffers) = (&mut self.idle, &self.buffers);
            counts.requests += self.queue.reap(|completion| {
                failed |= completion.status;
                idle.push(buffers[usize::from(completion.token.0)]);
            })? as u64;
            if failed != STATUS_OK {
                return Err(format!("a request failed with status {failed}").into());
            }
            if self.idle.is_empty() {
                // Clocks are read here and after each batch only.
                if self.wanted.poll {
                    std::hint::spin_loop();
                } else {
                    counts.waits += 1;
                    self.queue.wait()?;
                }
                continue;
            }
            if Instant::now() >= until {
                return Ok(counts);
            }
            while let Some(address) = self.idle.pop() {
                let sector = self.random() % self.blocks * u64::from(bs / 512);
                let token = self.queue.submit(operation, sector, &[Segment { address, len: bs }])?;
                self.buffers[usize::from(token.0)] = address;
            }
            counts.kicks += u64::from(self.queue.kick()?);
        }
    }

    /// Writes all blocks once.
    fn fill(&mut self) -> Result<()> {
        let bs = u64::from(FILLED_AT_ONCE);
        let len = self.blocks * u64::from(self.wanted.bs);
        for at in (0..len / bs).map(|at| at * bs) {
            let token = self.queue.write(at / 512, DATA, FILLED_AT_ONCE)?;
            self.queue.finish(token, PATIENCE)?;
        }
        Ok(())
    }
}

/// Returns the CPU time of all threads of a process, in nanoseconds.
fn cpu(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    let of_thread = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0)
    };
    threads.flatten().map(of_thread).sum()
}

fn main() -> Result<()> {
    let wanted = parse()?;
    let stride = u64::from(wanted.bs).next_multiple_of(4096);
    let data = (u64::from(wanted.queues) * wanted.depth as u64 * stride).max(u64::from(FILLED_AT_ONCE));
    let options = Options {
        features: features::KNOWN | if wanted.in_order { features::IN_ORDER } else { 0 },
        queues: wanted.queues,
        queue_size: wanted.queue_size,
        regions: vec![RegionSpec::new(0x4000_0000, 64 << 20), RegionSpec::new(DATA, data)],
        ..Options::default()
    };
    let mut device = options.connect(&wanted.socket)?;
    // Without this, the first touch of each page would be a part of the measurement.
    device.memory().fill(DATA, data as usize, 0x5A);
    let len = device.config().ok_or("the back-end does not tell its size")?.len_bytes();
    let len = if wanted.size == 0 { len } else { len.min(wanted.size) };
    if wanted.idle {
        return idle(&wanted);
    }
    let mut loads: Vec<Load<'_>> =
        device.take_queues().into_iter().map(|queue| Load::new(&wanted, queue, len)).collect();
    if wanted.fill {
        loads[0].fill()?;
    }
    run(&mut loads, wanted.warm)?;
    let cpus = || (wanted.pid.map_or(0, cpu), cpu(std::process::id()));
    let (from, before) = (Instant::now(), cpus());
    let counts = run(&mut loads, wanted.time)?;
    let (seconds, after) = (from.elapsed().as_secs_f64(), cpus());
    report(&wanted, &device, counts, seconds, [after.0 - before.0, after.1 - before.1])
}

fn report(wanted: &Wanted, device: &Driver, counts: Counts, seconds: f64, cpu: [u64; 2]) -> Result<()> {
    let requests = counts.requests.max(1) as f64;
    let [back_end, own] = cpu.map(|nanos| nanos as f64 / requests / 1000.0);
    let (a_kick, a_wait) = (requests / counts.kicks.max(1) as f64, requests / counts.waits.max(1) as f64);
    let mut out = std::io::stdout();
    if wanted.json {
        writeln!(
            out,
            "{{\"requests\":{requests},\"seconds\":{seconds:.3},\"iops\":{:.0},\"backend_us\":{back_end:.4},\
             \"driver_us\":{own:.4},\"requests_a_kick\":{a_kick:.2},\"requests_a_wait\":{a_wait:.2},\
             \"features\":{}}}",
            requests / seconds,
            device.features()
        )?;
    } else {
        writeln!(
            out,
            "{requests} requests in {seconds:.2} s, {:.0}/s; CPU a request: back-end {back_end:.3} us, driver \
             {own:.3} us; {a_kick:.1} requests a kick, {a_wait:.1} a wait",
            requests / seconds
        )?;
    }
    Ok(())
}

/// Runs all queues for this time, the first one on this thread.
fn run(loads: &mut [Load<'_>], time: Duration) -> Result<Counts> {
    let until = Instant::now() + time;
    let [first, others @ ..] = loads else { return Err("no queues".into()) };
    std::thread::scope(|scope| {
        let others: Vec<_> = others.iter_mut().map(|load| scope.spawn(move || load.run(until))).collect();
        let mut sum = first.run(until)?;
        for other in others {
            sum += other.join().map_err(|_| "a thread panicked")??;
        }
        Ok(sum)
    })
}

/// Sends no request, and measures what the back-end does meanwhile.
fn idle(wanted: &Wanted) -> Result<()> {
    let pid = wanted.pid.ok_or("--idle wants --pid")?;
    std::thread::sleep(wanted.warm);
    let (from, before) = (Instant::now(), cpu(pid));
    std::thread::sleep(wanted.time);
    let percent = (cpu(pid) - before) as f64 / from.elapsed().as_nanos() as f64 * 100.0;
    writeln!(std::io::stdout(), "{{\"cpu_percent\":{percent:.3}}}")?;
    Ok(())
}
