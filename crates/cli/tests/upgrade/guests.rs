//! Virtual machines, which attach an export by vhost-user, across upgrades.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::json;
use sheave_vhost_front::{Driver, DriverQueue, GuestMemory, Options, STATUS_OK};

use crate::rig::{ONE, PATIENCE, Rig, until};

const DEPTH: u64 = 16;

/// Blocks of 4 KiB that a queue writes and reads. The queue of the driver checks that each request completes once.
struct Load {
    queue: DriverQueue,
    memory: GuestMemory,
    data: u64,
    first: u64,
    rounds: u64,
}

impl Load {
    fn new(queue: DriverQueue) -> Load {
        let memory = queue.memory().clone();
        let data = memory.alloc(DEPTH * 4096, 4096).expect("room");
        let first = 1 + u64::from(queue.number()) * DEPTH;
        Load { queue, memory, data, first, rounds: 0 }
    }

    fn block(&self, at: u64) -> Vec<u8> {
        (0..512u64).flat_map(|word| (self.rounds << 32 | (self.first + at) << 16 | word).to_le_bytes()).collect()
    }

    fn completes(&mut self) {
        let ended = self.queue.complete_all(PATIENCE).expect("completed");
        assert!(ended.len() == DEPTH as usize && ended.iter().all(|one| one.status == STATUS_OK), "{ended:?}");
    }

    /// Writes all blocks, then reads them and checks each.
    fn round(&mut self) {
        self.rounds += 1;
        for at in 0..DEPTH {
            self.memory.write(self.data + 4096 * at, &self.block(at));
            self.queue.write(8 * (self.first + at), self.data + 4096 * at, 4096).expect("submitted");
        }
        self.completes();
        self.memory.fill(self.data, DEPTH as usize * 4096, 0xee);
        for at in 0..DEPTH {
            self.queue.read(8 * (self.first + at), self.data + 4096 * at, 4096).expect("submitted");
        }
        self.completes();
        for at in 0..DEPTH {
            let read = self.memory.read(self.data + 4096 * at, 4096);
            assert!(read == self.block(at), "block {at} in round {}", self.rounds);
        }
    }
}

/// Lets all queues work in threads of their own while `meanwhile` runs. Returns the number of their rounds.
pub fn under_load(driver: &mut Driver, meanwhile: impl FnOnce(&AtomicU64)) -> u64 {
    let (ends, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let work = |queue| {
        let mut load = Load::new(queue);
        while !ends.load(Ordering::Relaxed) {
            load.round();
            rounds.fetch_add(1, Ordering::Relaxed);
        }
        load.queue
    };
    let queues = std::thread::scope(|scope| {
        let queues = driver.take_queues().into_iter();
        let threads: Vec<_> = queues.map(|queue| scope.spawn(move || work(queue))).collect();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| meanwhile(&rounds)));
        ends.store(true, Ordering::Relaxed);
        let queues = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        queues
    });
    driver.put_queues(queues);
    rounds.into_inner()
}

/// Waits until the queues have gone on for some rounds.
pub fn some_rounds(rounds: &AtomicU64) {
    let from = rounds.load(Ordering::Relaxed);
    until("the guest goes on", || rounds.load(Ordering::Relaxed) >= from + 4);
}

#[test]
fn a_guest_under_load_loses_nothing_in_ten_upgrades_and_nothing_is_done_twice() {
    let Some(rig) = Rig::start(&format!("{ONE}vhost_user = \"vm.sock\"\n")) else { return };
    rig.ok("volume create a.img#w --size 16M");
    let options = Options { queues: 2, ..Options::default() };
    let mut driver = options.connect(rig.dir.path("vm.sock")).expect("attached");
    let client = || rig.ok("client list --json").json()["clients"].clone();
    let id = client()[0]["id"].clone();
    let other = format!("{}vhost_user = \"vm.sock\"\n", ONE.replace("volume = \"v\"", "volume = \"w\""));
    let other = rig.config("w.toml", &other);
    let err = rig.refused(&format!("upgrade {other}"), 2);
    assert!(err.contains("another source or mode of the export 'va', which has 1 clients"), "{err}");
    let rounds = under_load(&mut driver, |rounds| {
        for _ in 0..10 {
            some_rounds(rounds);
            let told = rig.upgrade();
            assert_eq!(told["clients"], 1, "{told}");
        }
        some_rounds(rounds);
    });
    let after = client();
    let bytes = rounds * DEPTH * 4096;
    assert_eq!(after[0]["id"], id, "{after}");
    assert_eq!((&after[0]["written_bytes"], &after[0]["read_bytes"]), (&json!(bytes), &json!(bytes)), "each once");
    assert_eq!((&after[0]["failed_requests"], after.as_array().map(Vec::len)), (&json!(0), Some(1)));
    // An upgrade that fails is no more to the guest than one that does not.
    std::fs::write(rig.dir.path("new.toml"), format!("metrics = \"192.0.2.1:1\"\n{ONE}vhost_user = \"vm.sock\"\n"))
        .expect("written");
    under_load(&mut driver, |rounds| {
        for _ in 0..3 {
            rig.refused("upgrade --config new.toml", 1);
            some_rounds(rounds);
        }
        rig.upgrade();
        some_rounds(rounds);
    });
    drop(driver);
    until("it is gone", || client() == json!([]));
    rig.end();
}
