//! What lines and locks cost on this machine: small loops on one and on two CPUs.
//!
//! Owns the loops. Each runs for a set time; threads start together and are pinned. Virtual CPUs may be moved by their
//! host at any time, from sharing a core to lying on different chips, and costs change tenfold with that: so a caller
//! measures them in rounds, in turn with what they are to explain.

use std::hint::black_box;
use std::time::{Duration, Instant};

use sheave_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use sheave_base::sync::{Mutex, hint};

use super::{Shared, Visit, VisitCost};
use crate::LabError;

/// Alone on its cache lines, the neighbour that the processor prefetches included.
#[repr(align(128))]
#[derive(Default)]
struct Alone<T>(T);

/// What loops share.
#[derive(Default)]
struct Subject {
    line: Alone<AtomicU64>,
    lock: Alone<Mutex<u64>>,
}

/// Costs that do not depend on an arm, in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LineCosts {
    /// An atomic add to a line that stays.
    pub add_ns: f64,
    /// An atomic add to a line that two threads add to at once: the time of both together by all their adds.
    pub contended_add_ns: f64,
    /// From one thread's compare-and-exchange that lets the other go on, to the other's: one way of a ping-pong.
    pub hand_over_ns: f64,
}

impl LineCosts {
    /// Measures them, for `time` each.
    pub fn measure(cpus: [usize; 2], time: Duration) -> Result<Self, LabError> {
        let add = Loop { think: 0, visit: Body::Adds(16) };
        Ok(Self {
            add_ns: add.run(&cpus[..1], time)? / 16.0,
            contended_add_ns: add.run(&cpus, time)? / 32.0,
            hand_over_ns: ping_pong(cpus, time)?,
        })
    }

    /// How much longer a line is taken by a visit that finds it elsewhere. A hand-over is a request and its answer;
    /// with more cores the next request waits already, so what the line is taken for is the answer, half of it. A burst
    /// is torn apart by the other's, which two threads that do nothing but add show.
    fn moved_ns(&self, visit: Visit) -> f64 {
        match visit {
            Visit::Line { burst } => {
                (self.hand_over_ns / 2.0).max(2.0 * f64::from(burst) * (self.contended_add_ns - self.add_ns))
            }
            // The lock's word, and what it protects.
            Visit::Lock { .. } => self.hand_over_ns,
        }
    }
}

/// What a visit costs an arm that has so much private work between visits.
pub fn visit_cost(
    cpus: [usize; 2],
    time: Duration,
    lines: &LineCosts,
    shared: &Shared,
    between_ns: f64,
) -> Result<VisitCost, LabError> {
    let unit = Loop { think: 64, visit: Body::None }.run(&cpus[..1], time / 4)? / 64.0;
    let steps = |ns: f64| (ns / unit.max(0.01)).round().clamp(0.0, 1e7) as u32;
    let think = steps(between_ns).max(1);
    let body = match shared.visit {
        Visit::Line { burst } => Body::Adds(burst),
        Visit::Lock { hold_ns } => Body::Lock(steps(hold_ns)),
    };
    let alone = Loop { think, visit: Body::None }.run(&cpus[..1], time)?;
    let beside = Loop { think, visit: Body::None }.run(&cpus, time)?;
    let with = Loop { think, visit: body }.run(&cpus[..1], time)?;
    let both = Loop { think, visit: body }.run(&cpus, time)?;
    Ok(VisitCost::of_pair(beside, (with - alone).max(0.0), both, lines.moved_ns(shared.visit)))
}

/// What a loop does between private work.
#[derive(Clone, Copy)]
enum Body {
    None,
    Adds(u32),
    Lock(u32),
}

/// A loop: private work, then a visit.
#[derive(Clone, Copy)]
struct Loop {
    think: u32,
    visit: Body,
}

