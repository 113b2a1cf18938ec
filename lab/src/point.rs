//! The parameters of one measurement. A row of a table, a position on an axis and a part of a command line have this
//! form.
//!
//! * I1. `text.parse::<Point>()` of `point.to_string()`, and of `point.short()`, gives the same point.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sheave_load::Rw;

use crate::LabError;

/// Value of a parameter that only some experiments have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Text(String),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// A parameter that the points of an experiment have beyond those of every point.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    pub name: &'static str,
    pub values: Values,
}

/// Allowed values of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Numbers from the first to the second, both included.
    Numbers(u64, u64),
    Words(&'static [&'static str]),
    /// Any text; the experiment parses it itself.
    Text,
}

impl Parameter {
    fn admits(&self, value: &Value) -> bool {
        match (self.values, value) {
            (Values::Numbers(low, high), Value::Number(number)) => (low..=high).contains(number),
            (Values::Words(words), Value::Text(text)) => words.contains(&text.as_str()),
            (Values::Text, Value::Text(_)) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.values {
            Values::Numbers(low, u64::MAX) => write!(f, "{}=N from {low} on", self.name),
            Values::Numbers(low, high) => write!(f, "{}=N from {low} to {high}", self.name),
            Values::Words(words) => write!(f, "{}={}", self.name, words.join("|")),
            Values::Text => write!(f, "{}=TEXT", self.name),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Size of an I/O in bytes.
    pub bs: u32,
    /// Number of I/Os submitted together.
    pub batch: u32,
    /// Number of I/Os in flight, for each thread.
    pub depth: u32,
    pub threads: u32,
    pub rw: Rw,
    /// Parameters that only some experiments have, for example `readers=1000` or `cell=unwritten`. Names and values
    /// contain no `,` and no `=`.
    pub extra: BTreeMap<String, Value>,
}

impl Default for Point {
    fn default() -> Self {
        Self { bs: 512, batch: 32, depth: 128, threads: 1, rw: Rw::Randread, extra: BTreeMap::new() }
    }
}

impl Point {
    /// Returns the point with one more parameter.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        debug_assert!(!format!("{name}{value}").contains([',', '=', ' ']), "would not come back as it is");
        self.extra.insert(name.into(), value);
        self
    }

    /// Checks that an experiment with these `parameters` can measure at this point. Those parameters of every point
    /// that `unused` names must have their defaults.
    pub fn check(&self, id: &str, parameters: &[Parameter], unused: &[&str]) -> Result<(), LabError> {
        let plain = Self::default();
        let refuse = |what: String| {
            let common = ["bs", "batch", "depth", "threads", "rw"].into_iter().filter(|name| !unused.contains(name));
            let own = parameters.iter().map(Parameter::to_string);
            let known: Vec<String> = common.map(str::to_owned).chain(own).collect();
            Err(LabError::usage(format!("{id} has no {what}, as in the point {self}"))
                .fix(format!("use {}", known.join(", "))))
        };
        let common = [
            ("bs", self.bs != plain.bs),
            ("batch", self.batch != plain.batch),
            ("depth", self.depth != plain.depth),
            ("threads", self.threads != plain.threads),
            ("rw", self.rw != plain.rw),
        ];
        if let Some((name, _)) = common.iter().find(|(name, set)| *set && unused.contains(name)) {
            return refuse((*name).to_owned());
        }
        for (name, value) in &self.extra {
            if !parameters.iter().any(|parameter| parameter.name == name && parameter.admits(value)) {
                return refuse(format!("{name}={value}"));
            }
        }
        Ok(())
    }

    /// Formats the parameters that differ from [`Point::default`].
    pub fn short(&self) -> String {
        let plain = Self::default();
        let common = [
            ("bs", u64::from(self.bs), u64::from(plain.bs)),
            ("batch", u64::from(self.batch), u64::from(plain.batch)),
            ("depth", u64::from(self.depth), u64::from(plain.depth)),
            ("threads", u64::from(self.threads), u64::from(plain.threads)),
        ];
        let mut parts: Vec<String> = Vec::new();
        parts.extend(common.iter().filter(|(_, is, plain)| is != plain).map(|(name, is, _)| format!("{name}={is}")));
        parts.extend((self.rw != plain.rw).then(|| format!("rw={}", self.rw.name())));
        parts.extend(self.extra.iter().map(|(name, value)| format!("{name}={value}")));
        if parts.is_empty() { format!("bs={}", self.bs) } else { parts.join(",") }
    }

    /// Returns true if both points have I/Os of the same size, number and kind in flight in each thread.
    pub fn has_ios_of(&self, other: &Self) -> bool {
        let ios = |point: &Self| (point.bs, point.batch, point.depth, point.rw);
        ios(self) == ios(other)
    }

    /// Returns an extra parameter if it is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.extra.get(name)? {
            Value::Number(number) => Some(*number),
            Value::Text(_) => None,
        }
    }

