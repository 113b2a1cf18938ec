//! Two threads on one device, with one ring each: one writes blocks, the other reads and checks them, and each informs
//! the other by a message to its ring. Neither takes a lock for an I/O.
//!
//! ```sh
//! cargo run --release --example two_threads -- ram:size=1M 100000
//! ```
#![forbid(unsafe_code)]

use std::error::Error;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use sheave::{Buf, Completion, Device, Fd, Ring, RingHandle, Waited, op, open_device};

const USAGE: &str = "usage: two_threads SPEC BLOCKS";
const BLOCK: usize = 4096;
/// Number of places on the device. Each holds one block on its way from one thread to the other.
const PLACES: u64 = 16;
/// Flag in the user data of messages, which carry a place. The user data of operations is the place alone.
const MESSAGE: u64 = 1 << 63;

type Failure = Box<dyn Error + Send + Sync>;

/// The state of one thread.
struct Side {
    ring: Ring,
    fd: Fd,
    other: RingHandle,
    bufs: Vec<Buf>,
}

impl Side {
    /// Makes a ring on this thread, and exchanges handles with the other thread.
    fn new(device: &Device, mine: &Sender<RingHandle>, others: &Receiver<RingHandle>) -> Result<Side, Failure> {
        let mut ring = Ring::builder().entries(2 * PLACES as u32).build()?;
        let fd = ring.attach(device)?;
        mine.send(ring.handle())?;
        let bufs = (0..PLACES).map(|_| Buf::zeroed(BLOCK, BLOCK)).collect::<Result<_, _>>()?;
        Ok(Side { ring, fd, other: others.recv()?, bufs })
    }

    /// Waits for the next completion or message.
    fn next(&mut self) -> Result<Completion, Failure> {
        self.ring.submit()?;
        loop {
            match self.ring.pop() {
                Some(done) => return Ok(done),
                // Nothing is in flight, and no handle of this ring is left.
                None if self.ring.wait(1, None) == Waited::Idle => return Err("the other thread is gone".into()),
                None => {}
            }
        }
    }
}

/// Returns the content of a block, repeated.
fn pattern(number: u64) -> [u8; 8] {
    number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()
}

/// Writes blocks to places whose blocks the other thread has read.
fn write_all(side: &mut Side, blocks: u64) -> Result<(), Failure> {
    let mut free: Vec<u64> = (0..PLACES).collect();
    let mut numbers = [0; PLACES as usize];
    let (mut begun, mut read) = (0, 0);
    while read < blocks {
        while begun < blocks
            && !free.is_empty()
            && let Some(mut buf) = side.bufs.pop()
            && let Some(place) = free.pop()
        {
            buf.as_chunks_mut().0.fill(pattern(begun));
            numbers[place as usize] = begun;
            side.ring.push(op::write(side.fd, buf).offset(place * BLOCK as u64).user_data(place))?;
            begun += 1;
        }
        let done = side.next()?;
        if done.user_data & MESSAGE != 0 {
            free.push(done.user_data & !MESSAGE);
            read += 1;
            continue;
        }
        done.result()?;
        let place = done.user_data;
        side.other.send(place | MESSAGE, numbers[place as usize] as i32)?;
        side.bufs.extend(done.into_buf());
    }
    Ok(())
}

/// Reads and checks the blocks that the other thread has written.
fn read_all(side: &mut Side, blocks: u64) -> Result<(), Failure> {
    let mut numbers = [0; PLACES as usize];
    let mut read = 0;
    while read < blocks {
        let done = side.next()?;
        let place = done.user_data & !MESSAGE;
        if done.user_data & MESSAGE != 0 {
            numbers[place as usize] = done.res as u64;
            let buf = side.bufs.pop().ok_or("more messages than places")?;
            side.ring.push(op::read(side.fd, buf).offset(place * BLOCK as u64).user_data(place))?;
            continue;
        }
        done.result()?;
        let buf = done.into_buf().ok_or("a read gives its buffer back")?;
        let number = numbers[place as usize];
        if buf.as_chunks().0.iter().any(|chunk| *chunk != pattern(number)) {
            return Err(format!("place {place} has not block {number}").into());
        }
        side.bufs.push(buf);
        side.other.send(place | MESSAGE, 0)?;
        read += 1;
    }
    Ok(())
}

/// Sends `blocks` blocks from one thread to the other, through the device.
fn run(device: &Device, blocks: u64) -> Result<(), Failure> {
    if blocks > i32::MAX as u64 {
        return Err("a message has room for a number of 31 bits".into());
    }
    let ((to_writer, writer), (to_reader, reader)) = (mpsc::channel(), mpsc::channel());
    let read = move || read_all(&mut Side::new(device, &to_writer, &reader)?, blocks);
    let write = move || write_all(&mut Side::new(device, &to_reader, &writer)?, blocks);
    thread::scope(|scope| {
        let reader = scope.spawn(read);
        let written = write();
        // A wrong block ends the reader, and then the writer fails too: the reader's error is the cause.
        reader.join().map_err(|_| "the reader panicked")?.and(written)
    })
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [spec, blocks] = args.as_slice() else { return Err(USAGE.into()) };
    let (device, blocks) = (open_device(spec)?, blocks.parse()?);
    let start = Instant::now();
    run(&device, blocks)?;
    println!("{blocks} blocks, {:.2} us each", start.elapsed().as_secs_f64() * 1e6 / blocks.max(1) as f64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_arrives_whatever_the_device() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let on_disk = format!("file:{},size=1M", file.path().display());
        for (spec, blocks) in
            [("ram:size=1M", 3000), (&*on_disk, 500), ("fault:delay=0.5,delay_time=1ms,over=ram:size=1M", 200)]
        {
            run(&open_device(spec).unwrap(), blocks).unwrap_or_else(|error| panic!("{spec}: {error}"));
        }
    }

    #[test]
    fn a_device_that_lies_is_noticed_by_the_reader() {
        let device = open_device("fault:misdirect=0.1,ops=write,seed=1,over=ram:size=1M").unwrap();
        let error = run(&device, 1000).unwrap_err().to_string();
        assert!(error.contains("has not block"), "{error}");
        let device = open_device("fault:error=0.1,ops=write,seed=1,over=ram:size=1M").unwrap();
        assert!(run(&device, 1000).is_err());
    }
}
