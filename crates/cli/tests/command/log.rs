//! What a daemon tells: one line an event, with fields; bounded whatever clients do; as much as was asked for.

use std::io::{Read, Write};
use std::time::Duration;

use crate::daemon::{BOTH, Daemon, Nbd, ask_ok, pools};
use crate::sheave::Dir;

/// A client that has an export and sends what is no request, and waits until it is dropped.
fn nonsense(dir: &Dir) {
    let Nbd(mut stream) = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    // It may be dropped at any of these.
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
    ask_ok(&dir, "volume snapshot a.img#v s");
    let said = daemon.said();
    let changed = said.lines().find(|line| line.contains("event=changed")).expect("a change is told");
    assert!(changed.contains("method=io.sheave.Control.CreateSnapshot") && changed.contains("'name':'s'"), "{changed}");
    daemon.end();
}

#[test]
fn a_pool_that_becomes_low_is_told_once() {
    let Some(dir) = pools() else { return };
    let mut daemon = Daemon::start(&dir, BOTH);
    ask_ok(&dir, "pool set a.img --low-water 126M");
    daemon.until_it_says("event=pool_low pool=a");
    // Two more looks.
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
    // The reload itself is not told any more; so what it does is waited for.
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
