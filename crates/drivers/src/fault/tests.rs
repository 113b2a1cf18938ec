//! Specs of the fault device, and the properties that it takes from the device below.

use super::*;
use crate::open_device;

#[test]
fn bad_specs_are_refused_with_cause_and_fix() {
    for (spec, says) in [
        ("fault:error=0.1", "over="),
        ("fault:error=2,over=null:size=1M", "error=2: give a probability from 0 to 1"),
        ("fault:torn=half,over=null:size=1M", "torn=half: give a probability"),
        ("fault:error=0.7,short=0.4,over=null:size=1M", "error=0.7 + short=0.4 is 1.100 for a read"),
        ("fault:seed=x,over=null:size=1M", "seed=x: give a whole number"),
        ("fault:ops=none,over=null:size=1M", "ops=none: give one of read, write, all"),
        ("fault:delay=0.1,delay_time=soon,over=null:size=1M", "delay_time=soon"),
        ("fault:eror=0.1,over=null:size=1M", "key 'eror' is unknown"),
        ("fault:error=0.1,over=null:size=1M+null:size=1M", "linear:over=A+B"),
        ("fault:error=0.1,over=nul:size=1M", "kind 'nul' is unknown"),
        ("fault:/dev/sda,over=null:size=1M", "takes no path"),
    ] {
        let error = open_device(spec).expect_err(spec).to_string();
        assert!(error.contains(says), "{spec}: {error}");
    }
}

#[test]
fn a_device_is_as_the_one_under_it() {
    let under = open_device("null:size=8M,bs=4k,depth=17,timeout=3s").expect("a good spec");
    let (device, counts) = over("f", &under, &FaultPlan::new(0)).expect("no faults");
    assert_eq!((device.size_bytes(), device.name(), counts.total()), (8 << 20, "f", 0));
    assert_eq!((device.limits(), device.capabilities()), (under.limits(), under.capabilities()));
    let queue = device.whole_queue().expect("one queue from end to end");
    assert_eq!(queue.timeout(), std::time::Duration::from_secs(3));
    let device = open_device("fault:timeout=2s,over=null:size=8M,timeout=3s").expect("a good spec");
    assert_eq!(device.whole_queue().expect("one queue").timeout(), std::time::Duration::from_secs(2));
}

#[test]
fn legs_stay_where_they_were_and_share_a_queue_where_they_did() {
    let (a, b) = (open_device("null:size=8M").unwrap(), open_device("null:size=8M").unwrap());
    let piece = |of: &Device, at: u64| sheave_blk::linear::partition("piece", of, at << 20, 1 << 20).unwrap();
    let under = sheave_blk::linear::concatenate("three", &[piece(&a, 1), piece(&b, 2), piece(&a, 5)]).unwrap();
    let (device, _) = over("f", &under, &FaultPlan::new(0).with(FaultKind::Error, 0.1)).unwrap();
    let place = |device: &Device| -> Vec<_> {
        device.legs().iter().map(|leg| (leg.start, leg.sectors, leg.offset, leg.queue.sectors())).collect()
    };
    assert_eq!(place(&device), place(&under));
    let [one, two, three] = device.legs() else { panic!("three legs") };
    assert!(Arc::ptr_eq(&one.queue, &three.queue) && !Arc::ptr_eq(&one.queue, &two.queue));
    assert!(!Arc::ptr_eq(&one.queue, &a.legs()[0].queue));
    // A leg alone on its queue is accounted as the whole queue; legs that share one are partitions of it.
    assert_eq!((one.part, two.part, three.part), (1, 0, 2));
    assert!(device.whole_queue().is_none());
}

#[test]
fn what_was_injected_and_what_cannot_be_is_told() {
    let device = open_device("fault:seed=3,dropped_flush=1,over=null:size=1M").expect("a good spec");
    let [told] = &device.notices()[..] else { panic!("one notice: {:?}", device.notices()) };
    assert!(told.contains("dropped_flush does nothing over null:size=1M"), "{told}");
    let under = open_device("null:size=1M").unwrap();
    let (device, counts) = over("f", &under, &FaultPlan::new(3).with(FaultKind::Error, 0.1)).unwrap();
    assert!(device.notices().is_empty());
    counts.count(FaultKind::Error);
    counts.count(FaultKind::Stuck);
    counts.count(FaultKind::Error);
    assert_eq!(device.notices(), ["faults injected with seed=3: error 2, stuck 1"]);
    assert_eq!((counts.get(FaultKind::Error), counts.get(FaultKind::Torn), counts.total()), (2, 0, 3));
}

#[test]
fn the_layer_hands_the_claim_down() {
    let disk = open_device("ram:size=1M").expect("a device");
    let (faulty, _) = over("f", &disk, &FaultPlan::new(1)).expect("over it");
    let held = faulty.claim(Sharing::Alone).expect("free");
    assert!(matches!(disk.claim(Sharing::Alone), Err(DeviceError::Claimed { .. })));
    drop(held);
    assert!(disk.claim(Sharing::Alone).is_ok());
}
