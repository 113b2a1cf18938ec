//! Comparison of the contents that were found with those that the model allows.

use std::collections::BTreeSet;

use super::cell::Cell;
use super::observed::{Observed, ObservedVolume};
use super::{Model, Volume};
use crate::disk::SECTOR;
use crate::tag::Value;

/// Largest number of findings that are printed in full; the others are counted.
const TOLD: usize = 6;

impl Model {
    /// Returns the model that goes on from the contents found after a crash (R7). Returns an error that names the
    /// contents that the model does not allow.
    pub fn settle(&self, found: &Observed) -> Result<Model, String> {
        self.settle_by(found, &[], Rule::Survives)
    }

    /// Same as [`Model::settle`], after the death of the process on a machine that goes on (V35): everything that was
    /// acknowledged is there.
    pub fn settle_alive(&self, found: &Observed) -> Result<Model, String> {
        self.settle_by(found, &[], Rule::Outlives(self.now)).map_err(|why| format!("V35: {why}"))
    }

    /// Same as [`Model::settle`], without the volumes in `unknown`, whose contents may be anything.
    pub fn settle_but(&self, found: &Observed, unknown: &[String]) -> Result<Model, String> {
        self.settle_by(found, unknown, Rule::Survives)
    }

    fn settle_by(&self, found: &Observed, unknown: &[String], rule: Rule) -> Result<Model, String> {
        let mut whys = Vec::new();
        for mut state in self.after_crash() {
            state.volumes.retain(|name, _| !unknown.contains(name));
            match state.why_not(found, rule) {
                None => return Ok(state.settled(found)),
                Some(why) => whys.push(why),
            }
        }
        match (&self.changing, whys.as_slice()) {
            (Some((change, _)), [after, before]) => Err(format!(
                "the crash came within a call ({change}).\nIt is not done: {after}\nNor is it undone: {before}"
            )),
            _ => Err(whys.concat()),
        }
    }

    /// Checks that `named` has all volumes that have lost something readers saw (V25). Accepts everything while a call
    /// is under way, because its effect is not known.
    pub fn is_told(&self, found: &Observed, named: &[String]) -> Result<(), String> {
        if self.changing.is_some() {
            return Ok(());
        }
        for (name, seen) in found.iter().filter(|(name, _)| !named.contains(name)) {
            let Some(volume) = self.volumes.get(name) else { continue };
            let mut wrong = Vec::new();
            compare(name, volume, seen, Rule::Readable(self.now), &mut wrong);
            if let Some(what) = wrong.first() {
                return Err(format!("V25: '{name}' is not named among those that may have lost data: {what}"));
            }
        }
        Ok(())
    }

    /// Checks that readers may see everything found, with nothing under way.
    pub fn is_readable(&self, found: &Observed) -> Result<(), String> {
        self.why_not(found, Rule::Readable(self.now)).map_or(Ok(()), Err)
    }

    /// Returns the reasons for which this state cannot be what was found, or `None`.
    fn why_not(&self, found: &Observed, rule: Rule) -> Option<String> {
        let mut wrong = Vec::new();
        let missing = self.volumes.keys().filter(|name| !found.contains_key(*name));
        wrong.extend(missing.map(|name| format!("volume '{name}' is not there")));
        for (name, seen) in found {
            match self.volumes.get(name) {
                None => wrong.push(format!("volume '{name}' is there and should not be")),
                Some(volume) => compare(name, volume, seen, rule, &mut wrong),
            }
        }
        if wrong.is_empty() {
            return None;
        }
        let mut text = String::new();
        wrong.iter().take(TOLD).for_each(|one| text.push_str(&format!("\n  {one}")));
        if wrong.len() > TOLD {
            text.push_str(&format!("\n  and {} more", wrong.len() - TOLD));
        }
        Some(text)
    }

    fn settled(&self, found: &Observed) -> Model {
        let mut model = Model { now: self.now, ..Model::default() };
        for (name, seen) in found {
            let Some(known) = self.volumes.get(name) else { continue };
            let cells = seen.sectors.map(|sector, one| Cell::settled(one.value_at(sector).unwrap_or(0)));
            let mut volume = Volume { cells, ..known.clone() };
            volume.settle_size(seen.size);
            model.volumes.insert(name.clone(), volume);
        }
        model
    }
}

/// The rule that decides which values may be found.
#[derive(Clone, Copy)]
enum Rule {
    /// Values visible to a reader who begins at this time are allowed.
    Readable(u64),
    /// Values that a crash may leave are allowed.
    Survives,
    /// Values that the death of the process may leave at this time are allowed.
    Outlives(u64),
}

impl Rule {
    fn allows(self, volume: &Volume, sector: u64, value: Value) -> bool {
        match self {
            Rule::Readable(now) | Rule::Outlives(now) => volume.readable(sector, now).any(|may| may == value),
            Rule::Survives => volume.survivors(sector).any(|may| may == value),
        }
    }

    fn list(self, volume: &Volume, sector: u64) -> String {
        let values: Vec<String> = match self {
            Rule::Readable(now) | Rule::Outlives(now) => {
                volume.readable(sector, now).map(|value| value.to_string()).collect()
            }
            Rule::Survives => volume.survivors(sector).map(|value| value.to_string()).collect(),
        };
        values.join(" or ")
    }
}

fn compare(name: &str, volume: &Volume, seen: &ObservedVolume, rule: Rule, wrong: &mut Vec<String>) {
    if (seen.max, seen.snapshot) != (volume.max, volume.snapshot) {
        wrong.push(format!(
            "volume '{name}' grows to {:?} bytes (snapshot: {}) and should to {:?} ({})",
            seen.max, seen.snapshot, volume.max, volume.snapshot
        ));
        return;
    }
    let why = match rule {
        Rule::Survives | Rule::Outlives(_) if volume.max.is_some() => volume.growth.why_not(&volume.cells, seen),
        _ => (seen.size != volume.size).then(|| format!("{} bytes, and should have {}", seen.size, volume.size)),
    };
    if let Some(why) = why {
        wrong.push(format!("volume '{name}' ({}) has {why}", volume.id));
        return;
    }
    let end = seen.size / SECTOR as u64;
    let (known, found) = (volume.cells.iter().map(|(at, _)| at), seen.sectors.iter().map(|(at, _)| at));
    let sectors: BTreeSet<u64> = known.chain(found).filter(|sector| *sector < end).collect();
    for sector in sectors {
        let one = seen.at(sector);
        if !one.value_at(sector).is_some_and(|value| rule.allows(volume, sector, value)) {
            let (id, values) = (volume.id, rule.list(volume, sector));
            wrong.push(format!(
                "volume '{name}' ({id}), sector {sector}: {one}; may be there: write {values} (0 is zeroes)"
            ));
        }
    }
}
