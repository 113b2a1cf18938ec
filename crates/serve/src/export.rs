//! What is served: files under names.
//!
//! Owns what a client is told of an export. Does not own how it is kept: a [`Backend`] has the file, and says what
//! lies where in it.
//!
//! E1. A client counts with its export from the moment when it gets the export until nothing of the client is under
//! way; taking an export out and giving it to a client happen under one lock, so that no client gets an export that is
//! being taken out.
//! E2. Who looks at an export outside of that lock, such as a reader of slow I/Os, has it for as long. What was taken
//! out is [`Gone`] when nobody has it any more, and its backend is dropped.
//! E3. All exports of one file, which is what counts its I/O in one place, have the same table of who changes which
//! blocks.

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
use crate::limit::{Bucket, Limit};
use crate::serial_thread::SerialThread;

/// The metadata context that every export has.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The number that backends give it.
pub const BASE_ALLOCATION_NUMBER: u64 = 0;
/// Largest preferred block that clients take: they may read and write no less.
const MAX_PREFERRED: u32 = 4096;
/// Largest smallest block that the protocol allows.
pub(crate) const MAX_MIN_BLOCK: u32 = 1 << 16;

/// A question for the status of a range. The answer has extents from the start of the range on, at least one, which
/// cover the range or as much of it as is found in a short time. It is asked on a reactor's thread, so the answer does
/// not wait for I/O, unless the backend says that it [does](Backend::reads_for_status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The number of the metadata context.
    pub context: u64,
    /// First byte.
    pub pos: u64,
    /// Bytes.
    pub len: u64,
    /// So many contexts are asked for at once, and share the time that one answer may take.
    pub among: u32,
}

/// Why there is no answer, in words for the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoStatus(pub &'static str);

/// Something that can be served.
pub trait Backend: Debug + Send + Sync {
    /// The file that requests go to.
    fn file(&self) -> &Arc<dyn File>;

    /// Tells the names of its metadata contexts.
    fn contexts(&self, each: &mut dyn FnMut(&str)) {
        each(BASE_ALLOCATION);
    }

    /// The backend's own number of a metadata context, if there is one of this name. What the number means may go away
    /// while clients have it; it never means anything else.
    fn context(&self, name: &[u8]) -> Option<u64> {
        (name == BASE_ALLOCATION.as_bytes()).then_some(BASE_ALLOCATION_NUMBER)
    }

    /// Whether answers in a metadata context take I/O: they are asked for on a thread of their own then, one at a time.
    fn reads_for_status(&self, context: u64) -> bool {
        let _ = context;
        false
    }

    /// The status of a range in a metadata context.
    fn extents(&self, question: &Question) -> Result<Vec<Extent>, NoStatus> {
        Ok(vec![Extent { len: question.len, status: 0 }])
    }

    /// How a flush has failed after which no later one succeeds, until the export is ended and added again.
    fn flush_failed(&self) -> Option<Status> {
        None
    }

    /// Whether zeroing a range is faster than writing zeroes.
    fn is_fast_to_zero(&self) -> bool {
        false
    }
}

/// The device under an export.
#[derive(Clone, Debug)]
pub struct ExportDevice {
    /// The name of the export.
    pub name: String,
    /// Its device; of a volume that of its pool.
    pub device: Device,
    /// How a flush has failed after which no later one succeeds ([`Backend::flush_failed`]).
    pub flush_failed: Option<Status>,
}

/// A backend under a name.
#[derive(Debug)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// A line for people.
    pub description: String,
    /// Writes are refused, whatever the backend can.
    pub read_only: bool,
    /// The rules that say which clients may open it.
    pub allow: Allow,
    /// What is served.
    pub backend: Box<dyn Backend>,
}

impl Export {
    /// Whether clients may change it.
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
        // A file that is not whole blocks long ends in a part that nobody can ask for.
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

/// Whether an export is gone (E2).
#[derive(Clone, Debug, Default)]
pub(crate) struct Gone(Arc<AtomicBool>);

impl Gone {
    pub(crate) fn is_gone(&self) -> bool {
        // Acquire: pairs with the store of `Last`, behind the end of the backend.
        self.0.load(Ordering::Acquire)
    }
}

/// Says when it is dropped that an export is gone.
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
    /// Dropped last.
    _last: Last,
}

