//! `sheave serve` where a seccomp filter forbids io_uring, as Docker's default profile does.

use sheave_testkit::seccomp;

use crate::sheave::{Dir, Said, sheave};

#[test]
fn without_io_uring_it_refuses_and_names_cause_and_fix() {
    let dir = Dir::new();
    // A thread of its own: the filter stays with it.
    let said = std::thread::scope(|scope| {
        let run = || {
            seccomp::forbid(libc::SYS_io_uring_setup);
            let mut command = sheave("serve ram:size=1M --nbd unix:s");
            Said::of(command.current_dir(dir.path("")).output().expect("it runs"))
        };
        scope.spawn(run).join().expect("no panic")
    });
    assert_eq!(said.code, 1, "{}", said.err);
    for words in ["serving needs io_uring", "seccomp", "sheave doctor"] {
        assert!(said.err.contains(words), "{words}: {}", said.err);
    }
    assert!(!dir.path("s").exists(), "no socket is left behind");
}
