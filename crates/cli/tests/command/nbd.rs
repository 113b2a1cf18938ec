//! The driver `nbd:` from outside: bench, pools, copies and exports on a device that our own server exports.

use std::os::unix::fs::FileExt;

use sheave_testkit::certificates::Authority;

use crate::daemon::{Daemon, Nbd};
use crate::serve::serve_ok;
use crate::sheave::{Dir, Said, no_io_uring, sheave};

/// Serves 128 MiB of memory on the socket `s` while a script runs. Returns the script's stdout.
fn beside_our_server(dir: &Dir, script: &str) -> String {
    let script = format!("set -e; s={}; {script}", assert_cmd::cargo::cargo_bin!("sheave").display());
    serve_ok(dir, "ram:size=128M --name disk --nbd unix:s", &script)
}

#[test]
fn a_device_of_our_server_is_verified_and_has_a_pool() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let image: Vec<u8> = (0..5u32 << 20).map(|n| (n / 4096 * 7 + n % 251) as u8).collect();
    std::fs::write(dir.path("in.raw"), &image).expect("written");
    let said = beside_our_server(
        &dir,
        "d=nbd:unix:s,export=disk; \
         $s bench $d --overwrite --rw randrw --verify --depth 32 --dsync --runtime 300ms; \
         $s bench $d --overwrite --rw randrw --verify --bs 256k --depth 16 --runtime 300ms; \
         $s pool create $d --yes; $s volume import in.raw $d#v; $s volume snapshot $d#v then; \
         $s bench vol:$d#v --overwrite --rw randrw --verify --depth 16 --runtime 300ms; \
         $s pool scrub $d; $s pool check $d; $s volume export $d#then out.raw",
    );
    assert!(said.contains("clean"), "{said}");
    assert!(std::fs::read(dir.path("out.raw")).expect("read") == image);
}

#[test]
fn images_come_from_a_server_and_go_to_one() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let mut image: Vec<u8> = (0..21u32 << 20).map(|n| (n / 4096 * 7 + n % 251) as u8).collect();
    image[3 << 20..9 << 20].fill(0);
    std::fs::write(dir.path("in.raw"), &image).expect("written");
    dir.ok("pool create p.img --size 512M");
    dir.ok("volume import in.raw p.img#v");
    let said = beside_our_server(
        &dir,
        "d=nbd:unix:s,export=disk; $s bench $d --overwrite --rw write --bs 1M --runtime 200ms; \
         $s volume export --yes p.img#v $d; $s volume import $d p.img#back; $s volume import --yes $d p.img#back; \
         $s volume resize --yes p.img#back 21M; $s volume export p.img#back out.raw; \
         if $s volume export p.img#v $d 2>no; then exit 9; fi; cat no",
    );
    assert!(said.contains("the export replaces what is in it"), "{said}");
    assert!(std::fs::read(dir.path("out.raw")).expect("read") == image);
}

#[test]
fn a_volume_on_a_server_is_served_by_a_daemon_that_is_locked_in() {
    if no_io_uring() || sheave_testkit::require("nbdcopy").is_none() {
        return;
    }
    let dir = Dir::new();
    let image: Vec<u8> = (0..5u32 << 20).map(|n| (n / 4096 * 7 + n % 251) as u8).collect();
    std::fs::write(dir.path("in.raw"), &image).expect("written");
    beside_our_server(
        &dir,
        "d=nbd:unix:s,export=disk; $s pool create $d --yes; $s volume create $d#v --size 5M; \
         $s serve $d#v --name v --nbd unix:t --run 'nbdcopy in.raw \"nbd+unix:///v?socket=t\"'; \
         $s volume export $d#v out.raw",
    );
    assert!(std::fs::read(dir.path("out.raw")).expect("read") == image);
}

