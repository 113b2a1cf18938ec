//! Tests of parsing rustdoc's pages, and of the comparison of two listings.

use super::*;

const KEPT: &str = "# page
# rustc 1.0.0

struct sheave::A
    pub struct A;
    impl Send for A

fn sheave::f
    pub fn f()
";

#[test]
fn a_listing_that_is_the_same_passes() {
    compare(KEPT, KEPT).expect("no change");
    // A difference only in the compiler is no change.
    compare(KEPT, &KEPT.replace("1.0.0", "2.0.0")).expect("no change");
}

#[test]
fn what_goes_and_what_comes_is_told_with_the_command() {
    let now = KEPT.replace("    impl Send for A\n", "    impl !Send for A\n").replace("pub fn f()", "pub fn f(x: u8)");
    let told = compare(KEPT, &now).expect_err("a change").to_string();
    for part in ["- struct sheave::A: impl Send for A", "+ struct sheave::A: impl !Send for A", "+ fn sheave::f", RENEW]
    {
        assert!(told.contains(part), "{part} in {told}");
    }
    let other = compare(KEPT, &now.replace("1.0.0", "2.0.0")).expect_err("a change").to_string();
    assert!(other.contains("made with # rustc 1.0.0") || other.contains("rustc 2.0.0"), "{other}");
}

#[test]
fn the_same_line_of_another_item_is_another_line() {
    let now =
        KEPT.replace("    impl Send for A\n", "").replace("    pub fn f()\n", "    pub fn f()\n    impl Send for A\n");
    assert!(compare(KEPT, &now).is_err());
}

#[test]
fn a_volume_crate_under_rings_is_refused() {
    let tree = "sheave v0.1.0 (/x)\nsheave-uring v0.1.0 (/y)\nlibc v0.2.0\nsheave-uring v0.1.0 (/y) (*)\n";
    assert_eq!(crates_of(tree).expect("none too many"), ["libc", "sheave", "sheave-uring"]);
    assert!(crates_of(&format!("{tree}sheave-vol v0.1.0 (/z)\n")).is_err());
    assert!(crates_of("sheave v0.1.0\n").is_err(), "a tree that was not read");
}

/// A page of rustdoc 1.95, cut down to the parsed elements.
const PAGE_OF_A: &str = include_str!("page.html");

fn listed(page: &str) -> Result<String> {
    let dir = std::env::temp_dir().join(format!("sheave-api-{}-{}", std::process::id(), page.len()));
    std::fs::create_dir_all(dir.join("m"))?;
    std::fs::write(dir.join("m/struct.A.html"), page)?;
    std::fs::write(dir.join("m/index.html"), "no item")?;
    let text = listing::read(&dir, "lib");
    std::fs::remove_dir_all(&dir)?;
    Ok(text?.0)
}

#[test]
fn a_page_gives_its_declaration_its_methods_and_its_traits() {
    let wanted = [
        "struct lib::m::A",
        "    #[non_exhaustive]",
        "    pub struct A<'a> {",
        "        pub x: u32,",
        "        /* private fields */",
        "    }",
        "    pub fn f( self, ) -> &'static str",
        "    impl !Send for A",
        "    impl Clone for A",
    ];
    assert_eq!(listed(PAGE_OF_A).expect("a page").lines().skip(1).collect::<Vec<_>>(), wanted);
}

#[test]
fn a_page_of_another_rustdoc_is_an_error() {
    assert!(listed(&PAGE_OF_A.replace("item-decl", "declaration")).is_err());
    assert!(listed(&PAGE_OF_A.replace("synthetic-implementations-list", "auto")).is_err());
}

#[test]
fn what_has_no_documentation_is_named() {
    let documented = "</section><div class=\"docblock\">x</div>";
    let page = |own: &str, method: &str, field: &str| {
        format!(
            "<pre class=\"rust item-decl\"></pre>{own}<span id=\"structfield.x\">{field}\
             <section id=\"method.f\">{method}<section id=\"variant.V\">{documented}\
             <span id=\"variant.V.field.y\">{field}<h2 id=\"trait-implementations\"><section id=\"method.clone\">"
        )
    };
    assert!(rules::undocumented(&page(documented, documented, documented), "A").is_empty());
    assert_eq!(rules::undocumented(&page("", documented, documented), "A"), ["A"]);
    assert_eq!(rules::undocumented(&page(documented, "", documented), "A"), ["f"]);
    assert_eq!(rules::undocumented(&page(documented, documented, ""), "A"), ["x", "V.field.y"]);
}

#[test]
fn what_cannot_grow_and_what_is_a_bare_integer_is_named() {
    let listing = |attribute: &str, field: &str| {
        format!(
            "# head\n\nstruct lib::A\n{attribute}    pub struct A {{\n        {field}\n    }}\n    pub fn f(self)\n\n\
             struct lib::B\n    pub struct B(/* private fields */);\n"
        )
    };
    assert!(rules::broken(&listing("    #[non_exhaustive]\n", "pub x: u32,")).is_empty());
    assert!(rules::broken(&listing("", "/* private fields */")).is_empty());
    assert_eq!(rules::broken(&listing("", "pub x: u32,")).len(), 1);
    assert_eq!(rules::broken(&listing("    #[non_exhaustive]\n", "pub flags: u32,")).len(), 1);
    for (line, count) in [
        ("enum lib::E\n    pub enum E {\n        A,\n    }", 1),
        ("enum lib::E\n    #[non_exhaustive]\n    pub enum E {\n        A,\n    }", 0),
        ("struct lib::N\n    pub struct N(pub u32);", 1),
        ("struct sheave::Errno\n    pub struct Errno(pub i32);", 0),
        ("struct lib::M\n    pub struct M { /* private fields */ }\n    pub fn errno(self) -> i32", 1),
        ("fn lib::f\n    pub fn f(flags: u32)", 1),
        ("fn sheave::raw::f\n    pub fn f(flags: u32)", 0),
        ("struct lib::C\n    pub struct C { /* private fields */ }\n    pub fn from_bits(bits: u32) -> C", 0),
    ] {
        assert_eq!(rules::broken(line).len(), count, "{line}");
    }
}

#[test]
fn a_type_without_a_public_name_is_told() {
    let listing =
        |method: &str| format!("# rustc\n\nstruct lib::A\n    pub struct A;\n    {method}\n    impl Debug for A\n");
    for good in [
        "pub fn f<T>(&self, many: Vec<A>, of: T) -> Result<Option<A>, Error>",
        "pub const MAX: A",
        "pub fn g(&self) -> impl Iterator<Item = A> + Send",
        "Variant(Duration),",
        "// Provided methods",
    ] {
        assert_eq!(rules::unnameable(&listing(good)), Vec::<String>::new());
    }
    for bad in
        ["pub fn f(&self, since: Hidden)", "impl From<Hidden> for A", "Variant(Hidden),", "pub at: Option<Hidden>,"]
    {
        let told = rules::unnameable(&listing(bad));
        assert_eq!(told, [format!("struct lib::A: `{bad}` has Hidden, which has no public name (R4)")]);
    }
}
