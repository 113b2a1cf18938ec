//! Parsing of pool and volume names as users write them, and opening of pools.
//!
//! `POOL` is a device spec, a path, or several of them joined by `+`, of which one is enough to find the others; or
//! `uuid:IDENTITY`. A volume is `POOL#NAME`. This module tells these forms apart. The meaning of a spec is up to the
//! device, the content of a pool up to `sheave_vol`.

pub mod whole;

use std::fmt;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use sheave::Device;
use sheave_base::units::SECTOR_BYTES;
use sheave_drivers::{Reach, spec};
use sheave_vol::{OpenOptions, Pool};

use crate::devices::{self, open_device};
use crate::failure::Failure;
use crate::paths;
use crate::value;

/// Returns true if `path` leads to the open `file`, and not to another file that was put there since.
pub fn leads_to(path: &Path, file: &File) -> bool {
    let identity = |meta: Metadata| (meta.dev(), meta.ino());
    match (fs::metadata(path), file.metadata()) {
        (Ok(now), Ok(opened)) => identity(now) == identity(opened),
        _ => false,
    }
}

/// Returns true if nothing exists at `path`. Returns false if that cannot be determined, for lack of permission.
pub fn is_missing(path: &Path) -> bool {
    let gone = [std::io::ErrorKind::NotFound, std::io::ErrorKind::NotADirectory];
    std::fs::metadata(path).is_err_and(|error| gone.contains(&error.kind()))
}

/// File systems without support for holes, by their magic numbers in statfs(2): 9p, exFAT, FAT, HFS and HFS+, JFS,
/// minix (four), NILFS, ramfs, ReiserFS, UDF.
const WITHOUT_HOLES: [u64; 14] = [
    0x0102_1997,
    0x2011_bab0,
    0x4d44,
    0x4244,
    0x482b,
    0x3153_464a,
    0x137f,
    0x138f,
    0x2468,
    0x2478,
    0x3434,
    0x8584_58f6,
    0x5265_4973,
    0x1501_3346,
];

/// Returns whether a file or device supports discard; `None` if only a write would tell. A process that opens a pool
/// for writing tries it, on an unnamed file beside the pool. Read-only commands must change nothing, so this goes by
/// the kernel's report for a block device, and by the type of a file system.
fn takes_back(path: &Path) -> Option<bool> {
    let meta = fs::metadata(path).ok()?;
    if meta.file_type().is_block_device() {
        let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        let dir = format!("/sys/dev/block/{major}:{minor}");
        // A partition has no queue directory; its disk, one level up, has.
        let read = |queue: &str| fs::read_to_string(format!("{dir}/{queue}/write_zeroes_max_bytes")).ok();
        let most: u64 = read("queue").or_else(|| read("../queue"))?.trim().parse().ok()?;
        return Some(most > 0);
    }
    let magic = rustix::fs::statfs(path).ok()?.f_type as u64;
    WITHOUT_HOLES.contains(&(magic & 0xffff_ffff)).then_some(false)
}

/// Kinds of device specs; any other text is a path.
const KINDS: [&str; 8] = ["null", "ram", "file", "fault", "partition", "linear", "nbd", "rbd"];

/// Prefix of a pool that is named by its identity.
const UUID: &str = "uuid:";

/// Returns true if `kind:` may begin a spec.
pub fn is_kind(kind: &str) -> bool {
    KINDS.contains(&kind)
}

/// A pool, as written on the command line or in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlace {
    text: String,
    members: Vec<Member>,
    /// Directories to search for members that are not named, in addition to the usual ones.
    search: Vec<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Member {
    Path(String),
    Spec(String),
    /// All members of the pool with this identity, wherever they are.
    Uuid([u8; 16]),
}

/// Returns the options with which this program opens pools: acknowledged writes survive its death.
#[must_use]
pub fn open_options() -> OpenOptions {
    OpenOptions::default().runtime_dir(paths::recent_directory())
}

impl PoolPlace {
    /// Free space of the file system with the least of it, among those with files of the pool. `None` if the pool is on
    /// block devices only, or has members that are neither files nor block devices.
    pub fn host_free_bytes(&self) -> Option<u64> {
        let free = |path: &String| {
            let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
            let found = rustix::fs::statvfs(path.as_str()).ok().filter(|_| is_file)?;
            Some(found.f_bavail.saturating_mul(found.f_frsize))
        };
        self.file_paths().iter().filter_map(free).min()
    }

    /// Returns true if a member is a device of a server or cluster, which may not respond for long.
    pub(crate) fn may_be_silent(&self) -> bool {
        self.members.iter().any(|member| devices::may_be_silent(&member.spec("")))
    }
}

/// A volume, as written on the command line or in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePlace {
    pub pool: PoolPlace,
    pub name: String,
}

