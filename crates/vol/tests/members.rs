//! V14, V22 and V29: pools that get more members, while they are in use, and cut off at any point.
#![cfg(not(shuttle))]

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{User, format, open, pattern};
use sheave_blk::Device;
use sheave_drivers::open_device;
use sheave_vol::block_io::DeviceIo;
use sheave_vol::{
    AddOptions, BlockIo, CheckOptions, Checksum, CreateOptions, FindingKind, Found, OpenOptions, Pool, PoolError,
    SpaceState, WhenFull, check_device, join,
};

const UNIT: u64 = 65536;
const MIB: usize = 1 << 20;

fn ram(mib: usize) -> Device {
    open_device(&format!("ram:size={mib}M")).expect("opens")
}

/// Returns a handle of the same device that keeps its size when the device is extended.
fn plain(device: &Device) -> Device {
    sheave_blk::linear::partition("plain", device, 0, device.size_bytes()).expect("all of it")
}

fn bytes(device: &Device) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    DeviceIo::new(device).expect("attaches").read(0, &mut bytes).expect("reads");
    bytes
}

/// Makes a device with these bytes, as after a crash of the machine.
fn copy(bytes: &[u8]) -> Device {
    let device = open_device(&format!("ram:size={}", bytes.len())).expect("opens");
    DeviceIo::new(&device).expect("attaches").write(0, bytes).expect("writes");
    device
}

fn both(a: &Device, b: &Device) -> Device {
    join("a+b", &[a.clone(), b.clone()]).expect("joins")
}

