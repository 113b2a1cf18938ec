//! Unit tests: the installer against fake machines (directories with a few shell scripts), and the rules for skips.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::install::{Installer, Outcome};
use crate::process::wait_until_working;
use crate::seed::range;
use crate::skip::{means_ci, tell};
use crate::tools::{TOOLS, Tool, Verdict, find_in, verdict};

const FAKE: Tool = Tool { name: "sheave-fake-tool", packages: &["fake-tool", "fake-dbg"], why: "tests" };

/// A machine that has the given programs and nothing else. Removed when dropped.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, programs: &[(&str, &str)]) -> Self {
        let dir = std::env::temp_dir().join(format!("sheave-testkit-{}-{name}", std::process::id()));
        fs::create_dir_all(&dir).expect("temp dir");
        let machine = Self(dir);
        for (program, body) in programs {
            machine.add(program, body);
        }
        machine
    }

    fn add(&self, program: &str, body: &str) {
        let text = format!("#!/bin/sh\nHERE='{}'\n{body}\n", self.0.display());
        // Another process writes the file. If this process did, its writable descriptor could be inherited by a child
        // that another test starts at this moment, and a file that is open for writing cannot be run.
        let write = ["-c", "printf %s \"$1\" > \"$0\" && chmod +x \"$0\""];
        let status = Command::new("/bin/sh").args(write).arg(self.0.join(program)).arg(text).status().expect("sh");
        assert!(status.success());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.0.join("log")).unwrap_or_default()
    }

    fn ensure(&self) -> Outcome {
        Installer::with_path(self.0.as_os_str()).ensure(&[FAKE]).remove(0)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const ROOT: (&str, &str) = ("id", "echo 0");
const USER: (&str, &str) = ("id", "echo 1000");
const APT: (&str, &str) = (
    "apt-get",
    r#"echo "$@" >> "$HERE/log"
case "$*" in
*assume-no*) exit 1;;
*install*) echo '#!/bin/sh' > "$HERE/sheave-fake-tool"; /bin/chmod +x "$HERE/sheave-fake-tool";;
esac"#,
);

#[test]
fn a_present_tool_is_left_alone() {
    let machine = Machine::new("present", &[ROOT, APT, ("sheave-fake-tool", "")]);
    assert_eq!(machine.ensure(), Outcome::Present(machine.0.join("sheave-fake-tool")));
    assert_eq!(machine.log(), "", "apt-get must not run");
}

#[test]
fn to_look_installs_nothing() {
    let machine = Machine::new("look", &[ROOT, APT]);
    let outcome = Installer::with_path(machine.0.as_os_str()).look(&[FAKE]).remove(0);
    assert_eq!(outcome, Outcome::Skipped("install with `apt-get install fake-tool fake-dbg`".into()));
    assert_eq!(machine.log(), "", "apt-get must not run");
}

#[test]
fn root_installs_all_packages_of_the_tool() {
    let machine = Machine::new("root", &[ROOT, APT]);
    assert_eq!(machine.ensure(), Outcome::Installed(machine.0.join("sheave-fake-tool")));
    let log = machine.log();
    let calls: Vec<&str> = log.lines().filter_map(|line| line.split_once(" install ")).map(|(_, call)| call).collect();
    let packages = "fake-tool fake-dbg";
    let told = format!("--no-install-recommends --assume-no {packages}");
    assert_eq!(calls, [told, format!("--no-install-recommends --assume-yes {packages}")], "told, then done");
    assert!(!machine.log().contains("update"), "lists are fetched only when needed (I5)");
}

#[test]
fn a_failed_install_is_tried_again_with_fresh_lists() {
    let stale = r#"echo "$@" >> "$HERE/log"
case "$*" in
*update*) : > "$HERE/fresh";;
*assume-no*) exit 1;;
*) [ -e "$HERE/fresh" ] || exit 100
   echo '#!/bin/sh' > "$HERE/sheave-fake-tool"; /bin/chmod +x "$HERE/sheave-fake-tool";;
esac"#;
    let machine = Machine::new("stale", &[ROOT, ("apt-get", stale)]);
    assert!(matches!(machine.ensure(), Outcome::Installed(_)));
    assert_eq!(machine.log().lines().count(), 4, "told, install, update, install");
}

#[test]
fn one_unknown_package_does_not_keep_the_others_away() {
    let picky = r#"case "$*" in
*unknown* | *assume-no*) exit 100;;
*install*) echo '#!/bin/sh' > "$HERE/sheave-fake-tool"; /bin/chmod +x "$HERE/sheave-fake-tool";;
esac"#;
    let machine = Machine::new("picky", &[ROOT, ("apt-get", picky)]);
    let unknown = Tool { name: "sheave-unknown", packages: &["unknown"], why: "tests" };
    let outcomes = Installer::with_path(machine.0.as_os_str()).ensure(&[unknown, FAKE]);
    assert!(matches!(&outcomes[0], Outcome::Skipped(why) if why.contains("install failed")), "{outcomes:?}");
    assert!(matches!(outcomes[1], Outcome::Installed(_)), "{outcomes:?}");
}

