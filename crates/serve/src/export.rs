//! Exports: files that are served under names.
//!
//! Owns the description of an export for clients. Does not own its storage: a [`Backend`] has the file, and knows the
//! status of its ranges.
//!
//! - E1. A client counts as a client of an export from the moment when it gets the export until nothing of the client
//!   is under way. Taking an export out and giving it to a client happen under one lock, so that no client gets an
//!   export that is being taken out.
//! - E2. A thread that uses an export outside of that lock, such as a reader of slow I/Os, holds a reference. An export
//!   that was taken out is [`Gone`] when the last reference has ended and its backend is dropped.
//! - E3. All exports of one file have the same table of `BlockLocks`. The group that counts its I/O identifies a
//!   file.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Weak;
use std::time::{Duration, Instant};

use sheave_base::status::Status;
use sheave_base::sync::atomic::{AtomicBool, Ordering};
use sheave_base::sync::{Arc, Mutex, MutexGuard};
use sheave_blk::Device;
use sheave_iomap::File;
use sheave_iomap::io_stats::IoGroup;
use sheave_iomap::slow::SlowIo;
use sheave_nbd::{ExportInfo, Extent};

use crate::allow::Allow;
use crate::block_locks::BlockLocks;
use crate::clients::Who;
use crate::counts::{IoCounts, Tally};
use crate::error::ServeError;
use crate::handover::ExportState;
use crate::limit::{Bucket, Limit};
use crate::serial_thread::SerialThread;
use crate::vhost_user::{Board, VhostUser, VhostUserStatus};

/// Name of the metadata context that every export has.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number of that context in every backend.
pub const BASE_ALLOCATION_NUMBER: u64 = 0;
/// Preferred block size of exports with smaller blocks. Clients may still use smaller ones.
const MAX_PREFERRED: u32 = 4096;
/// Largest minimum block size that the protocol allows.
pub(crate) const MAX_MIN_BLOCK: u32 = 1 << 16;

/// A question about the status of a range. It is asked on a reactor's thread, so the answer must not wait for I/O,
/// unless the backend [reads for it](Backend::reads_for_status). The answer is a list of at least one extent, from the
/// start of the range on. The extents cover the range, or as much of it as a short search finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Number of the metadata context.
    pub context: u64,
    /// Position of the first byte.
    pub pos: u64,
    /// Length in bytes.
    pub len: u64,
    /// Number of contexts that one request asks for. They share the time that one answer may take.
    pub among: u32,
}

/// Reason why there is no answer, in words for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoStatus(pub &'static str);

/// Something that can be served.
pub trait Backend: Debug + Send + Sync {
    /// The file that requests go to.
    fn file(&self) -> &Arc<dyn File>;

    /// Calls `each` with the name of each metadata context.
    fn contexts(&self, each: &mut dyn FnMut(&str)) {
        each(BASE_ALLOCATION);
    }

    /// Returns the backend's number of a metadata context, if it has one of this name. The context behind a number may
    /// go away while clients have it; the number is never used for another.
    fn context(&self, name: &[u8]) -> Option<u64> {
        (name == BASE_ALLOCATION.as_bytes()).then_some(BASE_ALLOCATION_NUMBER)
    }

    /// Returns true if answers in a metadata context take I/O. They are then asked for on a thread of the export, one
    /// at a time.
    fn reads_for_status(&self, context: u64) -> bool {
        let _ = context;
        false
    }

    /// Returns the status of a range in a metadata context.
    fn extents(&self, question: &Question) -> Result<Vec<Extent>, NoStatus> {
        Ok(vec![Extent { len: question.len, status: 0 }])
    }

    /// Returns the error of a failed flush after which all later flushes fail, until the export is removed and added
    /// again.
    fn flush_failed(&self) -> Option<Status> {
        None
    }

    /// Returns true if zeroing a range is faster than writing zeroes.
    fn is_fast_to_zero(&self) -> bool {
        false
    }
}

