//! What is served: files under names.
//!
//! Owns what a client is told of an export. Does not own how it is kept: a [`Backend`] has the file, and says what
//! lies where in it.

use std::fmt::Debug;

use sheave_base::sync::Arc;
use sheave_iomap::File;
use sheave_nbd::{Catalog, ExportInfo, Extent};

/// The metadata context that every export has.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// Largest preferred block that clients take: they may read and write no less.
const MAX_PREFERRED: u32 = 4096;
/// Largest smallest block that the protocol allows.
const MAX_MIN_BLOCK: u32 = 1 << 16;

/// Something that can be served.
pub trait Backend: Debug + Send + Sync {
    /// The file that requests go to.
    fn file(&self) -> &Arc<dyn File>;

    /// Names of its metadata contexts. Their places are their numbers.
    fn contexts(&self) -> Vec<String> {
        vec![BASE_ALLOCATION.into()]
    }

    /// The status of a range in a metadata context: extents from its start on, at least one, that cover the range or
    /// as much of it as is found in a short time. Called on a reactor's thread, so it does not wait for I/O.
    fn extents(&self, context: u32, pos: u64, len: u64) -> Vec<Extent> {
        let _ = (context, pos);
        vec![Extent { len, status: 0 }]
    }

    /// Whether zeroing a range is faster than writing zeroes.
    fn is_fast_to_zero(&self) -> bool {
        false
    }
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
    /// What is served.
    pub backend: Box<dyn Backend>,
}

impl Export {
    /// Whether clients may change it.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.backend.file().is_read_only()
    }

    fn info(&self, id: u32) -> ExportInfo {
        let file = self.backend.file();
        let min_block = file.block_bytes().clamp(1, MAX_MIN_BLOCK);
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
            contexts: self.backend.contexts(),
        }
    }
}

/// The exports of a server.
#[derive(Debug, Default)]
pub struct Exports {
    list: Vec<Arc<Export>>,
}

impl Exports {
    /// These; the first is the one that clients get who name none.
    #[must_use]
    pub fn new(list: Vec<Export>) -> Exports {
        Exports { list: list.into_iter().map(Arc::new).collect() }
    }

    /// The export with the number that a client was told.
    pub(crate) fn get(&self, id: u32) -> Option<&Arc<Export>> {
        self.list.get(id as usize)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}

impl Catalog for Exports {
    fn find(&self, name: &[u8]) -> Option<ExportInfo> {
        let is = |export: &Arc<Export>| name.is_empty() || export.name.as_bytes() == name;
        let at = self.list.iter().position(is)?;
        Some(self.list[at].info(at as u32))
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        self.list.iter().for_each(|export| each(&export.name, &export.description));
    }
}
