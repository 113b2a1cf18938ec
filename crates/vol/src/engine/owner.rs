//! The owner number: with it, an opening detects that another opening has since taken the pool for writing, and stops.
//!
//! Claims keep two programs from opening one pool. They fail if the bytes can be reached under two names whose
//! connection the host cannot see: a loop device, a device mapper table, two paths to one disk of a network, a shared
//! image. So each opening for writing writes a random number of 128 bits into its superblocks, and reads it back from
//! time to time while it writes: this is a *look*. Owns the looks, and the end of an opening that has lost its pool.
//! Does not own claims ([`sheave_blk::claim`]), nor fencing, which only a device can do.
//!
//! - O1: every superblock, of a checkpoint or with a list of losses, is written only after a look has found that this
//!   opening still has the pool.
//! - O2: commits begin, and units are given to volumes or discarded, only within
//!   [`OpenOptions::owner_every`](crate::OpenOptions::owner_every) after a look. Within that time the check needs no
//!   I/O.
//! - O3: an opening that has lost its pool writes nothing any more: it rings its alarm, as after a failed flush, but
//!   writes no list of losses.
//! - O4: a look that can read neither superblock is an I/O error for its caller; the next one looks again.
//!
//! One case is not covered: an overwrite of blocks that only one volume has is done by a ring, without a look. Such
//! overwrites continue until any other operation looks.
//!
//! Called by commits, checkpoints, writes to new space, discards, and by
//! [`Pool::check_owner`](crate::Pool::check_owner).

use std::time::Instant;

use sheave_base::status::Status;

use crate::device::reader::read_again;
use crate::engine::inner::PoolInner;
use crate::format::superblock::{Superblock, choose};
use crate::format::{BLOCK, SUPERBLOCKS};
use crate::state::State;
use crate::state::phase::Event;
use crate::state::plan::{Plan, Reached};

/// The superblocks that a look may find if no other opening has written.
struct Known {
    /// Incarnation and owner number of this opening, and of the previous one.
    ours: [(u64, [u8; 16]); 2],
    pool: [u8; 16],
    /// Generation that is certainly on the device, and the highest generation that this opening may have written.
    generations: (u64, u64),
}

impl PoolInner {
    /// Checks the owner of the pool if the last look is too old (O2).
    pub(crate) fn look_if_due(&self) -> Result<(), Status> {
        let mut state = self.lock();
        if !self.look_is_due(&state) {
            return Ok(());
        }
        // Set before the read, so that other threads continue during the read instead of looking too.
        state.looked = Instant::now();
        drop(state);
        self.look(None)
    }

    /// Returns true if the last look at the owner is too old.
    pub(crate) fn look_is_due(&self, state: &State) -> bool {
        !self.read_only && state.looked.elapsed() > self.owner_every
    }

    /// Checks the owner of the pool. `plan` is a checkpoint that may be on the device in part. Not called under the
    /// pool's lock.
    ///
    /// # Errors
    ///
    /// `IoErr` when another opening owns the pool, which takes no changes from then on; or the error of the read (O4).
    pub(crate) fn look(&self, plan: Option<&Plan>) -> Result<(), Status> {
        let found = self.read_slots()?;
        let known = self.lock().known(plan);
        match stranger(&found, &known) {
            None => {
                self.lock().looked = Instant::now();
                Ok(())
            }
            Some(who) => {
                self.lose(who);
                Err(Status::IoErr)
            }
        }
    }

    /// Returns a description of the pool's other owner, or `None` if there is none. Unlike `look`, it is called outside
    /// of commits.
    pub(crate) fn look_beside(&self) -> Result<Option<String>, Status> {
        for last in [false, true] {
            let found = self.read_slots()?;
            let mut known = self.lock().known(None);
            // A commit may have written a superblock and not recorded it yet: accept any higher generation.
            known.generations.1 = u64::MAX;
            let who = stranger(&found, &known);
            // A checkpoint may have been completed after the read, which then returned a superblock too old for
            // `known`: read once more.
            if who.is_none() || last {
                return Ok(who.inspect(|who| self.lose(who.clone())));
            }
        }
        Ok(None)
    }

