//! The log of a daemon: one line per event, with fields. Clients cannot flood it, and the level filters it.

use std::io::{Read, Write};
use std::time::Duration;

use crate::daemon::{BOTH, Daemon, Nbd, ask_ok, pools};
use crate::sheave::Dir;

/// Opens an export and sends invalid bytes. Returns when the server has closed the connection.
fn nonsense(dir: &Dir) {
    let Nbd(mut stream) = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    // The server may close the connection at each of these calls.
    let _ = stream.write_all(&[0xff; 64]);
    while matches!(stream.read(&mut [0; 256]), Ok(1..)) {}
}

#[test]
fn hostile_clients_do_not_flood_the_log_and_what_is_told_has_fields() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    for _ in 0..300 {
        nonsense(&dir);
    }
    let said = daemon.said();
    let dropped: Vec<&str> = said.lines().filter(|line| line.contains("event=client_dropped")).collect();
    assert!((1..60).contains(&dropped.len()), "{} of 300:\n{said}", dropped.len());
    assert!(dropped.iter().all(|line| line.starts_with("sheave: warning: a client was dropped")), "{said}");
    // The line names the client and its export.
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("proc"));
    let who = format!("export=va peer=process {0} of user {uid} pid={0} uid={uid} ", std::process::id());
    assert!(dropped.iter().all(|line| line.replace('"', "").contains(&who)), "{who}\n{}", dropped[0]);
    ask_ok(&dir, "volume snapshot a.img#v s");
    let said = daemon.said();
    let changed = said.lines().find(|line| line.contains("event=changed")).expect("a change is told");
    assert!(changed.contains("method=io.sheave.Control.CreateSnapshot") && changed.contains("'name':'s'"), "{changed}");
    assert!(changed.contains(&format!(" uid={uid} ")) && changed.contains(" pid="), "{changed}");
    daemon.end();
}

/// The log records copies like every other change. It also records changes that were refused because the user may only
/// read.
#[test]
fn the_log_has_who_copied_and_who_was_refused() {
    let Some(dir) = pools() else { return };
    let (uid, other) = (std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("proc")), 65534);
    let daemon = Daemon::start(&dir, &format!("{BOTH}\n[control]\nmode = \"0666\"\n"));
    std::fs::write(dir.path("raw"), [5; 4096]).expect("written");
    ask_ok(&dir, "volume import raw a.img#w --progress none");
    ask_ok(&dir, "volume export a.img#w out --progress none");
    ask_ok(&dir, "pool trim a.img --progress none");
    ask_ok(&dir, "volume list a.img");
    let said = daemon.said();
    for (event, method) in [("changed", "ImportVolume"), ("read_out", "ExportVolume"), ("changed", "TrimPool")] {
        let line =
            said.lines().find(|line| line.contains(&format!("event={event} method=io.sheave.Control.{method} ")));
        let line = line.unwrap_or_else(|| panic!("{method}\n{said}"));
        assert!(line.contains(&format!(" uid={uid} ")) && line.contains(" pid="), "{line}");
    }
    assert!(!said.contains("Control.ListVolumes"), "who looks is not told of\n{said}");
    if uid == 0 {
        use std::os::unix::fs::PermissionsExt;
        use std::os::unix::process::CommandExt;
        std::fs::set_permissions(dir.path("run"), PermissionsExt::from_mode(0o755)).expect("set");
        std::fs::set_permissions(dir.path(""), PermissionsExt::from_mode(0o755)).expect("set");
        let mut command = dir.command("export remove vb");
        command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).uid(other).gid(other);
        // The other user may be unable to run the binary. Then there is nothing to check.
        if command.output().is_ok_and(|output| output.status.code() == Some(1)) {
            let said = daemon.said();
            let line = said.lines().find(|line| line.contains("event=control_refused"));
            let line = line.unwrap_or_else(|| panic!("{said}"));
            assert!(line.contains(&format!(" uid={other} ")) && line.contains("RemoveExport"), "{line}");
        }
    }
    daemon.end();
}

