//! Daemons with thousands of exports (lists and reloads), and daemons with few descriptors (flushes).

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use crate::daemon::{BOTH, Daemon, Nbd, ask_ok, pools};
use crate::sheave::Dir;

/// Clients that list the exports get names and sizes, but neither paths nor specs.
#[test]
fn clients_are_told_what_an_export_is_and_not_where_it_lies() {
    if sheave_testkit::require("nbdinfo").is_none() {
        return;
    }
    let Some(dir) = pools() else { return };
    std::fs::write(dir.path("raw.img"), vec![0; 1 << 20]).expect("written");
    let raw = "\n[[export]]\nname = \"raw\"\nspec = \"file:raw.img,direct=off\"\nread_only = true\n";
    let daemon = Daemon::start(&dir, &format!("{BOTH}{raw}"));
    let told = listed(&dir);
    for (name, description) in [("va", "16 MiB"), ("vb", "16 MiB"), ("raw", "1 MiB, read-only")] {
        let row = told.iter().find(|row| row["export-name"] == name).expect("it is listed");
        assert_eq!(row["description"], description, "{row}");
        assert!(![".img", "file:", "direct", "#"].iter().any(|words| row.to_string().contains(words)), "{row}");
    }
    daemon.end();
}

/// Returns the exports that `nbdinfo --list` prints.
fn listed(dir: &Dir) -> Vec<serde_json::Value> {
    let said = dir.shell("nbdinfo --list --json 'nbd+unix:///?socket=nbd.sock'");
    assert_eq!(said.code, 0, "{}", said.err);
    said.json()["exports"].as_array().expect("a list").clone()
}

/// Returns `BOTH` with `many` further exports of the volume in pool `a`.
fn with_exports(many: usize) -> String {
    (0..many).fold(BOTH.to_owned(), |mut config, number| {
        write!(config, "\n[[export]]\nname = \"e{number}\"\npool = \"a\"\nvolume = \"v\"\n").expect("a text");
        config
    })
}

/// A client that lists exports sends two or more options for each of them, all in one handshake. The limit of options
/// in a handshake must allow that.
#[test]
fn more_exports_than_a_handshake_has_options_otherwise_are_listed() {
    if sheave_testkit::require("nbdinfo").is_none() {
        return;
    }
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, &with_exports(2_500));
    assert_eq!(listed(&dir).len(), 2_502);
    daemon.end();
}

/// Returns the CPU time of the daemon, in ticks of 10 ms.
fn ticks(daemon: &Daemon) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.child.id())).expect("read");
    let (_, after) = stat.rsplit_once(')').expect("a name");
    after.split(' ').skip(12).take(2).map(|number| number.parse::<u64>().expect("a number")).sum()
}

/// The time of a reload grows linearly with the number of exports. It once grew with the square: 4,000 exports took 4 s
/// of CPU time, in which signals had to wait.
#[test]
fn a_reload_of_thousands_of_exports_takes_little_time() {
    let Some(dir) = pools() else { return };
    let mut daemon = Daemon::start(&dir, &with_exports(4_000));
    for (config, told) in [(with_exports(4_000), 4_002), (with_exports(3_000), 3_002), (with_exports(4_000), 4_002)] {
        std::fs::write(dir.path("c.toml"), config).expect("written");
        std::fs::write(&daemon.said, "").expect("emptied");
        let before = ticks(&daemon);
        daemon.signal("-HUP");
        daemon.until_it_says("event=reloaded");
        let used = ticks(&daemon) - before;
        assert!(used < 150, "{told} exports: {used} ticks");
        let rows = ask_ok(&dir, "export list --json").json();
        assert_eq!(rows["exports"].as_array().map(Vec::len), Some(told));
    }
    assert!(Nbd::connect(&dir.path("nbd.sock"), "e3999").is_some());
    daemon.end();
}

/// The first flush of a volume by a worker needs a descriptor. Idle clients must not take all of them.
#[test]
fn clients_that_take_all_descriptors_they_get_keep_no_flush_from_a_volume() {
    let Some(dir) = pools() else { return };
    let said = dir.path("said");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64 && exec \"$0\" serve a.img#v --nbd unix:nbd.sock"]);
    command.arg(assert_cmd::cargo::cargo_bin!("sheave")).current_dir(dir.path(""));
    command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).stderr(std::fs::File::create(&said).expect("made"));
    let mut daemon = Daemon { child: command.spawn().expect("it runs"), said };
    daemon.until_it_says("serving ");
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "v").expect("it is served");
    let mut idle = Vec::new();
    for _ in 0..60 {
        let mut stream = UnixStream::connect(dir.path("nbd.sock")).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(1))).expect("set");
        stream.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01v").expect("sent");
        let served = stream.read_exact(&mut [0; 28]).is_ok();
        idle.push(stream);
        if !served {
            break;
        }
    }
    assert!(idle.len() > 8, "{} clients: {}", idle.len(), daemon.said());
    for number in 0..3u64 {
        assert_eq!(client.write(number << 20, &[number as u8; 4096]), Some(0));
        assert_eq!(client.flush(), Some(0), "flush {number} beside {} clients: {}", idle.len(), daemon.said());
    }
    assert!(daemon.said().contains("clients at a time, not 1024"), "{}", daemon.said());
    drop(idle);
    daemon.end();
}
