//! `/metrics`: counters and gauges of the daemon, as OpenMetrics if the client accepts that, otherwise in the older
//! text format of Prometheus.
//!
//! A page is rendered on request from values that exist for other reports; nothing is counted for it. Everybody who can
//! connect to the address can read it.

mod detail;
mod devices;
mod families;
mod page;
#[cfg(test)]
mod tests;

use self::families::page;
use crate::daemon::Daemon;
use crate::http::{Answer, Question, Site};

/// A site with `/metrics` only.
pub const SITE: Site = Site { name: "metrics", answer: alone };

fn alone(daemon: &Daemon, question: &Question<'_>) -> Answer {
    if question.path == "/metrics" {
        answer(daemon, question)
    } else {
        Answer::refused("404 Not Found", "see /metrics")
    }
}

/// Renders the page.
pub(super) fn answer(daemon: &Daemon, question: &Question<'_>) -> Answer {
    let is_open = question.accept.to_ascii_lowercase().contains("application/openmetrics-text");
    let kind = if is_open {
        "application/openmetrics-text; version=1.0.0; charset=utf-8"
    } else {
        "text/plain; version=0.0.4; charset=utf-8"
    };
    Answer { status: "200 OK", kind, head: "", body: page(daemon, is_open).into() }
}
