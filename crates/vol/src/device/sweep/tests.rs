//! Sweeps over runs, gaps, and blocks that cannot be read.

use std::sync::Mutex;

use super::*;

/// Device whose blocks contain their number; some cannot be read.
struct Numbered {
    bad: Vec<u64>,
    reads: Mutex<Vec<(u64, usize)>>,
}

impl BlockIo for Numbered {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        self.reads.lock().unwrap().push((at / BLOCK_BYTES, buf.len() / BLOCK));
        for (number, block) in (at / BLOCK_BYTES..).zip(buf.chunks_mut(BLOCK)) {
            if self.bad.contains(&number) {
                return Err(Status::Medium);
            }
            block.fill(number as u8);
        }
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Status> {
        Err(Status::ReadOnly)
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Status> {
        Ok(())
    }

    fn size_bytes(&self) -> u64 {
        1 << 30
    }
}

fn numbered(bad: &[u64]) -> Numbered {
    Numbered { bad: bad.to_vec(), reads: Mutex::default() }
}

#[test]
fn neighbours_are_read_in_one_run() {
    let io = numbered(&[]);
    let mut sweep = Sweep::new(8).unwrap();
    sweep.read(&io, &[5, 6, 7, 9, 3].map(|number| number * BLOCK_BYTES));
    assert_eq!(*io.reads.lock().unwrap(), [(5, 3), (9, 1), (3, 1)]);
    for (at, number) in [5, 6, 7, 9, 3].into_iter().enumerate() {
        assert!(sweep.block(at).unwrap().iter().all(|byte| *byte == number));
    }
    assert!(sweep.block(5).is_err(), "nobody asked for it");
    sweep.read(&io, &[1]);
    assert!(sweep.block(0).is_ok() && sweep.block(1).is_err(), "of the batch before");
    sweep.read(&io, &[0; 9]);
    assert!(sweep.block(7).is_ok() && sweep.block(8).is_err(), "no more than there is memory for");
}

#[test]
fn one_bad_block_costs_one_block() {
    let io = numbered(&[6]);
    let mut sweep = Sweep::new(8).unwrap();
    sweep.read(&io, &[5, 6, 7, 9].map(|number| number * BLOCK_BYTES));
    let read: Vec<bool> = (0..4).map(|at| sweep.block(at).is_ok()).collect();
    assert_eq!(read, [true, false, true, true]);
    assert_eq!(sweep.block(1), Err(Status::Medium));
    assert_eq!(sweep.block(2).unwrap()[0], 7);
}
