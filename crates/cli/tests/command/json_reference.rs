//! `docs/reference/json.md` has every field that a command prints, and no other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use crate::sheave::{Dir, no_io_uring};

const PAGE: &str = include_str!("../../../../docs/reference/json.md");

/// Documented field of a section.
#[derive(Debug)]
struct Field {
    /// Section of the page that describes the value, if it is an object or a list of objects.
    object: Option<String>,
    /// True if the field may be missing: its description begins with "only when".
    only: bool,
}

/// The fields that the page documents. `sections` has the fields of each section. `whole` maps a section without fields
/// of its own ("The whole result is ...") to the section that has them.
struct Page {
    sections: BTreeMap<String, BTreeMap<String, Field>>,
    whole: BTreeMap<String, String>,
}

/// Returns the title of the section to which the link in `text` leads.
fn object(text: &str) -> Option<String> {
    let anchor = text.split_once("](#")?.1.split_once(')')?.0;
    Some(anchor.replace('-', " "))
}

impl Page {
    fn read() -> Page {
        let mut page = Page { sections: BTreeMap::new(), whole: BTreeMap::new() };
        let mut section = String::new();
        for line in PAGE.lines() {
            if let Some(title) = line.strip_prefix("## ") {
                section = title.to_lowercase();
            } else if line.starts_with("The whole result is") {
                page.whole.insert(section.clone(), object(line).expect("a link"));
            } else if let Some((name, what)) = line.strip_prefix("| `").and_then(|row| row.split_once("` | ")) {
                let is_object = !what.starts_with("as of") && !what.starts_with("the same");
                let field = Field { object: object(what).filter(|_| is_object), only: what.starts_with("only when") };
                let known = page.sections.entry(section.clone()).or_default().insert(name.to_owned(), field);
                assert!(known.is_none(), "{section}: {name} stands there twice");
            }
        }
        page
    }

    fn fields(&self, section: &str) -> &BTreeMap<String, Field> {
        let section = self.whole.get(section).map_or(section, String::as_str);
        self.sections.get(section).unwrap_or_else(|| panic!("the page has no section `{section}`"))
    }

    /// Adds the fields of a value that belongs to this section to `seen`. Panics at a field that the page does not
    /// have.
    fn look(&self, section: &str, path: &str, value: &Value, seen: &mut BTreeSet<(String, String)>) {
        let fields = self.fields(section);
        if let Some(field) = fields.get(path) {
            let section = self.whole.get(section).map_or(section, String::as_str);
            seen.insert((section.to_owned(), path.to_owned()));
            let items = if let Value::Array(items) = value { items.as_slice() } else { std::slice::from_ref(value) };
            match &field.object {
                Some(object) => {
                    items.iter().filter(|item| item.is_object()).for_each(|item| self.look(object, "", item, seen))
                }
                None => assert!(field.only || !value.is_object(), "{section}: the fields of {path} are missing"),
            }
            return;
        }
        match value {
            Value::Object(object) => {
                let dot = if path.is_empty() { "" } else { "." };
                object.iter().for_each(|(name, value)| self.look(section, &format!("{path}{dot}{name}"), value, seen));
            }
            Value::Array(items) if path.is_empty() => items.iter().for_each(|item| self.look(section, "", item, seen)),
            Value::Array(items) => items.iter().for_each(|item| self.look(section, &format!("{path}[]"), item, seen)),
            _ => panic!("docs/reference/json.md, section `{section}`: `{path}` is missing ({value})"),
        }
    }
}

/// Makes the files that the commands read: a raw image, the configuration of a daemon, a pool of an older program, and
/// a pool whose maps are damaged.
fn prepare(dir: &Dir) {
    fs::write(dir.path("raw"), vec![0x5a; 1 << 20]).expect("an image");
    let config = "listen = [\"unix:s\"]\n[[export]]\nname = \"d\"\nspec = \"file:none\"\n";
    fs::write(dir.path("c.toml"), config).expect("a configuration");
    let runs = include_bytes!("../../../vol/tests/pools/summed-crashed.runs");
    fs::write(dir.path("old.img"), sheave_testkit::expand_runs(runs)).expect("the pool");
    dir.ok("pool create bad.img --size 64M");
    dir.ok("volume import raw bad.img#v --progress none");
    let mut bytes = fs::read(dir.path("bad.img")).expect("the pool");
    // Damages every block that is a leaf of a map.
    for at in (8192..bytes.len()).step_by(4096).filter(|at| is_leaf(&bytes[*at..])).collect::<Vec<_>>() {
        bytes[at + 100] ^= 0xff;
    }
    fs::write(dir.path("bad.img"), bytes).expect("written");
}

/// Returns true if a block is a leaf of a map. `docs/reference/on-disk-format.md` documents the format.
fn is_leaf(block: &[u8]) -> bool {
    block.starts_with(b"SHVE") && block[4..6] == [3, 0]
}

