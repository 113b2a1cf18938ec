//! A seccomp filter that forbids system calls, like some kernels and containers do.
#![allow(unsafe_code)]

/// Makes a system call fail with EPERM, like Docker's default profile does, for this thread and for the threads and
/// processes that it starts. A filter cannot be removed, so call this in a thread of its own.
///
/// `call` is one of libc's numbers, such as `SYS_io_uring_setup`.
pub fn forbid(call: libc::c_long) {
    refuse(call, libc::EPERM);
}

/// Same as [`forbid`] for `io_uring_setup`, so that no ring can be made.
pub fn forbid_rings() {
    forbid(libc::SYS_io_uring_setup);
}

/// Same as [`forbid`], with this errno.
pub fn refuse(call: libc::c_long, errno: i32) {
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let is_it = libc::sock_filter { code: equals as u16, jt: 0, jf: 1, k: call as u32 };
    let mut filter = [
        // The number of the call is the first word of seccomp's data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        is_it,
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    install(&mut filter);
}

/// Makes all system calls except these fail with EPERM, for this thread and the threads and processes that it starts.
/// Like with [`forbid`], the filter cannot be removed.
pub fn allow_only(calls: &[libc::c_long]) {
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0)];
    for call in calls {
        filter.push(libc::sock_filter { code: equals as u16, jt: 0, jf: 1, k: *call as u32 });
        filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    install(&mut filter);
}

fn install(filter: &mut [libc::sock_filter]) {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, whose statements live until the call returns.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "a filter: {}", std::io::Error::last_os_error());
}

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}