impl Served {
    /// Who changes which blocks of it.
    pub(crate) fn locks(&self) -> &Arc<BlockLocks> {
        &self.locks
    }

    /// The thread for questions for its status that take I/O.
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
    /// The one that is first, or has the first place, at the moment when a client asks.
    #[default]
    First,
    /// The one of this name, and while that is not served none: whoever comes back without a name finds its own disk or
    /// nothing.
    Named(String),
    /// None.
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
    /// By the number of what counts the I/O of a file (E3).
    locks: BTreeMap<u64, Weak<BlockLocks>>,
}

impl Entries {
    /// What a client means that names this.
    fn named(&self, name: &[u8]) -> Option<&Entry> {
        let name = match &self.default {
            _ if !name.is_empty() => name,
            DefaultExport::First => return self.list.first(),
            DefaultExport::Named(name) => name.as_bytes(),
            DefaultExport::Nobody => return None,
        };
        self.list.iter().find(|entry| entry.name.as_bytes() == name)
    }

    /// The table of an export's file (E3).
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

/// A name, and what is served under it.
#[derive(Debug)]
struct Entry {
    /// The number that clients' connections have of it; each time that something is put here it gets a new one.
    id: u32,
    name: String,
    /// `None` while it is taken out: its name and its place are kept, and no client gets it.
    export: Option<Arc<Served>>,
    /// Whether it is gone, once it was taken out.
    gone: Gone,
    /// A tally for each client.
    clients: Vec<Arc<Tally>>,
    /// What was done for clients that are gone (K2).
    counts: IoCounts,
    /// How fast it may be; it stays with the name.
    bucket: Arc<Bucket>,
    /// The rules that say which clients may open it.
    allow: Allow,
    /// How often somebody was refused it who may not.
    refused: u64,
}

impl Entry {
    /// A client is gone: its numbers stay.
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
    /// A line for people.
    pub description: String,
    /// Bytes.
    pub size_bytes: u64,
    /// Clients may not change it.
    pub read_only: bool,
    /// Clients that have chosen it.
    pub clients: u32,
    /// What was done for its clients since it is served, those that are gone among them.
    pub counts: IoCounts,
    /// How fast it may be, if there is a limit.
    pub limit: Option<Limit>,
    /// The rules that say which clients may open it.
    pub allow: Allow,
    /// How often somebody was refused it who may not.
    pub refused: u64,
}

/// A slow I/O of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowRequest {
    /// The reactor that keeps it.
    pub reactor: usize,
    /// The export; `None` of one that is gone.
    pub export: Option<String>,
    /// How long ago it ended.
    pub age: Duration,
    /// What it was.
    pub io: SlowIo,
}

/// Slow I/Os of a server.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SlowReading {
    /// The oldest first.
    pub slow: Vec<SlowRequest>,
    /// Where the next reading goes on, by reactor.
    pub next: Vec<u64>,
    /// How many were pushed out before they were read.
    pub lost: u64,
}

impl Exports {
    /// These; the first is the one that clients get who name none, unless [`Exports::with_default`] says another.
    #[must_use]
    pub fn new(list: Vec<Export>) -> Exports {
        let exports = Exports::default();
        list.into_iter().for_each(|export| exports.put(export));
        exports
    }

    /// These, each in its place. A place without one is kept until [`Server::put_export`] fills it or
    /// [`Server::forget_export`] ends that: no client gets another one by its name, nor by none if it is the first.
    ///
    /// [`Server::put_export`]: crate::Server::put_export
    /// [`Server::forget_export`]: crate::Server::forget_export
    #[must_use]
    pub fn in_places(list: Vec<(String, Option<Export>)>) -> Exports {
        let exports = Exports::default();
        for (name, export) in list {
            match export {
                Some(export) => exports.put(export),
                None => exports.keep_place(name),
            }
        }
        exports
    }

