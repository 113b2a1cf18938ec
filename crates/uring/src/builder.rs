//! Settings of a ring.

use std::time::Duration;

use sheave_base::clock::Clock;
use sheave_blk::ctx::{IoCtx, IoCtxOptions};
#[cfg(sheave_lab)]
use sheave_blk::plug::EachRead;

use sheave_iomap::slow::DEFAULT_SLOW_LIMIT;

use crate::core::Core;
use crate::error::RingError;
use crate::io_wq::{IoWq, RingWq};
use crate::queues::Queues;
use crate::ring::Ring;
use crate::ring::inner::Inner;
use crate::task_work::TaskWork;
use crate::times::Times;

/// Maximum number of entries of an SQ, as in the kernel.
const MAX_ENTRIES: u32 = 32768;
/// Smallest size of the mailbox for messages from other rings.
const MIN_MAILBOX: u32 = 64;

/// Time before a device's announced completion at which a polled ring wakes up and polls. Longer than the kernel takes
/// to end a sleep on an idle CPU.
const POLLED_REST: Duration = Duration::from_micros(60);

/// Builds a [`Ring`].
///
/// ```
/// let ring = sheave_uring::Ring::builder().entries(64).polled(true).build()?;
/// assert_eq!(ring.sq_space(), 64);
/// # Ok::<(), sheave_uring::RingError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RingBuilder {
    entries: u32,
    cq_entries: Option<u32>,
    in_flight: Option<u32>,
    polled: bool,
    iopoll: bool,
    spin: Duration,
    stats: bool,
    #[cfg(sheave_lab)]
    bio_cache: Option<u32>,
    #[cfg(sheave_lab)]
    each_read: EachRead,
    slow_limit: Duration,
    stamp_age: Option<Duration>,
    clock: Option<Clock>,
    io_wq: Option<IoWq>,
}

impl Default for RingBuilder {
    fn default() -> Self {
        RingBuilder {
            entries: 128,
            cq_entries: None,
            in_flight: None,
            polled: false,
            iopoll: false,
            spin: Duration::from_micros(10),
            stats: true,
            #[cfg(sheave_lab)]
            bio_cache: None,
            #[cfg(sheave_lab)]
            each_read: EachRead::None,
            slow_limit: DEFAULT_SLOW_LIMIT,
            stamp_age: None,
            clock: None,
            io_wq: None,
        }
    }
}

impl Ring {
    /// Returns the default settings of a new ring.
    pub fn builder() -> RingBuilder {
        RingBuilder::default()
    }
}

impl RingBuilder {
    /// Sets the entries of the SQ, rounded up to a power of two. Default 128.
    pub fn entries(mut self, entries: u32) -> Self {
        self.entries = entries;
        self
    }

    /// Sets the entries of the CQ, rounded up to a power of two. Default: twice the SQ.
    pub fn cq_entries(mut self, entries: u32) -> Self {
        self.cq_entries = Some(entries);
        self
    }

    /// Sets the maximum number of requests in flight, rounded up to a power of two. Default: the entries of the CQ.
    /// Also limits the length of a chain.
    pub fn in_flight(mut self, requests: u32) -> Self {
        self.in_flight = Some(requests);
        self
    }

    /// Leaves polling to the caller: completions are looked for only in `completions` and `wait`, never in `submit`. A
    /// wait for a device that announces its next completion (`null:` with a latency) polls for the last 60 us and
    /// sleeps before. A wait for workers, or for the kernel ring (which polls the hardware with
    /// [`RingBuilder::iopoll`]), sleeps. A wait of a second thus uses almost no CPU, polled or not.
    pub fn polled(mut self, polled: bool) -> Self {
        self.polled = polled;
        self
    }

    /// Makes the kernel ring under `file:` devices poll the hardware (IORING_SETUP_IOPOLL), if it can.
    pub fn iopoll(mut self, iopoll: bool) -> Self {
        self.iopoll = iopoll;
        self
    }

    /// Sets how long a wait polls before it sleeps. Default 10 us. Waits for kernel I/O sleep at once, and so do those
    /// of a ring whose last four polls found nothing, except one in 64. A device that is due within the polling time is
    /// always polled. A sleep with a time limit is requested shorter by the thread's timer slack (50 us by default),
    /// which the kernel adds; the ring reads the slack when it is built, and never changes it.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Sets the latency above which the [flight recorder](Ring::flight_recorder) keeps every I/O, however usual that
    /// latency is. Default one second.
    pub fn slow_limit(mut self, limit: Duration) -> Self {
        self.slow_limit = limit;
        self
    }

