//! The experiments, one file each.

use crate::experiment::Experiment;

pub mod bio_cache;
mod data;
pub mod dio_completion;
pub mod elsewhere;
pub mod in_flight;
pub mod io_wq;
pub mod plug_clock;
#[cfg(test)]
mod verdict_tests;

/// All experiments, in the order in which they run. To add an experiment, add a file to this directory and a line here.
pub static ALL: &[&dyn Experiment] =
    &[&bio_cache::BioCache, &dio_completion::DioCompletion, &in_flight::InFlight, &io_wq::IoWq, &plug_clock::PlugClock];

/// Finds an experiment by its name.
pub fn find(id: &str) -> Option<&'static dyn Experiment> {
    ALL.iter().copied().find(|experiment| experiment.id() == id)
}
