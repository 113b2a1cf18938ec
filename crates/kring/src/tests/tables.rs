//! Registered files, registered buffers and the registered ring.

use super::*;

#[test]
fn file_slots_run_out_and_come_back() {
    let Some(mut ring) = ring(4) else { return };
    let file = file_with(&[3; 512]);
    let slots: Vec<u32> = (0..FILE_SLOTS).map(|_| ring.register_file(file.as_raw_fd()).expect("a slot")).collect();
    assert_eq!(slots, (0..FILE_SLOTS).collect::<Vec<_>>());
    assert_eq!(ring.register_file(file.as_raw_fd()), None);
    ring.unregister_file(17);
    ring.unregister_file(17);
    ring.unregister_file(FILE_SLOTS);
    ring.unregister_file(u32::MAX);
    assert_eq!(ring.register_file(file.as_raw_fd()), Some(17));
    assert_eq!(ring.register_file(file.as_raw_fd()), None);
}

#[test]
fn what_is_no_file_gets_no_slot() {
    let Some(mut ring) = ring(4) else { return };
    assert_eq!(ring.register_file(-1), None);
    assert_eq!(ring.register_file(1 << 29), None);
    let file = file_with(&[3; 512]);
    assert_eq!(ring.register_file(file.as_raw_fd()), Some(0), "the refused ones took no slot");
}

#[test]
fn a_registered_file_outlives_its_descriptor() {
    let Some(mut ring) = ring(4) else { return };
    let file = file_with(&[9; 512]);
    let slot = ring.register_file(file.as_raw_fd()).expect("a slot");
    drop(file);
    let mut memory = [0u8; 64];
    // SAFETY: `memory` lives until the completion was collected.
    unsafe { ring.prep_rw(KOp::Read, Target::Fixed(slot), &[vec_of(&mut memory)], None, 0, 0, 1).expect("room") };
    assert_eq!(collect(&mut ring, 1), [(1, 64)]);
    assert_eq!(memory, [9; 64]);
}

#[test]
fn registered_buffers_serve_their_range_only() {
    let Some(mut ring) = ring(4) else { return };
    let file = file_with(&[5; 8192]);
    let target = Target::Raw(file.as_raw_fd());
    let mut memory = vec![0u8; 8192];
    // SAFETY: `memory` lives until the ring is dropped, and every completion is collected.
    unsafe {
        ring.register_buffer(3, memory.as_mut_ptr(), 4096).expect("registered");
        let (inside, beyond) = memory.split_at_mut(4096);
        ring.prep_rw(KOp::Read, target, &[vec_of(&mut inside[1024..2048])], Some(3), 0, 0, 1).expect("room");
        assert_eq!(collect(&mut ring, 1), [(1, 1024)]);
        ring.prep_rw(KOp::Read, target, &[vec_of(beyond)], Some(3), 0, 0, 2).expect("room");
        assert_eq!(collect(&mut ring, 1), [(2, -libc::EFAULT)]);
        ring.prep_rw(KOp::Write, target, &[vec_of(inside)], Some(3), 4096, 0, 3).expect("room");
        assert_eq!(collect(&mut ring, 1), [(3, 4096)]);
        ring.unregister_buffer(3);
        ring.unregister_buffer(3);
        ring.prep_rw(KOp::Read, target, &[vec_of(inside)], Some(3), 0, 0, 4).expect("room");
        assert_eq!(collect(&mut ring, 1), [(4, -libc::EFAULT)]);
    }
    assert!(memory[..1024].iter().all(|b| *b == 0) && memory[1024..2048].iter().all(|b| *b == 5));
    drop(ring);
}

#[test]
fn bad_buffers_are_refused_with_words() {
    let Some(mut ring) = ring(4) else { return };
    let mut byte = 0u8;
    // SAFETY: `byte` outlives the ring; the others are refused.
    let errors = unsafe {
        [
            ring.register_buffer(0, std::ptr::null_mut(), 4096),
            ring.register_buffer(0, &raw mut byte, 0),
            ring.register_buffer(BUFFER_SLOTS, &raw mut byte, 1),
            ring.register_buffer(u32::MAX, &raw mut byte, 1),
            ring.register_buffer(0, std::ptr::without_provenance_mut(4096), 4096),
        ]
    };
    for error in errors {
        let text = error.expect_err("refused").to_string();
        assert!(text.starts_with("buffer slot ") && text.contains("cannot be registered"), "{text}");
    }
    ring.unregister_buffer(BUFFER_SLOTS);
    assert!(ring.notices().is_empty(), "nothing of that is the machine's fault: {:?}", ring.notices());
    drop(ring);
}

#[test]
fn the_limit_on_locked_memory_is_told_once() {
    let Some(mut ring) = ring(4) else { return };
    ring.notice_locked_memory(libc::ENOMEM);
    ring.notice_locked_memory(libc::ENOMEM);
    assert_eq!(ring.notices().len(), 1);
    assert!(ring.notices()[0].contains("ulimit -l"), "{:?}", ring.notices());
}

#[test]
fn a_thread_that_makes_many_rings_runs_out_of_nothing() {
    // The kernel registers at most 16 rings per thread. Rings beyond that use their descriptor, and a dropped ring
    // frees its place.
    for _ in 0..3 {
        let mut rings = Vec::new();
        for _ in 0..20 {
            let Some(ring) = ring(1) else { return };
            rings.push(ring);
        }
        let registered = rings.iter().filter(|r| r.features().registered_ring).count();
        assert_eq!(registered, 16, "the kernel's table a thread");
        let file = file_with(&[1; 16]);
        for ring in &mut rings {
            ring.prep_fsync(Target::Raw(file.as_raw_fd()), false, 1).expect("room");
            assert_eq!(collect(ring, 1), [(1, 0)]);
        }
    }
}
