//! Completes a pool that is named by one member or by its UUID.
//!
//! Labels tell which members belong together ([`sheave_vol::members`]). The other members are searched for in this
//! order:
//!
//! 1. where this process found them before, and at the paths in the *hint* of a file of the pool: the extended
//!    attribute [`HINT`] with the paths of all members when the pool was last opened for writing. A file found this way
//!    is verified like any other candidate, so a stale, missing or forged hint cannot lead to a wrong member;
//! 2. in the directories of the named members, among the block devices of this host, and in the directories of
//!    `search`.
//!
//! Hints are attributes of files and not part of the pool's format: they concern this host only, paths on another host
//! differ, and programs that do not know hints can still open the pool.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::XattrFlags;
use sheave_drivers::spec;
use sheave_vol::members::{MemberTag, gather, uuid_text};

use super::{Member, PoolPlace};
use crate::failure::{self, Failure};
use crate::look::{Seen, Sight, Source, search, seen_at};

/// Extended attribute with the paths of the pool's members: absolute paths, each terminated by a NUL.
const HINT: &str = "user.sheave.members";
/// Maximum length of the attribute that is read: the kernel's limit for extended attributes.
const MOST_HINTED: usize = 64 << 10;

/// Paths at which this process found members, by pool.
static FOUND: Mutex<BTreeMap<[u8; 16], BTreeSet<PathBuf>>> = Mutex::new(BTreeMap::new());

/// Directories from the command line, for all searches of this process.
static ALSO: OnceLock<Vec<PathBuf>> = OnceLock::new();

/// Adds directories to all searches of this process.
pub fn search_also(directories: &[PathBuf]) {
    // Fails only on a second call; the command line is parsed once.
    let _ = ALSO.set(directories.to_vec());
}

/// A named member, and its label.
struct Named {
    member: Member,
    seen: Seen,
}

impl PoolPlace {
    /// Returns the pool with all of its members, in order, under the same text.
    ///
    /// A pool on other devices than files and block devices is returned unchanged, and so is one with a member that has
    /// no readable label or belongs to another pool: opening it reports what is wrong.
    ///
    /// # Errors
    ///
    /// Members are missing or ambiguous. A path that does not exist is reported by [`PoolPlace::expect_there`].
    pub fn whole(&self) -> Result<PoolPlace, Failure> {
        if let [Member::Uuid(uuid)] = self.members.as_slice() {
            return self.found(uuid, &[]);
        }
        let Some(named) = self.named() else { return Ok(self.clone()) };
        let Some(pool) = named.first().map(|first| first.seen.tag.pool()) else { return Ok(self.clone()) };
        if named.iter().any(|one| one.seen.tag.pool() != pool) {
            return Ok(self.clone());
        }
        let first = named.iter().find(|one| one.seen.tag.number() == 0);
        let count = first.map(|first| first.seen.tag.members().len() as u64);
        // Superblocks are unreadable, or a device is not a member yet.
        if count.is_some_and(|count| count == 0 || named.iter().any(|one| one.seen.tag.number() >= count)) {
            return Ok(self.clone());
        }
        let numbers: BTreeSet<u64> = named.iter().map(|one| one.seen.tag.number()).collect();
        if Some(numbers.len() as u64) == count && numbers.len() == named.len() {
            let mut named = named;
            named.sort_by_key(|one| one.seen.tag.number());
            let members = named.into_iter().map(|one| one.member).collect();
            return Ok(PoolPlace { members, ..self.clone() });
        }
        self.found(&pool, &named)
    }

    /// Reads the labels of the named members; `None` if one is not a file or block device, or has no label.
    fn named(&self) -> Option<Vec<Named>> {
        let of = |member: &Member| {
            let (path, _) = self.only(member).file_spec()?;
            Some(Named { member: member.clone(), seen: seen_at(Path::new(&path)).ok()?? })
        };
        self.members.iter().map(of).collect()
    }