    /// Reads both superblocks. An unreadable one becomes `None`: an opening that takes the pool writes both anyway.
    fn read_slots(&self) -> Result<[Option<Superblock>; 2], Status> {
        let mut bytes = [[0; BLOCK]; 2];
        let read = [0, 1].map(|slot| read_again(&*self.io, SUPERBLOCKS[slot], &mut bytes[slot]));
        if let [Err(status), Err(_)] = read {
            return Err(status);
        }
        let decode = |slot: usize| Superblock::decode(&bytes[slot], SUPERBLOCKS[slot], u64::MAX).ok();
        Ok([0, 1].map(|slot| read[slot].is_ok().then(|| decode(slot)).flatten()))
    }

    /// Records that another opening has the pool. From then on nothing is written (O3).
    #[cold]
    fn lose(&self, who: String) {
        let mut state = self.lock();
        state.phase = state.phase.after(Event::OwnerLost);
        state.taken_by.get_or_insert(who);
        drop(state);
        self.alarm.ring(Status::Conflict);
        self.wake();
    }
}

impl State {
    fn known(&self, plan: Option<&Plan>) -> Known {
        let most = match plan.or(self.next.plan()) {
            Some(plan) if plan.reached != Reached::Pages => plan.sb.generation + 1,
            _ => self.sb.generation,
        };
        Known {
            ours: [(self.incarnation, self.owner_to_write()), (self.sb.incarnation, self.sb.owner)],
            pool: self.sb.pool,
            // During the write of a list of losses any higher generation may be there.
            generations: (self.sb.generation, if self.phase.is_degraded() { u64::MAX } else { most }),
        }
    }

    /// Returns the owner number for the next superblock. It is zero in a pool that was not upgraded to have one.
    pub(crate) fn owner_to_write(&self) -> [u8; 16] {
        if self.numbered { self.owner } else { [0; 16] }
    }
}

