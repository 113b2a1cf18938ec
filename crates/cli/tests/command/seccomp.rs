//! The seccomp profile of the repository, applied in the way of a container runtime. The daemon and its commands work
//! under the profile. The profile contains only allowed system calls, and no other actions.
#![cfg(target_arch = "x86_64")]

use serde_json::Value;
use sheave_testkit::seccomp;

use crate::daemon::{BOTH, Daemon, Nbd, ask_ok, pools};

const PROFILE: &str = include_str!("../../../../docs/systemd/seccomp.json");

/// Returns the number of a system call that the profile names.
fn number(name: &str) -> libc::c_long {
    let found = NUMBERS.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("{name} has no number in this test: add a row")).1
}

fn allowed() -> Vec<libc::c_long> {
    let profile: Value = serde_json::from_str(PROFILE).expect("JSON");
    assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
    let rows = profile["syscalls"].as_array().expect("a list");
    assert!(rows.iter().all(|row| row["action"] == "SCMP_ACT_ALLOW"), "{rows:?}");
    let names = rows.iter().flat_map(|row| row["names"].as_array().expect("names"));
    names.map(|name| number(name.as_str().expect("a text"))).collect()
}

#[test]
fn the_daemon_and_commands_work_under_the_profile() {
    if sheave_testkit::under_sanitizer() {
        return sheave_testkit::skip("the profile forbids what the search for leaks does");
    }
    let Some(dir) = pools() else { return };
    std::fs::write(dir.path("in.raw"), vec![3; 1 << 20]).expect("written");
    // The filter cannot be removed from the thread that installs it, nor from its children, so it gets its own thread.
    std::thread::scope(|scope| {
        let run = || {
            seccomp::allow_only(&allowed());
            let own = rustix::process::getegid().as_raw();
            let given = format!("{{ address = \"unix:other.sock\", group = {own} }}");
            let daemon = Daemon::start(&dir, &BOTH.replace("\"unix:other.sock\"", &given));
            // The log must have no warning or error, for example about a refused system call.
            let said = daemon.said();
            assert!(!said.contains("warning") && !said.contains("error"), "{said}");
            let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
            assert_eq!(client.write(0, &[9; 4096]), Some(0));
            ask_ok(&dir, "volume import in.raw a.img#new");
            ask_ok(&dir, "volume snapshot a.img#new s");
            ask_ok(&dir, "volume export a.img#s out.raw");
            ask_ok(&dir, "pool scrub b.img");
            ask_ok(&dir, "pool trim b.img");
            let grown = ask_ok(&dir, "pool grow b.img --add more.img --size 64M --json").json();
            assert_eq!(grown["beyond_search"], serde_json::json!([]), "members leave hints, or lie side by side");
            ask_ok(&dir, "pool scan . --no-devices");
            daemon.end();
            dir.ok("pool check a.img");
            // The profile also allows the calls that `serve --run` needs.
            dir.ok("serve a.img#s --read-only --run true");
        };
        scope.spawn(run).join().expect("no panic");
    });
    assert_eq!(std::fs::read(dir.path("out.raw")).expect("read"), vec![3; 1 << 20]);
}

#[test]
fn the_profile_forbids_what_a_daemon_has_no_use_for() {
    for name in
        ["mount", "ptrace", "bpf", "init_module", "kexec_load", "process_vm_writev", "setns", "unshare", "userfaultfd"]
    {
        assert!(!PROFILE.contains(&format!("\"{name}\"")), "{name}");
    }
    assert!(PROFILE.contains("\"io_uring_setup\""));
}

