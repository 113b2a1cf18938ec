//! The export formats: each field of each event, for any entries.

use proptest::prelude::*;
use serde_json::Value;
use sheave_base::trace::reader::Trace;
use sheave_base::trace::{Common, Entry, TraceOp};

use super::{blk, chrome};

fn trace(entries: Vec<Entry>) -> Trace {
    let devices = vec!["null:".into(), String::new()];
    Trace { ring: 3, pid: 42, wall_ns: 0, coarse_ns: 0, devices, entries, lost: 0 }
}

fn entry(ended_ns: u64, op: TraceOp, status: u8) -> Entry {
    let stages = [1_000, 200, 30, 4_000, 500];
    let common = Common { ended_ns, depth: 9, file: 0, device: 0, status, op, stages };
    Entry { common, sector: 0x1234_5678_9abc, bytes: 4096 }
}

fn blk_bytes(trace: &Trace) -> Vec<u8> {
    let traces = std::slice::from_ref(trace);
    let mut out = Vec::new();
    blk::write(trace, &blk::devices(traces), blk::first_ns(traces), &mut out).expect("memory");
    out
}

fn half(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"))
}

#[test]
fn a_request_is_queued_gets_a_request_is_inserted_issued_and_completed() {
    let bytes = blk_bytes(&trace(vec![entry(100_000, TraceOp::Write, 0)]));
    // The first record has the name of the process.
    let (name, records) = bytes.split_at(blk::RECORD_BYTES + 16);
    assert_eq!((half(name, 28), half(name, 32), &name[48..54]), (1 << 26, 42, &b"sheave"[..]));
    assert_eq!(records.len(), 5 * blk::RECORD_BYTES);
    let events = [(1, 20, 1000), (4, 20, 1200), (12, 20, 1200), (7, 22, 1230), (8, 23, 5230)];
    for (number, ((what, class, time), record)) in events.iter().zip(records.chunks(blk::RECORD_BYTES)).enumerate() {
        assert_eq!(half(record, 0), 0x6561_7407);
        assert_eq!(half(record, 4), number as u32 + 2, "no sequence number is left out");
        assert_eq!(word(record, 8), *time);
        assert_eq!((word(record, 16), half(record, 24)), (0x1234_5678_9abc, 4096));
        assert_eq!(half(record, 28), what | 1 << class | 1 << 17 | 1 << 24, "event {number}");
        assert_eq!([half(record, 32), half(record, 36), half(record, 40), half(record, 44)], [42, 240 << 20, 3, 0]);
    }
}

#[test]
fn an_error_is_told_with_the_completion() {
    let failed = sheave_base::status::Status::IoErr as u8;
    let bytes = blk_bytes(&trace(vec![entry(100_000, TraceOp::Read, failed)]));
    let errors: Vec<u32> = bytes[blk::RECORD_BYTES + 16..].chunks(48).map(|record| half(record, 44)).collect();
    assert_eq!(errors, [0, 0, 0, 0, 5]);
}

fn chrome_events(trace: Trace) -> Vec<Value> {
    let traces = [trace];
    let mut out = Vec::new();
    chrome::write(&traces, blk::first_ns(&traces), &mut out).expect("memory");
    let page: Value = serde_json::from_slice(&out).expect("it is JSON");
    assert_eq!(page["displayTimeUnit"], "ns");
    page["traceEvents"].as_array().expect("a list").clone()
}

/// Checks the fields that the trace event format requires, by phase.
fn check_fields(event: &Value) {
    let number = |field: &str| assert!(event[field].as_f64().is_some_and(|n| n >= 0.0), "{field} of {event}");
    assert!(event["name"].is_string() && event["pid"].is_u64(), "{event}");
    match event["ph"].as_str().expect("a phase") {
        "M" => assert!(event["args"]["name"].is_string(), "{event}"),
        "C" => {
            number("ts");
            assert!(event["args"].as_object().is_some_and(|args| args.values().all(Value::is_number)), "{event}");
        }
        "X" => {
            ["ts", "dur"].into_iter().for_each(number);
            assert!(event["tid"].is_u64() && event["cat"] == "io", "{event}");
        }
        other => panic!("no phase {other} is written"),
    }
}

#[test]
fn a_request_is_a_slice_with_its_stages_within_and_lanes_do_not_overlap() {
    let entries = [100_000, 101_000, 110_000].map(|ended| entry(ended, TraceOp::Read, 0)).to_vec();
    let events = chrome_events(trace(entries));
    events.iter().for_each(check_fields);
    let slices: Vec<&Value> = events.iter().filter(|event| event["ph"] == "X").collect();
    let span = |slice: &Value| {
        let ns = |field: &str| (slice[field].as_f64().expect("a number") * 1e3).round() as u64;
        (ns("ts"), ns("ts") + ns("dur"))
    };
    let mut wholes: Vec<(u64, (u64, u64))> = Vec::new();
    for slices in slices.chunks(6) {
        let (begin, end) = span(slices[0]);
        assert_eq!(slices[0]["args"]["bytes"], 4096);
        let mut at = begin;
        for (stage, name) in slices[1..].iter().zip(["worker", "tag", "plugged", "driver", "reap"]) {
            assert_eq!((&stage["name"], &stage["tid"]), (&Value::from(name), &slices[0]["tid"]));
            assert_eq!(span(stage).0, at, "each stage begins where the one before it ends");
            at = span(stage).1;
        }
        assert_eq!(at, end, "the stages are all of it");
        wholes.push((slices[0]["tid"].as_u64().expect("a lane"), (begin, end)));
    }
    assert_eq!(wholes.iter().map(|whole| whole.0).collect::<Vec<_>>(), [0, 1, 0]);
    assert_eq!(events.iter().filter(|event| event["ph"] == "C").count(), 3);
}

/// End, stages, common fields, place and length.
type Drawn = (u64, [u64; 5], (u16, u16, u8, u8), (u64, u32));

proptest! {
    /// Whatever a file contains, the export terminates and is well-formed.
    #[test]
    fn any_entries_can_be_exported(
        entries in prop::collection::vec(
            (any::<u64>(), any::<[u64; 5]>(), any::<(u16, u16, u8, u8)>(), any::<(u64, u32)>()),
            0..40,
        )
    ) {
        let entry = |(ended_ns, stages, (depth, file, device, status), (sector, bytes)): Drawn| Entry {
            common: Common {
                ended_ns, depth, file, device, status, op: TraceOp::Flush,
                stages: stages.map(|ns| ns & ((1 << 38) - 1)),
            },
            sector, bytes,
        };
        let trace = trace(entries.into_iter().map(entry).collect());
        prop_assert_eq!(blk_bytes(&trace).len(), 16 + blk::RECORD_BYTES * (1 + 5 * trace.entries.len()));
        chrome_events(trace).iter().for_each(check_fields);
    }
}
