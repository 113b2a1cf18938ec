//! The look of arms, the same in every plot: a colour by class, and a shape by number.

use super::json::Json;
use crate::terms::{ArmInfo, Role};

/// Shapes of marks, with their numbers in the script. Shapes are needed because in print the colour alone does not
/// distinguish series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Disc,
    Square,
    Triangle,
    /// A square standing on a corner.
    Diamond,
    /// Two crossed lines.
    Cross,
    /// A disc that is empty inside.
    Ring,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// CSS class of the colour.
    pub class: String,
    pub mark: Mark,
    pub name: &'static str,
}

impl Look {
    /// Returns the look as an array for the script: name, class, shape.
    pub fn json(&self) -> Json {
        Json::List(vec![self.name.into(), self.class.as_str().into(), (self.mark as u32).into()])
    }
}

/// Returns the looks of an experiment's arms. Before, seed and after look the same in all experiments.
pub fn looks(arms: &[ArmInfo]) -> Vec<Look> {
    let mut others = 0;
    let mut look = |arm: &ArmInfo| {
        let (class, mark) = match arm.role {
            Role::Before => ("before".into(), Mark::Square),
            Role::Seed => ("seed".into(), Mark::Triangle),
            Role::After => ("after".into(), Mark::Disc),
            Role::Other => {
                others += 1;
                (format!("other{}", (others - 1) % 4 + 1), [Mark::Diamond, Mark::Ring, Mark::Cross][others % 3])
            }
        };
        Look { class, mark, name: arm.name }
    };
    arms.iter().map(&mut look).collect()
}