/// Describes the opening that has the pool now. Returns `None` if it is still this one.
///
/// Two damaged superblocks do not prove another opening: the next checkpoint writes them anew. The same is true of one
/// damaged superblock beside an older one.
fn stranger(found: &[Option<Superblock>; 2], known: &Known) -> Option<String> {
    let newest = match found {
        [Some(a), Some(b)] => choose([Ok(a.clone()), Ok(b.clone())]).map_or(b.clone(), |(newest, _)| newest),
        [Some(one), None] | [None, Some(one)] => one.clone(),
        [None, None] => return None,
    };
    if found.iter().flatten().any(|sb| sb.pool != known.pool) {
        return Some("another pool lies there by now".into());
    }
    let is_ours = known.ours.contains(&(newest.incarnation, newest.owner)) && newest.generation <= known.generations.1;
    let is_left = found.contains(&None) && newest.generation < known.generations.0;
    if is_ours || is_left {
        return None;
    }
    let own = known.ours[0].0;
    Some(match newest.incarnation {
        other if other > own => format!("it was opened for writing elsewhere (opening {other}, this one is {own})"),
        other if other < own => {
            format!("an older opening goes on writing to it elsewhere (opening {other}, this one is {own})")
        }
        _ => format!("it was opened for writing elsewhere at the same moment (both are opening {own})"),
    })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use sheave_blk::Device;
    use sheave_drivers::open_device;
    use sheave_iomap::File;
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::file::WriteDone;
    use sheave_iomap::mapping::Intent;

    use super::*;
    use crate::device::block_io::{BlockIo, DeviceIo};
    use crate::{CheckOptions, CreateOptions, OpenOptions, Pool, PoolError, Volume, check_device};

    const SIZE: usize = 16 << 20;

    /// Faults of the memory.
    #[derive(Default)]
    struct Faults {
        /// Number of reads of superblocks.
        looks: AtomicU64,
        blind: AtomicBool,
        flushless: AtomicBool,
    }

    struct Shared {
        io: DeviceIo,
        faults: std::sync::Arc<Faults>,
    }

    impl BlockIo for Shared {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            if at < 8192 {
                self.faults.looks.fetch_add(1, Ordering::SeqCst);
                if self.faults.blind.load(Ordering::SeqCst) {
                    return Err(Status::Medium);
                }
            }
            self.io.read(at, buf)
        }

        fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
            self.io.write(at, buf)
        }

        fn flush(&self) -> Result<(), Status> {
            if self.faults.flushless.load(Ordering::SeqCst) { Err(Status::IoErr) } else { self.io.flush() }
        }

        fn discard(&self, at: u64, len: u64) -> Result<(), Status> {
            self.io.discard(at, len)
        }

        fn size_bytes(&self) -> u64 {
            self.io.size_bytes()
        }
    }

    /// Memory over which any number of pools are opened, by claims that do not exclude each other.
    struct Rig {
        memory: Device,
    }

    impl Rig {
        fn new() -> Rig {
            let memory = open_device("ram:size=16M").expect("opens");
            Pool::create(&memory, &CreateOptions::default().discard(true).journal_bytes(Some(1 << 20)))
                .expect("formats");
            Rig { memory }
        }

        fn open_with(&self, every: Duration) -> (Pool, std::sync::Arc<Faults>) {
            let device = open_device("ram:size=16M").expect("opens");
            let faults = std::sync::Arc::new(Faults::default());
            let io = Shared { io: DeviceIo::new(&self.memory).expect("attaches"), faults: faults.clone() };
            let options = OpenOptions::default().discard_thread(false).longest_idle(Duration::MAX).owner_every(every);
            (Pool::open_through(&device, Box::new(io), &options).expect("opens"), faults)
        }

        fn open(&self, every: Duration) -> Pool {
            self.open_with(every).0
        }

        fn bytes(&self) -> Vec<u8> {
            let mut bytes = vec![0; SIZE];
            DeviceIo::new(&self.memory).expect("attaches").read(0, &mut bytes).expect("reads");
            bytes
        }

        fn put(&self, at: u64, bytes: &[u8]) {
            DeviceIo::new(&self.memory).expect("attaches").write(at, bytes).expect("writes");
        }

        fn superblock(&self) -> Superblock {
            let bytes = self.bytes();
            let slot = |at: u64| Superblock::decode(bytes[at as usize..][..BLOCK].try_into().unwrap(), at, u64::MAX);
            choose(SUPERBLOCKS.map(slot)).expect("intact").0
        }
    }

    fn write(volume: &Volume, unit: u64, tag: u8) -> Result<(), Status> {
        let (pos, may_block) = (unit << 16, MayBlock::on_worker());
        let mapping = match volume.map(pos, 4096, Intent::Write) {
            Ok(mapping) => mapping,
            Err(Status::Again) => volume.map_blocking(pos, 4096, Intent::Write, &may_block)?,
            Err(status) => return Err(status),
        };
        volume.pool().io.write(mapping.addr, &[tag; 4096])?;
        volume.end_write(WriteDone::new(pos, 4096, Status::Ok, &[mapping]), &may_block)
    }

    fn has(volume: &Volume, unit: u64, tag: u8) -> bool {
        let mapping = volume.map_blocking(unit << 16, 4096, Intent::Read, &MayBlock::on_worker()).expect("maps");
        let mut block = [0; 4096];
        volume.pool().io.read(mapping.addr, &mut block).expect("reads");
        block == [tag; 4096]
    }

    /// Checks that everything the second owner made is there, and that its pool is clean.
    fn goes_on(rig: &Rig, second: Pool) {
        let volume = second.open_volume("second").expect("is there");
        assert!((0..8).all(|unit| has(&volume, unit, 7)));
        write(&volume, 9, 9).expect("writes");
        second.sync().expect("it is its own");
        second.check_owner().expect("it is its own");
        drop(volume);
        second.close().expect("closes");
        let report = check_device(&rig.memory, &CheckOptions::default()).expect("checks");
        assert!(report.is_clean(), "{:?}", report.findings);
    }

    fn second(rig: &Rig, every: Duration) -> Pool {
        let second = rig.open(every);
        let volume = second.create_volume("second", 1 << 20).expect("creates");
        (0..8).for_each(|unit| write(&volume, unit, 7).expect("writes"));
        second.sync().expect("syncs");
        second
    }

    /// V30: after another opening has taken the pool, the first owner writes nothing in any operation, and its errors
    /// name the reason.
    #[test]
    fn an_opening_that_lost_the_pool_writes_nothing() {
        type Try = (&'static str, fn(&Pool, &mut Option<Volume>) -> bool);
        let tries: [Try; 9] = [
            ("a flush", |pool, _| pool.sync().is_err()),
            ("a new volume", |pool, _| pool.create_volume("more", 1 << 20).is_err()),
            ("a snapshot", |pool, _| pool.snapshot("first", "copy").is_err()),
            ("a write to new space", |_, volume| write(volume.as_ref().unwrap(), 5, 5) == Err(Status::IoErr)),
            ("a write to what a snapshot shares", |_, volume| {
                write(volume.as_ref().unwrap(), 0, 5) == Err(Status::IoErr)
            }),
            ("a discard of what is free", |pool, _| pool.discard_freed().is_ok_and(|bytes| bytes == 0)),
            ("a trim", |pool, _| pool.trim(&mut |_| std::ops::ControlFlow::Continue(())).is_err()),
            ("a close", |pool, volume| {
                *volume = None;
                pool.clone().close().is_err()
            }),
            ("the end of the process", |_, _| true),
        ];
        for (what, attempt) in tries {
            let rig = Rig::new();
            let first = rig.open(Duration::ZERO);
            let volume = first.create_volume("first", 1 << 20).expect("creates");
            write(&volume, 0, 1).expect("writes");
            first.create_volume("gone", 1 << 20).map(|gone| write(&gone, 0, 1).expect("writes")).expect("creates");
            first.delete("gone").expect("deletes");
            first.snapshot("first", "kept").expect("snapshots");
            write(&volume, 1, 1).expect("writes");
            let second = second(&rig, Duration::ZERO);
            let before = rig.bytes();
            let mut volume = Some(volume);
            assert!(attempt(&first, &mut volume), "{what}");
            if what != "the end of the process" {
                if let Some(volume) = &volume {
                    let said = first.sync();
                    assert_eq!(write(volume, 1, 3), Err(Status::IoErr), "{what}: in place too, from then on: {said:?}");
                }
                let error = first.rename("first", "other").expect_err("it has lost the pool");
                assert!(matches!(error, PoolError::Taken { .. }), "{what}: {error}");
                for word in
                    ["opened for writing elsewhere (opening 3, this one is 2)", "loop device", "Let go of the pool"]
                {
                    assert!(error.to_string().contains(word), "{what}: {error}");
                }
                let info = first.info();
                assert!(info.taken_by.is_some() && info.degraded.is_none() && first.check_owner().is_err(), "{what}");
            }
            drop((volume, first));
            assert!(rig.bytes() == before, "{what}: wrote to a pool that is another's");
            goes_on(&rig, second);
        }
    }

    /// V30: commits between two looks succeed without a look. A checkpoint always looks first.
    #[test]
    fn a_checkpoint_looks_before_it_writes() {
        let rig = Rig::new();
        let (first, faults) = rig.open_with(Duration::MAX);
        let volume = first.create_volume("first", 1 << 20).expect("creates");
        let looks = faults.looks.load(Ordering::SeqCst);
        for round in 0..20 {
            write(&volume, round % 16, 1).expect("writes");
            first.sync().expect("syncs");
        }
        assert_eq!(faults.looks.load(Ordering::SeqCst), looks, "commits cost no look before it is due");
        write(&volume, 3, 2).expect("writes");
        let second = second(&rig, Duration::MAX);
        let before = rig.bytes();
        assert_eq!(first.inner.checkpoint(), Err(Status::IoErr));
        assert!(rig.bytes() == before);
        drop((volume, first));
        assert!(rig.bytes() == before);
        goes_on(&rig, second);
    }

    /// V30: two openings at the same moment choose the same incarnation. The one whose superblocks were overwritten
    /// detects by the owner number that it has lost the pool.
    #[test]
    fn openings_of_the_same_moment_are_told_apart() {
        let rig = Rig::new();
        let other = Rig::new();
        other.put(0, &rig.bytes());
        let first = rig.open(Duration::ZERO);
        let second = second(&other, Duration::ZERO);
        rig.put(0, &other.bytes());
        assert_eq!(first.inner.lock().sb.incarnation, second.inner.lock().sb.incarnation);
        assert!(first.sync().is_err());
        let error = first.create_volume("more", 1 << 20).expect_err("it has lost the pool").to_string();
        assert!(error.contains("at the same moment"), "{error}");
    }

    /// V30: an opening by an older program, or one that was stopped for a while, writes its superblocks over those of
    /// the newer opening.
    #[test]
    fn an_older_opening_that_writes_on_is_detected() {
        let rig = Rig::new();
        drop(rig.open(Duration::MAX));
        let stale = rig.bytes();
        let pool = rig.open(Duration::ZERO);
        pool.create_volume("v", 1 << 20).expect("creates");
        rig.put(0, &stale[..8192]);
        let error = pool.create_volume("more", 1 << 20).expect_err("it has lost the pool").to_string();
        assert!(error.contains("an older opening goes on writing"), "{error}");
    }

    /// V30, V25: a list of losses is not written into the superblocks of another opening.
    #[test]
    fn a_list_of_losses_is_not_written_to_the_pool_of_another() {
        let rig = Rig::new();
        let (first, faults) = rig.open_with(Duration::MAX);
        let volume = first.create_volume("first", 1 << 20).expect("creates");
        write(&volume, 3, 2).expect("writes");
        let second = second(&rig, Duration::MAX);
        let before = rig.bytes();
        faults.flushless.store(true, Ordering::SeqCst);
        assert!(first.sync().is_err());
        faults.flushless.store(false, Ordering::SeqCst);
        let error = first.create_volume("more", 1 << 20).expect_err("it has lost the pool");
        assert!(matches!(error, PoolError::Taken { .. }), "{error}");
        drop((volume, first));
        assert!(rig.bytes() == before);
        goes_on(&rig, second);
    }

    /// A look that can read nothing is an error for its caller, and the next one looks again.
    #[test]
    fn a_look_that_cannot_read_is_an_error() {
        let rig = Rig::new();
        let (pool, faults) = rig.open_with(Duration::ZERO);
        let volume = pool.create_volume("v", 1 << 20).expect("creates");
        write(&volume, 0, 1).expect("writes");
        faults.blind.store(true, Ordering::SeqCst);
        let before = rig.bytes();
        assert_eq!(pool.inner.commit(), Err(Status::Medium));
        assert_eq!(pool.inner.checkpoint(), Err(Status::Medium));
        assert!(rig.bytes() == before);
        faults.blind.store(false, Ordering::SeqCst);
        pool.sync().expect("it is its own");
        drop(volume);
        pool.close().expect("closes");
    }

    /// Superblocks that rot under an open pool are no sign of another owner: the next checkpoint rewrites them.
    #[test]
    fn rotten_superblocks_are_not_taken_for_another_owner() {
        for slots in [&[0u64][..], &[1], &[0, 1]] {
            let rig = Rig::new();
            let pool = rig.open(Duration::ZERO);
            let volume = pool.create_volume("v", 1 << 20).expect("creates");
            slots.iter().for_each(|slot| rig.put(SUPERBLOCKS[*slot as usize], &[0xee; 4096]));
            write(&volume, 0, 1).expect("writes");
            pool.sync().expect("syncs");
            drop(volume);
            pool.close().expect("closes");
            assert!(check_device(&rig.memory, &CheckOptions::default()).expect("checks").is_clean());
        }
    }

    /// A pool of an older program has no owner numbers. Successive openings are still distinguished, and an upgrade
    /// adds the numbers.
    #[test]
    fn later_openings_are_detected_without_owner_numbers() {
        let rig = Rig::new();
        for at in SUPERBLOCKS {
            let mut block: [u8; BLOCK] = rig.bytes()[at as usize..][..BLOCK].try_into().unwrap();
            let old = Superblock::decode(&block, at, u64::MAX).expect("intact");
            Superblock { owner: [0; 16], ..old }.encode(&mut block);
            rig.put(at, &block);
        }
        let first = rig.open(Duration::ZERO);
        let volume = first.create_volume("first", 1 << 20).expect("creates");
        write(&volume, 0, 1).expect("writes");
        first.sync().expect("it is its own");
        assert_eq!(rig.superblock().owner, [0; 16], "opening is no upgrade");
        let second = second(&rig, Duration::ZERO);
        assert!(first.sync().is_err());
        drop((volume, first));
        assert_eq!(second.upgrade().expect("upgrades").len(), 1);
        let owner = rig.superblock().owner;
        assert!(owner != [0; 16] && second.upgrades().is_empty());
        goes_on(&rig, second);
        let third = rig.open(Duration::ZERO);
        assert!(![[0; 16], owner].contains(&rig.superblock().owner), "each opening has its own");
        third.close().expect("closes");
    }
}
