//! Checks that unsafe code is only in the files listed here, and that every block and impl has a SAFETY comment.
//!
//! Owns [`ALLOWED`]. A listed file has `allow(unsafe_code)` itself, for the whole file or one item, because a lint
//! level that its parent module sets would not be visible in the file. Tests and examples need only the comments.

use std::collections::BTreeSet;

use super::finding::Finding;
use super::lexer::find_word;
use super::source::Source;
use super::tree::Tree;
use crate::workspace;

/// Product files that may contain unsafe code, with the reason.
const ALLOWED: &[(&str, &str)] = &[
    ("crates/base/src/buf.rs", "owned memory with an alignment"),
    ("crates/base/src/clock/tsc.rs", "reading the time stamp counter"),
    ("crates/base/src/huge_pages.rs", "advising the system about memory"),
    ("crates/base/src/lasting.rs", "memory that is mapped from a file"),
    ("crates/base/src/sigbus.rs", "handling SIGBUS, and mapping over a missing page"),
    ("crates/base/src/peer.rs", "asking the kernel who is at the other end of a socket"),
    ("crates/base/src/prefetch.rs", "asking the processor for a cache line"),
    ("crates/base/src/switches.rs", "asking the kernel how often a thread has slept"),
    ("crates/blk/src/bio.rs", "vouching for the memory of an I/O"),
    ("crates/blk/src/bio_set.rs", "indexing the bio arena by numbers that only it hands out"),
    ("crates/blk/src/plain_io.rs", "vouching for the memory of a plain record"),
    ("crates/blk/src/hctx/contained.rs", "standing in for a driver's queue"),
    ("crates/blk/src/kring_slot.rs", "registered buffers of a kernel ring made later"),
    ("crates/blk/src/request/token.rs", "requests that their driver names by tag"),
    ("crates/blk/src/request.rs", "indexing the requests by tags that only the tag set hands out"),
    ("crates/blk/src/driver/mod.rs", "traits whose implementors vouch for the memory of requests"),
    ("crates/blk/src/ctx/sockets.rs", "vouching for the memory of operations on sockets"),
    ("dev/conformance/src/rig.rs", "the memory of I/O that checks send"),
    ("crates/drivers/src/fault.rs", "being a driver"),
    ("crates/drivers/src/fault/hw.rs", "being a driver's queue"),
    ("crates/drivers/src/host/mod.rs", "being a driver"),
    ("crates/drivers/src/host/calls.rs", "system calls on the memory of bios, and the status of a loop device"),
    ("crates/drivers/src/host/sync.rs", "being a driver's queue, on the memory of bios"),
    ("crates/drivers/src/null.rs", "being a driver"),
    ("crates/drivers/src/null/keep.rs", "being a driver"),
    ("crates/drivers/src/ram.rs", "being a driver"),
    ("crates/drivers/src/safe/kernel.rs", "the tier of drivers that vouch for the memory of operations"),
    ("crates/drivers/src/safe/ops.rs", "operations of drivers on memory"),
    ("crates/drivers/src/safe/memory.rs", "copies of the memory of requests, for drivers without unsafe code"),
    ("crates/drivers/src/safe/queue.rs", "being a driver, for those without unsafe code"),
    ("crates/drivers/src/safe/request.rs", "lending the memory of requests to devices below"),
    ("crates/drivers/src/whole_read.rs", "reading a device that is being opened"),
    ("crates/uring/src/held_file.rs", "making a reference of the address of a file that a request holds"),
    ("lab/src/exp/dio_completion/cached.rs", "being a driver"),
    ("lab/src/exp/elsewhere.rs", "being a driver"),
    ("lab/src/exp/in_flight/counting.rs", "being a driver"),
    ("lab/src/exp/plug_clock/watch.rs", "being a driver"),
    ("dev/sim/src/disk.rs", "being a driver"),
    ("crates/drivers/src/host/queue.rs", "operations on the memory of bios"),
    ("crates/drivers/src/ram/region.rs", "memory that all rings copy to and from at once"),
    ("crates/kring/src/address.rs", "filling an address of a socket"),
    ("crates/kring/src/driver_ops.rs", "operations of drivers on memory"),
    ("crates/kring/src/prep.rs", "pushing entries with addresses onto the kernel's ring"),
    ("crates/kring/src/rings.rs", "the queues that the kernel's ring shares with us"),
    ("crates/kring/src/recv_buffers.rs", "a list of buffers that the kernel reads"),
    ("crates/kring/src/sockets.rs", "operations on memory, and buffers that the kernel receives into"),
    ("crates/kring/src/sys.rs", "the registrations that io-uring does not wrap"),
    ("crates/kring/src/register.rs", "registered buffers that the kernel keeps"),
    ("crates/kring/src/table.rs", "a table of empty slots on kernels before 5.19"),
    ("crates/load/src/kernel.rs", "entering the kernel ring that Sheave is compared with"),
    ("crates/load/src/kernel/rings.rs", "memory shared with that ring's kernel side"),
    ("crates/load/src/kernel/setup.rs", "registering that ring, its file and its buffers"),
    ("crates/load/src/sheave_engine.rs", "entries with addresses, and the buffers behind them"),
    ("lab/src/wq/ring_engine.rs", "entries pushed as they are"),
    ("crates/iomap/src/io_memory.rs", "looking at the memory of an I/O that has ended"),
    ("crates/iomap/src/dio/mapped.rs", "zeroing the memory of a read from a hole"),
    ("lab/src/meter.rs", "asking the host for context switches"),
    ("lab/src/alloc.rs", "being a global allocator"),
    ("dev/sim/src/disk/memory.rs", "the memory of requests to the simulated disk"),
    ("dev/testkit/src/allocations.rs", "being a global allocator, for tests that count"),
    ("dev/testkit/src/seccomp.rs", "installing a filter of system calls, for tests where one is forbidden"),
    ("dev/vhost-front/src/memory.rs", "memory that a guest shares with its device"),
    ("crates/nbd-client/src/conn.rs", "sending and receiving the memory of requests"),
    ("crates/nbd-client/src/socket.rs", "system calls on sockets that the standard library does not wrap"),
    ("crates/rbd/src/device.rs", "being a driver, and giving the memory of requests to librbd"),
    ("crates/rbd/src/librbd/others.rs", "calling C"),
    ("crates/rbd/src/librbd.rs", "calling C libraries that are opened at run time"),
    ("crates/vol/src/device/block_io.rs", "memory of blocking I/O"),
    ("crates/serve/src/inherited.rs", "descriptors that come as numbers"),
    ("crates/serve/src/reactor/raw.rs", "handing memory of requests and replies to the ring"),
    ("crates/vhost/src/memory.rs", "mappings of guest memory, which other programs write at any time"),
    ("crates/uring/src/io_buf.rs", "memory that operations own, of any type"),
    ("crates/uring/src/queues.rs", "ring memory that another program may map"),
    ("crates/uring/src/req.rs", "indexing the slots by numbers that only the table hands out"),
    ("crates/uring/src/ring.rs", "entries with addresses; slices of registered buffers"),
    ("crates/uring/src/ring/raw.rs", "the raw interface: entries with addresses"),
    ("crates/uring/src/ring/inner.rs", "buffers that the kernel knows by address"),
    ("crates/uring/src/worker_ring.rs", "entries with addresses that another ring was promised"),
    ("crates/uring/src/user_memory.rs", "vectors and timespecs behind an entry's addresses"),
];

