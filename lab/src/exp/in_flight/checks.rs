//! Proves how often each arm updates a counter, and that all arms agree with the tags. Compares counts, never times.

use std::time::{Duration, Instant};

use sheave::{Buf, Device, Ring, op, open_device};

use super::arm::InFlightArm;
use super::counting;
use super::design::{self, ARMS, WAYS, in_batches, one_by_one};
use crate::counters::{Counters, Way, jiffies_since, jiffy};
use crate::experiment::Lab;
use crate::terms::Check;
use crate::{ArmRun, LabError, Point, TurnEnd};

/// Number of I/Os of a check, for each thread.
const IOS: u64 = 2000;
/// Number of requests in flight during a reading.
const HELD: i64 = 6;
/// Latency of the device. A reading takes longer only on a machine that stands still; it is not judged then.
const HOLD: Duration = Duration::from_millis(200);

/// Length of a turn in which the reader in the I/O path must read.
const SEVERAL_JIFFIES: Duration = Duration::from_millis(30);

pub fn run(lab: &Lab) -> Result<Vec<Check>, LabError> {
    let mut checks = Vec::new();
    for (arm, (way, info)) in WAYS.into_iter().zip(ARMS).enumerate() {
        let elsewhere = one_by_one(2).with("ends", "elsewhere").with("readers", 1000);
        for (what, point) in [("one by one", one_by_one(2)), ("batches", in_batches(2)), ("ended elsewhere", elsewhere)]
        {
            checks.push(updates(lab, arm, &format!("{} ({what})", info.name), &point)?);
        }
        checks.push(agrees(way, info.name)?);
        checks.push(once_a_jiffy(lab, arm, info.name)?);
    }
    Ok(checks)
}

/// Checks that each I/O updates a counter twice, or never with tags. Checks that counters and tags show zero requests
/// afterwards.
fn updates(lab: &Lab, arm: usize, name: &str, point: &Point) -> Result<Check, LabError> {
    let way = WAYS[arm];
    let mut arm = InFlightArm::new(lab, point, design::counters(arm))?;
    let turn = arm.turn(TurnEnd::Ios(IOS * u64::from(point.threads)))?;
    let watched = arm.watched().clone();
    let (reading, by_tags) = (watched.read(), watched.by_tags());
    // A seat adds its updates to the shared count when it is dropped.
    drop(arm);
    let (updates, expected) = (watched.counters().updates(), if way == Way::Tags { 0 } else { 2 * turn.ios });
    Ok(Check {
        name: format!("{name}: {} updates of counters an I/O, and quiescent zero", if expected == 0 { 0 } else { 2 }),
        ok: turn.ios >= IOS && updates == expected && reading.reads == 0 && reading.writes == 0 && by_tags == 0,
        detail: format!("{} I/Os, {updates} updates; then {reading:?}, {by_tags} busy tags", turn.ios),
    })
}

/// Checks that arms with a reader in the path read at least once, and at most once in each tick of the kernel. Other
/// arms must never read.
fn once_a_jiffy(lab: &Lab, arm: usize, name: &str) -> Result<Check, LabError> {
    let mut run = InFlightArm::new(lab, &one_by_one(2), design::counters(arm))?;
    let start = jiffy();
    run.turn(TurnEnd::Time(SEVERAL_JIFFIES))?;
    let jiffies = jiffies_since(start) + 2; // The tick in which the turn began, and the one in which it ended.
    let (readings, _) = run.watched().counters().readings_in_path();
    let reads = arm >= design::PER_THREAD_JIFFY;
    Ok(Check {
        name: format!("{name}: {} in the path of I/O", if reads { "read once a jiffy" } else { "nobody reads" }),
        ok: if reads { (1..=jiffies).contains(&readings) } else { readings == 0 },
        detail: format!("{readings} readings in at most {jiffies} jiffies"),
    })
}

/// Checks that counters and tags agree while the device holds requests, separately for reads and writes.
fn agrees(way: Way, name: &str) -> Result<Check, LabError> {
    let failed = |err: &dyn std::fmt::Display| LabError::run(format!("a device that holds requests: {err}"));
    let spec = format!("null:size=1G,complete=timer,latency={}ms", HOLD.as_millis());
    let lower = open_device(&spec).map_err(|err| failed(&err))?;
    let counters = Counters::new(way);
    let device = counting::over(&lower, &counters, true);
    let submitted = submit(&device).map_err(|err| failed(&err))?;
    let (reading, tags) = (counters.read(&device), device.in_flight());
    let still_held = submitted.since.elapsed() < HOLD;
    let mut ring = submitted.ring;
    ring.drain();
    let after = counters.read(&device);
    let held = reading.reads == HELD / 3 && reading.writes == HELD - HELD / 3;
    let by_tags = (i64::from(tags.reads), i64::from(tags.writes)) == (reading.reads, reading.writes);
    Ok(Check {
        name: format!("{name}: what it tells is what the tags say, held and drained"),
        ok: (held && by_tags || !still_held) && after.total() == 0,
        detail: format!("held: {reading:?}, by the tags {tags:?}; drained: {after:?}"),
    })
}

struct Submitted {
    ring: Ring,
    since: Instant,
}

/// Submits [`HELD`] requests, a third of them reads.
fn submit(device: &Device) -> Result<Submitted, Box<dyn std::error::Error>> {
    let mut ring = Ring::builder().entries(16).build()?;
    let fd = ring.attach(device)?;
    for n in 0..HELD {
        let buf = Buf::zeroed(512, 512)?;
        // The requests are not adjacent, so that none is merged.
        let offset = n as u64 * 8192;
        match n % 3 {
            0 => ring.push(op::read(fd, buf).offset(offset))?,
            _ => ring.push(op::write(fd, buf).offset(offset))?,
        }
    }
    let since = Instant::now();
    ring.submit()?;
    Ok(Submitted { ring, since })
}