    /// With this for clients that name none.
    #[must_use]
    pub fn with_default(self, default: DefaultExport) -> Exports {
        self.set_default(default);
        self
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().expect("invariant: nothing panics under this lock")
    }

    /// Sets what clients get that name none, from now on; those that have one keep it.
    pub(crate) fn set_default(&self, default: DefaultExport) {
        self.lock().default = default;
    }

    /// What clients are told of, by the number that they have of it.
    fn by_id(&self, id: u32) -> Option<Arc<Served>> {
        self.lock().list.iter().find(|entry| entry.id == id)?.export.clone()
    }

    /// Puts an export in its place, at the end when it has none. Clients that have another one of that name keep it.
    pub(crate) fn put(&self, export: Export) {
        let mut entries = self.lock();
        let id = entries.next_id;
        entries.next_id = id.wrapping_add(1);
        let name = export.name.clone();
        let gone = Gone::default();
        let (locks, allow) = (entries.locks_of(&export), export.allow.clone());
        let export =
            Some(Arc::new(Served { export, locks, status_thread: SerialThread::default(), _last: Last(gone.clone()) }));
        match entries.list.iter_mut().find(|entry| entry.name == name) {
            Some(entry) => {
                (entry.id, entry.export, entry.gone, entry.allow) = (id, export, gone, allow);
                // Clients that are still about to end belong to what was here before.
                while let Some(tally) = entry.clients.last().cloned() {
                    entry.keep(&tally);
                }
            }
            None => {
                let (clients, counts, bucket) = Default::default();
                entries.list.push(Entry { id, name, export, gone, clients, counts, bucket, allow, refused: 0 });
            }
        }
    }

    /// Has a place at the end for an export that is to come.
    fn keep_place(&self, name: String) {
        let mut entries = self.lock();
        let id = entries.next_id;
        entries.next_id = id.wrapping_add(1);
        let (gone, clients, counts, bucket, allow) = Default::default();
        entries.list.push(Entry { id, name, export: None, gone, clients, counts, bucket, allow, refused: 0 });
    }

