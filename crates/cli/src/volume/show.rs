//! `sheave volume list` and `info`.
//!
//! The names of the JSON fields are an interface.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use sheave_base::units::fmt_bytes;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::Access;
use sheave_daemon::shapes::pool::DamageJson;
use sheave_daemon::shapes::volume::VolumeJson;

use crate::args::volume::{Kind, ListArgs, OneArgs};
use crate::control::opened::Opened;
use crate::output;

#[derive(Serialize)]
struct ListJson {
    pool: String,
    volumes: Vec<VolumeJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unsure: Option<Vec<String>>,
}

/// Runs `sheave volume list`.
pub fn list(args: &ListArgs) -> Result<(), Failure> {
    let pool = Opened::open(&args.pool, if args.rescue { Access::Rescue } else { Access::Look })?;
    let unsure = pool.unsure();
    let volumes = pool.volumes();
    pool.close()?;
    let volumes = chosen(args, volumes?)?;
    if args.json {
        return output::json(&ListJson { pool: args.pool.to_string(), volumes, unsure: args.rescue.then_some(unsure) });
    }
    output::warn(&unsure);
    if args.names {
        output::text(&volumes.iter().map(|volume| format!("{}\n", volume.name)).collect::<String>());
        return Ok(());
    }
    if volumes.is_empty() && !unsure.is_empty() {
        output::text("no volume can be taken out\n");
        return Ok(());
    }
    if volumes.is_empty() && (args.of.is_some() || args.kind.is_some()) {
        output::text("none of that\n");
        return Ok(());
    }
    if volumes.is_empty() {
        output::text(&format!("no volumes yet: sheave volume create '{}#NAME' --size 100G\n", args.pool));
        return Ok(());
    }
    output::text(&table(&tree(&volumes)));
    Ok(())
}

/// Returns the requested volumes: all, sorted by name, or the snapshots of one volume, the oldest first.
fn chosen(args: &ListArgs, mut volumes: Vec<VolumeJson>) -> Result<Vec<VolumeJson>, Failure> {
    if let Some(of) = &args.of {
        if !volumes.iter().any(|volume| volume.name == *of) {
            return Err(Failure::run(format!("{} has no volume '{of}'", args.pool))
                .fix("sheave volume list names those that there are"));
        }
        volumes.retain(|volume| volume.snapshot && volume.origin.as_ref() == Some(of));
        volumes.sort_by_key(|volume| (volume.created, volume.id));
    }
    volumes.retain(|volume| match args.kind {
        Some(Kind::Volume) => !volume.snapshot,
        Some(Kind::Snapshot) => volume.snapshot,
        None => true,
    });
    Ok(volumes)
}

/// Returns each volume, followed by its snapshots from the oldest on. Each has its depth, which is 0 if its origin is
/// not listed.
fn tree(volumes: &[VolumeJson]) -> Vec<(usize, &VolumeJson)> {
    let listed: BTreeSet<&str> = volumes.iter().map(|volume| volume.name.as_str()).collect();
    let mut below: BTreeMap<&str, Vec<&VolumeJson>> = BTreeMap::new();
    let mut roots = Vec::new();
    for volume in volumes {
        match volume.origin.as_deref().filter(|origin| volume.snapshot && listed.contains(origin)) {
            Some(origin) => below.entry(origin).or_default().push(volume),
            None => roots.push(volume),
        }
    }
    below.values_mut().for_each(|those| those.sort_by_key(|volume| (volume.created, volume.id)));
    // A stack whose last element comes next. The loop ends, because origins are older than their snapshots.
    let mut next: Vec<(usize, &VolumeJson)> = roots.into_iter().rev().map(|volume| (0, volume)).collect();
    let mut all = Vec::with_capacity(volumes.len());
    while let Some((depth, volume)) = next.pop() {
        all.push((depth, volume));
        let those = below.remove(volume.name.as_str()).unwrap_or_default();
        next.extend(those.into_iter().rev().map(|one| (depth + 1, one)));
    }
    all
}

fn table(volumes: &[(usize, &VolumeJson)]) -> String {
    let width = volumes.iter().map(|(depth, volume)| 2 * depth + volume.name.len()).max().unwrap_or(0).max(4);
    // There is a column for the maximum size if any volume grows.
    let grows = volumes.iter().any(|(_, volume)| volume.max_size_bytes.is_some());
    let most = |text: &str| if grows { format!("  {text:>9}") } else { String::new() };
    let mut text = format!(
        "{:width$}  {:8}  {:16}  {:>9}{}  {:>9}  {:>9}  {:>9}  {}\n",
        "NAME",
        "KIND",
        "CREATED",
        "SIZE",
        most("GROWS TO"),
        "ALLOCATED",
        "SHARED",
        "UNIQUE",
        "ORIGIN"
    );
    for (depth, volume) in volumes {
        let _ = writeln!(
            text,
            "{:width$}  {:8}  {:16}  {:>9}{}  {:>9}  {:>9}  {:>9}  {}",
            format!("{:1$}{2}", "", 2 * depth, volume.name),
            volume.kind(),
            date(volume.created),
            fmt_bytes(volume.size_bytes),
            most(&volume.max_size_bytes.map_or_else(|| "-".into(), fmt_bytes)),
            fmt_bytes(volume.allocated_bytes),
            fmt_bytes(volume.shared_bytes),
            fmt_bytes(volume.unique_bytes),
            volume.origin.as_deref().unwrap_or("-"),
        );
    }
    for DamageJson { volume, address, why, .. } in volumes.iter().filter_map(|(_, volume)| volume.damaged.as_ref()) {
        let _ = writeln!(text, "{volume} does not open: the page of its map at byte {address} is damaged: {why}");
    }
    text
}

/// Runs `sheave volume info`.
pub fn info(args: &OneArgs) -> Result<(), Failure> {
    let place = &args.volume;
    let pool = Opened::open(&place.pool, Access::Look)?;
    let volume = pool.volume(&place.name);
    pool.close()?;
    let volume = volume?;
    if args.json {
        return output::json(&volume);
    }
    let mut rows = vec![
        (volume.kind(), volume.name.clone()),
        ("pool", volume.pool.clone()),
        ("number", volume.id.to_string()),
        ("made of", volume.origin.clone().unwrap_or_else(|| "nothing".into())),
        ("made", format!("{}, {} ago", date(volume.created), age(volume.created))),
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

/// Formats a time, in seconds since 1970, as local time to the minute.
fn date(created: u64) -> String {
    let moment = i64::try_from(created).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    moment
        .map_or_else(|| "-".into(), |moment| moment.to_zoned(TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string())
}

/// Formats the time since a moment, in its largest unit.
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
