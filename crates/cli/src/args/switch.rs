//! What an option says that is on or off: one type for all commands that have such an option.

use clap::ValueEnum;

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

impl Switch {
    /// As a bool.
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

impl From<bool> for Switch {
    fn from(is_on: bool) -> Self {
        if is_on { Self::On } else { Self::Off }
    }
}
