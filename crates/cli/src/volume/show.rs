//! `sheave volume list` and `info`.
//!
//! The names of the JSON fields are an interface.

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use sheave::base::units::fmt_bytes;
use sheave::vol::VolumeInfo;

use crate::args::volume::{ListArgs, OneArgs};
use crate::failure::{self, Failure};
use crate::output;
use crate::pool::info::DamageJson;
use crate::pool::place::{Access, PoolPlace};

/// A volume or snapshot, for programs.
#[derive(Clone, Debug, Serialize)]
pub struct VolumeJson {
    /// Its pool, as named.
    pub pool: String,
    /// Name.
    pub name: String,
    /// Number within the pool.
    pub id: u32,
    /// Cannot be written.
    pub snapshot: bool,
    /// What it was made of.
    pub origin: Option<String>,
    /// Size that users see.
    pub size_bytes: u64,
    /// How large writes may make it; null when they do not.
    pub max_size_bytes: Option<u64>,
    /// Space it has.
    pub allocated_bytes: u64,
    /// Of that, shared with others.
    pub shared_bytes: u64,
    /// Of that, its own: what deleting it gives back.
    pub unique_bytes: u64,
    /// Data written.
    pub written_bytes: u64,
    /// Seconds since 1970.
    pub created: u64,
    /// Pages of its map are damaged: it does not open, and what it takes is not known. `null` as a rule.
    pub damaged: Option<DamageJson>,
}

#[derive(Serialize)]
struct ListJson {
    pool: String,
    volumes: Vec<VolumeJson>,
}

impl VolumeJson {
    /// From what the pool tells.
    pub fn new(place: &PoolPlace, info: &VolumeInfo) -> Self {
        Self {
            pool: place.to_string(),
            name: info.name.clone(),
            id: info.id,
            snapshot: info.snapshot,
            origin: info.origin.clone(),
            size_bytes: info.size_bytes,
            max_size_bytes: info.max_size_bytes,
            allocated_bytes: info.allocated_bytes,
            shared_bytes: info.shared_bytes,
            unique_bytes: info.unique_bytes,
            written_bytes: info.written_bytes,
            created: info.created,
            damaged: info.damage.as_ref().map(|damage| DamageJson::new(&info.name, damage)),
        }
    }

    fn kind(&self) -> &'static str {
        if self.snapshot { "snapshot" } else { "volume" }
    }

    /// A line.
    pub fn in_short(&self) -> String {
        let origin = self.origin.as_ref().map_or(String::new(), |origin| format!(" of {origin}"));
        format!("{} {}{origin}, {}", self.kind(), self.name, self.size())
    }

    /// Its size, and how far it goes.
    fn size(&self) -> String {
        let most = self.max_size_bytes.filter(|_| !self.snapshot);
        let most = most.map_or(String::new(), |most| format!(", grows to {}", fmt_bytes(most)));
        format!("{}{most}", fmt_bytes(self.size_bytes))
    }
}

/// `sheave volume list`.
pub fn list(args: &ListArgs) -> Result<(), Failure> {
    let pool = args.pool.open(if args.rescue { Access::Rescue } else { Access::Look })?;
    let unsure = pool.info().unsure;
    let volumes: Vec<_> = pool.volumes().iter().map(|info| VolumeJson::new(&args.pool, info)).collect();
    pool.close().map_err(failure::pool)?;
    if args.json {
        return output::json(&ListJson { pool: args.pool.to_string(), volumes });
    }
    if volumes.is_empty() {
        output::text(&format!("no volumes yet: sheave volume create '{}#NAME' --size 100G\n", args.pool));
        return Ok(());
    }
    output::text(&table(&volumes));
    for word in unsure {
        output::say(format_args!("sheave: warning: {word}\n"));
    }
    Ok(())
}

fn table(volumes: &[VolumeJson]) -> String {
    let width = volumes.iter().map(|volume| volume.name.len()).max().unwrap_or(0).max(4);
    // A column for those that grow, if there are any.
    let grows = volumes.iter().any(|volume| volume.max_size_bytes.is_some());
    let most = |text: &str| if grows { format!("  {text:>9}") } else { String::new() };
    let mut text = format!(
        "{:width$}  {:8}  {:>9}{}  {:>9}  {:>9}  {:>9}  {}\n",
        "NAME",
        "KIND",
        "SIZE",
        most("GROWS TO"),
        "ALLOCATED",
        "SHARED",
        "UNIQUE",
        "ORIGIN"
    );
    for volume in volumes {
        let _ = writeln!(
            text,
            "{:width$}  {:8}  {:>9}{}  {:>9}  {:>9}  {:>9}  {}",
            volume.name,
            volume.kind(),
            fmt_bytes(volume.size_bytes),
            most(&volume.max_size_bytes.map_or_else(|| "-".into(), fmt_bytes)),
            fmt_bytes(volume.allocated_bytes),
            fmt_bytes(volume.shared_bytes),
            fmt_bytes(volume.unique_bytes),
            volume.origin.as_deref().unwrap_or("-"),
        );
    }
    for DamageJson { volume, address, why, .. } in volumes.iter().filter_map(|volume| volume.damaged.as_ref()) {
        let _ = writeln!(text, "{volume} does not open: the page of its map at byte {address} is damaged: {why}");
    }
    text
}

/// `sheave volume info`.
pub fn info(args: &OneArgs) -> Result<(), Failure> {
    let place = &args.volume;
    let pool = place.pool.open(Access::Look)?;
    let info = pool.volume_info(&place.name).map_err(failure::pool)?;
    pool.close().map_err(failure::pool)?;
    let volume = VolumeJson::new(&place.pool, &info);
    if args.json {
        return output::json(&volume);
    }
    let mut rows = vec![
        (volume.kind(), volume.name.clone()),
        ("pool", volume.pool.clone()),
        ("number", volume.id.to_string()),
        ("made of", volume.origin.clone().unwrap_or_else(|| "nothing".into())),
        ("made", format!("{} ago", age(volume.created))),
        ("size", volume.size()),
        ("allocated", fmt_bytes(volume.allocated_bytes)),
        ("of it shared", fmt_bytes(volume.shared_bytes)),
        ("of it unique", format!("{}, which deleting it gives back", fmt_bytes(volume.unique_bytes))),
        ("written", fmt_bytes(volume.written_bytes)),
    ];
    if let Some(DamageJson { address, why, .. }) = &volume.damaged {
        rows.push(("damaged", format!("it does not open: the page of its map at byte {address}: {why}")));
    }
    let mut text = String::new();
    for (name, value) in rows {
        // Writing to a String does not fail.
        let _ = writeln!(text, "{name:>13}  {value}");
    }
    output::text(&text);
    Ok(())
}

/// The time since a moment, in its largest unit.
fn age(created: u64) -> String {
    let then = UNIX_EPOCH + Duration::from_secs(created);
    let seconds = then.elapsed().unwrap_or_default().as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}
