//! Compares the outcomes of the same program on two rings.
//!
//! Compares every CQE (user data, result, flags), the order where one is promised, the result of each submit, and every
//! byte of memory and device, if the device keeps data. The differences are lines of text.

use std::collections::BTreeMap;

use crate::abi::result_name;
use crate::program::Program;
use crate::run::{Cqe, Outcome};

/// Largest number of lines of one report.
const MAX_LINES: usize = 40;

/// Returns the differences between `ours` and the kernel's outcome.
pub fn differences(program: &Program, kernel: &Outcome, ours: &Outcome) -> Vec<String> {
    let mut lines = Vec::new();
    results(kernel, ours, &mut lines);
    if lines.is_empty() {
        order(program, kernel, ours, &mut lines);
    }
    if kernel.submitted != ours.submitted {
        lines.push(format!("submit said {:?}, kernel {:?}", ours.submitted, kernel.submitted));
    }
    if kernel.overflow != ours.overflow {
        lines.push(format!("overflow flag {:?}, kernel {:?}", ours.overflow, kernel.overflow));
    }
    if !ours.has_bytes {
        return lines;
    }
    bytes("arena", &kernel.bytes.arena, &ours.bytes.arena, &mut lines);
    bytes("registered buffer 0", &kernel.bytes.fixed[0], &ours.bytes.fixed[0], &mut lines);
    bytes("registered buffer 1", &kernel.bytes.fixed[1], &ours.bytes.fixed[1], &mut lines);
    bytes("device", &kernel.bytes.device, &ours.bytes.device, &mut lines);
    lines.truncate(MAX_LINES);
    lines
}

/// Returns the CQEs of each user data, in order of arrival.
fn by_user_data(cqes: &[Cqe]) -> BTreeMap<u64, Vec<(i32, u32)>> {
    let mut map: BTreeMap<u64, Vec<(i32, u32)>> = BTreeMap::new();
    for cqe in cqes {
        map.entry(cqe.user_data).or_default().push((cqe.res, cqe.flags));
    }
    map
}

fn results(kernel: &Outcome, ours: &Outcome, lines: &mut Vec<String>) {
    let (theirs, mine) = (by_user_data(&kernel.cqes), by_user_data(&ours.cqes));
    let mut keys: Vec<&u64> = theirs.keys().chain(mine.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let (their, my) = (theirs.get(key), mine.get(key));
        if their != my {
            lines.push(format!("ud={key}: {}, kernel {}", shown(my), shown(their)));
        }
    }
}

fn shown(cqes: Option<&Vec<(i32, u32)>>) -> String {
    let one = |&(res, flags): &(i32, u32)| match flags {
        0 => result_name(res),
        _ => format!("{}/flags={flags:#x}", result_name(res)),
    };
    match cqes {
        None => "no CQE".to_owned(),
        Some(list) => list.iter().map(one).collect::<Vec<_>>().join(" "),
    }
}

/// Checks each promised pair: the CQE that was first with the kernel must be first with Sheave.
fn order(program: &Program, kernel: &Outcome, ours: &Outcome, lines: &mut Vec<String>) {
    let place = |cqes: &[Cqe]| {
        let mut map = BTreeMap::new();
        for (at, cqe) in cqes.iter().enumerate() {
            map.entry(cqe.user_data).or_insert(at);
        }
        map
    };
    let (theirs, mine) = (place(&kernel.cqes), place(&ours.cqes));
    for (a, b) in program.order_pairs() {
        let (Some(ta), Some(tb), Some(ma), Some(mb)) = (theirs.get(&a), theirs.get(&b), mine.get(&a), mine.get(&b))
        else {
            continue;
        };
        if (ta < tb) != (ma < mb) {
            let (first, second) = if ta < tb { (a, b) } else { (b, a) };
            lines.push(format!("order: ud={second} came before ud={first}, with the kernel after it"));
        }
    }
    if program.shape.hoard && lines.is_empty() && kernel.cqes != ours.cqes {
        lines.push("the CQEs of an overflowed ring come in another order".to_owned());
    }
}

fn bytes(what: &str, theirs: &[u8], mine: &[u8], lines: &mut Vec<String>) {
    if theirs == mine {
        return;
    }
    if theirs.len() != mine.len() {
        lines.push(format!("{what}: {} bytes, kernel {}", mine.len(), theirs.len()));
        return;
    }
    let differ = |i: &usize| theirs[*i] != mine[*i];
    let count = (0..mine.len()).filter(differ).count();
    let first = (0..mine.len()).find(differ).unwrap_or(0);
    let last = (0..mine.len()).rfind(differ).unwrap_or(0);
    lines.push(format!("{what}: {count} bytes differ, from {first} to {last}"));
}

/// Returns both lists of CQEs side by side, for the report.
pub fn listing(kernel: &Outcome, ours: &Outcome) -> String {
    let text = |cqes: &[Cqe]| {
        let each = |c: &Cqe| format!("{}:{}", c.user_data, shown(Some(&vec![(c.res, c.flags)])));
        cqes.iter().map(each).collect::<Vec<_>>().join("  ")
    };
    format!("  kernel: {}\n  ours:   {}\n", text(&kernel.cqes), text(&ours.cqes))
}
