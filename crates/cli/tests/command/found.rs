//! Pools that are found by their labels: by one member, by their UUID, or by the name in a server's configuration.

use std::path::Path;

use crate::daemon::{BOTH, Daemon, Nbd, ask, ask_ok, pools};
use crate::sheave::{Dir, no_io_uring};

/// Makes a pool `a.img` with a volume `v`, and adds the member `more/b.img`.
fn two_members() -> Option<Dir> {
    if no_io_uring() {
        return None;
    }
    let dir = Dir::new();
    std::fs::create_dir(dir.path("more")).expect("made");
    std::fs::create_dir(dir.path("run")).expect("made");
    dir.ok("pool create a.img --size 64M");
    dir.ok("volume create a.img#v --size 16M");
    dir.ok("pool grow a.img --add more/b.img --size 64M");
    Some(dir)
}

fn uuid(dir: &Dir) -> String {
    dir.ok("pool info a.img --search more --json").json()["uuid"].as_str().expect("a text").to_owned()
}

/// Returns true if the file system of a directory has extended attributes of users. Without them a member in another
/// directory is found only with --search.
fn keeps_hints(path: &Path) -> bool {
    let keeps = rustix::fs::setxattr(path, "user.sheave.test", b"1", rustix::fs::XattrFlags::empty()).is_ok();
    if !keeps {
        sheave_testkit::skip("the file system of temporary files keeps no extended attributes");
    }
    keeps
}

/// A member is added in another directory, and the server is killed. A start with the old configuration, which does
/// not name that directory, finds the member.
#[test]
fn a_pool_that_has_grown_is_served_by_the_configuration_that_was() {
    let Some(dir) = pools() else { return };
    let elsewhere = Dir::new();
    if !keeps_hints(&dir.path("a.img")) {
        return;
    }
    let more = elsewhere.path("more.img").display().to_string();
    let mut daemon = Daemon::start(&dir, BOTH);
    let grown = ask(&dir, &format!("pool grow a.img --add {more} --size 64M --json"));
    assert_eq!(grown.code, 0, "{}", grown.err);
    let told = grown.json();
    assert_eq!((&told["pool"], &told["beyond_search"]), (&"a.img".into(), &serde_json::json!([])), "{}", grown.err);
    ask_ok(&dir, "volume create a.img#big --size 160M");
    ask_ok(&dir, "export add a.img#big");
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "big").expect("it is served");
    assert!((0..160u64).all(|at| client.write(at << 20, &vec![at as u8 + 1; 1 << 20]) == Some(0)));
    assert_eq!(client.flush(), Some(0));
    daemon.signal("-KILL");
    daemon.child.wait().expect("it has ended");
    drop((client, daemon));
    let daemon = Daemon::start_again(&dir);
    let rows = ask_ok(&dir, "export list --json").json();
    assert_eq!(rows["exports"][0]["failed"], serde_json::Value::Null, "{rows}\n{}", daemon.said());
    ask_ok(&dir, "export add a#big");
    let mut client = Nbd::connect(&dir.path("nbd.sock"), "big").expect("it is served");
    assert!((0..160u64).all(|at| client.read(at << 20, 1 << 20) == Some(vec![at as u8 + 1; 1 << 20])));
    drop(client);
    // Every name of the pool leads to the server that has it.
    let names = ["a.img".into(), more.clone(), format!("a.img+{more}"), format!("{more}+a.img"), "a".into()];
    for name in names {
        let said = ask(&dir, &format!("volume info {name}#big --json"));
        assert!(said.code == 0 && said.err.contains("is served: asking"), "{name}: {}", said.err);
        assert_eq!(said.json()["pool"], name);
    }
    daemon.end();
    for name in ["a.img", &more] {
        assert_eq!(dir.ok(&format!("pool info {name} --json")).json()["size_bytes"], 192 << 20, "{name}");
    }
    dir.ok("pool check a.img");
}

