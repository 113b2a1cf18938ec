//! Checks and messages for a file or device that becomes a member, whether this command or a daemon adds it.

use serde::Serialize;
use sheave::Device;
use sheave_base::units::fmt_bytes;
use sheave_daemon::failure::Failure;
use sheave_daemon::place::PoolPlace;
use sheave_daemon::shapes::pool::MemberJson;

use crate::args::pool::GrowArgs;
use crate::{confirm, output};

/// Result as JSON.
#[derive(Serialize)]
pub(super) struct Grown {
    /// Name of the pool from now on. It is unchanged unless a search does not find all members.
    pub(super) pool: String,
    /// Members that a search does not find.
    pub(super) beyond_search: Vec<String>,
    pub(super) size_bytes_before: u64,
    pub(super) size_bytes: u64,
    /// The added member, in the form in which the user named it.
    pub(super) added: Option<String>,
    /// Content that was overwritten.
    pub(super) replaced: Option<String>,
    pub(super) members: Vec<MemberJson>,
}

impl Grown {
    /// Prints the result.
    pub(super) fn tell(&self, json: bool) -> Result<(), Failure> {
        if json {
            return output::json(self);
        }
        let name = &self.pool;
        let (was, is) = (fmt_bytes(self.size_bytes_before), fmt_bytes(self.size_bytes));
        output::text(&match self.added {
            Some(_) if self.beyond_search.is_empty() => {
                format!("{name}: {was} before, {is} now\nany one of its members leads to the pool\n")
            }
            Some(_) => {
                let lost = self.beyond_search.join(", ");
                format!(
                    "{name}: {was} before, {is} now\nfrom now on name all of its members: {name}\n(a search by labels \
                     does not come to {lost}; or name its directory: --search DIR)\n"
                )
            }
            None if self.size_bytes == self.size_bytes_before => {
                format!("{name} has {is} already, all that its device has\n")
            }
            None => format!("{name}: {was} before, {is} now\n"),
        });
        Ok(())
    }
}

/// Fails unless `place` is a single persistent member.
pub(super) fn expect_one(place: &PoolPlace) -> Result<(), Failure> {
    place.refuse_volatile()?;
    if !place.is_one() {
        return Err(Failure::usage(format!("--add {place}: one at a time")).fix("run this once for each"));
    }
    Ok(())
}

/// Asks for confirmation before content on a device is destroyed.
pub(super) fn confirm_over(args: &GrowArgs, place: &PoolPlace, replaced: Option<&String>) -> Result<(), Failure> {
    replaced.map_or(Ok(()), |found| {
        confirm::destroy(args.yes, &format!("{place} holds {found}; adding it to the pool destroys that"))
    })
}

/// Opens the new member; creates or extends its file if a size is given.
pub(super) fn open_added(args: &GrowArgs, place: &PoolPlace) -> Result<Device, Failure> {
    let options = match (args.size, place.single_path()) {
        (Some(size), Some(_)) => format!(",size={size}"),
        (Some(_), None) => {
            return Err(Failure::usage("--size is for a file that is named by its path")
                .fix(format!("write it into the spec: {place},size=10G")));
        }
        (None, Some(path)) if sheave_daemon::place::is_missing(path) => {
            return Err(Failure::usage(format!("{place}: there is no such file, and no size to make it with"))
                .fix("add --size, such as --size 10G; the file takes space only as it is written"));
        }
        (None, _) => String::new(),
    };
    let mut devices = place.open_members(&options)?;
    devices.pop().ok_or_else(|| Failure::usage("--add names nothing"))
}
