//! Rules for every public name of the library: documented, extensible, and typed.
//!
//! Owns four rules on the text that [`listing`](super::listing) makes:
//! - R1: an item, its methods, fields and variants have documentation on the page that users see, whichever crate
//!   defines them. The lint `missing_docs` of the facade does not check re-exported items, and in the crates below it
//!   an item with a clear name has no comment.
//! - R2: a struct with public fields and an enum are `#[non_exhaustive]`, except for those in [`CLOSED`].
//! - R3: flags and errnos have types of their own, except for the kernel's layouts (`raw`).
//! - R4: every type in a declaration, a method or the head of an implementation has a name in the library, or is in
//!   [`STANDARD`] or [`NAMELESS`]. A program cannot make or store a value of a type without a name.

/// Types that will never have more fields or variants (R2), with the reason.
const CLOSED: &[(&str, &str)] = &[
    ("sheave::Errno", "a number"),
    ("sheave::FixedFile", "a number"),
    ("sheave::drivers::PreciseTs", "a number"),
    ("sheave::stats::CoarseTs", "a number"),
    ("sheave::IoParts", "made by implementations of an unsafe trait outside, which promise what each part is"),
    ("sheave::drivers::IoVec", "the kernel's layout"),
    ("sheave::stats::Place", "in the file, or below it: there is no third"),
    ("sheave::stats::Split", "its parts are all of a latency: one more would change what the others mean"),
    ("sheave::stats::Stage", "the parts of a split"),
    ("sheave::raw::Cqe", "the kernel's layout"),
    ("sheave::raw::Sqe", "the kernel's layout"),
];

/// Types and traits of the standard library that the library has in its signatures (R4).
const STANDARD: &[&str] = &[
    "Any",
    "Arc",
    "AsFd",
    "BitOr",
    "BitOrAssign",
    "Box",
    "Clone",
    "ControlFlow",
    "Copy",
    "Debug",
    "Default",
    "Deref",
    "DerefMut",
    "Display",
    "Drop",
    "Duration",
    "Eq",
    "Error",
    "ExactSizeIterator",
    "Fn",
    "FnMut",
    "FnOnce",
    "From",
    "FromIterator",
    "Hash",
    "Instant",
    "Into",
    "Item",
    "Iterator",
    "NonNull",
    "Option",
    "Ord",
    "OwnedFd",
    "PartialEq",
    "PartialOrd",
    "Path",
    "PathBuf",
    "Range",
    "Ref",
    "Result",
    "Self",
    "Send",
    "SocketAddr",
    "String",
    "Sync",
    "SystemTime",
    "Vec",
];

/// Types that deliberately have no name in the library (R4), with the reason.
const NAMELESS: &[(&str, &str)] =
    &[("Sealed", "so that no other type is an operation"), ("Histogram", "it has the name Latencies")];

/// Beginnings of those parts of a page that have documentation of their own. The beginning for a field of a variant is
/// that of its variant.
const DEFINED: &[&str] = &[
    "<section id=\"method.",
    "<section id=\"tymethod.",
    "<section id=\"associatedconstant.",
    "<section id=\"variant.",
    "<span id=\"variant.",
    "<span id=\"structfield.",
];

/// Returns the names on the page of one item that have no documentation (R1).
pub fn undocumented(html: &str, item: &str) -> Vec<String> {
    let own =
        ["trait-implementations", "deref-methods", "foreign-impls", "implementors"].map(|id| format!("<h2 id=\"{id}"));
    let end = own.iter().filter_map(|heading| html.find(heading.as_str())).min().unwrap_or(html.len());
    let from = html.find("rust item-decl").unwrap_or(0);
    let page = html.get(from..end).unwrap_or("");
    let mut starts: Vec<(usize, &str)> = vec![(0, item)];
    for defined in DEFINED {
        starts.extend(page.match_indices(defined).map(|(at, found)| {
            let name = &page[at + found.len()..];
            (at, &name[..name.find('"').unwrap_or(0)])
        }));
    }
    starts.sort_unstable();
    let ends = starts.iter().skip(1).map(|start| start.0).chain([page.len()]);
    let parts = starts.iter().zip(ends).map(|(&(at, name), end)| (name, &page[at..end]));
    parts.filter(|(_, text)| !text.contains("class=\"docblock\">")).map(|(name, _)| name.to_owned()).collect()
}

