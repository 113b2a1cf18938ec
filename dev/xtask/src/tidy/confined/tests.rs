//! Tests with every way to write the path of the atomics, inside and outside the allowed places.

use super::*;

fn lines(path: &str, text: &str) -> Vec<usize> {
    check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.line).collect()
}

const PRODUCT: &str = "crates/blk/src/queue.rs";

#[test]
fn atomics_are_found_however_they_are_written() {
    for text in [
        "use std::sync::atomic::AtomicU32;",
        "use core::sync::atomic::{AtomicU32, Ordering};",
        "use std::sync::{Arc, atomic::AtomicU32};",
        "use std::{fs, sync::{Arc, atomic}};",
        "fn f() { std::sync::atomic::fence(x) }",
    ] {
        assert_eq!(lines(PRODUCT, text), [1], "{text}");
    }
}

#[test]
fn other_paths_are_not() {
    for text in [
        "use std::sync::Arc;\nuse sheave_base::sync::atomic::AtomicU32;",
        "use std::{fs, sync::Arc}; // std::sync::atomic\nfn atomic() {}",
        "use crate::sync::atomic::AtomicU32;",
        "fn f() { g(std::sync::Mutex::new(0), atomic) }",
    ] {
        assert!(lines(PRODUCT, text).is_empty(), "{text}");
    }
}

#[test]
fn the_kernel_ring_is_found_outside_its_wrapper() {
    assert_eq!(lines(PRODUCT, "use io_uring::IoUring;\nfn f(r: &io_uring::IoUring) {}"), [1, 2]);
    assert!(lines(PRODUCT, "struct A { io_uring: bool }\nfn io_uring_enter() {}").is_empty());
    assert!(lines("crates/kring/src/setup.rs", "use io_uring::IoUring;").is_empty());
}

#[test]
fn its_place_and_tests_are_free() {
    let text = "use std::sync::atomic::AtomicU32;";
    for path in ["crates/base/src/sync.rs", "crates/cli/src/a.rs", "crates/blk/src/queue/tests.rs", "tests/a.rs"] {
        assert!(lines(path, text).is_empty(), "{path}");
    }
    assert!(lines(PRODUCT, "#[cfg(test)]\nmod t {\n use std::sync::atomic::AtomicU32;\n}").is_empty());
}
