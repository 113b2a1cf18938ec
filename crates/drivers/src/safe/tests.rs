//! Mistakes of a driver without unsafe code: each request ends once at its ring, whatever the driver does.

mod ops;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use sheave_base::buf::Buf;
use sheave_base::clock::Clock;
use sheave_base::sync::{Arc, Mutex};
use sheave_blk::bio::{BVec, NO_FIXED_BUF, Op};
use sheave_blk::ctx::{BioSpec, IoCtx, IoCtxOptions};

use sheave_base::status::Status;
use sheave_blk::DeviceError;
use sheave_blk::driver::Capabilities;
use sheave_blk::limits::Limits;

use super::*;
use crate::open_device;

const BLOCK: usize = 4096;

/// A time longer than any step of a test takes.
const LONG: Duration = Duration::from_secs(20);

/// A ring with memory of its own, which waits for all that it sends.
struct Rig {
    ctx: IoCtx,
    bdev: u16,
    memory: Vec<Vec<u8>>,
    ended: Vec<(u32, Status)>,
}

impl Rig {
    fn new(device: &Device) -> Rig {
        Rig::with_bios(device, 64)
    }

    fn with_bios(device: &Device, bios: u32) -> Rig {
        let options = IoCtxOptions { bios, kring_entries: 64, iopoll: false, stats: true, clock: Clock::real() };
        let mut ctx = IoCtx::new(options).expect("a descriptor");
        let bdev = ctx.attach(device).expect("attached");
        Rig { ctx, bdev, memory: Vec::new(), ended: Vec::new() }
    }

    /// Sends an I/O with memory of this byte. Returns its number.
    #[allow(unsafe_code)]
    fn send(&mut self, op: Op, sector: u64, bytes: usize, fill: u8) -> u32 {
        let owner = self.memory.len() as u32;
        self.memory.push(vec![fill; if op.has_data() { bytes } else { 0 }]);
        let memory = self.memory.last_mut().expect("just pushed");
        // SAFETY: the memory lives as long as the rig, which drops its ring first, and is read after the I/O has ended.
        let vec = unsafe { BVec::new(memory.as_mut_ptr().expose_provenance(), memory.len()) };
        let vecs = if op.has_data() { std::slice::from_ref(&vec) } else { &[] };
        let bytes = if op == Op::Flush { 0 } else { bytes as u32 };
        let spec = BioSpec { bdev: self.bdev, op, flags: 0, sector, bytes, owner };
        let start = Instant::now();
        while !self.ctx.submit(&spec, vecs, NO_FIXED_BUF) {
            self.poll();
            assert!(start.elapsed() < Duration::from_secs(60), "bios come back");
        }
        owner
    }

    fn poll(&mut self) {
        let ended = &mut self.ended;
        self.ctx.poll(&mut |owner, status| ended.push((owner, status)));
    }

    fn wait_all(&mut self) -> Vec<Status> {
        let start = Instant::now();
        while self.ended.len() < self.memory.len() {
            self.poll();
            if self.ended.len() < self.memory.len() {
                let before = Instant::now();
                self.ctx.wait(1, Some(LONG));
                assert!(before.elapsed() < LONG, "a ring that sleeps is woken");
            }
            assert!(start.elapsed() < Duration::from_secs(60), "each I/O ends: {} of them", self.ended.len());
        }
        let mut statuses = vec![None; self.memory.len()];
        for &(owner, status) in &self.ended {
            assert_eq!(statuses[owner as usize].replace(status), None, "once");
        }
        statuses.into_iter().flatten().collect()
    }

    fn run(&mut self, op: Op, sector: u64, bytes: usize, fill: u8) -> (Status, Vec<u8>) {
        let owner = self.send(op, sector, bytes, fill) as usize;
        let status = self.wait_all()[owner];
        (status, self.memory[owner].clone())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let ended = &mut self.ended;
        self.ctx.shutdown(&mut |owner, status| ended.push((owner, status)));
        assert_eq!(self.ended.len(), self.memory.len(), "a ring that goes ends all that it has");
    }
}