/// The device under an export.
#[derive(Clone, Debug)]
pub struct ExportDevice {
    /// The name of the export.
    pub name: String,
    /// Its device. For a volume, that of its pool.
    pub device: Device,
    /// Error of a failed flush after which all later flushes fail ([`Backend::flush_failed`]).
    pub flush_failed: Option<Status>,
}

/// A backend under a name.
#[derive(Debug)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// A line of description.
    pub description: String,
    /// Clients may not write, whatever the backend allows.
    pub read_only: bool,
    /// Rules that decide which clients may open it.
    pub allow: Allow,
    /// The storage.
    pub backend: Box<dyn Backend>,
    /// The socket where a virtual machine attaches it; `None`: only NBD clients are served.
    pub vhost_user: Option<VhostUser>,
}

impl Export {
    /// Returns true if clients may not write.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.backend.file().is_read_only()
    }

    fn min_block(&self) -> u32 {
        self.backend.file().block_bytes().clamp(1, MAX_MIN_BLOCK)
    }

    fn info(&self, id: u32) -> ExportInfo {
        let file = self.backend.file();
        let min_block = self.min_block();
        // If the file ends within a block, that last part cannot be addressed and is not offered.
        let size = file.size_bytes() / u64::from(min_block) * u64::from(min_block);
        ExportInfo {
            id,
            name: self.name.clone(),
            description: self.description.clone(),
            size,
            read_only: self.is_read_only(),
            fast_zero: self.backend.is_fast_to_zero(),
            min_block,
            preferred_block: min_block.max(MAX_PREFERRED),
        }
    }
}

/// Flag that is set when an export is gone (E2).
#[derive(Clone, Debug, Default)]
pub(crate) struct Gone(Arc<AtomicBool>);

impl Gone {
    pub(crate) fn is_gone(&self) -> bool {
        // Acquire: pairs with the store of `Last`, which is after the end of the backend.
        self.0.load(Ordering::Acquire)
    }
}

/// Sets the flag of a [`Gone`] when it is dropped.
#[derive(Debug)]
struct Last(Gone);

impl Drop for Last {
    fn drop(&mut self) {
        // Release: pairs with the load in `Gone::is_gone`.
        self.0.0.store(true, Ordering::Release);
    }
}

/// An export that is served.
#[derive(Debug)]
pub(crate) struct Served {
    export: Export,
    locks: Arc<BlockLocks>,
    status_thread: SerialThread,
    board: Board,
    /// Declared last, hence dropped last: the flag is set after the backend is dropped.
    _last: Last,
}

impl Served {
    /// Returns the table of changes of its file.
    pub(crate) fn locks(&self) -> &Arc<BlockLocks> {
        &self.locks
    }

    /// Returns what reactors tell about its vhost-user device.
    pub(crate) fn board(&self) -> &Board {
        &self.board
    }

    /// Returns the thread that answers BLOCK_STATUS requests which take I/O.
    pub(crate) fn status_thread(&self) -> &SerialThread {
        &self.status_thread
    }
}

impl Deref for Served {
    type Target = Export;

    fn deref(&self) -> &Export {
        &self.export
    }
}

/// The export of clients that name none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DefaultExport {
    /// The export at the first place of the list, at the moment when a client asks. Clients get none while that place
    /// is empty.
    #[default]
    First,
    /// The export of this name. While it is not served there is none, so that a client that comes back without a name
    /// finds its own disk or nothing.
    Named(String),
    /// No export.
    Nobody,
}

/// The exports of a server. They come and go while it runs.
#[derive(Debug, Default)]
pub struct Exports {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    next_id: u32,
    list: Vec<Entry>,
    default: DefaultExport,
    /// Tables by the id of the group that counts a file's I/O (E3).
    locks: BTreeMap<u64, Weak<BlockLocks>>,
}

impl Entries {
    /// Returns the export that a client means by this name.
    fn named(&self, name: &[u8]) -> Option<&Entry> {
        let name = match &self.default {
            _ if !name.is_empty() => name,
            DefaultExport::First => return self.list.first(),
            DefaultExport::Named(name) => name.as_bytes(),
            DefaultExport::Nobody => return None,
        };
        self.list.iter().find(|entry| entry.name.as_bytes() == name)
    }

