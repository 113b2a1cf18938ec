//! Putting a section into docs/performance.md, between its markers `bench:NAME` and `/bench`.
//!
//! Everything outside of the markers is written by people and stays as it is.

use std::fs;

use anyhow::{Context, Result};

use crate::workspace;

const PAGE: &str = "docs/performance.md";
const END: &str = "<!-- /bench -->";

/// Replaces the section `name` of the page.
pub fn write(name: &str, text: &str) -> Result<()> {
    let path = workspace::root().join(PAGE);
    let page = fs::read_to_string(&path).with_context(|| format!("reading {PAGE}"))?;
    let page =
        replace(&page, name, text).with_context(|| format!("{PAGE} has no `<!-- bench:{name} -->` ... `{END}`"))?;
    fs::write(&path, page).with_context(|| format!("writing {PAGE}"))
}

/// The page with another text between the markers of `name`; `None` when it has no such markers.
pub fn replace(page: &str, name: &str, text: &str) -> Option<String> {
    let start = format!("<!-- bench:{name} -->\n");
    let (before, after) = page.split_once(start.as_str())?;
    let (old, rest) = after.split_once(END)?;
    let other = old.contains("<!-- bench:"); // the end marker is another section's
    (!other).then(|| format!("{before}{start}{text}{END}{rest}"))
}
