//! Restricts names to a few files, each with the name that other files use instead.
//!
//! Owns the table. Atomics must come from `sheave_base::sync`, so that a model checker can replace them. The kernel's
//! io_uring bindings stay in the modules that wrap them.

use super::finding::Finding;
use super::lexer::find_word;
use super::source::Source;
use super::tree::Tree;

/// A path that is restricted to a few places.
struct Confined {
    /// First part of the path, like in `use` and in expressions.
    first: &'static [&'static str],
    /// Further parts of the path, each a word; empty if the first part alone is restricted.
    then: &'static [&'static str],
    /// Paths, or prefixes of paths, where the name is allowed. Tests may use it everywhere.
    places: &'static [&'static str],
    instead: &'static str,
}

const CONFINED: &[Confined] = &[
    Confined {
        first: &["std", "core"],
        then: &["sync", "atomic"],
        places: &[
            "crates/base/src/sync.rs",
            "crates/base/src/sync/mesi/",
            "crates/base/src/asymmetric.rs",
            // Static tables of a signal handler, which is in no model.
            "crates/base/src/sigbus.rs",
            "crates/cli/",
            "dev/xtask/",
            // Views of memory that another process shares, over which a model checker's types cannot be laid.
            "dev/vhost-front/src/",
            "dev/vhost-front/examples/",
        ],
        instead: "use `sheave_base::sync::atomic`, which a model checker can replace",
    },
    Confined {
        first: &["io_uring"],
        then: &[],
        places: &["crates/kring/src/", "crates/load/src/kernel"],
        instead: "the kernel's ring is wrapped by `kring`: use that",
    },
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for rule in CONFINED {
        let free = |path: &str| rule.places.iter().any(|place| path.starts_with(place));
        for source in tree.sources.iter().filter(|source| !free(&source.path)) {
            for line in uses(source, rule) {
                findings.push(Finding::new(&source.path, line, rule.instead));
            }
        }
    }
    findings
}

/// Returns the product lines on which the rule's path begins, in full or as a group such as
/// `std::sync::{Arc, atomic::X}`.
fn uses(source: &Source, rule: &Confined) -> Vec<usize> {
    let mut lines = Vec::new();
    for first in rule.first {
        for at in find_word(&source.code, first) {
            let path = path_text(&source.code[at..]);
            let mut from = 0;
            let named = path[first.len()..].starts_with("::")
                && rule.then.iter().all(|word| {
                    let found = find_word(&path[from..], word).next();
                    from += found.unwrap_or_default();
                    found.is_some()
                });
            let line = source.line_of(at);
            if named && !source.is_test_line(line) {
                lines.push(line);
            }
        }
    }
    lines
}

/// Returns the path at the beginning of `code`, groups included.
fn path_text(code: &str) -> &str {
    let mut depth = 0;
    let end = code.char_indices().find(|&(at, char)| {
        match char {
            '{' if code[..at].ends_with("::") || depth > 0 => depth += 1,
            '}' if depth > 0 => depth -= 1,
            _ => return depth == 0 && !(char.is_alphanumeric() || matches!(char, '_' | ':')),
        }
        false
    });
    &code[..end.map_or(code.len(), |(at, _)| at)]
}

#[cfg(test)]
mod tests {
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
    fn confined_names_are_allowed_in_their_place_and_in_tests() {
        let text = "use std::sync::atomic::AtomicU32;";
        for path in ["crates/base/src/sync.rs", "crates/cli/src/a.rs", "crates/blk/src/queue/tests.rs", "tests/a.rs"] {
            assert!(lines(path, text).is_empty(), "{path}");
        }
        assert!(lines(PRODUCT, "#[cfg(test)]\nmod t {\n use std::sync::atomic::AtomicU32;\n}").is_empty());
    }
}
