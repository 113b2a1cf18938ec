//! No acknowledged byte is lost, whatever else fails. The data that reads return, and the final content of the device,
//! are permitted by the model. After a power cut, everything that an fsync or a DSYNC write covered is there. The
//! checks are tested too: they detect a device that lies.

use std::time::Duration;

use sheave::open_device;
use sheave_drivers::fault::{self, FaultKind, FaultPlan};

use crate::disk::Disk;
use crate::model::Model;
use crate::program::{DEVICE_BLOCKS, DEVICE_BYTES, Program, Shape};
use crate::{file_spec, files_work, within_time};
use sheave_base::rng::Rng;

/// Returns all faults except lies.
fn honest(seed: u64) -> FaultPlan {
    let rates = [
        (FaultKind::Error, 0.05),
        (FaultKind::Short, 0.05),
        (FaultKind::Torn, 0.1),
        (FaultKind::Delay, 0.15),
        (FaultKind::Stuck, 0.003),
    ];
    let mut plan = rates.into_iter().fold(FaultPlan::new(seed), |plan, (kind, rate)| plan.with(kind, rate));
    plan.delay_time = Duration::from_micros(200);
    plan.timeout = Some(Duration::from_millis(20));
    plan
}

/// Runs seeds over fresh devices, two rings on each, and reads everything back from the device below.
fn nothing_is_lost(spec: &str, seeds: u64) {
    let spec = spec.to_string();
    within_time(&spec.clone(), move || {
        for seed in sheave_testkit::seeds(seeds) {
            let under = open_device(&spec).expect("a good spec");
            let (device, _) = fault::over(&spec, &under, &honest(seed)).expect("good rates");
            std::thread::scope(|scope| {
                for half in 0..2 {
                    let (device, under) = (&device, &under);
                    let area = half * DEVICE_BLOCKS / 2..(half + 1) * DEVICE_BLOCKS / 2;
                    scope.spawn(move || {
                        let shape = Shape { area, ops: 600, ..Shape::new(seed * 2 + half as u64) };
                        let mut program = Program::new(shape, device);
                        program.run();
                        program.read_back(under);
                        if let Some(wrong) = program.wrong {
                            panic!("seed {seed}: {wrong}");
                        }
                        let (ok, failed) = program.ended;
                        assert!(ok > 100 && failed > 10, "seed {seed}: {ok} ok, {failed} failed: shows little");
                    });
                }
            });
        }
    });
}

#[test]
fn nothing_is_lost_over_memory() {
    nothing_is_lost(&format!("ram:size={DEVICE_BYTES}"), 8);
    let half = DEVICE_BYTES / 2;
    nothing_is_lost(&format!("linear:over=ram:size={half}+ram:size={half}"), 4);
    nothing_is_lost(&format!("partition:start=64k,size={DEVICE_BYTES},over=ram:size=1M"), 4);
}

#[test]
fn nothing_is_lost_over_a_file() {
    if !files_work() {
        return;
    }
    for (more, seeds) in [("", 6), (",direct=off", 3)] {
        for seed in sheave_testkit::seeds(seeds) {
            // A new file, as the model begins with zeroes.
            let dir = tempfile::tempdir().expect("a directory");
            one_file(&format!("{}{more}", file_spec(&dir)), seed);
        }
    }
}

fn one_file(spec: &str, seed: u64) {
    let spec = spec.to_string();
    within_time(&spec.clone(), move || {
        let under = open_device(&spec).expect("a new file");
        let (device, _) = fault::over(&spec, &under, &honest(seed)).expect("good rates");
        let mut program = Program::new(Shape { ops: 600, ..Shape::new(seed) }, &device);
        program.run();
        program.read_back(&under);
        assert!(program.wrong.is_none(), "seed {seed}: {:?}", program.wrong);
    });
}

/// Runs a program on a disk with a volatile cache, and cuts its power now and then. Returns the first loss.
fn power_cuts(seed: u64, plan: &FaultPlan) -> Option<String> {
    let disk = Disk::new(DEVICE_BYTES, seed.is_multiple_of(2));
    let (device, _) = fault::over("disk", &disk.device(), plan).expect("good rates");
    let mut program = Program::new(Shape { ops: 800, ..Shape::new(seed) }, &device);
    let mut rng = Rng::new(seed + 1000);
    for at in 0..120 {
        program.step();
        if at % 3 == 0 {
            let image = disk.cut_power(&mut rng);
            program.check(&image, 0, "after a power cut", Model::may_survive);
        }
    }
    program.finish();
    let image = disk.cut_power(&mut rng);
    program.check(&image, 0, "after the last power cut", Model::may_survive);
    program.wrong
}

#[test]
fn what_was_synced_survives_a_power_cut() {
    within_time("power cuts", || {
        for seed in sheave_testkit::seeds(16) {
            let lost = power_cuts(seed, &honest(seed));
            assert!(lost.is_none(), "seed {seed}: {lost:?}");
        }
    });
}

#[test]
fn flushes_that_are_dropped_are_noticed() {
    within_time("dropped flushes", || {
        for seed in sheave_testkit::seeds(6) {
            let lost = power_cuts(seed, &FaultPlan::new(seed).with(FaultKind::DroppedFlush, 1.0));
            assert!(lost.is_some_and(|lost| lost.contains("power cut")), "seed {seed}: a lie that nobody notices");
        }
    });
}

#[test]
fn misdirected_requests_are_noticed() {
    within_time("misdirected", || {
        for seed in sheave_testkit::seeds(6) {
            let disk = Disk::new(DEVICE_BYTES, true).device();
            for ops in [fault::FaultOps::Read, fault::FaultOps::Write] {
                let plan = FaultPlan { ops, ..FaultPlan::new(seed).with(FaultKind::Misdirect, 0.2) };
                let (device, counts) = fault::over("disk", &disk, &plan).expect("good rates");
                let mut program = Program::new(Shape { ops: 800, ..Shape::new(seed) }, &device);
                program.run();
                program.read_back(&disk);
                assert!(counts.get(FaultKind::Misdirect) > 5, "seed {seed}");
                assert!(program.wrong.is_some(), "seed {seed}: {ops:?}: a lie that nobody notices");
            }
        }
    });
}
