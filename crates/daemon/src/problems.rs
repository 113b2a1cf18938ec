//! Problems, and the health that they make up.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::api::types as t;

/// Age beyond which a health is reported as stale (H4).
const STALE: Duration = Duration::from_secs(5);
/// Maximum number of problems in a report; the most severe come first.
pub(crate) const MOST_PROBLEMS: usize = 256;

/// Severity of a problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Severity {
    #[default]
    Ok,
    /// Nothing fails yet, but something will unless somebody acts.
    Warning,
    /// Something is not served, fails, or was lost.
    Critical,
}

impl Severity {
    /// Returns `ok`, `warning` or `critical`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Warning => "warning",
            Severity::Critical => "critical",
        }
    }
}

/// Subject of a problem.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum About {
    Server,
    Pool(String),
    Export(String),
    /// A certificate file.
    File(String),
}

impl About {
    /// Returns `server`, `pool`, `export` or `file`, and the name.
    pub(crate) fn words(&self) -> (&'static str, &str) {
        match self {
            About::Server => ("server", ""),
            About::Pool(name) => ("pool", name),
            About::Export(name) => ("export", name),
            About::File(path) => ("file", path),
        }
    }
}

/// Kinds of problems. `docs/operate/pools.md` explains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    PoolFailed,
    PoolLost,
    PoolDegraded,
    PoolFull,
    PoolLow,
    HostFull,
    HostLow,
    MetadataLow,
    DeviceFaults,
    DeviceSilent,
    VolumesDamaged,
    DeletesOnly,
    DataLost,
    BadBlocks,
    BadCopies,
    DiscardFailed,
    ExportFailed,
    ExportWaits,
    FlushFailed,
    CertificateExpires,
    CertificateExpired,
    ReloadFailed,
    RestartNeeded,
    HealthStale,
}

impl Kind {
    /// Returns the name of the kind, and its severity.
    pub(crate) fn words(self) -> (&'static str, Severity) {
        use Severity::{Critical, Warning};
        match self {
            Kind::PoolFailed => ("pool_failed", Critical),
            Kind::PoolLost => ("pool_lost", Critical),
            Kind::PoolDegraded => ("pool_degraded", Critical),
            Kind::PoolFull => ("pool_full", Critical),
            Kind::PoolLow => ("pool_low", Warning),
            Kind::HostFull => ("host_full", Critical),
            Kind::HostLow => ("host_low", Warning),
            Kind::MetadataLow => ("metadata_low", Warning),
            Kind::DeviceFaults => ("device_faults", Critical),
            Kind::DeviceSilent => ("device_silent", Critical),
            Kind::VolumesDamaged => ("volumes_damaged", Critical),
            Kind::DeletesOnly => ("deletes_only", Critical),
            Kind::DataLost => ("data_lost", Critical),
            Kind::BadBlocks => ("bad_blocks", Critical),
            Kind::BadCopies => ("bad_copies", Warning),
            Kind::DiscardFailed => ("discard_failed", Warning),
            Kind::ExportFailed => ("export_failed", Critical),
            Kind::ExportWaits => ("export_waits", Warning),
            Kind::FlushFailed => ("flush_failed", Critical),
            Kind::CertificateExpires => ("certificate_expires", Warning),
            Kind::CertificateExpired => ("certificate_expired", Critical),
            Kind::ReloadFailed => ("reload_failed", Warning),
            Kind::RestartNeeded => ("restart_needed", Warning),
            Kind::HealthStale => ("health_stale", Critical),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.words().0
    }

    pub(crate) fn severity(self) -> Severity {
        self.words().1
    }
}

/// A current problem (H1, H2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    pub kind: Kind,
    pub about: About,
    pub cause: String,
    pub fix: String,
    pub since: Instant,
}

impl Problem {
    /// Returns what identifies the problem (H1).
    pub(crate) fn key(&self) -> (Kind, &About) {
        (self.kind, &self.about)
    }

    pub(crate) fn in_a_line(&self) -> String {
        format!("{}. {}", self.cause, self.fix)
    }

    fn row(&self) -> t::Problem {
        let (kind, severity) = self.kind.words();
        let (about, name) = self.about.words();
        t::Problem {
            kind: kind.into(),
            severity: severity.name().into(),
            about: about.into(),
            name: name.into(),
            cause: self.cause.clone(),
            fix: self.fix.clone(),
            since_seconds: self.since.elapsed().as_secs(),
        }
    }
}

/// Result of a check, ordered by descending severity.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    pub problems: Vec<Problem>,
    looked: Instant,
}

impl Health {
    /// The health that consists of these problems, which were found just now.
    pub(crate) fn new(mut problems: Vec<Problem>) -> Health {
        problems.sort_by(|a, b| {
            let key =
                |problem: &Problem| (std::cmp::Reverse(problem.kind.severity()), problem.about.clone(), problem.kind);
            key(a).cmp(&key(b))
        });
        Health { problems, looked: Instant::now() }
    }

