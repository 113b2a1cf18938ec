//! A kernel that refuses or runs short, simulated because a real one cannot be made to; and the messages for users.

use super::*;
use sheave_base::status::Errno;

fn with_one_fsync() -> Option<(KernelRing, File)> {
    let mut ring = ring(4)?;
    let file = file_with(&[1; 16]);
    ring.prep_fsync(Target::Raw(file.as_raw_fd()), false, 5).expect("room");
    Some((ring, file))
}

#[test]
fn a_kernel_short_of_memory_is_asked_again() {
    let Some((mut ring, _file)) = with_one_fsync() else {
        return;
    };
    ring.simulated.extend([Err(libc::EAGAIN), Err(libc::EBUSY), Ok(0), Err(libc::ENOMEM)]);
    assert_eq!(ring.enter(0, None), Ok(1));
    assert_eq!(collect(&mut ring, 1), [(5, 0)]);
}

#[test]
fn a_kernel_that_stays_short_of_memory_is_an_error_and_loses_nothing() {
    let Some((mut ring, _file)) = with_one_fsync() else {
        return;
    };
    ring.simulated.extend(std::iter::repeat_n(Err(libc::EAGAIN), 200));
    let text = ring.enter(1, None).expect_err("out of memory").to_string();
    assert!(text.contains("no memory for requests"), "{text}");
    assert_eq!((ring.pending(), ring.in_flight()), (1, 0));
    ring.simulated.clear();
    assert_eq!(collect(&mut ring, 1), [(5, 0)]);
}

#[test]
fn a_busy_kernel_sends_the_caller_to_reap_first() {
    let Some((mut ring, file)) = with_one_fsync() else {
        return;
    };
    ring.enter(1, None).expect("entered");
    ring.prep_fsync(Target::Raw(file.as_raw_fd()), false, 6).expect("room");
    ring.simulated.push_back(Err(libc::EBUSY));
    assert_eq!(ring.enter(2, None), Ok(0), "there is something to reap");
    assert_eq!((ring.pending(), ring.reap(|_, _, _| {})), (1, 1));
    assert_eq!(collect(&mut ring, 1), [(6, 0)]);
}

#[test]
fn a_signal_gives_the_caller_its_turn() {
    let Some((mut ring, _file)) = with_one_fsync() else {
        return;
    };
    ring.simulated.push_back(Err(libc::EINTR));
    assert_eq!(ring.enter(1, None), Ok(0));
    assert_eq!(collect(&mut ring, 1), [(5, 0)]);
}

#[test]
fn permanent_errors_are_returned_at_once() {
    let Some((mut ring, _file)) = with_one_fsync() else {
        return;
    };
    let words =
        [(libc::EBADR, "lost completions"), (libc::EEXIST, "another thread"), (libc::EBADF, "closed by somebody")];
    for (errno, words) in words {
        ring.simulated.push_back(Err(errno));
        let error = ring.enter(1, None).expect_err("fatal");
        assert_eq!(error, KringError::Enter { errno: Errno(errno) });
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for entries in [0, 32769, u32::MAX] {
        let error = KernelRing::new(entries, KringOpts::default()).expect_err("refused");
        assert_eq!(error, KringError::BadEntries { entries });
    }
}

#[test]
fn a_refused_set_up_names_what_forbids_it_and_the_fix() {
    let cases = [
        (libc::EPERM, Some(2), "kernel.io_uring_disabled=2"),
        (libc::EPERM, Some(1), "kernel.io_uring_group"),
        (libc::EPERM, Some(0), "seccomp"),
        (libc::EACCES, None, "seccomp"),
        (libc::ENOSYS, Some(0), "CONFIG_IO_URING"),
        (libc::ENOMEM, Some(0), "ulimit -l"),
        (libc::EMFILE, Some(0), "ulimit -n"),
        (libc::EINVAL, Some(0), "Linux 5.6"),
    ];
    for (errno, sysctl, words) in cases {
        let text = KringError::explain_setup(errno, false, sysctl).to_string();
        assert!(text.contains(words), "{errno}: {text}");
    }
    let text = KringError::explain_setup(libc::EINVAL, true, None).to_string();
    assert!(text.contains("without polling"), "{text}");
    assert!(!KringError::explain_setup(libc::EPERM, false, Some(2)).to_string().contains("group"));
}