#[test]
fn any_member_names_the_pool_in_every_command() {
    let Some(dir) = two_members() else { return };
    let far = keeps_hints(&dir.path("a.img"));
    let search = if far { "" } else { " --search more --search ." };
    for (at, name) in ["a.img", "more/b.img", "more/b.img+a.img", "file:more/b.img,direct=off"].iter().enumerate() {
        let made = dir.ok(&format!("volume snapshot {name}#v s{at}{search} --json")).json();
        assert_eq!(made["volume"]["pool"], *name);
        dir.ok(&format!("volume list {name}{search}"));
        dir.ok(&format!("pool scrub {name} --progress none{search}"));
        dir.ok(&format!("pool check {name} --progress none{search}"));
        dir.ok(&format!("pool set {name} --low-water 5%{search}"));
        assert_eq!(dir.ok(&format!("pool info {name} --json{search}")).json()["size_bytes"], 128 << 20);
    }
    dir.ok(&format!("pool grow more/b.img --add c.img --size 64M{search}"));
    assert_eq!(dir.ok(&format!("pool info c.img --json --search more{search}")).json()["size_bytes"], 192 << 20);
    let twice = dir.run("pool info a.img+a.img");
    assert!(twice.code == 1 && twice.err.contains("are both member 0"), "{}", twice.err);
    // The error names the missing member and the places that were searched. An older copy of the member is not used.
    std::fs::copy(dir.path("c.img"), dir.path("old.img")).expect("copied");
    dir.ok(&format!("volume create a.img#w --size 1M{search}"));
    std::fs::remove_file(dir.path("c.img")).expect("removed");
    let lost = dir.run(&format!("pool info a.img{search}"));
    for word in ["member 2 is missing: 67108864 bytes", "older copies, which are not taken", "old.img", "looked at"] {
        assert!(lost.code == 1 && lost.err.contains(word), "no {word}: {}", lost.err);
    }
}

#[test]
fn a_configuration_names_a_pool_by_its_uuid() {
    let Some(dir) = two_members() else { return };
    let uuid = uuid(&dir);
    let config = |uuid: &str, search: &str| {
        format!(
            "listen = [\"unix:nbd.sock\"]\nthreads = 1\n[[pool]]\nname = \"main\"\nuuid = \"{uuid}\"\n{search}\n\
             [[export]]\npool = \"main\"\nvolume = \"v\"\n"
        )
    };
    let mut daemon = Daemon::start(&dir, &config(&uuid.to_uppercase(), "search = [\".\", \"more\"]"));
    assert!(Nbd::connect(&dir.path("nbd.sock"), "v").is_some(), "{}", daemon.said());
    let again = config(&uuid, "search = [\"more\", \".\"]");
    std::fs::write(dir.path("c.toml"), again).expect("written");
    daemon.signal("-HUP");
    daemon.until_it_says("event=reloaded");
    assert!(Nbd::connect(&dir.path("nbd.sock"), "v").is_some(), "the same pool in other words: {}", daemon.said());
    // The name in the server's configuration works unless there is a file of that name.
    let asked = ask_ok(&dir, "volume list main --json").json();
    assert_eq!(asked["pool"], "main");
    ask_ok(&dir, "volume snapshot main#v s");
    let refused = ask(&dir, "pool check main");
    assert!(refused.code == 1 && refused.err.contains("a check wants a pool that nobody changes"), "{}", refused.err);
    std::fs::write(dir.path("main"), vec![0; 1 << 20]).expect("written");
    let refused = ask(&dir, "volume list main");
    assert!(refused.code == 1 && refused.err.contains("there is no pool on the device"), "{}", refused.err);
    std::fs::remove_file(dir.path("main")).expect("removed");
    let refused = ask(&dir, "volume list other");
    assert!(refused.code == 1 && refused.err.contains("there is no such file"), "{}", refused.err);
    daemon.end();
    ask_ok(&dir, "serve --config c.toml --check");
    // For an unknown UUID the error lists the directories that were searched and the pools found there.
    let absent = "00112233445566778899aabbccddeeff";
    let mut daemon = Daemon::start(&dir, &config(absent, "search = [\"more\"]"));
    let said = daemon.said();
    for word in [absent, "was not found", "the directory more", "block devices", uuid.as_str(), "more/b.img"] {
        assert!(said.contains(word), "no {word}: {said}");
    }
    daemon.signal("-HUP");
    daemon.until_it_says("event=reloaded");
    let confined = !said.contains("event=not_confined");
    let told = &daemon.said()[said.len()..];
    assert!(!confined || told.contains("restart the daemon: it looks for members everywhere"), "{told}");
    daemon.end();
    // The UUID works on a command line too.
    dir.ok(&format!("volume info uuid:{uuid}#v --search . --search more"));
    let lost = dir.run(&format!("volume info uuid:{absent}#v"));
    assert!(lost.code == 1 && lost.err.contains("was not found") && lost.err.contains("--search DIR"), "{}", lost.err);
    dir.ok(&format!("serve uuid:{uuid}#v --search . --search more --run true"));
}

