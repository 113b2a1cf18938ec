//! The gate of a device if the kernel withdraws the barrier that it has granted: freezing reports the device as busy,
//! because a ring may still be in its driver.

use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier_query};
use sheave_drivers::open_device;

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
            sheave_testkit::seccomp::forbid(libc::SYS_membarrier);
            [device.freeze(limit).err(), device.quiesce(limit).err()]
        };
        for error in scope.spawn(refused).join().expect("no panic") {
            let text = error.expect("it cannot know").to_string();
            assert!(text.contains("null:size=1M"), "{text}");
        }
    });
    device.freeze(limit).expect("closed no longer than the attempt");
}
