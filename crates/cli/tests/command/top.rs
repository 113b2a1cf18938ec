//! `sheave top --once`: the present load of a daemon as text and as JSON, and the cases in which it is refused.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools};

#[test]
fn top_tells_what_clients_do_now() {
    let Some(dir) = pools() else { return };
    let daemon = Daemon::start(&dir, BOTH);
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    let ends = AtomicBool::new(false);
    let board = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: the flag only ends the loop, and no data depends on it.
            while !ends.load(Ordering::Relaxed) {
                assert_eq!(client.write(0, &[1; 4096]), Some(0));
                assert!(client.read(0, 4096).is_some());
            }
        });
        let board = ask_ok(&dir, "top --once --json --interval 500ms").json();
        let text = ask_ok(&dir, "top --once --interval 200ms").out;
        ends.store(true, Ordering::Relaxed);
        assert!(text.starts_with("exports 2, clients 1, pools 2, threads 2; ok\n"), "{text}");
        board
    });
    let exports = board["exports"].as_array().expect("a list");
    let va = exports.iter().find(|export| export["name"] == "va").expect("it is there");
    assert_eq!((&va["pool"], &va["volume"], &va["clients"]), (&json!("a"), &json!("v"), &json!(1)), "{va}");
    let number = |name: &str| va[name].as_f64().expect("a number");
    assert!(number("iops") > 1.0 && number("bytes_per_second") > 4096.0 && number("depth") > 0.0, "{va}");
    assert!(number("p50_ns") > 0.0 && number("p99_ns") >= number("p50_ns"), "{va}");
    let split = va["split"].as_object().expect("an object");
    let sum: f64 = split.values().map(|share| share.as_f64().expect("a number")).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{va}");
    assert_eq!(board["clients"][0]["export"], "va", "{board}");
    // One of the two reactors did all I/O.
    let queues = board["queues"].as_array().expect("a list");
    let busy = |queue: &&serde_json::Value| queue["iops"].as_f64().expect("a number") > 0.0;
    assert_eq!((queues.len(), queues.iter().filter(busy).count()), (2, 1), "{board}");
    let all = queues.iter().find(busy).expect("there is one");
    assert!((all["iops"].as_f64().expect("a number") - number("iops")).abs() < number("iops") * 0.5 + 10.0, "{board}");
    assert_eq!((&board["reactors"], &board["exports_total"]), (&json!(2), &json!(2)), "{board}");
    // In a test stdout is no terminal.
    let told = ask(&dir, "top");
    assert!(told.code == 2 && told.err.contains("add --once"), "{}", told.err);
    assert_eq!(ask(&dir, "top --json").code, 2);
    assert_eq!(ask(&dir, "top --once --interval 1ms").code, 2);
    daemon.end();
}

#[test]
fn without_a_daemon_top_says_what_to_do() {
    let Some(dir) = pools() else { return };
    std::fs::create_dir_all(dir.path("run")).expect("made");
    let told = ask(&dir, "top --once");
    assert!(told.code == 1 && told.err.contains("sheave serve"), "{}", told.err);
}
