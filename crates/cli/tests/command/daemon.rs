//! `sheave serve --config`, and commands on a pool that this daemon holds.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sheave_testkit::process;

use crate::sheave::{Dir, Said, no_io_uring, sheave};

/// Makes the pools `a.img` and `b.img` with a volume each, and the runtime directory of a daemon.
pub fn pools() -> Option<Dir> {
    if no_io_uring() {
        return None;
    }
    let dir = Dir::new();
    for pool in ["a", "b"] {
        dir.ok(&format!("pool create {pool}.img --size 128M"));
        dir.ok(&format!("volume create {pool}.img#v --size 16M"));
    }
    std::fs::create_dir(dir.path("run")).expect("made");
    Some(dir)
}

/// Configuration with both pools and an export of each volume.
pub const BOTH: &str = r#"
listen = ["unix:nbd.sock", "unix:other.sock"]
threads = 2

[[pool]]
name = "a"
path = "a.img"

[[pool]]
name = "b"
path = "b.img"

[[export]]
name = "va"
pool = "a"
volume = "v"

[[export]]
name = "vb"
pool = "b"
volume = "v"
"#;

/// Running daemon, which is killed when the value is dropped.
pub struct Daemon {
    pub child: Child,
    pub said: std::path::PathBuf,
}

impl Daemon {
    pub fn start(dir: &Dir, config: &str) -> Daemon {
        std::fs::write(dir.path("c.toml"), config).expect("written");
        Daemon::start_again(dir)
    }

    /// Starts a daemon with the configuration file that the directory has.
    pub fn start_again(dir: &Dir) -> Daemon {
        Daemon::run(dir, "serve --config c.toml")
    }

    /// Starts a daemon with this command line.
    pub fn run(dir: &Dir, line: &str) -> Daemon {
        let said = dir.path("said");
        let err = std::fs::File::create(&said).expect("made");
        let mut command = sheave(line);
        command.current_dir(dir.path("")).env("SHEAVE_RUNTIME_DIR", dir.path("run")).stderr(err);
        let child = command.spawn().expect("it runs");
        let mut daemon = Daemon { child, said };
        daemon.until_it_says("serving ");
        daemon
    }

    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.said).expect("read")
    }

    pub fn until_it_says(&mut self, words: &str) {
        let until = Instant::now() + Duration::from_secs(60);
        while !self.said().contains(words) {
            assert!(Instant::now() < until, "it does not say '{words}':\n{}", self.said());
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the daemon ended: {status}\n{}", self.said());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn signal(&self, name: &str) {
        process::signal(self.child.id(), name);
    }

    /// Stops the daemon by SIGSTOP: none of its threads runs when this returns.
    pub fn stop(&self) {
        process::stop(self.child.id());
    }

    /// Ends the daemon by SIGTERM, and asserts that its exit code is 0.
    pub fn end(mut self) {
        self.signal("-TERM");
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}\n{}", self.said());
    }
}

impl Drop for Daemon {
    /// Kills the daemon, so that a failed test leaves none behind.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let said = std::fs::read_to_string(&self.said).unwrap_or_default();
            eprintln!("a daemon of the failed test said:\n{said}");
        }
        // The kill fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a command that may call the daemon. Returns its output.
pub fn ask(dir: &Dir, line: &str) -> Said {
    let mut command = dir.command(line);
    Said::of(command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).output().expect("it runs"))
}

/// Runs a command that may call the daemon, and asserts that it succeeds.
pub fn ask_ok(dir: &Dir, line: &str) -> Said {
    let said = ask(dir, line);
    assert_eq!(said.code, 0, "{line}\n{}{}", said.out, said.err);
    said
}

/// Runs a command that the daemon must carry out, and asserts that it succeeds.
pub fn served_ok(dir: &Dir, line: &str) -> Said {
    let said = ask_ok(dir, line);
    assert!(said.err.contains(" is served: asking 'sheave serve' (process "), "{line}\n{}", said.err);
    said
}

/// NBD client that is connected to an export.
pub struct Nbd(pub UnixStream);