    /// Returns the table of an export's file (E3).
    fn locks_of(&mut self, export: &Export) -> Arc<BlockLocks> {
        let file = export.backend.file().io_group().map(|group| group.id());
        let known = file.and_then(|file| self.locks.get(&file)?.upgrade());
        known.unwrap_or_else(|| {
            let locks = Arc::new(BlockLocks::new(export.min_block()));
            self.locks.retain(|_, locks| locks.strong_count() > 0);
            file.into_iter().for_each(|file| _ = self.locks.insert(file, Arc::downgrade(&locks)));
            locks
        })
    }
}

/// A name, and the export that is served under it.
#[derive(Debug)]
struct Entry {
    /// Number that identifies the export to connections. Each export that is put here gets a new one.
    id: u32,
    name: String,
    /// `None` while the export is taken out: its name and its place are kept, and no client gets it.
    export: Option<Arc<Served>>,
    /// Set once an export that was taken out is gone.
    gone: Gone,
    clients: Vec<Arc<Tally>>,
    /// Counts of clients that are gone (K2).
    counts: IoCounts,
    /// The rate limit. Kept when the export is replaced.
    bucket: Arc<Bucket>,
    /// Rules that decide which clients may open it.
    allow: Allow,
    /// Number of refusals to clients that may not open it.
    refused: u64,
}

impl Entry {
    /// Adds the counts of a client that is gone to `counts`.
    fn keep(&mut self, tally: &Arc<Tally>) {
        if let Some(at) = self.clients.iter().position(|one| Arc::ptr_eq(one, tally)) {
            self.clients.swap_remove(at);
            self.counts += tally.read();
        }
    }

    fn counts(&self) -> IoCounts {
        let mut counts = self.counts;
        self.clients.iter().for_each(|tally| counts += tally.read());
        counts
    }
}

/// An export, for reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportStatus {
    /// Its name.
    pub name: String,
    /// A line of description.
    pub description: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Clients may not write.
    pub read_only: bool,
    /// Number of clients that have chosen it.
    pub clients: u32,
    /// Counts of its clients since it is served, including clients that are gone.
    pub counts: IoCounts,
    /// Its rate limit, if it has one.
    pub limit: Option<Limit>,
    /// Rules that decide which clients may open it.
    pub allow: Allow,
    /// Number of refusals to clients that may not open it.
    pub refused: u64,
    /// Its vhost-user device, if it has one.
    pub vhost_user: Option<VhostUserStatus>,
}

/// A slow I/O of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowRequest {
    /// Number of the reactor that recorded it.
    pub reactor: usize,
    /// Name of the export; `None` if it is gone.
    pub export: Option<String>,
    /// Time since it ended.
    pub age: Duration,
    /// The I/O.
    pub io: SlowIo,
}

/// Slow I/Os of a server.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SlowReading {
    /// The I/Os, the oldest first.
    pub slow: Vec<SlowRequest>,
    /// Number of the first I/O of the next reading, by reactor.
    pub next: Vec<u64>,
    /// Number of I/Os that were overwritten before they were read.
    pub lost: u64,
}

impl Exports {
    /// Makes a list of exports. The first is the default for clients that name none, unless [`Exports::with_default`]
    /// sets another.
    #[must_use]
    pub fn new(list: Vec<Export>) -> Exports {
        let exports = Exports::default();
        list.into_iter().for_each(|export| _ = exports.put(export));
        exports
    }

    /// Makes a list of places, some without an export. Such a place is kept until [`Server::put_export`] fills it or
    /// [`Server::forget_export`] removes it. Until then its name leads to no export, nor does the empty name if the
    /// place is the first.
    ///
    /// [`Server::put_export`]: crate::Server::put_export
    /// [`Server::forget_export`]: crate::Server::forget_export
    #[must_use]
    pub fn in_places(list: Vec<(String, Option<Export>)>) -> Exports {
        let exports = Exports::default();
        for (name, export) in list {
            match export {
                Some(export) => _ = exports.put(export),
                None => exports.keep_place(name),
            }
        }
        exports
    }

