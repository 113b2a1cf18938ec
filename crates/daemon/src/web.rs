//! The status page: current activity of the daemon as charts that update themselves.
//!
//! A single self-contained page (`web/page.html`). It requests `/history` when it is opened, `/statistics` every second
//! and `/slow` occasionally, and draws the differences. The latter two return what the control socket shows to
//! everybody who may read.
//!
//! W1. The page loads nothing from other sites, and no other site can show it in a frame.

use serde::Serialize;

use crate::api::types as t;
use crate::daemon::{Daemon, locked};
use crate::http::{Answer, Question, Site};
use crate::{metrics, slow, statistics};

/// The page, the data that it requests, and `/metrics`.
pub const SITE: Site = Site { name: "the status page", answer };

const PAGE: &str = include_str!("web/page.html");
/// Headers that tell browsers to enforce W1.
const POLICY: &str = "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; \
    style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'\r\n\
    X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n";

fn answer(daemon: &Daemon, question: &Question<'_>) -> Answer {
    match question.path {
        "/" => Answer { status: "200 OK", kind: "text/html; charset=utf-8", head: POLICY, body: PAGE.into() },
        "/metrics" => metrics::answer(daemon, question),
        "/statistics" => json(&statistics::read(daemon)),
        "/history" => json(&locked(&daemon.history).told()),
        "/slow" => json(&slow::list(daemon, &t::ListSlow { since: None })),
        _ => Answer::refused("404 Not Found", "see /"),
    }
}

fn json(told: &impl Serialize) -> Answer {
    let head = "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n";
    match serde_json::to_vec(told) {
        Ok(body) => Answer { status: "200 OK", kind: "application/json", head, body },
        Err(error) => Answer::refused("500 Internal Server Error", &error.to_string()),
    }
}
