//! The layout of ring memory, compared with the kernel's if that can be read, and both queues against a model.

use std::collections::VecDeque;
use std::mem::offset_of;

use super::*;
use crate::req::Req;
use crate::sqe::SQ_CQ_OVERFLOW;

/// A deterministic stream of small numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn sqe(user_data: u64) -> Sqe {
    Sqe { user_data, ..Sqe::default() }
}

fn cqe(user_data: u64) -> Cqe {
    Cqe { user_data, res: -(user_data as i32), flags: 0 }
}

#[test]
fn entries_have_the_layout_of_the_uapi() {
    assert_eq!((size_of::<Sqe>(), size_of::<Cqe>()), (64, 16));
    let sqe = [
        (offset_of!(Sqe, opcode), 0),
        (offset_of!(Sqe, flags), 1),
        (offset_of!(Sqe, ioprio), 2),
        (offset_of!(Sqe, fd), 4),
        (offset_of!(Sqe, off), 8),
        (offset_of!(Sqe, addr), 16),
        (offset_of!(Sqe, len), 24),
        (offset_of!(Sqe, op_flags), 28),
        (offset_of!(Sqe, user_data), 32),
        (offset_of!(Sqe, buf_index), 40),
        (offset_of!(Sqe, personality), 42),
        (offset_of!(Sqe, splice_fd_in), 44),
        (offset_of!(Sqe, addr3), 48),
        (offset_of!(Sqe, pad2), 56),
    ];
    assert!(sqe.iter().all(|(ours, uapi)| ours == uapi), "{sqe:?}");
    let cqe = [offset_of!(Cqe, user_data), offset_of!(Cqe, res), offset_of!(Cqe, flags)];
    assert_eq!(cqe, [0, 8, 12]);
}

#[test]
fn a_request_in_flight_takes_at_most_640_bytes() {
    let slot_and_kiocb = size_of::<Req>();
    assert!(offset_of!(Req, kiocb) + size_of::<sheave_iomap::Kiocb>() <= slot_and_kiocb, "the slot holds the kiocb");
    let bio = size_of::<sheave_blk::bio::Bio>();
    let block_request = size_of::<sheave_blk::request::Request>();
    let cold = size_of::<crate::core::Cold>();
    let all = slot_and_kiocb + cold + bio + block_request;
    assert!(all <= 640, "slot {slot_and_kiocb} (its cold part {cold}), bio {bio}, block request {block_request}");
}

/// Returns `sq_off` and `cq_off` of a kernel ring of these sizes, in the order of the UAPI; `None` if io_uring is
/// forbidden.
fn kernel_offsets(sq: u32, cq: u32) -> Option<([u32; 7], [u32; 6])> {
    const SETUP_CQSIZE: u32 = 1 << 3;
    // `struct io_uring_params`: sizes and flags in 10 words, then two structures of 10.
    let mut params = [0_u32; 30];
    (params[1], params[2]) = (cq, SETUP_CQSIZE);
    // SAFETY: the array is as long and as aligned as the structure.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, sq, params.as_mut_ptr()) };
    if fd < 0 {
        return None;
    }
    // SAFETY: it was opened above and is nobody else's.
    unsafe { libc::close(fd as i32) };
    Some((params[10..17].try_into().ok()?, params[20..26].try_into().ok()?))
}

/// Returns the offsets in the kernel's `struct io_rings` with heads and tails `line` bytes apart: a cache line in the
/// first kernels with rings (and here), a word in later ones. All other fields stayed in place.
fn uapi_offsets(line: u32, cq: u32) -> ([u32; 7], [u32; 6]) {
    let fixed = 4 * line;
    let cqes = (fixed + 32).next_multiple_of(64);
    let array = (cqes + 16 * cq).next_multiple_of(64);
    let sq = [0, line, fixed, fixed + 8, fixed + 20, fixed + 16, array];
    (sq, [2 * line, 3 * line, fixed + 4, fixed + 12, fixed + 28, cqes])
}

