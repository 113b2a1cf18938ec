//! The engine that is a ring: `sheave_uring` like programs use it, except that its workers are stepped.
//!
//! Owns [`Rings`]. A turn submits, reaps, and starts a call for each item that is queued for workers.

use std::collections::BTreeMap;

use sheave_base::status::{Errno, Status};
use sheave_base::sync::Arc;
use sheave_iomap::File;
use sheave_iomap::file::FallocateMode;
use sheave_uring::io_wq::Account;
use sheave_uring::{Fd, IoWq, Ring, prep};

use super::{Ended, Engine, Want, buf, has_room};
use crate::threads::{Call, Threads};

/// The result that a completion must have.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    bytes: usize,
    read: bool,
}

pub struct Rings {
    ring: Ring,
    wq: IoWq,
    threads: Threads,
    /// Calls of workers that run, for each account.
    workers: [Vec<Call<bool>>; 2],
    files: Vec<(Arc<dyn File>, Fd)>,
    requests: BTreeMap<u64, Wanted>,
}

impl Rings {
    /// Returns a ring whose workers run as calls on `threads`.
    ///
    /// # Panics
    /// Panics if the machine cannot provide a ring.
    #[must_use]
    pub fn new(threads: &Threads) -> Rings {
        let wq = IoWq::builder().stepped(true).build().expect("a pool without threads needs nothing");
        let ring = Ring::builder().entries(64).polled(true).io_wq(&wq).build();
        let ring = ring.expect("the machine has memory for a ring");
        Rings {
            ring,
            wq,
            threads: threads.clone(),
            workers: [Vec::new(), Vec::new()],
            files: Vec::new(),
            requests: BTreeMap::new(),
        }
    }

    fn fd(&mut self, file: &Arc<dyn File>) -> Fd {
        if let Some((_, fd)) = self.files.iter().find(|(known, _)| Arc::ptr_eq(known, file)) {
            return *fd;
        }
        let fd = self.ring.attach_file(Arc::clone(file)).expect("a ring has room for all volumes");
        self.files.push((Arc::clone(file), fd));
        fd
    }

    /// Starts a worker for each account that has a queued item.
    fn hire(&mut self) {
        let queued = self.wq.counts().map(|account| account.queued);
        for account in [Account::Bound, Account::Unbound] {
            let workers = &mut self.workers[account as usize];
            workers.retain(|call| !call.has_ended());
            // `queued` includes the items that workers already started will take.
            let bound = account == Account::Bound;
            if queued[account as usize] == 0 || !has_room(&self.threads, bound) {
                continue;
            }
            let wq = self.wq.clone();
            workers.extend(self.threads.start(move || wq.step_account(account)));
        }
    }

    fn ended(&mut self, op: u64, res: i32, data: Vec<u8>) -> Option<Ended> {
        let wanted = self.requests.remove(&op)?;
        let status = match res {
            res if res < 0 => Status::from_errno(Errno(-res)),
            // A volume reads or writes short only at its end, where no request of a run goes.
            res if res as usize != wanted.bytes => Status::IoErr,
            _ => Status::Ok,
        };
        Some(Ended { op, status, data: if wanted.read && status.is_ok() { data } else { Vec::new() } })
    }
}

impl Engine for Rings {
    fn submit(&mut self, op: u64, file: &Arc<dyn File>, pos: u64, want: Want) {
        let fd = self.fd(file);
        let (entry, bytes, read): (prep::Entry, usize, bool) = match want {
            Want::Read(len) => (prep::read(fd, buf(len)).offset(pos).into(), len, true),
            Want::Write(data, dsync) => {
                let mut memory = buf(data.len());
                memory.copy_from_slice(&data);
                let write = prep::write(fd, memory).offset(pos);
                (if dsync { write.dsync() } else { write }.into(), data.len(), false)
            }
            Want::Zero(FallocateMode::PunchHole, len) => (prep::punch_hole(fd, pos, len).into(), 0, false),
            Want::Zero(_, len) => (prep::zero_range(fd, pos, len).into(), 0, false),
            Want::Sync => (prep::fsync(fd).into(), 0, false),
        };
        self.requests.insert(op, Wanted { bytes, read });
        let pushed = self.ring.push(entry.user_data(op));
        assert!(pushed.is_ok(), "the queue has room for all requests");
    }

    fn turn(&mut self) -> Vec<Ended> {
        // An error means that too much is in flight; the entries stay queued for the next turn.
        let _ = self.ring.submit();
        self.ring.reap();
        let done: Vec<_> = self.ring.completions().map(|one| (one.user_data, one.res, one.into_buf())).collect();
        let mut ended = Vec::with_capacity(done.len());
        for (op, res, memory) in done {
            let data = memory.map(|memory| memory.to_vec()).unwrap_or_default();
            ended.extend(self.ended(op, res, data));
        }
        self.hire();
        ended
    }

    fn describe(&self) -> String {
        let workers = self.workers.iter().flatten().filter(|call| !call.has_ended()).count();
        format!("{:?}, {workers} workers", self.requests.keys())
    }

    fn busy(&self) -> usize {
        self.requests.len()
    }

    fn detach(&mut self, file: &Arc<dyn File>) {
        if let Some(at) = self.files.iter().position(|(known, _)| Arc::ptr_eq(known, file)) {
            let (_, fd) = self.files.swap_remove(at);
            self.ring.detach(fd).expect("it was attached");
        }
    }
}
