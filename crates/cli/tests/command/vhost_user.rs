//! The vhost-user sockets of exports: by which option or key an export gets one, who may name its path, and what the
//! reports say. The device behind the socket has tests of its own.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::control::call;
use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools};
use crate::sheave::{Dir, Said, no_io_uring, sheave};

/// Configuration with two exports, of which `va` has a vhost-user socket.
fn attachable(keys: &str) -> String {
    BOTH.replace("name = \"va\"", &format!("name = \"va\"\n{keys}"))
}

fn is_socket(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket())
}

/// Returns the vhost-user device of an export, and the reason why the export is not served.
fn device(dir: &Dir, export: &str) -> (Value, Value) {
    let rows = ask_ok(dir, "export list --json").json();
    let rows = rows["exports"].as_array().expect("a list");
    let row = rows.iter().find(|row| row["name"] == export).unwrap_or_else(|| panic!("{rows:?}"));
    (row["vhost_user"].clone(), row["failed"].clone())
}

fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_socket_of_an_export_is_there_while_it_is_served_and_all_reports_tell_it() {
    let Some(dir) = pools() else { return };
    let socket = dir.path("vm.sock");
    let keys = "vhost_user = { path = \"vm.sock\", mode = \"0606\" }\nvhost_queues = 3\nvhost_in_order = true";
    let mut daemon = Daemon::start(&dir, &format!("web = \"0\"\n{}", attachable(keys)));
    assert!(is_socket(&socket));
    assert_eq!(std::fs::metadata(&socket).expect("there").mode() & 0o777, 0o606);
    let (told, failed) = device(&dir, "va");
    assert_eq!(told, json!({ "socket": "vm.sock", "queues": 3, "client": null, "running": [] }));
    assert_eq!((failed, device(&dir, "vb").0), (Value::Null, Value::Null));
    for line in ["export list", "status"] {
        let said = ask_ok(&dir, line).out;
        assert!(said.contains("a#v, vhost-user at vm.sock (queues 3)\n"), "{line}\n{said}");
    }
    let said = ask_ok(&dir, "top --once --interval 100ms").out;
    assert!(said.contains("\nVHOST-USER ") && said.contains("\nva                         -"), "{said}");
    let metrics = crate::web::get(&daemon, "/metrics");
    assert!(metrics.contains("# TYPE sheave_vhost_attached gauge\n"), "{metrics}");
    // A rollback takes the export out for a moment, and serves it again at the same path.
    ask_ok(&dir, "volume snapshot a.img#v s");
    ask_ok(&dir, "volume rollback a.img#v s --yes --force");
    assert!(is_socket(&socket) && device(&dir, "va").1.is_null());
    // A reload moves it, and then ends it.
    std::fs::write(dir.path("c.toml"), attachable("vhost_user = \"moved.sock\"")).expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("event=reloaded");
    assert!(!socket.exists() && is_socket(&dir.path("moved.sock")));
    std::fs::write(dir.path("c.toml"), BOTH).expect("written");
    daemon.signal("-HUP");
    until("the socket is gone", || !dir.path("moved.sock").exists());
    until("the export is there", || device(&dir, "va") == (Value::Null, Value::Null));
    std::fs::write(dir.path("c.toml"), attachable("vhost_user = \"vm.sock\"")).expect("written");
    daemon.signal("-HUP");
    until("the socket is there", || is_socket(&socket));
    daemon.end();
    assert!(!socket.exists(), "it goes with the daemon");
    let keys =
        attachable("vhost_user = \"vm.sock\"").replacen("listen = [\"unix:nbd.sock\", \"unix:other.sock\"]", "", 1);
    let daemon = Daemon::start(&dir, &keys);
    assert!(daemon.said().contains("serving 2 exports, 1 of them by vhost-user"), "{}", daemon.said());
    assert!(ask_ok(&dir, "status").out.contains("\nat       vhost-user sockets of exports\n"));
    daemon.end();
}

