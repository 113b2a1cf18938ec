//! A lean NBD client to measure servers: one thread, some connections, each with a number of requests under way. All
//! new requests go in one send, and one receive takes what has arrived; the data of replies is skipped.
//!
//! ```text
//! nbd_load --unix PATH|--tcp HOST:PORT [--export NAME] [--rw randread|randwrite] [--bs 4096] [--depth 16] [--conns 1]
//!          [--size BYTES] [--time 2] [--warm 0.3] [--pid SERVER] [--fill] [--idle] [--json]
//! ```
//!
//! Prints requests, seconds, CPU time per request of the server (all its threads, and the processes it has started) and
//! of itself, and latencies. `--fill` writes the whole export once before. `--idle` sends no request for that time, and
//! prints the CPU time and the memory that the server needs for the connections.

use std::collections::VecDeque;
use std::error::Error;
use std::fs;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const RECEIVED: usize = 1 << 20;
/// Most pieces of one send.
const PIECES: usize = 1000;
const HEADER: usize = 28;
const REPLY: usize = 16;
const FILLED_AT_ONCE: usize = 1 << 20;

/// Options of the command line.
struct Options {
    unix: Option<String>,
    tcp: Option<String>,
    export: String,
    write: bool,
    bs: usize,
    depth: usize,
    conns: usize,
    size: u64,
    time: Duration,
    warm: Duration,
    pid: Option<u32>,
    fill: bool,
    idle: bool,
    json: bool,
}

fn parse() -> Result<Options> {
    let mut options = Options {
        unix: None,
        tcp: None,
        export: String::new(),
        write: false,
        bs: 4096,
        depth: 16,
        conns: 1,
        size: 0,
        time: Duration::from_secs(2),
        warm: Duration::from_millis(300),
        pid: None,
        fill: false,
        idle: false,
        json: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value"));
        match arg.as_str() {
            "--unix" => options.unix = Some(value()?),
            "--tcp" => options.tcp = Some(value()?),
            "--export" => options.export = value()?,
            "--rw" => options.write = value()? == "randwrite",
            "--bs" => options.bs = value()?.parse()?,
            "--depth" => options.depth = value()?.parse()?,
            "--conns" => options.conns = value()?.parse()?,
            "--size" => options.size = value()?.parse()?,
            "--time" => options.time = Duration::try_from_secs_f64(value()?.parse()?)?,
            "--warm" => options.warm = Duration::try_from_secs_f64(value()?.parse()?)?,
            "--pid" => options.pid = Some(value()?.parse()?),
            "--fill" => options.fill = true,
            "--idle" => options.idle = true,
            "--json" => options.json = true,
            _ => return Err(format!("no option {arg}; the head of this file has them").into()),
        }
    }
    if options.bs == 0 || options.depth == 0 || options.conns == 0 {
        return Err("--bs, --depth and --conns are at least 1".into());
    }
    Ok(options)
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    fn connect(options: &Options) -> Result<Stream> {
        if let Some(path) = &options.unix {
            return Ok(Stream::Unix(UnixStream::connect(path)?));
        }
        let stream = TcpStream::connect(options.tcp.as_ref().ok_or("--unix or --tcp")?)?;
        stream.set_nodelay(true)?;
        Ok(Stream::Tcp(stream))
    }

    fn set_nonblocking(&self, on: bool) -> std::io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.set_nonblocking(on),
            Stream::Tcp(stream) => stream.set_nonblocking(on),
        }
    }

    fn send(&mut self, pieces: &[IoSlice<'_>]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.write_vectored(pieces),
            Stream::Tcp(stream) => stream.write_vectored(pieces),
        }
    }

    fn recv(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Unix(stream) => stream.read(into),
            Stream::Tcp(stream) => stream.read(into),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Stream::Unix(stream) => stream.write_all(bytes),
            Stream::Tcp(stream) => stream.write_all(bytes),
        }
    }

    fn read_exact<const N: usize>(&mut self) -> std::io::Result<[u8; N]> {
        let mut bytes = [0; N];
        match self {
            Stream::Unix(stream) => stream.read_exact(&mut bytes)?,
            Stream::Tcp(stream) => stream.read_exact(&mut bytes)?,
        }
        Ok(bytes)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Unix(stream) => stream.as_fd(),
            Stream::Tcp(stream) => stream.as_fd(),
        }
    }
}