type Do<T> = Arc<dyn Fn(&mut Request<'_>, &mut Vec<RequestId>) -> T + Send + Sync>;
type OnChild = Arc<dyn Fn(&mut Request<'_>, ChildEnd) -> Step + Send + Sync>;
type Poll = Arc<dyn Fn(&mut Polled<'_>, &mut Vec<RequestId>) + Send + Sync>;

/// A driver that consists of closures.
#[derive(Clone)]
struct Does {
    start: Do<Step>,
    child: Option<OnChild>,
    poll: Option<Poll>,
    waits: WaitsFor,
    panics_when_asked: bool,
    ids: Vec<RequestId>,
    opened: Arc<Mutex<Vec<Waker>>>,
}

impl std::fmt::Debug for Does {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Does")
    }
}

fn does(start: impl Fn(&mut Request<'_>, &mut Vec<RequestId>) -> Step + Send + Sync + 'static) -> Does {
    Does {
        start: Arc::new(start),
        child: None,
        poll: None,
        waits: WaitsFor::Nothing,
        panics_when_asked: false,
        ids: Vec::new(),
        opened: Arc::default(),
    }
}

impl SafeDriver for Does {
    fn limits(&self) -> Limits {
        Limits::default().max_sectors(256).max_discard_sectors(256).queue_depth(8)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().volatile_cache(true).discard(true)
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn open_queue(&self, open: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        self.opened.lock().expect("nobody panics with it").push(open.waker());
        Ok(Box::new(self.clone()))
    }
}

impl SafeQueue for Does {
    fn start(&mut self, rq: &mut Request<'_>) -> Step {
        (self.start)(rq, &mut self.ids)
    }

    fn child_ended(&mut self, rq: &mut Request<'_>, child: ChildEnd) -> Step {
        match &self.child {
            Some(of) => of(rq, child),
            None if rq.children() == 0 => Step::End(rq.joined()),
            None => Step::Wait,
        }
    }

    fn poll(&mut self, rqs: &mut Polled<'_>) {
        if let Some(poll) = &self.poll {
            poll(rqs, &mut self.ids);
        }
    }

    fn waits_for(&self) -> WaitsFor {
        assert!(!self.panics_when_asked, "told to panic");
        self.waits
    }
}

fn sends(lower: usize, memory: fn(usize) -> Memory) -> Does {
    does(move |rq, _| {
        let (op, sector) = (rq.op(), rq.sector());
        let memory = if op.has_data() { memory(rq.bytes() as usize) } else { Memory::None(rq.bytes()) };
        match rq.send(Child { lower, op, fua: false, sector, memory, number: 7 }) {
            Ok(()) => Step::Wait,
            Err(_) => Step::End(Status::Protection),
        }
    })
}

fn ram() -> Device {
    open_device("ram:size=1M").expect("a ram device")
}

#[test]
fn bytes_go_in_and_out_and_nowhere_else() {
    let store = Arc::new(Mutex::new(vec![0u8; 1 << 20]));
    let driver = does(move |rq, _| {
        let mut store = store.lock().expect("nobody panics with it");
        let at = rq.sector() as usize * 512;
        let here = &mut store[at..at + rq.bytes() as usize];
        let end = rq.bytes() as usize;
        let mut one = [0; 1];
        let done = match rq.op() {
            Op::Write => {
                assert_eq!(rq.copy_to(end, &mut one), Err(Refused::OutOfRange));
                assert_eq!(rq.copy_to(usize::MAX, &mut one), Err(Refused::OutOfRange));
                assert_eq!(rq.copy_from(0, &one), Err(Refused::Direction));
                // The second copy begins within a piece of memory and goes on into the next.
                rq.copy_to(0, &mut here[..100]).and_then(|()| rq.copy_to(100, &mut here[100..]))
            }
            Op::Read => {
                assert_eq!(rq.copy_from(end - 1, &[0; 2]), Err(Refused::OutOfRange));
                assert_eq!(rq.copy_to(0, &mut one), Err(Refused::Direction));
                rq.copy_from(0, &here[..1000]).and_then(|()| rq.copy_from(1000, &here[1000..]))
            }
            _ => {
                assert_eq!(rq.copy_to(0, &mut one), Err(Refused::Direction));
                assert_eq!(rq.copy_from(0, &one), Err(Refused::Direction));
                Ok(())
            }
        };
        Step::End(if done.is_ok() { Status::Ok } else { Status::IoErr })
    });
    let mut rig = Rig::new(&device("store", driver));
    rig.ctx.start_plug(2);
    // Two adjacent writes, which merge into one request of two pieces.
    rig.send(Op::Write, 8, BLOCK, 1);
    rig.send(Op::Write, 16, BLOCK, 2);
    rig.ctx.finish_plug();
    let (status, read) = rig.run(Op::Read, 8, 2 * BLOCK, 9);
    assert_eq!(status, Status::Ok);
    assert!(read[..BLOCK].iter().all(|&byte| byte == 1) && read[BLOCK..].iter().all(|&byte| byte == 2));
    assert_eq!(rig.run(Op::Flush, 0, 0, 0).0, Status::Ok);
    assert!(rig.wait_all().iter().all(|status| status.is_ok()), "what panicked in the driver would be an I/O error");
}

#[test]
fn a_request_that_is_never_ended_times_out() {
    let device = with_timeout("forgets", does(|_, _| Step::Wait), Vec::new(), Duration::from_millis(50));
    let mut rig = Rig::new(&device);
    (0..20).for_each(|at| _ = rig.send(Op::Write, at * 8, BLOCK, 0));
    assert!(rig.wait_all().iter().all(|&status| status == Status::Timeout));
    // The drop of a ring does not wait for the timeout.
    let device = super::device("forgets", does(|_, _| Step::Wait));
    let mut rig = Rig::new(&device);
    (0..20).for_each(|at| _ = rig.send(Op::Write, at * 8, BLOCK, 0));
    rig.poll();
}

#[test]
fn a_driver_that_panics_ends_what_it_had_and_what_comes() {
    let calm = || does(|rq, _| if rq.sector() == 40 { panic!("told to") } else { Step::Wait });
    let mut in_poll = does(|_, _| Step::Wait);
    in_poll.poll = Some(Arc::new(|_, _| panic!("told to")));
    let mut when_asked = does(|_, _| Step::Wait);
    when_asked.panics_when_asked = true;
    let mut in_child = sends(0, |bytes| Memory::OfRequest(0..bytes));
    in_child.child = Some(Arc::new(|_, _| panic!("told to")));
    for driver in [calm(), in_poll, when_asked, in_child] {
        let mut rig = Rig::new(&stacked("panics", driver, vec![ram()]));
        (0..20).for_each(|at| _ = rig.send(Op::Write, at * 8, BLOCK, 0));
        let start = Instant::now();
        assert!(rig.wait_all().iter().all(|&status| status == Status::IoErr));
        assert!(start.elapsed() < Duration::from_secs(5), "at once, and not when the ring looks for what is overdue");
        assert_eq!(rig.run(Op::Read, 8, BLOCK, 0).0, Status::IoErr, "it is not called again");
    }
}

#[test]
fn ids_of_what_has_ended_and_of_others_name_nothing() {
    let foreign: Arc<Mutex<Option<RequestId>>> = Arc::default();
    let give = Arc::clone(&foreign);
    let mut rig = Rig::new(&device(
        "gives",
        does(move |rq, _| {
            *give.lock().expect("nobody panics with it") = Some(rq.id());
            Step::Wait
        }),
    ));
    rig.send(Op::Write, 0, BLOCK, 0);
    rig.poll();
    let foreign = foreign.lock().expect("nobody panics with it").expect("it came");
    let mut driver = does(|rq, ids| {
        ids.push(rq.id());
        Step::Wait
    });
    driver.waits = WaitsFor::Now;
    driver.poll = Some(Arc::new(move |rqs, ids| {
        assert!(!rqs.end(foreign, Status::Ok) && rqs.get(foreign).is_none(), "another queue's");
        if ids.len() < 3 {
            return;
        }
        let last = *ids.last().expect("three");
        assert!(rqs.get(last).is_some_and(|rq| rq.sector() == 16 && rq.id().slot() < 9));
        for &id in ids.iter() {
            assert!(rqs.end(id, Status::Ok), "once");
            assert!(!rqs.end(id, Status::IoErr) && rqs.get(id).is_none(), "and no more");
        }
        ids.clear();
    }));
    let mut other = Rig::new(&device("ends", driver));
    (0..3).for_each(|at| _ = other.send(Op::Write, at * 8, BLOCK, 0));
    assert_eq!(other.wait_all(), [Status::Ok; 3]);
}

#[test]
fn another_thread_wakes_a_ring_that_sleeps() {
    let (send, receive) = mpsc::channel::<RequestId>();
    let (back, ended) = mpsc::channel::<RequestId>();
    let (send, ended) = (Mutex::new(send), Mutex::new(ended));
    let mut driver = does(move |rq, _| {
        send.lock().expect("nobody panics with it").send(rq.id()).expect("the thread listens");
        Step::Wait
    });
    driver.waits = WaitsFor::Waker;
    driver.poll = Some(Arc::new(move |rqs, _| {
        while let Ok(id) = ended.lock().expect("nobody panics with it").try_recv() {
            rqs.end(id, Status::Medium);
        }
    }));
    let opened = driver.opened.clone();
    let mut rig = Rig::new(&device("far", driver));
    let waker = opened.lock().expect("nobody panics with it")[0].clone();
    let thread = std::thread::spawn(move || {
        for id in receive {
            std::thread::sleep(Duration::from_millis(20));
            back.send(id).expect("the ring listens");
            waker.wake();
        }
    });
    rig.send(Op::Write, 0, BLOCK, 0);
    rig.poll();
    let start = Instant::now();
    rig.ctx.wait(1, Some(Duration::from_secs(30)));
    assert!(start.elapsed() < Duration::from_secs(20), "the wake-up ends the sleep");
    assert_eq!(rig.wait_all(), [Status::Medium]);
    drop(rig);
    drop(thread);
}

#[test]
fn children_carry_the_memory_of_requests_and_of_drivers() {
    let below = ram();
    let through = stacked("through", sends(0, |bytes| Memory::OfRequest(0..bytes)), vec![below.clone()]);
    let mut rig = Rig::new(&through);
    // Longer than the limits allow, so that the block layer cuts it.
    assert_eq!(rig.run(Op::Write, 0, 1 << 18, 5).0, Status::Ok);
    assert!(rig.run(Op::Read, 0, 1 << 18, 0).1.iter().all(|&byte| byte == 5));
    assert_eq!(rig.run(Op::Discard, 0, BLOCK, 0).0, Status::Ok);
    assert!(rig.run(Op::Read, 0, BLOCK, 9).1.iter().all(|&byte| byte == 0));
    assert_eq!(rig.run(Op::Flush, 0, 0, 0).0, Status::Ok);
    assert_eq!(below.in_flight().total(), 0);
    assert!(below.stats().op(Op::Write).ios >= 1, "counted below too");
    let own = stacked("own", sends(0, |bytes| Memory::Own(Buf::zeroed(bytes, 512).expect("memory"))), vec![below]);
    let mut rig = Rig::new(&own);
    assert_eq!(rig.run(Op::Write, 512, BLOCK, 7).0, Status::Ok);
    assert!(rig.run(Op::Read, 512, BLOCK, 3).1.iter().all(|&byte| byte == 3), "zeroes went below, nothing came up");
}

#[test]
fn children_to_nowhere_end_as_invalid() {
    let mut rig = Rig::new(&stacked("off", sends(1, |bytes| Memory::OfRequest(0..bytes)), vec![ram()]));
    assert_eq!(rig.run(Op::Write, 0, BLOCK, 0).0, Status::Invalid);
    let mut rig = Rig::new(&device("alone", sends(0, |bytes| Memory::OfRequest(0..bytes))));
    assert_eq!(rig.run(Op::Write, 0, BLOCK, 0).0, Status::Invalid);
    let mut rig = Rig::new(&stacked("beyond", sends(0, |bytes| Memory::OfRequest(0..bytes + 1)), vec![ram()]));
    assert_eq!(rig.run(Op::Write, 0, BLOCK, 0).0, Status::Protection, "refused");
    let mut rig = Rig::new(&stacked("empty", sends(0, |_| Memory::OfRequest(0..0)), vec![ram()]));
    assert_eq!(rig.run(Op::Write, 0, BLOCK, 0).0, Status::Invalid);
}

#[test]
fn memory_that_a_child_writes_to_is_nobody_elses() {
    let driver = does(|rq, _| {
        let mut child = |range| {
            let memory = Memory::OfRequest(range);
            rq.send(Child { lower: 0, op: Op::Read, fua: false, sector: 0, memory, number: 0 })
        };
        assert_eq!(child(0..512), Ok(()));
        assert_eq!(child(511..1024), Err(Refused::InUse));
        assert_eq!(child(512..1024), Ok(()));
        assert_eq!(rq.copy_from(1000, &[0; 100]), Err(Refused::InUse));
        assert_eq!(rq.copy_from(1024, &[0; 100]), Ok(()));
        let memory = Memory::OfRequest(0..512);
        let write = Child { lower: 0, op: Op::Write, fua: false, sector: 0, memory, number: 0 };
        assert_eq!(rq.send(write), Err(Refused::Direction));
        Step::Wait
    });
    let mut rig = Rig::new(&stacked("shares", driver, vec![ram()]));
    assert_eq!(rig.run(Op::Read, 0, BLOCK, 1).0, Status::Ok);
}

#[test]
fn a_request_that_ends_early_ends_after_its_children() {
    let slow = open_device("null:size=1M,latency=30ms,complete=timer").expect("a null device");
    let driver = does(|rq, _| {
        let memory = Memory::OfRequest(0..rq.bytes() as usize);
        assert!(rq.send(Child { lower: 0, op: Op::Write, fua: false, sector: 0, memory, number: 0 }).is_ok());
        Step::End(Status::Medium)
    });
    let mut rig = Rig::new(&stacked("early", driver, vec![slow]));
    let start = Instant::now();
    assert_eq!(rig.run(Op::Write, 0, BLOCK, 1).0, Status::Medium);
    assert!(start.elapsed() >= Duration::from_millis(30), "its memory was below until then");
}

#[test]
fn a_ring_of_few_bios_ends_stacks_of_four_levels() {
    let mut device = open_device("linear:over=ram:size=512k,bs=512+ram:size=512k,bs=512").expect("a linear device");
    for level in 0..4 {
        device = stacked(&format!("level {level}"), sends(0, |bytes| Memory::OfRequest(0..bytes)), vec![device]);
    }
    let mut rig = Rig::with_bios(&device, 2);
    for at in 0..32 {
        rig.send(Op::Write, at * 64, 32 << 10, at as u8);
    }
    // The write crosses from the first leg to the second.
    rig.send(Op::Write, 1000, 32 << 10, 77);
    rig.send(Op::Flush, 0, 0, 0);
    assert!(rig.wait_all().iter().all(|status| status.is_ok()));
    assert!(rig.run(Op::Read, 1000, 32 << 10, 0).1.iter().all(|&byte| byte == 77));
    let fifth = stacked("fifth", sends(0, |_| Memory::None(0)), vec![device]);
    let error = rig.ctx.attach(&fifth).expect_err("too deep").to_string();
    assert!(error.contains("limit is 4"), "{error}");
}

#[test]
fn a_ring_that_goes_in_mid_io_ends_all() {
    for below in [
        "null:size=1M,latency=20ms,complete=timer",
        "null:size=1M,latency=5ms,complete=thread",
        "fault:seed=1,stuck=1,over=ram:size=1M",
    ] {
        let below = open_device(below).expect(below);
        let device = stacked("over", sends(0, |bytes| Memory::OfRequest(0..bytes)), vec![below.clone()]);
        let device = stacked("over", sends(0, |bytes| Memory::OfRequest(0..bytes)), vec![device]);
        let mut rig = Rig::new(&device);
        (0..20).for_each(|at| _ = rig.send(Op::Write, at * 8, BLOCK, 0));
        rig.poll();
        drop(rig); // asserts that all have ended
        let mut rig = Rig::new(&device);
        let beside = rig.ctx.attach(&below).expect("attached a second time");
        (0..20).for_each(|at| _ = rig.send(Op::Write, at * 8, BLOCK, 0));
        rig.poll();
        let bdev = rig.bdev;
        if !below.name().starts_with("fault") {
            let ended = &mut rig.ended;
            rig.ctx.detach(bdev, &mut |owner, status| ended.push((owner, status)));
            assert_eq!(rig.ended.len(), 20, "what is below has another user, and is waited for");
            assert!(rig.ctx.device(beside).is_some());
        }
    }
}

#[test]
fn a_device_below_that_is_frozen_is_waited_for() {
    let below = ram();
    let device = stacked("over", sends(0, |bytes| Memory::OfRequest(0..bytes)), vec![below.clone()]);
    let mut rig = Rig::new(&device);
    let guards = below.freeze(Duration::from_secs(1)).expect("idle");
    rig.send(Op::Write, 0, BLOCK, 1);
    (0..10).for_each(|_| rig.poll());
    assert_eq!((rig.ended.len(), device.in_flight().total()), (0, 1));
    drop(guards);
    assert_eq!(rig.wait_all(), [Status::Ok]);
}

#[test]
fn an_id_of_an_earlier_use_of_a_slot_names_nothing() {
    let mut driver = does(|rq, ids| {
        ids.push(rq.id());
        Step::Wait
    });
    driver.waits = WaitsFor::Now;
    driver.poll = Some(Arc::new(|rqs, ids| {
        let (Some(&first), Some(&last)) = (ids.first(), ids.last()) else { return };
        if first != last && first.slot() == last.slot() {
            assert!(rqs.get(first).is_none() && !rqs.end(first, Status::Medium), "its slot is another request's now");
        }
        rqs.end(last, Status::Ok);
    }));
    let mut rig = Rig::new(&device("reuses", driver));
    // One at a time, more than there are slots: each slot is used again.
    (0..40).for_each(|at| assert_eq!(rig.run(Op::Write, at * 8, BLOCK, 0).0, Status::Ok));
}

#[test]
fn a_ring_that_sleeps_with_a_plug_open_sends_every_level() {
    let mut device = ram();
    for level in 0..4 {
        device = stacked(&format!("level {level}"), sends(0, |bytes| Memory::OfRequest(0..bytes)), vec![device]);
    }
    let mut rig = Rig::new(&device);
    rig.ctx.start_plug(4);
    rig.send(Op::Write, 0, BLOCK, 1);
    let start = Instant::now();
    while rig.ended.is_empty() {
        // No poll before the sleep, so that only the sleep sends the gathered request.
        rig.ctx.wait(1, Some(LONG));
        assert!(start.elapsed() < LONG, "nothing was sent, and nothing woke the ring");
        rig.poll();
    }
    rig.ctx.finish_plug();
    assert_eq!(rig.wait_all(), [Status::Ok]);
}

/// A driver with limits of 0 and the largest possible size.
#[derive(Debug)]
struct Endless;

impl SafeDriver for Endless {
    fn limits(&self) -> Limits {
        let none = Limits::default().logical_block(0).physical_block(0).dma_alignment(0);
        none.max_sectors(0).max_segments(0).queue_depth(0)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    fn size_bytes(&self) -> u64 {
        u64::MAX
    }

    fn open_queue(&self, _: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        Ok(Box::new(does(|_, _| Step::End(Status::Ok))))
    }
}

#[test]
fn a_driver_may_claim_no_limits_and_the_largest_size() {
    let mut rig = Rig::new(&super::device("endless", Endless));
    let sectors = u64::MAX >> 9;
    assert_eq!(rig.run(Op::Read, sectors - 8, BLOCK, 0).0, Status::Ok, "a sector at a time");
    for sector in [sectors - 7, sectors, u64::MAX - 7, u64::MAX] {
        assert_eq!(rig.run(Op::Read, sector, BLOCK, 0).0, Status::IoErr, "{sector}");
    }
}
