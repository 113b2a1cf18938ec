//! Random programs on a device that holds, refuses, reorders and fails requests, while files, buffers and the CQ
//! change: one CQE an SQE, all memory comes back, and everything ends.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use sheave_base::buf::Buf;
use sheave_base::rng::Rng;
use sheave_base::status::Status;
use sheave_blk::Device;
use sheave_blk::bio::Op;
use sheave_uring::prep::{self, Entry};
use sheave_uring::sqe::{
    IOSQE_ASYNC, IOSQE_CQE_SKIP_SUCCESS, IOSQE_FIXED_FILE, IOSQE_IO_DRAIN, IOSQE_IO_HARDLINK, IOSQE_IO_LINK, RWF_DSYNC,
    Sqe, opcode,
};
use sheave_uring::{Fd, Ring, RingHandle};

use crate::patchy::Patchy;
use crate::support::{Puppet, bad, buf, fsync, nop, nop_result, rw};
use crate::watch::Watch;

/// Number of blocks of a device; some offsets lie beyond them.
const BLOCKS: u64 = 64;
/// First user data of messages.
const MESSAGES: u64 = 1 << 40;
/// Longest timeout of the programs, so that all of them end.
static SHORT: [i64; 2] = [0, 500_000];

/// State of a submitted SQE.
#[derive(Debug)]
struct Sent {
    /// Some member of its chain has the skip flag, so it may give no CQE.
    may_skip: bool,
    cqes: u32,
}

struct World {
    rng: Rng,
    entries: u32,
    ring: Ring,
    handle: RingHandle,
    devices: Vec<(Puppet, Device)>,
    fds: Vec<Fd>,
    files: Vec<Arc<Patchy>>,
    sent: HashMap<u64, Sent>,
    next: u64,
    messages: u64,
    messages_seen: u64,
    /// Memory of typed operations in flight, by user data.
    watches: HashMap<u64, Watch>,
    /// Results of CQEs seen; also [`OVERFLOW`] and [`BUSY`] when these occurred.
    met: BTreeSet<i32>,
    /// Memory of raw reads and writes. Reads of holes write zeroes to it.
    memory: Buf,
}