    /// Sets the export of clients that name none.
    #[must_use]
    pub fn with_default(self, default: DefaultExport) -> Exports {
        self.set_default(default);
        self
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().expect("invariant: nothing panics under this lock")
    }

    /// Sets the default export, for clients that name none, from now on. Clients that have an export keep it.
    pub(crate) fn set_default(&self, default: DefaultExport) {
        self.lock().default = default;
    }

    /// Returns the export with the number that a client was given.
    pub(crate) fn by_id(&self, id: u32) -> Option<Arc<Served>> {
        self.lock().list.iter().find(|entry| entry.id == id)?.export.clone()
    }

    /// Puts an export in the place of its name, or at the end if the name has no place. Clients of an earlier export of
    /// that name keep the earlier one. Returns its number if it has a vhost-user device, which is to be served.
    pub(crate) fn put(&self, export: Export) -> Option<u32> {
        let has_device = export.vhost_user.is_some();
        let mut entries = self.lock();
        let id = entries.next_id;
        entries.next_id = id.wrapping_add(1);
        let name = export.name.clone();
        let gone = Gone::default();
        let (locks, allow) = (entries.locks_of(&export), export.allow.clone());
        let export = Some(Arc::new(Served {
            export,
            locks,
            status_thread: SerialThread::default(),
            board: Board::default(),
            _last: Last(gone.clone()),
        }));
        match entries.list.iter_mut().find(|entry| entry.name == name) {
            Some(entry) => {
                (entry.id, entry.export, entry.gone, entry.allow) = (id, export, gone, allow);
                // Clients that are about to end belong to the export that was here before.
                while let Some(tally) = entry.clients.last().cloned() {
                    entry.keep(&tally);
                }
            }
            None => {
                let (clients, counts, bucket) = Default::default();
                entries.list.push(Entry { id, name, export, gone, clients, counts, bucket, allow, refused: 0 });
            }
        }
        has_device.then_some(id)
    }

    /// Returns the numbers of the exports that have a vhost-user device.
    pub(crate) fn with_devices(&self) -> Vec<u32> {
        let has = |entry: &&Entry| entry.export.as_ref().is_some_and(|export| export.vhost_user.is_some());
        self.lock().list.iter().filter(has).map(|entry| entry.id).collect()
    }

    /// Returns the number of the export with this name.
    pub(crate) fn id_of(&self, name: &str) -> Option<u32> {
        self.lock().list.iter().find(|entry| entry.name == name).map(|entry| entry.id)
    }

    /// Adds a place at the end for an export that is still to come.
    fn keep_place(&self, name: String) {
        let mut entries = self.lock();
        let id = entries.next_id;
        entries.next_id = id.wrapping_add(1);
        let (gone, clients, counts, bucket, allow) = Default::default();
        entries.list.push(Entry { id, name, export: None, gone, clients, counts, bucket, allow, refused: 0 });
    }