    /// Searches for the other members of the pool.
    fn found(&self, pool: &[u8; 16], named: &[Named]) -> Result<PoolPlace, Failure> {
        let known = known(pool).into_iter().chain(named.iter().flat_map(|one| hinted(&one.seen.path)));
        let near = search(&known.map(Source::File).collect());
        if let Ok(whole) = self.gathered(pool, named, &near) {
            return Ok(whole);
        }
        let mut sources = BTreeSet::from([Source::Devices]);
        let also = self.search.iter().chain(ALSO.get().into_iter().flatten());
        sources.extend(also.map(|path| Source::Directory(path.clone())));
        sources.extend(named.iter().flat_map(|one| directories_of(&one.seen.path)).map(Source::Directory));
        if named.is_empty() && sources.len() == 1 {
            sources.insert(Source::Directory(PathBuf::from(".")));
        }
        let mut sight = search(&sources);
        sight.add(near);
        // The members found so far may have hints that lead to more.
        let of_pool = sight.seen.iter().filter(|seen| seen.tag.pool() == *pool);
        let more: BTreeSet<Source> = of_pool.flat_map(|seen| hinted(&seen.path)).map(Source::File).collect();
        sight.add(search(&more));
        if let Ok(whole) = self.gathered(pool, named, &sight) {
            return Ok(whole);
        }
        // The named members are read again as well: a pool in use changes its labels between reads.
        let named = self.named().filter(|_| !named.is_empty()).unwrap_or_default();
        sight.refresh(pool);
        self.gathered(pool, &named, &sight).map_err(|why| {
            if named.is_empty() && !sight.seen.iter().any(|seen| seen.tag.pool() == *pool) {
                return not_found(pool, &sight);
            }
            let why = why.but(&sight.in_words());
            match self.search.is_empty() {
                true => why,
                false => why.fix("Name all members, as in a.img+b.img, or the directories that they are in (search)"),
            }
        })
    }

    fn gathered(&self, pool: &[u8; 16], named: &[Named], sight: &Sight) -> Result<PoolPlace, Failure> {
        let own: BTreeSet<_> = named.iter().map(|one| one.seen.node).collect();
        let pair = |seen: &Seen| (seen.path.display().to_string(), seen.tag.clone());
        // A path with a quote cannot be written as a spec, so it cannot be opened.
        let is_new = |seen: &&Seen| !own.contains(&seen.node) && !seen.path.to_string_lossy().contains('"');
        let found: Vec<(String, MemberTag)> = sight.seen.iter().filter(is_new).map(pair).collect();
        let tagged: Vec<(String, MemberTag)> = named.iter().map(|one| pair(&one.seen)).collect();
        let all = gather(pool, &tagged, &found).map_err(failure::pool)?;
        // Members that were found are opened with the options of the named one.
        let options = named.iter().find_map(|one| match &one.member {
            Member::Spec(_) => self.only(&one.member).file_spec(),
            _ => None,
        });
        let options = options.map(|(_, options)| options).unwrap_or_default();
        let member = |name: String| match named.iter().zip(&tagged).find(|(_, (known, _))| *known == name) {
            Some((one, _)) => one.member.clone(),
            None if options.is_empty() => Member::Path(name),
            None => Member::Spec(format!("file:{}{options}", spec::quoted(&name))),
        };
        remember(pool, all.iter().filter_map(|name| std::fs::canonicalize(name).ok()));
        Ok(PoolPlace { members: all.into_iter().map(member).collect(), ..self.clone() })
    }

    /// Paths in the hints of the named files, by which the other members may be found at the next open.
    pub(crate) fn hinted(&self) -> Vec<PathBuf> {
        self.file_paths().iter().flat_map(|path| hinted(Path::new(path))).collect()
    }

