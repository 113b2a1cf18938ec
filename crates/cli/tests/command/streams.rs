//! stdin and stdout of commands that a daemon carries out. If stdin or stdout is a file, a copy to or from `-` begins
//! at the current offset of that file. A command with endless output ends when its reader closes the pipe.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Lines};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sheave_varlink::Client;

use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools, served_ok};
use crate::sheave::{Dir, Said};

/// Runs a line of shell, which must succeed. `$S` is the path of the binary, which looks for daemons in the runtime
/// directory `run`.
fn shell(dir: &Dir, line: &str, run: Option<&Path>) -> Said {
    let mut command = Command::new("sh");
    command.args(["-ec", line]).current_dir(dir.path("")).env("S", assert_cmd::cargo::cargo_bin!("sheave"));
    command.env("SHEAVE_RUNTIME_DIR", run.unwrap_or(Path::new("")));
    let said = Said::of(command.output().expect("the shell runs"));
    assert_eq!(said.code, 0, "{line}\n{}", said.err);
    assert_eq!(said.err.contains("is served: asking"), run.is_some(), "{line}\n{}", said.err);
    said
}

/// Shell lines that export into `out`, behind what the file has already.
const EXPORTS: [&str; 4] = [
    "\"$S\" volume export a.img#v - --progress none >> out",
    "{ printf begin; \"$S\" volume export a.img#v - --progress none; printf end; } > out",
    "\"$S\" volume export-diff a.img#mon - --progress none >> out",
    "{ printf begin; \"$S\" volume export-diff a.img#mon - --progress none; printf end; } > out",
];

/// Shell lines that import the volume `NEW` from `in`, `odd` or `diff`. Two of them begin in the middle of the file.
const IMPORTS: [&str; 3] = [
    "{ dd bs=1M count=1 of=skipped status=none; \"$S\" volume import - NEW --progress none; } < in",
    "\"$S\" volume import - NEW --progress none < odd",
    "{ dd bs=5 count=1 of=skipped status=none; \"$S\" volume import-diff - NEW --progress none; } < diff",
];

#[test]
fn a_daemon_goes_on_where_stdin_and_stdout_stand_though_they_are_files() {
    let Some(dir) = pools() else { return };
    let run = dir.path("run");
    let daemon = Daemon::start(&dir, BOTH);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(1 << 20, &[7; 65536]), Some(0));
    served_ok(&dir, "volume snapshot a.img#v mon");
    served_ok(&dir, "volume export a.img#v whole");
    served_ok(&dir, "volume export-diff a.img#mon mon.diff");
    let read = |name: &str| fs::read(dir.path(name)).expect("read");
    let (whole, plain_diff) = (read("whole"), read("mon.diff"));
    let framed = |bytes: &[u8]| [b"begin", bytes, b"end"].concat();
    let wanted = [whole.clone(), framed(&whole), plain_diff.clone(), framed(&plain_diff)];
    let image: Vec<u8> = (0..3 << 20).map(|at: usize| (at >> 16) as u8 + 1).collect();
    fs::write(dir.path("in"), &image).expect("written");
    let odd = [b"QFI\xfb".as_slice(), &[1; 8188]].concat();
    fs::write(dir.path("odd"), &odd).expect("written");
    fs::write(dir.path("diff"), [b"begin", plain_diff.as_slice()].concat()).expect("written");
    let lines_give_it = |served: Option<&Path>, pool: &str| {
        for (line, wanted) in EXPORTS.iter().zip(&wanted) {
            fs::write(dir.path("out"), b"").expect("empty");
            shell(&dir, line, served);
            assert!(read("out") == *wanted, "{line} (served: {})", served.is_some());
        }
        for (line, (name, wanted)) in IMPORTS.iter().zip([("cut", &image[1 << 20..]), ("odd", &odd), ("diff", &whole)])
        {
            shell(&dir, &line.replace("NEW", &format!("{pool}#{name}")), served);
            shell(&dir, &format!("\"$S\" volume export {pool}#{name} back --yes --progress none"), served);
            assert!(read("back") == *wanted, "{line} (served: {})", served.is_some());
        }
    };
    lines_give_it(Some(&run), "b.img");
    // An import by the file's name recognizes the format, and refuses it.
    let refused = ask(&dir, "volume import odd b.img#other");
    assert!(refused.code == 2 && refused.err.contains("is a qcow2 image"), "{}", refused.err);
    daemon.end();
    dir.ok("pool create c.img --size 128M");
    lines_give_it(None, "c.img");
}

