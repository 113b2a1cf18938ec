//! The log of the daemon: events with fields, one line each, in the journal or on stderr.
//!
//! * L1. The I/O path logs nothing. Events are conditions that somebody would act on or search for later.
//! * L2. Events that peers can cause (the targets [`CLIENT`] and [`CONTROL`]) are rate-limited: a burst of [`BURST`] of
//!   a kind, then one every [`REST`]. The next event of the kind has the number of those suppressed.
//! * L3. Lines have a maximum length, and a peer cannot start a new line, since control characters are escaped.
//! * L4. Logging never blocks or fails. The socket of the journal is non-blocking, and what it does not accept goes to
//!   stderr. If stderr has no room (an unread pipe, a stopped terminal) the line is dropped; the next line that fits
//!   has the number of dropped ones.
//!
//! A subscriber of its own, because L2 is needed, and spans, filters and several formats are not. Called by the macros
//! of `tracing`.

mod line;

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sheave_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tracing::callsite::Identifier;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use self::line::Line;
use crate::failure::Failure;

/// Target of events that clients of exports cause.
pub const CLIENT: &str = "client";
/// Target of events that peers of the control socket cause.
pub const CONTROL: &str = "control";

/// Tokens of a full bucket.
pub const BURST: u32 = 20;
/// Interval after which a token is added.
pub const REST: Duration = Duration::from_secs(5);

/// Socket of the journal of systemd.
const JOURNAL: &str = "/run/systemd/journal/socket";

/// Maximum length of a line on stderr. A pipe that polls as writable takes this much without blocking.
const AT_ONCE: usize = 4096;

/// Current level, as an index into [`LEVELS`].
static LEVEL: AtomicU8 = AtomicU8::new(3);

/// Names of the levels, in ascending verbosity.
pub const LEVELS: [&str; 5] = ["off", "error", "warn", "info", "debug"];

/// A log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verbosity(u8);

impl Default for Verbosity {
    fn default() -> Self {
        Verbosity(3)
    }
}

impl std::str::FromStr for Verbosity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = LEVELS.iter().position(|level| *level == text);
        found
            .map(|at| Verbosity(at as u8))
            .ok_or_else(|| format!("'{text}' is no level; there are {}", LEVELS.join(", ")))
    }
}

impl std::fmt::Display for Verbosity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(LEVELS[usize::from(self.0)])
    }
}

/// Destination of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sink {
    /// The journal if stderr is connected to it, as under systemd; otherwise stderr.
    #[default]
    Auto,
    Journal,
    Stderr,
}

impl std::str::FromStr for Sink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Sink::Auto),
            "journald" => Ok(Sink::Journal),
            "stderr" => Ok(Sink::Stderr),
            _ => Err(format!("'{text}' is no log; there are auto, journald, stderr")),
        }
    }
}

/// Installs the logger. Later calls in the process only set the level.
///
/// # Errors
///
/// The journal was asked for and is not reachable.
pub fn start(level: Verbosity, sink: Sink) -> Result<(), Failure> {
    let journal = journal_of(sink)?;
    set(level);
    // Fails if a subscriber is already installed, which stays.
    let _ = tracing::subscriber::set_global_default(Log::new(journal));
    Ok(())
}

/// Checks that the destination is reachable.
///
/// # Errors
///
/// The errors of [`start`].
pub(crate) fn can(sink: Sink) -> Result<(), Failure> {
    journal_of(sink).map(drop)
}

fn journal_of(sink: Sink) -> Result<Option<Journal>, Failure> {
    Ok(match sink {
        Sink::Stderr => None,
        Sink::Auto if !is_stderr_the_journal() => None,
        Sink::Auto => Journal::connect(JOURNAL).ok(),
        Sink::Journal => Some(Journal::connect(JOURNAL).map_err(|error| {
            Failure::run(format!("the journal does not answer at {}: {error}", JOURNAL))
                .fix("start systemd-journald, or set log_to = \"stderr\"")
        })?),
    })
}

