//! `sheave volume list` and `info`.
//!
//! The names of the JSON fields are an interface.

use std::fmt::Write;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use sheave_base::units::fmt_bytes;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::Access;
use sheave_daemon::shapes::pool::DamageJson;
use sheave_daemon::shapes::volume::VolumeJson;

use crate::args::volume::{ListArgs, OneArgs};
use crate::control::opened::Opened;
use crate::output;

#[derive(Serialize)]
struct ListJson {
    pool: String,
    volumes: Vec<VolumeJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unsure: Option<Vec<String>>,
}

/// `sheave volume list`.
pub fn list(args: &ListArgs) -> Result<(), Failure> {
    let pool = Opened::open(&args.pool, if args.rescue { Access::Rescue } else { Access::Look })?;
    let unsure = pool.unsure();
    let volumes = pool.volumes();
    pool.close()?;
    let volumes = volumes?;
    if args.json {
        return output::json(&ListJson { pool: args.pool.to_string(), volumes, unsure: args.rescue.then_some(unsure) });
    }
    output::warn(&unsure);
    if volumes.is_empty() && !unsure.is_empty() {
        output::text("no volume can be taken out\n");
        return Ok(());
    }
    if volumes.is_empty() {
        output::text(&format!("no volumes yet: sheave volume create '{}#NAME' --size 100G\n", args.pool));
        return Ok(());
    }
    output::text(&table(&volumes));
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
