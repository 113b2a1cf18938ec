//! Changes of the volume table: create, rollback, rename, delete. Snapshots and clones are in [`copy`](super::copy),
//! sizes in `resize`.
//!
//! Owns their order. Each change is durable when its call returns; [`change`](crate::engine::change) handles one whose
//! commit fails.
//!
//! - S4: delete, rollback and resize release the lock after each slot of the map that they take apart. Commits do the
//!   same for the parts that they free ([`PoolInner::let_go`]).
//!
//! Called by [`Pool`](crate::Pool).

use sheave_base::sync::Arc;
use sheave_iomap::completion_plan::MayBlock;

use crate::engine::change::{failed, in_use};
use crate::engine::inner::PoolInner;
use crate::error::PoolError;
use crate::format::page::table::Interim;
use crate::format::record::Record;
use crate::made_at::{self, now};
use crate::state::State;
use crate::state::account::{ENTRY_COST, Spender};
use crate::state::names::check_no_snapshot;
use crate::state::table::{OpenToken, Table, Vol, VolumeCore};

impl PoolInner {
    /// Creates a volume. With `max_size`, writes beyond its end enlarge it. An interim volume is opened before it is
    /// visible.
    pub(crate) fn create(
        &self,
        name: &str,
        size: u64,
        max_size: Option<u64>,
        interim: Option<(Interim, &std::sync::Arc<OpenToken>)>,
    ) -> Result<u32, PoolError> {
        let _one = self.structural();
        self.check_writable("creating a volume")?;
        match max_size {
            Some(max_size) => self.check_growing(size, max_size)?,
            None => self.check_size(size)?,
        }
        let mut state = self.lock();
        state.table.check_new(name, 0)?;
        check_no_snapshot(name)?;
        state = self.afford(state, "creating a volume", Spender::Table, |_| ENTRY_COST)?;
        let volume = state.table.next_id;
        let (grows, max_size) = (max_size.is_some(), max_size.unwrap_or(self.most()));
        let marks = state.marks_of(volume, None, interim.map(|(interim, _)| interim))?;
        let record = Record::Create { volume, grows, size, max_size, created: now(), name: name.into() };
        self.apply_and_record(&mut state, record, name)?;
        for mark in marks {
            self.apply_and_record(&mut state, mark, name)?;
        }
        if let Some((_, token)) = interim {
            state.table.set_opened(volume, token);
        }
        state.hide(volume);
        drop(state);
        self.durable_new("creating", name, &[volume])?;
        Ok(volume)
    }

    /// Waits for the end of all writes to the volume that began before this call.
    fn quiet(&self, name: &str, core: &VolumeCore) -> Result<(), PoolError> {
        if core.snapshot {
            return Ok(());
        }
        self.wait_for_io(core, &MayBlock::on_worker()).map_err(|_| self.io_goes_on(name, core))
    }

    /// Rolls a volume back. When this returns, all writes that had their mapping before have ended (V26). Without that
    /// wait the data would still be safe, as it is for overwrites that begin between the wait and the exchange. The
    /// units that the volume had are not reused before a grace period. The end of a first write sets bits only if the
    /// map still has the unit that it wrote to, and no snapshot has that unit.
    pub(crate) fn rollback(&self, name: &str, snapshot: &str) -> Result<(), PoolError> {
        let _one = self.structural();
        self.roll_back_in_memory(name, snapshot)?;
        self.durable_at_last("rolling back", name)
    }

