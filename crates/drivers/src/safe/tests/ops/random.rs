//! Drivers that begin, cancel and end operations and requests at random, over sockets that receive data at random, in
//! rings that are dropped at any time.

use std::io::Write;
use std::os::unix::net::UnixStream;

use sheave_base::rng::Rng;

use super::*;

/// Returns a driver that begins, cancels and ends at random, with tokens and ids of any age.
fn at_random(seed: u64, fds: Vec<Fd>) -> Does {
    let rng = Arc::new(Mutex::new(Rng::new(seed)));
    let step = move |rqs: &mut Polled<'_>, seen: &mut Seen| {
        let mut rng = rng.lock().expect("nobody panics with it");
        for _ in 0..rng.below(4) {
            let fd = &fds[rng.below(fds.len() as u64) as usize];
            let any = |rng: &mut Rng, of: usize| rng.below(of.max(1) as u64) as usize;
            let id = seen.ids.get(any(&mut rng, seen.ids.len())).copied();
            let begun = match (rng.below(8), id) {
                (0, _) => rqs.timer(Duration::from_micros(rng.below(2000))).ok(),
                (1, _) => rqs.watch(fd).ok(),
                (2, _) => rqs.receive_any(fd).ok(),
                (3 | 4, Some(id)) => {
                    let mut memory = Vec::new();
                    let range = rng.below(4) as usize * 512..BLOCK - rng.below(4) as usize * 512;
                    let reads = rqs.get(id).is_some_and(|rq| rq.op() == Op::Read && rq.note() == 0);
                    if !reads || rqs.memory(id, range, &mut memory).is_err() {
                        continue;
                    }
                    let kind = [TransferKind::Receive, TransferKind::ReceiveAll][rng.below(2) as usize];
                    // SAFETY: the request is held, and its note shows that no other transfer uses its memory.
                    let begun = unsafe { rqs.transfer(Transfer::new(kind, fd, &memory, &[id])) }.ok();
                    if let (Some(mut rq), true) = (rqs.get(id), begun.is_some()) {
                        rq.set_note(1);
                    }
                    begun
                }
                (5, Some(id)) => {
                    rqs.end(id, Status::Ok);
                    None
                }
                _ => {
                    if let Some(&token) = seen.tokens.get(any(&mut rng, seen.tokens.len())) {
                        let ended = seen.ends.iter().any(|end| end.0 == token && !end.2);
                        assert_eq!(rqs.cancel(token), !ended, "a token names its operation until that has ended");
                    }
                    None
                }
            };
            seen.tokens.extend(begun);
        }
    };
    let mut driver = driver(6).on_commit(step.clone()).on_poll(step.clone());
    driver.wants = Some(KernelUse::new(6).receive_buffers(2, 256));
    driver.on_end(move |rqs, seen, end| {
        let twice = seen.ends.iter().filter(|other| other.0 == end.token && !other.2).count();
        assert!(twice == usize::from(!end.more), "an operation ends once, and says nothing afterwards");
        step(rqs, seen);
    })
}

#[test]
fn whatever_a_driver_begins_cancels_and_ends_each_operation_and_request_ends_once() {
    for seed in 0..150 {
        let mut rng = Rng::new(1000 + seed);
        let (mut nears, fars): (Vec<UnixStream>, Vec<Fd>) = (0..2).map(|_| pair()).unzip();
        nears.iter().for_each(|near| near.set_nonblocking(true).expect("set"));
        let driver = at_random(seed, fars);
        if rig(&driver).is_none() {
            return;
        }
        let timeout = Duration::from_millis(20 + rng.below(40));
        let mut rig = Rig::new(&with_timeout("random", driver.clone(), Vec::new(), timeout));
        for _ in 0..rng.below(60) {
            match rng.below(4) {
                0 => _ = rig.send(Op::Read, rng.below(100) * 16, BLOCK, 9),
                1 => {
                    let near = &mut nears[rng.below(2) as usize];
                    _ = near.write(&vec![5; rng.below(3000) as usize]); // as far as there is room
                }
                2 => rig.ctx.wait(1, Some(Duration::from_micros(rng.below(3000)))),
                _ => rig.poll(),
            }
        }
        if rng.below(2) == 0 {
            rig.wait_all();
        }
        let poisoned = driver.seen.is_poisoned();
        assert!(!poisoned, "seed {seed}: the driver found something wrong");
        let of = |rig: &Rig, owner: u32| rig.memory[owner as usize].clone();
        let ended: Vec<(u32, Vec<u8>)> = rig.ended.iter().map(|end| (end.0, of(&rig, end.0))).collect();
        nears.iter_mut().for_each(|near| _ = near.write(&[6; 512]));
        rig.poll();
        rig.ctx.wait(1, Some(Duration::from_micros(200)));
        for (owner, before) in ended {
            assert!(of(&rig, owner) == before, "seed {seed}: the memory of {owner} was written to after its end");
        }
        drop(rig); // asserts that each request has ended, once
        assert!(driver.seen().gone, "seed {seed}");
    }
}
