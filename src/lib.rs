//! Sheave: the Linux block I/O fast path in user space.
//!
//! io_uring-shaped rings on top, a blk-mq underneath; no daemon, no root, no huge pages. A programmer who knows
//! io_uring knows Sheave: SQEs, CQEs, opcodes, flags and results are the kernel's.
//!
//! ```
//! use sheave::{Buf, Ring, op, open_device};
//!
//! let device = open_device("ram:size=16M")?;
//! let mut ring = Ring::builder().entries(32).build()?;
//! let fd = ring.attach(&device)?;
//! let mut hello = Buf::zeroed(4096, 4096)?; // length and alignment in bytes
//! hello[..5].copy_from_slice(b"hello");
//! ring.push(op::write(fd, hello).offset(8192).link())?; // linked: the read waits for the write
//! ring.push(op::read(fd, Buf::zeroed(4096, 4096)?).offset(8192).user_data(1))?;
//! ring.submit_and_wait(2)?;
//! let read = ring.completions().find(|done| done.user_data == 1).expect("one completion an operation");
//! assert_eq!(read.result()?, 4096);
//! assert_eq!(&read.into_buf().expect("a read gives its buffer back")[..5], b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | see |
//! |---|---|
//! | open a device by its spec | [`open_device`]; the specs are in `docs/drivers` |
//! | build a ring, attach devices, submit, wait, read completions | [`Ring`], [`RingBuilder`] |
//! | make an operation | [`op`] |
//! | allocate aligned memory, or lend your own | [`Buf`], [`IoBuf`] |
//! | wake a ring from another thread, or send it a message | [`RingHandle`] |
//! | wait for a ring in an event loop | [`Ring::prepare_wait`] |
//! | read statistics and what is in flight | [`Device::stats`], [`Device::in_flight`] |
//! | see where I/O spends its time, and which I/Os were slow | [`stats`] |
//! | make pools and thin volumes | `volumes` |
//! | write a driver, or a file | `drivers`, `files` |
//! | fill SQEs by hand | `raw` |
//!
//! # Features
//!
//! | feature | adds | default |
//! |---|---|---|
//! | `volumes` | module `volumes`: pools, thin volumes, their checks | yes |
//! | `drivers` | modules `drivers` and `files`: interfaces for drivers and files outside of Sheave | no |
//! | `raw` | module `raw`, and calls of a ring that take SQEs and lend CQEs in the kernel's layout; `unsafe` | no |
//!
//! A program that uses rings only sets `default-features = false`, and does not build volumes.
//!
//! # Conventions
//!
//! Units: lengths, offsets and sizes are in bytes; `sector` is always 512 bytes; times are [`std::time::Duration`], or
//! nanoseconds if a name ends in `_ns`. Errors: setup calls return a [`RingError`] or a [`DeviceError`], whose text
//! names the cause and the fix. An I/O ends with one [`Completion`], whose `res` is io_uring's: bytes, or `-errno`.
//!
//! A ring belongs to the thread that made it and takes no locks for an I/O. Several threads use one ring each, over the
//! same devices.
//!
//! # What is stable
//!
//! The names of this crate, as listed in `docs/public-api.txt`. They are defined in crates named `sheave-*`, which
//! promise nothing: a program that names one of those directly may break with any version.
#![deny(missing_docs)]

#[doc(inline)]
pub use sheave_base::buf::{Buf, BufError};
#[doc(inline)]
pub use sheave_base::status::{Errno, Status};
#[doc(inline)]
pub use sheave_blk::bio::Op;
#[doc(inline)]
pub use sheave_blk::driver::{Capabilities, Engine, Extent};
#[doc(inline)]
pub use sheave_blk::limits::Limits;
#[doc(inline)]
pub use sheave_blk::stats::{OpCounts, Stats};
#[doc(inline)]
pub use sheave_blk::tag_set::InFlight;
#[doc(inline)]
pub use sheave_blk::{Device, DeviceError};
#[doc(inline)]
pub use sheave_drivers::host::{HostError, HostErrorKind};
#[doc(inline)]
pub use sheave_drivers::open_device;
#[doc(inline)]
pub use sheave_iomap::File;
#[doc(inline)]
pub use sheave_uring::io_buf::IoParts;
#[doc(inline)]
pub use sheave_uring::io_wq::AcctCounts;
#[doc(inline)]
pub use sheave_uring::prep as op;
#[doc(inline)]
pub use sheave_uring::{
    Completion, CompletionFlags, Completions, Fd, FixedFile, IoBuf, IoBufMut, IoError, IoWq, IoWqBuilder, Ring,
    RingBuilder, RingError, RingHandle, SendError, SqFull, WaitOn, Waited,
};

