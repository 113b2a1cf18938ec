//! Acknowledged records stay in the log, even if its program is killed or the bytes after them are damaged.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::thread;

use sheave::{Op, open_device};

use super::{Append, BLOCK, End, Log, RECORD};

/// The spec of the log that [`writes_until_it_is_killed`] writes.
const SPEC: &str = "SHEAVE_EXAMPLE_WAL";
const THREADS: u64 = 4;

fn spec(file: &tempfile::NamedTempFile) -> String {
    format!("file:{},size=64M", file.path().display())
}

fn text(record: &[u8]) -> &str {
    std::str::from_utf8(record).expect("what was written")
}

/// The program that gets killed: prints each record when the log has acknowledged it.
#[test]
#[ignore = "started and killed by the test below"]
fn writes_until_it_is_killed() {
    let (log, records) = Log::open(&open_device(&std::env::var(SPEC).unwrap()).unwrap()).unwrap();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (log, first) = (&log, records.len());
            scope.spawn(move || {
                for n in 0.. {
                    let record = format!("{thread} {first} {n} {}", "x".repeat(n * 37 % 9000));
                    log.append(record.clone().into_bytes()).unwrap();
                    // One write of one line, which the kernel takes as a whole or not at all.
                    std::io::stdout().lock().write_all(format!("ack {thread} {first} {n}\n").as_bytes()).unwrap();
                }
            });
        }
    });
}

/// Returns the part of a record that its acknowledgement repeats.
fn name(record: &[u8]) -> String {
    text(record).rsplit_once(' ').expect("a record").0.to_string()
}

#[test]
fn every_acknowledged_record_survives_sigkill() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut all: Vec<String> = Vec::new();
    for round in 0..6 {
        let mut program = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::writes_until_it_is_killed", "--ignored", "--nocapture"])
            .env(SPEC, spec(&file))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let mut acknowledged = Vec::new();
        let mut take = |line: String| {
            // The test harness prints lines of its own, one of them without an end.
            acknowledged.extend(line.split_once("ack ").map(|(_, name)| name.to_string()));
            acknowledged.len()
        };
        while take(lines.next().expect("it writes until it is killed").unwrap()) < 20 + round * 17 {}
        program.kill().unwrap(); // SIGKILL
        lines.map_while(Result::ok).for_each(|line| _ = take(line));
        program.wait().unwrap();

        let (_, records) = Log::open(&open_device(&spec(&file)).unwrap()).unwrap();
        let found: Vec<String> = records.iter().map(|record| name(record)).collect();
        assert_eq!(found[..all.len()], all, "what was found once is found again, in its order");
        for (record, name) in records.iter().zip(&found) {
            let n: usize = name.rsplit_once(' ').unwrap().1.parse().unwrap();
            assert_eq!(text(record), format!("{name} {}", "x".repeat(n * 37 % 9000)));
        }
        // Each thread has at most one record that is not acknowledged.
        let new = &found[all.len()..];
        let mut next: HashMap<&str, u64> = HashMap::new();
        for name in new {
            let (thread, n) = name.rsplit_once(' ').unwrap();
            assert_eq!(n.parse(), Ok(*next.entry(thread).or_default()), "{name}");
            *next.get_mut(thread).unwrap() += 1;
        }
        for name in &acknowledged {
            assert!(new.contains(name), "{name} was acknowledged in round {round}, and is lost");
        }
        assert!(new.len() as u64 <= acknowledged.len() as u64 + THREADS);
        all = found;
    }
}

#[test]
fn a_group_has_the_records_of_many() {
    // While a group is being written, new records wait for the next one.
    let device = open_device("null:size=64M,latency=1ms").unwrap();
    let (log, records) = Log::open(&device).unwrap();
    assert!(records.is_empty());
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| (0..10).for_each(|_| log.append(vec![7; 100]).unwrap()));
        }
    });
    let groups = device.stats().op(Op::Write).ios;
    assert!((10..=80).contains(&groups), "{groups} groups for 160 records of 16 threads");
}

