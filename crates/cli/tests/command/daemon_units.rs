//! Notifications and sockets of systemd, and the metrics of a daemon.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools};
use crate::sheave::Dir;

/// Starts the daemon like systemd does: with an inherited listening socket and a notification socket.
#[test]
fn systemd_is_told_and_its_sockets_are_served() {
    let Some(dir) = pools() else { return };
    let told = std::os::unix::net::UnixDatagram::bind(dir.path("notify")).expect("bound");
    told.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
    let hear = |words: &str| {
        let mut bytes = [0; 4096];
        loop {
            let len = told.recv(&mut bytes).unwrap_or_else(|error| panic!("'{words}' was not told: {error}"));
            if String::from_utf8_lossy(&bytes[..len]).contains(words) {
                return;
            }
        }
    };
    std::fs::write(dir.path("c.toml"), BOTH.replace("listen", "#")).expect("written");
    let listener = std::os::unix::net::UnixListener::bind(dir.path("given.sock")).expect("bound");
    // `exec` keeps the process id of the shell, so LISTEN_PID is right. Descriptor 3 is the listening socket.
    let script = "exec 3<&0 </dev/null; export LISTEN_PID=$$; exec \"$S\" serve --config c.toml";
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).current_dir(dir.path("")).env("S", assert_cmd::cargo::cargo_bin!("sheave"));
    command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).env("NOTIFY_SOCKET", dir.path("notify"));
    command.env("LISTEN_FDS", "1").env("WATCHDOG_USEC", "200000");
    let said = dir.path("said");
    command.stderr(std::fs::File::create(&said).expect("made"));
    let child = command.stdin(std::os::fd::OwnedFd::from(listener)).spawn().expect("it runs");
    let daemon = Daemon { child, said };
    hear("READY=1");
    let mut client = Nbd::connect(&dir.path("given.sock"), "va").expect("it is served");
    assert_eq!(client.write(0, &[1; 512]), Some(0));
    hear("WATCHDOG=1");
    hear("WATCHDOG=1");
    daemon.signal("-HUP");
    hear("RELOADING=1");
    hear("READY=1");
    daemon.signal("-TERM");
    hear("STOPPING=1");
    daemon.end();
    assert!(dir.path("given.sock").exists(), "the socket is not the daemon's to remove");
}

/// A socket from systemd has the address that the kernel reports. TLS for another spelling of that address would apply
/// to no socket, so it is refused.
#[test]
fn tls_for_an_address_that_no_socket_has_is_refused() {
    let Some(dir) = pools() else { return };
    let authority = sheave_testkit::certificates::Authority::new();
    let tls = |listen: &str, more: &str| {
        let server = authority.server();
        let (certificate, key) = (server.join("server-cert.pem"), server.join("server-key.pem"));
        let (certificate, key) = (certificate.display(), key.display());
        format!("\n[[tls]]\nlisten = [\"{listen}\"]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n{more}")
    };
    let listener = std::net::TcpListener::bind("[::]:0").expect("bound");
    let port = listener.local_addr().expect("bound").port();
    let script = "exec 3<&0 </dev/null; export LISTEN_PID=$$; exec \"$S\" serve --config c.toml";
    let serve = |listen: &str| {
        std::fs::write(dir.path("c.toml"), BOTH.replace("listen", "#") + &tls(listen, "")).expect("written");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).current_dir(dir.path("")).env("S", assert_cmd::cargo::cargo_bin!("sheave"));
        command.env("SHEAVE_RUNTIME_DIR", dir.path("run")).env("LISTEN_FDS", "1").stderr(Stdio::piped());
        let given = listener.try_clone().expect("another");
        command.stdin(std::os::fd::OwnedFd::from(given)).spawn().expect("it runs")
    };
    let refused = serve(&format!("tcp:0.0.0.0:{port}")).wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("where no socket listens") && said.contains(&format!("tcp:[::]:{port}")), "{said}");

    // A reload with such an address leaves TLS unchanged. Of several tables that name an address the first one counts,
    // even if its mode is `off`.
    let config = |address: &str| {
        let off = tls("unix:other.sock", "mode = \"off\"\n");
        format!("{BOTH}{off}{}", tls(address, "mode = \"require\"\n"))
    };
    let mut daemon = Daemon::start(&dir, &config("unix:nbd.sock"));
    assert!(Nbd::connect(&dir.path("nbd.sock"), "va").is_none(), "it wants TLS");
    assert!(Nbd::connect(&dir.path("other.sock"), "va").is_some(), "it wants none");
    // A configuration without `listen` is valid, because the sockets may come from systemd. But this daemon has no
    // socket with the address in the table.
    let unlisted = config("unix:./nbd.sock").replace("listen = [\"unix:nbd", "# [\"unix:nbd");
    std::fs::write(dir.path("c.toml"), unlisted).expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("the configuration was read again");
    let said = daemon.said();
    assert!(said.contains("TLS stays as it was: TLS is for unix:./nbd.sock"), "{said}");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "va").is_none(), "it still wants TLS");
    // The new configuration has neither this address nor its TLS. The daemon listens on the address until it ends, and
    // still requires TLS there.
    std::fs::write(dir.path("c.toml"), BOTH.replace("\"unix:nbd.sock\", ", "")).expect("written");
    daemon.signal("-HUP");
    let until = Instant::now() + Duration::from_secs(60);
    while daemon.said().matches("the configuration was read again").count() < 2 {
        assert!(Instant::now() < until, "{}", daemon.said());
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Nbd::connect(&dir.path("nbd.sock"), "va").is_none(), "nobody said that it wants none");
    daemon.end();
}

