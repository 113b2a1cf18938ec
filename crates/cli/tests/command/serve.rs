//! `sheave serve` with the NBD clients of other projects.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use sheave_testkit::process;

use crate::sheave::{Dir, Said, no_io_uring, sheave};

/// Makes a pool with a volume of 64 MiB. Returns `None` if a tool or io_uring is missing.
pub fn pool(tools: &[&str]) -> Option<Dir> {
    if no_io_uring() || tools.iter().any(|tool| sheave_testkit::require(tool).is_none()) {
        return None;
    }
    let dir = Dir::new();
    dir.ok("pool create p.img --size 512M");
    dir.ok("volume create p.img#v --size 64M");
    Some(dir)
}

/// Serves a volume while one shell command runs.
pub fn serve(dir: &Dir, spec: &str, command: &str) -> Said {
    let mut server = sheave(&format!("serve {spec} --run"));
    let said = Said::of(server.arg(command).current_dir(dir.path("")).output().expect("it runs"));
    assert!(!said.err.contains("dropped"), "{}", said.err);
    said
}

/// Serves a volume while one shell command runs. Returns the stdout of that command, which must succeed.
pub fn serve_ok(dir: &Dir, spec: &str, command: &str) -> String {
    let said = serve(dir, spec, command);
    assert_eq!(said.code, 0, "{command}\n{}{}", said.out, said.err);
    said.out
}

/// Writes a file of 64 MiB: one third is pseudo-random bytes, the rest is zeroes.
pub fn image(dir: &Dir, name: &str, seed: u64) {
    let mut rng = sheave_base::rng::Rng::new(seed);
    let mut bytes = vec![0u8; 64 << 20];
    for chunk in bytes.chunks_mut(256 << 10).step_by(3) {
        chunk.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.draw().to_le_bytes()));
    }
    std::fs::write(dir.path(name), bytes).expect("written");
}

/// Server that runs until a signal ends it.
struct Running {
    child: Child,
    socket: PathBuf,
}

impl Running {
    fn start(dir: &Dir, spec: &str) -> Running {
        let socket = dir.path("s");
        let mut command = sheave(&format!("serve {spec} --nbd unix:s"));
        let child = command.current_dir(dir.path("")).stderr(Stdio::piped()).spawn().expect("it runs");
        let mut running = Running { child, socket };
        running.connect();
        running
    }

    /// Connects to the server. Waits until the server listens.
    fn connect(&mut self) -> UnixStream {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match UnixStream::connect(&self.socket) {
                Ok(stream) => return stream,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the server ended: {status}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, name: &str) {
        process::signal(self.child.id(), name);
    }

    /// Ends the server by SIGTERM. Returns its exit code and its stderr.
    fn end(self) -> (i32, String) {
        self.end_by("-TERM")
    }

    fn end_by(mut self, signal: &str) -> (i32, String) {
        self.signal(signal);
        let status = self.child.wait().expect("it ends");
        let mut said = String::new();
        if let Some(mut err) = self.child.stderr.take() {
            err.read_to_string(&mut said).expect("it is text");
        }
        (status.code().unwrap_or(-1), said)
    }
}

/// Returns an option request of the handshake.
fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT".as_slice(), &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Returns the header of a request in the plain form, without extended headers.
fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let head = [0x2560_9513u32.to_be_bytes().as_slice(), &flags.to_be_bytes(), &command.to_be_bytes()].concat();
    [&head, cookie.to_be_bytes().as_slice(), &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Does the shortest possible handshake.
fn shake(stream: &mut UnixStream) {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting).expect("a greeting");
    stream.write_all(&[vec![0, 0, 0, 3], option(1, b"")].concat()).expect("sent");
    let mut export = [0; 10];
    stream.read_exact(&mut export).expect("an export");
    assert_eq!(export[..8], (64u64 << 20).to_be_bytes());
}

/// Reads a simple reply. Returns its error number.
fn reply(stream: &mut UnixStream, cookie: u64) -> u32 {
    let mut bytes = [0; 16];
    stream.read_exact(&mut bytes).expect("a reply");
    assert_eq!(bytes[8..], cookie.to_be_bytes());
    u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]])
}

