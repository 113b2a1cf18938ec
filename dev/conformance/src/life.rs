//! Checks of the life cycle: queue depth, waits, freezes, rings that are dropped, threads.

use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_blk::Device;
use sheave_blk::bio::Op;

use crate::data::{Check, buf, reach};
use crate::rig::{Mode, Rig};
use crate::suite::{Checked, Suite};

pub(crate) const CHECKS: &[Check] = &[
    ("takes as many as it says, and more", depths),
    ("serves rings side by side", side_by_side),
    ("comes to rest when it is frozen", freezes),
    ("lets a ring go in mid-I/O", dropped),
    ("lets a device be detached in mid-I/O", attached_again),
];

/// Sends a read or write of one block; `number` decides which.
fn send(rig: &mut Rig, device: &Device, number: u64) -> Result<u32, String> {
    let block = device.limits().logical_block;
    let op = if number.is_multiple_of(2) || device.capabilities().read_only { Op::Read } else { Op::Write };
    // The offsets are scattered, so that neighbours do not merge into one request.
    let at = number * 7 % (reach(device) / u64::from(block)) * u64::from(block);
    rig.send(op, 0, at, block, vec![buf(device, block as usize)?])
}

fn depths(suite: &Suite, device: &Device) -> Checked {
    let depth = usize::from(device.limits().queue_depth);
    for mode in [Mode::Poll, Mode::Wait] {
        let mut rig = Rig::new(device, mode)?;
        for many in [1, 2, depth.min(300), (2 * depth + 1).min(600)] {
            for plug in [true, false] {
                if plug {
                    rig.plug(true);
                }
                for number in 0..many as u64 {
                    send(&mut rig, device, number)?;
                }
                if plug {
                    rig.plug(false);
                }
                let what = format!("one of {many} at a time ({mode:?})");
                rig.wait_all()?.iter().try_for_each(|ended| suite.check(&what, ended))?;
            }
        }
        rig.finish()?;
    }
    Ok(())
}

fn side_by_side(suite: &Suite, device: &Device) -> Checked {
    let run = |mode| -> Checked {
        let mut rig = Rig::new(device, mode)?;
        for round in 0..50 {
            (0..16).try_for_each(|number| send(&mut rig, device, round * 16 + number).map(drop))?;
            rig.wait_all()?.iter().try_for_each(|ended| suite.check("one of two rings' I/O", ended))?;
        }
        rig.close().map(drop)
    };
    let results = std::thread::scope(|scope| {
        let threads = [Mode::Poll, Mode::Wait].map(|mode| scope.spawn(move || run(mode)));
        threads.map(|thread| thread.join().unwrap_or_else(|_| Err("a thread of the check panicked".into())))
    });
    results.into_iter().collect::<Checked>()?;
    match device.in_flight().total() {
        0 => Ok(()),
        left => Err(format!("{left} requests count as in flight when both rings have gone")),
    }
}

fn freezes(suite: &Suite, device: &Device) -> Checked {
    let mut rig = Rig::new(device, Mode::Poll)?;
    for round in 0..5 {
        (0..20).try_for_each(|number| send(&mut rig, device, round + number).map(drop))?;
        let frozen = AtomicBool::new(false);
        let guards = std::thread::scope(|scope| {
            let freezer = scope.spawn(|| {
                let guards = device.freeze(Duration::from_secs(30));
                // Release: the guards before the flag; pairs with the load below.
                frozen.store(true, Ordering::Release);
                guards
            });
            // Acquire: pairs with the store above.
            while !frozen.load(Ordering::Acquire) {
                rig.poll();
            }
            freezer.join()
        });
        let guards = guards.map_err(|_| "the freezer panicked".to_string())?.map_err(|error| error.to_string())?;
        let waits = rig.left();
        send(&mut rig, device, 99)?;
        (0..100).for_each(|_| rig.poll());
        if device.in_flight().total() != 0 || rig.left() != waits + 1 {
            return Err("I/O went to a device that is frozen".into());
        }
        drop(guards);
        rig.wait_all()?.iter().try_for_each(|ended| suite.check("I/O across a freeze", ended))?;
    }
    rig.finish()
}

fn dropped(_: &Suite, device: &Device) -> Checked {
    for polls in 0..20 {
        let mut rig = Rig::new(device, Mode::Poll)?;
        rig.plug(polls % 3 == 0);
        (0..40).try_for_each(|number| send(&mut rig, device, number).map(drop))?;
        rig.plug(false);
        (0..polls % 5).for_each(|_| rig.poll());
        rig.finish()?;
    }
    Ok(())
}

fn attached_again(suite: &Suite, device: &Device) -> Checked {
    for _ in 0..10 {
        let mut rig = Rig::new(device, Mode::Wait)?;
        send(&mut rig, device, 1)?;
        let first = rig.close()?;
        if first.len() != 1 {
            return Err(format!("{} ends of one I/O", first.len()));
        }
        let mut rig = Rig::new(device, Mode::Wait)?;
        send(&mut rig, device, 1)?;
        rig.wait_all()?.iter().try_for_each(|ended| suite.check("I/O of a device that was attached again", ended))?;
        rig.finish()?;
    }
    Ok(())
}

/// Checks that requests that a device holds for ever time out, and not too early.
pub(crate) fn overdue(device: &Device) -> Checked {
    let limit = device.legs().first().map_or(Duration::ZERO, |leg| leg.queue.timeout());
    for mode in [Mode::Poll, Mode::Wait] {
        let mut rig = Rig::new(device, mode)?;
        let start = Instant::now();
        (0..4).try_for_each(|number| send(&mut rig, device, number).map(drop))?;
        for ended in rig.wait_all()? {
            if ended.status != Status::Timeout {
                return Err(format!("a request that is held for ever ended as '{}' ({mode:?})", ended.status));
            }
        }
        if start.elapsed() < limit {
            return Err(format!("requests were overdue after {:?}, before the limit of {limit:?}", start.elapsed()));
        }
        rig.finish()?;
    }
    Ok(())
}