#[test]
fn a_scan_tells_the_pools_of_this_host() {
    let Some(dir) = two_members() else { return };
    let uuid = uuid(&dir);
    std::fs::copy(dir.path("more/b.img"), dir.path("old.img")).expect("copied");
    dir.ok("volume create a.img#w --size 1M --search more");
    dir.ok("pool create lone.img --size 64M");
    dir.ok("pool grow lone.img --add gone.img --size 64M");
    std::fs::remove_file(dir.path("gone.img")).expect("removed");
    std::fs::write(dir.path("noise"), vec![7; 1 << 20]).expect("written");
    let scan = |line: &str| dir.ok(&format!("pool scan --no-devices {line}"));
    let told = scan(". more --json").json();
    let all = told["pools"].as_array().expect("a list");
    assert_eq!(all.len(), 2, "{told}");
    let pool = all.iter().find(|pool| pool["uuid"] == uuid.as_str()).expect("the pool");
    assert_eq!((&pool["state"], &pool["members_wanted"]), (&"complete".into(), &2.into()), "{pool}");
    assert_eq!((&pool["size_bytes"], &pool["closed"]), (&(128 << 20).into(), &true.into()), "{pool}");
    let members = pool["members"].as_array().expect("a list");
    let state = |name: &str| {
        let row = members.iter().find(|row| row["path"].as_str().is_some_and(|path| path.ends_with(name)));
        row.unwrap_or_else(|| panic!("no {name}: {pool}"))["state"].as_str().expect("a text").to_owned()
    };
    assert_eq!([state("a.img"), state("b.img"), state("old.img")], ["member", "member", "older-copy"]);
    let broken = all.iter().find(|pool| pool["uuid"] != uuid.as_str()).expect("the other");
    assert_eq!(broken["state"], "incomplete", "{broken}");
    assert!(broken["problem"].as_str().is_some_and(|why| why.contains("member 1 is missing")), "{broken}");
    let text = scan(". more").out;
    for word in [uuid.as_str(), "complete, 128 MiB", "older copy", "incomplete", "member 1 is missing"] {
        assert!(text.contains(word), "no {word}: {text}");
    }
    // If two copies of a member are equally new, neither is used.
    std::fs::copy(dir.path("a.img"), dir.path("more/twin.img")).expect("copied");
    let told = scan(". more --json").json();
    let pool = told["pools"].as_array().and_then(|all| all.iter().find(|pool| pool["uuid"] == uuid.as_str()).cloned());
    assert_eq!(pool.expect("the pool")["state"], "ambiguous");
    std::fs::remove_file(dir.path("more/twin.img")).expect("removed");
    let nowhere = dir.run("pool scan nowhere --no-devices --json");
    assert_eq!(nowhere.code, 1, "{}", nowhere.err);
    assert!(nowhere.json()["not_looked_at"][0].as_str().is_some_and(|why| why.contains("nowhere")), "{}", nowhere.out);
    // While the pool is served, the scan names the process that has it open.
    let config = "listen = [\"unix:nbd.sock\"]\nthreads = 1\n[[pool]]\nname = \"main\"\npath = \"a.img+more/b.img\"\n";
    let daemon = Daemon::start(&dir, config);
    let told = ask_ok(&dir, "pool scan . more --no-devices --json").json();
    let pool = told["pools"].as_array().and_then(|all| all.iter().find(|pool| pool["uuid"] == uuid.as_str()).cloned());
    let pool = pool.expect("the pool");
    assert_eq!((&pool["served_by"]["pool"], &pool["closed"]), (&"main".into(), &false.into()), "{pool}");
    let process = format!("process {}", daemon.child.id());
    assert!(pool["served_by"]["server"].as_str().is_some_and(|who| who.contains(&process)), "{pool}");
    assert!(pool["members"][0]["in_use_by"].as_str().is_some_and(|who| who.contains(&process)), "{pool}");
    daemon.end();
}
