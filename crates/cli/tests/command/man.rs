//! The manual pages, rendered by `man`, and the completions, loaded by a shell.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use crate::sheave::{Dir, Said};

/// Collects every command that the help texts list, for example `sheave pool grow`.
fn commands(dir: &Dir, path: &str, found: &mut BTreeSet<String>) {
    let line = path.strip_prefix("sheave").expect("its name").trim();
    let help = dir.ok(&format!("{line} --help")).out;
    found.insert(path.to_owned());
    let Some((_, list)) = help.split_once("Commands:\n") else { return };
    let names = list.lines().take_while(|line| !line.trim().is_empty()).filter(|line| !line.starts_with("   "));
    for name in names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
        commands(dir, &format!("{path} {name}"), found);
    }
}

#[test]
fn each_command_has_a_page_with_examples_that_renders_without_a_warning() {
    let dir = Dir::new();
    dir.ok("man pages");
    let mut wanted = BTreeSet::new();
    commands(&dir, "sheave", &mut wanted);
    assert!(wanted.len() > 30, "{wanted:?}");
    let found: BTreeSet<String> = std::fs::read_dir(dir.path("pages"))
        .expect("there")
        .map(|entry| {
            entry.expect("read").file_name().to_string_lossy().trim_end_matches(".1").replacen("sheave-", "sheave ", 1)
        })
        .collect();
    let names: BTreeSet<String> =
        wanted.iter().map(|path| path.replace(' ', "-").replacen("sheave-", "sheave ", 1)).collect();
    assert_eq!(found, names);
    for path in &wanted {
        let page = dir.path(&format!("pages/{}.1", path.replace(' ', "-")));
        let text = std::fs::read_to_string(&page).expect("read");
        for section in [".SH NAME", ".SH SYNOPSIS", ".SH EXAMPLES"] {
            assert!(text.contains(section), "{path}: no {section}");
        }
        let Some(man) = sheave_testkit::require("man") else { return };
        let mut command = Command::new(man);
        command.args(["--warnings=w", "-E", "UTF-8", "-l"]).arg(&page).env("MANWIDTH", "100").env("LC_ALL", "C.UTF-8");
        let said = Said::of(command.stdin(Stdio::null()).output().expect("it runs"));
        assert!(said.code == 0 && said.err.is_empty(), "{path}: {}", said.err);
        assert!(said.out.contains("EXAMPLES") && said.out.contains("sheave"), "{path}:\n{}", said.out);
    }
}

#[test]
fn a_page_keeps_the_lines_of_its_examples() {
    let dir = Dir::new();
    dir.ok("man pages");
    let Some(man) = sheave_testkit::require("man") else { return };
    let mut command = Command::new(man);
    // The width is smaller than the lines of the example, so that `man` would wrap them if they were a paragraph.
    command.arg("-l").arg(dir.path("pages/sheave-serve.1")).env("MANWIDTH", "40").env("LC_ALL", "C.UTF-8");
    let said = Said::of(command.stdin(Stdio::null()).output().expect("it runs"));
    let line = "sheave serve 'pool.img#root' --nbd unix:/run/root.sock\n";
    assert!(said.out.contains(line), "{}", said.out);
}

#[test]
fn a_directory_that_cannot_be_is_told_with_a_fix() {
    let dir = Dir::new();
    std::fs::write(dir.path("file"), "x").expect("written");
    let said = dir.run("man file/pages");
    assert!(
        said.code == 1 && said.err.contains("cannot write the pages") && said.err.contains("fix: "),
        "{}",
        said.err
    );
}

#[test]
fn bash_takes_the_completions_and_finds_a_command_by_them() {
    let dir = Dir::new();
    let script = dir.ok("completions bash").out;
    std::fs::write(dir.path("complete.bash"), script).expect("written");
    let ask = "source complete.bash; COMP_WORDS=(sheave volume exp); COMP_CWORD=2; _sheave sheave exp volume; \
               echo \"${COMPREPLY[@]}\"";
    let mut command = Command::new("bash");
    let said = Said::of(command.args(["-c", ask]).current_dir(dir.path("")).output().expect("it runs"));
    assert_eq!(said.out.trim(), "export export-diff", "{}", said.err);
    for shell in ["zsh", "fish", "elvish"] {
        assert!(dir.ok(&format!("completions {shell}")).out.contains("export-diff"), "{shell}");
    }
}
