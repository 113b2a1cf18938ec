//! Fencing: who had the exclusive lock, and has not let go of it, is on the blocklist before a claim is granted.
//!
//! Owns the proof of R6. librbd breaks the lock of a client that Ceph has not heard of for a while, and blocklists that
//! client first. Whether it does, and for how long, the image's and the pool's metadata may say, which go over the
//! configuration of a client; so nothing is assumed here: the list is read, and the client added where it is missing.
//!
//! A claim that is refused because that failed must not leave the lock free, or the next one would find nobody to
//! fence. So a client that Ceph does not hear of is fenced before its lock is asked for. One that is heard of may fall
//! silent while librbd waits for it: it is *marked* before, in the metadata of the image, which outlives this process,
//! and the mark goes when it is known that this client is fenced, has let go of the lock, or has it still.
//!
//! Called by the keeper.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::desk::{Desk, Refused};
use crate::librbd::Image;

/// What is left of a time on the blocklist that is not begun anew. The cluster's own is an hour by default.
const LEAST: Duration = Duration::from_secs(30 * 60);

/// The key of the mark: the image's id, the client's address, and the cookies of its watches, with blanks between.
const MARK: &str = "sheave_unfenced";
/// Most cookies in a mark. Who has more, and only those still, is fenced though it has let go.
const MARKED_WATCHES: usize = 64;

/// Who has the lock, before it is asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Before {
    address: String,
    /// Cookies of its watches.
    watches: Vec<u64>,
}

impl Before {
    /// Who has the lock of an image now, if another client has it.
    fn of(image: &Image) -> Result<Option<Before>, Refused> {
        let look = || {
            let Some(address) = image.other_owner()? else { return Ok(None) };
            let watches = image.watches_of(&address)?;
            Ok(Some(Before { address, watches }))
        };
        look().map_err(|errno: i32| format!("who has its exclusive lock could not be read: {}", sheave::Errno(errno)))
    }

    /// Who has the lock now, if another client has it, once the lock may be asked for: should it be broken, then that
    /// is known to whoever claims the image next.
    pub(crate) fn ready(image: &Image, desk: &Desk) -> Result<Option<Before>, Refused> {
        let unread = |errno| format!("who had its exclusive lock before could not be read: {}", sheave::Errno(errno));
        let id = image.id().map_err(unread)?;
        let before = Before::of(image)?;
        let mark = image.note(MARK).map_err(unread)?;
        // Who has the lock again is looked at as it is now.
        let has_it = |marked: &Before| before.as_ref().is_some_and(|before| before.address == marked.address);
        if let Some(marked) = mark.and_then(|mark| Before::marked(&mark, &id)).filter(|marked| !has_it(marked)) {
            // A client that was marked while it was stopped may be this one.
            if !image.is_own(&marked.address).map_err(unread)? {
                marked.fence(image, desk)?;
            }
            unmark(image);
        }
        match &before {
            // librbd would break the lock at once.
            Some(silent) if silent.watches.is_empty() => silent.fence(image, desk)?,
            Some(heard_of) => image.set_note(MARK, Some(&heard_of.mark(&id))).map_err(|errno| {
                format!(
                    "the client at {} has its exclusive lock, which could not be noted: {}",
                    heard_of.address,
                    sheave::Errno(errno)
                )
            })?,
            None => {}
        }
        Ok(before)
    }

    /// The lock is not ours: the mark goes if it is this client's still, or was let go of.
    pub(crate) fn has_kept(&self, image: &Image, owner: Option<&str>) {
        if owner == Some(&self.address) || self.has_let_go(image) {
            unmark(image);
        }
    }

    /// What is noted of it with the image of this id.
    fn mark(&self, id: &str) -> String {
        let watches = self.watches.iter().take(MARKED_WATCHES).map(|cookie| format!(" {cookie}"));
        format!("{id} {}{}", self.address, watches.collect::<String>())
    }

