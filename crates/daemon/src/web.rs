//! The status page: what the daemon does now, as pictures that move.
//!
//! One page without parts elsewhere (`web/page.html`), which asks for `/statistics` each second and for `/slow` now and
//! then, and draws what came between. Both are what the control socket tells anybody who may read.
//!
//! W1. An address of this machine alone answers only who asks for it by such an address or as `localhost`: a page from
//! elsewhere, whose name somebody lets point here, gets nothing (DNS rebinding).
//! W2. The page loads nothing from elsewhere, and no page of elsewhere shows it in a frame.

use serde::Serialize;

use crate::api::types as t;
use crate::daemon::Daemon;
use crate::http::{Answer, Question, Site};
use crate::{metrics, slow, statistics};

/// The page, what it asks for, and `/metrics`.
pub const SITE: Site = Site { name: "the status page", answer };

/// The page.
const PAGE: &str = include_str!("web/page.html");
/// What browsers are told about it (W2).
const POLICY: &str = "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; \
    style-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'\r\n\
    X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\nCache-Control: no-store\r\n";

fn answer(daemon: &Daemon, question: &Question<'_>) -> Answer {
    if question.is_local && !question.host.is_some_and(names_this_machine) {
        return Answer::refused("403 Forbidden", "ask by an address of this machine, such as 127.0.0.1");
    }
    match question.path {
        "/" => Answer { status: "200 OK", kind: "text/html; charset=utf-8", head: POLICY, body: PAGE.into() },
        "/metrics" => metrics::answer(daemon, question),
        "/statistics" => json(&statistics::read(daemon)),
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

/// Whether this is `localhost` or a loopback address, with or without a port (W1).
fn names_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::names_this_machine;

    #[test]
    fn names_of_this_machine_are_known() {
        for host in ["localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:9180", "127.9.9.9:1", "[::1]:80", "[::1]"] {
            assert!(names_this_machine(host), "{host}");
        }
        for host in
            ["", "evil.example", "evil.example:9180", "localhost.evil.example", "10.0.0.1:80", "127.0.0.1.evil.example"]
        {
            assert!(!names_this_machine(host), "{host}");
        }
    }
}