#[test]
fn nbdinfo_tells_what_it_can_and_what_lies_where() {
    let Some(dir) = pool(&["nbdinfo", "qemu-io"]) else { return };
    let mut question = String::from("nbdinfo --list \"$uri\"; nbdinfo --size \"$uri\"");
    for can in ["flush", "fua", "trim", "zero", "fast-zero", "cache", "df", "multi-conn"] {
        question += &format!("; nbdinfo --can {can} \"$uri\" || echo no {can}");
    }
    let said = serve_ok(&dir, "p.img#v", &question);
    assert!(said.contains("export=\"v\"") && said.contains("base:allocation") && !said.contains("no "), "{said}");
    assert!(said.contains("\n67108864\n"), "{said}");
    let writes = "qemu-io -f raw -c 'write -P 5 1M 2M' -c 'discard 2M 64k' \"$uri\" && nbdinfo --map \"$uri\"";
    let said = serve_ok(&dir, "p.img#v", writes);
    let map: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    let expected = [["0", "1048576", "3"], ["1048576", "1048576", "0"], ["2097152", "65536", "3"]];
    let found: Vec<_> = map.iter().filter(|line| line.len() == 4).take(3).map(|line| &line[..3]).collect();
    assert_eq!(found, expected, "{said}");
}

#[test]
fn nbdcopy_goes_both_ways() {
    let Some(dir) = pool(&["nbdcopy"]) else { return };
    image(&dir, "a", 1);
    serve_ok(&dir, "p.img#v", "nbdcopy --flush a \"$uri\" && nbdcopy \"$uri\" b && cmp a b");
    // The flushed data is in the pool.
    dir.ok("volume export p.img#v c --yes");
    assert!(std::fs::read(dir.path("a")).expect("read") == std::fs::read(dir.path("c")).expect("read"));
    dir.ok("pool check p.img");
}

/// A client of libnbd starts its server with a socket that listens already, and ends the server with a signal.
#[test]
fn a_client_starts_the_server_and_passes_it_a_socket() {
    let Some(dir) = pool(&["nbdcopy", "nbdinfo"]) else { return };
    image(&dir, "a", 3);
    let client = |line: &str| {
        let line = line.replace("SERVE", &format!("{} serve", assert_cmd::cargo::cargo_bin!("sheave").display()));
        let output = std::process::Command::new("sh").args(["-c", &line]).current_dir(dir.path("")).output();
        let said = Said::of(output.expect("it runs"));
        assert_eq!(said.code, 0, "{line}\n{}{}", said.out, said.err);
        said.out
    };
    client("nbdcopy --flush -- a [ SERVE p.img#v ]");
    client("nbdcopy -- [ SERVE p.img#v --read-only ] b && cmp a b");
    assert_eq!(client("nbdinfo --size -- [ SERVE p.img#v ]"), "67108864\n");
    // An address of its own is served beside the passed socket.
    assert_eq!(client("nbdinfo --size -- [ SERVE ram:size=1M --nbd unix:own ]"), "1048576\n");
    assert!(!dir.path("own").exists(), "the server was ended in order");
    dir.ok("pool check p.img");
}

#[test]
fn qemu_converts_and_compares() {
    let Some(dir) = pool(&["qemu-img", "qemu-io"]) else { return };
    image(&dir, "a", 2);
    let convert = "qemu-img convert -n -f raw -O raw a \"$uri\" && qemu-img compare -f raw -F raw a \"$uri\"";
    assert!(serve_ok(&dir, "p.img#v", convert).contains("identical"));
    dir.ok("volume snapshot p.img#v before");
    let change = "qemu-io -f raw -c 'write -P 9 -f 8M 3M' -c 'write -z 20M 1M' -c 'write -z -u 30M 1M' \
                  -c 'read -P 9 9M 1M' -c 'read -P 0 20M 1M' -c 'read -P 0 30M 1M' -c flush \"$uri\"";
    let said = serve_ok(&dir, "p.img#v", change);
    assert!(!said.contains("failed"), "{said}");
    // The snapshot has kept its content, and writes to it are refused.
    assert!(serve_ok(&dir, "p.img#before", "qemu-img compare -f raw -F raw a \"$uri\"").contains("identical"));
    let refused = serve(&dir, "p.img#before", "qemu-io -f raw -c 'write 0 4k' \"$uri\"");
    assert!(format!("{}{}", refused.out, refused.err).contains("Permission denied"), "{}{}", refused.out, refused.err);
    dir.ok("pool check p.img");
}

