//! Guarantees of an exported device to all of its clients.

use sheave::{Ring, op};
use sheave_drivers::fault::{self, FaultKind, FaultPlan};

use super::*;

#[test]
fn after_a_flush_of_a_device_has_failed_none_ends_well() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = sheave::open_device(&format!("file:{}/disk,size=1M", dir.path().display())).expect("a device");
    // Each flush fails with a probability of one half.
    let plan = FaultPlan::new(1).with(FaultKind::Error, 0.5);
    let (device, _) = fault::over("bad", &disk, &plan).expect("a device");
    let served = ServedDevice::new(device, Sharing::Alone).expect("claimed");
    let mut rings = [0, 1].map(|_| {
        let mut ring = Ring::builder().entries(8).build().expect("a ring");
        let fd = ring.attach_file(served.file().clone()).expect("attached");
        (ring, fd)
    });
    let ended: Vec<bool> = (0..64)
        .map(|number| {
            let (ring, fd) = &mut rings[number % 2];
            ring.push(op::fsync(*fd)).expect("pushed");
            ring.submit_and_wait(1).expect("waited");
            ring.completions().next().expect("it ended").result().is_ok()
        })
        .collect();
    let failed = ended.iter().position(|well| !well).expect("one has failed");
    assert!(ended[failed..].iter().all(|well| !well), "a client heard that all is durable: {ended:?}");
}

#[test]
fn questions_that_compare_with_a_snapshot_are_not_for_a_reactor() {
    let device = sheave::open_device("ram:size=64M").expect("a device");
    sheave_vol::Pool::create(&device, &sheave_vol::CreateOptions::default()).expect("made");
    let pool = sheave_vol::Pool::open(&device, &sheave_vol::OpenOptions::default()).expect("opened");
    let volume = pool.create_volume("v", 1 << 20).expect("made");
    pool.snapshot("v", "s").expect("frozen");
    let served = ServedVolume { file: Arc::new(volume.clone()), volume, unit_bytes: 65536 };
    let reads = |name: &str| served.reads_for_status(served.context(name.as_bytes()).expect("it has one"));
    let names = ["base:allocation", "qemu:allocation-depth", "qemu:dirty-bitmap:since-s"];
    assert_eq!(names.map(reads), [false, false, true]);
}
