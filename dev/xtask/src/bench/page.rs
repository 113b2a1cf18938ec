//! Writes a section into its page, between its markers `bench:NAME` and `/bench`.
//!
//! People write the text outside the markers, and it stays unchanged.

use std::fs;

use anyhow::{Context, Result};

use crate::workspace;

const END: &str = "<!-- /bench -->";

/// Replaces the section `name` of a page, given by its path in the repository.
pub fn write(path: &str, name: &str, text: &str) -> Result<()> {
    let file = workspace::root().join(path);
    let page = fs::read_to_string(&file).with_context(|| format!("reading {path}"))?;
    let page =
        replace(&page, name, text).with_context(|| format!("{path} has no `<!-- bench:{name} -->` ... `{END}`"))?;
    fs::write(&file, page).with_context(|| format!("writing {path}"))
}

/// Returns the page with `text` between the markers of `name`, with an empty line before and after it. Returns `None`
/// if the page has no such markers.
pub fn replace(page: &str, name: &str, text: &str) -> Option<String> {
    let start = format!("<!-- bench:{name} -->\n");
    let (before, after) = page.split_once(start.as_str())?;
    let (old, rest) = after.split_once(END)?;
    let other = old.contains("<!-- bench:"); // the end marker belongs to another section
    (!other).then(|| format!("{before}{start}\n{text}\n{END}{rest}"))
}