const OVERFLOW: i32 = 1;
const BUSY: i32 = 2;

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        // Some rings have fewer slots than a chain has members.
        let (entries, cq, slots) = (4 << rng.below(4), 2 << rng.below(6), 1 << rng.below(7));
        let builder = Ring::builder().entries(entries).cq_entries(cq).in_flight(slots).polled(rng.percent(30));
        let mut ring = builder.spin(Duration::from_micros(rng.below(20))).build().unwrap();
        let caps = (rng.percent(50), rng.percent(50));
        let devices: Vec<_> = (0..2)
            .map(|_| {
                let mut puppet = Puppet::new().depth(1 + rng.below(20) as u16);
                puppet = puppet.caps(|c| (c.volatile_cache, c.fua) = caps).limits(|l| l.max_sectors = 16);
                puppet.size = BLOCKS * 4096;
                let device = puppet.device();
                (puppet, device)
            })
            .collect();
        let mut fds: Vec<_> = devices.iter().map(|(_, device)| ring.attach(device).unwrap()).collect();
        let files = vec![Arc::new(Patchy::new(&devices[1].1))];
        fds.push(ring.attach_file(files[0].clone()).unwrap());
        ring.register_files(&[fds[0], fds[1], Fd::NONE]).unwrap();
        ring.register_buffers(vec![buf(16384), buf(16384)]).unwrap();
        let handle = ring.handle();
        let (sent, watches) = (HashMap::new(), HashMap::new());
        let (met, memory) = (BTreeSet::new(), buf(16384));
        World {
            rng,
            entries,
            ring,
            handle,
            devices,
            fds,
            files,
            sent,
            next: 1,
            messages: 0,
            messages_seen: 0,
            watches,
            met,
            memory,
        }
    }

    fn fd(&mut self) -> Fd {
        if self.rng.percent(5) { Fd::NONE } else { self.fds[self.rng.below(3) as usize] }
    }

    fn offset(&mut self) -> u64 {
        self.rng.below(BLOCKS + 4) * 4096 + if self.rng.percent(3) { 7 } else { 0 }
    }

    fn raw(&mut self, user_data: u64) -> Sqe {
        let (fd, off, len) = (self.fd(), self.offset(), 512 << self.rng.below(6) as u32);
        let memory = self.memory.as_ptr() as u64;
        let plain = |op| rw(op, fd, off, memory, len, user_data);
        let sqe = match self.rng.below(14) {
            0 => nop(user_data, 0),
            1 => bad(user_data, 0),
            2 => nop_result(user_data, 0, -5),
            3 => fsync(fd, user_data),
            4 => Sqe { addr: 8192, len: 0x10, ..plain(opcode::FALLOCATE) },
            5 => Sqe { op_flags: RWF_DSYNC, ..plain(opcode::WRITE) },
            6 | 7 => {
                let base = self.ring.buffer_range(self.rng.below(2) as u16).map_or(0, |range| range.0);
                let op = if self.rng.percent(50) { opcode::READ_FIXED } else { opcode::WRITE_FIXED };
                Sqe { addr: base, buf_index: self.rng.below(2) as u16, ..plain(op) }
            }
            8 => {
                let fd = self.rng.below(4) as i32;
                Sqe { flags: IOSQE_FIXED_FILE, ..rw(opcode::READ, fd, off, memory, len, user_data) }
            }
            9 => Sqe {
                opcode: opcode::TIMEOUT,
                off: self.rng.below(3),
                addr: SHORT.as_ptr() as u64,
                len: 1,
                ..nop(user_data, 0)
            },
            10 => {
                let victim = user_data.saturating_sub(1 + self.rng.below(20));
                Sqe { opcode: opcode::ASYNC_CANCEL, addr: victim, ..nop(user_data, 0) }
            }
            11 => Sqe { opcode: opcode::LINK_TIMEOUT, addr: SHORT.as_ptr() as u64, len: 1, ..nop(user_data, 0) },
            _ => plain(if self.rng.percent(50) { opcode::READ } else { opcode::WRITE }),
        };
        let flags = [(IOSQE_IO_DRAIN, 4), (IOSQE_ASYNC, 4)];
        let flags = flags.iter().filter(|(_, percent)| self.rng.percent(*percent)).fold(0, |all, (flag, _)| all | flag);
        Sqe { flags: sqe.flags | flags, ..sqe }
    }

    fn typed(&mut self, user_data: u64) -> Entry {
        let (fd, offset) = (self.fd(), self.offset());
        let mut memory = buf(4096);
        memory[..8].copy_from_slice(&user_data.to_le_bytes());
        self.watches.insert(user_data, Watch::new(&memory));
        let entry: Entry = match self.rng.below(3) {
            0 => prep::read(fd, memory).offset(offset).into(),
            1 => prep::write(fd, memory).offset(offset).into(),
            _ => prep::writev(fd, vec![memory]).offset(offset).into(),
        };
        entry.user_data(user_data)
    }

    /// Pushes a chain of one to six operations, some typed, if it fits as a whole.
    fn push_chain(&mut self) {
        let len = if self.rng.percent(70) { 1 } else { 1 + self.rng.below(6) };
        if u64::from(self.ring.sq_space()) < len {
            return;
        }
        let skips: Vec<bool> = (0..len).map(|_| self.rng.percent(8)).collect();
        let may_skip = skips.contains(&true);
        for n in 0..len {
            let user_data = self.next;
            self.next += 1;
            let link = (n + 1 < len).then(|| if self.rng.percent(70) { IOSQE_IO_LINK } else { IOSQE_IO_HARDLINK });
            let skip = skips[n as usize];
            if self.rng.percent(25) {
                let mut entry = self.typed(user_data);
                entry = match link {
                    Some(IOSQE_IO_LINK) => entry.link(),
                    Some(_) => entry.hardlink(),
                    None => entry,
                };
                self.ring.push(if skip { entry.skip_success() } else { entry }).unwrap();
            } else {
                let mut sqe = self.raw(user_data);
                sqe.flags |= link.unwrap_or(0) | if skip { IOSQE_CQE_SKIP_SUCCESS } else { 0 };
                crate::support::push(&mut self.ring, &[sqe]);
            }
            self.sent.insert(user_data, Sent { may_skip, cqes: 0 });
        }
    }

    fn read(&mut self, most: u64) -> usize {
        let mut count = 0;
        for completion in self.ring.completions().take(most as usize) {
            count += 1;
            let user_data = completion.user_data;
            if user_data >= MESSAGES {
                assert_eq!(user_data - MESSAGES, self.messages_seen, "messages keep their order");
                self.messages_seen += 1;
                continue;
            }
            let sent = self.sent.get_mut(&user_data).expect("of an SQE that was pushed");
            sent.cqes += 1;
            self.met.insert(completion.res);
            assert_eq!(sent.cqes, 1, "{user_data} has ended twice");
            if let Some(watch) = self.watches.remove(&user_data) {
                assert!(!watch.is_freed(), "{user_data}: the memory is the completion's");
                watch.forget();
                let bufs = completion.into_bufs();
                // A hole reads as zeroes.
                let is_its_own = bufs[0][..8] == user_data.to_le_bytes() || bufs[0][..8] == [0; 8];
                assert!(is_its_own, "{user_data} has somebody else's memory");
            }
        }
        count
    }

    fn upset_device(&mut self) {
        let rng = &mut self.rng;
        let mut script = self.devices[rng.below(2) as usize].0.script.lock().unwrap();
        script.accept = if rng.percent(60) { u32::MAX } else { rng.below(6) as u32 };
        script.finish = if rng.percent(60) { u32::MAX } else { rng.below(6) as u32 };
        script.lifo = rng.percent(30);
        let statuses = [(Op::Read, Status::Medium), (Op::Write, Status::NoSpc), (Op::Flush, Status::IoErr)];
        script.fail = statuses.into_iter().filter(|_| rng.percent(20)).collect();
    }

    fn change_resources(&mut self) {
        let which = self.rng.below(2) as usize;
        match self.rng.below(4) {
            0 => {
                let new = if self.rng.percent(80) { Some(buf(16384)) } else { None };
                self.ring.update_buffer(which as u16, new).unwrap();
            }
            1 => {
                let fd = if self.rng.percent(80) { self.fds[which] } else { Fd::NONE };
                self.ring.update_file(self.rng.below(3) as usize, fd).unwrap();
            }
            2 => {
                if which == 1 {
                    self.ring.detach(self.fds[2]).unwrap();
                    let file = Arc::new(Patchy::new(&self.devices[1].1));
                    self.fds[2] = self.ring.attach_file(file.clone()).unwrap();
                    self.files.push(file);
                }
                self.ring.detach(self.fds[which]).unwrap();
                self.fds[which] = self.ring.attach(&self.devices[which].1).unwrap();
            }
            _ => {
                self.messages += u64::from(self.handle.send(MESSAGES + self.messages, 0).is_ok());
            }
        }
    }

    fn step(&mut self) {
        match self.rng.below(20) {
            0..=8 => self.push_chain(),
            9..=11 => {
                let busy = self.ring.submit().is_err(); // Busy is a valid result.
                let overflow = self.ring.cq_overflowed();
                self.met.extend([(busy, BUSY), (overflow, OVERFLOW)].iter().filter(|met| met.0).map(|met| met.1));
            }
            12..=14 => {
                let most = self.rng.below(8);
                self.read(most);
            }
            15 | 16 => self.upset_device(),
            17 => self.change_resources(),
            18 => _ = self.ring.wait(1 + self.rng.below(3) as u32, Some(Duration::from_micros(200))),
            _ => self.ring.reap(),
        }
    }

    /// Waits until everything has ended, and checks the counts.
    fn finish(mut self) -> BTreeSet<i32> {
        for (puppet, _) in &self.devices {
            let mut script = puppet.script();
            (script.accept, script.finish) = (u32::MAX, u32::MAX);
        }
        let mut rounds = 0;
        while self.ring.submit().is_err() || self.ring.sq_space() < self.entries {
            self.read(u64::MAX);
            // Timeouts hold slots for half a millisecond.
            let _ = self.ring.wait(1, Some(Duration::from_millis(1)));
            rounds += 1;
            assert!(rounds < 10_000, "nothing is taken any more");
        }
        self.ring.drain();
        while self.read(u64::MAX) > 0 {}
        assert_eq!(self.ring.in_flight(), 0);
        assert!(!self.ring.cq_overflowed());
        assert_eq!(self.messages_seen, self.messages, "all messages that were taken have come");
        for (user_data, sent) in &self.sent {
            assert!(sent.cqes == 1 || sent.may_skip, "{user_data} gave {} CQEs", sent.cqes);
        }
        check_freed(self.watches, "what skipped has freed its memory");
        for (_, device) in &self.devices {
            assert_eq!(device.in_flight().total(), 0);
        }
        self.files.iter().for_each(|file| file.check());
        self.met
    }

    /// Drops the ring in its current state.
    fn drop_in_the_middle(self) {
        let World { ring, devices, watches, memory, files, .. } = self;
        drop(ring);
        drop(memory);
        check_freed(watches, "nothing leaks");
        for file in files {
            file.check();
            assert_eq!((file.seats(), Arc::strong_count(&file)), (0, 1), "no worker and no ring has it any more");
        }
        for (puppet, device) in &devices {
            assert_eq!(device.in_flight().total(), 0);
            assert_eq!(Arc::strong_count(&puppet.script), 2, "its queue is closed");
        }
    }
}

