//! Reads of blocks that do not match their checksums, and writes that come in between.

use std::sync::Mutex;

use super::*;
use crate::format::superblock::Geometry;

const NUMBER: u64 = 5;

/// A device of one block, which is written while it is read.
struct Written<'a> {
    sums: &'a Sums,
    block: Mutex<[u8; BLOCK]>,
    /// Content of the writes that come during the next reads, in reverse order.
    next: Mutex<Vec<u8>>,
}

impl BlockIo for Written<'_> {
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), Status> {
        assert_eq!((at, buf.len()), (NUMBER << BLOCK_SHIFT, BLOCK));
        let mut block = self.block.lock().unwrap();
        buf.copy_from_slice(&*block);
        if let Some(next) = self.next.lock().unwrap().pop() {
            self.sums.stripes.begin(NUMBER);
            block.fill(next);
            self.sums.set(NUMBER, crc(&*block));
            assert!(self.sums.stripes.end_alone(NUMBER));
        }
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), Status> {
        Err(Status::NotSupp)
    }

    fn flush(&self) -> Result<(), Status> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Status> {
        Err(Status::NotSupp)
    }

    fn size_bytes(&self) -> u64 {
        1 << 30
    }
}

/// Settles a block that holds 1, has the checksum of `sum`, and is written with each of `next` while it is read.
fn settled(sum: u8, next: &[u8]) -> (Look, u8) {
    let sums = Sums::new(&Geometry::new(1 << 16, 1 << 20, 16));
    assert!(sums.arena.make(0));
    sums.set(NUMBER, crc(&[sum; BLOCK]));
    let next = Mutex::new(next.iter().rev().copied().collect());
    let io = Written { sums: &sums, block: Mutex::new([1; BLOCK]), next };
    let mut good = [0; BLOCK];
    let look = sums.settle(&io, NUMBER, &mut good).unwrap();
    (look, good[9])
}

/// S4. The write ends between the read and the second look: the data read is from before, the checksum from after.
#[test]
fn a_block_that_was_written_while_it_was_read_is_no_mismatch() {
    assert!(matches!(settled(1, &[]), (Look::Good, 1)));
    assert!(matches!(settled(2, &[]), (Look::Bad(Mismatch { block: NUMBER, .. }), _)), "it is what nobody wrote");
    assert!(matches!(settled(1, &[7]), (Look::Good, 7)));
    assert!(matches!(settled(2, &[7]), (Look::Good, 7)), "it was, and has been written since");
    assert!(matches!(settled(1, &[7, 8, 9]), (Look::Good, 9)));
    assert!(matches!(settled(1, &[7, 8, 9, 10, 11]), (Look::Busy, _)), "one write after the other");
}
