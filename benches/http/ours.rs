//! Sheave's side: sockets on the kernel ring of a ring, the file of documents as a device whose reads its workers do.
#![allow(unsafe_code)] // SQEs with addresses, and the memory of sends

use std::os::fd::RawFd;

use sheave_blk::ctx::sockets::SocketEvent;
use sheave_kring::{IoVec, Message};
use sheave_uring::sqe::{IOSQE_ASYNC, IOSQE_FIXED_FILE, Sqe, opcode};
use sheave_uring::{IoWq, Ring};

use crate::Result;
use crate::server::{Documents, Engine, Event};

/// Length of a receive buffer; a request of `wrk` is shorter.
const REQUEST: u32 = 512;

pub struct Ours {
    ring: Ring,
    /// The message of each connection, by number.
    #[expect(clippy::vec_box, reason = "a message is made in a box, and must not move while it is sent")]
    messages: Vec<Box<Message>>,
    /// The memory that each connection receives into.
    into: Vec<*mut [u8]>,
    sockets: Vec<SocketEvent>,
}

impl Engine for Ours {
    fn new(documents: &Documents, workers: u32, connections: u32) -> Result<Ours> {
        let wq = IoWq::builder().max_workers(workers, workers).build()?;
        let mut ring = Ring::builder().entries(connections.next_power_of_two().max(8)).io_wq(&wq).build()?;
        let device = sheave::open_device(&format!("file:{},direct=off,readonly=on", documents.path.display()))?;
        let fd = ring.attach(&device)?;
        ring.register_files(&[fd])?;
        let buffers = connections.next_power_of_two().max(8) as u16;
        ring.sockets(|mut sockets| sockets.register_recv_buffers(buffers, REQUEST))??;
        let messages = (0..connections).map(|_| Message::new()).collect();
        let into = vec![std::ptr::slice_from_raw_parts_mut(std::ptr::null_mut(), 0); connections as usize];
        Ok(Ours { ring, messages, into, sockets: Vec::new() })
    }

    fn accept(&mut self, listener: RawFd, token: u32) -> Result<()> {
        self.ring
            .sockets(|mut sockets| sockets.accept(listener, token))?
            .map_err(|_| "the kernel's ring is full".into())
    }

    fn recv(&mut self, socket: RawFd, into: &mut [u8], token: u32) -> Result<()> {
        self.into[token as usize >> 2] = into;
        self.ring.sockets(|mut sockets| sockets.recv(socket, token))?.map_err(|_| "the kernel's ring is full".into())
    }

    fn read(&mut self, document: usize, into: &mut [u8], token: u32) -> Result<()> {
        let mut sqe = Sqe { opcode: opcode::READ, flags: IOSQE_FIXED_FILE | IOSQE_ASYNC, ..Sqe::default() };
        (sqe.off, sqe.user_data) = (Documents::start(document), token.into());
        (sqe.addr, sqe.len) = (into.as_mut_ptr() as u64, into.len() as u32);
        // SAFETY: the buffer belongs to the operation until it has ended, as the trait says.
        if unsafe { self.ring.push_sqe(&sqe) } { Ok(()) } else { Err("the ring is full".into()) }
    }

    fn send(&mut self, socket: RawFd, from: &[u8], token: u32) -> Result<()> {
        let message = &mut self.messages[token as usize >> 2];
        message.clear();
        let whole = IoVec { base: from.as_ptr().cast_mut(), len: from.len() };
        assert!(message.push(whole), "there is room for one piece");
        // SAFETY: buffer and message belong to the operation until it has ended, as the trait says.
        let sent = self.ring.sockets(|mut sockets| unsafe { sockets.send(socket, message, token) })?;
        sent.map_err(|_| "the kernel's ring is full".into())
    }

    fn wait(&mut self, events: &mut Vec<Event>) -> Result<()> {
        self.ring.issue()?;
        self.ring.wait_any(1, None);
        self.ring.kernel_failure()?;
        self.ring.for_each_ready(|cqe| events.push(Event { token: cqe.user_data as u32, res: cqe.res }));
        self.ring.take_socket_events(&mut self.sockets);
        for event in self.sockets.drain(..) {
            let into = self.into[event.token as usize >> 2];
            let mut res = event.res;
            self.ring.sockets(|mut sockets| {
                // SAFETY: only receives have a buffer, and each event is looked at once.
                if let Some((number, data)) = unsafe { sockets.received(&event) } {
                    // SAFETY: the connection's memory is nobody's while the receive is in flight.
                    let into = unsafe { &mut *into };
                    into[..data.len()].copy_from_slice(data);
                    res = data.len() as i32;
                    sockets.recycle(number);
                }
            })?;
            events.push(Event { token: event.token, res });
        }
        Ok(())
    }
}
