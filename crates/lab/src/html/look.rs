//! How arms look, in every plot the same: colour by class, shape by number.

use super::json::Json;
use crate::terms::{ArmInfo, Role};

/// Shapes of marks, by their number in the script; colour alone does not tell series apart in print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A disc.
    Disc,
    /// A square.
    Square,
    /// A triangle.
    Triangle,
    /// A square on its corner.
    Diamond,
    /// Two lines.
    Cross,
    /// A disc that is empty inside.
    Ring,
}

/// How an arm looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Class of its colour.
    pub class: String,
    /// Shape of its marks.
    pub mark: Mark,
    /// In legends.
    pub name: &'static str,
}

impl Look {
    /// For the script: name, class, shape.
    pub fn json(&self) -> Json {
        Json::List(vec![self.name.into(), self.class.as_str().into(), (self.mark as u32).into()])
    }
}

/// How the arms of an experiment look: before, seed and after alike in all experiments.
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
