//! The bio set against a plain model of it, operation by operation, and single cases.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use sheave_base::status::Status;

use super::*;
use crate::bio::{BIO_CHILD, BIO_NOMERGE, BIO_WAITS, NO_FIXED_BUF, Op};
use crate::hctx::flush;

const VEC: BVec = BVec { base: 0x1000, len: 512 };

/// Sets every field to a value that no fresh bio has. Names all fields, so that a new one does not compile until it is
/// added.
fn poison(bio: &mut Bio) {
    let Bio { next, owner, sector, attrs, bytes, parent, table: _, inline, cookie: _, waited_from: _ } = bio;
    (*next, *owner, *sector, *bytes) = (BioId(77), 77, 77, 77);
    *parent = BioId(77);
    *inline = [BVec { base: 77, len: 77 }; BIO_INLINE_VECS];
    let BioAttrs { op, status, flags, bdev, part, nr_vecs, fixed_buf, remaining, live: _, step } = attrs;
    (*op, *status, *step) = (Op::WriteZeroes, Status::Medium, flush::Step::Done);
    *flags |= BIO_CHILD | BIO_WAITS | BIO_NOMERGE;
    (*bdev, *part, *nr_vecs, *fixed_buf, *remaining) = (77, 77, 3, 77, 77);
}

/// Asserts that the bio is as new.
fn assert_fresh(bio: &Bio, flags: u16) {
    let Bio { next, owner, sector, bytes, parent, .. } = bio;
    assert_eq!((*next, *owner, *sector, *bytes, *parent), (BioId::NONE, 0, 0, 0, BioId::NONE));
    let BioAttrs { op, status, bdev, part, nr_vecs, step, .. } = bio.attrs;
    assert_eq!((op, status, bdev, part, nr_vecs, step), (Op::Read, Status::Ok, 0, 0, 0, flush::Step::Start));
    assert_eq!((bio.attrs.fixed_buf, bio.remaining, bio.live, bio.flags), (NO_FIXED_BUF, 0, true, flags));
    assert!(bio.vecs().is_empty() && bio.table.is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Take,
    TakeReserve,
    /// Gives the n-th live bio this number of vectors.
    SetVecs(usize, usize),
    Put(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Take),
        1 => Just(Step::TakeReserve),
        2 => (any::<usize>(), 0..9_usize).prop_map(|(at, vecs)| Step::SetVecs(at, vecs)),
        6 => any::<usize>().prop_map(Step::Put),
    ]
}

#[derive(Debug)]
struct Live {
    reserved: bool,
    vecs: usize,
}

/// A store that tracks the bios it serves, and serves a limited number at once.
#[cfg(sheave_lab)]
#[derive(Debug)]
struct Counted {
    out: Arc<Mutex<BTreeSet<u32>>>,
    most: usize,
}

#[cfg(sheave_lab)]
impl BioStore for Counted {
    fn get(&mut self, bio: u32) -> bool {
        let mut out = self.out.lock().unwrap();
        if out.len() == self.most {
            return false;
        }
        assert!(out.insert(bio), "I8: bio {bio} was out already");
        true
    }

    fn put(&mut self, bio: u32) {
        assert!(self.out.lock().unwrap().remove(&bio), "I8: bio {bio} was not out");
    }
}

/// Asserts the set's invariants after any sequence of operations.
struct Model {
    set: BioSet,
    /// Bios that the store behind the set has given out, and their largest number.
    store: Option<(Arc<Mutex<BTreeSet<u32>>>, usize)>,
    capacity: u32,
    live: BTreeMap<u32, Live>,
}

impl Model {
    fn pick(&self, at: usize) -> Option<u32> {
        self.live.keys().nth(at % self.live.len().max(1)).copied()
    }

    fn took(&mut self, id: Option<BioId>, reserved: bool) {
        let Some(BioId(raw)) = id else { return };
        let cacheable = if self.set.max_cached == 0 { 0 } else { BIO_CACHEABLE };
        let bio = &mut self.set[BioId(raw)];
        assert_fresh(bio, if reserved { BIO_RESERVE } else { cacheable });
        poison(bio);
        let live = Live { reserved, vecs: 0 };
        assert_eq!(reserved, raw >= self.capacity, "the reserve is the reserve");
        assert!(self.live.insert(raw, live).is_none(), "I1: bio {raw} was live");
    }

