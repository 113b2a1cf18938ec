//! A ring on the thread of a tokio runtime: operations are futures, and `AsyncFd` waits for the ring's descriptor. Then
//! the same reads with a thread for the ring and a oneshot channel for each answer. Prints the time of an I/O for both.
//!
//! ```sh
//! cargo run --release --example tokio_loop -- ram:size=64M 100000
//! ```
//!
//! Invariants:
//! - T1: while an operation is in flight [`drive`] waits for the ring, and begins a new wait after each submission.
//! - T2: a dropped future leaves its memory with the ring until the operation has ended.
#![allow(unsafe_code)] // `AsyncFd` wants a promise that its descriptor stays open.

#[path = "shared/bridge.rs"]
mod bridge;

use std::cell::RefCell;
use std::error::Error;
use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sheave::{Buf, Completion, Device, Fd, Ring, op, open_device};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::{AbortHandle, LocalSet, coop, spawn_local, yield_now};

use bridge::Bridge;

const USAGE: &str = "usage: tokio_loop SPEC IOS";
const BLOCK: usize = 4096;
/// Largest number of operations in flight; others wait.
const DEPTH: usize = 64;

type Failure = Box<dyn Error + Send + Sync>;

/// State of an operation; its user data is its index.
#[derive(Default)]
enum Slot {
    #[default]
    Free,
    /// In flight, with the waker of its future.
    Waiting(Option<Waker>),
    /// Ended, and not taken by its future yet.
    Ended(Completion),
    /// In flight, and its future was dropped (T2).
    Dropped,
}

struct State {
    ring: Ring,
    slots: Vec<Slot>,
    spare: Vec<usize>,
    /// Number of turns of [`drive`].
    turns: u64,
    /// Number of turns that waited for the descriptor.
    waits: u64,
}

impl State {
    /// Passes completions to their futures.
    fn deliver(&mut self) {
        while let Some(done) = self.ring.pop() {
            let at = done.user_data as usize;
            match std::mem::take(&mut self.slots[at]) {
                Slot::Waiting(waker) => {
                    self.slots[at] = Slot::Ended(done);
                    waker.into_iter().for_each(Waker::wake);
                }
                _ => self.spare.push(at),
            }
        }
    }
}

struct Shared {
    state: RefCell<State>,
    /// A duplicate of the ring's descriptor.
    ready: AsyncFd<OwnedFd>,
    /// Notified when an operation was submitted that did not end at once (T1).
    submitted: Notify,
    room: Semaphore,
}

/// A ring for the tasks of one thread.
#[derive(Clone)]
struct AsyncRing {
    shared: Rc<Shared>,
    _driver: Rc<Driver>,
}

