//! What an upgrade keeps beside the clients: exports, limits, sockets, pages, the log and the time of the start.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sheave_vhost_front::Options;

use crate::guests::{some_rounds, under_load};
use crate::load::Load;
use crate::rig::{ONE, PATIENCE, Rig, until};
use crate::sheave::Said;

/// Returns the row of an export.
fn export(rig: &Rig, name: &str) -> Value {
    let rows = rig.ok("export list --json").json();
    let rows = rows["exports"].as_array().expect("a list");
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no {name} in {rows:?}")).clone()
}

#[test]
fn exports_and_limits_that_were_set_at_run_time_stay() {
    let Some(rig) = Rig::start(ONE) else { return };
    std::fs::write(rig.dir.path("f.img"), vec![0; 4 << 20]).expect("written");
    std::fs::write(rig.dir.path("g.img"), vec![0; 4 << 20]).expect("written");
    rig.ok("volume snapshot a.img#v s");
    rig.ok("export add file:f.img --name f");
    rig.ok("export add file:g.img --name g --vhost-user vm.sock --vhost-queues 2 --vhost-in-order");
    rig.ok("export add a.img#s --read-only");
    rig.ok("export limit va iops=5000,bps=50M,burst=200ms");
    rig.ok("export limit f iops=700");
    rig.ok("slow --limit 123ms");
    rig.ok("export limit s iops=9");
    rig.ok("export limit s off");
    let mut client = rig.connect("f");
    assert_eq!(client.write(4096, &[7; 4096]).expect("a reply"), 0);
    let mut driver = Options { queues: 2, ..Options::default() }.connect(rig.dir.path("vm.sock")).expect("attached");
    let rows = || ["va", "f", "g", "s"].map(|name| export(&rig, name));
    let before = rows();
    assert!(before[0]["limit"] == "iops=5000,bps=50000000,burst=200ms" || before[0]["limit"].is_string(), "{before:?}");
    under_load(&mut driver, |rounds| {
        for _ in 0..3 {
            rig.upgrade();
            some_rounds(rounds);
            // They stay in the old process, too, if the new one does not take over.
            let bad = rig.config("bad.toml", &format!("metrics = \"192.0.2.1:1\"\n{ONE}"));
            rig.refused(&format!("upgrade {bad}"), 1);
            some_rounds(rounds);
        }
    });
    for (row, old) in rows().iter().zip(&before) {
        for key in ["name", "pool", "volume", "spec", "read_only", "size_bytes", "clients", "limit", "failed"] {
            assert_eq!(row[key], old[key], "{key} of {row}, which was {old}");
        }
        assert_eq!(row["vhost_user"]["socket"], old["vhost_user"]["socket"], "{row}");
    }
    assert_eq!(rig.ok("slow --json").json()["limit_ns"], 123_000_000);
    assert_eq!(client.read(4096, 4096).expect("read"), [7; 4096]);
    assert!(rig.connect("s").write(0, &[1; 512]).is_ok_and(|error| error == 1), "EPERM");
    drop(driver);
    // The next front-end finds the socket, and the export is removed with it.
    until("it is free", || export(&rig, "g")["vhost_user"]["client"].is_null());
    drop(Options::default().connect(rig.dir.path("vm.sock")).expect("attached"));
    rig.ok("export remove g --force");
    assert!(!rig.dir.path("vm.sock").exists(), "the path goes with the export");
    // So it does when the daemon ends.
    rig.ok("export add file:g.img --name g --vhost-user vm.sock");
    rig.upgrade();
    assert!(rig.dir.path("vm.sock").exists());
    // What was removed does not come back, and an export of the configuration that was removed does with the file.
    drop(client);
    rig.ok("export remove f --force");
    rig.upgrade();
    let names = |rows: &Value| -> Vec<String> {
        rows["exports"]
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|row| row["name"].as_str().map(Into::into))
            .collect()
    };
    assert_eq!(names(&rig.ok("export list --json").json()), ["va", "s", "g"]);
    let socket = rig.dir.path("vm.sock");
    rig.end_and(|| assert!(!socket.exists(), "the path goes with the daemon"));
}

#[test]
fn an_export_that_was_added_and_is_in_the_configuration_by_now_is_one_export() {
    let Some(rig) = Rig::start(ONE) else { return };
    std::fs::write(rig.dir.path("f.img"), vec![6; 1 << 20]).expect("written");
    std::fs::write(rig.dir.path("g.img"), vec![7; 1 << 20]).expect("written");
    rig.ok("export add file:f.img --name f");
    let mut client = rig.connect("f");
    let config = |file: &str| {
        std::fs::write(rig.dir.path("c.toml"), format!("{ONE}\n[[export]]\nname = \"f\"\nspec = \"file:{file}\"\n"))
    };
    // The configuration has another file, which the client does not get under its feet.
    config("g.img").expect("written");
    rig.upgrade();
    let rows = || rig.ok("export list --json").json()["exports"].as_array().map(Vec::len);
    assert_eq!(rows(), Some(2));
    assert_eq!(client.read(0, 512).expect("read"), [6; 512]);
    assert_eq!(rig.connect("f").read(0, 512).expect("read"), [6; 512]);
    rig.refused("upgrade", 2);
    drop(client);
    until("nobody uses it", || export(&rig, "f")["clients"] == 0);
    rig.upgrade();
    assert_eq!((rows(), rig.connect("f").read(0, 512).expect("read")), (Some(2), vec![7; 512]));
    rig.end();
}

