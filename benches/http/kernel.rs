//! The kernel's side: sockets and files on one io_uring, with the set-up that is fastest for a program of one thread.
#![allow(unsafe_code)] // SQEs with addresses

use std::os::fd::{AsRawFd, RawFd};

use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, opcode, squeue};

use crate::Result;
use crate::server::{Documents, Engine, Event};

pub struct Kernel {
    ring: IoUring,
}

impl Kernel {
    fn push(&mut self, entry: squeue::Entry, token: u32) -> Result<()> {
        let entry = entry.user_data(token.into());
        // SAFETY: the memory of the operation belongs to it until it has ended, as the trait says.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.ring.submit()?;
        }
        Ok(())
    }
}

impl Engine for Kernel {
    fn new(documents: &Documents, workers: u32, connections: u32) -> Result<Kernel> {
        let ring = IoUring::builder()
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(connections.next_power_of_two().max(8))?;
        ring.submitter().register_iowq_max_workers(&mut [workers, workers])?;
        ring.submitter().register_files(&[documents.file.as_raw_fd()])?;
        Ok(Kernel { ring })
    }

    fn accept(&mut self, listener: RawFd, token: u32) -> Result<()> {
        let entry = opcode::Accept::new(Fd(listener), std::ptr::null_mut(), std::ptr::null_mut());
        self.push(entry.flags(libc::SOCK_CLOEXEC).build(), token)
    }

    fn recv(&mut self, socket: RawFd, into: &mut [u8], token: u32) -> Result<()> {
        const POLL_FIRST: u16 = 1;
        let entry = opcode::Recv::new(Fd(socket), into.as_mut_ptr(), into.len() as u32);
        self.push(entry.ioprio(POLL_FIRST).build(), token)
    }

    fn read(&mut self, document: usize, into: &mut [u8], token: u32) -> Result<()> {
        let entry =
            opcode::Read::new(Fixed(0), into.as_mut_ptr(), into.len() as u32).offset(Documents::start(document));
        self.push(entry.build().flags(squeue::Flags::ASYNC), token)
    }

    fn send(&mut self, socket: RawFd, from: &[u8], token: u32) -> Result<()> {
        let entry = opcode::Send::new(Fd(socket), from.as_ptr(), from.len() as u32);
        self.push(entry.flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL).build(), token)
    }

    fn wait(&mut self, events: &mut Vec<Event>) -> Result<()> {
        self.ring.submit_and_wait(1)?;
        events.extend(self.ring.completion().map(|cqe| Event { token: cqe.user_data() as u32, res: cqe.result() }));
        Ok(())
    }
}