/// Calls a method that copies through a pipe, on another thread. Returns when the copy has begun.
fn copy_by_pipe(dir: &Dir, method: &'static str, volume: &'static str, end: std::os::fd::OwnedFd) -> JoinHandle<bool> {
    let mut client = sheave_varlink::Client::connect(&dir.path("run/control.sock")).expect("the daemon is there");
    client.set_patience(Some(Duration::from_secs(60)));
    let (begun, begins) = std::sync::mpsc::channel();
    let call = std::thread::spawn(move || {
        let wanted = serde_json::json!({ "pool": "a", "volume": volume });
        let tell = &mut |_| {
            _ = begun.send(());
            Ok(())
        };
        client.call_more(method, &wanted, &[end.as_fd()], tell).is_ok()
    });
    begins.recv_timeout(Duration::from_secs(20)).expect("it has begun");
    call
}

/// Two copies stand still, because nobody reads or fills their pipes. A reload waits for a copy, but the end of the
/// daemon waits for neither.
#[test]
fn a_copy_whose_pipe_stands_still_keeps_nothing_from_the_end() {
    let Some(dir) = pools() else { return };
    dir.ok("volume create a.img#w --size 16M");
    let mut daemon = Daemon::start(&dir, BOTH);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    assert_eq!(client.write(0, &vec![6; 1 << 20]), Some(0));
    assert_eq!(client.flush(), Some(0));
    // The export writes more than a pipe holds, and nobody reads that pipe. Nobody writes to the pipe of the import.
    let (unread, out) = std::io::pipe().expect("a pipe");
    let exported = copy_by_pipe(&dir, "io.sheave.Control.ExportVolume", "v", out.into());
    let (into, unwritten) = std::io::pipe().expect("a pipe");
    let imported = copy_by_pipe(&dir, "io.sheave.Control.ImportVolume", "w", into.into());
    // This write is not flushed: the end of the daemon has to make it durable.
    assert_eq!(client.write(8 << 20, &[7; 4096]), Some(0));
    // The reload waits until the import is done, because the pool carries out one change at a time.
    let more = "\n[[export]]\nname = \"vw\"\npool = \"a\"\nvolume = \"w\"\n";
    std::fs::write(dir.path("c.toml"), BOTH.to_owned() + more).expect("written");
    daemon.signal("-HUP");
    std::thread::sleep(Duration::from_millis(300));
    let from = std::time::Instant::now();
    daemon.signal("-TERM");
    while daemon.child.try_wait().expect("it is ours").is_none() {
        assert!(from.elapsed() < Duration::from_secs(40), "it does not end: {}", daemon.said());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(daemon.child.wait().expect("it is ours").code(), Some(0), "{}", daemon.said());
    assert!(!exported.join().expect("no panic") && !imported.join().expect("no panic"), "no copy was made");
    drop((unread, unwritten));
    dir.ok("volume export a.img#v v.raw");
    assert_eq!(std::fs::read(dir.path("v.raw")).expect("read")[8 << 20..][..4096], [7; 4096]);
}

/// A command and a reload add the same export at the same time. In either order the export is served, and the daemon
/// counts its clients: a rollback of the volume is refused while a client is connected.
#[test]
fn an_export_that_comes_twice_at_once_is_known_to_be_served() {
    let Some(dir) = pools() else { return };
    dir.ok("volume create a.img#w --size 16M");
    dir.ok("volume snapshot a.img#v before");
    let mut daemon = Daemon::start(&dir, BOTH);
    // The command and the reload both have to wait for the import.
    let (into, unwritten) = std::io::pipe().expect("a pipe");
    let imported = copy_by_pipe(&dir, "io.sheave.Control.ImportVolume", "w", into.into());
    std::thread::scope(|scope| {
        let added = scope.spawn(|| ask(&dir, "export add a.img#v --name x"));
        std::thread::sleep(Duration::from_millis(200));
        let more = "\n[[export]]\nname = \"x\"\npool = \"a\"\nvolume = \"v\"\n";
        std::fs::write(dir.path("c.toml"), BOTH.to_owned() + more).expect("written");
        daemon.signal("-HUP");
        std::thread::sleep(Duration::from_millis(200));
        drop(unwritten);
        added.join().expect("no panic");
    });
    daemon.until_it_says("the configuration was read again");
    imported.join().expect("no panic");
    let client = Nbd::connect(&dir.path("nbd.sock"), "x").expect("it is served");
    let refused = ask(&dir, "volume rollback a.img#v before --yes");
    assert!(refused.code != 0 && refused.err.contains("client"), "{}{}\n{}", refused.out, refused.err, daemon.said());
    drop(client);
    daemon.end();
}

/// Asserts that `promtool check metrics` reports nothing about the page.
fn lint(page: &str) {
    let Some(promtool) = sheave_testkit::require("promtool") else { return };
    let mut command = Command::new(promtool);
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    child.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("sent");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.trim().is_empty(), "{said}\n{page}");
}

