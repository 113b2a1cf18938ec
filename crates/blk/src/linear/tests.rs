//! A partition over a disk that changes below it; `crates/drivers/tests/linear.rs` has what needs a disk with memory.

use crate::bio::Op;
use crate::linear::partition;
use crate::support::{Puppet, Rig};

use sheave_base::status::Status;

#[test]
fn a_flush_through_a_partition_reaches_a_disk_that_shrank_below_it() {
    let puppet = Puppet::new().caps(|caps| caps.volatile_cache = true);
    let disk = puppet.device();
    let part = partition("part", &disk, 512 << 20, 1 << 20).unwrap();
    let mut rig = Rig::new(&[&part]);
    rig.queue().set_capacity(1 << 20);
    rig.flush(0);
    rig.read(0, 1);
    rig.drain();
    let mut ended = rig.take_ended();
    ended.sort_unstable_by_key(|end| end.0);
    assert_eq!(
        ended,
        [(0, Status::Ok), (1, Status::IoErr)],
        "what was written to the rest of the disk is made durable"
    );
    assert_eq!(puppet.script().seen.iter().map(|seen| seen.op).collect::<Vec<_>>(), [Op::Flush]);
}