    fn put(&mut self, raw: u32) {
        let live = self.live.remove(&raw).expect("live");
        assert!(!live.reserved || self.set.reserve.contains(&raw), "I3");
        assert!(live.vecs <= BIO_INLINE_VECS || !self.set.cache.contains(&raw), "I4");
        assert!(self.set[BioId(raw)].table.is_none());
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Take => {
                let id = self.set.take();
                let usable = self.live.values().filter(|live| !live.reserved).count() as u32;
                let most = self.store.as_ref().map_or(self.capacity, |(_, most)| self.capacity.min(*most as u32));
                assert_eq!(id.is_none(), usable == most, "all are live, or there is one");
                self.took(id, false);
            }
            Step::TakeReserve => {
                let id = self.set.take_reserve();
                let used = self.live.values().filter(|live| live.reserved).count() as u32;
                assert_eq!(id.is_none(), used == RESERVE);
                self.took(id, true);
            }
            Step::SetVecs(at, vecs) => {
                if let Some(raw) = self.pick(at).filter(|raw| self.live[raw].vecs == 0) {
                    self.set.set_vecs(BioId(raw), &[VEC; 9][..vecs]);
                    assert_eq!(self.set[BioId(raw)].vecs(), &[VEC; 9][..vecs]);
                    self.live.get_mut(&raw).expect("live").vecs = vecs;
                }
            }
            Step::Put(at) => {
                if let Some(raw) = self.pick(at) {
                    self.set.put(BioId(raw));
                    self.put(raw);
                }
            }
        }
    }

    fn check(&self) {
        let set = &self.set;
        assert!(set.cached() <= set.max_cached + CACHE_SLACK, "I2");
        assert!(set.max_cached > 0 || set.cached() == 0, "I2: without a cache");
        if let Some((out, _)) = &self.store {
            let have = |raw: &u32| *raw < self.capacity;
            let should: BTreeSet<u32> = set.cache.iter().chain(self.live.keys()).copied().filter(have).collect();
            assert_eq!(*out.lock().unwrap(), should, "I8: the live and the cached, without the reserve");
        }
        let mut all = BTreeSet::new();
        for raw in set.cache.iter().chain(&set.pool).chain(&set.reserve).chain(self.live.keys()) {
            assert!(all.insert(*raw), "I1: bio {raw} is in two places");
        }
        assert_eq!(all.len() as u32, self.capacity + RESERVE, "no bio is lost");
        assert_eq!(set.live() as usize, self.live.len());
        assert_eq!(set.available() as usize, set.cache.len() + set.pool.len());
        assert!(set.tables.len() <= SPARE_TABLES && set.tables.iter().all(|table| table.is_empty()));
        for raw in 0..self.capacity + RESERVE {
            assert_eq!(set[BioId(raw)].live, self.live.contains_key(&raw), "I5");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    #[test]
    fn keeps_its_invariants(
        capacity in 1..200_u32,
        max_cached in prop_oneof![Just(0_u32), 1..80_u32],
        most in prop::option::of(0..100_usize),
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let set = BioSet::new(capacity, max_cached);
        // Only builds for the lab have stores.
        let store = most.filter(|_| cfg!(sheave_lab)).map(|most| (Arc::new(Mutex::new(BTreeSet::new())), most));
        let mut model = Model { set, store, capacity, live: BTreeMap::new() };
        #[cfg(sheave_lab)]
        if let Some((out, most)) = &model.store {
            assert!(model.set.set_store(Box::new(Counted { out: out.clone(), most: *most })));
        }
        for step in &steps {
            model.run(step);
            model.check();
        }
    }
}

#[test]
fn a_plain_bio_is_as_fresh_as_any_other() {
    let mut set = BioSet::new(1, 1);
    let id = set.take().unwrap();
    poison(&mut set[id]);
    set.put(id);
    let io =
        BioAttrs { op: Op::Write, part: 5, fixed_buf: 6, nr_vecs: 1, ..BioAttrs::new(BIO_CACHEABLE | BIO_NOMERGE) };
    assert_eq!(set.take_plain(&io, 1, 2, 512, VEC), Some(id));
    let bio = &mut set[id];
    assert_eq!((bio.owner, bio.sector, bio.bytes, bio.op), (1, 2, 512, Op::Write));
    assert_eq!((bio.part, bio.fixed_buf(), bio.vecs()), (5, Some(6), &[VEC][..]));
    assert_eq!(bio.flags, BIO_CACHEABLE | BIO_NOMERGE);
    assert_eq!((bio.next, bio.parent, bio.status), (BioId::NONE, BioId::NONE, Status::Ok));
    assert_eq!((bio.remaining, bio.live), (0, true));
    set.put(id);
    let id = set.take().unwrap();
    assert_fresh(&set[id], BIO_CACHEABLE);
}

#[test]
fn the_cache_is_bounded_and_gives_back_the_warmest() {
    let mut set = BioSet::new(1000, 100);
    let ids: Vec<BioId> = (0..1000).map(|_| set.take().unwrap()).collect();
    assert_eq!((set.live(), set.available()), (1000, 0));
    assert!(set.take().is_none());
    for &id in &ids {
        set.put(id);
        assert!(set.cached() <= 100 + CACHE_SLACK);
    }
    assert_eq!((set.live(), set.available()), (0, 1000));
    assert_eq!(set.take(), Some(ids[999]), "last in, first out");
    let before = set.refills();
    for _ in 0..100 {
        let id = set.take().unwrap();
        set.put(id);
    }
    assert_eq!(set.refills(), before, "a warm cache does not go to the pool");
}

#[test]
fn without_a_cache_every_bio_comes_from_the_pool() {
    let mut set = BioSet::new(64, 0);
    let io = BioAttrs { nr_vecs: 1, ..BioAttrs::new(set.cacheable() | BIO_NOMERGE) };
    for round in 1..100 {
        let id = if round % 2 == 0 { set.take() } else { set.take_plain(&io, 1, 2, 512, VEC) }.unwrap();
        assert_eq!(set[id].flags & BIO_CACHEABLE, 0);
        set.put(id);
        assert_eq!((set.cached(), set.refills(), set.available()), (0, round, 64));
    }
}

#[cfg(sheave_lab)]
#[test]
fn the_bound_and_the_store_change_between_io_only() {
    let out = Arc::new(Mutex::new(BTreeSet::new()));
    let store = || Box::new(Counted { out: out.clone(), most: 1000 });
    let mut set = BioSet::new(300, 300);
    let id = set.take().unwrap();
    assert!(!set.set_max_cached(0) && !set.set_store(store()), "a bio is live");
    set.put(id);
    assert!(set.set_store(store()));
    assert_eq!(set.cached(), 0, "what was cached is known to the store from now on");
    let ids: Vec<BioId> = (0..300).map(|_| set.take().unwrap()).collect();
    assert_eq!(out.lock().unwrap().len(), 300);
    ids.iter().for_each(|&id| set.put(id));
    assert_eq!((set.cached(), out.lock().unwrap().len()), (300, 300), "cached bios keep what is theirs");
    assert!(set.set_max_cached(8));
    assert_eq!((set.cached(), out.lock().unwrap().len()), (0, 0));
    let ids: Vec<BioId> = (0..300).map(|_| set.take().unwrap()).collect();
    ids.iter().for_each(|&id| set.put(id));
    assert_eq!(set.cached() as usize, out.lock().unwrap().len());
    assert!(set.cached() <= 8 + CACHE_SLACK);
}

#[test]
fn the_reserve_serves_when_all_is_live_and_fills_itself_again() {
    let mut set = BioSet::new(2, 2);
    let [a, b] = [set.take().unwrap(), set.take().unwrap()];
    assert!(set.take().is_none());
    let reserve: Vec<BioId> = (0..RESERVE).map(|_| set.take_reserve().unwrap()).collect();
    assert!(set.take_reserve().is_none() && set.take().is_none());
    for id in reserve {
        set.put(id);
        assert_eq!(set.cached(), 0, "a bio of the reserve is not to be had by others");
        assert!(set.take().is_none());
    }
    assert_eq!(set.reserved(), RESERVE);
    set.put(a);
    assert_eq!(set.take(), Some(a));
    set.put(a);
    set.put(b);
    assert_eq!(set.live(), 0);
}

#[test]
fn long_vectors_reuse_a_few_tables_and_are_not_cached() {
    let mut set = BioSet::new(300, 300);
    let ids: Vec<BioId> = (0..200).map(|_| set.take().unwrap()).collect();
    ids.iter().for_each(|&id| set.set_vecs(id, &[VEC; BIO_INLINE_VECS + 1]));
    let cached = set.cached();
    ids.iter().for_each(|&id| set.put(id));
    assert_eq!(set.cached(), cached, "none of them entered the cache");
    assert_eq!(set.tables.len(), SPARE_TABLES);
    let id = set.take().unwrap();
    set.set_vecs(id, &[VEC; 6]);
    assert_eq!(set.tables.len(), SPARE_TABLES - 1);
    set.put(id);
    let id = set.take().unwrap();
    set.set_vecs(id, &[VEC; SPARE_TABLE_VECS + 1]);
    set.put(id);
    assert_eq!(set.tables.len(), SPARE_TABLES - 1, "a huge table is not kept");
}
