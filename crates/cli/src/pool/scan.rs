//! `sheave pool scan`: lists the pools on this host, from the labels of their members.
//!
//! Reads the first 8 KiB of files and block devices, and the kernel's list of locks. Takes no lock and writes nothing.
//!
//! The names of the JSON fields are an interface.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

use serde::Serialize;
use sheave_base::units::fmt_bytes;
use sheave_daemon::failure::Failure;
use sheave_daemon::look::{Seen, Sight, Source, search};
use sheave_daemon::place::whole::hinted;
use sheave_vol::members::{MemberTag, gather, uuid_text};

use crate::args::pool::ScanArgs;
use crate::control::remote::{daemons, nodes};
use crate::output;

#[derive(Serialize)]
struct ScanJson {
    pools: Vec<FoundJson>,
    looked_at: Vec<String>,
    not_looked_at: Vec<String>,
}

/// A pool that was found.
#[derive(Serialize)]
struct FoundJson {
    uuid: String,
    /// `complete`, `incomplete`, `ambiguous` or `refused`.
    state: &'static str,
    /// The reason why the pool is not complete.
    problem: Option<String>,
    size_bytes: Option<u64>,
    format_version: u16,
    generation: Option<u64>,
    closed: Option<bool>,
    members_wanted: Option<u64>,
    members: Vec<FoundMemberJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    served_by: Option<ServedJson>,
}

/// A file or device that belongs to a pool.
#[derive(Serialize)]
struct FoundMemberJson {
    path: String,
    number: u64,
    /// `member`, `copy`, `older-copy`, `stray` or `refused`.
    state: &'static str,
    size_bytes: u64,
    generation: u64,
    in_use_by: Option<String>,
}

/// The daemon that holds a pool.
#[derive(Serialize)]
struct ServedJson {
    server: String,
    pool: String,
}

/// Runs the command.
pub fn run(args: &ScanArgs) -> Result<(), Failure> {
    let here = [PathBuf::from(".")];
    let directories = if args.directories.is_empty() { &here[..] } else { &args.directories };
    let mut sources: BTreeSet<Source> = directories.iter().cloned().map(Source::Directory).collect();
    if !args.no_devices {
        sources.insert(Source::Devices);
    }
    let mut sight = search(&sources);
    // Members in other directories, to which hints of the found files lead.
    let more: BTreeSet<Source> = sight.seen.iter().flat_map(|seen| hinted(&seen.path)).map(Source::File).collect();
    sight.add(search(&more));
    for pool in incomplete(&sight) {
        sight.refresh(&pool);
    }
    let unread = directories.iter().find(|path| std::fs::read_dir(path).is_err());
    let scan = ScanJson { pools: pools(&sight), looked_at: sight.looked, not_looked_at: sight.failed };
    if args.json {
        output::json(&scan)?;
    } else {
        output::text(&table(&scan));
        output::warn(&scan.not_looked_at);
    }
    match unread {
        // The warning above, or the JSON object, has already reported it.
        Some(_) => Err(Failure::reported()),
        None => Ok(()),
    }
}

fn by_pool(sight: &Sight) -> BTreeMap<[u8; 16], Vec<&Seen>> {
    let mut by_pool: BTreeMap<[u8; 16], Vec<&Seen>> = BTreeMap::new();
    for seen in &sight.seen {
        by_pool.entry(seen.tag.pool()).or_default().push(seen);
    }
    by_pool
}

fn tagged(seen: &[&Seen]) -> Vec<(String, MemberTag)> {
    seen.iter().map(|seen| (seen.path.display().to_string(), seen.tag.clone())).collect()
}

/// Returns the pools without a complete set of members.
fn incomplete(sight: &Sight) -> Vec<[u8; 16]> {
    let is_not = |(pool, seen): &([u8; 16], Vec<&Seen>)| gather(pool, &[], &tagged(seen)).is_err();
    by_pool(sight).into_iter().filter(is_not).map(|(pool, _)| pool).collect()
}

fn pools(sight: &Sight) -> Vec<FoundJson> {
    let rows: Vec<_> = daemons(&[]).collect();
    let served = |own: &[&Seen]| {
        rows.iter().find_map(|(remote, rows)| {
            let has = |nodes: &BTreeSet<(u64, u64)>| own.iter().any(|seen| nodes.contains(&seen.node));
            let row = rows.iter().find(|row| row.failed.is_none() && has(&nodes(row)))?;
            Some(ServedJson { server: remote.describe(), pool: row.name.clone() })
        })
    };
    by_pool(sight).into_iter().map(|(pool, seen)| found(&pool, &seen, served(&seen))).collect()
}

