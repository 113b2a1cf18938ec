//! `sheave pool grow`: extends a pool whose file or device has grown, or adds another file or device.
//!
//! A device that is to be added is checked for contents first, like when a pool is created. If the pool is not open
//! elsewhere, this command opens, grows and closes it. A daemon that holds the pool adds the member itself
//! ([`served`]), like any other program can with `Pool::add_member`.

mod member;
mod served;

use std::path::Path;

use sheave::Device;
use sheave_base::units::SECTOR_BYTES;
use sheave_blk::claim::Sharing;
use sheave_daemon::failure::{self, Failure};
use sheave_daemon::place::{PoolPlace, open_options};
use sheave_daemon::shapes::pool::MemberJson;
use sheave_vol::{AddOptions, Found, Pool};

use self::member::{Grown, confirm_over, expect_one, open_added};
use super::allocate;
use super::signature;
use crate::args::pool::{AllocateArg, GrowArgs};
use crate::control::opened::Opened;
use crate::control::remote::{not_while_served, refuse_name};
use crate::made::Made;
use crate::output;
use crate::patience;

/// Runs the command.
pub fn run(args: &GrowArgs) -> Result<(), Failure> {
    const CLOSED: &str = "a pool takes in a file or device that has grown while it is closed";
    const ADD: &str = "one file or device more can be added now: --add. Or ";
    args.pool.refuse_volatile()?;
    if let Some(place) = &args.add
        && let Some(pool) = Opened::held(&args.pool)?
    {
        return served::add(args, place, &pool);
    }
    refuse_name(&args.pool, CLOSED, ADD)?;
    args.pool.expect_there()?;
    let served = |busy| not_while_served(&args.pool, CLOSED, ADD, busy);
    let whole = args.pool.whole().map_err(served)?;
    let full = args.allocate.map_or_else(|| keeps_its_space(&whole), |how| Ok(how == AllocateArg::Full));
    let full = full.map_err(served)?;
    let options = match (&args.add, args.size, whole.single_path()) {
        (Some(_), ..) | (None, None, _) => String::new(),
        (None, Some(size), Some(path)) => {
            let now = whole.open_device(",readonly=on")?.size_bytes();
            if size < now {
                let cause = format!("--size {size} is less than the {now} bytes that {} has", path.display());
                return Err(Failure::usage(cause).fix("pools grow only; make a smaller one and copy the volumes"));
            }
            // Opening with a size extends the file. Therefore the file must belong to a pool that is not in use.
            if path.is_file() && !signature::find_in_file(path)?.is_some_and(|what| what.starts_with("a Sheave pool")) {
                return Err(Failure::run(format!("{}: there is no pool in it", path.display()))
                    .fix("check the path; sheave pool create makes a pool"));
            }
            let device = whole.open_device("")?;
            drop(patience::until_free(|| device.claim(Sharing::Alone).map_err(failure::device)).map_err(served)?);
            if full {
                allocate::file(path, Some(size))?;
            }
            format!(",size={size}")
        }
        (None, Some(_), None) => {
            return Err(Failure::usage("--size is for a pool in one file, or for a file that is added (--add)")
                .fix("grow the last member (truncate -s SIZE FILE), then run this without --size"));
        }
    };
    let device = whole.open_device(&options)?;
    let open = || Pool::open(&device, &open_options()).map_err(failure::pool);
    let pool = patience::until_free(open).map_err(served)?;
    let before = pool.info();
    // The pool is closed even on failure, so that opening it the next time needs no recovery.
    let done = match &args.add {
        Some(place) => add(args, place, &pool, full).map(|replaced| (Some(place.to_string()), replaced)),
        None => refuse_new_members(&whole, &device, before.size_bytes)
            .and_then(|()| if full { allocate::all(&whole) } else { Ok(()) })
            .and_then(|()| pool.grow().map(|_| (None, None)).map_err(failure::pool)),
    };
    let after = pool.info();
    let closed = pool.close().map_err(failure::pool);
    let (added, replaced) = done?;
    closed?;
    // From now on the new member, too, leads to the others, through its label or through hints.
    let all = args.add.as_ref().map_or_else(|| whole.clone(), |place| whole.and(place));
    all.leave_hints();
    let beyond_search = args.pool.does_not_find(&all);
    Grown {
        pool: if beyond_search.is_empty() { args.pool.to_string() } else { all.spelled().to_string() },
        beyond_search,
        size_bytes_before: before.size_bytes,
        size_bytes: after.size_bytes,
        added,
        replaced,
        members: after.members.iter().map(MemberJson::new).collect(),
    }
    .tell(args.json)
}

