//! Causes every problem that a daemon can report, one after the other. Each time the log, the metrics, the data of the
//! status page, `top`, `status` with its exit code and the status of the unit must report the problem, and its end.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use sheave_testkit::certificates::Authority;
use sheave_testkit::process;

use crate::daemon::{Daemon, Nbd, ask};
use crate::sheave::{Dir, no_io_uring, sheave};

/// Longest time until a report changes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// A daemon with its notification socket of systemd.
struct Watched {
    dir: Dir,
    daemon: Daemon,
    systemd: UnixDatagram,
    port: u16,
    /// Newest `STATUS=` text that the daemon has sent.
    unit: String,
}

impl Watched {
    /// Starts a daemon with this configuration, to which a status page is added.
    fn start(dir: Dir, config: &str) -> Watched {
        let systemd = UnixDatagram::bind(dir.path("notify")).expect("bound");
        systemd.set_nonblocking(true).expect("set");
        let config = format!("listen = [\"unix:nbd.sock\"]\nthreads = 1\nweb = \"0\"\n{config}");
        fs::write(dir.path("c.toml"), config).expect("written");
        let said = dir.path("said");
        let mut command = sheave("serve --config c.toml");
        command.current_dir(dir.path("")).env("SHEAVE_RUNTIME_DIR", dir.path("run"));
        command.env("NOTIFY_SOCKET", dir.path("notify")).stderr(fs::File::create(&said).expect("made"));
        let mut daemon = Daemon { child: command.spawn().expect("it runs"), said };
        daemon.until_it_says("serving ");
        let said = daemon.said();
        let (_, after) = said.split_once("the status page is at http://127.0.0.1:").expect("it says where");
        let port = after.split_once('/').and_then(|(port, _)| port.parse().ok()).expect("a port");
        Watched { dir, daemon, systemd, port, unit: String::new() }
    }

    fn page(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("set");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
    }

    fn json(&self, line: &str) -> (i32, Value) {
        let said = ask(&self.dir, line);
        (said.code, said.json())
    }

    /// Reads all notifications that have arrived. Returns the newest status of the unit.
    fn unit(&mut self) -> &str {
        let mut bytes = [0; 4096];
        while let Ok(len) = self.systemd.recv(&mut bytes) {
            let told = String::from_utf8_lossy(&bytes[..len]).into_owned();
            let status = told.lines().find_map(|line| line.strip_prefix("STATUS="));
            self.unit = status.map_or(std::mem::take(&mut self.unit), str::to_owned);
        }
        &self.unit
    }

