//! A volume is cut while a write beyond its new end is under way. The write ends at every stage of the cut, between two
//! holds of the pool's lock. Whenever it ends, its effect is that of a write before the cut.

use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_base::sync::Arc;
use sheave_iomap::File;
use sheave_sim::audit::audit;
use sheave_sim::check::check_image;
use sheave_sim::disk::{DiskOptions, Image, SimDisk};
use sheave_sim::engine::{Ended, Engine, Rings, Want};
use sheave_sim::threads::{Call, Threads};
use sheave_vol::{CreateOptions, OpenOptions, Pool, Volume};

const UNIT: u64 = 4096;
/// Number of parts of the volume, each with data at its beginning. A cut removes one part at a time, the last first.
const PARTS: u64 = 8;
/// Number of units in a part: more than one index node covers.
const PART: u64 = 1 << 18;
const LONG: u64 = 16;
/// Number of turns after which a request that has not ended counts as stuck.
const MAX_TURNS: u32 = 100_000;

struct Run {
    disk: SimDisk,
    pool: Pool,
    threads: Threads,
    ring: Rings,
    file: Arc<dyn File>,
}

impl Run {
    fn new(seed: u64, volume: impl Fn(&Pool) -> Volume) -> Run {
        // The disk holds every request that arrives while `hold` is on, until it is turned off.
        let options = DiskOptions { seed, logical_block: 4096, slow: 100, ..DiskOptions::default() };
        let disk = SimDisk::new(Image::new(16 << 20), options);
        let create = CreateOptions::default().unit_bytes(UNIT);
        Pool::create(&disk.device(), &create).expect("makes");
        let pool = Pool::open(&disk.device(), &OpenOptions::default()).expect("opens");
        let (threads, file) = (Threads::new(), Arc::new(volume(&pool)) as Arc<dyn File>);
        threads.set_gaps(seed, (100, 0));
        let ring = Rings::new(&threads);
        Run { disk, pool, threads, ring, file }
    }

    /// Makes one turn of the ring and of its workers.
    fn turn(&mut self, others: &[usize]) -> Vec<Ended> {
        let workers: Vec<usize> = self.threads.running().into_iter().filter(|call| !others.contains(call)).collect();
        workers.into_iter().for_each(|call| self.threads.step(call, false));
        self.ring.turn()
    }

    fn end(&mut self, others: &[usize]) -> Ended {
        let mut turns = 0..MAX_TURNS;
        turns.find_map(|_| self.turn(others).pop()).expect("the request ends")
    }

    fn write(&mut self, unit: u64, units: u64, byte: u8) {
        let data = vec![byte; (units * UNIT) as usize];
        self.ring.submit(unit + 1, &self.file, unit * UNIT, Want::Write(data, false));
    }

    fn finish<T>(&mut self, call: &Call<T>) -> T {
        let mut steps = 0..MAX_TURNS;
        steps.find(|_| {
            if !call.has_ended() {
                self.threads.step(call.number(), false);
            }
            call.has_ended()
        });
        call.take().expect("the call returns")
    }
}

