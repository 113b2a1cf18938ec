//! The registry of device specs: which kind of device is opened by which function.
//!
//! [`open_device`] opens what this crate has. A program with drivers of its own makes a [`Registry`], adds their kinds
//! and opens all its devices by it; `over=` in a spec then opens the device below by the same registry, so a layer of
//! this crate can stand on a device of another.
//!
//! ```
//! use sheave_drivers::{Registry, open_device};
//!
//! let disk = open_device("ram:size=1M")?;
//! assert_eq!(disk.size_bytes(), 1 << 20);
//!
//! let mut registry = Registry::standard();
//! registry.register("tiny", |params| {
//!     params.finish()?; // the kind knows no keys
//!     open_device("ram:size=4k")
//! })?;
//! assert_eq!(registry.open("partition:start=512,over=tiny:")?.size_bytes(), 4096 - 512);
//! # Ok::<(), sheave_blk::DeviceError>(())
//! ```

use std::fmt;
use std::sync::OnceLock;

use sheave_blk::{Device, DeviceError};

use crate::spec::{Params, masked};
use crate::{fault, host, linear, null, ram};

/// Deepest nesting of `over=`.
const MAX_DEPTH: usize = 8;

/// What opens a device of one kind.
type Opener = Box<dyn Fn(&mut Params<'_>) -> Result<Device, DeviceError> + Send + Sync>;

/// The kinds of devices that a program can open by spec.
pub struct Registry {
    /// In the order in which they were registered; names are unique.
    kinds: Vec<(String, Opener)>,
}

/// Opens the device that `spec` names, such as `null:size=1T`, `ram:size=1G` or `file:PATH,size=1G,direct=on`; the
/// kinds are those of [`Registry::standard`], the grammar is that of [`spec`](crate::spec).
///
/// # Errors
///
/// [`DeviceError::Spec`] names what is wrong with the spec; other errors are the driver's.
pub fn open_device(spec: &str) -> Result<Device, DeviceError> {
    static STANDARD: OnceLock<Registry> = OnceLock::new();
    STANDARD.get_or_init(Registry::standard).open(spec)
}

impl Registry {
    /// The kinds of this crate: `null`, `ram`, `file`, `fault`, `partition`, `linear`.
    pub fn standard() -> Registry {
        let kinds: [(&str, Opener); 6] = [
            ("null", Box::new(null::from_spec)),
            ("ram", Box::new(ram::from_spec)),
            ("file", Box::new(host::from_spec)),
            ("fault", Box::new(fault::from_spec)),
            ("partition", Box::new(linear::partition_from_spec)),
            ("linear", Box::new(linear::linear_from_spec)),
        ];
        Registry { kinds: kinds.into_iter().map(|(name, open)| (name.to_string(), open)).collect() }
    }

    /// Adds a kind. `open` takes the parameters that it knows and ends with [`Params::finish`], which complains about
    /// the others.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Spec`] when the name is taken, or is not made of lower-case letters, digits, `-` and `_`.
    pub fn register(
        &mut self,
        kind: &str,
        open: impl Fn(&mut Params<'_>) -> Result<Device, DeviceError> + Send + Sync + 'static,
    ) -> Result<(), DeviceError> {
        if kind.is_empty() || !kind.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_')) {
            let why = "this is no name for a kind. Use lower-case letters, digits, '-' and '_'";
            return Err(DeviceError::spec(kind, why));
        }
        if self.opener(kind).is_some() {
            return Err(DeviceError::spec(kind, "this kind is registered already. Give the new one another name"));
        }
        self.kinds.push((kind.to_string(), Box::new(open)));
        Ok(())
    }

    /// Opens the device that `spec` names.
    ///
    /// # Errors
    ///
    /// As those of [`open_device`].
    pub fn open(&self, spec: &str) -> Result<Device, DeviceError> {
        if spec.matches("over=").count() > MAX_DEPTH {
            return Err(DeviceError::spec(
                masked(spec),
                format!("nested more than {MAX_DEPTH} deep. Stack fewer devices"),
            ));
        }
        let Some((kind, rest)) = spec.split_once(':') else {
            let shown = masked(spec);
            let right = if self.opener(spec).is_some() { format!("{spec}:") } else { format!("file:{shown}") };
            let kinds = self.in_words();
            let why = format!("no kind. Put one of {kinds} and a colon in front, as in {right}");
            return Err(DeviceError::spec(shown, why));
        };
        let over = |spec: &str| self.open(spec);
        let mut params = Params::parse(spec, rest, &over)?;
        match self.opener(kind) {
            Some(open) => open(&mut params),
            None => {
                Err(DeviceError::spec(masked(spec), format!("kind '{kind}' is unknown. Known: {}", self.in_words())))
            }
        }
    }

    fn opener(&self, kind: &str) -> Option<&Opener> {
        self.kinds.iter().find(|(name, _)| name == kind).map(|(_, open)| open)
    }

    /// The names of all kinds, as errors list them.
    fn in_words(&self) -> String {
        self.kinds.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

impl Default for Registry {
    fn default() -> Registry {
        Registry::standard()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({})", self.in_words())
    }
}

#[cfg(test)]
mod tests;
