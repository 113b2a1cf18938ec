//! The grammar of specs: `KIND:[PATH,]key=value,key=value`.
//!
//! Owns the parsing of a spec. The kinds are the [`registry`](crate::registry)'s; each driver's page explains the keys
//! of its kind.
//!
//! ```text
//! null:size=1T,latency=10us              ram:size=1G               file:PATH,size=1G,direct=on
//! fault:error=0.01,seed=7,over=SPEC      partition:start=1M,size=10M,over=SPEC
//! linear:over=SPEC+SPEC
//! ```
//!
//! A path with a comma or a plus is written in double quotes: `file:"a,b.img",size=1G`; it may then contain no quote.
//!
//! `over=` takes the rest of the spec, so it comes last and specs nest. Every error names the key, the mistake in its
//! value, and a right value.

use std::fmt;
use std::time::Duration;

use sheave_base::units::{parse_duration, parse_size};
use sheave_blk::{Device, DeviceError};

/// Returns the path as it is written in a spec: in quotes if it contains a separator.
pub fn quoted(path: &str) -> String {
    if path.contains([',', '+']) && !path.contains('"') { format!("\"{path}\"") } else { path.to_string() }
}

/// Splits a text that begins with a quoted path into the path and the rest behind its comma. Without a quote returns
/// the whole text as the rest. `None` if the closing quote is missing.
pub fn take_quoted(text: &str) -> Option<(Option<&str>, &str)> {
    let Some(rest) = text.strip_prefix('"') else { return Some((None, text)) };
    let (path, rest) = rest.split_once('"')?;
    if rest.is_empty() { Some((Some(path), rest)) } else { Some((Some(path), rest.strip_prefix(',')?)) }
}

/// Splits specs or paths at each `+` outside of quotes.
pub fn split(text: &str) -> Vec<&str> {
    let mut inside = false;
    text.split(|c| {
        inside ^= c == '"';
        c == '+' && !inside
    })
    .collect()
}

/// Returns the specs at the ends of every `over=`, in order: those of the devices that have no device below. A spec
/// without `over=` is its own only leaf.
pub fn leaves(spec: &str) -> Vec<&str> {
    let (mut found, mut open) = (Vec::new(), vec![spec]);
    while let Some(spec) = open.pop() {
        let rest = spec.split_once(':').map_or("", |(_, rest)| rest);
        let rest = take_quoted(rest).map_or("", |(_, rest)| rest);
        match over_at(rest) {
            Some(at) => open.extend(split(&rest[at + OVER.len()..]).into_iter().rev()),
            None => found.push(spec),
        }
    }
    found
}

/// Key that takes the rest of a spec.
const OVER: &str = "over=";

/// Returns the position of the key `over` where it begins an item; elsewhere these letters are part of a path or of
/// another key.
fn over_at(rest: &str) -> Option<usize> {
    rest.match_indices(OVER).map(|(at, _)| at).find(|&at| at == 0 || rest[..at].ends_with(','))
}

/// Keys whose values are secrets, unless the value is a path: that of a file with the secret.
const SECRETS: [&str; 3] = ["key", "password", "secret"];

/// Returns the spec in a form that may be shown, with `***` for each secret: errors go to logs, and a daemon shows
/// specs to everyone who may query it.
pub fn masked(spec: &str) -> String {
    let mut shown = String::with_capacity(spec.len());
    let mut rest = spec;
    // A key begins at the start, or after a kind, a comma or a joining plus.
    while let Some(at) = rest.find('=') {
        let (before, value) = (&rest[..at], &rest[at + 1..]);
        let key = before.rsplit([',', ':', '+']).next().unwrap_or(before);
        shown.push_str(&rest[..=at]);
        rest = value;
        if SECRETS.iter().any(|secret| key.trim().eq_ignore_ascii_case(secret)) && !value.starts_with(['/', '.', '"']) {
            shown.push_str("***");
            rest = value.find(',').map_or("", |end| &value[end..]);
        }
    }
    shown + rest
}

/// Parameters of a spec. The opener of a kind takes those that it has; [`Params::finish`] refuses the rest.
pub struct Params<'a> {
    spec: String,
    /// The first item, if it is not a `key=value`.
    path: Option<String>,
    pairs: Vec<(String, String)>,
    known: Vec<&'static str>,
    open: Open<'a>,
}

