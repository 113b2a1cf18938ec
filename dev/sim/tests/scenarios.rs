//! Tests of the simulator: one program, with a module for each subject.

mod support;

mod broken;
mod crash;
mod create;
mod cut;
mod damage;
mod double;
mod extend;
mod flushes;
mod moved;
mod oracle;
mod rot;
mod scrub;
mod sigkill;
mod sums;
mod threads;
mod threads_crash;
mod together;
mod upgrade;