    /// Whether there is one of that name, or a place for one.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.lock().list.iter().any(|entry| entry.name == name)
    }

    /// Takes an export out (E1), and leaves its place; its number, and what tells when it is gone (E2). Unless `force`,
    /// not while it has clients.
    pub(crate) fn take(&self, name: &str, force: bool) -> Result<(u32, Gone), ServeError> {
        let mut entries = self.lock();
        let entry = entries.list.iter_mut().find(|entry| entry.name == name);
        let Some(entry) = entry else { return Err(ServeError::NoExport { name: name.into() }) };
        if !entry.clients.is_empty() && !force {
            return Err(ServeError::ExportInUse { name: name.into(), clients: entry.clients.len() as u32 });
        }
        let (id, gone, export) = (entry.id, entry.gone.clone(), entry.export.take());
        drop(entries);
        // A backend may do something when it goes, so it does not go under the lock.
        drop(export);
        Ok((id, gone))
    }

    /// Forgets the place of an export that was taken out.
    pub(crate) fn forget(&self, name: &str) {
        self.lock().list.retain(|entry| entry.name != name || entry.export.is_some());
    }

    /// The export with the number that a client was told, if the client may still open it; the client counts with it
    /// from now on (E1, K2).
    pub(crate) fn choose(&self, id: u32, who: &Who, tally: &Arc<Tally>) -> Option<(Arc<Served>, Arc<Bucket>)> {
        let mut entries = self.lock();
        let entry = entries.list.iter_mut().find(|entry| entry.id == id && entry.allow.admits(who))?;
        let export = entry.export.clone()?;
        entry.clients.push(tally.clone());
        Some((export, entry.bucket.clone()))
    }

    /// A client that has chosen this is gone.
    pub(crate) fn left(&self, id: u32, tally: &Arc<Tally>) {
        if let Some(entry) = self.lock().list.iter_mut().find(|entry| entry.id == id) {
            entry.keep(tally);
        }
    }

    /// Sets how fast exports may be, from now on; they have places, if nothing else. How many have one.
    pub(crate) fn set_limits(&self, limits: &BTreeMap<&str, Option<Limit>>) -> usize {
        let (entries, now) = (self.lock(), Instant::now());
        let found = entries.list.iter().filter_map(|entry| Some((entry, limits.get(entry.name.as_str())?)));
        found.map(|(entry, limit)| entry.bucket.set(*limit, now)).count()
    }

    /// Sets who may open exports, from now on; who has one keeps it.
    pub(crate) fn set_allowed(&self, allowed: &BTreeMap<&str, Allow>) {
        for entry in &mut self.lock().list {
            if let Some(allow) = allowed.get(entry.name.as_str()) {
                entry.allow = allow.clone();
            }
        }
    }

    /// Counts that somebody was refused an export who may not open it.
    pub(crate) fn was_refused(&self, name: &str) {
        if let Some(entry) = self.lock().list.iter_mut().find(|entry| entry.name == name) {
            entry.refused += 1;
        }
    }

    /// Says of slow I/Os of which export they are, and where in it they lie.
    pub(crate) fn name_slow(&self, slow: &mut [SlowRequest]) {
        let ids: Vec<u32> = self.lock().list.iter().map(|entry| entry.id).collect();
        // One at a time, for who takes one of them out waits until it is not looked at any more.
        for export in ids.into_iter().filter_map(|id| self.by_id(id)) {
            let file = export.backend.file();
            let Some(group) = file.io_group().map(|group| group.id()) else { continue };
            let mine: Vec<_> = slow.iter_mut().filter(|slow| slow.io.file == group).collect();
            // Outside of the lock, for a large volume takes its time.
            let mut ios: Vec<_> = mine.iter().map(|slow| slow.io).collect();
            file.locate(&mut ios);
            for (slow, io) in mine.into_iter().zip(ios) {
                slow.io = io;
                slow.export.get_or_insert_with(|| export.name.clone());
            }
        }
    }

    /// What counts the I/O of each export, in order; of files that count none there is nothing.
    pub(crate) fn io_groups(&self) -> Vec<(String, Arc<IoGroup>)> {
        let entries = self.lock();
        let exports = entries.list.iter().filter_map(|entry| entry.export.as_ref());
        exports.filter_map(|export| Some((export.name.clone(), export.backend.file().io_group()?.clone()))).collect()
    }

    /// The device under each export, in order.
    pub(crate) fn devices(&self) -> Vec<ExportDevice> {
        let of = |export: &Arc<Served>| {
            let (device, flush_failed) = (export.backend.file().device().clone(), export.backend.flush_failed());
            ExportDevice { name: export.name.clone(), device, flush_failed }
        };
        self.lock().list.iter().filter_map(|entry| entry.export.as_ref().map(of)).collect()
    }

    /// What reports tell, in order. Those that are taken out at the moment are not among them.
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
            })
        };
        self.lock().list.iter().filter_map(of).collect()
    }
}

/// What [`Seen`](crate::seen::Seen) shows of them to a client.
impl Exports {
    /// What this client means that names this: its name, and what the client is told of it if it may open it.
    pub(crate) fn find(&self, name: &[u8], who: &Who) -> Option<(String, Option<ExportInfo>)> {
        let entries = self.lock();
        let entry = entries.named(name)?;
        let info = entry.export.as_ref()?.info(entry.id);
        Some((entry.name.clone(), entry.allow.admits(who).then_some(info)))
    }

    /// Tells name and description of each export that this client may open.
    pub(crate) fn list(&self, who: &Who, each: &mut dyn FnMut(&str, &str)) {
        let entries = self.lock();
        let allowed = entries.list.iter().filter(|entry| entry.allow.admits(who));
        let exports = allowed.filter_map(|entry| entry.export.as_ref());
        exports.for_each(|export| each(&export.name, &export.description));
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().list.len()
    }

    pub(crate) fn contexts(&self, export: u32, each: &mut dyn FnMut(&str)) {
        // Without the lock: a backend may look for long.
        if let Some(export) = self.by_id(export) {
            export.backend.contexts(each);
        }
    }

    pub(crate) fn context(&self, export: u32, name: &[u8]) -> Option<u64> {
        self.by_id(export)?.backend.context(name)
    }
}