/// Statistics: the time that I/O spends in each stage, and a record of slow I/Os. `docs/operate/observe.md` is the
/// guide.
///
/// ```
/// use std::time::Duration;
/// use sheave::stats::{IoKind, Stage};
/// use sheave::{Buf, Ring, op, open_device};
///
/// let mut ring = Ring::builder().slow_limit(Duration::from_millis(1)).build()?;
/// let fd = ring.attach(&open_device("null:size=1M,latency=5ms")?)?;
/// let (counts, recorder) = (ring.io_group().expect("on"), ring.flight_recorder().expect("statistics are on"));
/// ring.push(op::read(fd, Buf::zeroed(4096, 4096)?))?;
/// ring.submit_and_wait(1)?;
/// // Any thread may ask.
/// std::thread::spawn(move || {
///     assert_eq!(counts.counts().kind(IoKind::Read).ios, 1);
///     let slow = recorder.read(0).ios;
///     assert_eq!(slow[0].split.longest(), Stage::Driver);
///     // read of 4 KiB at 0 B of the disk took 5 ms: 5 ms in the driver; depth 1; ...
///     println!("{}", slow[0].explain("the disk"));
/// })
/// .join()
/// .expect("no panic");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod stats {
    #[doc(inline)]
    pub use sheave_base::beside::{Activities, Activity, Beside, Running};
    #[doc(inline)]
    pub use sheave_base::clock::CoarseTs;
    #[doc(inline)]
    pub use sheave_base::trace::writer::TraceWriter;
    #[doc(inline)]
    pub use sheave_blk::stats::{Faults, LATENCY_CELLS, Latencies, STAGE_CELLS, Split, SplitCounts, Stage, StageTimes};
    #[doc(inline)]
    pub use sheave_iomap::io_stats::{IoCounts, IoGroup, IoKind, KindCounts};
    #[doc(inline)]
    pub use sheave_iomap::slow::{FlightRecorder, Place, SlowIo, SlowIos};
}

/// Pools of space on any device, and the thin volumes in them. `docs/concepts/volumes.md` is the guide.
///
/// A [`Volume`](volumes::Volume) is a [`File`]: a ring takes it by [`Ring::attach_file`].
///
/// ```
/// use std::sync::Arc;
/// use sheave::volumes::{CreateOptions, OpenOptions, Pool};
/// use sheave::{Buf, Ring, op, open_device};
///
/// let device = open_device("ram:size=64M")?;
/// Pool::create(&device, &CreateOptions::default())?;
/// let pool = Pool::open(&device, &OpenOptions::default())?;
/// let volume = pool.create_volume("data", 1 << 30)?; // thin: larger than the pool
/// let mut ring = Ring::builder().build()?;
/// let fd = ring.attach_file(Arc::new(volume))?;
/// ring.push(op::write(fd, Buf::zeroed(4096, 4096)?).offset(1 << 29))?;
/// ring.submit_and_wait(1)?;
/// assert_eq!(ring.pop().expect("it was waited for").result()?, 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "volumes")]
pub mod volumes {
    #[doc(inline)]
    pub use sheave_vol::rbd_diff::{Identity, Likeness};
    #[doc(inline)]
    pub use sheave_vol::{
        AddOptions, CheckOptions, CheckProgress, CheckReport, Checksum, CopyOptions, CreateOptions, Differences,
        DiscardState, Extent, ExtentKind, Finding, FindingKind, Found, Holder, Interim, LowWater, MapDamage,
        MemberInfo, OpenOptions, Place, Pool, PoolError, PoolInfo, Purpose, RealClock, ScrubClock, ScrubOptions,
        ScrubPhase, ScrubProgress, ScrubReport, SpaceNotice, SpaceState, Totals, TrimProgress, Upgrade, Volume,
        VolumeInfo, Watch, WhenFull, check_device, check_device_with, join,
    };
}

