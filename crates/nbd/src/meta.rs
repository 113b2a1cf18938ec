//! Queries of metadata contexts: the data of LIST_META_CONTEXT and SET_META_CONTEXT.
//!
//! A query names a context (`base:allocation`). In LIST, one that ends with a colon (`base:`) asks for all that begin
//! like it. Queries of other namespaces are ignored.

use crate::catalog::ExportInfo;
use crate::wire::MAX_STRING;

/// Most queries of one option.
pub(crate) const MAX_QUERIES: u32 = 128;

/// Why the data of an option cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// Lengths do not fit each other, or a query has no namespace.
    Syntax,
    /// More queries than [`MAX_QUERIES`].
    TooMany,
}

/// The data of an option, cut into its parts.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Queries<'a> {
    pub(crate) export: &'a [u8],
    pub(crate) queries: Vec<&'a [u8]>,
}

/// Takes a number from the front.
fn number(data: &mut &[u8]) -> Option<u32> {
    let (number, rest) = data.split_first_chunk::<4>()?;
    *data = rest;
    Some(u32::from_be_bytes(*number))
}

/// Takes a string with its length before it.
pub(crate) fn string<'a>(data: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = number(data)? as usize;
    if len > MAX_STRING {
        return None;
    }
    let (string, rest) = data.split_at_checked(len)?;
    *data = rest;
    Some(string)
}

/// Reads the data of LIST_META_CONTEXT or SET_META_CONTEXT.
pub(crate) fn parse(mut data: &[u8]) -> Result<Queries<'_>, Bad> {
    let export = string(&mut data).ok_or(Bad::Syntax)?;
    let many = number(&mut data).ok_or(Bad::Syntax)?;
    if many > MAX_QUERIES {
        return Err(Bad::TooMany);
    }
    let queries = (0..many).map(|_| string(&mut data).filter(|query| query.contains(&b':')).ok_or(Bad::Syntax));
    let queries = queries.collect::<Result<Vec<_>, _>>()?;
    if data.is_empty() { Ok(Queries { export, queries }) } else { Err(Bad::Syntax) }
}

/// The contexts, by number, that queries of LIST name; all of them where there is no query.
pub(crate) fn listed(export: &ExportInfo, queries: &[&[u8]]) -> Vec<u32> {
    let matches = |name: &[u8], query: &[u8]| name == query || query.ends_with(b":") && name.starts_with(query);
    chosen(export, |name| queries.is_empty() || queries.iter().any(|query| matches(name, query)))
}

/// The contexts, by number, that queries of SET name.
pub(crate) fn selected(export: &ExportInfo, queries: &[&[u8]]) -> Vec<u32> {
    chosen(export, |name| queries.contains(&name))
}

fn chosen(export: &ExportInfo, is: impl Fn(&[u8]) -> bool) -> Vec<u32> {
    let names = export.contexts.iter().take(crate::catalog::MAX_CONTEXTS);
    (0..).zip(names).filter(|(_, name)| is(name.as_bytes())).map(|(number, _)| number).collect()
}
