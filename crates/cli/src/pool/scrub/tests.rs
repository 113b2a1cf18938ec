//! The report as text.

use sheave_daemon::place::PoolPlace;
use sheave_vol::{Checksum, Finding, FindingKind, Place, ScrubReport};

use super::*;

fn finding() -> Finding {
    let place = Place::new("data").address(Some(1 << 20)).volume(Some("disk".into())).range(Some((8192, 4096)));
    Finding::new(FindingKind::Data, place, "it does not match its checksum")
}

/// A report, filled in by `fill`.
fn report(fill: impl FnOnce(&mut ScrubReport)) -> ScrubReport {
    let mut report = ScrubReport::default();
    fill(&mut report);
    report
}

fn said(report: &ScrubReport) -> String {
    let place: PoolPlace = "p.img".parse().expect("a place");
    words(&ScrubJson::new(&place, report), 1.0)
}

#[test]
fn what_is_wrong_is_told_with_its_places() {
    let report = report(|report| {
        report.findings = vec![finding()];
        report.found = 3;
        report.data_bytes = 1 << 20;
        report.bad_bytes = 12288;
        report.checksum = Checksum::Crc32c;
        report.completed = true;
    });
    let text = said(&report);
    assert!(text.contains("1. data: data at byte 1048576, volume 'disk', bytes 8192 to 12288: it does not match"));
    assert!(text.contains("and 2 more\n") && text.contains("12 KiB bad"), "{text}");
    assert!(text.ends_with("3 things are wrong\n") && !text.contains("no checksums"), "{text}");
}

#[test]
fn a_pool_without_checksums_is_not_called_verified() {
    let report = report(|report| report.completed = true);
    let text = said(&report);
    assert!(text.contains("data cannot be verified") && text.ends_with("clean\n"), "{text}");
    let ended = said(&ScrubReport::default());
    assert!(ended.ends_with("ended before its end\n"), "{ended}");
}