#[test]
fn metrics_are_told_and_who_asks_slowly_keeps_nobody_from_them() {
    let Some(dir) = pools() else { return };
    // A free port. Another process may take it before the daemon does, but that is rare.
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("bound").port();
    let daemon = Daemon::start(&dir, &format!("metrics = \"127.0.0.1:{port}\"\n{}", BOTH.replace("b.img", "none.img")));
    let ask = |path: &str, accept: &str| {
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{accept}\r\n").as_bytes()).expect("sent");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("a page");
        page
    };
    let ask_for = |path: &str| ask(path, "Accept: application/openmetrics-text; version=1.0.0,text/plain;q=0.5\r\n");
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    client.write(8192, &[7; 4096]);
    let page = ask_for("/metrics");
    for line in [
        "sheave_export_clients{export=\"va\"} 1\n",
        "sheave_export_up{export=\"vb\"} 0\n",
        "sheave_pool_open{pool=\"a\"} 1\n",
        "sheave_pool_open{pool=\"b\"} 0\n",
        "sheave_export_writes_total{export=\"va\"} 1\n",
        "sheave_export_written_bytes_total{export=\"va\"} 4096\n",
        "# TYPE sheave_export_written_bytes counter\n",
        "sheave_export_io_latency_seconds_count{export=\"va\",kind=\"write\"} 1\n",
        "sheave_export_io_latency_seconds_bucket{export=\"va\",kind=\"write\",le=\"+Inf\"} 1\n",
        "sheave_export_io_bytes_total{export=\"va\",kind=\"write\"} 4096\n",
        "sheave_export_volume{export=\"va\",pool=\"a\",volume=\"v\"} 1\n",
        "sheave_reactors 2\n",
        "sheave_pool_volumes{pool=\"a\"} 1\n",
        "sheave_pool_checksum_errors_total{pool=\"a\"} 0\n",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("# EOF\n"), "{page}");
    // Without an Accept header the answer has the older format. There the name of a counter's family ends in `_total`.
    let plain = ask("/metrics", "");
    assert!(
        plain.contains("# TYPE sheave_export_written_bytes_total counter\n") && !plain.contains("# EOF"),
        "{plain}"
    );
    lint(plain.split_once("\r\n\r\n").expect("a head").1);
    let rows = ask_ok(&dir, "client list --json").json();
    assert_eq!((&rows["clients"][0]["written_bytes"], &rows["clients"][0]["read_bytes"]), (&4096.into(), &0.into()));
    assert!(ask_for("/other").starts_with("HTTP/1.1 404 "));
    // Requests with a foreign host name are refused, against DNS rebinding. That holds for metrics too.
    let mut rebound = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    rebound.write_all(b"GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n").expect("sent");
    let mut page = String::new();
    rebound.read_to_string(&mut page).expect("an answer");
    assert!(page.starts_with("HTTP/1.1 403 ") && !page.contains("sheave_"), "{page}");
    daemon.end();
}