#[test]
fn a_file_that_was_opened_to_append_to_is_refused_unless_it_is_passed_as_a_stream() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let append = File::options().append(true).create_new(true).open(dir.path("out")).expect("made");
    let call = |parameters: Value| {
        let mut client = Client::connect(&dir.path("run/control.sock")).expect("it listens");
        client.call_more("io.sheave.Control.ExportVolume", &parameters, &[append.as_fd()], &mut |_| Ok(()))
    };
    let refused = call(json!({ "pool": "a", "volume": "v" }));
    assert!(matches!(&refused, Err(why) if why.to_string().contains("to append to")), "{refused:?}");
    assert_eq!(fs::metadata(dir.path("out")).expect("there").len(), 0);
    call(json!({ "pool": "a", "volume": "v", "stream": true })).expect("it is exported");
    assert_eq!(fs::metadata(dir.path("out")).expect("there").len(), 16 << 20);
    daemon.end();
}

/// Starts a command whose output has no end. Returns the process and the lines of its stdout.
fn teller(dir: &Dir, line: &str) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut command = dir.command(line);
    command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("it runs");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    (child, lines)
}

/// Returns the exit code of a process. Kills the process and returns `None` if it still runs after 10 s.
fn ends(mut child: Child) -> Option<i32> {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if let Some(status) = child.try_wait().expect("it is ours") {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("killed");
    child.wait().expect("it ends");
    None
}

#[test]
fn what_tells_without_an_end_ends_with_its_reader() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let (watch, mut lines) = teller(&dir, "pool watch a.img --json");
    lines.next().expect("a line").expect("read");
    // The command has nothing to write from here on, so only the closed pipe can end it.
    drop(lines);
    assert_eq!(ends(watch), Some(0));
    let (slow, lines) = teller(&dir, "slow --follow --json");
    std::thread::sleep(Duration::from_millis(100));
    drop(lines);
    assert_eq!(ends(slow), Some(0));
    // stdout is a socket whose peer has only shut down its reading side: the command learns of that when it writes.
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    ours.shutdown(Shutdown::Read).expect("shut");
    let mut command = dir.command("pool watch a.img");
    command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).stdout(OwnedFd::from(theirs)).stderr(Stdio::null());
    assert_eq!(ends(command.spawn().expect("it runs")), Some(0));
    // While the reader is there, the command keeps running, even if it has nothing to write.
    let (mut watch, mut lines) = teller(&dir, "pool watch a.img --json");
    lines.next().expect("a line").expect("read");
    std::thread::sleep(Duration::from_millis(1700));
    assert!(watch.try_wait().expect("it is ours").is_none());
    ask_ok(&dir, "pool set a.img --low-water 126M");
    assert!(lines.next().expect("a line").expect("read").contains("\"low\""));
    drop(lines);
    assert_eq!(ends(watch), Some(0));
    daemon.end();
}

#[test]
fn what_cannot_be_told_ends_it_with_the_reason() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    ask_ok(&dir, "slow --limit 1ns");
    let until = Instant::now() + Duration::from_secs(60);
    while ask_ok(&dir, "slow --json").json()["ios"].as_array().is_some_and(Vec::is_empty) {
        assert!(Instant::now() < until, "no I/O is slow");
        assert_eq!(client.write(0, &[1; 4096]), Some(0));
    }
    for line in ["pool watch a.img --json", "slow --follow --json"] {
        let full = File::options().write(true).open("/dev/full").expect("opened");
        let mut command = dir.command(line);
        command
            .env("SHEAVE_RUNTIME_DIR", dir.path("run"))
            .stdout(full)
            .stderr(File::create(dir.path("err")).expect("made"));
        assert_eq!(ends(command.spawn().expect("it runs")), Some(1), "{line}");
        let err = fs::read_to_string(dir.path("err")).expect("read");
        assert!(err.contains("could not be written to stdout"), "{line}\n{err}");
    }
    daemon.end();
}
