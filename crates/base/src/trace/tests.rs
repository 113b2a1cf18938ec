//! The file: written entries can be read back, and damaged ones are not trusted.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;

use super::reader::Trace;
use super::writer::TraceWriter;
use super::*;

/// A path of its own, removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("sheave-trace-{}-{name}", std::process::id()));
        Place(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn common(ended_ns: u64) -> Common {
    Common { ended_ns, depth: 7, file: 3, device: 1, status: 0, op: TraceOp::Write, stages: [0, 100, 5, 127, 64] }
}

fn read(path: &Path) -> Trace {
    Trace::read(path).expect("it is a trace")
}

#[test]
fn what_was_pushed_is_read_while_the_writer_lives_and_afterwards() {
    let place = Place::new("pushed");
    let mut writer = TraceWriter::create(&place.0, 5, 16 << 10).expect("it is made");
    assert_eq!(writer.capacity(), 512);
    assert_eq!((writer.number(9, || "ram:size=1M"), writer.number(3, || "null:size=1T")), (0, 1));
    assert_eq!(writer.number(9, || unreachable!("it has its name")), 0);
    writer.push(&common(1000), 3, |at| (at as u64 + 8, 512));
    assert!(writer.before_sleep(u64::MAX).is_none(), "they have waited for ever");
    let while_it_lives = read(&place.0);
    drop(writer);
    for trace in [while_it_lives, read(&place.0)] {
        assert_eq!((trace.ring, trace.pid, trace.lost), (5, std::process::id(), 0));
        assert_eq!(trace.devices[1], "null:size=1T");
        let entry = |sector| Entry { common: common(1000), sector, bytes: 512 };
        assert_eq!(trace.entries, [entry(8), entry(9), entry(10)]);
        assert_eq!(trace.entries[0].began_ns(), 1000 - 296);
    }
}

#[test]
fn the_oldest_are_replaced_and_those_next_to_go_are_left_out() {
    let place = Place::new("oldest");
    let mut writer = TraceWriter::create(&place.0, 0, 16 << 10).expect("it is made");
    writer.push(&common(1), 10_000, |at| (at as u64, 512));
    let seen = read(&place.0);
    assert_eq!(seen.lost + seen.entries.len() as u64, 10_000 - 10_000 % MAX_RUN as u64, "the last wait for others");
    drop(writer);
    let trace = read(&place.0);
    let sectors: Vec<u64> = trace.entries.iter().map(|entry| entry.sector).collect();
    assert_eq!(sectors, (10_000 - 512 + 128..10_000).collect::<Vec<_>>());
    assert_eq!(trace.lost + trace.entries.len() as u64, 10_000);
}

#[test]
fn until_it_is_full_all_are_there() {
    let place = Place::new("full");
    let mut writer = TraceWriter::create(&place.0, 0, 16 << 10).expect("it is made");
    writer.push(&common(1), 512 - 128, |at| (at as u64, 512));
    drop(writer);
    assert_eq!(read(&place.0).entries.len(), 512 - 128);
}

#[test]
fn entries_wait_for_a_batch_or_for_ten_milliseconds() {
    let place = Place::new("wait");
    let mut writer = TraceWriter::create(&place.0, 0, 16 << 10).expect("it is made");
    let written = || read(&place.0).entries.len();
    let ms = |ms: u64| ms * 1_000_000;
    assert_eq!(writer.before_sleep(ms(1)), None, "nothing waits");
    writer.push(&common(ms(1)), 1, |_| (0, 512));
    assert_eq!((writer.before_sleep(ms(4)), written()), (Some(Duration::from_millis(7)), 0));
    // Another request ends soon after the first, and then one 10 ms after it.
    writer.push(&common(ms(10)), 1, |_| (1, 512));
    assert_eq!(written(), 0);
    writer.push(&common(ms(11)), 1, |_| (2, 512));
    assert_eq!(written(), 3);
    assert_eq!(writer.before_sleep(ms(30)), None, "nothing waits");
    // The waiting time of the next entry begins at its own end.
    writer.push(&common(ms(31)), 1, |_| (3, 512));
    assert_eq!((writer.before_sleep(ms(32)), written()), (Some(Duration::from_millis(9)), 3));
    assert_eq!((writer.before_sleep(ms(41)), written()), (None, 4));
    // A full batch is written at once, whatever was written before it.
    writer.push(&common(ms(41)), MAX_RUN - 1, |_| (4, 512));
    assert_eq!(written(), 4);
    writer.push(&common(ms(41)), 1, |_| (5, 512));
    assert_eq!(written(), 4 + MAX_RUN);
}

#[test]
fn batches_of_any_length_lie_one_after_the_other_to_the_end_of_the_file_and_from_its_start() {
    let place = Place::new("batches");
    let mut writer = TraceWriter::create(&place.0, 0, 16 << 10).expect("it is made");
    let (mut pushed, mut rng) = (0, crate::rng::Rng::new(3));
    for _ in 0..200 {
        let many = 1 + rng.below(200);
        writer.push(&common(1), many as usize, |at| (pushed + at as u64, 512));
        pushed += many;
        if rng.below(3) == 0 {
            assert_eq!(writer.before_sleep(u64::MAX), None);
            let trace = read(&place.0);
            let first = pushed - trace.entries.len() as u64;
            let sectors = trace.entries.iter().map(|entry| entry.sector);
            assert!(sectors.eq(first..pushed), "{pushed} were pushed");
            assert!(trace.entries.len() as u64 >= pushed.min(512 - MAX_RUN as u64) && trace.lost == first);
        }
    }
    assert!(writer.error().is_none());
}

#[test]
fn truncating_the_file_does_not_kill_the_writer() {
    let place = Place::new("cut");
    let mut writer = TraceWriter::create(&place.0, 0, 16 << 10).expect("it is made");
    writer.push(&common(1), 1000, |at| (at as u64, 512));
    let file = fs::OpenOptions::new().write(true).open(&place.0).expect("open");
    file.set_len(0).expect("cut");
    // Through a mapping of the file this write would end the program.
    assert_eq!(writer.number(3, || "null:size=1T"), 0);
    writer.push(&common(1), 1000, |at| (at as u64, 512));
    assert!(writer.error().is_none());
    drop(writer);
    assert!(Trace::read(&place.0).expect_err("its head is gone").to_string().ends_with("it does not begin as one"));
}

#[test]
fn after_an_error_nothing_more_is_written_and_the_writer_says_why() {
    let place = Place::new("error");
    let mut writer = TraceWriter::create(&place.0, 0, 16 << 10).expect("it is made");
    writer.push(&common(1), MAX_RUN, |_| (1, 512));
    writer.break_file();
    writer.push(&common(1), 5 * MAX_RUN + 1, |_| (2, 512));
    assert_eq!(writer.error().and_then(std::io::Error::raw_os_error), Some(libc::EBADF));
    writer.mend_file(&place.0);
    writer.push(&common(1), 5 * MAX_RUN, |_| (3, 512));
    drop(writer);
    assert!(read(&place.0).entries.iter().all(|entry| entry.sector == 1), "what is missing is missing to the end");
}

#[test]
fn a_new_trace_takes_the_name_and_a_reader_keeps_the_old_one() {
    let place = Place::new("again");
    let mut writer = TraceWriter::create(&place.0, 0, 16 << 10).expect("it is made");
    writer.push(&common(1), 1, |_| (0, 512));
    let old = fs::File::open(&place.0).expect("open");
    let _new = TraceWriter::create(&place.0, 0, 16 << 10).expect("it is made again");
    drop(writer);
    assert!(read(&place.0).entries.is_empty());
    let mut head = [0; 8];
    old.read_exact_at(&mut head, HEAD_AT as u64).expect("read");
    assert_eq!(u64::from_ne_bytes(head), 1);
}

#[test]
fn what_is_no_trace_is_refused_with_the_reason() {
    let place = Place::new("none");
    let why = |bytes: &[u8]| {
        fs::write(&place.0, bytes).expect("written");
        Trace::read(&place.0).expect_err("it is none").to_string()
    };
    assert!(why(b"short").ends_with("it is too short"));
    assert!(why(&[0; 8192]).ends_with("it does not begin as one"));
    let mut header = vec![0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC.to_ne_bytes());
    assert!(why(&header).ends_with("it is of another version"));
    header[8..16].copy_from_slice(&(u64::from(VERSION) | (ENTRY_BYTES as u64) << 32).to_ne_bytes());
    assert!(why(&header).ends_with("its capacity makes no sense"));
    assert!(Trace::read(Path::new("/dev/null")).expect_err("none").to_string().contains("regular file"));
    fs::remove_file(&place.0).expect("removed");
    fs::create_dir(&place.0).expect("made");
    assert!(Trace::read_all(&place.0).expect_err("none").to_string().ends_with("there is no *.trace in it"));
}

#[test]
fn times_keep_seven_digits_and_the_longest_stays_the_longest() {
    for ns in (0..38).flat_map(|bit| [1 << bit, (1u64 << bit) + 1, (1 << (bit + 1)) - 1]).filter(|&ns| ns < 1 << 38) {
        let back = unsqueeze(squeeze(ns));
        assert!(back <= ns && ns - back <= ns / 128, "{ns} became {back}");
    }
    assert_eq!(squeeze(u64::MAX), 0xfff);
    assert_eq!(squeeze(1 << 38), 0xfff);
}

proptest! {
    /// Any bytes, and any damage to a trace, give a result of bounded size without a panic.
    #[test]
    fn damaged_files_are_read_or_refused(
        damage in prop::collection::vec((0usize..HEADER_BYTES + 20_000, any::<u64>()), 0..64),
        cut in 0usize..HEADER_BYTES + 20_000,
        head in any::<u64>(),
    ) {
        let place = Place::new("damaged");
        let mut writer = TraceWriter::create(&place.0, 0, 16 << 10).expect("it is made");
        writer.push(&common(1), 700, |at| (at as u64, 512));
        drop(writer);
        let mut bytes = fs::read(&place.0).expect("read");
        bytes[HEAD_AT..HEAD_AT + 8].copy_from_slice(&head.to_ne_bytes());
        for (at, word) in damage {
            let end = (at + 8).min(bytes.len());
            if at < end {
                bytes[at..end].copy_from_slice(&word.to_ne_bytes()[..end - at]);
            }
        }
        bytes.truncate(cut);
        fs::File::create(&place.0).and_then(|mut file| file.write_all(&bytes)).expect("written");
        if let Ok(trace) = Trace::read(&place.0) {
            prop_assert!(trace.entries.len() <= 512 && trace.entries.len() as u64 <= head);
            for entry in trace.entries {
                prop_assert!(entry.began_ns() <= entry.common.ended_ns);
            }
        }
    }
}

#[test]
fn device_numbers_are_never_reused_and_limited() {
    let place = Place::new("numbers");
    let mut writer = TraceWriter::create(&place.0, 0, 16 << 10).expect("it is made");
    for number in 0..100u8 {
        let name = format!("device {number}");
        let given = writer.number(7, || &name);
        assert_eq!(given, if usize::from(number) < NAMES { number } else { u8::MAX });
        writer.forget(7);
    }
    assert_eq!(writer.number(u8::MAX, || unreachable!("beyond all places")), u8::MAX);
    let devices = read(&place.0).devices;
    assert!(devices.iter().enumerate().all(|(at, name)| *name == format!("device {at}")), "{devices:?}");
}
