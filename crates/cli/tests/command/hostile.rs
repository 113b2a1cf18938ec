//! Clients, commands and signals that misbehave: they must not disturb other clients, nor the end of the daemon.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use sheave_testkit::process;

use crate::daemon::{BOTH, Daemon, Nbd, ask, pools, served_ok};
use crate::sheave::{Dir, no_io_uring, sheave};

/// Connects a client that sends the header of a write of 1 MiB and half of its data.
fn stalled(dir: &Dir, offset: u64) -> Nbd {
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    client.leave_in_a_write(offset, 1 << 20);
    client
}

/// Returns true if the server closes the connection within 10 s.
fn is_closed(client: &mut Nbd) -> bool {
    client.0.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    // A reset counts as closed too.
    !matches!(client.0.read(&mut [0]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// An unfinished write delays no rollback, resize or deletion of its volume, and none of its bytes is written.
#[test]
fn who_stalls_in_a_write_is_in_no_changes_way() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(0, &[7; 4096]), Some(0));
    served_ok(&dir, "volume snapshot a.img#v s");
    drop(client);
    for line in ["volume rollback a.img#v s --yes", "volume resize a.img#v 8M --yes", "volume delete a.img#v --yes"] {
        let mut client = stalled(&dir, 0);
        let refused = ask(&dir, line);
        assert!(refused.code == 1 && refused.err.contains("has 1 client"), "{line}\n{}", refused.err);
        let from = Instant::now();
        served_ok(&dir, &format!("{line} --force"));
        assert!(from.elapsed() < Duration::from_secs(15), "{line} waits for it: {:?}", from.elapsed());
        assert!(is_closed(&mut client), "{line}");
        if let Some(mut client) = Nbd::connect(&dir.path("nbd.sock"), "va") {
            assert!(client.read(0, 4096) == Some(vec![7; 4096]), "{line}: half a write has landed");
        }
    }
    assert!(Nbd::connect(&dir.path("nbd.sock"), "va").is_none(), "its volume is gone");
    let mut other = Nbd::connect(&dir.path("nbd.sock"), "vb").expect("the other is served");
    assert_eq!(other.write(0, &[1; 4096]), Some(0));
    drop(other);
    daemon.end();
    dir.ok("pool check a.img");
}

/// Reloads of broken, missing or half-written configurations, and many SIGHUPs, do not disturb clients that write.
#[test]
fn broken_configurations_and_many_hangups_reach_no_client() {
    let Some(dir) = pools() else { return };
    let mut daemon = Daemon::start(&dir, BOTH);
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (number, export) in ["va", "vb", "va", "vb"].into_iter().enumerate() {
            let (dir, stop, writes) = (&dir, &stop, &writes);
            scope.spawn(move || {
                let mut client = Nbd::connect(&dir.path("nbd.sock"), export).expect("it is served");
                // Relaxed: no other data depends on the flag and the count.
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(client.write((number as u64) << 20, &[9; 4096]), Some(0), "a write of {export}");
                    writes.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let id = daemon.child.id().to_string();
        for round in 0..12 {
            let config = dir.path("c.toml");
            match round % 4 {
                0 => std::fs::write(&config, &BOTH[..BOTH.len() - 9]).expect("written"),
                1 => std::fs::write(&config, [0xff, 0, b'[', 0xfe]).expect("written"),
                2 => std::fs::remove_file(&config).expect("removed"),
                _ => std::fs::write(&config, BOTH).expect("written"),
            }
            let many = std::iter::repeat_n(id.as_str(), 300);
            assert!(Command::new("kill").arg("-HUP").args(many).status().expect("it runs").success());
            assert_eq!(ask(&dir, "export list").code, 0);
        }
        daemon.until_it_says("event=reload_failed");
        daemon.until_it_says("event=reloaded");
        stop.store(true, Ordering::Relaxed);
    });
    assert!(writes.load(Ordering::Relaxed) > 100, "clients had to wait");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "vb").is_some(), "{}", daemon.said());
    daemon.end();
}