    /// Stores the paths of all members in a hint on each file, so that any one leads to the others. Returns false if a
    /// file did not accept it; block devices and some file systems cannot store one.
    pub fn leave_hints(&self) -> bool {
        let paths = self.file_paths();
        if paths.len() < 2 {
            return true;
        }
        let whole: Vec<PathBuf> =
            paths.iter().map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.into())).collect();
        let value: Vec<u8> = whole.iter().flat_map(|path| [path.as_os_str().as_bytes(), &[0]].concat()).collect();
        let leave = |path: &PathBuf| {
            if hinted(path) == whole {
                return true;
            }
            path.is_file() && rustix::fs::setxattr(path, HINT, &value, XattrFlags::empty()).is_ok()
        };
        // A fold and not `all`, which would stop at the first failure.
        whole.iter().map(leave).fold(true, |all, left| all & left)
    }

    /// Returns the files and devices of `whole` that a search starting from the members named here would not find.
    pub fn does_not_find(&self, whole: &PoolPlace) -> Vec<String> {
        let (found, rest): (Vec<String>, Vec<String>) =
            whole.file_paths().into_iter().partition(|path| self.leads_to(Path::new(path)));
        let hints: Vec<PathBuf> = found.iter().flat_map(|path| hinted(Path::new(path))).collect();
        let is_hinted = |path: &String| std::fs::canonicalize(path).is_ok_and(|path| hints.contains(&path));
        rest.into_iter().filter(|path| !is_hinted(path)).collect()
    }

    /// Returns true if a search starting from the members named here finds `path` without further options.
    fn leads_to(&self, path: &Path) -> bool {
        let whole = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let path = whole(path);
        let is_device = std::fs::metadata(&path).is_ok_and(|meta| node_is_device(&meta));
        let paths: Vec<PathBuf> = self.file_paths().into_iter().map(PathBuf::from).collect();
        let near = paths.iter().flat_map(|path| directories_of(path)).chain(self.search.iter().cloned());
        // A pool that is named by its identity alone is also searched for in the current directory.
        let near = near.chain((paths.is_empty() && self.search.is_empty()).then(|| PathBuf::from(".")));
        let is_near = near.map(|directory| whole(&directory)).any(|directory| path.parent() == Some(&*directory));
        is_device || is_near || paths.iter().any(|named| whole(named) == path) || self.hinted().contains(&path)
    }
}

fn node_is_device(meta: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt;
    meta.file_type().is_block_device()
}

fn not_found(pool: &[u8; 16], sight: &Sight) -> Failure {
    let mut others: BTreeMap<[u8; 16], Vec<String>> = BTreeMap::new();
    for seen in &sight.seen {
        others.entry(seen.tag.pool()).or_default().push(seen.path.display().to_string());
    }
    let others: Vec<String> =
        others.iter().take(8).map(|(pool, paths)| format!("{} ({})", uuid_text(pool), paths.join("+"))).collect();
    let saw = if others.is_empty() { "no pool at all".into() } else { format!("the pools {}", others.join(", ")) };
    let words = sight.in_words();
    Failure::run(format!("the pool {} was not found: {words}; there is {saw}", uuid_text(pool)))
        .fix("name the directory that it is in: --search DIR, or search = [\"DIR\"] in a configuration")
}

/// Paths at which this process found members of the pool before.
fn known(pool: &[u8; 16]) -> Vec<PathBuf> {
    let found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    found.get(pool).into_iter().flatten().cloned().collect()
}

fn remember(pool: &[u8; 16], paths: impl Iterator<Item = PathBuf>) {
    FOUND.lock().unwrap_or_else(PoisonError::into_inner).insert(*pool, paths.collect());
}

/// Returns the absolute paths in the hint of a file; other content is ignored.
pub fn hinted(path: &Path) -> Vec<PathBuf> {
    let mut value = vec![0; MOST_HINTED];
    let Ok(len) = rustix::fs::getxattr(path, HINT, &mut value[..]) else { return Vec::new() };
    let texts = value[..len.min(MOST_HINTED)].split(|byte| *byte == 0).filter(|text| text.starts_with(b"/"));
    texts.take(sheave_vol::format::MAX_MEMBERS).map(|text| PathBuf::from(OsStr::from_bytes(text))).collect()
}

