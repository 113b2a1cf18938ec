//! Format of lines, and protection against peers that flood the log or inject lines.

use tracing::{error, info, warn};

use super::line::MAX_BYTES;
use super::*;

/// Runs `work` with a log to a socket that stands for the journal. Returns the datagrams.
fn with_journal(work: impl FnOnce()) -> Vec<String> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("journal");
    let there = UnixDatagram::bind(&path).expect("bound");
    there.set_nonblocking(true).expect("set");
    let journal = Some(Journal::connect(&path).expect("connected"));
    set(Verbosity::default());
    tracing::subscriber::with_default(Log::new(journal), work);
    let mut all = Vec::new();
    let mut bytes = [0; 8192];
    while let Ok(got) = there.recv(&mut bytes) {
        all.push(String::from_utf8_lossy(&bytes[..got]).into_owned());
    }
    all
}

#[test]
fn an_event_is_one_datagram_with_its_fields() {
    let all = with_journal(|| {
        warn!(target: "sheave::pool", event = "pool_low", pool = "a", free_bytes = 4096u64, "pool '{}' is low", "a");
        error!(target: "sheave::pool", "gone");
        tracing::debug!(target: "sheave::pool", "not at this level");
        warn!(target: "some_library", "not ours");
    });
    assert_eq!(
        all,
        [
            "PRIORITY=4\nSYSLOG_IDENTIFIER=sheave\nMESSAGE=pool 'a' is low\nSHEAVE_EVENT=pool_low\nSHEAVE_POOL=a\n\
             SHEAVE_FREE_BYTES=4096\n",
            "PRIORITY=3\nSYSLOG_IDENTIFIER=sheave\nMESSAGE=gone\n",
        ]
    );
}

#[test]
fn peer_events_are_rate_limited_and_suppressed_ones_counted() {
    let flood = |count: u32| (0..count).for_each(|_| warn!(target: CLIENT, "a client was dropped"));
    // `flood` is one place in the code, so all its calls share a bucket. A datagram socket holds about a dozen; the
    // rest goes to stderr.
    let mut bound = Bound::default();
    let kind = tracing::callsite!(name: "x", kind: tracing::metadata::Kind::EVENT, fields: message);
    let kind = tracing::Callsite::metadata(kind).callsite();
    let begin = Instant::now();
    let told = (0..100_000).filter(|_| bound.ask(kind.clone(), None, begin).is_some()).count();
    assert_eq!(told, BURST as usize);
    assert_eq!(bound.ask(kind.clone(), Some("other"), begin), Some(0), "each export has lines of its own");
    assert_eq!(bound.ask(kind.clone(), None, begin + REST), Some(100_000 - u64::from(BURST)), "how many were left out");
    assert_eq!(bound.ask(kind.clone(), None, begin + REST + Duration::from_millis(1)), None, "one a rest");
    let later = begin + Duration::from_secs(86_400);
    let told = (0..1000).filter(|_| bound.ask(kind.clone(), None, later).is_some()).count();
    assert_eq!(told, BURST as usize, "a long rest gives no more than a burst");
    let all = with_journal(|| flood(1000));
    assert!(!all.is_empty() && all.len() <= BURST as usize, "{}", all.len());
    // Events of the daemon itself are not limited.
    let all = with_journal(|| {
        (0..BURST + 5).for_each(|_| info!(target: "sheave::pool", "opened"));
    });
    assert!(!all.is_empty());
}

#[test]
fn a_peer_cannot_begin_a_line_nor_a_field() {
    let all = with_journal(|| {
        let name = "x\nMESSAGE=root logged in\r\u{1b}[2J";
        warn!(target: CLIENT, export = name, "no export '{name}'");
        warn!(target: CLIENT, "{}", "y".repeat(100_000));
    });
    assert_eq!(all[0].lines().count(), 4, "{}", all[0]);
    assert!(all[0].contains(r"MESSAGE=no export 'x\nMESSAGE=root logged in\r\u{1b}[2J'"), "{}", all[0]);
    assert!(all[1].len() < MAX_BYTES + 100, "{}", all[1].len());
}

#[test]
fn on_stderr_a_line_has_its_grade_and_its_fields() {
    let fields = vec![("event", "pool_low".to_owned()), ("why", "a b".to_owned())];
    let line = Line { message: "pool 'a' is low".into(), fields };
    assert_eq!(line.words(Level::WARN), "warning: pool 'a' is low event=pool_low why=\"a b\"");
    assert_eq!(line.words(Level::INFO), "pool 'a' is low event=pool_low why=\"a b\"");
}

#[test]
fn a_pipe_that_nobody_reads_makes_nobody_wait_and_what_is_missing_is_told() {
    let (mut from, mut to) = std::io::pipe().expect("a pipe");
    let log = Log::new(None);
    // More lines than a pipe holds.
    for number in 0..20_000 {
        log.write_to(&mut to, &format!("line {number}"));
    }
    let mut bytes = vec![0; 1 << 18];
    let got = std::io::Read::read(&mut from, &mut bytes).expect("read");
    let lines = String::from_utf8_lossy(&bytes[..got]).lines().count();
    assert!((100..20_000).contains(&lines), "{lines}");
    // The longest possible line: it is cut between characters, and preceded by the number of dropped lines.
    log.write_to(&mut to, &"\u{20ac}".repeat(AT_ONCE));
    let got = std::io::Read::read(&mut from, &mut bytes).expect("read");
    let told = std::str::from_utf8(&bytes[..got]).expect("whole characters");
    assert!(got <= AT_ONCE && told.ends_with("\u{20ac}...\n"), "{got}");
    let missing = format!("sheave: warning: {} lines are missing here", 20_000 - lines);
    assert!(told.starts_with(&missing), "{}", &told[..200]);
    // A reader that has disconnected is not an error.
    drop(from);
    log.write_to(&mut to, "gone");
}

#[test]
fn levels_and_logs_are_told_by_name() {
    assert_eq!("info".parse(), Ok(Verbosity::default()));
    assert!("off".parse::<Verbosity>().is_ok() && "loud".parse::<Verbosity>().is_err());
    assert_eq!("journald".parse(), Ok(Sink::Journal));
    assert!("syslog".parse::<Sink>().is_err());
}
