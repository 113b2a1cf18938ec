//! The grammar of a spec: the image of a pool, and access to the cluster.
//!
//! Owns everything that follows `rbd:`. Errors name the pool and the image and never the whole spec, because a user may
//! have put a key into it, and errors go to logs.

use std::time::Duration;

use sheave::DeviceError;
use sheave::drivers::{Params, Reach};

/// Default of `timeout=`, after which librados ends a request.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Default of `connect=`, the time limit of opening the device.
const CONNECT: Duration = Duration::from_secs(15);
/// Default of `warn=`, after which a silent cluster is reported.
const WARN: Duration = Duration::from_secs(5);
/// Default of `lock=`, the time for which a claim waits for the exclusive lock.
const LOCK: Duration = Duration::from_secs(10);
/// Largest value of each of these; librados counts whole seconds.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Keys whose values are files that librados reads.
const FILES: [&str; 2] = ["conf", "keyring"];

/// Returns the resources that a spec needs: its cluster, and the files that its keys name. If no key names a file,
/// librados searches its usual paths for the cluster.
pub(crate) fn reaches(params: &mut Params<'_>) -> Vec<Reach> {
    let cluster = Reach::Network(format!("the cluster of {}", params.path().unwrap_or_default()));
    let files = FILES.into_iter().filter_map(|key| Some(Reach::Reads(params.text(key)?.into())));
    [cluster].into_iter().chain(files).collect()
}

/// A parsed spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) spec: String,
    pub(crate) pool: String,
    pub(crate) namespace: String,
    pub(crate) image: String,
    pub(crate) snapshot: Option<String>,
    /// Path of Ceph's configuration file; `None` for the usual paths of librados.
    pub(crate) conf: Option<String>,
    /// Name of the user, without `client.`.
    pub(crate) id: String,
    pub(crate) keyring: Option<String>,
    pub(crate) read_only: bool,
    pub(crate) timeout: Duration,
    pub(crate) connect: Duration,
    pub(crate) warn: Duration,
    pub(crate) lock: Duration,
}

impl Target {
    /// Parses a spec.
    ///
    /// # Errors
    ///
    /// Returns [`DeviceError::Spec`], which names what is wrong and what would be right.
    pub(crate) fn read(params: &mut Params<'_>) -> Result<Target, DeviceError> {
        let path = params.path().unwrap_or_default();
        let read = Target::read_keys(params, &path);
        read.map_err(|error| match error {
            DeviceError::Spec { why, .. } => DeviceError::spec(format!("rbd:{path}"), why),
            error => error,
        })
    }

    fn read_keys(params: &mut Params<'_>, path: &str) -> Result<Target, DeviceError> {
        if params.text("key").is_some() {
            return Err(params.error(
                "a spec takes no key: it stands in lists of processes, in logs and in reports. Put the key into a \
                 keyring, and name that by keyring=PATH",
            ));
        }
        let [conf, keyring] = FILES.map(|key| params.text(key));
        let id = params.text("id").unwrap_or_else(|| "admin".into());
        let namespace = params.text("namespace").unwrap_or_default();
        let read_only = params.switch("readonly")?.unwrap_or(false);
        let (timeout, connect) = (time(params, "timeout", TIMEOUT)?, time(params, "connect", CONNECT)?);
        let (warn, lock) = (time(params, "warn", WARN)?, time(params, "lock", LOCK)?);
        params.finish()?;
        let (pool, image, snapshot) = split(path).map_err(|why| params.error(why))?;
        if let Some(user) = id.strip_prefix("client.") {
            return Err(params.error(format!("id= is the user without 'client.': id={user}")));
        }
        // C ends a text at its first NUL.
        let texts = [Some(path), conf.as_deref(), keyring.as_deref(), Some(&id), Some(&namespace)];
        if texts.into_iter().flatten().any(|text| text.contains('\0')) || id.is_empty() {
            return Err(params.error("a name is empty, or holds a NUL byte"));
        }
        let spec = params.spec().to_owned();
        Ok(Target {
            spec,
            pool,
            namespace,
            image,
            snapshot,
            conf,
            id,
            keyring,
            read_only,
            timeout,
            connect,
            warn,
            lock,
        })
    }

    /// Returns true if the device takes no writes. A snapshot never changes.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.snapshot.is_some()
    }

    /// Returns the name of the image in the form that Ceph's own tools use.
    pub(crate) fn name(&self) -> String {
        let mut name = format!("{}/", self.pool);
        if !self.namespace.is_empty() {
            name = format!("{name}{}/", self.namespace);
        }
        name += &self.image;
        if let Some(snapshot) = &self.snapshot {
            name = format!("{name}@{snapshot}");
        }
        name
    }

    /// Returns a description of the device for errors and notices.
    pub(crate) fn words(&self) -> String {
        format!("RBD image {}", self.name())
    }
}

