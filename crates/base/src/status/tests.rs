//! Status and errno: the map both ways, names, retry.

use super::*;

#[test]
fn each_status_survives_the_way_through_errno() {
    for status in Status::all() {
        assert_eq!(Status::from_errno(status.errno()), status);
        assert_eq!(Status::from_errno(Errno(status.result())), status);
        assert_eq!(status.is_ok(), status.errno() == Errno(0));
        assert!(status.errno().0 >= 0);
        assert!(Errno::from(status).name().is_some(), "{status}");
        assert!(!status.to_string().is_empty());
    }
    assert_eq!(Status::all().count(), TABLE.len());
}

#[test]
fn an_unknown_errno_is_an_io_error() {
    for errno in [4095, i32::MAX, i32::MIN, libc::ENOENT] {
        assert_eq!(Status::from_errno(Errno(errno)), Status::IoErr);
    }
    assert_eq!(Status::from_errno(Errno::ETIME), Status::Timeout);
    assert_eq!(Status::from_errno(Errno(-libc::EINTR)), Status::Again);
}

#[test]
fn retry_helps_only_where_waiting_cures() {
    let cured: Vec<_> = Status::all().filter(|status| status.retry_helps()).collect();
    assert_eq!(cured, [Status::Timeout, Status::Again, Status::NoMem, Status::Busy, Status::Transport]);
}

#[test]
fn an_errno_prints_name_and_words() {
    assert_eq!(Errno(libc::ENOSPC).to_string(), "ENOSPC: no space left on device");
    assert_eq!(Errno(4095).to_string(), "errno 4095");
    assert_eq!((Errno(libc::EIO).name(), Errno(4095).name()), (Some("EIO"), None));
    assert_eq!(Errno::from_io(&std::io::Error::from_raw_os_error(28)), Errno(libc::ENOSPC));
    assert_eq!(Errno::from_io(&std::io::Error::other("x")), Errno(libc::EIO));
    assert_eq!(size_of::<Status>(), 1);
}

#[test]
fn no_errno_stands_twice_in_the_table() {
    for (at, row) in ERRNOS.iter().enumerate() {
        assert!(ERRNOS[at + 1..].iter().all(|other| other.0 != row.0), "{} stands twice", row.1);
    }
}