/// Several servers start at once, and the socket of a killed server is still there. One of them takes the socket, and
/// the others report the reason why they do not start.
#[test]
fn of_servers_that_start_at_once_one_gets_the_sockets() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    drop(std::os::unix::net::UnixListener::bind(dir.path("nbd.sock")).expect("one is left behind"));
    let start = |number: usize| -> Child {
        let mut command = sheave("serve ram:size=1M --name x --threads 1 --nbd unix:nbd.sock --control control.sock");
        let said = std::fs::File::create(dir.path(&format!("said{number}"))).expect("made");
        command.current_dir(dir.path("")).stdin(Stdio::null()).stderr(said).spawn().expect("it runs")
    };
    let mut servers: Vec<Child> = (0..6).map(start).collect();
    let said = |number: usize| std::fs::read_to_string(dir.path(&format!("said{number}"))).expect("read");
    let until = Instant::now() + Duration::from_secs(60);
    let mut ended = vec![false; servers.len()];
    while ended.iter().filter(|ended| !**ended).count() > 1 {
        assert!(Instant::now() < until, "{ended:?}: {:?}", (0..servers.len()).map(said).collect::<Vec<_>>());
        for (number, server) in servers.iter_mut().enumerate() {
            let Some(status) = server.try_wait().expect("asked").filter(|_| !ended[number]) else { continue };
            let words = said(number);
            assert!(status.code() == Some(1) && words.contains(" is in use"), "{number}: {status}\n{words}");
            ended[number] = true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let last = ended.iter().position(|ended| !ended).expect("one has it");
    while !said(last).contains("serving ") {
        assert!(Instant::now() < until, "{}", said(last));
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "x").expect("it is served");
    assert_eq!(client.write(0, &[1; 512]), Some(0));
    drop(client);
    process::signal(servers[last].id(), "-TERM");
    assert_eq!(servers[last].wait().expect("it ends").code(), Some(0), "{}", said(last));
    assert!(!dir.path("nbd.sock").exists() && !dir.path("control.sock").exists());
}

/// Names of the largest length that the protocol allows, and names with unusual letters, are valid. Others are refused.
#[test]
fn names_of_exports_that_are_long_or_strange() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    std::fs::create_dir(dir.path("run")).expect("made");
    let names =
        ["n".repeat(4096), "\u{fc}\u{4e16}\u{1f411}".repeat(400), "a b'\"`$(x)%s/../#".into(), "\u{202e}x".into()];
    let export = |name: &str| format!("[[export]]\nname = {}\nspec = \"ram:size=1M\"\n", json!(name));
    let head = "listen = [\"unix:nbd.sock\"]\nthreads = 1\n";
    let mut daemon = Daemon::start(&dir, &(head.to_owned() + &names.each_ref().map(|name| export(name)).concat()));
    for (number, name) in names.iter().enumerate() {
        let mut client = Nbd::connect(&dir.path("nbd.sock"), name).expect("it is served");
        assert_eq!(client.write(0, &[number as u8; 512]), Some(0));
    }
    for name in ["n".repeat(4095), "n".repeat(4097), "\u{fc}\u{4e16}".into(), "\u{1b}[31m\n".into()] {
        assert!(Nbd::connect(&dir.path("nbd.sock"), &name).is_none(), "{name}");
    }
    let rows = ask(&dir, "export list --json").json();
    let told: Vec<&str> =
        rows["exports"].as_array().expect("rows").iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(told, names);
    // These names contain control characters, cannot be sent by a client, or are too long.
    for name in ["", "a\u{0}b", "a\nb", "\u{1b}[31m", &"n".repeat(4097)] {
        let called =
            crate::control::call(&dir, "io.sheave.Control.AddExport", &json!({ "name": name, "spec": "ram:size=1M" }));
        let why = called["parameters"]["cause"].as_str().unwrap_or_default();
        assert!(why.contains("the name of an export has 1 to 4096 bytes"), "{name:?}: {called}");
        std::fs::write(dir.path("c.toml"), head.to_owned() + &export(name)).expect("written");
        let before = daemon.said().matches("event=reload_failed").count();
        daemon.signal("-HUP");
        let until = Instant::now() + Duration::from_secs(20);
        while daemon.said().matches("event=reload_failed").count() == before {
            assert!(Instant::now() < until, "{name:?} is taken: {}", daemon.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    daemon.until_it_says("the name of an export has 1 to 4096 bytes");
    daemon.end();
    let mut command = sheave("serve ram:size=1M --nbd unix:nbd.sock --name");
    let refused = crate::sheave::Said::of(command.arg("n".repeat(4097)).output().expect("it runs"));
    assert!(refused.code == 2 && refused.err.contains("1 to 4096 bytes"), "{}", refused.err);
}

/// Sends a call with a stream of replies. Returns the connection, from which nobody reads.
fn unread(control: &Path, method: &str) -> UnixStream {
    let mut stream = UnixStream::connect(control).expect("it listens");
    let call = json!({ "method": format!("io.sheave.Control.{method}"), "parameters": { "pool": "a" }, "more": true });
    stream.write_all(&[call.to_string().as_bytes(), &[0]].concat()).expect("sent");
    stream
}

/// Streams of replies on the control socket that nobody reads, and an endless sequence of calls whose replies nobody
/// reads, delay no other command.
#[test]
fn streams_that_nobody_reads_are_in_no_commands_way() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let control = dir.path("run/control.sock");
    let mut silent: Vec<UnixStream> = (0..20).map(|_| unread(&control, "WatchPool")).collect();
    silent.extend((0..10).map(|_| unread(&control, "ScrubPool")));
    let mut flood = UnixStream::connect(&control).expect("it listens");
    flood.set_write_timeout(Some(Duration::from_millis(500))).expect("set");
    let call = json!({ "method": "io.sheave.Control.ListVolumes", "parameters": { "pool": "a" } }).to_string() + "\0";
    // Sends until the socket is full or the daemon closes the connection.
    while flood.write_all(call.repeat(100).as_bytes()).is_ok() {}
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(0, &[1; 4096]), Some(0));
    for line in ["volume snapshot a.img#v s", "pool scrub a.img --progress none", "volume delete a.img#s --yes"] {
        served_ok(&dir, line);
    }
    drop(client);
    let from = Instant::now();
    daemon.end();
    assert!(from.elapsed() < Duration::from_secs(15), "the end waits for them: {:?}", from.elapsed());
    drop((silent, flood));
}

/// 300 clients need more descriptors than the soft limit that the shell sets, so the daemon must raise that limit.
#[test]
fn more_clients_than_a_shell_gives_descriptors_are_served() {
    let Some(dir) = pools() else { return };
    std::fs::write(dir.path("c.toml"), BOTH).expect("written");
    let said = dir.path("said");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 128 && exec \"$0\" serve --config c.toml"]);
    command.arg(assert_cmd::cargo::cargo_bin!("sheave")).current_dir(dir.path(""));
    command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).stderr(std::fs::File::create(&said).expect("made"));
    let mut daemon = Daemon { child: command.spawn().expect("it runs"), said };
    daemon.until_it_says("serving ");
    let connect = |number: u64| -> Nbd {
        let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
        assert_eq!(client.write(number << 12, &[1; 4096]), Some(0));
        client
    };
    let clients: Vec<Nbd> = (0..300).map(connect).collect();
    served_ok(&dir, "volume snapshot a.img#v s");
    drop(clients);
    daemon.end();
}
