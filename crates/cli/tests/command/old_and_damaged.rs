//! Commands on pools of older versions of the program, and on pools with damaged maps.

use std::fs;

use crate::sheave::{Dir, no_io_uring};

/// Kinds of the two metadata blocks that make up a map, see `docs/reference/on-disk-format.md`.
const LEAF: [u8; 2] = [3, 0];
const INDEX: [u8; 2] = [4, 0];

#[test]
fn an_old_pool_stays_old_until_it_is_upgraded() {
    if no_io_uring() {
        return;
    }
    let dir = Dir::new();
    let runs = include_bytes!("../../../vol/tests/pools/summed-crashed.runs");
    fs::write(dir.path("p.img"), sheave_testkit::expand_runs(runs)).expect("the pool");
    let upgrades = serde_json::json!(["marks", "identities", "owners", "copies"]);
    assert_eq!(dir.ok("pool info p.img --json").json()["upgrades"], upgrades);
    assert!(dir.ok("pool info p.img").out.contains("sheave pool upgrade 'p.img' --dry-run"));
    let before = fs::read(dir.path("p.img")).expect("the pool");
    let said = dir.ok("pool upgrade p.img --dry-run").out;
    for word in ["p.img: it has no marks: a block", "After an upgrade a block", "Nothing was changed", "will refuse"] {
        assert!(said.contains(word), "no `{word}` in\n{said}");
    }
    assert!(fs::read(dir.path("p.img")).expect("the pool") == before, "nothing was changed");
    dir.ok("volume create p.img#more --size 1M");
    assert_eq!(dir.ok("pool info p.img --json").json()["upgrades"], upgrades, "a change is no upgrade");
    let told = dir.ok("pool upgrade p.img --json").json();
    assert_eq!((&told["upgrades"][0]["name"], &told["dry_run"]), (&"marks".into(), &false.into()), "{told}");
    assert_eq!(dir.ok("pool info p.img --json").json()["upgrades"], serde_json::json!([]));
    assert!(dir.ok("pool upgrade p.img").out.contains("p.img: it lacks nothing"));
    dir.ok("pool check p.img");
    assert!(dir.ok("pool upgrade p.img --metadata-copies 2").out.contains("it has pairs now"));
    assert!(dir.ok("pool upgrade p.img --metadata-copies 2").out.contains("p.img: it lacks nothing"));
    assert_eq!(dir.ok("pool info p.img --json").json()["metadata_copies"], 2);
    dir.ok("pool check p.img");
    assert_eq!(dir.ok("volume list p.img --json").json()["volumes"].as_array().map(Vec::len), Some(5));
}

#[test]
fn one_damaged_page_of_a_map_leaves_the_other_volumes() {
    if no_io_uring() {
        return;
    }
    // A damaged page of a map affects only the volumes that need it (V19).
    let dir = Dir::new();
    dir.ok("pool create p.img --size 64M");
    fs::write(dir.path("raw"), vec![0x5a; 300_000]).expect("an image");
    for name in ["v", "w"] {
        dir.ok(&format!("volume import raw p.img#{name}"));
    }
    let whole = fs::read(dir.path("p.img")).expect("the pool");
    let pages = (0..whole.len()).step_by(4096).filter(|at| whole[*at..].starts_with(b"SHVE"));
    let pages: Vec<usize> = pages.filter(|at| [LEAF, INDEX].contains(&[whole[at + 4], whole[at + 5]])).collect();
    let (mut damaged, mut leaves) = (0, 0);
    for at in pages {
        let mut image = whole.clone();
        image[at + 99] ^= 8;
        fs::write(dir.path("p.img"), &image).expect("the pool");
        let info = dir.ok("pool info p.img --json").json();
        let Some(found) = info["damaged"].as_array().and_then(|found| found.first()) else { continue };
        assert_eq!(
            (found["address"].as_u64(), &found["offset"], &found["pages"]),
            (Some(at as u64), &0.into(), &1.into())
        );
        let lost = found["volume"].as_str().expect("a name");
        let other = if lost == "v" { "w" } else { "v" };
        damaged += 1;
        leaves += usize::from(whole[at + 4] == LEAF[0]);
        for word in ["damaged  volume ", &at.to_string(), "checksum", "sheave pool check 'p.img' --dry-run"] {
            let text = dir.ok("pool info p.img").out;
            assert!(text.contains(word), "no `{word}` in\n{text}");
        }
        let list = dir.ok("volume list p.img").out;
        assert!(list.contains(&format!("{lost} does not open: the page of its map at byte {at}")), "{list}");
        dir.ok(&format!("volume export p.img#{other} out"));
        assert!(fs::read(dir.path("out")).expect("exported")[..300_000] == fs::read(dir.path("raw")).expect("raw"));
        fs::remove_file(dir.path("out")).expect("removed");
        for line in ["volume export p.img#LOST out", "volume snapshot p.img#LOST s"] {
            let said = dir.run(&line.replace("LOST", lost));
            assert_eq!(said.code, 1, "{line}: {}", said.err);
            for word in [&format!("the map of volume '{lost}' is damaged"), &at.to_string(), "check --repair"] {
                assert!(said.err.contains(word), "{line}: no `{word}` in\n{}", said.err);
            }
        }
        // The rest of the pool can be used as before, and the damaged volume can be deleted with or without a repair.
        dir.ok("volume create p.img#x --size 1M");
        dir.ok(&format!("volume snapshot p.img#{other} s"));
        if damaged % 2 == 0 {
            dir.ok("pool check p.img --repair --yes");
        }
        dir.ok(&format!("volume delete p.img#{lost} --yes"));
        dir.ok(&format!("volume export p.img#{other} out"));
        fs::remove_file(dir.path("out")).expect("removed");
    }
    assert!(damaged >= 4 && leaves >= 2, "{damaged} pages were needed, {leaves} of them leaves");
}