fn refusal<T: std::fmt::Debug>(result: Result<T, PoolError>, words: &[&str]) {
    let error = result.expect_err("refused");
    assert!(matches!(error, PoolError::Members { .. }), "{error:?}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

fn is_clean(device: &Device) {
    let report = check_device(device, &CheckOptions::default().repair(false)).expect("checks");
    assert!(report.is_clean(), "{:?}", report.findings);
}

/// A small file system, mounted as long as this lives.
struct SmallFs(tempfile::TempDir);

impl SmallFs {
    fn mount(mib: usize) -> Option<SmallFs> {
        let dir = tempfile::tempdir().expect("a directory");
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}M"), "sheave-test"]).arg(dir.path());
        let mounted = mount.stderr(std::process::Stdio::null()).status().is_ok_and(|status| status.success());
        if !mounted {
            sheave_testkit::skip("no small file system can be mounted here: run as root");
        }
        mounted.then_some(SmallFs(dir))
    }

    fn device(&self, mib: usize) -> Device {
        let path = self.0.path().join("a.img");
        std::fs::File::create(&path).and_then(|file| file.set_len((mib * MIB) as u64)).expect("a file without space");
        open_device(&format!("file:{}", path.display())).expect("opens")
    }
}

impl Drop for SmallFs {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

/// Pool and file system have space, but the file system of the new member is full. Adding it fails with that cause, and
/// succeeds once there is room.
#[test]
fn a_member_on_a_full_file_system_is_told_of_that() {
    let (Some(large), Some(small)) = (SmallFs::mount(32), SmallFs::mount(1)) else { return };
    let (hog, pool_device, member) = (small.0.path().join("hog"), large.device(16), small.device(8));
    std::fs::write(&hog, vec![1; MIB]).expect("fills it");
    format(&pool_device, UNIT);
    let pool = open(&pool_device);
    for _ in 0..2 {
        let error = pool.add_member(&member, &AddOptions::default()).expect_err("refused");
        assert!(matches!(&error, PoolError::HostFull { device, .. } if device == member.name()), "{error:?}");
        assert_eq!(pool.info().members.len(), 1, "nothing has changed");
    }
    std::fs::remove_file(&hog).expect("makes room");
    pool.add_member(&member, &AddOptions::default()).expect("adds");
    assert_eq!(pool.info().members.len(), 2);
    pool.close().expect("closes");
    is_clean(&both(&pool_device, &member));
}

fn write_units(user: &User, range: std::ops::Range<u64>) {
    range.for_each(|unit| user.write(unit * UNIT, &pattern(unit, UNIT as usize)).expect("there is room"));
}

fn verify_units(user: &User, range: std::ops::Range<u64>) {
    for unit in range {
        assert!(user.read(unit * UNIT, UNIT as usize).expect("reads") == pattern(unit, UNIT as usize), "{unit}");
    }
}

#[test]
fn a_member_comes_to_a_pool_in_use() {
    for checksum in [Checksum::None, Checksum::Crc32c] {
        let (a, b, c) = (ram(16), ram(32), ram(16));
        let alone = plain(&a);
        let options = CreateOptions::default().checksum(checksum);
        Pool::create(&a, &options).expect("formats");
        let pool = open(&a);
        let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
        if checksum == Checksum::None {
            write_units(&user, 0..150);
        }
        let before = pool.info();
        let size = pool.add_member(&b, &AddOptions::default()).expect("adds");
        let info = pool.info();
        assert_eq!((size, info.size_bytes), (48 << 20, 48 << 20));
        assert!(info.free_bytes > before.free_bytes + (30 << 20), "{info:?}");
        let members: Vec<(u64, u64)> = info.members.iter().map(|one| (one.start_bytes, one.size_bytes)).collect();
        assert_eq!(members, [(0, 16 << 20), (16 << 20, 32 << 20)]);
        assert_eq!(pool.add_member(&c, &AddOptions::default()).expect("adds"), 64 << 20);
        refusal(pool.add_member(&c, &AddOptions::default()).map_err(as_members), &["in use"]);
        if checksum == Checksum::None {
            write_units(&user, 150..900);
            user.sync().expect("syncs");
            verify_units(&user, 0..900);
        }
        pool.snapshot("v", "s").expect("snapshots");
        drop((user, pool));
        let all = join("all", &[a.clone(), b.clone(), c.clone()]).expect("joins");
        is_clean(&all);
        let pool = open(&all);
        assert!(pool.info().members.len() == 3 && pool.info().size_bytes == 64 << 20);
        if checksum == Checksum::None {
            verify_units(&User::new(pool.open_volume("s").expect("is there")), 0..900);
        }
        pool.close().expect("closes");
        // The error names each member that is missing, or given twice.
        refusal(
            Pool::open(&alone, &OpenOptions::default()),
            &["has 3 members", "members 1 to 2 are missing", "a.img+b.img"],
        );
        refusal(join("x", &[a.clone(), b.clone()]), &["member 2 is missing", "16777216 bytes"]);
        let mixed = join("x", &[c.clone(), a.clone(), b.clone()]).expect("labels say which member each is");
        Pool::open(&mixed, &OpenOptions::default()).expect("opens").close().expect("closes");
        refusal(join("x", &[a.clone(), c.clone(), b.clone(), c.clone()]), &["member 2 of the pool is named twice"]);
        refusal(Pool::open(&b, &OpenOptions::default()), &["what is named first is member 1 of a pool"]);
        let blank = join("x", &[a.clone(), b, ram(16)]).expect("as large as they were");
        refusal(Pool::open(&blank, &OpenOptions::default()), &["given as member 2 of the pool is another device"]);
        let report = check_device(&alone, &CheckOptions::default().repair(false)).expect("checks");
        assert!(report.findings[0].kind == FindingKind::NoPool && !report.is_repairable(), "{:?}", report.findings);
        assert!(report.findings[0].means.contains("members 1 to 2 are missing"), "{:?}", report.findings);
    }
}

/// Converts the refusal of a claim, so that one helper can verify both errors.
fn as_members(error: PoolError) -> PoolError {
    match error {
        PoolError::Busy { what, who, fix } => PoolError::Members { what: format!("{what} is in use: {who}"), fix },
        error => error,
    }
}

#[test]
fn writers_that_wait_for_space_go_on() {
    let (a, b) = (ram(16), ram(16));
    format(&a, UNIT);
    let options = OpenOptions::default().when_full(WhenFull::Pause(Duration::from_secs(60)));
    let pool = Pool::open(&a, &options).expect("opens");
    let mut watch = pool.watch();
    let full = pool.info().free_bytes / UNIT;
    let volume = pool.create_volume("v", 1 << 30).expect("creates");
    let user = User::new(volume.clone());
    write_units(&user, 0..full);
    assert_eq!((pool.info().free_bytes, watch.changed().map(|now| now.state)), (0, Some(SpaceState::Full)));
    let waiters: Vec<_> = (0..3)
        .map(|at| {
            let volume = volume.clone();
            thread::spawn(move || {
                let user = User::new(volume);
                write_units(&user, full + at * 10..full + at * 10 + 10);
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(100));
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()), "nothing is free");
    let since = Instant::now();
    pool.add_member(&b, &AddOptions::default()).expect("adds");
    waiters.into_iter().for_each(|waiter| waiter.join().expect("it found space"));
    assert!(since.elapsed() < Duration::from_secs(30));
    assert_eq!(watch.changed().map(|now| now.state), Some(SpaceState::Ok), "told once");
    verify_units(&user, 0..full + 30);
}

#[test]
fn an_addition_that_was_cut_off_leaves_the_old_pool() {
    let (a, b) = (ram(16), ram(16));
    format(&a, UNIT);
    let pool = open(&a);
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    write_units(&user, 0..20);
    user.sync().expect("syncs");
    let old = bytes(&a);
    pool.add_member(&b, &AddOptions::default()).expect("adds");
    let new = bytes(&b);
    // V22: the addition was cut off after the label and before the superblock.
    let (a, b) = (copy(&old), copy(&new));
    let alone = plain(&a);
    for device in [copy(&old), both(&copy(&old), &copy(&new))] {
        let pool = open(&device);
        assert_eq!((pool.info().size_bytes, pool.info().members.len()), (16 << 20, 1));
        verify_units(&User::new(pool.open_volume("v").expect("is there")), 0..20);
        pool.close().expect("closes");
        is_clean(&device);
    }
    let pool = open(&a);
    assert_eq!(pool.find_on(&b).expect("reads"), Found::CutOff);
    assert_eq!(pool.find_on(&ram(16)).expect("reads"), Found::Nothing);
    // Another device becomes the member. That of the first attempt does not fit, though number, place and size are
    // equal.
    let c = ram(16);
    pool.add_member(&c, &AddOptions::default()).expect("adds");
    assert_eq!((pool.find_on(&c).expect("reads"), pool.find_on(&b).expect("reads")), (Found::Member(1), Found::CutOff));
    drop(pool);
    refusal(
        Pool::open(&both(&a, &b), &OpenOptions::default()),
        &["member 1 of the pool is another device", "generation"],
    );
    // If a newer superblock needs a member that is missing, the older superblock is not used instead.
    let mut torn = bytes(&alone);
    let superblock =
        |bytes: &[u8], slot: usize| u64::from_le_bytes(bytes[slot * 4096 + 40..][..8].try_into().expect("8"));
    let older = usize::from(superblock(&torn, 0) > superblock(&torn, 1));
    torn[older * 4096..(older + 1) * 4096].copy_from_slice(&old[older * 4096..(older + 1) * 4096]);
    refusal(Pool::open(&copy(&torn), &OpenOptions::default()), &["member 1 is missing"]);
    // The first attempt can be repeated.
    let a = copy(&old);
    let pool = open(&a);
    pool.add_member(&b, &AddOptions::default()).expect("adds");
    drop(pool);
    is_clean(&both(&a, &b));
    assert_eq!(open(&both(&a, &b)).info().members.len(), 2);
}

#[test]
fn what_cannot_be_a_member_is_refused() {
    let (a, b) = (ram(16), ram(16));
    format(&a, UNIT);
    let pool = open(&a);
    let add = |device: &Device| pool.add_member(device, &AddOptions::default());
    // A pool, the remains of one, and a member of one.
    Pool::create(&b, &CreateOptions::default().uuid(Some([9; 16]))).expect("formats");
    refusal(add(&b), &["belongs to another pool (0909"]);
    let half = copy(&[vec![0; 4096], bytes(&b)[4096..].to_vec()].concat());
    refusal(add(&half), &["belongs to another pool"]);
    let member = copy(&{
        let (c, d) = (ram(16), ram(16));
        format(&c, UNIT);
        Pool::create(&both(&c, &d), &CreateOptions::default().overwrite(true)).expect("formats");
        bytes(&d)
    });
    refusal(add(&member), &["belongs to another pool"]);
    refusal(add(&copy(&bytes(&a))), &["is member 0 of this pool already"]);
    let busy = add(&a).expect_err("refused");
    assert!(matches!(busy, PoolError::Busy { .. }), "{busy}");
    assert!(add(&open_device("ram:size=64k").expect("opens")).expect_err("refused").to_string().contains("too few"));
    let coarse = add(&open_device("ram:size=16M,bs=8k").expect("opens")).expect_err("refused");
    assert!(coarse.to_string().contains("8192 bytes"), "{coarse}");
    assert_eq!(pool.info().size_bytes, 16 << 20, "and nothing has changed");
    // `overwrite` adds the device, and the old pool does not open any more.
    pool.add_member(&b, &AddOptions::default().overwrite(true)).expect("adds");
    drop(pool);
    assert!(Pool::open(&b, &OpenOptions::default()).is_err());
    let pool = open(&both(&a, &b));
    assert_eq!(pool.find_on(&copy(&bytes(&b))).expect("reads"), Found::Member(1));
}

#[test]
fn a_device_that_fails_leaves_the_pool_as_it_was() {
    let a = ram(16);
    format(&a, UNIT);
    let pool = open(&a);
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    for ops in ["read", "write"] {
        let bad = open_device(&format!("fault:error=1,ops={ops},over=ram:size=16M")).expect("opens");
        let error = pool.add_member(&bad, &AddOptions::default()).expect_err("it fails");
        assert!(matches!(error, PoolError::Io { .. }), "{ops}: {error}");
        assert!(error.to_string().contains("Check the device"), "{ops}: {error}");
    }
    assert_eq!((pool.info().size_bytes, pool.grow().expect("there is nothing to take in")), (16 << 20, 16 << 20));
    write_units(&user, 0..50);
    user.sync().expect("syncs");
    pool.add_member(&ram(16), &AddOptions::default()).expect("another is good");
    assert_eq!(pool.info().size_bytes, 32 << 20);
    verify_units(&user, 0..50);
}

#[test]
fn members_of_any_size_and_growth_of_the_last() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, bytes: u64| {
        let path = dir.path().join(name);
        let file = std::fs::File::options().create(true).append(true).open(&path).expect("a file");
        file.set_len(bytes).expect("grows");
        open_device(&format!("file:{}", path.display())).expect("opens")
    };
    // The first member ends within a unit. The incomplete unit is not used, and does not move the second member.
    let (a, b) = (file("a", (16 << 20) + 3 * 4096), file("b", 16 << 20));
    format(&a, UNIT);
    let pool = open(&a);
    pool.add_member(&b, &AddOptions::default()).expect("adds");
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    write_units(&user, 0..400);
    user.sync().expect("syncs");
    drop((user, pool, a, b));
    // V14: both files have grown. The pool takes the growth of the last member, and the label stays as it was.
    let (a, b) = (file("a", 20 << 20), file("b", 48 << 20));
    let pool = open(&both(&a, &b));
    assert_eq!(pool.info().size_bytes, 32 << 20);
    assert_eq!(pool.grow().expect("grows"), 64 << 20);
    verify_units(&User::new(pool.open_volume("v").expect("is there")), 0..400);
    pool.close().expect("closes");
    let pool = open(&both(&a, &b));
    let user = User::new(pool.open_volume("v").expect("is there"));
    write_units(&user, 400..900);
    verify_units(&user, 0..900);
    drop((user, pool));
    is_clean(&both(&a, &b));
}

#[test]
fn a_pool_grows_while_others_commit() {
    // A checkpoint in progress while the pool grows must not undo the growth.
    let (a, members) = (ram(16), [ram(4), ram(4), ram(4), ram(4)]);
    format(&a, UNIT);
    let pool = open(&a);
    let volume = pool.create_volume("v", 1 << 30).expect("creates");
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let user = User::new(volume.clone());
            for unit in 0..300u64 {
                user.write(unit * UNIT, &pattern(unit, UNIT as usize)).expect("there is room");
                pool.set_low_water(sheave_vol::LowWater::Percent(1 + unit as u32 % 90)).expect("sets");
            }
            user.sync().expect("syncs");
        });
        for (at, member) in members.iter().enumerate() {
            thread::sleep(Duration::from_millis(2));
            let size = pool.add_member(member, &AddOptions::default()).expect("adds");
            assert_eq!(size as usize, (20 + 4 * at) * MIB);
        }
        worker.join().expect("ends");
    });
    assert_eq!(pool.info().members.len(), 5);
    drop((volume, pool));
    let devices: Vec<Device> = std::iter::once(a).chain(members).collect();
    let pool = open(&join("all", &devices).expect("joins"));
    assert_eq!((pool.info().members.len(), pool.info().size_bytes), (5, 32 << 20));
    verify_units(&User::new(pool.open_volume("v").expect("is there")), 0..300);
}

