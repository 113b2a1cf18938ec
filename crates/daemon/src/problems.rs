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
mod tests;