    /// Who is meant by a mark; nobody when it came from another image with a copy.
    fn marked(mark: &str, id: &str) -> Option<Before> {
        let mut words = mark.split_ascii_whitespace();
        words.next().filter(|image| *image == id)?;
        let address = words.next()?.to_owned();
        Some(Before { address, watches: words.filter_map(|cookie| cookie.parse().ok()).collect() })
    }

    /// Sees to it that this client writes no more, and tells when it is fenced.
    pub(crate) fn fence(&self, image: &Image, desk: &Desk) -> Result<(), Refused> {
        let address = &self.address;
        let failed = |what: &str| {
            let text = format!(
                "the client at {address} had its exclusive lock and did not let go of it, and {what}, so nothing would \
                 keep that client from writing. Give this user mon 'profile rbd' (`ceph auth caps`), or have an \
                 operator run `ceph osd blocklist add {address}`, and try again"
            );
            move |errno: i32| format!("{text} ({})", sheave::Errno(errno))
        };
        let look = || image.blocklisted_until(address).map_err(failed("the cluster's blocklist could not be read"));
        let mut until = look()?;
        if until.is_none() && self.has_let_go(image) {
            return Ok(());
        }
        // What is changed here the OSDs learn of with what is sent next: to look waits for the map that has it. Nobody
        // has the claim yet, so what that client writes before then is no worse than what it wrote before.
        if until.is_none() {
            image.blocklist(address).map_err(failed("it could not be put on the cluster's blocklist"))?;
            until = look()?;
        } else if until.as_deref().is_some_and(ends_soon) {
            let longer = image.blocklist_anew(address);
            until = look()?;
            if let Err(errno) = longer {
                desk.tell(format_args!(
                    "the client at {address}, which had its exclusive lock, is on the cluster's blocklist for a short \
                     time only, and that could not be made longer: {}. Stop that client before then for good, and see \
                     that rbd_blocklist_expire_seconds is set nowhere (`rbd config image ls`, `rbd config pool ls`)",
                    sheave::Errno(errno)
                ));
            }
        }
        let until = until.ok_or_else(|| failed("it is not on the cluster's blocklist")(libc::ENOENT))?;
        desk.tell(format_args!(
            "the client at {address}, which had its exclusive lock and was not heard of any more, is on the cluster's \
             blocklist until {until}: nothing that it sends until then arrives"
        ));
        Ok(())
    }

    /// Whether it has a watch that it had before: the lock of a client that has one is not broken, so it has given the
    /// lock up. A client that goes on after a stop has another watch.
    fn has_let_go(&self, image: &Image) -> bool {
        let now = image.watches_of(&self.address).unwrap_or_default();
        now.iter().any(|cookie| self.watches.contains(cookie))
    }
}

/// Nobody is marked any more. A mark that stays is read by the next claim, which finds out the same again.
pub(crate) fn unmark(image: &Image) {
    _ = image.set_note(MARK, None);
}

/// Whether this time, as a monitor writes it, is near. One that cannot be read is what the cluster said, and stays.
fn ends_soon(until: &str) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    seconds(until).is_some_and(|until| until < (now + LEAST).as_secs())
}

/// Seconds since 1970 of `2026-11-27T17:50:55.123456+0000`; also with a space for the T, and without a zone.
fn seconds(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let of_day = number(11, 13)? * 3600 + number(14, 16)? * 60 + number(17, 19)?;
    let zone = match text.get(19..)?.rfind(['+', '-']).map(|at| at + 19) {
        Some(at) => {
            let zone = number(at + 1, at + 3)? * 3600 + number(at + 3, at + 5)? * 60;
            if text[at..].starts_with('-') { -zone } else { zone }
        }
        None => 0,
    };
    // The year begins in March, so that the day that some years have more is its last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468;
    u64::try_from(days * 86_400 + of_day - zone).ok()
}

#[cfg(test)]
mod tests;
