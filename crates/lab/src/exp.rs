//! The experiments, one file each.

use crate::experiment::Experiment;

pub mod bio_cache;
pub mod dio_completion;

/// All of them, in the order in which they run. An experiment is a file of this directory and a line here.
pub static ALL: &[&dyn Experiment] = &[&bio_cache::BioCache, &dio_completion::DioCompletion];

/// The experiment of a name.
pub fn find(id: &str) -> Option<&'static dyn Experiment> {
    ALL.iter().copied().find(|experiment| experiment.id() == id)
}