    /// Enables or disables statistics of the devices and files. Default on.
    pub fn stats(mut self, stats: bool) -> Self {
        self.stats = stats;
        self
    }

    /// Bounds the ring's cache of free bios to `bios` (and up to 64 more, which go back to the ring's pool together).
    /// Default: all bios. With 0 every I/O takes its bio from the pool, which shows the gain of the cache. A ring with
    /// a bound takes a bio for every I/O; others need none for plain reads and writes.
    #[cfg(sheave_lab)]
    pub fn bio_cache(mut self, bios: u32) -> Self {
        self.bio_cache = Some(bios);
        self
    }

    /// Selects a clock to read, and discard, for each request of a run that shares its time stamp with the one before.
    #[cfg(sheave_lab)]
    pub fn each_read(mut self, each: EachRead) -> Self {
        self.each_read = each;
        self
    }

    /// Sets the maximum age of the time stamp that the requests of a batch share in statistics. Default 50 us. The age
    /// is checked at every 16th request, so a stamp gets older by the time that 15 requests take: 99 % of them are
    /// younger than 95 us at 3 us a request, and than 451 us at 30 us. Zero: every request reads the clock.
    /// [`Duration::MAX`]: a batch has one stamp, however long its submission takes. A latency in the statistics is too
    /// long by the age of its stamp. Deadlines never use a shared stamp.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let exact = sheave_uring::Ring::builder().stamp_age(Duration::ZERO).build()?;
    /// # Ok::<(), sheave_uring::RingError>(())
    /// ```
    pub fn stamp_age(mut self, age: Duration) -> Self {
        self.stamp_age = Some(age);
        self
    }

    /// Sets the clock, for tests.
    #[doc(hidden)]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Shares the workers of `pool` with other rings. Default: a pool of the ring's own.
    pub fn io_wq(mut self, pool: &IoWq) -> Self {
        self.io_wq = Some(pool.clone());
        self
    }

    /// Builds the ring, on the thread that will use it.
    pub fn build(self) -> Result<Ring, RingError> {
        let bounded = |what, value: u32, high: u32| {
            if value == 0 || value > high {
                let (value, high) = (value.into(), high.into());
                return Err(RingError::Setting { what, value, low: 1, high });
            }
            Ok(value.next_power_of_two())
        };
        let entries = bounded("entries", self.entries, MAX_ENTRIES)?;
        let cq_entries = bounded("cq_entries", self.cq_entries.unwrap_or(entries * 2), 2 * MAX_ENTRIES)?;
        let slots = bounded("in_flight", self.in_flight.unwrap_or(cq_entries), 2 * MAX_ENTRIES)?;
        let clock = self.clock.unwrap_or_else(Clock::real);
        let spin_cycles = clock.ns_to_cycles(self.spin.as_nanos() as u64);
        let mut io = IoCtx::new(IoCtxOptions {
            bios: slots.max(64),
            kring_entries: entries.clamp(64, 4096),
            iopoll: self.iopoll,
            stats: self.stats,
            clock,
        })?;
        let near = if self.polled { self.spin.max(POLLED_REST) } else { self.spin };
        if self.polled {
            io.set_polled_rest(near);
        }
        #[cfg(sheave_lab)]
        if let Some(bios) = self.bio_cache
            && !io.set_bio_cache(bios)
        {
            return Err(RingError::InUse("the bound of the bio cache"));
        }
        #[cfg(sheave_lab)]
        io.set_each_read(self.each_read);
        if let Some(age) = self.stamp_age {
            io.set_stamp_age(age);
        }
        let times = self.stats.then(|| Times::new(io.clock().clone(), self.slow_limit));
        let task_work = TaskWork::new(slots, cq_entries.max(MIN_MAILBOX), io.unparker());
        let pool = match self.io_wq {
            Some(pool) => pool,
            None => IoWq::builder().build()?,
        };
        let wq = RingWq::new(pool, task_work.done_queue(), slots, crate::worker_ring::make);
        Ok(Ring::new(Inner {
            core: Core::new(Queues::new(entries, cq_entries)?, slots, self.polled, wq, times),
            task_work,
            io,
            spin_cycles,
            near,
        }))
    }
}
