//! Completion of a pool from one member or its identity. Ambiguous pools are refused, with a list of the places that
//! were searched.

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
