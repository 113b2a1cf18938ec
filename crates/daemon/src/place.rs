//! Where a pool or volume is, as written on the command line, and opening it.
//!
//! `POOL` is a device spec, a path, or several of them joined by `+`, of which one is enough; or `uuid:IDENTITY`. A
//! volume is `POOL#NAME`. Owns how these are told apart; what a spec means is the device's matter, what is in a pool
//! the pool's.

mod takes_back;
pub mod whole;

use std::fmt;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sheave::Device;
use sheave_base::units::SECTOR_BYTES;
use sheave_drivers::{Reach, spec};
use sheave_vol::{OpenOptions, Pool};

use self::takes_back::takes_back;
use crate::devices::{self, open_device};
use crate::failure::Failure;
use crate::value;

/// Whether this path leads to this open file, and not to another that was put there meanwhile.
pub fn leads_to(path: &Path, file: &File) -> bool {
    let identity = |meta: Metadata| (meta.dev(), meta.ino());
    match (fs::metadata(path), file.metadata()) {
        (Ok(now), Ok(opened)) => identity(now) == identity(opened),
        _ => false,
    }
}

/// Whether nothing is there; not so when that cannot be told, for want of a right.
pub fn is_missing(path: &Path) -> bool {
    let gone = [std::io::ErrorKind::NotFound, std::io::ErrorKind::NotADirectory];
    std::fs::metadata(path).is_err_and(|error| gone.contains(&error.kind()))
}

/// The kinds of specs; what begins otherwise is a path.
const KINDS: [&str; 8] = ["null", "ram", "file", "fault", "partition", "linear", "nbd", "rbd"];

/// What the name of a pool begins with that is named by its identity.
const UUID: &str = "uuid:";

/// Whether a spec may begin with it and a colon.
pub fn is_kind(kind: &str) -> bool {
    KINDS.contains(&kind)
}

/// A pool on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlace {
    text: String,
    members: Vec<Member>,
    /// Where members that are not named are looked for, besides the usual places.
    search: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Member {
    Path(String),
    Spec(String),
    /// All members of the pool with this identity, wherever they are.
    Uuid([u8; 16]),
}

impl PoolPlace {
    /// Free bytes of the file systems that its files lie in, of the fullest; `None` for block devices, and for a pool
    /// that has something else than files and block devices.
    pub fn host_free_bytes(&self) -> Option<u64> {
        let free = |path: &String| {
            let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
            let found = rustix::fs::statvfs(path.as_str()).ok().filter(|_| is_file)?;
            Some(found.f_bavail.saturating_mul(found.f_frsize))
        };
        self.file_paths().iter().filter_map(free).min()
    }

    /// Whether one of its members may take long to answer, for a server or a cluster has it.
    pub(crate) fn may_be_silent(&self) -> bool {
        self.members.iter().any(|member| devices::may_be_silent(&member.spec("")))
    }
}

/// A volume on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePlace {
    /// Its pool.
    pub pool: PoolPlace,
    /// Its name.
    pub name: String,
}

/// What a command means to do with a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Look only, and write nothing: what a crash left is recovered in memory.
    Look,
    /// Look at as much of it as there is, though the pool does not open otherwise.
    Rescue,
    /// Change it.
    Change,
}

impl FromStr for PoolPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("empty; name a file or device, such as pool.img".into());
        }
        if let Some((pool, name)) = text.rsplit_once('#')
            && !Path::new(text).exists()
        {
            return Err(format!("this command wants a pool; '{pool}' is one, '#{name}' names a volume in it"));
        }
        let members = members_of(text)?;
        Ok(Self { text: text.into(), members, search: Vec::new() })
    }
}

impl FromStr for VolumePlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((pool, name)) = text.rsplit_once('#') else {
            return Err(format!("no volume is named; write '{text}#NAME'"));
        };
        if pool.is_empty() {
            return Err(format!("no pool is named; write 'POOL#{name}', such as 'pool.img#{name}'"));
        }
        let name = value::volume_name(name).map_err(|why| format!("volume name '{name}': {why}"))?;
        let members = members_of(pool)?;
        Ok(Self { pool: PoolPlace { text: pool.into(), members, search: Vec::new() }, name })
    }
}

