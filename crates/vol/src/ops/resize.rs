//! Changes the size of a volume, or its largest size.
//!
//! Owns the order of steps in which a volume shrinks and grows, and the check of the sizes that volumes may have.
//!
//! - Z1: users see a larger size only after it is durable, and a smaller size before anything is cut off.
//! - Z2: data that was cut off never reappears. The rest of the last block is zeroed before the smaller size is
//!   durable, and no checkpoint contains units beyond the end.
//!
//! Called by [`Pool`](crate::Pool), and by creating, which checks sizes.

use sheave_base::status::Status;
use sheave_base::sync::{Arc, MutexGuard};
use sheave_iomap::completion_plan::MayBlock;

use crate::engine::change::failed;
use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::BLOCK_SHIFT;
use crate::format::record::Record;
use crate::format::{BLOCK_BYTES, MAX_VOLUME_UNITS};
use crate::state::State;
use crate::state::account::Spender;
use crate::state::table::VolumeCore;
use crate::volume::open_volume;

impl PoolInner {
    /// Changes the size of a volume, also while it is used.
    pub(crate) fn resize(self: &Arc<Self>, name: &str, size_bytes: u64) -> Result<(), PoolError> {
        let _one = self.structural();
        self.check_writable("resizing a volume")?;
        let core = Arc::clone(&self.lock().table.whole(name, "resizing a volume")?.core);
        self.check_resize(&core, size_bytes)?;
        if core.snapshot {
            return Err(PoolError::Invalid {
                what: format!("'{name}' is a snapshot, and a snapshot keeps its size"),
                fix: "Clone it and resize the clone".into(),
            });
        }
        let block_end = size_bytes.next_multiple_of(1 << BLOCK_SHIFT).min(core.size());
        if size_bytes < block_end {
            self.cut_block(name, &core, size_bytes, block_end)?;
        }
        let resized = self.resize_map(name, size_bytes);
        self.widen_again(&core);
        resized
    }

    /// Zeroes the rest of the last block of a volume that shrinks: if the volume grew again, that rest would become
    /// visible. Writes that begin from here on find the smaller size, and earlier ones have ended when the rest is
    /// zeroed.
    fn cut_block(
        self: &Arc<Self>,
        name: &str,
        core: &VolumeCore,
        size_bytes: u64,
        block_end: u64,
    ) -> Result<(), PoolError> {
        let volume = open_volume(self, name)?;
        let may_block = MayBlock::on_worker();
        self.narrow(core, size_bytes);
        let ended = self.wait_for_io(core, &may_block);
        let cut = ended.and_then(|()| volume.punch(size_bytes, block_end - size_bytes, &may_block));
        cut.map_err(|status| {
            self.widen_again(core);
            match status {
                Status::Timeout => self.io_goes_on(name, core),
                status => self.failed("resizing", name, status),
            }
        })
    }

    /// Shows users the smaller size from now on. Checkpoints keep the size that the volume had.
    fn narrow(&self, core: &VolumeCore, size: u64) {
        let mut state = self.lock();
        if let Some(vol) = state.table.get_mut(core.id) {
            vol.durable_size = Some(core.size());
            core.set_size(size);
        }
    }

    /// Undoes [`PoolInner::narrow`], unless the volume has got the smaller size in the meantime.
    fn widen_again(&self, core: &VolumeCore) {
        let mut state = self.lock();
        if let Some(size) = state.table.get_mut(core.id).and_then(|vol| vol.durable_size.take()) {
            core.set_size(size);
        }
    }