impl Nbd {
    /// Connects to an export. Returns `None` if there is no such export.
    pub fn connect(socket: &Path, export: &str) -> Option<Nbd> {
        let mut stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        stream.read_exact(&mut [0; 18]).ok()?;
        let option = [b"IHAVEOPT".as_slice(), &1u32.to_be_bytes(), &(export.len() as u32).to_be_bytes()].concat();
        stream.write_all(&[vec![0, 0, 0, 3], option, export.as_bytes().to_vec()].concat()).ok()?;
        stream.read_exact(&mut [0; 10]).ok()?;
        Some(Nbd(stream))
    }

    /// Sends a request. Returns the error number of the reply, or `None` if the connection has broken.
    pub fn ask(&mut self, command: u16, offset: u64, len: u32, data: &[u8]) -> Option<u32> {
        let head = [0x2560_9513u32.to_be_bytes().as_slice(), &[0, 0], &command.to_be_bytes()].concat();
        let head = [&head, 9u64.to_be_bytes().as_slice(), &offset.to_be_bytes(), &len.to_be_bytes(), data].concat();
        self.0.write_all(&head).ok()?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply).ok()?;
        Some(u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]]))
    }

    /// Sends the header and half of the data of a write. The caller closes the connection after that.
    pub fn leave_in_a_write(&mut self, offset: u64, len: u32) {
        let head = [0x2560_9513u32.to_be_bytes().as_slice(), &[0, 0, 0, 1], &9u64.to_be_bytes()].concat();
        let half = vec![0xff; len as usize / 2];
        // The write fails if the server has ended.
        let _ = self.0.write_all(&[&head, offset.to_be_bytes().as_slice(), &len.to_be_bytes(), &half].concat());
    }

    /// Ends the session with `NBD_CMD_DISC`.
    pub fn say_goodbye(&mut self) {
        let _ = self.0.write_all(&[0x2560_9513u32.to_be_bytes().as_slice(), &[0, 0, 0, 2], &[0; 20]].concat());
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Option<u32> {
        self.ask(1, offset, data.len() as u32, data)
    }

    pub fn flush(&mut self) -> Option<u32> {
        self.ask(3, 0, 0, &[])
    }

    pub fn read(&mut self, offset: u64, len: u32) -> Option<Vec<u8>> {
        let error = self.ask(0, offset, len, &[])?;
        assert_eq!(error, 0, "a read at {offset}");
        let mut data = vec![0; len as usize];
        self.0.read_exact(&mut data).ok()?;
        Some(data)
    }
}

#[test]
fn several_pools_are_served_and_their_ends_are_clean() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    for (socket, export, byte) in [("nbd.sock", "va", 1u8), ("other.sock", "vb", 2)] {
        let mut client = Nbd::connect(&dir.path(socket), export).expect("it is served");
        assert_eq!(client.write(0, &[byte; 4096]), Some(0));
    }
    assert!(Nbd::connect(&dir.path("nbd.sock"), "vc").is_none());
    let rows = ask_ok(&dir, "export list --json").json();
    assert_eq!(rows["exports"][1]["name"], "vb");
    assert_eq!(rows["exports"][1]["size_bytes"], 16 << 20);
    daemon.end();
    assert!(!dir.path("nbd.sock").exists() && !dir.path("run/control.sock").exists());
    for (pool, byte) in [("a", 1u8), ("b", 2)] {
        assert_eq!(dir.ok(&format!("pool info {pool}.img --json")).json()["recovered"], false);
        dir.ok(&format!("volume export {pool}.img#v {pool}.raw"));
        assert_eq!(std::fs::read(dir.path(&format!("{pool}.raw"))).expect("read")[..4096], [byte; 4096]);
    }
}