/// Kind of access that a command needs to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only. Recovery after a crash is done in memory, and nothing is written.
    Look,
    /// Read only, and open what is readable of a damaged pool.
    Rescue,
    /// Read and write.
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
    // An existing path takes precedence, whatever its name. `over=` extends to the end of a spec, including any `+`.
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

/// Parses an identity: 32 hexadecimal digits, with or without dashes.
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

/// Returns true if a device keeps data in the memory of this process alone, at any depth of the spec.
pub(crate) fn keeps_in_memory(spec: &str) -> bool {
    let keeps = |leaf: &&str| leaf.starts_with("ram:") || leaf.starts_with("null:") && leaf.contains("keep=");
    spec::leaves(spec).iter().any(keeps)
}

/// Returns true if a device without another under it keeps its data in the memory of this process, or nowhere.
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

    /// Spec of the device. `options` is empty or begins with a comma, and is added to a path.
    fn spec(&self, options: &str) -> String {
        match self {
            Self::Spec(spec) => spec.clone(),
            Self::Uuid(_) => self.text(),
            // The `./` keeps a '=' in the path from being read as a parameter.
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
    /// Identities of the pool's files and block devices, by which other processes recognise it. Empty if it has other
    /// members.
    pub fn identities(&self) -> Vec<(u64, u64)> {
        let of = |path: &String| Some(crate::look::node_of(&fs::metadata(path).ok()?));
        self.file_paths().iter().map(of).collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// Identities of the loop devices over the pool's files, and of the files under its loop devices: a process that
    /// opened the pool through one of these lists the pool under that identity.
    pub fn other_identities(&self) -> Vec<(u64, u64)> {
        let of = |path: &String| crate::look::other_node(Path::new(path));
        self.file_paths().iter().map(of).collect::<Option<Vec<_>>>().unwrap_or_default()
    }

    /// Returns the text if it may be the name of a pool in a daemon: it has no slash, and no file is called so.
    pub fn as_name(&self) -> Option<&str> {
        let is_name = !self.text.contains('/') && is_missing(Path::new(&self.text));
        let may_be = matches!(self.members.as_slice(), [Member::Path(_)]) && is_name;
        may_be.then_some(self.text.as_str())
    }

    /// Paths of the pool's files and block devices. Empty if it has other members.
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

    /// Everything that opening the pool accesses by path or address. A member with an invalid spec is skipped, since it
    /// does not open.
    pub fn reaches(&self) -> Vec<Reach> {
        self.members.iter().flat_map(|member| devices::reaches(&member.spec("")).unwrap_or_default()).collect()
    }

    /// Specs of the members.
    pub fn specs(&self) -> Vec<String> {
        self.members.iter().map(|member| member.spec("")).collect()
    }

    /// Returns true if a file or device of the pool is known not to support discard, as far as can be told without
    /// writing.
    pub fn takes_nothing_back(&self) -> bool {
        self.file_paths().iter().any(|path| takes_back(Path::new(path)) == Some(false))
    }

    /// Returns the path if the pool is a single file or device.
    pub fn single_path(&self) -> Option<&Path> {
        match self.members.as_slice() {
            [Member::Path(path)] => Some(Path::new(path)),
            _ => None,
        }
    }

    /// Returns the spec if the pool has a single member; `options` (beginning with a comma) are added to a path.
    pub fn single_spec(&self, options: &str) -> Option<String> {
        match self.members.as_slice() {
            [one] => Some(one.spec(options)),
            _ => None,
        }
    }

    /// Returns path and options (with their comma) if the pool has a single `file:` member. `size=` is left out.
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

    /// Paths of the files that make up the pool.
    ///
    /// # Errors
    ///
    /// A member is a spec of something else than a file.
    pub fn paths(&self) -> Result<Vec<std::path::PathBuf>, Failure> {
        let path = |member: &Member| {
            let Member::Spec(text) = member else { return Ok(member.text().into()) };
            let one = self.only(member);
            let path = one.file_spec().map(|(path, _)| path.into());
            path.ok_or_else(|| Failure::usage(format!("--allocate full: {text} is no file")).fix("leave it out"))
        };
        self.members.iter().map(path).collect()
    }

    /// Specs of the lowest devices under all members, on which no other is stacked.
    pub fn leaves(&self) -> Vec<String> {
        let of = |member: &Member| match member {
            Member::Spec(spec) => spec::leaves(spec).into_iter().map(str::to_owned).collect(),
            Member::Path(_) | Member::Uuid(_) => vec![member.spec("")],
        };
        self.members.iter().flat_map(of).collect()
    }

    /// Returns true if the pool is completely in memory, and gone when this process ends.
    pub fn is_volatile(&self) -> bool {
        self.leaves().iter().all(|leaf| is_memory(leaf))
    }

    /// Fails if any part of the pool is in memory, for commands whose result would be lost when they end.
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

    /// Opens the members, with `options` (beginning with a comma) added to paths.
    pub fn open_members(&self, options: &str) -> Result<Vec<Device>, Failure> {
        let open = |member: &Member| open_device(&member.spec(options)).map_err(crate::failure::device);
        self.members.iter().map(open).collect()
    }

    /// Opens the [whole](PoolPlace::whole) pool as one device, with `options` such as `,size=10G` added to paths.
    pub fn open_device(&self, options: &str) -> Result<Device, Failure> {
        sheave_vol::join(&self.text, &self.whole()?.open_members(options)?).map_err(crate::failure::pool)
    }

    /// Opens the single device that is named, which is to become a member, without looking at its label.
    pub fn open_alone(&self, options: &str) -> Result<Device, Failure> {
        let mut devices = self.open_members(options)?;
        devices.pop().ok_or_else(|| Failure::usage(format!("{self} names no device")))
    }

    /// Sets additional directories to search for members that are not named.
    #[must_use]
    pub fn search_in(self, search: Vec<PathBuf>) -> PoolPlace {
        PoolPlace { search, ..self }
    }

    /// Additional directories to search for members.
    pub fn search(&self) -> &[PathBuf] {
        &self.search
    }

    /// Returns the pool with the list of all its members as its text.
    #[must_use]
    pub fn spelled(self) -> PoolPlace {
        let text = match self.members.as_slice() {
            // Kept as written: an existing path may have any name, and could not be told from a spec otherwise.
            [Member::Path(_) | Member::Spec(_)] if !self.text.starts_with(UUID) => self.text.clone(),
            members => members.iter().map(Member::text).collect::<Vec<_>>().join("+"),
        };
        PoolPlace { text, ..self }
    }

    /// The pool with only one of its members.
    fn only(&self, member: &Member) -> PoolPlace {
        PoolPlace { text: member.text(), members: vec![member.clone()], search: Vec::new() }
    }

    /// Opens the device on which a new pool is created, whatever it contains.
    pub fn new_device(&self, options: &str) -> Result<Device, Failure> {
        match self.open_members(options)?.as_slice() {
            [one] => Ok(one.clone()),
            several => sheave_blk::linear::concatenate(&self.text, several).map_err(crate::failure::device),
        }
    }

    /// Returns the text for the pool once `last` has become its last member.
    pub fn with(&self, last: &PoolPlace) -> String {
        // A path within a nested spec must be written as a spec.
        let nested = self.text.contains("over=");
        let names = last.members.iter().map(|member| if nested { member.spec("") } else { member.text() });
        std::iter::once(self.text.clone()).chain(names).collect::<Vec<_>>().join("+")
    }

    /// Returns the pool with one more member, under the same text.
    #[must_use]
    pub fn and(&self, last: &PoolPlace) -> PoolPlace {
        PoolPlace { members: self.members.iter().chain(&last.members).cloned().collect(), ..self.clone() }
    }

    /// Returns true if it names a single file, device or spec.
    pub fn is_one(&self) -> bool {
        self.members.len() == 1
    }

    /// Fails if no existing pool can be meant.
    pub fn expect_pool(&self) -> Result<(), Failure> {
        self.refuse_volatile()?;
        self.expect_there()
    }

    /// Opens the pool; fails if it is in use.
    pub fn open_now(&self, access: Access) -> Result<Pool, Failure> {
        let (options, rescue) = match access {
            Access::Change => ("", false),
            Access::Look => (",readonly=on", false),
            Access::Rescue => (",readonly=on", true),
        };
        let open = open_options().read_only(access != Access::Change).rescue(rescue);
        let whole = self.whole()?;
        let device = sheave_vol::join(&self.text, &whole.open_members(options)?).map_err(crate::failure::pool)?;
        let pool = Pool::open(&device, &open).map_err(crate::failure::pool)?;
        if access == Access::Change {
            // The result is ignored: hints only speed up the search, and `grow` reports members that the search would
            // miss.
            whole.leave_hints();
        }
        Ok(pool)
    }

    /// Opens the pool for writing, if its devices prevent writes of a host that held it before and comes back.
    pub fn open_fenced(&self) -> Result<Pool, Failure> {
        let device = self.open_device("")?;
        if !device.capabilities().fences {
            let what = format!("{self}: a daemon that stands by wants storage that cuts off who had the pool before");
            return Err(Failure::usage(what).fix(
                "only images of a Ceph cluster with the feature exclusive-lock do (rbd:POOL/IMAGE, `rbd feature enable \
                 POOL/IMAGE exclusive-lock`); serve this pool without standby",
            ));
        }
        Pool::open(&device, &open_options()).map_err(crate::failure::pool)
    }

    /// Fails if a path does not exist, with a better message than the device would give.
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
