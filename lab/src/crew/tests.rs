//! Crews over null devices: turns limited by I/Os and by time, and threads that cannot be made ready.

use std::sync::Arc;
use std::time::Duration;

use sheave::{Ring, open_device};
use sheave_load::SheaveEngine;

use super::*;
use crate::{drive, fake};

fn make(point: &Point) -> MakeDrive {
    let device = open_device("null:size=1G").expect("a device");
    let point = point.clone();
    Arc::new(move |index| {
        let opts = drive::opts(&point, true);
        let engine = SheaveEngine::new(|ring: &mut Ring| ring.attach(&device), 1, &opts)?;
        Ok(Drive::new(engine, &point, device.size_bytes(), index as u64))
    })
}

#[test]
fn all_of_them_take_part() {
    let point = Point { threads: 3, ..Point::default() };
    let mut crew = Crew::new(&fake::lab(), &point, &make(&point)).expect("a crew");
    let turn = crew.turn(TurnEnd::Ios(9600)).expect("a turn");
    assert_eq!((turn.ios, turn.latency.map(|seen| seen.len())), (9600, Some(9600)));
    let turn = crew.turn(TurnEnd::Time(Duration::from_millis(20))).expect("a turn");
    assert!(turn.ios > 0 && turn.wall_ns >= 20_000_000 && turn.cpu_ns > 0);
    assert_eq!(crew.run_alone(100).expect("ran"), 100);
}

#[test]
fn one_that_cannot_be_made_is_told() {
    let point = Point { threads: 2, ..Point::default() };
    let good = make(&point);
    let make: MakeDrive =
        Arc::new(move |index| if index == 0 { good(0) } else { Err(LabError::run("no ring for this one")) });
    let err = Crew::new(&fake::lab(), &point, &make).err().expect("refused");
    assert_eq!(err.cause, "no ring for this one");
}