#[test]
fn a_pool_that_is_damaged_does_not_stop_the_others_and_a_reload_tries_again() {
    let Some(dir) = pools() else { return };
    let good = std::fs::read(dir.path("a.img")).expect("read");
    std::fs::write(dir.path("a.img"), vec![0; good.len()]).expect("written");
    let mut daemon = Daemon::start(&dir, BOTH);
    let said = daemon.said();
    assert!(said.contains("pool 'a' is not open: ") && said.contains("; its export 'va' is not served"), "{said}");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "vb").is_some() && Nbd::connect(&dir.path("nbd.sock"), "va").is_none());
    let failed = ask_ok(&dir, "export list --json").json();
    assert!(failed["exports"][0]["failed"].as_str().is_some_and(|why| why.contains("pool 'a'")), "{failed}");
    // The pool is repaired and the configuration is read again. Its changes are applied, and the log names the change
    // that needs a restart.
    std::fs::write(dir.path("a.img"), good).expect("written");
    let more = BOTH.replace("name = \"vb\"", "name = \"renamed\"").replace("threads = 2", "threads = 1")
        + "\n[[export]]\nname = \"scratch\"\nspec = \"ram:size=1M\"\n";
    std::fs::write(dir.path("c.toml"), more).expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("the configuration was read again");
    assert!(daemon.said().contains("restart it"), "{}", daemon.said());
    for export in ["va", "renamed", "scratch"] {
        assert!(Nbd::connect(&dir.path("nbd.sock"), export).is_some(), "{export}: {}", daemon.said());
    }
    assert!(Nbd::connect(&dir.path("nbd.sock"), "vb").is_none());
    // A configuration that cannot be parsed changes nothing.
    std::fs::write(dir.path("c.toml"), "lisen = []").expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("the configuration stays as it was: c.toml, line 1: unknown field `lisen`");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "renamed").is_some());
    daemon.end();
}

