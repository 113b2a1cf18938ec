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

/// Most entries of an SQ, as in the kernel.
const MAX_ENTRIES: u32 = 32768;
/// Messages from other rings that wait at most, beyond the size of the CQ.
const MIN_MAILBOX: u32 = 64;

/// Time before a device's deadline at which a polled ring wakes up and polls: longer than the kernel takes to end a
/// sleep on an idle CPU.
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
    /// Settings for a new ring.
    pub fn builder() -> RingBuilder {
        RingBuilder::default()
    }
}

impl RingBuilder {
    /// Entries of the SQ, rounded up to a power of two; 128 unless set.
    pub fn entries(mut self, entries: u32) -> Self {
        self.entries = entries;
        self
    }

    /// Entries of the CQ, rounded up to a power of two; twice the SQ unless set.
    pub fn cq_entries(mut self, entries: u32) -> Self {
        self.cq_entries = Some(entries);
        self
    }

    /// Requests in flight at most, rounded up to a power of two; as many as the CQ has entries unless set. No chain may
    /// have more members.
    pub fn in_flight(mut self, requests: u32) -> Self {
        self.in_flight = Some(requests);
        self
    }

    /// The caller polls: completions are looked for only when it asks (`completions`, `wait`), never by `submit`. A
    /// wait polls in its place for the last 60 us before a device that says when it has something (`null:` with a
    /// latency), and sleeps for what is further away, for workers and for the kernel ring (which polls the hardware
    /// with [`RingBuilder::iopoll`]): a ring that waits for a second uses no CPU for it, polled or not.
    pub fn polled(mut self, polled: bool) -> Self {
        self.polled = polled;
        self
    }

    /// The kernel ring under `file:` devices polls the hardware (IORING_SETUP_IOPOLL), where that can.
    pub fn iopoll(mut self, iopoll: bool) -> Self {
        self.iopoll = iopoll;
        self
    }

    /// How long a wait polls before it sleeps; 10 us unless set. Waits for kernel I/O sleep at once, and so do those of
    /// a ring whose last four polls were in vain, but for one in 64. A device that has something within that time is
    /// polled for in any case. Sleeps with a time limit are asked to end earlier by the thread's timer slack (50 us
    /// unless somebody has set it), which the kernel adds; the ring reads that when it is built, and never changes it.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// I/O that takes longer is kept by the [flight recorder](Ring::flight_recorder), whatever is usual; one second
    /// unless set.
    pub fn slow_limit(mut self, limit: Duration) -> Self {
        self.slow_limit = limit;
        self
    }

    /// Keep statistics of the devices and files; on unless set.
    pub fn stats(mut self, stats: bool) -> Self {
        self.stats = stats;
        self
    }

    /// Bounds the ring's cache of bios: up to so many (and 64 more, until they are given back together) are used again
    /// without going to the pool of all the ring's bios; as many as there are unless set. With 0 each I/O goes there,
    /// which shows what the cache spares. A ring with a bound takes a bio for every I/O; others spare plain reads and
    /// writes the bio.
    #[cfg(sheave_lab)]
    pub fn bio_cache(mut self, bios: u32) -> Self {
        self.bio_cache = Some(bios);
        self
    }

    /// What is read, and thrown away, for each request of a run that shares a stamp with the one before.
    #[cfg(sheave_lab)]
    pub fn each_read(mut self, each: EachRead) -> Self {
        self.each_read = each;
        self
    }

    /// How old the time stamp may be that the requests of a batch share in statistics; 50 us unless set. It is looked
    /// at for every 16th request, so that a stamp gets older by what 15 requests take to make: 99 % of them are younger
    /// than 95 us at 3 us a request, and than 451 us at 30 us. Zero: every request reads the clock.
    /// [`Duration::MAX`]: a batch has one stamp, however long its submission takes. A latency in the statistics is too
    /// long by the age of its stamp. Deadlines never take a shared stamp.
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

    /// Another clock, for tests.
    #[doc(hidden)]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Workers shared with other rings; a pool of its own unless set.
    pub fn io_wq(mut self, pool: &IoWq) -> Self {
        self.io_wq = Some(pool.clone());
        self
    }

    /// Makes the ring, on the thread that will use it.
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