/// V29: a host that returns detects on the device that another host has opened the pool since.
#[test]
fn an_owner_learns_that_another_has_opened_the_pool() {
    let device = ram(64);
    Pool::create(&device, &CreateOptions::default()).expect("formats");
    let pool = Pool::open(&device, &OpenOptions::default()).expect("opens");
    pool.create_volume("v", 1 << 20).expect("made");
    pool.check_owner().expect("it is its own");
    // Another host opens a copy of the device. Its writes then replace the content of the first host's device.
    let other = copy(&bytes(&device));
    Pool::open(&other, &OpenOptions::default()).expect("opens").close().expect("closes");
    DeviceIo::new(&device).expect("attaches").write(0, &bytes(&other)).expect("writes");
    let error = pool.check_owner().expect_err("another has it");
    assert!(matches!(error, PoolError::Busy { .. }), "{error}");
    assert!(error.to_string().contains("opened for writing elsewhere"), "{error}");
    // Another pool in its place is detected as such.
    let made = ram(64);
    Pool::create(&made, &CreateOptions::default()).expect("formats");
    DeviceIo::new(&device).expect("attaches").write(0, &bytes(&made)).expect("writes");
    let error = pool.check_owner().expect_err("it is gone").to_string();
    assert!(error.contains("another pool"), "{error}");
}