#[test]
fn qemu_img_measures_reads_and_writes() {
    let Some(dir) = pool(&["qemu-img", "qemu-io"]) else { return };
    for (spec, how) in [("p.img#v", "-w --flush-interval=64 --pattern=7"), ("p.img#v", ""), ("ram:size=64M", "-w")] {
        let said = serve_ok(&dir, spec, &format!("qemu-img bench -f raw -c 2000 -d 16 -s 8k {how} \"$uri\""));
        assert!(said.contains("Run completed in"), "{said}");
    }
    let said = serve_ok(&dir, "p.img#v", "qemu-io -f raw -c 'read -P 7 0 15M' \"$uri\"");
    assert!(said.contains("15 MiB") && !said.contains("failed"), "{said}");
    dir.ok("pool check p.img");
}

#[test]
fn fio_finds_what_it_has_written() {
    let Some(dir) = pool(&["fio"]) else { return };
    let job = "fio --name=x --ioengine=nbd --uri=\"$uri\" --rw=randrw --bsrange=4k-128k --iodepth=32 --size=48M \
               --verify=crc32c --verify_fatal=1 --minimal";
    for spec in ["p.img#v", "ram:size=64M", "file:raw.img,size=64M"] {
        serve_ok(&dir, spec, job);
    }
    dir.ok("pool check p.img");
}

#[test]
fn the_exit_code_is_that_of_the_command() {
    let Some(dir) = pool(&[]) else { return };
    assert_eq!(serve(&dir, "p.img#v", "exit 7").code, 7);
    assert_eq!(serve(&dir, "p.img#v", "kill -9 $$").code, 137);
    assert_eq!(serve(&dir, "p.img#v", "exit 0").code, 0);
    let uri = serve_ok(&dir, "p.img#v", "test -S \"${uri#*socket=}\" && echo \"$uri\"");
    let socket = uri.trim().split_once("socket=").expect("a socket").1;
    assert!(uri.starts_with("nbd+unix:///v?socket=") && !std::path::Path::new(socket).exists(), "{uri}");
    assert!(!std::path::Path::new(socket).parent().expect("a directory").exists());
}

#[test]
fn an_end_by_signal_keeps_all_and_removes_the_socket() {
    let Some(dir) = pool(&[]) else { return };
    // systemd sends SIGTERM, Ctrl-C sends SIGINT.
    for (signal, byte) in [("-TERM", 0x5a), ("-INT", 0xa5)] {
        let mut server = Running::start(&dir, "p.img#v");
        let mut client = server.connect();
        shake(&mut client);
        client.write_all(&[request(1, 0, 1, 4096, 4096), vec![byte; 4096]].concat()).expect("sent");
        assert_eq!(reply(&mut client, 1), 0);
        let socket = server.socket.clone();
        let (code, said) = server.end_by(signal);
        assert_eq!(code, 0, "{signal}: {said}");
        assert!(said.starts_with("serving p.img#v (64 MiB) at nbd+unix:///v?socket="), "{said}");
        assert!(!socket.exists());
        dir.ok("volume export p.img#v out --yes");
        assert_eq!(std::fs::read(dir.path("out")).expect("read")[4096..8192], [byte; 4096], "{signal}");
        assert_eq!(dir.ok("pool info p.img --json").json()["recovered"], false, "{signal}: it was closed");
    }
}

#[test]
fn a_killed_server_has_lost_nothing_that_was_flushed() {
    let Some(dir) = pool(&[]) else { return };
    for round in 0..4u8 {
        let mut server = Running::start(&dir, "p.img#v");
        let (mut writer, mut flusher) = (server.connect(), server.connect());
        shake(&mut writer);
        shake(&mut flusher);
        for block in 0..64u64 {
            let bytes = vec![round * 64 + block as u8; 65536];
            // Every second write has FUA. The flush on another connection makes the others durable.
            let fua = u16::from(block % 2 == 0);
            let at = block * 65536 * 3;
            writer.write_all(&[request(1, fua, block, at, 65536), bytes].concat()).expect("sent");
            assert_eq!(reply(&mut writer, block), 0);
        }
        flusher.write_all(&request(3, 0, 7, 0, 0)).expect("sent");
        assert_eq!(reply(&mut flusher, 7), 0);
        // Writes without a flush: the kill may lose them, but they must damage nothing.
        for block in 0..64u64 {
            let bytes = vec![0xee; 4096];
            writer.write_all(&[request(1, 0, block, 32 << 20, 4096), bytes].concat()).expect("sent");
        }
        server.signal("-KILL");
        server.child.wait().expect("it ends");
        dir.ok("volume export p.img#v out --yes");
        let out = std::fs::read(dir.path("out")).expect("read");
        for block in 0..64usize {
            let at = block * 65536 * 3;
            assert!(out[at..at + 65536].iter().all(|&byte| byte == round * 64 + block as u8), "round {round}, {block}");
        }
        dir.ok("pool check p.img");
    }
}

