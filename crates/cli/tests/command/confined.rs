//! A daemon that has locked itself in reaches what its configuration names, and nothing else.

use crate::control::call;
use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools};
use crate::sheave::Dir;

/// A daemon that says that it is locked in; `None` on a kernel that cannot.
fn confined(dir: &Dir, config: &str) -> Option<Daemon> {
    let daemon = Daemon::start(dir, config);
    if daemon.said().contains("this kernel has no Landlock") {
        sheave_testkit::skip("the kernel has no Landlock");
        return None;
    }
    assert!(daemon.said().contains("event=confined"), "{}", daemon.said());
    Some(daemon)
}

#[test]
fn a_daemon_that_is_locked_in_opens_no_other_file_and_does_its_work() {
    let Some(dir) = pools() else { return };
    std::fs::write(dir.path("secret.img"), vec![1; 1 << 20]).expect("written");
    let Some(daemon) = confined(&dir, BOTH) else { return };
    // The kernel's word for it: it may gain no rights any more, and it may not reach the file.
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).expect("read");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    let secret = serde_json::json!({ "name": "x", "spec": format!("file:{}", dir.path("secret.img").display()) });
    let refused = call(&dir, "io.sheave.Control.AddExport", &secret)["parameters"]["cause"].to_string();
    assert!(refused.contains("beyond what the daemon may reach"), "{refused}");
    // Files that commands open come over the control socket, from and to places that the daemon does not reach.
    let elsewhere = Dir::new();
    let raw = elsewhere.path("out.raw");
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    client.write(0, &[5; 4096]);
    ask_ok(&dir, &format!("volume export a.img#v {}", raw.display()));
    assert_eq!(std::fs::read(&raw).expect("read")[..4096], [5; 4096]);
    ask_ok(&dir, &format!("volume import {} a.img#copy", raw.display()));
    ask_ok(&dir, "volume snapshot a.img#copy monday");
    ask_ok(&dir, "export add a.img#monday");
    ask_ok(&dir, "pool scrub a.img");
    ask_ok(&dir, "pool trim a.img");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "monday").is_some());
    daemon.end();
    assert!(!dir.path("nbd.sock").exists() && !dir.path("run/control.sock").exists(), "its sockets are gone");
}

/// A command opens the file, with its user's rights, and the daemon gets descriptors.
#[test]
fn a_file_that_a_command_adds_is_served_by_a_daemon_that_does_not_reach_it() {
    let Some(dir) = pools() else { return };
    let Some(daemon) = confined(&dir, BOTH) else { return };
    let elsewhere = Dir::new();
    let path = elsewhere.path("disk.img");
    std::fs::write(&path, vec![7; 1 << 20]).expect("written");
    let add = |more: &str| ask(&dir, &format!("export add file:{}{more}", path.display()));
    assert_eq!(add(",readonly=on --name r").code, 0);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "r").expect("it is served");
    assert_ne!(client.write(0, &[1; 4096]), Some(0), "it is read-only");
    drop(client);
    // Readers keep writers away, and a writer everybody: the lock came with the file.
    let busy = add(" --name x");
    assert!(busy.code == 1 && busy.err.contains("disk.img"), "{}", busy.err);
    ask_ok(&dir, "export remove r --force");
    assert_eq!(add(" --name x").code, 0);
    let busy = add(" --name y --read-only");
    assert!(busy.code == 1 && busy.err.contains("disk.img"), "{}", busy.err);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "x").expect("it is served");
    assert_eq!(client.write(8192, &[9; 4096]), Some(0));
    drop(client);
    ask_ok(&dir, "export remove x --force");
    let bytes = std::fs::read(&path).expect("read");
    assert!(bytes[8192..12288] == [9; 4096] && bytes[..8192].iter().all(|byte| *byte == 7), "another was written");
    let rows = ask_ok(&dir, "export list --json").json();
    assert_eq!(rows["exports"].as_array().map(Vec::len), Some(2));
    // The lock has gone with the export.
    assert_eq!(add(" --name again").code, 0);
    daemon.end();
}

#[test]
fn a_link_that_leads_elsewhere_by_now_is_not_followed() {
    let Some(dir) = pools() else { return };
    // A link, which the daemon follows when it opens the pool anew: it leads elsewhere by then.
    let elsewhere = Dir::new();
    elsewhere.ok("pool create c.img --size 32M");
    std::os::unix::fs::symlink(dir.path("b.img"), dir.path("link.img")).expect("linked");
    let config = BOTH.replace("b.img", "link.img");
    let Some(mut daemon) = confined(&dir, &config) else { return };
    std::fs::remove_file(dir.path("link.img")).expect("removed");
    std::os::unix::fs::symlink(elsewhere.path("c.img"), dir.path("link.img")).expect("linked");
    let config = config.replace("name = \"b\"", "name = \"c\"").replace("pool = \"b\"", "pool = \"c\"");
    std::fs::write(dir.path("c.toml"), config).expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("the configuration was read again");
    assert!(daemon.said().contains("pool 'c' is not open: ./link.img is beyond what"), "{}", daemon.said());
    daemon.end();
}

#[test]
fn what_reach_names_can_be_opened_later_and_confine_false_leaves_all_open() {
    let Some(dir) = pools() else { return };
    std::fs::create_dir(dir.path("more")).expect("made");
    let Some(mut daemon) = confined(&dir, &format!("reach = [\"more\"]\n{BOTH}")) else { return };
    dir.ok("pool create more/d.img --size 32M");
    dir.ok("volume create more/d.img#v --size 1M");
    let more =
        "\n[[pool]]\nname = \"d\"\npath = \"more/d.img\"\n\n[[export]]\nname = \"vd\"\npool = \"d\"\nvolume = \"v\"\n";
    std::fs::write(dir.path("c.toml"), format!("reach = [\"more\"]\n{BOTH}{more}")).expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("the configuration was read again");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "vd").is_some(), "{}", daemon.said());
    daemon.end();
    let daemon = Daemon::start(&dir, &format!("confine = false\n{BOTH}"));
    assert!(daemon.said().contains("event=not_confined"), "{}", daemon.said());
    ask_ok(&dir, "export add file:more/d.img --name raw --read-only");
    daemon.end();
}