/// Sends SIGHUP to the daemon, and waits until it has read the configuration again.
fn reload(daemon: &Daemon) {
    let done = || daemon.said().matches("event=reloaded").count();
    let (before, until) = (done(), Instant::now() + Duration::from_secs(60));
    daemon.signal("-HUP");
    while done() == before {
        assert!(Instant::now() < until, "the configuration is not read again:\n{}", daemon.said());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_that_names_no_export_gets_the_first_of_the_configuration_or_none() {
    let Some(dir) = pools() else { return };
    let good = std::fs::read(dir.path("a.img")).expect("read");
    std::fs::write(dir.path("a.img"), vec![0; good.len()]).expect("written");
    let daemon = Daemon::start(&dir, BOTH);
    let connect = |export: &str| Nbd::connect(&dir.path("nbd.sock"), export);
    assert_eq!(connect("vb").expect("it is served").write(0, &[2; 512]), Some(0));
    assert!(connect("").is_none(), "the first is not served, and the second is not it");
    std::fs::write(dir.path("a.img"), good).expect("written");
    reload(&daemon);
    assert_eq!(connect("").expect("the first is served").write(0, &[1; 512]), Some(0));
    let is_first = || connect("").and_then(|mut client| client.read(0, 512)) == Some(vec![1; 512]);
    assert!(is_first());
    // The first export is removed and added again, which puts it behind the second.
    let until = Instant::now() + Duration::from_secs(60);
    while ask_ok(&dir, "client list --json").json()["clients"] != json!([]) {
        assert!(Instant::now() < until, "clients are left");
    }
    std::fs::write(dir.path("c.toml"), BOTH.replacen("volume = \"v\"", "volume = \"v\"\nread_only = true", 1))
        .expect("written");
    reload(&daemon);
    let locked = connect("").expect("the first is served").write(0, &[3; 512]);
    assert_eq!(locked, Some(1), "EPERM\n{}", daemon.said());
    assert!(is_first());
    ask_ok(&dir, "export remove va --force");
    assert!(connect("").is_none() && connect("vb").is_some());
    reload(&daemon);
    assert!(is_first());
    // The configuration has the exports in the other order.
    let (head, exports) = BOTH.split_once("[[export]]").expect("there are two");
    let (va, vb) = exports.split_once("[[export]]").expect("there are two");
    std::fs::write(dir.path("c.toml"), format!("{head}[[export]]{vb}\n[[export]]{va}")).expect("written");
    reload(&daemon);
    assert_eq!(connect("").and_then(|mut client| client.read(0, 512)), Some(vec![2; 512]));
    // An export that a command has added is never the default export.
    std::fs::write(dir.path("c.toml"), head).expect("written");
    ask_ok(&dir, "export add ram:size=1M --name scratch");
    reload(&daemon);
    assert!(connect("").is_none() && connect("scratch").is_some());
    daemon.end();
}

#[test]
fn a_pool_that_is_full_does_not_stop_the_others() {
    let Some(dir) = pools() else { return };
    dir.ok("pool create full.img --size 8M");
    dir.ok("volume create full.img#v --size 64M");
    let config = BOTH.replace("a.img", "full.img");
    let daemon = Daemon::start(&dir, &config);
    let mut full = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    let mut other = Nbd::connect(&dir.path("nbd.sock"), "vb").expect("it is served");
    let errors: Vec<_> = (0..64u64).map(|at| full.write(at << 20, &vec![7; 1 << 20])).collect();
    assert_eq!(errors.last(), Some(&Some(28)), "ENOSPC: {errors:?}");
    assert_eq!((other.write(0, &[1; 4096]), other.flush()), (Some(0), Some(0)));
    assert_eq!(ask_ok(&dir, "pool info full.img --json").json()["state"], "full");
    served_ok(&dir, "volume delete full.img#v --yes --force");
    assert_eq!(ask_ok(&dir, "pool info full.img --json").json()["state"], "ok");
    daemon.end();
    dir.ok("pool check full.img");
}

#[test]
fn the_same_commands_work_on_a_pool_that_is_served() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let mut rng = sheave_base::rng::Rng::new(5);
    let image: Vec<u8> = (0..3 << 20).map(|_| rng.draw() as u8).collect();
    std::fs::write(dir.path("image"), &image).expect("written");
    let here = |line: &str| served_ok(&dir, line);
    assert_eq!(here("volume create a.img#w --size 1M --json").json()["volume"]["pool"], "a.img");
    here("volume resize a.img#w +1M");
    assert_eq!(here("volume resize a.img#w 512k --yes --json").json()["volume"]["size_bytes"], 512 << 10);
    here("volume create a.img#g --max-size 64M");
    here("volume resize a.img#g --max-size 32M");
    here("volume rename a.img#w x");
    here("volume snapshot a.img#x s");
    here("volume clone a.img#s y");
    here("volume rollback a.img#x s --yes");
    let imported = here("volume import image a.img#i --json --progress none").json();
    assert_eq!((&imported["image_bytes"], &imported["copied_bytes"]), (&json!(3 << 20), &json!(3 << 20)));
    let refused = ask(&dir, "volume import image a.img#i");
    assert!(refused.code == 2 && refused.err.contains("holds 3 MiB of data"), "{}", refused.err);
    here("volume import image a.img#i --yes");
    here("volume export a.img#i back");
    assert!(std::fs::read(dir.path("back")).expect("read") == image);
    // Imports and exports through pipes.
    let script = "cat image | \"$S\" volume import - a.img#p && \"$S\" volume export a.img#p - | cmp - image";
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(script).current_dir(dir.path("")).env("SHEAVE_RUNTIME_DIR", dir.path("run"));
    shell.env("S", assert_cmd::cargo::cargo_bin!("sheave"));
    let said = Said::of(shell.output().expect("it runs"));
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    let map = here("volume map a.img#i --json").out;
    let scrubbed = here("pool scrub a.img --json --progress none").json();
    assert_eq!((&scrubbed["found"], &scrubbed["interrupted"]), (&json!(0), &json!(false)));
    here("pool trim a.img");
    here("pool set a.img --low-water 20%");
    let info = here("pool info a.img --json").json();
    assert_eq!((&info["low_water"], &info["pool"]), (&json!("20%"), &json!("a.img")));
    let listed = here("volume list a.img --json").json();
    // Errors have the same text with and without a daemon.
    let mut words = Vec::new();
    let wrong = ["volume snapshot a.img#no s2", "volume create a.img#x --size 1M", "volume resize a.img#s 1M"];
    words.extend(wrong.map(|line| (line, ask(&dir, line))));
    here("volume delete a.img#x a.img#y --yes");
    daemon.end();
    // Without a daemon the commands print the same.
    assert_eq!(dir.ok("volume map a.img#i --json").out, map);
    let names = |listed: &Value| -> Vec<String> {
        listed["volumes"].as_array().expect("a list").iter().map(|volume| volume["name"].to_string()).collect()
    };
    let mut left = names(&listed);
    left.retain(|name| name != "\"x\"" && name != "\"y\"");
    assert_eq!(names(&dir.ok("volume list a.img --json").json()), left);
    for (line, said) in &words[..1] {
        let local = dir.run(line);
        assert_eq!((local.code, &local.err), (said.code, &said.err[said.err.find('\n').expect("a line") + 1..].into()));
    }
    for ((line, said), code) in words.iter().zip([1, 1, 2]) {
        assert_eq!(said.code, code, "{line}\n{}", said.err);
    }
    dir.ok("pool check a.img");
}

#[test]
fn what_would_hurt_clients_is_refused_by_name_and_force_disconnects_them() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    served_ok(&dir, "volume snapshot a.img#v s");
    let changes = [
        "volume rollback a.img#v s --yes",
        "volume resize a.img#v 8M --yes",
        "volume import c.toml a.img#v --yes",
        "volume delete a.img#v --yes",
    ];
    for line in changes {
        let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
        let mut other = Nbd::connect(&dir.path("nbd.sock"), "vb").expect("it is served");
        assert_eq!(client.write(0, &[9; 4096]), Some(0));
        let refused = ask(&dir, line);
        let words = "the volume 'v' has 1 client through the export 'va'";
        assert!(refused.code == 1 && refused.err.contains(words), "{line}\n{}", refused.err);
        assert!(refused.err.contains("--force"), "{}", refused.err);
        assert_eq!(client.read(0, 4096), Some(vec![9; 4096]), "a refusal changes nothing");
        served_ok(&dir, &format!("{line} --force"));
        assert_eq!(client.read(0, 4096), None, "it is disconnected");
        assert_eq!(other.flush(), Some(0), "nobody else is");
        if !line.contains("delete") {
            let mut again = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served again");
            let is_9 = again.read(0, 4096) == Some(vec![9; 4096]);
            assert_eq!(is_9, line.contains("resize"), "{line} has done something else");
            drop(again);
            // The client counts until the server has noticed its end.
            let until = Instant::now() + Duration::from_secs(10);
            while ask_ok(&dir, "export list --json").json()["exports"][0]["clients"] != 0 {
                assert!(Instant::now() < until, "it is still counted");
            }
        }
    }
    assert!(Nbd::connect(&dir.path("nbd.sock"), "va").is_none(), "{}", daemon.said());
    assert!(daemon.said().contains("export 'va' has ended: its volume 'v' is gone"), "{}", daemon.said());
    // Changes that do not harm connected clients need no --force.
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "vb").expect("it is served");
    served_ok(&dir, "volume snapshot b.img#v s");
    served_ok(&dir, "volume resize b.img#v 32M");
    // A connected client keeps the old size. A new client gets the new size.
    let mut late = Nbd::connect(&dir.path("nbd.sock"), "vb").expect("it is served");
    assert_eq!(client.write(16 << 20, &[1; 512]), Some(28), "ENOSPC");
    assert_eq!(late.write((32 << 20) - 512, &[1; 512]), Some(0));
    drop(late);
    served_ok(&dir, "volume rename b.img#v w");
    assert_eq!(client.flush(), Some(0));
    let rows = ask_ok(&dir, "export list --json").json();
    assert_eq!((&rows["exports"][0]["volume"], &rows["exports"][0]["size_bytes"]), (&json!("w"), &json!(32 << 20)));
    daemon.end();
    dir.ok("pool check a.img");
    dir.ok("pool check b.img");
}

