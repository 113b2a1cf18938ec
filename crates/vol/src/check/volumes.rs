//! Checks the volumes in the table against each other and against their maps.
//!
//! Owns these findings, and mends the model as a repair would.

use std::collections::BTreeMap;

use super::model::Model;
use crate::finding::{Finding, FindingKind, Place};
use crate::format::MAX_NAME;

/// Checks all volumes. Leaves the model as a repair would.
pub(super) fn settle(model: &mut Model) -> Vec<Finding> {
    let mut findings = Vec::new();
    names(model, &mut findings);
    kin(model, &mut findings);
    sizes(model, &mut findings);
    let highest = model.volumes.keys().next_back().copied().unwrap_or(0);
    if model.next_volume <= highest {
        let means = format!(
            "the number of the next volume is {}, and there is a volume {highest}: a number would be given twice",
            model.next_volume
        );
        findings.push(finding(FindingKind::Totals, None, means, "Set it above all numbers in use"));
        model.next_volume = highest.saturating_add(1);
    }
    findings
}

/// Replaces the volumes in findings about pages of maps. Since the checkpoint, the journal may have renamed a volume or
/// given its map to others, so the findings must name the volumes that need the pages now. Each such volume is named
/// for at least one page, and each page with at least one volume. There are no more findings than that: a journal with
/// many copies of a map that has many such pages could otherwise make the report as long as the product of both
/// numbers. A finding about a page that no volume needs any more stays as it is.
pub(super) fn name_anew(findings: Vec<Finding>, model: &Model) -> Vec<Finding> {
    let mut needed: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for vol in model.volumes.values() {
        for (at, number) in vol.map.lost.iter().enumerate() {
            let names = needed.entry(*number).or_default();
            if at == 0 || names.is_empty() {
                names.push(&vol.entry.name);
            }
        }
    }
    let mut out = Vec::new();
    for (number, finding) in findings.into_iter().enumerate() {
        let Some(names) = needed.get(&number) else {
            out.push(finding);
            continue;
        };
        for name in names {
            let mut finding = finding.clone();
            if finding.place.volume.as_deref() != Some(name) {
                let was = finding.place.volume.replace((*name).to_owned()).unwrap_or_default();
                finding.means = format!("{} (the journal gives it what '{was}' had)", finding.means);
            }
            out.push(finding);
        }
    }
    out
}

fn finding(kind: FindingKind, volume: Option<&str>, means: String, repair: &str) -> Finding {
    let place = Place { what: "volume table".into(), volume: volume.map(str::to_owned), ..Place::default() };
    Finding { kind, place, means, repair: Some(repair.to_owned()) }
}

/// Reports names that occur twice.
fn names(model: &mut Model, findings: &mut Vec<Finding>) {
    let mut taken: BTreeMap<String, u32> = BTreeMap::new();
    for (&id, vol) in &mut model.volumes {
        let name = vol.entry.name.clone();
        let Some(&other) = taken.get(&name) else {
            taken.insert(name, id);
            continue;
        };
        let mut fresh = format!("{name}-{id}");
        if fresh.len() > MAX_NAME || taken.contains_key(&fresh) {
            fresh = format!("volume-{id}");
        }
        let means = format!("volumes {other} and {id} both have this name: only the first could be opened");
        findings.push(finding(FindingKind::Volume, Some(&name), means, &format!("Name volume {id} '{fresh}'")));
        vol.entry.name.clone_from(&fresh);
        taken.insert(fresh, id);
    }
}

/// Reports origins that do not exist, or are not related.
fn kin(model: &mut Model, findings: &mut Vec<Finding>) {
    let families: BTreeMap<u32, u32> = model.volumes.iter().map(|(&id, vol)| (id, vol.entry.family)).collect();
    for vol in model.volumes.values_mut().filter(|vol| vol.entry.origin != 0) {
        let origin = vol.entry.origin;
        let means = match families.get(&origin) {
            None => format!("its origin is volume {origin}, which does not exist"),
            Some(&family) if family != vol.entry.family => {
                format!("its origin is volume {origin}, which is not related to it")
            }
            Some(_) => continue,
        };
        let name = vol.entry.name.clone();
        findings.push(finding(FindingKind::Volume, Some(&name), means, "Note that it has no origin. No data changes"));
        vol.entry.origin = 0;
    }
}

/// Reports data beyond the end, and sizes above the largest size.
fn sizes(model: &mut Model, findings: &mut Vec<Finding>) {
    let geometry = model.geometry;
    for vol in model.volumes.values_mut() {
        let size = vol.entry.size;
        if size > vol.entry.max_size {
            let means = format!("its size, {size} bytes, is more than its largest size, {}", vol.entry.max_size);
            let name = vol.entry.name.clone();
            findings.push(finding(FindingKind::Volume, Some(&name), means, "Raise its largest size to its size"));
            vol.entry.max_size = size;
        }
        if vol.map.truncate(&geometry, size) {
            let means = format!("it has data beyond its end at {size} bytes, which would appear if it grew");
            let name = vol.entry.name.clone();
            findings.push(finding(FindingKind::BeyondEnd, Some(&name), means, "Free what lies beyond the end"));
        }
    }
}