#[test]
fn a_limit_holds_across_upgrades_and_saves_up_nothing() {
    let Some(rig) = Rig::start(ONE) else { return };
    rig.ok("export limit va iops=200,burst=50ms");
    let load = Load::start(&rig, 0);
    load.goes_on();
    let bytes = || {
        let client = &rig.ok("client list --json").json()["clients"][0];
        client["read_bytes"].as_u64().expect("bytes") + client["written_bytes"].as_u64().expect("bytes")
    };
    let (from, begun) = (bytes(), Instant::now());
    for _ in 0..8 {
        rig.upgrade();
    }
    load.goes_on();
    let (requests, took) = ((bytes() - from) / 4096, begun.elapsed());
    // Flushes count nothing here. Each upgrade may begin with a burst of 10 requests.
    let most = (took.as_secs_f64() * 200.0) as u64 + 9 * 10 + 64;
    assert!(requests <= most, "{requests} requests in {took:?}");
    load.end_well(&rig);
    rig.end();
}

/// Calls a method at the control socket that exists for each service of Varlink. Returns the number of bytes of the
/// reply: 0 if the connection has ended before.
fn asks(stream: &mut UnixStream) -> std::io::Result<usize> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"{\"method\":\"org.varlink.service.GetInfo\"}\0")?;
    let mut reply = Vec::new();
    let mut part = [0; 4096];
    while reply.last() != Some(&0) {
        match stream.read(&mut part)? {
            0 => return Ok(0),
            many => reply.extend_from_slice(&part[..many]),
        }
    }
    Ok(reply.len())
}

#[test]
fn the_sockets_and_the_pages_refuse_nobody_during_an_upgrade() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("bound").local_addr().expect("an address").port();
    let config = format!("metrics = \"127.0.0.1:{port}\"\nweb = \"127.0.0.1:0\"\n{ONE}");
    let Some(rig) = Rig::start(&config) else { return };
    let load = Load::start(&rig, 0);
    let at = || {
        let said = rig.said();
        let (_, after) = said.rsplit_once("the status page is at http://127.0.0.1:").expect("it says where");
        after.split_once('/').expect("a path").0.parse::<u16>().expect("a port")
    };
    let page = at();
    let get = |port: u16, path: &str| -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let (ends, connects, cut) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        threads.push(scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let mut stream =
                    UnixStream::connect(rig.dir.path("run/control.sock")).expect("the control socket is there");
                connects.fetch_add(1, Ordering::Relaxed);
                // A connection that the old process has accepted may end with it.
                if !asks(&mut stream).is_ok_and(|many| many > 0) {
                    cut.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
        threads.push(scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                assert!(rig.connect("va").read(0, 512).is_ok());
            }
        }));
        threads.push(scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                TcpStream::connect(("127.0.0.1", port)).expect("the metrics are there");
                TcpStream::connect(("127.0.0.1", page)).expect("the page is there");
            }
        }));
        for _ in 0..5 {
            rig.upgrade();
            let metrics = get(port, "/metrics").expect("answered");
            assert!(metrics.contains("sheave_export_") || metrics.contains("# TYPE sheave_"), "{metrics}");
            assert_eq!(at(), page, "the port that was free then");
            assert!(get(page, "/").expect("answered").contains("<html"));
        }
        ends.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("nobody was refused"));
    });
    let (connects, cut) = (connects.into_inner(), cut.into_inner());
    assert!(connects > 50, "{connects}");
    eprintln!("{cut} of {connects} calls were cut off");
    assert!(cut <= 10, "{cut} of {connects} calls were cut off");
    load.end_well(&rig);
    rig.end();
}

#[test]
fn two_pages_at_free_ports_keep_the_ports_that_they_have() {
    let Some(rig) = Rig::start(&format!("metrics = \"127.0.0.1:0\"\nweb = \"127.0.0.1:0\"\n{ONE}")) else { return };
    let pages = || -> Vec<String> {
        let said = rig.said();
        said.split("the status page is at http://")
            .skip(1)
            .map(|at| at.split('/').next().expect("a place").to_owned())
            .collect()
    };
    (0..3).for_each(|_| _ = rig.upgrade());
    until("all have said", || pages().len() == 4);
    let all = pages();
    assert!(all.iter().all(|page| *page == all[0]), "{all:?}");
    rig.end();
}

