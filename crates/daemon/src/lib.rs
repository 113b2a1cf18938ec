//! The daemon behind `sheave serve`: owns pools, serves volumes and devices of them, and is told by a control socket.
//!
//! | module | holds |
//! |---|---|
//! | [`run`] | the order of start and end |
//! | [`config`] | the configuration: a plan |
//! | [`check`] | a configuration that is looked at, and not served |
//! | [`confine`] | what the daemon may reach of the file system |
//! | [`daemon`] | pools, exports and the server while it runs |
//! | [`backend`], [`contexts`] | what an export serves |
//! | [`opening`] | devices that may be silent, when it starts |
//! | [`control`] | the control socket |
//! | [`slow`] | what was slow, as the control socket tells it |
//! | [`trace`] | traces of requests, and what they are exported as |
//! | [`statistics`] | what was done until now, as the control socket tells it |
//! | [`service`] | the methods that it has |
//! | [`copies`] | those that take long: import, export, scrub, trim, watch |
//! | [`history`] | the last hour, for the status page |
//! | [`http`] | the sockets of the pages that it shows |
//! | [`metrics`] | counters and gauges, for monitoring |
//! | [`web`] | the status page |
//! | [`tls`] | which addresses have TLS, and with which files |
//! | [`log`] | what operators are told meanwhile |
//! | [`health`] | everything that is wrong: what the log, the pages and systemd tell of it |
//! | [`retries`] | opens again what could not be opened |
//! | [`standby`] | takes pools over from hosts that have died |
//! | [`ticker`] | a thread that does something now and then |
//! | [`systemd`] | sockets, readiness and the watchdog of systemd |
//! | [`captive`] | the command of `--run`, and its socket |
//!
//! What a command does by itself when no daemon holds its pool is done by the same code, which therefore stands here:
//!
//! | module | holds |
//! |---|---|
//! | [`api`] | what goes over the control socket, and where that is |
//! | [`devices`] | the kinds of devices that specs open |
//! | [`look`] | members of pools, looked for in directories and among block devices |
//! | [`place`] | where a pool or volume is, as written on a command line or in the configuration |
//! | [`copy`] | images into volumes and out of them |
//! | [`delete`] | several volumes go at once |
//! | [`together`] | snapshots of several volumes at one moment |
//! | [`shapes`] | pools, volumes and reports as programs are told of them |
//! | [`failure`] | why something fails: cause and fix |
//! | [`value`] | parsers of single values |

pub mod api;
mod backend;
pub mod captive;
pub mod check;
pub mod config;
mod confine;
mod contexts;
mod control;
mod copies;
pub mod copy;
mod daemon;
pub mod delete;
mod descriptors;
pub mod devices;
pub mod failure;
mod health;
mod history;
mod http;
pub mod log;
pub mod look;
mod metrics;
mod opening;
pub mod place;
mod problems;
mod retries;
mod rights;
pub mod run;
mod service;
pub mod shapes;
mod slow;
mod standby;
mod statistics;
mod systemd;
mod ticker;
pub mod tls;
pub mod together;
pub mod trace;
pub mod value;
mod web;

use sheave_vol::{Pool, PoolError, VolumeInfo};

/// Changes the size of a volume and how large writes may make it. A larger bound comes first, a smaller one last: the
/// size is never beyond it.
///
/// # Errors
///
/// The pool's.
pub fn resize_to(pool: &Pool, name: &str, now: &VolumeInfo, new: u64, max_size: Option<u64>) -> Result<(), PoolError> {
    let rises = max_size > now.max_size_bytes;
    if let Some(max_size) = max_size.filter(|_| rises) {
        pool.set_max_size(name, max_size)?;
    }
    if new != now.size_bytes || max_size.is_none() {
        pool.resize(name, new)?;
    }
    match max_size.filter(|_| !rises) {
        Some(max_size) => pool.set_max_size(name, max_size),
        None => Ok(()),
    }
}
