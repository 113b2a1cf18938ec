//! Tests of parsing the output of valgrind.

use super::*;

const FILE: &str = "desc: D1 cache: 32768 B\ncmd: ./lab\nevents: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\n\
    fl=/a.rs\nfn=lab::get::h0123456789abcdef\n7 100 0 0 9 2 0 3 1 0\n8 20 0 0 0 0 0 0 0 0\nfl=/b.rs\n\
    fn=lab::get::h0123456789abcdef\n0 5 0 0 0 0 0 0 0 0\nfn=free\n3 75 0 0 0 0 0 0 4 0\n\
    summary: 200 0 0 9 2 0 3 5 0\n";

#[test]
fn a_profile_is_read_by_function_and_in_sum() {
    let long = Profile::of(FILE).expect("a profile");
    let each = long.per_io(&Profile::default(), 10);
    assert_eq!((each.instructions, each.lines), (20.0, 0.7), "data that was read and written, not instructions");
    let functions: Vec<(&str, f64)> = each.functions.iter().map(|(name, count)| (name.as_str(), *count)).collect();
    assert_eq!(functions, [("free", 7.5), ("lab::get", 12.5)], "without the hash, both files together");
    assert_eq!(long.per_io(&Profile::of(FILE).expect("a profile"), 10).instructions, 0.0);
    for cut in ["", "events: Ir\nfn=a\n1 2\nsummary: 2\n", &FILE[..FILE.len() - 40]] {
        assert_eq!(Profile::of(cut), None, "{cut:?}");
    }
}

#[test]
fn functions_are_listed_in_which_arms_differ() {
    let arm = |get: f64, put: f64| {
        let functions = [("get".into(), get), ("put".into(), put), ("same".into(), 50.0)].into();
        Some(profile::PerIo { instructions: get + put + 50.0, lines: 0.0, functions })
    };
    let rows = functions(&[arm(10.0, 9.0), None, arm(12.0, 30.0), arm(10.4, 9.0)]);
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["put", "get"], "those that differ most first, and not what all share");
    assert_eq!(rows[1].per_io, [Some(10.0), None, Some(12.0), Some(10.4)]);
}

#[test]
fn an_arm_has_one_word_on_the_command_line() {
    let args = arguments("bio-cache", "per cpu", &Point::default(), 5);
    assert_eq!(args[2], "per-cpu");
    assert_eq!(args.len(), 7);
}

#[test]
fn each_arm_is_counted_once_and_on_a_cpu_of_the_lab() {
    let allowed = cpu::allowed();
    for cpus in [vec![allowed[0]], allowed.clone(), vec![allowed[0]; 3]] {
        let lab = Lab { cpus: cpus.clone(), ..crate::fake::lab() };
        let work = |arm: usize| Ok((arm * 10, cpu::allowed()));
        let mut done = beside_each_other(&lab, &[4, 0, 7, 2, 9], work).expect("done");
        done.sort_by_key(|(arm, _)| *arm);
        let arms: Vec<(usize, usize)> = done.iter().map(|(arm, (ten, _))| (*arm, *ten)).collect();
        assert_eq!(arms, [(0, 0), (2, 20), (4, 40), (7, 70), (9, 90)]);
        assert!(done.iter().all(|(_, (_, on))| on.len() == 1 && cpus.contains(&on[0])), "{done:?}");
    }
    let failed = beside_each_other(&crate::fake::lab(), &[1, 2, 3], |arm| match arm {
        2 => Err(LabError::run("no")),
        _ => Ok(()),
    });
    assert!(failed.is_err_and(|error| error.cause == "no"));
}