#[test]
fn ring_memory_has_the_kernels_layout() {
    for (sq, cq) in [(1, 2), (8, 16), (128, 256), (256, 4096)] {
        let at = Offsets::new(sq, cq);
        let ours_sq =
            [at.sq_head, at.sq_tail, at.sq_ring_mask, at.sq_ring_entries, at.sq_flags, at.sq_dropped, at.sq_array];
        let ours_cq = [at.cq_head, at.cq_tail, at.cq_ring_mask, at.cq_ring_entries, at.cq_overflow, at.cqes];
        let ours = (ours_sq.map(|at| at as u32), ours_cq.map(|at| at as u32));
        assert_eq!(ours, uapi_offsets(64, cq), "SQ of {sq}, CQ of {cq}");
        let Some(kernel) = kernel_offsets(sq, cq) else {
            return sheave_testkit::skip("io_uring is not allowed here, so the kernel cannot be asked for its layout");
        };
        assert_eq!(kernel, uapi_offsets(kernel.0[1], cq), "SQ of {sq}, CQ of {cq}");
    }
}

#[test]
fn offsets_are_aligned_and_do_not_overlap() {
    for (sq, cq) in [(1, 1), (1, 2), (2, 64), (64, 64), (4096, 8192), (32768, 65536)] {
        let at = Offsets::new(sq, cq);
        let words = [at.sq_head, at.sq_tail, at.cq_head, at.cq_tail, at.sq_ring_mask, at.cq_ring_mask];
        let more = [at.sq_ring_entries, at.cq_ring_entries, at.sq_dropped, at.sq_flags, at.cq_overflow];
        let mut ranges: Vec<_> = words.iter().chain(&more).map(|&start| (start, start + 4)).collect();
        ranges.push((at.cqes, at.cqes + cq as usize * 16));
        ranges.push((at.sq_array, at.sq_array + sq as usize * 4));
        ranges.push((at.sqes, at.sqes + sq as usize * 64));
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
        assert_eq!(ranges.last().expect("not empty").1, at.total);
        for line in [at.sq_head, at.sq_tail, at.cq_head, at.cq_tail, at.cqes, at.sq_array] {
            assert_eq!(line % LINE, 0, "a cache line of its own");
        }
        assert_eq!(at.sqes % 4096, 0, "SQEs are mapped by themselves");
    }
}

#[test]
fn what_is_in_the_memory_is_what_the_offsets_say() {
    let mut queues = Queues::new(4, 8).unwrap();
    let read = |queues: &Queues, at: usize| {
        let (memory, _) = queues.memory();
        u32::from_ne_bytes(memory[at..at + 4].try_into().expect("4 bytes"))
    };
    let at = Offsets::new(4, 8);
    assert_eq!(read(&queues, at.sq_ring_mask), 3);
    assert_eq!(read(&queues, at.cq_ring_mask), 7);
    assert_eq!(read(&queues, at.sq_ring_entries), 4);
    assert_eq!(read(&queues, at.cq_ring_entries), 8);
    for index in 0..4 {
        assert_eq!(read(&queues, at.sq_array + 4 * index), index as u32);
    }
    *queues.sq_next().unwrap().1 = sqe(0x1122_3344);
    assert_eq!(read(&queues, at.sq_tail), 0, "filled, not published");
    queues.sq_publish();
    assert_eq!(read(&queues, at.sq_tail), 1);
    assert_eq!(read(&queues, at.sqes + 32), 0x1122_3344);
    queues.sq_take(&mut Sqe::default()).unwrap();
    assert_eq!(read(&queues, at.sq_head), 0, "taken, not given back");
    queues.sq_advance();
    assert_eq!(read(&queues, at.sq_head), 1);
    queues.cq_push(cqe(77));
    assert_eq!((read(&queues, at.cq_tail), read(&queues, at.cqes)), (0, 77));
    assert_eq!(queues.cq_publish(), 1);
    assert_eq!(read(&queues, at.cq_tail), 1);
    queues.cq_advance(1);
    assert_eq!(read(&queues, at.cq_head), 1);
    queues.set_sq_flag(SQ_CQ_OVERFLOW, true);
    assert_eq!(read(&queues, at.sq_flags), SQ_CQ_OVERFLOW);
    queues.set_sq_flag(SQ_CQ_OVERFLOW, false);
    assert_eq!((read(&queues, at.sq_flags), queues.sq_flags()), (0, 0));
    assert_eq!(read(&queues, at.cq_overflow), 0);
}