    /// Resizes the map and the table entry. The rest of the last block beyond `size` is zero already.
    fn resize_map(&self, name: &str, size: u64) -> Result<(), PoolError> {
        let state = self.lock();
        let vol = state.table.named(name)?;
        let (volume, core) = (vol.id, Arc::clone(&vol.core));
        let shrinks = size < vol.size_to_write();
        if !shrinks {
            return self.enlarge(state, &core, name, size);
        }
        let last = self.map.geometry.units_of(size).saturating_sub(1);
        let cost = |state: &State| state.cost_of_units(volume, last, last + 1);
        let state = self.afford(state, "resizing a volume", Spender::Discard, cost)?;
        let state = self.settle(state, volume, Some(volume));
        let mut state = self.afford_settled(state, volume, "resizing a volume", Spender::Discard, cost)?;
        // Z1: users see the smaller size before anything is cut off.
        core.set_size(size);
        if let Some(vol) = state.table.get_mut(volume) {
            vol.durable_size = None;
        }
        state.table.set_cutting(volume, true);
        state.unlist_grown(volume);
        self.record(&mut state, Record::Resize { volume, size });
        drop(state);
        let mut cut = Ok(true);
        // The lock is released after each slot of the map (S4 of `snapshot`).
        while matches!(cut, Ok(true)) {
            cut = self.lock().cut_some(&core, size);
        }
        self.settled(&mut self.lock(), volume);
        cut.map_err(|status| failed("resizing", name, status))?;
        self.durable_at_last("resizing", name)
    }

    /// Resizes to a size that is no smaller. Users see the new size when it is durable. Until then it can be undone,
    /// because nothing was written in the added part.
    fn enlarge(
        &self,
        mut state: MutexGuard<'_, State>,
        core: &VolumeCore,
        name: &str,
        size: u64,
    ) -> Result<(), PoolError> {
        let volume = core.id;
        if let Some(vol) = state.table.get_mut(volume) {
            vol.durable_size = Some(size);
        }
        state.unlist_grown(volume);
        self.record(&mut state, Record::Resize { volume, size });
        drop(state);
        let durable = self.durable_or("resizing", name, |state| {
            if let Some(vol) = state.table.get_mut(volume) {
                vol.durable_size = None;
            }
        });
        // Z1: users see the larger size only now. The field is empty if the change was undone.
        if let Some(vol) = self.lock().table.get_mut(volume).filter(|vol| vol.durable_size.is_some()) {
            core.set_size(vol.size_to_write());
            vol.durable_size = None;
        }
        durable
    }

    /// Changes the largest size of a volume that grows.
    pub(crate) fn limit(&self, name: &str, max_size: u64) -> Result<(), PoolError> {
        let _one = self.structural();
        self.check_writable("changing the largest size of a volume")?;
        let mut state = self.lock();
        let vol = state.table.whole(name, "changing the largest size of a volume")?;
        let (volume, core) = (vol.id, Arc::clone(&vol.core));
        check_grows(&core, name)?;
        self.check_growing(core.size(), max_size)?;
        let before = core.max_size();
        self.apply_and_record(&mut state, Record::Limit { volume, max_size }, name)?;
        drop(state);
        // Undone only down to the present size: writes may by now have made the volume larger than its former largest
        // size.
        self.durable_or("changing the largest size of", name, |_| core.set_max_size(before.max(core.size())))
    }

    /// Returns the largest size in bytes that a volume of the pool can have.
    pub(crate) fn most(&self) -> u64 {
        MAX_VOLUME_UNITS << self.map.geometry.unit_shift
    }

    /// Returns the block size of volumes: the device's, or that of checksums if it is larger.
    pub(crate) fn block_bytes(&self) -> u64 {
        let block = u64::from(self.device.limits().logical_block);
        if self.sums.is_some() { block.max(crate::format::BLOCK_BYTES) } else { block }
    }

    pub(crate) fn check_size(&self, size: u64) -> Result<(), PoolError> {
        let block = self.block_bytes();
        if size == 0 || !size.is_multiple_of(block) {
            return Err(PoolError::Invalid {
                what: format!("a volume cannot have {size} bytes"),
                fix: format!("Use a multiple of {block}, the block of the pool's device"),
            });
        }
        self.check_most(size)
    }

    fn check_most(&self, size: u64) -> Result<(), PoolError> {
        if size <= self.most() {
            return Ok(());
        }
        Err(PoolError::Limit {
            what: format!("a volume of {size} bytes"),
            limit: self.most(),
            fix: "Use a smaller size, or a pool with larger allocation units".into(),
        })
    }

    /// Returns an error for a size that the volume cannot be given.
    pub(crate) fn check_resize(&self, core: &VolumeCore, size: u64) -> Result<(), PoolError> {
        if core.grows { self.check_growing(size, core.max_size()) } else { self.check_size(size) }
    }

