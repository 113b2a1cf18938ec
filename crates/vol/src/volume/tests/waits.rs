//! A hole waits for the copies of its volume that are in flight, and not for those that begin later.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use sheave_base::status::Status;
use sheave_drivers::open_device;
use sheave_iomap::File;
use sheave_iomap::completion_plan::MayBlock;
use sheave_iomap::file::FallocateMode;
use sheave_iomap::mapping::Intent;

use super::{begin, end};
use crate::block_io::DeviceIo;
use crate::{BlockIo, CreateOptions, OpenOptions, Pool};

/// Size of a unit, large enough for each unit to be copied alone.
const UNIT: u64 = 256 << 10;
/// Number of units that are copied, or zeroed in part.
const CHAIN: u64 = 100;

/// Kind of I/O that is counted. Each copy makes one read, and zeroing a block makes one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Reads,
    Writes,
}

/// Number of I/Os that have begun since the counting started.
#[derive(Default)]
struct Copies {
    begun: Mutex<Option<(Of, u64)>>,
    changed: Condvar,
    /// True when nobody has to be held any more.
    is_over: AtomicBool,
}

impl Copies {
    fn begun(&self) -> u64 {
        self.begun.lock().unwrap().map_or(0, |begun| begun.1)
    }

    fn wait_for_two(&self) {
        let few = |begun: &mut Option<(Of, u64)>| begun.is_none_or(|begun| begun.1 < 2);
        drop(self.changed.wait_while(self.begun.lock().unwrap(), few).unwrap());
    }

    /// Holds a counted I/O until the next has begun, or until none does for a while.
    fn pass(&self, of: Of) {
        let mut begun = self.begun.lock().unwrap();
        let Some((_, count)) = begun.as_mut().filter(|begun| begun.0 == of) else { return };
        *count += 1;
        let mine = *begun;
        self.changed.notify_all();
        let holds = |now: &mut Option<(Of, u64)>| *now == mine && !self.is_over.load(Ordering::SeqCst);
        drop(self.changed.wait_timeout_while(begun, Duration::from_millis(500), holds).unwrap());
        // A hole is to be made in less time than all of the I/Os take, also on a busy machine.
        if !self.is_over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Holds no I/O any more.
    fn let_go(&self) {
        let _begun = self.begun.lock().unwrap();
        self.is_over.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }
}

/// A device that counts the I/Os.
struct Chained {
    io: DeviceIo,
    copies: Arc<Copies>,
}

impl BlockIo for Chained {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.copies.pass(Of::Reads);
        self.io.read(at, buf)
    }

    fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
        self.copies.pass(Of::Writes);
        self.io.write(at, buf)
    }

    fn flush(&self) -> Result<(), Status> {
        self.io.flush()
    }

    fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
        self.io.discard(at, len)
    }

    fn size_bytes(&self) -> u64 {
        self.io.size_bytes()
    }
}

/// Two writers copy one unit after the other, or zero a part of it, so that at any moment one of them is at work.
#[test]
fn a_hole_does_not_wait_for_copies_that_begin_after_it() {
    for of in [Of::Reads, Of::Writes] {
        let device = open_device("ram:size=128M").unwrap();
        Pool::create(&device, &CreateOptions { unit_bytes: UNIT, ..CreateOptions::default() }).unwrap();
        let copies = Arc::new(Copies::default());
        let io = Box::new(Chained { io: DeviceIo::new(&device).unwrap(), copies: Arc::clone(&copies) });
        // Reads of superblocks would count as copies.
        let options = OpenOptions { owner_every: std::time::Duration::MAX, ..OpenOptions::default() };
        let pool = Pool::open_through(&device, io, &options).unwrap();
        let volume = pool.create_volume("v", 256 * UNIT).unwrap();
        (0..=CHAIN).for_each(|unit| end(&volume, begin(&volume, unit * UNIT)));
        end(&volume, begin(&volume, CHAIN * UNIT + 4096));
        // A block of a shared unit, or a part of a block that was not written.
        let (at, len) = if of == Of::Reads { (0, 4096) } else { (8192 + 512, 4096 - 512) };
        if of == Of::Reads {
            pool.snapshot("v", "s").unwrap();
        }
        *copies.begun.lock().unwrap() = Some((of, 0));
        let copy = |unit| volume.map_blocking(unit * UNIT + at, len, Intent::Write, &MayBlock::on_worker()).unwrap();
        std::thread::scope(|scope| {
            let copy = &copy;
            let writer = |first: u64| scope.spawn(move || (first..CHAIN).step_by(2).for_each(|unit| _ = copy(unit)));
            let writers = [0, 1].map(writer);
            copies.wait_for_two();
            volume.fallocate(FallocateMode::PunchHole, CHAIN * UNIT, 4096, &MayBlock::on_worker()).unwrap();
            let begun = copies.begun();
            copies.let_go();
            assert!(begun < CHAIN, "{of:?}: the hole waited for {begun}");
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        });
        assert_eq!(copies.begun(), CHAIN, "{of:?}: nobody is held back any more");
        *copies.begun.lock().unwrap() = None;
        pool.sync().unwrap();
    }
}
