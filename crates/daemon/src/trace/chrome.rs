//! Export of a trace as JSON in the trace event format, which Perfetto and Chrome display.
//!
//! Owns the layout: a process is a ring, and a thread is one of its lanes. A lane shows requests that do not overlap,
//! each as a complete event (`X`) that contains one for each of its stages. A new request takes the lane that has been
//! free for longest. The queue depth of each device is a counter (`C`), as recorded when requests ended. Times are in
//! microseconds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Write};

use serde_json::{Value, json};
use sheave_base::status::Status;
use sheave_base::trace::reader::Trace;
use sheave_base::trace::{Entry, STAGES};

/// Writes all rings, with times relative to `first_ns`.
///
/// # Errors
///
/// Writing to `out` failed.
pub fn write(traces: &[Trace], first_ns: u64, out: &mut impl Write) -> io::Result<()> {
    let mut page = Page { first_ns, any: false, out };
    page.out.write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    for trace in traces {
        page.ring(trace)?;
    }
    page.out.write_all(b"\n]}\n")
}

struct Page<'a, W> {
    first_ns: u64,
    any: bool,
    out: &'a mut W,
}

impl<W: Write> Page<'_, W> {
    fn event(&mut self, event: &Value) -> io::Result<()> {
        let before = if self.any { ",\n" } else { "\n" };
        self.any = true;
        write!(self.out, "{before}{event}")
    }

    fn micros(&self, ns: u64) -> f64 {
        ns.saturating_sub(self.first_ns) as f64 / 1e3
    }

    fn ring(&mut self, trace: &Trace) -> io::Result<()> {
        let ring = trace.ring;
        let named = format!("ring {ring} of process {}", trace.pid);
        self.event(&json!({ "ph": "M", "name": "process_name", "pid": ring, "args": { "name": named } }))?;
        let mut entries: Vec<&Entry> = trace.entries.iter().collect();
        entries.sort_by_key(|entry| entry.began_ns());
        let mut lanes = BinaryHeap::new();
        for entry in &entries {
            let lane = match lanes.peek() {
                Some(&Reverse((free, lane))) if free <= entry.began_ns() => {
                    lanes.pop();
                    lane
                }
                _ => {
                    let lane = lanes.len();
                    let args = json!({ "name": format!("lane {lane}") });
                    self.event(&json!({ "ph": "M", "name": "thread_name", "pid": ring, "tid": lane, "args": args }))?;
                    lane
                }
            };
            lanes.push(Reverse((entry.common.ended_ns, lane)));
            self.request(trace, entry, lane)?;
        }
        entries.sort_by_key(|entry| entry.common.ended_ns);
        let mut last = None;
        for entry in entries {
            let common = &entry.common;
            // Requests that ended together have the same depth, which is written once.
            if last.replace((common.ended_ns, common.device)) == Some((common.ended_ns, common.device)) {
                continue;
            }
            let (name, ts) = (format!("depth of {}", device(trace, common.device)), self.micros(common.ended_ns));
            let args = json!({ "requests": common.depth });
            self.event(&json!({ "ph": "C", "name": name, "pid": ring, "ts": ts, "args": args }))?;
        }
        Ok(())
    }

    fn request(&mut self, trace: &Trace, entry: &Entry, lane: usize) -> io::Result<()> {
        let (ring, common) = (trace.ring, &entry.common);
        let mut args = json!({
            "device": device(trace, common.device),
            "sector": entry.sector,
            "bytes": entry.bytes,
            "status": Status::from_u8(common.status).to_string(),
        });
        if common.file != u16::MAX {
            args["file"] = json!(common.file);
        }
        let mut at = entry.began_ns();
        let slice = |name: &str, from: f64, ns: u64| {
            let dur = ns as f64 / 1e3;
            json!({ "ph": "X", "cat": "io", "name": name, "pid": ring, "tid": lane, "ts": from, "dur": dur })
        };
        let mut whole = slice(common.op.name(), self.micros(at), common.ended_ns - at);
        whole["args"] = args;
        self.event(&whole)?;
        for (stage, ns) in STAGES.into_iter().zip(common.stages) {
            if ns != 0 {
                self.event(&slice(stage, self.micros(at), ns))?;
            }
            at = at.saturating_add(ns);
        }
        Ok(())
    }
}

fn device(trace: &Trace, number: u8) -> String {
    match trace.devices.get(usize::from(number)) {
        Some(name) if !name.is_empty() => name.clone(),
        _ => format!("device {number}"),
    }
}
