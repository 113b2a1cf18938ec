//! The part of Markdown that the docs check needs: code spans, links, headings, and commands.

/// Returns the lines outside fenced blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(at, line)| {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            return None;
        }
        (!fenced).then_some((at + 1, line))
    })
}

/// Returns the contents of `code spans`, with their lines.
pub fn code_spans(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(line, text)| text.split('`').skip(1).step_by(2).map(move |span| (line, span.trim())))
}

/// Returns the targets of `[text](target)`, with their lines.
pub fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(line, text)| {
        let targets = text.split("](").skip(1);
        targets.filter_map(move |rest| Some((line, rest.split([')', ' ']).next().filter(|target| !target.is_empty())?)))
    })
}

/// Returns the anchors of the headings.
pub fn anchors(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter(|(_, line)| line.starts_with('#')).map(|(_, line)| {
        let heading = line.trim_start_matches('#').trim().to_lowercase();
        let kept = heading.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
        kept.map(|char| if char == ' ' { '-' } else { char }).collect()
    })
}

/// Returns the word after each `cargo xtask`, with its line, in prose and in fenced blocks.
pub fn xtask_commands(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(at, line)| {
        let names = line.split("cargo xtask ").skip(1);
        names.filter_map(move |rest| {
            let name = rest.split(|char: char| !char.is_ascii_lowercase() && char != '-').next()?;
            (!name.is_empty()).then_some((at + 1, name))
        })
    })
}

/// Returns true if a code span stands for any name, for example `op/NAME.rs`.
pub fn is_placeholder(span: &str) -> bool {
    let stem = span.rsplit('/').next().unwrap_or(span).split('.').next().unwrap_or(span);
    let is_page = span.ends_with(".md"); // README.md is a name
    !is_page && !stem.is_empty() && stem.bytes().all(|b| b.is_ascii_uppercase() || b == b'_')
}
