//! Every driver of Sheave passes the suite; drivers that are wrong on purpose fail the check for their fault.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};

use sheave_base::status::Status;
use sheave_blk::bio::Op;
use sheave_blk::driver::Capabilities;
use sheave_blk::limits::Limits;
use sheave_blk::{Device, DeviceError};
use sheave_conformance::Suite;
use sheave_drivers::open_device;
use sheave_drivers::safe::{Open, Polled, Request, RequestId, SafeDriver, SafeQueue, Step, device};

fn suite(spec: &'static str) -> Suite {
    Suite::new(move || open_device(spec))
}

#[test]
fn null() {
    for spec in [
        "null:size=1T",
        "null:size=16M,bs=4k,depth=3,latency=10us,complete=timer",
        "null:size=16M,latency=10us,complete=thread",
        "null:size=16M,host_depth=5,latency=5us,complete=timer",
    ] {
        suite(spec).keeps_nothing().run().assert_passed();
    }
}

#[test]
fn ram() {
    suite("ram:size=8M").run().assert_passed();
    suite("ram:size=8M,bs=64k").run().assert_passed();
    suite("ram:size=1M,bs=4k,depth=1,huge=off").run().assert_passed();
}

#[test]
fn file() {
    let dir = tempfile::tempdir().expect("a directory");
    for options in
        ["size=8M", "size=8M,direct=off,depth=4", "size=8M,engine=sync", "size=8M,direct=off,depth=4,engine=sync"]
    {
        let spec = format!("file:{},{options}", dir.path().join("disk").display());
        if let Err(DeviceError::Kring { source, .. }) = open_device(&spec).map(drop) {
            eprintln!("SKIPPED: no kernel ring: {source}");
            return;
        }
        Suite::new(move || open_device(&spec)).run().assert_passed();
    }
}

#[test]
fn partition_and_linear() {
    suite("partition:start=1M,size=3M,over=ram:size=8M").run().assert_passed();
    suite("linear:over=ram:size=2M+ram:size=512k+partition:start=64k,over=ram:size=2M").run().assert_passed();
}

#[test]
fn fault() {
    suite("fault:seed=1,delay=0.2,delay_time=100us,over=ram:size=4M").run().assert_passed();
    let failing = "fault:seed=2,error=0.1,short=0.05,torn=0.05,delay=0.1,delay_time=100us,over=ram:size=4M";
    let stuck = || open_device("fault:seed=3,stuck=1,timeout=200ms,over=ram:size=4M");
    suite(failing).may_fail().stuck(stuck).run().assert_passed();
}

/// A store with one fault.
#[derive(Clone, Debug)]
struct Wrong {
    how: &'static str,
    store: Arc<Mutex<Vec<u8>>>,
    held: Vec<RequestId>,
}

fn wrong(how: &'static str) -> Suite {
    Suite::new(move || Ok(open_wrong(how)))
}

fn open_wrong(how: &'static str) -> Device {
    device(how, Wrong { how, store: Arc::new(Mutex::new(vec![0; 1 << 20])), held: Vec::new() })
}

impl SafeDriver for Wrong {
    fn limits(&self) -> Limits {
        let most = if self.how == "says it discards" { 0 } else { 256 };
        Limits::default().max_discard_sectors(most).max_write_zeroes_sectors(256).queue_depth(16)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::default().discard(true).write_zeroes(true).volatile_cache(true)
    }

    fn size_bytes(&self) -> u64 {
        1 << 20
    }

    fn open_queue(&self, _: &Open) -> Result<Box<dyn SafeQueue>, DeviceError> {
        Ok(Box::new(self.clone()))
    }
}

impl SafeQueue for Wrong {
    fn start(&mut self, rq: &mut Request<'_>) -> Step {
        let mut store = self.store.lock().expect("nobody panics with it");
        let (at, bytes) = (rq.sector() as usize * 512, rq.bytes() as usize);
        let here = &mut store[at..at + bytes];
        let done = match (rq.op(), self.how) {
            (Op::Write, "writes the first block only") => rq.copy_to(0, &mut here[..512]),
            (Op::Write, _) => rq.copy_to(0, here),
            (Op::Read, _) => rq.copy_from(0, here),
            (Op::Flush, "fails flushes") => return Step::End(Status::IoErr),
            (Op::WriteZeroes, "zeroes nothing") => Ok(()),
            (Op::Discard, "discards too much") => {
                let end = (at + bytes + 512).min(1 << 20);
                store[at..end].fill(0);
                Ok(())
            }
            (Op::WriteZeroes | Op::Discard, _) => {
                here.fill(0);
                Ok(())
            }
            (Op::Flush, _) => Ok(()),
            _ => return Step::End(Status::NotSupp),
        };
        if self.how == "wakes nobody" {
            self.held.push(rq.id());
            return Step::Wait;
        }
        Step::End(if done.is_ok() { Status::Ok } else { Status::IoErr })
    }

    fn poll(&mut self, rqs: &mut Polled<'_>) {
        self.held.drain(..).for_each(|id| _ = rqs.end(id, Status::Ok));
    }
}

#[test]
fn a_driver_with_a_fault_fails_the_check_for_it() {
    wrong("nothing").run().assert_passed();
    for (how, found) in [
        ("writes the first block only", "reads back what was written"),
        ("fails flushes", "flushes, and writes durably"),
        ("zeroes nothing", "zeroes and discards the range alone"),
        ("discards too much", "zeroes and discards the range alone"),
        ("says it discards", "says what is possible"),
    ] {
        let report = wrong(how).run();
        assert!(report.failures().any(|(name, _)| name == found), "{how}: {:?}", report.failures().collect::<Vec<_>>());
    }
    let never = Suite::new(|| open_device("ram:size=4M")).stuck(|| open_device("ram:size=4M")).run();
    assert_eq!(never.failures().map(|(name, _)| name).collect::<Vec<_>>(), ["ends what is overdue"]);
}