/// The attribute for a whole file, and the attribute for one item.
const MARKERS: &[&str] = &["#![allow(unsafe_code)]", "#[allow(unsafe_code)]"];

/// Largest number of lines of code between the comment and its unsafe block, in a statement that rustfmt has wrapped.
const MAX_GAP: usize = 3;

/// Returns the packages with unsafe product code. Only their tests can show a fault to a sanitizer.
pub fn packages() -> BTreeSet<String> {
    let crates = ALLOWED.iter().filter_map(|(path, _)| workspace::crate_of(path));
    crates.map(|name| format!("sheave-{name}")).collect()
}

/// Finds unsafe code outside the list or without its reason, and needless entries of the list.
pub fn check(tree: &Tree) -> Vec<Finding> {
    check_against(tree, &ALLOWED.iter().map(|&(path, _)| path).collect::<Vec<_>>())
}

fn check_against(tree: &Tree, allowed: &[&str]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in &tree.sources {
        let found: Vec<usize> = find_word(&source.code, "unsafe").collect();
        let listed = allowed.contains(&source.path.as_str());
        let mut find = |line, message: &str| findings.push(Finding::new(&source.path, line, message));
        if listed && found.is_empty() {
            find(1, "is on the list in tidy/unsafety.rs and has no unsafe code: drop it there");
        }
        if found.is_empty() {
            continue;
        }
        let product = !source.is_test && !source.path.contains("examples/");
        if product && !listed {
            find(source.line_of(found[0]), "unsafe code outside the files listed in tidy/unsafety.rs");
        }
        if product && !MARKERS.iter().any(|marker| source.code.contains(marker)) {
            find(1, "has unsafe code: say so with `#![allow(unsafe_code)]` and a reason under the heading");
        }
        for at in found {
            let line = source.line_of(at);
            if needs_comment(&source.code[at..]) && !has_comment(source, line) {
                find(line, "no `// SAFETY:` comment above this unsafe: name the invariant that makes it sound");
            }
        }
    }
    for path in allowed.iter().filter(|path| tree.source(path).is_none()) {
        findings.push(Finding::new(*path, 1, "is on the list in tidy/unsafety.rs and does not exist: drop it there"));
    }
    findings
}