    /// Returns this health; if it is stale, a copy with that problem added (H4).
    pub(crate) fn now(self: Arc<Health>) -> Arc<Health> {
        let age = self.looked.elapsed();
        if age < STALE {
            return self;
        }
        let stale = Problem {
            kind: Kind::HealthStale,
            about: About::Server,
            cause: format!(
                "the thread that looks for problems has waited for {} s for a pool or file system",
                age.as_secs()
            ),
            fix: "See which storage does not answer: dmesg, and the server that has it".into(),
            since: self.looked,
        };
        let looked = self.looked;
        let mut health = Health::new(self.problems.iter().cloned().chain([stale]).collect());
        health.looked = looked;
        Arc::new(health)
    }

    /// Returns the highest severity among the problems.
    pub(crate) fn severity(&self) -> Severity {
        self.problems.iter().map(|problem| problem.kind.severity()).max().unwrap_or_default()
    }

    /// The health as a message of the control socket.
    pub(crate) fn told(&self) -> t::Health {
        t::Health {
            severity: self.severity().name().into(),
            problems: self.problems.iter().take(MOST_PROBLEMS).map(Problem::row).collect(),
            problems_total: self.problems.len() as u64,
        }
    }

    /// Describes the number of exports and the worst problem, in a line.
    pub(crate) fn with(&self, exports: usize) -> String {
        let serving = format!("serving {exports} exports");
        let Some(worst) = self.problems.first() else { return serving };
        let more = match self.problems.len() {
            1 => String::new(),
            n => format!(" (and {} more: sheave status)", n - 1),
        };
        format!("{serving}; {}: {}{more}", worst.kind.severity().name(), worst.cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/operate/pools.md");

    const KINDS: [Kind; 24] = [
        Kind::PoolFailed,
        Kind::PoolLost,
        Kind::PoolDegraded,
        Kind::PoolFull,
        Kind::PoolLow,
        Kind::HostFull,
        Kind::HostLow,
        Kind::MetadataLow,
        Kind::DeviceFaults,
        Kind::DeviceSilent,
        Kind::VolumesDamaged,
        Kind::DeletesOnly,
        Kind::DataLost,
        Kind::BadBlocks,
        Kind::BadCopies,
        Kind::DiscardFailed,
        Kind::ExportFailed,
        Kind::ExportWaits,
        Kind::FlushFailed,
        Kind::CertificateExpires,
        Kind::CertificateExpired,
        Kind::ReloadFailed,
        Kind::RestartNeeded,
        Kind::HealthStale,
    ];

    fn problem(kind: Kind) -> Problem {
        let about = About::Pool("a".into());
        Problem { kind, about, cause: "cause".into(), fix: "Fix".into(), since: Instant::now() }
    }

    /// `docs/operate/pools.md` has a row for each kind, with its severity.
    #[test]
    fn the_page_lists_every_kind() {
        for (at, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(at, kind as usize, "the list of this test lacks a kind");
            let (name, severity) = kind.words();
            let row = format!("| `{name}` | {} |", severity.name());
            assert!(PAGE.contains(&row), "docs/operate/pools.md lacks: {row}");
        }
        assert_eq!(PAGE.matches(" | critical | ").count() + PAGE.matches(" | warning | ").count(), KINDS.len());
    }

    #[test]
    fn the_worst_problem_is_first_and_is_the_health() {
        let health = Health::new(vec![problem(Kind::PoolLow), problem(Kind::HostFull), problem(Kind::BadCopies)]);
        assert_eq!(health.problems[0].kind, Kind::HostFull);
        assert_eq!((health.severity(), Health::new(Vec::new()).severity()), (Severity::Critical, Severity::Ok));
        assert_eq!(health.with(3), "serving 3 exports; critical: cause (and 2 more: sheave status)");
        assert_eq!(Health::new(vec![problem(Kind::PoolLow)]).with(1), "serving 1 exports; warning: cause");
        assert_eq!(Health::new(Vec::new()).with(2), "serving 2 exports");
        let told = health.told();
        assert_eq!((told.severity.as_str(), told.problems_total, told.problems.len()), ("critical", 3, 3));
    }

    /// H4: a stale health reports that, in addition to the problems that were known.
    #[test]
    fn an_old_health_is_told_to_be_old() {
        let mut health = Health::new(vec![problem(Kind::PoolLow)]);
        assert_eq!(Arc::new(health.clone()).now().problems.len(), 1);
        health.looked = health.looked.checked_sub(STALE).expect("the machine is up for longer");
        let now = Arc::new(health).now();
        let kinds: Vec<_> = now.problems.iter().map(|problem| problem.kind).collect();
        assert_eq!(kinds, [Kind::HealthStale, Kind::PoolLow]);
    }

    /// However many problems there are, the list in a reply is bounded, and the reply has their total number.
    #[test]
    fn a_reply_lists_a_bounded_number_of_problems() {
        let health = Health::new((0..1000).map(|_| problem(Kind::ExportFailed)).collect());
        let told = health.told();
        assert_eq!((told.problems.len(), told.problems_total), (MOST_PROBLEMS, 1000));
    }
}
