//! The loop of all rows, and its clocks: a queue depth is kept full, a batch at a time.
#![allow(unsafe_code)] // SQEs with addresses.

use std::time::{Duration, Instant};

use sheave_uring::sqe::Sqe;

use crate::Result;
use crate::timing::{ns, process_ns};

/// Something that takes SQEs and gives results.
pub trait Side {
    /// Takes one SQE; there is room for the depth.
    ///
    /// # Safety
    /// Memory that the SQE names is the caller's, and stays until the result is there.
    unsafe fn push(&mut self, sqe: &Sqe);

    /// Submits the pushed SQEs, and waits until `wait` results are there.
    fn submit(&mut self, wait: u32) -> Result<()>;

    /// Takes results: user data and result.
    fn reap(&mut self, take: &mut dyn FnMut(u64, i32));
}

/// What a turn has cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub items: u64,
    pub wall_ns: f64,
    /// Of all threads of the process, the kernel's workers included.
    pub cpu_ns: f64,
    /// Of the submitting thread.
    pub own_ns: f64,
}

impl Cost {
    /// Wall time an item.
    pub fn wall(&self) -> f64 {
        self.wall_ns / self.items as f64
    }

    /// CPU time an item.
    pub fn cpu(&self) -> f64 {
        self.cpu_ns / self.items as f64
    }

    /// The submitting thread's CPU time an item.
    pub fn own(&self) -> f64 {
        self.own_ns / self.items as f64
    }
}

/// Times a piece of work that says how many items it has done.
pub fn timed(work: impl FnOnce() -> Result<u64>) -> Result<Cost> {
    let own = || ns(rustix::time::ClockId::ThreadCPUTime);
    let (wall, cpu, thread) = (Instant::now(), process_ns(), own());
    let items = work()?;
    let own_ns = own() - thread;
    Ok(Cost { items: items.max(1), wall_ns: wall.elapsed().as_nanos() as f64, cpu_ns: process_ns() - cpu, own_ns })
}

/// A queue depth, and how much of it goes at once.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    pub depth: u32,
    pub batch: u32,
}

/// Keeps the depth full for a time. `sqe` makes the SQE of a slot for the `n`-th item; each must give `expected`.
pub fn flood(
    side: &mut dyn Side,
    Depth { depth, batch }: Depth,
    time: Duration,
    expected: i32,
    mut sqe: impl FnMut(u32, u64) -> Sqe,
) -> Result<u64> {
    let mut free: Vec<u32> = (0..depth).collect();
    let (mut next, mut done, start, mut wrong) = (0, 0_u64, Instant::now(), None);
    let mut goes_on = true;
    while goes_on || free.len() < depth as usize {
        if goes_on && free.len() >= batch as usize {
            for slot in free.drain(free.len() - batch as usize..) {
                let sqe = Sqe { user_data: slot.into(), ..sqe(slot, next) };
                // SAFETY: the memory of a slot is the row's, which keeps it longer than the side.
                unsafe { side.push(&sqe) };
                next += 1;
            }
        }
        let flying = depth - free.len() as u32;
        let wait = if goes_on && free.len() >= batch as usize { 0 } else { batch.min(flying) };
        side.submit(wait)?;
        side.reap(&mut |slot, res| {
            if res != expected {
                wrong = Some(res);
            }
            free.push(slot as u32);
            done += 1;
        });
        // The clock is read seldom.
        if next & 0x3ff < u64::from(batch) || batch == 1 {
            goes_on &= start.elapsed() < time;
        }
    }
    wrong.map_or(Ok(done), |res| Err(format!("an item gave {res}, not {expected}").into()))
}

/// Times of single items, sorted, in ns: submitted and waited for, one after the other.
pub fn one_by_one(side: &mut dyn Side, time: Duration, sqe: Sqe) -> Result<Vec<u64>> {
    let (mut times, start) = (Vec::new(), Instant::now());
    while start.elapsed() < time {
        let before = Instant::now();
        // SAFETY: a NOP names no memory.
        unsafe { side.push(&sqe) };
        let mut ended = 0;
        while ended == 0 {
            side.submit(1)?;
            side.reap(&mut |_, _| ended += 1);
        }
        times.push(before.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    Ok(times)
}
