//! The compressing ram disk: passes the suite, takes little memory, and returns the bytes that were written.
#![forbid(unsafe_code)]

use sheave::drivers::Registry;
use sheave::{Buf, Ring, op};
use sheave_base::rng::Rng;
use sheave_conformance::Suite;
use sheave_outside_zram::{BLOCK, pack, register, unpack};

fn registry() -> Registry {
    let mut registry = Registry::standard();
    register(&mut registry).expect("a free name");
    registry
}

#[test]
fn passes_the_suite() {
    Suite::new(|| registry().open("zram:size=8M")).run().assert_passed();
    Suite::new(|| registry().open("linear:over=zram:size=1M+partition:start=4k,over=zram:size=1M"))
        .run()
        .assert_passed();
}

#[test]
fn runs_and_noise_come_back() {
    let mut rng = Rng::new(1);
    for round in 0..2000 {
        let mut block = [0; BLOCK];
        let mut at = 0;
        while at < BLOCK {
            let many = (1 + rng.below(1 + round % 300) as usize).min(BLOCK - at);
            block[at..at + many].fill(rng.below(256) as u8);
            at += many;
        }
        let packed = pack(&block);
        let mut back = [1; BLOCK];
        assert!(packed.len() <= BLOCK && unpack(&packed, &mut back) && back == block);
        let cut = &packed[..packed.len() - 1];
        assert!(!unpack(cut, &mut back), "a block that lacks its end is noticed");
    }
}

#[test]
fn takes_little_memory_for_what_repeats() {
    let device = registry().open("zram:size=8M").expect("opened");
    let mut ring = Ring::builder().entries(8).build().expect("a ring");
    let fd = ring.attach(&device).expect("attached");
    let mut text = Buf::zeroed(1 << 20, 4096).expect("memory");
    text.chunks_mut(64).enumerate().for_each(|(at, line)| line.fill(at as u8));
    ring.push(op::write(fd, text)).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    assert_eq!(ring.completions().next().expect("one").res, 1 << 20);
    let notices = device.notices().join(" ");
    assert_eq!(notices, "1048576 bytes of data are held in 32768 bytes");
}
