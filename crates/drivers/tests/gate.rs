//! The gate of a device where the kernel takes back the barrier that it has promised: freezing says that the device is
//! busy, for nobody can tell that no ring is in its driver.
#![allow(unsafe_code)] // installing the filter

use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier_query};
use sheave_drivers::open_device;

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Makes membarrier fail with EPERM for this thread.
fn forbid_membarrier() {
    let equals = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let is_membarrier = libc::sock_filter { code: equals as u16, jt: 0, jf: 1, k: libc::SYS_membarrier as u32 };
    let mut filter = [
        // The number is the first word of seccomp's data.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        is_membarrier,
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
fn a_gate_whose_barrier_fails_is_busy() {
    if !membarrier_query().contains_command(MembarrierCommand::RegisterPrivateExpedited) {
        return sheave_testkit::skip("a kernel without membarrier: rings run their barriers themselves");
    }
    let device = open_device("null:size=1M").expect("null");
    // Registers, as the first ring of a process does.
    assert!(sheave_base::asymmetric::barrier());
    let limit = Duration::from_millis(20);
    device.freeze(limit).expect("nobody uses it");
    // A thread of its own: the filter stays with it.
    std::thread::scope(|scope| {
        let refused = || {
            forbid_membarrier();
            [device.freeze(limit).err(), device.quiesce(limit).err()]
        };
        for error in scope.spawn(refused).join().expect("no panic") {
            let text = error.expect("it cannot know").to_string();
            assert!(text.contains("null:size=1M"), "{text}");
        }
    });
    device.freeze(limit).expect("closed no longer than the attempt");
}