#[test]
fn a_flush_goes_before_each_acknowledgement() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let device = open_device(&spec(&file)).unwrap();
    let flushes = || device.stats().op(Op::Flush).ios;
    let (log, _) = Log::open(&device).unwrap();
    for n in 0..10 {
        assert_eq!(flushes(), n + 1, "one for what the recovery found");
        log.append(vec![7; 100]).unwrap();
    }
    assert_eq!((flushes(), device.stats().op(Op::Write).ios), (11, 10));
}

#[test]
fn a_torn_group_is_the_end_and_is_written_over() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let device = open_device(&spec(&file)).unwrap();
    let records = || Log::open(&device).unwrap().1.iter().map(|record| record.len()).collect::<Vec<_>>();
    for len in [10, 9000, 0, 20_000] {
        Log::open(&device).unwrap().0.append(vec![1; len]).unwrap();
    }
    assert_eq!(records(), [10, 9000, 0, 20_000]);
    // Tears the last group, which has blocks 5 to 9: groups of one, three and one block are before it.
    file.as_file().write_all_at(&[0; BLOCK], 7 * BLOCK as u64).unwrap();
    assert_eq!(records(), [10, 9000, 0]);
    // A group that overwrites the start of the torn one, whose rest follows it.
    Log::open(&device).unwrap().0.append(vec![2; 30]).unwrap();
    assert_eq!(records(), [10, 9000, 0, 30]);
    // Every byte of a header counts.
    for at in 0..super::HEADER as u64 {
        let mut byte = [0];
        file.as_file().read_exact_at(&mut byte, BLOCK as u64 + at).unwrap();
        file.as_file().write_all_at(&[byte[0] ^ 0x10], BLOCK as u64 + at).unwrap();
        assert_eq!(records(), [10], "byte {at}");
        file.as_file().write_all_at(&byte, BLOCK as u64 + at).unwrap();
    }
}

#[test]
fn a_full_log_and_a_failed_device_say_so() {
    let device = open_device("ram:size=1M").unwrap();
    let (log, _) = Log::open(&device).unwrap();
    assert!(log.append(vec![0; RECORD + 1]).unwrap_err().to_string().contains("room for"));
    log.append(vec![0; BLOCK]).unwrap();
    assert_eq!(log.append(vec![0; RECORD]).unwrap_err().to_string(), "the log is full");
    log.append(vec![0; BLOCK]).unwrap();
    drop(log);
    assert_eq!(Log::open(&device).unwrap().1.len(), 2);

    // Half of the writes fail: records acknowledged before are there, and no record is accepted after.
    let device = open_device("fault:error=0.5,ops=write,seed=3,over=ram:size=16M").unwrap();
    let (log, _) = Log::open(&device).unwrap();
    let mut acknowledged = 0;
    while log.append(vec![0; 10]).is_ok() {
        acknowledged += 1;
    }
    for _ in 0..20 {
        assert!(log.append(vec![0; 10]).unwrap_err().to_string().contains("open it again"));
    }
    drop(log);
    assert_eq!(Log::open(&device).unwrap().1.len(), acknowledged);
}

#[test]
fn a_group_is_of_its_place_in_its_log() {
    let (acknowledge, _) = std::sync::mpsc::channel();
    let mut group = vec![9; 2 * BLOCK];
    let end = End { at: 0, number: 5, sum: 77 };
    let len = end.encode(&[Append { record: b"abc".to_vec(), acknowledge }], &mut group);
    assert_eq!(end.decode(&group), Some((vec![b"abc".to_vec()], len)));
    assert_eq!(End { number: 6, ..end }.decode(&group), None);
    assert_eq!(End { sum: 78, ..end }.decode(&group), None);
    assert_eq!(end.decode(&group[..len - 1]), None, "cut");
}
