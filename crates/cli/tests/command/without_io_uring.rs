//! The command under a seccomp filter that forbids io_uring, like the default profile of Docker. `sheave serve` fails
//! with the cause, and everything else works.

use sheave_testkit::seccomp;

use crate::sheave::Dir;

/// Runs `body` on its own thread, on which a filter forbids io_uring. Processes that `body` starts inherit the filter.
fn where_it_is_forbidden(body: impl FnOnce() + Send) {
    let run = || {
        seccomp::forbid_rings();
        body();
    };
    std::thread::scope(|scope| scope.spawn(run).join().expect("no panic"));
}

#[test]
fn serve_refuses_and_names_cause_and_fix() {
    let dir = Dir::new();
    where_it_is_forbidden(|| {
        let said = dir.run("serve ram:size=1M --nbd unix:s");
        assert_eq!(said.code, 1, "{}", said.err);
        for words in ["serving needs io_uring", "seccomp", "sheave doctor"] {
            assert!(said.err.contains(words), "{words}: {}", said.err);
        }
    });
    assert!(!dir.path("s").exists(), "no socket is left behind");
}

#[test]
fn nbd_refuses_and_names_cause_and_profile() {
    if sheave_testkit::require("nbdkit").is_none() {
        return;
    }
    let dir = Dir::new();
    let mut server = std::process::Command::new("nbdkit");
    let args = ["-f", "-U", "s", "memory", "16M"];
    let mut server = server.args(args).current_dir(dir.path("")).spawn().expect("it runs");
    while !dir.path("s").exists() {
        assert!(server.try_wait().expect("asked").is_none(), "it does not start");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    where_it_is_forbidden(|| {
        let said = dir.run("bench nbd:unix:s --runtime 10ms");
        assert_eq!(said.code, 1, "{}", said.err);
        for words in ["io_uring is not permitted", "seccomp", "docs/systemd/seccomp.json"] {
            assert!(said.err.contains(words), "{words}: {}", said.err);
        }
    });
    server.kill().and_then(|()| server.wait()).expect("ended");
}

#[test]
fn files_pools_and_volumes_work() {
    let dir = Dir::new();
    let image: Vec<u8> = (0..3u32 << 20).map(|n| (n / 4096 * 7 + n % 251) as u8).collect();
    std::fs::write(dir.path("in.raw"), &image).expect("written");
    where_it_is_forbidden(|| {
        for direct in ["auto", "off"] {
            let spec = format!("file:disk-{direct},size=16M,direct={direct}");
            let said = dir.ok(&format!("bench {spec} --rw randrw --verify --depth 16 --dsync --runtime 300ms"));
            let text = said.out + &said.err;
            assert_eq!(text.matches("engine=sync").count(), 1, "{text}");
        }
        dir.ok("pool create a.img --size 64M");
        dir.ok("volume import in.raw a.img#v");
        dir.ok("volume snapshot a.img#v s");
        dir.ok("bench vol:a.img#v --overwrite --rw randrw --verify --depth 16 --runtime 300ms");
        dir.ok("volume export a.img#s out.raw");
        dir.ok("pool scrub a.img");
        dir.ok("pool trim a.img");
        dir.ok("pool check a.img");
        let said = dir.run("doctor --json").json();
        let check = |name: &str| {
            let checks = said["checks"].as_array().expect("a list");
            checks.iter().find(|check| check["name"] == name).expect(name).clone()
        };
        assert_eq!((said["status"].as_str(), check("io_uring")["status"].as_str()), (Some("warn"), Some("warn")));
        assert!(check("file: engine")["found"].as_str().expect("a text").starts_with("sync"), "{said}");
        // `engine=uring` demands io_uring, so the run fails.
        let said = dir.run("bench file:disk-off,engine=uring --runtime 10ms");
        assert!(said.code != 0 && said.err.contains("not permitted") && said.err.contains("seccomp"), "{}", said.err);
    });
    assert!(std::fs::read(dir.path("out.raw")).expect("read") == image);
}
