//! Daemons with thousands of exports: lists of them, and a configuration that is read again.

use crate::daemon::{BOTH, Daemon, pools};
use crate::sheave::Dir;

/// Clients that have not said who they are get names and sizes, and neither paths nor specs.
#[test]
fn clients_are_told_what_an_export_is_and_not_where_it_lies() {
    if sheave_testkit::require("nbdinfo").is_none() {
        return;
    }
    let Some(dir) = pools() else { return };
    std::fs::write(dir.path("raw.img"), vec![0; 1 << 20]).expect("written");
    let raw = "\n[[export]]\nname = \"raw\"\nspec = \"file:raw.img,direct=off\"\nread_only = true\n";
    let daemon = Daemon::start(&dir, &format!("{BOTH}{raw}"));
    let told = listed(&dir);
    for (name, description) in [("va", "16 MiB"), ("vb", "16 MiB"), ("raw", "1 MiB, read-only")] {
        let row = told.iter().find(|row| row["export-name"] == name).expect("it is listed");
        assert_eq!(row["description"], description, "{row}");
        assert!(![".img", "file:", "direct", "#"].iter().any(|words| row.to_string().contains(words)), "{row}");
    }
    daemon.end();
}

/// The exports that `nbdinfo --list` tells.
fn listed(dir: &Dir) -> Vec<serde_json::Value> {
    let said = dir.shell("nbdinfo --list --json 'nbd+unix:///?socket=nbd.sock'");
    assert_eq!(said.code, 0, "{}", said.err);
    said.json()["exports"].as_array().expect("a list").clone()
}