/// Moves both queues to an index, as if `to` entries had passed.
fn wind(queues: &mut Queues, to: u32) {
    (queues.sq_fill, queues.sq_published, queues.sq_head) = (to, to, to);
    (queues.cq_tail, queues.cq_published, queues.cq_head) = (to, to, to);
    for at in [queues.at.sq_head, queues.at.sq_tail, queues.at.cq_head, queues.at.cq_tail] {
        queues.word(at).store(to, Ordering::Relaxed);
    }
}

/// Offers some CQEs at once, numbered from `next` on. Returns the number written.
fn fill(queues: &mut Queues, dice: &mut Dice, cq: &mut VecDeque<u64>, next: u64) -> u64 {
    let (most, offered) = (dice.below(8), dice.below(8));
    let (mut asked, offered) = (0, offered.min(most));
    let filled = u64::from(queues.cq_fill(most as usize, |at| {
        assert_eq!(at as u64, asked, "each once, in order");
        let given = asked < offered;
        asked += u64::from(given);
        given.then(|| cqe(next + at as u64))
    }));
    assert_eq!(filled, asked, "none is lost");
    cq.extend(next..next + filled);
    assert!(filled == offered || cq.len() == 16 || queues.cq_tail() & 15 == 0, "to the end of the row");
    filled
}

/// Asserts that SQEs read in place are those that were published, in order.
fn look_at_rows(queues: &Queues, dice: &mut Dice, published: &VecDeque<u64>) {
    let (most, ahead) = (dice.below(9) as u32, dice.below(published.len() as u64 + 1) as u32);
    let most = most.min(published.len() as u32 - ahead);
    let row: Vec<u64> = queues.sq_row(ahead, most).iter().map(|sqe| sqe.user_data).collect();
    assert!(row.len() as u32 <= most && (row.is_empty() == (most == 0)), "some, if there are any");
    assert!(row.iter().eq(published.iter().skip(ahead as usize).take(row.len())));
}

