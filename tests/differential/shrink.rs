//! Makes a program that shows a difference smaller: drops batches, then chains, then single SQEs.
//!
//! A dropped SQE at the end of a chain takes the link flags of the one before it, so chains never grow together.

use crate::abi::flag;
use crate::program::{Op, Program};

/// Largest number of attempts: each runs the program on both rings.
const MAX_TRIES: usize = 600;

/// Returns the smallest program found for which `fails` still returns true.
pub fn shrink(mut program: Program, mut fails: impl FnMut(&Program) -> bool) -> Program {
    let mut tries = 0;
    for size in [Size::Batch, Size::Chain, Size::One, Size::Batch, Size::Chain, Size::One] {
        let mut at = 0;
        while tries < MAX_TRIES {
            let Some(smaller) = without(&program, size, at) else { break };
            tries += 1;
            if fails(&smaller) {
                program = smaller;
            } else {
                at += 1;
            }
        }
    }
    program
}

#[derive(Clone, Copy)]
enum Size {
    Batch,
    Chain,
    One,
}

/// Returns `program` without its piece number `at`; `None` if it has fewer pieces.
fn without(program: &Program, size: Size, at: usize) -> Option<Program> {
    let mut smaller = program.clone();
    let mut left = at;
    for (n, batch) in program.batches.iter().enumerate() {
        let pieces: Vec<std::ops::Range<usize>> = match size {
            Size::Batch => std::iter::once(0..batch.len()).collect(),
            Size::Chain => Program::chains(batch),
            Size::One => (0..batch.len()).map(|i| i..i + 1).collect(),
        };
        if left >= pieces.len() {
            left -= pieces.len();
            continue;
        }
        remove(&mut smaller.batches[n], pieces[left].clone());
        smaller.batches.retain(|batch| !batch.is_empty());
        return Some(smaller);
    }
    None
}

fn remove(batch: &mut Vec<Op>, piece: std::ops::Range<usize>) {
    let ends_chain = !batch[piece.end - 1].linked();
    if ends_chain && piece.start > 0 {
        batch[piece.start - 1].flags &= !flag::ANY_LINK;
    }
    batch.drain(piece);
}