fn be32(bytes: &[u8]) -> u32 {
    bytes[..4].iter().fold(0, |sum, byte| (sum << 8) | u32::from(*byte))
}

fn be64(bytes: &[u8]) -> u64 {
    (u64::from(be32(bytes)) << 32) | u64::from(be32(&bytes[4..]))
}

#[derive(Clone, Copy)]
struct Slot {
    /// Time at which it was sent.
    at: Instant,
    busy: bool,
}

/// A connection in the transmission phase, with simple replies.
struct Conn {
    stream: Stream,
    size: u64,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Headers that are not sent yet, and the bytes of the first one and its data that are.
    queued: VecDeque<[u8; HEADER]>,
    sent: usize,
    received: Vec<u8>,
    filled: usize,
    /// Data of a reply that is being skipped, and the request it belongs to.
    skip: usize,
    skipped: usize,
}

impl Conn {
    fn new(options: &Options) -> Result<Conn> {
        let mut stream = Stream::connect(options)?;
        let greeting: [u8; 18] = stream.read_exact()?;
        if greeting[..16] != *b"NBDMAGICIHAVEOPT" {
            return Err("no newstyle server".into());
        }
        let no_zeroes = greeting[17] & 2;
        let name = options.export.as_bytes();
        let flags = [0, 0, 0, 1 | no_zeroes];
        let name_len = (name.len() as u32).to_be_bytes();
        stream.write_all(&[&flags, b"IHAVEOPT".as_slice(), &1u32.to_be_bytes(), &name_len, name].concat())?;
        let export: [u8; 10] = stream.read_exact()?;
        if no_zeroes == 0 {
            stream.read_exact::<124>()?;
        }
        let size = be64(&export);
        let size = if options.size == 0 { size } else { size.min(options.size) };
        if size < options.bs as u64 {
            return Err(format!("the export has {size} bytes only").into());
        }
        Ok(Conn {
            stream,
            size,
            slots: vec![Slot { at: Instant::now(), busy: false }; options.depth],
            free: (0..options.depth).rev().collect(),
            queued: VecDeque::new(),
            sent: 0,
            received: vec![0; RECEIVED],
            filled: 0,
            skip: 0,
            skipped: 0,
        })
    }

    fn ask(&mut self, slot: usize, command: u16, offset: u64, len: usize) {
        let mut header = [0; HEADER];
        header[..4].copy_from_slice(&0x2560_9513u32.to_be_bytes());
        header[6..8].copy_from_slice(&command.to_be_bytes());
        header[8..16].copy_from_slice(&(slot as u64).to_be_bytes());
        header[16..24].copy_from_slice(&offset.to_be_bytes());
        header[24..].copy_from_slice(&(len as u32).to_be_bytes());
        self.queued.push_back(header);
    }

