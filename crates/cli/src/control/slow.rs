//! `sheave slow`: shows slow I/Os of a daemon, with the reasons.

use std::time::Duration;

use serde_json::{Value, json};
use sheave_base::units::fmt_ns;
use sheave_daemon::api::types as t;
use sheave_daemon::failure::Failure;

use super::commands::connect;
use crate::args::control::SlowArgs;
use crate::output;

/// Interval of queries with `--follow`.
const EVERY: Duration = Duration::from_millis(500);

/// Runs the command.
pub fn run(args: &SlowArgs) -> Result<(), Failure> {
    let remote = connect(args.control.as_deref())?;
    if let Some(limit) = args.limit {
        let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        let Value::Object(_) = remote.call("SetSlowLimit", &t::SetSlowLimit { limit_ns })? else { return Ok(()) };
        output::text(&format!("I/O counts as slow from {} on, or before if it is unusual\n", fmt_ns(limit_ns)));
        return Ok(());
    }
    let mut asked = t::ListSlow::default();
    loop {
        let rows: t::SlowRows = remote.call("ListSlowIos", &asked)?;
        if args.json && !args.follow {
            return output::json(&rows);
        }
        if rows.lost > 0 && !args.json {
            output::text(&format!("({} more came than are kept)\n", rows.lost));
        }
        for row in &rows.ios {
            output::text(&if args.json { format!("{}\n", json!(row)) } else { line(row) });
        }
        if !args.follow {
            if rows.ios.is_empty() {
                let limit = fmt_ns(rows.limit_ns);
                output::text(&format!("no slow I/O is kept: none took longer than {limit}, or was unusual\n"));
            }
            return Ok(());
        }
        if !output::is_read() {
            return Ok(());
        }
        asked.since = Some(rows.next);
        std::thread::sleep(EVERY);
    }
}

/// Formats an entry: time and explanation.
fn line(row: &t::SlowRow) -> String {
    format!("{}  {}\n", time_of_day(row.ended_ms), row.explained)
}

/// Formats a time of day as `12:34:56.789Z`, in UTC.
fn time_of_day(ms: u64) -> String {
    let (s, ms) = (ms / 1000 % 86_400, ms % 1000);
    format!("{:02}:{:02}:{:02}.{ms:03}Z", s / 3600, s / 60 % 60, s % 60)
}
