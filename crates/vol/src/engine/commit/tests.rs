//! Failed commits, and the commits after them.

use crate::Checksum;
use crate::engine::stock::tests::Rig;
use crate::format::journal::Ring;

/// V3, V18: a write of a journal block fails, with the block on the device or not. Later commits must survive a crash:
/// the journal must not end at that block.
#[test]
fn what_is_flushed_after_a_commit_that_failed_is_there() {
    for is_done in [false, true] {
        for later in 1..4 {
            let what = format!("written: {is_done}, {later} commits later");
            let rig = Rig::new(32 << 20, Checksum::None);
            let pool = rig.open().unwrap();
            let volume = pool.create_volume("v", 1 << 30).unwrap();
            rig.write(&volume, 0, 1).unwrap();
            pool.sync().unwrap();
            let state = pool.inner.lock();
            let next = Ring::of(&state.sb).address(state.next_seq) >> 12;
            drop(state);
            rig.host.lock().unwrap().fails = Some((next, 0, is_done));
            rig.write(&volume, 1, 2).unwrap();
            assert!(pool.sync().is_err() && rig.host.lock().unwrap().fails.is_none(), "{what}: it has failed once");
            for unit in 2..2 + later {
                rig.write(&volume, unit, 3).unwrap();
                pool.sync().unwrap();
            }
            drop((volume, pool));
            let pool = rig.open().unwrap_or_else(|error| panic!("{what}: {error}"));
            let volume = pool.open_volume("v").unwrap();
            let tags: Vec<u8> = (0..5).map(|unit| rig.read(&volume, unit)).collect();
            let wanted: Vec<u8> =
                (0..5).map(|unit| [1, 2, 3, 3, 3][unit] * u8::from(unit < 2 + later as usize)).collect();
            assert_eq!(tags, wanted, "{what}");
            drop((volume, pool));
            rig.is_clean();
        }
    }
}
