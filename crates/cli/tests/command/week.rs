//! A month of nightly backups. The commands are read from docs/operate/pools.md, so that page and test cannot differ.
//! Twenty volumes in two pools are backed up to a third pool, with retention on both sides. One volume is also backed
//! up to files. One night fails in the middle and is repeated, another night is skipped, a pool grows, and the server
//! is restarted. At the end there is a restore drill.

use std::fs;
use std::process::{Command, Stdio};

use sheave_base::rng::Rng;

use crate::daemon::{Daemon, ask_ok};
use crate::sheave::{Dir, Said, no_io_uring};

const PAGE: &str = include_str!("../../../../docs/operate/pools.md");
const POOLS: [&str; 2] = ["red", "blue"];
const VOLUMES: usize = 10;
const NIGHTS: usize = 30;
const KEPT: usize = 4;

/// Returns the shell code block of the page that has this name.
fn script(name: &str) -> &'static str {
    let begin = format!("```sh {name}\n");
    let (_, rest) = PAGE.split_once(&begin).unwrap_or_else(|| panic!("docs/operate/pools.md has no block `{name}`"));
    rest.split_once("```").expect("the block ends").0
}

/// Runs a script of the page with bash. In the script, `sheave` is the binary, and `ssh HOST` runs its command on this
/// machine. If the file `down` contains a number n, `ssh` fails once, after n further imports into `red` volumes.
fn bash(dir: &Dir, script: &str, variables: &[(&str, &str)]) -> Said {
    let mut command = Command::new("bash");
    command.args(["-c", script]).current_dir(dir.path("")).stdin(Stdio::null());
    let path = format!("{}:{}", dir.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path).env("SHEAVE_RUNTIME_DIR", dir.path("run")).envs(variables.iter().copied());
    Said::of(command.output().expect("bash runs"))
}

fn bash_ok(dir: &Dir, script: &str, variables: &[(&str, &str)]) -> Said {
    let said = bash(dir, script, variables);
    assert_eq!(said.code, 0, "{variables:?}\n{script}\n{}{}", said.out, said.err);
    said
}

/// Makes the programs `sheave` and `ssh` that the scripts find in `PATH`.
fn tools(dir: &Dir) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    fs::create_dir(dir.path("bin")).expect("made");
    symlink(assert_cmd::cargo::cargo_bin!("sheave"), dir.path("bin/sheave")).expect("linked");
    let ssh = "#!/bin/sh\nshift\ncase \"$*\" in\n*import-diff*red*)\n  if [ -e down ]; then\n    \
               n=$(cat down); if [ \"$n\" = 0 ]; then rm down; exit 255; fi\n    echo $((n - 1)) > down\n  fi;;\nesac\n\
               exec sh -c \"$*\"\n";
    fs::write(dir.path("bin/ssh"), ssh).expect("written");
    fs::set_permissions(dir.path("bin/ssh"), fs::Permissions::from_mode(0o755)).expect("set");
}

const CONFIG: &str = r#"
listen = ["unix:nbd.sock"]
threads = 2

[[pool]]
name = "red"
path = "red.img"

[[pool]]
name = "blue"
path = "blue.img"

[[pool]]
name = "copy"
path = "copy.img"
"#;

/// A volume, with the seed of its present content and the seed of its content in each night.
struct Disk {
    pool: &'static str,
    name: String,
    seed: u64,
    nights: Vec<Option<u64>>,
}

impl Disk {
    fn bytes(seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; 192 << 10];
        Rng::new(seed).fill(&mut bytes);
        bytes
    }

    /// Replaces the content of the volume by the bytes of `seed`.
    fn write(&mut self, dir: &Dir, seed: u64) {
        fs::write(dir.path("raw"), Disk::bytes(seed)).expect("an image");
        let line = format!("volume import raw {}.img#{} --yes --progress none", self.pool, self.name);
        ask_ok(dir, &line);
        self.seed = seed;
    }
}

fn night_name(night: usize) -> String {
    format!("night-2026-11-{:02}", night + 1)
}

/// Runs the page's nightly script for one pool and night.
fn nightly(dir: &Dir, pool: &str, night: usize) -> Said {
    let (pool, night, keep) = (format!("{pool}.img"), night_name(night), KEPT.to_string());
    let copy = "copy.img".to_owned();
    bash(dir, script("nightly"), &[("pool", &pool), ("copy", &copy), ("night", &night), ("keep", &keep)])
}

/// Returns the names of a pool's snapshots.
fn snapshots(dir: &Dir, pool: &str) -> Vec<String> {
    let said = ask_ok(dir, &format!("volume list {pool}.img --kind snapshot --names"));
    said.out.lines().map(str::to_owned).collect()
}

/// Runs the page's restore drill for some volumes and all nights that are kept.
fn drill(dir: &Dir, disks: &[Disk], nights: usize) {
    let kept = snapshots(dir, "copy");
    for disk in disks.iter().step_by(7) {
        let mut found = 0;
        for night in (0..nights).filter(|night| kept.contains(&format!("{}@{}", disk.name, night_name(*night)))) {
            let Some(seed) = disk.nights[night] else { panic!("{} has a night that was left out: {night}", disk.name) };
            let night = night_name(night);
            bash_ok(dir, script("drill"), &[("copy", "copy.img"), ("volume", &disk.name), ("night", &night)]);
            let restored = fs::read(dir.path(&format!("{}.img", disk.name))).expect("restored");
            let bytes = Disk::bytes(seed);
            assert!(restored.len() == 1 << 20 && restored.starts_with(&bytes), "{} of {night}", disk.name);
            assert!(restored[bytes.len()..].iter().all(|byte| *byte == 0), "{} of {night}", disk.name);
            found += 1;
        }
        assert_eq!(found, KEPT, "of {}: {kept:?}", disk.name);
    }
}

