//! Measures the cost of reading a ring's statistics: the rate of I/Os of a busy ring, in turns with and without a
//! thread that reads all statistics a thousand times a second.
//!
//! ```sh
//! cargo run --release --example stats_reader -- null:size=1T 15
//! ```
//!
//! Prints the rate with the reader relative to the rate without, for each pair of turns, and their median with its
//! range. The ring is on the first CPU, the reader on the second.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use sheave::stats::{FlightRecorder, IoGroup};
use sheave::{Buf, Device, Ring, op, open_device};
use sheave_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const DEPTH: u32 = 128;
const BATCH: u32 = 32;
/// Length of a turn.
const TURN: Duration = Duration::from_millis(400);
/// Interval between two readings.
const EVERY: Duration = Duration::from_millis(1);

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    // Fails on a machine with one CPU, which both then share.
    let _ = sched_setaffinity(None, &set);
}

/// Reads all statistics a thousand times a second while `on` is set.
fn reads(
    device: &Device,
    group: &IoGroup,
    recorder: &FlightRecorder,
    on: &AtomicBool,
    ends: &AtomicBool,
    read: &AtomicU64,
) {
    pin(1);
    let mut next = Instant::now();
    while !ends.load(Ordering::Relaxed) {
        if on.load(Ordering::Relaxed) {
            std::hint::black_box((device.stats(), group.counts(), recorder.read(0)));
            read.fetch_add(1, Ordering::Relaxed);
        }
        next += EVERY;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        next = next.max(Instant::now().checked_sub(EVERY).unwrap_or(next));
    }
}

/// Ends the reader when it is dropped, also when a turn fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let spec = args.next().unwrap_or_else(|| "null:size=1T".into());
    let pairs: usize = args.next().map_or(Ok(15), |pairs| pairs.parse())?;
    pin(0);
    let device = open_device(&spec)?;
    let mut ring = Ring::builder().entries(DEPTH).polled(true).build()?;
    let fd = ring.attach(&device)?;
    let (on, ends, read) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let group: Arc<IoGroup> = ring.io_group().ok_or("statistics are on")?;
    let recorder = ring.flight_recorder().ok_or("statistics are on")?;
    let mut free: Vec<Buf> = (0..DEPTH).map(|_| Buf::zeroed(512, 4096)).collect::<Result<_, _>>()?;
    let mut at = 0u64;
    let mut turn = |ring: &mut Ring| -> Result<f64, Box<dyn Error>> {
        let (start, mut ios) = (Instant::now(), 0u64);
        while start.elapsed() < TURN {
            for _ in 0..64 {
                for _ in 0..BATCH {
                    let Some(buf) = free.pop() else { break };
                    at = at.wrapping_add(0x9E37_79B9);
                    ring.push(op::read(fd, buf).offset(at % (1 << 20) * 512))?;
                }
                ring.submit()?;
                for done in ring.completions() {
                    done.result()?;
                    free.extend(done.into_buf());
                    ios += 1;
                }
            }
        }
        Ok(ios as f64 / start.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        scope.spawn(|| reads(&device, &group, &recorder, &on, &ends, &read));
        // Relaxed: none of these flags and counts guards other data.
        let ended = Ends(&ends);
        turn(&mut ring)?;
        let mut shares = Vec::new();
        for pair in 0..pairs {
            // Each of the two goes first in half of the pairs.
            let mut rates = [0.0; 2];
            for with in [pair % 2 == 1, pair % 2 == 0] {
                on.store(with, Ordering::Relaxed);
                rates[usize::from(with)] = turn(&mut ring)?;
            }
            println!("{:.2}M without, {:.2}M with: {:.4}", rates[0] / 1e6, rates[1] / 1e6, rates[1] / rates[0]);
            shares.push(rates[1] / rates[0]);
        }
        drop(ended);
        shares.sort_by(f64::total_cmp);
        let readings = read.load(Ordering::Relaxed) as f64 / (pairs as f64 * TURN.as_secs_f64());
        println!(
            "{readings:.0} readings a second; median of {pairs} pairs: {:.4} ({:.4} to {:.4})",
            shares[pairs / 2],
            shares[0],
            shares[pairs - 1]
        );
        Ok(())
    })
}