/// Interfaces for a driver outside of Sheave, without unsafe code. `docs/drivers/writing.md` is the guide, and the
/// crate `sheave-conformance` the test suite that a driver has to pass.
///
/// ```
/// use sheave::drivers::{Open, Registry, Request, SafeDriver, SafeQueue, Step, device};
/// use sheave::{Capabilities, DeviceError, Limits, Status};
///
/// /// Takes everything and keeps nothing.
/// #[derive(Debug)]
/// struct Sink;
///
/// impl SafeDriver for Sink {
///     fn limits(&self) -> Limits {
///         Limits::default()
///     }
///     fn capabilities(&self) -> Capabilities {
///         Capabilities::default()
///     }
///     fn size_bytes(&self) -> u64 {
///         1 << 20
///     }
///     fn open_queue(&self, _: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
///         Ok(Box::new(Sink))
///     }
/// }
///
/// impl SafeQueue for Sink {
///     fn start(&mut self, _: &mut Request<'_>) -> Step {
///         Step::End(Status::Ok)
///     }
/// }
///
/// let mut registry = Registry::standard();
/// registry.register("sink", |params| {
///     params.finish()?; // no keys
///     Ok(device(params.spec(), Sink))
/// })?;
/// assert_eq!(registry.open("sink:")?.size_bytes(), 1 << 20);
/// # Ok::<(), DeviceError>(())
/// ```
#[cfg(feature = "drivers")]
pub mod drivers {
    #[doc(inline)]
    pub use sheave_base::clock::PreciseTs;
    #[doc(inline)]
    pub use sheave_blk::claim::{Claim, Sharing};
    #[doc(inline)]
    pub use sheave_drivers::safe::{
        Address, Child, ChildEnd, IoVec, KernelUse, MAX_CHILDREN, Memory, OpEnd, OpToken, Open, Polled, Refused,
        Request, RequestId, SafeDriver, SafeQueue, Step, Transfer, TransferKind, WaitsFor, Waker, device, stacked,
        with_timeout,
    };
    #[doc(inline)]
    pub use sheave_drivers::spec::Params;
    #[doc(inline)]
    pub use sheave_drivers::{Reach, Registry};
}

/// Interfaces for a file outside of Sheave: a [`File`] is something whose bytes lie in pieces on a device.
#[cfg(feature = "drivers")]
pub mod files {
    #[doc(inline)]
    pub use sheave_base::grace::{Grace, Holder, Ticket};
    #[doc(inline)]
    pub use sheave_iomap::completion_plan::MayBlock;
    #[doc(inline)]
    pub use sheave_iomap::mapping::{Intent, MapFlags, Mapping, MappingKind};
    #[doc(inline)]
    pub use sheave_iomap::{FallocateMode, IoMemory, PlainRanges, RawFile, SummedDone, WriteDone};
}

/// The kernel's layouts of SQEs and CQEs, for programs that fill them by hand (`Ring::push_sqe`, `Ring::get_sqe`,
/// `Ring::for_each_cqe`).
///
/// ```
/// use sheave::Ring;
/// use sheave::raw::{Sqe, opcode};
///
/// let mut ring = Ring::builder().build()?;
/// let sqe = Sqe { opcode: opcode::NOP, user_data: 7, ..Sqe::default() };
/// // SAFETY: it names no memory.
/// assert!(unsafe { ring.push_sqe(&sqe) }, "there is room");
/// ring.submit_and_wait(1)?;
/// let mut seen = 0;
/// ring.for_each_cqe(|cqe| seen = cqe.user_data);
/// assert_eq!(seen, 7);
/// # Ok::<(), sheave::RingError>(())
/// ```
#[cfg(feature = "raw")]
pub mod raw {
    #[doc(inline)]
    pub use sheave_uring::cqe::Cqe;
    #[doc(inline)]
    pub use sheave_uring::queues::Offsets;
    #[doc(inline)]
    pub use sheave_uring::sqe::*;
}

/// The example of the README, tested like all others.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

/// The driver of the page on drivers.
#[cfg(doctest)]
#[doc = include_str!("../docs/drivers/README.md")]
pub struct Drivers;

/// The example of the page on volumes.
#[cfg(doctest)]
#[doc = include_str!("../docs/concepts/volumes.md")]
pub struct Volumes;

/// The examples of the page on embedding.
#[cfg(doctest)]
#[doc = include_str!("../docs/concepts/embedding.md")]
pub struct Embedding;