fn members_of(text: &str) -> Result<Vec<Member>, String> {
    // A path that is there wins, whatever it is called; and `over=` takes the rest of a spec, pluses included.
    if Path::new(text).exists() {
        return Ok(vec![member(text)?]);
    }
    if let Some(uuid) = text.strip_prefix(UUID) {
        if uuid.contains('+') {
            return Err(format!("'{text}': a UUID names a whole pool; nothing is joined to it"));
        }
        return Ok(vec![Member::Uuid(parse_uuid(uuid)?)]);
    }
    if is_spec(text) && text.contains("over=") {
        return Ok(vec![Member::Spec(text.into())]);
    }
    spec::split(text).into_iter().map(member).collect()
}

/// The identity that a text says: 32 hexadecimal digits, with dashes or without.
pub fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    let wrong = || format!("'{text}' is no UUID: it has 32 hexadecimal digits, as sheave pool info prints them");
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err(wrong());
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    if uuid == [0; 16] { Err(wrong()) } else { Ok(uuid) }
}

fn is_spec(text: &str) -> bool {
    text.split_once(':').is_some_and(|(kind, _)| is_kind(kind))
}

fn member(text: &str) -> Result<Member, String> {
    if text.is_empty() {
        return Err("nothing stands before or after a '+'; join members as in a.img+b.img".into());
    }
    if is_spec(text) && !Path::new(text).exists() {
        return Ok(Member::Spec(text.into()));
    }
    if text.contains('"') && text.contains([',', '+']) {
        return Err(format!(
            "a path with a quote and a comma or plus cannot be told in a spec: '{text}'; use a link to it"
        ));
    }
    if text.contains(',') && !Path::new(text).exists() {
        return Err(format!("'{text}' has a comma and is no file; for a device spec write file:PATH,key=value"));
    }
    Ok(Member::Path(text.into()))
}

/// Whether a device that stands on no other keeps what it holds in the memory of this process, or nowhere.
fn is_memory(leaf: &str) -> bool {
    leaf.starts_with("ram:") || leaf.starts_with("null:")
}

impl Member {
    fn text(&self) -> String {
        match self {
            Self::Path(text) | Self::Spec(text) => text.clone(),
            Self::Uuid(uuid) => format!("{UUID}{}", sheave_vol::members::uuid_text(uuid)),
        }
    }

    /// The spec of the device, with options in a form that starts with a comma.
    fn spec(&self, options: &str) -> String {
        match self {
            Self::Spec(spec) => spec.clone(),
            Self::Uuid(_) => self.text(),
            // So that a '=' in a path is no parameter.
            Self::Path(path) if path.starts_with(['/', '.']) => format!("file:{}{options}", spec::quoted(path)),
            Self::Path(path) => format!("file:{}{options}", spec::quoted(&format!("./{path}"))),
        }
    }
}

impl fmt::Display for PoolPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for VolumePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.pool, self.name)
    }
}

