//! Random operations on a pool, compared with a model in memory: every byte, through drops and closes.
#![cfg(not(shuttle))]

use std::collections::BTreeMap;

use crate::support::User;
use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::block_io::DeviceIo;
use sheave_vol::{CheckOptions, CreateOptions, OpenOptions, Pool, PoolError, check};

const SECTOR: u64 = 512;
const SECTORS_MAX: u64 = 6 << 11; // 6 MiB

/// Expected content of a volume: a tag for each sector, and the older tags that a sector may have after a drop.
#[derive(Clone, Default)]
struct Model {
    sectors: Vec<u32>,
    /// Tags that each sector had before its current one, since the last commit.
    older: BTreeMap<usize, Vec<u32>>,
    snapshot: bool,
    family: u32,
}

impl Model {
    fn set(&mut self, at: usize, tag: u32) {
        let old = std::mem::replace(&mut self.sectors[at], tag);
        self.older.entry(at).or_default().push(old);
    }
}

struct Run {
    rng: Rng,
    device: Device,
    pool: Option<Pool>,
    users: BTreeMap<String, User>,
    models: BTreeMap<String, Model>,
    tag: u32,
    names: u32,
}

/// Returns a sector filled with repetitions of a tag.
fn sector(tag: u32) -> [u8; 512] {
    std::array::from_fn(|at| tag.to_le_bytes()[at % 4])
}

impl Run {
    fn new(seed: u64, unit_bytes: u64, journal: u64) -> Run {
        let device = open_device("ram:size=48M").expect("opens");
        let options = CreateOptions::default().unit_bytes(unit_bytes).journal_bytes(Some(journal)).uuid(Some([9; 16]));
        Pool::create(&device, &options).expect("formats");
        let (users, models) = (BTreeMap::new(), BTreeMap::new());
        let mut run = Run { rng: Rng::new(seed), device, pool: None, users, models, tag: 0, names: 0 };
        run.open();
        run
    }

    fn random(&mut self, below: u64) -> u64 {
        self.rng.below(below)
    }

    fn open(&mut self) {
        self.pool = Some(Pool::open(&self.device, &OpenOptions::default()).expect("opens"));
    }

    fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("is open")
    }

    fn user(&mut self, name: &str) -> &User {
        if !self.users.contains_key(name) {
            let volume = self.pool().open_volume(name).expect("is there");
            self.users.insert(name.to_string(), User::new(volume));
        }
        &self.users[name]
    }

    fn committed(&mut self) {
        self.models.values_mut().for_each(|model| model.older.clear());
    }

    fn pick(&mut self, snapshots: bool) -> Option<String> {
        let names: Vec<String> =
            self.models.iter().filter(|model| snapshots || !model.1.snapshot).map(|model| model.0.clone()).collect();
        if names.is_empty() {
            return None;
        }
        let at = self.random(names.len() as u64);
        Some(names[at as usize].clone())
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    fn step(&mut self) {
        match self.random(100) {
            0..30 => self.write(),
            30..42 => self.punch(),
            42..60 => self.read(),
            60..70 => self.sync(),
            70..75 => self.create(),
            75..81 => self.copy(true),
            81..86 => self.copy(false),
            86..88 => self.rollback(),
            88..92 => self.delete(),
            92..95 => self.resize(),
            95..98 => self.drop_and_open(),
            _ => self.close_and_open(),
        }
    }

    fn range(&mut self, name: &str) -> (u64, u64) {
        let size = self.models[name].sectors.len() as u64;
        let most = [1, 8, 16, 200, 3000][self.random(5) as usize];
        let mut len = (1 + self.random(most)).min(size);
        let mut at = self.random(size - len + 1);
        if self.random(3) > 0 {
            (at, len) = (at & !7, (len.next_multiple_of(8)).min(size - (at & !7)));
        }
        (at, len)
    }

    fn write(&mut self) {
        let Some(name) = self.pick(false) else { return };
        let (at, len) = self.range(&name);
        self.tag += 1;
        let tag = self.tag;
        let bytes: Vec<u8> = (0..len).flat_map(|_| sector(tag)).collect();
        match self.user(&name).write(at * SECTOR, &bytes) {
            Ok(()) => {
                let model = self.models.get_mut(&name).expect("is there");
                (at..at + len).for_each(|at| model.set(at as usize, tag));
            }
            Err(Status::NoSpc) => {
                // The write has changed nothing: it gets all its mappings before it writes the first byte.
                self.make_room();
            }
            Err(status) => panic!("write: {status}"),
        }
    }

    fn make_room(&mut self) {
        let before = self.pool().info();
        self.delete();
        assert!(self.pool().info().volumes <= before.volumes, "a full pool deletes");
    }

    fn punch(&mut self) {
        let Some(name) = self.pick(false) else { return };
        let (at, len) = self.range(&name);
        match self.user(&name).punch(at * SECTOR, len * SECTOR) {
            Ok(()) => {
                let model = self.models.get_mut(&name).expect("is there");
                (at..at + len).for_each(|at| model.set(at as usize, 0));
            }
            // A part may have been punched before the space to copy a unit at the edge was missing.
            Err(Status::NoSpc) => {
                let model = self.models.get_mut(&name).expect("is there");
                for at in at as usize..(at + len) as usize {
                    let was = model.sectors[at];
                    model.set(at, 0);
                    model.older.entry(at).or_default().push(was);
                }
                self.settle(&name);
                self.make_room();
            }
            Err(status) => panic!("punch: {status}"),
        }
    }

    fn read(&mut self) {
        let Some(name) = self.pick(true) else { return };
        let (at, len) = self.range(&name);
        let bytes = self.user(&name).read(at * SECTOR, (len * SECTOR) as usize).expect("reads");
        for (n, bytes) in bytes.chunks(512).enumerate() {
            let want = self.models[&name].sectors[at as usize + n];
            assert!(bytes == sector(want), "{name} sector {}: {:?}, not {want}", at as usize + n, &bytes[..8]);
        }
    }

    fn sync(&mut self) {
        let Some(name) = self.pick(true) else { return };
        self.user(&name).sync().expect("syncs");
        self.committed();
    }

    fn create(&mut self) {
        if self.models.len() > 8 {
            return self.delete();
        }
        let name = self.new_name();
        let sectors = 8 + self.random(SECTORS_MAX - 8);
        match self.pool().create_volume(&name, sectors * SECTOR) {
            Ok(_) => {
                let model = Model { sectors: vec![0; sectors as usize], family: self.names, ..Model::default() };
                self.models.insert(name, model);
                self.committed();
            }
            Err(PoolError::Full { .. }) => self.make_room(),
            Err(error) => panic!("{error}"),
        }
    }

    fn copy(&mut self, snapshot: bool) {
        let Some(source) = self.pick(true) else { return };
        if self.models.len() > 8 {
            return self.delete();
        }
        let name = self.new_name();
        let result = match snapshot {
            true => self.pool().snapshot(&source, &name),
            false => self.pool().clone_volume(&source, &name),
        };
        match result {
            Ok(()) => {
                let info = self.pool().volume_info(&name).expect("is there");
                assert_eq!((info.snapshot, info.origin.as_deref()), (snapshot, Some(source.as_str())));
                let model = Model { snapshot, ..self.models[&source].clone() };
                self.models.insert(name, model);
                self.committed();
            }
            Err(PoolError::Full { .. }) => self.make_room(),
            Err(error) => panic!("{error}"),
        }
    }

    fn rollback(&mut self) {
        let (Some(volume), Some(from)) = (self.pick(false), self.pick(true)) else { return };
        let (to, source) = (&self.models[&volume], &self.models[&from]);
        let fits = source.snapshot && to.family == source.family;
        match self.pool().rollback(&volume, &from) {
            Ok(()) => {
                assert!(fits);
                let model = Model { snapshot: false, ..self.models[&from].clone() };
                self.models.insert(volume, model);
                self.committed();
            }
            Err(PoolError::Full { .. }) => self.make_room(),
            Err(error) => assert!(!fits, "{error}"),
        }
    }

    fn delete(&mut self) {
        let Some(name) = self.pick(true) else { return };
        self.users.remove(&name);
        self.pool().delete(&name).expect("deletes");
        self.models.remove(&name);
        self.committed();
    }

    fn resize(&mut self) {
        let Some(name) = self.pick(false) else { return };
        let sectors = 8 + self.random(SECTORS_MAX - 8);
        match self.pool().resize(&name, sectors * SECTOR) {
            Ok(()) => {
                let model = self.models.get_mut(&name).expect("is there");
                model.sectors.resize(sectors as usize, 0);
                self.committed();
            }
            Err(PoolError::Full { .. }) => self.make_room(),
            Err(error) => panic!("{error}"),
        }
    }

    /// Reads all sectors of a volume and accepts each as its content, if it has an allowed tag.
    fn settle(&mut self, name: &str) {
        let sectors = self.models[name].sectors.len();
        let bytes = self.user(name).read(0, sectors * 512).expect("reads");
        let model = self.models.get_mut(name).expect("is there");
        for (at, bytes) in bytes.chunks(512).enumerate() {
            let mut may = model.older.get(&at).cloned().unwrap_or_default();
            may.push(model.sectors[at]);
            let is = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            assert!(bytes == sector(is) && may.contains(&is), "{name} sector {at}: {is}, and may be {may:?}");
            model.sectors[at] = is;
        }
    }

    fn settle_all(&mut self) {
        let names: Vec<String> = self.models.keys().cloned().collect();
        assert_eq!(self.pool().volumes().len(), names.len());
        names.iter().for_each(|name| self.settle(name));
        // The content counts as committed from here on: the opening has written a checkpoint.
        self.committed();
    }

    fn drop_and_open(&mut self) {
        self.users.clear();
        self.pool = None;
        self.check();
        self.open();
        self.settle_all();
    }

    fn close_and_open(&mut self) {
        self.users.clear();
        let before = {
            let pool = self.pool.take().expect("is open");
            pool.sync().expect("syncs");
            let info = pool.info();
            pool.close().expect("closes");
            info
        };
        self.committed();
        self.check();
        self.open();
        let after = self.pool().info();
        assert!(!after.recovered);
        // Units that had space and no data have lost their space.
        assert!(after.data_bytes <= before.data_bytes && after.volumes == before.volumes);
        self.settle_all();
    }

    /// Verifies that the offline check finds nothing.
    fn check(&self) {
        let io = DeviceIo::new(&self.device).expect("attaches");
        let report = check(&io, &CheckOptions::default()).expect("checks");
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
    }

    /// Verifies that the figures of the pool and of its volumes add up.
    fn add_up(&self) {
        let info = self.pool().info();
        let sum = info.data_bytes + info.metadata_bytes + info.free_bytes + info.pending_bytes + info.reserve_bytes;
        assert_eq!(sum, info.size_bytes);
        let volumes = self.pool().volumes();
        let unique: u64 = volumes.iter().map(|volume| volume.unique_bytes).sum();
        let all: u64 = volumes.iter().map(|volume| volume.allocated_bytes).sum();
        assert!(unique <= info.data_bytes && info.data_bytes <= all, "{unique} {} {all}", info.data_bytes);
        for volume in volumes {
            assert_eq!(volume.shared_bytes + volume.unique_bytes, volume.allocated_bytes);
            assert!(volume.written_bytes <= volume.allocated_bytes);
        }
    }
}

#[test]
fn random_operations() {
    for (round, seed) in sheave_testkit::seeds(6).enumerate() {
        let unit = [4096, 65536, 1 << 20, 16384, 262_144, 524_288][round % 6];
        println!("seed {seed}, units of {unit}");
        let mut run = Run::new(seed, unit, [16, 64][round % 2] * 4096);
        for _ in 0..400 {
            run.step();
        }
        run.add_up();
        run.settle_all();
    }
}
