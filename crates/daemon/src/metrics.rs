//! `/metrics`: counters and gauges of the daemon over HTTP, as OpenMetrics text for who asks for that, else in the
//! older text format of Prometheus.
//!
//! A page that is asked for is made then, from what reports tell; nothing is counted for it. Whoever reaches the
//! address can read it. A peer has two seconds for its question and the answer, and there are few at a time.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use sheave_base::sync::atomic::{AtomicUsize, Ordering};
use sheave_serve::{ExportStatus, IoCounts};
use sheave_vol::SpaceState;

use crate::daemon::{Daemon, Held};
use crate::failure::Failure;

/// Bytes of a question.
const MAX_QUESTION: usize = 8 << 10;
/// How long a peer may take.
const PEER: Duration = Duration::from_secs(2);
/// Peers at a time.
const MAX_PEERS: usize = 8;

/// The server of the page.
pub struct Metrics {
    thread: JoinHandle<()>,
    /// Closed to end it.
    ends: UnixStream,
}

impl Metrics {
    /// Begins.
    pub fn start(daemon: &Arc<Daemon>, address: &str) -> Result<Metrics, Failure> {
        let failed = |error: io::Error| {
            Failure::run(format!("cannot serve metrics at {address}: {error}"))
                .fix("choose an address that this machine has, and a free port, such as 127.0.0.1:9100")
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let (ends, told) = UnixStream::pair().map_err(failed)?;
        let daemon = daemon.clone();
        let thread = std::thread::spawn(move || serve(&daemon, &listener, &told));
        Ok(Metrics { thread, ends })
    }

    /// Ends it, so that nobody but the caller has the daemon.
    pub fn stop(self) {
        drop(self.ends);
        // A thread that has panicked has said so.
        let _ = self.thread.join();
    }
}

fn serve(daemon: &Daemon, listener: &TcpListener, told: &UnixStream) {
    let peers = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        loop {
            let mut polled = [PollFd::new(listener, PollFlags::IN), PollFd::new(told, PollFlags::IN)];
            // A failure is looked for by the accept below.
            let _ = rustix::event::poll(&mut polled, None);
            if !polled[1].revents().is_empty() {
                return;
            }
            match listener.accept() {
                // Relaxed: a number, that only this thread raises.
                Ok((stream, _)) if peers.load(Ordering::Relaxed) < MAX_PEERS => {
                    peers.fetch_add(1, Ordering::Relaxed);
                    let peers = &peers;
                    scope.spawn(move || {
                        // Who breaks off has what it wanted.
                        let _ = answer(daemon, stream);
                        peers.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    });
}

fn answer(daemon: &Daemon, mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    let until = Instant::now() + PEER;
    let mut question = Vec::new();
    while !question.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || question.len() > MAX_QUESTION {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            got => question.extend_from_slice(&bytes[..got]),
        }
    }
    let is_ours = question.starts_with(b"GET /metrics ") || question.starts_with(b"GET /metrics?");
    let head = String::from_utf8_lossy(&question).to_ascii_lowercase();
    let mut lines = head.lines();
    let is_open = lines.any(|line| line.starts_with("accept:") && line.contains("application/openmetrics-text"));
    let (status, page) =
        if is_ours { ("200 OK", page(daemon, is_open)) } else { ("404 Not Found", "see /metrics\n".into()) };
    let kind = match (is_ours, is_open) {
        (true, true) => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        (true, false) => "text/plain; version=0.0.4; charset=utf-8",
        (false, _) => "text/plain",
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        page.len()
    );
    stream.set_write_timeout(Some(PEER))?;
    stream.write_all(&[head.as_bytes(), page.as_bytes()].concat())
}

/// A page that is being written.
struct Page {
    text: String,
    /// OpenMetrics, where a family of counters has another name than its values.
    is_open: bool,
}

impl Page {
    /// A family of values; each has the label and the value that it is told.
    fn family(&mut self, name: &str, kind: &str, help: &str, label: &str, values: &[(String, u64)]) {
        // Writing to a string never fails.
        let suffix = if kind == "counter" { "_total" } else { "" };
        let family = if self.is_open { name.to_owned() } else { format!("{name}{suffix}") };
        let _ = write!(self.text, "# TYPE {family} {kind}\n# HELP {family} {help}\n");
        for (of, value) in values {
            let of = of.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let labels = if label.is_empty() { String::new() } else { format!("{{{label}=\"{of}\"}}") };
            let _ = writeln!(self.text, "{name}{suffix}{labels} {value}");
        }
    }
}

fn page(daemon: &Daemon, is_open: bool) -> String {
    let mut page = Page { text: String::new(), is_open };
    let version = (env!("CARGO_PKG_VERSION").to_owned(), 1);
    page.family("sheave_version", "gauge", "The version of the daemon, as a label.", "version", &[version]);
    let uptime = (String::new(), daemon.since().elapsed().as_secs());
    page.family("sheave_uptime_seconds", "gauge", "Seconds since it began.", "", &[uptime]);
    let clients = (String::new(), daemon.server.clients().len() as u64);
    page.family("sheave_clients", "gauge", "Connected clients.", "", &[clients]);
    let rows = daemon.rows();
    let served = daemon.server.exports();
    let up = rows.iter().map(|row| (row.plan.name.clone(), u64::from(row.failed.is_none()))).collect::<Vec<_>>();
    page.family("sheave_export_up", "gauge", "Whether an export is served.", "export", &up);
    let of = |value: fn(&ExportStatus) -> u64| {
        served.iter().map(|export| (export.name.clone(), value(export))).collect::<Vec<_>>()
    };
    let clients = of(|export| export.clients.into());
    page.family("sheave_export_clients", "gauge", "Clients that have an export.", "export", &clients);
    page.family("sheave_export_size_bytes", "gauge", "Bytes of an export.", "export", &of(|export| export.size_bytes));
    requests(&mut page, &served);
    pools(&mut page, &daemon.pools());
    page.text + if is_open { "# EOF\n" } else { "" }
}

/// What clients have had done, since each export is served.
fn requests(page: &mut Page, served: &[ExportStatus]) {
    type Value = fn(&IoCounts) -> u64;
    let families: [(&str, &str, Value); 11] = [
        ("sheave_export_reads", "Reads that were answered.", |counts| counts.reads),
        ("sheave_export_read_bytes", "Bytes that were read.", |counts| counts.read_bytes),
        ("sheave_export_writes", "Writes that were answered.", |counts| counts.writes),
        ("sheave_export_written_bytes", "Bytes that were written.", |counts| counts.written_bytes),
        ("sheave_export_flushes", "Flushes that were answered.", |counts| counts.flushes),
        ("sheave_export_trims", "Trims that were answered.", |counts| counts.trims),
        ("sheave_export_trimmed_bytes", "Bytes that were trimmed.", |counts| counts.trimmed_bytes),
        ("sheave_export_zeroes", "Requests to zero a range that were answered.", |counts| counts.zeroes),
        ("sheave_export_zeroed_bytes", "Bytes that were zeroed.", |counts| counts.zeroed_bytes),
        ("sheave_export_other_requests", "Questions for a map, and hints to cache.", |counts| counts.others),
        ("sheave_export_failed_requests", "Requests that were answered with an error.", |counts| counts.errors),
    ];
    for (name, help, value) in families {
        let values: Vec<_> = served.iter().map(|export| (export.name.clone(), value(&export.counts))).collect();
        page.family(name, "counter", help, "export", &values);
    }
}

fn pools(page: &mut Page, pools: &[Arc<Held>]) {
    let up: Vec<_> = pools.iter().map(|held| (held.plan.name.clone(), u64::from(held.failed().is_none()))).collect();
    page.family("sheave_pool_up", "gauge", "Whether a pool is open.", "pool", &up);
    let open = pools.iter().filter_map(|held| Some((held.plan.name.clone(), held.pool().ok()?.info())));
    let infos: Vec<_> = open.collect();
    type Value = fn(&sheave_vol::PoolInfo) -> u64;
    let families: [(&str, &str, &str, Value); 11] = [
        ("sheave_pool_size_bytes", "gauge", "Bytes of a pool.", |info| info.size_bytes),
        ("sheave_pool_data_bytes", "gauge", "Bytes of volumes' data.", |info| info.data_bytes),
        ("sheave_pool_metadata_bytes", "gauge", "Bytes of metadata.", |info| info.metadata_bytes),
        ("sheave_pool_free_bytes", "gauge", "Bytes that volumes may still take.", |info| info.free_bytes),
        ("sheave_pool_pending_bytes", "gauge", "Bytes that come free with the next commit.", |info| info.pending_bytes),
        ("sheave_pool_memory_bytes", "gauge", "Memory of its maps.", |info| info.memory_bytes),
        ("sheave_pool_volumes", "gauge", "Volumes and snapshots.", |info| info.volumes.into()),
        ("sheave_pool_low", "gauge", "Its space is low, or used up.", |info| u64::from(info.state != SpaceState::Ok)),
        ("sheave_pool_full", "gauge", "Its space is used up.", |info| u64::from(info.state == SpaceState::Full)),
        ("sheave_pool_degraded", "gauge", "A flush has failed.", |info| u64::from(info.degraded.is_some())),
        ("sheave_pool_checksum_errors", "counter", "Blocks that did not match.", |info| info.checksum_errors),
    ];
    for (name, kind, help, value) in families {
        let values: Vec<_> = infos.iter().map(|(pool, info)| (pool.clone(), value(info))).collect();
        page.family(name, kind, help, "pool", &values);
    }
}