    /// Rolls a volume back in memory, and records it for the next commit. The caller holds `structural`.
    pub(crate) fn roll_back_in_memory(&self, name: &str, snapshot: &str) -> Result<(), PoolError> {
        self.check_writable("rolling a volume back")?;
        let state = self.lock();
        let (vol, from) = (state.table.named(name)?, state.table.whole(snapshot, "rolling a volume back")?);
        if vol.core.snapshot || !from.core.snapshot || vol.family != from.family {
            return Err(PoolError::Invalid {
                what: format!("'{name}' cannot be rolled back to '{snapshot}'"),
                fix: "Name a volume and a snapshot of it, or of what it was cloned from".into(),
            });
        }
        let (id, core, source) = (vol.id, Arc::clone(&vol.core), from.id);
        let cost = |state: &State| state.cost_of_map(source) + state.kept_pages();
        let state = self.afford(state, "rolling a volume back", Spender::Discard, cost)?;
        let state = self.settle(state, id, Some(id));
        drop(state);
        let quiet = self.quiet(name, &core);
        let mut state = self.lock();
        if let Err(busy) = quiet {
            self.settled(&mut state, id);
            return Err(busy);
        }
        let mut state = self.afford_settled(state, id, "rolling a volume back", Spender::Discard, cost)?;
        let exchanged = state.exchange(id, source);
        if exchanged.is_ok() {
            self.record(&mut state, Record::Rollback { volume: id, source });
        }
        self.settled(&mut state, id);
        drop(state);
        // The old map is taken apart slot by slot, with writers of the new map in between.
        for old in exchanged.map_err(|status| failed("rolling back", name, status))? {
            self.lock().tree.put_exchanged(&core.top, old);
        }
        Ok(())
    }

    /// Renames the volume, and the snapshots that carry its name: all of them or none.
    pub(crate) fn rename(&self, name: &str, new_name: &str) -> Result<(), PoolError> {
        let _one = self.structural();
        self.check_writable("renaming a volume")?;
        let state = self.lock();
        let vol = state.table.named(name)?;
        let (volume, all) = (vol.id, state.table.renamed_with(vol, new_name)?);
        let cost = all.len() as u64 * ENTRY_COST;
        let mut state = self.afford(state, "renaming a volume", Spender::Table, |_| cost)?;
        // All renames happen under one hold of the lock, so that all records are in one commit.
        for (id, _, new) in &all {
            self.apply_and_record(&mut state, Record::Rename { volume: *id, name: new.clone() }, name)?;
        }
        // An interim volume that is renamed is no longer interim.
        let interim = state.table.get(volume).and_then(Vol::interim).filter(|_| name != new_name);
        if interim.is_some() {
            self.apply_and_record(&mut state, Record::Interim { volume, interim: None }, name)?;
        }
        drop(state);
        self.durable_or("renaming", name, |state| {
            for (id, old, new) in &all {
                let renamed = state.table.rename(*id, old);
                debug_assert!(renamed || old == new, "nobody else gives names meanwhile");
            }
            if interim.is_some() {
                state.table.set_interim(volume, interim);
            }
        })
    }

    pub(crate) fn can_delete(&self, names: &[&str]) -> Result<(), PoolError> {
        let state = self.lock();
        names.iter().try_for_each(|name| match state.table.named(name)?.is_open() {
            true => Err(in_use(name)),
            false => Ok(()),
        })
    }

    pub(crate) fn delete(&self, name: &str) -> Result<(), PoolError> {
        let found = |table: &Table| table.named(name).map(|vol| Some(vol.id));
        self.delete_found(found).map(drop)
    }

    /// Deletes an interim volume that is not open. Returns its name, or `None` if there is none.
    pub(crate) fn delete_interim(&self) -> Result<Option<String>, PoolError> {
        let idle = |vol: &&Vol| vol.interim().is_some() && vol.is_shown() && !vol.is_open();
        if !self.lock().table.iter().any(|vol| idle(&vol)) {
            return Ok(None);
        }
        // Looked up again under the lock: the volume may have been renamed, and so kept, meanwhile.
        self.delete_found(|table| Ok(table.iter().find(idle).map(|vol| vol.id)))
    }

    /// Deletes the volume that `find` picks under the lock. Returns its name.
    fn delete_found(
        &self,
        find: impl Fn(&Table) -> Result<Option<u32>, PoolError>,
    ) -> Result<Option<String>, PoolError> {
        let _one = self.structural();
        let mut state = self.begin_delete()?;
        let Some(vol) = find(&state.table)?.and_then(|id| state.table.get(id)) else { return Ok(None) };
        let name = vol.name.clone();
        if vol.is_open() {
            return Err(in_use(&name));
        }
        let (volume, core) = (vol.id, Arc::clone(&vol.core));
        state.note_deleted(&core);
        let gone = state.detach(volume);
        self.record(&mut state, Record::Delete { volume });
        self.survey_space(&mut state);
        drop(state);
        self.drop_map(gone);
        self.durable_at_last("deleting", &name)?;
        Ok(Some(name))
    }
}

