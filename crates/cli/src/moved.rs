//! Commands of `sheave-lab` that users may look for in `sheave`.
//!
//! They are checked before the command line is parsed, because `sheave` does not know their options either.

use std::ffi::OsString;

use sheave_daemon::failure::Failure;

/// Refuses a command of the lab, with a message that names the right command.
pub fn refuse(args: impl Iterator<Item = OsString>) -> Result<(), Failure> {
    let args: Vec<String> = args.skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    match args.split_first() {
        Some((command, rest)) if command == "lab" => Err(Failure::usage(
            "the experiments are a program of their own, sheave-lab, which is built from the source",
        )
        .fix(format!(
            "in the repository, `{}`",
            ["cargo xtask lab"].into_iter().chain(rest.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
        ))),
        Some((command, rest)) if command == "bench" && rest.iter().any(|arg| arg.starts_with("wq:")) => {
            Err(Failure::usage("the worker pool is measured by sheave-lab, a program that is built from the source")
                .fix("in the repository, `cargo xtask lab wq`; its options: `cargo xtask lab wq --help`"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
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
        for line in
            ["sheave", "sheave bench null:size=1G", "sheave volume list wq:", "sheave doctor lab", "sheave --help"]
        {
            assert_eq!(refused(line), None, "{line}");
        }
    }
}
