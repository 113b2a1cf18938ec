//! Data of other programs through a ring: fio writes a file with its own checksums and addresses in every block, a
//! Sheave ring copies it, and fio verifies the copy.

use std::path::Path;
use std::process::{Command, Output};

use sheave::{Buf, Fd, Ring, op, open_device};

const SIZE: usize = 8 << 20;
/// Bytes of one I/O of the copy. Not fio's block size, so that I/Os cross its blocks.
const CHUNK: usize = 24 << 10;
/// Number of I/Os of the copy that are in flight.
const DEPTH: usize = 8;

/// Runs fio over `file`: random blocks of mixed sizes, each with its address and a CRC32C, from one seed.
fn fio(fio: &Path, file: &Path, rest: &[&str]) -> Output {
    let mut command = Command::new(fio);
    command.arg(format!("--filename={}", file.display())).arg(format!("--size={SIZE}"));
    command.args(["--name=interop", "--ioengine=psync", "--rw=randwrite", "--bsrange=4k-64k", "--randseed=7"]);
    command.args(["--verify=crc32c", "--verify_fatal=1", "--allow_file_create=0"]).args(rest);
    command.current_dir(file.parent().expect("a directory")).output().expect("fio starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Attaches both files to one ring; `None` if the kernel forbids its ring.
fn open(from: &str, to: &str) -> Option<(Ring, Fd, Fd)> {
    let mut ring = Ring::builder().entries(2 * DEPTH as u32).build().expect("a ring");
    let mut fds = Vec::new();
    for spec in [from, to] {
        match ring.attach(&open_device(spec).expect("a device")) {
            Ok(fd) => fds.push(fd),
            Err(error) => {
                sheave_testkit::skip(&format!("no kernel ring here: {error}"));
                return None;
            }
        }
    }
    Some((ring, fds[0], fds[1]))
}

/// Copies the whole file: a read and then a write of the same memory for each chunk, of which the last is shorter, then
/// an fsync.
fn copy(ring: &mut Ring, from: Fd, to: Fd) {
    let (mut next, mut under_way) = (0, 0);
    while next < SIZE || under_way > 0 {
        while next < SIZE && under_way < DEPTH {
            let memory = Buf::zeroed(CHUNK.min(SIZE - next), 4096).expect("memory");
            let read = op::read(from, memory).offset(next as u64).user_data(next as u64);
            ring.push(read).map_err(|full| full.error).expect("room");
            next += CHUNK;
            under_way += 1;
        }
        ring.submit_and_wait(1).expect("submitted");
        let done: Vec<_> = ring.completions().collect();
        for completion in done {
            let offset = completion.user_data & !WRITTEN;
            assert_eq!(completion.res as usize, CHUNK.min(SIZE - offset as usize), "at {offset}");
            if completion.user_data & WRITTEN != 0 {
                under_way -= 1;
                continue;
            }
            let memory = completion.into_buf().expect("a read gives its memory back");
            let write = op::write(to, memory).offset(offset).user_data(offset | WRITTEN);
            ring.push(write).map_err(|full| full.error).expect("room");
        }
    }
    ring.push(op::fsync(to)).map_err(|full| full.error).expect("room");
    ring.submit_and_wait(1).expect("submitted");
    assert_eq!(ring.completions().next().map(|completion| completion.res), Some(0), "fsync");
}

/// Flag in the user data of writes.
const WRITTEN: u64 = 1 << 63;

/// Makes fio write, a ring copy with these options of `file:`, and fio verify. Then fio must detect a wrong byte.
fn fio_verifies_a_copy(options: &str) {
    let Some(program) = sheave_testkit::require("fio") else { return };
    let dir = tempfile::tempdir_in("/var/tmp").expect("a directory");
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    std::fs::write(&from, vec![0; SIZE]).expect("written");
    std::fs::write(&to, vec![0xEE; SIZE]).expect("written");
    let wrote = fio(&program, &from, &["--do_verify=0"]);
    assert!(wrote.status.success(), "{}", said(&wrote));

    let spec = |path: &Path| format!("file:{}{options}", path.display());
    let Some((mut ring, from_fd, to_fd)) = open(&spec(&from), &spec(&to)) else { return };
    copy(&mut ring, from_fd, to_fd);
    drop(ring);

    assert!(std::fs::read(&from).expect("read") == std::fs::read(&to).expect("read"), "the copy differs");
    let verified = fio(&program, &to, &["--verify_only"]);
    assert!(verified.status.success(), "{}", said(&verified));

    let mut bytes = std::fs::read(&to).expect("read");
    bytes[SIZE / 2 + 1234] ^= 1;
    std::fs::write(&to, bytes).expect("written");
    let verified = fio(&program, &to, &["--verify_only"]);
    assert!(!verified.status.success(), "fio did not look: {}", said(&verified));
}

#[test]
fn fio_verifies_a_copy_made_by_a_ring() {
    fio_verifies_a_copy("");
}

#[test]
fn fio_verifies_a_copy_made_through_the_page_cache() {
    fio_verifies_a_copy(",direct=off");
}
