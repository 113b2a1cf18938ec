//! Compact JSON: arrays without names, and numbers with the three digits that the page shows.
//!
//! * I1. No text can end the element of a page that contains it, because `<` is written as an escape.

use std::fmt;

#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// No value. A number that is not finite is written like this, too.
    Null,
    Number(f64),
    Text(String),
    List(Vec<Json>),
}

impl Json {
    /// Makes a percentage with one digit after the point, as it is shown.
    pub fn percent(value: f64) -> Self {
        Self::Number((value * 10.0).round() / 10.0)
    }

    pub fn list<T: Into<Json>>(values: impl IntoIterator<Item = T>) -> Self {
        Self::List(values.into_iter().map(Into::into).collect())
    }
}

impl From<f64> for Json {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Json {
    fn from(number: u32) -> Self {
        Self::Number(f64::from(number))
    }
}

impl From<bool> for Json {
    fn from(yes: bool) -> Self {
        Self::Number(f64::from(u8::from(yes)))
    }
}

impl From<&str> for Json {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Json {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<T: Into<Json>> From<Option<T>> for Json {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::Number(number) => f.write_str(&digits(*number)),
            Self::Text(text) => quoted(text, f),
            Self::List(values) => {
                f.write_str("[")?;
                for (at, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if at > 0 { "," } else { "" })?;
                }
                f.write_str("]")
            }
        }
    }
}

/// Formats a number with three digits, plain or scientific, whichever is shorter.
fn digits(number: f64) -> String {
    // Counts and positions on an axis stay exact.
    if number.fract() == 0.0 && number.abs() < 1e5 {
        return format!("{number}");
    }
    let rounded: f64 = format!("{number:.2e}").parse().unwrap_or(number);
    if !rounded.is_finite() {
        return "null".into();
    }
    let (plain, scientific) = (format!("{rounded}"), format!("{rounded:e}"));
    if scientific.len() < plain.len() { scientific } else { plain }
}

/// Writes a text in quotes (I1).
fn quoted(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("\"")?;
    for c in text.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            c if c == '<' || c.is_control() => write!(f, "\\u{:04x}", c as u32)?,
            c => write!(f, "{c}")?,
        }
    }
    f.write_str("\"")
}
