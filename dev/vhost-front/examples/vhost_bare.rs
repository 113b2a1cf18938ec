//! The least that a vhost-user-blk back-end can do, as the floor of measurements: one thread serves one ring, without
//! tags, limits, statistics or errors. It trusts the driver, so it is no example of a back-end for guests.
//!
//! ```text
//! vhost_bare SOCKET [--ram] [--poll] [--size BYTES]
//! ```
//!
//! Answers each request at once without touching its data, or copies from and to memory (`--ram`). Waits for kicks, or
//! spins (`--poll`). A second thread answers the messages of the front-end. It sleeps while requests are served.

use std::error::Error;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

use sheave_vhost_front::config::CONFIG_LEN;
use sheave_vhost_front::features::{self, protocol};
use sheave_vhost_front::message::{NEED_REPLY, REPLY, VERSION, request};
use sheave_vhost_front::ring::{DESCRIPTOR_LEN, INDIRECT, NEXT, WRITE, passes, read_descriptor};
use sheave_vhost_front::{Channel, Descriptor, Message, Region, RegionSpec, Ring};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const FEATURES: u64 = features::VERSION_1
    | features::EVENT_IDX
    | features::INDIRECT_DESC
    | features::SEG_MAX
    | features::FLUSH
    | features::PROTOCOL_FEATURES;
const PROTOCOL: u64 = protocol::MQ | protocol::CONFIG | protocol::REPLY_ACK;
/// Longer than any measurement.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

#[derive(Clone)]
struct Options {
    socket: String,
    poll: bool,
    size: u64,
    ram: Option<Arc<Region>>,
}

fn main() -> Result<()> {
    let mut options = Options { socket: String::new(), poll: false, size: 256 << 20, ram: None };
    let mut ram = false;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--ram" => ram = true,
            "--poll" => options.poll = true,
            "--size" => options.size = args.next().ok_or("--size wants a value")?.parse()?,
            _ => options.socket = arg,
        }
    }
    if ram {
        let region = Region::create(RegionSpec::new(0, options.size))?;
        region.mapping().fill(0, options.size as usize, 0xA5); // so that no page is missing later
        options.ram = Some(Arc::new(region));
    }
    let _ = std::fs::remove_file(&options.socket); // left by an earlier run
    let listener = UnixListener::bind(&options.socket)?;
    for socket in listener.incoming() {
        let channel = Channel::new(socket?)?;
        channel.set_timeout(FOREVER)?;
        let mut device =
            Device { options: options.clone(), regions: Vec::new(), queue: Queue::default(), served: None };
        let ended = device.serve(&channel);
        if let Some(served) = device.served.take() {
            served.stop()?;
        }
        if let Err(error) = ended {
            writeln!(std::io::stderr(), "{error}")?;
        }
    }
    Ok(())
}

/// State of the queue that the messages have set up.
#[derive(Default)]
struct Queue {
    size: u16,
    base: u16,
    /// User addresses of descriptors, used ring and avail ring.
    addr: [u64; 3],
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
}

/// The thread that serves the ring.
struct Served {
    ends: Arc<AtomicBool>,
    kick: std::fs::File,
    thread: JoinHandle<u16>,
}

impl Served {
    /// Ends the thread. Returns the index of the avail ring that would be next.
    fn stop(mut self) -> Result<u16> {
        self.ends.store(true, Ordering::Relaxed);
        self.kick.write_all(&1u64.to_ne_bytes())?;
        self.thread.join().map_err(|_| "the thread of the ring has panicked".into())
    }
}

/// A region, and its address in the front-end, by which messages name places in it.
struct Shared {
    region: Arc<Region>,
    user_address: u64,
}

struct Device {
    options: Options,
    regions: Vec<Shared>,
    queue: Queue,
    served: Option<Served>,
}

fn u32_at(message: &Message, at: usize) -> Result<u32> {
    message.u32_at(at).ok_or_else(|| "a short message".into())
}

fn u64_at(message: &Message, at: usize) -> Result<u64> {
    message.u64_at(at).ok_or_else(|| "a short message".into())
}