/// Peers begin an HTTP request without ending it, and connect again when the daemon drops them.
#[test]
fn peers_that_are_slow_keep_nobody_from_the_metrics() {
    let Some(dir) = pools() else { return };
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("bound").port();
    let daemon = Daemon::start(&dir, &format!("metrics = \"127.0.0.1:{port}\"\n{BOTH}"));
    let connect = || {
        let stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        stream
    };
    let ends = AtomicBool::new(false);
    // The server handles a limited number of connections at once: one number is below that limit, the other above it.
    for slow in [12, 100] {
        // Relaxed: the flag only ends the loops, and no data depends on it.
        ends.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            for _ in 0..slow {
                scope.spawn(|| {
                    // Relaxed: the flag only ends this loop.
                    while !ends.load(Ordering::Relaxed) {
                        let mut stream = connect();
                        // A dropped peer connects again after a short pause.
                        let _ = stream.write_all(b"GET /metrics HT").and_then(|()| stream.read(&mut [0]));
                        std::thread::sleep(Duration::from_millis(300));
                    }
                });
            }
            for number in 0..20 {
                let mut stream = connect();
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
                let mut page = String::new();
                let read = stream.read_to_string(&mut page);
                // Relaxed: the flag only ends the loops. It is set before an assertion can fail, or the other
                // threads would never end.
                let all = read.is_ok() && page.contains("sheave_reactors");
                ends.store(!all || number == 19, Ordering::Relaxed);
                assert!(all, "{slow} slow peers, scrape {number}: {read:?} {page}");
            }
        });
    }
    // The server drops silent connections after a while.
    let mut silent: Vec<_> = (0..80).map(|_| connect()).collect();
    silent.iter_mut().for_each(|stream| assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "it is closed"));
    daemon.end();
}

#[test]
fn a_reload_changes_a_limit_while_clients_stay() {
    use crate::daemon::Nbd;
    if crate::sheave::no_io_uring() {
        return;
    }
    let dir = crate::sheave::Dir::new();
    std::fs::create_dir(dir.path("run")).expect("made");
    let config = |limit: &str| {
        format!("listen = [\"unix:nbd.sock\"]\n[[export]]\nname = \"x\"\nspec = \"ram:size=1M\"\n{limit}")
    };
    let mut daemon = crate::daemon::Daemon::start(&dir, &config("limit = \"iops=20,burst=10ms\"\n"));
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "x").expect("it is served");
    let from = std::time::Instant::now();
    (0..10).for_each(|_| assert_eq!(client.write(0, &[1; 512]), Some(0)));
    // The first write starts at once, so there are nine pauses of 50 ms.
    assert!(from.elapsed() >= std::time::Duration::from_millis(9 * 50 - 10), "{:?}", from.elapsed());
    std::fs::write(dir.path("c.toml"), config("")).expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("the configuration was read again");
    // With the old limit of 20 per second these writes would take 100 s.
    let from = std::time::Instant::now();
    (0..2000).for_each(|_| assert_eq!(client.write(0, &[1; 512]), Some(0)));
    assert!(from.elapsed() < std::time::Duration::from_secs(50), "{:?}", from.elapsed());
    daemon.end();
}
