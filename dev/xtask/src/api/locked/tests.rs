//! Tests of which packages count for a program that depends on the library.

use super::*;

const LOCK: &str = r#"
[[package]]
name = "mine"
version = "0.1.0"
dependencies = [
 "checker",
 "odd 1.0.0",
 "winlike",
]

[[package]]
name = "checker"
version = "2.0.0"
source = "registry+x"

[[package]]
name = "odd"
version = "1.0.0"
source = "registry+x"
dependencies = [
 "deep",
]

[[package]]
name = "odd"
version = "2.0.0"
source = "registry+x"

[[package]]
name = "deep"
version = "3.0.0"
source = "registry+x"

[[package]]
name = "winlike"
version = "4.0.0"
source = "registry+x"
"#;

fn found(manifest: &str) -> Vec<String> {
    let manifests = BTreeMap::from([("mine".to_owned(), workspace::parse_manifest(manifest))]);
    reached(&parse(LOCK), &manifests, "mine").expect("all are there").into_iter().collect()
}

#[test]
fn dependencies_of_every_target_count_and_those_of_tests_do_not() {
    let manifest = "[dependencies]\nodd.workspace = true\n[target.'cfg(windows)'.dependencies]\nwinlike = \"4\"\n";
    let tests = "[dev-dependencies]\nchecker.workspace = true\n[target.'cfg(x)'.dev-dependencies]\nchecker = \"2\"\n";
    let expected = ["deep 3.0.0", "mine 0.1.0", "odd 1.0.0", "winlike 4.0.0"];
    assert_eq!(found(&format!("{manifest}{tests}")), expected);
    assert_eq!(found(&format!("{manifest}[target.'cfg(x)'.dependencies]\nchecker = \"2\"\n")).len(), 5);
}

#[test]
fn a_program_that_depends_on_the_library_has_few_packages_in_its_lock_file() {
    check().expect("no more than there may be");
    let packages = packages().expect("they are read");
    for checker in ["shuttle ", "loom "] {
        assert!(!packages.iter().any(|package| package.starts_with(checker)), "{packages:?}");
    }
}
