//! Every error that a program gets from the library, followed down to its cause.
//!
//! The errors that the tests provoke are real: a missing file, a pool on a failing device, a driver with an error of
//! its own. The rules:
//! - An error's own text names the cause and the fix.
//! - `source()` leads to the cause as a value, which is an [`Errno`], a [`Status`], an [`io::Error`](std::io::Error) or
//!   the error of a driver.
//! - An error that only wraps another one has the text and the source of that one.
//! - Every error can be sent to another thread.

use std::error::Error;
use std::fmt;

use sheave::drivers::{Open, Registry, SafeDriver, SafeQueue, device};
use sheave::volumes::{CreateOptions, OpenOptions, Pool, PoolError};
use sheave::{
    Buf, BufError, Capabilities, DeviceError, Errno, Fd, IoError, Limits, Ring, RingError, SendError, SqFull, Status,
    op, open_device,
};

/// Returns the sources below an error, from the nearest to the last. Panics if there are 16 or more, because the chain
/// then probably has no end.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> Vec<&'a (dyn Error + 'static)> {
    let links: Vec<_> = std::iter::successors(error.source(), |error| (**error).source()).take(16).collect();
    assert!(links.len() < 16, "a chain that does not end: {error:?}");
    assert!(!error.to_string().is_empty());
    links
}

/// Returns the cause: the last link, which must have this type.
fn cause<T: Error + Clone + 'static>(error: &(dyn Error + 'static)) -> T {
    let links = chain(error);
    let last = links.last().unwrap_or_else(|| panic!("{error:?} has no source"));
    last.downcast_ref::<T>().unwrap_or_else(|| panic!("{error:?} ends with {last:?}")).clone()
}

fn has_no_source(error: &(dyn Error + 'static)) {
    assert_eq!(chain(error).len(), 0, "{error:?} is its own cause");
}

/// An error of the test's driver, with its cause.
#[derive(Clone, Debug, PartialEq)]
struct Broken(Errno);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the drum does not turn ({}); give it a push", self.0)
    }
}

impl Error for Broken {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.0)
    }
}

/// A driver that opens, but gives no ring a queue.
#[derive(Debug)]
struct Drum;

impl SafeDriver for Drum {
    fn limits(&self) -> Limits {
        Limits::default()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn size_bytes(&self) -> u64 {
        1 << 20
    }
    fn open_queue(&self, _: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        Err(DeviceError::Driver(Box::new(Broken(Errno::EIO))))
    }
}

#[test]
fn every_error_goes_to_another_thread() {
    fn is_error<T: Error + Send + Sync + 'static>() {}
    is_error::<BufError>();
    is_error::<DeviceError>();
    is_error::<Errno>();
    is_error::<IoError>();
    is_error::<PoolError>();
    is_error::<RingError>();
    is_error::<SendError>();
    is_error::<SqFull>();
    is_error::<SqFull<[op::Entry; 2]>>();
    is_error::<Status>();
    is_error::<sheave::drivers::Refused>();
}

#[test]
fn what_the_system_refused_ends_with_its_errno() {
    let dir = tempfile::tempdir().expect("a directory");
    let missing = format!("file:{}", dir.path().join("no/such/file").display());
    let error = open_device(&missing).expect_err("there is no such file");
    assert_eq!(cause::<Errno>(&error), Errno::ENOENT, "{error}");
    // The same error wrapped by those of rings and pools, which add no link.
    let links = chain(&error).len();
    let error = RingError::from(error);
    assert_eq!((cause::<Errno>(&error), chain(&error).len()), (Errno::ENOENT, links));
    assert!(matches!(error, RingError::Device(DeviceError::Driver(_))));
    let error = PoolError::from(open_device(&missing).expect_err("there is no such file"));
    assert_eq!((cause::<Errno>(&error), chain(&error).len()), (Errno::ENOENT, links));
    // The error of a system call that an outside driver made.
    let refused = std::fs::File::open(dir.path().join("nothing")).expect_err("not there");
    let error = DeviceError::Host { what: "opening the drum".into(), fix: "make it".into(), source: refused };
    let [source] = chain(&error)[..] else { panic!("one link") };
    assert_eq!(source.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error), Some(2));
}

