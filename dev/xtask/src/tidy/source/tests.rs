//! Tests of functions, test regions and lines of a file.

use super::*;

fn functions(text: &str) -> Vec<(String, usize, usize)> {
    Source::new("a.rs", text).functions().into_iter().map(|f| (f.name, f.line, f.lines)).collect()
}

#[test]
fn functions_are_measured_from_fn_to_brace() {
    let text = "/// Doc.\n#[inline]\npub fn one(\n    a: [u8; 4],\n) {\n    let s = \"}\";\n}\nfn two() {}\n";
    assert_eq!(functions(text), [("one".into(), 3, 5), ("two".into(), 8, 1)]);
}

#[test]
fn declarations_and_pointer_types_are_no_functions() {
    assert_eq!(functions("trait T { fn a(&self); fn b() {} }\ntype F = fn(u8) -> u8;\n"), [("b".into(), 1, 1)]);
}

#[test]
fn a_nested_function_counts_by_itself_and_in_its_parent() {
    assert_eq!(functions("fn a() {\n    fn b() {\n    }\n}\n"), [("a".into(), 1, 4), ("b".into(), 2, 2)]);
}

#[test]
fn test_code_inside_a_product_file_is_known() {
    let text =
        "fn a() { x.unwrap() }\n#[cfg(test)]\nmod tests {\n    fn b() { x.unwrap() }\n}\nfn c() { x.unwrap() }\n";
    assert_eq!(Source::new("src/a.rs", text).product_lines(".unwrap()"), [1, 6]);
    let text = "#[cfg(any(test, fuzz))]\nfn a() { x.unwrap() }\n#[cfg(not(test))]\nfn b() { x.unwrap() }\n";
    assert_eq!(Source::new("src/a.rs", text).product_lines(".unwrap()"), [2, 4], "not for tests only");
    let text = "#[cfg(all(test, loom))]\nmod m { fn a() { x.unwrap() } }\n#[test]\nfn t() { x.unwrap() }";
    assert!(Source::new("src/a.rs", text).product_lines(".unwrap()").is_empty());
}

#[test]
fn test_files_are_known_by_path() {
    for path in ["crates/a/src/x/tests.rs", "tests/a.rs", "crates/a/benches/b.rs", "dev/testkit/src/lib.rs"] {
        assert!(Source::new(path, "").is_test, "{path}");
    }
    assert!(!Source::new("crates/a/src/latest.rs", "").is_test);
}

#[test]
fn out_of_line_test_modules_are_named() {
    let text =
        "#[cfg(test)]\nmod tests;\n#[cfg(all(test, loom))]\nmod model;\n#[cfg(test)]\nmod inline {}\nmod real;\n";
    assert_eq!(Source::new("src/a.rs", text).test_modules(), ["tests", "model"]);
}

#[test]
fn a_module_is_named_after_its_file_or_directory() {
    for (path, module) in [("src/op/nop.rs", "nop"), ("src/op/mod.rs", "op"), ("src/lib.rs", "lib")] {
        assert_eq!(Source::new(path, "").module(), module);
    }
}
