//! Arguments that a plan accepts, and the division of the work.

use clap::Parser;

use super::*;
use crate::args::{Cli, Command};

fn plan(line: &str) -> Result<Plan, Failure> {
    let words = ["sheave", "bench", "--pin=off"].into_iter().chain(line.split_whitespace());
    match Cli::try_parse_from(words).expect("the line parses").command {
        Command::Bench(args) => Plan::new(&args),
        _ => unreachable!("the line says bench"),
    }
}

fn good(line: &str) -> Plan {
    plan(line).expect("the plan is good")
}

#[test]
fn targets() {
    let of = |spec| Target::of(spec).expect(spec);
    assert_eq!(of("null:size=1T"), Target::Null);
    assert_eq!(of("ram:size=1G"), Target::Ram);
    assert_eq!(of("file:/a/b,size=1G"), Target::File("/a/b".into()));
    assert_eq!(of("fault:error=0.1,over=ram:size=1G"), Target::Other);
    assert!(matches!(of("vol:pool.img#disk"), Target::Volume(place) if place.name == "disk"));
    assert!(Target::of("vol:pool.img").is_err());
}

#[test]
fn defaults() {
    let plan = good("null:size=1T");
    assert_eq!((plan.batch, plan.runtime, plan.fill), (8, Some(Duration::from_secs(5)), false));
    assert_eq!(good("null: --depth 1").batch, 1);
    assert_eq!(good("null: --depth 128").batch, 32);
    assert_eq!(good("null: --ios 5").runtime, None);
    assert!(good("ram:size=1G").fill);
    assert!(!good("ram:size=1G --verify").fill);
    assert!(!good("ram:size=1G --rw write").fill);
    assert!(good("vol:ram:size=1G").fill && good("vol:ram:size=1G --rw write --compare raw").fill);
    assert!(!good("vol:ram:size=1G --rw randwrite").fill, "first writes are what this measures");
    assert!(!good("vol:pool.img#disk").fill, "it has data of somebody's");
}

#[test]
fn contradictions_name_a_fix() {
    for line in [
        "null: --depth 4 --batch 8",
        "null: --verify",
        "null: --mix 70",
        "null: --compare memcpy",
        "null: --compare kernel --threads 2",
        "null: --compare kernel --ios 100",
        "ram:size=1G --compare memcpy --rw randwrite",
        "ram:size=1G --compare kernel --verify",
        "fault:over=ram: --compare kernel",
        "ram:size=1G --compare raw",
        "vol:ram:size=1G --compare kernel",
        "vol:null:size=1T --verify",
        "file: --rw read",
        "file:,size=1G",
    ] {
        let failure = plan(line).expect_err(line);
        assert!(failure.to_string().contains("fix: "), "{line}: {failure}");
    }
}

#[test]
fn ranges() {
    let plan = good("null: --bs 4k");
    assert_eq!(plan.range(10_000, 512).expect("fits"), 8192);
    assert!(plan.range(10_000, 8192).is_err());
    assert!(plan.range(4095, 512).is_err());
    assert!(good("null: --range 1M").range(4096, 512).is_err());
    assert_eq!(good("null: --range 1M").range(1 << 30, 512).expect("fits"), 1 << 20);
    assert!(good("ram:size=1G --bs 512 --verify").range(1 << 40, 512).is_err());
}

#[test]
fn parts_cover_the_range_once() {
    let plan = good("ram:size=1G --threads 3 --rw write --bs 512");
    let parts: Vec<Part> = (0..3).map(|index| plan.part(512 * 100, index)).collect();
    assert_eq!(parts.iter().map(|part| part.blocks).sum::<u64>(), 100);
    assert_eq!(parts[1].base, parts[0].blocks * 512);
    assert_eq!(parts[2].base, parts[1].base + parts[1].blocks * 512);
    assert_eq!(good("ram:size=1G --threads 3").part(4096 * 9, 2), Part { base: 0, blocks: 9 });
}

#[test]
fn ios_are_shared_out_exactly() {
    let plan = good("null: --threads 3 --ios 11");
    assert_eq!((0..3).map(|index| plan.ios(index)).collect::<Vec<_>>(), [4, 4, 3]);
    assert_eq!(good("null:").ios(0), u64::MAX);
}
