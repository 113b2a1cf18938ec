//! Parity over three devices: passes the suite with all devices, without one, and with one that is lost during I/O.
#![forbid(unsafe_code)]

use std::sync::Arc;

use sheave::drivers::Registry;
use sheave::{Buf, Device, Ring, op};
use sheave_base::rng::Rng;
use sheave_conformance::Suite;
use sheave_load::pace::Pace;
use sheave_load::{EngineOpts, Lane, Looper, Pattern, Rw, SheaveEngine, Until};
use sheave_outside_xor::register;

fn open(spec: &str) -> Result<Device, sheave::DeviceError> {
    let mut registry = Registry::standard();
    register(&mut registry)?;
    registry.open(spec)
}

fn passes(spec: &'static str) {
    Suite::new(move || open(spec)).run().assert_passed();
}

#[test]
fn passes_the_suite() {
    passes("xor:over=ram:size=1M+ram:size=1M+ram:size=1M");
    passes("xor:over=ram:size=1M,bs=4k+ram:size=2M+ram:size=1M+ram:size=1M,depth=1");
}

#[test]
fn passes_the_suite_without_any_one_of_them() {
    for missing in 0..3 {
        let spec = format!("xor:missing={missing},over=ram:size=1M+ram:size=1M+ram:size=1M");
        Suite::new(move || open(&spec)).run().assert_passed();
    }
}

#[test]
fn passes_the_suite_while_one_is_lost() {
    passes("xor:over=ram:size=1M+fault:seed=1,error=0.01,over=ram:size=1M+ram:size=1M");
    passes("xor:over=fault:seed=2,error=0.001,delay=0.1,delay_time=50us,over=ram:size=1M+ram:size=1M+ram:size=1M");
}

#[test]
fn ends_all_when_two_are_lost() {
    let bad = "fault:seed=1,error=0.01,over=ram:size=1M";
    let spec = format!("xor:over=ram:size=1M+{bad}+{bad}");
    Suite::new(move || open(&spec)).may_fail().run().assert_passed();
}

#[test]
fn stands_on_files_through_one_kernel_ring() {
    let dir = std::env::temp_dir().join(format!("sheave-xor-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let file = |name: &str| format!("file:{},size=1M", dir.join(name).display());
    let spec = format!("xor:over={}+{}+{}", file("a"), file("b"), file("c"));
    match open(&spec) {
        Ok(_) => Suite::new(move || open(&spec)).run().assert_passed(),
        Err(error) => eprintln!("SKIPPED: {error}"),
    }
    let _ = std::fs::remove_dir_all(dir);
}

/// Fills or compares the whole device.
fn whole(device: &Device, write: bool) {
    let (mut rng, mut ring) = (Rng::new(5), Ring::builder().entries(8).build().expect("a ring"));
    let fd = ring.attach(device).expect("attached");
    for at in (0..device.size_bytes()).step_by(256 << 10) {
        let len = (device.size_bytes() - at).min(256 << 10) as usize;
        let mut noise = Buf::zeroed(len, 4096).expect("memory");
        noise.iter_mut().for_each(|byte| *byte = rng.below(256) as u8);
        if write {
            ring.push(op::write(fd, noise).offset(at)).expect("room");
            ring.submit_and_wait(1).expect("submitted");
            assert_eq!(ring.completions().next().expect("one").res, len as i32);
            continue;
        }
        ring.push(op::read(fd, Buf::zeroed(len, 4096).expect("memory")).offset(at)).expect("room");
        ring.submit_and_wait(1).expect("submitted");
        let read = ring.completions().next().expect("one");
        assert_eq!(read.res, len as i32);
        assert!(read.into_buf().expect("its buffer")[..] == noise[..], "at {at}");
    }
}

#[test]
fn what_was_written_outlives_each_of_them() {
    let mut registry = Registry::standard();
    register(&mut registry).expect("a free name");
    let disks: Arc<Vec<Device>> =
        Arc::new((0..3).map(|_| sheave::open_device("ram:size=1M").expect("a disk")).collect());
    let shelf = Arc::clone(&disks);
    registry
        .register("disk", move |params| {
            let at = params.number("at", 0, 2)?.unwrap_or(0) as usize;
            params.finish()?;
            Ok(shelf[at].clone())
        })
        .expect("a free name");
    let spec = "over=disk:at=0+disk:at=1+disk:at=2";
    whole(&registry.open(&format!("xor:{spec}")).expect("opened"), true);
    for missing in 0..3 {
        whole(&registry.open(&format!("xor:missing={missing},{spec}")).expect("opened"), false);
    }
    // Data written without one device is there when it is read without it.
    let short = registry.open(&format!("xor:missing=1,{spec}")).expect("opened");
    whole(&short, true);
    whole(&short, false);
    assert!(short.notices().join(" ").contains("device 1 is lost"));
}

#[test]
fn says_what_is_wrong_with_a_spec() {
    for (spec, why) in [
        ("xor:over=ram:size=1M+ram:size=1M", "give three or more"),
        ("xor:missing=3,over=ram:size=1M+ram:size=1M+ram:size=1M", "give three or more"),
        ("xor:over=ram:size=4k+ram:size=1M+ram:size=1M", "Give larger ones"),
        ("xor:size=1M,over=ram:+ram:+ram:", "key 'size' is unknown"),
    ] {
        let error = open(spec).expect_err(spec).to_string();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn the_measured_loop_runs_on_it() {
    let device = open("xor:over=ram:size=4M+ram:size=4M+ram:size=4M").expect("opened");
    let opts =
        EngineOpts { depth: 32, bs: 4096, poll: true, stats: true, fixed_buffers: true, dsync: false, ioprio: 0 };
    let engine = SheaveEngine::new(|ring| ring.attach(&device), 1, &opts).expect("a ring");
    let mut looper = Looper::new(engine, 32, 8, 0, Arc::new(Lane::default()));
    let mut pattern = Pattern::new(Rw::Randrw, 50, 0, 4096, device.size_bytes() / 4096, 1);
    let until = Until { runtime: None, ios: 20_000, stop: Arc::default() };
    looper.run(&mut pattern, &until, &mut Pace::Unlimited).expect("it runs");
    assert_eq!((looper.counts().good() >= 20_000, looper.first_error()), (true, None));
}