/// Returns true for blocks and impls, which promise something. Returns false for `unsafe fn` and `unsafe extern`, which
/// demand a promise from others.
fn needs_comment(code: &str) -> bool {
    let next = code["unsafe".len()..].trim_start();
    next.starts_with('{') || find_word(next, "impl").next() == Some(0)
}

/// Returns true if a comment above `line`, or on it, contains SAFETY. Attributes and a few lines of the same statement
/// may lie between them.
fn has_comment(source: &Source, line: usize) -> bool {
    let comments: Vec<&str> = source.comments.lines().take(line).collect();
    let codes: Vec<&str> = source.code.lines().take(line).collect();
    let mut gap = 0;
    for at in (0..line).rev() {
        if comments[at].contains("SAFETY:") {
            return true;
        }
        let is_comment = !comments[at].trim().is_empty() && codes[at].trim().is_empty();
        gap += usize::from(!is_comment && at + 1 != line);
        if gap > MAX_GAP {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "//! Rings.\n#![allow(unsafe_code)] // shared memory\nfn a() {\n    // SAFETY: I1.\n    unsafe { b() }\n}\n";

    fn messages(path: &str, text: &str, allowed: &[&str]) -> Vec<String> {
        check_against(&Tree::of(&[(path, text)]), allowed).into_iter().map(|finding| finding.to_string()).collect()
    }

    fn found(text: &str) -> Vec<String> {
        messages("src/a.rs", text, &["src/a.rs"])
    }

    #[test]
    fn a_listed_file_with_marker_and_comment_passes() {
        assert!(found(GOOD).is_empty(), "{:?}", found(GOOD));
    }

    #[test]
    fn an_unlisted_file_is_found_and_a_test_needs_comments_only() {
        assert!(messages("src/a.rs", GOOD, &[])[0].contains("outside the files listed"));
        for path in ["src/a/tests.rs", "src/a/tests/b.rs", "crates/a/examples/b.rs", "examples/b.rs"] {
            assert!(messages(path, &GOOD.replace("#![allow(unsafe_code)]", ""), &[]).is_empty(), "{path}");
            assert_eq!(messages(path, &GOOD.replace("SAFETY", ""), &[]).len(), 1, "{path}");
        }
    }

    #[test]
    fn an_entry_without_file_or_without_unsafe_is_found() {
        assert!(messages("src/b.rs", "", &["src/a.rs"])[0].contains("does not exist"));
        assert!(found("//! Nothing unsafe.\n")[0].contains("has no unsafe code"));
    }

    #[test]
    fn a_missing_marker_is_found() {
        let text = GOOD.replace("#![allow(unsafe_code)]", "");
        assert!(found(&text)[0].contains("say so with"));
        let item = text.replace("fn a", "#[allow(unsafe_code)] // raw memory\nfn a");
        assert!(found(&item).is_empty(), "one item is even better");
    }

    #[test]
    fn a_missing_comment_is_found_for_blocks_and_impls() {
        let text = GOOD.replace("SAFETY: I1.", "trust me");
        assert!(found(&text)[0].starts_with("src/a.rs:5: no `// SAFETY:`"), "{:?}", found(&text));
        let text = "//! R.\n#![allow(unsafe_code)]\nunsafe impl Send for A {}\n";
        assert!(found(text)[0].starts_with("src/a.rs:3:"));
    }

    #[test]
    fn functions_and_words_need_no_comment() {
        let text =
            "//! R.\n#![allow(unsafe_code)]\n// unsafe { }\nunsafe fn a() {}\ntype F = unsafe extern \"C\" fn();\n";
        assert!(found(text).is_empty(), "{:?}", found(text));
    }

    #[test]
    fn a_long_comment_counts_as_one_and_a_far_one_does_not() {
        let long = format!("    // SAFETY: I1.\n{}", "    // more\n".repeat(9));
        assert!(found(&GOOD.replace("    // SAFETY: I1.\n", &long)).is_empty());
        let near = "    // SAFETY: I1.\n    let x =\n        y\n            .z(";
        assert!(found(&GOOD.replace("    // SAFETY: I1.", near)).is_empty());
        let far = "    // SAFETY: I1.\n    a();\n    a();\n    a();\n    a();";
        assert_eq!(found(&GOOD.replace("    // SAFETY: I1.", far)).len(), 1);
    }
}
