//! Tests that a synchronous write stores its data, does its completion work on the caller's thread, and returns an
//! error.

use sheave::{Buf, Ring, op, open_device};
use sheave_base::status::Status;

use super::super::extents::{BLOCK, Began, Extents};
use super::*;

const OPTS: EngineOpts =
    EngineOpts { depth: 1, bs: 4096, poll: true, stats: false, fixed_buffers: true, dsync: false, ioprio: 0 };

fn file(began: Began) -> Arc<Extents> {
    let device = open_device("ram:size=1M").expect("a small device");
    Arc::new(Extents::new(&device, began))
}

/// Writes one block of a byte. Returns the result.
fn write(engine: &mut Pwrite, pos: u64, byte: u8) -> i32 {
    engine.buffer(0).fill(byte);
    engine.prep(0, true, pos);
    engine.submit(1).expect("submitted");
    let mut result = None;
    assert_eq!(engine.reap(|slot, res| result = Some((slot, res))), 1);
    assert_eq!(engine.reap(|_, _| panic!("P1: a second completion")), 0);
    let (slot, res) = result.expect("a result");
    assert_eq!(slot, 0);
    res
}

fn read(file: &Arc<Extents>, pos: u64) -> Vec<u8> {
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let fd = ring.attach_file(file.clone()).expect("attached");
    ring.push(op::read(fd, Buf::zeroed(BLOCK as usize, 4096).expect("memory")).offset(pos)).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let done = ring.completions().next().expect("one completion");
    done.into_buf().expect("its buffer").to_vec()
}

#[test]
fn what_was_written_reads_back_and_its_caller_has_ended_it() {
    for (began, ended) in [(Began::Written, 0), (Began::Unwritten, 2), (Began::Shared, 2), (Began::Empty, 2)] {
        let file = file(began);
        let mut engine = Pwrite::new(&(file.clone() as Arc<dyn File>), &OPTS, |builder| builder).expect("an engine");
        assert_eq!((write(&mut engine, 0, 7), write(&mut engine, BLOCK, 9)), (4096, 4096), "{began:?}");
        assert_eq!(engine.ended_here(), ended, "{began:?}");
        assert_eq!((read(&file, 0), read(&file, BLOCK)), (vec![7; 4096], vec![9; 4096]), "{began:?}");
        // The block is written now, so that a second write has no completion work.
        assert_eq!(write(&mut engine, BLOCK, 3), 4096);
        assert_eq!(engine.ended_here(), ended, "{began:?}");
        assert_eq!(read(&file, BLOCK), vec![3; 4096], "{began:?}");
    }
}

#[test]
fn a_write_that_cannot_be_is_a_result() {
    let file = file(Began::Written);
    let mut engine = Pwrite::new(&(file.clone() as Arc<dyn File>), &OPTS, |builder| builder).expect("an engine");
    assert_eq!(write(&mut engine, file.bytes(), 1), Status::NoSpc.result());
    assert_eq!(write(&mut engine, 512, 1), Status::NotSupp.result(), "across two blocks");
    assert_eq!(write(&mut engine, 0, 1), 4096, "the engine goes on");
}