    /// Returns true if the name has an export or a place.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.lock().list.iter().any(|entry| entry.name == name)
    }

    /// Takes an export out and keeps its place (E1). Returns its number, and the flag that is set when it is gone (E2).
    /// Fails if it has clients, unless `force` is set.
    pub(crate) fn take(&self, name: &str, force: bool) -> Result<(u32, Gone), ServeError> {
        let mut entries = self.lock();
        let entry = entries.list.iter_mut().find(|entry| entry.name == name);
        let Some(entry) = entry else { return Err(ServeError::NoExport { name: name.into() }) };
        if !entry.clients.is_empty() && !force {
            return Err(ServeError::ExportInUse { name: name.into(), clients: entry.clients.len() as u32 });
        }
        let (id, gone, export) = (entry.id, entry.gone.clone(), entry.export.take());
        drop(entries);
        // Outside of the lock: a backend may do work when it is dropped.
        drop(export);
        Ok((id, gone))
    }

    /// Removes the place of an export that was taken out.
    pub(crate) fn forget(&self, name: &str) {
        self.lock().list.retain(|entry| entry.name != name || entry.export.is_some());
    }

    /// Gives a client the export with this number, if the client may still open it. The client counts with it from now
    /// on (E1, K2).
    pub(crate) fn choose(&self, id: u32, who: &Who, tally: &Arc<Tally>) -> Option<(Arc<Served>, Arc<Bucket>)> {
        let mut entries = self.lock();
        let entry = entries.list.iter_mut().find(|entry| entry.id == id && entry.allow.admits(who))?;
        let export = entry.export.clone()?;
        entry.clients.push(tally.clone());
        Some((export, entry.bucket.clone()))
    }

    /// Gives a client that another process has served until now the export of this name, whatever its rules are now: a
    /// client keeps its export. It counts with it from now on (E1, K2).
    pub(crate) fn keeps(&self, name: &str, tally: &Arc<Tally>) -> Option<(u32, Arc<Served>, Arc<Bucket>)> {
        let mut entries = self.lock();
        let entry = entries.list.iter_mut().find(|entry| entry.name == name)?;
        let export = entry.export.clone()?;
        entry.clients.push(tally.clone());
        Some((entry.id, export, entry.bucket.clone()))
    }

    /// Called when a client that has chosen this export is handed over: it takes its counts along.
    pub(crate) fn moved(&self, id: u32, tally: &Arc<Tally>) {
        if let Some(entry) = self.lock().list.iter_mut().find(|entry| entry.id == id) {
            entry.clients.retain(|one| !Arc::ptr_eq(one, tally));
        }
    }

    /// Returns the counters of all exports and places, without those of clients.
    pub(crate) fn kept_counts(&self) -> Vec<ExportState> {
        let of = |entry: &Entry| ExportState {
            name: entry.name.clone(),
            counts: entry.counts,
            refused: entry.refused,
            io: Vec::new(),
        };
        self.lock().list.iter().map(of).collect()
    }

    /// Adds counters of exports that another process has served until now.
    pub(crate) fn add_counts(&self, all: &[ExportState]) {
        let mut entries = self.lock();
        for state in all {
            if let Some(entry) = entries.list.iter_mut().find(|entry| entry.name == state.name) {
                entry.counts += state.counts;
                entry.refused = entry.refused.saturating_add(state.refused);
            }
        }
    }

    /// Returns the description of an export for its clients.
    pub(crate) fn info_of(&self, id: u32) -> Option<ExportInfo> {
        Some(self.by_id(id)?.info(id))
    }

    /// Called when a client that has chosen this export is gone.
    pub(crate) fn left(&self, id: u32, tally: &Arc<Tally>) {
        if let Some(entry) = self.lock().list.iter_mut().find(|entry| entry.id == id) {
            entry.keep(tally);
        }
    }

    /// Sets the rate limits of exports, or of places, from now on. Returns the number of names that were found.
    pub(crate) fn set_limits(&self, limits: &BTreeMap<&str, Option<Limit>>) -> usize {
        let (entries, now) = (self.lock(), Instant::now());
        let found = entries.list.iter().filter_map(|entry| Some((entry, limits.get(entry.name.as_str())?)));
        found.map(|(entry, limit)| entry.bucket.set(*limit, now)).count()
    }

    /// Sets the rules of exports, from now on. Clients that have an export keep it.
    pub(crate) fn set_allowed(&self, allowed: &BTreeMap<&str, Allow>) {
        for entry in &mut self.lock().list {
            if let Some(allow) = allowed.get(entry.name.as_str()) {
                entry.allow = allow.clone();
            }
        }
    }

    /// Counts a client that was refused an export.
    pub(crate) fn was_refused(&self, name: &str) {
        if let Some(entry) = self.lock().list.iter_mut().find(|entry| entry.name == name) {
            entry.refused = entry.refused.saturating_add(1);
        }
    }

    /// Fills in the exports of slow I/Os and the positions in them.
    pub(crate) fn name_slow(&self, slow: &mut [SlowRequest]) {
        let ids: Vec<u32> = self.lock().list.iter().map(|entry| entry.id).collect();
        // One reference at a time: a thread that takes an export out waits for the end of this reference.
        for export in ids.into_iter().filter_map(|id| self.by_id(id)) {
            let file = export.backend.file();
            let Some(group) = file.io_group().map(|group| group.id()) else { continue };
            let mine: Vec<_> = slow.iter_mut().filter(|slow| slow.io.file == group).collect();
            // Outside of the lock: `locate` takes long for a large volume.
            let mut ios: Vec<_> = mine.iter().map(|slow| slow.io).collect();
            file.locate(&mut ios);
            for (slow, io) in mine.into_iter().zip(ios) {
                slow.io = io;
                slow.export.get_or_insert_with(|| export.name.clone());
            }
        }
    }

    /// Returns the I/O counters of each export, in order. Files without counters are left out.
    pub(crate) fn io_groups(&self) -> Vec<(String, Arc<IoGroup>)> {
        let entries = self.lock();
        let exports = entries.list.iter().filter_map(|entry| entry.export.as_ref());
        exports.filter_map(|export| Some((export.name.clone(), export.backend.file().io_group()?.clone()))).collect()
    }

    /// Returns the device under each export, in order.
    pub(crate) fn devices(&self) -> Vec<ExportDevice> {
        let of = |export: &Arc<Served>| {
            let (device, flush_failed) = (export.backend.file().device().clone(), export.backend.flush_failed());
            ExportDevice { name: export.name.clone(), device, flush_failed }
        };
        self.lock().list.iter().filter_map(|entry| entry.export.as_ref().map(of)).collect()
    }

    /// Returns the status of each export, in order. Those that are taken out at the moment are left out.
    pub(crate) fn status(&self) -> Vec<ExportStatus> {
        let of = |entry: &Entry| {
            let export = entry.export.as_ref()?;
            Some(ExportStatus {
                name: export.name.clone(),
                description: export.description.clone(),
                size_bytes: export.backend.file().size_bytes(),
                read_only: export.is_read_only(),
                clients: entry.clients.len() as u32,
                counts: entry.counts(),
                limit: entry.bucket.limit(),
                allow: entry.allow.clone(),
                refused: entry.refused,
                vhost_user: export
                    .vhost_user
                    .as_ref()
                    .map(|vhost_user| export.board.status(vhost_user.listener.address())),
            })
        };
        self.lock().list.iter().filter_map(of).collect()
    }
}

