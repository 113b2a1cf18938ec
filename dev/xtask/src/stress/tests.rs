//! Tests of the arguments.

use super::*;

fn parsed(args: &[&str]) -> Option<(u64, Vec<String>)> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    parse(&args).ok().map(|(time, rest)| (time.as_secs(), rest.to_vec()))
}

#[test]
fn minutes_come_first_and_the_rest_goes_to_cargo() {
    assert_eq!(parsed(&[]), Some((600, vec![])));
    assert_eq!(parsed(&["--minutes", "3", "-p", "x"]), Some((180, vec!["-p".into(), "x".into()])));
    assert_eq!(parsed(&["model_"]), Some((600, vec!["model_".into()])));
    assert_eq!(parsed(&["--minutes", "many"]), None);
    assert_eq!(parsed(&["--help"]), None);
}
