//! Adding a member to a pool that a daemon holds: the command opens the member, and the daemon adds it.

use std::os::fd::{AsFd, BorrowedFd};

use sheave_daemon::api::types as t;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::PoolPlace;

use super::member::{Grown, confirm_over, expect_one, open_added};
use crate::args::pool::{AllocateArg, GrowArgs};
use crate::control::opened::{By, Opened};
use crate::control::passed::Passed;
use crate::control::remote::Holder;
use crate::made::Made;
use crate::output;
use crate::pool::allocate;
use crate::pool::signature;

/// Adds the member.
pub(super) fn add(args: &GrowArgs, place: &PoolPlace, pool: &Opened) -> Result<(), Failure> {
    let By::Them(Holder { remote, pool: name }) = pool.by() else {
        return Err(Failure::run("the server has let go of the pool meanwhile").fix("run this again"));
    };
    expect_one(place)?;
    let before = pool.info()?;
    if args.pool.identities().iter().any(|own| place.identities().contains(own)) {
        return Err(
            Failure::usage(format!("{place} is a member of {} already", args.pool)).fix("add another file or device")
        );
    }
    let keeps_its_space = || allocate::is_full(&args.pool) && before.discard == "off";
    let full = args.allocate.map_or_else(keeps_its_space, |how| how == AllocateArg::Full);
    let made = Made::begin(place, args.size.is_some())?;
    // The file is examined before it is extended, because the user has not confirmed yet.
    let replaced = match place.single_path() {
        Some(path) if path.is_file() => signature::find_in_file(path)?,
        Some(path) if path.exists() => signature::find(&place.open_alone(",readonly=on")?)?,
        _ => signature::find(&open_added(args, place)?)?,
    };
    confirm_over(args, place, replaced.as_ref())?;
    drop(open_added(args, place)?);
    if full {
        allocate::all(place)?;
    }
    let size = args.size.map_or(String::new(), |size| format!(",size={size}"));
    let spec = place.single_spec(&size).ok_or_else(|| Failure::usage("--add names nothing"))?;
    let passed = Passed::open(&spec, false)?;
    let fds: Vec<BorrowedFd<'_>> = passed.files.iter().map(AsFd::as_fd).collect();
    let overwrite = Some(replaced.is_some());
    let grow = t::Grow { pool: name.clone(), spec: passed.spec.clone().unwrap_or(spec), overwrite };
    let grown = match remote.call_with::<_, t::Grown>("GrowPool", &grow, &fds) {
        Ok(grown) => grown,
        Err(why) => {
            // The file may already be a member, so it stays even if something failed.
            if !pool.info().is_ok_and(|now| now.members.len() == before.members.len()) {
                made.keep();
            }
            return Err(why);
        }
    };
    made.keep();
    passed.keep();
    let beyond_search = grown.beyond_search;
    if !beyond_search.is_empty() {
        output::say(format_args!(
            "sheave: the server does not find {} when it starts again: name the pool '{name}' so in its configuration \
             or on its command line: {}\n",
            beyond_search.join(", "),
            grown.place
        ));
    }
    Grown {
        pool: if beyond_search.is_empty() { args.pool.to_string() } else { args.pool.with(place) },
        beyond_search,
        size_bytes_before: before.size_bytes,
        size_bytes: grown.info.size_bytes,
        added: Some(place.to_string()),
        replaced,
        members: grown.info.members,
    }
    .tell(args.json)
}