#[test]
fn both_queues_are_queues_also_where_their_indices_wrap() {
    for (seed, start) in [(1, 0), (2, u32::MAX - 50), (3, 1 << 31), (4, u32::MAX)] {
        let mut queues = Queues::new(8, 16).unwrap();
        wind(&mut queues, start);
        let mut dice = Dice(seed);
        let (mut filled, mut published, mut freed) = (VecDeque::new(), VecDeque::new(), 8);
        let (mut cq, mut shown, mut next) = (VecDeque::new(), 0, 0_u64);
        for _ in 0..20_000 {
            match dice.below(8) {
                0 | 1 => match queues.sq_next() {
                    Some((_, slot)) => {
                        *slot = sqe(next);
                        filled.push_back(next);
                        next += 1;
                        assert!(freed > 0);
                        freed -= 1;
                    }
                    None => assert_eq!(freed, 0, "refused when full, and only then"),
                },
                2 => {
                    queues.sq_publish();
                    published.append(&mut filled);
                }
                3 => {
                    assert_eq!(queues.sq_pending() as usize, published.len());
                    look_at_rows(&queues, &mut dice, &published);
                    if let Some(expected) = published.pop_front() {
                        let mut taken = Sqe::default();
                        assert!(queues.sq_take(&mut taken).is_some());
                        assert_eq!(taken, sqe(expected));
                        freed += 1;
                    }
                }
                4 => {
                    queues.sq_advance();
                    assert_eq!(queues.word(queues.at.sq_head).load(Ordering::Relaxed), queues.sq_head);
                    assert_eq!(queues.sq_space() as usize, freed);
                }
                5 => {
                    assert_eq!(queues.cq_has_room(), cq.len() < 16, "no entry is written that was not read");
                    if queues.cq_has_room() {
                        queues.cq_push(cqe(next));
                        cq.push_back(next);
                        next += 1;
                    }
                }
                6 => next += fill(&mut queues, &mut dice, &mut cq, next),
                _ => {
                    queues.cq_publish();
                    shown = shown.max(cq.len());
                    assert_eq!(queues.cq_ready() as usize, cq.len());
                    let head = queues.cq_head();
                    let (row, rest) = queues.cq_rows(head, cq.len() as u32);
                    assert!(row.iter().chain(rest).map(|cqe| cqe.user_data).eq(cq.iter().copied()));
                    assert_eq!(row.is_empty(), cq.is_empty());
                    for n in 0..dice.below(cq.len() as u64 + 1) as u32 {
                        let got = queues.cq_read(head.wrapping_add(n));
                        assert_eq!(got, cqe(cq.pop_front().expect("it was there")));
                        queues.cq_advance(head.wrapping_add(n + 1));
                    }
                }
            }
        }
        assert!(next > 4000 && shown == 16, "the test went round and to the brim");
    }
}

#[test]
fn an_index_outside_of_the_array_is_dropped_and_counted() {
    let mut queues = Queues::new(4, 8).unwrap();
    for n in 0..3 {
        *queues.sq_next().unwrap().1 = sqe(n);
    }
    for (entry, index) in [(0, 4), (1, u32::MAX), (2, 1)] {
        queues.array_entry(entry).store(index, Ordering::Relaxed);
    }
    queues.sq_publish();
    let mut into = Sqe::default();
    assert_eq!(queues.sq_take(&mut into), None);
    assert_eq!(queues.sq_take(&mut into), None);
    assert_eq!(queues.sq_take(&mut into), Some(1), "in the order of the array, not of the SQEs");
    assert_eq!(into, sqe(1));
    assert_eq!(queues.word(queues.at.sq_dropped).load(Ordering::Relaxed), 2);
}

#[test]
fn a_peer_that_writes_nonsense_into_heads_and_tails_is_not_believed() {
    let mut queues = Queues::new(4, 8).unwrap();
    let offsets = queues.at;
    for nonsense in [5, 77, 1 << 31, u32::MAX] {
        for at in [offsets.sq_head, offsets.sq_tail, offsets.cq_head, offsets.cq_tail] {
            queues.word(at).store(nonsense, Ordering::Relaxed);
        }
        assert_eq!((queues.sq_pending(), queues.sq_space(), queues.cq_ready()), (0, 4, 0), "I5");
    }
    (0..8).for_each(|n| _ = queues.cq_push(cqe(n)));
    queues.word(offsets.cq_head).store(77, Ordering::Relaxed);
    assert!(!queues.cq_has_room(), "a head beyond the tail frees nothing");
    assert_eq!((queues.cq_publish(), queues.cq_ready()), (8, 8));
    assert_eq!(queues.word(offsets.cq_tail).load(Ordering::Relaxed), 8, "what was written there is gone");
}

#[test]
fn an_sqe_is_copied_when_it_is_taken() {
    let mut queues = Queues::new(2, 4).unwrap();
    *queues.sq_next().unwrap().1 = sqe(1);
    queues.sq_publish();
    let mut taken = Sqe::default();
    let index = queues.sq_take(&mut taken).unwrap();
    // SAFETY: the index was checked; nothing else looks at the memory.
    unsafe { (*queues.sqes.as_ptr().add(index as usize)).user_data = 2 };
    assert_eq!(taken.user_data, 1, "what the memory becomes later does not matter");
}
