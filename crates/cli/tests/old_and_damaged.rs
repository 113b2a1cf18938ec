//! Pools with damaged maps, on the command line.

mod sheave;

use std::fs;

use sheave::{Dir, no_io_uring};

/// Kinds of metadata blocks, as `docs/on-disk-format.md` has them: pages of maps.
const LEAF: [u8; 2] = [3, 0];
const INDEX: [u8; 2] = [4, 0];

#[test]
fn one_damaged_page_of_a_map_leaves_the_other_volumes() {
    if no_io_uring() {
        return;
    }
    // V19.
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
        let changes =
            ["volume export p.img#LOST out", "volume create p.img#x --size 1M", "volume delete p.img#LOST --yes"];
        for line in changes {
            let said = dir.run(&line.replace("LOST", lost));
            assert_eq!(said.code, 1, "{line}: {}", said.err);
            for word in [&format!("the map of volume '{lost}' is damaged"), &at.to_string(), "check --repair"] {
                assert!(said.err.contains(word), "{line}: no `{word}` in\n{}", said.err);
            }
        }
        assert!(fs::read(dir.path("p.img")).expect("the pool") == image, "nothing was written");
        dir.ok("pool check p.img --repair --yes");
        dir.ok(&format!("volume delete p.img#{lost} --yes"));
        dir.ok(&format!("volume export p.img#{other} out"));
        fs::remove_file(dir.path("out")).expect("removed");
    }
    assert!(damaged >= 4 && leaves >= 2, "{damaged} pages were needed, {leaves} of them leaves");
}