/// Returns the types in the listing that no program can name (R4), one line each.
pub fn unnameable(listing: &str) -> Vec<String> {
    let heads = || {
        listing.split("\n\n").filter_map(|item| item.lines().find(|line| !(line.is_empty() || line.starts_with('#'))))
    };
    let named: Vec<&str> = heads().filter_map(|head| head.rsplit("::").next()).collect();
    let is_known = |word: &str| {
        let is_constant = !word.contains(|letter: char| letter.is_ascii_lowercase());
        is_constant
            || named.contains(&word)
            || STANDARD.contains(&word)
            || NAMELESS.iter().any(|(nameless, _)| *nameless == word)
    };
    let mut found = Vec::new();
    for item in listing.split("\n\n") {
        let mut lines = item.lines().filter(|line| !(line.is_empty() || line.starts_with('#')));
        let Some(head) = lines.next() else { continue };
        for line in lines.map(str::trim).filter(|line| !line.starts_with("//")) {
            let unknown = types_in(line).find(|word| !is_known(word));
            found.extend(unknown.map(|word| format!("{head}: `{line}` has {word}, which has no public name (R4)")));
        }
    }
    found
}

/// Returns the words of a line that look like types. Skips a variant at the beginning of the line, and the names after
/// a path.
fn types_in(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let words = line.split(move |letter: char| !is_part(letter)).filter(|word| !word.is_empty());
    words.filter(move |word| {
        let at = word.as_ptr() as usize - line.as_ptr() as usize;
        at > 0 && !line[..at].ends_with("::") && word.starts_with(|letter: char| letter.is_ascii_uppercase())
    })
}

/// Returns the violations of R2, R3 and R4 in the listing, one line each.
pub fn broken(listing: &str) -> Vec<String> {
    let mut found = unnameable(listing);
    for item in listing.split("\n\n") {
        let mut lines = item.lines().filter(|line| !(line.is_empty() || line.starts_with('#')));
        let Some((kind, name)) = lines.next().and_then(|head| head.split_once(' ')) else { continue };
        let lines: Vec<&str> = lines.map(str::trim).collect();
        let public_fields = |line: &&str| {
            let line = line.trim_start_matches("pub ");
            line.starts_with("struct ") && line.contains("(pub ")
        };
        let declared: Vec<&str> =
            lines.iter().copied().take_while(|line| !line.starts_with("pub fn") && !line.starts_with("impl")).collect();
        let is_open = match kind {
            "enum" => true,
            "struct" => {
                declared.iter().any(|line| line.starts_with("pub ") && line.ends_with(',') && line.contains(": "))
                    || declared.iter().any(public_fields)
            }
            _ => false,
        };
        let may_grow = declared.contains(&"#[non_exhaustive]") || declared.contains(&"/* private fields */");
        if is_open && !may_grow && !CLOSED.iter().any(|(closed, _)| *closed == name) {
            found.push(format!("{name} could not get another field or variant: make it #[non_exhaustive] (R2)"));
        }
        if !name.starts_with("sheave::raw::") {
            let bare = lines.iter().filter(|line| is_bare(line));
            found.extend(bare.map(|line| format!("{name}: `{line}` has an integer for flags or an errno (R3)")));
        }
    }
    found
}

/// Returns true if a line has an integer for flags or for an errno (R3). Conversions from and to bits are allowed.
fn is_bare(line: &str) -> bool {
    let integers = ["u8", "u16", "u32", "u64", "i32", "i64", "usize"];
    let typed = |name: &str| integers.iter().any(|integer| line.contains(&format!("{name}: {integer}")));
    let answers = |name: &str| {
        let is_it = line.contains(&format!("fn {name}("));
        is_it && integers.iter().any(|integer| line.ends_with(&format!("-> {integer}")))
    };
    ["flags", "errno", "opcode"].iter().any(|name| typed(name) || answers(name))
}
