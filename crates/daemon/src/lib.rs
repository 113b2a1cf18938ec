//! The daemon behind `sheave serve`: opens pools, serves their volumes and other devices over NBD and by vhost-user,
//! and is controlled by a socket.
//!
//! | module | holds |
//! |---|---|
//! | [`run`] | start and end of the process, in order |
//! | [`config`] | the configuration, parsed into a plan |
//! | [`check`] | checks of a configuration without serving it |
//! | [`confine`] | confinement to the part of the file system that the daemon needs |
//! | [`daemon`] | pools, exports and the server while it runs; late devices; takeover of pools of hosts that died |
//! | [`backend`], [`contexts`] | the data behind an export, and its metadata contexts |
//! | [`vhost_user`] | sockets where virtual machines attach exports |
//! | [`control`] | the control socket |
//! | [`slow`] | slow I/Os, for the control socket |
//! | [`trace`] | traces of requests, and their export formats |
//! | [`statistics`] | counters, for the control socket |
//! | [`device_statistics`], [`busy`] | counters of the devices under pools and exports, and their busy times |
//! | [`service`] | the control methods |
//! | [`copies`] | control methods that run long: import, export, scrub, trim, watch |
//! | [`history`] | the last hour, for the status page |
//! | [`http`] | an HTTP server for the pages |
//! | [`metrics`] | the metrics page, for monitoring |
//! | [`web`] | the status page |
//! | [`tls`] | addresses with TLS, and their certificates |
//! | [`log`] | the log |
//! | [`health`] | current problems, for the log, the pages and systemd |
//! | [`retries`] | retries of pools and exports that failed to open |
//! | [`upgrade`] | takeover of a running daemon by a new process |
//! | [`ticker`] | a thread with a periodic task |
//! | [`systemd`] | sockets, readiness and watchdog of systemd |
//! | [`captive`] | the command of `--run`, and its socket |
//!
//! Commands share the following modules, with which they work on a pool themselves when no daemon holds it:
//!
//! | module | holds |
//! |---|---|
//! | [`api`] | messages of the control socket |
//! | [`paths`] | the runtime directory: control sockets, recent changes of pools |
//! | [`devices`] | the kinds of devices that specs open |
//! | [`look`] | search for members of pools in directories and among block devices |
//! | [`place`] | names of pools and volumes, as written on a command line or in the configuration |
//! | [`copy`] | copies of images into volumes and out of them |
//! | [`delete`] | deletion of several volumes at once |
//! | [`together`] | snapshots of several volumes at one moment |
//! | [`shapes`] | JSON of pools, volumes and reports |
//! | [`failure`] | failures with cause and fix |
//! | [`value`] | parsers of single values |

pub mod api;
mod backend;
mod busy;
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
mod device_statistics;
pub mod devices;
pub mod failure;
mod health;
mod history;
mod http;
pub mod log;
pub mod look;
mod metrics;
pub mod paths;
pub mod place;
mod problems;
mod retries;
mod rights;
pub mod run;
mod service;
pub mod shapes;
mod slow;
mod statistics;
mod systemd;
mod ticker;
pub mod tls;
pub mod together;
pub mod trace;
pub mod upgrade;
pub mod value;
pub mod vhost_user;
mod web;

use sheave_vol::{Pool, PoolError, VolumeInfo};

/// Changes the size of a volume and its maximum size. A larger maximum is set first, a smaller one last, so that the
/// size never exceeds it.
///
/// # Errors
///
/// The pool refuses one of the changes.
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
