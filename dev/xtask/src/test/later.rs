//! The tests that the quick tier leaves to `--all`, and the arguments that select tests.
//!
//! Owns [`LATER`]. Both runners get the same selection: cargo-nextest as an expression, `cargo test` as names.
//!
//! Invariant I1: each entry names an existing test or module of tests, under a comment with the reason.

#[derive(Debug)]
pub struct Later {
    pub package: &'static str,
    /// Prefix of the names of the tests.
    pub tests: &'static str,
}

const fn later(package: &'static str, tests: &'static str) -> Later {
    Later { package, tests }
}

pub const LATER: &[Later] = &[
    // A cluster of Ceph, and the owners of a pool on it that are killed or lose it.
    later("sheave-rbd", "the_driver_on_a_cluster"),
    later("sheave-rbd", "an_osd_that_is_killed"),
    later("sheave-cli", "failover::"),
    later("sheave-cli", "rbd::"),
    // A systemd in namespaces, and a browser.
    later("sheave-cli", "units::"),
    later("sheave-cli", "web::"),
    // A daemon that is killed again and again.
    later("sheave-cli", "soak::"),
    // A Linux guest in an emulated machine.
    later("sheave-cli", "vhost_guest::"),
    later("sheave-guest", "a_guest_"),
    // Backups of thirty nights.
    later("sheave-cli", "week::"),
    // Waits for a minute.
    later("sheave-cli", "health::a_disk_that_answers_with_errors"),
    // Long copies by QEMU, libnbd and rbd.
    later("sheave-cli", "backup::an_incremental_copy"),
    later("sheave-cli", "backup::contexts_are_told"),
    later("sheave-cli", "backup::scattered_changes"),
    later("sheave-cli", "diffs::ceph_merges"),
    later("sheave-cli", "nbd::a_pool_lives_on_our_own_server_by_tls"),
    // The slower half of the crash simulator.
    later("sheave-sim", "broken::flushes_that_lie_are_told"),
    later("sheave-sim", "crash::a_disk_whose_reads_and_writes_fail"),
    later("sheave-sim", "crash::a_pool_that_gets_another_disk"),
    later("sheave-sim", "crash::a_pool_that_opens_for_deletes"),
    later("sheave-sim", "crash::a_pool_whose_disk_has_grown"),
    later("sheave-sim", "crash::free_space_goes_back_to_a_disk_that_fails"),
    later("sheave-sim", "crash::long_runs_b"),
    later("sheave-sim", "crash::no_checksum_is_wrong"),
    later("sheave-sim", "crash::runs_cut_often_c"),
    later("sheave-sim", "crash::runs_cut_often_d"),
    later("sheave-sim", "crash::volumes_that_grow_cut"),
    later("sheave-sim", "crash::volumes_that_grow_in_commits"),
    later("sheave-sim", "crash::what_slow_reads_look_at"),
    later("sheave-sim", "oracle::one_at_a_time_a"),
    // Pools that are filled to the last page, and pools in which each block is damaged.
    later("sheave-vol", "account::a_pool_that_is_full"),
    later("sheave-vol", "check::tests::mutated::sealed_damage"),
    later("sheave-vol", "state::account::tests::every_operation_pays"),
    // Clients that are slow until a time limit ends them.
    later("sheave-serve", "writers_that_are_slow_and_never_pause"),
    // Counts of a release build, with valgrind and strace.
    later("sheave", "instructions::instructions_"),
    later("sheave", "interfaces::"),
    later("sheave", "system_calls::"),
];

/// A selection of tests.
#[derive(Debug)]
pub enum Tests {
    /// All tests except those that are left to `--all`.
    Quick,
    /// The tests that are left to `--all`, and the tests of these names.
    Rest(Vec<String>),
    All,
}

impl Tests {
    /// Returns the arguments of cargo-nextest.
    pub fn for_nextest(&self) -> Vec<String> {
        let of = |later: &Later| format!("(package(={}) & test(/^{}/))", later.package, later.tests);
        let later = LATER.iter().map(of).collect::<Vec<_>>().join(" | ");
        match self {
            Tests::Quick => vec!["-E".into(), format!("not ({later})")],
            Tests::Rest(names) => {
                let names = names.iter().map(|name| format!("test(={name})"));
                let all: Vec<String> = std::iter::once(later).chain(names).collect();
                vec!["-E".into(), all.join(" | ")]
            }
            Tests::All => Vec::new(),
        }
    }

    /// Returns the arguments of `cargo test`, which selects tests of all crates by a part of their names. `Rest` may
    /// therefore repeat a test of the quick tier, but leaves none out.
    pub fn for_cargo(&self) -> Vec<String> {
        let later = LATER.iter().map(|later| later.tests.to_owned());
        match self {
            Tests::Quick => {
                let skips = later.flat_map(|name| ["--skip".to_owned(), name]);
                std::iter::once("--".to_owned()).chain(skips).collect()
            }
            Tests::Rest(names) => std::iter::once("--".to_owned()).chain(later).chain(names.iter().cloned()).collect(),
            Tests::All => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::workspace;

    /// Returns all Rust files below a directory, concatenated.
    fn sources(dir: &Path) -> String {
        let mut text = String::new();
        for entry in std::fs::read_dir(dir).expect("a directory").flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("target") {
                text += &sources(&path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text += &std::fs::read_to_string(&path).expect("text");
            }
        }
        text
    }

    #[test]
    fn each_entry_stands_for_tests_that_exist() {
        for later in LATER {
            let dir = match later.package.strip_prefix("sheave-") {
                Some(name) => workspace::dir_of(name).expect("a crate of the workspace"),
                None => workspace::root().join("tests"),
            };
            let sources = sources(&dir);
            for name in later.tests.split("::").filter(|name| !name.is_empty()) {
                let there = ["fn ", "mod "].iter().any(|what| sources.contains(&format!("{what}{name}")));
                assert!(there, "{} has no `{name}`", later.package);
            }
        }
    }

    #[test]
    fn nextest_gets_an_expression() {
        let [flag, quick] = Tests::Quick.for_nextest().try_into().expect("two words");
        assert_eq!(flag, "-E");
        let all: Vec<String> =
            LATER.iter().map(|it| format!("(package(={}) & test(/^{}/))", it.package, it.tests)).collect();
        assert_eq!(quick, format!("not ({})", all.join(" | ")));
        let rest = Tests::Rest(vec!["a::b".into()]).for_nextest();
        assert_eq!(rest[1], format!("{} | test(=a::b)", all.join(" | ")));
        assert!(Tests::All.for_nextest().is_empty());
    }

    #[test]
    fn cargo_test_gets_names() {
        let quick = Tests::Quick.for_cargo();
        assert_eq!((quick[0].as_str(), quick[1].as_str(), quick.len()), ("--", "--skip", 1 + 2 * LATER.len()));
        let rest = Tests::Rest(vec!["a::b".into()]).for_cargo();
        assert_eq!(
            (rest[0].as_str(), rest.last().map(String::as_str), rest.len()),
            ("--", Some("a::b"), 2 + LATER.len())
        );
        assert!(Tests::All.for_cargo().is_empty());
    }
}