    /// Queues requests up to the depth, and sends what the socket takes.
    fn go_on(&mut self, run: &mut Run<'_>) -> Result<()> {
        if self.queued.is_empty() && !run.ends {
            let (bs, write) = (run.options.bs, run.options.write);
            let now = Instant::now();
            while let Some(slot) = self.free.pop() {
                self.slots[slot] = Slot { at: now, busy: true };
                let offset = run.random() % (self.size / bs as u64) * bs as u64;
                self.ask(slot, u16::from(write), offset, bs);
            }
        }
        let data = if run.options.write { run.data } else { &[] };
        while !self.queued.is_empty() {
            let mut pieces: Vec<IoSlice<'_>> = Vec::with_capacity(self.queued.len() * 2);
            for header in &self.queued {
                pieces.push(IoSlice::new(header));
                if !data.is_empty() {
                    pieces.push(IoSlice::new(data));
                }
            }
            let mut rest = &mut pieces[..];
            IoSlice::advance_slices(&mut rest, self.sent);
            run.sends += 1;
            match self.stream.send(&rest[..rest.len().min(PIECES)]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
            let whole = self.sent / (HEADER + data.len());
            self.queued.drain(..whole);
            self.sent %= HEADER + data.len();
        }
        Ok(())
    }

    /// Receives replies.
    fn take(&mut self, run: &mut Run<'_>) -> Result<()> {
        run.receives += 1;
        match self.stream.recv(&mut self.received[self.filled..]) {
            Ok(0) => return Err("the server has closed the connection".into()),
            Ok(bytes) => self.filled += bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let mut at = 0;
        loop {
            if self.skip > 0 {
                let bytes = self.skip.min(self.filled - at);
                at += bytes;
                self.skip -= bytes;
                if self.skip > 0 {
                    break;
                }
                self.answered(self.skipped, run);
            }
            let Some(header) = self.received[..self.filled].get(at..at + REPLY) else { break };
            let (slot, errno) = (be64(&header[8..]) as usize, be32(&header[4..]));
            if be32(header) != 0x6744_6698 || self.slots.get(slot).is_none_or(|slot| !slot.busy) {
                return Err("a reply that belongs to no request".into());
            }
            if errno != 0 {
                return Err(format!("a request failed: {errno}").into());
            }
            at += REPLY;
            if run.options.write {
                self.answered(slot, run);
            } else {
                (self.skip, self.skipped) = (run.options.bs, slot);
            }
        }
        self.received.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(())
    }

    fn answered(&mut self, slot: usize, run: &mut Run<'_>) {
        self.slots[slot].busy = false;
        self.free.push(slot);
        if run.measures {
            run.latencies.add(self.slots[slot].at.elapsed());
        }
    }

    /// Writes the whole export once.
    fn fill(&mut self, data: &[u8]) -> Result<()> {
        let mut offset = 0;
        while offset < self.size {
            let len = self.size.saturating_sub(offset).min(FILLED_AT_ONCE as u64) as usize;
            self.ask(0, 1, offset, len);
            let header = self.queued.pop_front().ok_or("nothing is queued")?;
            self.stream.write_all(&header)?;
            self.stream.write_all(&data[..len])?;
            let reply: [u8; REPLY] = self.stream.read_exact()?;
            if be32(&reply[4..]) != 0 {
                return Err("it cannot be filled".into());
            }
            offset += len as u64;
        }
        Ok(())
    }
}

/// Histogram of latencies in nanoseconds, with 32 steps for each power of two.
struct Latencies {
    counts: Vec<u64>,
    all: u64,
}

impl Latencies {
    fn add(&mut self, latency: Duration) {
        let nanos = (latency.as_nanos() as u64).max(32);
        let power = nanos.ilog2();
        self.counts[(power as usize - 4) * 32 + (nanos >> (power - 5)) as usize % 32] += 1;
        self.all += 1;
    }

    /// Returns the latency in microseconds below which this part of them lies.
    fn below(&self, part: f64) -> f64 {
        let wanted = (self.all as f64 * part) as u64;
        let mut sum = 0;
        let at = self.counts.iter().position(|count| {
            sum += count;
            sum > wanted
        });
        at.map_or(0.0, |at| (32.5 + (at % 32) as f64) * 2f64.powi(at as i32 / 32 - 1) / 1000.0)
    }
}

/// The state of a measurement.
struct Run<'a> {
    options: &'a Options,
    data: &'a [u8],
    random: u64,
    measures: bool,
    ends: bool,
    latencies: Latencies,
    sends: u64,
    receives: u64,
}

impl Run<'_> {
    /// Returns pseudo-random numbers, the same ones each time (xorshift).
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
}

/// Returns the CPU time of a process, its threads and the processes it has started, in nanoseconds.
fn cpu(pid: u32) -> u64 {
    let dir = format!("/proc/{pid}/task");
    let Ok(threads) = fs::read_dir(&dir) else { return 0 };
    let of_thread = |thread: fs::DirEntry| {
        let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let own: u64 = read("schedstat").split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
        let children: u64 = read("children").split_whitespace().filter_map(|pid| pid.parse().ok()).map(cpu).sum();
        own + children
    };
    threads.flatten().map(of_thread).sum()
}

/// Returns the resident memory of a process and of those it has started, in KiB.
fn memory(pid: u32) -> u64 {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let status = read(format!("/proc/{pid}/status"));
    let own = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let own: u64 = own.and_then(|kib| kib.trim().strip_suffix(" kB")).and_then(|kib| kib.parse().ok()).unwrap_or(0);
    let children = read(format!("/proc/{pid}/task/{pid}/children"));
    own + children.split_whitespace().filter_map(|pid| pid.parse().ok()).map(memory).sum::<u64>()
}

