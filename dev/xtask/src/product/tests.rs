//! Tests of the names found in a binary, and of refusing a binary without names.

use super::*;

fn product() -> String {
    format!("{}\0crates/load/src/looper.rs\0sheave_load\0sheave-lab\0", PRESENT.join("\0"))
}

#[test]
fn a_product_passes_and_may_speak_of_the_lab() {
    look(&product()).expect("nothing of the lab is in it");
}

#[test]
fn every_name_of_the_lab_is_found_wherever_it_stands() {
    for word in ABSENT {
        for text in [format!("_ZN17{word}17h{}", product()), product() + word] {
            let error = look(&text).expect_err(word).to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}

#[test]
fn a_binary_without_names_proves_nothing() {
    for missing in PRESENT {
        let error = look(&product().replace(missing, "")).expect_err("nothing can be seen").to_string();
        assert!(error.contains(missing) && error.contains("(I1)"), "{error}");
    }
}