/// Uses a pool on two devices in two openings. Returns the bytes of both devices after each.
fn used_twice() -> [(Vec<u8>, Vec<u8>); 2] {
    let (a, b) = (ram(8), ram(8));
    format(&both(&a, &b), UNIT);
    [1, 2].map(|round| {
        let pool = open(&both(&a, &b));
        if round == 1 {
            pool.create_volume("v", 1 << 30).expect("creates");
        }
        let user = User::new(pool.open_volume("v").expect("is there"));
        (0..100).for_each(|unit| user.write(unit * UNIT, &pattern(unit + round, UNIT as usize)).expect("writes"));
        drop(user);
        pool.close().expect("closes");
        (bytes(&a), bytes(&b))
    })
}

/// V31: a member that is an older copy of itself is refused, whichever member it is. `check` and a rescue report it.
#[test]
fn a_member_that_is_an_older_copy_is_refused() {
    let [(old_a, old_b), (a, b)] = used_twice();
    is_clean(&both(&copy(&a), &copy(&b)));
    open(&both(&copy(&a), &copy(&b))).close().expect("closes");
    let cases = [
        ((&a, &old_b), ["member 1 of the pool is of another time", "an older copy of this member", "--rescue"]),
        (
            (&old_a, &b),
            ["member 1 of the pool is of another time", "the first member of the pool is an older copy", "--rescue"],
        ),
    ];
    for ((a, b), words) in cases {
        let device = both(&copy(a), &copy(b));
        refusal(Pool::open(&device, &OpenOptions::default()), &words);
        refusal(Pool::open(&device, &OpenOptions::default().read_only(true)), &words);
        for repair in [false, true] {
            let report = check_device(&device, &CheckOptions::default().repair(repair)).expect("checks");
            assert!(!report.is_repairable() && !report.repaired, "{:?}", report.findings);
            let found = report.findings.iter().find(|found| found.kind == FindingKind::Label).expect("the label");
            assert!(found.means.contains(words[1]) && found.means.contains("used last"), "{found}");
        }
        let rescued = Pool::open(&device, &OpenOptions::default().rescue(true)).expect("is read");
        let unsure = rescued.info().unsure;
        assert!(
            unsure.iter().any(|said| said.contains(words[1]) && said.contains("may be what it was then")),
            "{unsure:?}"
        );
    }
}

/// V31: a copy that was made while the pool was in use is an older copy after the next checkpoint.
#[test]
fn a_copy_of_a_member_is_older_after_the_next_checkpoint() {
    let (a, b) = (ram(8), ram(8));
    format(&both(&a, &b), UNIT);
    let pool = open(&both(&a, &b));
    let user = User::new(pool.create_volume("v", 1 << 30).expect("creates"));
    user.write(0, &pattern(1, UNIT as usize)).expect("writes");
    let copied = bytes(&b);
    pool.set_low_water(sheave_vol::LowWater::Percent(3)).expect("a checkpoint");
    let (a, b) = (bytes(&a), bytes(&b));
    open(&both(&copy(&a), &copy(&b)));
    refusal(Pool::open(&both(&copy(&a), &copy(&copied)), &OpenOptions::default()), &["an older copy of this member"]);
}