fn found(pool: &[u8; 16], seen: &[&Seen], served_by: Option<ServedJson>) -> FoundJson {
    let gathered = gather(pool, &[], &tagged(seen));
    let mut firsts: Vec<&Seen> = seen.iter().copied().filter(|seen| !seen.tag.members().is_empty()).collect();
    firsts.sort_by_key(|seen| seen.tag.checkpoint());
    let newest = firsts.last().copied();
    let is_refused = newest.is_none() && seen.iter().any(|seen| seen.tag.refused().is_some());
    let mut members: Vec<FoundMemberJson> = seen.iter().map(|seen| member(seen, newest)).collect();
    members.sort_by_key(|member| member.number);
    let mut taken: Vec<u64> =
        members.iter().filter(|member| member.state == "member").map(|member| member.number).collect();
    taken.dedup();
    let is_twice = taken.len() < members.iter().filter(|member| member.state == "member").count();
    let state = match &gathered {
        Ok(_) => "complete",
        Err(_) if is_refused => "refused",
        Err(_) if is_twice => "ambiguous",
        Err(_) => "incomplete",
    };
    let tag = newest.map(|seen| &seen.tag);
    FoundJson {
        uuid: uuid_text(pool),
        state,
        problem: gathered.err().map(|why| sheave_daemon::failure::pool(why).cause().to_owned()),
        size_bytes: tag.map(|tag| tag.members().iter().map(|(_, len)| len).sum()),
        format_version: sheave_vol::format::VERSION,
        generation: tag.map(MemberTag::checkpoint),
        closed: tag.and_then(MemberTag::is_clean),
        members_wanted: tag.map(|tag| tag.members().len() as u64),
        members,
        served_by,
    }
}

/// Classifies a candidate; `newest` is the newest first member of its pool.
fn member(seen: &Seen, newest: Option<&Seen>) -> FoundMemberJson {
    let tag = &seen.tag;
    let state = match newest {
        _ if tag.refused().is_some() => "refused",
        // Without a first member, nothing contradicts the label.
        None => "member",
        Some(first) if first.node == seen.node => "member",
        Some(first) if tag.number() == 0 && first.tag.checkpoint() > tag.checkpoint() => "older-copy",
        Some(_) if tag.number() == 0 => "member",
        Some(first) => match tag.belongs_to(&first.tag) {
            Ok(()) => "member",
            Err(damage) if damage.is_old_member() => "older-copy",
            Err(_) => "stray",
        },
    };
    FoundMemberJson {
        path: seen.path.display().to_string(),
        number: tag.number(),
        state,
        size_bytes: seen.size_bytes,
        generation: tag.checkpoint(),
        in_use_by: sheave_drivers::host::in_use_by(&seen.path),
    }
}

fn table(scan: &ScanJson) -> String {
    let mut text = String::new();
    for pool in &scan.pools {
        let size = pool.size_bytes.map_or_else(|| "size unknown".into(), fmt_bytes);
        let closed = if pool.closed == Some(false) { ", not closed" } else { "" };
        let served = pool
            .served_by
            .as_ref()
            .map_or_else(String::new, |served| format!(", served by {} as '{}'", served.server, served.pool));
        let generation = pool.generation.map_or_else(String::new, |number| format!(", checkpoint {number}"));
        let (uuid, state) = (&pool.uuid, pool.state);
        // Writing to a String does not fail.
        let _ = writeln!(text, "{uuid}  {state}, {size}{generation}{closed}{served}");
        if let Some(problem) = &pool.problem {
            let _ = writeln!(text, "    {problem}");
        }
        for member in &pool.members {
            let FoundMemberJson { path, number, state, size_bytes, in_use_by, .. } = member;
            let (what, size) = (state.replace('-', " "), fmt_bytes(*size_bytes));
            let used = in_use_by.as_ref().map_or_else(String::new, |who| format!("  in use by {who}"));
            let _ = writeln!(text, "    {number:>2}  {what:10}  {size:>9}  {path}{used}");
        }
    }
    if scan.pools.is_empty() {
        let _ = writeln!(text, "no pools: looked at {}", scan.looked_at.join(", "));
    }
    text
}