impl State {
    /// Returns the records that go with the copy or creation of a volume, in the same commit. Empty for a pool of an
    /// older program that is not upgraded: it has neither identities nor interim volumes.
    pub(super) fn marks_of(
        &self,
        volume: u32,
        identity: Option<[u8; 16]>,
        interim: Option<Interim>,
    ) -> Result<Vec<Record>, PoolError> {
        if !self.sb.identities {
            return Ok(Vec::new());
        }
        let identity = match identity {
            Some(identity) if identity != [0; 16] => identity,
            Some(_) => {
                return Err(PoolError::Invalid {
                    what: "an identity cannot be all zeroes".into(),
                    fix: "Use that of the snapshot that this is a copy of, or none: then one is chosen".into(),
                });
            }
            None => made_at::random(volume.into()).map_err(PoolError::no_random_bits)?,
        };
        let interim = interim.map(|interim| Record::Interim { volume, interim: Some(interim) });
        Ok([Record::Identity { volume, identity }].into_iter().chain(interim).collect())
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use sheave_base::status::Status;
    use sheave_blk::Device;
    use sheave_drivers::open_device;
    use sheave_iomap::File;
    use sheave_iomap::completion_plan::MayBlock;
    use sheave_iomap::file::{FallocateMode, WriteDone};
    use sheave_iomap::mapping::Intent;

    use crate::engine::inner::LET_GO;
    use crate::state::extent_map::top::NO_MEMORY_FROM;
    use crate::{
        CheckOptions, CopyOptions, CreateOptions, Interim, OpenOptions, Pool, PoolError, Purpose, Volume, VolumeInfo,
        check_device,
    };

    /// Number of units of a slot of a map. One hold may examine that many, in addition to [`LET_GO`].
    const SLOT: u64 = 65_536;
    /// Allowance for leaves and index nodes, which are counted as entries too.
    const SLACK: u64 = 2048;
    const UNITS: u64 = 2 * SLOT + 1000;
    const LEAF: u64 = 256;

    /// Writes whole units, as far as the map is concerned.
    fn write(volume: &Volume, units: impl Iterator<Item = u64>) {
        let may_block = MayBlock::on_worker();
        for unit in units {
            let mapping = volume.map_blocking(unit << 12, 4096, Intent::Write, &may_block).unwrap();
            volume.end_write(WriteDone::new(unit << 12, 4096, Status::Ok, &[mapping]), &may_block).unwrap();
        }
    }

    /// Creates a pool whose volume has a large map, on a device that forgets data.
    fn large() -> (Pool, Volume) {
        let device = open_device("null:size=8G,keep=64M").unwrap();
        Pool::create(&device, &CreateOptions { unit_bytes: 4096, ..CreateOptions::default() }).unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        let volume = pool.create_volume("v", UNITS << 12).unwrap();
        write(&volume, 0..UNITS);
        pool.sync().unwrap();
        (pool, volume)
    }

    /// Returns the largest number of entries examined under one hold of the lock since the last call.
    fn most(volume: &Volume) -> u64 {
        let mut state = volume.pool().lock();
        std::mem::take(&mut state.tree.most_work)
    }

    #[test]
    fn a_rollback_of_a_large_volume_holds_the_lock_for_a_slot_at_most() {
        let (pool, volume) = large();
        pool.snapshot("v", "s").unwrap();
        most(&volume);
        // Copies every leaf: the old map keeps all of its own, and each unit in it has two owners.
        write(&volume, (0..UNITS).step_by(LEAF as usize));
        let before = pool.info();
        assert!(before.data_bytes >= (UNITS + UNITS / LEAF) << 12, "{before:?}");
        most(&volume);
        pool.rollback("v", "s").unwrap();
        let held = most(&volume);
        assert!(held <= SLOT + LET_GO + SLACK, "{held} entries under one hold");
        assert!(held > LET_GO, "and it is counted: {held}");
        let info = pool.info();
        assert_eq!((info.data_bytes, info.pending_bytes), (UNITS << 12, 0), "what only it had came back");
        let [v, s] = ["v", "s"].map(|name| pool.volume_info(name).unwrap());
        assert_eq!((v.shared_bytes, s.shared_bytes, v.unique_bytes), (UNITS << 12, UNITS << 12, 0));
        // Once more, with all nodes shared as a whole.
        pool.rollback("v", "s").unwrap();
        assert!(most(&volume) <= SLACK, "slots only");
        assert_eq!(pool.info().data_bytes, UNITS << 12);
    }

    #[test]
    fn delete_and_shrink_hold_the_lock_for_one_slot_at_most() {
        let (pool, volume) = large();
        pool.snapshot("v", "s").unwrap();
        write(&volume, (0..UNITS).step_by(LEAF as usize));
        most(&volume);
        pool.delete("s").unwrap();
        assert!(most(&volume) <= SLOT + LET_GO + SLACK, "the copies of a unit lose an owner in parts");
        pool.resize("v", 1 << 20).unwrap();
        pool.sync().unwrap();
        assert!(most(&volume) <= SLOT + LET_GO + SLACK);
        let info = pool.info();
        assert_eq!((info.data_bytes, info.pending_bytes), (1 << 20, 0));
        most(&volume);
    }

    /// A checkpoint that comes while a volume shrinks takes the rest off slot by slot too.
    #[test]
    fn a_checkpoint_during_a_shrink_cuts_in_parts() {
        let (pool, volume) = large();
        let inner = volume.pool();
        {
            let mut state = inner.lock();
            let id = state.table.named("v").unwrap().id;
            let vol = state.table.get_mut(id).unwrap();
            vol.core.set_size(1 << 20);
            state.table.set_cutting(id, true);
            state.tree.most_work = 0;
        }
        inner.checkpoint().unwrap();
        assert!(most(&volume) <= SLOT + LET_GO + SLACK);
        assert_eq!(pool.volume_info("v").unwrap().allocated_bytes, 1 << 20);
        let mut state = inner.lock();
        let id = state.table.named("v").unwrap().id;
        state.table.set_cutting(id, false);
    }

    /// All pages of a checkpoint are made under one hold: as many as nodes of maps may be dirty, and a few above them,
    /// however much is written before a flush.
    #[test]
    fn a_checkpoint_makes_as_many_pages_as_nodes_may_be_dirty() {
        let device = open_device("null:size=64G,keep=80M").unwrap();
        Pool::create(&device, &CreateOptions::default()).unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        let volume = pool.create_volume("v", 1 << 44).unwrap();
        let may_block = MayBlock::on_worker();
        let hard = volume.pool().lock().dirty_hard;
        assert!((4096..=16_384).contains(&hard), "the pool is large enough for that many: {hard}");
        // A leaf each, without a flush.
        for leaf in 0..2 * hard {
            let pos = (leaf * LEAF) << 16;
            let mapping = volume.map_blocking(pos, 4096, Intent::Write, &may_block).unwrap();
            volume.end_write(WriteDone::new(pos, 4096, Status::Ok, &[mapping]), &may_block).unwrap();
        }
        let state = volume.pool().lock();
        let most = state.tree.most_pages;
        assert!(most >= hard / 2, "checkpoints came in between, and are counted: {most}");
        assert!(most <= hard + hard / 256 + 32, "{most} pages under one hold");
    }

    /// Memory is left for only a part of the copy's map. The rest would read as zeroes.
    #[test]
    fn a_copy_that_finds_no_memory_is_not_there() {
        let device = open_device("ram:size=32M").unwrap();
        Pool::create(&device, &CreateOptions { unit_bytes: 4096, ..CreateOptions::default() }).unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        let volume = pool.create_volume("v", UNITS << 12).unwrap();
        let units = [0, SLOT, 2 * SLOT];
        write(&volume, units.into_iter());
        let shared = |name: &str| pool.volume_info(name).unwrap().shared_bytes >> 12;
        for slots in 0..3 {
            NO_MEMORY_FROM.set(slots);
            let failed = [pool.snapshot("v", "s"), pool.clone_volume("v", "c")];
            NO_MEMORY_FROM.set(u32::MAX);
            for error in failed.map(Result::unwrap_err) {
                assert!(matches!(error, PoolError::Io { status: Status::NoMem, .. }), "{error}");
            }
            assert_eq!((pool.volumes().len(), pool.info().volumes, shared("v")), (1, 1, 0), "{slots} slots");
            pool.sync().unwrap();
            volume.pool().checkpoint().unwrap();
            // Units that the copy was to share are not moved.
            let data = pool.info().data_bytes;
            write(&volume, units.into_iter());
            assert_eq!(pool.info().data_bytes, data, "{slots} slots");
        }
        pool.snapshot("v", "s").unwrap();
        assert_eq!((shared("v"), shared("s")), (3, 3), "nothing is in the way of the next one");
        drop(volume);
        pool.close().unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        assert_eq!(pool.volumes().iter().map(|info| info.name.as_str()).collect::<Vec<_>>(), ["s", "v"]);
        pool.close().unwrap();
        let report = check_device(&device, &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.findings);
    }

    /// A copy waits until no unit of its source is being copied; meanwhile discards use up the pages that there were.
    #[test]
    fn a_copy_that_finds_its_pages_used_after_its_wait_is_refused() {
        const UNIT: u64 = 65_536;
        let device = open_device("ram:size=64M").unwrap();
        Pool::create(&device, &CreateOptions { unit_bytes: UNIT, ..CreateOptions::default() }).unwrap();
        let pool = Pool::open(&device, &OpenOptions::default()).unwrap();
        let may_block = MayBlock::on_worker();
        let write = |volume: &Volume, pos, len| {
            let mapping = volume.map_blocking(pos, len, Intent::Write, &may_block)?;
            volume.end_write(WriteDone::new(pos, len, Status::Ok, &[mapping]), &may_block)
        };
        // One volume takes many pages above its leaves, another a leaf for each unit, and a third the rest.
        let [far, wide, big] = ["far", "wide", "big"].map(|name| pool.create_volume(name, 60 << 40).unwrap());
        (0..60).for_each(|at| write(&far, at << 40, 4096).unwrap());
        let place = |at: u64| at * LEAF * UNIT;
        (0..400).for_each(|at| write(&wide, place(at), 8192).unwrap());
        pool.snapshot("wide", "s").unwrap();
        assert_eq!((0..).find_map(|at| write(&big, at * UNIT, 4096).err()), Some(Status::NoSpc));
        pool.inner.checkpoint().unwrap();
        let id = pool.inner.lock().table.id_of("far").unwrap();
        let set_busy = |busy| pool.inner.lock().table.get_mut(id).unwrap().busy = busy;
        set_busy(1);
        std::thread::scope(|scope| {
            let copied = scope.spawn(|| pool.snapshot("far", "t"));
            while pool.inner.lock().table.get(id).unwrap().settling.is_none() {
                assert!(!copied.is_finished(), "there are pages for it");
                std::thread::yield_now();
            }
            let punch = |at| wide.fallocate(FallocateMode::PunchHole, place(at), 4096, &may_block);
            assert_eq!((0..400).find_map(|at| punch(at).err()), Some(Status::NoSpc));
            set_busy(0);
            pool.inner.wake();
            let copied = copied.join().unwrap();
            pool.inner.checkpoint().expect("a checkpoint finds its pages");
            assert!(matches!(copied, Err(PoolError::Full { .. })), "{copied:?}");
        });
        assert!(pool.inner.lock().table.get(id).unwrap().settling.is_none(), "it goes on");
        drop((far, wide, big));
        pool.close().unwrap();
        assert!(check_device(&device, &CheckOptions::default()).unwrap().is_clean());
    }

    fn mark(pool: &Pool, name: &str) -> Option<Interim> {
        pool.volume_info(name).expect("is there").interim
    }

    fn small(device: &Device) -> Pool {
        Pool::open(device, &OpenOptions::default()).expect("opens")
    }

    const MARK: Interim = Interim { purpose: Purpose::ImportDiff, owner: 7 };

    /// Each volume that was made has its identity and no other: in a replayed journal, in a checkpoint, and after a
    /// repair.
    #[test]
    fn identities_and_origins_outlive_crashes_closing_and_renames() {
        let device = open_device("ram:size=16M").unwrap();
        Pool::create(&device, &CreateOptions::default()).unwrap();
        let pool = small(&device);
        pool.create_volume("v", 1 << 20).unwrap();
        pool.snapshot("v", "s").unwrap();
        pool.clone_volume("s", "c").unwrap();
        let options = CopyOptions::default().identity(Some([5; 16])).origin(Some("v".into())).created(Some(7));
        pool.snapshot_with("c", "t", &options).unwrap();
        let zero = CopyOptions::default().identity(Some([0; 16]));
        assert!(matches!(pool.snapshot_with("c", "z", &zero), Err(PoolError::Invalid { .. })));
        let found = |pool: &Pool| {
            let of = |vol: VolumeInfo| (vol.identity.expect("has one"), vol.origin, vol.interim);
            pool.volumes().into_iter().map(of).collect::<Vec<_>>()
        };
        let all = found(&pool);
        let [c, s, t, v] = all.as_slice() else { panic!("{all:?}") };
        assert!(c.0 != s.0 && c.0 != v.0 && s.0 != v.0 && t.0 == [5; 16], "{all:?}");
        assert_eq!((t.1.as_deref(), c.1.as_deref()), (Some("v"), Some("s")));
        drop(pool);
        let pool = small(&device);
        assert_eq!(found(&pool), all, "replayed");
        pool.close().unwrap();
        let pool = small(&device);
        assert_eq!(found(&pool), all, "in a checkpoint");
        pool.rename("t", "u").unwrap();
        pool.rollback("v", "u").unwrap();
        pool.rename("u", "t").unwrap();
        assert_eq!(found(&pool), all, "the same ones");
        drop(pool);
        assert!(check_device(&device, &CheckOptions::default()).unwrap().is_clean());
    }

    /// V18: after a crash, and after closing, an opening for writing deletes interim volumes, and nothing else.
    #[test]
    fn interim_volumes_go_when_nobody_works_on_them() {
        for closes in [false, true] {
            let device = open_device("ram:size=16M").unwrap();
            Pool::create(&device, &CreateOptions::default()).unwrap();
            let pool = small(&device);
            pool.create_volume("v", 1 << 20).unwrap();
            let one = pool.create_interim("v.import-diff", 1 << 20, MARK).unwrap();
            let options = CopyOptions::default().interim(Some(MARK));
            let two = pool.clone_with("v", "two", &options).unwrap();
            let three = pool.snapshot_with("two", "three", &options).unwrap();
            pool.create_interim("mine", 1 << 20, MARK).map(drop).unwrap();
            pool.rename("mine", "mine").unwrap();
            assert_eq!(mark(&pool, "mine"), Some(MARK), "it has no other name");
            pool.rename("mine", "kept").unwrap();
            pool.snapshot("two", "of-two").unwrap();
            for name in ["v.import-diff", "two", "three"] {
                assert_eq!(mark(&pool, name), Some(MARK), "{name}");
            }
            assert_eq!((mark(&pool, "v"), mark(&pool, "kept"), mark(&pool, "of-two")), (None, None, None));
            assert!(pool.sweep().unwrap().is_empty(), "all of them are open");
            drop(three);
            assert_eq!(pool.sweep().unwrap(), ["three"]);
            drop((one, two));
            match closes {
                true => pool.close().unwrap(),
                false => drop(pool),
            }
            let read_only = Pool::open(&device, &OpenOptions::default().read_only(true)).unwrap();
            assert_eq!(mark(&read_only, "two"), Some(MARK), "who only looks deletes nothing");
            drop(read_only);
            assert!(check_device(&device, &CheckOptions::default()).unwrap().is_clean());
            let names = |pool: &Pool| pool.volumes().into_iter().map(|vol| vol.name).collect::<Vec<_>>();
            assert_eq!(names(&small(&device)), ["kept", "of-two", "v"], "closed: {closes}");
            assert_eq!(names(&small(&device)), ["kept", "of-two", "v"]);
        }
    }
}