/// Sets the level.
pub fn set(level: Verbosity) {
    // Relaxed: a number, that carries nothing but itself.
    LEVEL.store(level.0, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
}

struct Log {
    journal: Option<Journal>,
    bound: Mutex<Bound>,
    /// Lines dropped since the last one that stderr accepted.
    missing: AtomicU64,
}

/// Index of a level in [`LEVELS`].
fn place(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        _ => 4,
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Relaxed: as in `set`.
        let ours = metadata.target().starts_with("sheave") || [CLIENT, CONTROL].contains(&metadata.target());
        ours && metadata.is_event() && place(metadata.level()) <= LEVEL.load(Ordering::Relaxed)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut line = Line::default();
        event.record(&mut line);
        if [CLIENT, CONTROL].contains(&metadata.target()) {
            let export = line.fields.iter().find(|(name, _)| *name == "export").map(|(_, export)| export.as_str());
            let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
            match bound.ask(metadata.callsite(), export, Instant::now()) {
                Some(0) => {}
                Some(left_out) => line.fields.push(("left_out", left_out.to_string())),
                None => return,
            }
        }
        self.write(*metadata.level(), &line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Log {
    fn new(journal: Option<Journal>) -> Log {
        Log { journal, bound: Mutex::new(Bound::default()), missing: AtomicU64::new(0) }
    }

    fn write(&self, level: Level, line: &Line) {
        let written = self.journal.as_ref().is_some_and(|journal| journal.send(place(&level), line).is_ok());
        if !written {
            self.write_to(&mut std::io::stderr().lock(), &line.words(level));
        }
    }

    /// Writes a line to a file that may have no room (L4). The caller holds the lock of that file, so that two threads
    /// that both see room for one line do not both write.
    fn write_to(&self, to: &mut (impl Write + AsFd), words: &str) {
        let mut fds = [PollFd::new(&*to, PollFlags::OUT)];
        let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If the reader is gone, the write fails. An interrupted poll counts as no room.
        if !poll(&mut fds, Some(&no_time)).is_ok_and(|ready| ready > 0) {
            // Relaxed, here and below: a number, that carries nothing but itself.
            self.missing.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut text = match self.missing.swap(0, Ordering::Relaxed) {
            0 => String::new(),
            missing => format!("sheave: warning: {missing} lines are missing here: there was no room for them\n"),
        };
        text.push_str("sheave: ");
        text.push_str(words);
        if text.len() >= AT_ONCE {
            text.truncate(text.floor_char_boundary(AT_ONCE - 4));
            text.push_str("...");
        }
        text.push('\n');
        // A single write, so that output of other processes does not get in between.
        let _ = to.write_all(text.as_bytes());
    }
}

/// Tokens left, and events suppressed.
#[derive(Debug)]
struct Bucket {
    left: u32,
    since: Instant,
    left_out: u64,
}

/// Rate limit of events (L2): a token bucket for each place in the code that logs one and each export, so that faults
/// of one guest hide none of another's. Exports beyond [`MOST_BUCKETS`] share the bucket without an export.
#[derive(Debug, Default)]
struct Bound(HashMap<(Identifier, Option<String>), Bucket>);

/// Most token buckets with an export.
const MOST_BUCKETS: usize = 4096;

impl Bound {
    /// Takes a token. Returns the number of events suppressed since the last one, or `None` if this one is to be
    /// suppressed.
    fn ask(&mut self, kind: Identifier, export: Option<&str>, now: Instant) -> Option<u64> {
        let mut key = (kind, export.map(str::to_owned));
        if self.0.len() >= MOST_BUCKETS && !self.0.contains_key(&key) {
            key.1 = None;
        }
        let bucket = self.0.entry(key).or_insert(Bucket { left: BURST, since: now, left_out: 0 });
        let rests = (now.saturating_duration_since(bucket.since).as_millis() / REST.as_millis()) as u32;
        if rests > 0 {
            bucket.left = bucket.left.saturating_add(rests).min(BURST);
            bucket.since = now;
        }
        if bucket.left == 0 {
            bucket.left_out += 1;
            return None;
        }
        bucket.left -= 1;
        Some(std::mem::take(&mut bucket.left_out))
    }
}

/// A connection to the journal of systemd: one datagram for each event, in its "Native Journal Protocol", which is
/// `NAME=value` and a newline, for values without newlines, which ours never have (L3).
struct Journal(UnixDatagram);

/// Returns true if stderr is connected to the journal, according to `$JOURNAL_STREAM`.
fn is_stderr_the_journal() -> bool {
    let Ok(told) = std::env::var("JOURNAL_STREAM") else { return false };
    let stderr = std::io::stderr();
    rustix::fs::fstat(stderr.as_fd()).is_ok_and(|stat| told == format!("{}:{}", stat.st_dev, stat.st_ino))
}

impl Journal {
    fn connect(path: impl AsRef<Path>) -> io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_nonblocking(true)?;
        Ok(Journal(socket))
    }

    /// Sends an event; `place` is the index of its level.
    fn send(&self, place: u8, line: &Line) -> io::Result<()> {
        self.0.send(datagram(place, line).as_bytes()).map(drop)
    }
}

/// Formats an event. Field names of the journal are upper-case; ours have the prefix `SHEAVE_`.
fn datagram(place: u8, line: &Line) -> String {
    // Priorities of syslog: 3 is an error, 4 a warning, 6 information, 7 debugging.
    let priority = [3, 3, 4, 6, 7][usize::from(place.min(4))];
    let mut text = format!("PRIORITY={priority}\nSYSLOG_IDENTIFIER=sheave\nMESSAGE={}\n", line.message);
    for (name, value) in &line.fields {
        // Field names of `tracing` consist of letters, `_` and dots; the journal does not allow dots.
        text += &format!("SHEAVE_{}={value}\n", name.to_ascii_uppercase().replace('.', "_"));
    }
    text
}

#[cfg(test)]
mod tests;