const NUMBERS: &[(&str, libc::c_long)] = &[
    ("accept4", libc::SYS_accept4),
    ("access", libc::SYS_access),
    ("arch_prctl", libc::SYS_arch_prctl),
    ("bind", libc::SYS_bind),
    ("brk", libc::SYS_brk),
    ("capget", libc::SYS_capget),
    ("chdir", libc::SYS_chdir),
    ("chmod", libc::SYS_chmod),
    ("clock_getres", libc::SYS_clock_getres),
    ("clock_gettime", libc::SYS_clock_gettime),
    ("clock_nanosleep", libc::SYS_clock_nanosleep),
    ("clone", libc::SYS_clone),
    ("clone3", libc::SYS_clone3),
    ("close", libc::SYS_close),
    ("close_range", libc::SYS_close_range),
    ("connect", libc::SYS_connect),
    ("copy_file_range", libc::SYS_copy_file_range),
    ("dup", libc::SYS_dup),
    ("dup2", libc::SYS_dup2),
    ("dup3", libc::SYS_dup3),
    ("epoll_create1", libc::SYS_epoll_create1),
    ("epoll_ctl", libc::SYS_epoll_ctl),
    ("epoll_pwait", libc::SYS_epoll_pwait),
    ("epoll_wait", libc::SYS_epoll_wait),
    ("eventfd2", libc::SYS_eventfd2),
    ("execve", libc::SYS_execve),
    ("exit", libc::SYS_exit),
    ("exit_group", libc::SYS_exit_group),
    ("faccessat", libc::SYS_faccessat),
    ("faccessat2", libc::SYS_faccessat2),
    ("fadvise64", libc::SYS_fadvise64),
    ("fallocate", libc::SYS_fallocate),
    ("fchmod", libc::SYS_fchmod),
    ("fchmodat", libc::SYS_fchmodat),
    ("fchownat", libc::SYS_fchownat),
    ("fcntl", libc::SYS_fcntl),
    ("fdatasync", libc::SYS_fdatasync),
    ("flock", libc::SYS_flock),
    ("fstat", libc::SYS_fstat),
    ("fstatfs", libc::SYS_fstatfs),
    ("fsync", libc::SYS_fsync),
    ("ftruncate", libc::SYS_ftruncate),
    ("futex", libc::SYS_futex),
    ("getcpu", libc::SYS_getcpu),
    ("getcwd", libc::SYS_getcwd),
    ("getdents64", libc::SYS_getdents64),
    ("getegid", libc::SYS_getegid),
    ("geteuid", libc::SYS_geteuid),
    ("getgid", libc::SYS_getgid),
    ("getpeername", libc::SYS_getpeername),
    ("getpgrp", libc::SYS_getpgrp),
    ("getpid", libc::SYS_getpid),
    ("getppid", libc::SYS_getppid),
    ("getrandom", libc::SYS_getrandom),
    ("getrusage", libc::SYS_getrusage),
    ("getsockname", libc::SYS_getsockname),
    ("getsockopt", libc::SYS_getsockopt),
    ("gettid", libc::SYS_gettid),
    ("gettimeofday", libc::SYS_gettimeofday),
    ("getuid", libc::SYS_getuid),
    ("getxattr", libc::SYS_getxattr),
    ("io_uring_enter", libc::SYS_io_uring_enter),
    ("io_uring_register", libc::SYS_io_uring_register),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("ioctl", libc::SYS_ioctl),
    ("kill", libc::SYS_kill),
    ("landlock_add_rule", libc::SYS_landlock_add_rule),
    ("landlock_create_ruleset", libc::SYS_landlock_create_ruleset),
    ("landlock_restrict_self", libc::SYS_landlock_restrict_self),
    ("listen", libc::SYS_listen),
    ("lseek", libc::SYS_lseek),
    ("lstat", libc::SYS_lstat),
    ("madvise", libc::SYS_madvise),
    ("membarrier", libc::SYS_membarrier),
    ("memfd_create", libc::SYS_memfd_create),
    ("mkdir", libc::SYS_mkdir),
    ("mkdirat", libc::SYS_mkdirat),
    ("mlock", libc::SYS_mlock),
    ("mmap", libc::SYS_mmap),
    ("mprotect", libc::SYS_mprotect),
    ("mremap", libc::SYS_mremap),
    ("munlock", libc::SYS_munlock),
    ("munmap", libc::SYS_munmap),
    ("nanosleep", libc::SYS_nanosleep),
    ("newfstatat", libc::SYS_newfstatat),
    ("open", libc::SYS_open),
    ("openat", libc::SYS_openat),
    ("pause", libc::SYS_pause),
    ("pipe", libc::SYS_pipe),
    ("pipe2", libc::SYS_pipe2),
    ("poll", libc::SYS_poll),
    ("ppoll", libc::SYS_ppoll),
    ("prctl", libc::SYS_prctl),
    ("pread64", libc::SYS_pread64),
    ("preadv2", libc::SYS_preadv2),
    ("prlimit64", libc::SYS_prlimit64),
    ("pselect6", libc::SYS_pselect6),
    ("pwrite64", libc::SYS_pwrite64),
    ("pwritev2", libc::SYS_pwritev2),
    ("read", libc::SYS_read),
    ("readlink", libc::SYS_readlink),
    ("readlinkat", libc::SYS_readlinkat),
    ("readv", libc::SYS_readv),
    ("recvfrom", libc::SYS_recvfrom),
    ("recvmsg", libc::SYS_recvmsg),
    ("rename", libc::SYS_rename),
    ("renameat", libc::SYS_renameat),
    ("renameat2", libc::SYS_renameat2),
    ("restart_syscall", libc::SYS_restart_syscall),
    ("rmdir", libc::SYS_rmdir),
    ("rseq", libc::SYS_rseq),
    ("rt_sigaction", libc::SYS_rt_sigaction),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask),
    ("rt_sigreturn", libc::SYS_rt_sigreturn),
    ("rt_sigsuspend", libc::SYS_rt_sigsuspend),
    ("sched_getaffinity", libc::SYS_sched_getaffinity),
    ("sched_setaffinity", libc::SYS_sched_setaffinity),
    ("sched_yield", libc::SYS_sched_yield),
    ("select", libc::SYS_select),
    ("sendmsg", libc::SYS_sendmsg),
    ("sendto", libc::SYS_sendto),
    ("set_robust_list", libc::SYS_set_robust_list),
    ("set_tid_address", libc::SYS_set_tid_address),
    ("setsockopt", libc::SYS_setsockopt),
    ("setxattr", libc::SYS_setxattr),
    ("shutdown", libc::SYS_shutdown),
    ("sigaltstack", libc::SYS_sigaltstack),
    ("socket", libc::SYS_socket),
    ("socketpair", libc::SYS_socketpair),
    ("stat", libc::SYS_stat),
    ("statfs", libc::SYS_statfs),
    ("statx", libc::SYS_statx),
    ("sysinfo", libc::SYS_sysinfo),
    ("tgkill", libc::SYS_tgkill),
    ("tkill", libc::SYS_tkill),
    ("umask", libc::SYS_umask),
    ("uname", libc::SYS_uname),
    ("unlink", libc::SYS_unlink),
    ("unlinkat", libc::SYS_unlinkat),
    ("utimensat", libc::SYS_utimensat),
    ("vfork", libc::SYS_vfork),
    ("wait4", libc::SYS_wait4),
    ("waitid", libc::SYS_waitid),
    ("write", libc::SYS_write),
    ("writev", libc::SYS_writev),
];