/// Opens a device below, with the registry that opens the device itself.
pub(crate) type Open<'a> = &'a dyn Fn(&str) -> Result<Device, DeviceError>;

impl fmt::Debug for Params<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Params")
            .field("spec", &self.spec)
            .field("path", &self.path)
            .field("pairs", &self.pairs)
            .finish()
    }
}

impl<'a> Params<'a> {
    /// Parses `rest`, which is `spec` without its kind; `open` opens the devices below.
    pub(crate) fn parse(spec: &str, rest: &str, open: Open<'a>) -> Result<Params<'a>, DeviceError> {
        let mut params = Params { spec: spec.to_string(), path: None, pairs: Vec::new(), known: Vec::new(), open };
        let (quoted, rest) = take_quoted(rest).ok_or_else(|| {
            DeviceError::spec(
                masked(spec),
                "a path begins with a quote and none ends it, or more than a comma \
             follows. Write it as in file:\"a,b.img\",size=1G",
            )
        })?;
        params.path = quoted.map(str::to_string);
        let (own, over) = match over_at(rest) {
            Some(at) => (&rest[..at], Some(&rest[at + OVER.len()..])),
            None => (rest, None),
        };
        for (at, item) in own.split(',').enumerate() {
            match item.split_once('=') {
                // A path that contains a '=' is recognised by its beginning.
                _ if at == 0 && quoted.is_none() && item.starts_with(['/', '.']) => {
                    params.path = Some(item.to_string())
                }
                Some((key, value)) => params.set(key, value)?,
                None if item.is_empty() => {}
                None if at == 0 && quoted.is_none() => params.path = Some(item.to_string()),
                None => {
                    let why = format!("'{item}' is no key=value. Parameters are separated by commas");
                    return Err(DeviceError::spec(masked(spec), why));
                }
            }
        }
        if let Some(over) = over {
            params.set("over", over)?;
        }
        Ok(params)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), DeviceError> {
        if self.pairs.iter().any(|(have, _)| have == key) {
            return Err(self.error(format!("'{key}' is given twice. Give it once")));
        }
        self.pairs.push((key.to_string(), value.to_string()));
        Ok(())
    }

    /// Returns the whole spec.
    pub fn spec(&self) -> &str {
        &self.spec
    }

    /// Returns an error about this spec, which shows it without its secrets.
    pub fn error(&self, why: impl Into<String>) -> DeviceError {
        DeviceError::spec(masked(&self.spec), why)
    }

    /// Takes the path, for kinds that have one.
    pub fn path(&mut self) -> Option<String> {
        self.path.take()
    }

    /// Takes the text of a key.
    pub fn text(&mut self, key: &'static str) -> Option<String> {
        self.known.push(key);
        let at = self.pairs.iter().position(|(have, _)| have == key)?;
        Some(self.pairs.swap_remove(at).1)
    }

    /// Takes a size such as `4k` or `1G`.
    pub fn size(&mut self, key: &'static str) -> Result<Option<u64>, DeviceError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        parse_size(&text).map(Some).map_err(|error| self.error(format!("{key}={text}: {error}")))
    }

    /// Takes a time such as `10us`.
    pub fn duration(&mut self, key: &'static str) -> Result<Option<Duration>, DeviceError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        parse_duration(&text).map(Some).map_err(|error| self.error(format!("{key}={text}: {error}")))
    }

    /// Takes a whole number within bounds.
    pub fn number(&mut self, key: &'static str, low: u64, high: u64) -> Result<Option<u64>, DeviceError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        match text.parse::<u64>() {
            Ok(n) if (low..=high).contains(&n) => Ok(Some(n)),
            _ => Err(self.error(format!("{key}={text}: give a whole number from {low} to {high}"))),
        }
    }

