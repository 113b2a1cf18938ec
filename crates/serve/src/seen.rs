//! The exports as one client sees them: the catalog of its handshake, without exports that it may not open.

use std::cell::RefCell;

use sheave_nbd::{Catalog, ExportInfo};

use crate::clients::Who;
use crate::export::Exports;

pub(crate) struct Seen<'a> {
    exports: &'a Exports,
    who: &'a Who,
    /// The last export that the client asked for and may not open.
    refused: RefCell<Option<String>>,
}

impl<'a> Seen<'a> {
    pub(crate) fn new(exports: &'a Exports, who: &'a Who) -> Seen<'a> {
        Seen { exports, who, refused: RefCell::default() }
    }

    /// Returns the last export that the client asked for and may not open.
    pub(crate) fn into_refused(self) -> Option<String> {
        self.refused.into_inner()
    }
}

impl Catalog for Seen<'_> {
    fn find(&self, name: &[u8]) -> Option<ExportInfo> {
        let (name, info) = self.exports.find(name, self.who)?;
        if info.is_none() {
            self.refused.replace(Some(name));
        }
        info
    }

    fn list(&self, each: &mut dyn FnMut(&str, &str)) {
        self.exports.list(self.who, each);
    }

    fn exports(&self) -> usize {
        self.exports.count()
    }

    fn contexts(&self, export: u32, each: &mut dyn FnMut(&str)) {
        self.exports.contexts(export, each);
    }

    fn context(&self, export: u32, name: &[u8]) -> Option<u64> {
        self.exports.context(export, name)
    }
}