/// Aborts [`drive`] when the last [`AsyncRing`] is dropped.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl AsyncRing {
    fn new(device: &Device) -> Result<(AsyncRing, Fd), Failure> {
        let mut ring = Ring::builder().entries(DEPTH as u32).build()?;
        let fd = ring.attach(device)?;
        let ready = ring.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` has one open descriptor for its whole life, and the `AsyncFd` owns it.
        let ready = unsafe { AsyncFd::register_with_interest(ready, Interest::READABLE) }?;
        let slots = (0..DEPTH).map(|_| Slot::Free).collect();
        let state = State { ring, slots, spare: (0..DEPTH).collect(), turns: 0, waits: 0 };
        let (submitted, room) = (Notify::new(), Semaphore::new(DEPTH));
        let shared = Rc::new(Shared { state: RefCell::new(state), ready, submitted, room });
        let driver = spawn_local(drive(Rc::clone(&shared)));
        Ok((AsyncRing { shared, _driver: Rc::new(Driver(driver.abort_handle())) }, fd))
    }

    /// Runs an operation.
    async fn run(&self, op: impl Into<op::Entry>) -> Result<Completion, Failure> {
        // Operations that end at once would otherwise leave no time for other tasks.
        coop::consume_budget().await;
        let _room = self.shared.room.acquire().await?;
        let slot = {
            let state = &mut *self.shared.state.borrow_mut();
            let slot = state.spare.pop().ok_or("as many slots as there is room")?;
            let pushed = state.ring.push(op.into().user_data(slot as u64));
            if let Err(full) = pushed {
                state.spare.push(slot);
                return Err(full.into());
            }
            state.slots[slot] = Slot::Waiting(None);
            let in_flight = InFlight { shared: &self.shared, slot };
            state.ring.submit()?;
            state.deliver();
            if matches!(state.slots[slot], Slot::Waiting(_)) {
                self.shared.submitted.notify_one();
            }
            in_flight
        };
        poll_fn(|context| slot.poll(context)).await
    }

    async fn read(&self, fd: Fd, offset: u64, buf: Buf) -> Result<(u32, Buf), Failure> {
        let done = self.run(op::read(fd, buf).offset(offset)).await?;
        Ok((done.result()?, done.into_buf().ok_or("a read gives its buffer back")?))
    }
}

/// An operation whose future waits for it.
struct InFlight<'a> {
    shared: &'a Shared,
    slot: usize,
}

impl InFlight<'_> {
    fn poll(&self, context: &Context<'_>) -> Poll<Result<Completion, Failure>> {
        let state = &mut *self.shared.state.borrow_mut();
        match std::mem::take(&mut state.slots[self.slot]) {
            Slot::Ended(done) => {
                state.slots[self.slot] = Slot::Free;
                state.spare.push(self.slot);
                Poll::Ready(Ok(done))
            }
            _ => {
                state.slots[self.slot] = Slot::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        // The state is borrowed only if the submission failed: the operation then stays in the SQ.
        let Ok(mut state) = self.shared.state.try_borrow_mut() else { return };
        match std::mem::take(&mut state.slots[self.slot]) {
            Slot::Waiting(_) => state.slots[self.slot] = Slot::Dropped,
            Slot::Ended(_) => state.spare.push(self.slot),
            other => state.slots[self.slot] = other,
        }
    }
}

/// Waits for the ring, and wakes the futures of operations that have ended (T1).
async fn drive(shared: Rc<Shared>) -> std::io::Result<()> {
    loop {
        let wait = {
            let state = &mut *shared.state.borrow_mut();
            state.turns += 1;
            state.deliver();
            let wait = state.ring.prepare_wait();
            state.waits += u64::from(wait.is_some());
            wait
        };
        let Some(wait) = wait else {
            // There are completions or other work; other tasks go first.
            yield_now().await;
            continue;
        };
        let mut readable = pin!(shared.ready.readable());
        let mut submitted = pin!(shared.submitted.notified());
        let either = poll_fn(|context| match readable.as_mut().poll(context) {
            Poll::Ready(ready) => Poll::Ready(ready.map(|mut ready| ready.clear_ready())),
            Poll::Pending => submitted.as_mut().poll(context).map(Ok),
        });
        match wait.timeout {
            // Reaching the limit is not an error: the ring must be called again after that time.
            Some(limit) => tokio::time::timeout(limit, either).await.unwrap_or(Ok(()))?,
            None => either.await?,
        }
    }
}

/// Reads the blocks at `places`, one after the other. Returns the sum of their first bytes.
async fn read_all<F: Future<Output = Result<(u32, Buf), Failure>>>(
    places: impl Iterator<Item = u64>,
    read: impl Fn(u64, Buf) -> F,
) -> Result<u64, Failure> {
    let (mut buf, mut sum) = (Buf::zeroed(BLOCK, BLOCK)?, 0);
    for place in places {
        (_, buf) = read(place * BLOCK as u64, buf).await?;
        sum += u64::from(buf[0]);
    }
    Ok(sum)
}

/// Reads all blocks with `tasks` tasks. Returns the sum of all.
async fn on_the_ring(ring: &AsyncRing, fd: Fd, tasks: u64, ios: u64, blocks: u64) -> Result<u64, Failure> {
    let all: Vec<_> = (0..tasks)
        .map(|task| {
            let ring = ring.clone();
            let places = (task..ios).step_by(tasks as usize).map(move |n| n % blocks);
            spawn_local(async move { read_all(places, |offset, buf| ring.read(fd, offset, buf)).await })
        })
        .collect();
    let mut sum = 0;
    for task in all {
        sum += task.await??;
    }
    Ok(sum)
}

/// Reads all blocks through a thread that owns the ring.
async fn over_a_bridge(bridge: &Rc<Bridge>, tasks: u64, ios: u64, blocks: u64) -> Result<u64, Failure> {
    let read = |bridge: Rc<Bridge>, offset, buf| async move {
        let (answer, answered) = oneshot::channel();
        // Fails if the task is gone.
        bridge.read(offset, buf, Box::new(move |result, buf| _ = answer.send((result, buf))));
        let (result, buf) = answered.await?;
        Ok((result.map_err(|errno| format!("a read failed: errno {errno}"))?, buf))
    };
    let all: Vec<_> = (0..tasks)
        .map(|task| {
            let bridge = Rc::clone(bridge);
            let places = (task..ios).step_by(tasks as usize).map(move |n| n % blocks);
            spawn_local(async move { read_all(places, |offset, buf| read(Rc::clone(&bridge), offset, buf)).await })
        })
        .collect();
    let mut sum = 0;
    for task in all {
        sum += task.await??;
    }
    Ok(sum)
}

/// Runs a future on a runtime of one thread.
fn on_one_thread<T>(what: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, what)
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [spec, ios] = args.as_slice() else { return Err(USAGE.into()) };
    let (device, ios) = (open_device(spec)?, ios.parse::<u64>()?.max(1));
    let blocks = (device.size_bytes() / BLOCK as u64).max(1);
    let us = |start: Instant| start.elapsed().as_secs_f64() * 1e6 / ios as f64;
    on_one_thread(async {
        for tasks in [1, 16] {
            let (ring, fd) = AsyncRing::new(&device)?;
            let start = Instant::now();
            on_the_ring(&ring, fd, tasks, ios, blocks).await?;
            let (here, waits) = (us(start), ring.shared.state.borrow().waits);
            let bridge = Rc::new(Bridge::new(&device)?);
            let start = Instant::now();
            over_a_bridge(&bridge, tasks, ios, blocks).await?;
            let bridge = us(start);
            println!(
                "{tasks} tasks: the ring in the runtime {here:.2} us an I/O ({waits} waits), a bridge {bridge:.2} us"
            );
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn both_ways_read_what_was_written() {
        let device = open_device("ram:size=64K").unwrap();
        on_one_thread(async {
            let (ring, fd) = AsyncRing::new(&device)?;
            for block in 0..16u64 {
                let mut buf = Buf::zeroed(BLOCK, BLOCK)?;
                buf.fill(block as u8 + 1);
                assert_eq!(ring.run(op::write(fd, buf).offset(block * BLOCK as u64)).await?.result()?, BLOCK as u32);
            }
            let bridge = Rc::new(Bridge::new(&device)?);
            for tasks in [1, 16, 100] {
                assert_eq!(on_the_ring(&ring, fd, tasks, 1600, 16).await?, 100 * 136);
                assert_eq!(over_a_bridge(&bridge, tasks, 1600, 16).await?, 100 * 136);
            }
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn tasks_wait_for_devices_that_take_their_time_without_a_turning_loop() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let on_disk = format!("fault:delay=0.5,delay_time=5ms,over=file:{},size=64K", file.path().display());
        for spec in ["null:size=64K,latency=1ms,complete=timer", "null:size=64K,latency=1ms,complete=thread", &on_disk]
        {
            let device = open_device(spec).unwrap();
            on_one_thread(async {
                let (ring, fd) = AsyncRing::new(&device)?;
                // More tasks than operations may be in flight.
                assert_eq!(on_the_ring(&ring, fd, 100, 300, 16).await?, 0);
                let (turns, waits) = (ring.shared.state.borrow().turns, ring.shared.state.borrow().waits);
                // Turns come from submissions and wake-ups, on a busy machine one of each for every read. A loop that
                // does not sleep takes thousands of turns in these milliseconds.
                assert!(turns <= 2 * 300 && waits >= 1, "{spec}: {turns} turns, {waits} waits for 300 reads");
                Ok(())
            })
            .unwrap();
        }
    }

    #[test]
    fn a_future_that_is_dropped_leaves_its_memory_with_the_ring() {
        let device = open_device("null:size=64K,latency=20ms,complete=thread").unwrap();
        on_one_thread(async {
            let (ring, fd) = AsyncRing::new(&device)?;
            for _ in 0..3 {
                let read = ring.read(fd, 0, Buf::zeroed(BLOCK, BLOCK)?);
                assert!(tokio::time::timeout(Duration::from_millis(1), read).await.is_err());
            }
            assert_eq!(ring.shared.state.borrow().ring.in_flight(), 3);
            // The slots become free with the completions.
            assert_eq!(ring.read(fd, 0, Buf::zeroed(BLOCK, BLOCK)?).await?.0, BLOCK as u32);
            while ring.shared.state.borrow().spare.len() < DEPTH {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(())
        })
        .unwrap();
    }
}