    /// Takes a probability from 0 to 1.
    pub fn fraction(&mut self, key: &'static str) -> Result<Option<f64>, DeviceError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        match text.parse::<f64>() {
            Ok(p) if (0.0..=1.0).contains(&p) => Ok(Some(p)),
            _ => Err(self.error(format!("{key}={text}: give a probability from 0 to 1, such as 0.01"))),
        }
    }

    /// Takes one of the given words and returns its value.
    pub fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Result<Option<T>, DeviceError> {
        let Some(text) = self.text(key) else { return Ok(None) };
        match choices.iter().find(|(word, _)| *word == text) {
            Some((_, value)) => Ok(Some(*value)),
            None => {
                let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
                Err(self.error(format!("{key}={text}: give one of {}", words.join(", "))))
            }
        }
    }

    /// Takes `on` or `off`.
    pub fn switch(&mut self, key: &'static str) -> Result<Option<bool>, DeviceError> {
        self.choice(key, &[("on", true), ("off", false)])
    }

    /// Opens the devices below: the specs after `over=`, joined by `+`.
    pub fn over(&mut self) -> Result<Vec<Device>, DeviceError> {
        let Some(text) = self.text("over") else {
            return Err(self.error("no device under it. End the spec with over=SPEC, such as over=ram:size=1G"));
        };
        split(&text).into_iter().map(|spec| (self.open)(spec)).collect()
    }

    /// Returns an error if a parameter was given that was not taken.
    pub fn finish(&self) -> Result<(), DeviceError> {
        let known = self.known.join(", ");
        if let Some(path) = &self.path {
            return Err(
                self.error(format!("'{path}' is no key=value, and this kind takes no path. Known keys: {known}"))
            );
        }
        match self.pairs.first() {
            None => Ok(()),
            Some((key, _)) => Err(self.error(format!("key '{key}' is unknown. Known keys: {known}"))),
        }
    }

    /// Checks the size of a device: a whole number of blocks, not 0.
    pub fn check_size(&self, size: u64, block: u32) -> Result<u64, DeviceError> {
        let block = u64::from(block);
        if size == 0 || !size.is_multiple_of(block) {
            let why = format!("size={size}: give a multiple of the block size, {block} bytes, and not 0");
            return Err(self.error(why));
        }
        if size > i64::MAX as u64 {
            return Err(self.error(format!("size={size}: the largest device is 8 EiB - 1")));
        }
        Ok(size)
    }

    /// Takes a logical block size, 512 if none is given.
    pub fn block(&mut self) -> Result<u32, DeviceError> {
        Ok(self.block_if_given()?.unwrap_or(512))
    }

    /// Takes a logical block size, if one is given.
    pub fn block_if_given(&mut self) -> Result<Option<u32>, DeviceError> {
        match self.size("bs")? {
            Some(block) if !(512..=65536).contains(&block) || !block.is_power_of_two() => {
                Err(self.error(format!("bs={block}: give a power of two from 512 to 64k")))
            }
            block => Ok(block.map(|block| block as u32)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the parameters of `spec` without opening it.
    fn params(spec: &str) -> Params<'static> {
        Params::parse(spec, spec.split_once(':').map_or("", |(_, rest)| rest), &|_| unreachable!("not opened"))
            .expect("a spec")
    }

    #[test]
    fn over_takes_the_rest() {
        let mut params = params("fault:error=0.5,over=ram:size=1G,bs=4k");
        assert_eq!(params.text("over").as_deref(), Some("ram:size=1G,bs=4k"));
        assert_eq!(params.fraction("error").unwrap(), Some(0.5));
        assert!(params.finish().is_ok());
        // A key that only ends with `over` is another key.
        let mut params = self::params("fault:takeover=1,over=null:size=1G,bs=4k");
        assert_eq!(params.text("over").as_deref(), Some("null:size=1G,bs=4k"));
        assert_eq!(params.text("takeover").as_deref(), Some("1"));
    }

    #[test]
    fn a_path_may_come_first() {
        let mut params = params("file:/tmp/x,size=1G");
        assert_eq!(params.path().as_deref(), Some("/tmp/x"));
        assert_eq!(params.size("size").unwrap(), Some(1 << 30));
        assert!(params.finish().is_ok());
        for path in ["/tmp/over=x", "./a=b", "../disk"] {
            let mut params = self::params(&format!("file:{path},size=1G"));
            assert_eq!(params.path().as_deref(), Some(path), "a '=' in a path is part of it");
            assert_eq!(params.text("over"), None);
        }
    }

    #[test]
    fn values_within_bounds() {
        for (text, ok) in [("0", true), ("1", true), ("0.25", true), ("1.1", false), ("-0.1", false), ("NaN", false)] {
            assert_eq!(params(&format!("x:p={text}")).fraction("p").is_ok(), ok, "{text}");
        }
        assert_eq!(params("x:a=on").switch("a").unwrap(), Some(true));
        assert_eq!(params("x:a=off").switch("a").unwrap(), Some(false));
        assert!(params("x:a=yes").switch("a").is_err());
        assert_eq!(params("x:").switch("a").unwrap(), None);
        assert_eq!(params("x:t=5ms").duration("t").unwrap(), Some(Duration::from_millis(5)));
        assert!(params("x:n=1.5").number("n", 0, 9).is_err());
    }

    #[test]
    fn a_layer_needs_something_under_it() {
        assert!(params("fault:").over().unwrap_err().to_string().contains("over=ram:size=1G"));
    }

    #[test]
    fn a_path_in_quotes_may_hold_what_else_ends_it() {
        let mut one = params("file:\"a,b+c=d.img\",size=1M");
        assert_eq!((one.path().as_deref(), one.text("size").as_deref()), (Some("a,b+c=d.img"), Some("1M")));
        assert_eq!(params("file:\"/x,y\"").path().as_deref(), Some("/x,y"));
        assert_eq!(split("file:\"a+b\",size=1M+ram:size=2M+c"), ["file:\"a+b\",size=1M", "ram:size=2M", "c"]);
        for path in ["plain.img", "/dev/sda", "a=b"] {
            assert_eq!(quoted(path), path);
        }
        assert_eq!(quoted("a,b"), "\"a,b\"");
    }

    #[test]
    fn secrets_are_not_shown() {
        for (spec, shown) in [
            ("rbd:rbd/disk,key=AQB+a/b==,readonly", "rbd:rbd/disk,key=***,readonly"),
            ("rbd:rbd/disk,key=AQB==,key=AQC==", "rbd:rbd/disk,key=***,key=***"),
            ("rbd:key=AQB==,rbd/disk", "rbd:key=***,rbd/disk"),
            (
                "fault:seed=1,over=x:password=a:b=c,bs=4k+x:Secret=d",
                "fault:seed=1,over=x:password=***,bs=4k+x:Secret=***",
            ),
            ("nbd:host,key=/etc/key.pem,cert=/c", "nbd:host,key=/etc/key.pem,cert=/c"),
            ("nbd:host,key=./k,key=\"a,b\"", "nbd:host,key=./k,key=\"a,b\""),
            ("file:/a=b,keyring=c,size=1G", "file:/a=b,keyring=c,size=1G"),
            ("", ""),
        ] {
            assert_eq!(masked(spec), shown);
        }
        // A switch without its value, and a key that is given twice: both are refused before a driver reads the spec.
        for spec in ["rbd:rbd/disk,key=AQBsecret==,readonly", "rbd:rbd/disk,key=AQBsecret==,key=AQBsecret=="] {
            let rest = &spec["rbd:".len()..];
            let error = Params::parse(spec, rest, &|_| unreachable!("not opened")).expect_err(spec).to_string();
            assert!(error.contains("rbd:rbd/disk,key=***") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn the_leaves_are_what_lies_at_the_ends() {
        for (spec, want) in [
            ("ram:size=1M", &["ram:size=1M"][..]),
            ("fault:error=0.1,over=partition:size=1M,over=file:a", &["file:a"]),
            (
                "linear:over=file:\"a+b,over=ram:\",size=1M+nbd:unix:/x+ram:",
                &["file:\"a+b,over=ram:\",size=1M", "nbd:unix:/x", "ram:"],
            ),
            ("linear:over=fault:over=linear:over=a:+b:+c:", &["a:", "b:", "c:"]),
            ("file:/over=ram:/x", &["file:/over=ram:/x"]),
            ("fault:error=1", &["fault:error=1"]),
            ("file:\"a", &["file:\"a"]),
        ] {
            assert_eq!(leaves(spec), want, "{spec}");
        }
    }
}