/// The part that `Seen` shows to a client.
impl Exports {
    /// Finds the export that a client means by this name. Returns its name, and its description for the client if the
    /// client may open it.
    pub(crate) fn find(&self, name: &[u8], who: &Who) -> Option<(String, Option<ExportInfo>)> {
        let entries = self.lock();
        let entry = entries.named(name)?;
        let info = entry.export.as_ref()?.info(entry.id);
        Some((entry.name.clone(), entry.allow.admits(who).then_some(info)))
    }

    /// Calls `each` with name and description of each export that the client may open.
    pub(crate) fn list(&self, who: &Who, each: &mut dyn FnMut(&str, &str)) {
        let entries = self.lock();
        let allowed = entries.list.iter().filter(|entry| entry.allow.admits(who));
        let exports = allowed.filter_map(|entry| entry.export.as_ref());
        exports.for_each(|export| each(&export.name, &export.description));
    }

    /// Returns the number of exports and places.
    pub(crate) fn count(&self) -> usize {
        self.lock().list.len()
    }

    pub(crate) fn contexts(&self, export: u32, each: &mut dyn FnMut(&str)) {
        // Without the lock: a backend may search for long.
        if let Some(export) = self.by_id(export) {
            export.backend.contexts(each);
        }
    }

    pub(crate) fn context(&self, export: u32, name: &[u8]) -> Option<u64> {
        self.by_id(export)?.backend.context(name)
    }
}
