//! Tests of the engine on a raw disk, where a file is its device.

use sheave_iomap::RawFile;

use super::*;
use crate::disk::{DiskOptions, Image, SimDisk};
use sheave_base::rng::Rng;

fn setup() -> (SimDisk, Direct, Arc<dyn File>) {
    setup_with(&Threads::new())
}

fn setup_with(threads: &Threads) -> (SimDisk, Direct, Arc<dyn File>) {
    let disk = SimDisk::new(Image::new(1 << 20), DiskOptions { slow: 50, ..DiskOptions::default() });
    let engine = Direct::new(&disk.device(), threads);
    let file: Arc<dyn File> = Arc::new(RawFile::new(disk.device()));
    (disk, engine, file)
}

fn run(engine: &mut Direct) -> Vec<Ended> {
    let mut all = Vec::new();
    while engine.busy() > 0 {
        all.extend(engine.turn());
        let running = engine.threads.running();
        running.into_iter().for_each(|call| engine.threads.step(call, false));
    }
    all
}

#[test]
fn what_was_written_is_read() {
    let (_, mut engine, file) = setup();
    engine.submit(1, &file, 4096, Want::Write(vec![7; 8192], false));
    let done = run(&mut engine);
    assert_eq!((done.len(), done[0].op, done[0].status), (1, 1, Status::Ok));
    engine.submit(2, &file, 0, Want::Read(8192));
    let data = run(&mut engine).remove(0).data;
    assert_eq!((data[4095], data[4096]), (0, 7));
}

#[test]
fn a_sync_or_dsync_makes_durable() {
    for sync in [false, true] {
        let (disk, mut engine, file) = setup();
        engine.submit(1, &file, 4096, Want::Write(vec![7; 4096], !sync));
        run(&mut engine);
        if sync {
            engine.submit(2, &file, 0, Want::Sync);
            run(&mut engine);
        }
        let mut rng = Rng::new(1);
        assert!((0..50).all(|_| disk.crash(&mut rng).0.sector(8)[0] == 7));
    }
}

#[test]
fn work_that_may_block_is_a_call_that_somebody_steps() {
    let threads = Threads::new();
    let (_, mut engine, file) = setup_with(&threads);
    engine.submit(1, &file, 0, Want::Zero(FallocateMode::PunchHole, 4096));
    assert!((0..10).all(|_| engine.turn().is_empty()));
    assert_eq!(threads.running().len(), 1);
    let done = run(&mut engine);
    assert_eq!(done[0].status, Status::NotSupp, "a raw file has no such call; rings do it themselves");
}

#[test]
fn a_slow_disk_holds_requests_until_time_has_passed_or_nothing_is_held() {
    let (disk, mut engine, file) = setup();
    disk.hold(true);
    (0..40).for_each(|op| engine.submit(op, &file, op * 4096, Want::Read(512)));
    let quick = (0..1000).map(|_| engine.turn().len()).sum::<usize>();
    assert!((5..35).contains(&quick), "about a half is slow: {quick}");
    (0..1001).for_each(|_| disk.tick());
    engine.submit(40, &file, 0, Want::Read(512));
    let later = (0..1000).map(|_| engine.turn().len()).sum::<usize>();
    assert!(quick + later >= 40, "{quick} {later}");
    disk.hold(false);
    run(&mut engine);
    assert_eq!(disk.held(), 0);
}