fn main() -> Result<()> {
    let options = parse()?;
    let data: Vec<u8> = (0..options.bs.max(FILLED_AT_ONCE) as u64).map(|at| ((at * 0x9E37_79B9) >> 7) as u8).collect();
    if options.idle {
        return idle(&options);
    }
    let mut conns: Vec<Conn> = (0..options.conns).map(|_| Conn::new(&options)).collect::<Result<_>>()?;
    if options.fill {
        conns[0].fill(&data)?;
    }
    conns.iter().try_for_each(|conn| conn.stream.set_nonblocking(options.conns > 1))?;
    let mut run = Run {
        options: &options,
        data: &data[..options.bs],
        random: 0x9E37_79B9_7F4A_7C15,
        measures: false,
        ends: false,
        latencies: Latencies { counts: vec![0; 64 * 32], all: 0 },
        sends: 0,
        receives: 0,
    };
    until(&mut conns, &mut run, options.warm)?;
    run.measures = true;
    let cpus = || (options.pid.map_or(0, cpu), cpu(std::process::id()));
    let (from, calls, before) = (Instant::now(), (run.sends, run.receives), cpus());
    until(&mut conns, &mut run, options.time)?;
    let (seconds, after) = (from.elapsed().as_secs_f64(), cpus());
    let requests = run.latencies.all.max(1) as f64;
    let micros = |from: u64, to: u64| to.saturating_sub(from) as f64 / requests / 1000.0;
    let (server, own) = (micros(before.0, after.0), micros(before.1, after.1));
    let (sends, receives) = ((run.sends - calls.0) as f64, (run.receives - calls.1) as f64);
    let (p50, p99) = (run.latencies.below(0.5), run.latencies.below(0.99));
    if options.json {
        writeln!(
            std::io::stdout(),
            "{{\"requests\":{requests},\"seconds\":{seconds:.3},\"iops\":{:.0},\"server_us\":{server:.3},\
             \"client_us\":{own:.3},\"p50_us\":{p50:.2},\"p99_us\":{p99:.2},\"requests_a_send\":{:.2},\
             \"requests_a_receive\":{:.2}}}",
            requests / seconds,
            requests / sends.max(1.0),
            requests / receives.max(1.0)
        )?;
    } else {
        writeln!(
            std::io::stdout(),
            "{requests} requests in {seconds:.2} s, {:.0}/s; CPU a request: server {server:.3} us, client {own:.3} us; \
             latency p50 {p50:.1} us, p99 {p99:.1} us",
            requests / seconds
        )?;
    }
    Ok(())
}

/// Keeps requests under way for this time.
fn until(conns: &mut [Conn], run: &mut Run<'_>, time: Duration) -> Result<()> {
    let from = Instant::now();
    while from.elapsed() < time {
        for conn in conns.iter_mut() {
            conn.go_on(run)?;
        }
        if let [conn] = conns {
            conn.take(run)?;
            continue;
        }
        let wanted = |conn: &Conn| if conn.queued.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let mut polled: Vec<PollFd<'_>> =
            conns.iter().map(|conn| PollFd::from_borrowed_fd(conn.stream.fd(), wanted(conn))).collect();
        poll(&mut polled, None)?;
        let ready: Vec<bool> = polled.iter().map(|fd| !(fd.revents() - PollFlags::OUT).is_empty()).collect();
        for (conn, _) in conns.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            conn.take(run)?;
        }
    }
    Ok(())
}

/// Connects, and sends no request.
fn idle(options: &Options) -> Result<()> {
    let pid = options.pid.ok_or("--idle wants --pid")?;
    let before = memory(pid);
    let conns: Vec<Conn> = (0..options.conns).map(|_| Conn::new(options)).collect::<Result<_>>()?;
    std::thread::sleep(options.warm);
    let (from, cpu_before) = (Instant::now(), cpu(pid));
    std::thread::sleep(options.time);
    let percent = (cpu(pid) - cpu_before) as f64 / from.elapsed().as_nanos() as f64 * 100.0;
    let kib = memory(pid).saturating_sub(before) as f64 / conns.len() as f64;
    writeln!(std::io::stdout(), "{{\"conns\":{},\"cpu_percent\":{percent:.3},\"kib_a_conn\":{kib:.1}}}", conns.len())?;
    Ok(())
}
