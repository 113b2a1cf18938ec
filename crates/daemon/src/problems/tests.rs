//! Order of problems, staleness, and the page that lists all kinds.

use super::*;

const PAGE: &str = include_str!("../../../../docs/operate/pools.md");

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
