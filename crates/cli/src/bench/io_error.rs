//! Description of a failed I/O: operation, position, result, and advice.

use sheave_base::status::Errno;
use sheave_daemon::failure::Failure;
use sheave_load::looper::IoError;

/// Describes a failed I/O. `size_bytes` is the current size of the device.
pub fn explain(error: IoError, bs: u32, size_bytes: u64) -> Failure {
    let what = if error.write { "write" } else { "read" };
    let place = format!("{what} of {bs} bytes at byte {}", error.offset);
    let answer = match error.result {
        short @ 0.. => format!("gave only {short} bytes"),
        negative => format!("failed: {}", Errno(-negative)),
    };
    let failure = Failure::run(format!("{place} {answer}"));
    if error.offset + u64::from(bs) > size_bytes {
        let fix = "restore its size, or use --range to stay inside";
        return Failure::run(format!("{}; the device has shrunk to {size_bytes} bytes", failure.cause())).fix(fix);
    }
    match error.result {
        0.. => failure.fix("check the size of the device, and the layer below it (dmesg)"),
        negative => failure.fix(fix_for(-negative, error.write)),
    }
}

fn fix_for(errno: i32, write: bool) -> &'static str {
    match errno {
        libc::ENOSPC | libc::EDQUOT => {
            "free space on the file system under the device, raise its quota, or use a smaller size="
        }
        libc::EINVAL => {
            "the file may need a larger alignment: `sheave doctor PATH` tells which; use a larger --bs or direct=off"
        }
        libc::EACCES | libc::EPERM => "check the permissions of the file, or use another one",
        libc::EROFS => "the file system is read-only: remount it, or use another file",
        libc::EBADF if write => "the device is read-only; use --rw read or randread",
        libc::EIO | libc::EILSEQ => "the device reports bad data: look at dmesg and at the layer below it",
        libc::ENODEV | libc::ENXIO => "the device has gone: check that it is still attached",
        libc::ETIMEDOUT => {
            "the device does not answer in time: look at dmesg, at the network under it, and at its load"
        }
        libc::ENOMEM => "memory is short: use a smaller device, --depth or --bs",
        libc::EOPNOTSUPP => "the device cannot do this; `sheave doctor PATH` tells what it can",
        libc::EFBIG => {
            "the file system, or the limit of this process (ulimit -f), does not allow files of this size; use a \
             smaller size="
        }
        _ => "look at dmesg and at the layer below the device; --max-errors N goes on after N failures",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_place_cause_and_fix() {
        let full = explain(IoError { offset: 8192, write: true, result: -libc::ENOSPC }, 4096, 1 << 20).to_string();
        assert!(full.contains("write of 4096 bytes at byte 8192 failed: ENOSPC"), "{full}");
        assert!(full.contains("fix: free space"), "{full}");
    }

    #[test]
    fn a_short_read_behind_the_end_is_a_shrunk_device() {
        let short = explain(IoError { offset: 8192, write: false, result: 0 }, 4096, 8192).to_string();
        assert!(short.contains("gave only 0 bytes") && short.contains("shrunk to 8192"), "{short}");
    }
}
