//! Checks that data comes back through a ring of an arm, which the null devices of the measurements cannot show.

use sheave::{Buf, Ring, RingBuilder, RingError, op, open_device};

use crate::LabError;
use crate::terms::Check;

/// Number of entries that the ring must have, one for each block of a round.
pub const ENTRIES: u32 = 64;

/// Number of blocks that are written and read back, and below it the bytes of each.
const BLOCKS: u64 = ENTRIES as u64;
const BLOCK: usize = 512;

/// Returns the content of a block by its index.
fn content(block: u64) -> [u8; BLOCK] {
    std::array::from_fn(|at| (block as usize * 31 + at * 7 + 1) as u8)
}

/// Writes blocks to `ram:` and reads them back, in two rounds, so that the second round uses recycled bios and
/// requests.
pub fn comes_back(
    arm: &str,
    ring: RingBuilder,
    ready: impl FnOnce(&mut Ring) -> Result<(), RingError>,
) -> Result<Check, LabError> {
    let fail = |err: &dyn std::fmt::Display| LabError::run(format!("checking that data comes back: {err}"));
    let device = open_device("ram:size=1M").map_err(|err| fail(&err))?;
    let mut ring = ring.build().map_err(|err| fail(&err))?;
    ready(&mut ring).map_err(|err| fail(&err))?;
    let fd = ring.attach(&device).map_err(|err| fail(&err))?;
    let mut wrong = 0;
    for round in 0..2 {
        for write in [true, false] {
            for block in 0..BLOCKS {
                let mut buf = Buf::zeroed(BLOCK, BLOCK).map_err(|err| fail(&err))?;
                if write {
                    buf.copy_from_slice(&content(block + round));
                }
                // Uses every other block, so that no two I/Os can be merged and each has a bio and a request of its
                // own.
                let offset = block * 2 * BLOCK as u64;
                let pushed = match write {
                    true => ring.push(op::write(fd, buf).offset(offset).user_data(block)),
                    false => ring.push(op::read(fd, buf).offset(offset).user_data(block)),
                };
                pushed.map_err(|err| fail(&err))?;
            }
            ring.submit_and_wait(BLOCKS as u32).map_err(|err| fail(&err))?;
            for done in ring.completions() {
                let (block, res) = (done.user_data, done.res);
                let right = write || done.into_buf().is_some_and(|buf| buf[..] == content(block + round));
                wrong += u32::from(res != BLOCK as i32 || !right);
            }
        }
    }
    Ok(Check {
        name: format!("{arm}: data comes back"),
        ok: wrong == 0,
        detail: format!("{wrong} of {} I/Os failed or gave other bytes", 4 * BLOCKS),
    })
}
