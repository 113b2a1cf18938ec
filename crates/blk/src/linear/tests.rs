//! Partitions and concatenations of a disk whose size changes below them. Tests that need a disk with memory are in
//! `crates/drivers/tests/linear.rs`.

use crate::bio::Op;
use crate::linear::{concatenate, partition};
use crate::support::{BLOCK, Puppet, Rig};

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

/// Devices made of a disk that has grown while it was open cover the disk's new size.
#[test]
fn what_is_put_on_a_disk_that_has_grown_covers_all_of_it() {
    let (grown, second) = (Puppet::new(), Puppet::new());
    let disk = grown.device();
    disk.whole_queue().unwrap().set_capacity(2 << 30);
    let both = concatenate("both", &[disk.clone(), second.device()]).unwrap();
    assert_eq!(both.size_bytes(), 3 << 30);
    let new_half = partition("new", &disk, 1 << 30, 1 << 30).unwrap();
    assert_eq!(new_half.size_bytes(), 1 << 30);
    let mut rig = Rig::new(&[&both, &new_half]);
    // The last block of each GiB of the concatenation, then the last block of the partition.
    let last = (1 << 21) - 8;
    for gib in 0..3 {
        assert!(rig.io(Op::Read, (gib << 21) + last, BLOCK, gib as u32));
    }
    assert!(rig.io_to(1, Op::Read, 0, last, BLOCK, 3));
    rig.drain();
    assert_eq!(rig.take_ok().len(), 4);
    assert_eq!(grown.sectors_seen(), [last, (1 << 21) + last, (1 << 21) + last]);
    assert_eq!(second.sectors_seen(), [last]);
}
