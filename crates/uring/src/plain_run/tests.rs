//! Number of comparisons of plain SQEs, for a batch of which a busy device takes little.

use std::cell::Cell;
use std::time::Duration;

use sheave_base::buf::Buf;

use crate::Ring;
use crate::sqe::{Sqe, opcode};
use crate::tests::Rig;

thread_local! {
    /// Number of comparisons of an SQE with the known run, in the rings of this thread.
    static COMPARED: Cell<usize> = const { Cell::new(0) };
}

/// Counts the comparisons for a prefix of `many` matching SQEs out of `of`: one more if a mismatch ended it.
pub(super) fn compared(many: usize, of: usize) {
    COMPARED.set(COMPARED.get() + (many + 1).min(of));
}

const BATCH: usize = 1024;

/// Returns the number of comparisons for a batch of one-block reads that are apart, on a device that takes four at a
/// time.
fn comparisons(sqe: impl Fn(&Rig, usize) -> Sqe) -> usize {
    let mut rig = Rig::of(Ring::builder().entries(BATCH as u32), "null:size=1G,latency=1ms,depth=4");
    let buffers = (0..2).map(|_| Buf::zeroed(4096, 4096).expect("memory")).collect();
    rig.ring.register_buffers(buffers).expect("registered");
    let sqes: Vec<Sqe> =
        (0..BATCH).map(|n| Sqe { off: n as u64 * 8192, user_data: n as u64, ..sqe(&rig, n) }).collect();
    COMPARED.set(0);
    let mut ended = rig.run(&sqes);
    while ended.len() < BATCH {
        let before = ended.len();
        ended.extend(rig.after(Duration::from_millis(1)));
        assert!(ended.len() > before, "{before} have ended, and no other ends");
    }
    assert!(ended.iter().all(|(_, res)| *res == 512));
    COMPARED.get()
}

#[test]
fn a_batch_is_compared_about_once_however_little_of_it_the_device_takes() {
    let reads = comparisons(|rig, n| rig.read(n as u64));
    let mixed = comparisons(|rig, n| {
        let buf_index = n as u16 % 2;
        let (addr, _) = rig.ring.buffer_range(buf_index).expect("registered");
        Sqe { opcode: opcode::READ_FIXED, buf_index, addr, ..rig.read(n as u64) }
    });
    // One for each SQE before the device has refused any, and then one for each refused SQE.
    for many in [reads, mixed] {
        assert!((BATCH..=2 * BATCH).contains(&many), "{many} comparisons");
    }
}
