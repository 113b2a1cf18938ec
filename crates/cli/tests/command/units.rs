//! The unit files of `docs/systemd` as they are shipped, under a real systemd that is PID 1 in its own namespaces. The
//! tests do what an operator does on the first day.

use std::path::Path;

use sheave_testkit::systemd::Systemd;

use crate::daemon::Nbd;

const SERVICE: &str = include_str!("../../../../docs/systemd/sheave.service");
const SOCKET: &str = include_str!("../../../../docs/systemd/sheave.socket");

const CONFIG: &str = "\
[[pool]]\nname = \"main\"\npath = \"/srv/pools/main.img\"\n\n\
[[export]]\npool = \"main\"\nvolume = \"a\"\n";
const LISTEN: &str = "listen = [\"unix:/run/sheave/nbd.sock\"]\n";

/// Boots a machine with both units, a pool with the volumes `a` and `b`, and a configuration that exports `a`.
fn machine() -> Option<Systemd> {
    if sheave_testkit::under_sanitizer() {
        sheave_testkit::skip("the unit's filter forbids what the search for leaks does");
        return None;
    }
    let machine = Systemd::boot(&[Path::new(assert_cmd::cargo::cargo_bin!("sheave"))])?;
    machine.write("/etc/systemd/system/sheave.service", SERVICE);
    machine.write("/etc/systemd/system/sheave.socket", SOCKET);
    machine.write("/etc/sheave/sheave.toml", &format!("{LISTEN}{CONFIG}"));
    machine.ok("systemctl daemon-reload && mkdir -p /srv/pools");
    machine.ok("sheave pool create /srv/pools/main.img --size 64M");
    for volume in ["a", "b"] {
        machine.ok(&format!("sheave volume create /srv/pools/main.img#{volume} --size 4M"));
    }
    Some(machine)
}

fn is_served(machine: &Systemd, socket: &str, export: &str) -> bool {
    let client = Nbd::connect(&machine.path(socket), export);
    client.is_some_and(|mut client| client.write(4096, &[7; 4096]) == Some(0) && client.flush() == Some(0))
}

/// Returns the lines of the journal that have this `SHEAVE_EVENT`.
fn events(machine: &Systemd, event: &str) -> String {
    machine.run(&format!("journalctl -q --no-pager SHEAVE_EVENT={event}")).unwrap_or_default()
}