#[test]
fn an_export_whose_socket_cannot_be_bound_is_not_served_until_it_can() {
    let Some(dir) = pools() else { return };
    // Another server has the path.
    let other = UnixListener::bind(dir.path("vm.sock")).expect("bound");
    let daemon = Daemon::start(&dir, &attachable("vhost_user = \"vm.sock\""));
    let (told, failed) = device(&dir, "va");
    assert_eq!((&told["socket"], &told["client"]), (&json!("vm.sock"), &Value::Null));
    assert!(failed.as_str().is_some_and(|why| why.contains("vm.sock is in use: another server")), "{failed}");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "vb").is_some(), "the other one is served");
    let problem = || {
        let status = ask(&dir, "status --json");
        let health = status.json()["servers"][0]["health"].clone();
        (status.code, health["problems"][0].clone())
    };
    until("it is a problem", || problem().0 == 2);
    let (_, told) = problem();
    assert_eq!(
        (&told["kind"], &told["name"], &told["severity"]),
        (&json!("export_failed"), &json!("va"), &json!("critical"))
    );
    let cause = told["cause"].as_str().expect("a text");
    assert!(cause.starts_with("export 'va' is not served: unix:vm.sock is in use"), "{told}");
    assert_eq!(told["fix"], "End it, or choose another address");
    drop(other);
    until("it is served", || device(&dir, "va").1.is_null());
    assert!(is_socket(&dir.path("vm.sock")));
    daemon.end();
}

#[test]
fn a_command_adds_an_export_with_a_socket_of_its_own() {
    let Some(dir) = pools() else { return };
    let elsewhere = Dir::new();
    let daemon = Daemon::start(&dir, BOTH);
    // The daemon is confined, and could not bind a socket in the other directory.
    let (near, far) = (dir.path("run/vm.sock"), elsewhere.path("vm.sock"));
    let add = |name: &str, path: &Path, more: &str| {
        ask(&dir, &format!("export add ram:size=1M --name {name} --vhost-user {} {more}", path.display()))
    };
    for (name, path, more, queues) in
        [("near", &near, "--vhost-in-order", 2), ("far", &far, "--vhost-queues 7 --socket-mode 0666", 7)]
    {
        let said = add(name, path, more);
        assert_eq!((said.code, is_socket(path)), (0, true), "{}", said.err);
        let (told, failed) = device(&dir, name);
        assert_eq!((&told["socket"], &told["queues"]), (&json!(path), &json!(queues)), "{failed}");
        UnixStream::connect(path).expect("it listens");
    }
    assert_eq!(std::fs::metadata(&far).expect("there").mode() & 0o777, 0o666);
    // A path that is taken stays that of the export that has it, and a call that fails leaves none behind.
    let said = add("again", &near, "");
    assert!(said.code == 1 && said.err.contains("is in use: another server answers there"), "{}", said.err);
    assert!(is_socket(&near));
    let free = dir.path("free.sock");
    let said = add("near", &free, "");
    assert!(said.code == 1 && said.err.contains("'near'") && !free.exists(), "{}", said.err);
    for (line, code) in [
        ("export add ram:size=1M --name x --vhost-queues 2", 2),
        ("export add ram:size=1M --name x --vhost-user s --vhost-queues 65", 2),
        ("export add ram:size=1M --name x --vhost-user tcp:h:1", 2),
        ("export add ram:size=1M --name x --vhost-user none/s", 1),
    ] {
        let said = ask(&dir, line);
        assert_eq!(said.code, code, "{line}\n{}", said.err);
    }
    // The path of a socket that the caller has passed goes with the export, where the daemon may remove it.
    ask_ok(&dir, "export remove near");
    assert!(!near.exists());
    assert_eq!(add("near", &near, "").code, 0);
    // Without a passed socket the daemon binds the path itself, for root and its own user.
    let bind = |path: &Path| {
        let add = json!({ "name": "own", "spec": "ram:size=1M", "vhost_user": path });
        call(&dir, "io.sheave.Control.AddExport", &add)
    };
    let own = dir.path("run/own.sock");
    let reply = bind(&elsewhere.path("own.sock"));
    if daemon.said().contains("event=confined") {
        let cause = reply["parameters"]["cause"].to_string();
        assert!(cause.contains("the daemon may make no socket there"), "{reply}");
        let reply = bind(&elsewhere.path("missing/own.sock"));
        let cause = reply["parameters"]["cause"].to_string();
        assert!(cause.contains("did not exist at the start of the daemon"), "{reply}");
    } else {
        ask_ok(&dir, "export remove own");
    }
    let reply = bind(&near);
    let cause = reply["parameters"]["cause"].to_string();
    assert!(
        cause.contains("the vhost-user socket of the export 'near' already") || cause.contains("in use"),
        "{reply}"
    );
    let reply = bind(&own);
    assert!(reply["error"].is_null() && is_socket(&own), "{reply}");
    daemon.end();
    assert!(!own.exists() && !near.exists());
}

