//! Commands that are refused, and those that are left to the parser.

use super::*;

fn refused(line: &str) -> Option<String> {
    refuse(line.split(' ').map(OsString::from)).err().map(|failure| failure.to_string())
}

#[test]
fn commands_of_the_lab_name_the_program_that_has_them() {
    let all = refused("sheave lab all --quick").expect("refused");
    assert!(all.contains("sheave-lab") && all.contains("`cargo xtask lab all --quick`"), "{all}");
    let none = refused("sheave lab").expect("refused");
    assert!(none.contains("`cargo xtask lab`"), "{none}");
    let pool = refused("sheave bench --json wq: --workers 2").expect("refused");
    assert!(pool.contains("sheave-lab") && pool.contains("`cargo xtask lab wq`"), "{pool}");
}

#[test]
fn other_commands_are_left_alone() {
    for line in ["sheave", "sheave bench null:size=1G", "sheave volume list wq:", "sheave doctor lab", "sheave --help"]
    {
        assert_eq!(refused(line), None, "{line}");
    }
}
