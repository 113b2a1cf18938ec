//! Tests of the notices during a long life of a device.

use std::time::Duration;

use sheave::DeviceError;
use sheave::drivers::Registry;

use super::{Desk, MAX_NOTICES};
use crate::spec::Target;

/// Returns the desk of an image that is not opened.
pub(crate) fn desk() -> Desk {
    let (desks, made) = std::sync::mpsc::channel();
    let mut registry = Registry::standard();
    let make = move |params: &mut sheave::drivers::Params<'_>| {
        _ = desks.send(Desk::new(&Target::read(params)?));
        Err(DeviceError::spec("", "nothing is opened"))
    };
    registry.register("rbd", make).expect("the name is free");
    _ = registry.open("rbd:rbd/disk");
    made.recv_timeout(Duration::from_secs(10)).expect("made")
}

#[test]
fn each_silence_of_the_cluster_is_told() {
    let desk = desk();
    for round in 1..=2 {
        desk.is_silent();
        desk.is_silent();
        let told = desk.notices();
        assert!(told.last().is_some_and(|text| text.contains("has not answered for")), "{round}: {told:?}");
        desk.answers();
        let told = desk.notices();
        assert!(told.last().is_some_and(|text| text.contains("answers again")), "{round}: {told:?}");
        assert_eq!(told.iter().filter(|text| text.contains("has not answered for")).count(), 1, "{told:?}");
    }
}

#[test]
fn the_newest_notices_are_kept() {
    let desk = desk();
    for size in 0..100 {
        desk.resized(size, size + 1);
        desk.failed(sheave::Op::Read, libc::EIO);
    }
    desk.failed(sheave::Op::Write, libc::ESHUTDOWN);
    let told = desk.notices();
    assert_eq!(told.len(), MAX_NOTICES);
    assert!(told.last().is_some_and(|text| text.contains("blocklist")), "{told:?}");
    assert!(told.iter().any(|text| text.contains("from 99 to 100")), "{told:?}");
}
