//! Tests of the command line.

use super::*;

fn parsed(args: &[&str]) -> Result<Options> {
    Options::parse(&args.iter().map(|&arg| arg.to_owned()).collect::<Vec<_>>())
}

#[test]
fn nothing_is_installed_unasked() {
    assert_eq!(parsed(&[]).expect("the quick tier"), Options::default());
    assert_eq!(parsed(&["--all"]).expect("all"), Options { all: true, ..Options::default() });
    let install = parsed(&["--all", "--install", "--fail-fast"]).expect("all of them");
    assert_eq!(install, Options { all: true, install: true, fail_fast: true });
    assert!(parsed(&["--install"]).expect_err("of what").to_string().contains("--all"));
    assert!(parsed(&["-x"]).expect_err("no such flag").to_string().contains("usage"));
}