    /// Returns an extra parameter if it is a word.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.extra.get(name)? {
            Value::Text(text) => Some(text),
            Value::Number(_) => None,
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bs, batch, depth, threads, rw, extra } = self;
        write!(f, "bs={bs},batch={batch},depth={depth},threads={threads},rw={}", rw.name())?;
        extra.iter().try_for_each(|(name, value)| write!(f, ",{name}={value}"))
    }
}

impl FromStr for Point {
    type Err = LabError;

    /// Parses `name=value,...`. Missing parameters get the values of [`Point::default`].
    fn from_str(text: &str) -> Result<Self, LabError> {
        let bad = |part: &str, why: &str| {
            LabError::usage(format!("{part:?} in the point {text:?}: {why}"))
                .fix("write for example bs=512,batch=32,depth=128,threads=1,rw=randread")
        };
        let mut point = Self::default();
        let mut seen = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| bad(part, "no name=value"))?;
            if seen.contains(&name) {
                return Err(bad(part, "a second value"));
            }
            seen.push(name);
            let number = || match value.parse::<u32>() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(bad(part, "expected a number above 0")),
            };
            match name {
                "bs" => point.bs = number()?,
                "batch" => point.batch = number()?,
                "depth" => point.depth = number()?,
                "threads" => point.threads = number()?,
                "rw" => point.rw = value.parse().map_err(|why: String| bad(part, &why))?,
                _ => {
                    let value = value.parse().map_or_else(|_| Value::from(value), Value::Number);
                    point.extra.insert(name.into(), value);
                }
            }
        }
        Ok(point)
    }
}

impl<'de> Deserialize<'de> for Point {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|err: LabError| serde::de::Error::custom(err.cause))
    }
}

impl Serialize for Point {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_comes_back_from_its_text() {
        let point =
            Point { bs: 4096, rw: Rw::Randwrite, ..Point::default() }.with("hz", 1000).with("cell", "unwritten");
        let text = point.to_string();
        assert_eq!(text, "bs=4096,batch=32,depth=128,threads=1,rw=randwrite,cell=unwritten,hz=1000");
        assert_eq!(text.parse::<Point>().unwrap(), point);
        assert_eq!(point.short(), "bs=4096,rw=randwrite,cell=unwritten,hz=1000");
        for short in [point.clone(), Point::default(), Point { threads: 2, depth: 1, batch: 1, ..Point::default() }] {
            assert_eq!(short.short().parse::<Point>(), Ok(short));
        }
        assert_eq!((point.number("hz"), point.text("cell"), point.text("hz")), (Some(1000), Some("unwritten"), None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, part) in [
            ("bs", "bs"),
            ("depth=0", "depth=0"),
            ("batch=x", "batch=x"),
            ("rw=both", "rw=both"),
            ("bs=512,bs=1024", "bs=1024"),
        ] {
            let error = text.parse::<Point>().unwrap_err();
            assert!(error.usage && error.cause.contains(part) && error.fix.is_some(), "{error}");
        }
    }

    #[test]
    fn a_point_with_a_parameter_that_means_nothing_is_refused() {
        let parameters = [
            Parameter { name: "hz", values: Values::Numbers(1, 9) },
            Parameter { name: "cell", values: Values::Words(&["old", "new"]) },
            Parameter { name: "work", values: Values::Text },
        ];
        let check = |text: &str| text.parse::<Point>().expect("a point").check("it", &parameters, &["rw"]);
        for good in ["", "bs=4096,depth=1", "hz=1", "hz=9,cell=new", "work=sleep:1ms", "rw=randread"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, says) in [
            ("hertz=5", "it has no hertz=5"),
            ("hz=0", "hz=0"),
            ("hz=10", "hz=10"),
            ("hz=many", "hz=many"),
            ("cell=odd", "cell=odd"),
            ("cell=1", "cell=1"),
            ("work=7", "work=7"),
            ("rw=write", "it has no rw"),
        ] {
            let error = check(bad).expect_err(bad);
            assert!(error.usage && error.cause.contains(says), "{bad}: {error}");
            let fix = error.fix.expect("what there is");
            assert_eq!(fix, "use bs, batch, depth, threads, hz=N from 1 to 9, cell=old|new, work=TEXT");
        }
    }
}
