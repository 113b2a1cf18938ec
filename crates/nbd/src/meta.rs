//! Queries of metadata contexts: the data of LIST_META_CONTEXT and SET_META_CONTEXT.
//!
//! A query is the name of a context (`base:allocation`). In LIST, a query that ends with a colon (`base:`) matches all
//! contexts with that prefix. Queries in unknown namespaces are ignored.

use crate::catalog::{Catalog, MAX_CONTEXTS, MAX_LISTED};
use crate::wire::MAX_STRING;

/// Maximum number of queries in an option.
pub(crate) const MAX_QUERIES: u32 = 128;

/// The reason why the data of an option is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    /// Lengths are inconsistent, or a query has no namespace.
    Syntax,
    TooMany,
}

/// Parsed data of an option.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Queries<'a> {
    pub(crate) export: &'a [u8],
    pub(crate) queries: Vec<&'a [u8]>,
}

/// Removes a number from the front of `data`, and returns it.
fn number(data: &mut &[u8]) -> Option<u32> {
    let (number, rest) = data.split_first_chunk::<4>()?;
    *data = rest;
    Some(u32::from_be_bytes(*number))
}

/// Removes a string with a preceding length from the front of `data`, and returns it.
pub(crate) fn string<'a>(data: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = number(data)? as usize;
    if len > MAX_STRING {
        return None;
    }
    let (string, rest) = data.split_at_checked(len)?;
    *data = rest;
    Some(string)
}

/// Parses the data of LIST_META_CONTEXT or SET_META_CONTEXT.
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

/// Calls `tell` with the contexts that match the queries of LIST, or with all contexts if there is no query. Returns
/// true if the catalog had to list all contexts for that.
pub(crate) fn listed(catalog: &dyn Catalog, export: u32, queries: &[&[u8]], tell: &mut dyn FnMut(&[u8])) -> bool {
    let is_wide = |query: &&[u8]| query.ends_with(b":");
    let looks = queries.is_empty() || queries.iter().any(is_wide);
    let mut left: Vec<&[u8]> = queries.iter().copied().filter(|query| !is_wide(query)).collect();
    left.sort_unstable();
    left.dedup();
    let mut told = 0;
    if looks {
        catalog.contexts(export, &mut |name| {
            let name = name.as_bytes();
            let exact = left.iter().position(|query| *query == name);
            let wide = || queries.is_empty() || queries.iter().any(|query| is_wide(query) && name.starts_with(query));
            if told < MAX_LISTED && (exact.is_some() || wide()) {
                exact.map(|at| left.remove(at));
                told += 1;
                tell(name);
            }
        });
    }
    // A context can exist without being listed by the catalog.
    left.iter().filter(|name| catalog.context(export, name).is_some()).for_each(|name| tell(name));
    looks
}

/// Returns names and numbers of the contexts that the queries of SET name. Returns `None` if these are more than a
/// client can select.
pub(crate) fn selected<'a>(catalog: &dyn Catalog, export: u32, queries: &[&'a [u8]]) -> Option<Vec<(&'a [u8], u64)>> {
    let mut found: Vec<(&[u8], u64)> = Vec::new();
    for &name in queries {
        if found.iter().any(|(known, _)| *known == name) {
            continue;
        }
        let Some(number) = catalog.context(export, name) else { continue };
        if found.len() == MAX_CONTEXTS {
            return None;
        }
        found.push((name, number));
    }
    Some(found)
}