    /// Returns the names of the reports that show a problem. Asserts that the exit code of `sheave status` fits the
    /// severity that it prints. The systemd status of the unit contains only the worst problem: it counts if it has
    /// that problem's text and `sheave status` shows the problem asked for.
    fn tellers(&mut self, kind: &str, about: &str, name: &str) -> Vec<&'static str> {
        let of = |health: &Value| {
            let problems = health["problems"].as_array().cloned().unwrap_or_default();
            problems.into_iter().find(|one| one["kind"] == kind && one["about"] == about && one["name"] == name)
        };
        let mut tellers = Vec::new();
        let metrics = self.page("/metrics");
        let series = format!("sheave_problem{{kind=\"{kind}\",about=\"{about}\",name=\"{name}\"}} ");
        tellers.extend(metrics.contains(&series).then_some("metrics"));
        let page: Value = serde_json::from_str(&self.page("/statistics")).expect("JSON");
        tellers.extend(of(&page["health"]).map(|_| "page"));
        let (_, top) = self.json("top --once --json --interval 100ms");
        tellers.extend(of(&top["health"]).map(|_| "top"));
        let (code, status) = self.json("status --json");
        let health = &status["servers"][0]["health"];
        if let Some(problem) = of(health) {
            assert!(problem["cause"].as_str().is_some_and(|cause| cause.len() > 20), "{problem}");
            assert!(problem["fix"].as_str().is_some_and(|fix| fix.len() > 10), "{problem}");
            let severity = if problem["severity"] == "critical" { 2 } else { 1 };
            assert!(code >= severity, "{code}: {status}");
            tellers.push("status");
        }
        let expected = match status["severity"].as_str().expect("a word") {
            "ok" => 0,
            "warning" => 1,
            _ => 2,
        };
        assert_eq!(code, expected, "{status}");
        let worst = health["problems"][0]["cause"].as_str().unwrap_or_default().to_owned();
        let is_there = of(health).is_some();
        // Only the beginning is compared, because figures in the text may have changed since.
        let begin: String = worst.chars().take(20).collect();
        if is_there && self.unit().contains(&begin) {
            tellers.push("unit");
        }
        tellers
    }

    /// Waits until all reports and the log have the problem.
    fn until_told(&mut self, kind: &str, about: &str, name: &str) {
        let until = Instant::now() + PATIENCE;
        let all = ["metrics", "page", "top", "status", "unit"];
        loop {
            let tellers = self.tellers(kind, about, name);
            let is_logged = self.daemon.said().contains(&format!("event={kind}"));
            if tellers == all && is_logged {
                return;
            }
            let unit = self.unit().to_owned();
            assert!(
                Instant::now() < until,
                "{kind} is told by {tellers:?}, log: {is_logged}, unit: {unit}\n{}",
                self.daemon.said()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until no report has the problem, and the log has its end.
    fn until_over(&mut self, kind: &str, about: &str, name: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let tellers = self.tellers(kind, about, name);
            let is_logged = self.daemon.said().contains(&format!("event=over problem={kind}"));
            if tellers.is_empty() && is_logged {
                return;
            }
            assert!(
                Instant::now() < until,
                "{kind} is told by {tellers:?} still, log: {is_logged}\n{}",
                self.daemon.said()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Asserts that the health is good, and that the status of the unit says so too.
    fn is_well(&mut self) {
        let said = ask(&self.dir, "status");
        assert_eq!((said.code, said.out.starts_with("health   ok\n")), (0, true), "{}", said.out);
        assert!(self.page("/metrics").contains("sheave_health 0\n"));
        assert!(!self.unit().contains(';'), "{}", self.unit);
    }

    fn client(&self, export: &str) -> Nbd {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(client) = Nbd::connect(&self.dir.path("nbd.sock"), export) {
                return client;
            }
            assert!(Instant::now() < until, "'{export}' is not served: {}", self.daemon.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn reload(&mut self) {
        let done = |said: &str| said.matches("event=reloaded").count();
        let (before, until) = (done(&self.daemon.said()), Instant::now() + PATIENCE);
        self.daemon.signal("-HUP");
        while done(&self.daemon.said()) == before {
            assert!(Instant::now() < until, "it is not read again: {}", self.daemon.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Makes a directory with a pool and a volume of this size. Returns `None` without io_uring.
fn pool(options: &str, volume: &str) -> Option<Dir> {
    if no_io_uring() {
        return None;
    }
    let dir = Dir::new();
    fs::create_dir(dir.path("run")).expect("made");
    dir.ok(&format!("pool create a.img {options}"));
    dir.ok(&format!("volume create a.img#v --size {volume}"));
    Some(dir)
}

const POOL: &str = "[[pool]]\nname = \"a\"\npath = \"a.img\"\n";
const EXPORT: &str = "[[export]]\nname = \"v\"\npool = \"a\"\nvolume = \"v\"\n";

fn both() -> String {
    format!("{POOL}{EXPORT}")
}

/// Process that is killed when the value is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn id(&self) -> u32 {
        self.0.id()
    }
}

#[test]
fn a_pool_that_fills_up_is_told_low_then_full_then_well() {
    let Some(dir) = pool("--size 64M", "64M") else { return };
    let mut seen = Watched::start(dir, &both());
    seen.is_well();
    let mut client = seen.client("v");
    for at in 0..57 {
        assert_eq!(client.write(at << 20, &vec![1; 1 << 20]), Some(0));
    }
    seen.until_told("pool_low", "pool", "a");
    let mut at = 57;
    while client.write(at << 20, &vec![1; 1 << 20]) == Some(0) {
        at += 1;
    }
    seen.until_told("pool_full", "pool", "a");
    let said = ask(&seen.dir, "pool grow a.img --add file:more.img,size=256M");
    assert_eq!(said.code, 0, "{}", said.err);
    seen.until_over("pool_full", "pool", "a");
    // The pool is large enough now, so `pool_low` is not reported.
    seen.is_well();
}

/// A pool that is full for a moment between two checks of the health is reported all the same.
#[test]
fn nothing_is_missed_between_two_looks() {
    let Some(dir) = pool("--size 64M --low-water off", "64M") else { return };
    let mut seen = Watched::start(dir, &both());
    let mut client = seen.client("v");
    let mut at = 0;
    while client.write(at << 20, &vec![1; 1 << 20]) == Some(0) {
        at += 1;
    }
    // The trim follows at once, so there is rarely a check in between.
    assert_eq!(client.ask(4, 0, 32 << 20, &[]), Some(0));
    assert_eq!(client.flush(), Some(0));
    seen.daemon.until_it_says("event=pool_full");
    seen.daemon.until_it_says("event=over problem=pool_full");
    assert!(seen.page("/metrics").contains("sheave_pool_times_full_total{pool=\"a\"} 1\n"));
}

#[test]
fn a_full_file_system_below_is_told() {
    let Some(dir) = pool("--size 16M", "4M") else { return };
    fs::create_dir(dir.path("t")).expect("a mount point");
    if dir.shell("mount -t tmpfs -o size=64M sheave-test t").code != 0 {
        return sheave_testkit::skip("no small file system can be mounted here: run as root");
    }
    struct Mounted(std::path::PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        }
    }
    let _mounted = Mounted(dir.path("t"));
    dir.ok("pool create t/b.img --size 1G --low-water 16M");
    dir.ok("volume create t/b.img#v --size 1G");
    let config = "[[pool]]\nname = \"b\"\npath = \"t/b.img\"\n[[export]]\nname = \"v\"\npool = \"b\"\nvolume = \"v\"\n";
    let mut seen = Watched::start(dir, config);
    let mut client = seen.client("v");
    let mut at = 0;
    while at < 50 {
        assert_eq!(client.write(at << 20, &vec![1; 1 << 20]), Some(0));
        at += 1;
    }
    seen.until_told("host_low", "pool", "b");
    while client.write(at << 20, &vec![1; 1 << 20]) == Some(0) {
        at += 1;
    }
    seen.until_told("host_full", "pool", "b");
    assert_eq!(client.ask(4, 0, 48 << 20, &[]), Some(0));
    assert_eq!(client.flush(), Some(0));
    assert_eq!(ask(&seen.dir, "pool trim t/b.img --wait").code, 0);
    seen.until_over("host_full", "pool", "b");
    seen.until_over("host_low", "pool", "b");
    drop(client);
}

/// Starts an nbdkit server with a file. The server can be made to fail or to stop answering.
fn server(dir: &Dir, more: &[&str]) -> Option<Running> {
    let program = sheave_testkit::require("nbdkit")?;
    fs::File::create(dir.path("disk")).expect("made").set_len(128 << 20).expect("long");
    let mut command = Command::new(program);
    command.current_dir(dir.path("")).args(["-f", "-U", "far.sock", "--filter=error", "file", "disk"]);
    let child = command.args(more).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    let until = Instant::now() + PATIENCE;
    while !dir.path("far.sock").exists() {
        assert!(Instant::now() < until, "nbdkit does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(Running(child))
}

#[test]
fn a_disk_that_answers_with_errors_is_told_for_a_minute_after_the_last() {
    let Some(dir) = pool("--size 16M", "4M") else { return };
    let trigger = format!("error-file={}", dir.path("fails").display());
    let Some(_server) = server(&dir, &["error=EIO", "error-rate=100%", &trigger]) else { return };
    dir.ok("pool create nbd:unix:far.sock --yes");
    dir.ok("volume create nbd:unix:far.sock#v --size 32M");
    let config = "[[pool]]\nname = \"far\"\npath = \"nbd:unix:far.sock\"\n\
                  [[export]]\nname = \"v\"\npool = \"far\"\nvolume = \"v\"\n";
    let mut seen = Watched::start(dir, config);
    let mut client = seen.client("v");
    assert_eq!(client.write(0, &[1; 65536]), Some(0));
    fs::write(seen.dir.path("fails"), "").expect("written");
    assert_eq!(client.ask(0, 0, 4096, &[]), Some(5), "EIO");
    seen.until_told("device_faults", "pool", "far");
    fs::remove_file(seen.dir.path("fails")).expect("removed");
    assert!(client.read(0, 4096).is_some());
    seen.until_over("device_faults", "pool", "far");
    seen.is_well();
}

#[test]
fn a_disk_that_goes_away_and_comes_back_is_told() {
    let Some(dir) = pool("--size 16M", "4M") else { return };
    let Some(server) = server(&dir, &[]) else { return };
    let config = "[[export]]\nname = \"far\"\nspec = \"nbd:unix:far.sock\"\n";
    let mut seen = Watched::start(dir, config);
    let mut client = seen.client("far");
    assert_eq!(client.write(0, &[1; 4096]), Some(0));
    process::stop(server.id());
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| client.ask(0, 0, 4096, &[]));
        seen.until_told("device_silent", "export", "far");
        process::signal(server.id(), "-CONT");
        assert!(reads.join().expect("no panic").is_some());
        seen.until_over("device_silent", "export", "far");
    });
}

#[test]
fn a_pool_that_is_damaged_missing_or_in_use_is_told_and_opened_when_it_can_be() {
    let Some(dir) = pool("--size 64M", "16M") else { return };
    let good = fs::read(dir.path("a.img")).expect("read");
    fs::write(dir.path("a.img"), vec![0; good.len()]).expect("written");
    let mut seen = Watched::start(dir, &both());
    seen.until_told("pool_failed", "pool", "a");
    fs::write(seen.dir.path("a.img"), &good).expect("written");
    seen.until_over("pool_failed", "pool", "a");
    assert_eq!(seen.client("v").write(0, &[1; 4096]), Some(0));
    seen.is_well();
    let Watched { dir, daemon, .. } = seen;
    daemon.end();

    // The file of the pool appears after the start.
    fs::rename(dir.path("a.img"), dir.path("away")).expect("renamed");
    fs::remove_file(dir.path("notify")).expect("removed");
    let mut seen = Watched::start(dir, &both());
    seen.until_told("pool_failed", "pool", "a");
    fs::rename(seen.dir.path("away"), seen.dir.path("a.img")).expect("renamed");
    seen.until_over("pool_failed", "pool", "a");
    drop(seen.client("v"));
    let Watched { dir, daemon, .. } = seen;
    daemon.end();

    // Another server has the pool open.
    fs::remove_file(dir.path("notify")).expect("removed");
    let mut other = dir.command("serve a.img#v --nbd unix:other.sock");
    let other = Running(other.stderr(Stdio::null()).spawn().expect("it runs"));
    let until = Instant::now() + PATIENCE;
    while !dir.path("other.sock").exists() {
        assert!(Instant::now() < until, "the other server does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut seen = Watched::start(dir, &both());
    seen.until_told("pool_failed", "pool", "a");
    process::signal(other.id(), "-TERM");
    seen.until_over("pool_failed", "pool", "a");
    drop(seen.client("v"));
    seen.is_well();
}

#[test]
fn a_member_that_is_missing_is_told() {
    let Some(dir) = pool("--size 64M", "16M") else { return };
    dir.ok("pool grow a.img --add file:b.img,size=64M");
    fs::rename(dir.path("b.img"), dir.path("away")).expect("renamed");
    let mut seen = Watched::start(dir, &both().replace("\"a.img\"", "\"a.img+b.img\""));
    seen.until_told("pool_failed", "pool", "a");
    fs::rename(seen.dir.path("away"), seen.dir.path("b.img")).expect("renamed");
    seen.until_over("pool_failed", "pool", "a");
}

#[test]
fn rot_is_told_until_it_is_written_anew() {
    let Some(dir) = pool("--size 64M --checksum crc32c", "16M") else { return };
    let mut seen = Watched::start(dir, &both());
    let mut client = seen.client("v");
    let mark = [0xa7; 65536];
    assert_eq!(client.write(0, &mark), Some(0));
    assert_eq!(client.flush(), Some(0));
    let bytes = fs::read(seen.dir.path("a.img")).expect("read");
    let at = bytes.windows(4096).step_by(4096).position(|block| block == &mark[..4096]).expect("it is there") * 4096;
    let file = fs::OpenOptions::new().write(true).open(seen.dir.path("a.img")).expect("opened");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 512], at as u64).expect("written");
    file.sync_all().expect("synced");
    assert_ne!(client.ask(0, 0, 4096, &[]), Some(0), "it does not match");
    seen.until_told("bad_blocks", "pool", "a");
    assert_eq!(client.write(0, &mark), Some(0));
    seen.until_over("bad_blocks", "pool", "a");
    seen.is_well();
}

/// A page of metadata whose first copy is bad is read from the second copy. The problem is reported until a scrub has
/// rewritten the first copy (V33).
#[test]
fn a_bad_copy_of_metadata_is_told_until_a_scrub_has_written_it_anew() {
    let Some(dir) = pool("--size 64M --metadata-copies 2", "16M") else { return };
    let mut bytes = fs::read(dir.path("a.img")).expect("read");
    // Damages the first copies of pages of the volume table. Both copies of a page contain the address of the first.
    let is_first = |(at, block): &(usize, &mut [u8])| {
        let word = |from: usize| u64::from_le_bytes(block[from..from + 8].try_into().expect("8 bytes"));
        block.starts_with(b"SHVE\x05\0") && word(40) == *at as u64 * 4096
    };
    let first = bytes.chunks_exact_mut(4096).enumerate().filter(is_first).map(|(_, block)| block[99] ^= 1).count();
    assert!(first > 0, "there is a table");
    fs::write(dir.path("a.img"), &bytes).expect("written");
    let mut seen = Watched::start(dir, &both());
    seen.until_told("bad_copies", "pool", "a");
    let scrubbed = ask(&seen.dir, "pool scrub a.img");
    assert!(scrubbed.code == 0 && scrubbed.out.contains("were written anew"), "{} {}", scrubbed.out, scrubbed.err);
    seen.until_over("bad_copies", "pool", "a");
    seen.is_well();
}

#[test]
fn an_export_that_cannot_be_served_is_told_until_it_is() {
    let Some(dir) = pool("--size 16M", "4M") else { return };
    let missing = "[[export]]\nname = \"n\"\npool = \"a\"\nvolume = \"n\"\n";
    let config = format!("{POOL}{missing}[[export]]\nname = \"d\"\nspec = \"file:d.img\"\n");
    let mut seen = Watched::start(dir, &config);
    seen.until_told("export_failed", "export", "n");
    seen.until_told("export_failed", "export", "d");
    fs::File::create(seen.dir.path("d.img")).expect("made").set_len(1 << 20).expect("long");
    assert_eq!(ask(&seen.dir, "volume create a.img#n --size 4M").code, 0);
    seen.until_over("export_failed", "export", "n");
    seen.until_over("export_failed", "export", "d");
    drop((seen.client("n"), seen.client("d")));
    seen.is_well();
}

#[test]
fn a_flush_that_fails_is_told_until_the_pool_is_opened_again() {
    let Some(dir) = pool("--size 16M", "4M") else { return };
    let Some(program) = sheave_testkit::require("nbdkit") else { return };
    fs::File::create(dir.path("disk")).expect("made").set_len(64 << 20).expect("long");
    let disk = dir.path("disk").display().to_string();
    let mut command = Command::new(program);
    command.current_dir(dir.path("")).args(["-f", "-U", "far.sock", "eval"]);
    command.arg("get_size=stat -c %s $disk".replace("$disk", &disk));
    command.arg("can_write=exit 0").arg("can_flush=exit 0");
    command.arg(format!("pread=dd if={disk} skip=$4 count=$3 iflag=count_bytes,skip_bytes status=none"));
    command.arg(format!("pwrite=dd of={disk} seek=$4 oflag=seek_bytes conv=notrunc status=none"));
    command.arg(format!("flush=test ! -e {} || {{ echo EIO >&2; exit 1; }}", dir.path("fails").display()));
    let _server = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs"));
    let until = Instant::now() + PATIENCE;
    while !dir.path("far.sock").exists() {
        assert!(Instant::now() < until, "nbdkit does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let config = "[[export]]\nname = \"far\"\nspec = \"nbd:unix:far.sock\"\n";
    let mut seen = Watched::start(dir, config);
    let mut client = seen.client("far");
    assert_eq!(client.write(0, &[1; 4096]), Some(0));
    fs::write(seen.dir.path("fails"), "").expect("written");
    assert_ne!(client.flush(), Some(0));
    seen.until_told("flush_failed", "export", "far");
    fs::remove_file(seen.dir.path("fails")).expect("removed");
    assert_eq!(ask(&seen.dir, "export remove far --force").code, 0);
    seen.until_over("flush_failed", "export", "far");
    seen.is_well();
}

#[test]
fn metadata_that_runs_short_is_told() {
    let Some(dir) = pool("--size 8M --block 4K --low-water off", "1T") else { return };
    let mut seen = Watched::start(dir, &both());
    let mut client = seen.client("v");
    // Fills the data space with one block in each MiB, because each of these blocks needs its own page of the map.
    let mut blocks = 0;
    while client.write(blocks << 20, &[1; 4096]) == Some(0) {
        blocks += 1;
    }
    let mut made = 0;
    while ask(&seen.dir, "pool info a.img --json").json()["metadata_low"] == false {
        assert_eq!(ask(&seen.dir, &format!("volume snapshot a.img#v s{made}")).code, 0, "{made}");
        made += 1;
        assert!(made < 1000, "metadata takes no space");
        for block in 0..blocks.min(200) {
            // After a snapshot the write copies the page of the map. There is no space for the data itself.
            let _ = client.write(block << 20, &[2; 4096]);
        }
        let _ = client.flush();
    }
    seen.until_told("metadata_low", "pool", "a");
    for at in 0..made {
        assert_eq!(ask(&seen.dir, &format!("volume delete a.img#s{at} --yes")).code, 0);
    }
    assert_eq!(client.ask(4, 0, 1 << 30, &[]), Some(0));
    assert_eq!(client.flush(), Some(0));
    seen.until_over("metadata_low", "pool", "a");
}

#[test]
fn a_certificate_is_told_before_it_expires_and_after() {
    let Some(dir) = pool("--size 16M", "4M") else { return };
    let authority = Authority::new();
    let [certificate, key] = ["server-cert.pem", "server-key.pem"].map(|file| (file, dir.path(file)));
    let until_days = |days: i64| {
        let from = authority.issue_for_days("brief", "the server", (-9, days));
        for (file, to) in [&certificate, &key] {
            fs::copy(from.join(file), to).expect("copied");
        }
    };
    until_days(5);
    let config = format!("{}[[tls]]\ncertificate = \"server-cert.pem\"\nkey = \"server-key.pem\"\n", both());
    let mut seen = Watched::start(dir, &config);
    let file = "server-cert.pem";
    seen.until_told("certificate_expires", "file", file);
    until_days(-1);
    seen.reload();
    seen.until_told("certificate_expired", "file", file);
    until_days(90);
    seen.reload();
    seen.until_over("certificate_expired", "file", file);
    seen.is_well();
}

#[test]
fn a_configuration_that_cannot_be_read_again_is_told_until_one_can() {
    let Some(dir) = pool("--size 16M", "4M") else { return };
    let mut seen = Watched::start(dir, &both());
    let good = fs::read_to_string(seen.dir.path("c.toml")).expect("read");
    fs::write(seen.dir.path("c.toml"), "lisen = []").expect("written");
    seen.daemon.signal("-HUP");
    seen.until_told("reload_failed", "server", "");
    fs::write(seen.dir.path("c.toml"), good).expect("written");
    seen.reload();
    seen.until_over("reload_failed", "server", "");
    seen.is_well();
    let more = fs::read_to_string(seen.dir.path("c.toml")).expect("read").replace("threads = 1", "threads = 2");
    fs::write(seen.dir.path("c.toml"), &more).expect("written");
    seen.reload();
    seen.until_told("restart_needed", "server", "");
    fs::write(seen.dir.path("c.toml"), more.replace("threads = 2", "threads = 1")).expect("written");
    seen.reload();
    seen.until_over("restart_needed", "server", "");
    seen.is_well();
}

/// `serve SPEC` reports its health too.
#[test]
fn a_server_without_a_configuration_has_a_health() {
    let Some(dir) = pool("--size 64M", "64M") else { return };
    let daemon = Daemon::run(&dir, "serve a.img#v --nbd unix:nbd.sock");
    assert_eq!(ask(&dir, "status").code, 0);
    assert!(!daemon.said().contains("event=changed"), "a look is told as a change: {}", daemon.said());
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "v").expect("it is served");
    for at in 0..58 {
        assert_eq!(client.write(at << 20, &vec![1; 1 << 20]), Some(0));
    }
    let until = Instant::now() + PATIENCE;
    loop {
        let said = ask(&dir, "status");
        if said.code == 1 && said.out.contains("pool 'pool' is low") {
            break;
        }
        assert!(Instant::now() < until, "{}", said.out);
    }
    assert!(daemon.said().contains("event=pool_low"), "{}", daemon.said());
    daemon.end();
    let said = ask(&dir, "status");
    assert_eq!((said.code, said.err.contains("no server answers")), (3, true), "{}", said.err);
}
