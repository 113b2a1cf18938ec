//! The driver against common servers: nbdkit with its plugins and filters, qemu-nbd, nbd-server.

mod rig;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rig::{EIO, filled, is_listening, registry, results, ring};
use sheave::{Device, op};
use sheave_conformance::Suite;

const MIB: u64 = 1 << 20;

/// A server that ends with its test.
struct Peer(Child, Option<PathBuf>);

impl Drop for Peer {
    fn drop(&mut self) {
        // A server that goes to the background leaves its process number there.
        if let Some(pid) = self.1.as_ref().and_then(|path| std::fs::read_to_string(path).ok()) {
            let _ = Command::new("kill").arg(pid.trim()).status();
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server, and waits until it listens. Returns `None` if it is not installed.
fn start(program: &str, socket: &Path, args: &[&str]) -> Option<Peer> {
    let path = sheave_testkit::require(program)?;
    let mut command = Command::new(path);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
    let pid = args.iter().position(|arg| *arg == "-p").map(|at| PathBuf::from(args[at + 1]));
    let mut peer = Peer(command.spawn().expect("it starts"), pid);
    let from = Instant::now();
    while !is_listening(socket) {
        let ended = peer.0.try_wait().expect("asked");
        let ended = ended.filter(|ended| !ended.success());
        assert!(ended.is_none() && from.elapsed() < Duration::from_secs(30), "{program} {args:?}: {ended:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(peer)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

fn open(spec: &str) -> Device {
    registry().open(spec).expect("opened")
}

fn passes(spec: String) {
    if ring(&open(&spec)).is_some() {
        Suite::new(move || registry().open(&spec)).run().assert_passed();
    }
}

/// nbdkit runs with one thread per connection (`-t1`). With several threads, all notice that their client has left, and
/// one of them ends the server with an assertion (nbdkit 1.32, `raw_send_socket`).
#[test]
fn nbdkit_in_memory_with_simple_and_structured_replies() {
    for more in [&[][..], &["--no-sr"]] {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let args = [&["-f", "-t1", "-U", text(&socket)], more, &["memory", "16M"]].concat();
        let Some(_peer) = start("nbdkit", &socket, &args) else { return };
        passes(format!("nbd:unix:{}", socket.display()));
    }
}

#[test]
fn nbdkit_with_a_file_and_a_delay() {
    let dir = tempfile::tempdir().expect("a directory");
    let (socket, file) = (dir.path().join("s"), dir.path().join("image"));
    std::fs::File::create(&file).and_then(|file| file.set_len(16 * MIB)).expect("made");
    let args = ["-f", "-t1", "-U", text(&socket), "--filter=delay", "file", text(&file), "rdelay=1ms", "wdelay=1ms"];
    let Some(_peer) = start("nbdkit", &socket, &args) else { return };
    passes(format!("nbd:unix:{}", socket.display()));
}

#[test]
fn nbdkit_whose_answers_fail_fails_those_and_no_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let args = ["-f", "-U", text(&socket), "--filter=error", "memory", "16M", "error=EIO", "error-rate=30%"];
    let Some(_peer) = start("nbdkit", &socket, &args) else { return };
    let device = open(&format!("nbd:unix:{}", socket.display()));
    let Some((mut ring, fd)) = ring(&device) else { return };
    let (mut good, mut failed) = (0, 0);
    for round in 0..20 {
        for number in 0..32 {
            let offset = number * 262_144;
            if (number + round) % 2 == 0 {
                ring.push(op::write(fd, filled(8192, 1)).offset(offset)).expect("room");
            } else {
                ring.push(op::read(fd, filled(8192, 0xee)).offset(offset)).expect("room");
            }
        }
        let all = results(&mut ring, 32);
        assert!(all.iter().all(|&(_, res)| res == 8192 || res == -EIO), "{all:?}");
        good += all.iter().filter(|&&(_, res)| res == 8192).count();
        failed += all.iter().filter(|&&(_, res)| res == -EIO).count();
    }
    assert!(good > 100 && failed > 20, "{good} good, {failed} failed");
    assert!(device.notices().is_empty(), "an error is no loss of the connection: {:?}", device.notices());
}

#[test]
fn nbdkit_that_is_killed_and_started_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let (socket, file) = (dir.path().join("s"), dir.path().join("image"));
    std::fs::File::create(&file).and_then(|file| file.set_len(16 * MIB)).expect("made");
    let args = ["-f", "-U", text(&socket), "file", text(&file)];
    let Some(mut peer) = start("nbdkit", &socket, &args) else { return };
    let device = open(&format!("nbd:unix:{}", socket.display()));
    let Some((mut ring, fd)) = ring(&device) else { return };
    for round in 1..=5u8 {
        for number in 0..32 {
            ring.push(op::write(fd, filled(65536, round)).offset(number * 131_072)).expect("room");
        }
        ring.submit().expect("submitted");
        let _ = ring.wait(u32::from(round) * 5, Some(Duration::from_millis(20)));
        drop(peer);
        let _ = std::fs::remove_file(&socket);
        let Some(again) = start("nbdkit", &socket, &args) else { return };
        peer = again;
        // Completions of requests that have ended may be taken already.
        ring.submit_and_wait(0).expect("submitted");
        let mut left = 32;
        while left > 0 {
            let _ = ring.wait(1, Some(Duration::from_secs(20)));
            while let Some(done) = ring.pop() {
                assert_eq!(done.res, 65536, "{round}");
                left -= 1;
            }
        }
        ring.push(op::fsync(fd)).expect("room");
        let first = results(&mut ring, 1)[0].1;
        assert!(first == 0 || first == -EIO);
        let bytes = std::fs::read(&file).expect("read");
        let all = (0..32).all(|number| bytes[number * 131_072..][..65536].iter().all(|byte| *byte == round));
        assert!(all, "{round}: a file keeps what its server was told, though that is killed");
    }
    drop(peer);
}

/// Returns the extents that a new device reports: lengths, and true for zeroes.
fn extents(device: &Device) -> Vec<(u64, bool)> {
    let mut all: Vec<(u64, bool)> = Vec::new();
    let mut at = 0;
    while at < device.size_bytes() {
        let known = device.extents(at).expect("the server tells the truth");
        assert!(!known.is_empty(), "{:?}", device.notices());
        for extent in known {
            at += extent.len;
            match all.last_mut() {
                Some(last) if last.1 == extent.zero => last.0 += extent.len,
                _ => all.push((extent.len, extent.zero)),
            }
        }
    }
    all
}

/// Creates a file with a MiB of data after a hole of 4 MiB, and a hole of 11 MiB after that.
fn sparse(file: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(file).expect("made");
    file.set_len(16 * MIB).and_then(|()| file.write_all_at(&[7; MIB as usize], 4 * MIB)).expect("written");
}

const SPARSE: [(u64, bool); 3] = [(4 * MIB, true), (MIB, false), (11 * MIB, true)];

#[test]
fn nbdkit_and_qemu_nbd_tell_where_data_is_also_beside_rings() {
    let dir = tempfile::tempdir().expect("a directory");
    let (file, kit, qemu) = (dir.path().join("image"), dir.path().join("k"), dir.path().join("q"));
    sparse(&file);
    let peers = [
        start("nbdkit", &kit, &["-f", "-U", text(&kit), "file", text(&file)]).map(|peer| (peer, kit)),
        start("qemu-nbd", &qemu, &["-k", text(&qemu), "-t", "--shared=4", "-f", "raw", text(&file)])
            .map(|peer| (peer, qemu)),
    ];
    for (_peer, socket) in peers.into_iter().flatten() {
        let device = open(&format!("nbd:unix:{}", socket.display()));
        assert_eq!(extents(&device), SPARSE, "by the first connection");
        let Some((mut ring, fd)) = ring(&device) else { return };
        ring.push(op::read(fd, filled(8192, 0xee)).offset(4 * MIB)).expect("room");
        assert_eq!(results(&mut ring, 1), [(0, 8192)], "the ring has taken the connection over");
        assert_eq!(extents(&device), SPARSE, "by one of their own");
        assert!(device.notices().is_empty(), "{:?}", device.notices());
        let unasked = open(&format!("nbd:unix:{},block_status=off", socket.display()));
        assert!(unasked.extents(0).expect("nothing is known").is_empty());
    }
}

#[test]
fn a_server_that_cannot_tell_where_data_is_is_read_and_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let Some(_peer) = start("nbdkit", &socket, &["-f", "-U", text(&socket), "--no-sr", "memory", "16M"]) else {
        return;
    };
    let device = open(&format!("nbd:unix:{}", socket.display()));
    assert!(device.extents(0).expect("nothing is known").is_empty());
    assert!(device.notices()[0].contains("does not tell where its data is"), "{:?}", device.notices());
}

#[test]
fn qemu_nbd() {
    let dir = tempfile::tempdir().expect("a directory");
    let (socket, file) = (dir.path().join("s"), dir.path().join("image"));
    std::fs::File::create(&file).and_then(|file| file.set_len(16 * MIB)).expect("made");
    let args = ["-k", text(&socket), "-t", "--shared=16", "-f", "raw", "-x", "disk", "--discard=unmap", text(&file)];
    let Some(_peer) = start("qemu-nbd", &socket, &args) else { return };
    passes(format!("nbd:unix:{},export=disk,multi_conn=assume", socket.display()));
}

#[test]
fn qemu_nbd_for_one_client_serves_a_device_by_its_first_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let (socket, file) = (dir.path().join("s"), dir.path().join("image"));
    std::fs::File::create(&file).and_then(|file| file.set_len(16 * MIB)).expect("made");
    // The server ends when its only client leaves.
    let Some(_peer) = start("qemu-nbd", &socket, &["-k", text(&socket), "-f", "raw", text(&file)]) else { return };
    let device = open(&format!("nbd:unix:{}", socket.display()));
    let Some((mut ring, fd)) = ring(&device) else { return };
    ring.push(op::write(fd, filled(8192, 5)).offset(65536)).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 8192)]);
    ring.push(op::fsync(fd)).expect("room");
    assert_eq!(results(&mut ring, 1), [(0, 0)]);
    assert!(std::fs::read(&file).expect("read")[65536..][..8192].iter().all(|byte| *byte == 5));
}

#[test]
fn nbd_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let (socket, file, config) = (dir.path().join("s"), dir.path().join("image"), dir.path().join("config"));
    std::fs::File::create(&file).and_then(|file| file.set_len(16 * MIB)).expect("made");
    let words = format!(
        "[generic]\nunixsock = {}\n[disk]\nexportname = {}\nflush = true\nfua = true\ntrim = true\n",
        socket.display(),
        file.display()
    );
    std::fs::write(&config, words).expect("written");
    let pid = dir.path().join("pid");
    let Some(_peer) = start("nbd-server", &socket, &["-C", text(&config), "-p", text(&pid)]) else { return };
    passes(format!("nbd:unix:{},export=disk,multi_conn=assume", socket.display()));
}