/// The volume has the size that it was cut to, and zeroes where it grows again (E3 of `volume/extend.rs`, V23).
#[test]
fn a_write_that_ends_while_its_place_is_being_cut_off() {
    for seed in sheave_testkit::seeds(60) {
        let mut rng = Rng::new(seed).fork(0xc07);
        let volume = |pool: &Pool| pool.create_growing_volume("v", 0, (PARTS + 1) * PART * UNIT).expect("creates");
        let mut run = Run::new(seed, volume);
        for part in 0..PARTS {
            run.write(part * PART, LONG, 1);
            assert_eq!(run.end(&[]).status, Status::Ok, "seed {seed}");
        }
        let size = rng.below(PARTS - 1) * PART + rng.below(LONG);
        // The range lies beyond the data that is there, so that the end of the write has to change the map.
        let place = rng.between(size / PART + 1, PARTS - 1) * PART + LONG;
        run.disk.hold(true);
        run.write(place, LONG, 2);
        while run.disk.held() == 0 {
            assert!(run.turn(&[]).is_empty(), "seed {seed}: the disk holds it");
        }
        let pool = run.pool.clone();
        let resize = run.threads.start(move || pool.resize("v", size * UNIT)).expect("there is room for a call");
        for _ in 0..rng.below(30) {
            run.threads.step(resize.number(), false);
        }
        run.disk.hold(false);
        assert_eq!(run.end(&[resize.number()]).status, Status::Ok, "seed {seed}");
        run.finish(&resize).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(run.file.size_bytes(), size * UNIT, "seed {seed}: written at {place}");
        // The volume grows again, by one unit beyond all parts.
        run.write(PARTS * PART, 1, 3);
        assert_eq!(run.end(&[]).status, Status::Ok, "seed {seed}");
        let places =
            (size..size + LONG).chain((size / PART + 1..PARTS).flat_map(|part| part * PART..part * PART + 2 * LONG));
        for unit in places {
            run.ring.submit(1, &run.file, unit * UNIT, Want::Read(UNIT as usize));
            let read = run.end(&[]);
            assert_eq!(read.status, Status::Ok, "seed {seed}");
            assert!(read.data.iter().all(|&byte| byte == 0), "seed {seed}: what was cut off is there, in unit {unit}");
        }
        run.pool.sync().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        audit(&run.pool).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let report = check_image(&run.disk.image()).expect("checks");
        assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
    }
}

/// A write copies a unit that a snapshot shares, while the volume is cut before that unit. The snapshot keeps its
/// contents, whether the copy or the cut comes first (V9).
#[test]
fn a_copy_that_is_made_while_its_place_is_being_cut_off() {
    let mut both = [0; 2];
    for seed in sheave_testkit::seeds(120) {
        let mut rng = Rng::new(seed).fork(0xc09);
        let mut run = Run::new(seed, |pool| pool.create_volume("v", LONG * UNIT).expect("creates"));
        run.write(0, LONG, 1);
        assert_eq!(run.end(&[]).status, Status::Ok, "seed {seed}");
        let pool = run.pool.clone();
        let snapshot = run.threads.start(move || pool.snapshot("v", "s")).expect("there is room for a call");
        run.finish(&snapshot).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let size = rng.between(1, LONG - 1);
        run.write(rng.between(size, LONG - 1), 1, 2);
        let mut ended: Vec<Ended> = (0..rng.below(6)).flat_map(|_| run.turn(&[])).collect();
        let pool = run.pool.clone();
        let resize = run.threads.start(move || pool.resize("v", size * UNIT)).expect("there is room for a call");
        let mut turns = 0..MAX_TURNS;
        while ended.is_empty() || !resize.has_ended() {
            assert!(turns.next().is_some(), "seed {seed}: both end");
            if !resize.has_ended() && rng.percent(60) {
                run.threads.step(resize.number(), false);
            } else {
                ended.extend(run.turn(&[resize.number()]));
            }
        }
        run.finish(&resize).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let status = ended[0].status;
        assert!([Status::Ok, Status::NoSpc].contains(&status), "seed {seed}: {status:?}");
        both[usize::from(status == Status::Ok)] += 1;
        assert_eq!(run.file.size_bytes(), size * UNIT, "seed {seed}");
        run.pool.sync().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        audit(&run.pool).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let snapshot = Arc::new(run.pool.open_volume("s").expect("is there")) as Arc<dyn File>;
        run.ring.submit(1, &snapshot, 0, Want::Read((LONG * UNIT) as usize));
        let read = run.end(&[]);
        assert!(read.status == Status::Ok && read.data.iter().all(|&byte| byte == 1), "seed {seed}: the snapshot");
        let report = check_image(&run.disk.image()).expect("checks");
        assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
    }
    assert!(both.iter().all(|&count| count > 5), "before the cut and after it: {both:?}");
}
