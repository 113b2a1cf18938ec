//! Threads with a loop each, which run their turns together.
//!
//! * C1. The first loop runs on the calling thread, each other loop on a thread of its own, pinned to its CPU. A loop
//!   is made on the thread it runs on, because a ring cannot change its thread. All loops begin a turn together.
//! * C2. A turn ends when the last loop has ended. Then no thread has anything in flight.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;

use hdrhistogram::Histogram;
use sheave_load::cpu;
use sheave_load::live::report_histogram;

use crate::drive::{Drive, until};
use crate::experiment::{Lab, Turn, TurnEnd};
use crate::meter::Meter;
use crate::{LabError, Point};

/// Makes the loop of the thread with the given index, on that thread.
pub type MakeDrive = Arc<dyn Fn(usize) -> Result<Drive, LabError> + Send + Sync>;

/// Result of a turn of one loop: the number of I/Os, and their latencies.
type Done = Result<(u64, Histogram<u64>), LabError>;

pub struct Crew {
    drive: Drive,
    mates: Vec<Mate>,
    start: Arc<Barrier>,
    lab: Lab,
}

impl Crew {
    /// Starts as many threads as the point has, each with a loop from `make`.
    pub fn new(lab: &Lab, point: &Point, make: &MakeDrive) -> Result<Crew, LabError> {
        let start = Arc::new(Barrier::new(point.threads as usize));
        let drive = make(0)?;
        let mates = (1..point.threads as usize).map(|index| Mate::start(lab, point.threads, index, make, &start));
        Ok(Crew { drive, mates: mates.collect::<Result<_, _>>()?, start, lab: lab.clone() })
    }

    /// Runs a turn on all threads.
    pub fn turn(&mut self, end: TurnEnd) -> Result<Turn, LabError> {
        for mate in &self.mates {
            mate.begin(end)?;
        }
        let until = until(&self.lab, end, 1 + self.mates.len() as u32);
        let mut turn = Turn::default();
        let meter = Meter::start();
        self.start.wait();
        let mut all = vec![run(&mut self.drive, &until)];
        all.extend(self.mates.iter().map(Mate::end));
        meter.add(&mut turn);
        let mut latency = report_histogram();
        for done in all {
            let (ios, seen) = done?;
            turn.ios += ios;
            for bucket in seen.iter_recorded() {
                latency.saturating_record_n(bucket.value_iterated_to(), bucket.count_at_value());
            }
        }
        turn.latency = Some(latency);
        Ok(turn)
    }

    /// Runs `ios` I/Os on the calling thread alone, for the counting of instructions.
    pub fn run_alone(&mut self, ios: u64) -> Result<u64, LabError> {
        self.drive.run(&until(&self.lab, TurnEnd::Ios(ios), 1))
    }

    /// Returns the loop of the calling thread. Used between turns.
    pub fn drive(&self) -> &Drive {
        &self.drive
    }
}

fn run(drive: &mut Drive, until: &sheave_load::Until) -> Done {
    drive.reset();
    let ios = drive.run(until)?;
    let mut latency = report_histogram();
    drive.add_latency(&mut latency);
    Ok((ios, latency))
}

/// A thread of the crew other than the calling one.
struct Mate {
    turns: Option<Sender<TurnEnd>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

impl Mate {
    fn start(lab: &Lab, threads: u32, index: usize, make: &MakeDrive, start: &Arc<Barrier>) -> Result<Mate, LabError> {
        let (turns, asked) = channel::<TurnEnd>();
        let (answer, done) = channel();
        let (lab, make, start) = (lab.clone(), make.clone(), start.clone());
        let work = move || {
            // The loop is made after the pin, on the thread that will run it (C1).
            let made = cpu::pin(lab.cpu(index)).and_then(|()| make(index));
            let mut drive = match made {
                Ok(drive) => drive,
                // `Mate::start` returns the error to the caller of `Crew::new`.
                Err(err) => return drop(answer.send(Err(err))),
            };
            let ready = answer.send(Ok((0, report_histogram())));
            for end in asked.into_iter().take_while(|_| ready.is_ok()) {
                start.wait();
                let done = run(&mut drive, &until(&lab, end, threads));
                if answer.send(done).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("lab-{index}")).spawn(work).map_err(|err| {
            LabError::run(format!("cannot start thread {index}: {err}")).fix("raise the limit of processes (ulimit -u)")
        })?;
        let mate = Mate { turns: Some(turns), done, thread: Some(thread) };
        mate.end()?;
        Ok(mate)
    }

    fn begin(&self, end: TurnEnd) -> Result<(), LabError> {
        let sent = self.turns.as_ref().is_some_and(|turns| turns.send(end).is_ok());
        if sent { Ok(()) } else { Err(gone()) }
    }

    fn end(&self) -> Done {
        self.done.recv().map_err(|_| gone())?
    }
}

fn gone() -> LabError {
    LabError::run("a thread of the experiment has ended before its time").fix("this is a bug: please report it")
}

impl Drop for Mate {
    fn drop(&mut self) {
        self.turns = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            debug_assert!(false, "a thread of the experiment does not panic");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use sheave::{Ring, open_device};
    use sheave_load::SheaveEngine;

    use super::*;
    use crate::{drive, fake};

    fn make(point: &Point) -> MakeDrive {
        let device = open_device("null:size=1G").expect("a device");
        let point = point.clone();
        Arc::new(move |index| {
            let opts = drive::opts(&point, true);
            let engine = SheaveEngine::new(|ring: &mut Ring| ring.attach(&device), 1, &opts)?;
            Ok(Drive::new(engine, &point, device.size_bytes(), index as u64))
        })
    }

    #[test]
    fn all_of_them_take_part() {
        let point = Point { threads: 3, ..Point::default() };
        let mut crew = Crew::new(&fake::lab(), &point, &make(&point)).expect("a crew");
        let turn = crew.turn(TurnEnd::Ios(9600)).expect("a turn");
        assert_eq!((turn.ios, turn.latency.map(|seen| seen.len())), (9600, Some(9600)));
        let turn = crew.turn(TurnEnd::Time(Duration::from_millis(20))).expect("a turn");
        assert!(turn.ios > 0 && turn.wall_ns >= 20_000_000 && turn.cpu_ns > 0);
        assert_eq!(crew.run_alone(100).expect("ran"), 100);
    }

    #[test]
    fn a_loop_that_cannot_be_made_is_an_error() {
        let point = Point { threads: 2, ..Point::default() };
        let good = make(&point);
        let make: MakeDrive =
            Arc::new(move |index| if index == 0 { good(0) } else { Err(LabError::run("no ring for this one")) });
        let err = Crew::new(&fake::lab(), &point, &make).err().expect("refused");
        assert_eq!(err.cause, "no ring for this one");
    }
}