#[test]
fn a_user_installs_through_sudo_only_without_a_password() {
    let machine = Machine::new("sudo", &[USER, APT, ("sudo", r#"[ "$2" = true ] || { shift 2; exec "$@"; }"#)]);
    assert!(matches!(machine.ensure(), Outcome::Installed(_)));

    let machine = Machine::new("password", &[USER, APT, ("sudo", "exit 1")]);
    let Outcome::Skipped(why) = machine.ensure() else { panic!("cannot be installed") };
    assert!(why.contains("sudo asks for a password"), "{why}");
    assert!(why.contains("apt-get install fake-tool fake-dbg"), "{why}");
    assert_eq!(machine.log(), "");
}

#[test]
fn each_way_to_fail_names_its_cause() {
    let no_apt = Machine::new("no-apt", &[ROOT]);
    let offline = Machine::new("offline", &[ROOT, ("apt-get", "exit 100")]);
    let liar = Machine::new("liar", &[ROOT, ("apt-get", "exit 0")]);
    let cases = [(no_apt, "no apt-get"), (offline, "update failed"), (liar, "without bringing it")];
    for (machine, cause) in cases {
        let Outcome::Skipped(why) = machine.ensure() else { panic!("{cause}: must be skipped") };
        assert!(why.contains(cause), "{why}");
    }
}

#[test]
fn a_missing_tool_skips_on_a_laptop_and_fails_in_ci() {
    let there = PathBuf::from("/bin/x");
    assert_eq!(verdict(&FAKE, Some(there.clone()), true), Verdict::Use(there));
    let Verdict::Skip(laptop) = verdict(&FAKE, None, false) else { panic!("a skip") };
    let Verdict::Fail(ci) = verdict(&FAKE, None, true) else { panic!("a failure") };
    for message in [laptop, ci] {
        assert!(message.contains("`sheave-fake-tool` is missing"), "{message}");
        assert!(message.contains("apt-get install fake-tool fake-dbg"), "{message}");
    }
}

#[test]
fn ci_is_what_the_variable_means() {
    for (value, ci) in [(None, false), (Some(""), false), (Some("false"), false), (Some("0"), false)] {
        assert_eq!(means_ci(value.map(str::as_ref)), ci, "{value:?}");
    }
    for value in ["true", "1", "yes"] {
        assert!(means_ci(Some(value.as_ref())), "{value}");
    }
}

#[test]
fn only_executable_files_count() {
    let machine = Machine::new("plain", &[]);
    fs::write(machine.0.join("plain"), "not a program").expect("file");
    fs::create_dir(machine.0.join("folder")).expect("dir");
    assert_eq!(find_in("plain", machine.0.as_os_str()), None);
    assert_eq!(find_in("folder", machine.0.as_os_str()), None);
    assert_eq!(find_in("sh", "/bin".as_ref()), Some(Path::new("/bin/sh").into()));
}

#[test]
fn seeds_are_few_one_or_new() {
    assert_eq!(range(3, None, None), 0..3);
    assert_eq!(range(3, Some(77), Some(5)), 77..78, "one seed beats a round");
    let (a, b) = (range(3, None, Some(1)), range(3, None, Some(2)));
    assert!(a.clone().count() == 3 && a.start > 3 && a.end < b.start, "rounds do not meet: {a:?} {b:?}");
    assert_eq!(range(1, Some(u64::MAX), None).start, u64::MAX);
}

#[test]
fn the_table_has_one_row_a_tool() {
    for (at, tool) in TOOLS.iter().enumerate() {
        assert!(!tool.packages.is_empty() && !tool.why.is_empty(), "{}", tool.name);
        assert!(TOOLS[..at].iter().all(|other| other.name != tool.name), "{} twice", tool.name);
    }
}

#[test]
fn a_skip_reaches_the_screen_and_the_log() {
    let machine = Machine::new("log", &[]);
    let log = machine.0.join("skips");
    let mut screen = Vec::new();
    tell("SKIPPED: a\n", &mut screen, Some(&log));
    tell("SKIPPED: b\n", &mut screen, Some(&log));
    tell("SKIPPED: no log, no failure\n", &mut screen, Some(Path::new("/nonexistent/skips")));
    assert_eq!(fs::read_to_string(&log).expect("log"), "SKIPPED: a\nSKIPPED: b\n");
    assert_eq!(screen.split(|&byte| byte == b'\n').count(), 4);
}

#[test]
fn a_process_works_once_it_catches_the_signal_and_has_used_its_cpu_time() {
    let mut child = Command::new("sh").args(["-c", "trap : INT; while :; do :; done"]).spawn().expect("a shell");
    wait_until_working(child.id(), Duration::from_millis(100));
    let ended = child.try_wait().expect("asked");
    child.kill().expect("killed");
    child.wait().expect("waited for");
    assert!(ended.is_none(), "{ended:?}");
    let mut idle = Command::new("sleep").arg("60").spawn().expect("it runs");
    let id = idle.id();
    let waits = std::thread::spawn(move || wait_until_working(id, Duration::ZERO));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waits.is_finished(), "it catches nothing");
    idle.kill().expect("killed");
    assert!(waits.join().is_err(), "it has ended");
    idle.wait().expect("waited for");
}

#[test]
fn cases_of_the_hot_loop_differ_and_fit_its_words() {
    use crate::hot_loop::{CASES, Program, SHORT_LONG, arguments, per_io};
    let last_without = CASES.iter().rposition(|case| !case.needs_kernel_ring()).expect("some need none");
    for (at, case) in CASES.iter().enumerate() {
        let earlier = &CASES[..at];
        assert!(earlier.iter().all(|have| have.name != case.name && have.words != case.words), "{case:?} twice");
        assert_eq!(case.needs_kernel_ring(), at > last_without, "{case:?}: those with a kernel ring come last (I1)");
        if case.program == Program::Bench {
            continue;
        }
        let words = arguments(&case.on("x"), "77");
        assert_eq!(words[4], "77", "{words:?}");
        let batch: u64 = words[3].parse().expect("a number");
        assert!(SHORT_LONG.0.is_multiple_of(batch) && SHORT_LONG.1.is_multiple_of(batch), "{case:?}: whole batches");
    }
    assert_eq!(per_io(1_000, 1_000 + 115_200 * 7), 7.0);
}
