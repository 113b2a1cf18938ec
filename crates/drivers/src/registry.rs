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
/// kinds are defined by [`Registry::standard`], and the grammar by [`spec`](crate::spec).
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

    /// Returns all resources that opening `spec` reaches by name, also for the devices below. Opens nothing.
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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::spec::quoted;

    fn error(spec: &str) -> String {
        let error = open_device(spec).expect_err(spec).to_string();
        assert!(error.contains(spec), "'{error}' names the spec '{spec}'");
        error
    }

    fn error_of(spec: &str) -> String {
        open_device(spec).expect_err(spec).to_string()
    }

    #[test]
    fn defaults_and_every_key_of_null() {
        assert_eq!(open_device("null:").unwrap().size_bytes(), 1 << 30);
        let device =
            open_device("null:size=1T,latency=10us,complete=thread,depth=7,bs=4k,host_depth=9,timeout=3s").unwrap();
        assert_eq!(device.size_bytes(), 1 << 40);
        assert_eq!((device.limits().logical_block, device.limits().queue_depth), (4096, 7));
        assert_eq!(device.legs()[0].queue.timeout(), Duration::from_secs(3));
        assert!(device.name().starts_with("null:size=1T"));
    }

    #[test]
    fn refusals_name_cause_and_fix() {
        let cases = [
            ("", "no kind"),
            ("null", "as in null:"),
            ("/tmp/x", "as in file:/tmp/x"),
            ("/dev/sda", "file:/dev/sda"),
            ("nul:size=1G", "kind 'nul' is unknown. Known: null"),
            ("null:size=1G,size=2G", "'size' is given twice"),
            ("null:size=1G,x", "'x' is no key=value"),
            ("null:path", "takes no path"),
            ("null:colour=red", "key 'colour' is unknown. Known keys: bs, size"),
            ("null:size=12Q", "size=12Q"),
            ("null:size=100", "multiple of the block size, 512"),
            ("null:size=0", "not 0"),
            ("null:size=16E", "size=16E"),
            ("null:size=8E", "8 EiB - 1"),
            ("null:depth=0", "whole number from 1 to 4096"),
            ("null:depth=4097", "whole number from 1 to 4096"),
            ("null:depth=-1", "whole number from 1 to 4096"),
            ("null:host_depth=0", "whole number from 1 to 4096"),
            ("null:bs=100", "power of two from 512 to 64k"),
            ("null:bs=0", "power of two from 512 to 64k"),
            ("null:bs=128k", "power of two from 512 to 64k"),
            ("null:latency=soon", "latency=soon"),
            ("null:latency=1us,complete=poll", "complete=timer"),
            ("null:complete=maybe", "give one of poll, timer, thread"),
        ];
        for (spec, expect) in cases {
            let error = error(spec);
            assert!(error.contains(expect), "'{error}' says '{expect}'");
        }
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = format!("{}null:", "fault:over=".repeat(9));
        assert!(error(&deep).contains("nested more than 8 deep"));
    }

    #[test]
    fn paths_in_quotes_are_opened_as_they_are() {
        for bad in ["file:\"a,b", "file:\"a\"b,size=1M", "linear:over=file:\"a"] {
            assert!(error_of(bad).contains("file:\"a,b.img\""), "{}", error_of(bad));
        }
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a,b.img", "c+d.img"].map(|name| quoted(&dir.path().join(name).display().to_string()));
        let spec = format!("linear:over=file:{},size=1M+fault:seed=1,over=file:{},size=2M", paths[0], paths[1]);
        match open_device(&spec) {
            Ok(device) => {
                assert_eq!(device.size_bytes(), 3 << 20);
                assert!(dir.path().join("a,b.img").exists() && dir.path().join("c+d.img").exists());
            }
            // A host without kernel rings cannot open the files, but the spec is still parsed without an error.
            Err(error) => assert!(!matches!(error, DeviceError::Spec { .. }), "{error}"),
        }
    }

    #[test]
    fn a_program_adds_kinds_that_layers_stand_on() {
        let mut registry = Registry::standard();
        registry
            .register("half", |params| {
                let size = params.size("of")?.unwrap_or(0) / 2;
                params.finish()?;
                open_device(&format!("null:size={size}"))
            })
            .expect("a free name");
        let device = registry.open("fault:seed=1,over=partition:start=4k,over=half:of=1M").expect("a good spec");
        assert_eq!(device.size_bytes(), (512 << 10) - 4096);
        let error = registry.open("half:off=1M").expect_err("an unknown key").to_string();
        assert!(error.contains("key 'off' is unknown. Known keys: of"), "{error}");
        assert!(
            registry.open("halve:").expect_err("unknown").to_string().contains("linear, half"),
            "lists the new kind"
        );
        assert!(registry.open("half").expect_err("no colon").to_string().contains("as in half:"));
        assert!(
            open_device("half:of=1M").expect_err("not a standard kind").to_string().contains("kind 'half' is unknown")
        );
        for (name, why) in
            [("ram", "registered already"), ("half", "registered already"), ("", "no name"), ("a:b", "no name")]
        {
            let error = registry.register(name, |_| open_device("null:")).expect_err(name).to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
    }

    #[test]
    fn all_that_a_spec_opens_is_listed_at_any_depth_and_nothing_is_opened() {
        let file = |path: &str| Reach::Data(path.into());
        let registry = Registry::standard();
        let cases: [(&str, &[Reach]); 8] = [
            ("null:size=1T", &[]),
            ("ram:size=1G,huge=on", &[]),
            ("file:/not/there,size=1G", &[file("/not/there")]),
            ("file:\"/a,b=c.img\",readonly=on", &[file("/a,b=c.img")]),
            ("file:./a=b+c", &[file("./a=b+c")]),
            ("fault:error=0,over=file:/x", &[file("/x")]),
            (
                "partition:size=1M,over=linear:over=file:/x+fault:seed=1,over=linear:over=file:\"/y+z\"+ram:size=1M",
                &[file("/x"), file("/y+z")],
            ),
            ("linear:size=1,over=null:+file:/over=x", &[file("/over=x")]),
        ];
        for (spec, reaches) in cases {
            assert_eq!(registry.reaches(spec).expect(spec), reaches, "{spec}");
        }
        for (spec, why) in [("file", "as in file:"), ("over=file:/x", "is unknown"), ("file:/x,y", "no key=value")] {
            let error = registry.reaches(spec).expect_err(spec).to_string();
            assert!(error.contains(why), "{spec}: {error}");
        }
        let deep = format!("{}file:/x", "fault:over=".repeat(9));
        assert!(registry.reaches(&deep).is_err(), "a spec that is never opened");
    }

    /// The list of resources fails for a kind that was not declared, also if a device of that kind is below another
    /// one.
    #[test]
    fn reaches_fails_for_an_undeclared_kind() {
        let mut registry = Registry::standard();
        registry.register("odd", |_| open_device("null:")).expect("a free name");
        for spec in ["odd:", "linear:over=ram:size=1M+odd:x"] {
            let error = registry.reaches(spec).expect_err(spec).to_string();
            assert!(error.contains("kind 'odd' does not declare what it opens"), "{error}");
        }
        registry.declare("odd", |params| vec![Reach::Socket(params.path().unwrap_or_default().into())]).expect("known");
        assert_eq!(registry.reaches("fault:over=odd:x").expect("declared"), [Reach::Socket("x".into())]);
        assert!(registry.declare("none", |_| Vec::new()).is_err());
        assert_eq!(Reach::Network("the server h".into()).to_string(), "the server h, over the network");
    }
}
