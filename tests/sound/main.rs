//! Safe code is sound. A program without unsafe code may pass, forget or keep anything: it never reaches memory that is
//! not its own, another device, or a wait without end. `cargo xtask asan` runs these tests under the address sanitizer.
//! Tests of code that must not even compile are in the documentation of the types concerned (`compile_fail`).
#![deny(unsafe_code)] // Each module forbids it but `panics`, whose driver is one.

mod buffers;
mod extremes;
mod files;
mod openings;
mod outside;
mod panics;
mod waits;

use sheave::{Buf, Ring, op};

fn buf(byte: u8) -> Buf {
    let mut buf = Buf::zeroed(4096, 4096).expect("memory");
    buf.fill(byte);
    buf
}

fn ring() -> Ring {
    Ring::builder().entries(64).build().expect("a ring")
}

/// Runs one operation. Returns its result.
fn run(ring: &mut Ring, op: impl op::Op) -> i32 {
    ring.push(op).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    let results: Vec<i32> = ring.completions().map(|done| done.res).collect();
    assert_eq!(results.len(), 1);
    results[0]
}
