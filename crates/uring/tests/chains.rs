//! Links, hard links, drains and skips: all short programs against the rules of docs/reference/compat.md, and chains
//! that wait for a device.

use std::time::Duration;

use sheave_drivers::open_device;
use sheave_uring::sqe::{
    IOSQE_ASYNC as ASYNC, IOSQE_CQE_SKIP_SUCCESS as SKIP, IOSQE_IO_DRAIN as DRAIN, IOSQE_IO_HARDLINK as HARD,
    IOSQE_IO_LINK as LINK, Sqe, opcode,
};
use sheave_uring::{Ring, RingError, prep};

use crate::support::{Puppet, bad, nop, nop_result, push, reaped, ring, run, rw};

const EINVAL: i32 = -22;
const EOPNOTSUPP: i32 = -95;
const ECANCELED: i32 = -125;

/// Result of a NOP of a program, if it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Well,
    Fails,
    Refused,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    end: End,
    flags: u8,
}

impl Step {
    fn sqe(self, user_data: u64) -> Sqe {
        match self.end {
            End::Well => nop(user_data, self.flags),
            End::Fails => nop_result(user_data, self.flags, -5),
            End::Refused => bad(user_data, self.flags),
        }
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Computes the results of a chain, member by member; `None` is no CQE. `refused` has the errors of prep.
fn chain_answers(steps: &[Step], refused: &[Option<i32>]) -> Vec<Option<i32>> {
    if refused.iter().any(Option::is_some) {
        let all = refused.iter().map(|refused| Some(refused.unwrap_or(ECANCELED)));
        let silent = steps[0].has(SKIP);
        return all.enumerate().map(|(n, res)| if silent && n > 0 { None } else { res }).collect();
    }
    let mut rest = None;
    let answer = |step: &Step| {
        if let Some(silent) = rest {
            return if silent { None } else { Some(ECANCELED) };
        }
        let failed = step.end == End::Fails;
        if failed && !step.has(HARD) {
            rest = Some(step.has(SKIP));
        }
        if failed { Some(-5) } else { (!step.has(SKIP)).then_some(0) }
    };
    steps.iter().map(answer).collect()
}

/// Computes the results of a program: one per SQE, or no CQE.
fn answers(program: &[Step]) -> Vec<Option<i32>> {
    let mut skip_seen = false;
    let mut refused = Vec::new();
    for step in program {
        skip_seen |= step.has(SKIP);
        refused.push(match step.end {
            _ if step.has(DRAIN) && skip_seen => Some(EOPNOTSUPP),
            End::Refused => Some(EINVAL),
            _ => None,
        });
    }
    chains(program).into_iter().flat_map(|chain| chain_answers(&program[chain.clone()], &refused[chain])).collect()
}

/// Splits a program into chains. An SQE that is not linked is a chain of one.
fn chains(program: &[Step]) -> Vec<std::ops::Range<usize>> {
    let mut all = Vec::new();
    let mut start = 0;
    for (n, step) in program.iter().enumerate() {
        if !step.has(LINK | HARD) || n + 1 == program.len() {
            all.push(start..n + 1);
            start = n + 1;
        }
    }
    all
}

fn check(ring: &mut Ring, program: &[Step]) {
    let sqes: Vec<_> = program.iter().zip(0..).map(|(step, n)| step.sqe(n)).collect();
    let cqes = run(ring, &sqes);
    let mut expected = answers(program).into_iter().zip(0..).collect::<Vec<_>>();
    expected.retain(|(res, _)| res.is_some());
    let expected: Vec<_> = expected.into_iter().map(|(res, n): (_, u64)| (n, res.expect("retained"))).collect();
    let mut by_number = cqes.clone();
    by_number.sort_unstable();
    assert_eq!(by_number, expected, "{program:?} answered {cqes:?}");
    check_order(program, &cqes);
}

/// Checks the order of CQEs. Those of a chain come in its order; if no SQE is refused, those of a draining chain come
/// after all before it and before all after it.
fn check_order(program: &[Step], cqes: &[(u64, i32)]) {
    let chains = chains(program);
    let chain_of = |n: u64| chains.iter().position(|chain| chain.contains(&(n as usize))).expect("of some chain");
    let drains = |chain: usize| program[chains[chain].clone()].iter().any(|step| step.has(DRAIN));
    let all_run = program.iter().all(|step| step.end != End::Refused && !step.has(SKIP));
    for (at, &(first, _)) in cqes.iter().enumerate() {
        for &(second, _) in &cqes[at + 1..] {
            let (a, b) = (chain_of(first), chain_of(second));
            let ordered = a == b || (all_run && (a.min(b)..=a.max(b)).any(drains));
            assert!(first < second || !ordered, "{program:?} answered {cqes:?}");
        }
    }
}

/// Returns all programs of `len` steps with these flags.
fn programs(len: u32, flags: &[u8]) -> impl Iterator<Item = Vec<Step>> {
    let steps: Vec<Step> = [End::Well, End::Fails, End::Refused]
        .into_iter()
        .flat_map(|end| flags.iter().map(move |&flags| Step { end, flags }))
        .collect();
    let count = steps.len();
    (0..count.pow(len)).map(move |n| (0..len).map(|at| steps[n / count.pow(at) % count]).collect())
}

#[test]
fn every_program_of_links_and_skips() {
    let flags = [0, LINK, HARD, LINK | HARD, SKIP, LINK | SKIP, HARD | SKIP];
    let mut ring = ring();
    for len in 1..=3 {
        programs(len, &flags).for_each(|program| check(&mut ring, &program));
    }
    let longer: Vec<_> = programs(4, &[LINK, HARD | SKIP, 0]).collect();
    longer.iter().for_each(|program| check(&mut ring, program));
}

#[test]
fn every_program_with_drains() {
    let flags = [0, LINK, DRAIN, DRAIN | LINK, HARD | DRAIN];
    let mut ring = ring();
    for len in 1..=3 {
        programs(len, &flags).for_each(|program| check(&mut ring, &program));
    }
    // A skip disables drains for its ring, so each of these programs has its own ring.
    for program in programs(2, &[DRAIN, SKIP, DRAIN | SKIP, LINK | DRAIN]) {
        check(&mut crate::support::ring(), &program);
    }
}

#[test]
fn a_chain_ends_with_its_submit() {
    let mut ring = ring();
    assert_eq!(run(&mut ring, &[nop_result(1, LINK, -5)]), [(1, -5)]);
    assert_eq!(run(&mut ring, &[nop(2, 0)]), [(2, 0)], "not a member of the chain before");
}

/// Returns a ring, its device, which holds requests, and a function that makes reads of the device.
fn held(spin: Duration) -> (Ring, Puppet, impl Fn(u64, u8) -> Sqe) {
    let puppet = Puppet::new().holding();
    let mut ring = Ring::builder().entries(16).spin(spin).build().expect("a ring");
    let fd = ring.attach(&puppet.device()).expect("attach");
    let read = move |user_data, flags| Sqe { flags, ..rw(opcode::READ, fd, 0, 1 << 24, 4096, user_data) };
    (ring, puppet, read)
}

fn submit(ring: &mut Ring, sqes: &[Sqe]) -> Vec<(u64, i32)> {
    push(ring, sqes);
    assert_eq!(ring.submit().expect("slots are free") as usize, sqes.len());
    reaped(ring)
}

fn let_go(ring: &mut Ring, puppet: &Puppet, requests: u32) -> Vec<(u64, i32)> {
    puppet.script().finish = requests;
    ring.reap();
    ring.reap();
    reaped(ring)
}

#[test]
fn a_drain_waits_for_all_before_it_and_all_after_it_wait() {
    let (mut ring, puppet, read) = held(Duration::ZERO);
    let sqes = [read(1, 0), read(2, 0), nop(3, DRAIN), nop(4, 0), bad(5, 0), nop(6, 0)];
    assert_eq!(submit(&mut ring, &sqes), [(5, EINVAL)], "who is refused does not wait");
    assert_eq!(submit(&mut ring, &[nop(7, 0)]), [], "also what is submitted later");
    assert_eq!(ring.in_flight(), 6);
    assert_eq!(let_go(&mut ring, &puppet, 1), [(1, 4096)]);
    assert_eq!(let_go(&mut ring, &puppet, 1), [(2, 4096), (3, 0), (4, 0), (6, 0), (7, 0)]);
    assert_eq!(submit(&mut ring, &[nop(8, 0)]), [(8, 0)], "and then nothing waits");
}

#[test]
fn a_drained_read_is_itself_waited_for() {
    let (mut ring, puppet, read) = held(Duration::ZERO);
    assert_eq!(submit(&mut ring, &[nop(1, 0), read(2, DRAIN), nop(3, 0), nop(4, DRAIN)]), [(1, 0)]);
    assert_eq!(puppet.script().seen.len(), 1, "nothing was before it, so it has started");
    assert_eq!(let_go(&mut ring, &puppet, 1), [(2, 4096), (3, 0), (4, 0)]);
}

#[test]
fn a_drain_in_a_chain_drains_its_head_and_what_follows_the_chain() {
    let (mut ring, puppet, read) = held(Duration::ZERO);
    let sqes = [read(1, 0), nop(2, LINK), nop(3, LINK | DRAIN), read(4, 0), nop(5, 0)];
    assert_eq!(submit(&mut ring, &sqes), []);
    assert_eq!(let_go(&mut ring, &puppet, 1), [(1, 4096), (2, 0), (3, 0)]);
    assert_eq!(let_go(&mut ring, &puppet, 1), [(4, 4096), (5, 0)]);
}

#[test]
fn a_refused_drain_makes_what_follows_wait_unless_it_is_unknown() {
    for (sqe, res, waits) in [
        (bad(2, DRAIN), EINVAL, true),
        (Sqe { personality: 1, ..nop(2, DRAIN) }, EINVAL, true),
        (Sqe { opcode: 200, ..nop(2, DRAIN) }, EINVAL, false),
        (nop(2, DRAIN | 0x80), EINVAL, false),
        (nop(2, DRAIN | 0x20), EOPNOTSUPP, false),
    ] {
        let (mut ring, puppet, read) = held(Duration::ZERO);
        let mut now = vec![(2, res)];
        now.extend((!waits).then_some((3, 0)));
        assert_eq!(submit(&mut ring, &[read(1, 0), sqe, nop(3, 0)]), now, "{sqe:?}");
        let mut then = vec![(1, 4096)];
        then.extend(waits.then_some((3, 0)));
        assert_eq!(let_go(&mut ring, &puppet, 1), then, "{sqe:?}");
    }
}

#[test]
fn drain_ends_when_its_dependants_start() {
    let (mut ring, puppet, read) = held(Duration::ZERO);
    // The read starts when the NOP has ended, in a reap. Once it is in flight, the drain holds back nothing.
    assert_eq!(submit(&mut ring, &[nop(1, DRAIN), read(2, 0)]), [(1, 0)]);
    assert_eq!(puppet.script().seen.len(), 1);
    assert_eq!(submit(&mut ring, &[nop(3, 0)]), [(3, 0)]);
    assert_eq!(let_go(&mut ring, &puppet, 1), [(2, 4096)]);
    let cancel = Sqe { opcode: opcode::ASYNC_CANCEL, addr: 5, user_data: 6, ..Sqe::default() };
    // A cancel behind an ended drain does not wait for the request it cancels.
    push(&mut ring, &[nop(4, DRAIN)]);
    ring.push(prep::timeout(Duration::from_secs(60)).user_data(5)).expect("room");
    assert_eq!(ring.submit().expect("slots are free"), 2);
    assert_eq!(reaped(&mut ring), [(4, 0)]);
    let mut ended = submit(&mut ring, &[cancel]);
    ended.sort_unstable();
    assert_eq!(ended, [(5, ECANCELED), (6, 0)]);
}

#[test]
fn refused_drain_stays_active_behind_deferred_request() {
    let (mut ring, puppet, read) = held(Duration::ZERO);
    // The read of 3 waits for the drain of 2. The refused drain comes meanwhile.
    let sqes = [read(1, 0), nop(2, DRAIN), read(3, 0), bad(4, DRAIN)];
    assert_eq!(submit(&mut ring, &sqes), [(4, EINVAL)]);
    assert_eq!(let_go(&mut ring, &puppet, 1), [(1, 4096), (2, 0)]);
    assert_eq!(submit(&mut ring, &[nop(5, 0)]), [], "it waits for the read");
    assert_eq!(let_go(&mut ring, &puppet, 1), [(3, 4096), (5, 0)]);
}

#[test]
fn a_chain_waits_for_its_device_and_a_short_read_breaks_it() {
    let (mut ring, puppet, read) = held(Duration::ZERO);
    let short = |user_data, flags| Sqe { off: puppet.size - 512, ..read(user_data, flags) };
    assert_eq!(submit(&mut ring, &[read(1, LINK), nop(2, LINK), short(3, LINK), nop(4, 0)]), []);
    assert_eq!(let_go(&mut ring, &puppet, 1), [(1, 4096), (2, 0)]);
    assert_eq!(let_go(&mut ring, &puppet, 1), [(3, 512), (4, ECANCELED)]);
    // Hard links go on after a failure. A skip does not suppress the CQE of a short read.
    assert_eq!(submit(&mut ring, &[short(1, HARD | SKIP), read(2, SKIP | LINK), nop(3, 0)]), []);
    assert_eq!(let_go(&mut ring, &puppet, 2), [(1, 512), (3, 0)]);
}

#[test]
fn inline_end_within_reap_starts_deferred_drain() {
    // The NOP ends within the reap that ended the read before it in the chain. The drain waits for nothing else, so the
    // ring must not sleep.
    for spec in ["null:latency=2ms", "null:latency=2ms,complete=thread"] {
        let mut ring = Ring::builder().entries(8).spin(Duration::ZERO).build().expect("a ring");
        let fd = ring.attach(&open_device(spec).expect("null")).expect("attach");
        let read = Sqe { flags: LINK, ..rw(opcode::READ, fd, 0, 1 << 24, 4096, 1) };
        push(&mut ring, &[read, nop(2, 0), nop(3, DRAIN), nop(4, 0)]);
        ring.submit_and_wait(4).expect("slots are free");
        assert_eq!(reaped(&mut ring), [(1, 4096), (2, 0), (3, 0), (4, 0)], "{spec}");
    }
}

#[test]
fn a_length_above_the_most_is_cut_and_breaks_no_link() {
    const MOST: i32 = 0x7fff_f000;
    let mut ring = ring();
    // The device accesses no memory.
    let device = open_device("null:size=1T").expect("a device");
    let fd = ring.attach(&device).expect("attached");
    let memory = crate::support::buf(4096);
    for len in [MOST as u32, 0x8000_0000, u32::MAX] {
        for flags in [0, ASYNC] {
            let write = rw(opcode::WRITE, fd, 0, memory.as_ptr() as u64, len, 1);
            let cqes = run(&mut ring, &[Sqe { flags: flags | LINK, ..write }, nop(2, 0)]);
            assert_eq!(cqes, [(1, MOST), (2, 0)], "{len:#x}, flags {flags}");
        }
    }
}

/// A write and its linked fsync, with a single free slot: taken alone, the fsync would not wait for the write.
#[test]
fn a_chain_is_submitted_whole_or_not_at_all() {
    let mut ring = Ring::builder().entries(8).in_flight(4).build().expect("a ring");
    let far = std::time::Duration::from_secs(60);
    for at in 0..3 {
        ring.push(prep::timeout(far).user_data(at)).expect("room");
    }
    assert_eq!(ring.submit().expect("there are slots"), 3);
    ring.push(prep::nop().user_data(10).link()).expect("room");
    ring.push(prep::nop().user_data(11).link()).expect("room");
    ring.push(prep::nop().user_data(12)).expect("room");
    assert!(ring.submit().is_err(), "one slot is free, and the chain wants three");
    assert_eq!((ring.in_flight(), ring.completions().count()), (3, 0));
    ring.cancel(prep::Cancel::everything()).expect("the timeouts");
    assert_eq!(ring.completions().count(), 3);
    ring.submit_and_wait(3).expect("there are slots");
    assert_eq!(ring.completions().map(|done| done.user_data).collect::<Vec<_>>(), [10, 11, 12]);
    // SQEs before a chain that does not fit are taken without it.
    for at in 0..4 {
        let nop = prep::timeout(far).user_data(at);
        ring.push(if at < 2 { nop } else { nop.link() }).expect("room");
    }
    ring.push(prep::nop().user_data(4)).expect("room");
    assert_eq!(ring.submit().expect("there are slots"), 2);
    ring.cancel(prep::Cancel::everything()).expect("the timeouts");
    assert_eq!(ring.completions().count(), 2);
}

const E2BIG: i32 = -7;

/// Returns the two kinds of rings that take no more than two SQEs at once.
fn narrow() -> [Ring; 2] {
    [Ring::builder().entries(8).in_flight(2), Ring::builder().entries(8).cq_entries(2)]
        .map(|builder| builder.build().unwrap())
}

#[test]
fn a_chain_that_a_ring_could_never_take_comes_back_whole() {
    for mut ring in narrow() {
        let fd = ring.attach(&open_device("ram:size=1M").unwrap()).unwrap();
        let chain = || [prep::write(fd, vec![7u8; 4096]).into(), prep::fsync(fd).into(), prep::nop().into()];
        let refused = ring.push_chain(chain()).unwrap_err();
        assert!(matches!(refused.error, RingError::ChainTooLong { len: 3, most: 2, .. }), "{:?}", refused.error);
        let [first, _, _] = refused.entry;
        assert_eq!(first.into_memory(), Some(vec![7u8; 4096]), "its memory comes back");
        // No part of it was queued. A chain that fits is taken.
        assert_eq!((ring.sq_space(), ring.submit().unwrap()), (8, 0));
        ring.push_chain([prep::write(fd, vec![7u8; 4096]).into(), prep::fsync(fd).into()]).unwrap();
        assert_eq!((ring.submit_and_wait(2).unwrap(), ring.completions().count()), (2, 2));
        // Also refused behind an operation that is linked to it, but accepted behind one that is not.
        ring.push(prep::nop().link()).unwrap();
        let two = || [prep::nop().into(), prep::nop().into()];
        let refused = ring.push_chain(two()).unwrap_err();
        assert!(matches!(refused.error, RingError::ChainTooLong { len: 3, most: 2, .. }), "{:?}", refused.error);
        ring.push(prep::nop()).unwrap();
        ring.push_chain(two()).unwrap();
        let mut seen = 0;
        while seen < 4 {
            ring.submit_and_wait(1).unwrap();
            seen += ring.completions().inspect(|done| assert_eq!(done.res, 0)).count();
        }
    }
    // A chain with more members than entries is also refused at once.
    let mut ring = Ring::builder().entries(2).build().unwrap();
    let refused = ring.push_chain([(); 3].map(|()| prep::nop().into())).unwrap_err();
    assert!(matches!(refused.error, RingError::ChainTooLong { len: 3, most: 2, .. }), "{:?}", refused.error);
    ring.push(prep::nop()).unwrap();
    let full = ring.push_chain([(); 2].map(|()| prep::nop().into())).unwrap_err();
    assert!(matches!(full.error, RingError::SqFull));
}

#[test]
fn too_long_chain_gives_e2big_at_submit() {
    for mut ring in narrow() {
        let fd = ring.attach(&open_device("ram:size=1M").unwrap()).unwrap();
        let ends = |ring: &mut Ring| {
            let mut ends = Vec::new();
            while ring.submit_and_wait(1).unwrap() > 0 || ring.in_flight() > 0 || ring.cq_overflowed() {
                ends.extend(ring.completions().map(|done| (done.user_data, done.res)));
            }
            ends.extend(ring.completions().map(|done| (done.user_data, done.res)));
            assert_eq!(ring.sq_space(), 8, "all was taken");
            ends
        };
        // The SQEs around the chain run.
        push(&mut ring, &[nop(1, 0), nop(2, LINK), nop(3, HARD), nop(4, 0), nop(5, 0)]);
        assert_eq!(ends(&mut ring), [(1, 0), (2, E2BIG), (3, ECANCELED), (4, ECANCELED), (5, 0)]);
        // The skip flag of the head covers the whole chain.
        push(&mut ring, &[nop(1, LINK | SKIP), nop(2, LINK), nop(3, 0), nop(4, 0)]);
        assert_eq!(ends(&mut ring), [(1, E2BIG), (4, 0)]);
        // An open link at the end counts towards the length.
        push(&mut ring, &[nop(1, LINK), nop(2, LINK), nop(3, LINK)]);
        assert_eq!(ends(&mut ring), [(1, E2BIG), (2, ECANCELED), (3, ECANCELED)]);
        // Memory comes back with the completions.
        for n in 0..3u8 {
            let write = prep::write(fd, vec![n; 512]).user_data(n.into());
            ring.push(if n < 2 { write.link() } else { write }).unwrap();
        }
        ring.submit().unwrap();
        for n in 0..3u8 {
            let done = ring.pop().or_else(|| ring.pop()).expect("one a member");
            assert_eq!((done.user_data, done.res), (n.into(), if n == 0 { E2BIG } else { ECANCELED }));
            assert_eq!(done.into_memory(), Some(vec![n; 512]));
        }
    }
}

#[test]
fn a_refused_chain_that_drains_makes_the_next_request_wait_all_the_same() {
    let puppet = Puppet::new();
    let mut ring = Ring::builder().entries(8).in_flight(2).build().unwrap();
    let fd = ring.attach(&puppet.device()).unwrap();
    let mut memory = vec![0u8; 4096];
    puppet.script().finish = 0;
    let read = rw(opcode::READ, fd, 0, memory.as_mut_ptr() as u64, 4096, 1);
    push(&mut ring, &[read, nop(2, LINK), nop(3, LINK | DRAIN), nop(4, 0), nop(5, 0)]);
    let taken = |ring: &mut Ring| ring.completions().map(|done| (done.user_data, done.res)).collect::<Vec<_>>();
    assert_eq!(ring.submit().unwrap(), 5);
    assert_eq!(taken(&mut ring), [(2, E2BIG), (3, ECANCELED), (4, ECANCELED)]);
    puppet.script().finish = u32::MAX;
    ring.submit_and_wait(2).unwrap();
    assert_eq!(taken(&mut ring), [(1, 4096), (5, 0)]);
}