impl Loop {
    /// Time of one round of a thread, in ns, with a thread on each of `cpus`.
    fn run(self, cpus: &[usize], time: Duration) -> Result<f64, LabError> {
        let (subject, stop, ready) = (Subject::default(), AtomicBool::new(false), AtomicU32::new(0));
        let threads = cpus.len() as u32;
        let rates = std::thread::scope(|scope| {
            let handles: Vec<_> = cpus
                .iter()
                .map(|&cpu| {
                    let (subject, stop, ready) = (&subject, &stop, &ready);
                    scope.spawn(move || {
                        let pinned = sheave_load::cpu::pin(cpu);
                        wait_for(ready, threads);
                        pinned.map(|()| self.rounds_per_ns(subject, stop))
                    })
                })
                .collect();
            wait_for_all(&ready, threads);
            std::thread::sleep(time);
            // Relaxed: the flag carries nothing but itself.
            stop.store(true, Ordering::Relaxed);
            handles.into_iter().map(|handle| handle.join().expect("a loop does not panic")).collect::<Vec<_>>()
        });
        let mut sum = 0.0;
        for rate in rates {
            sum += rate?;
        }
        Ok(f64::from(threads) / sum.max(f64::MIN_POSITIVE))
    }

    fn rounds_per_ns(self, subject: &Subject, stop: &AtomicBool) -> f64 {
        let mut private = Private::new();
        let (start, mut rounds) = (Instant::now(), 0_u64);
        // Relaxed: see `run`.
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..16 {
                private.work(self.think);
                match self.visit {
                    Body::None => {}
                    Body::Adds(burst) => {
                        for _ in 0..burst {
                            // Relaxed: nothing is ordered by it, only its cost counts.
                            subject.line.0.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    Body::Lock(hold) => {
                        let mut held = subject.lock.0.lock().expect("a loop does not panic");
                        *held += 1;
                        private.work(hold);
                    }
                }
            }
            rounds += 16;
        }
        black_box(private.sum);
        rounds as f64 / start.elapsed().as_nanos().max(1) as f64
    }
}

/// Work that touches only its own memory: loads, stores and arithmetic in about the mix of an I/O's path.
struct Private {
    table: [u64; 256],
    sum: u64,
}

impl Private {
    fn new() -> Self {
        Self { table: [1; 256], sum: 1 }
    }

    #[inline]
    fn work(&mut self, steps: u32) {
        for step in 0..steps {
            let near = (self.sum >> 40) as usize % 256;
            let far = (step as usize).wrapping_mul(37) % 256;
            self.table[far] = self.table[far].rotate_left(7) ^ u64::from(step);
            self.sum = self.sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(self.table[near]);
        }
    }
}

/// One way of a ping-pong between two CPUs, in ns.
fn ping_pong(cpus: [usize; 2], time: Duration) -> Result<f64, LabError> {
    let (ball, stop, ready) = (Alone(AtomicU64::new(0)), AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let players = [0, 1].map(|side: u64| {
            let (ball, stop, ready) = (&ball.0, &stop, &ready);
            scope.spawn(move || {
                let pinned = sheave_load::cpu::pin(cpus[side as usize]);
                wait_for(ready, 2);
                pinned.map(|()| {
                    let (start, mut turns, mut next) = (Instant::now(), 0_u64, side);
                    // Relaxed: only where the line is counts; see `Loop::run` for the flag.
                    while !stop.load(Ordering::Relaxed) {
                        if ball.compare_exchange(next, next + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                            (turns, next) = (turns + 1, next + 2);
                        }
                    }
                    start.elapsed().as_nanos() as f64 / turns.max(1) as f64 / 2.0
                })
            })
        });
        wait_for_all(&ready, 2);
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let [left, right] = players.map(|player| player.join().expect("a player does not panic"));
        Ok(f64::midpoint(left?, right?))
    })
}

/// Says that it is ready, and waits for the others; the threads start within a transfer of each other.
fn wait_for(ready: &AtomicU32, threads: u32) {
    // Relaxed: nothing but the count is told.
    ready.fetch_add(1, Ordering::Relaxed);
    while ready.load(Ordering::Relaxed) < threads {
        hint::spin_loop();
    }
}

fn wait_for_all(ready: &AtomicU32, threads: u32) {
    while ready.load(Ordering::Relaxed) < threads {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests;
