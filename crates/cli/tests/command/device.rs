//! `sheave device`, and the devices in `sheave top` and `/metrics`: the counters grow with the I/O of clients, and
//! statistics can be switched off and on.

use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools};
use crate::sheave::Dir;

/// Configuration of an export of a plain file, appended to that of two pools.
const DISK: &str = "\n[[export]]\nname = \"disk\"\nspec = \"file:disk.img\"\n";
const NAME: &str = "file:disk.img";

/// Returns the device that has this name in a list. Panics if there is none.
fn named(list: &Value, name: &str) -> Value {
    let devices = list["devices"].as_array().expect("a list");
    devices.iter().find(|device| device["name"] == name).unwrap_or_else(|| panic!("no {name} in {list}")).clone()
}

fn device(dir: &Dir, name: &str) -> Value {
    named(&ask_ok(dir, "device list --json").json(), name)
}

/// Returns the counters of the disk: reads, bytes read, writes, bytes written, and busy time in nanoseconds.
fn counters(dir: &Dir) -> [u64; 5] {
    let disk = device(dir, NAME);
    let of = |operation: usize, field: &str| disk["operations"][operation][field].as_u64().expect("a number");
    let busy_ns = disk["busy_ns"].as_u64().expect("a number");
    [of(0, "ios"), of(0, "bytes"), of(1, "ios"), of(1, "bytes"), busy_ns]
}

/// Makes two pools, and a plain file of 16 MiB.
fn files() -> Option<Dir> {
    let dir = pools()?;
    std::fs::write(dir.path("disk.img"), vec![0; 16 << 20]).expect("written");
    Some(dir)
}

/// Writes eight blocks and reads each of them.
fn some_io(client: &mut Nbd) {
    for block in 0..8 {
        assert_eq!(client.write(block << 12, &[7; 4096]), Some(0));
        assert_eq!(client.read(block << 12, 4096).expect("answered"), [7; 4096]);
    }
}

#[test]
fn counters_of_a_device_grow_with_its_io_and_stand_still_without_statistics() {
    let Some(dir) = files() else { return };
    let mut daemon = Daemon::start(&dir, &format!("{BOTH}{DISK}"));
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "disk").expect("it is served");
    let mut other = Nbd::connect(&dir.path("nbd.sock"), "va").expect("it is served");
    let before = counters(&dir);
    some_io(&mut client);
    let after = counters(&dir);
    for (at, least) in [8, 8 << 12, 8, 8 << 12, 1].into_iter().enumerate() {
        assert!(after[at] >= before[at] + least, "{before:?} {after:?}");
    }
    ask_ok(&dir, &format!("device statistics off {NAME}"));
    assert_eq!(device(&dir, NAME)["kept"], false);
    let before = counters(&dir);
    let writes = |dir: &Dir| device(dir, "file:./a.img")["operations"][1]["ios"].as_u64().expect("a number");
    let of_pool = writes(&dir);
    some_io(&mut client);
    some_io(&mut other);
    assert_eq!(counters(&dir), before, "no statistics are kept");
    assert!(writes(&dir) >= of_pool + 8, "those of other devices are");
    daemon.until_it_says("method=io.sheave.Control.SetDeviceStatistics");
    // Switches statistics on for all devices, and later off for one device that is named by its path.
    let set = ask_ok(&dir, "device statistics on --json").json();
    assert_eq!(set, json!({ "done": "switched", "kept": true, "devices": ["file:./a.img", "file:./b.img", NAME] }));
    some_io(&mut client);
    let after = counters(&dir);
    assert!(after[0] >= before[0] + 8 && after[4] > before[4], "{before:?} {after:?}");
    assert_eq!(ask_ok(&dir, "device statistics off a.img").out, "statistics off: file:./a.img\n");
    let text = ask_ok(&dir, "device list").out;
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).expect("a line").to_owned();
    assert!(line("file:./a.img ").contains(" off ") && line("file:./a.img ").ends_with("  pool a"), "{text}");
    assert!(line(NAME).contains(" on ") && line(NAME).ends_with("  export disk"), "{text}");
    let unknown = ask(&dir, "device statistics off nothing.img");
    assert!(unknown.code == 1 && unknown.err.contains("sheave device list"), "{}", unknown.err);
    assert_eq!(ask(&dir, "device statistics perhaps").code, 2);
    daemon.end();
}

#[test]
fn top_and_metrics_have_the_devices_with_their_utilization() {
    let Some(dir) = files() else { return };
    let daemon = Daemon::start(&dir, &format!("web = \"0\"\n{BOTH}{DISK}"));
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "disk").expect("it is served");
    let ends = AtomicBool::new(false);
    let board = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: the flag only ends the loop, and no data depends on it.
            while !ends.load(Ordering::Relaxed) {
                some_io(&mut client);
            }
        });
        let board = ask_ok(&dir, "top --once --json --interval 500ms").json();
        let text = ask_ok(&dir, "top --once --interval 200ms").out;
        ends.store(true, Ordering::Relaxed);
        assert!(text.lines().any(|line| line.starts_with(NAME) && line.ends_with("  export disk")), "{text}");
        board
    });
    assert_eq!(board["devices_total"], 3, "{board}");
    let disk = named(&board, NAME);
    let number = |name: &str| disk[name].as_f64().expect("a number");
    assert!(number("utilization") > 0.0 && number("utilization") <= 1.0, "{disk}");
    assert!(number("iops") > 1.0 && number("reads_per_second") > 0.0 && number("writes_per_second") > 0.0, "{disk}");
    assert!(number("bytes_per_second") >= number("written_bytes_per_second"), "{disk}");
    assert_eq!((&disk["export"], &disk["pool"], &disk["kept"]), (&json!("disk"), &Value::Null, &json!(true)));
    // The volume of this pool had no client.
    let idle = named(&board, "file:./b.img");
    assert_eq!((&idle["pool"], &idle["reads_per_second"]), (&json!("b"), &json!(0.0)), "{idle}");
    let metrics = crate::web::get(&daemon, "/metrics");
    let value = |series: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{metrics}")).parse::<f64>().expect("a number")
    };
    let of = format!("device=\"{NAME}\",export=\"disk\"");
    let ios = value(&format!("sheave_device_ios_total{{{of},operation=\"read\"}}"));
    assert_eq!(value(&format!("sheave_device_bytes_total{{{of},operation=\"read\"}}")), ios * 4096.0);
    assert!(ios >= 8.0 && value(&format!("sheave_device_busy_seconds_total{{{of}}}")) > 0.0);
    assert_eq!(value(&format!("sheave_device_statistics{{{of}}}")), 1.0);
    assert_eq!(value("sheave_device_in_flight{device=\"file:./b.img\",pool=\"b\",kind=\"write\"}"), 0.0);
    daemon.end();
}