/// Returns the status and the list of devices of a daemon with an open pool, a pool that could not be opened, and an
/// export of each; then an upgrade that would be refused, and one that is made.
fn status() -> [Value; 4] {
    let dir = crate::daemon::pools().expect("there is io_uring");
    let config = crate::daemon::BOTH.replace("\"b.img\"", "\"gone.img\"");
    let config = config.replace("name = \"va\"", "name = \"va\"\nvhost_user = \"vm.sock\"");
    let daemon = crate::daemon::Daemon::start(&dir, &config);
    fs::write(dir.path("empty.toml"), "").expect("a configuration");
    let planned = "upgrade --config empty.toml --dry-run --json";
    let said = ["status --json", "device list --json", planned, "upgrade --json"].map(|line| {
        let said = crate::daemon::ask(&dir, line);
        serde_json::from_str::<Value>(&said.out).unwrap_or_else(|err| panic!("{line}: {err}\n{}", said.err))
    });
    // The daemon that was started has ended by itself. The new one is nobody's child here.
    let new = said[3]["pid"].as_i64().and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
    rustix::process::kill_process(new.expect("a process"), rustix::process::Signal::TERM).expect("it runs");
    drop(daemon);
    said
}

#[test]
fn the_page_has_every_field_and_no_other() {
    if no_io_uring() {
        return;
    }
    let (dir, page, mut seen) = (Dir::new(), Page::read(), BTreeSet::new());
    prepare(&dir);
    let done = "volume create, resize, rename, snapshot, clone, rollback";
    for (section, line) in [
        ("a failure", "pool info nowhere.img --json"),
        ("pool create", "pool create p.img --size 64M --json"),
        (done, "volume create p.img#v --size 4M --json"),
        (done, "volume create p.img#grows --max-size 4M --json"),
        (done, "volume snapshot p.img#v s --json"),
        ("volume snapshot --at", "volume snapshot p.img#v grows --at t --json"),
        (done, "volume clone p.img#s c --json"),
        (done, "volume resize p.img#v 8M --json"),
        (done, "volume rename p.img#c d --json"),
        (done, "volume rollback p.img#v s --yes --json"),
        ("volume import", "volume import raw p.img#v --json --progress none"),
        ("volume export", "volume export p.img#v out --json --progress none"),
        ("volume export-diff", "volume export-diff p.img#s s.diff --json --progress none"),
        ("volume import-diff", "volume import-diff s.diff p.img#w --as t --json --progress none"),
        ("volume diff", "volume diff p.img#s p.img#v --json"),
        ("volume info", "volume info p.img#v --json"),
        ("volume list", "volume list p.img --json"),
        ("volume map", "volume map p.img#v --json"),
        ("volume delete", "volume delete p.img#d --json"),
        ("pool info", "pool info p.img --json"),
        ("pool info", "pool info bad.img --json"),
        ("pool check", "pool check p.img --json --progress none"),
        ("pool check", "pool check bad.img --json --progress none"),
        ("pool scrub", "pool scrub p.img --json --progress none"),
        ("pool scrub", "pool scrub bad.img --json --progress none"),
        ("pool trim", "pool trim p.img --json --progress none"),
        ("pool set", "pool set p.img --low-water 5% --json"),
        ("pool grow", "pool grow p.img --size 128M --json"),
        ("pool grow", "pool grow p.img --add more.img --size 64M --json"),
        ("pool scan", "pool scan . --no-devices --json"),
        ("pool scan", "pool scan . nowhere --no-devices --json"),
        ("pool upgrade", "pool upgrade old.img --json"),
        ("doctor", "doctor . --json"),
        ("serve --check", "serve --config c.toml --check --json"),
        ("bench", "bench ram:size=1M --rw randrw --verify --ios 100 --json --progress none"),
        ("bench", "bench ram:size=1M --compare memcpy --pairs 2 --runtime 20ms --json --progress none"),
        ("bench", "bench fault:error=1,over=null:size=1M --ios 9 --stamp-age 1ms --json --progress none"),
    ] {
        let said = dir.run(line);
        let value: Value = serde_json::from_str(&said.out).unwrap_or_else(|err| panic!("{line}: {err}\n{}", said.err));
        page.look(section, "", &value, &mut seen);
    }
    let [status, devices, planned, upgraded] = status();
    page.look("status", "", &status, &mut seen);
    page.look("device list", "", &devices, &mut seen);
    page.look("upgrade --dry-run", "", &planned, &mut seen);
    page.look("upgrade", "", &upgraded, &mut seen);
    let missing: Vec<_> = (page.sections.iter())
        .flat_map(|(section, fields)| fields.iter().map(move |(path, field)| (section, path, field)))
        .filter(|(section, path, field)| !field.only && !seen.contains(&((*section).clone(), (*path).clone())))
        .map(|(section, path, _)| format!("{section}: {path}"))
        .collect();
    assert!(missing.is_empty(), "docs/reference/json.md has what no command printed: {missing:#?}");
}
