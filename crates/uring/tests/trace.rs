//! The trace that a ring writes: one entry per request, on every path of an I/O.

use std::path::PathBuf;

use sheave_base::buf::Buf;
use sheave_base::trace::TraceOp;
use sheave_base::trace::reader::Trace;
use sheave_base::trace::writer::TraceWriter;
use sheave_drivers::open_device;
use sheave_uring::{Ring, prep};

/// Runs `work` on a ring with this device. Returns the trace.
fn traced(name: &str, spec: &str, work: impl FnOnce(&mut Ring, sheave_uring::Fd)) -> Trace {
    let path: PathBuf = std::env::temp_dir().join(format!("sheave-uring-{}-{name}.trace", std::process::id()));
    let mut ring = Ring::builder().polled(true).build().expect("a ring");
    let fd = ring.attach(&open_device(spec).expect("a device")).expect("attached");
    assert!(ring.trace_to(Some(TraceWriter::create(&path, 0, 1 << 20).expect("a file"))).is_none());
    work(&mut ring, fd);
    assert!(ring.trace_to(None).is_some());
    let read = |ring: &mut Ring| {
        ring.push(prep::read(fd, Buf::zeroed(512, 512).expect("memory"))).expect("room");
        ring.submit_and_wait(1).expect("it ends");
    };
    // A read after the end of the trace, which must not be in it.
    read(&mut ring);
    let trace = Trace::read(&path).expect("a trace");
    std::fs::remove_file(&path).expect("removed");
    trace
}

fn read_at(ring: &mut Ring, fd: sheave_uring::Fd, block: u64) {
    let buf = Buf::zeroed(4096, 4096).expect("memory");
    ring.push(prep::read(fd, buf).offset(block * 8192)).expect("room");
}

fn sectors(trace: &Trace) -> Vec<u64> {
    trace.entries.iter().map(|entry| entry.sector).collect()
}

#[test]
fn a_batch_is_traced_and_so_is_each_io_alone() {
    let blocks = 0..20u64;
    let wanted: Vec<u64> = blocks.clone().map(|block| block * 16).collect();
    let batch = traced("batch", "null:size=1M", |ring, fd| {
        blocks.clone().for_each(|block| read_at(ring, fd, block));
        ring.submit_and_wait(20).expect("they end");
    });
    let mut found = sectors(&batch);
    found.sort_unstable();
    assert_eq!(found, wanted);
    let alone = |name, spec| {
        traced(name, spec, |ring, fd| {
            for block in blocks.clone() {
                read_at(ring, fd, block);
                ring.submit_and_wait(1).expect("it ends");
                ring.pop().expect("it was waited for");
            }
        })
    };
    for trace in
        [alone("alone", "null:size=1M"), alone("later", "null:size=1M,latency=50us"), alone("ram", "ram:size=1M")]
    {
        assert_eq!(sectors(&trace), wanted);
        assert!(trace.devices[usize::from(trace.entries[0].common.device)].contains("size=1M"));
        for entry in &trace.entries {
            let common = &entry.common;
            assert_eq!((common.op, common.status, entry.bytes), (TraceOp::Read, 0, 4096));
            assert!(common.depth == 1 && entry.began_ns() >= trace.coarse_ns, "{entry:?}");
        }
    }
}

#[test]
fn an_io_that_fails_has_its_status() {
    let failed = traced("failed", "fault:error=1,over=null:size=1M", |ring, fd| {
        read_at(ring, fd, 3);
        ring.submit_and_wait(1).expect("it ends");
    });
    let with_error = failed.entries.iter().filter(|entry| entry.common.status != 0);
    assert_eq!(with_error.map(|entry| entry.sector).collect::<Vec<_>>(), [48]);
}

/// The second device gets the place in the ring that the first had.
#[test]
fn a_device_that_comes_when_another_has_gone_has_a_name_of_its_own() {
    let path = std::env::temp_dir().join(format!("sheave-uring-{}-gone.trace", std::process::id()));
    let mut ring = Ring::builder().polled(true).build().expect("a ring");
    assert!(ring.trace_to(Some(TraceWriter::create(&path, 0, 1 << 20).expect("a file"))).is_none());
    let specs = ["null:size=1M", "null:size=2M"];
    for spec in specs {
        let fd = ring.attach(&open_device(spec).expect("a device")).expect("attached");
        ring.push(prep::read(fd, Buf::zeroed(512, 512).expect("memory"))).expect("room");
        ring.submit_and_wait(1).expect("it ends");
        ring.pop().expect("it was waited for");
        ring.detach(fd).expect("it is there");
    }
    drop(ring.trace_to(None));
    let trace = Trace::read(&path).expect("a trace");
    std::fs::remove_file(&path).expect("removed");
    let names: Vec<&str> = trace.entries.iter().map(|one| &*trace.devices[usize::from(one.common.device)]).collect();
    assert_eq!(names, specs);
}

/// Runs 20 reads of this device, one after the other, then `look` while the ring sleeps.
fn asleep(name: &str, spec: &str, look: impl FnOnce(&std::path::Path)) {
    let path = std::env::temp_dir().join(format!("sheave-uring-{}-{name}.trace", std::process::id()));
    let trace = TraceWriter::create(&path, 0, 1 << 20).expect("a file");
    let device = open_device(spec).expect("a device");
    let (tell, told) = std::sync::mpsc::channel();
    let ring = std::thread::spawn(move || {
        let mut ring = Ring::builder().build().expect("a ring");
        let fd = ring.attach(&device).expect("attached");
        assert!(ring.trace_to(Some(trace)).is_none());
        for block in 0..20 {
            read_at(&mut ring, fd, block);
            ring.submit_and_wait(1).expect("it ends");
            ring.pop().expect("it was waited for");
        }
        tell.send(ring.handle()).expect("somebody waits");
        ring.wait(1, None)
    });
    let handle = told.recv().expect("it reads");
    look(&path);
    handle.wake();
    assert_eq!(ring.join().expect("it ends"), sheave_uring::Waited::Woken);
    std::fs::remove_file(&path).expect("removed");
}

#[test]
fn what_a_ring_has_done_is_in_its_trace_while_it_sleeps() {
    let disk = tempfile::NamedTempFile::new().expect("a file");
    disk.as_file().set_len(1 << 20).expect("made");
    let file = format!("file:{}", disk.path().display());
    for (name, spec) in [("sleeps", "null:size=1M,latency=50us"), ("disk", &file)] {
        asleep(name, spec, |path| {
            let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while Trace::read(path).expect("a trace").entries.len() < 20 {
                assert!(std::time::Instant::now() < until, "{spec}: they never come");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
    }
}

#[test]
fn a_ring_whose_trace_somebody_cuts_goes_on() {
    let path = std::env::temp_dir().join(format!("sheave-uring-{}-cut.trace", std::process::id()));
    let mut ring = Ring::builder().polled(true).build().expect("a ring");
    let fd = ring.attach(&open_device("null:size=1M").expect("a device")).expect("attached");
    assert!(ring.trace_to(Some(TraceWriter::create(&path, 0, 1 << 20).expect("a file"))).is_none());
    for round in 0..1000 {
        if round == 10 {
            let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
            file.set_len(0).expect("cut");
        }
        read_at(&mut ring, fd, round % 100);
        ring.submit_and_wait(1).expect("it ends");
        assert_eq!(ring.pop().expect("it was waited for").result(), Ok(4096));
    }
    assert!(ring.trace_to(None).is_some_and(|trace| trace.error().is_none()));
    std::fs::remove_file(&path).expect("removed");
}