#[test]
fn exports_and_clients_are_listed_added_removed_and_disconnected() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    ask_ok(&dir, "volume snapshot a.img#v s");
    ask_ok(&dir, "export add a.img#s");
    ask_ok(&dir, "export add a#v --name again --read-only");
    ask_ok(&dir, "export add ram:size=1M --name scratch");
    let refused = ask(&dir, "export add ram:size=1M --name scratch");
    assert!(refused.code == 1 && refused.err.contains("there is an export 'scratch' already"), "{}", refused.err);
    let rows = ask_ok(&dir, "export list --json").json();
    let names: Vec<&str> =
        rows["exports"].as_array().expect("rows").iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["va", "vb", "s", "again", "scratch"]);
    let mut snapshot = Nbd::connect(&dir.path("nbd.sock"), "s").expect("it is served");
    let mut again = Nbd::connect(&dir.path("nbd.sock"), "again").expect("it is served");
    assert_eq!((snapshot.write(0, &[1; 512]), again.write(0, &[1; 512])), (Some(1), Some(1)), "EPERM");
    let clients = ask_ok(&dir, "client list --json").json();
    let clients = clients["clients"].as_array().expect("rows");
    let id = clients.iter().find(|client| client["export"] == "s").expect("it is there")["id"].clone();
    ask_ok(&dir, &format!("client disconnect {id}"));
    assert_eq!((snapshot.read(0, 512), again.flush()), (None, Some(0)));
    let busy = ask(&dir, "export remove again");
    assert!(busy.code == 1 && busy.err.contains("has clients: 1"), "{}", busy.err);
    ask_ok(&dir, "export remove again --force");
    assert_eq!(again.flush(), None);
    let gone = ask(&dir, "export remove again");
    assert!(gone.code == 1 && gone.err.contains("there is no export 'again'"), "{}", gone.err);
    daemon.end();
}

