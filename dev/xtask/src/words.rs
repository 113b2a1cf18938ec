//! `cargo xtask words`: a random sample of doc comments and of paragraphs of the pages, for a person to judge.
//!
//! Owns the drawing of the sample. It depends only on a seed, so that two people judge the same sample. Somebody who
//! has not written the texts judges them in three classes: clear in one reading, needs a second reading, riddle.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::tidy::tree::Tree;
use crate::workspace;

/// Number of words of a doc comment that is worth judging. Shorter ones only repeat a name; longer ones are whole
/// pages.
const WORDS: std::ops::RangeInclusive<usize> = 9..=60;
/// Least number of words of a paragraph of a page.
const LEAST: usize = 15;

const USAGE: &str = "usage: cargo xtask words [--seed N] [--comments N] [--paragraphs N]";

/// Runs `cargo xtask words`: prints the sample.
pub fn main(args: &[String]) -> Result<()> {
    let (mut seed, mut comments, mut paragraphs) = (1, 120, 40);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let value = args.next().and_then(|value| value.parse().ok()).context(USAGE)?;
        match arg.as_str() {
            "--seed" => seed = value,
            "--comments" => comments = value,
            "--paragraphs" => paragraphs = value,
            _ => bail!(USAGE),
        }
    }
    let root = workspace::root();
    let tree = Tree::read(&root)?;
    let mut all = Vec::new();
    for source in &tree.sources {
        let text = fs::read_to_string(root.join(&source.path)).context(source.path.clone())?;
        all.extend(doc_comments(&text).into_iter().map(|(line, text)| format!("{}:{line}: {text}", source.path)));
    }
    print("doc comments", all, seed, comments);
    let pages = tree.pages.iter().filter(|(path, _)| path != "CHANGELOG.md");
    let all = pages.flat_map(|(path, text)| {
        crate::words::paragraphs(text).into_iter().map(move |(line, text)| format!("{path}:{line}: {text}"))
    });
    print("paragraphs", all.collect(), seed, paragraphs);
    Ok(())
}

/// Prints `most` of the texts, drawn without replacement.
fn print(what: &str, mut all: Vec<String>, seed: u64, most: u64) {
    println!("== {} of {} {what}, seed {seed}\n", most.min(all.len() as u64), all.len());
    let mut state = seed;
    for number in 1..=most {
        if all.is_empty() {
            return;
        }
        let at = (next(&mut state) % all.len() as u64) as usize;
        println!("{number}. {}\n", all.swap_remove(at));
    }
}

/// Returns the next random number of SplitMix64 (Steele, Lea, Flood 2014).
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = (*state ^ *state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// Returns the first paragraphs of the doc comments of a source that are neither short nor long, with their lines.
/// After each paragraph comes the name of its item.
fn doc_comments(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let start = at;
        while at < lines.len() && lines[at].starts_with("///") {
            at += 1;
        }
        if at == start {
            at += 1;
            continue;
        }
        let texts = lines[start..at].iter().map(|line| line[3..].trim()).take_while(|line| !line.is_empty());
        let comment = texts.collect::<Vec<_>>().join(" ");
        let item = lines[at..].iter().find(|line| !line.starts_with("#[")).copied().unwrap_or_default();
        if WORDS.contains(&comment.split_whitespace().count()) && !comment.starts_with("```") {
            found.push((start + 1, format!("{comment}\n    {item}")));
        }
    }
    found
}

/// Returns the paragraphs of a page that are prose, with their lines. Leaves out tables, lists of links, headings and
/// code.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let (mut fenced, mut words, mut start) = (false, Vec::new(), 0);
    for (at, line) in text.lines().chain([""]).enumerate() {
        let line = line.trim();
        let is_fence = line.starts_with("```");
        fenced ^= is_fence;
        let is_prose = !fenced && !is_fence && !line.is_empty() && !line.starts_with(['#', '|', '<']);
        if is_prose && !(line.starts_with("* ") || line.starts_with("- ")) {
            if words.is_empty() {
                start = at + 1;
            }
            words.push(line);
            continue;
        }
        let paragraph = std::mem::take(&mut words).join(" ");
        if paragraph.split_whitespace().count() >= LEAST {
            found.push((start, paragraph));
        }
        if is_prose {
            start = at + 1;
            words.push(line);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_of_some_words_are_found_with_their_items() {
        let text = "/// Short.\nfn a() {}\n\n/// Returns the first of the two words that the\n\
                    /// caller has passed to it.\n///\n/// # Errors\n#[must_use]\nfn b() {}\n";
        let found = doc_comments(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].0, 4);
        assert!(found[0].1.ends_with("caller has passed to it.\n    fn b() {}"), "{found:?}");
    }

    #[test]
    fn paragraphs_are_prose_alone() {
        let long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen";
        let page = format!("# Heading\n\n{long}\nsixteen\n\n```sh\n{long}\n```\n\n| {long} |\n\n* {long}\n* short\n");
        let found = paragraphs(&page);
        assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3, 12]);
        assert!(found[0].1.ends_with("fifteen sixteen"));
    }

    #[test]
    fn a_line_that_begins_with_code_belongs_to_its_paragraph() {
        let long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen";
        assert_eq!(paragraphs(&format!("{long}\n`code` goes on\n")), [(1, format!("{long} `code` goes on"))]);
    }

    #[test]
    fn a_seed_draws_the_same_again() {
        let draw = |mut seed: u64| [next(&mut seed), next(&mut seed)];
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }
}
