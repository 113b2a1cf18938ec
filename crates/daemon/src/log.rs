//! What operators are told while the daemon runs: events with fields, a line each, in the journal or on stderr.
//!
//! * L1. The path of an I/O tells nothing. What is told here is what somebody would act on, or wants to find again.
//! * L2. What peers bring about (the targets [`CLIENT`] and [`CONTROL`]) is bounded: [`BURST`] events of a kind at
//!   once, then one each [`REST`]. How many were left out is told with the next one, so that nothing is lost unseen.
//! * L3. A line is bounded, and no byte of a peer can begin another: control characters are written as escapes.
//! * L4. Nobody listening is no reason to stop or to wait: the journal's socket never blocks, and what it does not take
//!   goes to stderr. A stderr without room (a pipe that nobody reads, a terminal that is held) gets nothing; the next
//!   line that it takes says how many are missing.
//!
//! A subscriber of its own, because spans, filters and formats for several programs are not wanted, and L2 is. Called
//! by the macros of `tracing`.

mod bound;
mod journal;
mod line;

use std::io::Write;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sheave_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use self::bound::Bound;
pub use self::bound::{BURST, REST};
use self::journal::Journal;
use self::line::Line;
use crate::failure::Failure;

/// Events that clients of exports bring about.
pub const CLIENT: &str = "client";
/// Events that peers of the control socket bring about.
pub const CONTROL: &str = "control";

/// Bytes of a line on stderr, at most. A pipe that has room at all takes as many without waiting.
const AT_ONCE: usize = 4096;

/// How much is told.
static LEVEL: AtomicU8 = AtomicU8::new(3);

/// The levels, the quietest first; their place is what [`LEVEL`] has.
pub const LEVELS: [&str; 5] = ["off", "error", "warn", "info", "debug"];

/// A level, as it is written.
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

/// Where lines go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sink {
    /// To the journal if it has stderr, as under systemd, else to stderr.
    #[default]
    Auto,
    /// To the journal.
    Journal,
    /// To stderr.
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

/// Begins to tell; once a process, later calls set the level alone.
///
/// # Errors
///
/// When there is no journal and it was asked for.
pub fn start(level: Verbosity, sink: Sink) -> Result<(), Failure> {
    let journal = journal_of(sink)?;
    set(level);
    // Somebody who has begun before goes on.
    let _ = tracing::subscriber::set_global_default(Log::new(journal));
    Ok(())
}

/// Whether it can be told there.
///
/// # Errors
///
/// As of [`start`].
pub(crate) fn can(sink: Sink) -> Result<(), Failure> {
    journal_of(sink).map(drop)
}

fn journal_of(sink: Sink) -> Result<Option<Journal>, Failure> {
    Ok(match sink {
        Sink::Stderr => None,
        Sink::Auto if !journal::has_stderr() => None,
        Sink::Auto => Journal::connect(journal::SOCKET).ok(),
        Sink::Journal => Some(Journal::connect(journal::SOCKET).map_err(|error| {
            Failure::run(format!("the journal does not answer at {}: {error}", journal::SOCKET))
                .fix("start systemd-journald, or set log_to = \"stderr\"")
        })?),
    })
}

/// From now on this much is told.
pub fn set(level: Verbosity) {
    // Relaxed: a number, that carries nothing but itself.
    LEVEL.store(level.0, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
}

struct Log {
    journal: Option<Journal>,
    bound: Mutex<Bound>,
    /// Lines that stderr had no room for since it took one.
    missing: AtomicU64,
}

/// The place of a level in [`LEVELS`].
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
        let mut left_out = 0;
        if [CLIENT, CONTROL].contains(&metadata.target()) {
            match self.bound.lock().unwrap_or_else(PoisonError::into_inner).ask(metadata.callsite(), Instant::now()) {
                Some(missed) => left_out = missed,
                None => return,
            }
        }
        let mut line = Line::default();
        event.record(&mut line);
        if left_out > 0 {
            line.fields.push(("left_out", left_out.to_string()));
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

    /// Writes a line to where it may have no room (L4). Who calls this has the lock on it: two threads that see room
    /// for one line do not both write.
    fn write_to(&self, to: &mut (impl Write + AsFd), words: &str) {
        let mut fds = [PollFd::new(&*to, PollFlags::OUT)];
        let no_time = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A reader that is gone is told by the write. A call that was interrupted is as good as none.
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
        // One write: what others write to the same place does not come between.
        let _ = to.write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests;