#[test]
fn the_time_of_the_start_and_the_counters_go_on() {
    let Some(rig) = Rig::start(ONE) else { return };
    let mut client = rig.connect("va");
    let uptime = || rig.ok("status --json").json()["servers"][0]["uptime_seconds"].as_u64().expect("seconds");
    let begun = Instant::now();
    until("it has run for two seconds", || uptime() >= 2);
    for byte in 1..=5 {
        assert_eq!(client.write(0, &[byte; 4096]).expect("a reply"), 0);
        rig.upgrade();
        let (told, most) = (uptime(), begun.elapsed() + Duration::from_secs(3));
        assert!(told >= 2 && told <= most.as_secs(), "{told} s");
    }
    let row = rig.ok("client list --json").json()["clients"][0].clone();
    assert_eq!((&row["id"], &row["written_bytes"]), (&json!(1), &json!(5 * 4096)), "{row}");
    // Ids are not used again.
    let _second = rig.connect("va");
    assert_eq!(rig.ok("client list --json").json()["clients"][1]["id"], 2);
    rig.end();
}

#[test]
fn sockets_have_the_rights_that_the_first_process_would_give_them() {
    let Some(rig) = Rig::start(ONE) else { return };
    let mask = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", rig.pid())).expect("read");
        status.lines().find(|line| line.starts_with("Umask:")).expect("a line").to_owned()
    };
    let before = mask();
    let mut command = std::process::Command::new("sh");
    command
        .args(["-c", "umask 000 && exec \"$SHEAVE\" upgrade"])
        .env("SHEAVE", assert_cmd::cargo::cargo_bin!("sheave"));
    let command = command.current_dir(rig.dir.path("")).env("SHEAVE_RUNTIME_DIR", rig.dir.path("run"));
    let said = Said::of(command.output().expect("it runs"));
    assert_eq!(said.code, 0, "{}\n{}", said.err, rig.said());
    assert_eq!(mask(), before);
    rig.end();
}

#[test]
fn relative_paths_the_log_and_the_arguments_are_those_of_the_first_process() {
    let Some(rig) = Rig::new(&format!("{ONE}\n[[export]]\nname = \"f\"\nspec = \"file:f.img\"\n")) else { return };
    std::fs::write(rig.dir.path("f.img"), vec![0; 1 << 20]).expect("written");
    let rig = rig.run("serve --config c.toml --log debug");
    let mut client = rig.connect("f");
    assert_eq!(client.write(0, &[5; 4096]).expect("a reply"), 0);
    let load = Load::start(&rig, 0);
    let elsewhere = crate::sheave::Dir::new();
    let control = rig.dir.path("run/control.sock").display().to_string();
    for round in 1..=3 {
        // Neither the directory nor the environment of the command is that of the daemon.
        let line = format!("upgrade --json --control {control}");
        let said = Said::of(elsewhere.command(&line).output().expect("it runs"));
        assert_eq!(said.code, 0, "{}\n{}", said.err, rig.said());
        load.goes_on();
        until("it has said so", || rig.said().matches("event=handed_over").count() == round);
    }
    let pid = rig.pid();
    for (stream, name) in [(1, "out"), (2, "said")] {
        let file = std::fs::read_link(format!("/proc/{pid}/fd/{stream}")).expect("it is there");
        assert_eq!(file.file_name().and_then(|name| name.to_str()), Some(name));
    }
    assert_eq!(std::fs::read_to_string(rig.dir.path("out")).expect("read"), "", "nothing for another program");
    let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).expect("read").replace('\0', " ");
    assert!(line.contains("--log debug") || line.contains("--log=debug"), "{line}");
    // A configuration beside the daemon's, named from the directory of the command, and read again from there.
    let other = format!(
        "{ONE}\n[[export]]\nname = \"f\"\nspec = \"file:f.img\"\n[[export]]\nname = \"n\"\nspec = \"null:size=1M\"\n"
    );
    std::fs::write(elsewhere.path("new.toml"), other).expect("written");
    let line = format!("upgrade --control {control} --config new.toml");
    let said = Said::of(elsewhere.command(&line).output().expect("it runs"));
    assert_eq!(said.code, 0, "{}\n{}", said.err, rig.said());
    assert!(rig.connect("n").read(0, 512).is_ok());
    let reloads = || rig.said().matches("event=reloaded").count();
    sheave_testkit::process::signal(rig.pid(), "-HUP");
    until("it reads it again", || reloads() == 1);
    assert_eq!(client.read(0, 4096).expect("read"), [5; 4096]);
    rig.upgrade();
    assert!(rig.connect("n").read(0, 512).is_ok());
    load.end_well(&rig);
    assert_eq!(rig.said().matches("event=upgrade_failed").count(), 0);
    rig.end();
}