/// Writes, writes to parts of blocks, and zeroes, none of which was flushed: with a runtime directory the death of the
/// server loses nothing that it has answered. Without one it loses what no commit has made durable.
#[test]
fn a_killed_server_has_lost_nothing_that_it_had_answered() {
    let Some(dir) = pool(&[]) else { return };
    let run = dir.path("run");
    for (round, runtime) in ["", "run", "run", "run"].into_iter().enumerate() {
        let byte = |block: u64| ((round as u64 * 64 + block) % 251) as u8 + 1;
        let mut command = sheave("serve p.img#v --nbd unix:s");
        command.env("SHEAVE_RUNTIME_DIR", if runtime.is_empty() { Path::new("") } else { &run });
        let child = command.current_dir(dir.path("")).stderr(Stdio::piped()).spawn().expect("it runs");
        let mut server = Running { child, socket: dir.path("s") };
        let mut writer = server.connect();
        shake(&mut writer);
        // Places that no earlier round has written.
        let place = |block: u64| (round as u64 * 64 + block) * 65536;
        for block in 0..64u64 {
            writer
                .write_all(&[request(1, 0, block, place(block), 8192), vec![byte(block); 8192]].concat())
                .expect("sent");
            assert_eq!(reply(&mut writer, block), 0);
        }
        for block in [3, 7] {
            writer.write_all(&request(6, 0, block, place(block), 8192)).expect("sent");
            assert_eq!(reply(&mut writer, block), 0);
        }
        server.signal("-KILL");
        server.child.wait().expect("it ends");
        let mut export = sheave("volume export p.img#v out --yes");
        let export = export.env("SHEAVE_RUNTIME_DIR", if runtime.is_empty() { Path::new("") } else { &run });
        let said = Said::of(export.current_dir(dir.path("")).output().expect("it runs"));
        assert_eq!(said.code, 0, "{}", said.err);
        let out = std::fs::read(dir.path("out")).expect("read");
        let found = |block: u64| out[place(block) as usize..][..8192].to_vec();
        let kept = (0..64).filter(|block| found(*block) == [byte(*block); 8192]).count();
        assert_eq!(kept, if runtime.is_empty() { 0 } else { 62 }, "round {round}");
        assert!([3, 7].into_iter().all(|block| found(block) == [0; 8192]), "round {round}");
        dir.ok("pool check p.img");
    }
    let left = || std::fs::read_dir(run.join("recent")).map_or(0, Iterator::count);
    assert_eq!(left(), 1, "a reader leaves the file, because it makes nothing durable");
    let mut snapshot = sheave("volume snapshot p.img#v s");
    snapshot.env("SHEAVE_RUNTIME_DIR", &run).current_dir(dir.path("")).output().expect("it runs");
    assert_eq!(left(), 0, "the file is removed when the pool is closed");
}

#[test]
fn refusals_name_cause_and_fix() {
    let Some(dir) = pool(&[]) else { return };
    let refused = |line: &str| {
        let said = Said::of(sheave(line).current_dir(dir.path("")).output().expect("it runs"));
        (said.code, said.err)
    };
    for (line, code, words) in [
        ("serve p.img#v", 2, "give --nbd unix:PATH"),
        ("serve p.img#v --nbd /tmp/x", 2, "unix:PATH"),
        ("serve p.img --nbd unix:x", 2, "p.img#NAME"),
        ("serve p.img#none --nbd unix:x", 1, "none"),
        ("serve none.img#v --nbd unix:x", 1, "there is no such file"),
        ("serve p.img#v --nbd unix:none/x", 1, "Make the directory first"),
        ("serve p.img#v --nbd unix:p.img", 1, "is no socket"),
        ("serve p.img#v --nbd tcp:192.0.2.1:10809", 1, "an address that this machine has"),
        ("serve nothing:x --nbd unix:x", 2, "nothing"),
    ] {
        let (was, said) = refused(line);
        assert!(was == code && said.contains(words), "{line}: {was}, {said}");
        assert!(!dir.path("x").exists(), "{line}");
    }
    let server = Running::start(&dir, "p.img#v");
    let (code, said) = refused("serve ram:size=1M --nbd unix:s");
    assert!(code == 1 && said.contains("another server answers"), "{said}");
    let (code, said) = refused("serve p.img#v --nbd unix:t");
    assert!(code == 1 && said.contains("in use"), "{said}");
    assert_eq!(server.end().0, 0);
}