/// Returns true if the pool was preallocated: none of its files is sparse, and discard is off.
fn keeps_its_space(pool: &PoolPlace) -> Result<bool, Failure> {
    if !allocate::is_full(pool) {
        return Ok(false);
    }
    let device = pool.open_device(",readonly=on")?;
    let options = open_options().read_only(true);
    let pool = patience::until_free(|| Pool::open(&device, &options).map_err(failure::pool))?;
    Ok(matches!(pool.info().discard, sheave_vol::DiscardState::Off))
}

/// Adds a member. Returns a description of the contents that were on it.
fn add(args: &GrowArgs, place: &PoolPlace, pool: &Pool, full: bool) -> Result<Option<String>, Failure> {
    expect_one(place)?;
    let made = Made::begin(place, args.size.is_some())?;
    // The file is examined before it is opened, because opening it with --size would extend it before the user has
    // confirmed.
    let looked_at = match place.single_path().filter(|path| path.is_file()) {
        None => open_added(args, place)?,
        Some(path) if is_whole(path) => place.open_alone(",readonly=on")?,
        Some(path) => {
            let replaced = signature::find_in_file(path)?;
            return add_over(args, place, pool, (replaced, full), made);
        }
    };
    let replaced = match pool.find_on(&looked_at).map_err(failure::pool)? {
        Found::Member(number) => {
            return Err(Failure::usage(format!("{place} is member {number} of {} already", args.pool))
                .fix("add another file or device"));
        }
        Found::CutOff => {
            output::say(format_args!(
                "sheave: {place} was being added to this pool when that was cut off; it is added now\n"
            ));
            None
        }
        _ => signature::find(&looked_at)?,
    };
    add_over(args, place, pool, (replaced, full), made)
}

/// Returns true if the file can be opened with its current size.
fn is_whole(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.len() > 0 && meta.len().is_multiple_of(SECTOR_BYTES))
}

/// Adds a member and overwrites the contents that were found on it.
fn add_over(
    args: &GrowArgs,
    place: &PoolPlace,
    pool: &Pool,
    (replaced, full): (Option<String>, bool),
    made: Made,
) -> Result<Option<String>, Failure> {
    confirm_over(args, place, replaced.as_ref())?;
    let device = open_added(args, place)?;
    if full {
        allocate::all(place)?;
    }
    let before = pool.info().members.len();
    let done = pool.add_member(&device, &AddOptions::default().overwrite(replaced.is_some()));
    // The file may already be a member, so it stays even if something failed.
    if pool.info().members.len() > before {
        made.keep();
    }
    done.map_err(failure::pool)?;
    Ok(replaced)
}

/// Fails if `place` names a device behind the known members. It would otherwise be taken for growth of the last member.
fn refuse_new_members(place: &PoolPlace, device: &Device, pool_bytes: u64) -> Result<(), Failure> {
    let legs = device.legs();
    if place.is_one() || legs.len() < 2 || legs[legs.len() - 1].start << 9 < pool_bytes {
        return Ok(());
    }
    let last = place.to_string();
    let last = last.rsplit('+').next().unwrap_or_default();
    Err(Failure::usage(format!("{last} is no member of this pool"))
        .fix(format!("add it: sheave pool grow POOL --add {last}, where POOL names those that are members")))
}
