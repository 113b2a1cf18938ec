//! The lines of a job file, parsed in the same way as fio does.
//!
//! Owns comments, sections, the splitting at `=`, and environment variables. A line that fio reads in a surprising way
//! (it makes blanks around `=` a part of the key or of the value) is an error here.

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// Empty, or a comment.
    Blank,
    /// `[NAME]`
    Section(&'a str),
    /// `KEY` or `KEY=VALUE`.
    Option { key: &'a str, value: Option<String> },
}

/// Parses one line. Returns an error together with its fix.
pub(super) fn read<'a>(text: &'a str, env: Env<'_>) -> Result<Line<'a>, (String, &'static str)> {
    // A comment may begin anywhere, even inside quotes, because fio knows no quotes.
    let text = text.split([';', '#']).next().unwrap_or_default();
    let text = text.trim_matches(|char: char| char.is_whitespace() || char.is_control());
    if text.is_empty() {
        return Ok(Line::Blank);
    }
    if let Some(rest) = text.strip_prefix('[') {
        let name = rest.strip_suffix(']');
        return name
            .map(Line::Section)
            .ok_or_else(|| (format!("{text:?} is no section"), "write [NAME] on a line of its own"));
    }
    let Some((key, value)) = text.split_once('=') else { return Ok(Line::Option { key: text, value: None }) };
    if key.ends_with(char::is_whitespace) || value.starts_with(char::is_whitespace) {
        let what = format!("{text:?} has a blank beside =, which fio takes for a part of the option");
        return Err((what, "write KEY=VALUE without blanks around ="));
    }
    Ok(Line::Option { key, value: Some(expand(value, env)?) })
}

/// Function that returns the value of an environment variable.
pub(super) type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Words that fio replaces by a number of the machine.
const KEYWORDS: [&str; 3] = ["$pagesize", "$mb_memory", "$ncpus"];

/// Replaces environment variables by their values. Like in fio, a variable that is not set is empty.
fn expand(value: &str, env: Env<'_>) -> Result<String, (String, &'static str)> {
    let (mut out, mut rest) = (String::new(), value);
    while let Some(at) = rest.find("${") {
        let Some(end) = rest[at..].find('}') else { break };
        out.push_str(&rest[..at]);
        out.push_str(&env(&rest[at + 2..at + end]).unwrap_or_default());
        rest = &rest[at + end + 1..];
    }
    out.push_str(rest);
    match KEYWORDS.iter().find(|word| out.contains(**word)) {
        Some(word) => Err((format!("{value:?} has {word}, which fio replaces by a number"), "write the number")),
        None => Ok(out),
    }
}
