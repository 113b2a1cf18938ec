//! Tests of mappings whose files are cut off, and so of the handler of SIGBUS in `sheave_base`, in this process and in
//! children that are to die.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::ftruncate;
use sheave_base::sigbus::any_broken;

use crate::memory::{GuestMemory, Mapping};
use crate::rig::{GUEST, REGION, memfd, memory};

fn read(memory: &GuestMemory, offset: u64) -> u8 {
    let span = memory.find(GUEST + offset, 1, &mut 0).expect("in a region");
    memory.place(span).expect("mapped").load_u8(0)
}

fn write(memory: &GuestMemory, offset: u64, byte: u8) {
    let span = memory.find(GUEST + offset, 1, &mut 0).expect("in a region");
    memory.place(span).expect("mapped").store_u8(0, byte, Ordering::Relaxed);
}

#[test]
fn a_file_that_is_cut_off_reads_as_zeroes_and_marks_its_region_alone() {
    let (memory, other) = (memory(2), memory(1));
    write(&memory, 0, 7);
    write(&memory, 8192, 8);
    ftruncate(memory.regions()[0].file(), 4096).expect("ftruncate");
    assert_eq!(read(&memory, 0), 7);
    assert!(!memory.is_broken());
    let before = any_broken();
    assert_eq!(read(&memory, 8192), 0);
    write(&memory, 12288, 9);
    assert_eq!(read(&memory, 12288), 9);
    assert!(any_broken() >= before + 2);
    assert!(memory.regions()[0].is_broken());
    assert!(!memory.regions()[1].is_broken() && !other.is_broken());
}

#[test]
fn two_threads_meet_the_missing_pages_at_once() {
    let memory = memory(1);
    ftruncate(memory.regions()[0].file(), 0).expect("ftruncate");
    let barrier = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                barrier.wait();
                for page in 0..REGION / 4096 {
                    assert_eq!(read(&memory, page * 4096), 0);
                }
            });
        }
    });
    assert!(memory.is_broken());
}

#[test]
fn a_slot_is_used_again_without_the_mark_of_its_last_mapping() {
    for _ in 0..3 {
        let mapping = Mapping::new(memfd(4096), 0, 4096).expect("a mapping");
        assert!(!mapping.is_broken());
        mapping.place(0, 1).expect("in the mapping").load_u8(0);
        assert!(!mapping.is_broken());
    }
    let file = memfd(4096);
    let mapping = Mapping::new(&file, 0, 4096).expect("a mapping");
    ftruncate(&file, 0).expect("ftruncate");
    mapping.place(0, 1).expect("in the mapping").load_u8(0);
    assert!(mapping.is_broken());
}

/// Runs one test of this file in a child with an environment variable, and returns the signal that ended it.
fn child(test: &str) -> Option<i32> {
    let program = std::env::current_exe().expect("the path of the tests");
    let mut child = Command::new(program);
    child.args(["--exact", &format!("memory::cut_off::{test}"), "--nocapture"]).env("SIGBUS_CHILD", test);
    // The address sanitizer has a handler of its own, which ends the process by an exit.
    let options = std::env::var("ASAN_OPTIONS").unwrap_or_default();
    child.env("ASAN_OPTIONS", format!("{options}:handle_sigbus=0"));
    child.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    child.status().expect("a child").signal()
}

fn is_child(test: &str) -> bool {
    std::env::var_os("SIGBUS_CHILD").is_some_and(|name| name == test)
}

#[test]
fn an_access_to_memory_that_is_not_watched_ends_the_process() {
    const NAME: &str = "an_access_to_memory_that_is_not_watched_ends_the_process";
    if !is_child(NAME) {
        assert_eq!(child(NAME), Some(libc::SIGBUS));
        return;
    }
    let file = memfd(4096);
    let mut mapping = Mapping::new(&file, 0, 4096).expect("a mapping");
    mapping.guard.forget();
    ftruncate(&file, 0).expect("ftruncate");
    mapping.place(0, 1).expect("in the mapping").load_u8(0);
}

#[test]
fn a_signal_of_another_process_ends_the_process_as_before() {
    const NAME: &str = "a_signal_of_another_process_ends_the_process_as_before";
    if !is_child(NAME) {
        assert_eq!(child(NAME), Some(libc::SIGBUS));
        return;
    }
    // The standard library's handler would wait for the access to be repeated, as it does without ours.
    // SAFETY: the default action needs no handler.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    let _mapping = Mapping::new(memfd(4096), 0, 4096).expect("a mapping");
    // SAFETY: raising a signal has no preconditions.
    unsafe { libc::raise(libc::SIGBUS) };
    std::thread::sleep(std::time::Duration::from_secs(60));
}

static PASSED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn own_handler(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo_t, and ours passes it on.
    let addr = unsafe { (*info).si_addr() as usize };
    PASSED.store(addr, Ordering::Relaxed);
    // SAFETY: `_exit` ends the process at once.
    unsafe { libc::raise(libc::SIGKILL) };
}

#[test]
fn the_handler_before_ours_gets_what_is_not_ours() {
    const NAME: &str = "the_handler_before_ours_gets_what_is_not_ours";
    if !is_child(NAME) {
        assert_eq!(child(NAME), Some(libc::SIGKILL));
        return;
    }
    // SAFETY: the handler has the right signature and calls only what is safe in handlers.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = own_handler as extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
    }
    let file = Arc::new(memfd(4096));
    let mut mapping = Mapping::new(&file, 0, 4096).expect("a mapping");
    mapping.guard.forget();
    ftruncate(&file, 0).expect("ftruncate");
    mapping.place(0, 1).expect("in the mapping").load_u8(0);
}