fn check_freed(watches: HashMap<u64, Watch>, what: &str) {
    for (user_data, watch) in watches {
        assert!(watch.is_freed(), "{user_data}: {what}");
        watch.forget();
    }
}

#[test]
fn every_program_ends_with_one_cqe_an_sqe() {
    let mut met = BTreeSet::new();
    for seed in sheave_testkit::seeds(40) {
        eprintln!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.step();
        }
        met.extend(world.finish());
    }
    if std::env::var_os(sheave_testkit::SEED_ENV).is_none() {
        // E2BIG, EIO, EBADF, EFAULT, EINVAL, ENOSPC, ETIME, EOPNOTSUPP, ECANCELED, and the other possible results.
        let all = [-7, -5, -9, -14, -22, -28, -61, -62, -95, -125, 0, 512, 4096, OVERFLOW, BUSY];
        let missing: Vec<_> = all.iter().filter(|res| !met.contains(res)).collect();
        assert!(missing.is_empty(), "programs that never meet {missing:?} test little");
    }
}

#[test]
fn a_ring_may_be_dropped_at_any_time() {
    for seed in sheave_testkit::seeds(200) {
        eprintln!("seed {seed}");
        let mut world = World::new(seed);
        for _ in 0..world.rng.below(100) {
            world.step();
        }
        world.drop_in_the_middle();
    }
}