/// Returns the directory of a path and, if it is a symbolic link, that of its target.
fn directories_of(path: &Path) -> Vec<PathBuf> {
    let of = |path: &Path| match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Some(PathBuf::from(".")),
        parent => parent.map(Path::to_owned),
    };
    let real = std::fs::canonicalize(path).ok().and_then(|path| of(&path));
    // Device nodes are found by the search of block devices, so /dev is not searched.
    let all = real.into_iter().chain(of(path).filter(|_| path.is_symlink()));
    all.filter(|directory| !directory.starts_with("/dev") || directory.starts_with("/dev/shm")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sheave_vol::{AddOptions, CreateOptions, OpenOptions, Pool};

    use super::*;
    use crate::devices::open_device;

    struct Dir(tempfile::TempDir);

    impl Dir {
        fn new() -> Dir {
            Dir(tempfile::tempdir().expect("a directory"))
        }

        fn at(&self, name: &str) -> String {
            self.0.path().canonicalize().expect("there").join(name).display().to_string()
        }

        /// Creates a pool on these files, which are added one by one.
        fn pool(&self, names: &[&str]) -> [u8; 16] {
            let open = |name: &&str| open_device(&format!("file:{},size=16M", self.at(name))).expect("a device");
            Pool::create(&open(&names[0]), &CreateOptions::default()).expect("a pool");
            let pool = Pool::open(&open(&names[0]), &OpenOptions::default()).expect("opens");
            for name in &names[1..] {
                pool.add_member(&open(name), &AddOptions::default()).expect("added");
            }
            pool.close().expect("closes");
            seen_at(Path::new(&self.at(names[0]))).expect("read").expect("a member").tag.pool()
        }
    }

    fn place(text: &str) -> PoolPlace {
        text.parse().expect(text)
    }

    fn members(place: &PoolPlace) -> Result<Vec<String>, String> {
        place.whole().map(|whole| whole.file_paths()).map_err(|why| format!("{why}"))
    }

    #[test]
    fn one_member_leads_to_those_beside_it_in_any_order() {
        let dir = Dir::new();
        dir.pool(&["a", "b", "c"]);
        let all: Result<Vec<String>, String> = Ok(vec![dir.at("a"), dir.at("b"), dir.at("c")]);
        for named in [vec!["a"], vec!["b"], vec!["c"], vec!["c", "a"], vec!["b", "a", "c"], vec!["a", "b", "c"]] {
            let text = named.iter().map(|name| dir.at(name)).collect::<Vec<_>>().join("+");
            let whole = place(&text).whole().expect(&text);
            assert_eq!(Ok(whole.file_paths()), all, "{text}");
            assert_eq!(whole.to_string(), text, "it is called as before");
            let pool = place(&text).open_now(super::super::Access::Change).expect(&text);
            assert_eq!(pool.info().members.len(), 3);
            pool.close().expect("closes");
        }
        let twice = members(&place(&format!("{}+{}", dir.at("a"), dir.at("a")))).expect_err("twice");
        assert!(twice.contains("are both member 0"), "{twice}");
        // Options of the named member apply to all.
        let spec = place(&format!("file:{},direct=off", dir.at("b"))).whole().expect("found");
        assert_eq!(spec.reaches().len(), 3);
        assert!(spec.members.iter().all(|member| member.spec("").ends_with(",direct=off")), "{spec:?}");
    }

    #[test]
    fn other_devices_and_what_is_no_pool_stay_as_they_are_named() {
        let dir = Dir::new();
        dir.pool(&["a", "b"]);
        fs::write(dir.at("blank"), vec![0; 1 << 20]).expect("written");
        for text in [
            "ram:size=16M".into(),
            format!("fault:error=0,over=file:{}", dir.at("a")),
            format!("{}+ram:size=16M", dir.at("a")),
            dir.at("blank"),
            dir.at("nowhere"),
            format!("{}+{}", dir.at("a"), dir.at("blank")),
        ] {
            let named = place(&text);
            assert_eq!(named.whole().expect(&text), named, "{text}");
        }
    }

    #[test]
    fn a_hint_leads_to_a_member_elsewhere_and_is_verified() {
        let (dir, other) = (Dir::new(), Dir::new());
        let pool = dir.pool(&["a", "b"]);
        fs::rename(dir.at("b"), other.at("b")).expect("moved");
        let named = place(&dir.at("a"));
        let lost = members(&named).expect_err("nobody knows where it is");
        for word in ["member 1 is missing: 16777216 bytes", "looked at", "block devices", &dir.at("")[..8]] {
            assert!(lost.contains(word), "no {word}: {lost}");
        }
        let both = place(&format!("{}+{}", dir.at("a"), other.at("b")));
        if !both.leave_hints() {
            return sheave_testkit::skip("the file system of temporary files keeps no extended attributes");
        }
        FOUND.lock().expect("not poisoned").clear();
        let all: Result<Vec<String>, String> = Ok(vec![dir.at("a"), other.at("b")]);
        assert_eq!(members(&named), all);
        FOUND.lock().expect("not poisoned").clear();
        assert_eq!(members(&place(&other.at("b"))), all, "either has the hint");
        assert!(named.leads_to(Path::new(&other.at("b"))) && !named.leads_to(Path::new(&other.at("c"))));
        // A forged hint leads to files with the right label, or to nothing.
        let strangers = Dir::new();
        strangers.pool(&["x", "y"]);
        let value = [strangers.at("y").as_bytes(), &[0], b"relative", &[0], b"/dev/zero"].concat();
        rustix::fs::setxattr(dir.at("a"), HINT, &value, XattrFlags::empty()).expect("set");
        FOUND.lock().expect("not poisoned").clear();
        assert!(members(&named).expect_err("a stranger").contains("member 1 is missing"));
        // The directory to search is given explicitly.
        assert_eq!(members(&named.clone().search_in(vec![other.0.path().into()])), all);
        let uuid = place(&format!("uuid:{}", uuid_text(&pool)));
        assert_eq!(members(&uuid.clone().search_in(vec![dir.0.path().into(), other.0.path().into()])), all);
        FOUND.lock().expect("not poisoned").clear();
        let why = members(&uuid.search_in(vec![strangers.0.path().into()])).expect_err("it is not there");
        assert!(
            why.contains("was not found") && why.contains("there is the pools") && why.contains("--search DIR"),
            "{why}"
        );
    }

    /// A copy that was left beside the pool (V31).
    #[test]
    fn copies_beside_a_pool_are_no_members() {
        let dir = Dir::new();
        dir.pool(&["a", "b"]);
        fs::copy(dir.at("b"), dir.at("b-copy")).expect("copied");
        let why = members(&place(&dir.at("a"))).expect_err("one of the two");
        assert!(why.contains("b and ") && why.contains("b-copy are both member 1"), "{why}");
        let both = format!("{}+{}", dir.at("a"), dir.at("b"));
        let pool = place(&both).open_now(super::super::Access::Change).expect("named");
        pool.close().expect("closes");
        // From here on the copy is older than the member.
        FOUND.lock().expect("not poisoned").clear();
        assert_eq!(members(&place(&dir.at("a"))), Ok(vec![dir.at("a"), dir.at("b")]));
        fs::remove_file(dir.at("b")).expect("removed");
        let why = members(&place(&dir.at("a"))).expect_err("the older one is not taken");
        assert!(why.contains("member 1 is missing") && why.contains("older copies, which are not taken"), "{why}");
    }

    #[test]
    fn identities_are_read_as_they_are_printed() {
        let text = "7b3c0123456789abcdef00112233445f";
        let uuid = super::super::parse_uuid(text).expect("a UUID");
        assert_eq!(uuid_text(&uuid), text);
        assert_eq!(super::super::parse_uuid("7B3C0123-4567-89ab-cdef-00112233445F"), Ok(uuid));
        for bad in ["", "7b3c", "00000000000000000000000000000000", "7b3c0123456789abcdef0011223344zz"] {
            assert!(super::super::parse_uuid(bad).is_err(), "{bad}");
        }
        assert!(format!("uuid:{text}+b.img").parse::<PoolPlace>().is_err());
        assert_eq!(place(&format!("uuid:{text}")).to_string(), format!("uuid:{text}"));
    }
}
