//! The public names of a library as text, one line per name, from the pages that rustdoc made.
//!
//! Owns the parsing of the pages. rustdoc's JSON would be the better source, but a stable compiler does not write it. A
//! page has the declaration of an item as code, the methods of its inherent implementations, and the heads of its trait
//! implementations, each in an element with a known class or id. Called by [`super`].
//! Invariant L1: a missing element is an error, and is never taken for an item without methods. So the output of
//! another rustdoc version fails the check instead of shortening the listing. The tests of [`super`] name lines that
//! must be in the listing.
//! check, where it would otherwise shorten the listing. The tests of [`super`] name lines that must be in it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::rules;

/// Kinds of items that have a page of their own: the beginning of the file's name, and true if the page lists methods.
const KINDS: &[(&str, bool)] = &[
    ("struct", true),
    ("enum", true),
    ("union", true),
    ("trait", false), // its methods are in its declaration
    ("fn", false),
    ("constant", false),
    ("static", false),
    ("type", false),
    ("macro", false),
];

/// Returns the listing of the crate whose pages are in `dir`, and the names in it that have no documentation.
pub fn read(dir: &Path, name: &str) -> Result<(String, Vec<String>)> {
    let (mut items, mut undocumented) = (Vec::new(), Vec::new());
    walk(dir, name, &mut items, &mut undocumented)?;
    items.sort();
    ensure!(!items.is_empty(), "{}: no pages of items", dir.display());
    Ok((items.into_iter().map(|(_, text)| text).collect(), undocumented))
}

/// Adds the items of one module, each with its path and lines, and the undocumented names.
fn walk(dir: &Path, path: &str, items: &mut Vec<(String, String)>, undocumented: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), &format!("{path}::{file}"), items, undocumented)?;
            continue;
        }
        let Some((kind, item)) = file.strip_suffix(".html").and_then(|stem| stem.split_once('.')) else { continue };
        let Some((_, has_methods)) = KINDS.iter().find(|(known, _)| *known == kind) else { continue };
        let html = fs::read_to_string(entry.path())?;
        let lines = lines_of(&html, *has_methods).with_context(|| entry.path().display().to_string())?;
        let whole = format!("{path}::{item}");
        undocumented.extend(rules::undocumented(&html, "itself").into_iter().map(|part| format!("{whole}: {part}")));
        let text = lines.iter().fold(format!("\n{kind} {whole}\n"), |text, line| text + "    " + line + "\n");
        items.push((whole, text));
    }
    Ok(())
}

/// Returns the lines of one page.
fn lines_of(html: &str, has_methods: bool) -> Result<Vec<String>> {
    let from = html.find("rust item-decl\"><code>").context("no declaration: is this rustdoc's page of an item?")?;
    let (declaration, rest) = html[from..].split_once("</code></pre>").context("a declaration without an end")?;
    let declaration = declaration.split_once("<code>").map_or("", |(_, code)| code);
    let mut lines: Vec<String> = text_of(declaration).lines().map(|line| line.trim_end().to_owned()).collect();
    lines.retain(|line| !line.is_empty());
    if !has_methods {
        return Ok(lines);
    }
    if let Some(list) = list(rest, "implementations-list") {
        lines.extend(heads(list, "<section id=\"method.", "h4").chain(heads(
            list,
            "<section id=\"associatedconstant.",
            "h4",
        )));
    }
    let traits = list(rest, "trait-implementations-list").unwrap_or_default();
    let automatic = list(rest, "synthetic-implementations-list").context("no automatic traits")?;
    let mut impls: Vec<String> = heads(traits, "<section id=\"impl-", "h3").collect();
    impls.extend(heads(automatic, "<section id=\"impl-", "h3").filter(|line| {
        [" Send for ", " !Send for ", " Sync for ", " !Sync for "].iter().any(|part| line.contains(part))
    }));
    impls.retain(|line| !line.contains("StructuralPartialEq"));
    impls.sort();
    lines.extend(impls);
    Ok(lines)
}

/// Returns the text between the list with this id and the next heading of its rank.
fn list<'a>(html: &'a str, id: &str) -> Option<&'a str> {
    let from = html.find(&format!("id=\"{id}\""))?;
    let rest = &html[from..];
    Some(&rest[..rest.find("<h2 id=").unwrap_or(rest.len())])
}

/// Returns the code in the headings (`h3` or `h4`) of the sections that begin with `section`.
fn heads<'a>(html: &'a str, section: &'a str, rank: &'a str) -> impl Iterator<Item = String> + 'a {
    html.match_indices(section).filter_map(move |(at, _)| {
        let open = format!("<{rank} class=\"code-header\">");
        let head = html[at..].split_once(&open)?.1.split_once(&format!("</{rank}>"))?.0;
        Some(text_of(head).split_whitespace().collect::<Vec<_>>().join(" "))
    })
}

/// Returns the text of HTML, without tags and with entities replaced by their characters. Skips the label of a fold
/// ("Show 23 fields") and the links to notable traits, which are no code.
fn text_of(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    let mut rest = html;
    while let Some((before, from_tag)) = rest.split_once('<') {
        text.push_str(before);
        let (tag, after) = from_tag.split_once('>').unwrap_or((from_tag, ""));
        rest = match tag {
            "summary" | "summary class=\"hideme\"" => after.split_once("</summary>").map_or("", |(_, after)| after),
            _ if tag.contains("class=\"tooltip\"") => after.split_once("</a>").map_or("", |(_, after)| after),
            _ => after,
        };
        if tag.starts_with("div class=\"code-attribute\"") {
            rest = newline_after(&mut text, rest);
        }
    }
    text.push_str(rest);
    for (name, character) in
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&nbsp;", " "), ("&amp;", "&")]
    {
        text = text.replace(name, character);
    }
    text
}

/// Moves the text of an attribute, which is an element of its own, and ends its line.
fn newline_after<'a>(text: &mut String, rest: &'a str) -> &'a str {
    let (attribute, after) = rest.split_once("</div>").unwrap_or((rest, ""));
    text.push_str(&text_of(attribute));
    text.push('\n');
    after
}