fn time(params: &mut Params<'_>, key: &'static str, default: Duration) -> Result<Duration, DeviceError> {
    match params.duration(key)?.unwrap_or(default) {
        time if time.is_zero() || time > LONGEST => {
            Err(params.error(format!("{key}= is a time above 0 and of a day at most, such as 30s")))
        }
        time => Ok(time),
    }
}

/// Parses `POOL/IMAGE[@SNAP]`.
fn split(path: &str) -> Result<(String, String, Option<String>), &'static str> {
    const RIGHT: &str = "Name pool and image, as in rbd:POOL/IMAGE or rbd:POOL/IMAGE@SNAPSHOT";
    let (pool, rest) = path.split_once('/').ok_or(RIGHT)?;
    if rest.contains('/') {
        return Err("there is more than one slash. A namespace goes into namespace=NAME");
    }
    let (image, snapshot) = match rest.split_once('@') {
        Some((image, snapshot)) => (image, Some(snapshot)),
        None => (rest, None),
    };
    if pool.is_empty() || image.is_empty() || snapshot == Some("") {
        return Err(RIGHT);
    }
    Ok((pool.into(), image.into(), snapshot.map(Into::into)))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use sheave::DeviceError;
    use sheave::drivers::Registry;

    use super::Target;

    /// Parses a spec, without opening the device.
    fn read(spec: &str) -> Result<Target, String> {
        static TARGET: Mutex<Option<Target>> = Mutex::new(None);
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut registry = Registry::standard();
        let keep = |target| *TARGET.lock().expect("no panic") = Some(target);
        registry
            .register("rbd", move |params| {
                keep(Target::read(params)?);
                Err(DeviceError::spec("", "it was read"))
            })
            .expect("the name is free");
        let error = registry.open(spec).expect_err("nothing is opened").to_string();
        TARGET.lock().expect("no panic").take().ok_or(error)
    }

    #[test]
    fn a_spec_names_pool_image_snapshot_and_user() {
        let plain = read("rbd:rbd/disk").expect("read");
        assert_eq!((plain.pool.as_str(), plain.image.as_str(), plain.snapshot.clone()), ("rbd", "disk", None));
        assert_eq!((plain.id.as_str(), plain.name().as_str()), ("admin", "rbd/disk"));
        assert!(!plain.is_read_only());
        assert_eq!(plain.timeout, Duration::from_secs(120));
        let all = "rbd:p/i@s,conf=/a/c,id=me,keyring=/a/k,namespace=n,timeout=1m,connect=2s,warn=200ms,lock=3s";
        let all = read(all).expect("read");
        assert_eq!(all.name(), "p/n/i@s");
        assert_eq!((all.conf.as_deref(), all.keyring.as_deref()), (Some("/a/c"), Some("/a/k")));
        assert_eq!((all.timeout.as_secs(), all.connect.as_secs(), all.lock.as_secs()), (60, 2, 3));
        assert!(all.is_read_only(), "a snapshot never changes");
        assert!(read("rbd:p/i,readonly=on").expect("read").is_read_only());
    }

    #[test]
    fn a_wrong_spec_gets_an_error_with_cause_and_fix() {
        for (spec, words) in [
            ("rbd:", "rbd:POOL/IMAGE"),
            ("rbd:disk", "rbd:POOL/IMAGE"),
            ("rbd:/disk", "rbd:POOL/IMAGE"),
            ("rbd:rbd/", "rbd:POOL/IMAGE"),
            ("rbd:rbd/disk@", "@SNAPSHOT"),
            ("rbd:rbd/space/disk", "namespace="),
            ("rbd:rbd/disk,id=client.me", "id=me"),
            ("rbd:rbd/disk,id=", "empty"),
            ("rbd:rbd/disk,timeout=0s", "timeout="),
            ("rbd:rbd/disk,lock=2d", "lock="),
            ("rbd:rbd/disk,conf=/a\0b", "NUL"),
            ("rbd:rbd/disk,colour=red", "'colour' is unknown"),
        ] {
            let error = read(spec).expect_err(spec);
            assert!(error.contains(words), "{spec}: {error}");
        }
    }

    #[test]
    fn a_key_is_refused_and_not_repeated() {
        for spec in ["rbd:rbd/disk,key=AQBsecret==", "rbd:rbd/disk,password=AQBsecret==", "rbd:disk,key=AQBsecret=="] {
            let error = read(spec).expect_err(spec);
            assert!(!error.contains("AQB"), "{error}");
            assert!(error.contains("rbd:rbd/disk") || error.contains("rbd:disk"), "{error}");
        }
        assert!(read("rbd:rbd/disk,key=x").expect_err("refused").contains("keyring=PATH"));
    }
}