/// Settings that need a restart are compared with the running daemon, not with the previous file.
#[test]
fn a_reload_says_what_differs_from_what_runs_until_it_does_not() {
    let Some(dir) = pools() else { return };
    let mut daemon = Daemon::start(&dir, BOTH);
    let mut reloads = 0;
    let mut reload = |config: &str| {
        std::fs::write(dir.path("c.toml"), config).expect("written");
        let before = daemon.said().matches("event=restart_needed").count();
        daemon.signal("-HUP");
        reloads += 1;
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while daemon.said().matches("event=reloaded").count() < reloads {
            assert!(std::time::Instant::now() < until, "{}", daemon.said());
            std::thread::sleep(Duration::from_millis(5));
        }
        let said = daemon.said();
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("event=restart_needed")).skip(before).collect();
        lines.concat()
    };
    let one = BOTH.replace("threads = 2", "threads = 1");
    for _ in 0..2 {
        assert!(reload(&one).contains("the daemon runs with another value of threads than"), "each time");
    }
    assert_eq!(reload(BOTH), "", "it runs so");
    for (line, key) in [
        ("max_clients = 5", "max_clients"),
        ("confine = false", "confine"),
        ("reach = [\"/srv\"]", "reach"),
        ("log_to = \"stderr\"", "log_to"),
        ("web = \"0\"", "web"),
        ("metrics = \"127.0.0.1:0\"", "metrics"),
        ("control = { mode = \"0666\" }", "control"),
    ] {
        assert!(reload(&format!("{line}\n{BOTH}")).contains(&format!("another value of {key} than")), "{key}");
    }
    let moded = BOTH.replace("\"unix:other.sock\"", "{ address = \"unix:other.sock\", mode = \"0660\" }");
    assert!(reload(&moded).contains("another value of listen than"));
    assert_eq!(reload(&format!("slow_limit = \"2s\"\n{BOTH}")), "", "a reload does that");
    daemon.until_it_says("event=reloaded");
    daemon.end();
}

#[test]
fn a_pool_that_becomes_low_is_told_once() {
    let Some(dir) = pools() else { return };
    let mut daemon = Daemon::start(&dir, BOTH);
    ask_ok(&dir, "pool set a.img --low-water 126M");
    daemon.until_it_says("event=pool_low pool=a");
    // Time for two more checks of the pool, which must not log the event again.
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(daemon.said().matches("event=pool_low").count(), 1, "{}", daemon.said());
    ask_ok(&dir, "pool set a.img --low-water off");
    daemon.until_it_says("event=over problem=pool_low pool=a");
    daemon.end();
}

#[test]
fn as_much_is_told_as_the_configuration_says_and_a_reload_changes_it() {
    let Some(dir) = pools() else { return };
    let mut daemon = Daemon::start(&dir, &format!("log = \"info\"\nlog_to = \"stderr\"\n{BOTH}"));
    std::fs::write(dir.path("c.toml"), format!("log = \"debug\"\nlog_to = \"stderr\"\n{BOTH}")).expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("event=reloaded");
    std::fs::write(dir.path("c.toml"), format!("log = \"error\"\n{BOTH}")).expect("written");
    daemon.signal("-HUP");
    // The log does not have the reload itself any more, so the test waits for its effect.
    let until = std::time::Instant::now() + Duration::from_secs(20);
    loop {
        let before = daemon.said().len();
        nonsense(&dir);
        std::thread::sleep(Duration::from_millis(50));
        if daemon.said().len() == before {
            break;
        }
        assert!(std::time::Instant::now() < until, "{}", daemon.said());
    }
    assert_eq!(daemon.said().matches("event=reloaded").count(), 1, "{}", daemon.said());
    daemon.end();
    for (text, words) in [("log = \"loud\"", "there are off, error"), ("log_to = \"syslog\"", "auto, journald, stderr")]
    {
        std::fs::write(dir.path("c.toml"), format!("{text}\n{BOTH}")).expect("written");
        let refused = dir.run("serve --config c.toml");
        assert!(
            refused.code == 2 && refused.err.contains("c.toml, line 1") && refused.err.contains(words),
            "{}",
            refused.err
        );
    }
}