impl Device {
    /// Answers messages until the front-end closes the connection.
    fn serve(&mut self, channel: &Channel) -> Result<()> {
        loop {
            let message = match channel.receive() {
                Ok(message) => message,
                Err(sheave_vhost_front::Error::Closed(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let (number, wants) = (message.request, message.flags & NEED_REPLY != 0);
            match self.answer(message)? {
                Some(body) => channel.send(number, VERSION | REPLY, &body, &[])?,
                None if wants => channel.send(number, VERSION | REPLY, &0u64.to_ne_bytes(), &[])?,
                None => {}
            }
        }
    }

    /// Acts on a message. Returns the payload of its reply, if it has one of its own.
    fn answer(&mut self, mut message: Message) -> Result<Option<Vec<u8>>> {
        let word = |word: u64| Ok(Some(word.to_ne_bytes().to_vec()));
        match message.request {
            request::GET_FEATURES => return word(FEATURES),
            request::GET_PROTOCOL_FEATURES => return word(PROTOCOL),
            request::GET_QUEUE_NUM => return word(1),
            request::GET_CONFIG => {
                let mut space = [0; CONFIG_LEN];
                space[..8].copy_from_slice(&(self.options.size / 512).to_le_bytes());
                space[12..16].copy_from_slice(&126u32.to_le_bytes());
                let body = message.body.get_mut(12..).ok_or("a short message")?;
                body.iter_mut().zip(space).for_each(|(to, from)| *to = from);
                return Ok(Some(message.body));
            }
            request::SET_MEM_TABLE => {
                self.regions.clear();
                for (n, file) in std::mem::take(&mut message.fds).into_iter().enumerate() {
                    let number = |word: usize| u64_at(&message, 8 + 32 * n + 8 * word);
                    let spec = RegionSpec { guest_address: number(0)?, len: number(1)?, file_offset: number(3)? };
                    let region = Arc::new(Region::from_file(file, spec)?);
                    self.regions.push(Shared { region, user_address: number(2)? });
                }
            }
            request::SET_VRING_NUM => self.queue.size = u32_at(&message, 4)? as u16,
            request::SET_VRING_BASE => self.queue.base = u32_at(&message, 4)? as u16,
            request::SET_VRING_ADDR => {
                self.queue.addr = [u64_at(&message, 8)?, u64_at(&message, 16)?, u64_at(&message, 24)?];
            }
            request::SET_VRING_KICK => self.queue.kick = message.fds.pop(),
            request::SET_VRING_CALL => self.queue.call = message.fds.pop(),
            request::SET_VRING_ENABLE if u32_at(&message, 4)? == 1 => self.start()?,
            request::GET_VRING_BASE => {
                let base = self.served.take().map_or(Ok(0), Served::stop)?;
                return Ok(Some([0, u32::from(base)].map(u32::to_ne_bytes).concat()));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Starts the thread of the ring.
    fn start(&mut self) -> Result<()> {
        let [desc, used, avail] = self.queue.addr;
        let len = |shared: &Shared| shared.region.spec().len;
        let holds = |shared: &&Shared| desc.checked_sub(shared.user_address).is_some_and(|at| at < len(shared));
        let shared = self.regions.iter().find(holds).ok_or("the ring lies in no region")?;
        let [desc, used, avail] = [desc, used, avail].map(|address| (address - shared.user_address) as usize);
        let ring = Ring::at(shared.region.clone(), self.queue.size, desc, avail, used);
        let kick = self.queue.kick.take().ok_or("no eventfd for kicks")?;
        // Both ends share the flag. The front-end only writes to the eventfd, so it does not notice.
        let flags = rustix::fs::fcntl_getfl(&kick)? - rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&kick, flags)?;
        let kick = std::fs::File::from(kick);
        let loop_of = Loop {
            ring,
            kick: kick.try_clone()?,
            call: self.queue.call.take().ok_or("no eventfd for calls")?.into(),
            regions: self.regions.iter().map(|shared| shared.region.clone()).collect(),
            ram: self.options.ram.clone(),
            polls: self.options.poll,
            ends: Arc::default(),
            index: self.queue.base,
        };
        let ends = loop_of.ends.clone();
        self.served = Some(Served { ends, kick, thread: std::thread::spawn(move || loop_of.run()) });
        Ok(())
    }
}

/// The thread of the ring.
struct Loop {
    ring: Ring,
    kick: std::fs::File,
    call: std::fs::File,
    regions: Vec<Arc<Region>>,
    ram: Option<Arc<Region>>,
    polls: bool,
    ends: Arc<AtomicBool>,
    /// Index of the next entry of the avail ring.
    index: u16,
}

impl Loop {
    fn run(mut self) -> u16 {
        let mut used = self.ring.used_index();
        while !self.ends.load(Ordering::Relaxed) {
            let avail = self.ring.avail_index();
            if avail == self.index {
                self.wait();
                continue;
            }
            let old = used;
            while self.index != avail {
                let head = self.ring.avail_entry(self.index);
                let written = self.request(head).unwrap_or(0);
                self.ring.set_used_entry(used, u32::from(head), written);
                used = used.wrapping_add(1);
                self.index = self.index.wrapping_add(1);
            }
            self.ring.set_used_index(used);
            // SeqCst pairs with the driver's fence between its store of the used event and its load of the used index.
            fence(Ordering::SeqCst);
            if passes(self.ring.used_event(), old, used) {
                let _ = (&self.call).write_all(&1u64.to_ne_bytes()); // fails only if the counter is full
            }
        }
        self.index
    }

    /// Returns when there may be requests.
    fn wait(&self) {
        if self.polls {
            std::hint::spin_loop();
            return;
        }
        self.ring.set_avail_event(self.index);
        // SeqCst pairs with the driver's fence between its store of the avail index and its load of the avail event.
        fence(Ordering::SeqCst);
        if self.ring.avail_index() == self.index {
            let _ = (&self.kick).read(&mut [0; 8]); // fails only if a signal interrupts it
        }
    }

    #[inline]
    fn place(&self, address: u64, len: u64) -> Option<(&Region, usize)> {
        self.regions.iter().find_map(|region| Some((&**region, region.offset_of(address, len)?)))
    }

    /// Answers one request. Returns the number of bytes written, or `None` if the chain is malformed.
    #[inline]
    fn request(&self, head: u16) -> Option<u32> {
        let first = self.ring.descriptor(head);
        if first.flags & INDIRECT == 0 {
            return self.chain(first, |next| Some(self.ring.descriptor(next)));
        }
        let (region, at) = self.place(first.address, u64::from(first.len))?;
        let entry = |number: u16| Some(read_descriptor(region, at + usize::from(number) * DESCRIPTOR_LEN as usize));
        self.chain(entry(0)?, entry)
    }

    #[inline]
    fn chain(&self, first: Descriptor, next: impl Fn(u16) -> Option<Descriptor>) -> Option<u32> {
        let (header, at) = self.place(first.address, 16)?;
        let sector = header.mapping().u64_at(at + 8).load(Ordering::Relaxed);
        let mut offset = sector.checked_mul(512)?;
        let mut piece = next(first.next)?;
        let mut written = 1;
        while piece.flags & NEXT != 0 {
            if let Some(ram) = &self.ram {
                let len = piece.len as usize;
                let (region, at) = self.place(piece.address, u64::from(piece.len))?;
                if piece.flags & WRITE != 0 {
                    ram.mapping().copy_to(offset as usize, region.mapping(), at, len);
                } else {
                    region.mapping().copy_to(at, ram.mapping(), offset as usize, len);
                }
            }
            written += if piece.flags & WRITE != 0 { piece.len } else { 0 };
            offset += u64::from(piece.len);
            piece = next(piece.next)?;
        }
        let (status, at) = self.place(piece.address, 1)?;
        status.mapping().u8_at(at).store(0, Ordering::Relaxed);
        Some(written)
    }
}
