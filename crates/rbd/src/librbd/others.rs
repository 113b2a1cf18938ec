//! Other clients of an image, with their watches and the blocklist, and the notes in the image's metadata.
#![allow(unsafe_code)] // Calls C.

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

use super::{Image, WatcherOf, check, text};

/// Number of watchers for which the first query has room, and the largest number that are read at all.
const WATCHERS: (usize, usize) = (16, 1 << 16);

/// Size of the buffer for a note, and for the id of an image.
const NOTE_BYTES: usize = 4096;

impl Image {
    /// Returns the end of the blocklist entry of the client at this address, if it has one. Waits for the newest map
    /// first, so that the OSDs learn of the entry with this client's next message.
    pub(crate) fn blocklisted_until(&self, address: &str) -> Result<Option<String>, i32> {
        let cluster = &self.pool.cluster;
        cluster.wait_for_latest_map()?;
        // Releases before Pacific call the blocklist by its older name.
        let list =
            |name: &str| cluster.ask_monitor(&format!("{{\"prefix\": \"osd {name} ls\", \"format\": \"json\"}}"));
        let listed = list("blocklist").or_else(|_| list("blacklist"))?;
        let found = listed.split_once(&format!("\"{address}\"")).map(|(_, behind)| behind);
        let until = found.map(|behind| behind.split('"').find(|word| word.starts_with("20")).unwrap_or("some time"));
        Ok(until.map(str::to_owned))
    }

    /// Puts the client at this address on the cluster's blocklist, for the cluster's default time.
    pub(crate) fn blocklist(&self, address: &str) -> Result<(), i32> {
        self.change_blocklist("add", address)
    }

    /// Renews a blocklist entry. An existing entry keeps its time, so it is removed first. Without the right to remove
    /// it, the old entry stays.
    pub(crate) fn blocklist_anew(&self, address: &str) -> Result<(), i32> {
        self.change_blocklist("rm", address)?;
        self.blocklist(address)
    }

    fn change_blocklist(&self, how: &str, address: &str) -> Result<(), i32> {
        if address.contains(['"', '\\']) {
            return Err(libc::EINVAL);
        }
        let change = |name: &str| {
            let command = format!("\"prefix\": \"osd {name}\", \"{name}op\": \"{how}\", \"addr\": \"{address}\"");
            self.pool.cluster.ask_monitor(&format!("{{{command}}}"))
        };
        // Under the older name where needed, as in `blocklisted_until`.
        change("blocklist").or_else(|errno| change("blacklist").map_err(|_| errno)).map(drop)
    }

    /// Returns the cookies of the watches that the client at this address has on the image. A client has none once Ceph
    /// has received nothing from it for a while.
    pub(crate) fn watches_of(&self, address: &str) -> Result<Vec<u64>, i32> {
        Ok(self.watches(address)?.iter().map(|watch| watch.cookie).collect())
    }

    /// Returns true if this client is the one at this address.
    pub(crate) fn is_own(&self, address: &str) -> Result<bool, i32> {
        let number = self.pool.cluster.number();
        Ok(self.watches(address)?.iter().any(|watch| u64::try_from(watch.id) == Ok(number)))
    }

    /// Returns the watches that the client at this address has on the image. Their `address` pointers are no longer
    /// valid.
    fn watches(&self, address: &str) -> Result<Vec<WatcherOf>, i32> {
        let mut room = WATCHERS.0;
        loop {
            let mut list = vec![WatcherOf { address: null_mut(), id: 0, cookie: 0 }; room];
            let mut many = room;
            // SAFETY: the image is open, and there is room for as many watchers as it says.
            match check(unsafe { (self.api.rbd_watchers_list)(self.handle, list.as_mut_ptr(), &mut many) }) {
                // librbd has put nothing there.
                Err(libc::ERANGE) if room < WATCHERS.1 => room = many.max(room * 2).min(WATCHERS.1),
                Err(errno) => return Err(errno),
                Ok(()) => {
                    let many = many.min(room);
                    // SAFETY: librbd has put a text into each of those, which are ours until they are given back below.
                    let is_its =
                        |found: &&WatcherOf| unsafe { CStr::from_ptr(found.address) }.to_bytes() == address.as_bytes();
                    let its = list[..many].iter().filter(is_its).copied().collect();
                    // SAFETY: as above; they are given back once.
                    unsafe { (self.api.rbd_watchers_list_cleanup)(list.as_mut_ptr(), many) };
                    return Ok(its);
                }
            }
        }
    }

    /// Returns the image's id, which no other image of its pool ever has.
    pub(crate) fn id(&self) -> Result<String, i32> {
        let mut room = [0 as c_char; NOTE_BYTES];
        // SAFETY: the image is open, and there is as much room as is said.
        check(unsafe { (self.api.rbd_get_id)(self.handle, room.as_mut_ptr(), room.len()) })?;
        Ok(text_in(&room))
    }

    /// Returns the note under this key in the image's metadata, if there is one.
    pub(crate) fn note(&self, key: &str) -> Result<Option<String>, i32> {
        let (key, mut room, mut len) = (text(key), vec![0 as c_char; NOTE_BYTES], NOTE_BYTES);
        // SAFETY: the image is open, the key is valid for the call, and there is as much room as is said.
        let found =
            check(unsafe { (self.api.rbd_metadata_get)(self.handle, key.as_ptr(), room.as_mut_ptr(), &mut len) });
        match found {
            Ok(()) => Ok(Some(text_in(&room))),
            Err(libc::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Replaces the note under this key; removes it if `value` is `None`.
    pub(crate) fn set_note(&self, key: &str, value: Option<&str>) -> Result<(), i32> {
        let (key, value) = (text(key), value.map(text));
        // SAFETY: the image is open, and the texts are valid for the call.
        check(unsafe {
            match &value {
                Some(value) => (self.api.rbd_metadata_set)(self.handle, key.as_ptr(), value.as_ptr()),
                None => (self.api.rbd_metadata_remove)(self.handle, key.as_ptr()),
            }
        })
    }
}

fn text_in(room: &[c_char]) -> String {
    let bytes: Vec<u8> = room.iter().map(|byte| *byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
