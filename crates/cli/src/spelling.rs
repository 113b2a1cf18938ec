//! Rewrites common spellings of a command line into the form that is parsed.
//!
//! Handles spellings only: a rewritten command line could have no other meaning. Each rule has a row in the tests.
//!
//! * W1. An option with an optional value also takes it as the next word, if that is a valid value.
//! * W2. `--json` may precede the command.
//! * W3. A size or time may have a blank before its unit.
//! * W4. `-v` and `version` alone ask for the version.
//! * W5. `volume resize` takes its size as `--size`, like `create`.

use std::ffi::OsString;

use crate::args::value;

/// Units that may follow a number (W3).
const UNITS: [&str; 25] = [
    "B", "k", "K", "kB", "KB", "KiB", "M", "MB", "MiB", "G", "GB", "GiB", "T", "TB", "TiB", "P", "PB", "PiB", "ns",
    "us", "ms", "s", "m", "min", "h",
];

/// Returns true if `value` may follow `option` as the next word (W1).
fn takes(option: &str, value: &str) -> bool {
    match option {
        "--wait" => value::patience(value).is_ok(),
        "--poll" | "--fixed-buffers" | "--pin" => matches!(value, "on" | "off"),
        "--rescue" => matches!(value, "zero" | "skip"),
        _ => false,
    }
}

/// Rewrites a command line, whose first word is the program.
pub fn rewrite(args: Vec<OsString>) -> Vec<OsString> {
    let Some(words) = args.iter().map(|arg| arg.to_str()).collect::<Option<Vec<&str>>>() else { return args };
    let Some((program, words)) = words.split_first() else { return args };
    if matches!(words, ["-v" | "version"]) {
        return vec![(*program).into(), "--version".into()];
    }
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let (words, rest) = words.split_at(end);
    let is_resize = matches!(
        words.iter().filter(|word| !word.starts_with('-')).take(2).collect::<Vec<_>>()[..],
        [&("volume" | "volumes" | "vol"), &"resize"]
    );
    let (mut out, mut at, mut commands, mut last) = (vec![(*program).to_owned()], 0, 0, Vec::new());
    while let Some(word) = words.get(at) {
        let (next, after) = (words.get(at + 1), words.get(at + 2));
        at += 1;
        let in_two = |number: &str, unit: Option<&&str>| {
            let is_number = number.starts_with(|first: char| first.is_ascii_digit());
            let is_bare = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            unit.filter(|unit| is_number && is_bare && UNITS.contains(unit)).map(|unit| format!("{number}{unit}"))
        };
        if *word == "--json" && commands < 2 {
            last.push((*word).to_owned());
        } else if let Some(whole) = next.filter(|_| word.starts_with("--")).and_then(|next| in_two(next, after)) {
            at += 2;
            out.push(format!("{word}={whole}"));
        } else if let Some(next) = next.filter(|next| takes(word, next)) {
            at += 1;
            out.push(format!("{word}={next}"));
        } else if let (true, "--size", Some(next)) = (is_resize, *word, next) {
            at += 1;
            last.push((*next).to_owned());
        } else if let Some(size) = word.strip_prefix("--size=").filter(|_| is_resize) {
            last.push(size.to_owned());
        } else {
            commands += usize::from(!word.starts_with('-'));
            out.push((*word).to_owned());
        }
    }
    out.into_iter().chain(last).chain(rest.iter().map(|word| (*word).to_owned())).map(OsString::from).collect()
}

#[cfg(test)]
mod tests;
