//! The state of a pool on a disk that broke a promise, on a scale from "contract kept" to "foreign data".
//!
//! Owns [`Standing`], the scale, and [`Past`], which separates older contents from contents that never were there. The
//! standings that are allowed depend on the promise and on checksums: [`broken`](crate::broken) has the table.

use std::collections::{BTreeMap, BTreeSet};

use super::{Event, Model, Volume};
use crate::disk::SECTOR;
use crate::tag::Seen;

/// Distance from the contract, the worst last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Everything is as it must be.
    #[default]
    Kept,
    /// The damage is reported: the pool or a volume does not open, or a block reads as EILSEQ. All else is as it must
    /// be.
    Told,
    /// Something is in an earlier state, and no error reports it.
    Older,
    /// A read returns bytes that were never at that offset of that volume.
    Foreign,
}

/// The contents that were read of a volume.
#[derive(Clone, Debug)]
pub struct Served {
    pub size: u64,
    /// Contents by sector; `None` where the read was refused because a checksum did not match.
    pub sectors: Vec<Option<Seen>>,
}

/// All names that volumes have had, and the line of copies that each volume belongs to.
#[derive(Clone, Debug, Default)]
pub struct Past {
    families: BTreeMap<u32, u32>,
    names: BTreeMap<String, BTreeSet<u32>>,
}

impl Past {
    /// Collects the past from `events`, which begin with a pool without volumes.
    pub fn of<'a>(events: impl Iterator<Item = &'a Event>) -> Past {
        let (mut model, mut past) = (Model::new(), Past::default());
        for event in events {
            // Between the begin and the end of a call, the change may or may not have been made, so both states count.
            let changes = matches!(event, Event::Change(_) | Event::Changed { .. });
            model.apply(event);
            if !changes {
                continue;
            }
            for state in model.after_crash() {
                for (name, volume) in &state.volumes {
                    past.families.insert(volume.id, volume.family);
                    past.names.entry(name.clone()).or_default().insert(volume.family);
                }
            }
        }
        past
    }

    /// Returns true if `seen` was once in this sector of a volume of this name.
    fn knows(&self, name: &str, sector: u64, seen: Seen) -> bool {
        let Seen::Written { volume, sector: written, .. } = seen else { return seen == Seen::Zero };
        let family = self.families.get(&volume);
        written == sector && family.is_some_and(|family| self.names.get(name).is_some_and(|all| all.contains(family)))
    }
}

impl Model {
    /// Returns the standing of the contents `found`, and the worst deviation in words. `refused` lists the volumes that
    /// report damage. `crashed` is true after a crash, when unflushed writes may be lost.
    #[must_use]
    pub fn standing(
        &self,
        found: &BTreeMap<String, Served>,
        refused: &[String],
        past: &Past,
        crashed: bool,
    ) -> (Standing, String) {
        let states = if crashed { self.after_crash() } else { vec![self.clone()] };
        let all = states.iter().map(|state| state.standing_of(found, refused, past, crashed));
        all.min_by_key(|(standing, _)| *standing).unwrap_or_default()
    }

    fn standing_of(
        &self,
        found: &BTreeMap<String, Served>,
        refused: &[String],
        past: &Past,
        crashed: bool,
    ) -> (Standing, String) {
        let mut worst = (Standing::Kept, String::new());
        let mut note = |standing, why: String| {
            if standing > worst.0 {
                worst = (standing, why);
            }
        };
        refused.iter().for_each(|name| note(Standing::Told, format!("'{name}' is damaged")));
        for name in self.volumes.keys().filter(|name| !found.contains_key(*name) && !refused.contains(name)) {
            note(Standing::Older, format!("volume '{name}' is not there"));
        }
        for (name, served) in found {
            let Some(volume) = self.volumes.get(name) else {
                note(Standing::Older, format!("volume '{name}' is there"));
                continue;
            };
            if !self.may_have_size(volume, served.size, crashed) {
                note(Standing::Older, format!("volume '{name}' has {} bytes", served.size));
            }
            for (sector, seen) in (0..).zip(&served.sectors) {
                let place = |what: &str| format!("volume '{name}' ({}), sector {sector}: {what}", volume.id);
                match seen {
                    None => note(Standing::Told, place("refused")),
                    Some(seen) if self.allows(volume, sector, *seen, crashed) => {}
                    Some(seen) if past.knows(name, sector, *seen) => note(Standing::Older, place(&seen.to_string())),
                    Some(seen) => note(Standing::Foreign, place(&seen.to_string())),
                }
            }
        }
        worst
    }

    fn may_have_size(&self, volume: &Volume, size: u64, crashed: bool) -> bool {
        let fits = size == volume.size;
        fits || crashed && volume.max.is_some() && volume.growth.sizes_from(0).contains(&size)
    }

    fn allows(&self, volume: &Volume, sector: u64, seen: Seen, crashed: bool) -> bool {
        let Some(value) = seen.value_at(sector) else { return false };
        // An unfinished resize may have zeroed the range beyond its new end.
        let beyond = sector >= volume.size / SECTOR as u64 && value == 0;
        let now = self.now;
        beyond
            || if crashed {
                volume.survivors(sector).any(|may| may == value)
            } else {
                volume.readable(sector, now).any(|may| may == value)
            }
    }
}