/// The pool of a configured, confined daemon with restricted rings lies on an NBD server. Each thread has its own
/// connections, and opens them again after the server was restarted.
#[test]
fn a_configured_daemon_serves_what_lies_on_a_server() {
    let tools = ["nbdkit", "nbdcopy"].iter().all(|tool| sheave_testkit::require(tool).is_some());
    if no_io_uring() || !tools {
        return;
    }
    let dir = Dir::new();
    std::fs::create_dir(dir.path("run")).expect("made");
    std::fs::File::create(dir.path("disk.raw")).and_then(|file| file.set_len(128 << 20)).expect("made");
    let server = || {
        _ = std::fs::remove_file(dir.path("k"));
        let mut command = std::process::Command::new("nbdkit");
        let child = command.args(["-f", "-U", "k", "file", "disk.raw"]).current_dir(dir.path("")).spawn();
        let child = child.expect("it runs");
        let from = std::time::Instant::now();
        while !dir.path("k").exists() {
            assert!(from.elapsed().as_secs() < 20, "nbdkit does not listen");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        child
    };
    let mut kit = server();
    dir.ok("pool create nbd:unix:k --yes");
    dir.ok("volume create nbd:unix:k#v --size 32M");
    let config = "listen = [\"unix:nbd.sock\"]\nthreads = 2\n[[pool]]\nname = \"p\"\npath = \"nbd:unix:k\"\n\
                  [[export]]\npool = \"p\"\nvolume = \"v\"\n";
    let daemon = Daemon::start(&dir, config);
    for round in 0..2u8 {
        // Four clients, so that each of the two threads has some.
        let mut clients: Vec<_> =
            (0..4).map(|_| Nbd::connect(&dir.path("nbd.sock"), "v").expect("it is served")).collect();
        for (n, client) in (0..).zip(&mut clients) {
            let data = vec![round * 4 + n as u8 + 1; 1 << 20];
            assert_eq!(client.write(n << 20, &data), Some(0), "{}", daemon.said());
            assert_eq!(client.flush(), Some(0), "{}", daemon.said());
        }
        for (n, client) in (0..).zip(clients.iter_mut().rev()) {
            let found = client.read(n << 20, 1 << 20).expect("read");
            assert!(found == vec![round * 4 + n as u8 + 1; 1 << 20], "{n}: {}", daemon.said());
        }
        if round == 0 {
            kit.kill().and_then(|()| kit.wait()).expect("it was there");
            kit = server();
        }
    }
    assert!(!daemon.said().contains("ermission denied"), "{}", daemon.said());
    daemon.end();
    kit.kill().and_then(|()| kit.wait()).expect("it was there");
}

#[test]
fn an_export_of_a_pool_on_a_server_outlives_that_server() {
    let tools = ["nbdkit", "nbdcopy"].iter().all(|tool| sheave_testkit::require(tool).is_some());
    if no_io_uring() || !tools {
        return;
    }
    let dir = Dir::new();
    let image: Vec<u8> = (0..24u32 << 20).map(|n| (n / 4096 * 7 + n % 251) as u8).collect();
    std::fs::write(dir.path("in.raw"), &image).expect("written");
    std::fs::File::create(dir.path("disk.raw")).and_then(|file| file.set_len(128 << 20)).expect("made");
    // The server is killed while it is idle, while a copy runs, and while a verified load writes. Each time the copies
    // continue when it is back. A flush of the load may fail, but data that was flushed before must be there.
    std::fs::write(
        dir.path("outlive.sh"),
        "set -e; s=$1; d=nbd:unix:k; start() { nbdkit -U k -P pid file disk.raw; }
         die() { kill -9 $(cat pid); rm -f k pid; }
         start; trap 'kill $(cat pid) 2>/dev/null' EXIT
         $s pool create --yes $d; $s volume import in.raw $d#v; $s volume import in.raw $d#old
         cat > inner.sh <<'INNER'
set -e; s=$1; start() { nbdkit -U k -P pid file disk.raw; }
die() { kill -9 $(cat pid); rm -f k pid; }
copy() { nbdcopy \"nbd+unix:///v?socket=t\" $1; cmp in.raw $1; }
copy one.raw
die; (sleep 0.3; start) & copy two.raw; wait
nbdcopy \"nbd+unix:///v?socket=t\" three.raw & copies=$!
sleep 0.01; die; start; wait $copies; cmp in.raw three.raw
$s bench nbd:unix:t,export=v --overwrite --rw randrw --verify --depth 16 --runtime 1s > load 2>&1 & load=$!
sleep 0.3; die; sleep 0.2; start
wait $load && echo ended > how || echo failed > how
INNER
         $s serve $d#v --name v --nbd unix:t --run \"sh inner.sh $s\" 2> closed || grep 'a flush of the pool' closed
         $s pool check $d; $s volume export $d#old out.raw; cmp in.raw out.raw; cat how load",
    )
    .expect("written");
    let script = format!("sh outlive.sh {}", assert_cmd::cargo::cargo_bin!("sheave").display());
    let Said { code, out, err } = dir.shell(&script);
    assert_eq!(code, 0, "{out}{err}");
    // The load may end with an I/O error, because a flush failed, but never with wrong data.
    assert!(out.contains("clean") && !out.contains("wrong data") && !out.contains("verify failed"), "{out}{err}");
    println!("{out}");
}

#[test]
fn an_import_reads_no_hole_of_a_server_and_makes_them_where_there_was_data() {
    if no_io_uring() || sheave_testkit::require("nbdkit").is_none() {
        return;
    }
    let dir = Dir::new();
    let mut image = vec![0u8; 40 << 20];
    image[7 << 20..8 << 20].fill(7);
    image[(20 << 20) + 512..(20 << 20) + 1024].fill(9);
    let file = std::fs::File::create(dir.path("in.raw")).expect("made");
    file.set_len(image.len() as u64).expect("grown");
    for part in [7 << 20..8 << 20, 20 << 20..(20 << 20) + 4096] {
        file.write_all_at(&image[part.clone()], part.start as u64).expect("written");
    }
    drop(file);
    dir.ok("pool create p.img --size 256M");
    dir.ok("volume create p.img#old --size 48M");
    dir.ok("bench vol:p.img#old --overwrite --rw write --bs 1M --runtime 200ms");
    let sheave = assert_cmd::cargo::cargo_bin!("sheave").display();
    for (volume, yes) in [("new", ""), ("old", "--yes ")] {
        let script = format!(
            "nbdkit -U - --filter=log file in.raw logfile=reads.{volume} \
             --run '{sheave} volume import {yes}nbd:unix:$unixsocket p.img#{volume}'"
        );
        let said = dir.shell(&script);
        assert_eq!(said.code, 0, "{}", said.err);
        let log = std::fs::read_to_string(dir.path(&format!("reads.{volume}"))).expect("read");
        let count = |line: &str| u64::from_str_radix(line.split("count=0x").nth(1)?.split(' ').next()?, 16).ok();
        let read: u64 = log.lines().filter(|line| line.contains(" Read ")).filter_map(count).sum();
        assert!((1 << 20..2 << 20).contains(&read), "{read} bytes were read:\n{log}");
        dir.ok(&format!("volume export p.img#{volume} out.{volume}"));
        let out = std::fs::read(dir.path(&format!("out.{volume}"))).expect("read");
        assert!(out[..image.len()] == image[..] && out[image.len()..].iter().all(|byte| *byte == 0), "{volume}");
    }
    dir.ok("pool check p.img");
}

#[test]
fn an_image_goes_to_a_server_that_makes_no_zeroes_or_takes_large_blocks_alone() {
    if no_io_uring() || sheave_testkit::require("nbdkit").is_none() {
        return;
    }
    let dir = Dir::new();
    let mut image = vec![0u8; 21 << 20];
    image[4096..8192].fill(7);
    image[(5 << 20) + 12_288..(8 << 20) - 4096].fill(9);
    image[(20 << 20) + 4096..(20 << 20) + 8192].fill(3);
    let file = std::fs::File::create(dir.path("in.raw")).expect("made");
    file.set_len(image.len() as u64).expect("grown");
    for part in [4096..8192, (5 << 20) + 12_288..(8 << 20) - 4096, (20 << 20) + 4096..(20 << 20) + 8192] {
        file.write_all_at(&image[part.clone()], part.start as u64).expect("written");
    }
    drop(file);
    dir.ok("pool create p.img --size 256M");
    dir.ok("volume import in.raw p.img#v");
    dir.ok("volume create p.img#odd --size 21508K");
    let sheave = assert_cmd::cargo::cargo_bin!("sheave").display();
    let policy = "blocksize-minimum=64k blocksize-preferred=64k blocksize-error-policy=error";
    for (filters, keys) in [
        ("--filter=nozero", ""),
        ("--filter=blocksize-policy", policy),
        ("--filter=blocksize-policy --filter=nozero", policy),
    ] {
        std::fs::write(dir.path("disk.raw"), vec![0xff; 32 << 20]).expect("written");
        let export = |volume: &str| {
            let script = format!(
                "nbdkit -U - {filters} file disk.raw {keys} \
                 --run '{sheave} volume export --yes p.img#{volume} nbd:unix:$unixsocket'"
            );
            let said = dir.shell(&script);
            (said.code == 0, said.err)
        };
        let (done, why) = export("v");
        assert!(done, "{filters}: {why}");
        let disk = std::fs::read(dir.path("disk.raw")).expect("read");
        assert!(disk[..image.len()] == image[..] && disk[image.len()..].iter().all(|byte| *byte == 0xff), "{filters}");
        if !keys.is_empty() {
            let (done, why) = export("odd");
            assert!(!done && why.contains("blocks of 64"), "{filters}: {why}");
            assert!(std::fs::read(dir.path("disk.raw")).expect("read") == disk, "nothing was written");
        }
    }
}

#[test]
fn a_pool_lives_on_our_own_server_by_tls_and_no_key_comes_into_it() {
    if no_io_uring() {
        return;
    }
    let (dir, authority) = (Dir::new(), Authority::new());
    let image: Vec<u8> = (0..5u32 << 20).map(|n| (n / 4096 * 7 + n % 251) as u8).collect();
    std::fs::write(dir.path("in.raw"), &image).expect("written");
    std::fs::File::create(dir.path("disk.raw")).and_then(|file| file.set_len(128 << 20)).expect("made");
    let (server, client) = (authority.server(), authority.issue("client", "backup"));
    let serve = format!(
        "file:disk.raw --name disk --nbd unix:s --tls-cert {0}/server-cert.pem --tls-key {0}/server-key.pem \
         --tls-ca {0}/ca-cert.pem --tls-allow backup",
        server.display()
    );
    let own = format!("cert={0}/client-cert.pem,key={0}/client-key.pem", client.display());
    let script = format!(
        "set -e; s={}; e=nbd:unix:s,export=disk; d=$e,ca={}/ca-cert.pem,tls-hostname=localhost,{own}; \
         $s bench $d --overwrite --rw randrw --verify --depth 32 --dsync --runtime 300ms; \
         $s bench $d --overwrite --rw randrw --verify --bs 256k --depth 16 --runtime 300ms; \
         $s pool create --yes $d; $s volume import in.raw $d#v; $s pool scrub $d; $s volume export $d#v out.raw; \
         if $s pool info $e 2>clear; then exit 9; fi; cat clear; \
         if $s pool info $e,ca={}/ca-cert.pem,tls-hostname=localhost 2>bare; then exit 9; fi; cat bare",
        assert_cmd::cargo::cargo_bin!("sheave").display(),
        client.display(),
        client.display(),
    );
    let mut server = sheave(&format!("serve {serve} --run"));
    let said = Said::of(server.arg(&script).current_dir(dir.path("")).output().expect("it runs"));
    assert!(said.code == 0 && !said.err.contains("by a bug"), "{}{}", said.out, said.err);
    assert!(said.err.contains("a client was dropped: TLS: it has no certificate"), "{}", said.err);
    let said = format!("{}{}", said.out, said.err);
    assert!(said.contains("it wants TLS") && said.contains("cert=PATH and key=PATH"), "{said}");
    assert!(std::fs::read(dir.path("out.raw")).expect("read") == image);
    let key = std::fs::read_to_string(client.join("client-key.pem")).expect("read");
    let secret = key.lines().nth(1).expect("a line of the key");
    let disk = std::fs::read(dir.path("disk.raw")).expect("read");
    assert!(!disk.windows(secret.len()).any(|bytes| bytes == secret.as_bytes()), "the key is in the pool");
    assert!(!said.contains(secret), "the key is in what was said");
}

#[test]
fn errors_name_cause_and_fix() {
    let dir = Dir::new();
    let said = dir.run("pool create nbd:unix:nowhere");
    assert!(said.code == 1 && said.err.contains("Is the server there"), "{}", said.err);
    let said = dir.run("bench nbd:unix:nowhere,timeout=0s --runtime 10ms");
    assert!(said.code != 0 && said.err.contains("times above 0"), "{}", said.err);
    dir.ok("pool create p.img --size 64M");
    let said = dir.run("volume import nbd:127.0.0.1:1/x p.img#v");
    assert!(said.code == 1 && said.err.contains("127.0.0.1:1"), "{}", said.err);
}
