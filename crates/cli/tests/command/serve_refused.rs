//! `sheave serve` where a seccomp filter forbids io_uring, as Docker's default profile does.
#![allow(unsafe_code)] // installing the filter

use crate::sheave::{Dir, Said, sheave};

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Makes io_uring_setup fail with EPERM for this thread and the processes that it starts.
fn forbid_io_uring() {
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let is_setup = libc::sock_filter { code: equals as u16, jt: 0, jf: 1, k: libc::SYS_io_uring_setup as u32 };
    let mut filter = [
        // The number is the first word of seccomp's data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        is_setup,
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, whose statements live until the call returns.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "a filter: {}", std::io::Error::last_os_error());
}

#[test]
fn without_io_uring_it_refuses_and_names_cause_and_fix() {
    let dir = Dir::new();
    // A thread of its own: the filter stays with it.
    let said = std::thread::scope(|scope| {
        let run = || {
            forbid_io_uring();
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
