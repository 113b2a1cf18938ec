//! The alternative to a ring inside an event loop, for comparison. A separate thread owns the ring, a channel passes
//! the operations to it, and a callback delivers the results to the loop. Each I/O wakes two threads.

use std::sync::mpsc::{self, Sender, TryRecvError};
use std::thread::{self, JoinHandle};

use sheave::{Buf, Device, Ring, RingHandle, op};

use crate::Failure;

/// Receives the result of a read, and its memory.
pub type Answer = Box<dyn FnOnce(Result<u32, i32>, Buf) + Send>;

/// Largest number of reads in flight.
const DEPTH: usize = 64;

struct Job {
    offset: u64,
    buf: Buf,
    answer: Answer,
}

/// A thread with a ring.
pub struct Bridge {
    jobs: Option<Sender<Job>>,
    ring: RingHandle,
    thread: Option<JoinHandle<()>>,
}

impl Bridge {
    pub fn new(device: &Device) -> Result<Bridge, Failure> {
        let (jobs, wanted) = mpsc::channel::<Job>();
        let (ready, handle) = mpsc::channel();
        let device = device.clone();
        let thread = thread::spawn(move || {
            let mut ring = Ring::builder().entries(DEPTH as u32).build().expect("a ring");
            let fd = ring.attach(&device).expect("attached");
            ready.send(ring.handle()).expect("the caller waits");
            let mut answers: Vec<Option<Answer>> = (0..DEPTH).map(|_| None).collect();
            let mut spare: Vec<usize> = (0..DEPTH).collect();
            let mut closed = false;
            while !closed || spare.len() < DEPTH {
                while let Some(slot) = spare.pop() {
                    match wanted.try_recv() {
                        Ok(Job { offset, buf, answer }) => {
                            answers[slot] = Some(answer);
                            ring.push(op::read(fd, buf).offset(offset).user_data(slot as u64)).expect("room");
                            continue;
                        }
                        Err(error) => closed = error == TryRecvError::Disconnected,
                    }
                    spare.push(slot);
                    break;
                }
                ring.submit().expect("submitted");
                if !closed || spare.len() < DEPTH {
                    // A wake means that there are new jobs, or that there will be none.
                    let _ = ring.wait(1, None);
                }
                while let Some(done) = ring.pop() {
                    let slot = done.user_data as usize;
                    spare.push(slot);
                    let result = done.result().map_err(|error| error.errno().0);
                    let answer = answers[slot].take().expect("a job");
                    answer(result, done.into_buf().expect("a read gives its buffer back"));
                }
            }
        });
        Ok(Bridge { jobs: Some(jobs), ring: handle.recv()?, thread: Some(thread) })
    }

    pub fn read(&self, offset: u64, buf: Buf, answer: Answer) {
        let jobs = self.jobs.as_ref().expect("not dropped");
        jobs.send(Job { offset, buf, answer }).expect("the thread lives as long as the bridge");
        self.ring.wake();
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.jobs = None;
        self.ring.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
