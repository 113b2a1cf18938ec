//! Upgrades that fail: the old process goes on, and the command tells why.

use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;

use sheave_testkit::process;

use crate::load::Load;
use crate::rig::{ONE, Rig, until};

/// Asserts that the daemon serves as before: the same process, the client, and new clients at all its sockets.
#[track_caller]
fn serves_as_before(rig: &Rig, pid: u32, load: &Load) {
    assert_eq!(rig.pid(), pid);
    load.goes_on();
    assert!(rig.connect("va").read(0, 512).is_ok());
    assert_eq!(rig.ok("status --json").json()["servers"][0]["pid"], pid);
    load.goes_on();
}

#[test]
fn a_configuration_whose_sockets_cannot_be_bound_leaves_everything_to_the_old_process() {
    let Some(rig) = Rig::start(ONE) else { return };
    let load = Load::start(&rig, 0);
    let pid = rig.pid();
    let taken = TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = taken.local_addr().expect("an address").port();
    let missing = rig.dir.path("missing/control.sock").display().to_string();
    let cases = [
        (format!("metrics = \"127.0.0.1:{port}\"\n{ONE}"), port.to_string()),
        (format!("web = \"127.0.0.1:{port}\"\n{ONE}"), port.to_string()),
        (format!("{ONE}\n[control]\npath = \"{missing}\"\n"), "missing/control.sock".to_owned()),
        (ONE.replace("\"unix:nbd.sock\"", &format!("\"unix:nbd.sock\", \"tcp:127.0.0.1:{port}\"")), port.to_string()),
        (ONE.replace("\"unix:nbd.sock\"", "\"unix:nbd.sock\", \"unix:missing/nbd.sock\""), "missing/nbd.sock".into()),
    ];
    for (config, named) in cases {
        let line = rig.config("new.toml", &config);
        let err = rig.refused(&format!("upgrade {line}"), 1);
        assert!(err.contains(&named), "the cause names {named}: {err}");
        serves_as_before(&rig, pid, &load);
    }
    rig.upgrade();
    load.goes_on();
    load.end_well(&rig);
    rig.end();
}

#[test]
fn an_export_that_does_not_open_is_told_and_no_socket_of_the_old_process_is_lost() {
    let config = |file: &str| {
        format!(
            "{ONE}\n[control]\npath = \"c.sock\"\n
[[export]]\nname = \"f\"\nspec = \"file:{file}\"\nvhost_user = \"vm.sock\"\n"
        )
    };
    let Some(rig) = Rig::new(&config("f.img")) else { return };
    std::fs::write(rig.dir.path("f.img"), vec![0; 1 << 20]).expect("written");
    let rig = rig.run("serve --config c.toml");
    let load = Load::start(&rig, 0);
    let pid = rig.pid();
    let line = rig.config("new.toml", &config("nothing/f.img"));
    for _ in 0..2 {
        let err = rig.refused(&format!("upgrade --control c.sock {line}"), 1);
        assert!(err.contains("nothing/f.img"), "{err}");
        assert_eq!(rig.pid(), pid);
        load.goes_on();
        for socket in ["nbd.sock", "vm.sock", "c.sock"] {
            until(socket, || UnixStream::connect(rig.dir.path(socket)).is_ok());
        }
        assert!(rig.connect("f").read(0, 512).is_ok());
        rig.ok("export list --control c.sock");
    }
    rig.ok("upgrade --control c.sock");
    load.goes_on();
    assert!(rig.connect("f").read(0, 512).is_ok());
    load.end_well(&rig);
    rig.end();
}

#[test]
fn a_pool_whose_file_was_moved_or_replaced_goes_on_to_be_served() {
    let Some(rig) = Rig::start(ONE) else { return };
    let load = Load::start(&rig, 0);
    load.goes_on();
    let pid = rig.pid();
    let [here, there] = ["a.img", "moved.img"].map(|name| rig.dir.path(name));
    std::fs::rename(&here, &there).expect("moved");
    for replaced in [false, true] {
        if replaced {
            std::fs::copy(&there, &here).expect("copied");
        }
        let err = rig.refused("upgrade", 1);
        assert!(err.contains("the file of a pool that is open is no longer at ./a.img"), "{err}");
        assert_eq!(rig.pid(), pid);
        load.goes_on();
        assert!(rig.connect("va").read(0, 512).is_ok());
    }
    std::fs::rename(&there, &here).expect("moved back");
    rig.upgrade();
    load.end_well(&rig);
    rig.end();
}

/// Moment of an upgrade at which the old process gets a signal.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// The new process has not read its configuration.
    Begun,
    /// The new process opens the pool.
    Opens,
}

#[test]
fn a_signal_to_the_old_process_during_the_upgrade_ends_the_daemon() {
    let Some(mut rig) = Rig::start(ONE) else { return };
    let pipe = rig.dir.path("new.toml");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("it runs").success());
    for moment in [Moment::Begun, Moment::Opens, Moment::Opens] {
        let load = Load::start(&rig, 0);
        load.goes_on();
        let (old, begins) = (rig.pid(), rig.said().matches("BeginUpgrade").count());
        // The command reads the configuration, and then its new process waits for it.
        let begun = rig.begin_with("upgrade --config new.toml", || std::fs::write(&pipe, ONE).expect("read"));
        let new = begun.new.expect("it is there");
        until("it has begun", || rig.said().matches("BeginUpgrade").count() > begins);
        match moment {
            Moment::Begun => {
                process::signal(old, "-TERM");
                std::fs::write(&pipe, ONE).expect("read");
            }
            Moment::Opens => {
                std::fs::write(&pipe, ONE).expect("read");
                let has_pool = || has_open(new, &rig.dir.path("a.img"));
                until("it opens the pool", || has_pool() || !rig.servers().contains(&old));
                // The old process ends soon after, and a signal then is for nobody.
                process::signal(new, "-STOP");
                if rig.servers().contains(&old) {
                    process::signal(old, "-TERM");
                } else {
                    process::signal(new, "-TERM");
                }
                process::signal(new, "-CONT");
            }
        }
        begun.end();
        until(&format!("the daemon ends after {moment:?}\n{}", rig.said()), || rig.servers().is_empty());
        assert_eq!(rig.dir.ok("pool info a.img --json").json()["recovered"], false, "{}", rig.said());
        let book = load.end();
        rig.run_again("serve --config c.toml");
        book.check(&rig);
    }
    rig.end();
}

/// Returns true if a process has this file open.
fn has_open(pid: u32, file: &Path) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|at| at == file)
}

#[test]
fn a_signal_to_the_new_process_before_it_owns_anything_ends_only_that_one() {
    let Some(rig) = Rig::start(ONE) else { return };
    let load = Load::start(&rig, 0);
    let mut lived = 0;
    for _ in 0..6 {
        let old = rig.pid();
        let begun = rig.begin("upgrade");
        let Some(new) = begun.new else { continue };
        process::signal(new, "-TERM");
        let said = begun.end();
        // It had just been started, so it could not own anything.
        assert_eq!(said.code, 1, "{}\n{}", said.err, rig.said());
        load.goes_on();
        assert_eq!(rig.pid(), old, "{}", rig.said());
        lived += 1;
    }
    assert!(lived > 0, "no new process was seen");
    rig.upgrade();
    load.end_well(&rig);
    rig.end();
}