/// A user other than root makes the socket itself: the daemon binds no path that such a user names.
#[test]
fn a_listed_user_passes_its_socket_and_names_no_path_to_the_daemon() {
    let Some(dir) = pools() else { return };
    if std::fs::metadata("/proc/self").expect("proc").uid() != 0 {
        return sheave_testkit::skip("only root can run a command as another user");
    }
    let listed = "\n[control]\nmode = \"0666\"\nadmin_uids = [65534]\n";
    let daemon = Daemon::start(&dir, &format!("confine = false\n{BOTH}{listed}"));
    for path in ["", "run"] {
        std::fs::set_permissions(dir.path(path), std::fs::Permissions::from_mode(0o777)).expect("set");
    }
    std::fs::create_dir(dir.path("closed")).expect("made");
    std::fs::set_permissions(dir.path("closed"), std::fs::Permissions::from_mode(0o755)).expect("set");
    std::fs::copy(assert_cmd::cargo::cargo_bin!("sheave"), dir.path("sheave")).expect("copied");
    let nobody = |line: &str| {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(dir.path("sheave"));
        command.args(line.split_whitespace()).current_dir(dir.path("")).uid(65534).gid(65534);
        Said::of(command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).output().expect("it runs"))
    };
    let said = nobody("export add a.img#v --name v --vhost-user closed/vm.sock");
    assert!(said.code == 1 && said.err.contains("Permission denied"), "{}", said.err);
    let said = nobody("export add a.img#v --name v --vhost-user vm.sock");
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(std::fs::metadata(dir.path("vm.sock")).expect("there").uid(), 65534);
    // The socket survives that its export is taken out, since the daemon must not bind the path again.
    let inode = || std::fs::metadata(dir.path("vm.sock")).expect("there").ino();
    let before = inode();
    ask_ok(&dir, "volume snapshot a.img#v s");
    ask_ok(&dir, "volume rollback a.img#v s --yes --force");
    assert_eq!((inode(), device(&dir, "v").1), (before, Value::Null));
    UnixStream::connect(dir.path("vm.sock")).expect("it listens");
    let script = format!(
        "
import json, socket
s = socket.socket(socket.AF_UNIX)
s.connect('run/control.sock')
add = dict(name='x', spec='ram:size=1M', vhost_user='{}')
s.sendall(json.dumps(dict(method='io.sheave.Control.AddExport', parameters=add)).encode() + b'\\0')
print(s.recv(65536).decode())",
        dir.path("x.sock").display()
    );
    if let Some(said) = crate::control::python_as_nobody(&dir, &script) {
        let said = String::from_utf8(said.wait_with_output().expect("it ends").stdout).expect("a text");
        assert!(said.contains("makes no socket that user 65534 names") && !dir.path("x.sock").exists(), "{said}");
    }
    daemon.end();
    assert!(is_socket(&dir.path("vm.sock")), "the daemon removes nothing of another user");
}

/// `--vhost-user` without `--nbd` serves no NBD, and `--run` gets the path of the socket.
#[test]
fn a_command_gets_the_socket_and_the_address_of_nbd_only_if_there_is_one() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let run = |options: &str, command: &str| {
        let mut server = sheave(&format!("serve ram:size=1M {options} --run"));
        server.arg(command).current_dir(dir.path("")).env("uri", "stale").env("socket", "stale");
        let said = Said::of(server.output().expect("it runs"));
        assert_eq!(said.code, 0, "{options}\n{}", said.err);
        said.out.replace(&format!("{}/", dir.path("").display().to_string().trim_end_matches('/')), "")
    };
    let tell = "test -z \"$socket\" || test -S \"$socket\" && echo \"$socket,${uri:+with}\"";
    assert_eq!(run("--vhost-user unix:s --vhost-queues 64 --vhost-in-order", tell), "s,\n");
    assert_eq!(run("--vhost-user s --nbd unix:n --socket-mode 0666", tell), "s,with\n");
    assert_eq!(run("", tell), ",with\n");
    assert!(!dir.path("s").exists());
    let mut daemon = Daemon::run(&dir, "serve ram:size=1M --vhost-user unix:s");
    daemon.until_it_says("at unix:s by vhost-user; Ctrl-C ends it");
    assert!(is_socket(&dir.path("s")));
    daemon.end();
    assert!(!dir.path("s").exists());
    for options in [
        "--vhost-queues 2 --nbd unix:n",
        "--vhost-user unix:s --vhost-queues 0",
        "--vhost-user tcp:h:1",
        "--vhost-user s --nbd unix:s",
    ] {
        let said = dir.run(&format!("serve ram:size=1M {options}"));
        assert_eq!(said.code, 2, "{options}\n{}", said.err);
    }
}
