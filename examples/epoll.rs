//! A ring in an epoll loop, together with a socket: the loop waits for both descriptors. Then the same reads with a
//! thread for the ring and a wake-up for each answer. Prints the time of an I/O for both.
//!
//! ```sh
//! cargo run --release --example epoll -- ram:size=64M 100000
//! ```
#![forbid(unsafe_code)]

#[path = "shared/bridge.rs"]
mod bridge;

use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use sheave::{Buf, Completion, Device, Fd, Ring, op, open_device};

use bridge::Bridge;

const USAGE: &str = "usage: epoll SPEC IOS";
const BLOCK: usize = 4096;
/// Event data of the two descriptors.
const RING: u64 = 0;
const SOCKET: u64 = 1;

type Failure = Box<dyn Error + Send + Sync>;

/// An epoll loop with a socket.
struct Sources {
    epoll: OwnedFd,
    socket: UnixStream,
    events: Vec<epoll::Event>,
    /// Number of bytes received from the socket.
    received: u64,
}

impl Sources {
    /// Returns a loop, and the other end of its socket.
    fn new() -> Result<(Sources, UnixStream), Failure> {
        let (socket, peer) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(SOCKET), epoll::EventFlags::IN)?;
        Ok((Sources { epoll, socket, events: Vec::with_capacity(8), received: 0 }, peer))
    }

    /// Waits for the sources, at most for `timeout`. Returns true if the ring's descriptor was ready.
    fn look(&mut self, timeout: Option<Duration>) -> Result<bool, Failure> {
        self.events.clear();
        let timeout = timeout.map(Timespec::try_from).transpose()?;
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            // A wait is interrupted by a signal, and by I/O of this thread that the kernel completes meanwhile.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_from = |what| self.events.iter().any(|event| event.data.u64() == what);
        if is_from(SOCKET) {
            let mut bytes = [0; 512];
            match self.socket.read(&mut bytes) {
                Ok(many) => self.received += many as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(is_from(RING))
    }
}

/// The loop with a ring in it.
struct Loop {
    sources: Sources,
    ring: Ring,
    fd: Fd,
    /// Number of turns.
    turns: u64,
    /// Number of turns that waited for the ring's descriptor.
    waits: u64,
}

impl Loop {
    fn new(device: &Device) -> Result<(Loop, UnixStream), Failure> {
        let (sources, peer) = Sources::new()?;
        let mut ring = Ring::builder().entries(64).build()?;
        let fd = ring.attach(device)?;
        epoll::add(&sources.epoll, ring.as_fd(), epoll::EventData::new_u64(RING), epoll::EventFlags::IN)?;
        Ok((Loop { sources, ring, fd, turns: 0, waits: 0 }, peer))
    }

    /// Takes one turn: submits what was pushed, looks at all sources, waits if there is nothing to do, and calls `each`
    /// with each completion.
    fn turn(&mut self, mut each: impl FnMut(&mut Ring, Completion) -> Result<(), Failure>) -> Result<(), Failure> {
        self.turns += 1;
        self.ring.submit()?;
        match self.ring.prepare_wait() {
            Some(wait) => {
                self.waits += 1;
                self.sources.look(wait.timeout)?;
            }
            // There are completions, but the socket must not wait for the device.
            None => _ = self.sources.look(Some(Duration::ZERO))?,
        }
        while let Some(done) = self.ring.pop() {
            each(&mut self.ring, done)?;
        }
        Ok(())
    }

    /// Reads blocks, `depth` at a time. Returns the sum of their first bytes.
    fn read_all(&mut self, depth: u64, ios: u64, blocks: u64) -> Result<u64, Failure> {
        let (fd, mut sum) = (self.fd, 0);
        let (mut begun, mut ended) = (0, 0);
        while begun < depth.min(ios) {
            self.ring.push(op::read(fd, Buf::zeroed(BLOCK, BLOCK)?).offset(begun % blocks * BLOCK as u64))?;
            begun += 1;
        }
        while ended < ios {
            self.turn(|ring, done| {
                done.result()?;
                ended += 1;
                let buf = done.into_buf().ok_or("a read gives its buffer back")?;
                sum += u64::from(buf[0]);
                if begun < ios {
                    ring.push(op::read(fd, buf).offset(begun % blocks * BLOCK as u64))?;
                    begun += 1;
                }
                Ok(())
            })?;
        }
        Ok(sum)
    }
}

/// Reads all blocks through a thread that owns the ring.
fn read_all_over_a_bridge(device: &Device, depth: u64, ios: u64, blocks: u64) -> Result<u64, Failure> {
    let (mut sources, peer) = Sources::new()?;
    let (bridge, peer) = (Bridge::new(device)?, Arc::new(peer));
    let (answers, answered) = mpsc::channel();
    let read = |buf, begun| {
        let (answers, peer) = (answers.clone(), Arc::clone(&peer));
        let answer = move |result, buf| {
            // Fails if the loop is gone after an error.
            let _ = answers.send((result, buf));
            let _ = (&*peer).write(&[1]);
        };
        bridge.read(begun % blocks * BLOCK as u64, buf, Box::new(answer));
    };
    let (mut begun, mut ended, mut sum) = (0, 0, 0);
    while begun < depth.min(ios) {
        read(Buf::zeroed(BLOCK, BLOCK)?, begun);
        begun += 1;
    }
    while ended < ios {
        sources.look(None)?;
        while let Ok((result, buf)) = answered.try_recv() {
            result.map_err(|errno| format!("a read failed: errno {errno}"))?;
            ended += 1;
            sum += u64::from(buf[0]);
            if begun < ios {
                read(buf, begun);
                begun += 1;
            }
        }
    }
    Ok(sum)
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [spec, ios] = args.as_slice() else { return Err(USAGE.into()) };
    let (device, ios) = (open_device(spec)?, ios.parse::<u64>()?.max(1));
    let blocks = (device.size_bytes() / BLOCK as u64).max(1);
    let us = |start: Instant| start.elapsed().as_secs_f64() * 1e6 / ios as f64;
    for depth in [1, 16] {
        let (mut with_ring, _peer) = Loop::new(&device)?;
        let start = Instant::now();
        with_ring.read_all(depth, ios, blocks)?;
        let (waits, here) = (with_ring.waits, us(start));
        let start = Instant::now();
        read_all_over_a_bridge(&device, depth, ios, blocks)?;
        println!(
            "depth {depth}: the ring in the loop {here:.2} us an I/O ({waits} waits), a bridge {:.2} us",
            us(start)
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a device whose blocks begin with 1, 2, 3 and so on.
    fn numbered(spec: &str, blocks: u64) -> Device {
        let device = open_device(spec).unwrap();
        let mut ring = Ring::builder().build().unwrap();
        let fd = ring.attach(&device).unwrap();
        for block in 0..blocks {
            ring.push(op::write(fd, Buf::from_block(block)).offset(block * BLOCK as u64)).unwrap();
            ring.submit_and_wait(1).unwrap();
            assert_eq!(ring.pop().unwrap().res, BLOCK as i32);
        }
        device
    }

    trait FromBlock {
        fn from_block(block: u64) -> Buf;
    }

    impl FromBlock for Buf {
        fn from_block(block: u64) -> Buf {
            let mut buf = Buf::zeroed(BLOCK, BLOCK).unwrap();
            buf.fill(block as u8 + 1);
            buf
        }
    }

    #[test]
    fn both_ways_read_the_same() {
        let device = numbered("ram:size=64K", 16);
        for depth in [1, 16] {
            assert_eq!(Loop::new(&device).unwrap().0.read_all(depth, 32, 16).unwrap(), 2 * 136);
            assert_eq!(read_all_over_a_bridge(&device, depth, 32, 16).unwrap(), 2 * 136);
        }
    }

    #[test]
    fn the_loop_waits_for_a_device_that_takes_its_time() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let on_disk = format!("fault:delay=0.5,delay_time=5ms,over=file:{},size=64K", file.path().display());
        for spec in ["null:size=64K,latency=1ms,complete=timer", "null:size=64K,latency=1ms,complete=thread", &on_disk]
        {
            let (mut with_ring, _peer) = Loop::new(&open_device(spec).unwrap()).unwrap();
            assert_eq!(with_ring.read_all(4, 40, 16).unwrap(), 0);
            let (turns, waits) = (with_ring.turns, with_ring.waits);
            // Turns come from wake-ups: a loop that does not sleep takes thousands of turns in these milliseconds.
            assert!(turns <= 80 && waits >= 1, "{spec}: {turns} turns, {waits} waits for 40 reads");
        }
    }

    #[test]
    fn a_wait_that_is_interrupted_is_a_look_that_finds_nothing() {
        let (mut sources, _peer) = Sources::new().unwrap();
        // A process that was stopped and continued finds its epoll_wait interrupted. Repeated, because a stop that has
        // not taken effect when the process is continued interrupts nothing.
        let pid = std::process::id();
        let stops =
            format!("for i in 1 2 3 4 5 6 7 8 9; do sleep 0.1; kill -STOP {pid}; sleep 0.1; kill -CONT {pid}; done");
        let mut other = std::process::Command::new("sh").args(["-c", &stops]).spawn().unwrap();
        let start = Instant::now();
        assert!(!sources.look(Some(Duration::from_secs(20))).unwrap());
        assert!(start.elapsed() < Duration::from_secs(20), "nothing has interrupted it");
        assert!(other.wait().unwrap().success());
    }

    #[test]
    fn a_busy_ring_does_not_keep_the_socket_waiting() {
        let (mut with_ring, mut peer) = Loop::new(&open_device("ram:size=64K").unwrap()).unwrap();
        peer.write_all(&[1; 100]).unwrap();
        with_ring.read_all(1, 10, 16).unwrap();
        assert_eq!(with_ring.sources.received, 100);
    }
}