    /// Returns an error for sizes that a volume that grows cannot have.
    pub(crate) fn check_growing(&self, size: u64, max_size: u64) -> Result<(), PoolError> {
        if max_size == 0 || (size | max_size) & (BLOCK_BYTES - 1) != 0 {
            return Err(PoolError::Invalid {
                what: format!("a volume cannot have {size} bytes and grow to {max_size}"),
                fix: "Use multiples of 4096, for it grows by whole blocks".into(),
            });
        }
        if size > max_size {
            return Err(PoolError::Invalid {
                what: format!("{size} bytes are more than {max_size}, which is the most that the volume may have"),
                fix: "Raise its largest size first, or use a smaller size".into(),
            });
        }
        self.check_most(max_size)
    }
}

fn check_grows(core: &VolumeCore, name: &str) -> Result<(), PoolError> {
    let what = match core {
        core if core.snapshot => format!("'{name}' is a snapshot, and a snapshot keeps its size"),
        core if !core.grows => format!("'{name}' does not grow by being written, so it has no largest size"),
        _ => return Ok(()),
    };
    Err(PoolError::Invalid { what, fix: "Name a volume that was created with a largest size".into() })
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::ops::ControlFlow;
    use std::sync::{Condvar, Mutex};
    use std::thread;
    use std::time::{Duration, Instant};

    use sheave_blk::Device;
    use sheave_drivers::open_device;
    use sheave_iomap::File;
    use sheave_iomap::file::WriteDone;
    use sheave_iomap::mapping::Intent;

    use super::*;
    use crate::device::block_io::{BlockIo, DeviceIo};
    use crate::engine::change::core_of;
    use crate::{CheckOptions, CreateOptions, OpenOptions, Pool, ScrubOptions, check_device};

    const BYTES: usize = 8 << 20;
    const UNIT: u64 = 8192;

    fn device() -> Device {
        open_device(&format!("ram:size={BYTES}")).expect("opens")
    }

    #[test]
    fn a_commit_before_anything_is_cut_off_leaves_nothing_beyond_the_end() {
        let first = device();
        Pool::create(&first, &CreateOptions { unit_bytes: UNIT, ..CreateOptions::default() }).expect("makes");
        let pool = Pool::open(&first, &OpenOptions::default()).expect("opens");
        let (volume, may_block) = (pool.create_volume("v", 60 * UNIT).expect("creates"), MayBlock::on_worker());
        for pos in (0..50).map(|unit| unit * UNIT) {
            let mapping = volume.map_blocking(pos, UNIT, Intent::Write, &may_block).expect("maps");
            volume.end_write(WriteDone::new(pos, UNIT, Status::Ok, &[mapping]), &may_block).expect("ends");
        }
        // Goes as far as `resize_map` does under its first hold of the lock.
        let (inner, size) = (volume.pool(), 10 * UNIT + UNIT / 2);
        let core = core_of(&inner.lock(), "v").expect("is there");
        let mut state = inner.settle(inner.lock(), core.id, Some(core.id));
        core.set_size(size);
        state.table.set_cutting(core.id, true);
        inner.record(&mut state, Record::Resize { volume: core.id, size });
        drop(state);
        inner.commit().expect("commits");
        // The power fails.
        let (after, mut bytes) = (device(), vec![0; BYTES]);
        DeviceIo::new(&first).expect("attaches").read(0, &mut bytes).expect("reads");
        DeviceIo::new(&after).expect("attaches").write(0, &bytes).expect("writes");
        let report = check_device(&after, &CheckOptions::default()).expect("checks");
        assert!(report.is_clean(), "{:?}", report.findings);
        let pool = Pool::open(&after, &OpenOptions::default()).expect("opens");
        assert_eq!((pool.volume_info("v").expect("is there").size_bytes, pool.info().data_bytes), (size, 11 * UNIT));
        inner.settled(&mut inner.lock(), core.id);
    }

    /// Gate at which reads of a device wait while it is shut.
    #[derive(Default)]
    struct Gate {
        /// True while it is shut, and the number of reads that wait.
        state: Mutex<(bool, u32)>,
        changed: Condvar,
    }

    impl Gate {
        fn shut(&self) {
            self.state.lock().expect("no panic").0 = true;
        }

        fn open(&self) {
            self.state.lock().expect("no panic").0 = false;
            self.changed.notify_all();
        }

        fn wait_for_a_read(&self) {
            let state = self.state.lock().expect("no panic");
            let (_state, waited) = self
                .changed
                .wait_timeout_while(state, Duration::from_secs(10), |(_, waiting)| *waiting == 0)
                .expect("no panic");
            assert!(!waited.timed_out(), "nobody reads");
        }

        fn pass(&self) {
            let mut state = self.state.lock().expect("no panic");
            state.1 += 1;
            self.changed.notify_all();
            let mut state = self.changed.wait_while(state, |(shut, _)| *shut).expect("no panic");
            state.1 -= 1;
        }
    }

    struct Gated {
        io: DeviceIo,
        gate: Arc<Gate>,
    }

    impl BlockIo for Gated {
        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
            self.gate.pass();
            self.io.read(at, buf)
        }

        fn write(&self, at: u64, buf: &[u8]) -> Result<(), Status> {
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

    /// A write copies a unit that a snapshot shares, and meanwhile the volume is cut before that unit: the cut waits
    /// for the copy. Otherwise the unit would lose an owner twice, and the snapshot's data would become free.
    #[test]
    fn a_cut_waits_for_the_copy_of_a_shared_unit() {
        let device = device();
        Pool::create(&device, &CreateOptions { unit_bytes: UNIT, ..CreateOptions::default() }).expect("makes");
        let gate = Arc::new(Gate::default());
        let io = Gated { io: DeviceIo::of_owner(&device).expect("attaches"), gate: Arc::clone(&gate) };
        let pool = Pool::open_through(&device, Box::new(io), &OpenOptions::default()).expect("opens");
        let volume = pool.create_volume("v", 60 * UNIT).expect("creates");
        let may_block = MayBlock::on_worker();
        for pos in (0..50).map(|unit| unit * UNIT) {
            let mapping = volume.map_blocking(pos, UNIT, Intent::Write, &may_block).expect("maps");
            volume.pool().io.write(mapping.addr, &[7; UNIT as usize]).expect("writes");
            volume.end_write(WriteDone::new(pos, UNIT, Status::Ok, &[mapping]), &may_block).expect("ends");
        }
        pool.snapshot("v", "s").expect("a snapshot");
        gate.shut();
        thread::scope(|scope| {
            let writer = scope.spawn(|| volume.map_blocking(40 * UNIT, UNIT, Intent::Write, &MayBlock::on_worker()));
            gate.wait_for_a_read();
            let resize = scope.spawn(|| pool.resize("v", 10 * UNIT));
            let begun = Instant::now();
            while !resize.is_finished() && begun.elapsed() < Duration::from_millis(200) {
                thread::sleep(Duration::from_millis(1));
            }
            let early = resize.is_finished();
            gate.open();
            // The writer got its unit before the cut, or found itself beyond the end after it.
            let written = writer.join().expect("no panic");
            assert!(matches!(written, Ok(_) | Err(Status::NoSpc)), "{written:?}");
            resize.join().expect("no panic").expect("cuts");
            assert!(!early, "the cut returned while the unit was being copied");
        });
        pool.sync().expect("syncs");
        let info = pool.info();
        assert_eq!((info.data_bytes, info.pending_bytes), (50 * UNIT, 0), "what the snapshot has, and nothing else");
        // A volume that takes all space takes none of the snapshot's.
        let other = pool.create_volume("other", 1 << 30).expect("creates");
        let mut taken = 0;
        while let Ok(mapping) = other.map_blocking(taken, UNIT, Intent::Write, &may_block) {
            volume.pool().io.write(mapping.addr, &[9; UNIT as usize]).expect("writes");
            taken += UNIT;
        }
        assert!(taken > 100 * UNIT, "{taken}");
        let snapshot = pool.open_volume("s").expect("is there");
        for pos in (0..50).map(|unit| unit * UNIT) {
            let mapping = snapshot.map(pos, UNIT, Intent::Read).expect("maps");
            let mut bytes = vec![0; UNIT as usize];
            snapshot.pool().io.read(mapping.addr, &mut bytes).expect("reads");
            assert!(bytes.iter().all(|byte| *byte == 7), "another volume's data at {pos}");
        }
        let report = pool.scrub(&ScrubOptions::default(), &mut |_| ControlFlow::Continue(())).expect("scrubs");
        assert!(report.is_clean(), "{:?}", report.findings);
    }
}