#[test]
fn what_a_driver_said_is_there_whole() {
    let mut registry = Registry::standard();
    let open = |params: &mut sheave::drivers::Params<'_>| match params.switch("ready")? {
        Some(true) => Ok(device(params.spec(), Drum)),
        _ => Err(DeviceError::Driver(Box::new(Broken(Errno::EBUSY)))),
    };
    registry.register("drum", open).expect("a new kind");
    let error = registry.open("drum:").expect_err("it is not ready");
    assert_eq!((error.to_string(), cause::<Errno>(&error)), (Broken(Errno::EBUSY).to_string(), Errno::EBUSY));
    let mut ring = Ring::builder().build().expect("a ring");
    let error = ring.attach(&registry.open("drum:ready=on").expect("it opens")).expect_err("no queue");
    assert_eq!((error.to_string(), cause::<Errno>(&error)), (Broken(Errno::EIO).to_string(), Errno::EIO));
    let RingError::Device(DeviceError::Driver(said)) = error else { panic!("{error:?}") };
    assert_eq!(*said.downcast::<Broken>().expect("what the driver gave"), Broken(Errno::EIO));
    // The error of a driver that could not get its kernel ring.
    let error = DeviceError::Kring { what: "the drum".into(), source: Box::new(Broken(Errno::EPERM)) };
    assert_eq!((chain(&error).len(), cause::<Errno>(&error)), (2, Errno::EPERM));
}

#[test]
fn an_io_that_failed_ends_with_its_errno() {
    let mut ring = Ring::builder().build().expect("a ring");
    let fd = ring.attach(&open_device("fault:error=1,over=ram:size=1M").expect("a device")).expect("attached");
    for (offset, errno) in [(0, Errno::EIO), (100, Errno::EINVAL), (1 << 30, Errno::ENOSPC)] {
        ring.push(op::write(fd, vec![0; 512]).offset(offset)).expect("room");
        ring.submit_and_wait(1).expect("submitted");
        let error = ring.pop().expect("waited for it").result().expect_err("it fails");
        assert_eq!((error.errno(), cause::<Errno>(&error)), (errno, errno));
    }
}

#[test]
fn what_failed_under_a_pool_ends_with_its_status() {
    let size = 64 << 20;
    let device = open_device(&format!("fault:error=1,ops=write,over=ram:size={size}")).expect("a device");
    let error = Pool::create(&device, &CreateOptions::default()).expect_err("nothing can be written");
    assert_eq!(cause::<Status>(&error), Status::IoErr, "{error}");
    assert!(matches!(error, PoolError::Io { .. }), "{error:?}");
    let status = Status::NoSpc;
    for error in [
        PoolError::NotDurable { what: "a snapshot".into(), status },
        PoolError::Degraded { what: "a snapshot".into(), cause: status },
    ] {
        assert_eq!(cause::<Status>(&error), status, "{error}");
    }
    let empty = open_device("ram:size=64M").expect("a device");
    has_no_source(&Pool::open(&empty, &OpenOptions::default()).expect_err("there is no pool"));
    Pool::create(&empty, &CreateOptions::default()).expect("made");
    let pool = Pool::open(&empty, &OpenOptions::default()).expect("it opens");
    has_no_source(&pool.open_volume("v").expect_err("no volume"));
    has_no_source(&pool.create_volume("v", 1).expect_err("not a whole block"));
    has_no_source(&Pool::open(&empty, &OpenOptions::default()).expect_err("it is open"));
}

#[test]
fn what_the_caller_got_wrong_is_its_own_cause() {
    has_no_source(&open_device("drum:size=1M").expect_err("no such kind"));
    has_no_source(&open_device("ram:size=1x").expect_err("no size"));
    has_no_source(&Buf::zeroed(512, 3).expect_err("no power of two"));
    has_no_source(&Buf::zeroed(usize::MAX, 1).expect_err("too much"));
    has_no_source(&RingError::from(Buf::zeroed(512, 3).expect_err("no power of two")));
    has_no_source(&Ring::builder().entries(0).build().expect_err("no entries"));
    let mut ring = Ring::builder().entries(1).build().expect("a ring");
    has_no_source(&ring.detach(Fd::NONE).expect_err("no file"));
    has_no_source(&ring.update_file(7, Fd::NONE).expect_err("no table"));
    has_no_source(&ring.update_buffer(7, None).expect_err("no buffer"));
    ring.push(op::nop()).expect("room for one");
    let full = ring.push(op::nop()).expect_err("the queue is full");
    has_no_source(&full);
    assert_eq!(full.to_string(), full.error.to_string());
    let handle = ring.handle();
    drop(ring);
    let gone = handle.send(1, 2).expect_err("the ring is gone");
    has_no_source(&gone);
    assert_eq!(gone.errno(), Errno::EBADFD);
    has_no_source(&Errno::EIO);
}

#[test]
fn a_full_queue_has_the_source_of_what_it_says() {
    let mut ring = Ring::builder().entries(1).build().expect("a ring");
    let chain_of_two = [op::nop().into(), op::nop().into()];
    let mut full = ring.push_chain::<2>(chain_of_two).expect_err("two do not fit");
    full.error = RingError::from(DeviceError::Driver(Box::new(Broken(Errno::EIO))));
    assert_eq!((full.to_string(), cause::<Errno>(&*full)), (Broken(Errno::EIO).to_string(), Errno::EIO));
}