/// Returns true if a daemon that runs outside of a unit can confine itself on this kernel.
fn locks_itself_in(machine: &Systemd) -> bool {
    let said = machine.ok("mkdir /run/sheave; sheave serve --config /etc/sheave/sheave.toml 2>/tmp/said & daemon=$!
        until grep -q event=serving /tmp/said || ! kill -0 $daemon; do sleep 0.02; done
        kill $daemon; wait $daemon; rm -r /run/sheave; cat /tmp/said");
    assert!(said.contains("event=serving"), "{said}");
    said.contains("event=confined")
}

#[test]
fn the_unit_starts_reloads_and_stops() {
    let Some(mut machine) = machine() else { return };
    let locks_itself_in = locks_itself_in(&machine);
    machine.ok("systemctl start sheave");
    assert_eq!(machine.show("sheave", "ActiveState"), "active");
    assert!(is_served(&machine, "/run/sheave/nbd.sock", "a"), "{}", machine.console());
    // systemd prints a message for each setting that it does not support. There must be no such message.
    let console = machine.console();
    let unknown = |line: &&str| line.contains("/sheave.s") && (line.contains("gnoring") || line.contains("nknown"));
    assert_eq!(console.lines().find(unknown), None, "{console}");

    // The unit confines the daemon by a seccomp filter, and the daemon confines itself.
    let pid = machine.show("sheave", "MainPID");
    let status = machine.ok(&format!("cat /proc/{pid}/status"));
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
    assert_eq!(!events(&machine, "confined").is_empty(), locks_itself_in, "{}", machine.console());

    machine
        .write("/etc/sheave/sheave.toml", &format!("{LISTEN}{CONFIG}\n[[export]]\npool = \"main\"\nvolume = \"b\"\n"));
    machine.ok("systemctl reload sheave");
    machine.until("the reload has come", |machine| !events(machine, "reloaded").is_empty());
    assert!(is_served(&machine, "/run/sheave/nbd.sock", "b"), "{}", machine.console());
    machine.until("it is active again", |machine| machine.show("sheave", "ActiveState") == "active");
    assert_eq!(machine.show("sheave", "MainPID"), pid, "a reload is no restart");

    // With a configuration that no daemon can start with, `systemctl reload` fails and the exports stay.
    machine.write("/etc/sheave/sheave.toml", &format!("{LISTEN}{CONFIG}\nthreds = 2\n"));
    assert!(machine.run("systemctl reload sheave").is_err(), "{}", machine.console());
    assert_eq!(machine.show("sheave", "ReloadResult"), "exit-code");
    assert!(is_served(&machine, "/run/sheave/nbd.sock", "b"), "{}", machine.console());
    // A configuration is applied even if one of its pools cannot be opened.
    let gone = "\n[[pool]]\nname = \"gone\"\npath = \"/srv/pools/gone.img\"\n";
    machine.write("/etc/sheave/sheave.toml", &format!("{LISTEN}{CONFIG}{gone}"));
    machine.ok("systemctl reload sheave");
    machine.until("b has gone", |machine| !is_served(machine, "/run/sheave/nbd.sock", "b"));
    machine.until("the status says so", |machine| {
        machine.show("sheave", "StatusText").contains("; critical: pool 'gone' is not open: ")
    });
    machine.write("/etc/sheave/sheave.toml", &format!("{LISTEN}{CONFIG}"));
    machine.ok("systemctl reload sheave");
    machine.until("it is over", |machine| !machine.show("sheave", "StatusText").contains("critical"));
    // SIGHUP skips the check that `systemctl reload` makes first. The daemon's status reports the bad configuration.
    machine.write("/etc/sheave/sheave.toml", "threds = 2\n");
    machine.ok(&format!("kill -HUP {pid}"));
    machine.until("the status says so", |machine| {
        machine
            .show("sheave", "StatusText")
            .contains("; warning: the configuration stays as it was: /etc/sheave/sheave.toml, line 1")
    });

    machine.ok("systemctl stop sheave");
    assert_eq!(machine.show("sheave", "Result"), "success");
    assert_eq!(machine.show("sheave", "ExecMainStatus"), "0");
    assert_eq!(machine.show("sheave", "NRestarts"), "0");
    // The runtime directory stays, for the changes of pools whose daemon was killed. This one has closed its pools.
    let left = |path: &str| {
        std::fs::read_dir(machine.path(path)).expect("it is there").map(|entry| entry.expect("read").file_name())
    };
    let left: Vec<_> = left("/run/sheave").chain(left("/run/sheave/recent")).collect();
    assert_eq!(left, ["recent"], "a socket, or changes of a pool");
    machine.ok("sheave pool check /srv/pools/main.img");
}

/// An older systemd ignores the newest system calls in the unit. The test imitates that: it removes their lines from
/// the unit.
#[test]
fn a_systemd_that_does_not_know_the_newest_calls_still_runs_the_unit() {
    let Some(machine) = machine() else { return };
    let older: Vec<_> =
        SERVICE.lines().filter(|line| !line.contains("landlock_") && !line.contains("clone3")).collect();
    assert_eq!(older.len() + 2, SERVICE.lines().count());
    machine.write("/etc/systemd/system/sheave.service", &older.join("\n"));
    machine.ok("systemctl daemon-reload && systemctl start sheave");
    assert!(is_served(&machine, "/run/sheave/nbd.sock", "a"), "{}", machine.console());
    // The daemon logs that it could not confine itself.
    assert!(!events(&machine, "not_confined").is_empty(), "{}", machine.console());
    machine.ok("systemctl stop sheave");
    assert_eq!(machine.show("sheave", "Result"), "success");
}

#[test]
fn the_watchdog_hears_of_the_daemon_and_restarts_one_that_is_stuck() {
    let Some(mut machine) = machine() else { return };
    assert!(SERVICE.contains("\nWatchdogSec=30\n"), "the test makes it 6");
    machine.write("/etc/systemd/system/sheave.service", &SERVICE.replace("WatchdogSec=30", "WatchdogSec=6"));
    machine.ok("systemctl daemon-reload && systemctl start sheave");
    let heard = |machine: &Systemd| machine.show("sheave", "WatchdogTimestampMonotonic");
    for _ in 0..2 {
        let last = heard(&machine);
        machine.until("the watchdog was told", |machine| heard(machine) != last);
    }
    assert_eq!(machine.show("sheave", "NRestarts"), "0", "it was told in time");
    let stuck = machine.show("sheave", "MainPID");
    machine.ok(&format!("kill -STOP {stuck}"));
    machine.until("another daemon runs", |machine| {
        machine.show("sheave", "NRestarts") == "1" && machine.show("sheave", "ActiveState") == "active"
    });
    assert_ne!(machine.show("sheave", "MainPID"), stuck);
    assert!(is_served(&machine, "/run/sheave/nbd.sock", "a"), "{}", machine.console());
    machine.ok("systemctl stop sheave");
}

#[test]
fn the_socket_unit_starts_the_daemon_with_the_first_client_and_again_when_it_was_stopped() {
    let Some(machine) = machine() else { return };
    machine.write("/etc/sheave/sheave.toml", CONFIG);
    machine.ok("systemctl start sheave.socket");
    assert_eq!(machine.show("sheave", "ActiveState"), "inactive");
    assert!(is_served(&machine, "/run/sheave-nbd.sock", "a"), "{}", machine.console());
    assert_eq!(machine.show("sheave", "ActiveState"), "active");
    // The socket unit starts a daemon for a client that connects while none runs.
    let first = machine.show("sheave", "MainPID");
    machine.ok("systemctl stop sheave");
    assert!(is_served(&machine, "/run/sheave-nbd.sock", "a"), "{}", machine.console());
    assert_ne!(machine.show("sheave", "MainPID"), first);
    machine.ok("systemctl stop sheave.socket sheave");
    assert_eq!(machine.show("sheave", "Result"), "success");
    assert!(!machine.path("/run/sheave-nbd.sock").exists());
}
