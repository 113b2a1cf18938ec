//! Description of a pool's free space, and a warning when it is low, at most once in each command.
//!
//! Owns the messages. The pool decides when it is low or full.

use sheave_base::units::fmt_bytes;
use sheave_daemon::place::PoolPlace;
use sheave_daemon::shapes::pool::PoolJson;
use sheave_vol::{Pool, SpaceNotice, SpaceState, Watch};

use crate::output;

/// Returns the advice for a pool with little space.
fn fix(place: &PoolPlace) -> String {
    format!(
        "delete volumes or snapshots (sheave volume list '{place}'), discard what is not needed, or give it more: \
         sheave pool grow '{place}' --add FILE"
    )
}

/// Returns the line for `info`.
pub fn words(place: &PoolPlace, info: &PoolJson) -> String {
    let bytes = fmt_bytes(info.low_water_bytes);
    let mark = match (info.low_water.as_str(), info.low_water.strip_suffix('%')) {
        ("off", _) => "no low-water mark".to_owned(),
        (_, Some(percent)) => format!("low below {percent} %, {bytes}"),
        (_, None) => format!("low below {bytes}"),
    };
    let metadata = if info.metadata_low { "; metadata runs short: no new volumes or copies soon" } else { "" };
    let state = info.state.as_str();
    match state {
        "ok" if !info.metadata_low => format!("{state} ({mark})"),
        _ => format!("{state} ({mark}){metadata}; {}", fix(place)),
    }
}

/// Warns on stderr, once, about a pool that is low or full.
pub struct Warner {
    place: PoolPlace,
    watch: Watch,
    said: bool,
}

impl Warner {
    /// Makes a monitor of this pool. Its first check also reports the current state.
    pub fn new(place: &PoolPlace, pool: &Pool) -> Self {
        Self { place: place.clone(), watch: pool.watch(), said: false }
    }

    /// Checks the pool. Prints a warning if one is necessary and none was printed before.
    pub fn look(&mut self) {
        if let Some(warning) = self.next() {
            output::say(format_args!("{warning}\n"));
        }
    }

    fn next(&mut self) -> Option<String> {
        let notice = self.watch.changed().filter(|_| !self.said)?;
        let warning = warning(&self.place, &notice)?;
        self.said = true;
        Some(warning)
    }
}

/// Returns the warning for a notice.
fn warning(place: &PoolPlace, notice: &SpaceNotice) -> Option<String> {
    let free = fmt_bytes(notice.free_bytes);
    let what = match notice.state {
        SpaceState::Full => format!("the pool {place} is full: what needs new space fails, all else goes on"),
        SpaceState::Low => {
            format!("the pool {place} is low: {free} free, its mark is {}", fmt_bytes(notice.low_water_bytes))
        }
        SpaceState::Ok if notice.metadata_low => {
            format!("the metadata of the pool {place} runs short: soon no volume can be created or copied")
        }
        _ => return None,
    };
    Some(format!("sheave: warning: {what}\n   fix: {}", fix(place)))
}
