//! The registry of device specs: the function that opens each kind of device.
//!
//! [`open_device`] opens the kinds of this crate. A program with its own drivers makes a [`Registry`], adds their kinds
//! and opens all its devices through it. `over=` in a spec opens the device below through the same registry, so that a
//! layer of this crate can lie over a device of another one.
//!
//! ```
//! use sheave_drivers::{Registry, open_device};
//!
//! let disk = open_device("ram:size=1M")?;
//! assert_eq!(disk.size_bytes(), 1 << 20);
//!
//! let mut registry = Registry::standard();
//! registry.register("tiny", |params| {
//!     params.finish()?; // the kind has no keys
//!     open_device("ram:size=4k")
//! })?;
//! assert_eq!(registry.open("partition:start=512,over=tiny:")?.size_bytes(), 4096 - 512);
//! # Ok::<(), sheave_blk::DeviceError>(())
//! ```

use std::fmt;
use std::sync::OnceLock;

use sheave_blk::{Device, DeviceError};

use crate::reach::Reach;
use crate::spec::{Open, Params, masked, split};
use crate::{fault, host, linear, null, ram};

/// Deepest nesting of `over=`.
const MAX_DEPTH: usize = 8;

/// Opens a device of one kind.
type Opener = Box<dyn Fn(&mut Params<'_>) -> Result<Device, DeviceError> + Send + Sync>;

/// Lists the resources that the parameters of one kind name, without the devices below.
type Reaches = Box<dyn Fn(&mut Params<'_>) -> Vec<Reach> + Send + Sync>;

struct Kind {
    name: String,
    open: Opener,
    /// `None` until [`Registry::declare`].
    reaches: Option<Reaches>,
}

/// The kinds of devices that a program can open by spec.
pub struct Registry {
    /// In the order in which they were registered; names are unique.
    kinds: Vec<Kind>,
}

/// Opens the device that `spec` names, such as `null:size=1T`, `ram:size=1G` or `file:PATH,size=1G,direct=on`. The
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
    /// Returns a registry with the kinds of this crate: `null`, `ram`, `file`, `fault`, `partition`, `linear`.
    pub fn standard() -> Registry {
        let nothing = |_: &mut Params<'_>| Vec::new();
        let kinds: [(&str, Opener, Reaches); 6] = [
            ("null", Box::new(null::from_spec), Box::new(nothing)),
            ("ram", Box::new(ram::from_spec), Box::new(nothing)),
            ("file", Box::new(host::from_spec), Box::new(host::reaches)),
            ("fault", Box::new(fault::from_spec), Box::new(nothing)),
            ("partition", Box::new(linear::partition_from_spec), Box::new(nothing)),
            ("linear", Box::new(linear::linear_from_spec), Box::new(nothing)),
        ];
        let kinds = kinds.into_iter();
        Registry {
            kinds: kinds
                .map(|(name, open, reaches)| Kind { name: name.into(), open, reaches: Some(reaches) })
                .collect(),
        }
    }

    /// Adds a kind. `open` takes the parameters that it has and ends with [`Params::finish`], which refuses all others.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Spec`] if the name is taken, or is not made of lower-case letters, digits, `-` and `_`.
    pub fn register(
        &mut self,
        kind: &str,
        open: impl Fn(&mut Params<'_>) -> Result<Device, DeviceError> + Send + Sync + 'static,
    ) -> Result<(), DeviceError> {
        if kind.is_empty() || !kind.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_')) {
            let why = "this is no name for a kind. Use lower-case letters, digits, '-' and '_'";
            return Err(DeviceError::spec(kind, why));
        }
        if self.kind(kind).is_some() {
            return Err(DeviceError::spec(kind, "this kind is registered already. Give the new one another name"));
        }
        self.kinds.push(Kind { name: kind.to_string(), open: Box::new(open), reaches: None });
        Ok(())
    }

    /// Declares the resources that devices of a registered kind open by name, for [`Registry::reaches`]. `reaches`
    /// reads the parameters, opens nothing, and leaves out the devices below (`over=`).
    ///
    /// # Errors
    ///
    /// [`DeviceError::Spec`] if there is no such kind.
    pub fn declare(
        &mut self,
        kind: &str,
        reaches: impl Fn(&mut Params<'_>) -> Vec<Reach> + Send + Sync + 'static,
    ) -> Result<(), DeviceError> {
        match self.kinds.iter_mut().find(|known| known.name == kind) {
            Some(known) => known.reaches = Some(Box::new(reaches)),
            None => return Err(DeviceError::spec(kind, "this kind is not registered. Register it first")),
        }
        Ok(())
    }

    /// Opens the device that `spec` names.
    ///
    /// # Errors
    ///
    /// Like [`open_device`].
    pub fn open(&self, spec: &str) -> Result<Device, DeviceError> {
        let over = |spec: &str| self.open(spec);
        let (kind, mut params) = self.parse(spec, &over)?;
        (kind.open)(&mut params)
    }

    /// Returns all resources that opening `spec` reaches by name, those of the devices below included. Opens nothing.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Spec`] if the spec cannot be parsed, or contains a kind whose resources were not declared.
    pub fn reaches(&self, spec: &str) -> Result<Vec<Reach>, DeviceError> {
        let never = |spec: &str| Err(DeviceError::spec(masked(spec), "nothing is opened while a spec is looked at"));
        let (kind, mut params) = self.parse(spec, &never)?;
        let Some(reaches) = &kind.reaches else {
            let why = format!("kind '{}' does not declare what it opens. Declare it: Registry::declare", kind.name);
            return Err(params.error(why));
        };
        let below = params.text("over");
        let mut found = reaches(&mut params);
        for spec in below.iter().flat_map(|below| split(below)) {
            found.extend(self.reaches(spec)?);
        }
        Ok(found)
    }

    /// Splits a spec into its kind and its parameters.
    fn parse<'a>(&self, spec: &str, over: Open<'a>) -> Result<(&Kind, Params<'a>), DeviceError> {
        if spec.matches("over=").count() > MAX_DEPTH {
            return Err(DeviceError::spec(
                masked(spec),
                format!("nested more than {MAX_DEPTH} deep. Stack fewer devices"),
            ));
        }
        let Some((kind, rest)) = spec.split_once(':') else {
            let shown = masked(spec);
            let right = if self.kind(spec).is_some() { format!("{spec}:") } else { format!("file:{shown}") };
            let kinds = self.in_words();
            let why = format!("no kind. Put one of {kinds} and a colon in front, as in {right}");
            return Err(DeviceError::spec(shown, why));
        };
        let params = Params::parse(spec, rest, over)?;
        match self.kind(kind) {
            Some(kind) => Ok((kind, params)),
            None => {
                Err(DeviceError::spec(masked(spec), format!("kind '{kind}' is unknown. Known: {}", self.in_words())))
            }
        }
    }

    fn kind(&self, name: &str) -> Option<&Kind> {
        self.kinds.iter().find(|kind| kind.name == name)
    }

    /// Returns the names of all kinds, as a list for errors.
    fn in_words(&self) -> String {
        self.kinds.iter().map(|kind| kind.name.as_str()).collect::<Vec<_>>().join(", ")
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