/// Restores one volume from its files: imports its increments into an empty pool.
fn from_files(dir: &Dir, disk: &Disk, files: &[String]) {
    dir.ok("pool create files.img --size 64M");
    files
        .iter()
        .for_each(|file| _ = dir.ok(&format!("volume import-diff {file} files.img#{} --progress none", disk.name)));
    dir.ok(&format!("volume export files.img#{} last --yes --progress none", disk.name));
    assert!(fs::read(dir.path("last")).expect("exported").starts_with(&Disk::bytes(disk.seed)), "{}", disk.name);
}

/// Runs all nights, some of them with a failure. Returns the names of the files with increments.
fn all_nights(dir: &Dir, disks: &mut [Disk]) -> Vec<String> {
    let (mut rng, mut files) = (Rng::new(8), Vec::new());
    let mut daemon = Some(Daemon::start(dir, CONFIG));
    for night in 0..NIGHTS {
        for pick in 0..4 {
            let disk = &mut disks[rng.below(2 * VOLUMES as u64) as usize];
            disk.write(dir, (night * 8 + pick + 100) as u64);
        }
        // In night 14 one pool is skipped. In night 6 the script of the pool `red` loses its connection in the middle.
        let pools = if night == 14 { &POOLS[..1] } else { &POOLS[..] };
        if night == 6 {
            fs::write(dir.path("down"), "5").expect("written");
        }
        let said: Vec<Said> = std::thread::scope(|scope| {
            let runs: Vec<_> = pools.iter().map(|pool| scope.spawn(|| nightly(dir, pool, night))).collect();
            runs.into_iter().map(|run| run.join().expect("it runs")).collect()
        });
        let codes: Vec<i32> = said.iter().map(|said| said.code).collect();
        let errors: String = said.iter().map(|said| said.err.as_str()).collect();
        if night == 6 {
            assert_eq!(codes, [1, 0], "{errors}");
            let again = nightly(dir, "red", night);
            assert_eq!(again.code, 0, "{}", again.err);
            assert!(again.out.contains("present: ") && again.out.contains("imported: "), "{}", again.out);
        } else {
            assert!(codes.iter().all(|code| *code == 0), "night {night}: {errors}");
        }
        for disk in disks.iter_mut() {
            disk.nights.push(pools.contains(&disk.pool).then_some(disk.seed));
        }
        if night != 14 {
            let before = (0..night).rev().find(|night| *night != 14).map(night_name);
            let (from, file) =
                (before.map_or(String::new(), |before| format!("--from @{before}")), format!("{night}.diff"));
            let blue = disks.iter().find(|disk| disk.pool == "blue").expect("there is one");
            let name = format!("blue.img#{}@{}", blue.name, night_name(night));
            ask_ok(dir, &format!("volume export-diff {name} {from} {file} --progress none"));
            files.push(file);
        }
        if night == 2 {
            ask_ok(dir, "volume snapshot red.img#red-0@by-hand");
        }
        if night == 11 {
            daemon.take().expect("it runs").end();
            dir.ok("pool grow red.img --size 192M");
            daemon = Some(Daemon::start_again(dir));
        }
    }
    drill(dir, disks, NIGHTS);
    let nights = |pool: &str| {
        let all = snapshots(dir, pool).into_iter();
        all.filter(|name| name.starts_with("red") && name.contains("@night-")).collect::<Vec<_>>()
    };
    let (red, copy) = (nights("red"), nights("copy"));
    assert!(red.len() == KEPT * VOLUMES && red == copy, "{red:?} {copy:?}");
    assert!(snapshots(dir, "red").contains(&"red-0@by-hand".to_owned()), "what is called otherwise stays");
    daemon.take().expect("it runs").end();
    files
}

#[test]
fn thirty_nights_of_twenty_volumes_by_the_commands_of_the_page() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    tools(&dir);
    fs::create_dir(dir.path("run")).expect("made");
    for (pool, size) in [("red", "128M"), ("blue", "128M"), ("copy", "256M")] {
        dir.ok(&format!("pool create {pool}.img --size {size}"));
    }
    let mut disks = Vec::new();
    for pool in POOLS {
        for number in 0..VOLUMES {
            let name = format!("{pool}-{number}");
            dir.ok(&format!("volume create {pool}.img#{name} --size 1M"));
            disks.push(Disk { pool, name, seed: number as u64 + 1, nights: Vec::new() });
        }
    }
    for disk in &mut disks {
        fs::write(dir.path("raw"), Disk::bytes(disk.seed)).expect("an image");
        dir.ok(&format!("volume import raw {}.img#{} --yes --progress none", disk.pool, disk.name));
    }
    let files = all_nights(&dir, &mut disks);
    let blue = disks.iter().find(|disk| disk.pool == "blue").expect("there is one");
    from_files(&dir, blue, &files);
    for pool in ["red", "blue", "copy", "files"] {
        assert!(dir.ok(&format!("pool check {pool}.img")).out.ends_with("clean\n"), "{pool}");
    }
}
