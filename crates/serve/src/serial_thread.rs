//! A thread for jobs that may block: it runs them one after the other, and lives only while there are jobs.
//!
//! On a reactor's thread, a job that waits for a disk would stall all clients of the reactor.

use std::collections::VecDeque;
use std::fmt;
use std::io;

use sheave_base::sync::{Arc, Mutex, MutexGuard};

type Job = Box<dyn FnOnce() + Send>;

/// The queue of jobs. The thread has a clone of it and owns nothing else.
#[derive(Clone, Default)]
pub(crate) struct SerialThread {
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// True if the thread is alive and will look at the queue again before it ends.
    runs: bool,
}

impl SerialThread {
    /// Queues a job. Starts the thread if there is none.
    ///
    /// # Errors
    ///
    /// Fails if no thread can be started. The job is dropped.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut queue = self.lock();
        if !queue.runs {
            let of = self.clone();
            std::thread::Builder::new().name("sheave-serial".into()).spawn(move || of.run_all())?;
            queue.runs = true;
        }
        queue.waiting.push_back(Box::new(job));
        Ok(())
    }

    fn run_all(&self) {
        loop {
            let mut queue = self.lock();
            queue.runs = !queue.waiting.is_empty();
            let Some(job) = queue.waiting.pop_front() else { return };
            drop(queue);
            job();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("invariant: nothing panics under this lock")
    }
}

impl fmt::Debug for SerialThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queue = self.lock();
        f.debug_struct("SerialThread").field("waiting", &queue.waiting.len()).field("runs", &queue.runs).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn jobs_run_in_their_order_and_the_thread_ends_behind_the_last() {
        let thread = SerialThread::default();
        for _ in 0..3 {
            let (tell, told) = channel();
            for number in 0..100 {
                let tell = tell.clone();
                thread.run(move || tell.send((number, std::thread::current().id())).expect("read")).expect("a thread");
            }
            drop(tell);
            let all: Vec<_> = told.iter().collect();
            assert!(all.iter().map(|(number, _)| *number).eq(0..100));
            let begun = Instant::now();
            while thread.lock().runs {
                assert!(begun.elapsed() < Duration::from_secs(60), "the thread ends");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_job_may_give_another() {
        let thread = SerialThread::default();
        let (tell, told) = channel();
        let of = thread.clone();
        let outer = move || of.run(move || tell.send(1).expect("read")).expect("a thread");
        thread.run(outer).expect("a thread");
        assert_eq!(told.recv(), Ok(1));
    }
}