impl PoolPlace {
    /// By which another process knows its files and block devices; empty when it has something else, too.
    pub fn identities(&self) -> Vec<(u64, u64)> {
        let of = |path: &String| Some(crate::look::node_of(&fs::metadata(path).ok()?));
        self.file_paths().iter().map(of).collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// By which another process may know them that has them by another way: loop devices over its files, and the files
    /// of its loop devices.
    pub fn other_identities(&self) -> Vec<(u64, u64)> {
        let of = |path: &String| crate::look::other_node(Path::new(path));
        self.file_paths().iter().map(of).collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// It as the name of a pool that a daemon has, if it may be one: no slash, and nothing there that is called so.
    pub fn as_name(&self) -> Option<&str> {
        let is_name = !self.text.contains('/') && is_missing(Path::new(&self.text));
        let may_be = matches!(self.members.as_slice(), [Member::Path(_)]) && is_name;
        may_be.then_some(self.text.as_str())
    }

    /// The paths of its files and block devices; none when it has something else, too.
    pub fn file_paths(&self) -> Vec<String> {
        let of = |member: &Member| {
            let spec = member.spec("");
            let rest = spec.strip_prefix("file:")?;
            let path = match spec::take_quoted(rest)? {
                (Some(path), _) => path.to_owned(),
                (None, rest) => rest.split_once(',').unwrap_or((rest, "")).0.to_owned(),
            };
            Some(path)
        };
        self.members.iter().map(of).collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// All that opening it reaches by name. A member whose spec cannot be read adds nothing, for it does not open.
    pub fn reaches(&self) -> Vec<Reach> {
        self.members.iter().flat_map(|member| devices::reaches(&member.spec("")).unwrap_or_default()).collect()
    }

    /// The spec of each of its members.
    pub fn specs(&self) -> Vec<String> {
        self.members.iter().map(|member| member.spec("")).collect()
    }

    /// Whether one of its files and devices takes no space back, as far as that shows without a try.
    pub fn takes_nothing_back(&self) -> bool {
        self.file_paths().iter().any(|path| takes_back(Path::new(path)) == Some(false))
    }

    /// The only path, when the pool is one file or device.
    pub fn single_path(&self) -> Option<&Path> {
        match self.members.as_slice() {
            [Member::Path(path)] => Some(Path::new(path)),
            _ => None,
        }
    }

    /// The spec of its only member, with options in a form that starts with a comma if it is a path.
    pub fn single_spec(&self, options: &str) -> Option<String> {
        match self.members.as_slice() {
            [one] => Some(one.spec(options)),
            _ => None,
        }
    }

    /// Path and options (from their comma on) of a pool on one `file:` device.
    pub fn file_spec(&self) -> Option<(String, String)> {
        let spec = match self.members.as_slice() {
            [one] => one.spec(""),
            _ => return None,
        };
        let rest = spec.strip_prefix("file:")?;
        let (path, options) = match spec::take_quoted(rest)? {
            (Some(path), options) => (path, options),
            (None, rest) => rest.split_once(',').unwrap_or((rest, "")),
        };
        let options: String = options
            .split(',')
            .filter(|key| !key.is_empty() && !key.starts_with("size="))
            .map(|key| format!(",{key}"))
            .collect();
        Some((path.to_owned(), options))
    }

    /// The files that it is made of.
    ///
    /// # Errors
    ///
    /// For a member that is a spec of something else than a file.
    pub fn paths(&self) -> Result<Vec<std::path::PathBuf>, Failure> {
        let path = |member: &Member| {
            let Member::Spec(text) = member else { return Ok(member.text().into()) };
            let one = self.only(member);
            let path = one.file_spec().map(|(path, _)| path.into());
            path.ok_or_else(|| Failure::usage(format!("--allocate full: {text} is no file")).fix("leave it out"))
        };
        self.members.iter().map(path).collect()
    }

    /// The specs of the devices that stand on no other, under all of its members.
    pub fn leaves(&self) -> Vec<String> {
        let of = |member: &Member| match member {
            Member::Spec(spec) => spec::leaves(spec).into_iter().map(str::to_owned).collect(),
            Member::Path(_) | Member::Uuid(_) => vec![member.spec("")],
        };
        self.members.iter().flat_map(of).collect()
    }

    /// Whether all of it is gone when this process ends.
    pub fn is_volatile(&self) -> bool {
        self.leaves().iter().all(|leaf| is_memory(leaf))
    }

    /// Refuses a pool with anything in memory, for commands whose work would be lost when they end.
    pub fn refuse_volatile(&self) -> Result<(), Failure> {
        let Some(lost) = self.leaves().into_iter().find(|leaf| is_memory(leaf)) else { return Ok(()) };
        if !self.is_volatile() {
            let what = format!("{self}: a part of this pool is in memory, {lost}, and gone when this command ends");
            return Err(Failure::usage(what).fix("use files and devices alone"));
        }
        Err(Failure::usage(format!("{self}: a pool in memory is gone when this command ends")).fix(format!(
            "use a file; to measure one in memory: sheave bench 'vol:{self}#test', which makes both for the run"
        )))
    }

    /// The devices of its members.
    pub fn open_members(&self, options: &str) -> Result<Vec<Device>, Failure> {
        let open = |member: &Member| open_device(&member.spec(options)).map_err(crate::failure::device);
        self.members.iter().map(open).collect()
    }

    /// The device under the [whole](PoolPlace::whole) pool, opened with options such as `,size=10G` for members that
    /// are paths.
    pub fn open_device(&self, options: &str) -> Result<Device, Failure> {
        sheave_vol::join(&self.text, &self.whole()?.open_members(options)?).map_err(crate::failure::pool)
    }

    /// The device that is named, which becomes a member of a pool, whatever it is a member of.
    pub fn open_alone(&self, options: &str) -> Result<Device, Failure> {
        let mut devices = self.open_members(options)?;
        devices.pop().ok_or_else(|| Failure::usage(format!("{self} names no device")))
    }

    /// Members that are not named are looked for in these directories, too.
    #[must_use]
    pub fn search_in(self, search: Vec<PathBuf>) -> PoolPlace {
        PoolPlace { search, ..self }
    }

    /// Where they are looked for besides the usual places.
    pub fn search(&self) -> &[PathBuf] {
        &self.search
    }

    /// The pool, called by all of its members.
    #[must_use]
    pub fn spelled(self) -> PoolPlace {
        let text = match self.members.as_slice() {
            // As it was written: a path that is there may have any name.
            [Member::Path(_) | Member::Spec(_)] if !self.text.starts_with(UUID) => self.text.clone(),
            members => members.iter().map(Member::text).collect::<Vec<_>>().join("+"),
        };
        PoolPlace { text, ..self }
    }

    /// A pool of one of its members.
    fn only(&self, member: &Member) -> PoolPlace {
        PoolPlace { text: member.text(), members: vec![member.clone()], search: Vec::new() }
    }

    /// The device that a new pool is made on, whatever was there before.
    pub fn new_device(&self, options: &str) -> Result<Device, Failure> {
        match self.open_members(options)?.as_slice() {
            [one] => Ok(one.clone()),
            several => sheave_blk::linear::concatenate(&self.text, several).map_err(crate::failure::device),
        }
    }

    /// How the pool is named when this has become its last member.
    pub fn with(&self, last: &PoolPlace) -> String {
        // In a spec with a device under it a path is a spec too.
        let nested = self.text.contains("over=");
        let names = last.members.iter().map(|member| if nested { member.spec("") } else { member.text() });
        std::iter::once(self.text.clone()).chain(names).collect::<Vec<_>>().join("+")
    }

    /// With one member more, called as before.
    #[must_use]
    pub fn and(&self, last: &PoolPlace) -> PoolPlace {
        PoolPlace { members: self.members.iter().chain(&last.members).cloned().collect(), ..self.clone() }
    }

    /// Whether it names one file or device, or spec of one.
    pub fn is_one(&self) -> bool {
        self.members.len() == 1
    }

    /// Refuses what cannot be a pool that is there.
    pub fn expect_pool(&self) -> Result<(), Failure> {
        self.refuse_volatile()?;
        self.expect_there()
    }

    /// The pool, without waiting for one that is in use.
    pub fn open_now(&self, access: Access) -> Result<Pool, Failure> {
        let (options, rescue) = match access {
            Access::Change => ("", false),
            Access::Look => (",readonly=on", false),
            Access::Rescue => (",readonly=on", true),
        };
        let open = OpenOptions::default().read_only(access != Access::Change).rescue(rescue);
        let whole = self.whole()?;
        let device = sheave_vol::join(&self.text, &whole.open_members(options)?).map_err(crate::failure::pool)?;
        let pool = Pool::open(&device, &open).map_err(crate::failure::pool)?;
        if access == Access::Change {
            // Without them a search finds what it finds; `grow` tells when it would not find all.
            whole.leave_hints();
        }
        Ok(pool)
    }

    /// The pool, to change it, if its devices keep another host from writing that had it before and comes back.
    pub fn open_fenced(&self) -> Result<Pool, Failure> {
        let device = self.open_device("")?;
        if !device.capabilities().fences {
            let what = format!("{self}: a daemon that stands by wants storage that cuts off who had the pool before");
            return Err(Failure::usage(what).fix(
                "only images of a Ceph cluster with the feature exclusive-lock do (rbd:POOL/IMAGE, `rbd feature enable \
                 POOL/IMAGE exclusive-lock`); serve this pool without standby",
            ));
        }
        Pool::open(&device, &OpenOptions::default()).map_err(crate::failure::pool)
    }

    /// The words for a pool that is not there, better than those of a device that could be made.
    pub fn expect_there(&self) -> Result<(), Failure> {
        for member in &self.members {
            if let Member::Path(path) = member
                && let Err(error) = std::fs::metadata(path)
                && !is_missing(Path::new(path))
            {
                return Err(Failure::run(format!("{path}: cannot be looked at: {error}"))
                    .fix("see what this user may do with it, and with each directory of its path"));
            }
            if let Member::Path(path) = member
                && is_missing(Path::new(path))
            {
                let make = match self.single_path() {
                    Some(path) => format!("{} --size 10G", path.display()),
                    None => "file:A,size=5G+file:B,size=5G".into(),
                };
                return Err(Failure::run(format!("{path}: there is no such file or device"))
                    .fix(format!("check the path, or make a pool: sheave pool create {make}")));
            }
            if let Member::Path(path) = member
                && let Ok(meta) = std::fs::metadata(path)
                && meta.is_file()
                && (meta.len() == 0 || !meta.len().is_multiple_of(SECTOR_BYTES))
            {
                let what = format!("{path} is not the file of a pool: it has {} bytes, not whole blocks", meta.len());
                return Err(
                    Failure::run(what).fix("check the path; if it was one, its end was cut off: take it from a copy")
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