#[test]
fn a_volume_that_one_command_serves_is_reached_too() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::run(&dir, "serve a.img#v --nbd unix:one.sock");
    let mut client = Nbd::connect(&dir.path("one.sock"), "v").expect("it is served");
    assert_eq!((client.write(0, &[3; 4096]), client.flush()), (Some(0), Some(0)));
    served_ok(&dir, "volume snapshot a.img#v s");
    assert_eq!(ask_ok(&dir, "client list --json").json()["clients"][0]["export"], "v");
    // A command without the runtime directory does not find the daemon, so it reports that the pool is in use.
    let refused = dir.run("volume snapshot a.img#v t");
    assert!(refused.code == 1 && refused.err.contains("in use"), "{}", refused.err);
    daemon.end();
    let left = |what: &str| std::fs::read_dir(dir.path(what)).expect("read").map(|entry| entry.expect("read").path());
    let left: Vec<_> = left("run").chain(left("run/recent")).collect();
    assert_eq!(left, [dir.path("run/recent")], "a socket, or changes of a pool that was closed");
}

#[test]
fn a_control_socket_that_was_left_is_replaced_and_a_live_one_is_not() {
    let Some(dir) = pools() else { return };
    let mut first = Daemon::start(&dir, &BOTH.replace("b.img", "none.img"));
    let second = BOTH.replace("a.img", "other.img").replace("nbd.sock", "2.sock").replace("other.sock", "3.sock")
        + "\n[control]\npath = \"run/control.sock\"\n";
    std::fs::write(dir.path("d.toml"), second).expect("written");
    let mut command = sheave("serve --config d.toml");
    command.current_dir(dir.path("")).env("SHEAVE_RUNTIME_DIR", dir.path("run"));
    let said = Said::of(command.stdin(Stdio::null()).output().expect("it runs"));
    assert!(said.code == 1 && said.err.contains("control.sock is in use"), "{}", said.err);
    assert!(!dir.path("2.sock").exists());
    first.signal("-KILL");
    first.child.wait().expect("it ends");
    assert!(dir.path("run/control.sock").exists());
    let again = Daemon::start_again(&dir);
    ask_ok(&dir, "export list");
    again.end();
}
