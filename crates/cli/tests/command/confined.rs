//! A daemon that has confined itself can open the files that its configuration names, and no others.

use crate::control::call;
use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools};
use crate::sheave::Dir;

/// Starts a daemon and asserts that it has confined itself. Returns `None` if the kernel has no Landlock.
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
    // The kernel confirms it: the process can gain no rights, and it cannot open the other file.
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.child.id())).expect("read");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    let secret = serde_json::json!({ "name": "x", "spec": format!("file:{}", dir.path("secret.img").display()) });
    let refused = call(&dir, "io.sheave.Control.AddExport", &secret)["parameters"]["cause"].to_string();
    assert!(refused.contains("beyond what the daemon may reach"), "{refused}");
    // Commands open the files of an import or export and pass the descriptors over the control socket. So these files
    // may be in places that the daemon cannot open.
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

/// The daemon connects to the server of a pool only once: when it opens all pools, each on its own thread. It must not
/// also connect before it confines itself.
#[test]
fn a_server_that_does_not_answer_is_not_waited_for_before_the_daemon_is_locked_in() {
    let Some(dir) = pools() else { return };
    let listener = std::os::unix::net::UnixListener::bind(dir.path("silent.sock")).expect("bound");
    listener.set_nonblocking(true).expect("set");
    let silent = format!(
        "\n[[pool]]\nname = \"far\"\npath = \"nbd:unix:{},connect=300ms\"\n",
        dir.path("silent.sock").display()
    );
    let Some(daemon) = confined(&dir, &format!("{BOTH}{silent}")) else { return };
    let came: Vec<_> = std::iter::from_fn(|| listener.accept().ok()).collect();
    assert_eq!(came.len(), 1, "{}", daemon.said());
    assert!(daemon.said().contains("pool 'far' is not open"), "{}", daemon.said());
    assert!(Nbd::connect(&dir.path("nbd.sock"), "va").is_some(), "{}", daemon.said());
    daemon.end();
}

/// The command opens the file with the rights of its user, and passes the descriptor to the daemon.
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
    // The passed descriptor is locked: a read-only export excludes writable ones, and a writable one excludes all
    // others.
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
    // The end of the export has released the lock.
    assert_eq!(add(" --name again").code, 0);
    daemon.end();
}

/// The command opens a new member too. Data that clients write afterwards is stored on that member.
#[test]
fn a_member_comes_from_a_place_that_the_daemon_does_not_reach() {
    let Some(dir) = pools() else { return };
    let Some(daemon) = confined(&dir, BOTH) else { return };
    let elsewhere = Dir::new();
    let more = elsewhere.path("more.img").display().to_string();
    let by_path = serde_json::json!({ "pool": "a", "spec": format!("file:{more},size=64M") });
    let refused = call(&dir, "io.sheave.Control.GrowPool", &by_path)["parameters"]["cause"].to_string();
    assert!(refused.contains("beyond what the daemon may reach"), "{refused}");
    ask_ok(&dir, &format!("pool grow a.img --add {more} --size 64M"));
    let place = format!("a.img+{more}");
    ask_ok(&dir, &format!("volume create {place}#big --size 160M"));
    ask_ok(&dir, &format!("export add {place}#big"));
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "big").expect("it is served");
    for at in 0..160u64 {
        assert_eq!(client.write(at << 20, &vec![at as u8 + 1; 1 << 20]), Some(0), "MiB {at}");
    }
    assert_eq!(client.flush(), Some(0));
    for at in 0..160u64 {
        assert!(client.read(at << 20, 1 << 20) == Some(vec![at as u8 + 1; 1 << 20]), "MiB {at}");
    }
    drop(client);
    daemon.end();
    dir.ok(&format!("pool check {place}"));
}

/// The daemon can open files that are nested in the spec of another device, although it has confined itself.
#[test]
fn files_at_any_depth_of_a_spec_are_reached_and_no_others() {
    let Some(dir) = pools() else { return };
    for name in ["x.img", "y,z.img", "secret.img"] {
        std::fs::write(dir.path(name), vec![6; 1 << 20]).expect("written");
    }
    let spec = "linear:over=fault:seed=1,over=file:x.img+partition:size=1M,over=file:\"y,z.img\"";
    let export = format!("\n[[export]]\nname = \"deep\"\nspec = '{spec}'\n");
    dir.ok("pool create d.img --size 64M");
    let pool = "\n[[pool]]\nname = \"d\"\npath = \"fault:error=0,over=file:d.img\"\n";
    let Some(daemon) = confined(&dir, &format!("{BOTH}{pool}{export}")) else { return };
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "deep").expect("it is served");
    assert_eq!(client.read(1 << 20, 512), Some(vec![6; 512]));
    drop(client);
    let info = call(&dir, "io.sheave.Control.GetPoolInfo", &serde_json::json!({ "pool": "d" }));
    assert!(info["error"].is_null(), "{info}");
    for spec in ["fault:over=file:", "linear:over=ram:size=1M+partition:over=file:"] {
        let spec = format!("{spec}{}", dir.path("secret.img").display());
        let add = serde_json::json!({ "name": "s", "spec": spec });
        let refused = call(&dir, "io.sheave.Control.AddExport", &add)["parameters"]["cause"].to_string();
        assert!(refused.contains("secret.img is beyond what the daemon may reach"), "{refused}");
    }
    daemon.end();
}

#[test]
fn a_link_that_leads_elsewhere_by_now_is_not_followed() {
    let Some(dir) = pools() else { return };
    // The daemon follows the link again when it reopens the pool. By then the link leads to another directory.
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

#[test]
fn where_the_kernel_cannot_lock_it_in_the_log_says_so_and_it_serves() {
    let Some(dir) = pools() else { return };
    let run = || {
        sheave_testkit::seccomp::forbid(libc::SYS_landlock_create_ruleset);
        let daemon = Daemon::start(&dir, BOTH);
        let said = daemon.said();
        assert!(said.contains("the daemon is not locked in: ") && said.contains("event=not_confined"), "{said}");
        let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
        assert_eq!(client.write(0, &[9; 4096]), Some(0));
        daemon.end();
    };
    // The filter cannot be removed from the thread that installs it, nor from its children, so it gets its own thread.
    std::thread::scope(|scope| scope.spawn(run).join().expect("no panic"));
}
