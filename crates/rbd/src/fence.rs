//! Fencing: a client that had the exclusive lock, and has not released it, is on the blocklist before a claim is
//! granted.
//!
//! Owns the proof of R6. librbd breaks the lock of a client from which Ceph has received nothing for a while, and
//! blocklists that client first. The metadata of the image and the pool can turn that off or shorten it, and overrides
//! a client's configuration. Therefore nothing is assumed here: the blocklist is read, and the client is added if it is
//! missing.
//!
//! A claim that is refused because fencing failed must not leave the lock free, or the next claim would find no client
//! to fence. So a silent client is fenced before its lock is requested. A client that is alive may become silent while
//! librbd waits for it. Therefore it is *marked* first, in the image's metadata, which outlives this process. The mark
//! is removed once the client is known to be fenced, to have released the lock, or to have it still.
//!
//! Called by the keeper.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::desk::{Desk, Refused};
use crate::librbd::Image;

/// Remaining time on the blocklist below which the entry is renewed. The cluster's default time is an hour.
const LEAST: Duration = Duration::from_secs(30 * 60);

/// Metadata key of the mark. Its value is the image's id, the client's address, and the cookies of its watches,
/// separated by blanks.
const MARK: &str = "sheave_unfenced";
/// Largest number of cookies in a mark. A client that has more watches, and later only the others, is fenced although
/// it released the lock.
const MARKED_WATCHES: usize = 64;

/// The owner of the lock before it is requested.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Before {
    address: String,
    /// Cookies of the owner's watches.
    watches: Vec<u64>,
}

impl Before {
    /// Returns the owner of the image's lock, if that is another client.
    fn of(image: &Image) -> Result<Option<Before>, Refused> {
        let look = || {
            let Some(address) = image.other_owner()? else { return Ok(None) };
            let watches = image.watches_of(&address)?;
            Ok(Some(Before { address, watches }))
        };
        look().map_err(|errno: i32| format!("who has its exclusive lock could not be read: {}", sheave::Errno(errno)))
    }

    /// Prepares for requesting the lock. A silent owner is fenced. An owner that is alive is marked, so that the next
    /// claim knows of it if its lock is broken. Returns the owner, if that is another client.
    pub(crate) fn ready(image: &Image, desk: &Desk) -> Result<Option<Before>, Refused> {
        let unread = |errno| format!("who had its exclusive lock before could not be read: {}", sheave::Errno(errno));
        let id = image.id().map_err(unread)?;
        let before = Before::of(image)?;
        let mark = image.note(MARK).map_err(unread)?;
        // An owner that was marked and has the lock again is judged by its present watches, below.
        let has_it = |marked: &Before| before.as_ref().is_some_and(|before| before.address == marked.address);
        if let Some(marked) = mark.and_then(|mark| Before::marked(&mark, &id)).filter(|marked| !has_it(marked)) {
            // A client that was marked while it was stopped may be this one, which must not fence itself.
            if !image.is_own(&marked.address).map_err(unread)? {
                marked.fence(image, desk)?;
            }
            unmark(image);
        }
        match &before {
            // A silent client: librbd would break its lock at once.
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

    /// Removes the mark after the lock was not granted, if the owner still has the lock or has released it.
    pub(crate) fn has_kept(&self, image: &Image, owner: Option<&str>) {
        if owner == Some(&self.address) || self.has_let_go(image) {
            unmark(image);
        }
    }

    /// Returns the mark of this client for the image with this id.
    fn mark(&self, id: &str) -> String {
        let watches = self.watches.iter().take(MARKED_WATCHES).map(|cookie| format!(" {cookie}"));
        format!("{id} {}{}", self.address, watches.collect::<String>())
    }

    /// Parses a mark. Returns `None` if it has another image's id, which happens because metadata is copied along with
    /// an image.
    fn marked(mark: &str, id: &str) -> Option<Before> {
        let mut words = mark.split_ascii_whitespace();
        words.next().filter(|image| *image == id)?;
        let address = words.next()?.to_owned();
        Some(Before { address, watches: words.filter_map(|cookie| cookie.parse().ok()).collect() })
    }

    /// Ensures that this client cannot write any more: either it has released the lock, or it is fenced. Fencing is
    /// reported.
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
        // OSDs learn of a change to the blocklist with the next message from here: reading the list waits for its map.
        // Nobody has the claim yet, so until then the client's writes do no more harm than those before.
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

    /// Returns true if the client has released the lock. It has if it still has a watch from before, because the lock
    /// of a client with a live watch is not broken. A client that was stopped and continues gets a new watch.
    fn has_let_go(&self, image: &Image) -> bool {
        let now = image.watches_of(&self.address).unwrap_or_default();
        now.iter().any(|cookie| self.watches.contains(cookie))
    }
}

/// Removes the mark. If that fails, the next claim reads the mark and comes to the same result.
pub(crate) fn unmark(image: &Image) {
    _ = image.set_note(MARK, None);
}

/// Returns true if a time that a monitor has sent is near. An unreadable time counts as far away.
fn ends_soon(until: &str) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    seconds(until).is_some_and(|until| until < (now + LEAST).as_secs())
}

/// Parses `2026-11-27T17:50:55.123456+0000`, also with a blank instead of the T, or without a zone. Returns seconds
/// since 1970.
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
    // Count years from March, so that a leap day is the last day of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - 719_468;
    u64::try_from(days * 86_400 + of_day - zone).ok()
}

#[cfg(test)]
mod tests {
    use super::{Before, MARKED_WATCHES, ends_soon, seconds};

    #[test]
    fn a_mark_names_its_client_and_its_image() {
        let before = |watches: Vec<u64>| Before { address: "[::1]:0/17".into(), watches };
        for watches in [vec![], vec![7], vec![7, u64::MAX]] {
            let mark = before(watches.clone()).mark("5e1f");
            assert_eq!(Before::marked(&mark, "5e1f"), Some(before(watches)), "{mark}");
            assert_eq!(Before::marked(&mark, "5e1"), None, "another image's, {mark}");
        }
        let many: Vec<u64> = (1 << 63..).take(1000).collect();
        let mark = before(many.clone()).mark("5e1f");
        assert!(mark.len() < 4000);
        assert_eq!(Before::marked(&mark, "5e1f"), Some(before(many[..MARKED_WATCHES].to_vec())));
        for mark in ["", "5e1f", " 5e1f "] {
            assert_eq!(Before::marked(mark, "5e1f"), None);
        }
    }

    #[test]
    fn times_of_a_monitor_are_read() {
        for (text, is) in [
            ("1970-01-01T00:00:00.000000+0000", 0),
            ("2000-02-29T12:00:01.5+0000", 951_825_601),
            ("2026-11-27T17:50:55.123456+0000", 1_795_801_855),
            ("2026-11-27T19:50:55.123456+0200", 1_795_801_855),
            ("2026-11-27T12:20:55.123456-0530", 1_795_801_855),
            ("2026-11-27 17:50:55.123456", 1_795_801_855),
        ] {
            assert_eq!(seconds(text), Some(is), "{text}");
        }
        for text in ["", "some time", "2026-11-27", "2026-11-27T17:5", "2026-11-27T17:50:55+é"] {
            assert_eq!(seconds(text), None, "{text}");
        }
        assert!(ends_soon("2026-01-01T00:00:00.000000+0000") && !ends_soon("2999-01-01T00:00:00.000000+0000"));
        assert!(!ends_soon("some time"));
    }
}
